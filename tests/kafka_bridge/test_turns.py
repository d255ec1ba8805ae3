"""A Kafka request that becomes many for the node: other clients get their turns in between."""

from __future__ import annotations

import struct
from collections import Counter
from typing import Any

import pytest
import trio

from fencepost.broker.contract import Input, Outcome, Received
from fencepost.broker.server import REQUESTS_AT_ONCE
from fencepost.kafka_bridge.connection import KafkaProtocol
from fencepost.protocol.frames import ReplyFrame
from fencepost.protocol.messages import FindCoordinator
from fencepost.protocol.wire_protocol import Asked
from tests.attack.kafka_frames import FIND_COORDINATOR, OFFSET_FETCH, encoded
from tests.broker.test_connections import Rounds, until
from tests.broker.wire import PATIENCE_S, Wire, serving
from tests.kafka_bridge.test_odd_requests import DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS

pytestmark = pytest.mark.trio

COUNT = 20 * REQUESTS_AT_ONCE
NAMES = [f"g{number}" for number in range(COUNT)]
GROUP = 32


def frame(api_key: int, version: int, **values: Any) -> Any:
    return pytest.param(encoded(api_key, version, **values), id=str(api_key))


MANY = (
    frame(
        DESCRIBE_CONFIGS,
        1,
        resources=[
            {"resource_type": GROUP, "resource_name": name, "configuration_keys": None} for name in NAMES
        ],
        include_synonyms=False,
    ),
    frame(
        INCREMENTAL_ALTER_CONFIGS,
        1,
        resources=[{"resource_type": GROUP, "resource_name": name, "configs": []} for name in NAMES],
        validate_only=False,
    ),
    frame(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=NAMES),
    frame(
        OFFSET_FETCH, 8, groups=[{"group_id": name, "topics": None} for name in NAMES], require_stable=False
    ),
)


async def answered(wire: Wire) -> None:
    """Read a whole response."""
    data = b""
    with trio.fail_after(PATIENCE_S):
        while len(data) < 4 or len(data) < 4 + struct.unpack(">i", data[:4])[0]:
            received = await wire.stream.receive_some(1 << 16)
            assert received, "the broker closed the connection"
            data += received


@pytest.mark.parametrize("many", MANY)
async def test_a_request_that_becomes_many_for_the_node_is_carried_out_in_parts(
    many: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds, taken, room = Rounds(), Counter[int](), list[int]()
    async with serving() as (server, wires):
        watch, pool = server.host.watch, server.connections.requests
        reply_of_protocol = KafkaProtocol.reply
        await (await wires.open()).prepare()

        def counted(arrived: Input, outcome: Outcome) -> None:
            if type(arrived) is Received:
                taken[rounds.number] += 1
            if watch is not None:
                watch(arrived, outcome)

        def reply(protocol: KafkaProtocol, frame: ReplyFrame) -> Asked:
            room.append(pool.taken)
            return reply_of_protocol(protocol, frame)

        server.host.watch = counted
        monkeypatch.setattr(KafkaProtocol, "reply", reply)
        trio.lowlevel.add_instrument(rounds)
        for _ in range(2):  # the connection goes on
            wire = await wires.open()
            await wire.stream.send_all(many)
            await until(lambda: pool.taken > 0 and taken.total() > 0)  # room is held until all are answered
            await answered(wire)
            assert pool.taken == 0
        trio.lowlevel.remove_instrument(rounds)
    assert taken.total() == 2 * COUNT
    assert max(taken.values()) == REQUESTS_AT_ONCE
    assert room.count(0) == 2, "only the last reply gives the room back"


def keys(count: int) -> bytes:
    return encoded(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=NAMES[:count])


@pytest.mark.parametrize("count", [20, COUNT], ids=["at once", "in parts"])
@pytest.mark.parametrize(
    ("fault", "taken"),
    [
        ("when * sends FindCoordinator #3 do drop", 2),
        ("when * sends FindCoordinator #3 do close the connection", 3),
        ("when broker receives FindCoordinator #3 do drop", 2),
        (f"when * sends FindCoordinator #{COUNT - 1} do close the connection", COUNT - 1),
        ("when * sends FindCoordinator #3 do crash broker", 0),  # nothing is handled before the turn
    ],
)
async def test_after_a_fault_nothing_more_of_the_request_reaches_the_node(
    fault: str, taken: int, count: int
) -> None:
    taken = min(taken, count)
    asked: list[str] = []
    async with serving() as (server, wires):
        await (await wires.open()).prepare()
        watch = server.host.watch

        def noted(arrived: Input, outcome: Outcome) -> None:
            if type(arrived) is Received and type(arrived.request) is FindCoordinator:
                asked.append(arrived.request.key)
            if watch is not None:
                watch(arrived, outcome)

        server.host.watch = noted
        server.faults.add(fault)
        wire = await wires.open()
        await wire.stream.send_all(keys(count))
        if taken < count:
            assert await wire.is_closed_by_peer()
        else:
            await answered(wire)
        assert server.connections.requests.taken == 0
    assert asked == NAMES[:taken]


@pytest.mark.parametrize("count", [20, COUNT], ids=["at once", "in parts"])
async def test_a_request_that_is_late_arrives_whole(count: int) -> None:
    """Its connection is closed before it arrives; that is not a reason to lose the rest."""
    asked: list[str] = []
    async with serving() as (server, wires):
        await (await wires.open()).prepare()
        server.host.watch = lambda arrived, _: asked.append(type(arrived).__name__)
        planned = server.faults.add("when * sends FindCoordinator do delay until after 1 min")
        wire = await wires.open()
        await wire.stream.send_all(keys(count))
        assert await wire.is_closed_by_peer()
        assert "Received" not in asked
        server.faults.end(planned.number)
        server.turn()
    assert asked.count("Received") == count


async def test_a_client_may_leave_while_its_request_is_carried_out() -> None:
    async with serving() as (server, wires):
        pool, offered = server.connections.requests, server.host.requests_waiting
        wire = await wires.open()
        await wire.stream.send_all(MANY[0].values[0])
        await until(lambda: pool.taken > 0)
        await wire.stream.aclose()
        await until(lambda: not server.connections.opened)
        assert pool.taken == 0
        assert server.host.requests_waiting == offered
        assert server.host.is_idle
