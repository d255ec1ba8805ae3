"""What a client knows of the cluster (nodes, leaders, coordinators, topics) and what it must request again.

Rule: knowledge only. Replies replace it, except with leaders of an older epoch (KIP-320); `forget_*` marks it
as doubtful; `PendingCalls` decides who asks, and when.
"""

# Metadata becomes stale for four reasons: a topic is wanted for the first time, a partition is wanted that is
# not known, a leader or node did not answer or denied its role, or a reply left a topic undecided. `is_stale`
# records the need, and one request covers all topics in `wanted`. A client therefore never refreshes on a
# timer, except a group leader that watches its topics for new partitions (metadata.max.age.ms).
#
# What a reply lacks (a partition, its leader, a broker) makes metadata stale again while it is needed. A
# leader is elected within a moment; what stays missing is requested ever more rarely, down to once a second
# (`back_off`, KIP-580), until a reply brings something new or another topic is wanted.
#
# A topic that does not exist stays undecided, so it is requested again with backoff, for as long as it is
# used: `drop` ends that. As in Kafka (retainTopic of ProducerMetadata and ConsumerMetadata), a consumer uses
# the topics that it is assigned or subscribed to, a producer those to which it sent within five minutes.
#
# `rotation` selects the node for the next request that any node can answer. It advances when a node did not
# answer or sent old metadata, so a client does not depend on a node that was cut off from the cluster.

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final

import attrs

from fencepost.client.settings import RETRY_BACKOFF_MAX_MS
from fencepost.protocol.errors import NO_ERROR, ErrorCode, Remedy
from fencepost.protocol.fork import Due, Ordered, Pace, Rank
from fencepost.protocol.messages import (
    FindCoordinatorReply,
    ListOffsets,
    ListOffsetsPartition,
    Metadata,
    MetadataReply,
    TopicMetadata,
)
from fencepost.protocol.terms import NO_LEADER_EPOCH, CoordinatorType, TopicPartition
from fencepost.protocol.values import value

# Bootstrap addresses are nodes -2, -3, ... until metadata names the real ones; -1 is Kafka's "no node".
FIRST_BOOTSTRAP_NODE: Final = -2

HOST_NAME_SIZE_MAX: Final = 255  # RFC 1035

# The minimum time between two Metadata requests: a partition without a leader must not cause a storm. It
# stays constant for so many replies that bring nothing new, and then doubles with each.
METADATA_BACKOFF_MS: Final = 50
CONSTANT_BACKOFFS: Final = 8

Address = tuple[str, int]


@value
class CoordinatorOf:
    """The coordinator of a group or a transactional id."""

    kind: CoordinatorType
    name: str


def bootstrap_addresses(bootstrap: str) -> list[Address]:
    """The addresses in `"host:port,host:port"`; ValueError if one is invalid."""
    addresses: list[Address] = []
    for part in bootstrap.split(","):
        name, colon, port = part.strip().rpartition(":")
        host = name.strip("[]")
        if not colon or not can_be_host(host) or not port.isdecimal() or not 0 < int(port) < 65_536:
            raise ValueError(f"each address in bootstrap_servers must be host:port, not {part.strip()!r}")
        addresses.append((host, int(port)))
    return addresses


def can_be_host(name: str) -> bool:
    """Whether a host can have this name: no resolver, and no TLS library, takes any other."""
    try:
        encoded = name.encode("idna")
    except UnicodeError:  # a label that is empty, too long, or not of letters
        return False
    return 0 < len(encoded) <= HOST_NAME_SIZE_MAX and not {*b"\0/"} & {*encoded}


NOT_ACCEPTING: Final = "it does not accept connections"
NOT_A_BROKER: Final = "it accepts connections, but has not answered as a Fencepost broker"


MetadataNumber = Annotated[int, Rank("metadata")]
"""The number of a Metadata request, from 1 on."""


@attrs.define(eq=False)
class ClusterMetadata:
    """The last known nodes, leaders and coordinators, and the topics that this client uses."""

    bootstrap: tuple[Address, ...]
    nodes: dict[int, Address] = attrs.field(factory=dict, kw_only=True)
    controller_id: int | None = attrs.field(default=None, kw_only=True)
    leaders: dict[TopicPartition, int] = attrs.field(factory=dict, kw_only=True)
    leader_epochs: dict[TopicPartition, int] = attrs.field(factory=dict, kw_only=True)
    """The newest known epochs. They are kept when a leader is forgotten, to detect older replies."""
    partition_counts: dict[str, int] = attrs.field(factory=dict, kw_only=True)
    last_counts: dict[str, int] = attrs.field(factory=dict, kw_only=True)
    """The newest known counts. They are kept when a topic is unknown for a time, to detect older replies."""
    topic_ids: dict[str, bytes] = attrs.field(factory=dict, kw_only=True)
    """The ids of the topics that have these names, by the newest replies, as for `last_counts`."""
    topic_errors: dict[str, ErrorCode] = attrs.field(factory=dict, kw_only=True)
    coordinators: dict[CoordinatorOf, int] = attrs.field(factory=dict, kw_only=True)
    wanted: Ordered[dict[str, None]] = attrs.field(factory=dict, kw_only=True)
    """Topics to request, in the order in which they were first used."""
    asked: MetadataNumber = attrs.field(default=0, kw_only=True)
    """The last Metadata request that was sent."""
    answered: MetadataNumber = attrs.field(default=0, kw_only=True)
    """The last one with a reply."""
    needed: MetadataNumber = attrs.field(default=0, kw_only=True)
    """The last one whose reply a caller waits for."""
    is_stale: bool = attrs.field(default=True, kw_only=True)
    ask_at: Due = attrs.field(default=0, kw_only=True)
    """When the next Metadata request may be sent (ms)."""
    equivalent_replies: Pace[int] = attrs.field(default=0, kw_only=True)
    """How many replies in a row brought nothing new (Metadata.equivalentResponseCount)."""
    rotation: int = attrs.field(default=0, kw_only=True)
    """Counts nodes that did not answer or sent old metadata: the next request goes to another one."""
    unreachable: dict[int, str] = attrs.field(factory=dict, kw_only=True)
    """Why the last attempt to connect to a node failed, for the error of a call."""
    accepts: Ordered[dict[int, None]] = attrs.field(factory=dict, kw_only=True)
    """The nodes that accepted a connection."""

    def address(self, node_id: int) -> Address | None:
        """The address of a node; None if it is no longer known."""
        if node_id <= FIRST_BOOTSTRAP_NODE:
            return self.bootstrap[FIRST_BOOTSTRAP_NODE - node_id]
        return self.nodes.get(node_id)

    @property
    def is_unreachable(self) -> bool:
        """Whether no broker has ever answered, and none of the addresses can be connected to."""
        if self.nodes or not self.unreachable:
            return False
        return all(FIRST_BOOTSTRAP_NODE - n in self.unreachable for n in range(len(self.bootstrap)))

    def bootstrap_in_words(self) -> str:
        """The bootstrap addresses, each with the reason why it could not be connected to, if one is known."""
        words: list[str] = []
        for number, (host, port) in enumerate(self.bootstrap):
            node = FIRST_BOOTSTRAP_NODE - number
            reason = self.unreachable.get(node) or (NOT_A_BROKER if node in self.accepts else None)
            words.append(f"{host}:{port} ({reason})" if reason else f"{host}:{port}")
        return ", ".join(words)

    def node_in_words(self, node_id: int) -> str:
        """A broker with its address, and why it could not be connected to, if that is known."""
        host, port = self.nodes[node_id]
        reason = self.unreachable.get(node_id)
        return f"broker {node_id} at {host}:{port}" + (f" ({reason})" if reason else "")

    def any_node(self) -> int:
        """A node for a request that any node can answer: known nodes, then bootstrap addresses."""
        known = sorted(self.nodes)
        choices = known + [FIRST_BOOTSTRAP_NODE - i for i in range(len(self.bootstrap))]
        return choices[self.rotation % len(choices)]

    def want(self, topic: str) -> None:
        """Adds a topic to the wanted ones."""
        if topic not in self.wanted:
            self.wanted[topic] = None
            self.is_stale = True
            if self.equivalent_replies > CONSTANT_BACKOFFS:
                self.ask_at = self.equivalent_replies = 0  # a long backoff is for those that are missing

    def is_newer_than(self, number: MetadataNumber) -> bool:
        """Whether a Metadata request after this one was answered. If not, one will be sent. For a caller that
        began when `asked` had this number, only such a reply can deny that a partition exists
        (KafkaProducer.waitOnMetadata).
        """
        self.needed = max(self.needed, number + 1)
        self.is_stale = self.is_stale or self.asked < self.needed
        return self.answered > number

    def ask(self) -> Metadata:
        """The request for all that is wanted; it is about to be sent."""
        self.is_stale = False  # what is wanted during the request makes it stale again
        self.asked += 1
        return Metadata(topics=tuple(self.wanted))

    def back_off(self, now: int) -> None:
        """A request is about to be sent; the next one waits, the longer the more replies were equivalent."""
        if now >= self.ask_at + RETRY_BACKOFF_MAX_MS:  # nothing was missing for a while
            self.equivalent_replies = 0
        doublings = max(0, self.equivalent_replies - CONSTANT_BACKOFFS)
        self.ask_at = now + min(RETRY_BACKOFF_MAX_MS, METADATA_BACKOFF_MS << min(doublings, 10))

    def drop(self, topics: Iterable[str]) -> None:
        """These topics are not used any more. One that was deleted would be requested again and again."""
        for topic in topics:
            self.wanted.pop(topic, None)
            self.topic_errors.pop(topic, None)

    def leader(self, partition: TopicPartition) -> int | None:
        """The leader of a partition; without a known one, None, and metadata becomes stale."""
        found = self.leaders.get(partition)
        if found is None:
            self.want(partition.topic)
            self.is_stale = True
        return found

    def leader_epoch(self, partition: TopicPartition) -> int:
        """The newest known leader epoch of a partition, or -1."""
        return self.leader_epochs.get(partition, NO_LEADER_EPOCH)

    def learn_leader_epoch(self, partition: TopicPartition, leader_epoch: int) -> None:
        """A reply was read under this leader epoch: a leader of an older one is no longer believed
        (Metadata.updateLastSeenEpochIfNewer).
        """
        if leader_epoch > self.leader_epoch(partition):
            self.leader_epochs[partition] = leader_epoch
            self.forget_leader(partition)

    def with_leader_epochs(self, request: ListOffsets) -> ListOffsets:
        """The request with the leader epochs known now: a retry after FENCED_LEADER_EPOCH needs them."""
        parts: list[ListOffsetsPartition] = []
        for part in request.partitions:
            epoch = self.leader_epoch(TopicPartition(part.topic, part.partition))
            parts.append(attrs.evolve(part, current_leader_epoch=epoch))
        return attrs.evolve(request, partitions=tuple(parts))

    def forget_leader(self, partition: TopicPartition) -> None:
        """The leader denied its role or did not answer: it must be looked up again."""
        self.leaders.pop(partition, None)
        self.is_stale = True

    def learn(self, reply: MetadataReply, *, from_node: int) -> None:
        """Applies a Metadata reply: complete for nodes, and for the topics that it contains. A node that was
        cut off may name replaced leaders: an older leader epoch is ignored (Metadata.lastSeenLeaderEpochs in
        Kafka), and without a known newer leader the next request goes to another node.
        """
        before = self._knowledge()
        address = self.address(from_node)
        self.nodes = {node.node_id: (node.host, node.port) for node in reply.nodes}
        self.controller_id = reply.controller_id if reply.controller_id in self.nodes else None
        named = {topic.topic for topic in reply.topics}
        self.answered = self.asked  # there is one at a time
        # Wanted while the request was in flight.
        self.is_stale = not named.issuperset(self.wanted) or self.answered < self.needed
        # The controller assigns leader epochs, and a topic that is created again starts above those of the
        # old one. So epochs go back only if the controller lost the end of its log, and then the lost ones
        # never return. The number of partitions only grows until the topic is created again, so a reply with
        # fewer of them and no newer epoch is an older one.
        may_go_back = self.controller_id is not None and self.nodes[self.controller_id] == address
        lags = [self._learn_leaders(topic, may_go_back=may_go_back) for topic in reply.topics]
        self.rotation += any(lags)  # by one, so that each node is asked at some time, the controller too
        for topic, is_older in zip(reply.topics, lags, strict=True):
            if topic.error is not NO_ERROR:
                self.topic_errors[topic.topic] = topic.error
                self.partition_counts.pop(topic.topic, None)
                self.is_stale = self.is_stale or topic.error.remedy in (Remedy.RETRY, Remedy.REFRESH)
                continue
            self.topic_errors.pop(topic.topic, None)
            if not is_older or topic.topic not in self.last_counts:
                self.last_counts[topic.topic] = len(topic.partitions)
                self.topic_ids[topic.topic] = topic.topic_id
            self.partition_counts[topic.topic] = self.last_counts[topic.topic]
        is_equivalent = self._knowledge() == before
        self.equivalent_replies = self.equivalent_replies + 1 if is_equivalent else 0

    def _knowledge(self) -> tuple[object, ...]:
        """What a reply with something new changes. Not the leaders: a reply may name one again that was
        forgotten in the same leader epoch, because it does not answer.
        """
        topics = (self.partition_counts.copy(), self.topic_errors.copy(), self.topic_ids.copy())
        return self.nodes, self.controller_id, self.leader_epochs.copy(), *topics

    def _learn_leaders(self, topic: TopicMetadata, *, may_go_back: bool) -> bool:
        """Applies the leaders of one topic; True if the reply is older than what is known."""
        name = topic.topic
        known = [TopicPartition(name, number) for number in range(self.last_counts.get(name, 0))]
        before = {partition: self.leaders.pop(partition, None) for partition in known}
        lags, is_newer = False, may_go_back
        for described in topic.partitions:
            where = TopicPartition(name, described.partition)
            leader: int | None = described.leader_id
            epoch = self.leader_epoch(where)
            if may_go_back or described.leader_epoch >= epoch:
                is_newer = is_newer or described.leader_epoch > epoch
                self.leader_epochs[where] = described.leader_epoch
            else:
                leader = before.get(where)
                lags = True
                self.is_stale = self.is_stale or leader is None
            if leader in self.nodes:
                self.leaders[where] = leader
        missing = known[len(topic.partitions) :]
        if missing and topic.error is NO_ERROR and not is_newer:
            lags = True
            for where in missing:
                leader = before[where]
                if leader in self.nodes:
                    self.leaders[where] = leader
                self.is_stale = self.is_stale or leader is None
        return lags

    def learn_coordinator(self, coordinator: CoordinatorOf, reply: FindCoordinatorReply) -> None:
        """Applies a FindCoordinator reply, which also contains the address of the node."""
        self.nodes[reply.node_id] = (reply.host, reply.port)
        self.coordinators[coordinator] = reply.node_id
