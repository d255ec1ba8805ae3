"""Spark Connect: a client without a JVM, and a server whose Python has this package, or does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost.journal.disk import DiskStorage
from tests.spark.programs import ROOT, bare_python, words_of
from tests.spark.tables import rows_of
from tests.spark.test_stream_in_spark import LiveLog

pytestmark = pytest.mark.thorough

# Sends the package, and prints how many rows and transactions there are.
QUERIES = """
import sys
sys.path.insert(0, sys.argv[1])
from fencepost.spark_bridge.session import register
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote("local[2]").getOrCreate()
register(spark)
register(spark)  # again does no harm
rows = spark.read.format("fencepost").option("subscribe", "orders").load(sys.argv[2])
transactions = spark.read.format("fencepost").option("table", "transactions").load(sys.argv[2])
print(rows.count(), transactions.where("state <> 'open'").count())
spark.stop()
"""

# Needs nothing of this package in the client; prints how many rows a stream has.
STREAM = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote("local[2]").getOrCreate()
source = spark.readStream.format("fencepost").option("startingOffsets", "earliest")
rows = source.option("subscribe", "orders").load(sys.argv[2])
written = rows.writeStream.format("memory").queryName("streamed")
query = written.option("checkpointLocation", "checkpoint").trigger(availableNow=True).start()
assert query.awaitTermination(300)
print(spark.table("streamed").count())
spark.stop()
"""


@pytest.fixture
def log(tmp_path: Path) -> LiveLog:
    log = LiveLog(tmp_path / "data")
    log.grow(30)
    log.close()
    return log


def asked(job: str, log: LiveLog, place: Path, *installed: Path) -> list[str]:
    """The words that a job prints. Its server finds every library, and of this project what is installed."""
    python = bare_python(place, *installed)
    return words_of(job, log.directory, place, python=python, SPARK_LOCAL_IP="127.0.0.1")


def test_a_client_sends_the_package_to_a_server_that_lacks_it(log: LiveLog, tmp_path: Path) -> None:
    transactions = rows_of("transactions", DiskStorage(log.directory, read_only=True))
    ended = sum(row["state"] != "open" for row in transactions)
    assert asked(QUERIES, log, tmp_path) == [str(len(log.visible())), str(ended)]


def test_a_server_that_has_the_package_needs_no_registration(log: LiveLog, tmp_path: Path) -> None:
    assert asked(STREAM, log, tmp_path, ROOT) == [str(len(log.visible()))]
