"""Frames of Kafka's protocol: damaged in every way, and small ones that would lead to much work or memory."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from itertools import islice
from typing import Any

import trio
from kio.index import load_request_schema

from fencepost.kafka_bridge.apis import SERVED
from fencepost.protocol.frames import FRAME_SIZE_MAX
from fencepost.protocol.primitives import put_unsigned_varint
from tests.attack.attacks import Attack
from tests.attack.scene import Scene
from tests.attack.wires import RECEIVE_SIZE, connections, exchange, send
from tests.kafka_bridge.samples import bytes_of, sample, with_unknown_tags
from tests.topics import create_topic

SENDERS = 10
WIDE = "wide-for-kafka"
INTACT = 0.1  # of the frames
LENGTHS = (
    b"\xff\xff",
    b"\x80\x00\x00\x00",
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x7f",
    b"\0",
    b"\0\0\0\0",
)
PRODUCE, METADATA, OFFSET_FETCH, FIND_COORDINATOR, DESCRIBE_GROUPS, ADD_PARTITIONS = 0, 3, 9, 10, 15, 24
VERSIONS = [(api.key, version) for api in SERVED.values() for version in range(api.first, api.last + 1)]


# --- damaged --------------------------------------------------------------------------------------------


def flip_bits(frame: bytearray, chance: random.Random) -> None:
    for _ in range(chance.randint(1, 8)):
        frame[chance.randrange(len(frame))] ^= 1 << chance.randrange(8)


def cut(frame: bytearray, chance: random.Random) -> None:
    del frame[chance.randrange(1, len(frame)) :]


def put_length(frame: bytearray, chance: random.Random) -> None:
    at, length = chance.randrange(len(frame)), chance.choice(LENGTHS)
    frame[at : at + len(length)] = length


def insert_length(frame: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(frame))
    frame[at:at] = chance.choice(LENGTHS)


def leave_out(frame: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(frame))
    del frame[at : at + chance.randint(1, 8)]


DAMAGES: tuple[Callable[[bytearray, random.Random], None], ...] = (
    flip_bits,
    cut,
    put_length,
    insert_length,
    leave_out,
)


@cache
def _schema(key: int, version: int) -> Any:
    return load_request_schema(key, version)


def kafka_frame(key: int, version: int, body: bytes) -> bytearray:
    """A request without its length."""
    header = struct.pack(">hhih", key, version, 1, 1) + b"x"
    return bytearray(header + (b"\0" if _schema(key, version).__flexible__ else b"") + body)


def sized(frame: bytearray | bytes) -> bytes:
    return len(frame).to_bytes(4, "big") + frame


def damaged_frames(chance: random.Random) -> Iterator[bytes]:
    """Frames of every API in every version, without end; some of them are intact."""
    while True:
        key, version = chance.choice(VERSIONS)
        frame = kafka_frame(key, version, with_unknown_tags(sample(_schema(key, version), chance), chance))
        if chance.random() > INTACT:
            chance.choice(DAMAGES)(frame, chance)
        yield sized(frame)


async def damaged(scene: Scene) -> None:
    """Each on a connection of its own, whose end follows: the broker answers or closes, and never waits."""
    count = scene.kafka_frames or scene.scaled(200, 10_000)
    frames = islice(damaged_frames(scene.chance), count)
    answered = 0

    async def send_some() -> None:
        nonlocal answered
        for frame in frames:
            async with connections(scene, 1) as (stream,):
                await send(stream, frame)
                answered += await is_answered(stream)

    async with trio.open_nursery() as nursery:
        for _ in range(SENDERS):
            nursery.start_soon(send_some)
    scene.figures |= {"frames": count, "answered": answered}


async def is_answered(stream: trio.SocketStream) -> bool:
    """Whether bytes come before the broker closes the connection, too."""
    size = 0
    with suppress(OSError, trio.BrokenResourceError):  # the broker was first
        await stream.send_eof()
        while chunk := await stream.receive_some(RECEIVE_SIZE):
            size += len(chunk)
    return size > 0


# --- small, with large effects ----------------------------------------------------------------------------


def encoded(key: int, version: int, **values: Any) -> bytes:
    """A request from kio's fields; nested ones are given as mappings."""
    return sized(kafka_frame(key, version, bytes_of(_schema(key, version), values)))


def names(count: int) -> list[str]:
    return [f"{number:0100}" for number in range(count)]


def amplifying(scene: Scene) -> Iterator[bytes]:
    """One API after the other, the same name or many."""
    count = scene.scaled(500, 9_000)
    topic = {"name": WIDE}
    yield from [encoded(METADATA, 4, topics=[topic] * 1_000, allow_auto_topic_creation=False)] * 3
    yield encoded(DESCRIBE_GROUPS, 5, groups=["g" * 100] * count, include_authorized_operations=False)
    for keys in (["g"] * count, names(count)):
        yield encoded(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=keys)
        groups = [{"group_id": key, "topics": None} for key in keys]
        yield encoded(OFFSET_FETCH, 8, groups=groups, require_stable=False)
        added: list[dict[str, Any]] = [
            {
                "transactional_id": key,
                "producer_id": 1,
                "producer_epoch": 0,
                "verify_only": True,
                "topics": [],
            }
            for key in keys
        ]
        yield encoded(ADD_PARTITIONS, 4, transactions=added)


async def amplifiers(scene: Scene) -> None:
    """Each is answered, or closes its connection."""
    await trio.to_thread.run_sync(create_wide, scene)
    sent = received = answers = 0
    frames = list(amplifying(scene))
    for frame in frames:
        done = await exchange(scene, frame, answers=1)
        sent, received, answers = sent + len(frame), received + done.received, answers + done.answers
        if not done.answers and not done.is_closed:
            scene.faults.append("a Kafka request has no reply")
    scene.figures |= {
        "requests": len(frames),
        "replies": answers,
        "KB sent": sent // 1024,
        "KB received": received // 1024,
    }


def create_wide(scene: Scene) -> None:
    create_topic(scene.target.address, WIDE, partitions=scene.scaled(50, 2_000))


def empty_entries(topic: bytes, size: int) -> bytes:
    """A Produce of version 9 with as many of these topics as fit."""
    count = size // len(topic)
    body = bytearray(b"\0" + struct.pack(">hi", 1, 1_000))
    put_unsigned_varint(body, count + 1)
    return sized(kafka_frame(PRODUCE, 9, bytes(body) + topic * count + b"\0"))


async def many_entries(scene: Scene) -> None:
    """Produce requests that would become gigabytes of objects, and arrays that announce too much."""
    no_partitions, no_records = b"\1\1\0", b"\1\2" + b"\0\0\0\0\0\0" + b"\0"
    most = scene.scaled(1 << 20, FRAME_SIZE_MAX - 1_000)
    fewer = scene.scaled(1_000, 32_000)
    frames = [
        empty_entries(no_partitions, most),
        empty_entries(no_records, most),
        empty_entries(no_partitions, len(no_partitions) * fewer),
        empty_entries(no_records, len(no_records) * fewer),
        sized(kafka_frame(PRODUCE, 9, b"\0" + struct.pack(">hi", 1, 1_000) + LENGTHS[4])),
        sized(kafka_frame(METADATA, 1, LENGTHS[2])),
    ]
    closed = 0
    for frame in frames * scene.scaled(1, 3):
        closed += (await exchange(scene, frame, answers=1)).is_closed
    scene.figures |= {"frames": len(frames) * scene.scaled(1, 3), "connections closed": closed}


ATTACKS: tuple[Attack, ...] = (
    Attack(name="damaged Kafka frames", does="every API in every version, broken", act=damaged),
    Attack(name="Kafka amplifiers", does="one name or many, thousands of times in a request", act=amplifiers),
    Attack(name="Kafka entries", does="millions of empty topics and partitions", act=many_entries),
)
