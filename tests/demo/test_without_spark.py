"""Who has no PySpark hears of it before the work begins, and how to get it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fencepost.cli.commands import COMMANDS
from fencepost.cli.errors import WRONG_USAGE

WITHOUT_SPARK = """
import sys
sys.modules["pyspark"] = None
from fencepost.cli import main
sys.exit(main())
"""
INSTALL = "pip install 'fencepost[spark,java]'"


@pytest.mark.parametrize("words", ["demo --flights 1000", "audit data", "export data lake"])
def test_a_command_without_spark_says_how_to_get_it(words: str) -> None:
    command = [sys.executable, "-c", WITHOUT_SPARK, *words.split()]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == WRONG_USAGE  # 1 would be a finding of audit, and of demo
    assert run.stdout == ""
    # The extras of the installed package: a checkout has them, too, without a release on any index.
    assert f"`{sys.executable} -m {INSTALL}` adds what is missing to this installation" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("command", ["audit", "export"])
def test_help_gives_the_same_answer(command: str) -> None:
    assert INSTALL in " ".join(COMMANDS[command].help.split())
