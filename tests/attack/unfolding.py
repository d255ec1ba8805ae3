"""Columns of a few kilobytes that unfold to megabytes, or to millions of objects, for a Kafka client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgpack
import trio

from fencepost import Admin
from fencepost.protocol import messages as m
from fencepost.protocol.batches import MAGIC_COLUMNS, build_batch, walk
from fencepost.protocol.compression import Compression, compress
from fencepost.protocol.terms import IsolationLevel
from tests.attack.attacks import Attack
from tests.attack.scene import Scene
from tests.attack.wires import encoded, exchange
from tests.oracle.kafka_words import kafka_request

FOLDED = "folded"
FETCH_VERSION = 11
BATCHES_WITH_HEADERS = 20
EMPTY_HEADER = b"\x92\xa0\xc0"
NIL = b"\xc0"


def folded(record_count: int, *, values: bytes, headers: bytes = NIL) -> bytes:
    """A compressed batch of these columns."""
    payload = b"\x95" + NIL * 2 + values + NIL + headers
    batch = build_batch(
        compress(payload, Compression.ZSTD),
        magic=MAGIC_COLUMNS,
        attributes=Compression.ZSTD,
        record_count=record_count,
        last_offset_delta=record_count - 1,
        base_timestamp=1,
        max_timestamp=1,
    )
    return bytes(batch)


def array(count: int, entry: bytes) -> bytes:
    """A column of equal entries."""
    return b"\xdd" + count.to_bytes(4, "big") + entry * count


def batches(scene: Scene) -> Iterator[bytes]:
    """Text, too many bytes, one large record, many small ones, many headers, and a large one."""
    size = scene.scaled(8, 60) << 20
    zeros: Any = msgpack.packb([bytes(size)])
    yield folded(1, values=msgpack.packb(["x" * size]) or b"")
    yield folded(1, values=zeros + bytes(size))
    yield folded(1, values=zeros)
    yield folded(size, values=array(size, NIL))
    yield (
        folded(1, values=b"\x91" + NIL, headers=b"\x91" + array(340_000, EMPTY_HEADER)) * BATCHES_WITH_HEADERS
    )
    yield folded(1, values=b"\x91" + NIL, headers=b"\x91" + array(1, b"\x92\xa0" + zeros[1:]))


def create_folded(scene: Scene, partitions: int) -> None:
    with Admin(scene.target.address) as admin:
        admin.create_topic(FOLDED, partitions)


def delete_folded(scene: Scene) -> None:
    with Admin(scene.target.address) as admin:
        admin.delete_topic(FOLDED)


async def unfolding(scene: Scene) -> None:
    """Each batch in a partition of its own; then readers that ask for all of them at once."""
    stored = list(batches(scene)) * scene.scaled(2, 4)
    await trio.to_thread.run_sync(create_folded, scene, len(stored))
    for number, records in enumerate(stored):
        for at, header in walk(records):
            batch = records[at : at + header.size]
            part = m.ProducePartition(topic=FOLDED, partition=number, records=batch)
            produce = m.Produce(transactional_id=None, acks=1, timeout_ms=1_000, partitions=(part,))
            await exchange(scene, encoded([produce]), answers=1)
    received = answers = 0
    for first in range(len(stored)):
        order = [*range(first, len(stored)), *range(first)]  # as clients do, each begins at another partition
        parts = tuple(
            m.FetchPartition(topic=FOLDED, partition=number, fetch_offset=0, max_bytes=50 << 20)
            for number in order
        )
        fetch = m.Fetch(
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=50 << 20,
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            partitions=parts,
        )
        frame = kafka_request(fetch, version=FETCH_VERSION, correlation_id=1)
        done = await exchange(scene, frame, answers=1)
        received, answers = received + done.received, answers + done.answers
        if not done.answers:
            scene.faults.append("a Fetch has no answer")
    await trio.to_thread.run_sync(delete_folded, scene)  # `check` would find what is not bytes
    scene.figures |= {
        "KB stored": sum(map(len, stored)) // 1024,
        "fetches": len(stored),
        "answers": answers,
        "KB received": received // 1024,
    }


ATTACKS: tuple[Attack, ...] = (
    Attack(name="unfolding columns", does="kilobytes that a Kafka client reads as megabytes", act=unfolding),
)
