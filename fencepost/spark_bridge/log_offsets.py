"""The bounds of a log in its files: its start, its last stable offset and its end; and what is lost.

Rule: the manifest is a lower bound. What it promises and the files lack is a loss; what comes after it counts
if its checksums match.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cache, partial
from typing import Final

import attrs

from fencepost.journal.indexes import AbortedRange
from fencepost.journal.manifest import MANIFEST_FILE, lost_segments
from fencepost.journal.open_transactions import OpenTransaction, OpenTransactions
from fencepost.journal.segments import walk_batches, walk_headers
from fencepost.journal.storage import ReadableFile, directory_name
from fencepost.protocol.batches import BatchHeader, Buffer
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.terms import INT64_MAX, NO_LEADER_EPOCH, NO_OFFSET, IsolationLevel
from fencepost.spark_bridge.losses import Loss, Report
from fencepost.spark_bridge.partition_files import (
    SWAP_SUFFIX,
    CorruptLog,
    DamagedIndex,
    DataLoss,
    PartitionFiles,
    SegmentFile,
)

_RECOVER: Final = (
    "start the broker on this directory once to recover it, or set failOnDataLoss=false to read what exists"
)
MANIFEST_ADVICE: Final = "start the broker on this directory once; it writes a new manifest"


@attrs.frozen(kw_only=True)
class LogOffsets:
    """The readable offsets of a partition.

    `aborted` are the transactions whose abort marker the walk met, whether the index has them or not.
    """

    log_start_offset: int
    last_stable_offset: int
    log_end_offset: int
    open_transactions: tuple[OpenTransaction, ...] = ()
    aborted: tuple[AbortedRange, ...] = ()

    def end(self, isolation_level: IsolationLevel) -> int:
        """One past the last offset that a reader of this isolation level may see."""
        committed = isolation_level is IsolationLevel.READ_COMMITTED
        return self.last_stable_offset if committed else self.log_end_offset


def find_log_offsets(
    log: PartitionFiles, *, since: LogOffsets | None = None, report: Report | None = None
) -> LogOffsets:
    """Finds the bounds of the log in its files; a torn tail does not count.

    `since` are the bounds that were found before more batches were added: the walk begins at their end.
    Raises DataLoss if a segment is missing, or if the log ends before the high watermark of its manifest, and
    CorruptLog if the manifest cannot be read. With `report` it reports these losses instead, and finds the
    bounds of what exists.
    """
    _report_bad_manifest(log, report)
    _report_lost_segments(log, report)
    manifest = log.manifest
    ceiling = INT64_MAX if log.high_watermark is None else log.high_watermark
    # Without a manifest, all segments but the last are assumed complete: only the last is written to.
    written = manifest.high_watermark if manifest else log.segments[-1].base_offset if log.segments else 0
    # An older copy of a log has an older manifest, but the mark of a clean stop lies outside of it.
    closed_end = log.layout.closed_end(log.partition)
    promised = min(max(written, closed_end), ceiling)
    start, opened_before = log.open_transactions_at(ceiling if log.layout.is_sparse else promised)
    stable = max(log.log_start_offset, manifest.last_stable_offset if manifest else 0)
    # An open transaction holds the LSO of the manifest back, and a snapshot lists it. Of two starts the
    # later one is right: both know what is open, and compaction may have removed records of it.
    if stable > start and not log.layout.is_sparse:
        start, opened_before = stable, None
    if since is not None and since.log_end_offset > start:
        start, opened_before = since.log_end_offset, since.open_transactions
    walk = _TailWalk(log, start, promised, ceiling=ceiling, opened_before=opened_before)
    if written <= walk.end < closed_end:  # a broker may have started since, for a new topic of this name
        promised = min(max(written, log.layout.closed_end(log.partition, refresh=True)), ceiling)
    if walk.end < promised and not walk.is_at_ceiling:
        message = f"{walk.where} ends at offset {walk.end}, but offsets up to {promised} were written"
        message += f": {_RECOVER}" if report is None else ": reading what exists"
        _report_loss(log, start=walk.end, end=promised, file=walk.where, reason=message, report=report)
        walk = _TailWalk(log, min(start, log.log_start_offset), 0, ceiling=ceiling, opened_before=None)
    oldest = walk.transactions.first_offset
    return LogOffsets(
        # A loss of power may take the end of the log below its start; recovery moves the start, too.
        log_start_offset=min(log.log_start_offset, walk.end),
        last_stable_offset=walk.end if oldest is None else oldest,
        log_end_offset=walk.end,
        open_transactions=tuple(walk.transactions),
        aborted=(*(_not_indexed(log, since.aborted) if since else ()), *walk.aborted),
    )


def _report_bad_manifest(log: PartitionFiles, report: Report | None) -> None:
    """Reports a manifest that is damaged. No record is lost, as long as no segment is."""
    if not log.why_damaged:
        return
    file = f"{log.storage.location}/{directory_name(log.partition)}/{MANIFEST_FILE}"
    if report is None:
        raise CorruptLog(f"{file}: {log.why_damaged}: {MANIFEST_ADVICE}")
    start = log.log_start_offset
    reason = f"{file} cannot be read: {log.why_damaged}: reading the log without it"
    report(Loss(partition=log.partition, start=start, end=start, file=file, position=0, reason=reason))


def _report_lost_segments(log: PartitionFiles, report: Report | None) -> None:
    """Reports the segments that are lost: the first ones, others that the manifest lists, and those that
    Kafka's compaction was about to replace.
    """
    start, end = log.deleted_to, log.log_start_offset
    if start < end and not log.layout.is_sparse:
        where = f"{log.storage.location}/{directory_name(log.partition)}"
        reason = f"no file in {where} holds the offsets from {start} to {end - 1}, and they were not deleted"
        _report_loss(log, start=start, end=end, file=where, reason=reason, report=report)
    for base_offset in log.replaced:
        file = log.location(SegmentFile(base_offset, size=0))
        following = [segment.base_offset for segment in log.segments if segment.base_offset > base_offset]
        _report_loss(
            log,
            start=base_offset,
            end=min(following, default=base_offset + 1),
            file=file,
            reason=f"{file} is gone, and {SWAP_SUFFIX} was not renamed: the files were copied while a broker "
            "compacted them, so copy them again",
            report=report,
        )
    lost = lost_segments(
        log.manifest.segments if log.manifest else (),
        [segment.base_offset for segment in log.segments],
        log_start_offset=log.log_start_offset,
        end_of=cache(partial(_end_of, log)),
    )
    for summary in lost:
        file = log.location(SegmentFile(summary.base_offset, size=0))
        _report_loss(
            log,
            start=summary.base_offset,
            end=summary.end_offset,
            file=file,
            reason=f"{file} is gone, but the manifest there lists it",
            report=report,
        )


def _end_of(log: PartitionFiles, base_offset: int) -> int:
    """Where the batches of the segment that begins at an offset end."""
    end = base_offset
    with closing(log.storage.open(log.path(SegmentFile(base_offset, size=0)))) as file:
        try:
            # A cleaned segment may have taken its place since the files were listed, so its size counts now.
            for _, header in walk_headers(file, 0, file.size):
                if header.base_offset != end:
                    break
                end = header.next_offset
        except ProtocolViolation:
            pass
    return end


def _not_indexed(log: PartitionFiles, aborted: Sequence[AbortedRange]) -> Sequence[AbortedRange]:
    """Those of the aborted ranges, in the order of their markers, that no transaction index has."""
    if not aborted:
        return ()
    first = log.segment_index(aborted[0].last_offset)
    for segment in reversed(log.segments[first:]):
        try:
            index = log.transaction_index(segment)
        except DamagedIndex:
            break  # for the plan, which reads it, too
        if len(index):
            # Entries are written in the order of the markers, each right after its own.
            return [each for each in aborted if each.last_offset > index[len(index) - 1].last_offset]
    return aborted


def _report_loss(
    log: PartitionFiles, *, start: int, end: int, file: str, reason: str, report: Report | None
) -> None:
    if report is None:
        raise DataLoss(reason)
    report(Loss(partition=log.partition, start=start, end=end, file=file, position=0, reason=reason))


class _TailWalk:
    """One pass over the batches from offset `start` to the end of the log, or to offset `ceiling`.

    It trusts headers below offset `promised` and verifies the checksum of every batch from there on.
    `opened_before` are the transactions that are open at `start`; without them, those that the walk meets
    count from the batch where it begins, which may be an earlier one.
    """

    def __init__(
        self,
        log: PartitionFiles,
        start: int,
        promised: int,
        *,
        ceiling: int,
        opened_before: Sequence[OpenTransaction] | None,
    ) -> None:
        self.log = log
        self.start = start
        self.promised = promised
        self.ceiling = ceiling
        self.is_at_ceiling = False
        self.known_before = NO_OFFSET if opened_before is None else start
        self.end = log.log_start_offset  # one past the last batch seen
        self.leader_epoch = NO_LEADER_EPOCH
        self.transactions = OpenTransactions(opened_before or (), is_sparse=log.layout.is_sparse)
        self.aborted: list[AbortedRange] = []
        self.where = f"{log.storage.location}/{log.partition}"
        self._run()

    def _run(self) -> None:
        """Stops at the first segment that is damaged, and at the ceiling."""
        log = self.log
        for number, segment in enumerate(log.segments[log.segment_index(self.start) :]):
            if number and segment.base_offset < self.end and not log.layout.is_sparse:
                continue  # a cleaned segment has taken its place, and its file is about to be removed
            self.where = log.location(segment)
            position = log.position_before(segment, self.start)
            if number == 0:
                first = log.header_at(segment, position)
                self.end = first.base_offset if first else segment.base_offset
            try:
                with closing(log.storage.open(log.path(segment))) as file:
                    for at, header, batch in self._batches(segment, file, position):
                        if header.next_offset > self.ceiling:
                            self.end = min(header.base_offset, self.ceiling)
                            self.is_at_ceiling = True
                            return
                        self._see(header, batch)
                        log.note_batch(segment, header, at)
            except ProtocolViolation:
                return
        if log.layout.is_sparse and log.segments:
            # Compaction may have removed the last batches before a segment that has no batch yet.
            self.end = max(self.end, min(log.segments[-1].base_offset, self.ceiling))

    def _batches(
        self, segment: SegmentFile, file: ReadableFile, position: int
    ) -> Iterator[tuple[int, BatchHeader, Buffer]]:
        """Yields position and header of the batches of one segment; of markers also the bytes.

        Raises ProtocolViolation at the first batch that is damaged or cut off.
        """
        if segment.base_offset < self.promised:
            for at, header in walk_headers(file, position, segment.size):
                if header.base_offset >= self.promised:
                    break
                if at + header.size > segment.size:
                    raise ProtocolViolation("the last batch is cut off")
                yield at, header, file.read(at, header.size) if header.is_control else b""
                position = at + header.size
        yield from walk_batches(file, position, segment.size)

    def _see(self, header: BatchHeader, batch: Buffer) -> None:
        """Accepts a batch as the next one of the log, by the rules of recovery."""
        is_next = header.base_offset == self.end and header.leader_epoch >= self.leader_epoch
        if not is_next and not (self.log.layout.is_sparse and header.base_offset > self.end):
            raise ProtocolViolation(f"offset {header.base_offset} after {self.end}")
        self.leader_epoch = header.leader_epoch
        self.end = header.next_offset
        if header.next_offset <= self.known_before:
            return
        ended = self.transactions.update(header, batch)
        if ended is not None:
            self.aborted.append(ended)
