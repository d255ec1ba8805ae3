"""Several clients at once for the same transactional ids, while the broker is killed and stopped under them.

Rule: a client gives each record of a producer the next sequence, as the protocol demands, and respects
nothing else: it may be fenced, or go on as a producer that was replaced, in the middle of anything.
"""

from __future__ import annotations

import signal
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from fencepost.broker.contract import Reply
from fencepost.broker.transactions.tables import NEWEST_FROM
from fencepost.protocol import messages as m
from fencepost.protocol.batches import walk
from fencepost.protocol.errors import NO_ERROR
from fencepost.protocol.terms import TopicPartition
from tests.attack.attacks import Attack
from tests.attack.kills import POLICIES
from tests.attack.playing import shortened
from tests.attack.race_ledger import PartitionLog, RaceLedger, Write
from tests.attack.scene import PATIENCE_S, BrokerOptions, Hangs, Scene, fails_after
from tests.attack.wires import reset
from tests.broker.requests import (
    ABORT,
    COMMIT,
    COMMITTED,
    NOBODY,
    UNCOMMITTED,
    Identity,
    add_request,
    body_of,
    end_request,
    fetch_request,
    fetched,
    identity_of,
    init_request,
    next_offset,
    offset_request,
    produce_request,
    visible_values,
)
from tests.broker.wire import Wire

RACED = tuple(TopicPartition("raced", number) for number in range(2))
FLEETING = TopicPartition("fleeting", 0)
"""Deleted and created again in the middle of transactions; what it held is not judged."""

RENEWING = ("new-1", "new-2")
OLD = "old"
"""The transactional id of clients that predate KIP-890: their epoch stays the same from one to the next."""
OLD_VERSIONS = {request: first - 1 for request, first in NEWEST_FROM.items()}
CLIENTS_PER_ID = 2
PLANS = ((COMMIT,), (COMMIT,), (ABORT,), (COMMIT, ABORT))
"""How the clients of an identity end its transaction, by its epoch. Those of an old one never disagree."""

Sent = tuple[m.Request, Write | None]
"""A request, and what it writes that is judged."""


def options(policy: str) -> BrokerOptions:
    """A broker that notices timeouts at once."""
    scan = "transaction.abort.timed.out.transaction.cleanup.interval.ms=100"
    return BrokerOptions(arguments=("--override", scan, "--sync", policy))


class Race:
    """The clients, what they know of each other, and the ledger."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.chance = scene, scene.chance
        self.ledger = RaceLedger(frozenset(RENEWING))
        self.is_up = trio.Event()
        self.is_up.set()
        self.has_both_ends = trio.Event()
        self.answers = 0
        self._owners: dict[str, list[Identity]] = {name: [] for name in (*RENEWING, OLD)}
        # The last writes that were acknowledged, or had no answer: their client may send them once more.
        self._retriable: dict[str, deque[tuple[m.Request, Write]]] = {
            name: deque(maxlen=8) for name in self._owners
        }
        self._sequences: dict[tuple[Identity, TopicPartition], int] = defaultdict(int)

    # --- connections ----------------------------------------------------------------------------------------

    async def connect(self, use: Callable[[Wire], Awaitable[None]]) -> None:
        """Uses one connection after the other, until cancelled. Only an end of the broker may end one."""
        while True:
            await self.is_up.wait()
            start = self.scene.target.starts
            try:
                async with self.scene.target.wire() as wire:
                    await use(wire)
            except trio.TooSlowError:
                raise Hangs("the broker does not answer a connection") from None
            except (EOFError, OSError, trio.BrokenResourceError) as problem:
                if self.is_up.is_set() and start == self.scene.target.starts:
                    raise Hangs(f"the broker ended a connection: {problem!r}") from None

    async def restart(self, how: signal.Signals) -> None:
        """Ends the broker, and starts it again with another policy."""
        self.is_up = trio.Event()
        self.scene.target.options = options(self.chance.choice(POLICIES))
        await self.scene.restart(how)
        self.is_up.set()

    # --- clients --------------------------------------------------------------------------------------------

    async def client(self, name: str, wire: Wire) -> None:
        """Requests of one connection, several in one go. It may be reset before the replies are there."""
        wire.versions = OLD_VERSIONS if name == OLD else {}
        for _ in range(self.chance.randint(1, 30)):
            sent = [each for _ in range(self.chance.choice((1, 1, 2, 4))) for each in self._next(name)]
            moment = self.ledger.now()
            numbers = await wire.send(*(request for request, _ in sent))
            waiting = dict(zip(numbers, sent, strict=True))
            try:
                if self.chance.random() < 0.05:
                    reset(wire.stream)
                    return
                for number in numbers:
                    reply = await wire.answer(number)
                    self._take(name, *waiting.pop(number), reply, moment)
            finally:
                for request, write in waiting.values():
                    self._may_retry(name, request, write)

    def _next(self, name: str) -> list[Sent]:
        """What the client sends next: a step of a transaction, or something that disturbs one."""
        if not self._owners[name]:
            return [(init_request(name), None)]
        chance, owner = self.chance, self._owner(name)
        steps = ("init", "produce", "end", "offset", "plain", "retry", "fleeting", "topic")
        match chance.choices(steps, (2, 14, 9, 3, 1, 3, 1, 0.5))[0]:
            case "init":
                expected = owner if chance.random() < 0.3 else NOBODY
                return [(init_request(name, expected, timeout_ms=chance.choice((50, 300, 60_000))), None)]
            case "produce":
                keys = chance.sample(RACED, chance.choice((1, 1, 2)))
                return [*self._added(name, owner, *keys), *(self._produce(name, owner, key) for key in keys)]
            case "end":
                plan = PLANS[owner.producer_epoch % len(PLANS)]
                result = chance.choice(plan[:1] if name == OLD else plan)
                if result is COMMIT:
                    self.ledger.requested.add(owner)
                return [(end_request(owner, result, name), None)]
            case "offset":
                number = self.ledger.now()
                write = self.ledger.offsets[number] = self._write(name, owner, RACED[0])
                add = m.AddOffsetsToTxn(transactional_id=name, group_id=name, **owner._asdict())
                request = offset_request(owner, name, {RACED[0]: number}, name)
                return [*([(add, None)] if name == OLD else []), (request, write)]
            case "plain":
                return [self._produce("", NOBODY, chance.choice(RACED))]
            case "retry":
                return [self._retry(name)] if self._retriable[name] else []
            case "fleeting":
                request = produce_request(owner, {FLEETING: "x"}, name=name)
                return [*self._added(name, owner, FLEETING), (request, None)]
            case _:
                return [(chance.choice((m.DeleteTopics(topics=(FLEETING.topic,)), CREATE)), None)]

    def _owner(self, name: str) -> Identity:
        """Mostly the last one; else one that was replaced, or the next one, which nobody may know yet."""
        last = self._owners[name][-1]
        if self.chance.random() < 0.1:
            return last._replace(producer_epoch=last.producer_epoch + 1)
        return last if self.chance.random() < 0.85 else self.chance.choice(self._owners[name][-4:])

    def _added(self, name: str, owner: Identity, *keys: TopicPartition) -> list[Sent]:
        return [(add_request(owner, *keys, name=name), None)] if name == OLD else []

    def _write(self, name: str, owner: Identity, key: TopicPartition, sequence: int = 0) -> Write:
        is_fenced = self.ledger.is_fenced(owner)
        return Write(owner=owner, name=name, is_fenced=is_fenced, partition=key, sequence=sequence)

    def _produce(self, name: str, owner: Identity, key: TopicPartition) -> Sent:
        value, sequence = f"v{len(self.ledger.records)}", self._sequences[owner, key]
        self._sequences[owner, key] += 1
        write = self.ledger.records[value] = self._write(name, owner, key, sequence)
        return produce_request(owner, {key: value}, sequence=sequence, name=name or None), write

    def _may_retry(self, name: str, request: m.Request, write: Write | None) -> None:
        if write is not None and write.owner != NOBODY:
            self._retriable[name].append((request, write))

    def _retry(self, name: str) -> Sent:
        request, write = self.chance.choice(self._retriable[name])
        write.is_retried = True
        return request, write

    # --- replies --------------------------------------------------------------------------------------------

    def _take(self, name: str, request: m.Request, write: Write | None, reply: Reply, moment: int) -> None:
        self.answers += 1
        match request, reply.body:
            case m.InitProducerId(), m.InitProducerIdReply():
                self._owners[name].append(owner := identity_of(reply))
                self.ledger.grant(owner)
            case m.EndTxn(), m.EndTxnReply():
                ended = Identity(request.producer_id, request.producer_epoch)
                self.ledger.end(ended, request.result, moment)
                if not self.has_both_ends.is_set() and self.ledger.has_both_ends():
                    self.has_both_ends.set()
                if name != OLD:
                    self._owners[name].append(identity_of(reply))
            case _, m.ProduceReply(partitions=(part,)) | m.TxnOffsetCommitReply(partitions=(part,)) if write:
                if part.error is NO_ERROR:
                    self.ledger.acknowledge(write, getattr(part, "base_offset", None))
                    self._may_retry(name, request, write)
                elif not write.is_retried and isinstance(request, m.Produce):
                    key = (write.owner, write.partition)  # it was not written: the next one has its sequence
                    self._sequences[key] -= self._sequences[key] == write.sequence + 1
            case _:
                pass

    # --- readers --------------------------------------------------------------------------------------------

    async def reader(self, key: TopicPartition, position: list[int], wire: Wire) -> None:
        """Reads on, across connections, what is committed."""
        while True:
            part = fetched(await wire.ask(fetch_request(key, offset=position[0], max_wait_ms=50)))
            if not part.error:
                self.ledger.note_last_stable_offset(key, part.last_stable_offset)
                if part.records:
                    self.ledger.seen.setdefault(key, []).extend(visible_values(part))
                    position[0] = next_offset(part)

    async def judge(self, wire: Wire) -> list[str]:
        """Ends what is open, by new owners, and compares the logs with the ledger."""
        offsets: dict[str, int] = {}
        for name in self._owners:
            await wire.ask_until_done(init_request(name))
            request = m.OffsetFetch(group_id=name, require_stable=True, partitions=(RACED[0],))
            (part,) = body_of(await wire.ask_until_done(request), m.OffsetFetchReply).offsets
            assert part.error is NO_ERROR, part
            offsets[name] = part.offset
        logs = {key: await read_log(wire, key) for key in RACED}
        visible = sum(len(log.visible) for log in logs.values())
        written = sum(len(log.records) for log in logs.values())
        self.scene.figures |= {"replies": self.answers, "written": written, "visible": visible}
        is_idle = not 0 < visible < written or max(offsets.values()) < 0
        faults = shortened(self.ledger.faults(logs, offsets))
        return ["nothing was committed, or nothing aborted"] * is_idle + faults


async def read_log(wire: Wire, key: TopicPartition) -> PartitionLog:
    """The whole partition, once everything is decided. Each of its batches has one record."""
    part = fetched(await wire.ask(fetch_request(key)))
    while part.last_stable_offset != part.high_watermark:
        part = fetched(await wire.ask(fetch_request(key)))
    end, log = part.high_watermark, PartitionLog([], [])
    for level in (COMMITTED, UNCOMMITTED):
        offset = 0
        while offset < end:
            part = fetched(await wire.ask(fetch_request(key, level, offset=offset)))
            offset, values = next_offset(part), visible_values(part)
            if level is COMMITTED:
                log.visible.extend(values)
            else:
                offsets = [header.base_offset for _, header in walk(part.records) if not header.is_control]
                log.records.extend(zip(offsets, values, strict=True))
    return log


CREATE = m.CreateTopics(topics=(m.CreateTopic(topic=FLEETING.topic, partition_count=1),))


async def races(scene: Scene) -> None:
    """Clients that fence each other, readers beside them, and ends of the broker."""
    race, restarts = Race(scene), scene.scaled(2, 20)
    async with scene.target.wire() as wire:
        await wire.ask(m.CreateTopics(topics=(m.CreateTopic(topic="raced", partition_count=len(RACED)),)))
        await wire.ask(CREATE)
    async with trio.open_nursery() as nursery:
        for name in (*RENEWING, OLD):
            for _ in range(CLIENTS_PER_ID):
                nursery.start_soon(race.connect, partial(race.client, name))
        for key in RACED:
            nursery.start_soon(race.connect, partial(race.reader, key, [0]))
        for _ in range(restarts):
            await scene.canary.meanwhile(scene.chance.randint(1, 4))
            await scene.canary.lines(scene.chance.randint(0, 3))
            await race.restart(scene.chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)))
        await scene.canary.meanwhile(3)
        with fails_after(PATIENCE_S, "the clients do not commit and abort"):
            await race.has_both_ends.wait()
        nursery.cancel_scope.cancel()
    scene.figures["restarts"] = restarts
    with fails_after(PATIENCE_S, "the transactions do not end, or the logs cannot be read"):
        async with scene.target.wire() as wire:
            scene.faults += await race.judge(wire)


ATTACKS: tuple[Attack, ...] = (
    Attack(
        name="races",
        does="clients that fence each other, while the broker ends and changes its policy",
        act=races,
        options=options(POLICIES[0]),
        is_restarted=True,
    ),
)
