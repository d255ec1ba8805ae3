"""One partition's log: append, read by offset, roll, find aborted transactions and timestamps, sync.

Rule: batches lie end to end from `oldest_offset` to `log_end_offset`. A journal refuses a write under an
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
# Roll. A full segment is never changed again. The leader writes a snapshot of its producers where the next
# one begins, so that a restart reads producers from there instead of from the beginning of the log.
#
# Read. The offset index says where to start looking, the header of each batch where the next one is. A fetch
# gets whole batches of one segment, as they lie on disk. The aborted transactions that overlap it come from
# the transaction index of this segment and of later ones: an entry stands in the segment of its marker.
#
# Failure. When a write or a sync failed, no one knows what is on disk: after a failed fsync Linux marks pages
# as clean that were never written, so a second sync that succeeds proves nothing. The journal refuses every
# write from then on; its leader resigns, and whoever leads next recovers the log from the disk.
#
# Fencing. `lead` and `append` refuse an older leader epoch than the newest one seen. Two nodes of a simulated
# cluster share a journal, and a node that was replaced must not write even when it has not heard of it yet.
#
# Order of writes. The index files, the manifest and the snapshots describe bytes that were written before
# them. A crash between two of these writes leaves a description that says too little, never one that says too
# much.

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import attrs

from fencepost.journal.indexes import AbortedRange, collect_aborted
from fencepost.journal.manifest import (
    CHECKPOINT_FILE,
    MANIFEST_FILE,
    ManifestState,
    SyncedSegment,
    encode_checkpoint,
    encode_manifest,
    write_log_start,
)
from fencepost.journal.recovery import read_snapshot, recover
from fencepost.journal.segments import SNAPSHOT, Segment, file_name
from fencepost.journal.snapshots import ProducerSnapshot, encode_snapshot
from fencepost.journal.storage import Storage, StorageError, directory_name
from fencepost.protocol.batches import BatchHeader, Buffer
from fencepost.protocol.errors import FencepostError
from fencepost.protocol.terms import INT32_MAX, NO_OFFSET, TopicPartition

SEGMENT_BYTES: Final = 1 << 30  # Kafka's segment.bytes
SEGMENT_MS: Final = 7 * 24 * 3600 * 1000  # Kafka's segment.ms, measured in the timestamps of records
SEGMENT_BYTES_MAX: Final = 1 << 30  # positions in an index are 32 bits wide, and one batch may come on top
DELETED_DIRECTORY: Final = ".deleted"  # no topic has this name with a partition behind it

_PLACED = struct.Struct(">qii")  # base offset, batch length, leader epoch
_NOT_PLACED: Final = "a batch was given to the journal that does not lie at its end under its leader's epoch"


class StaleLeader(FencepostError):
    """A write came from a leader that has been replaced; it must stop leading this partition."""


@attrs.frozen(kw_only=True)
class JournalSettings:
    """When a segment is full: at this many bytes, or when a batch is this many milliseconds newer than the
    first."""

    segment_bytes: int = attrs.field(
        default=SEGMENT_BYTES,
        validator=attrs.validators.and_(attrs.validators.gt(0), attrs.validators.le(SEGMENT_BYTES_MAX)),
    )
    segment_ms: int = attrs.field(default=SEGMENT_MS, validator=attrs.validators.gt(0))


class Journal:
    """The log of one partition. One thread uses it, but for `sync`, which may run in another at the same
    time."""

    def __init__(
        self, storage: Storage, partition: TopicPartition, *, settings: JournalSettings, trusted_clean: bool
    ) -> None:
        self.partition = partition
        self.settings = settings
        self._storage = storage
        self._directory = directory_name(partition)
        storage.make_directory(self._directory)
        recovered = recover(storage, self._directory, trusted_clean=trusted_clean)
        self.dropped = recovered.dropped  # what recovery took away, in words, or None
        self._segments = recovered.segments
        self._bases = [segment.base_offset for segment in self._segments]
        self._active = self._segments[-1]
        # A clean shutdown vouches for the last segment too, but only as long as nothing is added to it.
        self._synced = [entry for entry in recovered.synced if entry.base_offset != self._active.base_offset]
        self._snapshots = recovered.snapshots
        self._log_start_offset = recovered.log_start_offset
        self._reading: Segment | None = None
        self._active.resume()
        self._end = self._active.end_offset
        self._leader_epoch = self._active.leader_epoch
        self._durable_end = NO_OFFSET  # nothing is known of what this process did not sync itself
        self._names_changed = True
        self.failed: str | None = None  # why this journal takes no more writes
        self.is_fresh = True  # nobody led or wrote it since it was opened
        self.closed = False  # True after a close that made everything durable
        self.snapshot_due = (
            False  # True after append opened a segment by itself: write_snapshot spares the next start work
        )

    @classmethod
    def open(
        cls,
        storage: Storage,
        partition: TopicPartition,
        *,
        settings: JournalSettings | None = None,
        trusted_clean: bool = False,
    ) -> Journal:
        """Opens or makes a partition's log and recovers it; what was dropped is in `dropped`. StorageError
        when the disk fails."""
        return cls(storage, partition, settings=settings or JournalSettings(), trusted_clean=trusted_clean)

    @property
    def log_start_offset(self) -> int:
        """Readers find nothing before it; the batch that holds it may begin earlier."""
        return self._log_start_offset

    @property
    def oldest_offset(self) -> int:
        """Where the oldest segment begins."""
        return self._segments[0].base_offset

    @property
    def log_end_offset(self) -> int:
        return self._end

    @property
    def leader_epoch(self) -> int:
        """The newest leader epoch seen; -1 when there was none."""
        return self._leader_epoch

    def lead(self, leader_epoch: int) -> None:
        """A new leader says so before it has anything to write; older ones are refused from now on."""
        self._check_leader(leader_epoch)
        self._leader_epoch = leader_epoch
        self.is_fresh = False

    def append(
        self, batch: Buffer, header: BatchHeader, *, leader_epoch: int, aborted: AbortedRange | None = None
    ) -> None:
        """Writes a batch that was placed at `log_end_offset`; `aborted` when it is the marker that aborts
        that transaction.

        StaleLeader when a newer leader was seen; StorageError when the disk fails now or failed before.
        """
        self._check_leader(leader_epoch)
        if self.failed is not None:
            raise StorageError(self.failed)
        end = self._end
        last_offset = end + header.last_offset_delta
        assert _PLACED.unpack_from(batch) == (end, header.batch_length, leader_epoch), _NOT_PLACED
        assert aborted is None or aborted.last_offset == last_offset, "an aborted range ends at its marker"
        try:
            if self._opens_segment(header, last_offset):
                self._start_segment()
                self.snapshot_due = True
            self._active.append(batch, header, last_offset=last_offset, leader_epoch=leader_epoch)
            if aborted is not None:
                self._active.append_aborted(self._active.transaction_index.append(aborted))
        except StorageError as error:
            self._fail(error)
            raise
        self._leader_epoch = leader_epoch
        self._end = last_offset + 1
        self.is_fresh = False

    def _fail(self, error: StorageError) -> None:
        self.failed = f"{self.partition} takes no more writes: {error}"

    @contextmanager
    def _writing(self) -> Generator[None]:
        """A disk that failed once has left the files in doubt: nothing more is written to them before a
        recovery."""
        if self.failed is not None:
            raise StorageError(self.failed)
        try:
            yield
        except StorageError as error:
            self._fail(error)
            raise

    def _check_leader(self, leader_epoch: int) -> None:
        if leader_epoch < self._leader_epoch:
            raise StaleLeader(
                f"a write to {self.partition} under leader epoch {leader_epoch}, "
                f"but {self._leader_epoch} leads it now"
            )

    def _opens_segment(self, header: BatchHeader, last_offset: int) -> bool:
        """Kafka's LogSegment.shouldRoll by timestamps and by the 32 bits of an index entry; size is
        `is_full`, after the append."""
        active = self._active
        if not active.size:
            return False
        too_new = 0 <= active.first_timestamp < header.max_timestamp - self.settings.segment_ms
        return too_new or last_offset - active.base_offset > INT32_MAX

    @property
    def is_full(self) -> bool:
        """True when the last segment holds enough bytes; the leader then calls `roll` once its state stands
        at the log end."""
        return self._active.size >= self.settings.segment_bytes

    def roll(self, producers: Sequence[ProducerSnapshot]) -> None:
        """Opens a new segment at the log end, with a snapshot of the producers there. Nothing when the last
        one is empty."""
        with self._writing():
            if self._active.size:
                self._start_segment()
        self.write_snapshot(producers)

    def _start_segment(self) -> None:
        full = self._active
        full.complete_time_index()
        full.save_indexes()
        segment = Segment(self._storage, self._directory, self._end)
        segment.leader_epoch = full.leader_epoch
        segment.create()
        self._names_changed = True
        self._segments.append(segment)  # listed before it is active: `sync` in a worker relies on it
        self._bases.append(segment.base_offset)
        self._active = segment
        full.release()

    def move_log_start(self, offset: int) -> int:
        """Deletes the records before `offset`, for good: they are not read again, whatever crashes. Returns
        the first offset of the batch that holds it.
        """
        assert offset <= self._end, "a log starts within itself"
        if offset > self._log_start_offset:
            with self._writing():
                write_log_start(self._storage, self._directory, offset)
            self._log_start_offset = offset
        return self.batch_start(offset)

    def batch_start(self, offset: int) -> int:
        """The first offset of the batch that holds `offset`; `offset` itself where no batch does."""
        segment = self._segments[self._segment_at(offset)]
        self._look_into(segment)
        return segment.batch_start(offset)

    def read(self, offset: int, *, max_bytes: int, before: int) -> bytes:
        """Whole batches from the one that holds `offset`, all below offset `before`, of one segment at most.

        At least one batch if there is one, else b"". The caller has checked that `offset` is in the log.
        """
        for segment in self._segments[self._segment_at(offset) :]:
            if segment.base_offset >= before:
                break
            self._look_into(segment)
            data = segment.read(offset, max_bytes=max_bytes, before=before)
            if data:
                return data
        return b""

    def _segment_at(self, offset: int) -> int:
        """Which segment holds an offset; the first for what lies before the log."""
        return max(0, bisect_right(self._bases, offset) - 1)

    def _look_into(self, segment: Segment) -> None:
        """At most one old segment is open for reading, so that a partition costs two descriptors however long
        it is."""
        if segment is not self._reading:
            if self._reading is not None and self._reading is not self._active:
                self._reading.release()
            self._reading = segment

    def batches(self, from_offset: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        """(header, bytes) of each batch from the one that holds `from_offset` to the log end of now."""
        end = self._end
        for segment in self._segments[self._segment_at(from_offset) :]:
            if segment.base_offset < end:
                yield from segment.batches(from_offset, before=end)

    def aborted_between(self, fetch_offset: int, *, upper: int) -> list[AbortedRange]:
        """Aborted transactions that overlap [fetch_offset, upper), looked for forward until no later one
        can."""
        segments = self._segments[self._segment_at(fetch_offset) :]
        indexes = [segment.transaction_index for segment in segments]
        return collect_aborted(indexes, fetch_offset, upper=upper)[0]

    def fetch_upper_bound(self, offset: int, size: int) -> int:
        """An offset at or after the end of `size` bytes read at `offset`: from the index, else the next
        segment's base, else the log end (LogSegment.fetchUpperBoundOffset)."""
        at = self._segment_at(offset)
        segment = self._segments[at]
        self._look_into(segment)
        relative = segment.offset_index.first_offset_from(segment.locate(offset) + size)
        if relative is not None:
            return segment.base_offset + relative
        return self._bases[at + 1] if at + 1 < len(self._bases) else self._end

    def offset_for_timestamp(self, timestamp: int, from_offset: int | None = None) -> tuple[int, int] | None:
        """(timestamp, offset) of the first record at least as new as `timestamp` (ms) from an offset on, else
        from the log start; None when none is. Markers count."""
        first = self._log_start_offset if from_offset is None else from_offset
        for segment in self._segments:
            if segment.max_timestamp >= timestamp:
                self._look_into(segment)
                found = segment.find_timestamp(timestamp, from_offset=first)
                if found is not None:
                    return found
        return None

    def newest_record(self) -> tuple[int, int] | None:
        """(timestamp, offset) of the newest record by its timestamp, the first of several, deleted or not."""
        return self.offset_for_timestamp(max(segment.max_timestamp for segment in self._segments), 0)

    def newest_snapshot(self, at_most: int) -> tuple[int, list[ProducerSnapshot]] | None:
        """The newest readable snapshot at or before an offset, with its offset; corrupt ones are dropped on
        the way."""
        for offset in [offset for offset in reversed(self._snapshots) if offset <= at_most]:
            producers = read_snapshot(self._storage, self._directory, offset)
            if producers is not None:
                return offset, producers
            self._snapshots.remove(offset)
        return None

    def write_snapshot(self, producers: Sequence[ProducerSnapshot], *, durable: bool = False) -> None:
        """Keeps what the leader remembers of each producer at the log end. Older ones stay where a segment
        begins."""
        with self._writing():
            self._storage.replace(self._snapshot_path(self._end), encode_snapshot(producers), durable=durable)
            kept = [offset for offset in self._snapshots if offset in self._bases and offset != self._end]
            for offset in set(self._snapshots) - {*kept, self._end}:
                self._storage.remove(self._snapshot_path(offset))
        self._snapshots = [*kept, self._end]
        self.snapshot_due = False

    def _snapshot_path(self, offset: int) -> str:
        return f"{self._directory}/{file_name(offset, SNAPSHOT)}"

    def write_manifest(self, state: ManifestState) -> None:
        """Tells readers how far they may go. What it describes was written before, synced or not."""
        promised = state.last_stable_offset <= state.high_watermark <= self._end
        assert promised, f"{state} promises more than {self._end} offsets"
        segments = [segment.summary for segment in self._segments]
        data = encode_manifest(state, log_start_offset=self.log_start_offset, segments=segments)
        with self._writing():
            self._active.save_indexes()
            self._storage.replace(f"{self._directory}/{MANIFEST_FILE}", data, durable=False)

    def sync(self, *, rolled_only: bool = False) -> int:
        """Returns the offset up to which the log now survives a loss of power. May run in a worker thread
        while others append.

        `rolled_only` leaves the last segment alone: it spares the next start reading the full ones. After a
        failure the journal takes no more writes, since nobody can tell what a second sync would have written.
        """
        with self._writing():
            # The end is taken first, and the last segment before the list: what comes meanwhile is not
            # promised.
            end = self._end
            active = self._active
            unsynced = self._segments[len(self._synced) :]
            rolled = [segment for segment in unsynced if segment.base_offset < active.base_offset]
            names_changed, self._names_changed = self._names_changed, False
            for segment in rolled:
                segment.sync(indexes=True)
            if not rolled_only and end != self._durable_end:
                active.sync(indexes=False)
            if names_changed:
                self._storage.sync_directory(self._directory)
                self._storage.sync_directory("")
            if rolled:
                self._synced += [segment.synced() for segment in rolled]
                self._write_checkpoint(self._synced)
        self._durable_end = max(self._durable_end, active.base_offset if rolled_only else end)
        return self._durable_end

    def _write_checkpoint(self, synced: list[SyncedSegment]) -> None:
        self._storage.replace(f"{self._directory}/{CHECKPOINT_FILE}", encode_checkpoint(synced), durable=True)

    def close(
        self, state: ManifestState | None = None, producers: Sequence[ProducerSnapshot] | None = None
    ) -> None:
        """Syncs and closes; with the leader's state at the log end, the next start need not read the log at
        all.

        StorageError when something cannot be made durable: then the next start recovers, as after a crash.
        """
        if self.failed is None:
            with self._writing():
                self._active.complete_time_index()
                self._active.save_indexes()
            if producers is not None:
                self.write_snapshot(producers, durable=True)
            self.sync()
            with self._writing():
                self._active.sync(indexes=True)
                self._write_checkpoint([*self._synced, self._active.synced()])
            if state is not None:
                self.write_manifest(state)
            self.failed = f"{self.partition} is closed"
            self.closed = True
        self.abandon()

    def abandon(self) -> None:
        """Gives the files back and writes nothing more, as a crash would."""
        self.failed = self.failed or f"{self.partition} was abandoned"
        for segment in self._segments:
            segment.release()

    def delete(self) -> None:
        """Removes the partition's files: at once for whoever looks, also when a crash comes between."""
        self.failed = f"{self.partition} is deleted"
        self.abandon()
        self._storage.remove_directory(DELETED_DIRECTORY)
        self._storage.rename_directory(self._directory, DELETED_DIRECTORY)
        self._storage.remove_directory(DELETED_DIRECTORY)
