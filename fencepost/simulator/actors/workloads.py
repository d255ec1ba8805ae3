"""The processes of a fuzzed world: transactional writers, epoch bumpers that call InitProducerId repeatedly,
strangers, readers, and those who use a topic while it is deleted. Processors are in processors.py.

Rule: every value is written once and by one process, so that a judge can tell where each came from.
"""

# Theory of operation. Each kind of process tests something different:
#
#     txn_writer          atomicity; fencing, where two share a transactional id
#     idempotent_writer   sequence numbers: no duplicate, and no record lost, without transactions
#     epoch_bumper        InitProducerId and its retries, with the identity that it has (KIP-360)
#     stranger            requests that no client of ours would send
#     topic_keeper        deletes a topic and creates it again, while others use it
#     strayer, drifter    write to it, and commit a group's offsets of it
#     reader, rereader    what others may see, and in which order

from __future__ import annotations

from math import inf
from typing import Final

import attrs

from fencepost.client.calls import RequestCalls
from fencepost.client.errors import ClientError, ProducerFenced
from fencepost.client.metadata import CoordinatorOf
from fencepost.client.retries import CONTROLLER, BrokerAt
from fencepost.client.settings import ConsumerSettings, ProducerSettings
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import (
    CreateTopic,
    CreateTopics,
    DeleteTopics,
    InitProducerId,
    InitProducerIdReply,
    ListOffsets,
    ListOffsetsPartition,
    Metadata,
    Request,
    WriteTxnMarkers,
)
from fencepost.protocol.terms import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    CoordinatorType,
    IsolationLevel,
    TopicPartition,
)
from fencepost.simulator.actors.clients import (
    BATCH_BYTES,
    REQUEST_TIMEOUT_MS,
    Actor,
    AttemptedTransaction,
    Receiver,
    Sender,
    can_go_on,
)
from fencepost.simulator.actors.extremes import KINDS, Extremes, Names
from fencepost.simulator.judges.operations import PositionSet
from fencepost.simulator.world.choices import Choices
from fencepost.simulator.world.processes import Script
from fencepost.simulator.world.world import World

PAYMENTS: Final = "payments"
ACCOUNTS: Final = "accounts"  # compacted
AGAIN_PERMILLE: Final = 60  # how often a reader that rereads begins again after a poll
LATE_STARTS_MS: Final = (0, 100, 400, 1_200)
STRANGE: Final = "strange"
# What others may not ask for: markers decide transactions (Kafka demands CLUSTER_ACTION), and what internal
# topics hold belongs to everybody.
STRANGERS_MAY: Final = tuple(kind for kind in KINDS if kind is not WriteTxnMarkers)
LISTS_PERMILLE: Final = 300  # of its requests
STRANGE_REQUEST_TIMEOUT_MS: Final = 100  # of a request whose fields may ask the broker to wait for weeks
FLEETING: Final = "fleeting"  # deleted and created again
TOPIC_LIVES_MS: Final = (300, 100, 1_000)
TOPIC_GAPS_MS: Final = (0, 20, 300)  # between its deletion and its creation
DRIFTER_POLLS_MS: Final = (200, 50, 5)
FETCH_WAIT_MS: Final = 5_000  # long, so that readers who wait cause few events
READER_RESTS_MS: Final = (200, 50, 5)  # between two polls
# A next transaction that begins at once often meets the markers of the last one.
BETWEEN_TRANSACTIONS_MS: Final = (300, 100, 20, 0)
FOR_EVER_MS: Final = 10**9
NO_IDENTITY: Final = InitProducerIdReply(producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH)
REFUSED_MEMBER: Final = "commit of a replaced member refused"
REPLACED: Final = (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)
PAUSE_MS_MAX: Final = 20  # the longest pause between two actions of a process


@attrs.frozen(kw_only=True)
class Membership:
    """How a process belongs to its group, and how it behaves there. `stalls` and `leaves` are permille of its
    transactions: a stall is longer than `max_poll_interval_ms`, and a member that leaves joins again later.
    """

    group: str
    assignor: str = "range"
    group_instance_id: str | None = None
    # A member that stalls is replaced soon; by default a broker allows no shorter sessions.
    session_timeout_ms: int = 6_000
    heartbeat_interval_ms: int = 1_000
    max_poll_interval_ms: int = 20_000
    starts_after_ms: int = 0
    stalls: int = 0
    leaves: int = 0


@attrs.frozen(kw_only=True)
class KeyDraw:
    """What the records of a compacted topic are: each has one of `keys`; `tombstones` permille delete it."""

    keys: int
    tombstones: int

    def draw(self, choices: Choices) -> tuple[bytes, bool]:
        """The key of a record, and whether it is a tombstone."""
        return b"k%d" % choices.below(self.keys), choices.happens(self.tombstones)


@attrs.define(eq=False)
class Runner(Actor):
    """One client process of a workload. `keys` are those of its records, where topics are compacted."""

    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000
    transaction_version: int = 2
    keys: KeyDraw | None = None

    @property
    def choices(self) -> Choices:
        return self.world.choices

    def key(self) -> tuple[bytes | None, bool]:
        """The key of the next record, and whether it is a tombstone."""
        return (None, False) if self.keys is None else self.keys.draw(self.choices)

    def sender(self) -> Sender:
        settings = ProducerSettings(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.transaction_timeout_ms,
            transaction_version=self.transaction_version,
            linger_ms=self.choices.one_of((0, 1)),
            batch_size=self.choices.one_of((8 * BATCH_BYTES, 8 * BATCH_BYTES, BATCH_BYTES)),
            request_timeout_ms=REQUEST_TIMEOUT_MS,
        )
        return self.new_sender(settings)

    def receiver(
        self, isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED, group_id: str | None = None
    ) -> Receiver:
        settings = ConsumerSettings(
            group_id=group_id,
            isolation_level=isolation_level,
            fetch_max_wait_ms=FETCH_WAIT_MS,
            request_timeout_ms=2 * FETCH_WAIT_MS,
        )
        return self.new_receiver(settings)

    def member(self, membership: Membership) -> Receiver:
        """A consumer that can subscribe."""
        settings = ConsumerSettings(
            group_id=membership.group,
            group_instance_id=membership.group_instance_id,
            session_timeout_ms=membership.session_timeout_ms,
            heartbeat_interval_ms=membership.heartbeat_interval_ms,
            max_poll_interval_ms=membership.max_poll_interval_ms,
            partition_assignment_strategy=(membership.assignor,),
            isolation_level=IsolationLevel.READ_COMMITTED,
            fetch_max_wait_ms=FETCH_WAIT_MS,
            request_timeout_ms=2 * FETCH_WAIT_MS,
        )
        return self.new_receiver(settings)

    def rests(self) -> Script[None]:
        """Usually no pause, sometimes one of a few milliseconds."""
        pause = self.choices.below(PAUSE_MS_MAX + 1) if self.choices.happens(300) else 0
        if pause:
            yield pause


def own(runner: Runner) -> Script[Sender | None]:
    """A producer that owns the transactional id; None if another process took the id in the meantime."""
    while True:
        made = runner.sender()
        failure = yield from made.init()
        if failure is None:
            return made
        if failure.kind is ProducerFenced:
            runner.world.marks["fenced at init"] += 1
            return None
        yield PAUSE_MS_MAX


# --- transactional writers ----------------------------------------------------------------------------------


def txn_writer(
    runner: Runner,
    partitions: tuple[TopicPartition, ...],
    count: int,
    *,
    records_max: int,
    reads: bool = False,
) -> Script[None]:
    """Writes `count` transactions of a few records into some of the partitions; one in four is aborted. With
    `reads`, each transaction also reads what is committed in the partitions.
    """
    made: Sender | None = None
    consumer = runner.receiver() if reads else None
    if consumer is not None:
        consumer.assign(partitions)
    for number in range(count):
        if made is None:
            made = yield from own(runner)
            if made is None:
                return
        transaction = made.begin()
        for record in range(1 + runner.choices.below(records_max)):
            where = runner.choices.one_of(partitions)
            value = f"{runner.process.participant} {number}.{record}".encode()
            at_once = runner.choices.happens(300)
            key, is_tombstone = runner.key()
            if not (
                yield from made.send(
                    transaction, where, value, at_once=at_once, key=key, is_tombstone=is_tombstone
                )
            ):
                break
            if at_once:
                yield from runner.rests()
        if consumer is not None:
            transaction.read += consumer.glance()
        if not (yield from end(runner, made, transaction)):
            runner.world.marks["producer given up"] += 1
            made = None
        yield runner.choices.one_of(BETWEEN_TRANSACTIONS_MS)


def end(runner: Runner, made: Sender, transaction: AttemptedTransaction) -> Script[bool]:
    """Commits or aborts; False when this producer is done."""
    yield from runner.rests()
    machine, marks = made.machine, runner.world.marks
    if machine.is_over:
        transaction.completed_at = runner.world.now
        return False
    if machine.failure is None and not runner.choices.happens(250):
        failure = yield from made.commit(transaction)
        marks[REFUSED_MEMBER] += failure is not None and failure.error in REPLACED
        marks[f"commit: {'ok' if failure is None else failure.kind.__name__}"] += 1
        if failure is None:
            return True
        if not can_go_on(failure):
            return False
    failure = yield from made.abort(transaction)
    marks[f"abort: {'ok' if failure is None else failure.kind.__name__}"] += 1
    return can_go_on(failure)


# --- epoch bumpers ------------------------------------------------------------------------------------------


def epoch_bumper(runner: Runner, count: int) -> Script[None]:
    """Calls InitProducerId `count` times, each time with the identity that it has, as a producer does after
    an error that left it in doubt (KIP-360).
    """
    calls = runner.process.request_calls(request_timeout_ms=REQUEST_TIMEOUT_MS, api_timeout_ms=FOR_EVER_MS)
    name = runner.transactional_id
    assert name is not None, "only a transactional id has identities"
    # First as a new instance: a request that names no identity is always admitted.
    had = NO_IDENTITY
    for _ in range(count):
        request = InitProducerId(
            transactional_id=name,
            transaction_timeout_ms=runner.transaction_timeout_ms,
            producer_id=had.producer_id,
            producer_epoch=had.producer_epoch,
        )
        target = CoordinatorOf(CoordinatorType.TRANSACTION, name)
        try:
            had = yield from calls.ask(request, target)
        except ClientError:
            runner.world.marks["identity lost"] += 1
            had = NO_IDENTITY
        yield from runner.rests()


# --- plain producers ----------------------------------------------------------------------------------------


def idempotent_writer(
    runner: Runner, partitions: tuple[TopicPartition, ...], count: int, *, pauses_ms: tuple[int, ...]
) -> Script[None]:
    """Writes `count` records into each partition, idempotent and without transactions."""
    made = runner.sender()
    for number in range(count):
        for where in partitions:
            transaction = runner.single_write()
            value = f"{runner.process.participant} {number}-{where.partition}".encode()
            key, is_tombstone = runner.key()
            if not (yield from made.send(transaction, where, value, key=key, is_tombstone=is_tombstone)):
                return
        yield from runner.rests()
        if pauses_ms:
            yield runner.choices.one_of(pauses_ms)
    yield from runner.flush()


# --- strangers ----------------------------------------------------------------------------------------------


def stranger(runner: Runner, count: int, *, others: tuple[TopicPartition, ...]) -> Script[None]:
    """Sends `count` requests to any node. Those with extreme meaning concern names of its own, so what the
    other clients see must not change; the rest ask for offsets in the partitions of the `others`.
    """
    process = runner.process
    calls = process.request_calls(
        request_timeout_ms=REQUEST_TIMEOUT_MS, api_timeout_ms=STRANGE_REQUEST_TIMEOUT_MS
    )
    name = process.participant
    own = Names(topics=(STRANGE,), groups=(name,), transactional_ids=(name,), now_ms=lambda: process.now_ms)
    drawn = Extremes(runner.choices, own)
    creation = CreateTopics(topics=(CreateTopic(topic=STRANGE, partition_count=2),))
    for number in range(count):
        # Any node, even one that is not responsible and has to refuse.
        node = runner.choices.one_of(runner.world.nodes)
        # First the topic to which the other requests refer.
        request: Request = creation
        if number and runner.choices.happens(LISTS_PERMILLE):
            request = _listing(runner.choices, others, now_ms=process.now_ms)
        elif number:
            request = drawn.request(STRANGERS_MAY)
        try:
            yield from calls.ask(request, BrokerAt(node.settings.node_id))
        except ClientError as problem:
            runner.world.marks[f"strange request: {type(problem).__name__}"] += 1
        else:
            runner.world.marks["strange request: answered"] += 1
        yield from runner.rests()


def _listing(choices: Choices, partitions: tuple[TopicPartition, ...], *, now_ms: int) -> ListOffsets:
    """A ListOffsets for all of these partitions: the latest or earliest offsets, or those since a time."""
    since = choices.one_of((LATEST_TIMESTAMP, EARLIEST_TIMESTAMP, choices.below(now_ms + 1)))
    return ListOffsets(
        isolation_level=choices.one_of((IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)),
        partitions=tuple(
            ListOffsetsPartition(topic=where.topic, partition=where.partition, timestamp=since)
            for where in partitions
        ),
    )


# --- a topic that is deleted and created again --------------------------------------------------------------


@attrs.frozen
class Recreation:
    """When the deletion of a topic was requested, and when it was known to exist again, if it was."""

    deleted_at: int
    created_at: float = inf


def topic_keeper(
    runner: Runner, topic: CreateTopic, recreations: list[Recreation], count: int
) -> Script[None]:
    """Deletes a topic and creates it again, `count` times, and notes when: it exists again when all nodes
    know it. The keeper waits for a reply as long as its connection lives, so no request arrives late.
    """
    runner.world.processes.remove(runner.process)  # chance picks its victims there
    calls = runner.process.request_calls(request_timeout_ms=FOR_EVER_MS, api_timeout_ms=FOR_EVER_MS)
    for _ in range(count):
        yield runner.choices.one_of(TOPIC_LIVES_MS)
        recreations.append(Recreation(runner.world.now))
        # A repeated request may find that the topic is gone.
        yield from _tried(calls, DeleteTopics(topics=(topic.topic,)))
        yield runner.choices.one_of(TOPIC_GAPS_MS)
        yield from _tried(calls, CreateTopics(topics=(topic,)))
        while not (yield from _tried(calls, Metadata(topics=(topic.topic,)))):
            yield PAUSE_MS_MAX
            yield from _tried(calls, CreateTopics(topics=(topic,)))
        # A node that learns of the deletion late acknowledges records for the old topic until then.
        while not _is_known_alike(runner.world, topic.topic):
            yield PAUSE_MS_MAX
        recreations[-1] = attrs.evolve(recreations[-1], created_at=runner.world.now)


def _is_known_alike(world: World, topic: str) -> bool:
    """Whether every node runs and knows the same topic by this name."""
    ids = {None if node.host is None else node.host.node.topic_id(topic) for node in world.nodes}
    return len(ids) == 1 and None not in ids


def _tried(calls: RequestCalls, request: Request) -> Script[bool]:
    try:
        yield from calls.ask(request, CONTROLLER)
    except ClientError:
        return False
    return True


def strayer(runner: Runner, partitions: tuple[TopicPartition, ...], count: int) -> Script[None]:
    """Writes `count` records, one after the other, without transactions, and begins anew after a failure."""
    made = runner.sender()
    for number in range(count):
        write = runner.single_write()
        value = f"{runner.process.participant} {number}".encode()
        if not made.is_usable or not (yield from made.send(write, runner.choices.one_of(partitions), value)):
            made = runner.sender()
            continue
        yield from runner.flush()
        yield from runner.rests()


def drifter(
    runner: Runner, topic: str, partitions: tuple[TopicPartition, ...], count: int, membership: Membership
) -> Script[None]:
    """Reads a topic as a member of a group. Each of its `count` transactions has a record and the offsets of
    what it read.
    """
    consumer = runner.member(membership)
    consumer.subscribe((topic,))
    made: Sender | None = None
    for number in range(count):
        if made is None:
            made = yield from own(runner)
            if made is None:
                return
        yield from consumer.poll(runner.choices.one_of(DRIFTER_POLLS_MS))
        transaction = made.begin()
        value = f"{runner.process.participant} {number}".encode()
        yield from made.send(transaction, runner.choices.one_of(partitions), value)
        if made.is_usable and (offsets := consumer.machine.committable):
            made.send_offsets(offsets, consumer.machine.group_metadata())
        if not (yield from end(runner, made, transaction)):
            made = None
    yield from consumer.leave()


# --- readers ------------------------------------------------------------------------------------------------


def reader(
    runner: Runner, partitions: tuple[TopicPartition, ...], isolation_level: IsolationLevel
) -> Script[None]:
    """Reads everything from the beginning, an operation per poll, until it is killed."""
    consumer = runner.receiver(isolation_level)
    consumer.assign(partitions)
    runner.assigned = consumer.machine.assigned
    while True:
        invoked_at = runner.world.now
        polls = yield from consumer.poll_some(runner.choices)
        if polls:
            runner.has_read(polls, invoked_at=invoked_at, isolation_level=isolation_level)
        yield runner.choices.one_of(READER_RESTS_MS)


def rereader(runner: Runner, partitions: tuple[TopicPartition, ...]) -> Script[None]:
    """Starts late, reads at either isolation level, and sometimes begins again, until it is killed."""
    yield runner.choices.one_of(LATE_STARTS_MS)
    isolation_level = runner.choices.one_of((IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED))
    consumer = runner.receiver(isolation_level)
    consumer.assign(partitions)
    placed: tuple[PositionSet, ...] = ()
    while True:
        invoked_at = runner.world.now
        polls = yield from consumer.poll_some(runner.choices)
        if polls:
            runner.has_read((*placed, *polls), invoked_at=invoked_at, isolation_level=isolation_level)
            placed = ()
        if runner.choices.happens(AGAIN_PERMILLE):
            consumer.seek(dict.fromkeys(partitions, 0))
            placed = tuple(map(PositionSet, partitions))
        yield runner.choices.one_of(READER_RESTS_MS)
