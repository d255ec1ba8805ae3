"""The source, our consumer and a decoder that shares no code with them agree on every row.

Logs come from a real broker: transactions that overlap, commit, abort, stay open or are taken over; all
compressions; records of Kafka's clients; deleted records; new segments; kills and restarts.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer as KafkaProducer

from fencepost import Admin, Broker, Producer, TopicPartition
from fencepost.journal.disk import DiskStorage
from fencepost.journal.layouts import open_layout
from fencepost.protocol.terms import IsolationLevel
from fencepost.spark_bridge.options import parse_options
from fencepost.spark_bridge.ranges import plan_batch
from fencepost.spark_bridge.streaming import LogStream
from tests.reading import records
from tests.spark.independent_decoder import COLUMNS, CONTROL, KAFKA, Decoded, read_batches, read_partition
from tests.spark.logs import COMMITTED, UNCOMMITTED, Row, rows_of_task
from tests.topics import create_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = (0, 1)
COMPRESSIONS = ("none", "gzip", "lz4", "zstd")
Rows = dict[int, list[Decoded]]


class World:
    """A broker, its producers, and what chance makes them do."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.chance = random.Random(seed)
        self.time = 1_700_000_000_000
        self.broker = Broker(directory)
        self.broker.start()
        create_topic(self.broker.address, "orders", partitions=2, configs={"segment.ms": "4000"})
        self._open: dict[str, Producer] = {}
        self._started = 0

    def close(self) -> None:
        self._forget()
        self.broker.stop()

    def _forget(self) -> None:
        for producer in self._open.values():
            producer.close()
        self._open.clear()

    def act(self) -> None:
        self.chance.choice([self.begin, self.send, self.send, self.send, self.end, self.plain, self.kafka])()

    def everything(self) -> None:
        """What must not be missing, whatever chance does."""
        for compression in COMPRESSIONS:
            self.plain(compression)
        self.kafka()
        self.begin()
        self.end(commits=False)

    def begin(self) -> None:
        self._started += 1
        name = f"p{self._started}"
        producer = Producer(
            self.broker.address,
            transactional_id=name,
            compression_type=self.chance.choice(COMPRESSIONS),
            batch_size=self.chance.choice((200, 4_000)),
        )
        producer.init_transactions()
        producer.begin_transaction()
        self._open[name] = producer
        self._send(producer)

    def send(self) -> None:
        if self._open:
            self._send(self._open[self.chance.choice(list(self._open))])

    def end(self, *, commits: bool | None = None) -> None:
        if self._open:
            producer = self._open.pop(self.chance.choice(list(self._open)))
            if commits if commits is not None else self.chance.random() < 0.5:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
            producer.close()

    def take_over(self) -> None:
        """A transaction of a producer that nobody ends is aborted by its heir."""
        if self._open:
            name = self.chance.choice(list(self._open))
            self._open.pop(name)
            with Admin(self.broker.address) as admin:
                admin.force_terminate_transaction(name)

    def plain(self, compression: str | None = None) -> None:
        compression = compression or self.chance.choice(COMPRESSIONS)
        with Producer(self.broker.address, compression_type=compression) as producer:
            self._send(producer)

    def kafka(self) -> None:
        """Records as a client of Kafka writes them."""
        producer = KafkaProducer(
            {"bootstrap.servers": self.broker.address, "compression.type": self.chance.choice(COMPRESSIONS)}
        )
        for record in self._records():
            producer.produce("orders", partition=self.chance.choice(PARTITIONS), **record)
        assert producer.flush(30) == 0

    def _send(self, producer: Producer) -> None:
        for record in self._records():
            record["timestamp_ms"] = record.pop("timestamp")
            producer.send("orders", partition=self.chance.choice(PARTITIONS), **record)
        producer.flush()

    def _records(self) -> Iterator[dict[str, Any]]:
        for _ in range(self.chance.randint(1, 12)):
            self.time += self.chance.randint(-300, 700)
            size = self.chance.choice((0, 1, 30, 300))
            headers = [("trace", b"%d" % self.time), ("empty", None)]
            yield {
                "key": self.chance.choice((None, b"", b"key %d" % self.time)),
                "value": self.chance.choice((None, b"", self.chance.randbytes(size))),
                "timestamp": self.time,
                "headers": self.chance.choice((None, headers)),
            }

    def delete(self, before: int) -> None:
        """Records of both partitions up to an offset, or fewer."""
        with Admin(self.broker.address) as admin:
            admin.delete_records({TopicPartition("orders", number): before for number in PARTITIONS})

    def kill(self) -> None:
        for producer in self._open.values():
            producer.flush()
        self.broker.kill()

    def consumed(self, level: IsolationLevel) -> Rows:
        """What our consumer gets."""
        found: Rows = {number: [] for number in PARTITIONS}
        partitions = [TopicPartition("orders", number) for number in PARTITIONS]
        for record in records(self.broker.address, partitions, level):
            headers = tuple((name, data) for name, data in record.headers or ())
            found[record.partition].append(
                Decoded(record.offset, record.key, record.value, record.timestamp, headers)
            )
        return found


def decoded(directory: Path, level: IsolationLevel) -> Rows:
    committed = level is IsolationLevel.READ_COMMITTED
    return {
        number: read_partition(directory / f"orders-{number}", committed=committed) for number in PARTITIONS
    }


def from_source(directory: Path, level: IsolationLevel, **options: str) -> Rows:
    storage = DiskStorage(directory, read_only=True)
    named = {"path": str(directory), "subscribe": "orders", "isolation.level": level.name.lower()}
    found: Rows = {number: [] for number in PARTITIONS}
    for task in plan_batch(open_layout([storage]), parse_options({**named, **options}), report=None):
        for range_ in task.ranges:
            rows = rows_of_task(storage, type(task)((range_,)), level)
            found[range_.partition.partition] += map(as_decoded, rows)
    return found


def as_decoded(row: Row) -> Decoded:
    return Decoded(row.offset, row.key, row.value, row.timestamp, row.headers or ())


class Stream:
    """A stream without Spark; every trigger is of a new process now and then."""

    def __init__(self, directory: Path, level: IsolationLevel, chance: random.Random) -> None:
        self.storage = DiskStorage(directory, read_only=True)
        named = {"path": str(directory), "subscribe": "orders", "isolation.level": level.name.lower()}
        self.options = parse_options({**named, "startingOffsets": "earliest"})
        self.stream = LogStream(self.options)
        self.chance = chance
        self.offsets = self.stream.initial(open_layout([self.storage]))
        self.rows: Rows = {number: [] for number in PARTITIONS}

    def trigger(self, most: int | None) -> None:
        if self.chance.random() < 0.3:
            self.stream = LogStream(self.options)
        layout = open_layout([self.storage])
        end = self.stream.next_end(self.offsets, self.stream.latest(layout), most)
        for task in self.stream.tasks(layout, self.offsets, end):
            for range_ in task.ranges:
                rows = rows_of_task(self.storage, type(task)((range_,)), self.options.isolation_level)
                self.rows[range_.partition.partition] += map(as_decoded, rows)
        self.offsets = end


CUTS: tuple[dict[str, str], ...] = (
    {},
    {"minPartitions": "7"},
    {"maxRecordsPerPartition": "13"},
    {"minPartitions": "500"},
)


@pytest.mark.parametrize("seed", range(4))
def test_all_three_agree_in_batches_and_streams(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path / "data", seed)
    streams = {level: Stream(world.directory, level, world.chance) for level in IsolationLevel}
    deleted: dict[IsolationLevel, Rows] = {level: {n: [] for n in PARTITIONS} for level in IsolationLevel}
    try:
        for round_ in range(3):
            world.everything()
            for _ in range(12):
                world.act()
                for stream in streams.values():
                    if world.chance.random() < 0.3:
                        stream.trigger(world.chance.choice((None, 5, 40)))
            if round_ == 1:
                world.take_over()
            if round_ == 2:
                reached = min(min(stream.offsets.values()) for stream in streams.values())
                before = {level: decoded(world.directory, level) for level in IsolationLevel}
                world.delete(reached // 2)
                for level, rows in before.items():
                    for number in PARTITIONS:
                        deleted[level][number] += [r for r in rows[number] if r.offset < reached // 2]
            for level in IsolationLevel:
                expected = decoded(world.directory, level)
                assert world.consumed(level) == expected
                for cut in CUTS:
                    assert from_source(world.directory, level, **cut) == expected
            world.kill()
            for level in IsolationLevel:
                assert from_source(world.directory, level) == decoded(world.directory, level)
            world.broker.restart()
        for level, stream in streams.items():
            stream.trigger(None)
            expected = decoded(world.directory, level)
            assert stream.rows == {n: deleted[level][n] + expected[n] for n in PARTITIONS}
        assert_mixed(world.directory)
    finally:
        world.close()


def assert_mixed(directory: Path) -> None:
    """What these tests are about did occur."""
    batches = [batch for n in PARTITIONS for batch in read_batches(directory / f"orders-{n}")]
    data = [batch for batch in batches if not batch.attributes & CONTROL]
    assert {batch.magic for batch in data} == {KAFKA, COLUMNS}
    assert {batch.attributes & 7 for batch in data} == {0, 1, 3, 4}
    assert len(list(directory.glob("orders-*/*.log"))) >= 4
    committed, uncommitted = (decoded(directory, level) for level in (COMMITTED, UNCOMMITTED))
    assert 0 < len(committed[0]) < len(uncommitted[0])


def test_spark_agrees(spark: "SparkSession", tmp_path: Path) -> None:
    world = World(tmp_path / "data", 99)
    try:
        for _ in range(30):
            world.act()
    finally:
        world.close()
    for level in IsolationLevel:
        reader = spark.read.format("fencepost").option("subscribe", "orders").option("includeHeaders", "true")
        frame = reader.option("isolation.level", level.name.lower()).option("minPartitions", 5)
        found: Rows = {number: [] for number in PARTITIONS}
        columns = ("partition", "offset", "key", "value", "unix_millis(timestamp)", "headers")
        rows: list[Any] = frame.load(str(world.directory)).selectExpr(*columns).collect()
        for number, offset, key, value, time, headers in sorted(rows):
            pairs = tuple((header["key"], in_bytes(header["value"])) for header in headers or ())
            found[number].append(Decoded(offset, in_bytes(key), in_bytes(value), time, pairs))
        assert found == decoded(world.directory, level)


def in_bytes(data: bytearray | None) -> bytes | None:
    return None if data is None else bytes(data)
