"""Which thread appends records to the batches of a producer.

Rule: a thread appends only while its turn is the current one and says so. So threads may share a producer,
and a thread that is alone pays for no lock.
"""

# A lock around each record would cost a third of `send`. But a thread usually sends many records before
# another one does (the interpreter changes threads every few milliseconds), so the turn stays with the thread
# that took it last:
#
#     the thread whose turn it is             another thread, under the lock
#     ---------------------------             ------------------------------
#     turn.is_appending = True                before, current = current, ThreadTurn(mine)
#     is `current` still my turn?             wait while before.is_appending
#         yes: append                         append, or let the next records of this thread
#         no: append under the lock
#     turn.is_appending = False
#
# Each thread writes what the other one reads, and then reads what the other one writes. So either the first
# thread sees that its turn has ended, or the second one sees that it is appending; the interpreter's own lock
# keeps these steps in order. `is_appending` lasts for a few instructions, and nothing is waited for under it.

from __future__ import annotations

from threading import Event, Lock, get_ident

NO_THREAD = 0  # no thread has this identifier


class ThreadTurn:
    """The turn of one thread; it ends when another one becomes the current turn."""

    __slots__ = ("is_appending", "thread")

    def __init__(self, thread: int) -> None:
        self.thread = thread
        self.is_appending = False


class Turns:
    """The turns of the threads that share a producer. As a context: appends under the lock."""

    __slots__ = ("_lock", "_never", "current")

    def __init__(self) -> None:
        self.current = ThreadTurn(NO_THREAD)
        self._lock = Lock()
        self._never = Event()

    def take(self) -> ThreadTurn:
        """The turn of this thread: the current one until another thread takes its own."""
        with self as mine:
            return mine

    def __enter__(self) -> ThreadTurn:
        """Makes the turn of this thread the current one; no other can begin before the context ends."""
        self._lock.acquire()
        before, thread = self.current, get_ident()
        if before.thread == thread:
            return before
        self.current = mine = ThreadTurn(thread)
        try:
            while before.is_appending:
                self._never.wait(0)  # lets the other thread run
        except BaseException:  # Ctrl-C: the turn before may still be running
            self.current = before
            self._lock.release()
            raise
        return mine

    def __exit__(self, *_problem: object) -> None:
        self._lock.release()
