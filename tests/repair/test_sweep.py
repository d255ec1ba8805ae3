"""A repair after any damage, or two: nothing wrong is served, and nothing is missing that was not told."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import attrs
import pytest

from fencepost.journal.catalogue import CATALOGUE_FILE
from fencepost.journal.data_directory import META_FILE
from fencepost.journal.manifest import CLEAN_FILE, decode_manifest, encode_manifest
from fencepost.protocol.batches import walk
from fencepost.repair import losses
from fencepost.repair.outcomes import Evidence, Settled
from fencepost.repair.salvage import SalvagedLog
from tests.broker.test_every_byte import disk_with
from tests.repair.judging import Repaired, repaired
from tests.repair.sweep import (
    after_flip,
    after_loss_of,
    after_removal,
    damages,
    places,
    sweep,
    sweep_pairs,
    whole,
    whole_files,
)

SAMPLE = 40  # `python -m tests.repair.sweep` flips every byte


def test_flipped_bytes() -> None:
    kinds, wrong = sweep(1, random.Random(2).sample(places(), SAMPLE))
    assert wrong == []
    assert min(kinds["damaged bytes"], kinds["misplaced batch"], kinds["damaged derived file"]) > 0


def test_a_last_leader_epoch_that_is_too_high() -> None:
    """No checksum covers it, and no later batch contradicts it; the mark of the stop does."""
    path = "__cluster_metadata-0/00000000000000000000.log"
    last = [at for at, _ in walk(whole_files()[path])][-1]
    result = after_flip(path, last + 15, 1)
    assert [damage.kind for damage in result.plan.damages] == ["damaged header"]
    assert result.complaints == []


def test_after_a_reboot_the_mark_of_the_stop_says_where_a_log_ended() -> None:
    """A stop does not replace a manifest only because more is synced now."""
    path, place = "orders-0/00000000000000000000.log", "orders-0/manifest.json"
    *_, last = [at for at, _ in walk(whole_files()[path])]
    manifest = attrs.evolve(decode_manifest(whole_files()[place], directory="orders-0"), durable_end=0)
    written = encode_manifest(manifest, directory="orders-0")
    disk = disk_with({**whole_files(), path: whole_files()[path][:last], place: written})
    disk.boot_id = "after a reboot"
    result = repaired(disk, whole())
    assert [damage.kind for damage in result.plan.damages] == ["missing end"]
    assert result.complaints == []


def test_removed_files() -> None:
    wrong = [f"{path}: {complaint}" for path in whole_files() for complaint in after_removal(path).complaints]
    assert wrong == []


@pytest.mark.parametrize("is_stopped", [True, False])
def test_removed_directories(*, is_stopped: bool) -> None:
    """With the mark of a stop, which knows where each log ended, and without it."""
    files = {path: data for path, data in whole_files().items() if is_stopped or path != CLEAN_FILE}
    directories = sorted({path.partition("/")[0] for path in files if "/" in path})
    wrong = [
        f"{directory}: {complaint}"
        for directory in directories
        for complaint in after_loss_of(directory, files).complaints
    ]
    assert wrong == []


def test_pairs_of_damages() -> None:
    """In logs, and in the files that say which logs there were and how far they went. An index says nothing
    that its log does not.
    """
    paths = [path for path in whole_files() if not path.endswith(("index", META_FILE))]
    number, wrong = sweep_pairs(damages(1, paths))
    assert wrong == []
    assert number > 200


@pytest.mark.parametrize(
    "repair", [partial(after_flip, CATALOGUE_FILE, 20, 0), partial(after_removal, CATALOGUE_FILE)]
)
def test_a_damaged_catalogue_is_in_the_report_and_is_repaired(repair: Callable[[], Repaired]) -> None:
    result = repair()
    assert [damage.file for damage in result.plan.damages] == [CATALOGUE_FILE]
    assert result.complaints == []


def forget(log: SalvagedLog, evidence: Evidence) -> list[Settled]:
    return []


@pytest.mark.parametrize(
    ("offset", "complaint"), [(2, "missing: orders-0 0"), (4, "wrong: orders-0 3 aborted")]
)
def test_a_repair_that_forgets_markers_is_found(
    offset: int, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost COMMIT hides committed records, and a lost ABORT shows aborted ones."""
    path = "orders-0/00000000000000000000.log"
    at = next(at for at, header in walk(whole_files()[path]) if header.base_offset == offset)
    assert after_flip(path, at + 70, 0).complaints == []
    monkeypatch.setattr(losses, "settle_lost", forget)
    assert complaint in after_flip(path, at + 70, 0).complaints
