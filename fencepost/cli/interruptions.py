"""Ctrl-C and SIGTERM end a command as exceptions. If Python drops one, the signal is sent again.

Python calls the handler of a signal between two instructions of the main thread, wherever that is: also in
`__del__`, and in the callback of a weak reference, of which each import has one. These cannot raise: Python
prints the exception of the handler and continues, so a command on which Ctrl-C was pressed would run on.

Rule: imports little, because it protects the first imports of a command.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from _thread import start_new_thread
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
AGAIN_AFTER_S: Final = 0.01  # by then, the callback is over


class Stopped(BaseException):
    """A signal ended the command. It unwinds as Ctrl-C does, past every `except Exception`."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number  # as shells report it


Ended = (KeyboardInterrupt, Stopped)
"""How a user ends a running command: Ctrl-C or SIGTERM."""


def resend_dropped_signals() -> None:
    """From now on, if Python drops the exception of a signal, the process sends itself the signal again."""
    sys.unraisablehook = _send_again


@contextmanager
def deferred_signals() -> Generator[None]:
    """Defers signals to the end of this block. A process that is started in it never gets Ctrl-C, not even
    during its imports, because it inherits the signal mask.
    """
    arrived: list[int] = []

    def keep(number: int, _frame: FrameType | None) -> None:
        arrived.append(number)

    # The mask alone would not do: Ctrl-C may reach another thread, and the handler runs in the main
    # thread.
    handlers = {number: signal.signal(number, keep) for number in SIGNALS}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in arrived:
            signal.raise_signal(number)


def _send_again(dropped: UnraisableHookArgs) -> None:
    if isinstance(dropped.exc_value, Ended):
        is_ctrl_c = isinstance(dropped.exc_value, KeyboardInterrupt)
        start_new_thread(_send, (signal.SIGINT if is_ctrl_c else signal.SIGTERM,))
    else:
        sys.__unraisablehook__(dropped)


def _send(number: int) -> None:
    time.sleep(AGAIN_AFTER_S)
    os.kill(os.getpid(), number)
