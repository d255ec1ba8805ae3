"""What Apache Kafka does too is excused only where the log bears it out."""

from __future__ import annotations

import attrs
import pytest

from fencepost.protocol.batches import place, read_header
from fencepost.protocol.records import build_data_batch
from fencepost.protocol.terms import TopicPartition
from fencepost.simulator.judges.known_anomalies import known_kafka
from fencepost.simulator.judges.operations import ClientOperation, OperationOutcome
from fencepost.simulator.judges.partition_rules import PartitionRecord
from fencepost.simulator.judges.rules import (
    DUPLICATE,
    LOST_WRITE,
    NONMONOTONIC_SEND,
    Anomaly,
    Exercised,
    Rule,
)

KEY = TopicPartition("in", 0)
OPERATION = ClientOperation("feeder", 0, OperationOutcome.OK, (), 0, 0)
UNKNOWN = "an unknown producer may start at any sequence"
FORGOTTEN = "a new leader knows one batch per producer"
AGAIN = "a retried batch lands after newer ones"

CASES = (
    (DUPLICATE, "A0 A0 | A1", (0, 2), FORGOTTEN),
    (DUPLICATE, "A0 A0 | B0", (0, 2), FORGOTTEN),
    (DUPLICATE, "A0 A0 A1", (0, 2), None),  # nobody took over: the partition forgot what it had to know
    (DUPLICATE, "A0 | A1", (0, 1), None),  # its last batch is what a new leader knows of a producer
    (DUPLICATE, "A0 | A0 A1", (0, 2), None),
    (DUPLICATE, "A0 A0 | A0", (0, 2), None),  # under the same identity it is no new batch
    (DUPLICATE, "| A0 A0 A1 |", (0, 2), None),
    (NONMONOTONIC_SEND, "B0 A0 A1", (1, 2), UNKNOWN),
    (NONMONOTONIC_SEND, "A0 A0 A1", (1, 2), None),  # known, and in order so far
    (NONMONOTONIC_SEND, "A0 A0 | A1", (1, 2), AGAIN),
    (NONMONOTONIC_SEND, "A0 A0 | A0", (1, 2), None),
    (LOST_WRITE, "A0 A0 | A1", (0, 2), None),
)
"""Batches by producer and epoch, and leaders that take over; then the offsets of the anomaly."""


def log_of(words: str) -> PartitionRecord:
    record = PartitionRecord(KEY, Exercised(int))
    record.leader_epoch = 0
    for word in words.split():
        if word == "|":
            record.taken_over_at.append(record.end_offset)
            continue
        batch = build_data_batch(
            [b"v"],
            base_timestamp=0,
            producer_id=ord(word[0]),
            producer_epoch=int(word[1]),
            base_sequence=0,
            transactional=False,
        )
        place(batch, base_offset=record.end_offset, leader_epoch=0)
        record.enter(read_header(batch), None)
    return record


@pytest.mark.parametrize(("rule", "words", "offsets", "name"), CASES)
def test_an_excuse_needs_its_reason_in_the_log(
    rule: Rule, words: str, offsets: tuple[int, int], name: str | None
) -> None:
    records = tuple((offset, b"v") for offset in reversed(offsets))
    anomaly = Anomaly(rule, text="", partition=KEY, operations=(OPERATION,), records=records)
    excuse = known_kafka(anomaly, {KEY: log_of(words)})
    assert (None if excuse is None else excuse.name) == name


def test_no_transaction_is_excused() -> None:
    transaction = OPERATION._replace(transactional=True)
    anomaly = Anomaly(
        DUPLICATE, text="", partition=KEY, operations=(transaction,), records=((0, b"v"), (2, b"v"))
    )
    log = log_of("A0 A0 | A1")
    assert known_kafka(anomaly, {KEY: log}) is None
    assert known_kafka(attrs.evolve(anomaly, operations=(OPERATION,)), {KEY: log}) is not None
