"""What is known of a log before it is read: the offsets that its witnesses (manifest, checkpoint, log start
and the mark of a clean stop) promise, and which records it can hold.

Rule: a damaged witness proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from typing import Final, NamedTuple

from fencepost.check.scan import log_file, sizes_of
from fencepost.journal.indexes import OFFSET_ENTRY, CorruptIndex
from fencepost.journal.manifest import (
    CHECKPOINT_FILE,
    MANIFEST_FILE,
    DescribedFile,
    Manifest,
    SyncedSegment,
    decode_checkpoint,
    decode_manifest,
    described_files,
    known_snapshots,
    log_start_topic_id,
    read_log_start,
)
from fencepost.journal.segments import INDEX, file_name, is_other_file, walk_headers
from fencepost.journal.storage import CLEANED_SUFFIX, DamagedLog, ReadableFile, ReplacedFile, StorageReader
from fencepost.log_model.metadata import ClusterModel
from fencepost.protocol.batches import BatchHeader
from fencepost.protocol.checksum import crc32c
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.metadata_log import read_cluster_records
from fencepost.protocol.offsets_log import read_group_batch
from fencepost.protocol.terms import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    NO_TOPIC_ID,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    coordinator_partition,
)
from fencepost.protocol.transaction_log import read_transactions
from fencepost.repair.salvage import Belongs, Bounds


class ExpectedLog(NamedTuple):
    """What the witnesses of a partition say about its log."""

    bounds: Bounds
    bad_log_start: str | None
    """Why the log start cannot be read, if it cannot."""
    topic_id: bytes
    """In its manifest, or in its log start if the metadata has no such topic; NO_TOPIC_ID if unknown."""


def belongs_to(partition: TopicPartition, cluster: ClusterModel) -> Belongs:
    """How to distinguish the batches of an internal topic from those of other logs: their records can be
    read, and the names in them hash to this partition. Data may be anything.
    """
    names_in = _NAMES_IN.get(partition.topic)
    if names_in is None:
        return lambda _header, _batch: True
    count = sum(key.topic == partition.topic for key in cluster.leaders)

    def belongs(header: BatchHeader, batch: bytes) -> bool:
        if header.is_control and partition.topic == CONSUMER_OFFSETS_TOPIC:
            return True
        if header.is_transactional and partition.topic != CONSUMER_OFFSETS_TOPIC:
            return False  # its records have keys of another kind, which are skipped
        try:
            names = names_in(batch, header)
        except ProtocolViolation:
            return False
        home = [coordinator_partition(name, count) for name in names if count]
        return not header.is_control and all(number == partition.partition for number in home)

    return belongs


def _no_names(batch: bytes, header: BatchHeader) -> list[str]:
    read_cluster_records(batch, header)
    return []


def _transactional_ids(batch: bytes, header: BatchHeader) -> list[str]:
    return [name for name, _ in read_transactions(batch, header)]


def _group_ids(batch: bytes, header: BatchHeader) -> list[str]:
    offsets, groups, consumers, _ = read_group_batch(batch, header)
    return [*[key.group_id for key, _ in (*offsets, *consumers)], *[name for name, _ in groups]]


_NAMES_IN: Final[Mapping[str, Callable[[bytes, BatchHeader], list[str]]]] = {
    CLUSTER_METADATA_TOPIC: _no_names,
    TRANSACTION_STATE_TOPIC: _transactional_ids,
    CONSUMER_OFFSETS_TOPIC: _group_ids,
}


def expected_log(
    storage: StorageReader,
    partition: TopicPartition,
    closed: SyncedSegment | None,
    *,
    known_id: bytes = NO_TOPIC_ID,
    believes_manifest: bool = True,
) -> ExpectedLog:
    """What the remaining witnesses say. A manifest's log start is a lower bound, and so is the oldest file.
    `closed` is the last segment in the mark of a clean stop, `known_id` the id of the topic in the metadata.
    Without `believes_manifest`, nothing counts of the manifest but its topic id and boot. ReplacedFile if a
    log file is not the one that was written here.
    """
    directory, bad_log_start = str(partition), None
    closed_at = None if closed is None else closed.end_offset
    start, promised, topic_id, last_base = 0, closed_at or 0, NO_TOPIC_ID, None
    checkpoint = storage.read_file(f"{directory}/{CHECKPOINT_FILE}")
    manifest = _manifest(storage, directory)
    kept_power = manifest is not None and manifest.is_of_boot(storage.boot_id)
    if manifest is not None:
        topic_id = manifest.topic_id
    if not believes_manifest:
        manifest = None
    if manifest is not None:
        start, promised = manifest.log_start_offset, max(promised, manifest.promised_end(storage.boot_id))
        if manifest.segments and kept_power:
            last_base = manifest.segments[-1].base_offset
    described = described_files(manifest, closed, directory=directory, boot_id=storage.boot_id)
    synced: list[SyncedSegment] = []
    with suppress(CorruptIndex):
        synced = [] if checkpoint is None else decode_checkpoint(checkpoint, directory=directory)
    promised = max([promised, *[entry.end_offset for entry in synced]])
    _refuse_replaced(storage, directory, described, synced)
    if NO_TOPIC_ID == topic_id == known_id:
        topic_id = log_start_topic_id(storage, directory)
    try:
        start = max(
            start, read_log_start(storage, directory, known_id if topic_id == NO_TOPIC_ID else topic_id)
        )
    except DamagedLog as problem:
        bad_log_start = str(problem.__cause__)
        start = max(start, min(sizes_of(storage, directory), default=0))
    bounds = Bounds(
        start=start,
        promised=promised,
        closed_at=closed_at,
        lost_power=closed is None and not kept_power,
        last_base=last_base,
        ends={each.base_offset: each.end_offset for each in synced}
        | {base: known.summary.end_offset for base, known in described.items()},
        snapshots=known_snapshots(manifest, closed, boot_id=storage.boot_id),
    )
    return ExpectedLog(bounds, bad_log_start, topic_id)


def _manifest(storage: StorageReader, directory: str) -> Manifest | None:
    data = storage.read_file(f"{directory}/{MANIFEST_FILE}")
    with suppress(CorruptIndex):  # a damaged one proves nothing; `check` finds it
        return None if data is None else decode_manifest(data, directory=directory)
    return None


def _refuse_replaced(
    storage: StorageReader,
    directory: str,
    described: Mapping[int, DescribedFile],
    synced: Sequence[SyncedSegment],
) -> None:
    """ReplacedFile if a log file is not the one that a small file describes: no program can know which one to
    keep.
    """
    entries = {entry.base_offset: entry for entry in synced}
    for base_offset in sizes_of(storage, directory):
        known, entry = described.get(base_offset), entries.get(base_offset)
        path = log_file(directory, base_offset)
        with closing(storage.open(path)) as file:
            if known is not None and is_other_file(file, known):
                raise ReplacedFile(storage.location, path, known.witness)
            if entry is not None and _contradicts_index(storage, path, file, entry):
                raise ReplacedFile(storage.location, path, f"{directory}/{CHECKPOINT_FILE}")


def _contradicts_index(storage: StorageReader, path: str, file: ReadableFile, entry: SyncedSegment) -> bool:
    """Whether the offset index, as it was synced, is that of another log file: the file is too short to reach
    the last batch that the small files describe, but its batches are not where they were.
    """
    directory = path.rpartition("/")[0]
    index = file_name(entry.base_offset, INDEX)
    data = storage.read_file(f"{directory}/{index}") or b""
    # In the middle of a cleaning, the log file is new and the index is not.
    is_cleaned = f"{index}{CLEANED_SUFFIX}" in storage.files(directory)
    if crc32c(data) != entry.index or is_cleaned or len(data) % OFFSET_ENTRY.size:
        return False
    known = {position: entry.base_offset + offset for offset, position in OFFSET_ENTRY.iter_unpack(data)}
    end = 0
    with suppress(ProtocolViolation):  # damage, which the salvage reports
        for position, header in walk_headers(file, 0, file.size):
            if known.pop(position, header.last_offset) != header.last_offset:
                return True
            end = position + header.size
    return any(position < end for position in known)
