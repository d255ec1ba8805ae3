"""What clients saw of a run, as values: operations of sequential processes, in the order in which they
ended.

Rule: nothing in here knows of logs, markers or brokers: the black-box rules go by what a client can see.
Values are unique per partition, so that a value that was read names its writer. Tuples, since a run builds
them by the thousand.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from fencepost.protocol.terms import IsolationLevel, TopicPartition

Record = tuple[int, bytes]  # an offset and the value that stood there

_SET: Final = b"="
_DELETED: Final = b"~"


def keyed(key: bytes, value: bytes, *, is_tombstone: bool) -> bytes:
    """The value that judges see of a record with a key: it names the key. That of a tombstone, which has no
    value, is whatever tells it from all others.
    """
    return key + (_DELETED if is_tombstone else _SET) + value


def key_of(value: bytes) -> tuple[bytes, bool]:
    """The key in such a value, and whether it is that of a tombstone."""
    at = min(place for place in (value.find(_SET), value.find(_DELETED)) if place >= 0)
    return value[:at], value[at : at + 1] == _DELETED


class OperationOutcome(Enum):
    """What a process learned of its operation (Jepsen's ok, fail and info)."""

    OK = "ok"  # all of it has happened
    FAIL = "fail"  # its writes definitely did not happen: aborted, or its commit was never asked for
    INFO = "info"  # unknown; of a transaction all of its writes have happened or none, else any of them


class Write(NamedTuple):
    """A value sent to a partition, and the offset that was acknowledged for it, if one was."""

    partition: TopicPartition
    value: bytes
    offset: int | None = None


class Poll(NamedTuple):
    """What one poll returned of one partition, in the order in which it came."""

    partition: TopicPartition
    records: tuple[Record, ...]


class PositionSet(NamedTuple):
    """The consumer's position was set, by an assignment or a seek, so what it reads next need not follow what
    it read last. Records before the position count as lost unless someone else has read them.
    """

    partition: TopicPartition


Action = Write | Poll | PositionSet


class ClientOperation(NamedTuple):
    """One step of a process; a transaction with all of its polls and writes is one.

    The process is sequential: its operations stand in the history in its own order, and one that was
    restarted has another name or sets its positions again. What polls returned counts whatever the outcome
    of the operation, since no abort takes it back. `commit_asked_at` is when a transaction's commit was first
    sent: before that it cannot have been decided. Times are integer nanoseconds.
    """

    process: str
    number: int
    outcome: OperationOutcome
    actions: tuple[Action, ...]
    invoked_at: int
    completed_at: int
    transactional: bool = False
    isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED
    commit_asked_at: int | None = None

    def __str__(self) -> str:
        return f"{self.process}#{self.number}"
