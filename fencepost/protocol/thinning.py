"""A batch with fewer records, for compaction: what is left keeps its offsets, sequences and timestamps.

Rule: base offset, last offset and producer fields never change, so every reader continues where the whole
batch ended, and a producer's last sequence can still be read from a batch without records.
"""

# Kafka does the same in MemoryRecords.filterTo. A tombstone or a marker that may go later gets a delete
# horizon (KIP-534): the base timestamp then says when, and the timestamps of the records count from there.
#
# A few kilobytes may decompress to a million records. So they are looked at one after the other, or a piece
# of a column at a time, and what is kept is copied in its encoded form.

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Final, NamedTuple, TypeVar

import msgpack

from fencepost.protocol.batches import DELETE_HORIZON_BIT, MAGIC_KAFKA, BatchHeader, Buffer, rebuild_batch
from fencepost.protocol.column_entries import byte_string_pieces, number_pieces, packed_entries
from fencepost.protocol.compression import Compression, compress
from fencepost.protocol.kafka_records import walk_kafka_records, with_timestamp_delta
from fencepost.protocol.records import (
    HEADERS,
    KEYS,
    OFFSET_DELTAS,
    TIMESTAMP_DELTAS,
    VALUES,
    check_deltas,
    column_places,
    payload_of,
)
from fencepost.protocol.terms import INT64_MAX

_FIVE_COLUMNS: Final = b"\x95"
_NIL: Final = b"\xc0"

T = TypeVar("T")


class KeyedRecord(NamedTuple):
    """What compaction looks at in a record."""

    offset: int
    key: bytes | None
    is_tombstone: bool


def keyed_records(batch: Buffer, header: BatchHeader) -> Iterator[KeyedRecord]:
    """The records of a data batch, one after the other; ProtocolViolation when their offsets, keys or values
    cannot be read.
    """
    base, payload = header.base_offset, payload_of(batch, header)
    if header.magic == MAGIC_KAFKA:
        for record in walk_kafka_records(bytes(payload), header.record_count):
            yield KeyedRecord(base + record.offset_delta, record.key, record.is_tombstone)
    elif payload:  # a batch that compaction emptied has none
        view, count = memoryview(payload), header.record_count
        places = column_places(view, count)
        deltas = _numbers(view, places[OFFSET_DELTAS], count)
        check_deltas(deltas, None, header)
        keys = chain.from_iterable(byte_string_pieces(view, places[KEYS], count))
        values = chain.from_iterable(byte_string_pieces(view, places[VALUES], count))
        for delta, key, value in zip(range(count) if deltas is None else deltas, keys, values, strict=True):
            yield KeyedRecord(base + delta, key, value is None)


def thinned(
    batch: Buffer, header: BatchHeader, kept: Sequence[int], *, delete_horizon_ms: int | None
) -> bytearray:
    """The batch with the records at these places alone, and with a delete horizon if one is given.

    Its largest timestamp stays, since it is also when its producer last wrote.
    """
    base = header.base_timestamp if delete_horizon_ms is None else delete_horizon_ms
    kept_records = _kept_kafka_records if header.magic == MAGIC_KAFKA else _kept_columns
    payload = kept_records(payload_of(batch, header), header, kept, shift_ms=header.base_timestamp - base)
    return _rebuilt(
        header,
        compress(payload, Compression(header.compression)),
        record_count=len(kept),
        base_timestamp=base,
        attributes=header.attributes | (0 if delete_horizon_ms is None else DELETE_HORIZON_BIT),
    )


def emptied(header: BatchHeader) -> bytearray:
    """The batch without records: it says who wrote last, when, and up to which sequence."""
    return _rebuilt(
        header,
        b"",
        record_count=0,
        base_timestamp=header.max_timestamp,
        attributes=header.attributes & ~DELETE_HORIZON_BIT,
    )


def _kept_kafka_records(records: Buffer, header: BatchHeader, kept: Sequence[int], *, shift_ms: int) -> bytes:
    payload = bytes(records)
    placed = _selected(walk_kafka_records(payload, header.record_count), kept)
    if not shift_ms:
        return b"".join([payload[record.start : record.end] for record in placed])
    return b"".join(
        [
            with_timestamp_delta(payload, record, _shifted(record.timestamp_delta, shift_ms))
            for record in placed
        ]
    )


def _kept_columns(payload: Buffer, header: BatchHeader, kept: Sequence[int], *, shift_ms: int) -> bytes:
    view, count = memoryview(payload), header.record_count
    places = column_places(view, count)
    deltas, times = (_numbers(view, places[column], count) for column in (OFFSET_DELTAS, TIMESTAMP_DELTAS))
    if deltas is not None or len(kept) < count:
        deltas = list(kept if deltas is None else _selected(deltas, kept))
    if times is not None or shift_ms:
        times = [_shifted(time, shift_ms) for time in _selected(times or [0] * count, kept)]
    array = msgpack.Packer().pack_array_header(len(kept))
    keys, values, headers = (
        _NIL if place is None else b"".join((array, packed_entries(view, place, kept)))
        for place in (places[KEYS], places[VALUES], places[HEADERS])
    )
    return b"".join((_FIVE_COLUMNS, msgpack.packb(deltas), keys, values, msgpack.packb(times), headers))


def _numbers(payload: memoryview, place: int | None, count: int) -> list[int] | None:
    return None if place is None else list(chain.from_iterable(number_pieces(payload, place, count)))


def _selected(entries: Iterable[T], kept: Sequence[int]) -> Iterator[T]:
    """The entries at these places, which ascend."""
    left, place = iter(entries), 0
    for wanted in kept:
        yield next(islice(left, wanted - place, None))
        place = wanted + 1


def _shifted(timestamp_delta: int, shift_ms: int) -> int:
    """A delta against another base. A time near the smallest that 64 bits can hold would need a delta that
    they cannot; the record gets the smallest delta instead.
    """
    return max(-INT64_MAX - 1, timestamp_delta + shift_ms)


def _rebuilt(
    header: BatchHeader, payload: Buffer, *, record_count: int, base_timestamp: int, attributes: int
) -> bytearray:
    return rebuild_batch(
        payload,
        header,
        magic=header.magic,
        attributes=attributes,
        record_count=record_count,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=base_timestamp,
    )
