"""A topic that is deleted and created again between the plan of a read and its tasks: the records of the new
topic are not those that were planned.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost import Admin, Broker, Producer
from fencepost.journal.disk import DiskStorage
from fencepost.journal.manifest import MANIFEST_FILE
from fencepost.spark_bridge.data_source import plan_batch
from fencepost.spark_bridge.options import parse_options
from fencepost.spark_bridge.partition_files import DataLoss
from fencepost.spark_bridge.planning import ReadTask
from fencepost.spark_bridge.worker import layout_of
from tests.spark.logs import rows_of_task

TOLD = "was deleted since the read began, and another topic has its name now"


def create(where: Path, values: list[bytes]) -> None:
    """A topic with these records, in the data directory of a broker that stops."""
    is_again = (where / "orders-0").exists()
    with Broker(where) as broker:
        with Admin(broker.address) as admin:
            if is_again:
                admin.delete_topic("orders")
            admin.create_topic("orders")
        with Producer(broker.address) as producer:
            producer.send_many("orders", values)


def tasks_of(where: Path) -> list[ReadTask]:
    options = parse_options({"path": str(where), "subscribe": "orders"})
    return list(plan_batch(layout_of(options), options, report=None, filters=None))


@pytest.mark.parametrize("has_manifest", [True, False])
@pytest.mark.parametrize("count", [1, 3])
def test_a_task_does_not_read_another_topic(tmp_path: Path, count: int, *, has_manifest: bool) -> None:
    """A log has no manifest in its first moments."""
    create(tmp_path, [b"old 0", b"old 1"])
    (task,) = tasks_of(tmp_path)
    storage = DiskStorage(str(tmp_path), read_only=True)
    assert [row.value for row in rows_of_task(storage, task)] == [b"old 0", b"old 1"]
    create(tmp_path, [b"new"] * count)
    if not has_manifest:
        (tmp_path / "orders-0" / MANIFEST_FILE).unlink()
    with pytest.raises(DataLoss, match=f"orders-0 {TOLD}"):
        rows_of_task(storage, task)
    with pytest.warns(UserWarning, match=TOLD):
        assert rows_of_task(storage, task, fail_on_data_loss=False) == []


def test_a_task_whose_files_are_gone_does_not_read_another_topic(tmp_path: Path) -> None:
    create(tmp_path, [b"old 0", b"old 1"])
    (task,) = tasks_of(tmp_path)
    create(tmp_path, [b"new"])
    directory = tmp_path / "orders-0"
    for file in directory.glob("0*"):
        file.rename(directory / file.name.replace("0." + file.suffix[1:], "1" + file.suffix))
    with pytest.raises(DataLoss, match=f"orders-0 {TOLD}"):
        rows_of_task(DiskStorage(str(tmp_path), read_only=True), task)
