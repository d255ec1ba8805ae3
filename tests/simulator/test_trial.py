"""How a trial ends that does not end well: as a violation with its rule and evidence, whatever happened."""

from __future__ import annotations

from fencepost.simulator.fuzz.worlds import try_seed
from fencepost.simulator.run import CORE_FAILED
from tests.simulator.planting import Edit, Mutation, planted


def test_whatever_a_core_raises_is_a_finding() -> None:
    odd = Mutation(
        "an odd exception",
        breaks="nothing that anybody foresaw.",
        edits=(
            Edit("broker.transactions.markers:_finish", {"state = log.coordinator": "raise OSError(name)"}),
        ),
    )
    with planted(odd):
        found = try_seed(0).violation
    assert found is not None
    assert found.rule == CORE_FAILED
    assert found.evidence.startswith("OSError in _finish")
