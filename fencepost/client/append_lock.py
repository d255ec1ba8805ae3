"""Which thread may append records to the batches of a producer: a lock that costs a record almost nothing.

Rule: nothing is waited for while it is held.
"""

# A `threading.Lock` around each record would cost a fifth of `send`. But deleting an attribute is one
# instruction of the interpreter, which fails if there is no such attribute. No other thread runs in the
# middle of an instruction, so of two threads that delete `is_free`, one succeeds and holds the lock:
#
#     try:
#         del lock.is_free           the lock is mine, or AttributeError: another thread appends
#     except AttributeError:         `with lock` waits for it, on the slow path
#         ...
#     try:
#         append a record            a few instructions
#     finally:
#         lock.is_free = True
#
# The interpreter calls signal handlers only after calls and at the ends of loops, neither of which is between
# the deletion and the second `try`. So Ctrl-C never leaves a lock that nobody releases. `with lock` has no
# such `try` and is for steps in which no signal handler raises (shells/signals.py). A handler that sends may
# wait forever, because it interrupts the thread that holds the lock; `threading.Lock` is no better.

from __future__ import annotations

import time


class AppendLock:
    """The lock for appending. As a context manager: waits until it is free."""

    __slots__ = ("is_free",)

    is_free: bool
    """Always true; while the lock is held, the attribute does not exist."""

    def __init__(self) -> None:
        self.is_free = True

    def __enter__(self) -> None:
        while True:
            try:
                del self.is_free
            except AttributeError:
                time.sleep(0)  # lets the other thread run; it holds the lock for a few instructions
            else:
                return

    def __exit__(self, *_problem: object) -> None:
        self.is_free = True
