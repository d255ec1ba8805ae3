"""Directories of partitions that do not belong where they lie: one finding for each, and no comparison."""

from __future__ import annotations

import pytest

from fencepost.audit.directory import known_cluster, unknown_topics
from fencepost.check.directory import ADOPTED, UNSERVED, check_directory
from fencepost.check.findings import Severity
from fencepost.check.meanings import REFUSED
from fencepost.journal.data_directory import DataDirectory
from fencepost.journal.layouts import open_layout
from fencepost.journal.manifest import CLEAN_FILE as CLEAN
from fencepost.journal.storage import DamagedLog
from fencepost.repair.planner import make_plan
from tests.check.directories import SMALL, Directory, closed
from tests.check.planting import rename_topic


def test_a_log_that_the_metadata_does_not_know_is_one_note_and_not_compared() -> None:
    """Its markers, open transactions and leader epochs may be those of another cluster."""
    at = closed()
    rename_topic(at, "orders", "orderz")
    what = "the metadata has no such partition"
    told = [(each.severity, each.file, each.what) for each in check_directory(at).found]
    assert told == [(Severity.NOTE, "orders-0", what), (Severity.NOTE, "orders-1", what)]
    assert not make_plan(at).damages


def test_only_a_topic_that_the_metadata_does_not_know_can_be_restored() -> None:
    at = closed()
    for name in at.files("orders-1"):
        if name.endswith(".log"):
            at.make_directory("orders-7")
            at.put(f"orders-7/{name}", at.get(f"orders-1/{name}"))
    (note,) = [each for each in check_directory(at).found if each.what.startswith("the metadata has no")]
    assert (note.file, note.means) == ("orders-7", UNSERVED)
    rename_topic(at, "orders", "orderz")
    means = {each.means for each in check_directory(at).found if each.what == note.what}
    assert means == {f"{UNSERVED}, {ADOPTED}"}


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_damaged_metadata_does_not_make_topics_unknown(share: float) -> None:
    at = closed()
    path = "__cluster_metadata-0/00000000000000000000.log"
    data = bytearray(at.get(path))
    data[int(len(data) * share)] ^= 0xFF
    at.put(path, bytes(data))
    found = check_directory(at).found
    assert any(each.severity is Severity.PROBLEM and each.file == path for each in found)
    assert not any(each.what == "the metadata has no such partition" for each in found)
    layout = open_layout([at])
    assert unknown_topics(layout, known_cluster(layout)) == set()


def test_a_coordinators_log_that_the_metadata_does_not_know_decides_nothing() -> None:
    at = closed()
    rename_topic(at, "__transaction_state", "__transaction_stat2")
    told = [(each.severity, each.what) for each in check_directory(at).found]
    notes = ("the metadata has no such partition", "transactions were not compared with markers")
    assert {*told} == {(Severity.NOTE, what) for what in notes}


@pytest.mark.parametrize("is_longer", [True, False])
def test_a_copy_from_another_time_is_refused_and_not_trusted(is_longer: bool) -> None:
    """As in `Recovery`: the mark of the clean stop vouches only for a file of its size."""
    at = closed()
    offset = 3 if is_longer else 300
    at.change_json(CLEAN, lambda content: content["orders-1"].update(bytes=7, end_offset=offset))
    (problem,) = [each for each in check_directory(at).found if each.file == CLEAN]
    assert f"orders-1, segment 0: end_offset is {offset}" in problem.what
    assert problem.means == REFUSED
    with pytest.raises(DamagedLog):
        DataDirectory.open(Directory(at)).journal(SMALL)
