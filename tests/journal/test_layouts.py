"""Whose logs a directory holds: Fencepost's data directory, or log directories of Apache Kafka."""

from __future__ import annotations

import pytest

from fencepost.journal.data_directory import DataDirectory
from fencepost.journal.kafka_directory import KafkaDirectory
from fencepost.journal.layouts import FencepostLayout, KafkaLayout, open_layout
from fencepost.journal.memory import MemoryStorage
from fencepost.journal.storage import NotADataDirectory, StorageError, StorageFile
from fencepost.protocol.batches import build_batch, covering_batch, place, read_header
from fencepost.protocol.kafka_records import KafkaRecord, build_kafka_batch
from fencepost.protocol.kraft_log import KraftCluster
from fencepost.protocol.metadata_log import (
    ClusterSnapshot,
    PartitionCreated,
    TopicCreated,
    TopicRemoved,
    cluster_batch,
)
from fencepost.protocol.primitives import INT32, put_compact_int32s, put_tagged_fields
from fencepost.protocol.terms import TopicPartition
from tests.kafka_directories import NAMES, directory_of, told

ORDERS, EMPTY = TopicPartition("orders", 0), TopicPartition("orders", 1)
TOPIC_ID = bytes(range(16))
LOG = "__cluster_metadata-0/00000000000000000000.log"


def kafka_directory(
    *, node: int = 1, cluster: str = "c", location: str = "memory", **files: str
) -> MemoryStorage:
    """A log directory without metadata; `files` by names with `_` for `-`."""
    storage = MemoryStorage(location)
    text = f"#\n#Sun Nov 22 15:06:35 UTC 2026\nnode.id={node}\nversion=1\ncluster.id={cluster}\n"
    storage.replace("meta.properties", text.encode(), durable=False)
    for name, content in files.items():
        storage.replace(name.replace("_", "-"), content.encode(), durable=False)
    return storage


def with_directories(storage: MemoryStorage, *names: str) -> MemoryStorage:
    for name in names:
        storage.make_directory(name)
    return storage


def metadata_log(*batches: bytes, base_offset: int = 0) -> bytes:
    """Batches of the metadata log, one after the other."""
    out = bytearray()
    for batch in map(bytearray, batches):
        base_offset = place(batch, base_offset=base_offset, leader_epoch=1).next_offset
        out += batch
    return bytes(out)


def created(*, replicas: int = 1) -> list[bytes]:
    """Topic `orders` with two partitions."""
    batches = [bytes(cluster_batch([TopicCreated("orders", topic_id=TOPIC_ID, created_ms=1)], timestamp=1))]
    for number in (0, 1):
        record = PartitionCreated(TOPIC_ID, partition=number, leader_id=1, leader_epoch=0)
        batches.append(bytes(cluster_batch([record], timestamp=1)))
        if replicas > 1:
            batches.append(changed(number, replicas=tuple(range(1, replicas + 1))))
    return batches


def changed(partition: int, *, replicas: tuple[int, ...] = (), leader: int | None = None) -> bytes:
    """A batch with Kafka's PartitionChangeRecord, version 2."""
    tags: list[tuple[int, bytes]] = []
    if leader is not None:
        tags.append((1, INT32.pack(leader)))
    if replicas:
        content = bytearray()
        put_compact_int32s(content, replicas)
        tags.append((2, bytes(content)))
    value = bytearray(b"\x01\x05\x02" + INT32.pack(partition) + TOPIC_ID)
    put_tagged_fields(value, tags)
    return bytes(build_kafka_batch([KafkaRecord(None, bytes(value))], timestamp=1))


def with_metadata(storage: MemoryStorage, *batches: bytes) -> MemoryStorage:
    with_directories(storage, "__cluster_metadata-0")
    storage.replace(LOG, metadata_log(*batches), durable=False)
    return storage


class BeingCompacted(MemoryStorage):
    """The metadata's two segments become one after they are listed, or while they are read."""

    second = "__cluster_metadata-0/00000000000000000003.log"

    def __init__(self, when: str) -> None:
        super().__init__()
        self.compacted: bytes | None = None
        self._when = when

    def _compact(self) -> None:
        compacted, self.compacted = self.compacted, None
        if compacted is not None:
            self.replace(LOG, compacted, durable=False)
            self.remove(self.second)

    def files(self, directory: str) -> dict[str, int]:
        found = super().files(directory)
        if self._when == "listed" and self.second.startswith(f"{directory}/"):
            self._compact()
        return found

    def open(self, path: str, *, create: bool = False) -> StorageFile:
        file = super().open(path, create=create)
        if self._when == "opened" and path == LOG:
            self._compact()
        return file


class TestFencepost:
    def test_a_data_directory_is_known_by_its_file(self) -> None:
        storage = MemoryStorage()
        DataDirectory.open(storage, cluster_id="ours").close()
        layout = open_layout([storage])
        assert isinstance(layout, FencepostLayout)
        assert (layout.cluster_id, layout.partitions()) == ("ours", [])

    def test_partitions_without_records_are_in_the_metadata(self) -> None:
        storage = MemoryStorage()
        DataDirectory.open(storage).close()
        layout = open_layout([with_metadata(storage, *created())])
        assert [str(p) for p in layout.partitions()] == ["__cluster_metadata-0", "orders-0", "orders-1"]

    @pytest.mark.parametrize("when", ["listed", "opened"])
    def test_metadata_that_is_compacted_meanwhile_is_read_anew(self, when: str) -> None:
        """The broker replaces what is before a snapshot by an empty batch, in fewer segments."""
        storage = BeingCompacted(when)
        DataDirectory.open(storage).close()
        with_metadata(storage, *created())
        end = len(created())
        later = metadata_log(changed(0, leader=1), base_offset=end)
        snapshot = bytes(
            cluster_batch(
                [
                    ClusterSnapshot(end + 1, leader_epoch=-1, topic_number=1),
                    TopicCreated("orders", topic_id=TOPIC_ID, created_ms=1),
                    PartitionCreated(TOPIC_ID, partition=0, leader_id=1, leader_epoch=2),
                ],
                timestamp=1,
            )
        )
        storage.replace(storage.second, later + metadata_log(snapshot, base_offset=end + 1), durable=False)
        gone = covering_batch(base_offset=0, next_offset=end + 1, leader_epoch=1)
        storage.compacted = bytes(gone) + metadata_log(snapshot, base_offset=end + 1)
        layout = open_layout([storage])
        assert [str(p) for p in layout.partitions()] == ["__cluster_metadata-0", "orders-0"]

    def test_two_data_directories_are_not_one_log(self) -> None:
        storages = [MemoryStorage("a"), MemoryStorage("b")]
        for storage in storages:
            DataDirectory.open(storage).close()
        with pytest.raises(NotADataDirectory, match="a, b: only log directories of Apache Kafka"):
            open_layout(storages)


class TestOneDirectory:
    @pytest.mark.parametrize("name", NAMES)
    def test_tells_what_its_broker_told(self, name: str) -> None:
        layout = open_layout([directory_of(name)])
        assert isinstance(layout, KafkaLayout)
        assert set(layout.partitions()) == {*told(name), TopicPartition("__cluster_metadata", 0)}
        assert {layout.high_watermark(partition) for partition in layout.partitions()} == {None}
        (directory,) = layout.directories
        assert (directory.node_id, directory.was_closed) == (1, True)
        assert {partition: (directory.high_watermarks or {})[partition] for partition in told(name)} == {
            partition: leader.high_watermark for partition, leader in told(name).items()
        }

    @pytest.mark.parametrize(
        "text", ["version=1\nnode.id=1\n", "version=2\ncluster.id=c\n", "cluster.id=c\n", ""]
    )
    def test_is_refused_with_properties_that_say_something_else(self, text: str) -> None:
        storage = MemoryStorage()
        storage.replace("meta.properties", text.encode(), durable=False)
        with pytest.raises(NotADataDirectory, match=r"meta\.properties has version"):
            open_layout([storage])

    def test_of_a_broker_with_zookeeper(self) -> None:
        storage = MemoryStorage()
        storage.replace("meta.properties", b"version=0\nbroker.id=3\ncluster.id=a\\=b\n", durable=False)
        directory = KafkaDirectory(storage)
        assert (directory.cluster_id, directory.node_id, directory.metadata) == ("a=b", 3, None)

    def test_ignores_directories_that_are_not_logs_any_more(self) -> None:
        storage = with_directories(
            kafka_directory(),
            "orders-0",
            "orders-1.0d6f-delete",
            "orders-2.0d6f-stray",
            "orders-3.0d6f-future",
        )
        assert open_layout([storage]).partitions() == [ORDERS]

    def test_counts_what_was_replicated_unless_there_is_one_replica(self) -> None:
        checkpoint = "0\n1\norders 0 7\n"
        known = kafka_directory(replication_offset_checkpoint=checkpoint)
        with_directories(known, "orders-0", "orders-1")
        assert open_layout([known]).high_watermark(ORDERS) == 7
        assert open_layout([known]).high_watermark(EMPTY) == 0
        assert open_layout([with_metadata(known, *created())]).high_watermark(ORDERS) is None
        assert open_layout([with_metadata(known, *created(replicas=3))]).high_watermark(ORDERS) == 7

    def test_needs_the_high_watermarks_of_replicated_partitions(self) -> None:
        storage = with_directories(kafka_directory(), "orders-0")
        with pytest.raises(StorageError, match="memory has no replication-offset-checkpoint"):
            open_layout([storage]).high_watermark(ORDERS)

    @pytest.mark.parametrize("text", ["1\n0\n", "0\n2\norders 0 7\n", "0\n1\norders 0\n", "0\nx\n"])
    def test_names_a_malformed_checkpoint(self, text: str) -> None:
        with pytest.raises(StorageError, match="memory/replication-offset-checkpoint is malformed"):
            open_layout([kafka_directory(replication_offset_checkpoint=text)])

    def test_a_checkpoint_that_was_never_written_is_empty(self) -> None:
        storage = with_directories(kafka_directory(log_start_offset_checkpoint=""), "orders-0")
        assert open_layout([storage]).log_start_offset(ORDERS) == 0
        storage.replace("log-start-offset-checkpoint", b"0\n1\norders 0 5\n", durable=False)
        assert open_layout([storage]).log_start_offset(ORDERS) == 5


class TestMetadata:
    def cluster(self, storage: MemoryStorage) -> KraftCluster | None:
        layout = open_layout([storage])
        assert isinstance(layout, KafkaLayout)
        return layout.cluster

    def test_each_change_of_the_leader_raises_its_epoch(self) -> None:
        cluster = self.cluster(
            with_metadata(
                kafka_directory(),
                *created(),
                changed(0, leader=2),
                changed(0, replicas=(2, 3)),
                changed(1, leader=-1),
            )
        )
        assert cluster is not None
        assert [
            (known.replicas, known.leader_id, known.leader_epoch)
            for known in cluster.named["orders"].partitions.values()
        ] == [((2, 3), 2, 1), ((1,), -1, 1)]

    def test_a_topic_can_be_removed(self) -> None:
        removal = bytes(cluster_batch([TopicRemoved(TOPIC_ID)], timestamp=1))
        cluster = self.cluster(with_metadata(kafka_directory(), *created(), removal))
        assert cluster is not None
        assert not cluster.partitions()

    def test_begins_with_its_newest_snapshot(self) -> None:
        storage = with_metadata(kafka_directory(), *created())
        storage.replace(
            "__cluster_metadata-0/00000000000000000100-0000000002.checkpoint",
            metadata_log(*created(), changed(0, leader=5)),
            durable=False,
        )
        storage.remove(LOG)
        later = metadata_log(changed(1, leader=6), changed(0, leader=7), base_offset=99)
        storage.replace("__cluster_metadata-0/00000000000000000099.log", later, durable=False)
        cluster = self.cluster(storage)
        assert cluster is not None
        assert [known.leader_id for known in cluster.named["orders"].partitions.values()] == [
            7,
            1,
        ]  # not what 99 says

    def test_is_not_known_when_its_beginning_is_gone(self) -> None:
        storage = with_metadata(kafka_directory(), *created())
        storage.rename(LOG, "__cluster_metadata-0/00000000000000000099.log")
        assert self.cluster(storage) is None

    def test_a_torn_end_is_not_there_yet(self) -> None:
        whole = metadata_log(*created(), changed(0, leader=2))
        storage = with_metadata(kafka_directory(), *created())
        storage.replace(LOG, whole[:-3], durable=False)
        cluster = self.cluster(storage)
        assert cluster is not None
        assert cluster.named["orders"].partitions[0].leader_id == 1

    def test_damage_before_the_end_is_named(self) -> None:
        storage = with_metadata(kafka_directory(), *created())
        end = 3
        next_log = metadata_log(changed(0, leader=2), base_offset=end)
        storage.replace(f"__cluster_metadata-0/{end:020d}.log", next_log, durable=False)
        content = bytearray(storage.read_file(LOG) or b"")
        content[70] ^= 1
        storage.replace(LOG, content, durable=False)
        with pytest.raises(StorageError, match=f"memory/{LOG} is damaged"):
            open_layout([storage]).partitions()

    def test_control_records_of_the_quorum_are_not_metadata(self) -> None:
        control = bytes(build_batch(b"\0" * 8, attributes=0x20, base_timestamp=1))
        assert read_header(control).is_control
        cluster = self.cluster(with_metadata(kafka_directory(), control, *created()))
        assert cluster is not None
        assert len(cluster.partitions()) == 2


class TestSeveralDirectories:
    def test_must_be_of_one_cluster(self) -> None:
        mine, other = kafka_directory(location="a"), kafka_directory(cluster="d", location="b")
        with pytest.raises(NotADataDirectory, match="b belongs to cluster d, but a to cluster c"):
            open_layout([mine, other])

    def test_are_one_log(self) -> None:
        first = with_directories(kafka_directory(location="a"), "orders-0")
        second = with_directories(kafka_directory(location="b"), "orders-1")
        layout = open_layout([first, with_metadata(second, *created())])
        assert [str(partition) for partition in layout.partitions()] == [
            "__cluster_metadata-0", "orders-0", "orders-1",
        ]  # fmt: skip
        assert [layout.home(partition) for partition in (ORDERS, EMPTY)] == [0, 1]
        assert layout.high_watermark(ORDERS) is None  # the other directory says that it has one replica

    def test_the_replica_that_knows_the_highest_high_watermark_is_read_up_to_its_own(self) -> None:
        """A replica that lost its leadership may hold records that nobody else has."""
        former, leader, behind = [
            with_directories(
                kafka_directory(
                    node=node, location=str(node), replication_offset_checkpoint=f"0\n1\norders 0 {offset}\n"
                ),
                "orders-0",
            )
            for node, offset in ((1, 7), (2, 9), (3, 5))
        ]
        for order in ([former, leader, behind], [leader, behind, former]):
            layout = open_layout(order)
            assert (layout.storages[layout.home(ORDERS)], layout.high_watermark(ORDERS)) == (leader, 9)

    def test_of_equals_the_leader_is_read(self) -> None:
        storages = [
            with_directories(
                kafka_directory(
                    node=node, location=str(node), replication_offset_checkpoint="0\n1\norders 0 7\n"
                ),
                "orders-0",
            )
            for node in (1, 2, 3)
        ]
        with_metadata(storages[0], *created(replicas=3), changed(0, leader=3))
        assert open_layout(storages).home(ORDERS) == 2

    def test_of_a_single_replica_the_copy_that_was_moved_away_is_not_read(self) -> None:
        old = kafka_directory(node=2, location="2", replication_offset_checkpoint="0\n1\norders 0 7\n")
        new = with_metadata(kafka_directory(node=1, location="1"), *created())
        for storage in (old, new):
            with_directories(storage, "orders-0")
        assert open_layout([old, new]).home(ORDERS) == 1

    def test_the_longest_metadata_counts(self) -> None:
        old = with_metadata(kafka_directory(), *created())
        new = with_metadata(kafka_directory(node=2), *created(), changed(0, leader=2))
        for order in ([old, new], [new, old]):
            layout = open_layout(order)
            assert isinstance(layout, KafkaLayout)
            assert layout.cluster is not None
            assert layout.cluster.named["orders"].partitions[0].leader_id == 2
