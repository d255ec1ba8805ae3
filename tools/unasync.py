"""Generates the blocking clients from the async ones, as httpcore does: `python -m tools.unasync`.

Rule: the two differ only by word replacements. Any other difference belongs in the drivers.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

SHELLS: Final = Path(__file__).resolve().parent.parent / "fencepost" / "client" / "shells"
SOURCE: Final = SHELLS / "aio.py"
TARGET: Final = SHELLS / "sync.py"

TITLE: Final = '''"""The blocking producer, consumer and admin.

`python -m tools.unasync` generates this file from `aio.py`; edit that one. The drivers hold the differences
between the two; `client/calls.py` implements the calls.
"""
'''

WORDS: Final = (
    (r"\basync (def|with)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\b__a(enter|exit)__\b", r"__\1__"),
    (r"\baio_driver\b", "sync_driver"),
    (r"\bAsync(?=[A-Z])", ""),
)


def blocking(source: str) -> str:
    """Returns the blocking module for an async one, formatted."""
    code = TITLE + source.partition('"""')[2].partition('"""\n')[2]
    for words, replacement in WORDS:
        code = re.sub(words, replacement, code)
    # The replacements change the order of imports and the length of lines.
    for command in (["check", "--select", "I", "--fix", "--quiet"], ["format", "--quiet"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(TARGET), "-"]
        code = subprocess.run(ruff, input=code, capture_output=True, text=True, check=True).stdout
    return code


if __name__ == "__main__":
    TARGET.write_text(blocking(SOURCE.read_text()))
