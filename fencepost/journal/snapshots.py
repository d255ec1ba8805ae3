"""The producer snapshots of one log: `<offset>.snapshot`, Kafka's format, what the leader remembers there.

Rule: a snapshot is derived from the log, so it counts only as long as the log does not contradict it.
"""

# Theory of operation
#
# Kafka's format binds a snapshot to no log: its checksum also matches in another directory. So a file that an
# operator copied into a wrong one looks whole, and a leader that believed it would take new batches for
# duplicates, show records of an open transaction, or wait for a marker that never comes. Two things reveal
# such a file.
#
# The manifest lists the snapshots with their checksums, and the mark of a clean stop has that of the snapshot
# at the end of the log (`known_snapshots`). A snapshot that is not listed was written right before a kill, or
# is of another log. The log still has all that it says, since segments are deleted only once the manifest
# lists the snapshot that stands for them. So it is removed.
#
# After a loss of power, and without a manifest, only the log is left. A snapshot is compared with the headers
# of the batches that it speaks of:
#
#     its offset         is where a batch of this log begins, or where the log ends
#     last_offset        ends a batch of that producer, with that last sequence
#     first_offset       begins a batch of that producer
#     the batch before   has left its producer as the snapshot has it; one with an open transaction is there
#
# Compaction may have removed a batch since; an empty batch without a producer then takes its place, which
# contradicts nothing. About offsets before the oldest segment the log says nothing, nor does it know which
# batch of a producer is its last one, or which transaction a snapshot does not name. Each lookup reads at
# most an index interval, and no lookup reads records. Of many producers only those that wrote last are looked
# up: in a snapshot of another log, nearly every one is wrong.
#
# A damaged header contradicts nothing: a read of its batch reports the damage.
#
# A snapshot that is corrupt or contradicted is removed, and the next older one is tried, or the log is read
# from its beginning (UnifiedLog.rebuildProducerState does this after an unclean stop). Kafka believes every
# snapshot whose checksum matches (ProducerStateManager.loadFromSnapshot).

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from heapq import nlargest
from operator import attrgetter
from typing import Final

from sortedcontainers import SortedSet

from fencepost.journal.indexes import (
    CorruptIndex,
    ProducerSnapshot,
    decode_snapshot,
    encode_snapshot,
    snapshot_checksum,
)
from fencepost.journal.manifest import NO_CHECKSUM, KnownSnapshots, SnapshotSummary
from fencepost.journal.open_transactions import OpenTransaction, OpenTransactions
from fencepost.journal.segments import SNAPSHOT, Segment, file_name
from fencepost.journal.storage import DamagedLog, Storage
from fencepost.protocol.batches import BatchHeader
from fencepost.protocol.terms import NO_OFFSET

CHECKED_MAX: Final = 1_000  # producers of a snapshot


def open_in_snapshot(producers: Iterable[ProducerSnapshot]) -> OpenTransactions:
    """The transactions that were open when a snapshot was taken."""
    return OpenTransactions(
        OpenTransaction(producer.first_offset, producer.producer_id, producer.producer_epoch)
        for producer in producers
        if producer.first_offset != NO_OFFSET
    )


class Snapshots:
    """The snapshot files of one log."""

    def __init__(
        self, storage: Storage, directory: str, offsets: Collection[int], known: KnownSnapshots
    ) -> None:
        self._storage = storage
        self._directory = directory
        self._unlisted = [offset for offset in offsets if known.is_unlisted(offset)]
        self.offsets: SortedSet[int] = SortedSet({*offsets} - {*self._unlisted})
        self._known = known  # also those that were written or read since
        self._entries: dict[int, SnapshotSummary] = {}  # by offset, each until its snapshot changes,
        self._summaries: tuple[SnapshotSummary, ...] | None = None  # and all of them, until one changes
        self.removed: list[str] = []
        """A line about each file that `remove_refused` removed."""
        self._refused: dict[int, str] = {}

    def path(self, offset: int) -> str:
        """The file of the snapshot at an offset."""
        return f"{self._directory}/{file_name(offset, SNAPSHOT)}"

    def write(self, offset: int, producers: Sequence[ProducerSnapshot], *, keep: Iterable[int]) -> None:
        """Write the snapshot at an offset. Of the others, only those at the offsets `keep` stay.

        One that is already there may know producers that were forgotten since, and says the same of all
        others. It stays, because a manifest may name its checksum.
        """
        if offset not in self.offsets:
            data = encode_snapshot(producers)
            self._storage.replace(self.path(offset), data, durable=False)
            self._know(offset, snapshot_checksum(data))
        for other in [*self.offsets.difference(keep, [offset])]:
            self.remove(other)
        self.offsets.add(offset)

    def sync(self, offset: int) -> None:
        """Make the snapshot at an offset durable. It needs no room: the disk may be full."""
        file = self._storage.open(self.path(offset))
        file.sync()
        file.close()
        self._storage.sync_directory(self._directory)

    def remove(self, offset: int) -> None:
        """Remove the snapshot at an offset."""
        self._storage.remove(self.path(offset))
        self._forget(offset)

    def _forget(self, offset: int) -> None:
        self.offsets.remove(offset)
        self._known.checksums.pop(offset, None)
        self._drop_entry(offset)

    def _know(self, offset: int, checksum: int) -> None:
        self._known.checksums[offset] = checksum
        self._drop_entry(offset)

    def _drop_entry(self, offset: int) -> None:
        self._entries.pop(offset, None)
        self._summaries = None

    def read(self, offset: int) -> list[ProducerSnapshot] | None:
        """The snapshot at one of `offsets`; None when it is missing, corrupt or not the one that was written
        here. Then it no longer counts; a corrupt one is removed at once, another one by `remove_refused`.
        """
        data = self._storage.read_file(self.path(offset)) or b""
        try:
            producers = decode_snapshot(data)
        except CorruptIndex:
            self.remove(offset)
            return None
        checksum = snapshot_checksum(data)
        why = self._known.objection(offset, checksum)
        if why:
            self._refuse(offset, why)
            return None
        self._know(offset, checksum)
        return producers

    def read_known(self, offset: int) -> list[ProducerSnapshot] | None:
        """The same in any thread: nothing is removed."""
        data = self._storage.read_file(self.path(offset))
        try:
            producers = None if data is None else decode_snapshot(data)
        except CorruptIndex:
            return None
        is_known = data is not None and snapshot_checksum(data) == self._known.checksums.get(offset)
        return producers if is_known else None

    def _refuse(self, offset: int, why: str) -> None:
        self._forget(offset)
        self._refused[offset] = why

    def read_unknown(self, *, are_all: bool) -> None:
        """Read those whose checksums no small file names, or all of them, so that torn ones no longer count
        and the manifest can name the others.
        """
        for offset in [*self.offsets]:
            if are_all or self.checksum(offset) == NO_CHECKSUM:
                self.read(offset)

    def checksum(self, offset: int) -> int:
        """The checksum of the snapshot at an offset; NO_CHECKSUM without one."""
        return self._known.checksums.get(offset, NO_CHECKSUM) if offset in self.offsets else NO_CHECKSUM

    def summaries(self) -> tuple[SnapshotSummary, ...]:
        """The entries of a manifest."""
        if self._summaries is None:
            # A roll changes one of thousands: the others keep their entries, and these their JSON.
            self._entries |= {
                each: SnapshotSummary(offset=each, checksum=self.checksum(each))
                for each in self.offsets
                if each not in self._entries
            }
            self._summaries = tuple([self._entries[each] for each in self.offsets])
        return self._summaries

    def newest(
        self, segments: Sequence[Segment], *, at_most: int
    ) -> tuple[int, list[ProducerSnapshot]] | None:
        """The newest snapshot at or before an offset that `segments` do not contradict, with its offset. They
        are the oldest ones of the log, and reach to `at_most`. Contradicted ones no longer count, and
        `remove_refused` removes their files; corrupt ones are removed at once.
        """
        oldest = segments[0].base_offset if segments else at_most
        for offset in [*self.offsets.irange(minimum=oldest, maximum=at_most, reverse=True)]:
            producers = self.read(offset)
            if producers is None:
                continue
            why = _contradiction(offset, producers, segments)
            if why is None:
                return offset, producers
            self._refuse(offset, why)
        return None

    def remove_refused(self) -> None:
        """Remove the files of the snapshots that the log or the small files contradicted, and of those that
        no small file lists yet.
        """
        for offset in self._unlisted:
            self._storage.remove(self.path(offset))
        self._unlisted = []
        for offset, why in self._refused.items():
            self._storage.remove(self.path(offset))
            self.removed.append(f"{self.path(offset)} was not written for this log ({why}); removed it")
        self._refused = {}


def _contradiction(
    offset: int, producers: Sequence[ProducerSnapshot], segments: Sequence[Segment]
) -> str | None:
    """Why a snapshot cannot be of this log; None without a contradiction."""
    beyond = max((max(each.last_offset, each.first_offset) for each in producers), default=NO_OFFSET)
    if beyond >= offset:
        return f"it names offset {beyond}, which is not before its own"
    checked = nlargest(CHECKED_MAX, producers, key=attrgetter("last_offset"))
    named = {at for each in checked for at in (each.last_offset, each.first_offset)}
    headers = _headers_at({offset - 1, offset, *named}, segments)
    at_offset = headers.get(offset)
    if at_offset is not None and at_offset.base_offset != offset:
        return f"no batch begins at offset {offset}"
    telling = {at: header for at, header in headers.items() if not header.is_covering}
    for each in checked:
        last, first = telling.get(each.last_offset), telling.get(each.first_offset)
        if last is not None and not _is_last_batch(last, each):
            return f"no batch of producer {each.producer_id} ends at offset {each.last_offset}"
        if first is not None and not _begins_transaction(first, each):
            return f"no transaction of producer {each.producer_id} begins at offset {each.first_offset}"
    before = telling.get(offset - 1)
    if before is None:
        return None
    writer = next((each for each in producers if each.producer_id == before.producer_id), None)
    if writer is not None and not _is_left_by(before, writer):
        return f"the batch before it is not the last one that it knows of producer {writer.producer_id}"
    # A producer without a transaction may have been forgotten.
    if writer is None and before.has_transaction and not before.is_control:
        return f"it does not name the transaction of producer {before.producer_id} that is open there"
    return None


def _headers_at(offsets: Iterable[int], segments: Sequence[Segment]) -> dict[int, BatchHeader]:
    """The headers of the batches that hold these offsets; none for an offset outside the segments."""
    found: dict[int, BatchHeader] = {}
    wanted = SortedSet(offsets)
    for segment in segments:
        for offset in wanted.irange(segment.base_offset, segment.end_offset, inclusive=(True, False)):
            try:
                _, found[offset] = next(segment.headers(segment.locate(offset)))
            except DamagedLog:
                continue  # it contradicts nothing; a read of this batch reports the damage
        if segment is not segments[-1]:
            segment.release()
    return found


def _is_last_batch(header: BatchHeader, producer: ProducerSnapshot) -> bool:
    return (
        header.producer_id == producer.producer_id
        and header.last_offset == producer.last_offset
        and header.last_sequence == producer.last_sequence
        and not header.is_control
    )


def _begins_transaction(header: BatchHeader, producer: ProducerSnapshot) -> bool:
    return (
        header.producer_id == producer.producer_id
        and header.base_offset == producer.first_offset
        and header.has_transaction
        and not header.is_control
    )


def _is_left_by(header: BatchHeader, producer: ProducerSnapshot) -> bool:
    """Whether the producer can be as this batch of it has left it."""
    is_open = header.has_transaction and not header.is_control
    return (
        header.producer_epoch == producer.producer_epoch
        and is_open == (producer.first_offset != NO_OFFSET)
        and (header.is_control or header.last_offset == producer.last_offset)
    )
