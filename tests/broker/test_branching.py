"""Copies and keys of a node: what a search over all futures stands on."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from fencepost.broker.cluster.controller import Controller
from fencepost.broker.groups.state import Groups
from fencepost.broker.node import Node
from fencepost.broker.partitions.partition import Partition
from fencepost.broker.purgatory import Following, Gathering, Log, ProducerIds
from fencepost.broker.transactions.state import Transactions
from fencepost.simulator.explore import search
from fencepost.simulator.explore.beginning import ExploreConfig
from fencepost.simulator.explore.broker import Broker
from fencepost.simulator.explore.steps import BrokerMove, Steps

# Every part of a node's state, with the fields that its key leaves out: each follows from others, never
# changes, or only says which number comes next.
LEFT_OUT: dict[type[Any], set[str]] = {
    Node: {"settings", "cluster", "readers", "tickets", "outcome"},
    Log: set(),
    Gathering: set(),
    ProducerIds: set(),
    Following: set(),
    Partition: {"guards_given", "log_start_batch"},
    Transactions: {"deadlines"},
    Controller: {"names"},
    Groups: set(),
}
IN_THE_KEY: dict[type[Any], set[str]] = {
    Node: {
        "logs", "following", "news", "producer_ids", "gatherings", "asked", "fetches", "marker_retries",
        "reelections", "scans_at_ms", "movable", "wakes_at_ms",
    },
    Log: {"partition", "coordinator", "waiting"},
    Gathering: {"to", "kind", "parts", "producer_ids"},
    ProducerIds: {"next_id", "end", "next_block", "is_asked"},
    Following: {"broker_epoch", "offset", "due_ms"},
    Partition: {
        "key", "leader_epoch", "log_start_offset", "log_end_offset", "high_watermark", "producers",
        "open_transactions", "unreplicated_txns", "verifying",
    },
    Transactions: {"coordinator_epoch", "records", "last_epochs", "other_ids", "pending", "pending_markers"},
    Controller: {"topics", "brokers", "removed", "topics_made", "next_producer_id"},
    Groups: {"committed", "pending", "records", "live", "member_ids_given"},
}  # fmt: skip

WORLDS = [
    ExploreConfig(),
    ExploreConfig(transaction_version=0, partition_verification=True),
    ExploreConfig(producers=2, transactions=1, retries=0, partitions=2, max_states=2_000),
    ExploreConfig(transactions=1, retries=0, crashes=1),
]


@pytest.mark.parametrize("part", LEFT_OUT, ids=lambda part: part.__name__)
def test_every_field_of_a_node_is_in_its_key_or_left_out_on_purpose(part: type[Any]) -> None:
    """A new field fails here until `copy_of` and `key_of` know about it."""
    assert {field.name for field in attrs.fields(part)} == LEFT_OUT[part] | IN_THE_KEY[part]


@pytest.mark.parametrize("config", WORLDS, ids=str)
def test_a_step_of_a_copy_leaves_the_original_alone(config: ExploreConfig) -> None:
    """Every state was copied for each of its steps: none of them may have changed since it got its number."""
    one = search.Search(config)
    one.run(None)
    brokers, processes = one.steps.brokers, one.steps.processes
    assert [brokers.number(broker.key(), broker) for broker in brokers.values] == list(range(len(brokers)))
    assert [processes.number(each.key(), each) for each in processes.values] == list(range(len(processes)))


class Remembering(Steps):
    """Keeps every broker that came with a key that was known already, and every step that was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.doubles: list[tuple[int, Broker]] = []
        self.asked: dict[int, dict[tuple[int, int], None]] = {}

    def keep_broker(self, broker: Broker) -> int:
        known = len(self.brokers)
        number = super().keep_broker(broker)
        if number < known:
            self.doubles.append((number, broker.copy()))
        return number

    def broker(self, broker: int, connection: int, message: int) -> BrokerMove:
        self.asked.setdefault(broker, {})[connection, message] = None
        return super().broker(broker, connection, message)


@pytest.mark.parametrize("config", WORLDS, ids=str)
def test_brokers_with_equal_keys_act_alike(config: ExploreConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came second with a key answers as what came first, and comes to an equal key again."""
    monkeypatch.setattr(search, "Steps", Remembering)
    one = search.Search(config)
    one.run(None)
    steps = one.steps
    assert isinstance(steps, Remembering)
    compared = 0
    for number, double in steps.doubles[:: 1 + len(steps.doubles) // 200]:
        for connection, message in steps.asked.get(number, ()):
            first, second = steps.brokers[number].copy(), double.copy()
            posted = steps.deliver(first, connection, message)
            assert steps.deliver(second, connection, message) == posted
            assert first.key() == second.key()
            compared += 1
    assert compared > 50, "many states were reached in two ways"
