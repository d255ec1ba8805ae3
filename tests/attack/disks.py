"""Attacks through the disk: it is full, or what it gives back is not what was written."""

from __future__ import annotations

import random
import shutil
import signal
import sys
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path

import trio

from fencepost import ClientError, Producer
from fencepost.demo.processes import ChildFailed
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.terms import IsolationLevel, TopicPartition
from tests.attack.attacks import Attack
from tests.attack.canary_process import TOPIC
from tests.attack.ledger import PARTITIONS
from tests.attack.playing import read_all
from tests.attack.scene import PATIENCE_S, PLAIN, BrokerOptions, Scene, Target, fails_after
from tests.attack.small_disk import small_disk
from tests.broker.requests import fetch_request, next_offset, visible_values
from tests.broker.test_every_byte import DETECTED, Seen, is_whole, verdict
from tests.broker.wire import Wire
from tests.topics import create_topic

FILLING = "filling"
RECORD_BYTES = 50_000
FILE_BYTES = 4_000_000  # the largest file that the broker may write
MORE_RECORDS = 20
BATCHES_MAX = 10_000  # more than a partition has: a reader that gets more runs in circles

# --- full ---------------------------------------------------------------------------------------------------


async def full_disk(scene: Scene) -> None:
    """A producer writes until nothing more fits; with room again, all that was acknowledged is there."""
    await trio.to_thread.run_sync(create, scene.target.address)
    acknowledged = await trio.to_thread.run_sync(fill, scene.target.address)
    scene.figures["acknowledged"] = acknowledged
    scene.figures["broker ended"] = int(not scene.target.is_running)
    if scene.target.is_running:
        await scene.target.end(signal.SIGKILL)
    scene.target.options = PLAIN
    await scene.target.start()
    await scene.canary.revive()
    await check_numbers(scene, scene.target, acknowledged, "afterwards")


async def no_space_left(scene: Scene) -> None:
    """A whole disk fills up, the broker is killed and started on it, and then the disk gets larger."""
    async with small_disk(scene.directory / "small", "8m") as disk:
        if disk is None:
            scene.figures["small disks allowed"] = 0
            return
        other = Target(scene.processes, disk.path / "data", PLAIN)
        await other.start()
        await trio.to_thread.run_sync(create, other.address)
        acknowledged = await trio.to_thread.run_sync(fill, other.address)
        scene.figures |= {"acknowledged": acknowledged, "broker ended": int(not other.is_running)}
        await other.end(signal.SIGKILL)
        try:
            await other.start()
        except ChildFailed as problem:
            scene.figures["starts while full"] = 0
            scene.faults += [str(problem)] * ("Traceback" in str(problem))
        else:
            scene.figures["starts while full"] = 1
            await check_numbers(scene, other, acknowledged, "while full")
        await disk.resize("64m")
        if not other.is_running:
            await other.start()
        more = await trio.to_thread.run_sync(fill, other.address, acknowledged + 1, MORE_RECORDS)
        scene.faults += ["with room again, nothing is written"] * (more <= acknowledged + 1)
        await check_numbers(scene, other, acknowledged, "afterwards")
        scene.faults += ["the broker did not stop in order"] * (await other.end(signal.SIGTERM) != 0)


async def check_numbers(scene: Scene, target: Target, acknowledged: int, when: str) -> None:
    """Each acknowledged record is there, and none twice."""
    found = Counter(await trio.to_thread.run_sync(read_numbers, target))
    scene.figures[f"read {when}"] = found.total()
    lost = [number for number in range(acknowledged) if not found[number]]
    twice = [number for number, times in found.items() if times > 1]
    scene.faults += [f"{len(lost)} acknowledged records are lost ({when})"] * bool(lost)
    scene.faults += [f"{len(twice)} records are there twice ({when})"] * bool(twice)


def create(address: str) -> None:
    """The topic that fills the disk."""
    create_topic(address, FILLING, partitions=1)


def fill(address: str, number: int = 0, most: int = sys.maxsize) -> int:
    """Sends records with the numbers from `number` on, until one is not acknowledged; the number of that."""
    most += number
    try:
        with Producer(address, delivery_timeout_ms=1_000, request_timeout_ms=500, linger_ms=0) as producer:
            while number < most:
                value = str(number).encode().ljust(RECORD_BYTES)
                producer.send(FILLING, value).result()
                number += 1
    except ClientError:
        return number  # the disk is full
    return number


def read_numbers(target: Target) -> list[int]:
    """The numbers of all records in the topic, in order."""
    return [int(value) for values in read_all(target, FILLING, [0]).values() for value in values]


# --- damaged ------------------------------------------------------------------------------------------------


def flip(file: Path, chance: random.Random) -> str:
    """One bit."""
    content = bytearray(file.read_bytes())
    at = chance.randrange(len(content))
    content[at] ^= 1 << chance.randrange(8)
    file.write_bytes(content)
    return f"byte {at}"


def lose_sector(file: Path, chance: random.Random) -> str:
    """512 bytes are zeros."""
    content = bytearray(file.read_bytes())
    at = chance.randrange(len(content)) // 512 * 512
    end = min(at + 512, len(content))
    content[at:end] = bytes(end - at)
    file.write_bytes(content)
    return f"sector {at}"


def shorten(file: Path, chance: random.Random) -> str:
    """The end is gone."""
    content = file.read_bytes()
    at = chance.randrange(len(content))
    file.write_bytes(content[:at])
    return f"cut at {at}"


def remove(file: Path, _chance: random.Random) -> str:
    """The file is gone."""
    file.unlink()
    return "removed"


KINDS = (flip, flip, flip, lose_sector, shorten, remove)


async def damage(scene: Scene) -> None:
    """Copies of the canary's directory, each with one damage: started, and read in both isolation levels."""
    await scene.target.end(signal.SIGTERM)
    original = scene.directory / "copied"
    shutil.copytree(scene.target.directory, original)
    await scene.target.start()
    whole = await seen_in(scene, original, "whole")
    assert whole is not None, "an undamaged copy starts"
    counts: Counter[str] = Counter()
    for number in range(scene.scaled(2, 100)):
        copy = scene.directory / f"copy-{number}"
        shutil.copytree(original, copy)
        files = sorted(path for path in copy.rglob("*") if path.is_file() and path.stat().st_size)
        file, kind = scene.chance.choice(files), scene.chance.choice(KINDS)
        what = f"{file.relative_to(copy)}: {kind(file, scene.chance)}"
        found = verdict(await seen_in(scene, copy, what), whole)
        counts[found] += 1
        if found == "wrong":
            scene.faults.append(f"wrong and silent: {what}")
        shutil.rmtree(copy)
    scene.figures |= {kind: counts[kind] for kind in ("harmless", "refused", DETECTED, "wrong")}


async def seen_in(scene: Scene, directory: Path, what: str) -> Seen | None:
    """What readers get from a broker on this directory; None if it refuses to start, in words."""
    other = Target(scene.processes, directory, PLAIN)
    try:
        await other.start()
    except ChildFailed as problem:
        if "Traceback" in str(problem):
            scene.faults.append(f"{what}: {problem}")
        return None
    try:
        with fails_after(PATIENCE_S, f"{what}: a reader gets no reply"):
            return await read_every_place(other)
    finally:
        await other.end(signal.SIGKILL)


async def read_every_place(target: Target) -> Seen:
    """Both partitions with both isolation levels."""
    async with target.wire() as wire:
        return {
            (key, isolation): [text async for text in read(wire, key, isolation)]
            for key in (TopicPartition(TOPIC, number) for number in PARTITIONS)
            for isolation in IsolationLevel
        }


async def read(wire: Wire, key: TopicPartition, isolation: IsolationLevel) -> AsyncGenerator[str]:
    """The records of a partition as a client reads them; it checks the bytes, and ends at what it refuses."""
    offset = 0
    for _ in range(BATCHES_MAX):
        reply = await wire.ask(fetch_request(key, isolation, offset=offset))
        if not isinstance(reply.body, m.FetchReply) or reply.body.partitions[0].error:
            break
        (part,) = reply.body.partitions
        if not part.records:
            return
        try:
            if not is_whole(part, offset):
                break
            for value in visible_values(part):
                yield value
        except ProtocolViolation:
            break
        offset = next_offset(part)
    yield DETECTED


# --- the table --------------------------------------------------------------------------------------------

ATTACKS: tuple[Attack, ...] = (
    Attack(
        name="full disk",
        does="writes that fail in the middle of a log, and room again later",
        act=full_disk,
        options=BrokerOptions(file_bytes=FILE_BYTES),
        is_restarted=True,
    ),
    Attack(
        name="no space left", does="a disk that is full for every file, and larger later", act=no_space_left
    ),
    Attack(
        name="damaged disk",
        does="a flipped bit, a lost sector, a cut or missing file, in copies of the directory",
        act=damage,
        is_restarted=True,
    ),
)
