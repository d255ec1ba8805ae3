"""Several executors, each a JVM with Python processes of its own: what a cluster is to the source."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from fencepost.journal.disk import DiskStorage
from tests.spark.programs import bare_python, words_of
from tests.spark.tables import rows_of
from tests.spark.test_stream_in_spark import LiveLog

pytestmark = pytest.mark.thorough

# Prints how many executors read, and how many rows and transactions there are.
JOB = """
import os, sys
sys.path.insert(0, sys.argv[1])
from fencepost.journal.disk import DiskStorage
from fencepost.spark_bridge.session import session
settings = {"spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1"}
with session(master="local-cluster[2,1,1024]", settings=settings) as spark:
    source = spark.read.format("fencepost")
    rows = source.option("subscribe", "orders").option("minPartitions", 16).load(sys.argv[2])
    executors = rows.rdd.mapPartitions(lambda rows: [(os.getcwd(), sum(1 for _ in rows))]).collect()
    ended = source.option("table", "transactions").load(sys.argv[2]).where("state <> 'open'")
    print(len({where for where, _ in executors}), sum(count for _, count in executors), ended.count())
"""


def test_executors_get_the_package_and_read_the_same_directory(tmp_path: Path) -> None:
    log = LiveLog(tmp_path / "data")
    log.grow(30)
    log.close()
    home = spark_home(tmp_path / "spark")
    words = words_of(JOB, log.directory, tmp_path, python=bare_python(tmp_path), SPARK_HOME=str(home))
    transactions = rows_of("transactions", DiskStorage(log.directory, read_only=True))
    ended = sum(row["state"] != "open" for row in transactions)
    assert words == ["2", str(len(log.visible())), str(ended)]


def spark_home(directory: Path) -> Path:
    """PySpark's own files; executors make their working directories here."""
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    directory.mkdir()
    for entry in Path(found.origin).parent.iterdir():
        (directory / entry.name).symlink_to(entry)
    return directory
