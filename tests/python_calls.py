"""How much a piece of code does, counted: no clock says it twice alike."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def calls_of(what: Callable[[], object]) -> int:
    """How many Python functions it calls."""
    calls = 0

    def count(_frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        what()
    finally:
        sys.setprofile(None)
    assert calls, "calls are counted"
    return calls


def instructions_of(what: Callable[[], object]) -> int:
    """How many instructions of Python it runs: a comprehension over thousands of items calls nothing."""
    instructions = 0

    def count(frame: FrameType, event: str, _: object) -> Any:
        nonlocal instructions
        frame.f_trace_opcodes = True
        instructions += event == "opcode"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        what()
    finally:
        sys.settrace(before)
    assert instructions, "instructions are counted"
    return instructions
