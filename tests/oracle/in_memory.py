"""Our cores as a stage: one or two nodes over a log in memory, under a clock that only moves when told to.

Rule: whatever can happen at one moment has happened before the next question; time passes in leaps from one
deadline to the next.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import attrs

from fencepost.broker.contract import Answered, Decision, Input, Outcome, Reassign, Received, Reply, ReplyTo
from fencepost.broker.host import Host
from fencepost.broker.node import Node
from fencepost.broker.settings import NodeSettings
from fencepost.broker.transactions.handlers import carry_out
from fencepost.broker.transactions.state import LastEpoch, TransactionDecision, Transactions
from fencepost.journal.data_directory import DataDirectory
from fencepost.journal.memory import MemoryStorage
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import (
    CreateTopic,
    CreateTopics,
    CreateTopicsReply,
    FindCoordinator,
    Request,
    is_answered,
)
from fencepost.protocol.terms import NEWEST_VERSION, CoordinatorType, TopicPartition
from tests.oracle.stage import NoAnswer

FIRST: Final = 1  # leads everything but what is to be held
SECOND: Final = 2  # leads what is to be held; starts when there is such a thing
CLIENT: Final = 1  # the connection of whoever asks
PEERS: Final = 1_000  # connections of nodes are theirs plus this
NOON: Final = 1_800_000_000_000  # where every play begins, in ms since 1970
JOIN_MS: Final = 1_000  # longer than a new node takes to hear of everything
PATIENCE_MS: Final = 30_000  # of one who waits for an answer
TURNS_MAX: Final = 100_000  # more than any conversation has: beyond this the nodes run in circles


class InMemory:
    """Nodes over one directory, and the messages between them."""

    is_kafka = False

    def __init__(self, settings: NodeSettings) -> None:
        self.settings = settings
        self.now_ms = NOON
        self.hosts: dict[int, Host] = {}
        self.replies: dict[int, Reply] = {}
        self.questions = 0
        self.is_holding = False
        self._storage = MemoryStorage()
        self._waiting: deque[tuple[int, Input]] = deque()  # for a node that is held
        self._start()
        for kind in CoordinatorType:
            self.ask(FindCoordinator(kind=kind, key="anybody"), version=NEWEST_VERSION)

    # --- living and dying

    def _start(self) -> None:
        self._directory = DataDirectory.open(self._storage)
        self._start_node(FIRST)

    def _start_node(self, node_id: int) -> None:
        settings = attrs.evolve(self.settings, node_id=node_id, controller_id=FIRST, port=node_id)
        host = self.hosts[node_id] = Host(Node(settings), self._directory)
        host.start(self.now_ms)
        self._work()

    def kill_and_restart(self) -> None:
        """What is in the log is all that is left; the lock goes with the process."""
        self.hosts.clear()
        self._waiting.clear()
        self._storage.unlock()
        self._start()

    # --- working

    def _work(self) -> None:
        """Everything happens that can happen without time."""
        for _ in range(TURNS_MAX):
            for host in self.hosts.values():
                host.tick(self.now_ms)
                try:
                    host.work_until_idle(self.now_ms)
                except Exception as problem:
                    raise NoAnswer(f"the node crashed: {problem!r}") from problem
            if not [node_id for node_id in self.hosts if self._carry(node_id)]:
                return
        raise NoAnswer("the nodes run in circles")

    def _carry(self, node_id: int) -> bool:
        """Take what a node has for others to them; whether there was anything."""
        host = self.hosts[node_id]
        sends, host.outbox = host.outbox, []
        for send in sends:
            to = ReplyTo(PEERS + node_id, send.token)
            asked = Received(send.request, to=to, version=send.version, from_node=node_id)
            self._deliver(send.node_id, asked)
        answers, host.answers = host.answers, []
        for answer in answers:
            asker, token = answer.to.connection - PEERS, answer.to.correlation_id
            if asker in self.hosts:
                self._deliver(asker, Answered(token=token, error=answer.error, body=answer.body))
            elif answer.to.connection == CLIENT:
                self.replies[token] = answer
        return bool(sends or answers)

    def _deliver(self, node_id: int, arrived: Input) -> None:
        if self.is_holding and node_id == SECOND:
            self._waiting.append((node_id, arrived))
        else:
            self.hosts[node_id].offer(arrived)

    # --- time

    def let_pass(self, duration_ms: int, *, until_settled: bool = False) -> None:
        """Whatever is due happens at its time. Held or not, `until_settled` ends the wait early."""
        until_ms = self.now_ms + duration_ms
        self._work()
        while not (until_settled and self.is_settled) and (due_ms := self._due_ms()) <= until_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self._work()
        if not until_settled:
            self.now_ms = until_ms
            self._work()

    def _due_ms(self) -> int:
        dues = [host.wakes_at_ms for host in self.hosts.values() if host.wakes_at_ms is not None]
        return min(dues, default=self.now_ms + PATIENCE_MS + 1)

    @property
    def is_settled(self) -> bool:
        """While leaders are held, whatever does not wait for them has happened already."""
        coordinators = [log.coordinator for log in self.hosts[FIRST].node.logs.values()]
        transactions = [found for found in coordinators if isinstance(found, Transactions)]
        return self.is_holding or not any(
            record.state.is_prepared for found in transactions for record in found.records.values()
        )

    # --- asking

    def ask(self, request: Request, *, version: int, about: TopicPartition | None = None) -> Reply | None:
        """The clock moves by a millisecond, and as far as it must for an answer."""
        number = self.begin(request, version=version, about=about)
        if not is_answered(request):
            self.replies.pop(number, None)
            return None
        return self.finish(number)

    def begin(self, request: Request, *, version: int, about: TopicPartition | None = None) -> int:
        """The clock moves by a millisecond."""
        leader = None if about is None else self.hosts[FIRST].node.cluster.leader(about)
        node_id = FIRST if leader is None else leader.node_id
        self.now_ms += 1
        self._work()
        self.questions += 1
        to = ReplyTo(CLIENT, self.questions)
        self.hosts[node_id].offer(Received(request, to=to, version=version))
        self._work()
        return self.questions

    def finish(self, number: int) -> Reply:
        """The clock moves as far as it must."""
        until_ms = self.now_ms + PATIENCE_MS
        while number not in self.replies:
            due_ms = self._due_ms()
            if due_ms > until_ms:
                raise NoAnswer(f"nobody answers question {number}")
            self.now_ms = max(self.now_ms, due_ms)
            self._work()
        return self.replies.pop(number)

    def create_topic(self, topic: str, partitions: int, *, held: bool) -> bytes:
        """What is held is led by a node of its own."""
        if held and SECOND not in self.hosts:
            self._start_node(SECOND)
            self.let_pass(JOIN_MS)
        wanted = CreateTopics(topics=(CreateTopic(topic=topic, partition_count=partitions),))
        reply = self.ask(wanted, version=NEWEST_VERSION)
        created = None if reply is None else reply.body
        if not isinstance(created, CreateTopicsReply) or created.topics[0].error is not ErrorCode.NONE:
            raise NoAnswer(f"the topic {topic} cannot be made: {reply}")
        for number in range(partitions):
            key, wanted_id = TopicPartition(topic, number), SECOND if held else FIRST
            leader = self.hosts[FIRST].node.cluster.leader(key)
            if leader is not None and leader.node_id != wanted_id:
                self.hosts[FIRST].offer(Reassign(partition=key, node_id=wanted_id))
        self._work()
        return created.topics[0].topic_id

    def skip_to_epoch(self, transactional_id: str, epoch: int) -> None:
        """Write the record that the last of so many InitProducerId requests would have written."""
        host = self.hosts[FIRST]
        logs = host.node.coordinator_logs(Transactions)
        (log,) = [log for log in logs if transactional_id in log.coordinator.records]
        record = log.coordinator.records[transactional_id]._replace(producer_epoch=epoch)
        note = LastEpoch(transactional_id, epoch - 1)
        host.node.outcome = outcome = Outcome([], [], [])
        decision: TransactionDecision = Decision(((transactional_id, record),), note=note)
        carry_out(host.node, log, decision, self.now_ms)
        host.to_do.extend(outcome.appends)
        self._work()

    def hold(self) -> None:
        """What is sent to the second node from now on stays on the way."""
        self.is_holding = True

    def release(self) -> None:
        self.is_holding = False
        for node_id, arrived in self._waiting:
            self.hosts[node_id].offer(arrived)
        self._waiting.clear()
        self._work()
