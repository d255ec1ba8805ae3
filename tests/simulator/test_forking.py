"""Forks and fingerprints of whole brokers and clients: what a search over all futures stands on."""

from __future__ import annotations

import pytest

from fencepost.protocol.fork import fingerprint, fork
from fencepost.simulator.explore import ExploreConfig, search
from fencepost.simulator.explore.broker import ExploredBroker
from fencepost.simulator.explore.steps import Move, Steps

WORLDS = [
    ExploreConfig(),
    ExploreConfig(transaction_version=0, partition_verification=True),
    ExploreConfig(producers=2, transactions=1, retries=0, partitions=2, max_states=2_000),
    ExploreConfig(transactions=1, retries=0, crashes=1),
]


@pytest.mark.parametrize("config", WORLDS, ids=str)
def test_a_step_of_a_fork_leaves_the_original_alone(config: ExploreConfig) -> None:
    """Every state was forked for each of its steps: none of them may have changed since it got its number."""
    one = search.StateSearch(config)
    one.run(None)
    brokers, processes = one.steps.brokers, one.steps.processes
    assert [brokers.number(each, key=fingerprint(each)) for each in brokers.values] == [*range(len(brokers))]
    assert [processes.number(each, key=fingerprint(each)) for each in processes.values] == [
        *range(len(processes))
    ]


class Remembering(Steps):
    """Keeps every broker whose fingerprint was known already, and every step that was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.doubles: list[tuple[int, ExploredBroker]] = []
        self.asked: dict[int, dict[tuple[int, int], None]] = {}

    def keep_broker(self, broker: ExploredBroker) -> int:
        known = len(self.brokers)
        number = super().keep_broker(broker)
        if number < known:
            self.doubles.append((number, fork(broker)))
        return number

    def broker(self, broker: int, connection: int, message: int) -> Move:
        self.asked.setdefault(broker, {})[connection, message] = None
        return super().broker(broker, connection, message)


@pytest.mark.parametrize("config", WORLDS, ids=str)
def test_brokers_with_equal_fingerprints_act_alike(
    config: ExploreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second broker with a fingerprint answers as the first one, and comes to an equal state again."""
    monkeypatch.setattr(search, "Steps", Remembering)
    one = search.StateSearch(config)
    one.run(None)
    steps = one.steps
    assert isinstance(steps, Remembering)
    compared = 0
    for number, double in steps.doubles[:: 1 + len(steps.doubles) // 200]:
        for connection, message in steps.asked.get(number, ()):
            first, second = fork(steps.brokers[number]), fork(double)
            posted = steps.deliver(first, connection, message)
            assert steps.deliver(second, connection, message) == posted
            assert fingerprint(first) == fingerprint(second)
            compared += 1
    assert compared > 50, "many states were reached in two ways"
