"""An older copy of a partition, as from a backup: its own files do not say that records are missing, but the
mark of the broker's clean stop does.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fencepost import Admin, Broker, Producer
from fencepost.journal.data_directory import CLEAN_FILE
from fencepost.journal.disk import DiskStorage
from fencepost.journal.layouts import open_layout
from fencepost.protocol.terms import TopicPartition
from fencepost.spark_bridge.log_offsets import find_log_offsets
from fencepost.spark_bridge.losses import Loss
from fencepost.spark_bridge.partition_files import DataLoss, open_partition_files

ORDERS = TopicPartition("orders", 0)


def write(where: Path, count: int) -> None:
    with Broker(where) as broker:
        with Admin(broker.address) as admin:
            if not (where / "orders-0").exists():
                admin.create_topic("orders")
        with Producer(broker.address) as producer:
            producer.send_many("orders", [b"v"] * count)


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A data directory with an older copy of its partition."""
    where = tmp_path / "data"
    write(where, 3)
    shutil.copytree(where / "orders-0", tmp_path / "copy")
    write(where, 2)
    shutil.rmtree(where / "orders-0")
    shutil.move(tmp_path / "copy", where / "orders-0")
    return where


def test_the_end_of_an_older_copy_is_a_loss(older: Path) -> None:
    files = open_partition_files(open_layout([DiskStorage(str(older), read_only=True)]), ORDERS)
    with pytest.raises(DataLoss, match="ends at offset 3, but offsets up to 5 were written"):
        find_log_offsets(files)
    losses: list[Loss] = []
    assert find_log_offsets(files, report=losses.append).log_end_offset == 3
    assert [(loss.start, loss.end) for loss in losses] == [(3, 5)]


def test_a_mark_that_a_broker_has_removed_since_says_nothing(older: Path) -> None:
    """The topic may have been created again meanwhile."""
    layout = open_layout([DiskStorage(str(older), read_only=True)])
    assert layout.closed_end(ORDERS) == 5
    (older / CLEAN_FILE).unlink()
    assert find_log_offsets(open_partition_files(layout, ORDERS)).log_end_offset == 3
