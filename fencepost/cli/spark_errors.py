"""What went wrong in Spark, for a person at a terminal: Spark's own error is pages long."""

from __future__ import annotations

import re


def reason_of(problem: Exception) -> str:
    """What a worker raised, extracted from Spark's error; else the first line of that."""
    lines = [line for line in str(problem).splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"fencepost[\w.]+: ", line)]
    return raised[-1].partition(": ")[2] if raised else lines[0]
