"""Recovery: finds the longest valid prefix of a log, and rebuilds its indexes.

Rule: a batch is valid when its checksum matches, it begins where the batch before it ends, and its leader
epoch is not older. Everything after the first invalid byte is dropped, unless it was promised: then the log
is damaged, and refused. The journal reports how much was dropped, and why. The state is then rebuilt from the
log by `Node.rebuild` in broker/node.py.
"""

# Theory of operation
#
# A start must be fast after a clean shutdown, and correct after a crash at any moment. The files are used in
# this order:
#
#     witnesses    read manifest and checkpoint; those of another log are refused
#     sweep        remove half-written `.tmp` and `.cleaned` files, and indexes without a log
#     checkpoint   segments whose size and index checksums match are taken as they are, from the first one up
#                  to the first that differs; the mark of a clean shutdown does the same for the last one
#     replay       read every other segment batch by batch, check it, and rebuild its three indexes
#     refuse       when what is left ends before what was promised, or when files would be removed that no
#                  crash explains, raise DamagedLog and change nothing
#     cut          truncate the log at the first invalid byte, and remove every later segment; also segments
#                  that begin before the one before them ends, since a cleaned one has taken their place
#     stale        remove snapshots that are torn, outside the log or of another one, small files that are
#                  torn, and the manifest of a log that was cut
#
# Why the first invalid byte ends the log, and does not just cost one batch: offsets must be contiguous, and a
# batch after a hole may belong to a transaction whose beginning is in the hole. After a crash, such a tail
# was never acknowledged under a policy that promises durability.
#
# Why open transactions are followed during replay: an entry of the transaction index needs the first offset
# of the transaction that a marker aborts, which may be in an earlier segment. They come from the newest
# snapshot at or below the first replayed offset that is of this log (snapshots.py), and from the batches
# between the two.
#
# A loss of power can tear a segment and leave later ones: files reach a disk in any order. They are removed
# with the tail. A sync covers the older segments first, and the checkpoint lists them before the sync
# returns. So if neither it nor the manifest promises the end of a segment, nothing after it was promised.
#
# A torn tail and a damaged log look alike at the first invalid byte. The difference is what was promised. The
# manifest is the witness: it names the offset below which the log was synced. As long as the machine has not
# restarted since, everything that was written counts, too: the death of a process loses none of it. A
# checkpoint is the witness for full segments, and the mark of a clean shutdown for the last one. Kafka cuts
# in either case (UnifiedLog.recoverLog): its replicas bring back what was cut, and here there are none.

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeVar

import attrs

from fencepost.journal.indexes import CorruptIndex
from fencepost.journal.manifest import (
    CHECKPOINT_FILE,
    LOG_START_FILE,
    MANIFEST_FILE,
    KnownSnapshots,
    Manifest,
    MisplacedFile,
    SyncedSegment,
    decode_checkpoint,
    decode_manifest,
    described_files,
    encode_checkpoint,
    known_snapshots,
    misplaced,
    read_log_start,
    write_log_start,
)
from fencepost.journal.open_files import OpenFiles
from fencepost.journal.open_transactions import OpenTransactions
from fencepost.journal.segments import (
    INDEX_KINDS,
    LOG,
    SNAPSHOT,
    WALK_BYTES,
    Segment,
    check_link,
    file_name,
    is_other_file,
    parse_file_name,
    walk_batches,
)
from fencepost.journal.snapshots import Snapshots, open_in_snapshot
from fencepost.journal.storage import (
    CLEANED_SUFFIX,
    TEMPORARY_SUFFIX,
    DamagedLog,
    ForeignLog,
    ReadableFile,
    ReplacedFile,
    Storage,
)
from fencepost.protocol.batches import (
    HEADER_SIZE,
    MAGIC_AT,
    MAGIC_COLUMNS,
    MAGIC_KAFKA,
    checksum_matches,
    read_header,
)
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.terms import NO_LEADER_EPOCH, NO_OFFSET, NO_TOPIC_ID

Content = TypeVar("Content")

_FAR: Final = 1 << 40  # more offsets than one log file holds


@attrs.frozen(kw_only=True)
class RecoveredLog:
    """The log of one partition, valid to its last byte."""

    segments: list[Segment]
    """At least one; the last takes appends."""
    synced: list[SyncedSegment]
    """The entries of the checkpoint, for the first segments."""
    unchanged: SyncedSegment | None
    """The last segment, if the mark of a clean shutdown still describes it."""
    snapshots: Snapshots
    manifest: Manifest | None
    topic_id: bytes
    """As given, or as the manifest names it."""
    log_start_offset: int
    """As it was stored, but within the log that is left."""
    durable_end: int
    """The offset below which the log was synced; -1 if nothing says so."""
    dropped: str | None
    """Which bytes were cut off and why, or None."""


class Recovery:
    """The recovery of one partition's log. `recover` is called once."""

    def __init__(self, storage: Storage, directory: str, *, open_files: OpenFiles) -> None:
        self._storage = storage
        self._directory = directory
        self._open_files = open_files
        self._files = storage.files(directory)  # listed once: most of the other files do not exist
        self._segments: list[Segment] = []
        self._snapshots = Snapshots(storage, directory, (), KnownSnapshots({}))
        self._manifest: Manifest | None = None
        self._dropped_bytes = 0
        self._why: str | None = None
        self._where: str | None = None
        self._cut: Segment | None = None
        self._replaced: list[Segment] = []
        self._stale: list[str] = []  # witnesses that are torn or outdated
        self._were_false = False  # files that described the log as it was before it lost its end
        self._stored_log_start = 0

    def recover(self, *, clean_mark: SyncedSegment | None, is_known: bool, topic_id: bytes) -> RecoveredLog:
        """Recover the log; create its first segment if there is none. DamagedLog if it lacks what was
        promised; its bytes are then left as they are.

        Segments that the checkpoint covers are not read, nor is the last one if `clean_mark`, its entry in
        the mark of a clean shutdown, still describes it. A log that `is_known` cannot be without files. With
        `topic_id`, the log of another topic is refused.
        """
        topic_id = self._read_identity(topic_id)
        checkpoint = self._read_witness(CHECKPOINT_FILE, decode_checkpoint) or []
        sizes, taken_at = self._sweep()
        known = known_snapshots(self._manifest, clean_mark, boot_id=self._storage.boot_id)
        self._snapshots = Snapshots(self._storage, self._directory, taken_at, known)
        synced = checkpoint if clean_mark is None else [*checkpoint, clean_mark]
        self._refuse_missing(sizes, synced, is_known=is_known)
        listed = [entry for entry in checkpoint if entry.base_offset in sizes]
        taken = self._take_over(_vouched(sizes, listed, clean_mark))
        still_synced = [entry for entry in taken if entry is not clean_mark]
        unread = self._replay(dict(list(sizes.items())[len(taken) :]))
        durable_end = max([self._synced_end(), *[entry.end_offset for entry in synced]])
        self._refuse_shortened(max(self._written_end(), durable_end))
        self._refuse_misplaced(unread, clean_mark)
        self._cut_off(unread, synced_count=len(still_synced))
        if not self._segments:
            self._segments.append(self._segment(0))
            self._segments[0].create()
        self._remove_stale()
        if still_synced != listed:
            content = encode_checkpoint(still_synced, directory=self._directory)
            self._storage.replace(self._path(CHECKPOINT_FILE), content, durable=True)
        start, end = self._segments[0].base_offset, self._segments[-1].end_offset
        if self._stored_log_start > end:
            # A loss of power took the end of the deleted records. The next ones get their offsets.
            write_log_start(self._storage, self._directory, end, topic_id)
        return RecoveredLog(
            segments=self._segments,
            synced=still_synced,
            unchanged=clean_mark if clean_mark in taken else None,
            snapshots=self._snapshots,
            manifest=self._manifest,
            topic_id=topic_id,
            log_start_offset=min(max(self._stored_log_start, start), end),
            durable_end=durable_end,
            dropped=self._dropped(),
        )

    def _read_identity(self, topic_id: bytes) -> bytes:
        """Read manifest and log start; return the id of the topic. DamagedLog when they are of another."""
        self._manifest = self._read_witness(MANIFEST_FILE, decode_manifest)
        if self._manifest is not None:
            other_topic = self._manifest.other_topic(topic_id)
            if other_topic:
                raise ForeignLog(self._storage.location, f"{self._directory}: {other_topic}")
            topic_id = self._manifest.topic_id if topic_id == NO_TOPIC_ID else topic_id
        if LOG_START_FILE in self._files:
            self._stored_log_start = read_log_start(self._storage, self._directory, topic_id)
        return topic_id

    def _dropped(self) -> str | None:
        if self._why is None:
            return None
        end = self._segments[-1].end_offset
        return f"{self._directory}: dropped {self._dropped_bytes} bytes from offset {end} on: {self._why}"

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def _segment(self, base_offset: int) -> Segment:
        return Segment(self._storage, self._directory, base_offset, self._open_files)

    def _sweep(self) -> tuple[dict[int, int], list[int]]:
        """Remove half-written files; return the base offset and size in bytes of each log file, ascending,
        and the offsets of the snapshots.
        """
        parsed = [(name, *parse_file_name(name)) for name in self._files]
        sizes = {offset: self._files[name] for name, offset, kind in parsed if kind == LOG}
        for name, offset, kind in parsed:
            half_written = name.endswith((TEMPORARY_SUFFIX, CLEANED_SUFFIX))
            without_log = kind in INDEX_KINDS and offset not in sizes
            if half_written or without_log:
                self._storage.remove(self._path(name))
        return sizes, [offset for _, offset, kind in parsed if kind == SNAPSHOT]

    def _refuse_missing(
        self, sizes: Mapping[int, int], synced: list[SyncedSegment], *, is_known: bool
    ) -> None:
        """Refuse if synced segments, the one with the log start, or all files of a known log are gone."""
        needed = [entry for entry in synced if entry.end_offset > self._stored_log_start]
        missing = [entry.base_offset for entry in needed if entry.base_offset not in sizes]
        if is_known and not sizes:
            end = synced[-1].end_offset if synced else None
            raise self._damaged("its files are gone", self._stored_log_start, end)
        if missing:
            file = self._path(file_name(missing[0], LOG))
            raise self._damaged(f"{file} is missing", self._stored_log_start, synced[-1].end_offset)
        first = min(sizes, default=0)
        if first > self._stored_log_start:
            why = f"no file holds the offsets from {self._stored_log_start} on"
            raise self._damaged(why, self._stored_log_start, first)
        self._refuse_older_start(first)

    def _refuse_older_start(self, oldest: int) -> None:
        """Refuse a log start that was removed, or that is an older copy: deleted records would come back."""
        start = self._stored_log_start
        known = 0 if self._manifest is None else self._manifest.log_start_offset
        if known > max(start, oldest):
            raise DamagedLog(
                self._storage.location,
                f"{self._path(LOG_START_FILE)} says that the log starts at offset {start}, but its manifest "
                f"says {known}, so this log is not served: deleted records would be readable again",
            )

    def _refuse_shortened(self, promised: int) -> None:
        """A torn tail is what a crash leaves. A log that ends before what was promised is damaged, and so is
        one with a valid batch after the first invalid byte: nothing valid follows a torn tail.
        """
        end = self._segments[-1].end_offset if self._segments else 0
        if end < promised:
            what = f"the log ends at offset {end}, but it went on to offset {promised}"
            if self._where is not None:
                what = f"{self._where} is damaged ({self._why})"
            elif not self._segments:
                what = "its files are gone"
            raise self._damaged(what, end, promised)
        if self._cut is not None:
            size = self._cut.size + self._dropped_bytes
            after = batch_after(self._cut.file, self._cut.size, size, end=end)
            self._cut.release()
            if after is not None:
                what = f"{self._where} is damaged ({self._why}), and valid batches follow"
                raise self._damaged(what, end, after)

    def _refuse_misplaced(self, unread: list[tuple[Segment, int]], clean_mark: SyncedSegment | None) -> None:
        """Refuse files that no crash explains: they belong to another log, or to another copy of this one.
        Some would be removed, although they may be the only copy, and others would be served.
        """
        if not self._segments:
            return
        end = self._segments[-1].end_offset
        # The newest segment is never cleaned: a file begins where a cleaned one ends.
        bases = {each.base_offset for each in (*self._segments, *(segment for segment, _ in unread))}
        for replaced in self._replaced:
            begin = replaced.base_offset
            longer = next(each for each in self._segments if each.base_offset < begin < each.end_offset)
            if longer.end_offset not in bases:
                what = (
                    f"{longer.path(LOG)} ends at offset {longer.end_offset}, where no other file begins, so "
                    f"it did not replace {replaced.path(LOG)}: one of them belongs elsewhere"
                )
                raise self._damaged(what, begin, longer.end_offset)
        if clean_mark is not None and end > clean_mark.end_offset:
            what = f"the log ends at offset {end}, but it was closed at offset {clean_mark.end_offset}"
            raise self._damaged(what, clean_mark.end_offset, end)
        written = self._manifest if self._kept_power else None
        if unread and (clean_mark is not None or written is not None):
            what = f"{self._where} is damaged ({self._why}), and no loss of power explains it"
            raise self._damaged(what, end, None)
        self._refuse_other_files(clean_mark)
        if written is not None and written.segments:
            listed = written.segments[-1].base_offset
            later = [each for each in self._segments if each.base_offset > listed]
            if later:
                what = f"{later[0].path(LOG)} was not written here, since {MANIFEST_FILE} does not list it"
                raise self._damaged(what, later[0].base_offset, end)

    def _refuse_other_files(self, clean_mark: SyncedSegment | None) -> None:
        """Refuse log files in the places of those that the small files describe."""
        described = described_files(
            self._manifest, clean_mark, directory=self._directory, boot_id=self._storage.boot_id
        )
        for segment in self._segments:
            if segment.base_offset in described:
                known = described[segment.base_offset]
                last_offset = known.summary.end_offset - 1
                start = segment.offset_index.position_before(last_offset - segment.base_offset)
                is_other = is_other_file(segment.file, known, start=start)
                segment.release()
                if is_other:
                    raise ReplacedFile(self._storage.location, segment.path(LOG), known.witness)

    @property
    def _kept_power(self) -> bool:
        """Whether nothing was lost since the manifest was written, except by damage."""
        return self._manifest is not None and self._manifest.is_of_boot(self._storage.boot_id)

    def _read_witness(self, name: str, decode: Callable[..., Content]) -> Content | None:
        """What a manifest or a checkpoint says; None without the file, or if a loss of power has torn it.
        DamagedLog when it is that of another log.
        """
        data = self._storage.read_file(self._path(name)) if name in self._files else None
        try:
            return None if data is None else decode(data, directory=self._directory)
        except MisplacedFile as problem:
            raise misplaced(self._storage, self._directory, problem) from problem
        except CorruptIndex:
            self._stale.append(name)
            return None

    def _written_end(self) -> int:
        """The end that the manifest promises, 0 without a manifest."""
        return 0 if self._manifest is None else self._manifest.promised_end(self._storage.boot_id)

    def _synced_end(self) -> int:
        return NO_OFFSET if self._manifest is None else self._manifest.durable_end

    def _damaged(self, what: str, start: int, end: int | None) -> DamagedLog:
        """`end` is the offset after the last record at stake, None if no file names it."""
        if end is None or end <= start:
            stake = f"The records from offset {start} on are"
        elif end == start + 1:
            stake = f"The record at offset {start} is"
        else:
            stake = f"The records at offsets {start} to {end - 1} are"
        return DamagedLog(
            self._storage.location, f"{self._directory}: {what}. {stake} at stake, so this log is not served"
        )

    def _take_over(self, vouched: list[SyncedSegment]) -> list[SyncedSegment]:
        """Open segments by their indexes alone, up to the first with a missing or altered index; return their
        entries.
        """
        for entry in vouched:
            segment = self._segment(entry.base_offset)
            try:
                segment.load(entry, self._files)
            except CorruptIndex:  # this segment and later ones are read from the log
                break
            self._segments.append(segment)
        return vouched[: len(self._segments)]

    def _replay(self, sizes: dict[int, int]) -> list[tuple[Segment, int]]:
        """Read and check the other segments; the first invalid byte ends the log. Returns the later segments
        with their sizes, unread; nothing is cut off yet.
        """
        unread: list[tuple[Segment, int]] = []
        if not sizes:
            return unread
        transactions, newest = self._open_transactions_at(min(sizes)), max(sizes)
        for base, size in sizes.items():
            expected = self._segments[-1].end_offset if self._segments else base
            segment = self._segment(base)
            # A cleaned segment took the place of several, and a crash left the files of the others.
            if self._why is None and base < expected:
                self._replaced.append(segment)
                continue
            if self._why is None and base != expected:
                self._why = f"a segment begins at offset {base} where {expected} was expected"
                self._where = segment.path(LOG)
            if self._why is not None:
                unread.append((segment, size))
                continue
            epoch = self._segments[-1].leader_epoch if self._segments else NO_LEADER_EPOCH
            self._why = _replay_segment(segment, size, transactions, leader_epoch=epoch)
            if self._why is not None:
                self._cut, self._where = segment, f"{segment.path(LOG)}, byte {segment.size}"
                self._dropped_bytes += size - segment.size
            # A full segment ends with the entry of its largest timestamp, as a roll leaves it.
            if base != newest:
                segment.complete_time_index()
            # A log may have more segments than a process may have open files.
            segment.release()
            self._segments.append(segment)
        return unread

    def _cut_off(self, unread: list[tuple[Segment, int]], *, synced_count: int) -> None:
        """Truncate the log at the first invalid byte, and write the indexes of what was read."""
        for segment in self._replaced:
            segment.remove()
        for segment, size in unread:
            self._dropped_bytes += size
            segment.remove()
        if unread or self._replaced:
            # After a loss of power, they must not come back beside batches that take their offsets.
            self._storage.sync_directory(self._directory)
        if self._cut is not None:
            # Now, not later: the file grows at its end, and a batch after the garbage would never be found.
            self._cut.file.truncate(self._cut.size)
            # A clean stop syncs nothing of a log whose end was synced before, and its mark names this size.
            self._cut.file.sync()
            self._cut.release()
        for segment in self._segments[synced_count:]:
            self._were_false |= segment.write_indexes(self._files)

    def _open_transactions_at(self, offset: int) -> OpenTransactions:
        """The open transactions at `offset`: from the newest valid snapshot at or before it and the batches
        in between.
        """
        found = self._snapshots.newest(self._segments, at_most=offset)
        start, transactions = (
            (0, OpenTransactions()) if found is None else (found[0], open_in_snapshot(found[1]))
        )
        for segment in self._segments:
            if segment.end_offset > start:
                for header, batch in segment.batches(start, before=segment.end_offset):
                    transactions.update(header, batch)
            segment.release()
        return transactions

    def _remove_stale(self) -> None:
        """Remove snapshots outside the log, what a loss of power has torn, and the manifest of a log that was
        cut, or lost its end with the power.
        """
        self._snapshots.read_unknown(are_all=not self._kept_power)
        self._snapshots.remove_refused()
        start, end = self._segments[0].base_offset, self._segments[-1].end_offset
        # With a snapshot from the lost tail, the leader would take retries of lost batches for duplicates.
        # One from before the first segment, which a deletion leaves when it is interrupted, lacks batches.
        outside = [offset for offset in self._snapshots.offsets if not start <= offset <= end]
        for offset in outside:
            self._snapshots.remove(offset)
        if self._manifest is not None and (self._why is not None or end < self._manifest.end):
            self._stale.append(MANIFEST_FILE)
            self._manifest, self._were_false = None, True
        for name in self._stale:
            self._storage.remove(self._path(name))
        # After a loss of power, none of them must come back beside batches that take the lost offsets.
        if outside or self._were_false:
            self._storage.sync_directory(self._directory)


def _vouched(
    sizes: Mapping[int, int], listed: list[SyncedSegment], clean_mark: SyncedSegment | None
) -> list[SyncedSegment]:
    """The entries that match the files, from the first segment on without a gap: of a checkpoint, and for the
    last segment that of a clean shutdown.
    """
    vouched: list[SyncedSegment] = []
    newest = max(sizes, default=NO_OFFSET)
    full = [entry for entry in listed if entry.base_offset != newest]
    for base, entry in zip(sizes, full if clean_mark is None else [*full, clean_mark], strict=False):
        follows = not vouched or vouched[-1].end_offset == base
        if base != entry.base_offset or sizes[base] != entry.bytes or not follows:
            break
        vouched.append(entry)
    return vouched


def _replay_segment(
    segment: Segment, size: int, transactions: OpenTransactions, *, leader_epoch: int
) -> str | None:
    """Note the valid batches of a log file in `segment`. Returns why it stopped before `size`, or None."""
    segment.leader_epoch = leader_epoch
    try:
        for _, header, batch in walk_batches(segment.file, 0, size):
            check_link(header, offset=segment.end_offset, leader_epoch=segment.leader_epoch)
            segment.note(header, last_offset=header.last_offset, leader_epoch=header.leader_epoch)
            aborted = transactions.update(header, batch)
            if aborted is not None:
                segment.transaction_index.append(aborted)
    except ProtocolViolation as violation:
        return str(violation)
    return None


def batch_after(file: ReadableFile, start: int, size: int, *, end: int) -> int | None:
    """The base offset of a valid batch that begins after byte `start`, at offset `end` or a later one."""
    position = start + 1
    while position + HEADER_SIZE <= size:
        window = file.read(position, min(WALK_BYTES, size - position))
        for at in _magic_positions(window):
            try:
                header = read_header(window, at)
            except ProtocolViolation:
                continue
            # Before its checksum is computed: few positions in other bytes have such an offset and length.
            fits = position + at + header.size <= size and end <= header.base_offset < end + _FAR
            if fits and checksum_matches(file.read(position + at, header.size), 0, header):
                return header.base_offset
        position += len(window) - HEADER_SIZE + 1
    return None


def _magic_positions(window: bytes) -> Iterator[int]:
    """The places in these bytes where a whole header may begin."""
    for magic in (MAGIC_KAFKA, MAGIC_COLUMNS):
        found = window.find(magic, MAGIC_AT)
        while found != -1 and found - MAGIC_AT + HEADER_SIZE <= len(window):
            yield found - MAGIC_AT
            found = window.find(magic, found + 1)
