"""Finds the first record of a partition that is at least as new as a timestamp, as ListOffsets does.

Rule: timestamps may go back, so the offset that is found is the first by offset; later records may be older.
"""

from __future__ import annotations

from contextlib import closing
from itertools import repeat

from fencepost.journal.indexes import TIME_ENTRY, TimeIndex, without_preallocated
from fencepost.journal.segments import TIME_INDEX, walk_headers
from fencepost.journal.storage import ReadableFile
from fencepost.protocol.batches import LOG_APPEND_TIME_BIT, BatchHeader
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.records import read_columns
from fencepost.spark_bridge.partition_files import CorruptLog, PartitionFiles, SegmentFile


def find_timestamp(log: PartitionFiles, timestamp: int, *, low: int, high: int) -> int | None:
    """Returns the offset of the first record in [low, high) with this time in ms or a later one, or None.

    Records of any transaction count, and markers, as for a consumer (FileRecords.searchForTimestamp). Raises
    CorruptLog.
    """
    if low >= high or not log.segments:
        return None
    for segment in log.segments[log.segment_index(low) : log.segment_index(high - 1) + 1]:
        try:
            found = _find_in(log, segment, timestamp, low=low, high=high)
        except ProtocolViolation as problem:
            raise CorruptLog(f"{log.location(segment)} is damaged: {problem}") from problem
        if found is not None:
            return found
    return None


def _find_in(log: PartitionFiles, segment: SegmentFile, timestamp: int, *, low: int, high: int) -> int | None:
    with closing(log.storage.open(log.path(segment))) as file:
        start = max(low, _offset_before(log, segment, file, timestamp, low=low))
        for position, header in walk_headers(file, log.position_before(segment, start), segment.size):
            if header.base_offset >= high:
                return None
            if header.max_timestamp >= timestamp and header.last_offset >= low and header.record_count:
                found = _first_since(timestamp, header, file.read(position, header.size), low=low)
                if found is not None:
                    return found if found < high else None
            if header.next_offset >= high:
                return None
    return None


def _offset_before(
    log: PartitionFiles, segment: SegmentFile, file: ReadableFile, timestamp: int, *, low: int
) -> int:
    """The offset to search from: no record from `low` up to its batch is as new as the timestamp.

    The time index is only a hint: the batch of its entry must have the timestamp of the entry.
    """
    entry = _time_index(log, segment).entry_before(timestamp)
    if entry is None:
        return segment.base_offset
    offset = segment.base_offset + entry[1]
    if offset <= low:
        return low
    try:
        for _, header in walk_headers(file, log.position_before(segment, offset), segment.size):
            if header.last_offset >= offset:
                is_true = header.base_offset <= offset and header.max_timestamp == entry[0]
                return offset if is_true else segment.base_offset
    except ProtocolViolation:
        pass  # the search from the first batch meets the damage, unless it ends before
    return segment.base_offset


def _time_index(log: PartitionFiles, segment: SegmentFile) -> TimeIndex:
    """The time index of a segment; shorter if the file is missing or cut off."""
    data = log.storage.read_file(log.path(segment, TIME_INDEX)) or b""
    whole = data[: len(data) - len(data) % TIME_ENTRY.size]
    return TimeIndex(without_preallocated(whole, TIME_ENTRY.size))


def _first_since(timestamp: int, header: BatchHeader, batch: bytes, *, low: int) -> int | None:
    columns = read_columns(batch, header)
    if header.attributes & LOG_APPEND_TIME_BIT:
        times = repeat(header.max_timestamp, len(columns.values))
    else:
        deltas = columns.timestamp_deltas or repeat(0, len(columns.values))
        times = (header.base_timestamp + delta for delta in deltas)
    offsets = columns.offset_deltas or range(len(columns.values))
    for delta, time in zip(offsets, times, strict=True):
        if time >= timestamp and header.base_offset + delta >= low:
            return header.base_offset + delta
    return None
