"""Streams without Spark: which offsets a micro-batch has, that it can be repeated, and what becomes of a log
that changes in between.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable

from fencepost import Admin, Broker
from fencepost.journal.data_directory import DataDirectory
from fencepost.journal.journal import JournalSettings
from fencepost.journal.layouts import open_layout
from fencepost.journal.memory import MemoryStorage
from fencepost.journal.segments import walk_headers
from fencepost.journal.storage import StorageFile, directory_name
from fencepost.protocol.batches import BatchHeader, read_marker
from fencepost.protocol.terms import IsolationLevel, TopicPartition
from fencepost.spark_bridge import markers
from fencepost.spark_bridge.log_offsets import find_log_offsets
from fencepost.spark_bridge.losses import Loss
from fencepost.spark_bridge.offsets_cache import LogOffsetsCache
from fencepost.spark_bridge.option_values import UnusableOption
from fencepost.spark_bridge.options import ReadOptions, parse_options
from fencepost.spark_bridge.partition_files import DataLoss, open_partition_files
from fencepost.spark_bridge.stream_offsets import Offsets, decode_offsets, encode_offsets, limited
from fencepost.spark_bridge.streaming import LogStream, LogStreamReader
from tests.journal.logs import files_of
from tests.spark.logs import (
    COMMITTED,
    UNCOMMITTED,
    RememberedLog,
    Row,
    last_stable_offset,
    new_log,
    rows_of_task,
    visible,
)
from tests.spark.test_export import fill
from tests.spark.test_reading import happenings, perform

ORDERS = TopicPartition("orders", 0)


class Query:
    """A stream as Spark drives it: an offset, and a micro-batch per trigger. Every start is a new process."""

    def __init__(self, storage: MemoryStorage, **options: str) -> None:
        self.storage = storage
        self.options = parse_options({"path": "unused", "subscribe": "orders", **options})
        self.offsets: dict[str, Any] | None = None
        self.start_again()

    def start_again(self) -> None:
        self.stream = LogStream(self.options)

    def trigger(self) -> list[Row]:
        """The rows of the next micro-batch."""
        layout = open_layout([self.storage])
        if self.offsets is None:
            self.offsets = encoded(self.stream.initial(layout))
        start = decode_offsets(self.offsets)
        available = self.stream.latest(layout)
        end = self.stream.next_end(start, available, self.options.max_offsets_per_trigger)
        self.offsets = encoded(end)
        return self.rows(start, end)

    def rows(self, start: Offsets, end: Offsets) -> list[Row]:
        tasks = self.stream.tasks(open_layout([self.storage]), start, end)
        level, fails = self.options.isolation_level, self.options.fail_on_data_loss
        return [
            row for task in tasks for row in rows_of_task(self.storage, task, level, fail_on_data_loss=fails)
        ]

    def position(self) -> dict[TopicPartition, int]:
        assert self.offsets is not None, "no trigger yet"
        return decode_offsets(self.offsets)


def encoded(offsets: Offsets) -> dict[str, Any]:
    """Through the text of a checkpoint."""
    return json.loads(json.dumps(encode_offsets(offsets, cluster_id="fencepost", topic_ids={})))


@given(
    st.lists(st.one_of(happenings, st.tuples(st.sampled_from(["trigger", "restart"]))), max_size=40),
    st.sampled_from([COMMITTED, UNCOMMITTED]),
    st.sampled_from([None, 1, 3, 10]),
    st.sampled_from([1, 4]),
)
@settings(max_examples=150)
def test_a_stream_has_every_row_of_a_batch_once_whenever_it_is_triggered(
    story: list[tuple[Any, ...]], level: IsolationLevel, most: int | None, tasks: int
) -> None:
    storage = MemoryStorage()
    log = new_log(storage)
    options = {"isolation.level": level.name.lower(), "startingOffsets": "earliest"}
    limit = {} if most is None else {"maxOffsetsPerTrigger": str(most)}
    query = Query(storage, **options, **limit, minPartitions=str(tasks))
    rows: list[Row] = []
    batches: list[tuple[Offsets, Offsets, list[Row]]] = []
    for step in [*story, ("trigger",)]:
        if step == ("restart",):
            query.start_again()
        elif step == ("trigger",):
            before = query.offsets
            batch = query.trigger()
            rows += batch
            if before is not None:
                batches.append((decode_offsets(before), query.position(), batch))
        else:
            perform(log, step)
    while query.position()[ORDERS] < end_of(log, level):
        rows += query.trigger()
    assert rows == visible(log.entries, level)
    # A micro-batch that is repeated after everything else happened has the same rows.
    query.start_again()
    for start, end, batch in batches:
        assert query.rows(start, end) == batch


def end_of(log: RememberedLog, level: IsolationLevel) -> int:
    return last_stable_offset(log.entries) if level is COMMITTED else log.journal.log_end_offset


@given(st.lists(happenings, max_size=30), st.data())
def test_a_remembered_survey_is_a_new_one(story: list[tuple[Any, ...]], data: st.DataObject) -> None:
    storage = MemoryStorage()
    log = new_log(storage, settings=JournalSettings(segment_bytes=3_000))
    surveys = LogOffsetsCache(None)
    for step in story:
        perform(log, step)
        if data.draw(st.booleans()):
            found = surveys.find(open_partition_files(open_layout([storage]), ORDERS))
            expected = find_log_offsets(open_partition_files(open_layout([storage]), ORDERS))
            assert attrs.evolve(found, aborted=()) == attrs.evolve(expected, aborted=())


def opened(storage: MemoryStorage) -> list[str]:
    """Notes the files that are opened from now on."""
    paths: list[str] = []
    open_file = storage.open

    def noted(path: str, *, create: bool = False) -> StorageFile:
        paths.append(path)
        return open_file(path, create=create)

    storage.open = noted
    return paths


def test_a_trigger_without_news_opens_no_log() -> None:
    storage = MemoryStorage()
    log = new_log(storage)
    log.records(3)
    query = Query(storage, startingOffsets="earliest")
    assert len(query.trigger()) == 3
    paths = opened(storage)
    assert query.trigger() == []
    assert paths == []
    log.records(1)
    assert len(query.trigger()) == 1
    assert set(paths) == set(files_of(storage, "log"))


class TestInvisibleRanges:
    """SPARK-25005: micro-batches whose first or last offsets, or all, have no row; and gaps."""

    def log(self) -> tuple[MemoryStorage, RememberedLog]:
        storage = MemoryStorage()
        log = new_log(storage)
        log.records(3, producer_id=1)
        log.abort(1)
        log.records(4)
        log.records(3, producer_id=2)
        log.commit(2)
        log.records(6, producer_id=3)
        log.abort(3)
        return storage, log

    @pytest.mark.parametrize("most", range(1, 20))
    def test_move_the_stream_on_all_the_same(self, most: int) -> None:
        storage, log = self.log()
        query = Query(storage, startingOffsets="earliest", maxOffsetsPerTrigger=str(most))
        rows: list[Row] = []
        for _ in range(19):
            rows += query.trigger()
        assert rows == visible(log.entries, COMMITTED)
        assert query.position()[ORDERS] == log.journal.log_end_offset

    def test_behind_an_open_transaction_are_not_reached(self) -> None:
        storage, log = self.log()
        log.records(2, producer_id=9)
        log.records(2)
        query = Query(storage, startingOffsets="earliest")
        assert query.trigger() == visible(log.entries, COMMITTED)
        assert query.position()[ORDERS] == last_stable_offset(log.entries) == 19
        assert query.trigger() == []
        log.commit(9)
        assert [row.offset for row in query.trigger()] == [19, 20, 21, 22]


def several(count: int) -> tuple[MemoryStorage, DataDirectory, list[RememberedLog]]:
    storage = MemoryStorage()
    directory = DataDirectory.open(storage)
    logs = [RememberedLog(directory.journal(TopicPartition("orders", number))) for number in range(count)]
    return storage, directory, logs


def test_a_stream_begins_at_the_end_unless_told_otherwise() -> None:
    storage, _, (log,) = several(1)
    log.records(3)
    query = Query(storage)
    assert query.trigger() == []
    log.records(1)
    assert [row.offset for row in query.trigger()] == [3]


@pytest.mark.parametrize(
    ("starting", "first"),
    [
        ({"startingOffsets": '{"orders":{"0":2}}'}, 2),
        ({"startingOffsets": '{"orders":{"0":-2}}'}, 0),
        ({"startingOffsets": '{"orders":{"0":-1}}'}, 4),
        ({"startingTimestamp": "2000"}, 3),
    ],
)
def test_a_stream_begins_where_it_is_told(starting: dict[str, str], first: int) -> None:
    storage, _, (log,) = several(1)
    log.records(3, timestamp=1_000)
    log.records(1, timestamp=2_000)
    query = Query(storage, **starting)
    assert [row.offset for row in query.trigger()] == list(range(first, 4))


def test_a_stream_that_cannot_begin_says_why() -> None:
    storage, _, (log,) = several(1)
    log.records(3)
    with pytest.raises(DataLoss, match="startingOffsets requests offset 9 of orders-0"):
        Query(storage, startingOffsets='{"orders":{"0":9}}').trigger()
    with pytest.raises(UnusableOption, match="orders-0 is missing"):
        Query(storage, startingOffsets="{}").trigger()


def test_a_new_partition_is_read_from_its_beginning() -> None:
    storage, directory, (log,) = several(1)
    log.records(2)
    query = Query(storage, startingOffsets="earliest")
    assert len(query.trigger()) == 2
    new = RememberedLog(directory.journal(TopicPartition("orders", 1)))
    new.records(5)
    assert query.trigger() == []  # it enters the offsets
    assert query.position()[TopicPartition("orders", 1)] == 0
    assert query.trigger() == visible(new.entries, COMMITTED)


def test_new_offsets_are_shared_among_partitions() -> None:
    storage, _, logs = several(3)
    for log, count in zip(logs, (60, 30, 10), strict=True):
        log.records(count)
    query = Query(storage, startingOffsets="earliest", maxOffsetsPerTrigger="20")
    query.trigger()
    assert list(query.position().values()) == [12, 6, 2]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 100)), min_size=1, max_size=6), st.integers(1, 99)
)
def test_a_limit_moves_every_partition_on_and_no_further_than_its_end(
    ranges: list[tuple[int, int]], most: int
) -> None:
    starts = {TopicPartition("t", number): start for number, (start, _) in enumerate(ranges)}
    ends = {TopicPartition("t", number): start + size for number, (start, size) in enumerate(ranges)}
    found = limited(starts, ends, most)
    assert found.keys() == ends.keys()
    for partition, end in found.items():
        assert starts[partition] <= end <= ends[partition]
        assert (end > starts[partition]) == (ends[partition] > starts[partition])
    assert sum(found.values()) - sum(starts.values()) < most + len(ranges)


class TestALogThatChangesBetweenTriggers:
    def query(self, *, fails: bool = True) -> tuple[MemoryStorage, Sequence[RememberedLog], Query]:
        storage, _, logs = several(2)
        for log in logs:
            log.records(4)
        query = Query(storage, startingOffsets="earliest", failOnDataLoss=str(fails).lower())
        query.trigger()
        return storage, logs, query

    def lossy(self, query: Query, losses: list[Loss]) -> None:
        query.options = _Reporting.of(query.options, losses)
        query.start_again()

    def test_deleted_records_are_a_loss(self) -> None:
        _, logs, query = self.query()
        logs[0].records(4)
        logs[0].journal.move_log_start(6)
        with pytest.raises(DataLoss, match="at offset 4 of orders-0, whose log begins at 6 now"):
            query.trigger()
        _, logs, query = self.query(fails=False)
        losses: list[Loss] = []
        self.lossy(query, losses)
        logs[0].records(4)
        logs[0].journal.move_log_start(6)
        assert [row.offset for row in query.trigger()] == [6, 7]
        assert [(loss.partition.partition, loss.start, loss.end) for loss in losses] == [(0, 4, 6)]

    def test_deleted_records_that_were_read_are_none(self) -> None:
        _, logs, query = self.query()
        logs[0].journal.move_log_start(4)
        logs[0].records(1)
        assert [row.offset for row in query.trigger()] == [4]

    def test_a_log_that_is_shorter_is_another_one(self) -> None:
        storage, _, query = self.query()
        path = files_of(storage, "log")[0]
        storage.replace(path, b"", durable=False)
        with pytest.raises(DataLoss, match="orders-0 ends at offset 0, but the stream has read up to 4"):
            query.trigger()

    def test_a_partition_that_is_gone_is_a_loss(self) -> None:
        storage, logs, query = self.query()
        storage.remove_directory(directory_name(TopicPartition("orders", 1)))
        with pytest.raises(DataLoss, match="orders-1 is gone"):
            query.trigger()
        storage, logs, query = self.query(fails=False)
        losses: list[Loss] = []
        self.lossy(query, losses)
        storage.remove_directory(directory_name(TopicPartition("orders", 1)))
        logs[0].records(1)
        assert [row.offset for row in query.trigger()] == [4]
        assert list(query.position()) == [ORDERS]
        assert [loss.partition.partition for loss in losses] == [1]

    def test_a_micro_batch_that_cannot_be_repeated_is_a_loss(self) -> None:
        storage, logs, query = self.query()
        logs[0].records(4)
        start = query.position()
        query.trigger()
        end = query.position()
        path = files_of(storage, "log")[0]
        whole = storage.read_file(path) or b""
        storage.replace(path, whole[: len(whole) // 2], durable=False)
        query.start_again()
        with pytest.raises(DataLoss, match="the stream was at offset 8 of orders-0, which ends at 4 now"):
            query.rows(start, end)


@attrs.frozen(kw_only=True)
class _Reporting(ReadOptions):
    """Options whose losses are collected."""

    losses: list[Loss]

    @classmethod
    def of(cls, options: ReadOptions, losses: list[Loss]) -> "_Reporting":
        fields = {field.name: getattr(options, field.name) for field in attrs.fields(ReadOptions)}
        return cls(**fields, losses=losses)

    @property
    def report(self) -> Any:
        return self.losses.append


def test_offsets_are_those_of_sparks_kafka_source_the_cluster_and_the_topics() -> None:
    offsets = {TopicPartition("b", 0): 1, TopicPartition("a", 10): 2, TopicPartition("a", 9): 3}
    text = json.dumps(encode_offsets(offsets, cluster_id="c", topic_ids={"b": "2f", "other": "1e"}))
    assert text == '{"a": {"9": 3, "10": 2}, "b": {"0": 1}, "cluster id": "c", "topic ids": {"b": "2f"}}'
    assert decode_offsets(json.loads(text)) == offsets


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """That of a broker, with ten records."""
    fill(tmp_path / "data", 10)
    return tmp_path / "data"


class TestALogThatWasReplaced:
    """By one that is longer, so that its offsets do not show it."""

    @pytest.fixture
    def reader(self, directory: Path) -> LogStreamReader:
        return LogStreamReader(parse_options({"path": str(directory), "subscribe": "t"}), ())

    def offsets(self, reader: LogStreamReader) -> dict[str, Any]:
        """Through the text of a checkpoint."""
        start = reader.initialOffset()
        return json.loads(json.dumps(reader.latestOffset(start, ReadAllAvailable())))

    def test_has_another_topic_of_the_same_name(self, directory: Path, reader: LogStreamReader) -> None:
        reached = self.offsets(reader)
        assert reached["t"] == {"0": 10}
        fill(directory, 17, recreate=True)
        self.assert_refused(reader, reached)

    def test_had_another_topic_of_the_same_name_when_the_micro_batch_began(
        self, directory: Path, reader: LogStreamReader
    ) -> None:
        """It was created again while the end of the micro-batch was determined."""
        reached = self.offsets(reader)
        fill(directory, 17, recreate=True)
        end = self.offsets(reader)
        with pytest.raises(DataLoss, match=r"topic t in .* is not that of the checkpoint"):
            reader.partitions(reached, end)

    def test_is_in_the_directory_of_another_broker(self, directory: Path, reader: LogStreamReader) -> None:
        reached = self.offsets(reader)
        shutil.rmtree(directory)
        fill(directory, 17)
        self.assert_refused(reader, reached)

    def assert_refused(self, reader: LogStreamReader, reached: dict[str, Any]) -> None:
        told = "topic t in .* is not that of the checkpoint: .* begin with a new checkpoint"
        with pytest.raises(DataLoss, match=told):
            reader.latestOffset(reached, ReadAllAvailable())
        with pytest.raises(DataLoss, match=told):
            reader.partitions(reached, reached)

    def test_is_noticed_after_a_trigger_without_ids(self, directory: Path, reader: LogStreamReader) -> None:
        """While a topic is being deleted, its files may still be there, and the metadata lacks it."""
        reached = self.offsets(reader)
        metadata = (directory / "__cluster_metadata-0").rename(directory.parent / "metadata")
        later = reader.latestOffset(reached, ReadAllAvailable())
        metadata.rename(directory / "__cluster_metadata-0")
        fill(directory, 17, recreate=True)
        self.assert_refused(reader, later)

    def test_of_an_old_checkpoint_is_not_noticed(self, directory: Path, reader: LogStreamReader) -> None:
        """It has no ids of topics."""
        reached = self.offsets(reader)
        del reached["topic ids"]
        fill(directory, 17, recreate=True)
        assert reader.latestOffset(reached, ReadAllAvailable())["t"] == {"0": 17}


class TestARunThatEnds:
    """`Trigger.AvailableNow`: Spark fixes the end before it asks where a new query begins."""

    @pytest.fixture
    def reader(self, directory: Path) -> LogStreamReader:
        reader = LogStreamReader(parse_options({"path": str(directory), "subscribe": "t"}), ())
        reader.prepareForTriggerAvailableNow()
        return reader

    def test_begins_after_its_end_and_reads_nothing(self, directory: Path, reader: LogStreamReader) -> None:
        """A producer wrote in between, so the latest offset is beyond the end."""
        fill(directory, 5)
        start = reader.initialOffset()
        assert start["t"] == {"0": 15}
        fill(directory, 5)
        assert reader.latestOffset(start, ReadAllAvailable()) == start

    def test_begins_with_a_partition_that_is_new(self, directory: Path, reader: LogStreamReader) -> None:
        with Broker(directory=directory) as broker, Admin(broker.bootstrap_servers) as admin:
            admin.create_partitions("t", 2)
        start = reader.initialOffset()
        assert start["t"] == {"0": 10, "1": 0}
        assert reader.latestOffset(start, ReadAllAvailable()) == start

    def test_notices_a_log_that_is_shorter_than_its_beginning(
        self, directory: Path, reader: LogStreamReader
    ) -> None:
        start = {**reader.initialOffset(), "t": {"0": 11}}
        with pytest.raises(DataLoss, match="t-0 ends at offset 10, but the stream has read up to 11"):
            reader.latestOffset(start, ReadAllAvailable())


def test_each_task_of_a_long_transaction_does_not_walk_to_its_marker(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 200
    storage = MemoryStorage()
    log = new_log(storage, settings=JournalSettings(segment_bytes=3_000))
    for _ in range(count):
        log.records(1, producer_id=1)
    log.records(1, producer_id=2)
    log.abort(2)
    log.commit(1)
    log.records(1, producer_id=1)
    log.abort(1)
    files = attrs.evolve(
        open_partition_files(open_layout([storage]), ORDERS), topic_id="AAECAwQFBgcICQoLDA0ODw"
    )
    walked: list[BatchHeader] = []

    def noted(*args: Any) -> Iterator[tuple[int, BatchHeader]]:
        for at, header in walk_headers(*args):
            walked.append(header)
            yield at, header

    monkeypatch.setattr(markers, "walk_headers", noted)
    for number in range(count):
        found = markers.first_markers(files, number + 1, {1, 2})
        assert {header.base_offset for header, _ in found} == {count + 1, count + 2}
        assert all(read_marker(batch) for _, batch in found)
    assert len(walked) < 2 * count
    # After that marker, another one is the first.
    ((header, _),) = markers.first_markers(files, count + 3, {1})
    assert header.base_offset == count + 4
    # The files of another partition, or what took their place, are read.
    storage.replace(files.path(files.segments[-1]), b"", durable=False)
    assert markers.first_markers(files, 1, {1}) == []
