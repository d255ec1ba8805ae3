"""Signals and the blocking clients: in the main thread, where signal handlers run, a step of a client is
completed before a handler may raise.

Rule: while the main thread holds a lock of a client, no handler runs that could raise or call the client. A
handler that a callback of the program sets takes effect at the next call.
"""

# Python runs a signal handler in the main thread, between two instructions of whatever runs there. The
# handler may raise, as that of Ctrl-C does, or close the client that it interrupts. In the middle of a step
# of a machine, an exception would leave half a step behind: records that are sent twice or never, a commit
# whose reply is forgotten. And close() would wait for a lock that its own thread holds. There are two ways to
# prevent this. Nearly every program has no handler but Python's own, for Ctrl-C:
#
#     uninterrupted(work)
#         the handler of Ctrl-C only notes it now     a script gets it where it waits (sync_driver.py)
#         work()
#         Python's handler is back; what was noted and not taken is raised
#
# That takes a few microseconds. trio.run and asyncio.run treat Ctrl-C in the same way, with the same limit: a
# handler that a C library has installed behind Python's back is lost.
#
# The handlers of a program cannot be replaced like this: the program may look at them, and one that closes a
# client should do it at once. If there are any, the main thread hands its steps to a worker thread:
#
#     main thread                                      worker
#     -----------                                      ------
#     uninterrupted(work)            -- task -->       work()
#     waits, and only waits
#         a handler raises: it is noted
#         a handler calls a client: another worker does that work
#     returns or raises the result   <-- done --       waits for the next task
#
# The waits of the main thread end at once for a handler, and continue after it. Waking two threads takes tens
# of microseconds, so a task is submitted once per call or batch; the hot path of `send` protects itself
# (append_lock.py). In other threads no handler runs, and they do their work themselves.
#
# A worker is a daemon thread; there are as many as there are nested handlers. An exception of a handler may
# also hit `uninterrupted` itself, between any two lines. A task can therefore be submitted again: it is run
# once, by the worker that takes it first.
#
# A callback of the program may call a client in the middle of a step. Its call may wait, for a broker that is
# down for example, so it takes what was noted for the step around it (`interruptions`). For the same reason
# nothing in a step waits for long without a look at what was noted.
#
# A program may need more than that: that no handler raises between a call and what the program notes about
# its result. In a block of `noting_interruptions` handlers run at once, but what they raise waits for a check
# of the block, or for a client that waits.

from __future__ import annotations

import _signal  # pyright: ignore[reportMissingModuleSource] - `signal` makes enums, which takes longer than a step
import os
import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Lock, Thread, get_ident, local, main_thread
from types import FrameType
from typing import Any, Final, Generic, TypeVar

ResultT = TypeVar("ResultT")

# How long the main thread waits before it checks whether a worker has taken its task. None has if the
# process was forked, because a fork copies no threads.
_LOOK_AGAIN_S: Final = 0.1
_INSIST_AFTER_S: Final = 0.2  # a block that checks nothing for so long waits for something
_SIGNALS: Final = tuple(map(int, signal.valid_signals()))  # numbers, because enums take longer
_SIGINT: Final = int(signal.SIGINT)
_OTHER_SIGNALS: Final = tuple(number for number in _SIGNALS if number != _SIGINT)
_main_thread = main_thread().ident
_harmless: Final[set[Any]] = {int(signal.SIG_DFL), int(signal.SIG_IGN), None}  # None: not set by Python
"""Handlers that raise nothing, and do not call a client."""


class _Here(local):
    """What this thread does."""

    is_at_work = False
    """Whether it is in `uninterrupted`: a callback of the program that calls a client is part of the work."""
    interruptions: list[BaseException] | None = None
    """Where what handlers raise is noted, if they do not raise it at once."""


_here = _Here()


def interruptions() -> list[BaseException]:
    """The exceptions of signal handlers that ran while this thread was at work: the code that takes one from
    the list raises it. A new list if the thread is neither at work nor in a block of `noting_interruptions`.
    """
    found = _here.interruptions
    return [] if found is None else found


def uninterrupted(work: Callable[[], ResultT], raised: list[BaseException] | None = None) -> ResultT:
    """Does the work to its end, whatever signal handlers do; returns its result, or raises its error.

    What they raise meanwhile is appended to `raised`, where the work may take it. What it has not taken is
    raised after its end, or by the block of `noting_interruptions` around it.
    """
    if _here.is_at_work or get_ident() != _main_thread:
        return work()
    if raised is None:
        raised = interruptions()
    is_pythons = _signal.getsignal(_SIGINT) is signal.default_int_handler
    if _have_handlers(_OTHER_SIGNALS if is_pythons else _SIGNALS):
        return _run_in_worker(work, raised)
    return _do_with_ctrl_c_noted(work, raised) if is_pythons else _at_work(work, raised)


def _have_handlers(signals: tuple[int, ...]) -> bool:
    try:
        return not _harmless.issuperset(map(_signal.getsignal, signals))
    except TypeError:  # one that cannot be hashed
        return True


def _at_work(work: Callable[[], ResultT], raised: list[BaseException]) -> ResultT:
    before, _here.interruptions, _here.is_at_work = _here.interruptions, raised, True
    try:
        return work()
    finally:
        _here.interruptions, _here.is_at_work = before, False


def _too_late(interruption: BaseException) -> BaseException:
    interruption.add_note("Before this interruption, the call had ended")
    return interruption


@contextmanager
def noting_interruptions(found: list[BaseException]) -> Generator[None]:
    """A block of the main thread that decides where it is interrupted: what signal handlers raise is noted in
    `found`. A client raises it where it waits, and the block where it may end:

        if found:
            raise found.pop(0)

    If that does not happen for a moment, the block waits for something else, and is interrupted there. The
    handlers must not call a client.
    """
    numbers = (number for number in _SIGNALS if callable(_signal.getsignal(number)))
    handlers: dict[int, Any] = {number: _signal.getsignal(number) for number in numbers}

    def insist(number: int) -> None:
        while found:
            time.sleep(_INSIST_AFTER_S)
            if found:
                signal.pthread_kill(main_thread().ident or 0, number)

    def note(number: int, frame: FrameType | None) -> None:
        if found:
            if not _here.is_at_work:
                raise found.pop(0)
            return
        try:
            handlers[number](number, frame)
        except BaseException as interruption:  # noqa: BLE001 - raised by the block
            found.append(interruption)
            Thread(target=insist, args=(number,), daemon=True).start()

    _harmless.add(note)
    _here.interruptions = found
    try:
        for number in handlers:
            _signal.signal(number, note)
        yield
    finally:
        _here.interruptions = None
        for number, handler in handlers.items():
            if _signal.getsignal(number) is note:
                _signal.signal(number, handler)
        _harmless.discard(note)
    if found:
        raise found.pop(0)


# --- Ctrl-C alone -------------------------------------------------------------------------------------------


class _NoteCtrlC:
    """A handler of Ctrl-C that raises nothing before its call has ended."""

    __slots__ = ("_is_over", "_noted")

    def __init__(self, noted: list[BaseException]) -> None:
        self._noted = noted
        self._is_over = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._is_over:  # a callback of the program, such as a debugger, has kept it and set it again
            signal.default_int_handler(number, frame)
        self._noted.append(KeyboardInterrupt())

    def end(self) -> None:
        """Python's handler is back, unless a callback of the program has set another one."""
        self._is_over = True
        try:
            if _signal.getsignal(_SIGINT) is self:
                _signal.signal(_SIGINT, signal.default_int_handler)
        except KeyboardInterrupt as interruption:
            self._noted.append(interruption)


def _do_with_ctrl_c_noted(work: Callable[[], ResultT], noted: list[BaseException]) -> ResultT:
    note = _NoteCtrlC(noted)
    try:
        _signal.signal(_SIGINT, note)
    except ValueError:  # an interpreter within another one: handlers run only in the outer one
        return work()
    try:
        result = _at_work(work, noted)
    except BaseException as problem:
        note.end()
        if noted:
            raise noted.pop(0) from problem
        raise
    note.end()
    if noted:
        raise _too_late(noted.pop(0))
    return result


def _forget_parent() -> None:
    """In a forked process the thread that forked is the main one, and calls of the other threads are gone."""
    global _main_thread
    _main_thread, _here.is_at_work, _here.interruptions = get_ident(), False, None
    note = _signal.getsignal(_SIGINT)
    if isinstance(note, _NoteCtrlC):
        note.end()


os.register_at_fork(after_in_child=_forget_parent)


# --- workers ------------------------------------------------------------------------------------------------


class _Task(Generic[ResultT]):
    """Work that is done once, however often it is submitted."""

    __slots__ = ("done", "is_done", "problem", "raised", "result", "unclaimed", "work")

    result: ResultT

    def __init__(self, work: Callable[[], ResultT], raised: list[BaseException]) -> None:
        self.work = work
        self.raised = raised
        self.unclaimed = [True]
        """Empty once a thread has claimed the task. `pop` is atomic, so only one thread can."""
        self.problem: BaseException | None = None
        self.is_done = False
        self.done = Lock()
        """Held until then."""
        self.done.acquire()

    def run(self) -> None:
        """Does the work, unless another thread has claimed it."""
        try:
            self.unclaimed.pop()
        except IndexError:
            return
        try:
            self.result = _at_work(self.work, self.raised)
        except BaseException as problem:  # noqa: BLE001 - raised in the main thread
            self.problem = problem
        self.is_done = True
        self.done.release()


_tasks: Final[SimpleQueue[_Task[Any]]] = SimpleQueue()
_idle: Final[list[bool]] = []
"""An entry for each worker that no task was promised to."""


def _run_in_worker(work: Callable[[], ResultT], raised: list[BaseException]) -> ResultT:
    task = _Task(work, raised)
    while True:
        try:
            while not task.is_done:  # within the `try`, for a handler may also run at the end of a loop
                if task.unclaimed:
                    _submit(task)
                task.done.acquire(True, _LOOK_AGAIN_S)
            break
        except BaseException as interruption:  # noqa: BLE001 - raised below
            raised.append(interruption)
    problem = task.problem
    try:
        if raised and problem is None:
            raise _too_late(raised.pop(0))
        if raised:
            raise raised.pop(0) from problem
        if problem is not None:
            raise problem
        return task.result
    finally:
        del task, problem  # or the traceback of the problem refers to itself


def _submit(task: _Task[Any]) -> None:
    try:
        _idle.pop()
    except IndexError:
        try:
            Thread(target=_run_tasks, name="fencepost-call", daemon=True).start()
        except RuntimeError:  # there are too many threads, or the interpreter is about to end
            task.run()
            return
    _tasks.put(task)


def _run_tasks() -> None:
    """The loop of a worker."""
    while True:
        task = _tasks.get()
        task.run()
        del task  # it refers to the client and to the result
        _idle.append(True)
