"""Copies a data directory to a store and compares all that is read there with the local answer.

`python -m tests.stores.reads DATA URI [TOPIC]`, in a process of its own: libhdfs starts a JVM in it. With a
topic, Spark reads that, too.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
from pyarrow import fs

from fencepost.audit.audit import audit
from fencepost.protocol.terms import IsolationLevel
from fencepost.spark_bridge.export import export
from fencepost.spark_bridge.filesystems import open_directories, open_storage
from fencepost.spark_bridge.session import session
from fencepost.spark_bridge.tables.registry import TABLES
from tests.spark import kafka_rows
from tests.spark.tables import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def copy(data: str, uri: str) -> None:
    """As the tools of a store do it: files without objects for directories."""
    filesystem, target = fs.FileSystem.from_uri(uri)
    filesystem.create_dir(target.partition("/logs")[0] + "/logs" if target.startswith("/") else "logs")
    for path in sorted(Path(data).rglob("*")):
        name = f"{target}/{path.relative_to(data)}"
        if path.is_file():
            if filesystem.type_name == "hdfs":
                filesystem.create_dir(name.rpartition("/")[0])
            with filesystem.open_output_stream(name) as file:
                file.write(path.read_bytes())


def compare(here: str, there: str) -> None:
    """What needs no Spark: each row that a task makes."""
    assert_alike("listing", *(listing(path) for path in (here, there)))
    for level in IsolationLevel:
        assert_alike(
            level.name, *(kafka_rows.read(open_storage(path), level=level) for path in (here, there))
        )
    for table in TABLES:
        assert_alike(table, *(rows_of(table, open_storage(path)) for path in (here, there)))


def compare_in_spark(spark: SparkSession, here: str, there: str, topic: str) -> None:
    options = {"subscribe": topic, "minPartitions": "3"}
    rows, found = (batch(spark, path, options) for path in (here, there))
    assert_alike("batch", rows, found)
    assert_alike("stream", rows, streamed(spark, there, options))
    audits = [audit(spark, open_directories([path]), [path]) for path in (here, there)]
    assert_alike("audit", *map(attrs.asdict, audits))
    with tempfile.TemporaryDirectory() as home:
        exported = export(lambda: spark, open_directories([there]), [there], Path(home) / "lake")
    assert_alike("export", len(rows), exported.rows)


def assert_alike(name: str, here: object, there: object) -> None:
    assert there == here, f"{name}: {there}\nis not\n{here}"
    print(f"{name}: alike", flush=True)


def listing(path: str) -> dict[str, dict[str, int]]:
    storage = open_storage(path)
    return {name: storage.files(name) for name in ("", *storage.directories())}


def batch(spark: SparkSession, path: str, options: dict[str, str]) -> list[str]:
    return sorted(map(str, spark.read.format("fencepost").options(**options).load(path).collect()))


def streamed(spark: SparkSession, path: str, options: dict[str, str]) -> list[str]:
    source = spark.readStream.format("fencepost").options(startingOffsets="earliest", **options)
    with tempfile.TemporaryDirectory() as home:
        writer = source.load(path).writeStream.option("checkpointLocation", f"{home}/checkpoint")
        writer.trigger(availableNow=True).start(f"{home}/rows").awaitTermination()
        return sorted(map(str, spark.read.parquet(f"{home}/rows").collect()))


def main() -> None:
    data, uri, *topic = sys.argv[1:]
    copy(data, uri)
    compare(data, uri)
    if topic:
        with session("stores", master="local[2]") as spark:
            compare_in_spark(spark, data, uri, *topic)


if __name__ == "__main__":
    main()
