"""Batches from outside: Kafka's header and markers bit for bit, checksums that catch every flipped bit."""

from __future__ import annotations

import struct

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.protocol.batches import (
    CONTROL_BATCH_SIZE,
    HEADER_SIZE,
    MAGIC_COLUMNS,
    MAGIC_KAFKA,
    BatchHeader,
    Marker,
    build_batch,
    build_marker,
    covering_batch,
    place,
    read_header,
    read_marker,
    renumber,
    walk,
)
from fencepost.protocol.checksum import crc32c
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.kafka_records import KafkaRecord, build_kafka_batch
from fencepost.protocol.terms import INT32_MAX, NO_SEQUENCE, TransactionResult
from tests.batches import read_batch
from tests.protocol import kafka_bytes
from tests.protocol.strategies import int16s, int32s, int64s


def a_batch(payload: bytes = b"payload", *, base_offset: int = 5) -> bytearray:
    return build_batch(
        payload,
        magic=MAGIC_COLUMNS,
        attributes=0x10,
        record_count=3,
        last_offset_delta=2,
        base_timestamp=1_000,
        max_timestamp=1_002,
        producer_id=9,
        producer_epoch=4,
        base_sequence=INT32_MAX - 1,
        base_offset=base_offset,
        leader_epoch=1,
    )


def a_marker(result: TransactionResult = TransactionResult.COMMIT) -> bytearray:
    return build_marker(
        result, producer_id=4711, producer_epoch=7, coordinator_epoch=9, timestamp=1_700_000_000_123
    )


@pytest.mark.parametrize("count", [1, 1_000, INT32_MAX + 1])
def test_a_covering_batch_takes_the_offsets_of_what_was_removed(count: int) -> None:
    header = read_batch(covering_batch(base_offset=7, next_offset=7 + count, leader_epoch=3))
    assert (header.base_offset, header.next_offset, header.leader_epoch) == (7, 7 + count, 3)
    assert header.is_covering
    assert (header.size, header.record_count) == (HEADER_SIZE, 0)
    assert header.attributes == 0
    assert header.last_sequence == NO_SEQUENCE


def test_a_commit_marker_is_the_78_bytes_that_the_format_says() -> None:
    """Derived by hand from "Record Batch" and "Control Batches" of Kafka's documentation."""
    record = bytes.fromhex(
        "20"  # length 16, zig-zag
        "00"  # attributes
        "00"  # timestamp delta
        "00"  # offset delta
        "08"  # key length 4, zig-zag
        "0000"  # key version
        "0001"  # COMMIT
        "0c"  # value length 6, zig-zag
        "0000"  # value version
        "00000009"  # coordinator epoch
        "00"  # no headers
    )
    checked = (
        bytes.fromhex("0030")  # transactional and control
        + bytes.fromhex("00000000")  # last offset delta
        + (1_700_000_000_123).to_bytes(8) * 2  # base and max timestamp
        + (4711).to_bytes(8)
        + (7).to_bytes(2)
        + bytes.fromhex("ffffffff")  # no sequence
        + (1).to_bytes(4)  # records
        + record
    )
    batch_length, leader_epoch, magic = (66).to_bytes(4), bytes(4), b"\x02"
    expected = bytes(8) + batch_length + leader_epoch + magic + crc32c(checked).to_bytes(4) + checked
    assert len(expected) == CONTROL_BATCH_SIZE
    assert bytes(a_marker()) == expected


def test_markers_are_those_of_kafka_itself() -> None:
    commit = a_marker()
    place(commit, base_offset=1234, leader_epoch=5)
    assert bytes(commit) == kafka_bytes.COMMIT_MARKER
    abort = build_marker(
        TransactionResult.ABORT,
        producer_id=2**53 + 1,
        producer_epoch=32_766,
        coordinator_epoch=INT32_MAX,
        timestamp=1_700_000_000_000,
    )
    assert bytes(abort) == kafka_bytes.ABORT_MARKER


@given(st.sampled_from(TransactionResult), int64s, int16s, int32s, int64s)
def test_a_marker_equals_the_same_record_built_by_the_general_writer(
    result: TransactionResult, producer_id: int, producer_epoch: int, coordinator_epoch: int, timestamp: int
) -> None:
    marker = build_marker(
        result,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        coordinator_epoch=coordinator_epoch,
        timestamp=timestamp,
    )
    record = KafkaRecord(struct.pack(">hh", 0, result), struct.pack(">hi", 0, coordinator_epoch))
    general = build_kafka_batch(
        [record],
        timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
    )
    general[22] |= 0x20  # control
    renumber(general, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=NO_SEQUENCE)
    assert marker == general
    assert read_marker(marker) == Marker(result, coordinator_epoch)


@pytest.mark.parametrize(
    ("at", "value", "because"),
    [
        (16, MAGIC_COLUMNS, "not a control batch"),
        (22, 0x10, "not a control batch"),
        (60, 2, "not a control batch"),
        (61, 0x40, "not a transaction marker"),
        (65, 0x0A, "not a transaction marker"),
        (66, 0xFF, "not a transaction marker"),
        (69, 0x02, "not a transaction marker"),
        (70, 0x02, "not a transaction marker"),
        (71, 0x80, "not a transaction marker"),
    ],
    ids=[
        "columns",
        "not control",
        "two records",
        "a longer record",
        "a longer key",
        "a negative key version",
        "a leader change",
        "a shorter value",
        "a negative value version",
    ],
)
def test_what_is_no_marker_is_refused(at: int, value: int, because: str) -> None:
    marker = a_marker()
    marker[at] = value
    with pytest.raises(ProtocolViolation, match=because):
        read_marker(marker)


def test_a_marker_of_a_later_version_is_read_by_its_known_part() -> None:
    """Kafka's readers take a higher version for a longer form of version 0 (ControlRecordType)."""
    record = KafkaRecord(struct.pack(">hh", 1, 1) + b"more", struct.pack(">hi", 3, 42) + b"much more")
    batch = build_kafka_batch([record], timestamp=1, transactional=True)
    batch[22] |= 0x20
    assert read_marker(batch) == Marker(TransactionResult.COMMIT, 42)


@given(st.binary(max_size=200), st.integers(0, 90))
def test_any_bytes_are_a_marker_or_a_violation(data: bytes, at: int) -> None:
    grafted = bytes(a_marker())[: CONTROL_BATCH_SIZE - len(data)] + data
    for stranger in (data, grafted):
        try:
            assert isinstance(read_marker(stranger, min(at, len(stranger))), Marker)
        except ProtocolViolation:
            continue


def test_the_header_says_what_the_batch_was_built_with() -> None:
    batch = a_batch()
    header = read_batch(batch)
    assert header == BatchHeader(
        base_offset=5,
        batch_length=len(batch) - 12,
        leader_epoch=1,
        magic=MAGIC_COLUMNS,
        crc=crc32c(bytes(batch[21:])),
        attributes=0x10,
        last_offset_delta=2,
        base_timestamp=1_000,
        max_timestamp=1_002,
        producer_id=9,
        producer_epoch=4,
        base_sequence=INT32_MAX - 1,
        record_count=3,
    )
    assert (header.size, header.last_offset, header.next_offset) == (len(batch), 7, 8)
    assert header.last_sequence == 0, "sequences wrap to zero inside a batch too"
    assert header.is_transactional
    assert not header.is_control
    assert header.compression == 0


def test_a_batch_without_sequence_has_no_last_sequence() -> None:
    assert read_batch(a_marker()).last_sequence == NO_SEQUENCE


def test_every_flipped_bit_under_the_checksum_is_caught() -> None:
    batch = a_batch()
    for position in range(16, len(batch)):  # before it: base offset, length and leader epoch
        for bit in range(8):
            damaged = bytearray(batch)
            damaged[position] ^= 1 << bit
            with pytest.raises(ProtocolViolation):
                read_batch(damaged)


def test_every_cut_is_caught() -> None:
    batch = bytes(a_batch())
    for length in range(len(batch)):
        with pytest.raises(ProtocolViolation, match="cut off"):
            read_batch(batch[:length])


def test_placing_a_batch_leaves_its_checksum_alone() -> None:
    batch = a_batch()
    before = read_batch(batch)
    place(batch, base_offset=2**40, leader_epoch=77)
    assert read_batch(batch) == attrs.evolve(before, base_offset=2**40, leader_epoch=77)
    place(memoryview(batch), base_offset=1, leader_epoch=2)
    assert read_batch(batch) == attrs.evolve(before, base_offset=1, leader_epoch=2)


def test_renumbering_gives_another_identity_and_a_checksum_that_fits() -> None:
    batch = a_batch()
    before = read_batch(batch)
    renumber(batch, producer_id=2**62, producer_epoch=1, base_sequence=0)
    after = read_batch(batch)
    assert after == attrs.evolve(before, producer_id=2**62, producer_epoch=1, base_sequence=0, crc=after.crc)


@pytest.mark.parametrize(
    ("at", "raw", "because"),
    [
        (16, b"\x01", "magic byte 1 is neither 2 nor 109"),
        (13, bytes(40), "magic byte 0 is neither 2 nor 109"),  # a part of a lost sector
        (8, (48).to_bytes(4), "shorter than a header"),
        (8, b"\xff\xff\xff\xff", "shorter than a header"),
        (23, b"\xff\xff\xff\xff", "last offset delta"),
        (57, b"\xff\xff\xff\xff", "last offset delta"),
    ],
)
def test_impossible_headers_are_refused(at: int, raw: bytes, because: str) -> None:
    batch = a_batch()
    batch[at : at + len(raw)] = raw
    with pytest.raises(ProtocolViolation, match=because):
        read_header(batch)


def test_a_walk_sees_every_whole_batch_and_stops_before_a_torn_one() -> None:
    sizes = [0, 1, 700]
    batches = [bytes(a_batch(bytes(size), base_offset=i)) for i, size in enumerate(sizes)]
    run = b"".join(batches)
    for end in range(len(run) + 1):
        whole = [at for at in (0, 61, 123) if at + [61, 62, 761][(0, 61, 123).index(at)] <= end]
        assert [at for at, _ in walk(memoryview(run)[:end])] == whole
    assert [header.base_offset for _, header in walk(run)] == [0, 1, 2]


@given(st.binary(max_size=150))
def test_any_bytes_are_a_batch_or_a_violation(data: bytes) -> None:
    for stranger in (data, bytes(a_batch())[: HEADER_SIZE - 20] + data):
        try:
            header = read_batch(stranger)
        except ProtocolViolation:
            continue
        assert header.magic in (MAGIC_KAFKA, MAGIC_COLUMNS)
        assert header.size <= len(stranger)


@given(st.binary(max_size=300))
def test_a_walk_over_any_bytes_ends(data: bytes) -> None:
    try:
        positions = [at for at, _ in walk(data)]
    except ProtocolViolation:
        return
    assert positions == sorted(set(positions))
