"""Frames at random: requests of valid structure and extreme meaning, and frames that mean nothing at all."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import islice
from time import time_ns
from typing import Any

import msgpack
import trio

from fencepost.broker.access.table import commits
from fencepost.protocol import messages as m
from fencepost.protocol.frames import FRAME_SIZE_MAX
from fencepost.simulator.actors.extremes import Extremes, Names
from fencepost.simulator.world.choices import Choices
from tests.attack.attacks import Attack
from tests.attack.scene import PATIENCE_S, Scene, fails_after
from tests.attack.wires import RECEIVE_SIZE, connections, encoded, send
from tests.broker.wire import Wire
from tests.topics import create_topic

STRANGE = "strange"
BLOCK = 50  # requests on one connection, sent without waiting
SENDERS = 10
QUIET_S = 0.05  # without an answer for so long, the broker waits for the rest of a frame
NUMBERS = (0, 1, 4, 5, 255, 1 << 16, 1 << 20, FRAME_SIZE_MAX, FRAME_SIZE_MAX + 1, (1 << 32) - 1)
LEAVES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    (1 << 63) - 1,
    -(1 << 63),
    (1 << 64) - 1,
    1.5,
    "",
    "x" * 300,
    b"\xff",
    [],
    {},
)


def extremes(scene: Scene) -> Extremes:
    """The same generator as in the simulator, with names of a stranger's own."""
    names = Names(
        topics=(STRANGE,),
        groups=(STRANGE,),
        transactional_ids=(STRANGE,),
        now_ms=lambda: time_ns() // 1_000_000,
    )
    return Extremes(Choices(scene.chance.randrange(1 << 30)), names)


def create(address: str) -> None:
    """The stranger's topic."""
    create_topic(address, STRANGE, partitions=2)


# --- with meaning -------------------------------------------------------------------------------------------


async def extreme_requests(scene: Scene) -> None:
    """Blocks of requests, each followed by one that must be answered, unless the connection is closed."""
    await trio.to_thread.run_sync(create, scene.target.address)
    drawn, blocks = extremes(scene), scene.scaled(2, 100)
    answers = closed = 0
    for _ in range(blocks):
        requests = [*islice(strange_requests(drawn), BLOCK), m.ApiVersions()]
        async with scene.target.wire() as wire, trio.open_nursery() as nursery:
            nursery.start_soon(send_all, wire, requests)
            try:
                with fails_after(PATIENCE_S, "a block of extreme requests: the last one has no reply"):
                    await wire.answer(len(requests))
            except (EOFError, trio.BrokenResourceError):
                closed += 1
            answers += len(wire.arrived)
            nursery.cancel_scope.cancel()
    scene.figures |= {"requests": blocks * BLOCK, "replies": answers, "connections closed": closed}


def strange_requests(drawn: Extremes) -> Iterator[m.Request]:
    """Requests without COMMIT markers. Without ACLs, a client on the broker's machine may ask for them, as in
    Kafka; `check` then rightly reports a commit that no coordinator decided.
    """
    while True:
        request = drawn.request()
        if not (isinstance(request, m.WriteTxnMarkers) and commits(request)):
            yield request


async def send_all(wire: Wire, requests: list[m.Request]) -> None:
    """All of them, unless the broker closes the connection meanwhile."""
    try:
        await wire.send(*requests)
    except trio.BrokenResourceError:
        return


# --- without ------------------------------------------------------------------------------------------------


def sized(content: bytes) -> bytes:
    """With its length before it."""
    return len(content).to_bytes(4, "big") + content


def flip_bits(frame: bytes, chance: random.Random) -> bytes:
    """A few bits behind the length."""
    changed = bytearray(frame)
    for _ in range(chance.randint(1, 8)):
        changed[chance.randrange(4, len(frame))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def cut(frame: bytes, chance: random.Random) -> bytes:
    """The beginning, with a length that fits it."""
    return sized(frame[4 : chance.randrange(4, len(frame))])


def change_length(frame: bytes, chance: random.Random) -> bytes:
    """Another length of the frame."""
    return chance.choice(NUMBERS).to_bytes(4, "big") + frame[4:]


def change_header_length(frame: bytes, chance: random.Random) -> bytes:
    """Another length of what msgpack decodes."""
    return frame[:4] + chance.choice(NUMBERS).to_bytes(4, "big") + frame[8:]


def change_leaf(frame: bytes, chance: random.Random) -> bytes:
    """A value of another type in the place of one that the request has."""
    length = int.from_bytes(frame[4:8], "big")
    header = msgpack.unpackb(frame[8 : 8 + length], strict_map_key=False)
    place = header
    while True:
        index = chance.randrange(len(place))
        if not isinstance(place[index], list) or not place[index] or chance.random() < 0.2:
            break
        place = place[index]
    place[index] = chance.choice(LEAVES)
    return sized(sized(msgpack.packb(header)) + frame[8 + length :])


def noise(_frame: bytes, chance: random.Random) -> bytes:
    """Random bytes with a length that fits them."""
    return sized(chance.randbytes(chance.randint(0, 2_000)))


MUTATIONS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    flip_bits,
    cut,
    change_length,
    change_header_length,
    change_leaf,
    noise,
)


async def meaningless_frames(scene: Scene) -> None:
    """Frames of real requests, each broken in one way, on connections that are used until they are closed."""
    count = scene.scaled(60, 5_000)
    frames = broken_frames(extremes(scene), scene.chance)
    some = [list(islice(frames, count // SENDERS)) for _ in range(SENDERS)]
    closed = 0

    async def send_some(mine: list[bytes]) -> None:
        nonlocal closed
        while mine:
            async with connections(scene, 1) as (stream,):
                is_open = True
                while is_open and mine:
                    await send(stream, mine.pop())
                    is_open = await answers_something(stream)
                closed += not is_open

    async with trio.open_nursery() as nursery:
        for mine in some:
            nursery.start_soon(send_some, mine)
    scene.figures |= {"frames": count // SENDERS * SENDERS, "connections closed": closed}


def broken_frames(drawn: Extremes, chance: random.Random) -> Iterator[bytes]:
    """Frames without end."""
    while True:
        yield chance.choice(MUTATIONS)(encoded([drawn.request()]), chance)


async def answers_something(stream: trio.SocketStream) -> bool:
    """False once the broker has closed the connection, or waits for more than was sent."""
    with trio.move_on_after(QUIET_S):
        try:
            return bool(await stream.receive_some(RECEIVE_SIZE))
        except trio.BrokenResourceError:
            return False
    return False


ATTACKS: tuple[Attack, ...] = (
    Attack(name="extreme requests", does="valid structure, extreme meaning", act=extreme_requests),
    Attack(name="meaningless frames", does="bits, lengths and types that are wrong", act=meaningless_frames),
)
