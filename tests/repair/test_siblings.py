"""Files of a sibling: of a copy of the same data directory in which a broker went on by itself, or of an
older copy. Cluster, topic and even the boot of the machine are the same, so only what is in the files can
tell them from the right ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fencepost.check.directory import check_directory
from fencepost.check.findings import Severity
from fencepost.journal.data_directory import DataDirectory
from fencepost.journal.indexes import decode_snapshot, encode_snapshot
from fencepost.journal.storage import DamagedLog
from fencepost.log_model.partitions import LoggedMarker, PartitionModel
from fencepost.protocol.batches import BatchHeader, Marker
from fencepost.repair.perform import perform
from fencepost.repair.planner import make_plan
from tests.broker.requests import ORDERS
from tests.check.directories import Directory, killed
from tests.journal.logs import content

MANIFEST = f"{ORDERS}/manifest.json"
LAST = f"{ORDERS}/{14:020d}"  # the last segment of orders-0


def whole(disk: Directory) -> bytes:
    return b"".join(disk.get(path) for path in disk.logs(str(ORDERS)))


def put_sibling_manifest(disk: Directory, *, segments: int) -> None:
    """The sibling had written only so many of the segments that are here."""

    def made_older(manifest: dict[str, Any]) -> None:
        del manifest["segments"][segments:]
        end = manifest["segments"][-1]["end_offset"]
        manifest.update(high_watermark=end, last_stable_offset=0, open_transactions=[])
        manifest["snapshots"] = [each for each in manifest["snapshots"] if each["offset"] < end]

    disk.change_json(MANIFEST, made_older)


@pytest.mark.parametrize("segments", [1, 2])
@pytest.mark.parametrize("is_torn", [True, False])
def test_the_manifest_of_a_sibling_costs_no_records(segments: int, *, is_torn: bool) -> None:
    disk = killed()
    records = whole(disk)
    put_sibling_manifest(disk, segments=segments)
    if is_torn:
        disk.grow(f"{LAST}.log", b"torn")
    assert Severity.PROBLEM in [each.severity for each in check_directory(disk).found]
    with pytest.raises(DamagedLog, match=r"since manifest\.json does not list it"):
        DataDirectory.open(Directory(disk)).journal(ORDERS)
    plan = make_plan(disk)
    assert [(each.file, each.kind) for each in plan.damages] == [(MANIFEST, "damaged derived file")]
    assert plan.damages[0].saved == "it is set aside, and all records are kept"
    perform(disk, plan)
    assert make_plan(disk).damages == []
    assert [each for each in check_directory(disk).found if each.severity is Severity.PROBLEM] == []
    assert content(DataDirectory.open(disk).journal(ORDERS)) == records


def test_each_batch_is_followed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many segments the manifest does not list."""
    followed = list[BatchHeader]()

    class Watched(PartitionModel):
        def apply(self, header: BatchHeader, marker: Marker | LoggedMarker | None) -> LoggedMarker | None:
            followed.append(header)
            return super().apply(header, marker)

    monkeypatch.setattr("fencepost.repair.unlisted.PartitionModel", Watched)
    disk = killed()
    put_sibling_manifest(disk, segments=1)
    assert make_plan(disk).damages[0].file == MANIFEST
    offsets = [header.base_offset for header in followed]
    assert offsets
    assert offsets == sorted({*offsets}), "each batch once"


def without_an_index(disk: Directory) -> None:
    """A broker creates it with the log file."""
    disk.remove(f"{LAST}.index")


def with_another_producer(disk: Directory) -> None:
    """The snapshot that a broker writes where a segment begins says what is before it."""
    found = decode_snapshot(disk.get(f"{LAST}.snapshot"))
    disk.put(f"{LAST}.snapshot", encode_snapshot([each._replace(timestamp=1) for each in found]))


def with_another_offset(disk: Directory) -> None:
    """It does not continue the log."""
    disk.change(f"{LAST}.log", 0, sealed=False, base_offset=15)


def with_a_batch_of_an_older_epoch(disk: Directory) -> None:
    disk.change(f"{LAST}.log", 0, sealed=False, leader_epoch=-1)


@pytest.mark.parametrize(
    "spoil", [without_an_index, with_another_producer, with_another_offset, with_a_batch_of_an_older_epoch]
)
def test_a_segment_that_was_not_written_here_is_set_aside(spoil: Callable[[Directory], None]) -> None:
    """Here the manifest is right, and the last segment is that of a sibling."""
    disk = killed()
    put_sibling_manifest(disk, segments=2)
    spoil(disk)
    kept = b"".join(disk.get(path) for path in disk.logs(str(ORDERS))[:-1])
    plan = make_plan(disk)
    assert (f"{LAST}.log", "manifest.json does not list it") in [
        (each.file, each.because) for each in plan.damages
    ]
    perform(disk, plan)
    assert content(DataDirectory.open(disk).journal(ORDERS)).startswith(kept)
    assert f"{LAST.rpartition('/')[2]}.log" in disk.files(f"{ORDERS}~1")
