"""Who has no PySpark hears of it before the demonstration begins, and how to get it."""

from __future__ import annotations

import subprocess
import sys

from fencepost.cli.errors import FAILED

WITHOUT_SPARK = """
import sys
sys.modules["pyspark"] = None
sys.argv = ["fencepost", "demo", "--flights", "1000"]
from fencepost.cli import main
sys.exit(main())
"""


def test_a_demonstration_without_spark_says_how_to_get_it() -> None:
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK], capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == FAILED
    assert run.stdout == ""
    assert "pip install 'fencepost[spark]'" in run.stderr
    assert "Traceback" not in run.stderr
