"""The tests of faults on a real broker find each fault that says it struck and does nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost.broker.faults import NOT_PLAYED
from fencepost.faults.phrases import ActionKind
from tests.broker.fault_mutations import IDLE_FAULTS, IdleFault
from tests.simulator.planting import planted


@pytest.mark.parametrize("idle", IDLE_FAULTS, ids=lambda idle: idle.name)
def test_a_fault_that_only_says_it_struck_is_found(idle: IdleFault, tmp_path: Path) -> None:
    # Not FaultNeverStruck, which is no AssertionError: the fault says that it did.
    with planted(idle.mutation), pytest.raises((AssertionError, pytest.fail.Exception)):
        idle.proof(tmp_path)


def test_every_action_of_a_real_broker_has_a_planted_bug() -> None:
    assert {idle.kind for idle in IDLE_FAULTS} == set(ActionKind) - NOT_PLAYED.keys()
