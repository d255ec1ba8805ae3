"""The records inside a batch as columns: built from lists of bytes, and read back as lists of bytes.

Rule: whole columns go through msgpack, and loops in C check them. The work in Python is per batch, not per
record.
"""

# Theory of operation
#
# Magic 109 ('m') is a msgpack array of five columns. A column that says nothing is nil:
#
#     [offset deltas | nil,      nil: 0, 1, 2 ...; only compaction leaves gaps
#      keys | nil,               nil: no record has a key
#      values,
#      timestamp deltas | nil,   nil: every record has the base timestamp
#      headers | nil]            nil: no record has headers
#
# Why not Kafka's layout (magic 2) for data, too: it interleaves the fields of each record as zig-zag varints,
# which costs Python several operations per record. One unpackb call decodes a column batch of 10,000
# records, and Arrow takes its columns as they are. Control batches and internal topics stay magic 2, for
# Kafka's tools.
#
# msgpack accepts more than a record may be. So each column is checked after decoding: its length against the
# header's record count, the types of its entries by a set of classes (`issuperset(map(type, column))` runs in
# C), and that offsets and timestamps fit their ranges. Compressed records are decompressed up to a limit
# first.

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice
from operator import itemgetter, lt
from typing import Any, Final

import attrs
import msgpack

from fencepost.protocol import kafka_records
from fencepost.protocol.batches import (
    COMPRESSION_MASK,
    HEADER_SIZE,
    MAGIC_COLUMNS,
    MAGIC_KAFKA,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    build_batch,
)
from fencepost.protocol.column_entries import ARRAY_LENGTH_SIZES, NIL, array_length, byte_string_pieces
from fencepost.protocol.compression import DECOMPRESSED_SIZE_MAX, Compression, compress, decompress
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.kafka_columns import read_kafka_columns
from fencepost.protocol.kafka_records import (
    Header,
    KafkaRecord,
    RecordHeaders,
    only_record,
    read_kafka_records,
)
from fencepost.protocol.plain_records import PLAIN_TIME_DELTA_MAX, are_plain, read_deltas
from fencepost.protocol.terms import INT64_MAX, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE

_COLUMN_COUNT: Final = 5
OFFSET_DELTAS, KEYS, VALUES, TIMESTAMP_DELTAS, HEADERS = range(_COLUMN_COUNT)
_SPARE_SIZE_MAX: Final = 1 << 20  # bytes of a buffer that stays
# Packers with the buffers of earlier batches: new memory would cost as much as packing. Each thread takes one
# out and puts it back, so there are as many as there were threads packing at the same time.
_spare_packers: Final[list[msgpack.Packer]] = []
_DECODED_SIZE_MAX: Final = 2_048  # bytes of a batch: below, decoding columns costs less than skipping them
_COMPRESSIONS: Final = frozenset(Compression)
_BYTES_OR_NULL: Final = frozenset({bytes, type(None)})
_PACKED_AS_BYTES: Final = frozenset({bytes, bytearray, memoryview, type(None)})
_ONLY_INT: Final = frozenset({int})
_ONLY_LIST: Final = frozenset({list})
_ONLY_STR: Final = frozenset({str})
_PAIRS: Final = frozenset({2})
_LIST_OR_NULL: Final = frozenset({list, type(None)})


@attrs.define(kw_only=True)
class Columns:
    """The records of a batch: a list per column with an entry per record, or None for the usual values.

    Not frozen: a reader makes one per batch and owns it.
    """

    offset_deltas: list[int] | None
    """Offsets less the base offset, ascending; None: 0, 1, 2 ..."""
    keys: list[bytes | None] | None
    """None: every key is null."""
    values: list[bytes | None]
    timestamp_deltas: list[int] | None
    """Milliseconds since the base timestamp; None: all 0."""
    headers: list[list[Header] | None] | None
    """None for a record without headers, and for a batch without any."""


def build_data_batch(
    values: Sequence[Buffer | None],
    *,
    keys: Sequence[Buffer | None] | None = None,
    timestamp_deltas: Sequence[int] | None = None,
    headers: Sequence[RecordHeaders | None] | None = None,
    offset_deltas: Sequence[int] | None = None,
    last_offset_delta: int | None = None,
    base_timestamp: int,
    max_timestamp: int | None = None,
    compression: Compression = Compression.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    checked: bool = False,
) -> bytearray:
    """A batch of msgpack columns. Times are in ms; TypeError or ValueError for records that could not be read
    back.

    `max_timestamp` is computed when it is not given. `last_offset_delta` is for compaction, which keeps it.
    With `checked` the caller guarantees that keys and values are bytes or None.
    """
    _check_lengths(len(values), keys, timestamp_deltas, headers, offset_deltas)
    if not checked:
        _check_bytes(values)
        _check_bytes(keys or ())
    if offset_deltas is not None:
        _check_integers(offset_deltas)
    if headers is not None:
        _check_headers(headers)
    latest = base_timestamp if timestamp_deltas is None else _latest(timestamp_deltas, base_timestamp)
    try:
        packer = _spare_packers.pop()
    except IndexError:
        packer = msgpack.Packer(autoreset=False)
    packer.pack((offset_deltas, keys, values, timestamp_deltas, headers))
    with packer.getbuffer() as packed:
        batch = build_batch(
            compress(packed, compression),
            magic=MAGIC_COLUMNS,
            attributes=compression | (TRANSACTIONAL_BIT if transactional else 0),
            record_count=len(values),
            last_offset_delta=len(values) - 1 if last_offset_delta is None else last_offset_delta,
            base_timestamp=base_timestamp,
            max_timestamp=latest if max_timestamp is None else max_timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
        )
        is_kept = len(packed) <= _SPARE_SIZE_MAX
    if is_kept:
        packer.reset()
        _spare_packers.append(packer)
    return batch


def _check_lengths(record_count: int, *columns: Sequence[Any] | None) -> None:
    if not record_count:
        raise ValueError("a batch holds at least one record")
    for column in columns:
        if column is not None and len(column) != record_count:
            raise ValueError(f"a column has {len(column)} entries for {record_count} values")


def _check_bytes(column: Sequence[Buffer | None]) -> None:
    if not _PACKED_AS_BYTES.issuperset(map(type, column)):
        wrong = next(item for item in column if type(item) not in _PACKED_AS_BYTES)
        raise TypeError(f"keys and values are bytes or None, not {type(wrong).__name__}: give a serializer")


def _check_integers(column: Sequence[int]) -> None:
    if not _ONLY_INT.issuperset(map(type, column)):
        raise TypeError("deltas of offsets and timestamps are integers")


def _latest(timestamp_deltas: Sequence[int], base_timestamp: int) -> int:
    _check_integers(timestamp_deltas)
    earliest, latest = _span(timestamp_deltas, base_timestamp)
    if not _fits(earliest, latest):
        raise ValueError("the timestamp of a record does not fit into 64 bits")
    return latest


def _check_headers(column: Sequence[RecordHeaders | None]) -> None:
    for pair in chain.from_iterable(filter(None, column)):
        # The annotations say so, but a batch that cannot be read back must not depend on a type checker.
        if len(pair) != 2 or type(pair[0]) is not str or type(pair[1]) not in _PACKED_AS_BYTES:
            raise TypeError(f"a header is a string and bytes or None, not {pair!r}")


def read_columns(batch: Buffer, header: BatchHeader, at: int = 0) -> Columns:
    """The records of the batch at byte `at`, of either magic; ProtocolViolation when they are malformed.

    Does not verify the checksum (`check` does). A batch that compaction emptied gives empty columns.
    """
    return columns_of(payload_of(batch, header, at), header)


def columns_of(payload: Buffer, header: BatchHeader) -> Columns:
    """The same for encoded records that were decompressed already."""
    # Compaction keeps the header of a producer's last batch, with its sequence, and removes the records.
    if not header.record_count and not payload:
        return Columns(offset_deltas=None, keys=None, values=[], timestamp_deltas=None, headers=None)
    if header.magic == MAGIC_COLUMNS:
        columns = _unpack_columns(payload, header)
    else:
        columns = _kafka_columns(bytes(payload), header)
    check_deltas(columns.offset_deltas, columns.timestamp_deltas, header)
    return columns


def check_records(batch: Buffer, header: BatchHeader) -> None:
    """ProtocolViolation unless a producer's batch holds as many records as its header says, one per offset.

    Columns of a larger batch are skipped, not decoded, which costs a tenth: their number and lengths are
    checked, and that they are msgpack up to the last byte, but not the types of their entries. Compressed
    records are not looked at: a small batch may unfold to a large one. Readers check the rest. Each of
    Kafka's own records is checked, as in Kafka.
    """
    compression = header.attributes & COMPRESSION_MASK
    if compression:
        if compression not in _COMPRESSIONS:
            raise ProtocolViolation(f"compression {compression} is not supported")
    elif header.magic == MAGIC_COLUMNS and header.size > _DECODED_SIZE_MAX:
        _check_shape(payload_of(batch, header), header.record_count)
    elif not _are_plain_kafka_records(batch, header):
        if header.magic == MAGIC_KAFKA:
            offset_deltas = _checked_offset_deltas(batch, header)
        else:
            offset_deltas = read_columns(batch, header).offset_deltas
        if offset_deltas is not None:
            raise ProtocolViolation("the offsets of the records are not 0, 1, 2 ...")


def _are_plain_kafka_records(batch: Buffer, header: BatchHeader) -> bool:
    """Whether reading the records would find nothing wrong; False if only reading them can tell."""
    time = header.base_timestamp
    return (
        header.magic == MAGIC_KAFKA
        and header.last_offset_delta == header.record_count - 1
        and _fits(time - PLAIN_TIME_DELTA_MAX, time + PLAIN_TIME_DELTA_MAX)
        and len(batch) == header.size
        # Kafka's clients send megabytes, and each copy would touch new memory.
        and are_plain(batch if type(batch) is bytes else bytes(batch), header.record_count, HEADER_SIZE)
    )


def _checked_offset_deltas(batch: Buffer, header: BatchHeader) -> list[int] | None:
    """The offset deltas of Kafka's records, or None if they are 0, 1, 2 ... ProtocolViolation when the
    records are malformed. No objects are made of them: half a million headers fit into a megabyte.
    """
    deltas = read_deltas(bytes(payload_of(batch, header)), header.record_count)
    are_dense = deltas.offsets == list(range(header.record_count))
    offset_deltas = None if are_dense else deltas.offsets
    check_deltas(offset_deltas, deltas.timestamps, header)
    return offset_deltas


def _check_shape(payload: Buffer, record_count: int) -> None:
    if column_places(payload, record_count)[OFFSET_DELTAS] is not None:
        raise ProtocolViolation("the offsets of new records are a column, and not nil")


def column_places(payload: Buffer, record_count: int) -> list[int | None]:
    """Where the first entry of each column is, or None if the column is nil. ProtocolViolation unless there
    are five columns with an entry per record, and nothing else. Decodes nothing, and checks no types.
    """
    places: list[int | None] = []
    try:
        if array_length(payload, 0) != _COLUMN_COUNT:
            raise ProtocolViolation(f"the records are not {_COLUMN_COUNT} columns")
        at = 1 + ARRAY_LENGTH_SIZES.get(payload[0], 0)
        for column in range(_COLUMN_COUNT):
            first = payload[at]
            if first == NIL and column != VALUES:
                places.append(None)
                at += 1
            elif array_length(payload, at) == record_count:
                places.append(at + 1 + ARRAY_LENGTH_SIZES.get(first, 0))
                at += _size_of_item(payload[at:])
            else:
                raise ProtocolViolation(f"column {column} of a batch does not have {record_count} entries")
    except (ValueError, IndexError, msgpack.UnpackException) as problem:
        raise ProtocolViolation(f"the records are not msgpack: {problem}") from None
    if at != len(payload):
        raise ProtocolViolation(f"{len(payload) - at} bytes follow the last column")
    return places


def _size_of_item(payload: Buffer) -> int:
    """The size in bytes of the msgpack item at the beginning."""
    unpacker = msgpack.Unpacker(max_buffer_size=len(payload) + 1)
    unpacker.feed(payload)
    unpacker.skip()
    return unpacker.tell()


def has_null_key(payload: Buffer, header: BatchHeader) -> bool:
    """Whether one of the decompressed records of a data batch has no key; ProtocolViolation when the keys
    cannot be read.
    """
    if header.magic == MAGIC_KAFKA:
        return kafka_records.has_null_key(bytes(payload), header.record_count)
    view, count = memoryview(payload), header.record_count
    place = column_places(view, count)[KEYS]
    return place is None or any(None in keys for keys in byte_string_pieces(view, place, count))


def read_keys_and_values(batch: Buffer, header: BatchHeader) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values of a batch of an internal topic, which must be magic 2; else ProtocolViolation."""
    payload = _kafka_payload(batch, header)
    if header.record_count == 1 and (only := only_record(payload)) is not None:
        return [only]
    return [(key, value) for key, value, *_ in read_kafka_records(payload, header.record_count)]


def read_internal_records(batch: Buffer, header: BatchHeader) -> list[KafkaRecord]:
    """The whole records of such a batch."""
    return read_kafka_records(_kafka_payload(batch, header), header.record_count)


def _kafka_payload(batch: Buffer, header: BatchHeader) -> bytes:
    if header.magic != MAGIC_KAFKA:
        raise ProtocolViolation("a batch of an internal topic must hold Kafka's own records (magic 2)")
    return bytes(payload_of(batch, header))


def payload_of(
    batch: Buffer, header: BatchHeader, at: int = 0, *, limit: int = DECOMPRESSED_SIZE_MAX
) -> Buffer:
    """The encoded records of the batch at byte `at`. DecompressedTooLarge if they decompress to more than
    `limit` bytes.
    """
    size, compression = header.size, header.attributes & COMPRESSION_MASK
    payload = memoryview(batch)[at + HEADER_SIZE : at + size]
    if len(payload) != size - HEADER_SIZE:
        raise ProtocolViolation(f"a batch of {size} bytes is cut off")
    return decompress(payload, compression, limit=limit) if compression and payload else payload


def _unpack_columns(payload: Buffer, header: BatchHeader) -> Columns:
    if header.record_count > len(payload):
        raise ProtocolViolation(f"{header.record_count} records do not fit into {len(payload)} bytes")
    try:
        unpacked = msgpack.unpackb(payload, max_map_len=0, max_ext_len=0)
    except (ValueError, msgpack.UnpackException, MemoryError) as problem:
        # MemoryError: nested arrays may announce more than memory holds, before a byte of them is read.
        raise ProtocolViolation(f"the records are not msgpack: {problem}") from None
    if type(unpacked) not in _ONLY_LIST or len(unpacked) != _COLUMN_COUNT:
        raise ProtocolViolation(f"the records are not {_COLUMN_COUNT} columns")
    offset_deltas, keys, values, timestamp_deltas, headers = unpacked
    if values is None:
        raise ProtocolViolation("the values of a batch are missing")
    count = header.record_count
    _check_column("values", values, count, _BYTES_OR_NULL)
    if keys is not None:
        _check_column("keys", keys, count, _BYTES_OR_NULL)
    if offset_deltas is not None:
        _check_column("offset deltas", offset_deltas, count, _ONLY_INT)
    if timestamp_deltas is not None:
        _check_column("timestamp deltas", timestamp_deltas, count, _ONLY_INT)
    return Columns(
        offset_deltas=offset_deltas,
        keys=keys,
        values=values,
        timestamp_deltas=timestamp_deltas,
        headers=None if headers is None else read_header_column(headers, count),
    )


def _check_column(name: str, column: Any, record_count: int, kinds: frozenset[type]) -> None:
    if type(column) not in _ONLY_LIST or len(column) != record_count:
        raise ProtocolViolation(f"the {name} of a batch are not {record_count} entries")
    if not kinds.issuperset(map(type, column)):
        raise ProtocolViolation(f"the {name} of a batch hold something of another type")


def read_header_column(column: Any, record_count: int) -> list[list[Header] | None]:
    """The headers of each record, as tuples of name and value; ProtocolViolation for anything else."""
    _check_column("headers", column, record_count, _LIST_OR_NULL)
    pairs = list(chain.from_iterable(filter(None, column)))
    if not (_ONLY_LIST.issuperset(map(type, pairs)) and _PAIRS.issuperset(map(len, pairs))):
        raise ProtocolViolation("a header is a name and a value")
    names, values = map(itemgetter(0), pairs), map(itemgetter(1), pairs)
    if not (_ONLY_STR.issuperset(map(type, names)) and _BYTES_OR_NULL.issuperset(map(type, values))):
        raise ProtocolViolation("a header is a string and bytes or null")
    return [list(map(tuple, headers)) if headers else None for headers in column]


def _kafka_columns(payload: bytes, header: BatchHeader) -> Columns:
    """Kafka's records as columns; a column with only usual values becomes None, as in magic 109."""
    found = read_kafka_columns(payload, header.record_count)
    offset_deltas = found.offset_deltas
    if offset_deltas is None and header.last_offset_delta != header.record_count - 1:
        # Compaction may have kept only the first records: these are dense, and the batch ends later.
        offset_deltas = list(range(header.record_count))
    return Columns(
        # So that readers of columns need not know which magic the batch had.
        offset_deltas=offset_deltas,
        keys=None if found.keys.count(None) == len(found.keys) else found.keys,
        values=found.values,
        timestamp_deltas=found.timestamp_deltas,
        headers=found.headers,
    )


def check_deltas(
    offset_deltas: Sequence[int] | None, timestamp_deltas: Sequence[int] | None, header: BatchHeader
) -> None:
    """ProtocolViolation unless the deltas, of all records of a batch or of some, fit its header."""
    if offset_deltas is None:
        if header.record_count and header.last_offset_delta != header.record_count - 1:
            raise ProtocolViolation(f"{header.record_count} records, last delta {header.last_offset_delta}")
    elif offset_deltas and not _ascend(offset_deltas, last=header.last_offset_delta):
        raise ProtocolViolation("the offsets of the records do not ascend within their batch")
    if timestamp_deltas and not _fits(*_span(timestamp_deltas, header.base_timestamp)):
        raise ProtocolViolation("the timestamp of a record does not fit into 64 bits")


def _ascend(deltas: Sequence[int], *, last: int) -> bool:
    return deltas[0] >= 0 and deltas[-1] <= last and all(map(lt, deltas, islice(deltas, 1, None)))


def _span(deltas: Sequence[int], base_timestamp: int) -> tuple[int, int]:
    """The earliest and the latest timestamp."""
    return base_timestamp + min(deltas), base_timestamp + max(deltas)


def _fits(lowest: int, highest: int) -> bool:
    return lowest >= -INT64_MAX - 1 and highest <= INT64_MAX
