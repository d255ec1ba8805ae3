"""Streams inside Spark: checkpoints, limits, progress, and jobs that are killed at random points."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.journal.data_directory import DataDirectory
from fencepost.journal.disk import DiskStorage
from fencepost.journal.journal import JournalSettings
from fencepost.protocol.terms import TopicPartition
from tests.spark import stream_to_parquet
from tests.spark.logs import COMMITTED, RememberedLog, last_stable_offset, visible

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROOT = Path(__file__).resolve().parent.parent.parent


class LiveLog:
    """Two partitions that grow while they are read."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._data = DataDirectory.open(DiskStorage(directory), settings=JournalSettings(segment_bytes=9_000))
        self.logs = [RememberedLog(self._data.journal(TopicPartition("orders", n))) for n in (0, 1)]
        self._grown = 0

    def grow(self, transactions: int) -> None:
        """Two producers whose transactions overlap, commits, aborts, plain records, new segments."""
        for _ in range(transactions):
            self._grown += 1
            number = self._grown
            for log in self.logs:
                log.records(3, producer_id=1 + number % 2, size=40)
                log.records(2, rich=True)
                if number % 3 == 0:
                    (log.abort if number % 2 else log.commit)(1 + number % 2)
                if log.journal.is_full:
                    log.roll()
                if number % 7 == 0:
                    log.write_manifest()

    def finish(self) -> None:
        for log in self.logs:
            log.commit(1)
            log.abort(2)

    def visible(self) -> list[tuple[int, int, bytes | None, bytes | None]]:
        return [
            (number, row.offset, row.key, row.value)
            for number, log in enumerate(self.logs)
            for row in visible(log.entries, COMMITTED)
        ]

    def close(self) -> None:
        self._data.abandon()


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveLog]:
    log = LiveLog(tmp_path / "data")
    yield log
    log.close()


class Job:
    """The job of stream_to_parquet.py, with its checkpoint and its output."""

    def __init__(self, live: LiveLog, directory: Path) -> None:
        self.arguments = [str(live.directory), str(directory / "checkpoint"), str(directory / "output")]

    def start(self, spark: "SparkSession") -> "StreamingQuery":
        return stream_to_parquet.start(spark, *self.arguments)

    def written(self, spark: "SparkSession") -> list[tuple[int, int, bytes | None, bytes | None]]:
        """Every row of every micro-batch, in the order of offsets."""
        frame = spark.read.parquet(f"{self.arguments[2]}/*")
        rows: list[Any] = frame.select("partition", "offset", "key", "value").collect()
        return sorted((row[0], row[1], in_bytes(row[2]), in_bytes(row[3])) for row in rows)


def in_bytes(data: bytearray | None) -> bytes | None:
    return None if data is None else bytes(data)


def progress_of(query: "StreamingQuery") -> list[dict[str, Any]]:
    return [json.loads(progress.json) for progress in query.recentProgress]


def test_a_stream_reads_what_is_there_in_limited_micro_batches_and_goes_on_from_its_checkpoint(
    spark: "SparkSession", live: LiveLog, tmp_path: Path
) -> None:
    job = Job(live, tmp_path)
    live.grow(30)
    query = job.start(spark)
    query.awaitTermination()
    assert job.written(spark) == live.visible()
    progress = progress_of(query)
    assert len(progress) > 3
    ends = {str(number): last_stable_offset(log.entries) for number, log in enumerate(live.logs)}
    (source,) = progress[-1]["sources"]
    assert as_json(source["endOffset"]) == {"orders": ends, "cluster id": "fencepost"}
    assert as_json(source["latestOffset"]) == as_json(source["endOffset"])
    (source,) = progress[0]["sources"]
    lag = {
        number: end - as_json(source["endOffset"])["orders"][number]
        for number, end in as_json(source["latestOffset"])["orders"].items()
    }
    assert all(behind > 0 for behind in lag.values())

    job.start(spark).awaitTermination()
    assert job.written(spark) == live.visible()

    live.grow(10)
    live.finish()
    job.start(spark).awaitTermination()
    assert job.written(spark) == live.visible()


def as_json(offset: Any) -> Any:
    return json.loads(offset) if isinstance(offset, str) else offset


def test_a_stream_that_runs_sees_new_records(spark: "SparkSession", live: LiveLog) -> None:
    live.grow(5)
    frame = spark.readStream.format("fencepost").option("subscribe", "orders").load(str(live.directory))
    query = frame.writeStream.format("memory").queryName("live").start()
    try:
        query.processAllAvailable()
        assert spark.sql("SELECT * FROM live").count() == 0  # a new query begins at the end
        before = {row[:2] for row in live.visible()}
        live.grow(5)
        query.processAllAvailable()
        rows = spark.sql("SELECT partition, offset FROM live").collect()
        found = {(int(row[0]), int(row[1])) for row in rows}
        assert found == {row[:2] for row in live.visible()} - before
    finally:
        query.stop()


def test_a_directory_that_was_replaced_is_not_read_with_old_offsets(
    spark: "SparkSession", live: LiveLog, tmp_path: Path
) -> None:
    from pyspark.errors import PySparkException

    live.grow(5)
    job = Job(live, tmp_path)
    job.start(spark).awaitTermination()
    other = DataDirectory.open(DiskStorage(tmp_path / "other"), cluster_id="another")
    RememberedLog(other.journal(TopicPartition("orders", 0))).records(900)
    other.abandon()
    job.arguments[0] = str(tmp_path / "other")
    with pytest.raises(PySparkException, match="belongs to cluster another: the directory was replaced"):
        job.start(spark).awaitTermination()


@pytest.mark.thorough
def test_a_stream_whose_processes_are_killed_writes_every_row_once(
    spark: "SparkSession", live: LiveLog, tmp_path: Path
) -> None:
    """Python processes of Spark die in the middle of planning, reading and between micro-batches. `make
    sweep` kills more of them.
    """
    seed = random.randrange(1 << 32)
    job = Job(live, tmp_path)
    outlive_kills_of_processes(spark, live, job, random.Random(seed), kills=3)
    assert job.written(spark) == live.visible(), seed


def outlive_kills_of_processes(
    spark: "SparkSession", live: LiveLog, job: Job, chance: random.Random, *, kills: int
) -> None:
    """Starts the job again and again, until a kill has ended it `kills` times, and then once to its end."""
    from pyspark.errors import PySparkException

    ended = 0
    for _ in range(10 * kills):
        if ended == kills:
            break
        live.grow(4)
        query: Any = job.start(spark)  # its annotation takes whole seconds only
        if not query.awaitTermination(chance.uniform(0.1, 1.5)):
            for process in chance.sample(processes := python_processes(), k=min(1, len(processes))):
                kill(process)
        try:
            query.awaitTermination()
        except PySparkException:
            ended += 1
    assert ended == kills, "no kill found a process that the stream needed"
    live.grow(8)
    live.finish()
    job.start(spark).awaitTermination()


def python_processes() -> list[int]:
    """The Python processes that Spark has started below this one: planners, workers, and their daemon."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        parents[int(stat.parent.name)] = int(fields[1])

    def is_below(process: int) -> bool:
        while process and process != os.getpid():
            process = parents.get(process, 0)
        return process == os.getpid()

    return sorted(process for process in parents if is_below(process) and is_python_of_spark(process))


def is_python_of_spark(process: int) -> bool:
    """Whether it was started as `python -m pyspark...`."""
    try:
        arguments = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    except OSError:  # it has ended
        return False
    return arguments[1:2] == [b"-m"] and arguments[2].startswith(b"pyspark")


def kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:  # it has ended
        return


@pytest.mark.thorough
def test_a_job_that_is_killed_as_a_whole_writes_every_row_once(
    spark: "SparkSession", live: LiveLog, tmp_path: Path
) -> None:
    """Driver, JVM and workers die at once, in and after micro-batches."""
    seed = random.randrange(1 << 32)
    job = Job(live, tmp_path)
    outlive_kills_of_the_job(spark, live, job, random.Random(seed), kills=1)
    assert job.written(spark) == live.visible(), seed


def outlive_kills_of_the_job(
    spark: "SparkSession", live: LiveLog, job: Job, chance: random.Random, *, kills: int
) -> None:
    """Starts the job in a process of its own and kills it, `kills` times, and then once to its end."""
    for _ in range(kills):
        live.grow(20)
        run_and_kill(job.arguments, lines=chance.randint(1, 6), delay=chance.uniform(0, 0.5))
    live.finish()
    job.start(spark).awaitTermination()


def run_and_kill(arguments: list[str], *, lines: int, delay: float) -> None:
    """Kills the job a moment after it has printed this many lines, if it has not ended."""
    job = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.stream_to_parquet", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert job.stdout is not None
    for _, line in zip(range(lines), job.stdout, strict=False):
        if line == "done\n":
            break
    try:
        job.wait(timeout=delay)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    job.stdout.close()
