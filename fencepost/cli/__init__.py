"""The command line.

Rule: a command imports its dependencies when it runs, so that `fencepost serve` starts fast.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command in sys.argv and exits with its code."""
    from fencepost.cli.application import run_as_process

    sys.exit(run_as_process(sys.argv[1:]))
