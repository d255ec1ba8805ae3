"""The record batch seen from outside: Kafka's 61-byte header (v2), read, checked and patched without its
records.

Rule: a leader writes base offset and leader epoch in place. The checksum does not cover them, so a batch
travels from the producer to the disk and on to consumers without being decoded or copied.
"""

# Theory of operation
#
#  byte  size  field                    written by
#  ----  ----  -----------------------  --------------------------------------------------------------
#     0     8  base offset              the leader, when it appends the batch
#     8     4  batch length             the producer: the bytes after this field
#    12     4  partition leader epoch   the leader, when it appends the batch
#    16     1  magic                    the producer: 2 for Kafka's records, 109 for msgpack columns
#    17     4  CRC-32C                  the producer, over everything below
#    21     2  attributes               bits 0-2 compression, 4 transactional, 5 control, 6 delete horizon
#    23     4  last offset delta        offset of the last record, less the base offset
#    27     8  base timestamp           ms; with bit 6 when its tombstones or marker may go (KIP-534)
#    35     8  max timestamp            ms
#    43     8  producer id              who writes ...
#    51     2  producer epoch           ... in which incarnation: an older one is fenced
#    53     4  base sequence            sequence of the first record: how duplicates and gaps are recognised
#    57     4  record count             less than last offset delta + 1 after a compaction
#    61        records
#
# Length and magic are where every version of Kafka's format has them, so a reader can tell what it has before
# it understands it. A control batch holds one record, the transaction marker: 78 bytes in all. It
# takes an offset like any record, which is why consumers see gaps.

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

import attrs

from fencepost.protocol.checksum import crc32c
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.primitives import read_varint, read_varlong
from fencepost.protocol.terms import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TransactionResult,
    sequence_after,
)
from fencepost.protocol.values import value

Buffer = bytes | bytearray | memoryview

MAGIC_KAFKA: Final = 2  # Kafka's own records: control batches and internal topics
MAGIC_COLUMNS: Final = 109  # 'm': msgpack columns
_MAGICS: Final = (MAGIC_KAFKA, MAGIC_COLUMNS)
_OLD_FORMATS: Final = "; Kafka before 0.11 wrote 0 and 1: consume such a topic with a Kafka client"

HEADER_SIZE: Final = 61
BASE_OFFSET_SIZE: Final = 8  # the first bytes of the header
LENGTH_PREFIX_SIZE: Final = 12  # base offset and batch length are not counted by batch length
MAGIC_AT: Final = 16  # the one byte that every format of Kafka's has in this place
CRC_START: Final = 21  # attributes, the first byte under the checksum

COMPRESSION_MASK: Final = 0x07
LOG_APPEND_TIME_BIT: Final = 0x08  # the time of all records is the batch's latest; the broker would set it
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40

CONTROL_BATCH_SIZE: Final = 78
CONTROL_BATCH_SIZE_MAX: Final = CONTROL_BATCH_SIZE + 9  # with a delete horizon, the timestamp has a delta

# base offset, batch length, leader epoch, magic, crc, attributes, last offset delta, base and max timestamp,
# producer id, producer epoch, base sequence, record count (DefaultRecordBatch.java)
HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_UNCOVERED = struct.Struct(HEADER.format[:6])  # up to the checksum, which covers the rest
_COVERED = struct.Struct(">" + HEADER.format[6:])
_PLACE = struct.Struct(">qii")  # base offset, batch length, leader epoch
_CRC = struct.Struct(">I")
_CRC_AT = MAGIC_AT + 1
_MAX_TIMESTAMP = struct.Struct(">q")
_MAX_TIMESTAMP_AT = 35
_ATTRIBUTES = struct.Struct(">h")


@value
class BatchHeader:
    """The header of one batch, field for field as on disk, and values that follow from them: they are needed
    several times per batch.
    """

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    size: int = attrs.field(init=False, eq=False, repr=False)
    """Bytes of the whole batch."""
    last_offset: int = attrs.field(init=False, eq=False, repr=False)
    """Offset of the last record that the batch was built with."""
    next_offset: int = attrs.field(init=False, eq=False, repr=False)
    """One past the last offset, where a reader continues, even if compaction emptied the batch."""
    is_transactional: bool = attrs.field(init=False, eq=False, repr=False)
    is_control: bool = attrs.field(init=False, eq=False, repr=False)

    # By hand, for the values that follow: attrs would call a second method for them.
    def __init__(
        self,
        base_offset: int,
        batch_length: int,
        leader_epoch: int,
        magic: int,
        crc: int,
        attributes: int,
        last_offset_delta: int,
        base_timestamp: int,
        max_timestamp: int,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        record_count: int,
    ) -> None:
        made: Any = self  # not finished yet; no one changes it after this
        made.base_offset = base_offset
        made.batch_length = batch_length
        made.leader_epoch = leader_epoch
        made.magic = magic
        made.crc = crc
        made.attributes = attributes
        made.last_offset_delta = last_offset_delta
        made.base_timestamp = base_timestamp
        made.max_timestamp = max_timestamp
        made.producer_id = producer_id
        made.producer_epoch = producer_epoch
        made.base_sequence = base_sequence
        made.record_count = record_count
        made.size = LENGTH_PREFIX_SIZE + batch_length
        made.last_offset = last_offset = base_offset + last_offset_delta
        made.next_offset = last_offset + 1
        made.is_transactional = attributes & TRANSACTIONAL_BIT != 0
        made.is_control = attributes & CONTROL_BIT != 0

    @property
    def has_transaction(self) -> bool:
        """Whether the batch belongs to a transaction. Without a producer id it never does, whatever its
        attributes say: no marker could end it (UnifiedLog.analyzeAndValidateProducerState).
        """
        return self.is_transactional and self.producer_id != NO_PRODUCER_ID

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record; NO_SEQUENCE when the batch has none."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return sequence_after(self.base_sequence, self.last_offset_delta)

    @property
    def compression(self) -> int:
        return self.attributes & COMPRESSION_MASK

    @property
    def delete_horizon_ms(self) -> int | None:
        """When compaction may remove the tombstones or the marker of this batch; None until it has set a time
        (KIP-534). Timestamps of the records count from it, as from any base timestamp.
        """
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def is_thinned(self) -> bool:
        """Whether compaction has changed it: it has fewer records than offsets, or a delete horizon."""
        return self.record_count <= self.last_offset_delta or self.delete_horizon_ms is not None

    @property
    def is_covering(self) -> bool:
        """Whether it only stands for removed batches (`covering_batch`)."""
        return self.record_count == 0 and self.producer_id == NO_PRODUCER_ID and not self.is_control


def read_header(data: Buffer, at: int = 0) -> BatchHeader:
    """The header at byte `at`; ProtocolViolation when it is truncated or invalid. Does not verify the
    checksum.
    """
    header = read_framing(data, at)
    # A negative delta would let a walk over the log go backwards in offsets.
    if header.last_offset_delta < 0 or header.record_count < 0:
        raise ProtocolViolation(
            f"a batch with {header.record_count} records and last offset delta {header.last_offset_delta}"
        )
    return header


def read_framing(data: Buffer, at: int = 0) -> BatchHeader:
    """The same for a batch from a client: only magic and length are checked here, the partition leader checks
    the rest.
    """
    if len(data) - at < HEADER_SIZE:
        raise ProtocolViolation(f"a batch header is cut off after {max(0, len(data) - at)} bytes")
    header = BatchHeader(*HEADER.unpack_from(data, at))
    if header.magic not in _MAGICS:
        # It may as well be damage: lost sectors are zeros.
        old = _OLD_FORMATS if header.magic in (0, 1) else ""
        raise ProtocolViolation(
            f"magic byte {header.magic} is neither {MAGIC_KAFKA} nor {MAGIC_COLUMNS}{old}"
        )
    if header.batch_length < HEADER_SIZE - LENGTH_PREFIX_SIZE:
        raise ProtocolViolation(f"batch length {header.batch_length} is shorter than a header")
    return header


def check(data: Buffer, at: int, header: BatchHeader) -> None:
    """ProtocolViolation unless the checksum of the batch at byte `at` matches its header."""
    if not checksum_matches(data, at, header):
        raise ProtocolViolation("the checksum of a batch does not match its bytes")


def checksum_matches(data: Buffer, at: int, header: BatchHeader) -> bool:
    """Whether the CRC-32C from the attributes to the end equals the header's."""
    return crc32c(memoryview(data)[at + CRC_START : at + header.size]) == header.crc


def walk(data: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each whole batch in a run; stops before a truncated batch at the end."""
    at, end = 0, len(data)
    while end - at >= HEADER_SIZE:
        header = read_header(data, at)
        following = at + header.size
        if following > end:
            return
        yield at, header
        at = following


def build_batch(
    payload: Buffer,
    *,
    magic: int = MAGIC_KAFKA,
    attributes: int = 0,
    record_count: int = 1,
    last_offset_delta: int = 0,
    base_timestamp: int,
    max_timestamp: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    base_offset: int = 0,
    leader_epoch: int = 0,
) -> bytearray:
    """A batch around encoded records, with its checksum. It is mutable, so that `place` can set its offset.

    `max_timestamp` is `base_timestamp` when it is not given.
    """
    if max_timestamp is None:
        max_timestamp = base_timestamp
    # The checksum runs over two pieces in turn, so the records are copied once, into the batch.
    covered = _COVERED.pack(
        attributes, last_offset_delta, base_timestamp, max_timestamp,
        producer_id, producer_epoch, base_sequence, record_count,
    )  # fmt: skip
    batch_length = HEADER_SIZE - LENGTH_PREFIX_SIZE + len(payload)
    checksum = crc32c(payload, crc32c(covered))
    batch = bytearray(_UNCOVERED.pack(base_offset, batch_length, leader_epoch, magic, checksum))
    batch += covered
    batch += payload
    return batch


def rebuild_batch(
    payload: Buffer,
    header: BatchHeader,
    *,
    magic: int,
    attributes: int,
    record_count: int,
    last_offset_delta: int,
    base_timestamp: int,
) -> bytearray:
    """A batch with other records in the place of the one that has this header: its base offset, latest
    timestamp, producer fields and leader epoch stay.
    """
    return build_batch(
        payload,
        magic=magic,
        attributes=attributes,
        record_count=record_count,
        last_offset_delta=last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=header.max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
    )


def covering_batch(*, base_offset: int, next_offset: int, leader_epoch: int) -> bytearray:
    """An empty batch in the place of removed ones: of no producer, without a timestamp, and with all of their
    offsets, up to 2^31.

    Compaction and repair write it, so logs stay without gaps, and a gap is always damage. Readers
    step over it by its last offset. Kafka keeps empty batches, too, but only the last one of a producer.
    """
    return build_batch(
        b"",
        record_count=0,
        last_offset_delta=next_offset - base_offset - 1,
        base_timestamp=NO_TIMESTAMP,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )


def writable(batch: Buffer) -> bytearray | memoryview:
    """The batch for `place`: a copy only if its bytes cannot be changed."""
    view = memoryview(batch)
    return bytearray(view) if view.readonly else view


def place(batch: bytearray | memoryview, *, base_offset: int, leader_epoch: int) -> BatchHeader:
    """Set base offset and leader epoch, which the checksum does not cover. Returns the header of the batch
    as it is now.
    """
    _PLACE.pack_into(batch, 0, base_offset, len(batch) - LENGTH_PREFIX_SIZE, leader_epoch)
    return BatchHeader(*HEADER.unpack_from(batch))


def renumber(batch: bytearray, *, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
    """Give another identity and sequence to a batch that the broker has certainly refused; computes the
    checksum again.
    """
    # A batch that may be in the log must keep its sequence, by which the broker recognises a retry.
    struct.pack_into(">qhi", batch, 43, producer_id, producer_epoch, base_sequence)
    _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[CRC_START:]))


def set_max_timestamp(batch: bytearray | memoryview, timestamp: int) -> None:
    """Set the latest timestamp of a batch; computes the checksum again."""
    _MAX_TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_AT, timestamp)
    _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[CRC_START:]))


def mark_create_time(batch: bytearray | memoryview) -> None:
    """Mark the timestamps of a batch as its producer's (CreateTime); computes the checksum again."""
    (attributes,) = _ATTRIBUTES.unpack_from(batch, CRC_START)
    _ATTRIBUTES.pack_into(batch, CRC_START, attributes & ~LOG_APPEND_TIME_BIT)
    _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[CRC_START:]))


# A control record (KIP-98): length 16 zig-zagged, attributes, deltas 0, key (version, type), value (version,
# coordinator epoch).
_CONTROL_RECORD = struct.Struct(">bbbbbhhbhib")
_CONTROL_KEY = struct.Struct(">hh")
_CONTROL_VALUE = struct.Struct(">hi")


class Marker(NamedTuple):
    """The content of a control batch: the result of the transaction, and the epoch of its coordinator."""

    result: TransactionResult
    coordinator_epoch: int


def build_marker(
    result: TransactionResult,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
) -> bytearray:
    """The 78 bytes of a COMMIT or ABORT marker, Kafka's bit for bit (withEndTransactionMarker)."""
    record = _CONTROL_RECORD.pack(32, 0, 0, 0, 8, 0, int(result), 12, 0, coordinator_epoch, 0)
    return build_batch(
        record,
        attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
        base_timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def read_marker(batch: Buffer, at: int = 0) -> Marker:
    """The marker in the control batch at byte `at`; ProtocolViolation when it holds something else."""
    return marker_of(batch, at, read_header(batch, at))


def marker_of(batch: Buffer, at: int, header: BatchHeader) -> Marker:
    """The same with a header that was read before. A later version is read as a longer form of version 0, as
    Kafka does.
    """
    if header.magic != MAGIC_KAFKA or not header.is_control or header.record_count != 1:
        raise ProtocolViolation("not a control batch: a marker is one Kafka record in a control batch")
    return _marker_of(bytes(memoryview(batch)[at + HEADER_SIZE : at + header.size]))


CONTROL_TYPES: Final = {
    0: "ABORT marker",
    1: "COMMIT marker",
    2: "leader change",
    3: "snapshot header",
    4: "snapshot footer",
    5: "KRaft version",
    6: "KRaft voters",
}
"""What the type of a control record means (ControlRecordType.java)."""


def control_type(batch: Buffer, header: BatchHeader) -> int | None:
    """The type of the record in a control batch, None when compaction has emptied it; ProtocolViolation when
    it cannot be read. Only 0 and 1 are markers: controllers write others into the metadata's log.
    """
    if not header.record_count:
        return None
    record = bytes(memoryview(batch)[HEADER_SIZE : header.size])
    _, at = read_varint(record, 0)  # length
    _, at = read_varlong(record, at + 1)  # attributes, timestamp delta
    _, at = read_varint(record, at)  # offset delta
    key_size, at = read_varint(record, at)
    if key_size < _CONTROL_KEY.size or at + key_size > len(record):
        raise ProtocolViolation("a control record without a type")
    _, kind = _CONTROL_KEY.unpack_from(record, at)
    if kind not in CONTROL_TYPES:
        raise ProtocolViolation(f"a control record of type {kind}, which is unknown")
    return kind


def marker_in(batch: Buffer, header: BatchHeader) -> Marker | None:
    """The marker in a control batch; None when compaction has emptied it, or when it ends no transaction.
    ProtocolViolation when it cannot be read.
    """
    if header.magic != MAGIC_KAFKA:
        raise ProtocolViolation("not a control batch: a marker is one Kafka record in a control batch")
    is_marker = control_type(batch, header) in tuple(TransactionResult)
    return marker_of(batch, 0, header) if is_marker else None


@lru_cache(maxsize=64)  # few different records: result and coordinator epoch
def _marker_of(record: bytes) -> Marker:
    key, value = _key_and_value(record)
    key_version, kind = _CONTROL_KEY.unpack_from(key)
    value_version, coordinator_epoch = _CONTROL_VALUE.unpack_from(value)
    if key_version < 0 or value_version < 0 or kind not in (0, 1):
        raise ProtocolViolation(f"not a transaction marker: a control record of type {kind}")
    return Marker(TransactionResult(kind), coordinator_epoch)


def _key_and_value(record: bytes) -> tuple[bytes, bytes]:
    """Key and value of the control record that fills `record`, each at least as long as a marker's."""
    size, at = read_varint(record, 0)
    if size != len(record) - at:
        raise ProtocolViolation("not a transaction marker: the record does not fill its batch")
    _, at = read_varlong(record, at + 1)  # attributes, timestamp delta
    _, at = read_varint(record, at)  # offset delta
    key_size, at = read_varint(record, at)
    key, at = record[at : at + max(key_size, 0)], at + max(key_size, 0)
    value_size, at = read_varint(record, at)
    value = record[at : at + max(value_size, 0)]
    if len(key) < _CONTROL_KEY.size or len(value) < _CONTROL_VALUE.size:
        raise ProtocolViolation("not a transaction marker: its key or value is too short")
    return key, value
