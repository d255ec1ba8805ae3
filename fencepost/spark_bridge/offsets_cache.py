"""The offsets of logs, cached between the triggers of a stream.

Rule: a log is walked from where the last walk ended, and not at all if its files have not changed. What was
remembered is dropped if the files are not a continuation of what they were.
"""

from __future__ import annotations

from typing import NamedTuple

from fencepost.protocol.terms import TopicPartition
from fencepost.spark_bridge.log_offsets import LogOffsets, find_log_offsets
from fencepost.spark_bridge.losses import Report
from fencepost.spark_bridge.partition_files import PartitionFiles


class _CachedOffsets(NamedTuple):
    log: PartitionFiles
    offsets: LogOffsets


class LogOffsetsCache:
    """Finds the offsets of logs, and caches them."""

    def __init__(self, report: Report | None) -> None:
        self._report = report
        self._known: dict[TopicPartition, _CachedOffsets] = {}

    def find(self, log: PartitionFiles) -> LogOffsets:
        """The bounds of a log; raises what `find_log_offsets` raises."""
        known = self._known.get(log.partition)
        if known is not None and not _continues(log, known.log):
            known = None
        if known is not None:
            log.walked.update(known.log.walked)
        if known is None or log != known.log:
            since = None if known is None else known.offsets
            known = _CachedOffsets(log, find_log_offsets(log, since=since, report=self._report))
            self._known[log.partition] = known
        return known.offsets


def _continues(log: PartitionFiles, before: PartitionFiles) -> bool:
    """Whether a log has all that it had before, except for deleted segments at its beginning."""
    if not before.segments or not log.segments or log.home != before.home:
        return False
    first = log.segments[0].base_offset
    sizes = {segment.base_offset: segment.size for segment in log.segments}
    *full, last = before.segments
    are_kept = all(sizes.get(each.base_offset) == each.size for each in full if each.base_offset >= first)
    return are_kept and sizes.get(last.base_offset, -1) >= last.size
