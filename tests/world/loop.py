"""One in-memory loop: a node over a log that survives it, clients as machines, and a seed that picks what
happens next.

Rule: nothing here waits, sleeps or knows a wall clock. Between any two things that the node does, the seed
may stop it.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Generator
from functools import partial
from typing import TypeVar

import attrs

from fencepost.broker.host import Host
from fencepost.broker.node import Node
from fencepost.broker.settings import NodeSettings
from fencepost.broker.transactions import Transactions
from fencepost.broker.words import Append, Disconnected, Lead, Received, Reply, ReplyTo
from fencepost.client.asking import AskingMachine
from fencepost.client.effects import Answered, Effect, Operation, Resolve, Send, WakeMe
from fencepost.client.errors import Failure
from fencepost.client.producer import ProducerMachine
from fencepost.journal.data_directory import DataDirectory
from fencepost.journal.memory import MemoryStorage
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.frames import (
    FrameReader,
    ReplyFrame,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)
from fencepost.protocol.messages import API_BY_REQUEST, Api, CreateTopic, CreateTopics, Request
from fencepost.protocol.terms import TopicPartition, TransactionState

ADDRESS = "127.0.0.1:1"
SETTINGS = NodeSettings(
    port=1,
    transaction_state_log_num_partitions=2,
    offsets_topic_num_partitions=2,
    transaction_abort_timed_out_transaction_cleanup_interval_ms=100,
)
STEPS_MAX = 40_000  # a run that is not over by then will never be

Result = TypeVar("Result")
Script = Generator[Callable[[], bool], None, Result]
"""What an actor does, as a generator: each time it yields when it wants to go on."""


@attrs.define(eq=False)
class Port:
    """A client machine and its one connection, FIFO both ways."""

    machine: ProducerMachine | AskingMachine
    connection: int
    outgoing: deque[tuple[int, bytes]] = attrs.Factory(deque[tuple[int, bytes]])
    incoming: deque[tuple[int, bytes]] = attrs.Factory(deque[tuple[int, bytes]])
    in_flight: dict[int, Api] = attrs.Factory(dict[int, Api])
    resolved: dict[Operation, Failure | None] = attrs.Factory(dict[Operation, Failure | None])
    answers: dict[int, Answered] = attrs.Factory(dict[int, Answered])
    wakes_at: int | None = None

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    frame = b"".join(
                        encode_request(effect.request, correlation_id=effect.token, version=effect.version)
                    )
                    self.in_flight[effect.token] = API_BY_REQUEST[type(effect.request)]
                    self.outgoing.append((effect.token, frame))
                case WakeMe():
                    self.wakes_at = effect.at
                case Resolve():
                    self.resolved[effect.operation] = effect.failure
                case Answered():
                    self.answers[effect.number] = effect
                case _:
                    continue


@attrs.define(eq=False)
class Actor:
    """A client process: its ports, and the script that it runs until it ends or is killed."""

    name: str
    script: Script[None]
    ports: list[Port]
    waits_for: Callable[[], bool]
    is_over: bool = False


class World:
    """Everything that a seed decides on. `marks` counts what was reached, so that a test can tell that it
    tests something.
    """

    def __init__(self, seed: int, *, faults: int, broken: frozenset[str] = frozenset()) -> None:
        self.settings = attrs.evolve(SETTINGS, broken=broken)
        self.random = random.Random(seed)
        self.now = 1_000_000
        self.storage = MemoryStorage()
        self.actors: list[Actor] = []
        self.ports: dict[int, Port] = {}
        self.connections = 0
        self.faults_left = faults
        self.marks: Counter[str] = Counter()
        self.host: Host | None = None
        self.start_node()

    # --- the node

    def start_node(self) -> None:
        """An incarnation over what the last one left."""
        self.host = Host(Node(self.settings), DataDirectory.open(self.storage))
        self.host.start(self.now)

    @property
    def live_host(self) -> Host:
        """The node's host, which must be up."""
        assert self.host is not None, "the node is down"
        return self.host

    def ask(self, request: Request) -> None:
        """Ask the node and let it finish, before anybody else acts."""
        host = self.live_host
        host.offer(Received(request, to=ReplyTo(0, 1)))
        host.work_until_idle(self.now)
        assert [answer.error for answer in host.answers] == [ErrorCode.NONE]
        host.answers.clear()

    def create_topics(self, **partitions: int) -> None:
        """Topics are there before anybody starts."""
        topics = tuple(CreateTopic(topic=name, partition_count=count) for name, count in partitions.items())
        self.ask(CreateTopics(topics=topics))

    def stop_node(self) -> None:
        """Kill the node where it stands. What its log says is what its state was, but for notes."""
        host = self.live_host
        unwritten = {act.partition for act in host.to_do if isinstance(act, Append)}
        live = {key: host.node.state_of(key) for key in host.node.logs if key not in unwritten}
        self._mark_states(host)
        host.directory.abandon()
        self.host = None
        recovered = recover(self.storage)
        for key, state in live.items():
            if key in recovered.logs:
                assert recovered.state_of(key) == state, f"{key} recovered to something else"
                self.marks["states compared"] += 1
        for port in list(self.ports.values()):
            self.drop_connection(port)

    def _mark_states(self, host: Host) -> None:
        for log in host.node.logs.values():
            if isinstance(log.coordinator, Transactions):
                for record in log.coordinator.records.values():
                    self.marks[f"node stopped in {record.state.name}"] += 1
        self.marks["node stopped before an append was written"] += any(
            isinstance(act, Append) for act in host.to_do
        )

    # --- connections

    def port(self, machine: ProducerMachine | AskingMachine) -> Port:
        self.connections += 1
        port = Port(machine, self.connections)
        self.ports[port.connection] = port
        return port

    def drop_connection(self, port: Port) -> None:
        """Whatever was on its way is lost, in both directions; a new connection takes its place."""
        if self.host is not None:
            self.host.offer(Disconnected(connection=port.connection))
        self._forget(port)
        self.connections += 1
        port.connection = self.connections
        self.ports[port.connection] = port
        port.outgoing.clear()
        port.incoming.clear()
        lost, port.in_flight = port.in_flight, {}
        for token in lost:
            port.perform(port.machine.on_reply(token, ErrorCode.NETWORK_EXCEPTION, None, self.now))

    def _forget(self, port: Port) -> None:
        self.ports.pop(port.connection, None)

    def _to_node(self, port: Port) -> None:
        _, frame = port.outgoing.popleft()
        if self.host is None:
            self.drop_connection(port)
            return
        [body] = FrameReader().feed(frame)
        arrived = decode_request(body)
        to = ReplyTo(port.connection, arrived.correlation_id)
        self.host.offer(Received(arrived.request, to=to, version=arrived.version))

    def _to_client(self, port: Port) -> None:
        token, frame = port.incoming.popleft()
        [body] = FrameReader().feed(frame)
        reply = decode_reply(body, port.in_flight.pop(token))
        port.perform(port.machine.on_reply(token, reply.error, reply.body, self.now))

    def _collect_answers(self, host: Host) -> None:
        answers, host.answers = host.answers, list[Reply]()
        for answer in answers:
            port = self.ports.get(answer.to.connection)
            if port is not None:
                frame = ReplyFrame(answer.to.correlation_id, error=answer.error, body=answer.body)
                port.incoming.append((answer.to.correlation_id, b"".join(encode_reply(frame))))

    # --- actors

    def spawn(self, name: str, script: Script[None], ports: list[Port]) -> Actor:
        actor = Actor(name, script, ports, lambda: True)
        self.actors.append(actor)
        return actor

    def kill(self, actor: Actor) -> None:
        """A client process dies between two things that it does."""
        actor.script.close()
        self._end(actor)

    def _end(self, actor: Actor) -> None:
        actor.is_over = True
        self.actors.remove(actor)
        for port in actor.ports:
            self._forget(port)
            if self.host is not None:
                self.host.offer(Disconnected(connection=port.connection))

    def _advance(self, actor: Actor) -> None:
        try:
            actor.waits_for = next(actor.script)
        except StopIteration:
            self._end(actor)

    # --- what happens next

    def run(self) -> None:
        """One thing after the other until every script is over and the node has nothing left to do."""
        for _ in range(STEPS_MAX):
            if not self.actors and self.host is not None and self.host.is_idle and not self._has_timers():
                return
            if self.faults_left and self.random.random() < 0.01:
                self._fault()
            else:
                self._something()
        raise AssertionError(f"still at work: {[actor.name for actor in self.actors]}")

    def _has_timers(self) -> bool:
        return self.host is not None and self.host.wakes_at_ms is not None

    def _something(self) -> None:
        choices: list[Callable[[], None]] = []
        host = self.host
        if host is not None and not host.is_idle:
            choices += [partial(self._work, host)] * 3
        for port in self.ports.values():
            if port.outgoing:
                choices.append(partial(self._to_node, port))
            if port.incoming:
                choices.append(partial(self._to_client, port))
        choices += [partial(self._advance, actor) for actor in self.actors if actor.waits_for()]
        if host is None:
            choices.append(self.start_node)
        if not choices:
            self._pass_time(to_next=True)
        elif self.random.random() < 0.02:
            self._pass_time(to_next=False)
        else:
            self.random.choice(choices)()

    def _work(self, host: Host) -> None:
        host.work(self.now)
        self._collect_answers(host)

    def _pass_time(self, *, to_next: bool) -> None:
        """To the next time that somebody waits for, or a little on the way there."""
        times = [port.wakes_at for port in self.ports.values() if port.wakes_at is not None]
        if self.host is not None and self.host.wakes_at_ms is not None:
            times.append(self.host.wakes_at_ms)
        ahead = [at for at in times if at > self.now]
        self.now = min(ahead, default=self.now + 10) if to_next else self.now + 5
        for port in list(self.ports.values()):
            if port.wakes_at is not None and port.wakes_at <= self.now:
                port.wakes_at = None
                port.perform(port.machine.wake(self.now))
        if self.host is not None:
            self.host.tick(self.now)

    def _fault(self) -> None:
        self.faults_left -= 1
        kind = self.random.randrange(4)
        if kind == 0 and self.ports:
            self.marks["connection dropped"] += 1
            self.drop_connection(self.random.choice(list(self.ports.values())))
        elif kind == 1 and self.actors:
            self.marks["client killed"] += 1
            self.kill(self.random.choice(self.actors))
        elif self.host is not None:
            self.marks["node stopped"] += 1
            self.stop_node()


def recover(storage: MemoryStorage) -> Node:
    """A node that has only the log to go by, and changes nothing in it."""
    node = Node(SETTINGS)
    directory = DataDirectory.open(storage)
    for key in directory.partitions():
        journal = directory.journal(key)
        order = Lead(partition=key, leader_epoch=journal.leader_epoch, batches=journal.batches(0))
        node.lead(order)
    directory.abandon()
    return node


def open_states(node: Node) -> list[TransactionState]:
    """The states of all transactional ids."""
    coordinators = [log.coordinator for log in node.logs.values()]
    return [
        record.state
        for coordinator in coordinators
        if isinstance(coordinator, Transactions)
        for record in coordinator.records.values()
    ]


def partitions_of(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(count)]
