"""Attacks by how a peer behaves: it is slow, deaf, gone, or there are too many of it."""

from __future__ import annotations

import trio

from fencepost import Admin, Producer
from fencepost.broker.admission import STRANGER_REQUESTS_MAX
from fencepost.broker.memory import READ_SIZE
from fencepost.protocol import messages as m
from fencepost.protocol.frames import FRAME_SIZE_MAX
from fencepost.protocol.terms import IsolationLevel
from tests.attack.attacks import Attack
from tests.attack.scene import MIB, BrokerOptions, Scene
from tests.attack.wires import Exchange, connections, encoded, exchange, reset, send

LARGE_TOPIC = "large"
RECORD_BYTES = 500_000
FETCH_BYTES = 50 * MIB
OPEN_FILES = 200


# --- slow -------------------------------------------------------------------------------------------------


async def byte_by_byte(scene: Scene) -> None:
    """Many connections that send a request one byte per transaction of the canary."""
    count, length = scene.scaled(50, 1_000), scene.scaled(5, 30)
    request = encoded([m.Metadata(topics=("x" * 100,))])
    async with connections(scene, count) as streams:
        for byte in request[:length]:
            for stream in streams:
                await stream.send_all(bytes([byte]))
            await scene.canary.meanwhile(1)
    scene.figures |= {"connections": count, "bytes each": length}


async def unfinished_frames(scene: Scene) -> None:
    """Frames that announce the largest size, and stay unfinished while the canary works."""
    count, size = scene.scaled(4, 40), scene.scaled(2 * MIB, 50 * MIB)
    announced = FRAME_SIZE_MAX.to_bytes(4, "big") + (16).to_bytes(4, "big")
    taken = 0
    async with connections(scene, count) as streams:
        for stream in streams:
            taken += await send(stream, announced + bytes(size))
        await scene.canary.meanwhile(scene.scaled(3, 20))
    scene.figures |= {"connections": count, "MB sent": round(taken / MIB)}


# --- strange ----------------------------------------------------------------------------------------------


async def login_flood(scene: Scene) -> None:
    """Strangers who never log in: each sends as many requests as its connection takes, again and again."""
    strangers, requests = scene.scaled(2, 20), scene.scaled(1_000, 20_000)
    flood = encoded([m.ApiVersions()] * requests)
    done: list[Exchange] = []

    async def keep_asking() -> None:
        while True:
            done.append(await exchange(scene, flood, answers=requests))

    async with trio.open_nursery() as nursery:
        for _ in range(strangers):
            nursery.start_soon(keep_asking)
        await scene.canary.meanwhile(scene.scaled(3, 100))
        while len(done) < strangers:
            await scene.canary.lines(1)
        nursery.cancel_scope.cancel()
    answers = max(each.answers for each in done)
    scene.figures |= {"strangers": strangers, "connections": len(done), "requests each": requests}
    if answers > STRANGER_REQUESTS_MAX + 1:  # the last one is the refusal
        scene.faults.append(f"a stranger got {answers} replies before a login")


# --- deaf -------------------------------------------------------------------------------------------------


def fill(address: str, megabytes: int) -> None:
    """A topic with large records."""
    with Admin(address) as admin:
        if LARGE_TOPIC not in {topic.topic for topic in admin.list_topics()}:
            admin.create_topic(LARGE_TOPIC, partitions=1)
    with Producer(address) as producer:
        for _ in range(megabytes * 1_000_000 // RECORD_BYTES):
            producer.send(LARGE_TOPIC, bytes(RECORD_BYTES))
        producer.flush()


def large_fetches(count: int) -> bytes:
    """Fetches that are answered with as much as a broker gives."""
    part = m.FetchPartition(topic=LARGE_TOPIC, partition=0, fetch_offset=0, max_bytes=FETCH_BYTES)
    request = m.Fetch(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=FETCH_BYTES,
        isolation_level=IsolationLevel.READ_UNCOMMITTED,
        partitions=(part,),
    )
    return encoded([request] * count)


async def dead_readers(scene: Scene) -> None:
    """Readers that ask for everything, many times, and never read an answer."""
    count, fetches = scene.scaled(3, 10), scene.scaled(10, 50)
    await trio.to_thread.run_sync(fill, scene.target.address, scene.scaled(4, 60))
    async with connections(scene, count) as streams:
        for stream in streams:
            await send(stream, large_fetches(fetches))
        await scene.canary.meanwhile(scene.scaled(3, 20))
    scene.figures |= {"readers": count, "fetches each": fetches}


async def reset_readers(scene: Scene) -> None:
    """Readers that ask for everything, many times, and reset the connection at once."""
    count, fetches = scene.scaled(2, 10), scene.scaled(20, 1_000)
    await trio.to_thread.run_sync(fill, scene.target.address, scene.scaled(4, 60))
    questions = large_fetches(fetches)
    for _ in range(count):
        stream = await scene.target.connect()
        await send(stream, questions)
        reset(stream)
        await scene.canary.meanwhile(1)
    scene.figures |= {"readers": count, "fetches each": fetches}


async def deaf_pipeline(scene: Scene) -> None:
    """Small requests without end on one connection, whose answers nobody reads."""
    count = scene.scaled(1_000, 20_000)
    async with connections(scene, 1) as (stream,):
        sent = await send(stream, encoded([m.Metadata(topics=None)] * count))
        await scene.canary.meanwhile(scene.scaled(3, 20))
    scene.figures |= {"requests": count, "KB sent": round(sent / 1024)}


# --- all together ---------------------------------------------------------------------------------------


async def hoarders(scene: Scene) -> None:
    """At once: frames that stop shortly before their end, frames too small to need room, and dead readers."""
    count, size = scene.scaled(4, 40), scene.scaled(1 * MIB, 90 * MIB)
    announced = FRAME_SIZE_MAX.to_bytes(4, "big") + (16).to_bytes(4, "big")
    await trio.to_thread.run_sync(fill, scene.target.address, scene.scaled(4, 60))
    kinds = (announced + bytes(size), announced + bytes(READ_SIZE - 9), large_fetches(4))
    taken: list[int] = []

    async def send_to(stream: trio.SocketStream, data: bytes) -> None:
        taken.append(await send(stream, data))

    async with connections(scene, len(kinds) * count) as streams, trio.open_nursery() as nursery:
        for number, stream in enumerate(streams):
            nursery.start_soon(send_to, stream, kinds[number % len(kinds)])
        await scene.canary.meanwhile(scene.scaled(3, 200))
        nursery.cancel_scope.cancel()
    scene.figures |= {"connections": len(streams), "MB sent": round(sum(taken) / MIB)}


# --- many -------------------------------------------------------------------------------------------------


async def idle_connections(scene: Scene) -> None:
    """Connections that say nothing."""
    count = scene.scaled(100, 5_000)
    async with connections(scene, count):
        await scene.canary.meanwhile(scene.scaled(3, 50))
    scene.figures |= {"connections": count}


async def connection_storm(scene: Scene) -> None:
    """Connections that are opened, say half a word and close, in turn."""
    count = scene.scaled(100, 5_000)
    for number in range(count):
        stream = await scene.target.connect()
        await stream.send_all(b"\x00\x00\x00\x10fence"[: number % 10])
        stream.socket.close()
    scene.figures |= {"connections": count}


async def descriptors(scene: Scene) -> None:
    """More connections than the broker has file descriptors, while topics are to be created."""
    count = OPEN_FILES + scene.scaled(20, 200)
    async with connections(scene, count):
        await scene.canary.meanwhile(scene.scaled(3, 20))
    created = await trio.to_thread.run_sync(create_topics, scene.target.address, scene.scaled(3, 20))
    scene.figures |= {"connections": count, "open files": OPEN_FILES, "topics created after": created}


def create_topics(address: str, count: int) -> int:
    """Creates topics as any client does."""
    with Admin(address) as admin:
        for number in range(count):
            admin.create_topic(f"after-{number}", partitions=1)
    return count


ATTACKS: tuple[Attack, ...] = (
    Attack(name="a byte at a time", does="requests that arrive byte by byte", act=byte_by_byte),
    Attack(name="unfinished frames", does="100 MiB announced, half of it sent", act=unfinished_frames),
    Attack(
        name="login flood",
        does="requests without end from strangers who never log in",
        act=login_flood,
        options=BrokerOptions(has_users=True),
    ),
    Attack(name="dead readers", does="fetches of 50 MiB that nobody reads", act=dead_readers),
    Attack(
        name="hoarders",
        does="unfinished frames and dead readers at once, against the promised memory",
        act=hoarders,
        options=BrokerOptions(arguments=("--override", "max.connections=200")),
    ),
    Attack(name="reset readers", does="fetches of 50 MiB, and the connection is reset", act=reset_readers),
    Attack(name="deaf pipeline", does="small requests whose replies nobody reads", act=deaf_pipeline),
    Attack(name="idle connections", does="connections that say nothing", act=idle_connections),
    Attack(name="connection storm", does="connections opened and closed in turn", act=connection_storm),
    Attack(
        name="no descriptors left",
        does=f"more connections than the {OPEN_FILES} files that the broker may open",
        act=descriptors,
        options=BrokerOptions(open_files=OPEN_FILES),
    ),
)
