"""The JSON files of a log: the manifest, the checkpoint of synced segments, the log start offset; and the
mark of a clean shutdown, for all logs of a data directory.

Rule: each is replaced atomically, after the bytes that it describes. The manifest is therefore a lower bound
for readers without a broker, and the witness of what a log must contain. The checkpoint only saves work. The
log start moves back only to the end of a log that lost its deleted records with the power.
"""

#     file                    written                            read by                without it
#     manifest.json           by the leader, after changes;      readers without a      they read the log
#                             not synced                         broker (spark_bridge); without its bounds
#                                                                recovery, as a witness
#     checkpoint.json         after the segments that it         recovery               every segment is
#                             lists are synced; synced                                  read and checked
#     clean-shutdown.json     when all is closed and synced;     DataDirectory         last segments are
#                             synced                                                   read and checked
#     log-start-offset.json   before records are deleted;        recovery, readers      refused, if the
#                             synced                                                    manifest names one
#
# They are JSON for the people who look into a directory; together they are a few hundred bytes per segment.
# Each has a checksum and names its own path: a directory that was renamed or swapped with another one must
# not be served under its new name. The entry of a segment has the checksum of its last batch, which
# distinguishes its log file from that of another log. In the same way, the manifest and the mark of a clean
# shutdown have the checksums of the producer snapshots, whose format is Kafka's and binds them to no log.
#
# Manifest and log start also have the id of their topic, because a file of the same name may come from
# another cluster, or from a topic that was deleted. Kafka has the id in a file of its own,
# `partition.metadata`, and refuses a log of another topic (KIP-516, InconsistentTopicIdException).

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeVar, cast

import attrs

from fencepost.journal.indexes import CorruptIndex
from fencepost.journal.open_transactions import OpenTransaction
from fencepost.journal.storage import DamagedLog, ForeignLog, Storage, StorageReader
from fencepost.protocol.checksum import crc32c
from fencepost.protocol.terms import NO_TOPIC_ID, parse_topic_id, spell_topic_id

MANIFEST_FILE: Final = "manifest.json"
MANIFEST_VERSION: Final = 5
WRITTEN_AS: Final = "file"  # the last field but one of each file: its path in the data directory
CHECKSUM: Final = "checksum"  # the last field
Entry = TypeVar("Entry", bound="ManifestEntry")
NO_CHECKSUM: Final = -1  # a CRC-32C is not negative


class MisplacedFile(CorruptIndex):
    """A file that is whole, but was written as another one."""

    def __init__(self, path: str, written_as: str) -> None:
        self.written_as = written_as
        super().__init__(f"{path} was written as {written_as}: it was renamed, copied or swapped")


@attrs.frozen
class ManifestEntry:
    """An entry of a list in a manifest or a checkpoint; its fields are integers."""

    @cached_property
    def encoded(self) -> str:
        """Its JSON. A log has thousands of segments, and the entry of a full one is written each time."""
        return _encode(attrs.asdict(self, recurse=False))


@attrs.frozen(kw_only=True)
class SegmentSummary(ManifestEntry):
    """A manifest's entry for one segment."""

    base_offset: int
    end_offset: int
    bytes: int
    max_timestamp: int
    last_crc: int
    """The checksum of the last batch, 0 without one: it distinguishes the file from that of another log."""


@attrs.frozen(kw_only=True)
class SnapshotSummary(ManifestEntry):
    """A manifest's entry for one producer snapshot, which distinguishes it from that of another log."""

    offset: int
    checksum: int


@attrs.frozen(kw_only=True)
class ManifestState:
    """What the partition leader knows and the journal does not; no offset is beyond the log end."""

    last_stable_offset: int
    high_watermark: int
    open_transactions: tuple[OpenTransaction, ...] = ()


@attrs.frozen(kw_only=True)
class Manifest:
    """One partition as of the last write of its manifest. Since then, batches may have been added, and
    retention or compaction may have removed segments.
    """

    topic_id: bytes
    """NO_TOPIC_ID for the cluster's metadata, which belongs to no topic."""
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    open_transactions: tuple[OpenTransaction, ...]
    segments: tuple[SegmentSummary, ...]
    snapshots: tuple[SnapshotSummary, ...]
    durable_end: int
    """The offset below which the log was synced; -1 if no process has synced it."""
    boot_id: str
    """When it was written: see StorageReader."""

    def promised_end(self, boot_id: str) -> int:
        """The offset below which no byte may be missing at a start in this boot of the machine.

        A loss of power may take unsynced bytes; the death of a process takes nothing.
        """
        return self.high_watermark if self.is_of_boot(boot_id) else self.durable_end

    def is_of_boot(self, boot_id: str) -> bool:
        """Whether the machine has had power since it was written; an empty `boot_id` is unknown."""
        return boot_id != "" and boot_id == self.boot_id

    def replaces(self, older: Manifest | None) -> bool:
        """Whether it says or promises anything that the older one does not."""
        if older is None or self.durable_end < self.high_watermark:
            return self != older
        # What was synced is promised in any boot.
        return self != attrs.evolve(older, boot_id=self.boot_id)

    def other_topic(self, topic_id: bytes) -> str:
        """Why this is not a manifest of the topic with this id; empty if it may be one."""
        return why_other_topic(self.topic_id, topic_id) if _are_two_topics(self.topic_id, topic_id) else ""

    @property
    def log_end_offset(self) -> int:
        return self.segments[-1].end_offset if self.segments else self.log_start_offset

    @property
    def end(self) -> int:
        """No offset that it names is beyond this one."""
        return max(self.high_watermark, self.log_end_offset)


def lost_segments(
    listed: Iterable[SegmentSummary],
    bases: Sequence[int],
    *,
    log_start_offset: int,
    end_of: Callable[[int], int],
) -> Iterator[SegmentSummary]:
    """The segments of a manifest that are lost: no deletion and no compaction explains why their file is
    missing. The broker may remove a file 200 ms before it writes a manifest that no longer lists the file.

    `bases` are the base offsets of the log files that are there, ascending; `end_of` says where the batches
    of one of them end. A cleaned segment has the name of the first one that it replaces
    (journal/cleaning.py), and a log has no gaps. So the others were replaced if, and only if, the file before
    them reaches to their end. Sizes say nothing: a cleaned segment may have the size of the first one.
    """
    for summary in listed:
        at = bisect_right(bases, summary.base_offset) - 1
        is_there = at >= 0 and bases[at] == summary.base_offset
        if is_there or summary.end_offset <= max(log_start_offset, summary.base_offset):
            continue
        if at < 0 or end_of(bases[at]) < summary.end_offset:
            yield summary


class DescribedFile(NamedTuple):
    """What a small file (the witness) says about a log file."""

    summary: SegmentSummary
    witness: str
    is_full: bool
    """Then compaction may have changed it since."""


def described_files(
    manifest: Manifest | None, clean_mark: SyncedSegment | None, *, directory: str, boot_id: str
) -> dict[int, DescribedFile]:
    """What the small files say about the log files of a partition, by their base offsets. After a loss of
    power, only the mark of a clean stop proves that a manifest is the last one.
    """
    described: dict[int, DescribedFile] = {}
    if manifest is not None and (clean_mark is not None or manifest.is_of_boot(boot_id)):
        for each in manifest.segments:
            is_full = each is not manifest.segments[-1]
            described[each.base_offset] = DescribedFile(each, f"{directory}/{MANIFEST_FILE}", is_full)
    if clean_mark is not None:
        described[clean_mark.base_offset] = DescribedFile(clean_mark, CLEAN_FILE, is_full=False)
    return described


class KnownSnapshots(NamedTuple):
    """What the small files say about the producer snapshots of a log."""

    checksums: dict[int, int]
    """By offset; NO_CHECKSUM where none was."""
    end: int | None = None
    """Where the manifest ends that lists all snapshots that counted; None if there were perhaps others."""

    def objection(self, offset: int, checksum: int) -> str:
        """Why a whole snapshot was not written for this log; empty if the small files do not say so."""
        known = self.checksums.get(offset, checksum if self.end is None else NO_CHECKSUM)
        if known == NO_CHECKSUM:
            return f"none was there at offset {offset}"
        return "" if known == checksum else "its checksum is not the one that was noted here"

    def is_unlisted(self, offset: int) -> bool:
        """Whether a snapshot came after the manifest, if it is of this log. Only a kill leaves such a one,
        and the log still has all that it says.
        """
        return self.end is not None and offset >= self.end and offset not in self.checksums


def known_snapshots(
    manifest: Manifest | None, clean_mark: SyncedSegment | None, *, boot_id: str
) -> KnownSnapshots:
    """What the small files say about the snapshots of a partition. As for log files, a manifest may be
    outdated after a loss of power; one of the same boot is never older than a deletion of segments.
    """
    checksums, end = dict[int, int](), None
    if manifest is not None and (clean_mark is not None or manifest.is_of_boot(boot_id)):
        checksums = {each.offset: each.checksum for each in manifest.snapshots}
    if manifest is not None and manifest.is_of_boot(boot_id) and manifest.segments:
        end = manifest.log_end_offset
    if clean_mark is not None:
        checksums[clean_mark.end_offset] = clean_mark.snapshot
    return KnownSnapshots(checksums, end)


def encode_manifest(manifest: Manifest, *, directory: str) -> bytes:
    """The bytes of `manifest.json`."""
    content = {
        "format": MANIFEST_VERSION,
        "topic_id": spell_topic_id(manifest.topic_id),
        "log_start_offset": manifest.log_start_offset,
        "last_stable_offset": manifest.last_stable_offset,
        "high_watermark": manifest.high_watermark,
        "durable_end": manifest.durable_end,
        "boot_id": manifest.boot_id,
        "open_transactions": [transaction._asdict() for transaction in manifest.open_transactions],
    }
    lists = {"segments": manifest.segments, "snapshots": manifest.snapshots}
    return _encode_with_lists(content, lists, place=f"{directory}/{MANIFEST_FILE}")


def decode_manifest(data: bytes, *, directory: str) -> Manifest:
    """What `encode_manifest` wrote; CorruptIndex when it is truncated, damaged or of another version,
    MisplacedFile when it is that of another directory.
    """
    content = decode_json(data, place=f"{directory}/{MANIFEST_FILE}", version=MANIFEST_VERSION)
    try:
        return Manifest(
            topic_id=parse_topic_id(content["topic_id"]),
            log_start_offset=int(content["log_start_offset"]),
            last_stable_offset=int(content["last_stable_offset"]),
            high_watermark=int(content["high_watermark"]),
            durable_end=int(content["durable_end"]),
            boot_id=str(content["boot_id"]),
            open_transactions=tuple(
                OpenTransaction(int(t["first_offset"]), int(t["producer_id"]), int(t["producer_epoch"]))
                for t in content["open_transactions"]
            ),
            segments=tuple(_read(SegmentSummary, segment) for segment in content["segments"]),
            snapshots=tuple(_read(SnapshotSummary, snapshot) for snapshot in content["snapshots"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptIndex(f"the manifest has a missing or invalid field: {error!r}") from error


def _read(kind: type[Entry], content: dict[str, Any]) -> Entry:
    return kind(**{field.name: int(content[field.name]) for field in attrs.fields(kind)})


# --- the checkpoint of synced segments -------------------------------------------------------------------

CHECKPOINT_FILE: Final = "checkpoint.json"
CHECKPOINT_VERSION: Final = 4


@attrs.frozen(kw_only=True)
class SyncedSegment(SegmentSummary):
    """A segment as of its last sync. The three index fields are the CRC-32C of each whole index file."""

    first_timestamp: int
    leader_epoch: int
    index: int
    time_index: int
    transaction_index: int
    snapshot: int = NO_CHECKSUM
    """In the mark of a clean stop, the checksum of the producer snapshot at the end of the log, if any."""

    def as_evidence(self) -> SyncedSegment:
        """This says where a log ended, and vouches for no file: a start reads the segment, if it is there."""
        return attrs.evolve(self, index=NO_CHECKSUM)


def encode_checkpoint(segments: list[SyncedSegment], *, directory: str) -> bytes:
    """The bytes of `checkpoint.json`."""
    content = {"format": CHECKPOINT_VERSION}
    return _encode_with_lists(content, {"segments": segments}, place=f"{directory}/{CHECKPOINT_FILE}")


def decode_checkpoint(data: bytes, *, directory: str) -> list[SyncedSegment]:
    """What `encode_checkpoint` wrote; CorruptIndex when it is damaged, MisplacedFile when it is that of
    another directory.
    """
    content = decode_json(data, place=f"{directory}/{CHECKPOINT_FILE}", version=CHECKPOINT_VERSION)
    try:
        return [_read(SyncedSegment, entry) for entry in content["segments"]]
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptIndex(f"the checkpoint has a missing or invalid field: {error!r}") from error


# --- the mark of a clean shutdown ------------------------------------------------------------------------

CLEAN_FILE: Final = "clean-shutdown.json"
CLEAN_VERSION: Final = 5


def encode_clean_mark(closed: Mapping[str, SyncedSegment]) -> bytes:
    """The bytes of `clean-shutdown.json`: the last segment of each log that was closed, by its directory."""
    entries = {directory: attrs.asdict(closed[directory]) for directory in sorted(closed)}
    return encode_json({"format": CLEAN_VERSION, **entries}, place=CLEAN_FILE)


def decode_clean_mark(data: bytes) -> dict[str, SyncedSegment]:
    """What `encode_clean_mark` wrote; CorruptIndex when it is damaged."""
    content = decode_json(data, place=CLEAN_FILE, version=CLEAN_VERSION)
    del content["format"]
    try:
        return {directory: _read(SyncedSegment, entry) for directory, entry in content.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptIndex(f"the mark has a missing or invalid field: {error!r}") from error


# --- the log start offset --------------------------------------------------------------------------------

LOG_START_FILE: Final = "log-start-offset.json"
LOG_START_VERSION: Final = 3


def read_log_start(storage: StorageReader, directory: str, topic_id: bytes = NO_TOPIC_ID) -> int:
    """The last log start that was written, 0 if there is none. DamagedLog when it is damaged, or of another
    topic than `topic_id`: a guess would show records that were deleted, or delete others.
    """
    place = f"{directory}/{LOG_START_FILE}"
    data = storage.read_file(place)
    if data is None:
        return 0
    try:
        found, offset = _decode_log_start(data, place)
        if _are_two_topics(found, topic_id):
            found_id, known_id = spell_topic_id(found), spell_topic_id(topic_id)
            raise CorruptIndex(
                f"it was written for a topic with id {found_id}, but this one has id {known_id}"
            )
        return offset
    except MisplacedFile as problem:
        raise misplaced(storage, directory, problem) from problem
    except (CorruptIndex, KeyError, TypeError, ValueError) as problem:
        stake = "The start of the log is unknown, so the log is not served"
        raise DamagedLog(storage.location, f"{place} is damaged ({problem}). {stake}") from problem


def log_start_topic_id(storage: StorageReader, directory: str) -> bytes:
    """The topic id in the log start; NO_TOPIC_ID without an intact one."""
    place = f"{directory}/{LOG_START_FILE}"
    try:
        return _decode_log_start(storage.read_file(place) or b"", place)[0]
    except (CorruptIndex, KeyError, TypeError, ValueError):
        return NO_TOPIC_ID


def _decode_log_start(data: bytes, place: str) -> tuple[bytes, int]:
    """The topic id and the offset; CorruptIndex, KeyError, TypeError or ValueError if it is damaged."""
    content = decode_json(data, place=place, version=LOG_START_VERSION)
    return parse_topic_id(content["topic_id"]), int(content["log_start_offset"])


def write_log_start(storage: Storage, directory: str, offset: int, topic_id: bytes = NO_TOPIC_ID) -> None:
    """Write a log start, durably: records below it must never be readable again."""
    place = f"{directory}/{LOG_START_FILE}"
    content = {"format": LOG_START_VERSION, "topic_id": spell_topic_id(topic_id), "log_start_offset": offset}
    storage.replace(place, encode_json(content, place=place), durable=True)


def deletable(bases: Sequence[int], log_start_offset: int, *, snapshots: Collection[int]) -> list[int]:
    """The segments (by base offset) that are no longer needed: those before the last segment that begins at
    or below the log start and has a snapshot. Without a snapshot, the producers in them would be forgotten.
    """
    # The producers of deleted segments live on in the snapshot (ProducerStateManager does the same).
    needed = max((base for base in bases if base <= log_start_offset and base in snapshots), default=0)
    return [base for base in bases if base < needed]


# --- files of another log --------------------------------------------------------------------------------

_VERSIONS: Final[Mapping[str, int]] = {
    MANIFEST_FILE: MANIFEST_VERSION,
    CHECKPOINT_FILE: CHECKPOINT_VERSION,
    LOG_START_FILE: LOG_START_VERSION,
}


def _are_two_topics(found: bytes, known: bytes) -> bool:
    """Whether both topic ids are known, and differ."""
    return NO_TOPIC_ID not in (found, known) and found != known


def why_other_topic(found: bytes, known: bytes, source: str = "the topic of this name") -> str:
    """Why a log with the topic id `found` is not that of its name, whose id is `known` from `source`."""
    found_id, known_id = spell_topic_id(found), spell_topic_id(known)
    return f"it holds the log of a topic with id {found_id}, but {source} has id {known_id}"


def why_foreign(storage: StorageReader, directory: str, topic_id: bytes = NO_TOPIC_ID) -> str:
    """Why a partition's directory holds the log of another one than of this name, or of another topic than
    `topic_id`; empty if its files do not say so.
    """
    home = _home_of(storage, directory)
    if home != directory:
        return f"it holds the log of {home}"
    data = storage.read_file(f"{directory}/{MANIFEST_FILE}")
    try:
        return "" if data is None else decode_manifest(data, directory=directory).other_topic(topic_id)
    except CorruptIndex:
        return ""


def misplaced(storage: StorageReader, directory: str, problem: MisplacedFile) -> DamagedLog:
    """The error about a log with a file that was written in another directory."""
    why = why_foreign(storage, directory)
    if why:
        return ForeignLog(storage.location, f"{directory}: {why}")
    return DamagedLog(storage.location, f"{problem}, so this log is not served")


def _home_of(storage: StorageReader, directory: str) -> str:
    """The directory in which the small files of this one were written: another one if it was renamed, copied
    or swapped whole. If the files disagree, some of them were moved, and not the directory.
    """
    homes: set[str] = set()
    for name, version in _VERSIONS.items():
        path = f"{directory}/{name}"
        data = storage.read_file(path)
        try:
            if data is not None:
                decode_json(data, place=path, version=version)
                homes.add(directory)
        except MisplacedFile as problem:
            homes.add(problem.written_as.rpartition("/")[0])
        except CorruptIndex:
            continue
    return homes.pop() if len(homes) == 1 else directory


# --- JSON ------------------------------------------------------------------------------------------------


def encode_json(content: dict[str, Any], *, place: str) -> bytes:
    """One JSON object with one field per line, for people who open the file.

    The last fields are `place`, its path in the data directory, so that a file from elsewhere is not taken
    for this one, and a CRC-32C of the lines before.
    """
    return _seal({name: _encode(value) for name, value in content.items()}, place=place)


def _encode_with_lists(
    content: Mapping[str, Any], lists: Mapping[str, Sequence[ManifestEntry]], *, place: str
) -> bytes:
    """The same with one more field for each list of entries, each of which is encoded only once."""
    fields = {name: _encode(value) for name, value in content.items()}
    for name, entries in lists.items():
        fields[name] = f"[{','.join([entry.encoded for entry in entries])}]"
    return _seal(fields, place=place)


_JSON: Final = json.JSONEncoder(separators=(",", ":"))  # `json.dumps` would make one for each value


def _encode(value: Any) -> str:
    # Most fields are integers, and the encoder takes much longer for one.
    return str(value) if type(value) is int else _JSON.encode(value)


def _seal(fields: Mapping[str, str], *, place: str) -> bytes:
    """The object with these fields, whose values are JSON already."""
    lines = [f'  "{name}": {value}' for name, value in {**fields, WRITTEN_AS: _encode(place)}.items()]
    text = ("{\n" + ",\n".join(lines)).encode()
    return b'%b,\n  "%b": %d\n}\n' % (text, CHECKSUM.encode(), crc32c(text))


def decode_json(data: bytes, *, place: str, version: int) -> dict[str, Any]:
    """The object in a file of `encode_json`; CorruptIndex when it is damaged or of another version,
    MisplacedFile when it was written at another place.
    """
    try:
        content: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptIndex(f"{place} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise CorruptIndex(f"{place} is not a JSON object")
    fields = cast("dict[str, Any]", content)
    # A file that was written elsewhere may be of another kind.
    if fields.get("format") != version and fields.get(WRITTEN_AS, place) == place:
        raise CorruptIndex(f"{place} has format {fields.get('format')}; this version reads format {version}")
    if fields.pop(CHECKSUM, None) is None:
        raise CorruptIndex(f"{place} has no checksum: another program wrote it")
    written_as = fields.pop(WRITTEN_AS, None)
    if not isinstance(written_as, str):
        raise CorruptIndex(f"{place} does not name its own path: another program wrote it")
    # Every byte counts, even those that JSON ignores: the file must be exactly as this content is written.
    try:
        is_whole = encode_json(fields, place=written_as) == data
    except RecursionError:  # nothing that was written here is nested so deeply
        is_whole = False
    if not is_whole:
        raise CorruptIndex(f"{place} is damaged: its checksum does not match")
    if written_as != place:
        raise MisplacedFile(place, written_as)
    return fields
