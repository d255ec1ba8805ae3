"""What waits for a held message: each message goes on in its turn, and each fault acts on it then."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from fencepost.broker.broker_settings import BrokerSettings
from fencepost.broker.contract import Append, Input, Outcome, Received, Reply, ReplyTo
from fencepost.broker.node import Node
from fencepost.broker.server import Server
from fencepost.protocol import messages as m
from fencepost.protocol.frames import RequestFrame
from tests.broker.wire import PATIENCE_S, Wire, serving

pytestmark = pytest.mark.trio

ASKED = (m.Metadata(topics=None), m.FindCoordinator(kind=0, key="a"), m.ListGroups(states=()))
HOLD_THE_FIRST = "when * sends Metadata do hold"


class Taken(list[str]):
    """An observer that lists the requests that the node takes up."""

    def stepped(self, arrived: Input, outcome: Outcome) -> None:
        if isinstance(arrived, Received) and isinstance(arrived.request, ASKED_TYPES):
            self.append(type(arrived.request).__name__)

    def started(self, node: Node) -> None: ...
    def killed(self) -> None: ...
    def asked(self, to: ReplyTo, arrived: RequestFrame) -> None: ...
    def answered(self, answer: Reply, lost_because: str | None) -> None: ...
    def appended(self, append: Append) -> None: ...
    def struck(self, label: str, to: ReplyTo | None) -> None: ...


ASKED_TYPES = tuple(map(type, ASKED))


async def until(holds: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE_S):
        while not holds():
            await trio.lowlevel.checkpoint()


@asynccontextmanager
async def asked_with(*faults: str) -> AsyncGenerator[tuple[Server, Wire, Taken]]:
    """A server at which the three requests have arrived, on one connection. Fault 1 is the first."""
    taken = Taken()
    async with serving(BrokerSettings(faults=faults, observer=taken)) as (server, wires):
        wire = await wires.open()
        await wire.send(*ASKED)
        await until(lambda: len(next(iter(server.connections.opened.values())).in_progress) == len(ASKED))
        yield server, wire, taken


def struck(server: Server) -> list[int]:
    return [fault.struck for fault in server.faults.describe()]


async def test_two_holds_on_one_connection_end_each_for_itself() -> None:
    faults = (HOLD_THE_FIRST, "when * sends FindCoordinator do hold")
    async with asked_with(*faults) as (server, wire, taken):
        assert struck(server) == [1, 1]
        server.faults.end(1)
        assert taken == ["Metadata"], "the second one is still held, and so is what is behind it"
        server.faults.end(2)
        assert taken == ["Metadata", "FindCoordinator", "ListGroups"]
        for number in (1, 2, 3):
            await wire.answer(number)


async def test_a_hold_that_ends_behind_another_one_does_not_overtake_it() -> None:
    faults = (HOLD_THE_FIRST, "when * sends FindCoordinator do hold")
    async with asked_with(*faults) as (server, _, taken):
        server.faults.end(2)
        assert taken == []
        server.faults.end(1)
        assert taken == ["Metadata", "FindCoordinator", "ListGroups"]


async def test_a_message_may_be_held_again_as_it_is_received() -> None:
    faults = (HOLD_THE_FIRST, "when broker receives Metadata do hold")
    async with asked_with(*faults) as (server, _, taken):
        assert struck(server) == [1, 0]
        server.faults.end(1)
        assert (struck(server), taken) == ([1, 1], [])
        server.faults.end(2)
        assert taken == ["Metadata", "FindCoordinator", "ListGroups"]


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("deliver twice", ["Metadata", "FindCoordinator", "FindCoordinator", "ListGroups"]),
        ("answer COORDINATOR_NOT_AVAILABLE", ["Metadata", "ListGroups"]),
        ("close the connection", ["Metadata", "FindCoordinator"]),
        ("drop", ["Metadata"]),
    ],
)
async def test_what_strikes_a_waiting_message_strikes_in_its_turn(action: str, expected: list[str]) -> None:
    """Its turn comes when the messages before it have gone on; a connection that breaks ends the line."""
    async with asked_with(HOLD_THE_FIRST, f"when * sends FindCoordinator do {action}") as (server, _, taken):
        assert (struck(server), taken) == ([1, 0], [])
        (_, waiting) = server.faults.describe()
        assert waiting.missing.endswith("and the message that it strikes waits for a held one")
        server.faults.end(1)
        assert (struck(server), taken) == ([1, 1], expected)


async def test_a_fault_that_is_removed_does_not_strike_what_waits_for_it() -> None:
    async with asked_with(HOLD_THE_FIRST, "when * sends FindCoordinator do drop") as (server, _, taken):
        server.faults.remove(2)
        server.faults.end(1)
        assert taken == ["Metadata", "FindCoordinator", "ListGroups"]


async def test_replies_wait_in_lines_too() -> None:
    faults = ("when broker sends Metadata reply do hold", "when broker sends FindCoordinator reply do hold")
    async with asked_with(*faults) as (server, wire, _):
        connection = next(iter(server.connections.opened.values()))
        await until(lambda: struck(server) == [1, 1])
        server.faults.end(1)
        assert sorted(connection.in_progress) == [2, 3]
        server.faults.end(2)
        for number in (1, 2, 3):
            await wire.answer(number)
