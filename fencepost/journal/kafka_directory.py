"""A log directory of an Apache Kafka broker: whose it is, and what the files beside the partitions say.

Rule: the broker's own files are read and nothing is written. Each of them may be older than the logs: a
broker writes them every few seconds, and a copy is not made at one moment.
"""

# Theory of operation
#
#     <log directory>/                    one of log.dirs
#         meta.properties                 cluster id and node id; says that the directory is Kafka's
#         replication-offset-checkpoint   high watermarks, every 5 s and at a stop
#         log-start-offset-checkpoint     log starts that are not the base offset of a segment, every 60 s
#         .kafka_cleanshutdown            the broker has stopped cleanly; absent while it runs
#         __cluster_metadata-0/           only in one directory of a broker (metadata.log.dir)
#         <topic>-<partition>/            one log each, in the layout of segments.py
#         <topic>-<partition>.<id>-delete, -stray, -future    not, or no longer, a log of the broker
#
# Next to the segments are files that end in .deleted, .cleaned and .swap, which compaction and retention are
# about to remove or to put in place. They are not parts of the log.
#
# The high watermark is what consumers read up to. Where it is not known exactly:
#
#     one replica (the metadata says so)   the high watermark is the end of the log, and the checkpoint may
#                                          only be older: the end of the log counts
#     more, or unknown                     the checkpoint counts. It may be too low, never too high: the end
#                                          of a log may hold batches that no other replica has, and that the
#                                          next leader never had
#
# Brokers before 4.0 that use ZooKeeper have no `__cluster_metadata`; then the checkpoint counts.

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from typing import Final

from fencepost.journal.segments import LOG, parse_file_name, walk_batches
from fencepost.journal.storage import (
    NotADataDirectory,
    StorageError,
    StorageReader,
    directory_name,
    parse_directory_name,
    read_listed,
)
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.kraft_log import KraftCluster, read_kraft_records
from fencepost.protocol.terms import METADATA_PARTITION, TopicPartition, spell_topic_id

PROPERTIES_FILE: Final = "meta.properties"
HIGH_WATERMARKS_FILE: Final = "replication-offset-checkpoint"
LOG_STARTS_FILE: Final = "log-start-offset-checkpoint"
CLEAN_SHUTDOWN_FILE: Final = ".kafka_cleanshutdown"
TOPIC_ID_FILE: Final = "partition.metadata"  # PartitionMetadataFile.java
MISPLACED: Final = "it was renamed or copied, or is newer than the metadata"  # why there is a `misplacement`
SNAPSHOT_SUFFIX: Final = ".checkpoint"  # of the cluster's metadata, not of producers
_PROPERTIES_VERSIONS: Final = {"0": "broker.id", "1": "node.id"}  # the name of the node's id in each
_CHECKPOINT_VERSION: Final = "0"
_SNAPSHOT_NAME_PARTS: Final = (20, 10)  # digits of offset and epoch


class KafkaDirectory:
    """One log directory, as its files were when they were read."""

    def __init__(self, storage: StorageReader) -> None:
        """NotADataDirectory when it is not a log directory of Kafka."""
        self.storage = storage
        properties = read_properties(storage)
        version = properties.get("version", "")
        if version not in _PROPERTIES_VERSIONS or "cluster.id" not in properties:
            raise NotADataDirectory(
                f"{storage.location}/{PROPERTIES_FILE} has version {version or 'none'} and cluster.id "
                f"{properties.get('cluster.id', 'none')}: this version reads directories of version 0 and 1, "
                "which Apache Kafka 3.x and 4.x write"
            )
        self.cluster_id = properties["cluster.id"]
        self.node_id = int(properties.get(_PROPERTIES_VERSIONS[version], "-1"))
        # Before the logs are listed: a log is never shorter than its high watermark was.
        self.high_watermarks = read_checkpoint(storage, HIGH_WATERMARKS_FILE)

    @cached_property
    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions that have a directory here."""
        found = (parse_directory_name(name) for name in self.storage.directories())
        return frozenset(partition for partition in found if partition is not None)

    @cached_property
    def log_starts(self) -> Mapping[TopicPartition, int]:
        """The log starts that the broker wrote down; others are where the first segment begins."""
        return read_checkpoint(self.storage, LOG_STARTS_FILE) or {}

    @property
    def was_closed(self) -> bool:
        """Whether the broker stopped cleanly, so that all files are from the same moment."""
        return self.storage.read_file(CLEAN_SHUTDOWN_FILE) is not None

    @cached_property
    def metadata(self) -> tuple[int, KraftCluster] | None:
        """The end offset of the cluster's metadata and what it says; None when it is not in this directory.

        StorageError when it is damaged.
        """
        return read_metadata(self.storage) if METADATA_PARTITION in self.partitions else None


def read_properties(storage: StorageReader) -> dict[str, str]:
    """The lines `name=value` of `meta.properties`."""
    text = (storage.read_file(PROPERTIES_FILE) or b"").decode("utf-8", "replace")
    lines = [line.partition("=") for line in text.splitlines() if not line.startswith("#")]
    # Java escapes some characters of a value with a backslash (java.util.Properties).
    return {name.strip(): value.strip().replace("\\", "") for name, equals, value in lines if equals}


def read_topic_id(storage: StorageReader, partition: TopicPartition) -> str:
    """The id of the topic in `partition.metadata`, as Kafka spells it; empty without it (before 2.8)."""
    content = storage.read_file(f"{directory_name(partition)}/{TOPIC_ID_FILE}") or b""
    for line in content.decode("utf-8", "replace").splitlines():
        name, _, value = line.partition(":")
        if name == "topic_id":
            return value.strip()
    return ""


def misplacement(partition: TopicPartition, topic_id: str, *, known: bytes, numbers: Collection[int]) -> str:
    """Why the directory of a partition must have been renamed or copied; empty without evidence.

    `topic_id` is in the directory; `known` and `numbers` are the id and the partitions of the topic in the
    cluster's metadata.
    """
    if topic_id not in ("", spell_topic_id(known)):
        return f"{TOPIC_ID_FILE} has topic id {topic_id}, but {partition.topic} has {spell_topic_id(known)}"
    if partition.partition not in numbers:
        return f"the cluster's metadata has no partition {partition.partition} of {partition.topic}"
    return ""


def read_checkpoint(storage: StorageReader, name: str) -> dict[TopicPartition, int] | None:
    """Offsets by partition: a version, a count, and lines of topic, number and offset (CheckpointFile.java).

    None when there is no such file, StorageError when it is malformed.
    """
    data = storage.read_file(name)
    if data is None:
        return None
    if not data:
        return {}  # a broker creates the file before it first writes it
    version, *lines = data.decode("utf-8", "replace").splitlines()
    try:
        if version != _CHECKPOINT_VERSION:
            raise ValueError(f"version {version} is unknown")
        count, *entries = lines
        if len(entries) != int(count):
            raise ValueError(f"it announces {count} entries and has {len(entries)}")
        fields = (entry.split(" ") for entry in entries)
        return {TopicPartition(topic, int(number)): int(offset) for topic, number, offset in fields}
    except ValueError as problem:
        raise StorageError(f"{storage.location}/{name} is malformed: {problem}") from problem


def read_metadata(storage: StorageReader) -> tuple[int, KraftCluster] | None:
    """The end of `__cluster_metadata` and what it says; None when its beginning is missing."""
    return read_listed(
        lambda: storage.files(directory_name(METADATA_PARTITION)),
        lambda files: _read_files(storage, files),
        retried=(StorageError,),
    )


def _read_files(storage: StorageReader, files: Mapping[str, int]) -> tuple[int, KraftCluster] | None:
    directory = directory_name(METADATA_PARTITION)
    snapshot = max((name for name in files if _is_snapshot(name)), default=None)
    cluster, end = KraftCluster(), 0
    if snapshot is not None:
        end = int(snapshot.partition("-")[0])
        _apply(storage, f"{directory}/{snapshot}", files[snapshot], cluster, may_be_torn=False)
    segments = [(base, name) for name in files if (base := _segment_base(name)) is not None]
    if segments and segments[0][0] > end:
        return None  # records between the snapshot and the log are missing
    for number, (_, name) in enumerate(segments):
        is_last = number == len(segments) - 1
        path = f"{directory}/{name}"
        end = _apply(storage, path, files[name], cluster, may_be_torn=is_last, from_offset=end)
    return end, cluster


def _is_snapshot(name: str) -> bool:
    parts = name.removesuffix(SNAPSHOT_SUFFIX).split("-")
    return name.endswith(SNAPSHOT_SUFFIX) and tuple(map(len, parts)) == _SNAPSHOT_NAME_PARTS


def _segment_base(name: str) -> int | None:
    base_offset, kind = parse_file_name(name)
    return base_offset if kind == LOG else None


def _apply(
    storage: StorageReader,
    path: str,
    size: int,
    cluster: KraftCluster,
    *,
    may_be_torn: bool,
    from_offset: int = 0,
) -> int:
    """Apply the batches of a file to `cluster`, from an offset on. Returns the offset after the last one."""
    end = from_offset
    try:
        with closing(storage.open(path)) as file:
            for _, header, batch in walk_batches(file, 0, size):
                if header.base_offset >= from_offset:
                    for record in () if header.is_control else read_kraft_records(batch, header):
                        cluster.take(record)
                    end = header.next_offset
    except ProtocolViolation as problem:
        if not may_be_torn:
            raise StorageError(f"{storage.location}/{path} is damaged: {problem}") from problem
    return end


def home_of(
    partition: TopicPartition, directories: Sequence[KafkaDirectory], cluster: KraftCluster | None
) -> KafkaDirectory | None:
    """The directory to read a partition from, None when it is in none of them.

    Of several, the one with the highest high watermark of its own: all below it is on every replica in sync,
    and a replica that lags, or that lost its leadership with records of its own, has a lower one.
    If several are equal, the leader's. A partition with one replica is read from that replica: any other copy
    was left by a move to another broker.
    """
    known = None if cluster is None else cluster.partition(partition)
    holders = [each for each in directories if partition in each.partitions]

    def rank(directory: KafkaDirectory) -> tuple[bool, int, bool]:
        is_only = known is not None and known.replicas == (directory.node_id,)
        high_watermark = (directory.high_watermarks or {}).get(partition, 0)
        return is_only, high_watermark, known is not None and known.leader_id == directory.node_id

    return max(holders, key=rank, default=None)
