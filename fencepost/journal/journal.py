"""One partition's log: append, roll, sync, retention, manifest. Reads are in log_segments.py.

Rule: batches lie end to end from the first segment to `log_end_offset`. A journal refuses a write under an
older leader epoch, and after a disk failure it refuses every write.
"""

# Theory of operation
#
#     <topic>-<partition>/
#         00000000000000000000.log  .index .timeindex .txnindex            a full segment, synced
#         00000000000000004711.log  .index .timeindex .txnindex .snapshot  the active segment
#         manifest.json  checkpoint.json  log-start-offset.json            manifest.py
#
# Append. The partition leader has placed the batch (base offset, leader epoch); the journal writes it with
# one call at the end of the active segment and notes it in the indexes in memory. Nothing is synced here: the
# host decides when (`--sync none | commit | all`) and calls `sync`, perhaps in a worker thread, for many
# appends at once. An offset counts as durable only when `sync` has returned it.
#
# Roll. A full segment is never changed again; a cleaned one may take its place (cleaning.py). The leader
# writes a snapshot of its producers where the next one begins, so that a restart reads producers from there
# instead of from the beginning of the log.
#
# Read (log_segments.py). The offset index says where to start looking, the header of each batch where the
# next one is. A fetch gets whole batches of one segment, as they are on disk. The aborted transactions that
# overlap it come from the transaction index of this segment and of later ones: an entry is in the segment of
# its marker.
#
# Failure. When a write or a sync has failed, no one knows what is on disk: after a failed fsync, Linux marks
# pages that were never written as clean, so a second sync that succeeds proves nothing. The journal refuses
# every write from then on; its leader resigns, and the next leader recovers the log from the disk.
#
# Fencing. `lead` and `append` refuse an older leader epoch than the newest one seen. Two nodes of a simulated
# cluster share a journal, and a replaced node must not write, even before it learns that it was replaced.
#
# Order of writes. The index files, the manifest and the snapshots describe bytes that were written before
# them. A crash between two of these writes leaves a description that says too little, never one that says too
# much. Only a new segment is listed in the manifest before it has a file, with the snapshot that was written
# where it begins. Batches do not name their partition, so recovery could not tell a foreign segment at the
# end of a log from one that was begun just before a kill.

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import attrs

from fencepost.journal.indexes import AbortedRange, ProducerSnapshot
from fencepost.journal.log_segments import LogSegments
from fencepost.journal.manifest import (
    CHECKPOINT_FILE,
    MANIFEST_FILE,
    Manifest,
    ManifestState,
    SyncedSegment,
    deletable,
    encode_checkpoint,
    encode_manifest,
    write_log_start,
)
from fencepost.journal.open_files import OpenFiles
from fencepost.journal.open_transactions import OpenTransactions
from fencepost.journal.recovery import Recovery
from fencepost.journal.segments import BATCH_SIZE_MAX, LOG, Segment, file_name
from fencepost.journal.snapshots import open_in_snapshot
from fencepost.journal.storage import CLEANED_SUFFIX, DamagedLog, Storage, StorageError, directory_name
from fencepost.protocol.batches import BatchHeader, Buffer
from fencepost.protocol.errors import FencepostError, ProtocolViolation
from fencepost.protocol.terms import INT32_MAX, NO_TOPIC_ID, TopicPartition

OPEN_FILES: Final = 2  # of a journal by itself: the segment that it writes to, and one that it reads
SEGMENT_BYTES: Final = 1 << 30  # Kafka's segment.bytes
SEGMENT_MS: Final = 7 * 24 * 3600 * 1000  # Kafka's segment.ms, measured in the timestamps of records
SEGMENT_BYTES_MAX: Final = 1 << 30  # positions in an index are 32 bits wide, and one batch may come on top
# A loss of power may take this many elections from the end of the metadata log; later ones then exceed the
# epochs in the logs again. A larger leader epoch is damage: the checksum of a batch does not cover it.
LOST_ELECTIONS_MAX: Final = 1_000
# Reading this many bytes costs a start no more than creating a file costs a stop.
SNAPSHOT_SAVES_BYTES: Final = 4096

_PLACED = struct.Struct(">qiixI")  # base offset, batch length, leader epoch, checksum
_NOT_PLACED: Final = "the leader placed the batch at another offset or epoch, or with another header"


class StaleLeader(FencepostError):
    """The write came from a leader that was replaced; it must stop leading this partition."""


class BatchTooLarge(FencepostError):
    """The batch is larger than recovery accepts: a bug of the leader, whose limits are far below."""


@attrs.frozen(kw_only=True)
class JournalSettings:
    """When a new segment begins: at `segment_bytes`, or for a batch `segment_ms` newer than the first one."""

    segment_bytes: int = attrs.field(
        default=SEGMENT_BYTES,
        validator=attrs.validators.and_(attrs.validators.gt(0), attrs.validators.le(SEGMENT_BYTES_MAX)),
    )
    segment_ms: int = attrs.field(default=SEGMENT_MS, validator=attrs.validators.gt(0))


class Journal:
    """The log of one partition. One thread uses it, except for `sync`, which may run in another thread."""

    def __init__(
        self,
        storage: Storage,
        partition: TopicPartition,
        *,
        settings: JournalSettings | None = None,
        open_files: OpenFiles | None = None,
        clean_mark: SyncedSegment | None = None,
        is_known: bool = False,
        topic_id: bytes = NO_TOPIC_ID,
        on_names_synced: Callable[[], None] = lambda: None,
    ) -> None:
        """Open or create a partition's log and recover it; `dropped` describes lost bytes. StorageError when
        the disk fails, DamagedLog when it has lost bytes that must be there, or is not the log of `topic_id`.

        `clean_mark` is the last segment as the mark of a clean shutdown describes it. A log that `is_known`
        is not created.
        `on_names_synced` is called by the first sync, once the names of the files are durable.
        """
        self.partition = partition
        self.settings = self.broker_settings = settings or JournalSettings()
        self._storage = storage
        self._directory = directory_name(partition)
        self._open_files = open_files or OpenFiles(OPEN_FILES)
        self._on_names_synced = on_names_synced
        if not is_known:
            storage.make_directory(self._directory)
        recovery = Recovery(storage, self._directory, open_files=self._open_files)
        recovered = recovery.recover(clean_mark=clean_mark, is_known=is_known, topic_id=topic_id)
        self.dropped = recovered.dropped  # what recovery dropped and why, or None
        self.segments = LogSegments(recovered.segments)
        # Everything below it was cleaned. It is not stored, so the first cleaning after a start reads
        # everything.
        self.first_dirty_offset = self.segments.oldest_offset
        self._synced = recovered.synced  # the checkpoint's entries, for the first segments
        self._unchanged = recovered.unchanged  # the last segment, while it is as a clean stop left it
        self._manifest = recovered.manifest
        self.topic_id = recovered.topic_id
        self._snapshots = recovered.snapshots
        # The first offset for readers; the batch that holds it may begin earlier.
        self.log_start_offset = recovered.log_start_offset
        self._durable_start = 0  # whether the log start that was found was ever synced is unknown
        active = self.segments.active
        self.leader_epoch = active.leader_epoch  # the newest seen; -1 before the first
        self._durable_end = recovered.durable_end
        # A sync of the last segment synced its name, too.
        self._names_changed = self._durable_end <= active.base_offset
        self._checkpoint_is_durable = True
        self.failed: str | None = None  # why this journal refuses writes
        self.is_fresh = True  # not led and not written since it was opened
        # The last segment, for the mark that this run leaves; set by a close that made all durable.
        self.next_clean_mark: SyncedSegment | None = None
        # Whether the last segment holds enough: the leader calls `roll` when its state is at the log end.
        self.is_full = active.size >= self.settings.segment_bytes
        # Set when `append` opened a segment by itself: a snapshot there makes the next start faster.
        self.snapshot_due = False
        self.remove_deleted()  # a crash may have interrupted the last deletion

    @property
    def log_end_offset(self) -> int:
        """The offset of the next batch."""
        return self.segments.end_offset

    def sync_full(self, segments: Sequence[Segment]) -> None:
        """Make full segments durable, before compaction removes older records because of newer ones in them.
        May run in any thread; a failure counts like one of `sync`.
        """
        unsynced = [segment for segment in segments if segment.end_offset > self._durable_end]
        if unsynced:
            with self._writing():
                for segment in unsynced:
                    segment.sync(indexes=False)
                self._storage.sync_directory(self._directory)

    def configure(self, settings: JournalSettings) -> None:
        """Use the settings of the partition's topic from now on."""
        self.settings = settings
        self.is_full = self.segments.active.size >= settings.segment_bytes

    def lead(self, leader_epoch: int) -> None:
        """A new leader takes over, before its first write; writes of older leaders are refused from now
        on. DamagedLog when no election can have given the leader epoch of the last batch.
        """
        if leader_epoch + LOST_ELECTIONS_MAX < self.leader_epoch:
            raise DamagedLog(
                self._storage.location,
                f"{self._directory}: its last batch has leader epoch {self.leader_epoch}, and the newest "
                f"leader has {leader_epoch}, so this log is not served",
            )
        if leader_epoch < self.leader_epoch:
            raise self._stale_leader(leader_epoch)
        self.leader_epoch = leader_epoch
        self.is_fresh = False

    def append(
        self, batch: Buffer, header: BatchHeader, *, leader_epoch: int, aborted: AbortedRange | None = None
    ) -> None:
        """Write a batch that was placed at `log_end_offset`; `aborted` is the transaction that it aborts, if
        it is an ABORT marker.

        StaleLeader when a newer leader took over; StorageError when the disk fails or has failed before;
        BatchTooLarge, with nothing written, for a batch that could not be read back.
        """
        if leader_epoch < self.leader_epoch:
            raise self._stale_leader(leader_epoch)
        if self.failed is not None:
            raise StorageError(self.failed)
        segments = self.segments
        end = segments.end_offset
        last_offset = end + header.last_offset_delta
        # Leader and journal count offsets on their own. Here the two counts meet, before anything is written.
        placed = (end, header.batch_length, leader_epoch, header.crc)
        assert _PLACED.unpack_from(batch) == placed, _NOT_PLACED
        assert aborted is None or aborted.last_offset == last_offset, "an aborted range ends at its marker"
        # The last line of defence: a recovery takes a larger batch for damage and cuts the log before it.
        if header.size > BATCH_SIZE_MAX:
            what = f"a batch of {header.size} bytes for {self.partition} is too large"
            raise BatchTooLarge(f"{what}; the limit is {BATCH_SIZE_MAX} bytes")
        self._unchanged = None
        try:
            # Kafka's LogSegment.shouldRoll: by time, and by the 32 bits of an index entry. `is_full` covers
            # the size.
            active = segments.active
            is_late = 0 <= active.first_timestamp < header.max_timestamp - self.settings.segment_ms
            if active.size and (is_late or last_offset - active.base_offset > INT32_MAX):
                self._start_segment()
                self.snapshot_due = True
                active = segments.active
            active.append(batch, header, last_offset=last_offset, leader_epoch=leader_epoch)
            # After the batch: an entry without its marker would hide records of an open transaction.
            if aborted is not None:
                active.append_aborted(aborted)
        except StorageError as error:
            self._fail(error)
            raise
        self.leader_epoch = leader_epoch
        segments.end_offset = last_offset + 1
        self.is_full = active.size >= self.settings.segment_bytes
        self.is_fresh = False

    def _fail(self, error: StorageError) -> None:
        self.failed = f"{self.partition} refuses writes until it is recovered: {error}"

    @contextmanager
    def _writing(self) -> Generator[None]:
        """A failed write leaves the files in doubt: nothing more is written before a recovery."""
        if self.failed is not None:
            raise StorageError(self.failed)
        try:
            yield
        except StorageError as error:
            self._fail(error)
            raise

    def _stale_leader(self, leader_epoch: int) -> StaleLeader:
        return StaleLeader(
            f"a write to {self.partition} under leader epoch {leader_epoch}, "
            f"but its leader epoch is now {self.leader_epoch}"
        )

    def roll(self, producers: Sequence[ProducerSnapshot]) -> None:
        """Open a new segment at the log end, with a snapshot of the producers; no new segment when the last
        is empty.
        """
        # In this order, the manifest that lists the segment lists the snapshot, too.
        self.write_snapshot(producers)
        with self._writing():
            if self.segments.active.size:
                self._start_segment()

    def _start_segment(self) -> None:
        full = self.segments.active
        full.complete_time_index()
        full.save_indexes()
        self._unchanged = None
        segment = Segment(self._storage, self._directory, self.log_end_offset, self._open_files)
        segment.leader_epoch = full.leader_epoch
        self._list_in_manifest(segment)
        segment.create()
        self._names_changed = True
        self.segments.add(segment)
        self.is_full = False
        full.release()

    def _list_in_manifest(self, segment: Segment) -> None:
        """List a new segment in the manifest before it has a file. So a file at the end of a log that the
        manifest does not list was not written here.
        """
        if self._manifest is not None:
            segments = (*[each.summary for each in self.segments.all], segment.summary)
            self._save_manifest(
                attrs.evolve(
                    self._manifest,
                    segments=segments,
                    snapshots=self._snapshots.summaries(),
                    durable_end=self._durable_end,
                    boot_id=self._storage.boot_id,
                )
            )

    def _list_snapshots(self) -> None:
        """Let the manifest list all snapshots: after a kill, others do not count."""
        listed = self._snapshots.summaries()
        if self._manifest is not None and self._manifest.snapshots != listed:
            self._save_manifest(attrs.evolve(self._manifest, snapshots=listed))

    def move_log_start(self, offset: int) -> int:
        """Delete the records before `offset`, durably. Returns the first offset of the batch that holds
        it.
        """
        assert offset <= self.log_end_offset, "the log start cannot be beyond the log end"
        start = max(offset, self.log_start_offset)
        if start > self._durable_start:
            with self._writing():
                # Only the number is written now. `remove_deleted`, or the next start, deletes the files.
                write_log_start(self._storage, self._directory, start, self.topic_id)
            self.log_start_offset = self._durable_start = start
        return self.segments.batch_start(offset)

    def new_segment(self, base_offset: int) -> Segment:
        """A segment that `replace_segments` will put in the place of others; its files are beside theirs."""
        # Another thread may write it, so its file is counted only from `take_place` on.
        return Segment(
            self._storage, self._directory, base_offset, OpenFiles(OPEN_FILES), suffix=CLEANED_SUFFIX
        )

    def open_at(self, offset: int) -> OpenTransactions | None:
        """The transactions that the snapshot at an offset has open; None without one. In any thread."""
        producers = self._snapshots.read_known(offset)
        return None if producers is None else open_in_snapshot(producers)

    def replace_segments(self, old: Sequence[Segment], new: Segment) -> None:
        """Put a synced segment with the same offsets in the place of neighbouring full ones. No `sync` may
        run meanwhile.
        """
        first = self.segments.index(new.base_offset)
        after = first + len(old)
        assert tuple(old) == self.segments.full[first:after], "the segments that were cleaned are still here"
        assert new.end_offset == old[-1].end_offset, "a cleaned segment ends where the old ones ended"
        synced, is_synced = self._synced, len(self._synced) >= first
        with self._writing():
            # The checkpoint forgets the old ones first: it must not vouch for other bytes of the same size.
            self._synced = [*synced[:first], *synced[after:]]
            if len(self._synced) < len(synced):
                self._write_checkpoint(self._synced, durable=False)
            for segment in old:
                segment.release()
            new.take_place(self._open_files)
            for segment in old[1:]:
                segment.remove()
            self.segments.replace(first, after, new)
            if is_synced:
                self._synced = [*synced[:first], new.checkpoint_entry(), *synced[after:]]
                self._write_checkpoint(self._synced, durable=False)
        self._unchanged = None
        self._names_changed, self._checkpoint_is_durable = True, False

    def forget_snapshots(self, *, after: int, before: int) -> None:
        """Remove the snapshots between two offsets."""
        with self._writing():
            for offset in [*self._snapshots.offsets.irange(after + 1, before - 1)]:
                self._snapshots.remove(offset)

    def remove_deleted(self) -> bool:
        """Delete the segments before the log start that no one needs; returns whether there were any. No
        `sync` may run meanwhile.
        """
        bases = self.segments.bases
        while True:
            count = len(deletable(bases, self.log_start_offset, snapshots=self._snapshots.offsets))
            if not count:
                return False
            # The producers of deleted segments live on in the snapshot. `newest_snapshot` drops one of
            # another log; then fewer segments can be deleted.
            found = self.newest_snapshot(at_most=bases[count])
            if found is not None and found[0] == bases[count]:
                break
        with self._writing():
            self._snapshots.sync(bases[count])
            self._list_snapshots()
            for segment in self.segments.all[:count]:  # oldest first, so that a crash leaves no gap
                segment.remove()
            for offset in [*self._snapshots.offsets.irange(maximum=bases[count] - 1)]:
                self._snapshots.remove(offset)
        self.segments.drop(count)
        del self._synced[:count]
        self._unchanged = None
        self._names_changed = True
        return True

    def deletable_before(self, *, now: int, retention_ms: int, retention_bytes: int, before: int) -> int:
        """The log start that retention asks for, at most `before`; the present one when nothing is too old
        (UnifiedLog.deleteOldSegments). Without a limit, the time (ms) or the size is -1.
        """
        size, start = self.segments.size, self.log_start_offset
        for segment in self.segments.all:
            if segment.end_offset > before or not segment.size:
                break
            is_old = retention_ms >= 0 and segment.max_timestamp < now - retention_ms
            is_too_much = 0 <= retention_bytes <= size - segment.size
            if not (is_old or is_too_much):
                break
            size -= segment.size
            # Without a timestamp, as after a compaction that left no record, it goes with the next segment.
            if is_too_much or segment.max_timestamp >= 0:
                start = max(start, segment.end_offset)
        return start

    def newest_snapshot(self, at_most: int) -> tuple[int, list[ProducerSnapshot]] | None:
        """The newest snapshot of this log at or before an offset, with its offset. Newer ones that are
        corrupt or contradicted are removed.
        """
        found = self._snapshots.newest(self.segments.all, at_most=at_most)
        self._snapshots.remove_refused()
        return found

    def take_removed_snapshots(self) -> list[str]:
        """A message about each snapshot that was removed because it belongs to another log; each one once."""
        removed, self._snapshots.removed = self._snapshots.removed, []
        return removed

    def write_snapshot(self, producers: Sequence[ProducerSnapshot]) -> None:
        """Write what the leader remembers of each producer at the log end. Older snapshots stay only at
        segment bases.
        """
        with self._writing():
            self._snapshots.write(self.log_end_offset, producers, keep=self.segments.bases)
        self.snapshot_due = False

    def write_manifest(self, state: ManifestState, *, promises: bool = True) -> None:
        """Publish the bounds for readers without a broker. Everything that the manifest describes was written
        before, synced or not. A StorageError leaves the older manifest; the log itself is not in doubt, so
        writes continue, unless the error is DamagedLog: the file was removed. Without `promises`, a manifest
        that says nothing new to readers does not replace the older one.
        """
        promised = state.last_stable_offset <= state.high_watermark <= self.log_end_offset
        assert promised, f"{state} goes beyond the log end {self.log_end_offset}"
        manifest = Manifest(
            topic_id=self.topic_id,
            log_start_offset=self.log_start_offset,
            last_stable_offset=state.last_stable_offset,
            high_watermark=state.high_watermark,
            open_transactions=state.open_transactions,
            segments=tuple([segment.summary for segment in self.segments.all]),
            snapshots=self._snapshots.summaries(),
            durable_end=self._durable_end,
            boot_id=self._storage.boot_id,
        )
        if self.failed is not None:
            raise StorageError(self.failed)
        older = self._manifest
        if older is not None and not promises:
            older = attrs.evolve(older, durable_end=manifest.durable_end, snapshots=manifest.snapshots)
        if not manifest.replaces(older):
            return
        self.check_place()
        self.segments.active.save_indexes()
        self._save_manifest(manifest)

    def _save_manifest(self, manifest: Manifest) -> None:
        data = encode_manifest(manifest, directory=self._directory)
        self._storage.replace(f"{self._directory}/{MANIFEST_FILE}", data, durable=False)
        self._manifest = manifest

    def check_place(self) -> None:
        """DamagedLog when someone removed or replaced the file that this journal writes to."""
        with self._writing():
            self.segments.active.check_place()

    def unreadable(self, problem: ProtocolViolation) -> DamagedLog:
        """The error for a leader that cannot read a record of an intact batch."""
        what = f"{self._directory}: a record cannot be read ({problem}), so this log is not served"
        return DamagedLog(self._storage.location, what)

    def lost_end(self) -> SyncedSegment | None:
        """The end of a log whose last file was removed or replaced, as evidence; None if it is in place."""
        active = self.segments.active
        try:
            active.check_place()  # knows nothing of a file that is not open
            is_there = file_name(active.base_offset, LOG) in self._storage.files(self._directory)
        except DamagedLog:
            is_there = False
        return None if is_there else self._marked(active.checkpoint_entry()).as_evidence()

    def _marked(self, last: SyncedSegment) -> SyncedSegment:
        """The last segment as the mark of a clean stop describes it."""
        return attrs.evolve(last, snapshot=self._snapshots.checksum(last.end_offset))

    def sync(self, *, syncs_upper: bool = True) -> int:
        """Make the log durable, and return the offset below which it survives a power failure. May run in a
        worker thread while another thread appends.

        With `syncs_upper` false, the caller syncs the data directory afterwards. After a failure the journal
        refuses every write: a second sync that succeeds would prove nothing.
        """
        if self.failed is not None:
            raise StorageError(self.failed)
        try:  # like `_writing`, but inline: the sync of every commit comes here
            end = self._sync_files(syncs_upper=syncs_upper)
        except StorageError as error:
            self._fail(error)
            raise
        if end > self._durable_end:
            self._durable_end = end
        return self._durable_end

    def _sync_files(self, *, syncs_upper: bool) -> int:
        """Returns the end of what is certainly synced."""
        # The end is read first, and the last segment before the list: writes during the sync do not count.
        end = self.segments.end_offset
        active = self.segments.active
        unsynced = self.segments.all[len(self._synced) :]
        rolled = [segment for segment in unsynced if segment.base_offset < active.base_offset]
        names_changed, self._names_changed = self._names_changed, False
        for segment in rolled:
            segment.sync(indexes=True)
        if end != self._durable_end:
            active.sync(indexes=False)
            active.check_place()
        # A synced file whose name is not on the disk is lost. The parent directory holds the name of the
        # partition's directory.
        if names_changed:
            self._storage.sync_directory(self._directory)
            if syncs_upper:
                self._storage.sync_directory("")
                self._on_names_synced()
        if rolled or not self._checkpoint_is_durable:
            self._synced += [segment.checkpoint_entry() for segment in rolled]
            self._write_checkpoint(self._synced)
            self._checkpoint_is_durable = True
        return end

    def _write_checkpoint(self, synced: list[SyncedSegment], *, durable: bool = True) -> None:
        content = encode_checkpoint(synced, directory=self._directory)
        self._storage.replace(f"{self._directory}/{CHECKPOINT_FILE}", content, durable=durable)

    def close(
        self, state: ManifestState | None = None, producers: Sequence[ProducerSnapshot] | None = None
    ) -> None:
        """Sync and close; the caller syncs the data directory, and writes `next_clean_mark` into the mark of
        a clean shutdown. `state` and `producers` are those of the leader at the log end: with them, the next
        start reads little of the log. A log that is as the last stop left it costs nothing.

        StorageError when something cannot be made durable; the next start then recovers, as after a crash.
        """
        if self.failed is None:
            active = self.segments.active
            if self._unchanged is None:
                # Neither snapshot nor indexes are synced: their checksums show what a loss of power took.
                with self._writing():
                    active.complete_time_index()
                    active.save_indexes()
                if producers is not None and self._saves_reading():
                    self.write_snapshot(producers)
                self.sync(syncs_upper=False)
                self._unchanged = active.checkpoint_entry()
            if state is not None:
                # The mark has the synced end. The broker writes it into the manifest after its next start.
                self.write_manifest(state, promises=False)
            self.failed = f"{self.partition} is closed"
            self.next_clean_mark = self._marked(self._unchanged)
        self.abandon()

    def _saves_reading(self) -> bool:
        """Whether a snapshot at the log end would save the next start more than it costs this stop."""
        active = self.segments.active
        begins_known = active.base_offset == 0 or active.base_offset in self._snapshots.offsets
        is_read_fast = begins_known and active.size <= SNAPSHOT_SAVES_BYTES
        return not is_read_fast and self.log_end_offset not in self._snapshots.offsets

    def abandon(self) -> None:
        """Close the files without writing, as a crash would."""
        self.failed = self.failed or f"{self.partition} was abandoned"
        for segment in self.segments.all:
            with suppress(StorageError):  # what is in doubt is read again
                segment.release()
