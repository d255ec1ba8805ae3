"""The cleaning of one log on its disk: which segments, in which order, and how the cleaned ones take their
place.

Rule: a crash at any moment leaves the old segments or the cleaned one, never a mixture.
"""

# Theory of operation (Kafka: LogCleanerManager, Cleaner.groupSegmentsBySize, UnifiedLog.replaceSegments)
#
#     plan      whenever the broker looks for dirty logs: is enough of this one dirty, and may it be cleaned
#     work      in a worker thread, piece by piece: first read every full segment (survey), then write what is
#               left of as many of them as fit into one, as `<base offset>.log.cleaned` with its indexes
#     finish    in the thread of the journal, between two syncs: `Journal.replace_segments`
#
# Full segments never change, so the worker needs no locks. It reads them through handles of its own, and
# nothing looks at its files before they are renamed. Each group of segments is replaced on its own: a crash
# between two groups leaves a log that is partly cleaned, with the same meaning.
#
# `Journal.replace_segments` renames the cleaned log over the first segment of the group, and then removes the
# others. After a crash in between, these begin before the cleaned one ends: recovery removes them.
#
# The active segment is never cleaned. So a log that must stay small, because every start reads all of it,
# needs small segments.
#
# Compaction removes a record because a newer one has the same key, and the newer one must not be lost to a
# power failure afterwards. So the cleaned segment is synced before it takes its place, and all segments after
# it, too.

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import attrs

from fencepost.journal.compaction import Batch, Cleaner, Survey
from fencepost.journal.journal import Journal
from fencepost.journal.open_transactions import OpenTransactions
from fencepost.journal.segments import Segment
from fencepost.journal.storage import StorageError
from fencepost.protocol.terms import INT32_MAX


@attrs.frozen(kw_only=True)
class CleaningRules:
    """Kafka's settings of a compacted topic, and what the leader of the log knows. Times are in ms."""

    now: int
    before: int
    """The last stable offset: nothing after it may be cleaned."""
    producers: frozenset[int]
    """The ids of the producers that the leader still knows."""
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    delete_retention_ms: int
    until: int | None = None
    """The batch that begins here repeats what all batches before it say (a snapshot of the metadata). These
    are removed together or not at all; later ones stay as they are.
    """
    is_deleted: bool = False
    """Whether retention deletes the oldest segments, too."""


class CleaningCancelled(StorageError):
    """The broker stops, or the log was given up: the cleaning was abandoned, and nothing has changed."""


def plan_cleaning(journal: Journal, rules: CleaningRules) -> Cleaning | None:
    """The cleaning that is due now, or None (LogCleanerManager.grabFilthiestCompactedLog)."""
    segments = list(_cleanable(journal, rules))
    dirty = [segment for segment in segments if segment.end_offset > journal.first_dirty_offset]
    if not dirty:
        return None
    if rules.until is not None and not _reach(segments, rules.until):
        return None
    ratio = sum(segment.size for segment in dirty) / sum(segment.size for segment in segments)
    is_overdue = 0 <= dirty[0].first_timestamp < rules.now - rules.max_compaction_lag_ms
    return (
        Cleaning(journal, segments, rules) if is_overdue or ratio > rules.min_cleanable_dirty_ratio else None
    )


def _cleanable(journal: Journal, rules: CleaningRules) -> Iterator[Segment]:
    """Full segments below the last stable offset, up to the first one with records that are too young."""
    for segment in journal.segments.full:
        is_young = (
            rules.min_compaction_lag_ms > 0
            and segment.end_offset > journal.first_dirty_offset
            and segment.max_timestamp > rules.now - rules.min_compaction_lag_ms
        )
        if segment.end_offset > rules.before or is_young:
            return
        if segment.size:
            yield segment


def _reach(segments: Sequence[Segment], until: int) -> bool:
    """Whether one segment can replace these up to the one that holds `until`."""
    end = segments[-1].end_offset
    return until < end <= segments[0].base_offset + INT32_MAX


class Cleaning:
    """One pass over a log. Call `work` in any thread and `finish` in that of the journal, in turn, until
    `work` returns False.
    """

    def __init__(self, journal: Journal, segments: Sequence[Segment], rules: CleaningRules) -> None:
        self.journal = journal
        self.is_cancelled = False
        self._rules = rules
        end = segments[-1].end_offset if rules.until is None else rules.until
        self._aborted = journal.segments.aborted_between(segments[0].base_offset, upper=end)
        self._survey = Survey(
            first_dirty=journal.first_dirty_offset, end=end, aborted=self._aborted, producers=rules.producers
        )
        self._segments = segments
        self._left = deque(segments)
        self._cleaner: Cleaner | None = None
        self._transactions = OpenTransactions()  # what is open where the next group begins
        self._cleaned: tuple[Sequence[Segment], Segment] | None = None
        self._is_synced = False  # the segments that are left

    def work(self) -> bool:
        """Do a piece of the work. Returns whether `finish` and a further call must follow. StorageError when
        the disk fails, DamagedLog when a segment is damaged: the log is as it was.
        """
        if self._cleaner is None:
            for segment in self._segments:
                self._survey.update(self._batches(segment))
            self._cleaner = Cleaner(
                self._survey,
                aborted=self._aborted,
                now=self._rules.now,
                delete_retention_ms=self._rules.delete_retention_ms,
            )
        if not self._left:
            return False
        self._write(self._cleaner)
        if self._cleaned is not None and not self._is_synced:
            self.journal.sync_full(self._left)
            self._is_synced = True
        return True

    def finish(self) -> None:
        """Let the segment that was written take the place of the old ones."""
        cleaned, self._cleaned = self._cleaned, None
        if cleaned is not None:
            self._forget_snapshots(cleaned[1])
            self.journal.replace_segments(*cleaned)
        if not self._left:
            self.journal.first_dirty_offset = self._survey.end

    def _forget_snapshots(self, cleaned: Segment) -> None:
        """Remove the snapshots where no segment begins any more. Retention deletes segments up to a
        snapshot; where nothing is deleted, none inside the clean part is needed.
        """
        if self._rules.is_deleted:
            self.journal.forget_snapshots(after=cleaned.base_offset, before=cleaned.end_offset)
        else:
            self.journal.forget_snapshots(after=self.journal.segments.oldest_offset, before=self._survey.end)

    def _batches(self, segment: Segment) -> Iterator[Batch]:
        for header, batch in segment.all_batches():
            if self.is_cancelled:
                raise CleaningCancelled(f"the cleaning of {self.journal.partition} was cancelled")
            yield header, batch

    def _write(self, cleaner: Cleaner) -> None:
        start = self._left[0].base_offset
        cleaned = self.journal.new_segment(start)
        group: list[Segment] = []
        read: list[int] = []
        written: list[int] = []
        cleaned.remove()  # what an abandoned cleaning left would precede what is written now
        try:
            cleaned.create()
            # The log may later begin at a snapshot. A snapshot also knows transactions of which no earlier
            # batch remains: their markers stay, and their aborts are in the index.
            self._transactions = transactions = self.journal.open_at(start) or self._transactions
            batches = cleaner.clean(self._next_group(cleaned, group, read), opened=[*transactions])
            for header, batch in batches:
                cleaned.append(
                    batch, header, last_offset=header.last_offset, leader_epoch=header.leader_epoch
                )
                written.append(header.crc)
                aborted = transactions.update(header, batch)
                if aborted is not None:
                    cleaned.append_aborted(aborted)
            cleaned.complete_time_index()
            cleaned.save_indexes()
            cleaned.sync(indexes=True)
        except BaseException:
            cleaned.remove()
            raise
        cleaned.release()
        if len(group) == 1 and written == read:
            cleaned.remove()  # it was clean
        else:
            self._cleaned = (group, cleaned)

    def _next_group(self, cleaned: Segment, group: list[Segment], read: list[int]) -> Iterator[Batch]:
        """Yields the batches of the next segments, as long as what remains of them fits into one segment.
        Adds the segments to `group`, and the checksums of the batches to `read`.
        """
        while self._left and (
            not group or self._is_superseded(self._left[0]) or self._fits(self._left[0], cleaned)
        ):
            segment = self._left.popleft()
            group.append(segment)
            for header, batch in self._batches(segment):
                read.append(header.crc)
                yield header, batch

    def _is_superseded(self, segment: Segment) -> bool:
        # If only some of these were replaced, the log would have another meaning.
        return self._rules.until is not None and segment.base_offset <= self._rules.until

    def _fits(self, segment: Segment, cleaned: Segment) -> bool:
        # A full segment is a little larger than the limit, and little may be left of it.
        size_max = self.journal.settings.segment_bytes * 3 // 2
        return (
            cleaned.size + segment.size <= size_max and segment.end_offset - cleaned.base_offset <= INT32_MAX
        )
