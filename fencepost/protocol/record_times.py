"""The first record of a batch at or after a time. Only timestamps and offsets are read."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat
from typing import NamedTuple

from fencepost.protocol.batches import MAGIC_KAFKA, BatchHeader, Buffer
from fencepost.protocol.column_entries import number_pieces
from fencepost.protocol.kafka_records import walk_kafka_records
from fencepost.protocol.records import OFFSET_DELTAS, TIMESTAMP_DELTAS, column_places


class RecordTime(NamedTuple):
    """A record's timestamp (ms) and its offset."""

    timestamp: int
    offset: int


def first_record_since(
    payload: Buffer, header: BatchHeader, timestamp: int, *, from_offset: int
) -> RecordTime | None:
    """The first of the decompressed records that is at or after an offset, and at least as new as `timestamp`
    (ms). ProtocolViolation when they cannot be read up to there.
    """
    # The bounds become deltas once, so that no record needs an addition.
    least_time, least_offset = timestamp - header.base_timestamp, from_offset - header.base_offset
    for time, offset in _record_times(payload, header):
        if time >= least_time and offset >= least_offset:
            return RecordTime(header.base_timestamp + time, header.base_offset + offset)
    return None


def _record_times(payload: Buffer, header: BatchHeader) -> Iterator[tuple[int, int]]:
    count = header.record_count
    if header.magic == MAGIC_KAFKA:
        for record in walk_kafka_records(bytes(payload), count):
            yield record.timestamp_delta, record.offset_delta
    elif payload:  # a batch that compaction emptied has none
        view = memoryview(payload)
        places = column_places(view, count)
        times, offsets = places[TIMESTAMP_DELTAS], places[OFFSET_DELTAS]
        yield from zip(
            repeat(0, count) if times is None else chain.from_iterable(number_pieces(view, times, count)),
            range(count) if offsets is None else chain.from_iterable(number_pieces(view, offsets, count)),
            strict=True,
        )
