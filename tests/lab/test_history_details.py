"""States that follow from a history alone, compared with those that the nodes themselves had."""

from __future__ import annotations

from typing import Any, Final, cast

import pytest

from fencepost.lab.document import RunDocument
from fencepost.lab.history_details import details_of
from fencepost.lab.recordings import record
from fencepost.simulation import read_scenario
from fencepost.simulator.scenarios.model import variants
from fencepost.simulator.scenarios.runner import record_case

# What a history does not tell, besides the end of processes: guards, missing markers, epochs of leaders.
UNTOLD: Final = ("pending", "guard", "coordinator_epoch", "leader_epoch", "start", "leader")


def told(state: dict[str, Any]) -> dict[str, Any]:
    """What both can know of states."""
    kinds = ("txn/", "log/", "producer/", "participant/")
    return {
        key: _told(value)
        for key, value in state.items()
        if key.startswith(kinds) and "/__" not in key and value != "ended"
    }


def _told(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: each for name, each in cast("dict[str, Any]", value).items() if name not in UNTOLD}


def end_of(document: RunDocument) -> dict[str, Any]:
    """Every state at the end of a run."""
    state: dict[str, Any] = {}
    for step in document["steps"]:
        state |= step.get("changes", {})
    return {key: value for key, value in state.items() if value is not None}


@pytest.mark.parametrize(
    "name", ["late_end_txn", "zombie_fencing", "duplicate_after_lost_ack", "lost_sequence"]
)
def test_the_states_at_the_end_are_those_of_the_nodes(name: str) -> None:
    ((_, case),) = variants(read_scenario(name), 1)
    seen, alone = told(end_of(record(case))), told(details_of(record_case(case).history).state)
    for key, value in seen.items():
        if not (key.startswith("log/") and value["end"] == 0):  # of an empty log nothing was heard
            assert alone[key] == value, key
