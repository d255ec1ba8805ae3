"""What the markers of a log say about transactions whose records were read, where the transaction indexes
may be incomplete.

Kafka makes a transaction index with the first aborted transaction whose marker is in the segment, so a
missing file usually means that there is none. A file that was lost looks the same. Only the markers tell
which it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing, suppress
from typing import Final, NamedTuple

from fencepost.journal.indexes import AbortedRange
from fencepost.journal.open_transactions import OpenTransactions
from fencepost.journal.segments import walk_headers
from fencepost.protocol.batches import BatchHeader, checksum_matches
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.terms import INT64_MAX, TopicPartition
from fencepost.spark_bridge.partition_files import PartitionFiles, SegmentFile


def walk_unindexed(log: PartitionFiles, start: int, *, upper: int) -> list[AbortedRange]:
    """Returns the aborted transactions with records in [start, upper) whose marker is in a segment without a
    transaction index. Of each, the first offset is that of its first batch in the range.

    It reads headers and markers from `start` until every transaction with records in the range has ended.
    """
    segments = log.segments[log.segment_index(start) :]
    found: list[AbortedRange] = []
    if log.unindexed.isdisjoint(segment.base_offset for segment in segments):
        return found
    ceiling = INT64_MAX if log.high_watermark is None else log.high_watermark
    transactions = OpenTransactions(is_sparse=log.layout.is_sparse)
    for segment in segments:
        with suppress(ProtocolViolation):  # the scan that reads the batches reports damage
            for _, header, batch in _headers(log, segment, start):
                is_past = header.base_offset >= upper
                if header.next_offset > ceiling or (is_past and transactions.first_offset is None):
                    return found
                if header.is_control or (header.next_offset > start and not is_past):
                    ended = transactions.update(header, batch)
                    if ended is not None and segment.base_offset in log.unindexed:
                        found.append(ended)
    return found


class _MarkerPlace(NamedTuple):
    """Where a marker is."""

    since: int
    """From this offset up to the marker, its producer has no other one."""
    segment: SegmentFile
    position: int
    header: BatchHeader


_MARKERS_KEPT: Final = 1_000
_found: dict[tuple[str, TopicPartition, str, int], _MarkerPlace] = {}  # by directory, topic id and producer


def first_markers(
    log: PartitionFiles, start: int, producers: Collection[int]
) -> list[tuple[BatchHeader, bytes]]:
    """Returns, for each of these producers, its first control batch at or after `start`.

    It stops at damage and at missing offsets, because a marker may be lost there; if `start` was deleted, it
    finds nothing. A process remembers where markers are: in a stream with small micro-batches, each task of a
    long transaction looks for the same one.
    """
    if log.log_start_offset > start:
        return []
    found = [marker for producer in producers if (marker := _remembered(log, start, producer)) is not None]
    missing, expected = set(producers) - {header.producer_id for header, _ in found}, start
    if not missing:
        return found
    with suppress(ProtocolViolation):
        for segment in log.segments[log.segment_index(start) :]:
            for at, header, batch in _headers(log, segment, start):
                if header.next_offset <= start:
                    continue
                if header.base_offset > expected and not log.layout.is_sparse:
                    return found
                expected = header.next_offset
                if header.is_control and header.producer_id in missing:
                    if not checksum_matches(batch, 0, header):
                        return found
                    found.append((header, batch))
                    missing.remove(header.producer_id)
                    _remember(log, _MarkerPlace(start, segment, at, header))
                    if not missing:
                        return found
    return found


def _remember(log: PartitionFiles, found: _MarkerPlace) -> None:
    if log.topic_id:  # without an id, another topic may get the name
        if len(_found) == _MARKERS_KEPT:
            _found.clear()
        _found[log.storage.location, log.partition, log.topic_id, found.header.producer_id] = found


def _remembered(log: PartitionFiles, start: int, producer_id: int) -> tuple[BatchHeader, bytes] | None:
    """The first marker of a producer at or after an offset, if an earlier search has passed that offset."""
    found = _found.get((log.storage.location, log.partition, log.topic_id, producer_id))
    if found is None or not found.since <= start <= found.header.base_offset:
        return None
    if log.header_at(found.segment, found.position) != found.header:
        return None
    with closing(log.storage.open(log.path(found.segment))) as file:
        return found.header, file.read(found.position, found.header.size)


def _headers(
    log: PartitionFiles, segment: SegmentFile, start: int
) -> Iterator[tuple[int, BatchHeader, bytes]]:
    """Yields the headers of a segment from a batch at or before an offset on, with their positions, and the
    bytes of control batches; ProtocolViolation at damage or a torn end.
    """
    with closing(log.storage.open(log.path(segment))) as file:
        for at, header in walk_headers(file, log.position_before(segment, start), segment.size):
            yield at, header, file.read(at, header.size) if header.is_control else b""
