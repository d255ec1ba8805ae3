"""Histories of client operations in few words, for the black-box judge to look at.

Rule: a story says what clients saw; whether a broker may have shown it to them is for the judge to say.
"""

from __future__ import annotations

import attrs

from fencepost.protocol.terms import IsolationLevel, TopicPartition
from fencepost.simulator.judges.operations import Action, ClientOperation, OperationOutcome, Poll, Write

A = TopicPartition("a", 0)
B = TopicPartition("b", 0)

OK, FAIL, INFO = OperationOutcome.OK, OperationOutcome.FAIL, OperationOutcome.INFO


def plain(process: str, *actions: Action, outcome: OperationOutcome = OK) -> ClientOperation:
    """An operation outside of any transaction."""
    return ClientOperation(process, 0, outcome, actions, 0, 0)


def peek(process: str, *actions: Action) -> ClientOperation:
    """Polls of a reader of everything."""
    return plain(process, *actions)._replace(isolation_level=IsolationLevel.READ_UNCOMMITTED)


def transaction(
    process: str, *actions: Action, outcome: OperationOutcome = OK, asked: int | None = None
) -> ClientOperation:
    """An operation that is one transaction; `asked` is when its commit was asked for."""
    return ClientOperation(process, 0, outcome, actions, 0, 0, transactional=True, commit_asked_at=asked)


def write(value: str, offset: int | None = None, *, to: TopicPartition = A) -> Write:
    """One record, acknowledged at `offset`."""
    return Write(to, value.encode(), offset)


def poll(*records: tuple[int, str], of: TopicPartition = A) -> Poll:
    """One poll and what it returned."""
    return Poll(of, tuple((offset, value.encode()) for offset, value in records))


@attrs.frozen
class Case:
    """A history, and the names of what is wrong with it; the operations happen one after the other."""

    title: str
    wrong: tuple[str, ...]
    history: tuple[ClientOperation, ...]
    finally_read: tuple[TopicPartition, ...] = ()


def case(
    title: str, wrong: str, *history: ClientOperation, finally_read: tuple[TopicPartition, ...] = ()
) -> Case:
    """Names in `wrong` are apart by a blank; times are given here."""
    numbered = tuple(
        operation._replace(number=at, invoked_at=at, completed_at=at) for at, operation in enumerate(history)
    )
    return Case(title, tuple(wrong.split()), numbered, finally_read)


ABC = plain("p", write("a", 0), write("b", 1), write("c", 2))
READS_ABC = plain("all", poll((0, "a"), (1, "b"), (2, "c")))
