"""The layout of a log for readers without a broker: Fencepost's data directory, or log directories of Apache
Kafka.

Rule: the two differ only in the questions of `LogLayout`. Segments, indexes, batches and producer snapshots
have the same formats in both, so one reader serves both.
"""

#     question                  Fencepost                       Apache Kafka
#     whose cluster             meta.json                       meta.properties
#     partitions                directories, and the records    the same
#                               of __cluster_metadata
#     log start                 log-start-offset.json           log-start-offset-checkpoint
#     high watermark            the end of the log              replication-offset-checkpoint, see
#                                                               kafka_directory.py
#     no .txnindex              damage: it is always made       no aborted transaction ended in the segment
#     offsets that are missing  damage: an empty batch takes    compaction removed them
#                               their place

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Protocol

from fencepost.journal.data_directory import META_FILE, check_data_directory, partitions_in, read_clean_mark
from fencepost.journal.kafka_directory import (
    HIGH_WATERMARKS_FILE,
    MISPLACED,
    PROPERTIES_FILE,
    KafkaDirectory,
    home_of,
    misplacement,
    read_metadata,
    read_topic_id,
)
from fencepost.journal.manifest import Manifest, SyncedSegment, read_log_start, why_other_topic
from fencepost.journal.storage import (
    NotADataDirectory,
    StorageError,
    StorageReader,
    directory_name,
    foreign_advice,
)
from fencepost.protocol.kraft_log import KraftCluster
from fencepost.protocol.terms import (
    CLUSTER_METADATA_TOPIC,
    NO_TOPIC_ID,
    TopicPartition,
    parse_topic_id,
    spell_topic_id,
)


class LogLayout(Protocol):
    """What a reader asks about the logs of one cluster."""

    @property
    def cluster_id(self) -> str:
        """The id of the cluster that wrote them."""
        ...

    @property
    def location(self) -> str:
        """Where they are, for messages."""
        ...

    @property
    def is_sparse(self) -> bool:
        """Whether offsets may be missing between two batches, and transaction indexes without entries."""
        ...

    def partitions(self) -> list[TopicPartition]:
        """Every partition, sorted; those without records, too, if the cluster's metadata is there."""
        ...

    @property
    def storages(self) -> tuple[StorageReader, ...]:
        """The directories, in the order in which they were given."""
        ...

    def home(self, partition: TopicPartition) -> int:
        """Which of `storages` has the files of a partition; one without records may have none there.

        While brokers run, the answer may change: what depends on a position in a file keeps the answer.
        """
        ...

    def topic_id(self, partition: TopicPartition, manifest: Manifest | None, *, refresh: bool = False) -> str:
        """The id of the topic that the directory of a partition, with this manifest, is of; empty if it is
        unknown. Without an id in the manifest, the cluster's metadata says it, which is read once, or again
        to `refresh`.
        """
        ...

    def misplacement(self, partition: TopicPartition, topic_id: str) -> str:
        """Why the directory of a partition, which is of the topic with this id, must have been renamed or
        copied, and what to do; empty if the cluster's metadata does not show it.
        """
        ...

    def log_start_offset(self, partition: TopicPartition) -> int:
        """The offset before which records were deleted; the first segment may begin later."""
        ...

    def closed_end(self, partition: TopicPartition, *, refresh: bool = False) -> int:
        """Where the log ended when its broker stopped cleanly; 0 if nothing says so, as while one runs. What
        says so is read once, or again to `refresh`.
        """
        ...

    def high_watermark(self, partition: TopicPartition) -> int | None:
        """The offset at which every reader stops, None for the end of the log. StorageError if it is not
        known.
        """
        ...


def open_layout(storages: Sequence[StorageReader]) -> LogLayout:
    """The layout of a data directory of Fencepost, or of the log directories of one cluster of Apache Kafka.

    NotADataDirectory when one of them is neither, or when they do not belong together.
    """
    kinds = [_checked_is_kafka(storage) for storage in storages]
    if all(kinds):
        return KafkaLayout([KafkaDirectory(storage) for storage in storages])
    if len(storages) > 1:
        raise NotADataDirectory(
            f"{', '.join(storage.location for storage in storages)}: only log directories of Apache Kafka "
            "can be read together; read each directory by itself"
        )
    return FencepostLayout(storages[0])


def is_kafka(storage: StorageReader) -> bool:
    """Whether a directory is a log directory of Apache Kafka. With a META_FILE it is Fencepost's, whatever
    else lies there.
    """
    return _names_kafka(storage.files(""))


def _names_kafka(names: Collection[str]) -> bool:
    return META_FILE not in names and PROPERTIES_FILE in names


def _checked_is_kafka(storage: StorageReader) -> bool:
    """Whether it is Kafka's; NotADataDirectory when it is neither Kafka's nor Fencepost's."""
    storage.directories()  # raises NotADataDirectory when the directory does not exist
    names = storage.files("")
    if META_FILE not in names and PROPERTIES_FILE not in names:
        raise NotADataDirectory(
            f"{storage.location} is not a data directory (it has neither {META_FILE} nor {PROPERTIES_FILE}): "
            "give the directory that a broker was started with, not a parent or a subdirectory",
            location=storage.location,
        )
    return _names_kafka(names)


class FencepostLayout:
    """The data directory of one Fencepost broker."""

    is_sparse = False

    def __init__(self, storage: StorageReader) -> None:
        """NotADataDirectory when it is not one."""
        self.storages = (storage,)
        self.cluster_id = check_data_directory(storage)
        self.location = storage.location
        self._topic_ids: Mapping[str, bytes] | None = None
        """As last read from the metadata."""
        self._closed: Mapping[str, SyncedSegment] | None = None

    def partitions(self) -> list[TopicPartition]:
        return sorted({*partitions_in(self.storages[0]), *self._read_cluster().partitions()})

    def home(self, partition: TopicPartition) -> int:
        return 0

    def misplacement(self, partition: TopicPartition, topic_id: str) -> str:
        problem = self._other_topic(partition.topic, topic_id)
        if problem:  # the topic may have been created again since the metadata was read
            self._read_cluster()
            problem = self._other_topic(partition.topic, topic_id)
        return problem and f"{problem}. {foreign_advice(self.location)}"

    def _other_topic(self, topic: str, topic_id: str) -> str:
        known = self._id_of(topic)
        if not topic_id or known == NO_TOPIC_ID or topic_id == spell_topic_id(known):
            return ""
        return why_other_topic(parse_topic_id(topic_id), known)

    def _id_of(self, topic: str) -> bytes:
        if self._topic_ids is None:
            self._read_cluster()
        return (self._topic_ids or {}).get(topic, NO_TOPIC_ID)

    def _read_cluster(self) -> KraftCluster:
        """What the cluster's metadata says now; nothing if its log is not there."""
        found = read_metadata(self.storages[0])
        cluster = KraftCluster() if found is None else found[1]
        self._topic_ids = cluster.topic_ids()
        return cluster

    def topic_id(self, partition: TopicPartition, manifest: Manifest | None, *, refresh: bool = False) -> str:
        if manifest is not None and manifest.topic_id != NO_TOPIC_ID:
            return spell_topic_id(manifest.topic_id)
        if refresh:
            self._read_cluster()
        known = self._id_of(partition.topic)
        return "" if known == NO_TOPIC_ID else spell_topic_id(known)

    def log_start_offset(self, partition: TopicPartition) -> int:
        return read_log_start(self.storages[0], directory_name(partition))

    def closed_end(self, partition: TopicPartition, *, refresh: bool = False) -> int:
        if self._closed is None or refresh:
            self._closed = read_clean_mark(self.storages[0])
        last = self._closed.get(directory_name(partition))
        return 0 if last is None else last.end_offset

    def high_watermark(self, partition: TopicPartition) -> int | None:
        return None


class KafkaLayout:
    """Log directories of one cluster of Apache Kafka, of one broker or of several."""

    is_sparse = True

    def __init__(self, directories: Sequence[KafkaDirectory]) -> None:
        """NotADataDirectory when they are of different clusters."""
        self.directories = tuple(directories)
        self.storages = tuple(directory.storage for directory in directories)
        self.cluster_id = directories[0].cluster_id
        self.location = ", ".join(directory.storage.location for directory in directories)
        for directory in directories:
            if directory.cluster_id != self.cluster_id:
                raise NotADataDirectory(
                    f"{directory.storage.location} belongs to cluster {directory.cluster_id}, but "
                    f"{directories[0].storage.location} to cluster {self.cluster_id}: read them one by one"
                )

    @cached_property
    def cluster(self) -> KraftCluster | None:
        """What the longest log of the cluster's metadata says; None when it is in none of the directories."""
        found = [directory.metadata for directory in self.directories if directory.metadata is not None]
        return max(found, key=lambda ended: ended[0])[1] if found else None

    def partitions(self) -> list[TopicPartition]:
        present = {partition for directory in self.directories for partition in directory.partitions}
        return sorted(present | (self.cluster.partitions() if self.cluster else set()))

    def home(self, partition: TopicPartition) -> int:
        return self.directories.index(self._home(partition))

    def misplacement(self, partition: TopicPartition, topic_id: str) -> str:
        known = self._topic_ids.get(partition.topic)
        if known is None or self.cluster is None or partition not in self._home(partition).partitions:
            return ""
        numbers = self.cluster.topics[known].partitions
        problem = misplacement(partition, topic_id, known=known, numbers=numbers)
        then = "give each directory its own name back, move it away, or copy again"
        return problem and f"{problem}; {MISPLACED}: {then}"

    @cached_property
    def _topic_ids(self) -> Mapping[str, bytes]:
        return {} if self.cluster is None else self.cluster.topic_ids()

    def topic_id(self, partition: TopicPartition, manifest: Manifest | None, *, refresh: bool = False) -> str:
        return read_topic_id(self._home(partition).storage, partition)

    def log_start_offset(self, partition: TopicPartition) -> int:
        return self._home(partition).log_starts.get(partition, 0)

    def closed_end(self, partition: TopicPartition, *, refresh: bool = False) -> int:
        return 0

    def high_watermark(self, partition: TopicPartition) -> int | None:
        known = None if self.cluster is None else self.cluster.partition(partition)
        if partition.topic == CLUSTER_METADATA_TOPIC or (known is not None and len(known.replicas) == 1):
            return None
        home = self._home(partition)
        if home.high_watermarks is None:
            raise StorageError(
                f"{home.storage.location} has no {HIGH_WATERMARKS_FILE}, so it is unknown how much of "
                f"{partition} was replicated: copy that file together with the partitions"
            )
        return home.high_watermarks.get(partition, 0)

    def _home(self, partition: TopicPartition) -> KafkaDirectory:
        return home_of(partition, self.directories, self.cluster) or self.directories[0]
