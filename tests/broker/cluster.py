"""A cluster to tell stories with: hosts over one data directory, messages that are carried one at a time.

Nothing here waits or reads a clock. A link that is cut keeps what is sent on it; a node that is killed
answers nobody, and whoever asked it learns that the connection went.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

import attrs

from fencepost.broker.contract import Answered, Disconnected, Reassign, Received, Reply, ReplyTo
from fencepost.broker.host import Host
from fencepost.broker.node import Node
from fencepost.broker.settings import NodeSettings
from fencepost.broker.sync_policy import SyncPolicy
from fencepost.journal.data_directory import DataDirectory
from fencepost.journal.journal import Journal, JournalSettings
from fencepost.journal.memory import MemoryStorage
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.fork import log_state
from fencepost.protocol.terms import CoordinatorType, TopicPartition
from tests.broker.requests import NOON, ORDERS, Identity, body_of, identity_of, init_request
from tests.broker.story import SETTINGS, Asking, offsets_log_of, transaction_log_of

CONTROLLER: Final = 1
CLIENT: Final = 1  # the connection of whoever asks
PEERS: Final = 1_000  # connections of nodes are theirs plus this
PATIENCE_MS: Final = 2_000  # of a client
TURNS_MAX: Final = 20_000  # more than any story has


class Question(NamedTuple):
    token: int
    request: m.Request


class Answer(NamedTuple):
    token: int
    error: ErrorCode
    body: m.ReplyBody | None


class Cluster(Asking):
    """Nodes 1 to `nodes`, the first the controller, with all there is led by whom a story says."""

    def __init__(
        self,
        *,
        nodes: int = 3,
        policy: SyncPolicy = SyncPolicy.NONE,
        settings: NodeSettings = SETTINGS,
        journals: JournalSettings | None = None,
        leaders: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        self.policy, self.settings = policy, settings
        self.storage = MemoryStorage()
        self.directory = DataDirectory.open(self.storage, settings=journals)
        self.hosts: dict[int, Host] = {}
        self.links: dict[tuple[int, int], deque[Question | Answer]] = {}
        self.cut: set[tuple[int, int]] = set()
        self.asked: dict[tuple[int, int], int] = {}  # (who asked, token) -> whom
        self.replies: dict[tuple[int, int], Reply] = {}
        self.now, self.questions = NOON, 0
        for node_id in range(1, nodes + 1):
            self.start(node_id)
        self.wait(1_000)
        for kind in CoordinatorType:
            self.ask(CONTROLLER, m.FindCoordinator(kind=kind, key="anybody"))
        self.create(ORDERS.topic, 2)
        for key, node_id in (leaders or {}).items():
            self.move(key, node_id)

    # --- living and dying

    def start(self, node_id: int) -> None:
        """A new incarnation; it does nothing yet."""
        settings = attrs.evolve(
            self.settings, node_id=node_id, controller_id=CONTROLLER, host="node", port=node_id
        )
        host = Host(Node(settings, verifies_entries=True), self.directory, policy=self.policy)
        self.hosts[node_id] = host
        host.start(self.now)

    def kill(self, node_id: int) -> None:
        """The process is gone; whoever waits for it learns that the connection went."""
        host = self.hosts.pop(node_id)
        for key, held in host.held.items():
            if held.is_newest and self.directory.holds(held.journal):
                self.directory.give_up(key)
        for pair in [pair for pair in self.links if node_id in pair]:
            del self.links[pair]
        for (source, token), target in list(self.asked.items()):
            if source == node_id:
                del self.asked[source, token]
            elif target == node_id:
                self._fail(source, token)
        for other in self.hosts.values():
            other.offer(Disconnected(connection=PEERS + node_id))

    def restart(self, node_id: int) -> None:
        self.kill(node_id)
        self.start(node_id)
        self.wait(1_000)

    def cut_off(self, node_id: int) -> None:
        """What it sends and what is sent to it stays on the way; clients still reach it."""
        for other in list(self.hosts):
            self.cut |= {(node_id, other), (other, node_id)}

    def heal(self) -> None:
        self.cut.clear()
        self.wait(1_000)

    # --- messages

    def _fail(self, source: int, token: int) -> None:
        del self.asked[source, token]
        answer = Answered(token=token, error=ErrorCode.NETWORK_EXCEPTION, body=None)
        self.hosts[source].offer(answer)

    def collect(self, node_id: int) -> None:
        """Take what a host wants to send, and put it on its links."""
        host = self.hosts[node_id]
        sends, host.outbox = host.outbox, []
        for send in sends:
            assert send.node_id != node_id, "a node carries its own questions itself"
            self.asked[node_id, send.token] = send.node_id
            if send.node_id in self.hosts:
                self._link(node_id, send.node_id).append(Question(send.token, send.request))
            else:
                self._fail(node_id, send.token)
        replies, host.answers = host.answers, []
        for reply in replies:
            caller = reply.to.connection - PEERS
            if caller in self.hosts:
                answer = Answer(reply.to.correlation_id, reply.error, reply.body)
                self._link(node_id, caller).append(answer)
            elif caller < 0:
                self.replies[node_id, reply.to.correlation_id] = reply

    def _link(self, source: int, target: int) -> deque[Question | Answer]:
        return self.links.setdefault((source, target), deque())

    def carry(self, source: int, target: int) -> None:
        """The oldest message on this link arrives."""
        message, host = self.links[source, target].popleft(), self.hosts[target]
        match message:
            case Question(token, request):
                host.offer(Received(request, to=ReplyTo(PEERS + source, token), from_node=source))
            case Answer(token, error, body):
                if self.asked.pop((target, token), None) is not None:
                    host.offer(Answered(token=token, error=error, body=body))

    # --- time and work

    def work(self, node_id: int) -> None:
        """Let one host do all that it can now."""
        host = self.hosts[node_id]
        host.tick(self.now)
        host.work_until_idle(self.now)
        self.collect(node_id)

    def run(self) -> None:
        """Everything happens that can happen without time: work, messages, syncs."""
        for _ in range(TURNS_MAX):
            for node_id in list(self.hosts):
                self.work(node_id)
            ready = [pair for pair, link in self.links.items() if link and pair not in self.cut]
            for pair in ready:
                self.carry(*pair)
            unsynced = [(host, key) for host in self.hosts.values() for key in sorted(host.unsynced)]
            for host, key in unsynced:
                host.synced(key, self.directory.journal(key).sync())
            if not ready and all(host.is_idle for host in self.hosts.values()):
                return
        raise AssertionError("the cluster runs in circles")

    def wait(self, duration_ms: int) -> None:
        """Time passes; whatever is due happens at its time."""
        until = self.now + duration_ms
        for _ in range(TURNS_MAX):
            self.run()
            wakes = [host.wakes_at_ms for host in self.hosts.values() if host.wakes_at_ms is not None]
            if min(wakes, default=until) >= until:
                self.now = until
                self.run()
                return
            self.now = max(self.now, min(wakes))
        raise AssertionError("time stands still")

    # --- clients

    def offer(self, node_id: int, request: m.Request) -> tuple[int, int]:
        """Ask a node as a client; nothing happens yet."""
        self.questions += 1
        self.hosts[node_id].offer(Received(request, to=ReplyTo(CLIENT, self.questions)))
        return node_id, self.questions

    def ask(self, node_id: int, request: m.Request) -> Reply:
        """Ask a node as a client, and wait for the answer."""
        asked = self.offer(node_id, request)
        for _ in range(PATIENCE_MS // 10):
            self.run()
            if asked in self.replies:
                return self.replies.pop(asked)
            self.wait(10)
        raise AssertionError(f"node {node_id} does not answer {request}")

    def ask_leader(self, key: TopicPartition, request: m.Request, at: int | None = None) -> Reply:
        return self.ask(at or self.leader(key), request)

    def journal_of(self, key: TopicPartition) -> Journal:
        return self.directory.journal(key)

    def create(self, topic: str, partitions: int = 1) -> None:
        request = m.CreateTopics(topics=(m.CreateTopic(topic=topic, partition_count=partitions),))
        (answer,) = body_of(self.ask(CONTROLLER, request), m.CreateTopicsReply).topics
        assert answer.error is ErrorCode.NONE, answer
        self.run()

    def move(self, key: TopicPartition, node_id: int) -> None:
        """Whoever watches the nodes wants this one to lead; everybody that can be reached hears of it."""
        self.hosts[CONTROLLER].offer(Reassign(partition=key, node_id=node_id))
        self.run()

    def leader(self, key: TopicPartition) -> int:
        """Who leads, as the controller knows."""
        leader = self.hosts[CONTROLLER].node.cluster.leader(key)
        assert leader is not None, f"there is no {key}"
        return leader.node_id

    def identity(self, name: str = "pay", *, at: int | None = None) -> Identity:
        """Who the owner of the id is, asked for until it is granted."""
        for _ in range(10):
            reply = self.ask(at or self.leader(transaction_log_of(name)), init_request(name))
            if reply.error is ErrorCode.NONE:
                return identity_of(reply)
            self.wait(100)
        raise AssertionError(f"nobody is granted an identity for {name}")

    def offset(self, group: str) -> int:
        """The committed offset of orders-0."""
        request = m.OffsetFetch(group_id=group, require_stable=False, partitions=(ORDERS,))
        (found,) = body_of(self.ask(self.leader(offsets_log_of(group)), request), m.OffsetFetchReply).offsets
        return found.offset

    # --- looking

    def check_leaders(self) -> None:
        """Everybody that lives knows the same, and each partition is led by the one that they name."""
        known = {log_state(host.node.cluster) for host in self.hosts.values()}
        assert len(known) == 1, "the nodes disagree about the cluster"
        for topic in self.hosts[CONTROLLER].node.cluster.topics.values():
            for number, leader in topic.leaders.items():
                key = TopicPartition(topic.name, number)
                leaders = [
                    (node_id, host.node.logs[key].partition.leader_epoch)
                    for node_id, host in self.hosts.items()
                    if key in host.node.logs
                ]
                expected = [(leader.node_id, leader.leader_epoch)] if leader.node_id in self.hosts else []
                assert leaders == expected, f"{key} is led by {leaders}, not by {expected}"
