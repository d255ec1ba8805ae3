"""How a command fails: what went wrong, what to do next, and the exit code.

Rule: an expected error prints two lines on stderr: the cause, and a next step that a person at a terminal can
take. The advice of the client's own exceptions is for programs (`seek()`, `flush()`) and is left out. Any
other exception is a bug and shows its traceback.
"""

from __future__ import annotations

import re
import signal
import sys
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import Final

from fencepost.cli.interruptions import Stopped
from fencepost.cli.likely_paths import did_you_mean, did_you_mean_beside
from fencepost.client.errors import (
    AuthenticationFailed,
    AuthorizationFailed,
    ClientError,
    CommitOutcomeUnknown,
    CorruptRecords,
    DeliveryFailed,
    RequestTimeout,
    TransactionAborted,
    UnknownTopic,
)
from fencepost.client.metadata import NOT_A_BROKER
from fencepost.journal.storage import NotADataDirectory
from fencepost.protocol.errors import ErrorCode, FencepostError, Unusable
from fencepost.protocol.terms import ID_LENGTH_MAX, escaped

OK: Final = 0
FAILED: Final = 1
WRONG_USAGE: Final = 2
NO_BROKER: Final = 3
INTERRUPTED: Final = 128 + signal.SIGINT  # as shells report Ctrl-C
EXIT_CODES: Final = {
    OK: "Success. For a command that looks for problems: it found none.",
    FAILED: "The operation failed: a topic, partition, group or record does not exist, a line of "
    "the input is not a record, a limit is reached, a disk is full, or the broker does not answer in time. "
    "Or a command found a problem: "
    "`find-hanging`, `late`, `check`, `audit`, `repair` without --write, `status`, `run`, "
    "`fuzz`, `explore`, `demo`. Or `fault wait` gave up before a fault struck.",
    WRONG_USAGE: "The command line, a configuration file or a scenario is wrong: an unknown option, an "
    "invalid value, a file that does not exist. Or PySpark, Java or a package that the command needs is not "
    "installed. Nothing was done.",
    NO_BROKER: "No broker listens at the address, or the broker refuses the login.",
    INTERRUPTED: "Ctrl-C. `serve` and `lab` exit with 0 instead once they are ready: Ctrl-C is the normal "
    "way to stop them.",
    128 + signal.SIGTERM: "SIGTERM. `serve` and `lab` exit with 0 instead once they are ready.",
}

# What a person at a terminal can do about an error code. One code serves several commands (creating an
# unknown topic helps in `produce`, not in `topic delete`), so each sentence fits all of them.
ADVICE: Final = {
    ErrorCode.PRODUCER_FENCED: "stop the other producer, or choose another transactional id",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "`fencepost topic list` shows the topics",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "`fencepost transactions list` shows the transactional ids",
    ErrorCode.TOPIC_ALREADY_EXISTS: "`fencepost topic describe` shows the existing topic",
    ErrorCode.GROUP_ID_NOT_FOUND: "`fencepost group list` shows the groups",
    ErrorCode.NON_EMPTY_GROUP: "stop its members first; `fencepost group describe` shows them",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "stop its members first; `fencepost group describe` shows them",
    ErrorCode.OFFSET_OUT_OF_RANGE: "`fencepost topic describe` shows where the logs start and end",
    ErrorCode.MESSAGE_TOO_LARGE: "`fencepost topic describe` shows max.message.bytes of the topic, and "
    "`fencepost topic alter` raises it",
    ErrorCode.INVALID_RECORD: "a record of a compacted topic needs a key (`fencepost help compaction`)",
    ErrorCode.INVALID_CONFIG: "`fencepost help compaction` lists the settings of a topic",
    ErrorCode.CONCURRENT_TRANSACTIONS: "the previous transaction of this id is still ending; try again",
    ErrorCode.KAFKA_STORAGE_ERROR: "see the broker's log; stop the broker, then run `fencepost check DIR`",
    ErrorCode.INVALID_GROUP_ID: f"give a group id of 1 to {ID_LENGTH_MAX} characters",
    ErrorCode.INVALID_PARTITIONS: "`fencepost topic describe` shows how many partitions there are",
    ErrorCode.POLICY_VIOLATION: "`fencepost help trust` lists the limits of a broker",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "choose another name, of up to 249 ASCII letters, digits, '.', '_' "
    "and '-'",
}

REQUEST_NAME: Final = re.compile(r"^[A-Z]\w+: ")
"""Refusals begin with the request (`Metadata: topic 'x' does not exist`), which helps only programmers."""


class CommandFailed(FencepostError):
    """A command cannot do what the user asked for; `then` is the next step."""

    def __init__(self, what: str, *, then: str = "", code: int = FAILED) -> None:
        super().__init__(what)
        self.then = then
        self.code = code


class WrongUsage(CommandFailed):
    """What the user gave cannot be used: an option, a file, a scenario. Nothing was done."""

    def __init__(self, what: str, *, then: str = "") -> None:
        super().__init__(what, then=then, code=WRONG_USAGE)


STDOUT: Final = "standard output"
"""The file name of an error about it."""
BAD_PATH: Final = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
CHECK_THE_LOGIN: Final = (
    "check the security settings in --command-config FILE and in the environment (`fencepost help access`)"
)
MAKE_ROOM: Final = "free some space, or write to another disk"
CHECK_THE_PATH: Final = "check the path"
AND_THE_RIGHTS: Final = ", and the rights of the user of this process"
START_A_BROKER: Final = (
    "start a broker with `fencepost serve DIR`, or give the address of a running one with --bootstrap-server"
)

TIMED_OUT: Final = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE)
"""The errors of a transaction that its coordinator has timed out."""
END_SOONER: Final = (
    "the transaction has probably timed out, which happens after a minute; write fewer records in each with "
    "--records-per-transaction"
)
CREATE_THE_TOPIC: Final = "`fencepost topic create` creates a topic; `fencepost topic list` shows the topics"
TRY_AGAIN: Final = "try again; if it fails again, check the broker"
ANOTHER_SERVER: Final = (
    "check the address: another program may listen there, or a broker that speaks Kafka's protocol only "
    "(`fencepost serve --protocol kafka`); if it is the right broker, it may be suspended"
)


def code_of(ended: BaseException) -> int:
    """The exit code after Ctrl-C or a signal."""
    return ended.code if isinstance(ended, Stopped) else INTERRUPTED


def report(problem: Exception) -> int:
    """Prints an expected error and returns its exit code; re-raises any other."""
    code, then = FAILED, ""
    match problem:
        case ExceptionGroup(exceptions=(Exception() as only,)):
            return report(only)  # a trio nursery wraps the one error of its task
        case CommandFailed():
            what, then, code = str(problem), problem.then, problem.code
        case RequestTimeout():  # a broker accepted the connection, so do not advise to start one
            what = problem.because
            then = ADVICE.get(problem.error, ANOTHER_SERVER if NOT_A_BROKER in what else TRY_AGAIN)
        case CommitOutcomeUnknown():
            what, then = problem.because, "`fencepost transactions describe` shows how it ended"
        case CorruptRecords():
            what, then = problem.because, f"{ADVICE[ErrorCode.KAFKA_STORAGE_ERROR]}; --from skips the damage"
        case UnknownTopic():
            what, then = problem.because, CREATE_THE_TOPIC
        case AuthenticationFailed():
            what, then, code = problem.because, CHECK_THE_LOGIN, NO_BROKER
        case AuthorizationFailed():
            what = REQUEST_NAME.sub("", problem.because)
            then = "an administrator can allow it in the broker's ACL file (`fencepost help access`)"
        case TransactionAborted() | DeliveryFailed() if problem.error in TIMED_OUT:
            what, then = problem.because, END_SOONER
        case ClientError():
            what, then = REQUEST_NAME.sub("", problem.because), ADVICE.get(problem.error, "")
        case ConnectionError() if problem.filename is None:  # with a name, it is a pipe that is closed
            what, then, code = str(problem), START_A_BROKER, NO_BROKER
        case NotADataDirectory(location=str() as location):
            what, then, code = str(problem), did_you_mean(Path(location)), WRONG_USAGE
        case Unusable():
            what, code = str(problem), WRONG_USAGE
        case OSError() if problem.filename is not None:
            what, (then, code) = f"{problem.filename}: {problem.strerror}", _advice_on_file(problem)
        case FencepostError() | OSError():
            what = str(problem)
        case _:
            raise problem
    complain(what, then=then)
    return code


def _advice_on_file(problem: OSError) -> tuple[str, int]:
    """What to do about an error of a file, and the exit code."""
    if isinstance(problem, FileNotFoundError) and (meant := did_you_mean_beside(Path(problem.filename))):
        return meant, WRONG_USAGE
    if isinstance(problem, BAD_PATH):
        rights = AND_THE_RIGHTS if isinstance(problem, PermissionError) else ""
        return f"{CHECK_THE_PATH}{rights}", WRONG_USAGE
    return MAKE_ROOM if problem.errno in (ENOSPC, EDQUOT) else "", FAILED


MUST_NOT_BE_EMPTY: Final = "Must not be empty."  # the value of an option


def complain(what: str, *, then: str = "") -> None:
    """One error on stderr."""
    text = f"fencepost: {what}\n  {then}" if then else f"fencepost: {what}"
    print("\n".join(map(escaped, text.split("\n"))), file=sys.stderr)
