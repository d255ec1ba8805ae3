"""Signals and the blocking clients: the main thread, where signal handlers run, leaves the steps of a client
to a deputy and waits for it.

Rule: what a deputy does is done whole; the main thread holds no lock of a client.
"""

# Python runs a signal handler in the main thread, between two instructions of whatever runs there. The
# handler may raise, as the one of Ctrl-C does, or close the client that it interrupts. In the middle of a
# step of a machine, the first would leave half a step behind: records that are sent twice or never, a commit
# whose answer is forgotten. The second would wait for a lock that its own thread holds. So the main thread
# runs no such step:
#
#     main thread                                      deputy
#     -----------                                      ------
#     undisturbed(work)              -- order -->      work()
#     waits, and only waits
#         a handler raises: it is noted  ------->      a script gets it where it waits (sync_driver.py)
#         a handler calls a client: another deputy does that work
#     returns or raises the result   <-- ended --      waits for the next order
#
# The waits of the main thread end at once for a handler, and continue after it. Orders are handed over once
# per call or batch, since that takes about 20 microseconds; the hot path of `send` protects itself
# (send_turn.py). In other threads no handler runs, and they do their work themselves.
#
# A deputy is a thread that ends with the process; there are as many as handlers are nested. An exception of a
# handler may also hit `undisturbed` itself, between any two lines. An order can therefore be handed over
# again: it is done once, by the deputy that takes it first.

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeVar

ResultT = TypeVar("ResultT")

# How long the main thread waits before it looks whether a deputy has taken its order. None has if the process
# was forked, because threads are not.
_LOOK_AGAIN_S: Final = 0.1


class _Order(Generic[ResultT]):
    """Work that is done once."""

    result: ResultT

    def __init__(self, work: Callable[[], ResultT]) -> None:
        self._work = work
        self._turns = [True]
        self.problem: BaseException | None = None
        self.is_over = False
        self.end = threading.Lock()
        """Held until then."""
        self.end.acquire()

    @property
    def is_taken(self) -> bool:
        """Whether it is done, or being done."""
        return not self._turns

    def do(self) -> None:
        """Does the work, unless it is taken."""
        try:
            self._turns.pop()
        except IndexError:
            return
        try:
            self.result = self._work()
        except BaseException as problem:  # noqa: BLE001 - raised in the main thread
            self.problem = problem
        self.is_over = True
        self.end.release()


_orders: Final[SimpleQueue[_Order[Any]]] = SimpleQueue()
_free: Final[list[bool]] = []
"""An entry for each deputy that no order was promised to."""


def undisturbed(work: Callable[[], ResultT], interruptions: deque[BaseException] | None = None) -> ResultT:
    """Does the work, in the main thread by a deputy; returns its result, or raises its error.

    What signal handlers raise meanwhile is appended to `interruptions`, where the work may take it. What it
    has not taken is raised after its end.
    """
    if threading.get_ident() != threading.main_thread().ident:
        return work()
    order = _Order(work)
    raised = deque[BaseException]() if interruptions is None else interruptions
    while True:
        try:
            while not order.is_over:  # within the `try`, for a handler may also run at the end of a loop
                if not order.is_taken:
                    _hand_over(order)
                order.end.acquire(timeout=_LOOK_AGAIN_S)
            break
        except BaseException as interruption:  # noqa: BLE001 - raised below
            raised.append(interruption)
    problem = order.problem
    try:
        if raised:
            interruption = raised.popleft()
            if problem is None:
                interruption.add_note("Before this interruption, the call had ended")
            raise interruption from problem
        if problem is not None:
            raise problem
        return order.result
    finally:
        del order, problem  # or the traceback of the problem refers to itself


def _hand_over(order: _Order[Any]) -> None:
    try:
        _free.pop()
    except IndexError:
        try:
            threading.Thread(target=_serve, name="fencepost-call", daemon=True).start()
        except RuntimeError:  # there are too many threads, or the interpreter is about to end
            order.do()
            return
    _orders.put(order)


def _serve() -> None:
    """What a deputy does."""
    while True:
        order = _orders.get()
        order.do()
        del order  # it refers to the client and to the result
        _free.append(True)
