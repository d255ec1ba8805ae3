"""The history of a topic that was deleted and created again, as the black box gets it."""

from __future__ import annotations

from fencepost.protocol.terms import TopicPartition
from fencepost.simulator.judges.black_box import check
from fencepost.simulator.judges.operations import ClientOperation, OperationOutcome, Poll, Write
from fencepost.simulator.judges.recreated_topics import of_the_last_topics

KEPT, FLEETING = TopicPartition("payments", 0), TopicPartition("fleeting", 0)
DELETED_AT, CREATED_AT = 100, 200
READER = "final"


def wrote_plainly(begun: int, ended: int) -> ClientOperation:
    actions = (Write(KEPT, b"kept", 0), Write(FLEETING, b"fleeting", 0))
    return ClientOperation("strayer", 0, OperationOutcome.OK, actions, begun, ended)


def wrote(begun: int, ended: int) -> ClientOperation:
    """A committed transaction in both topics."""
    actions = (Write(KEPT, b"kept", 0), Write(FLEETING, b"fleeting", 0))
    return ClientOperation(
        "payer", 0, OperationOutcome.OK, actions, begun, ended, transactional=True, commit_asked_at=ended
    )


def read(*values: bytes) -> ClientOperation:
    actions = (
        Poll(KEPT, ((0, b"kept"),)),
        *(Poll(FLEETING, ((offset, value),)) for offset, value in enumerate(values)),
    )
    return ClientOperation(READER, 0, OperationOutcome.OK, actions, 300, 400)


def broken(*operations: ClientOperation) -> list[str]:
    seen = of_the_last_topics(
        operations, {FLEETING}, deleted_at=DELETED_AT, created_at=CREATED_AT, last_reader=READER
    )
    verdict = check(seen, finally_read=(KEPT, FLEETING))
    return [anomaly.rule.name for anomaly in verdict.anomalies]


def test_a_record_of_the_deleted_topic_must_not_be_read() -> None:
    assert broken(wrote(10, 50), read()) == []
    assert broken(wrote(10, 50), read(b"fleeting")) == ["phantom"]


def test_nor_one_that_was_written_without_a_transaction() -> None:
    assert broken(wrote_plainly(10, 50), read()) == []
    assert broken(wrote_plainly(10, 50), read(b"fleeting")) == ["phantom"]
    assert broken(wrote_plainly(50, 150), read(b"fleeting")) == []


def test_a_record_that_may_be_in_either_topic_may_be_missing() -> None:
    assert broken(wrote(50, 150), read()) == []
    assert broken(wrote(50, 150), read(b"fleeting")) == []


def test_a_record_of_the_new_topic_must_be_read() -> None:
    assert broken(wrote(210, 250), read(b"fleeting")) == []
    assert broken(wrote(210, 250), read()) == ["torn-transaction", "unseen"]
