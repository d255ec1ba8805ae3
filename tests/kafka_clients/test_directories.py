"""The log directories of a cluster of Apache Kafka, copied while it runs and after it has stopped: the reader
gives what a consumer got.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from fencepost.check.directory import check_directory
from fencepost.check.findings import Severity
from fencepost.journal.disk import DiskStorage
from fencepost.journal.kafka_directory import read_checkpoint, read_metadata
from fencepost.journal.layouts import KafkaLayout, open_layout
from fencepost.protocol.terms import IsolationLevel, TopicPartition
from tests.kafka_bridge.confluent import ADMIN, KAFKA
from tests.kafka_bridge.java import Java
from tests.kafka_bridge.libraries import PATIENCE_S, Access
from tests.kafka_clients import apache_kafka
from tests.kafka_clients.apache_kafka import Cluster
from tests.kafka_directories import Consumed
from tests.spark.kafka_rows import read

COMPRESSIONS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
SMALL: Final = "internal.segment.bytes"
DELETED_BEFORE: Final = 40
TOPICS: Final[dict[str, tuple[int, int, dict[str, str]]]] = {
    "codecs": (1, 2, {}),
    "pay": (2, 2, {SMALL: "4000"}),
    "append": (1, 1, {"message.timestamp.type": "LogAppendTime", "compression.type": "lz4"}),
    "latest": (1, 1, {SMALL: "3000", "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.001"}),
    "empty": (1, 2, {}),
}
"""Replicas, partitions, settings."""

Rows = dict[TopicPartition, list[Consumed]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[Cluster]:
    """A cluster that has everything in its logs, and at which nobody writes now."""
    with apache_kafka.running(tmp_path_factory.mktemp("kafka")) as started:
        create_topics(started.address)
        write_codecs(started.address)
        write_transactions(started.address)
        write_with_java(started.address)
        compact(started)
        delete_records(started)
        yield started


def create_topics(address: str) -> None:
    admin = ADMIN.AdminClient({"bootstrap.servers": address})
    new = [
        # Timestamps of 1970 would be older than any retention.
        ADMIN.NewTopic(name, partitions, replicas, config={"retention.ms": "-1", **config})
        for name, (replicas, partitions, config) in TOPICS.items()
    ]
    for created in admin.create_topics(new).values():
        created.result()


def producer(address: str, **settings: str) -> Any:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return KAFKA.Producer({"bootstrap.servers": address, "linger.ms": 5, **named})


def write_codecs(address: str) -> None:
    for compression in COMPRESSIONS:
        writer = producer(address, compression_type=compression)
        for number in range(50):
            key = None if number % 7 == 0 else f"key {number}"
            headers = [("trace", b"%d" % number), ("none", None)] if number % 3 else None
            value = None if number % 11 == 0 else f"{compression} {number}" * (number % 5)
            for topic, partition in (("codecs", number % 2), ("append", 0)):
                writer.produce(topic, value, key, partition, headers=headers, timestamp=1_000_000 - number)
        writer.flush()


def write_transactions(address: str) -> None:
    """Commits, aborts, and one that is left open; a plain producer in between."""
    plain = producer(address)
    writers = [
        producer(address, transactional_id=f"t{number}", compression_type="zstd") for number in range(3)
    ]
    for writer in writers:
        writer.init_transactions()
    for turn in range(12):
        writer = writers[turn % 2]
        writer.begin_transaction()
        for number in range(6):
            writer.produce("pay", f"{turn}/{number} " * 9, f"{turn}", number % 2)
            plain.produce("pay", f"plain {turn}/{number}", None, number % 2)
            plain.flush()
        writer.flush()
        if turn % 3:
            writer.commit_transaction()
        else:
            writer.abort_transaction()
    writers[2].begin_transaction()
    writers[2].produce("pay", "open", None, 0)
    writers[2].flush()
    OPEN.append(writers[2])
    for number in range(3):
        plain.produce("pay", f"after the open one {number}", None, 0)
    plain.flush()


OPEN: list[Any] = []
"""Kept, because a producer that goes away ends its transaction."""


def write_with_java(address: str) -> None:
    """snappy-java's framing, and a new epoch for each transaction: markers are one ahead of their data."""
    with closing(Java()) as java:
        with closing(java.producer(Access(servers=address), "java", compression="snappy")) as writer:
            for turn in range(4):
                writer.begin()
                for number in range(5):
                    writer.send("codecs", b"java %d" % turn * 30, key=b"%d" % number, partition=1)
                writer.flush()
                if turn % 2:
                    writer.abort()
                else:
                    writer.commit()


def compact(cluster: Cluster) -> None:
    """Overwrites the same keys until the cleaner has removed most of them."""
    writer = producer(cluster.address, transactional_id="compacted")
    writer.init_transactions()
    for turn in range(30):
        writer.begin_transaction()
        for number in range(8):
            writer.produce("latest", None if number == turn % 8 else f"{turn}" * 40, f"key {number}", 0)
        writer.flush()
        if turn % 5 == 4:
            writer.abort_transaction()
        else:
            writer.commit_transaction()
    latest = TopicPartition("latest", 0)

    (home,) = [directory for directory in cluster.directories if (directory / "latest-0").exists()]

    def is_cleaned() -> bool:
        """Whether all but the last segment, to which brokers append, were cleaned."""
        cleaned = read_checkpoint(DiskStorage(home), "cleaner-offset-checkpoint") or {}
        last = max(int(file.stem) for file in (home / "latest-0").glob("*.log"))
        return cleaned.get(latest, 0) == last > 200

    wait_until(is_cleaned)


def delete_records(cluster: Cluster) -> None:
    admin = ADMIN.AdminClient({"bootstrap.servers": cluster.address})
    meant = KAFKA.TopicPartition("codecs", 0, DELETED_BEFORE)
    for deleted in admin.delete_records([meant]).values():
        deleted.result()


def wait_until(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < until, "it did not happen"
        threading.Event().wait(0.05)  # another process writes a file, and tells nobody


def consume(address: str, level: IsolationLevel) -> Rows:
    """Every record of the topics, up to where the brokers say that they end for this isolation level."""
    consumer = KAFKA.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "nobody",
            "isolation.level": level.name.lower(),
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    names = [(name, number) for name, (_, partitions, _) in TOPICS.items() for number in range(partitions)]
    parts = [KAFKA.TopicPartition(*name, KAFKA.OFFSET_BEGINNING) for name in names]
    consumer.assign(parts)
    found: Rows = {}
    ended: set[tuple[str, int]] = set()
    until = time.monotonic() + PATIENCE_S
    while len(ended) < len(parts):
        assert time.monotonic() < until, "the consumer does not come to an end"
        for message in consumer.consume(500, timeout=0.5):
            place = message.topic(), message.partition()
            if message.error() is not None:
                assert message.error().code() == KAFKA.KafkaError._PARTITION_EOF
                ended.add(place)
            else:
                found.setdefault(TopicPartition(*place), []).append(as_consumed(message))
    consumer.close()
    return found


def as_consumed(message: Any) -> Consumed:
    kind, timestamp = message.timestamp()
    return Consumed(
        message.offset(),
        message.key(),
        message.value(),
        timestamp,
        int(kind == KAFKA.TIMESTAMP_LOG_APPEND_TIME),
        tuple(message.headers() or ()),
    )


def copied(cluster: Cluster, target: Path) -> list[DiskStorage]:
    """The directories as they are now, without the files that go while they are copied."""
    for directory in cluster.directories:
        for path in sorted(directory.rglob("*")):
            place = target / directory.name / path.relative_to(directory)
            try:
                if path.is_dir():
                    place.mkdir(parents=True, exist_ok=True)
                else:
                    place.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, place)
            except FileNotFoundError:
                continue  # a checkpoint is written beside its place and renamed
    return [DiskStorage(target / directory.name, read_only=True) for directory in cluster.directories]


def knows_the_ends(storages: list[DiskStorage], rows: Rows) -> bool:
    """Whether the files say how far the replicated partitions go, and where records were deleted."""
    layout = open_layout(storages)
    return layout.log_start_offset(TopicPartition("codecs", 0)) == DELETED_BEFORE and all(
        (layout.high_watermark(partition) or 0) > rows[partition][-1].offset
        for partition in rows
        if partition.topic == "pay"
    )


def topics_read(storages: list[DiskStorage], level: IsolationLevel, **options: str) -> Rows:
    return read(*storages, level=level, subscribe=",".join(TOPICS), **options)


@pytest.mark.parametrize("level", list(IsolationLevel))
def test_a_copy_of_a_running_cluster_has_what_a_consumer_got(
    cluster: Cluster, tmp_path: Path, level: IsolationLevel
) -> None:
    expected = consume(cluster.address, level)
    uncommitted = consume(cluster.address, IsolationLevel.READ_UNCOMMITTED)
    live = [DiskStorage(directory, read_only=True) for directory in cluster.directories]
    wait_until(lambda: knows_the_ends(live, uncommitted))
    storages = copied(cluster, tmp_path)
    assert topics_read(storages, level) == expected
    assert topics_read(storages, level, maxRecordsPerPartition="7") == expected
    assert expected[TopicPartition("codecs", 0)][0].offset == DELETED_BEFORE
    assert len(uncommitted[TopicPartition("latest", 0)]) < 120  # of 240
    assert len(expected) == 6  # without `empty`
    for storage in storages:
        problems = [each for each in check_directory(storage).found if each.severity is Severity.PROBLEM]
        assert problems == []


def test_copies_made_while_producers_write_are_beginnings_of_the_log(
    cluster: Cluster, tmp_path: Path
) -> None:
    """What a copy has, a consumer gets later, and nothing before its end is missing."""
    done = threading.Event()

    def write() -> None:
        writer = producer(cluster.address, transactional_id="busy")
        writer.init_transactions()
        for turn in count():
            if done.is_set():
                return
            writer.begin_transaction()
            for number in range(10):
                writer.produce("pay", f"busy {turn}/{number} " * 5, None, 1)
            writer.flush()
            if turn % 4:
                writer.commit_transaction()
            else:
                writer.abort_transaction()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        copies = [copied(cluster, tmp_path / str(number)) for number in range(3)]
    finally:
        done.set()
        thread.join()
    pay = TopicPartition("pay", 1)
    for level in IsolationLevel:
        later = consume(cluster.address, level)[pay]
        lengths: list[int] = []
        for storages in copies:
            part = json.dumps({pay.topic: [pay.partition]})
            rows = read(*storages, level=level, assign=part).get(pay, [])
            assert rows == later[: len(rows)]
            lengths.append(len(rows))
        assert lengths == sorted(lengths)
        assert lengths[-1] > 30


def test_the_directories_of_a_stopped_cluster_have_what_a_consumer_got(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The last test: the cluster is gone after it."""
    expected = {level: consume(cluster.address, level) for level in IsolationLevel}
    cluster.stop()
    storages = [DiskStorage(directory, read_only=True) for directory in cluster.directories]
    layout = open_layout(storages)
    assert isinstance(layout, KafkaLayout)
    assert all(directory.was_closed for directory in layout.directories)
    for directory in cluster.directories:
        metadata = "__cluster_metadata-0"
        assert list((directory / metadata).glob("*-*.checkpoint"))
        no_snapshots = shutil.ignore_patterns("*.checkpoint")
        shutil.copytree(directory / metadata, tmp_path / directory.name / metadata, ignore=no_snapshots)
        from_the_log = read_metadata(DiskStorage(tmp_path / directory.name))
        assert from_the_log is not None
        assert from_the_log == read_metadata(DiskStorage(directory))
    for level in IsolationLevel:
        assert topics_read(storages, level) == expected[level]
    assert {TopicPartition("empty", number) for number in (0, 1)} <= set(layout.partitions())
    for storage in storages:
        problems = [each for each in check_directory(storage).found if each.severity is Severity.PROBLEM]
        assert problems == []
