"""The network of a simulated world: what a participant takes that was paused, or is down."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attrs

from fencepost.simulator.scenarios.builder import scenario
from fencepost.simulator.scenarios.model import cases
from fencepost.simulator.scenarios.runner import record_case
from fencepost.simulator.world.history import Arrived, Lost, Sent, Struck
from fencepost.simulator.world.network import CLOSE, Network, SimulatedConnection


@attrs.define(eq=False)
class Server:
    """Takes messages, and is paused again after each."""

    participant: str = "node"
    host: str = "up"
    is_paused: bool = True
    backlog: list[Any] = attrs.Factory(list[Any])
    taken: list[Any] = attrs.Factory(list[Any])

    def asked(self, _connection: SimulatedConnection, message: Any) -> None:
        self.taken.append(message)
        self.is_paused = True

    def resume(self, network: Network) -> None:
        self.is_paused = False
        network.resume(self)  # pyright: ignore[reportArgumentType] - all that it uses


def test_who_is_paused_again_by_what_he_takes_loses_nothing_of_his_backlog() -> None:
    server, caller = Server(), SimpleNamespace(participant="p")
    network = Network(SimpleNamespace(events=SimpleNamespace(heard={})))  # pyright: ignore[reportArgumentType] - all that it uses
    connection = network.connect(caller, server)  # pyright: ignore[reportArgumentType] - all that it uses
    for message in ("first", "second", "third", CLOSE):
        network.arrive((connection.to_server, message))  # pyright: ignore[reportArgumentType] - nobody looks inside
    assert server.taken == []
    for count in range(1, 4):
        server.resume(network)
        assert server.taken == ["first", "second", "third"][:count]
        assert connection.is_open
    server.resume(network)
    assert (server.taken[-1], server.backlog, network.connections) == (CLOSE, [], {})


def test_a_request_to_a_node_that_is_down_is_lost() -> None:
    story = (
        scenario("down")
        .cluster(nodes=2, topics={"t": 2})
        .producer("p", "send t-0 a", "pause 5 s", "send t-0 b")
    )
    story = story.when("t-0 appends data").do("crash node 1", until="after 10 s")
    [case] = cases(story.scenario())
    events = record_case(case).history.events
    down, up = (place for place, event in enumerate(events) if isinstance(event, Struck))
    asked = {event.number for event in events if isinstance(event, Sent) and event.target == "node 1"}
    meanwhile = [
        event for event in events[down:up] if isinstance(event, Arrived | Lost) and event.number in asked
    ]
    assert meanwhile
    assert {getattr(event, "because", "arrived") for event in meanwhile} == {"the node is down"}
