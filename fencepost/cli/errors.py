"""How a command fails: what went wrong, what to do next, and the exit code.

Rule: what is expected to go wrong is told in two lines on stderr; the rest is a bug and shows its traceback.
"""

from __future__ import annotations

import signal
import sys
from typing import Final

from fencepost.client.errors import ClientError, RequestTimeout
from fencepost.protocol.errors import ErrorCode, FencepostError

OK: Final = 0
FAILED: Final = 1
WRONG_USAGE: Final = 2
NO_BROKER: Final = 3
INTERRUPTED: Final = 128 + signal.SIGINT  # as shells report Ctrl-C

# What someone at a terminal can do about what a broker refused.
ADVICE: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "make it with `fencepost topic create`",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "`fencepost transactions list` shows the transactional ids",
    ErrorCode.TOPIC_ALREADY_EXISTS: "`fencepost topic describe` shows it",
    ErrorCode.GROUP_ID_NOT_FOUND: "`fencepost group list` shows the groups",
    ErrorCode.NON_EMPTY_GROUP: "stop its members first; `fencepost group describe` shows them",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "stop its members first; `fencepost group describe` shows them",
    ErrorCode.OFFSET_OUT_OF_RANGE: "`fencepost topic describe` shows where the logs start and end",
    ErrorCode.INVALID_CONFIG: "max.message.bytes=BYTES is what a topic can be given",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "use up to 249 ASCII letters, digits, '.', '_' and '-'",
}


class CommandFailed(FencepostError):
    """A command cannot do what it was asked; `then` says what the user can do about it."""

    def __init__(self, what: str, *, then: str = "", code: int = FAILED) -> None:
        super().__init__(what)
        self.then = then
        self.code = code


class Stopped(BaseException):
    """A signal ended the command; it unwinds as Ctrl-C does, past every `except Exception`."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number  # as shells report it


Ended = (KeyboardInterrupt, Stopped)
"""How whoever started a command ends it: Ctrl-C, or SIGTERM."""


def code_of(ended: BaseException) -> int:
    """The exit code of a command that was ended so."""
    return ended.code if isinstance(ended, Stopped) else INTERRUPTED


def report(problem: Exception) -> int:
    """Prints an expected error and returns its exit code; raises any other again."""
    match problem:
        case ExceptionGroup(exceptions=(Exception() as only,)):
            return report(only)  # what a trio nursery wraps around the one thing that went wrong
        case CommandFailed():
            complain(str(problem), then=problem.then)
            return problem.code
        case ClientError(error=error) if error in ADVICE:
            complain(str(problem), then=ADVICE[error])
            return FAILED
        case RequestTimeout() | ConnectionError():
            complain(str(problem), then="start a broker with `fencepost serve`, or name it with --bootstrap")
            return NO_BROKER
        case FencepostError() | OSError():
            complain(str(problem))
            return FAILED
        case _:
            raise problem


def complain(what: str, *, then: str = "") -> None:
    """One error on stderr."""
    print(f"fencepost: {what}", file=sys.stderr)
    if then:
        print(f"  {then}", file=sys.stderr)
