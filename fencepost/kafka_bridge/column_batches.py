"""A batch of columns as a batch of Kafka's own records (magic 2): all of it, or as much as a reader can take.

Rule: offsets, timestamps, headers and producer fields stay. What a batch costs is limited before it is
decompressed and decoded: a producer may have packed much into few bytes.
"""

# Theory of operation
#
# The broker does not look into compressed records when they are produced, and their objects take more memory
# than their bytes: one byte of msgpack can be an empty list, which takes 72. So only a small batch is decoded
# as a whole, and only after a pass in C, which makes no objects, has found an entry for every record.
#
# Only a part of a large batch is encoded, from the offset that a reader wants. Keys and values are found one
# by one in the decompressed bytes, which are copied twice but not kept meanwhile. So a part takes at most
# twice the 64 MiB that compression.py decompresses: less than memory.py has for the request and the answer in
# progress. A part keeps base offset and deltas. For its reader it is a batch from which a compaction has
# removed the other records, so the reader continues after the part, in the middle of the stored batch. Where
# each part began is remembered, because skipping millions of entries takes longer than encoding a part.

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterator
from itertools import repeat
from threading import Lock
from typing import Final, NamedTuple

import attrs
import msgpack

from fencepost.protocol.batches import COMPRESSION_MASK, MAGIC_KAFKA, BatchHeader, Buffer, rebuild_batch
from fencepost.protocol.column_entries import (
    ARRAY_LENGTH_SIZES,
    PIECE_MAX,
    array_length,
    byte_string,
    byte_strings,
    entry_at,
    number_pieces,
    unpacker_of,
)
from fencepost.protocol.compression import DecompressedTooLarge
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.kafka_records import RecordHeaders, encode_record
from fencepost.protocol.records import (
    HEADERS,
    KEYS,
    OFFSET_DELTAS,
    TIMESTAMP_DELTAS,
    VALUES,
    check_deltas,
    column_places,
    columns_of,
    payload_of,
    read_header_column,
)
from fencepost.protocol.terms import TopicPartition

SMALL_SIZE_MAX: Final = 1 << 20  # decompressed bytes of a batch that is decoded as a whole
SMALL_COUNT_MAX: Final = PIECE_MAX  # records of one, and of a part of a large one
HEADERS_SIZE_MAX: Final = 1 << 20  # msgpack bytes of a part's headers; objects take 80 times as much
HEADER_COUNT_MAX: Final = 1 << 16  # headers of a record whose headers take more bytes than that
LAST_PARTS_MAX: Final = 1_000  # batches; each takes half a kilobyte
_TEXT_SIZES: Final = {0xD9: 1, 0xDA: 2, 0xDB: 4}  # of the lengths of strings, by msgpack's first byte
_SHORT_TEXT, _SHORT_TEXT_BITS = 0xA0, 0xE0
_PAIR: Final = 0x92  # msgpack's array of two: the name and the value of a header


def decompressed(batch: Buffer, header: BatchHeader, *, limit: int) -> Buffer:
    """The columns of a small batch; DecompressedTooLarge beyond `limit` bytes."""
    payload = payload_of(batch, header, limit=limit)
    if len(payload) > limit:
        raise DecompressedTooLarge(limit)
    return payload


def headers_size(payload: Buffer, header: BatchHeader) -> int:
    """The size of the headers column: as few as three bytes may be a header, which costs as much as a record.
    ProtocolViolation unless there are five columns with an entry per record.
    """
    place = column_places(payload, header.record_count)[HEADERS] if payload else None
    return 0 if place is None else len(payload) - place


def encode_whole(payload: Buffer, header: BatchHeader) -> bytearray:
    """The columns of a small batch, whose `headers_size` is known, as one batch of Kafka's."""
    # A column that is missing means the same for all records: no key, no headers, a delta of 0, no gap.
    columns, count = columns_of(payload, header), header.record_count
    records = map(
        encode_record,
        repeat(None, count) if columns.keys is None else columns.keys,
        columns.values,
        repeat(None, count) if columns.headers is None else columns.headers,
        repeat(0, count) if columns.timestamp_deltas is None else columns.timestamp_deltas,
        range(count) if columns.offset_deltas is None else columns.offset_deltas,
    )
    last_offset_delta = header.last_offset_delta
    return _kafka_batch(header, b"".join(records), record_count=count, last_offset_delta=last_offset_delta)


def encode_part(
    batch: Buffer, header: BatchHeader, partition: TopicPartition, *, offset: int, size: int
) -> bytearray:
    """The records of a batch of columns from an offset on, as one batch of Kafka's: as many as take `size`
    bytes, and at least one.
    """
    pieces, last_offset_delta = _pieces(batch, header, partition, offset=offset, size=size)
    count, payload = len(pieces), b"".join(pieces)
    pieces.clear()  # before all is copied once more, into the batch
    return _kafka_batch(header, payload, record_count=count, last_offset_delta=last_offset_delta)


def _kafka_batch(
    header: BatchHeader, payload: Buffer, *, record_count: int, last_offset_delta: int
) -> bytearray:
    return rebuild_batch(
        payload,
        header,
        magic=MAGIC_KAFKA,
        # Not compressed: the broker would spend its time on it, and what it stores stays as it is.
        attributes=header.attributes & ~COMPRESSION_MASK,
        record_count=record_count,
        last_offset_delta=last_offset_delta,
        base_timestamp=header.base_timestamp,
    )


# --- a part ----------------------------------------------------------------------------------------------


class _Start(NamedTuple):
    """The number of a record, and the places of its entries in the columns."""

    number: int
    places: tuple[int | None, ...]


@attrs.define
class LastParts:
    """Where the last part of each large batch began: its readers ask for the next part, and finding it from
    the beginning of the batch may take longer than encoding it.
    """

    _starts: dict[Hashable, tuple[_Start, _Start]] = attrs.Factory(dict[Hashable, tuple[_Start, _Start]])
    _lock: Lock = attrs.Factory(Lock)

    def get(self, batch: Hashable) -> tuple[_Start, _Start] | None:
        """The first record of the batch and that of its last part, if they are known."""
        with self._lock:
            return self._starts.get(batch)

    def put(self, batch: Hashable, first: _Start, last: _Start) -> None:
        """Keep them, and forget those that have been kept the longest."""
        with self._lock:
            self._starts.pop(batch, None)
            self._starts[batch] = (first, last)
            if len(self._starts) > LAST_PARTS_MAX:
                del self._starts[next(iter(self._starts))]


_last_parts: Final = LastParts()


def _pieces(
    batch: Buffer, header: BatchHeader, partition: TopicPartition, *, offset: int, size: int
) -> tuple[list[bytes], int]:
    """The encoded records of a part, and the last offset delta that it covers."""
    payload = memoryview(payload_of(batch, header))
    # A checksum can be forged, but not for the same offset of somebody else's partition.
    identity = (partition, header.base_offset, header.crc, header.size)
    known = _last_parts.get(identity)
    if known is None:
        # Of a batch that was not read before, the first record is that of the last part, too.
        known = (_Start(0, tuple(column_places(payload, header.record_count))),) * 2
    begin, last = known
    first, near = _first_record(payload, begin, last, header, offset - header.base_offset)
    count = min(SMALL_COUNT_MAX, header.record_count - first)
    starts = [
        None if place is None else entry_at(payload, place, first - near.number) for place in near.places
    ]
    # After the last record there is nothing from which a next part could begin.
    if count:
        _last_parts.put(identity, begin, _Start(first, tuple(starts)))
    deltas, times = (_numbers(payload, starts[column], count) for column in (OFFSET_DELTAS, TIMESTAMP_DELTAS))
    # The deltas are its producer's. One beyond the batch would send a reader to a wrong offset.
    check_deltas(deltas, times, header)
    records = zip(
        range(first, first + count) if deltas is None else deltas,
        repeat(0, count) if times is None else times,
        byte_strings(payload, starts[KEYS]),
        byte_strings(payload, starts[VALUES]),
        _headers(payload, starts[HEADERS]),
        strict=False,  # the part ends with the offsets, or where `_headers` stops
    )
    pieces: list[bytes] = []
    last_offset_delta = header.last_offset_delta
    for delta, time, key, value, named in records:
        piece = encode_record(key, value, named, time, delta)
        size -= len(piece)
        # One record is always given: its reader would otherwise ask for the same offset forever (KIP-74).
        if size < 0 and pieces:
            break
        pieces.append(piece)
        last_offset_delta = delta
    # Where a compaction has removed the last records, the reader continues after them, too.
    is_end = first + len(pieces) == header.record_count
    return pieces, header.last_offset_delta if is_end else last_offset_delta


def _first_record(
    payload: memoryview, begin: _Start, last: _Start, header: BatchHeader, offset_delta: int
) -> tuple[int, _Start]:
    """The number of the first record that has this offset delta, or a larger one; and one of the two starts
    that is not after it.
    """
    place, count = last.places[OFFSET_DELTAS], header.record_count
    # Without the column there is no gap, so the offset says which record it is.
    if place is None:
        first = min(max(0, offset_delta), count)
        return first, last if last.number <= first else begin
    start = last.number
    for deltas in number_pieces(payload, place, count - start):
        if deltas[0] > offset_delta and start == last.number > begin.number:
            return _first_record(payload, begin, begin, header, offset_delta)  # its reader went back
        if deltas[-1] >= offset_delta:
            return start + bisect_left(deltas, offset_delta), last
        start += len(deltas)
    return count, last


def _numbers(payload: memoryview, at: int | None, count: int) -> list[int] | None:
    return None if at is None else next(number_pieces(payload, at, count), list[int]())


def _text(payload: memoryview, at: int) -> tuple[str, int]:
    """The string at byte `at`, and the place after it."""
    first, start = payload[at], at + 1
    length = first & ~_SHORT_TEXT_BITS
    if first & _SHORT_TEXT_BITS != _SHORT_TEXT:
        if first not in _TEXT_SIZES:
            raise ProtocolViolation("the name of a header is not text")
        start += _TEXT_SIZES[first]
        length = int.from_bytes(payload[at + 1 : start], "big")
    try:
        return str(payload[start : start + length], "utf-8"), start + length
    except UnicodeDecodeError as problem:
        raise ProtocolViolation(f"the name of a header is not text: {problem}") from None


def _headers(payload: memoryview, at: int | None) -> Iterator[RecordHeaders]:
    """The headers of the records from byte `at` on: a megabyte of them, or those of one record if it has
    more.
    """
    if at is None:
        yield from repeat(())
        return
    window = payload[at : at + HEADERS_SIZE_MAX]
    unpacker, start = unpacker_of(window), 0
    while start < len(window):
        try:
            unpacker.skip()
            end = unpacker.tell()
            entry = msgpack.unpackb(window[start:end], max_map_len=0, max_ext_len=0)
        except msgpack.OutOfData:
            # The window ends within this entry. It is the first of the next part, unless no part can hold it.
            if not start:
                yield _large_headers(payload, at)
            return
        except (ValueError, msgpack.UnpackException) as problem:
            raise ProtocolViolation(f"the headers of a record are not msgpack: {problem}") from None
        yield read_header_column([entry], 1)[0] or ()
        start = end


def _large_headers(payload: memoryview, at: int) -> RecordHeaders:
    """The headers of one record, whose values are not copied."""
    count = array_length(payload, at)
    if count > HEADER_COUNT_MAX:
        raise ProtocolViolation(
            f"a record with {count} headers, more than {HEADER_COUNT_MAX}, that take more than "
            f"{HEADERS_SIZE_MAX} bytes"
        )
    at += 1 + ARRAY_LENGTH_SIZES.get(payload[at], 0)
    headers: list[tuple[str, Buffer | None]] = []
    for _ in range(count):
        if payload[at] != _PAIR:
            raise ProtocolViolation("a header is a name and a value")
        name, at = _text(payload, at + 1)
        content, at = byte_string(payload, at)
        headers.append((name, content))
    return headers
