"""Data directories in Google's and Azure's stores and in HDFS are read as on the local disk."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from fencepost.spark_bridge.filesystems import shown
from tests.kafka_directories import unpack
from tests.spark.test_stream_in_spark import LiveLog
from tests.stores.emulators import Store, azure, gcs, hdfs

pytestmark = pytest.mark.thorough

Start = Callable[[Path], AbstractContextManager[Store]]


@pytest.fixture(scope="module", params=[gcs, azure, hdfs], ids=["gs", "abfs", "hdfs"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    start: Start = request.param
    with start(tmp_path_factory.mktemp("store")) as started:
        yield started


def test_a_directory_of_a_broker_is_read_as_on_the_local_disk(store: Store, tmp_path: Path) -> None:
    live = LiveLog(tmp_path / "data")
    live.grow(40)
    live.close()
    told = store.run("tests.stores.reads", str(live.directory), store.uri("own"), "orders")
    assert told.count(": alike\n") == 12


def test_a_directory_of_apache_kafka_is_read_as_on_the_local_disk(store: Store, tmp_path: Path) -> None:
    directory = unpack("02-transactions", tmp_path)
    told = store.run("tests.stores.reads", str(directory), store.uri("kafka"))
    assert told.count(": alike\n") == 8


def test_errors_name_the_place_and_keep_credentials_secret(store: Store) -> None:
    missing, other = store.uri("nowhere"), store.uri("x").replace("logs", "no-such-bucket")
    unreachable = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:1", store.uri("own"))
    uris = [missing, other, unreachable, store.uri("own").replace("sig=", "sig=AAAA")]
    no_directory, no_bucket, no_server, refused = store.run("tests.stores.errors", *uris).splitlines()
    assert f"there is no directory {shown(missing)}: give the directory" in no_directory
    assert f"there is no directory {shown(other)}: give the directory" in no_bucket
    assert f"cannot list {shown(unreachable)}: " in no_server
    if "sig=" in store.query:
        assert "403 Server failed to authenticate the request" in refused
        assert "SAS token" in refused
    for told in (no_directory, no_bucket, no_server, refused):
        assert "sig=" not in told
        assert "2100-01-01" not in told


def test_an_object_that_disappears_is_missing(store: Store) -> None:
    """But a reader of HDFS keeps a file that is deleted, as one of a local disk does."""
    told = store.run("tests.stores.disappears", store.uri("gone"))
    assert told == ("" if "hdfs" in store.root else "has disappeared, ") + "is not read\n"
