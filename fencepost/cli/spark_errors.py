"""What went wrong in Spark, for a person at a terminal: Spark's own error is pages long."""

from __future__ import annotations

import re


def reason_of(problem: Exception) -> str:
    """The error that a worker raised, extracted from Spark's: without the traceback if it is one of ours. If
    Spark's error has no traceback, its first line.
    """
    lines = [line for line in str(problem).splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"fencepost[\w.]+: ", line)]
    if raised:
        return raised[-1].partition(": ")[2]
    has_traceback = any("Traceback (most recent call last)" in line for line in lines)
    return "\n".join(line for line in lines if not line.startswith("\tat ")) if has_traceback else lines[0]
