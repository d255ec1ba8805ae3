"""Several executors, each a JVM with Python processes of its own: what a cluster is to the source."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import pytest

from fencepost.journal.disk import DiskStorage
from fencepost.spark_bridge.session import use_java
from tests.spark.tables import rows_of
from tests.spark.test_source import executable, java_options
from tests.spark.test_stream_in_spark import LiveLog

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parent.parent.parent

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
    use_java()
    # Finds every library but not this project, as the Python of an executor: -S reads no .pth file.
    libraries = f'PYTHONPATH="{sysconfig.get_path("purelib")}:$PYTHONPATH"'
    python = executable(tmp_path / "python", f'#!/bin/sh\n{libraries} exec {sys.executable} -S "$@"\n')
    environment = {
        "PATH": os.environ["PATH"],
        "JAVA_HOME": os.environ["JAVA_HOME"],
        "HOME": str(tmp_path),
        "PYSPARK_PYTHON": str(python),
        "SPARK_HOME": str(spark_home(tmp_path / "spark")),
        **java_options(),
    }
    asked = subprocess.run(
        [python, "-c", JOB, ROOT, log.directory],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    transactions = rows_of("transactions", DiskStorage(log.directory, read_only=True))
    ended = sum(row["state"] != "open" for row in transactions)
    assert asked.stdout.split() == ["2", str(len(log.visible())), str(ended)], asked.stderr


def spark_home(directory: Path) -> Path:
    """PySpark's own files; executors make their working directories here."""
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    directory.mkdir()
    for entry in Path(found.origin).parent.iterdir():
        (directory / entry.name).symlink_to(entry)
    return directory
