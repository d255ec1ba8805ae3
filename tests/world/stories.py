"""Who acts in the loop: payers that share one transactional id, and a copier that consumes, transforms and
produces.

Rule: a script believes only what its machine resolved; what it does not know it writes down as unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import attrs

from fencepost.client.consumed import ConsumedBatch
from fencepost.client.consumer import ConsumerMachine
from fencepost.client.effects import Operation
from fencepost.client.errors import Failure, ProducerFenced, TransactionAborted
from fencepost.client.producer import ProducerMachine
from fencepost.client.settings import ConsumerSettings, ProducerSettings
from fencepost.protocol.terms import TopicPartition
from tests.world.loop import ADDRESS, Actor, Port, Script, World, partitions_of

INPUTS, PARTITIONS, GROUP = 24, 2, "copiers"


class Outcome(Enum):
    COMMITTED = "committed"
    NOT_COMMITTED = "not committed"
    UNKNOWN = "unknown"


@attrs.define
class Payment:
    """One transaction of a payer: what it wrote, and what it knows of its end."""

    values: list[bytes]
    outcome: Outcome = Outcome.NOT_COMMITTED


@attrs.frozen
class Sender:
    """A producer and its connection."""

    machine: ProducerMachine
    port: Port


def _wait(sender: Sender, operation: Operation) -> Callable[[], bool]:
    return lambda: operation in sender.port.resolved


def transactional(world: World, transactional_id: str) -> Sender:
    timeout_ms = world.random.choice((60_000, 60_000, 400))
    settings = ProducerSettings(
        transactional_id=transactional_id, transaction_timeout_ms=timeout_ms, linger_ms=0, batch_size=64
    )
    machine = ProducerMachine(ADDRESS, settings)
    return Sender(machine, world.port(machine))


def _is_fatal(world: World, failure: Failure | None) -> bool:
    if failure is None or failure.kind is TransactionAborted:
        return False
    world.marks["fenced"] += failure.kind is ProducerFenced
    return True


def _append(world: World, sender: Sender, topic: str, value: bytes, partition: int) -> Script[None]:
    """Waits until the topic is known, then hands the record over."""
    machine, port = sender.machine, sender.port
    while True:
        place = machine.append(topic, value, partition=partition, now=world.now, wall_ms=world.now)
        port.perform(machine.wake(world.now))
        if place is not None:
            return
        yield lambda: machine.cluster.partition_counts.get(topic) is not None or machine.is_over


def _end(world: World, sender: Sender, operation: Operation) -> Script[Failure | None]:
    """Commits or aborts; returns why it failed, if it did."""
    machine, port = sender.machine, sender.port
    port.resolved.clear()
    port.perform(machine.commit(world.now) if operation is Operation.COMMIT else machine.abort(world.now))
    yield _wait(sender, operation)
    return port.resolved.pop(operation)


# --- payers -------------------------------------------------------------------------------------------


def _take_over(world: World, sender: Sender) -> Script[bool]:
    """Becomes the owner of the transactional id; False when that failed."""
    sender.port.perform(sender.machine.init_transactions(world.now))
    yield _wait(sender, Operation.INIT_TRANSACTIONS)
    return sender.port.resolved.pop(Operation.INIT_TRANSACTIONS) is None


def payer(world: World, sender: Sender, payments: list[Payment], name: str, count: int) -> Script[None]:
    """Writes transactions of one to four records into both partitions; one in four is aborted on purpose."""
    machine = sender.machine
    if not (yield from _take_over(world, sender)):
        return
    for number in range(count):
        payment = Payment([])
        payments.append(payment)
        machine.begin()
        for record in range(world.random.randint(1, 4)):
            value = f"{name}/{number}/{record}".encode()
            if machine.is_over or not machine.may_abort or machine.failure is not None:
                break
            yield from _append(world, sender, "payments", value, world.random.randrange(PARTITIONS))
            payment.values.append(value)
        yield lambda: True
        if not (yield from _decide(world, sender, payment)):
            return


def _decide(world: World, sender: Sender, payment: Payment) -> Script[bool]:
    """Ends a payment; False when this payer cannot go on."""
    machine = sender.machine
    if machine.is_over:
        world.marks["fenced"] += machine.failure is not None and machine.failure.kind is ProducerFenced
        return False
    if machine.failure is None and world.random.random() < 0.75:
        payment.outcome = Outcome.UNKNOWN  # until it is known: a kill from here on leaves it so
        failure = yield from _end(world, sender, Operation.COMMIT)
        if failure is None:
            payment.outcome = Outcome.COMMITTED
            return True
        if _is_fatal(world, failure):
            world.marks["commit outcome unknown"] += failure.kind is not ProducerFenced
            return False
        payment.outcome = Outcome.NOT_COMMITTED
    failure = yield from _end(world, sender, Operation.ABORT)
    world.marks["aborted"] += failure is None
    return not _is_fatal(world, failure)


# --- the copier ---------------------------------------------------------------------------------------


def copier(
    world: World, sender: Sender, consumer: ConsumerMachine, consuming: Port, ends: dict[TopicPartition, int]
) -> Script[None]:
    """Copies `in` to `out`, upper-cased, partition by partition, with the offsets in the transaction."""
    if not (yield from _take_over(world, sender)):
        return
    consumer.assign(partitions_of("in", PARTITIONS))
    settled: dict[TopicPartition, int] = {}
    while True:
        consuming.perform(consumer.wake(world.now))
        yield lambda: len(consumer.positions) == PARTITIONS
        settled = settled or dict(consumer.positions)
        if all(consumer.positions[where] >= end for where, end in ends.items()):
            return
        yield lambda: any(reading.fetched or reading.problem for reading in consumer.readings.values())
        batches = consumer.take()
        copied = yield from _copy(world, sender, batches, consumer.positions)
        if copied is None:
            return
        if copied:
            settled.update(consumer.positions)
        else:
            for where, offset in settled.items():
                consumer.seek(where, offset)


def _copy(
    world: World, sender: Sender, batches: list[ConsumedBatch], positions: dict[TopicPartition, int]
) -> Script[bool | None]:
    """One transaction: True when committed, False when aborted, None when this copier is over."""
    machine = sender.machine
    machine.begin()
    for batch in batches:
        for record in batch:
            if machine.is_over or machine.failure is not None:
                break
            yield from _append(world, sender, "out", record.value.upper(), record.partition)
    yield lambda: True
    if not machine.is_over and machine.failure is None:
        sender.port.perform(machine.send_offsets(positions, GROUP, world.now))
    yield lambda: True
    payment = Payment([])
    if not (yield from _decide(world, sender, payment)):
        return None
    return payment.outcome is Outcome.COMMITTED


def start_copier(world: World, ends: dict[TopicPartition, int]) -> Actor:
    sender = transactional(world, "copier")
    consumer = ConsumerMachine(ADDRESS, ConsumerSettings(group_id=GROUP, max_wait_ms=20))
    consuming = world.port(consumer)
    script = copier(world, sender, consumer, consuming, ends)
    return world.spawn("copier", script, [sender.port, consuming])


def start_payer(world: World, payments: list[Payment], name: str, count: int) -> Actor:
    sender = transactional(world, "payers")
    return world.spawn(name, payer(world, sender, payments, name, count), [sender.port])
