"""Plays attacks: a broker and a canary for each scene, and what is judged of them."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
import trio

from fencepost import Admin, Consumer, FencepostError, TopicPartition
from fencepost.demo.processes import children
from tests.attack.attacks import ANSWER_MS_MAX, Attack, Row
from tests.attack.canary_process import TOPIC
from tests.attack.ledger import PARTITIONS, Latency
from tests.attack.scene import MIB, PATIENCE_S, Canary, Hangs, Scene, Target, fails_after
from tests.cli.processes import fencepost

ATTACK_S = 900.0  # a bound on one attack, also on a busy machine
POLL_MS = 500
FAULTS_MAX = 5  # told of one kind; the count of the others follows


@attrs.frozen(kw_only=True)
class Run:
    """How attacks are played. `judges_time`: an answer later than ANSWER_MS_MAX is a fault."""

    seed: int
    is_quick: bool
    judges_time: bool
    directory: Path
    kafka_frames: int = 0


async def play(attacks: Sequence[Attack], run: Run) -> list[Row]:
    """Plays attacks one after the other on one broker; the last row has what shows only at the end."""
    directory = run.directory / attacks[0].name.replace(" ", "-")
    async with children(directory / "processes") as processes, trio.open_nursery() as nursery:
        target = Target(processes, directory / "data", attacks[0].options)
        await target.start()
        await trio.to_thread.run_sync(prepare, target)
        canary = Canary(processes, target, nursery)
        await canary.start()
        await canary.meanwhile(5)
        rows: list[Row] = []
        for attack in attacks:
            scene = Scene(
                kafka_frames=run.kafka_frames,
                target=target,
                canary=canary,
                processes=processes,
                chance=random.Random(f"{run.seed} {attack.name}"),
                is_quick=run.is_quick,
                directory=directory,
            )
            rows.append(await play_one(attack, scene, judges_time=run.judges_time))
        rows[-1].faults += await end(target, canary, nursery)
        rows[-1].faults += faults_of_log(directory / "processes")
        return rows


def prepare(target: Target) -> None:
    """The canary's topic."""
    with Admin(target.address, **target.client_settings) as admin:
        admin.create_topic(TOPIC, partitions=len(PARTITIONS))


async def play_one(attack: Attack, scene: Scene, *, judges_time: bool) -> Row:
    """One attack, and the canary after it."""
    target, canary = scene.target, scene.canary
    began, ended, answered = trio.current_time(), canary.transactions, len(canary.ledger.answers_ms)
    target.forget_peak()
    before, troubles = target.memory("VmRSS"), len(canary.troubles)
    try:
        with fails_after(ATTACK_S, "the attack does not end"):
            await attack.act(scene)
        await canary.meanwhile(scene.scaled(5, 25))
    except* (FencepostError, OSError, trio.BrokenResourceError) as problems:
        scene.faults += [f"{type(each).__name__}: {each}" for each in leaves(problems)]
    latency = Latency.of(canary.ledger.answers_ms[answered:])
    peak, bound = target.memory("VmHWM"), target.ready["memory_bytes_max"] / MIB
    if peak > bound:
        scene.faults.append(f"memory: {peak:,.0f} MiB, and the bound that the broker printed is {bound:,.0f}")
    if not attack.is_restarted:
        scene.faults += canary.troubles[troubles:]
        if judges_time and latency.p99 > ANSWER_MS_MAX:
            scene.faults.append(f"late: the canary waited {latency.p99:,.0f} ms at the 99th percentile")
    return Row(
        name=attack.name,
        figures=scene.figures,
        transactions=canary.transactions - ended,
        latency=latency,
        memory_before_mb=round(before, 1),
        memory_peak_mb=round(peak, 1),
        memory_bound_mb=round(bound, 1),
        seconds=round(trio.current_time() - began, 1),
        faults=scene.faults,
    )


def leaves(group: BaseExceptionGroup[Exception]) -> Iterator[Exception]:
    """The exceptions in groups of groups."""
    for each in group.exceptions:
        yield from leaves(each) if isinstance(each, BaseExceptionGroup) else (each,)


# --- the end of a scene -----------------------------------------------------------------------------------


async def end(target: Target, canary: Canary, nursery: trio.Nursery) -> list[str]:
    """Stops both, and compares what the canary was told with what it read, and with a new reader."""
    if not target.is_running:
        nursery.cancel_scope.cancel()
        return ["the broker ended"]
    try:
        await canary.stop()
        with fails_after(PATIENCE_S, "the log cannot be read to its end"):
            read = await trio.to_thread.run_sync(read_all, target, abandon_on_cancel=True)
        code = await target.end(signal.SIGTERM)
    except (Hangs, FencepostError) as problem:
        nursery.cancel_scope.cancel()
        return [str(problem), *canary.failures]
    faults = canary.failures + shortened(canary.ledger.faults(canary.ledger.read))
    faults += shortened([f"a new reader: {fault}" for fault in canary.ledger.faults(read)])
    if code:
        faults.append(f"the broker stopped with exit code {code}")
    checked = await trio.to_thread.run_sync(fencepost, "check", str(target.directory))
    if checked.returncode:
        faults.append(f"fencepost check: {checked.stdout}{checked.stderr}")
    return faults


def read_all(
    target: Target, topic: str = TOPIC, partitions: Sequence[int] = PARTITIONS
) -> dict[int, list[str]]:
    """What is committed, by partition, read from the beginning by a new client."""
    read: dict[int, list[str]] = {partition: [] for partition in partitions}
    address, settings = target.address, target.client_settings
    with Consumer(address, **settings) as consumer, Admin(address, **settings) as admin:
        ends = admin.end_offsets([TopicPartition(topic, number) for number in partitions])
        consumer.assign(list(ends))
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            for batch in consumer.poll(POLL_MS):
                read[batch.partition.partition] += [value.decode() for value in batch.values]
    return read


def shortened(faults: list[str]) -> list[str]:
    """The first faults, and how many more there are."""
    more = len(faults) - FAULTS_MAX
    return faults if more <= 0 else [*faults[:FAULTS_MAX], f"and {more} more"]


def faults_of_log(directory: Path) -> list[str]:
    """Whether a broker of the scene met a bug, or wrote what a terminal would obey."""
    texts = [file.read_text(errors="replace") for file in sorted(directory.glob("*-broker.stderr"))]
    tracebacks = [text[text.index("Traceback") :] for text in texts if "Traceback" in text]
    faults = [f"a bug: {trace.splitlines()[-1]}" for trace in tracebacks]
    return faults + ["the log holds control characters"] * any("\x1b" in text for text in texts)
