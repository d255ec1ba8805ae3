"""Columns of a few kilobytes that unfold to megabytes, or to millions of objects, for a Kafka client."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import attrs
import msgpack
import trio

from fencepost import Admin
from fencepost.protocol import messages as m
from fencepost.protocol.batch_work import COMPRESSED_RECORDS_MAX
from fencepost.protocol.batches import MAGIC_COLUMNS, build_batch, walk
from fencepost.protocol.compression import Compression, compress
from fencepost.protocol.terms import NO_TOPIC_ID, IsolationLevel
from tests.attack.attacks import Attack
from tests.attack.scene import Scene
from tests.attack.wires import encoded, exchange
from tests.oracle.kafka_words import kafka_request
from tests.topics import create_topic

FOLDED = "folded"
FETCH_VERSION = 11
BATCHES_WITH_HEADERS = 20
EMPTY_HEADER = b"\x92\xa0\xc0"
NIL = b"\xc0"


def folded(
    record_count: int, *, values: bytes, keys: bytes = NIL, headers: bytes = NIL, late_ms: int = 0
) -> bytes:
    """A compressed batch of these columns, which says that a record is later than they are."""
    payload = b"\x95" + NIL + keys + values + NIL + headers
    batch = build_batch(
        compress(payload, Compression.ZSTD),
        magic=MAGIC_COLUMNS,
        attributes=Compression.ZSTD,
        record_count=record_count,
        last_offset_delta=record_count - 1,
        base_timestamp=1,
        max_timestamp=1 + late_ms,
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
    yield folded(COMPRESSED_RECORDS_MAX, values=array(COMPRESSED_RECORDS_MAX, NIL))
    yield (
        folded(1, values=b"\x91" + NIL, headers=b"\x91" + array(340_000, EMPTY_HEADER)) * BATCHES_WITH_HEADERS
    )
    yield folded(1, values=b"\x91" + NIL, headers=b"\x91" + array(1, b"\x92\xa0" + zeros[1:]))


def create_folded(scene: Scene, partitions: int, **configs: str) -> None:
    create_topic(scene.target.address, FOLDED, partitions, configs=configs)


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
            part = m.ProducePartition(topic=FOLDED, topic_id=NO_TOPIC_ID, partition=number, records=batch)
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
            scene.faults.append("a Fetch has no reply")
    await trio.to_thread.run_sync(delete_folded, scene)  # `check` would find what is not bytes
    scene.figures |= {
        "KB stored": sum(map(len, stored)) // 1024,
        "fetches": len(stored),
        "replies": answers,
        "KB received": received // 1024,
    }


async def unfolding_for_brokers(scene: Scene) -> None:
    """Batches of which the broker itself looks at each record: for keys when they are produced, and for their
    times when they are listed. They say that they have a late record, and none has.
    """
    partitions, count = scene.scaled(4, 40), COMPRESSED_RECORDS_MAX
    await trio.to_thread.run_sync(
        partial(create_folded, scene, partitions, **{"cleanup.policy": "compact", "segment.ms": "1000"})
    )
    keyed = folded(count, keys=array(count, b"\xc4\x01k"), values=array(count, NIL), late_ms=1_000)
    parts = [
        m.ProducePartition(topic=FOLDED, topic_id=NO_TOPIC_ID, partition=number, records=keyed)
        for number in range(partitions)
    ]
    together = m.Produce(transactional_id=None, acks=1, timeout_ms=1_000, partitions=tuple(parts))
    alone = [attrs.evolve(together, partitions=(part,)) for part in parts * scene.scaled(1, 3)]
    listed = tuple(
        m.ListOffsetsPartition(topic=FOLDED, partition=number, timestamp=500) for number in range(partitions)
    )
    asked = m.ListOffsets(isolation_level=IsolationLevel.READ_UNCOMMITTED, partitions=listed)
    requests = [together, *alone, *[asked] * scene.scaled(1, 3)]
    done = await exchange(scene, encoded(requests), answers=len(requests))
    if done.answers < len(requests):
        scene.faults.append(f"{len(requests) - done.answers} requests have no reply")
    await trio.to_thread.run_sync(delete_folded, scene)
    scene.figures |= {"requests": len(requests), "replies": done.answers, "KB sent": done.sent // 1024}


ATTACKS: tuple[Attack, ...] = (
    Attack(name="unfolding columns", does="kilobytes that a Kafka client reads as megabytes", act=unfolding),
    Attack(
        name="unfolding keys and times",
        does="kilobytes with millions of records that the broker looks at",
        act=unfolding_for_brokers,
    ),
)
