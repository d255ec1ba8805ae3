"""A repair after any single damage: nothing wrong is served, and nothing is missing that was not told."""

from __future__ import annotations

import random

from tests.repair.sweep import after_removal, places, sweep, whole_files

SAMPLE = 60  # `python -m tests.repair.sweep` flips every byte


def test_flipped_bytes() -> None:
    kinds, wrong = sweep(1, random.Random(1).sample(places(), SAMPLE))
    assert wrong == []
    assert min(kinds["damaged bytes"], kinds["misplaced batch"], kinds["damaged derived file"]) > 0


def test_removed_files() -> None:
    wrong = [f"{path}: {complaint}" for path in whole_files() for complaint in after_removal(path).complaints]
    assert wrong == []
