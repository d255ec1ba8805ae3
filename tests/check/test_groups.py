"""What the check says of the records in `__consumer_offsets`: every kind is read, as a broker does at its
start.
"""

from __future__ import annotations

import pytest

from fencepost.check.directory import check_directory
from fencepost.check.findings import Finding, Severity
from fencepost.journal.manifest import CLEAN_FILE
from fencepost.protocol.batches import build_marker, covering_batch, read_header
from fencepost.protocol.consumer_group_log import (
    ConsumerRecord,
    ConsumerRecordKey,
    ConsumerRecordKind,
    GroupEpoch,
    consumer_key,
)
from fencepost.protocol.kafka_records import KafkaRecord, build_kafka_batch
from fencepost.protocol.offsets_log import GroupBatch, GroupRecord, OffsetKey, OffsetRecord, group_batch
from fencepost.protocol.primitives import INT16, put_string
from fencepost.protocol.terms import (
    METADATA_PARTITION,
    NO_PRODUCER_ID,
    TransactionResult,
    coordinator_partition,
)
from fencepost.protocol.thinning import thinned
from tests.broker.test_every_byte import DamagedStory, contents, disk_with
from tests.check.directories import METADATA_LOG, OFFSETS_LOG, Directory, closed

ABORT, COMMIT = TransactionResult.ABORT, TransactionResult.COMMIT
HERE = [name for name in "abcdefgh" if coordinator_partition(name, 2) == 1]
ELSEWHERE = next(name for name in "abcdefgh" if coordinator_partition(name, 2) == 0)
NAME, OTHER = HERE[:2]


def offsets(
    offset: int | None, name: str = NAME, *, producer_id: int = NO_PRODUCER_ID, topic_id: bytes = bytes(16)
) -> bytes:
    """A batch with an offset of orders-0, or with its tombstone."""
    record = (
        None
        if offset is None
        else OffsetRecord(offset, leader_epoch=0, metadata="", commit_ms=1, topic_id=topic_id)
    )
    return bytes(
        group_batch(
            GroupBatch(((OffsetKey(name, "orders", 0), record),)),
            timestamp=1,
            producer_id=producer_id,
            producer_epoch=0 if producer_id != NO_PRODUCER_ID else -1,
            transactional=producer_id != NO_PRODUCER_ID,
        )
    )


def ended(result: TransactionResult, producer_id: int = 0) -> bytes:
    return bytes(
        build_marker(result, producer_id=producer_id, producer_epoch=9, coordinator_epoch=0, timestamp=1)
    )


def generation(number: int | None, name: str = NAME) -> bytes:
    """A batch with the record of a classic group without members, or with its tombstone."""
    record = GroupRecord(
        protocol_type="consumer", generation_id=number or 0, protocol_name=None, leader=None,
        state_since_ms=1, members=(),
    )  # fmt: skip
    return bytes(group_batch(GroupBatch(groups=((name, None if number is None else record),)), timestamp=1))


def epoch(number: int | None, name: str = NAME) -> bytes:
    """The same in the consumer protocol."""
    record: ConsumerRecord | None = None if number is None else GroupEpoch(number)
    key = ConsumerRecordKey(ConsumerRecordKind.GROUP, name)
    return bytes(group_batch(GroupBatch(consumers=((key, record),)), timestamp=1))


def malformed(key: bytes) -> bytes:
    return bytes(build_kafka_batch([KafkaRecord(key, b"\x7f" * 9)], timestamp=1))


LOST = bytes(covering_batch(base_offset=0, next_offset=9, leader_epoch=0))  # or removed by a compaction


def classic_key() -> bytes:
    key = bytearray(INT16.pack(2))
    put_string(key, NAME)
    return bytes(key)


def found(*batches: bytes) -> list[Finding]:
    """What is said of these batches, added to the log of offsets of a good directory, and of orders-0."""
    at = closed()
    at.put_batches(OFFSETS_LOG, [*at.batches(OFFSETS_LOG), *batches])
    return [
        each
        for each in check_directory(at).found
        if each.file == "orders-0" or (each.file == OFFSETS_LOG and each.offset is not None)
    ]


def end_of(at: Directory) -> int:
    return sum(read_header(batch).last_offset_delta + 1 for batch in at.batches(OFFSETS_LOG))


@pytest.mark.parametrize(
    ("batches", "says"),
    [
        ([malformed(classic_key())], "unreadable records: group metadata value: version 32639 is unknown"),
        ([malformed(classic_key() + b"x")], "unreadable records: group metadata key"),
        (
            [malformed(consumer_key(ConsumerRecordKey(ConsumerRecordKind.GROUP, NAME)))],
            "unreadable records: consumer group value of kind 3: version 32639 is unknown",
        ),
        ([generation(1, ELSEWHERE)], f"group {ELSEWHERE!r} belongs to partition 0"),
        ([generation(None, ELSEWHERE)], f"group {ELSEWHERE!r} belongs to partition 0"),
        ([epoch(1, ELSEWHERE)], f"group {ELSEWHERE!r} belongs to partition 0"),
        ([offsets(1, ELSEWHERE)], f"group {ELSEWHERE!r} belongs to partition 0"),
        ([generation(3), generation(2)], f"group {NAME!r} is in generation 2 after 3"),
        ([epoch(3), epoch(2)], f"group {NAME!r} is in epoch 2 after 3"),
    ],
)
def test_records_that_no_coordinator_writes_are_found(batches: list[bytes], says: str) -> None:
    problem = found(*batches)[0]
    assert problem.severity is Severity.PROBLEM
    assert problem.what.startswith(says)
    assert problem.offset == end_of(closed()) + len(batches) - 1


@pytest.mark.parametrize(
    "batches",
    [
        [generation(3), generation(2, OTHER), generation(3), generation(4)],
        [generation(3), generation(None), generation(1)],
        [epoch(3), epoch(None), epoch(1)],
        [generation(3), epoch(1), epoch(None), generation(1)],
        [epoch(3), epoch(None), generation(1), generation(None), epoch(1)],
        [generation(3), epoch(3, OTHER), LOST, generation(1), epoch(1, OTHER)],
    ],
)
def test_groups_that_begin_anew_are_no_problem(batches: list[bytes]) -> None:
    assert found(*batches) == []


def two_offsets() -> bytes:
    """What compaction leaves of a batch of two offsets: the second."""
    keys = [OffsetKey(name, "orders", 0) for name in (OTHER, NAME)]
    records = [OffsetRecord(offset, leader_epoch=0, metadata="", commit_ms=1) for offset in (1, 99)]
    batch = group_batch(GroupBatch(tuple(zip(keys, records, strict=True))), timestamp=1)
    header = read_header(batch)
    kept = thinned(batch, header, (1,), delete_horizon_ms=None)
    assert kept is not None
    return bytes(kept)


@pytest.mark.parametrize(
    ("batches", "says"),
    [
        ([offsets(99)], f"group {NAME!r} has committed offset 99"),
        ([offsets(99), offsets(1)], ""),
        ([offsets(99), offsets(None)], ""),
        ([offsets(99, producer_id=0)], f"group {NAME!r} has offset 99 in an open transaction"),
        ([offsets(99, producer_id=0), ended(ABORT)], ""),
        ([offsets(99, producer_id=0), ended(COMMIT)], f"group {NAME!r} has committed offset 99"),
        ([offsets(99, producer_id=0), offsets(1), ended(COMMIT)], ""),
        ([offsets(99, producer_id=0), offsets(None), ended(COMMIT)], ""),
        ([offsets(99), offsets(98, OTHER)], f"group {NAME!r} has committed offset 99"),
        ([offsets(99, topic_id=b"another topic id")], ""),
        ([two_offsets()], f"group {NAME!r} has committed offset 99"),
        ([two_offsets(), offsets(None)], ""),
    ],
)
def test_only_an_offset_that_counts_is_compared_with_the_end_of_its_log(
    batches: list[bytes], says: str
) -> None:
    """A transaction that was aborted commits no offset, and the offsets of a deleted topic are forgotten."""
    notes = [each for each in found(*batches) if each.file == "orders-0"]
    assert {each.severity for each in notes} <= {Severity.NOTE}
    assert [each.what.startswith(says) for each in notes] == [True] * (says != "")


def test_a_broker_reads_a_log_with_an_unreadable_record_once() -> None:
    """Reading it again would fail again, and each election is a record in the metadata."""
    at = closed()
    at.put_batches(OFFSETS_LOG, [*at.batches(OFFSETS_LOG), malformed(classic_key())])
    at.remove(CLEAN_FILE)
    at.remove(OFFSETS_LOG.replace("00000000000000000000.log", "manifest.json"))
    before = len(at.batches(METADATA_LOG))
    story = DamagedStory.over(disk_with(contents(at)))
    told = [trouble.text for trouble in story.host.troubles if "__consumer_offsets-1" in trouble.text]
    assert "version 32639 is unknown" in told[-1]
    assert "fencepost repair" in told[-1]
    assert len(story.log(METADATA_PARTITION)) < before + 10
