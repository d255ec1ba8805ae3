"""The same seed is the same history, in any process: however strings hash there, wherever objects lie."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulator import digests

PATIENCE_S = 300
OTHERS = ("4", "5", "9", "2")  # how strings hash elsewhere; what shows most often comes first


def told(hash_seed: str, fault: str = "") -> list[str]:
    """What a process of its own says."""
    done = subprocess.run(
        [sys.executable, "-m", digests.__name__, fault],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        check=True,
        text=True,
        timeout=PATIENCE_S,
    )
    return done.stdout.splitlines()


def test_every_process_tells_the_same_histories() -> None:
    here = list(digests.digests())
    assert len(set(here)) == len(here) > 2 * len(digests.SEEDS) + 1
    for hash_seed in ("0", "random"):
        assert told(hash_seed) == here


@pytest.mark.thorough
@pytest.mark.parametrize("fault", digests.FAULTS)
def test_whatever_does_not_follow_from_the_seed_shows(fault: str) -> None:
    told_before = told("1", fault)
    assert any(told(hash_seed, fault) != told_before for hash_seed in OTHERS)
