"""Logs on file systems of pyarrow: its mock, the local one and an object store, with and without Spark."""

from __future__ import annotations

import threading
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs

from fencepost.audit.audit import audit
from fencepost.cli.application import run
from fencepost.journal.disk import DiskStorage
from fencepost.journal.memory import MemoryStorage
from fencepost.journal.storage import MissingFile, NotADataDirectory, StorageError, StorageReader
from fencepost.protocol.terms import IsolationLevel
from fencepost.spark_bridge.arrow_storage import (
    BLOCK_BYTES,
    FIRST_BLOCK_BYTES,
    ArrowFile,
    ArrowStorage,
    without_queries,
)
from fencepost.spark_bridge.export import export
from fencepost.spark_bridge.filesystems import absolute, open_directories, open_storage, shown
from tests.kafka_directories import NAMES, consumed, unpack
from tests.spark import kafka_rows, stream_to_parquet
from tests.spark.logs import COMMITTED, UNCOMMITTED, read, visible
from tests.spark.object_store import ObjectStore, object_store
from tests.spark.tables import rows_of
from tests.spark.test_reading import Happening, histories, log_of
from tests.spark.test_stream_in_spark import LiveLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def on_mock_file_system(storage: MemoryStorage) -> ArrowStorage:
    """A copy of a data directory."""
    filesystem = fs._MockFileSystem()
    for directory in ("", *storage.directories()):
        filesystem.create_dir(f"data/{directory}")
        for name in storage.files(directory):
            path = f"{directory}/{name}" if directory else name
            with filesystem.open_output_stream(f"data/{path}") as file:
                file.write(storage.read_file(path) or b"")
    return ArrowStorage(filesystem, "data", location="mock:///data")


def local(directory: Path) -> ArrowStorage:
    return ArrowStorage(fs.LocalFileSystem(), str(directory), location=f"file:{directory}")


@given(histories, st.sampled_from([COMMITTED, UNCOMMITTED]), st.integers(1, 4))
@settings(max_examples=60)
def test_any_log_reads_as_a_naive_scan_of_it(
    history: list[Happening], level: IsolationLevel, tasks: int
) -> None:
    storage, log = log_of(history)
    options = {"minPartitions": str(tasks)}
    assert read(on_mock_file_system(storage), level, options) == visible(log.entries, level)


@pytest.mark.parametrize("name", NAMES)
def test_directories_of_apache_kafka_have_the_rows_that_consumers_got(name: str, tmp_path: Path) -> None:
    storage = local(unpack(name, tmp_path))
    for level in IsolationLevel:
        assert kafka_rows.read(storage, level=level) == consumed(name, level)


@pytest.mark.parametrize("table", ["batches", "transactions", "partitions", "coordinator", "losses"])
def test_tables_are_those_of_the_local_disk(table: str, tmp_path: Path) -> None:
    directory = unpack("02-transactions", tmp_path)
    assert rows_of(table, local(directory)) == rows_of(table, DiskStorage(directory, read_only=True))


def test_a_storage_answers_like_a_local_disk(tmp_path: Path) -> None:
    (tmp_path / "orders-0").mkdir()
    (tmp_path / "orders-0" / "b").write_bytes(b"hello")
    (tmp_path / "orders-0" / "a").write_bytes(b"")
    (tmp_path / "meta").write_bytes(b"x")
    storages: list[StorageReader] = [local(tmp_path), DiskStorage(tmp_path, read_only=True)]
    for storage in storages:
        assert storage.exists()
        assert storage.directories() == ["orders-0"]
        assert storage.files("") == {"meta": 1}
        assert storage.files("orders-0") == {"a": 0, "b": 5}
        assert storage.files("orders-1") == {}
        assert storage.read_file("orders-0/b") == b"hello"
        assert storage.read_file("orders-0/c") is None
        file = storage.open("orders-0/b")
        assert (file.size, file.read(1, 3), file.read(3, 9), file.read(5, 1)) == (5, b"ell", b"lo", b"")
        file.close()
        with pytest.raises(MissingFile):
            storage.open("orders-0/c")
    for storage in (local(tmp_path / "no"), DiskStorage(tmp_path / "no", read_only=True)):
        assert not storage.exists()
        with pytest.raises(NotADataDirectory, match=r"^there is no directory .*no: give the directory"):
            storage.directories()


class TestReadAhead:
    """Content whose bytes say where they lie, and the blocks that were requested."""

    CONTENT = bytes(range(251)) * ((40 << 20) // 251)

    def file(self) -> ArrowFile:
        self.fetched: list[tuple[int, int]] = []
        self.closed = 0

        def fetch(position: int, length: int) -> bytes:
            self.fetched.append((position, length))
            return self.CONTENT[position : position + length]

        def close() -> None:
            self.closed += 1

        return ArrowFile(len(self.CONTENT), fetch, close)

    @given(st.lists(st.tuples(st.integers(0, 41 << 20), st.integers(0, 9 << 20)), max_size=12))
    @settings(max_examples=30)
    def test_any_reads_get_their_bytes(self, reads: list[tuple[int, int]]) -> None:
        file = self.file()
        for position, size in reads:
            assert file.read(position, size) == self.CONTENT[position : position + size]

    def test_one_header_costs_one_small_block(self) -> None:
        file = self.file()
        for position in range(0, 4_000, 61):
            file.read(position, 61)
        assert self.fetched == [(0, FIRST_BLOCK_BYTES)]

    def test_a_reader_that_goes_on_gets_larger_blocks_and_each_byte_once(self) -> None:
        file = self.file()
        for position in range(0, len(self.CONTENT), 8_192):
            file.read(position, 8_192)
        lengths = [length for _, length in sorted(self.fetched)]
        assert lengths[:4] == [FIRST_BLOCK_BYTES * 4**power for power in range(4)]
        assert max(lengths) == BLOCK_BYTES
        assert sum(lengths) == len(self.CONTENT)

    def test_the_next_block_is_fetched_before_it_is_needed(self) -> None:
        started = threading.Event()

        def fetch(position: int, length: int) -> bytes:
            if position:
                started.set()
            return self.CONTENT[position : position + length]

        file = ArrowFile(len(self.CONTENT), fetch, lambda: None)
        file.read(0, BLOCK_BYTES)
        assert started.wait(60)

    def test_headers_that_are_far_apart_are_not_read_through(self) -> None:
        file = self.file()
        for position in range(0, len(self.CONTENT), 1 << 20):
            file.read(position, 61)
        assert sum(length for _, length in self.fetched) <= 40 * FIRST_BLOCK_BYTES

    def test_a_file_that_is_read_ahead_is_closed_by_the_last_of_its_readers(self) -> None:
        entered, released, closed = threading.Event(), threading.Event(), threading.Event()

        def fetch(position: int, length: int) -> bytes:
            if position:
                entered.set()
                assert released.wait(60)
                assert not closed.is_set()
            return self.CONTENT[position : position + length]

        file = ArrowFile(len(self.CONTENT), fetch, closed.set)
        file.read(0, BLOCK_BYTES)
        assert entered.wait(60)
        file.close()
        assert not closed.is_set()
        released.set()
        assert closed.wait(60)


def test_a_file_that_disappears_while_it_is_read_is_missing(tmp_path: Path) -> None:
    """As an object does: its handle is only a name."""
    with object_store(tmp_path) as store:
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "log").write_bytes(bytes(1 << 20))
        file = open_storage(store.uri("data")).open("log")
        (tmp_path / "data" / "log").unlink()
        with pytest.raises(MissingFile, match=r"s3://logs/data/log has disappeared"):
            file.read(0, 61)
        file.close()


class TestErrors:
    @pytest.mark.parametrize("command", [["audit"], ["export", "lake"]])
    def test_of_commands_come_before_spark_starts(
        self, command: list[str], store: ObjectStore, capsys: pytest.CaptureFixture[str]
    ) -> None:
        name, *target = command
        assert run([name, store.uri("elsewhere"), *target]) == 2
        assert "there is no directory s3://logs/elsewhere" in capsys.readouterr().err

    def test_a_directory_that_does_not_exist(self, store: ObjectStore) -> None:
        with pytest.raises(NotADataDirectory, match=r"^there is no directory s3://logs/elsewhere: give the"):
            open_storage(store.uri("elsewhere")).directories()

    def test_credentials_are_missing_and_stay_secret(self, store: ObjectStore) -> None:
        with pytest.raises(StorageError, match=r"ACCESS_DENIED.*environment of each process") as refused:
            open_storage(store.uri("data", key="nobody")).directories()
        assert "secret" not in str(refused.value)
        assert "nobody" not in str(refused.value)

    def test_queries_of_urls_stay_secret(self) -> None:
        """Errors of Azure's client contain URLs with the token."""
        told = "Check of 'https://me.blob.core.windows.net/logs?se=2100&sig=secret' failed. Why?"
        assert without_queries(told) == "Check of 'https://me.blob.core.windows.net/logs' failed. Why?"

    def test_a_malformed_uri(self) -> None:
        with pytest.raises(StorageError, match=r"cannot use s3://logs/data: .*'colour'") as refused:
            open_storage("s3://me:secret@logs/data?colour=red")
        assert "secret" not in str(refused.value)

    @pytest.mark.parametrize(
        ("path", "told"),
        [
            ("/data", "/data"),
            ("s3a://key:secret@bucket/dir/?region=x", "s3a://bucket/dir"),
            ("s3://key:sec/ret@bucket/dir?region=x", "s3://bucket/dir"),
            ("gs://bucket/dir", "gs://bucket/dir"),
            ("hdfs://user@host:8020/dir", "hdfs://host:8020/dir"),
            ("abfss://box:secret@me.dfs.core.windows.net/dir", "abfss://box@me.dfs.core.windows.net/dir"),
        ],
    )
    def test_messages_show_places_without_secrets(self, path: str, told: str) -> None:
        assert shown(path) == told
        assert absolute(path) == path


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Generator[LiveLog]:
    log = LiveLog(tmp_path_factory.mktemp("bucket") / "data")
    log.grow(30)
    yield log
    log.close()


@pytest.fixture(scope="module")
def store(live: LiveLog) -> Generator[ObjectStore]:
    with object_store(live.directory.parent) as started:
        yield started


@pytest.mark.thorough
class TestInSpark:
    def test_a_batch_and_a_table(self, spark: SparkSession, live: LiveLog, store: ObjectStore) -> None:
        source = spark.read.format("fencepost")
        rows = source.option("subscribe", "orders").option("minPartitions", 7).load(store.uri("data"))
        found: list[Any] = rows.select("partition", "offset", "key", "value").collect()
        assert sorted((row[0], row[1], row[2], row[3]) for row in found) == live.visible()
        table = spark.read.format("fencepost").option("table", "transactions")
        local_rows = table.load(str(live.directory)).collect()
        assert sorted(map(str, table.load(store.uri("data")).collect())) == sorted(map(str, local_rows))

    def test_a_stream(self, spark: SparkSession, live: LiveLog, store: ObjectStore, tmp_path: Path) -> None:
        output = tmp_path / "output"
        stream_to_parquet.start(
            spark, store.uri("data"), str(tmp_path / "checkpoint"), str(output)
        ).awaitTermination()
        rows: list[Any] = spark.read.parquet(f"{output}/*").select("partition", "offset").collect()
        assert sorted((row[0], row[1]) for row in rows) == [row[:2] for row in live.visible()]

    def test_audit_and_export(
        self, spark: SparkSession, live: LiveLog, store: ObjectStore, tmp_path: Path
    ) -> None:
        """Two reads of the same copy: one finds what the other finds on the local disk."""
        here, there = str(live.directory), store.uri("data")
        found, found_there = (audit(spark, open_directories([path]), [path]) for path in (here, there))
        assert attrs.asdict(found_there) == attrs.asdict(found)
        exported = export(lambda: spark, open_directories([there]), [there], tmp_path / "lake")
        assert exported.rows == len(live.visible())

    def test_an_error_of_the_planner_names_the_place(self, spark: SparkSession, store: ObjectStore) -> None:
        from pyspark.errors import PySparkException

        with pytest.raises(PySparkException, match="there is no directory s3://logs/elsewhere"):
            spark.read.format("fencepost").option("subscribe", "orders").load(store.uri("elsewhere")).count()
