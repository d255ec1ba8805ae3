"""The export to Parquet: each committed record once, also after kills at every point."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from fencepost import Admin, Broker, Producer
from fencepost.cli.application import run
from fencepost.cli.export import report
from fencepost.journal.data_directory import DataDirectory
from fencepost.journal.disk import DiskStorage
from fencepost.journal.layouts import open_layout
from fencepost.protocol.terms import TopicPartition
from fencepost.spark_bridge import export as module
from fencepost.spark_bridge.export import (
    Exported,
    ExportManifest,
    Gap,
    UnusableExport,
    export,
    read_manifest,
    write_manifest,
)
from tests.spark.logs import COMMITTED, RememberedLog, visible

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent.parent
DEADLINE_S = 120  # for Spark to start


class Source:
    """A data directory that grows."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.data = DataDirectory.open(DiskStorage(directory))
        self.log = RememberedLog(self.data.journal(TopicPartition("orders", 0)))

    def write(self) -> None:
        """A commit, an abort, records of no producer, and the beginning of a transaction that stays open."""
        for producer_id, ends in ((1, self.log.commit), (2, self.log.abort)):
            self.log.records(3, producer_id=producer_id)
            ends(producer_id)
        self.log.records(2, rich=True)
        self.log.write_manifest()

    def expected(self) -> list[int]:
        return [row.offset for row in visible(self.log.entries, COMMITTED)]


@pytest.fixture
def source(tmp_path: Path) -> Source:
    made = Source(tmp_path / "data")
    made.write()
    return made


def run_export(spark: SparkSession, source: Source, target: Path) -> Exported:
    layout = open_layout([DiskStorage(source.directory, read_only=True)])
    return export(lambda: spark, layout, [str(source.directory)], target)


def no_spark() -> SparkSession:
    pytest.fail("Spark was started")


def plan(directory: Path, target: Path, *topics: str, accepts_loss: bool = False) -> Exported:
    """An export that is refused, or has nothing to write, before Spark starts."""
    layout = open_layout([DiskStorage(directory, read_only=True)])
    return export(no_spark, layout, [str(directory)], target, topics, accepts_loss=accepts_loss)


def offsets_in(spark: SparkSession, target: Path) -> list[int]:
    """What somebody finds who reads the whole directory."""
    rows = spark.read.parquet(str(target)).select("offset").collect()
    return sorted(row["offset"] for row in rows)


def test_each_export_adds_what_was_committed_since(
    spark: SparkSession, source: Source, tmp_path: Path
) -> None:
    target = tmp_path / "lake"
    assert run_export(spark, source, target).rows == len(source.expected())
    assert run_export(spark, source, target).name == ""
    source.log.records(1, producer_id=9)  # holds the last stable offset here
    source.write()
    before = source.expected()
    assert run_export(spark, source, target).name == ""
    source.log.commit(9)
    source.log.write_manifest()
    second = run_export(spark, source, target)
    assert (second.name, second.rows) == ("export=000002", len(source.expected()) - len(before))
    assert offsets_in(spark, target) == source.expected()
    manifest = json.loads((target / "manifest.json").read_text())
    assert manifest["offsets"] == {"orders": {"0": source.log.journal.log_end_offset}}
    assert manifest["exports"] == ["export=000001", "export=000002"]
    names = spark.read.parquet(str(target)).columns
    assert names[:8] == [
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"
    ]  # fmt: skip


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("point", ["_sync", "second_manifest"])
def test_an_export_that_ends_between_two_steps_is_repeated(
    spark: SparkSession, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    def die(*_: object) -> None:
        raise Killed

    def write(target: Path, manifest: ExportManifest) -> None:
        if manifest.exports:  # the first manifest is of none
            raise Killed
        write_manifest(target, manifest)

    target = tmp_path / "lake"
    with monkeypatch.context() as patched:
        patched.setattr(module, *(("_sync", die) if point == "_sync" else ("write_manifest", write)))
        with pytest.raises(Killed):
            run_export(spark, source, target)
    # A reader in between finds all of it or nothing.
    visible_now = [path.name for path in target.iterdir() if path.name.startswith("export=")]
    assert visible_now == ([] if point == "_sync" else ["export=000001"])
    source.write()
    run_export(spark, source, target)
    assert offsets_in(spark, target) == source.expected()


@pytest.mark.thorough
def test_a_killed_process_is_repeated(spark: SparkSession, source: Source, tmp_path: Path) -> None:
    """The kill comes while Spark writes, or shortly after."""
    target = tmp_path / "lake"
    command = [sys.executable, "-m", "fencepost", "export", str(source.directory), str(target)]
    process = subprocess.Popen(
        [*command, "--master", "local[1]"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + DEADLINE_S
    try:
        while not (target / "_writing").exists() and process.poll() is None:
            assert time.monotonic() < deadline, "the export has not begun to write"
            threading.Event().wait(0.01)  # another process makes a directory, and tells nobody
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    run_export(spark, source, target)
    assert offsets_in(spark, target) == source.expected()


def test_an_export_without_the_lock_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two that find no directory, one gets the lock, and has written nothing yet."""

    def is_busy(*_: object) -> None:
        raise BlockingIOError

    monkeypatch.setattr(module.fcntl, "flock", is_busy)
    with pytest.raises(UnusableExport, match="another export"), module.locked(tmp_path / "lake"):
        pass
    assert (tmp_path / "lake").is_dir()


def test_what_is_refused(source: Source, tmp_path: Path) -> None:
    target = tmp_path / "lake"
    with pytest.raises(UnusableExport, match="has no topic gone: its topics are orders"):
        plan(source.directory, target, "gone")
    assert not target.exists()
    target.mkdir()
    with module.locked(target), pytest.raises(UnusableExport, match="another export"):
        plan(source.directory, target)
    write_manifest(target, ExportManifest(cluster_id="other", offsets={}))
    with pytest.raises(UnusableExport, match="has records of cluster other"):
        plan(source.directory, target)
    (target / "manifest.json").write_text("{")
    with pytest.raises(UnusableExport, match=r"manifest.json is malformed"):
        plan(source.directory, target)


def test_an_unknown_topic_is_two_lines(
    source: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["export", str(source.directory), str(tmp_path / "lake"), "--topic", "nosuch"]) == 1
    assert capsys.readouterr().err == (
        f"fencepost: {source.directory} has no topic nosuch: its topics are orders\n"
    )


def test_a_failed_export_leaves_nothing_behind(
    spark: SparkSession, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails while Spark starts, then while files are written; after the first export, and before it."""

    class Failed(Exception):
        pass

    def fail(*_: object) -> Any:
        raise Failed

    target = tmp_path / "new" / "lake"
    layout = open_layout([DiskStorage(source.directory, read_only=True)])
    with pytest.raises(Failed):
        export(fail, layout, [str(source.directory)], target)
    assert not target.exists()
    for expected in ({"manifest.json"}, {"manifest.json", "export=000001"}):
        with monkeypatch.context() as patched:
            patched.setattr(module, "_sync", fail)
            with pytest.raises(Failed):
                run_export(spark, source, target)
        assert {path.name for path in target.iterdir()} == expected
        run_export(spark, source, target)
        source.write()


def test_files_of_others_survive(spark: SparkSession, source: Source, tmp_path: Path) -> None:
    target = tmp_path / "lake"
    precious = target / "export=2024" / "precious.parquet"
    precious.parent.mkdir(parents=True)
    precious.write_text("x")
    with pytest.raises(UnusableExport, match=r"has other files \(export=2024\) and no manifest.json"):
        plan(source.directory, target)
    assert [path.name for path in target.iterdir()] == ["export=2024"]
    with pytest.raises(UnusableExport, match="is not a directory: export into an empty or a new directory"):
        plan(source.directory, precious)
    precious.unlink()
    precious.parent.rmdir()
    assert run_export(spark, source, target).name == "export=000001"
    precious.parent.mkdir()
    precious.write_text("x")
    source.write()
    (target / "export=000002").write_text("x")
    with pytest.raises(UnusableExport, match="export=000002 is not a directory"):
        plan(source.directory, target)
    (target / "export=000002").unlink()
    assert plan_fails_at_spark(source, target)
    assert precious.read_text() == "x"


def plan_fails_at_spark(source: Source, target: Path) -> bool:
    """Whether an export gets as far as Spark, past all that is removed."""
    with pytest.raises(pytest.fail.Exception, match="Spark was started"):
        plan(source.directory, target)
    return True


def manifest_of(target: Path, directory: Path, end: int, **others: Any) -> None:
    """As an export of orders-0 leaves it."""
    target.mkdir(exist_ok=True)
    cluster_id = open_layout([DiskStorage(directory, read_only=True)]).cluster_id
    offsets = {TopicPartition("orders", 0): end}
    write_manifest(target, ExportManifest(cluster_id=cluster_id, offsets=offsets, **others))


def test_a_log_that_ends_before_the_exported_offset_is_refused(source: Source, tmp_path: Path) -> None:
    """Without ids of topics, the offsets show that the topic is another one."""
    target = tmp_path / "lake"
    manifest_of(target, source.directory, 10_000)
    with pytest.raises(UnusableExport, match=r"up to offset 10000, and can be read .* another directory"):
        plan(source.directory, target)


def test_a_partition_that_is_gone_is_refused(source: Source, tmp_path: Path) -> None:
    target = tmp_path / "lake"
    manifest_of(target, source.directory, 0)
    manifest = read_manifest(target)
    assert manifest is not None
    manifest = attrs.evolve(manifest, offsets={**manifest.offsets, TopicPartition("pay", 0): 3})
    write_manifest(target, manifest)
    with pytest.raises(UnusableExport, match=r"pay-0 was exported .* does not exist any more"):
        plan(source.directory, target)


def fill(directory: Path, count: int, *, recreate: bool = False, delete_before: int = 0) -> None:
    """What users of a broker do: it ends before this returns."""
    with Broker(directory=directory) as broker:
        with Admin(broker.bootstrap_servers) as admin:
            if recreate:
                admin.delete_topic("t")
            if recreate or all(each.topic != "t" for each in admin.list_topics()):
                admin.create_topic("t", 1)
        with Producer(broker.bootstrap_servers) as producer:
            for number in range(count):
                producer.send("t", f"{number}".encode())
            producer.flush()
        if delete_before:
            with Admin(broker.bootstrap_servers) as admin:
                admin.delete_records({TopicPartition("t", 0): delete_before})


@pytest.mark.parametrize("count", [5, 17])
def test_a_topic_that_was_created_again_is_refused(spark: SparkSession, tmp_path: Path, count: int) -> None:
    """With fewer records than were exported, and with more."""
    directory, target = tmp_path / "data", tmp_path / "lake"
    fill(directory, 10)
    layout = open_layout([DiskStorage(directory, read_only=True)])
    assert export(lambda: spark, layout, [str(directory)], target).rows == 10
    fill(directory, count, recreate=True)
    with pytest.raises(UnusableExport, match=r"topic t was deleted and created again after .* another dir"):
        plan(directory, target)


def test_deleted_records_need_consent(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, target = tmp_path / "data", tmp_path / "lake"
    fill(directory, 10)
    layout = open_layout([DiskStorage(directory, read_only=True)])
    assert export(lambda: spark, layout, [str(directory)], target).rows == 10
    fill(directory, 10, delete_before=15)
    assert run(["export", str(directory), str(target)]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "fencepost: records were deleted before they were exported: t-0 offsets 10 to 14",
        "  add --accept-loss to export what still exists",
    ]
    found = export(lambda: spark, layout, [str(directory)], target, accepts_loss=True)
    gap = Gap(partition=TopicPartition("t", 0), start=10, end=15)
    assert (found.rows, found.gaps) == (5, (gap,))
    assert offsets_in(spark, target) == [*range(10), *range(15, 20)]
    fill(directory, 4, delete_before=24)  # nothing is left to export: the gap is recorded all the same
    assert plan(directory, target, accepts_loss=True).name == ""
    assert plan(directory, target).gaps == ()
    manifest = read_manifest(target)
    assert manifest is not None
    assert manifest.gaps == (gap, Gap(partition=TopicPartition("t", 0), start=20, end=24))


def test_the_id_of_a_topic_of_kafka(tmp_path: Path) -> None:
    directory, target = tmp_path / "kafka", tmp_path / "lake"
    (directory / "orders-0").mkdir(parents=True)
    (directory / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=1\n")
    (directory / "replication-offset-checkpoint").write_text("0\n1\norders 0 0\n")
    written = directory / "orders-0" / "partition.metadata"
    written.write_text("version: 0\ntopic_id: aaaaaaaaaaaaaaaaaaaaaa\n")
    plan(directory, target)
    manifest = read_manifest(target)
    assert manifest is not None
    assert manifest.topic_ids == {"orders": "aaaaaaaaaaaaaaaaaaaaaa"}
    written.write_text("version: 0\ntopic_id: bbbbbbbbbbbbbbbbbbbbbb\n")
    with pytest.raises(UnusableExport, match="topic orders was deleted and created again"):
        plan(directory, target)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "export=000001",
            [
                "lake/export=000001: 5 records",
                "  orders-0: offsets 0 to 9",
                "  no committed record: 5 offsets (markers, aborted or compacted records)",
            ],
        ),
        ("", ["Nothing was committed since the last export."]),
    ],
)
def test_what_the_command_prints(name: str, lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    partition = TopicPartition("orders", 0)
    report(Path("lake"), Exported(name, 5, {partition: 0}, {partition: 10}), as_json=False)
    assert capsys.readouterr().out.splitlines() == lines
    report(Path("lake"), Exported(name, 5, {partition: 0}, {partition: 10}), as_json=True)
    expected = {"export": name or None, "rows": 5, "offsets": {"orders-0": [0, 10]}, "gaps": {}}
    assert json.loads(capsys.readouterr().out) == expected
