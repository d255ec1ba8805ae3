"""What the README shows is what happens: its pipeline, its tests of an application, and its commands.

Rule: the README is the script. Each command runs as it stands there, and what it prints is compared line by
line; numbers may differ, since they are offsets, times and counts of one run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fencepost

PAGE = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
CONSOLES = [block for language, block in BLOCKS if not language and block.startswith("$ ")]
SERVE = "fencepost serve data"
MORE = "..."
"""As a line of the README: other lines stand here. At the end of a line: the line goes on."""


def programs(word: str) -> list[str]:
    """The Python programs of the README in which a word occurs."""
    return [block for language, block in BLOCKS if language == "python" and word in block]


def commands() -> list[tuple[str, list[str]]]:
    """Each command, and the lines that the README shows below it."""
    parts = [part for block in CONSOLES for part in re.split(r"^\$ ", block, flags=re.MULTILINE) if part]
    return [(part.splitlines()[0], part.splitlines()[1:]) for part in parts]


def pattern(shown: list[str]) -> str:
    """What matches the shown lines with any numbers and topic ids, and with columns of any width."""
    lines: list[str] = []
    for line in shown:
        words = r"[ \t]+".join(re.escape(word) for word in line.removesuffix(MORE).split())
        fixed = re.sub(r"\d+(?:,\d+)*", lambda _: r"[\d,]+", words)
        fixed = re.sub(r'(?<=")[A-Za-z]{22}(?=")', lambda _: r"[\w-]{22}", fixed)
        lines.append(fixed if not line.endswith(MORE) else f"{fixed}[^\n]*" if fixed else r"(?:.*\n)*?.*")
    return r"[ \t]*" + r"[ \t]*\n[ \t]*".join(lines) + r"\s*"


def test_the_pipeline_of_the_readme_runs(tmp_path: Path) -> None:
    [pipeline] = programs("Broker()")
    script = tmp_path / "pipeline.py"
    script.write_text(pipeline, encoding="utf-8")
    run = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=300, cwd=tmp_path, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert f"It prints `{run.stdout.strip()}`." in PAGE


def test_the_tests_of_the_readme_pass(tmp_path: Path) -> None:
    [tests] = programs("@fencepost.sweep")
    (tmp_path / "test_shop.py").write_text(tests, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_shop.py"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, check=False)
    assert " 2 passed in " in run.stdout, run.stdout + run.stderr


def test_the_commands_of_the_readme_print_what_it_shows(tmp_path: Path) -> None:
    broker = fencepost.BrokerProcess(tmp_path / "data")
    # As wide as what the README shows.
    environment = {
        **os.environ,
        "COLUMNS": "80",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    differences: list[str] = []
    try:
        for command, shown in commands():
            if command == SERVE:
                broker.start()
                environment["FENCEPOST_BOOTSTRAP_SERVER"] = broker.address
                continue
            if " check data" in command:
                broker.stop()
            run = subprocess.run(
                ["bash", "-c", command],
                capture_output=True,
                text=True,
                timeout=300,
                cwd=tmp_path,
                env=environment,
                check=False,
            )
            if not re.fullmatch(pattern(shown), run.stdout):
                differences.append(
                    f"$ {command}\n{run.stdout}{run.stderr}--- in the README:\n" + "\n".join(shown)
                )
    finally:
        broker.stop()
    assert not differences, "\n\n".join(differences)
    assert len(commands()) >= 14


@pytest.mark.parametrize(
    ("shown", "printed", "is_same"),
    [
        (["3 records written"], "14 records written\n", True),
        (["a  b", "1  2"], "a b\n17 2\n", True),
        (["first", "...", "last"], "first\n1\n2\nlast\n", True),
        (["with 5 more, ..."], "with 7 more, and so on\n", True),
        (["3 records written"], "3 records lost\n", False),
        (["one line"], "one line\nand another\n", False),
        (["one line", "and another"], "one line\n", False),
    ],
)
def test_a_difference_is_noticed(shown: list[str], printed: str, is_same: bool) -> None:
    assert bool(re.fullmatch(pattern(shown), printed)) == is_same
