"""The controller over `__cluster_metadata-0`: topics, leadership with rising epochs, and blocks of producer
ids.

Rule: whatever it grants is in its log first; a local broker is a cluster of one and asks itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

import attrs

from fencepost.broker.words import Assign, Effect, Refused, Remove, Reply, ReplyTo
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import (
    AllocateProducerIdsReply,
    CreateTopic,
    CreateTopics,
    CreateTopicsReply,
    DeleteTopics,
    DeleteTopicsReply,
    TopicError,
)
from fencepost.protocol.stored_cluster import (
    ClusterRecord,
    LeaderChanged,
    PartitionCreated,
    ProducerIdsAllocated,
    TopicCreated,
    TopicRemoved,
)
from fencepost.protocol.terms import (
    CLUSTER_METADATA_TOPIC,
    INTERNAL_TOPICS,
    TopicPartition,
    topic_name_problem,
)

NEW_LEADER_EPOCH: Final = 0  # of a partition that was just made: it has no log yet
PRODUCER_ID_BLOCK_SIZE: Final = 1_000  # ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE
PARTITIONS_PER_TOPIC_MAX: Final = (
    10_000  # one directory and a few open files each: beyond this it is a typing error
)


@attrs.frozen
class Leader:
    """Who leads a partition, and since which epoch."""

    node_id: int
    leader_epoch: int


@attrs.define(eq=False)
class Topic:
    """A topic and the leaders of its partitions, by number."""

    name: str
    topic_id: bytes
    leaders: dict[int, Leader] = attrs.Factory(dict[int, Leader])


@attrs.define(eq=False)
class Controller:
    """State of the cluster; all of it comes from the log."""

    topics: dict[str, Topic] = attrs.Factory(dict[str, Topic])
    names: dict[bytes, str] = attrs.Factory(dict[bytes, str])
    removed: set[str] = attrs.Factory(set[str])  # names whose files may still lie there after a kill
    topics_made: int = 0
    next_producer_id: int = 0

    def leader(self, partition: TopicPartition) -> Leader | None:
        """Who leads, None for an unknown partition."""
        topic = self.topics.get(partition.topic)
        return None if topic is None else topic.leaders.get(partition.partition)

    def key_of_state(self) -> tuple[Any, ...]:
        """What the log determines: everything."""
        topics = tuple(
            (
                name,
                topic.topic_id,
                tuple(
                    (n, leader.node_id, leader.leader_epoch) for n, leader in sorted(topic.leaders.items())
                ),
            )
            for name, topic in sorted(self.topics.items())
        )
        return (topics, tuple(sorted(self.removed)), self.topics_made, self.next_producer_id)

    def copy(self) -> Controller:
        """An independent copy."""
        topics = {
            name: attrs.evolve(topic, leaders=dict(topic.leaders)) for name, topic in self.topics.items()
        }
        return attrs.evolve(self, topics=topics, names=dict(self.names), removed=set(self.removed))


@attrs.frozen(kw_only=True)
class Decision:
    """Records for the metadata log as one batch, and what happens when they are durable."""

    records: tuple[ClusterRecord, ...] = ()
    effects: tuple[Effect, ...] = ()


def start_node(state: Controller, node_id: int) -> Decision:
    """Every partition of a node that starts gets the next leader epoch, so that what it did before is of
    the past.
    """
    records: list[ClusterRecord] = []
    effects: list[Effect] = []
    for topic in state.topics.values():
        for number, leader in topic.leaders.items():
            if leader.node_id == node_id:
                change, assign = _elect(topic, number, Leader(node_id, leader.leader_epoch + 1))
                records.append(change)
                effects.append(assign)
    return Decision(records=tuple(records), effects=tuple(effects))


def reelect(state: Controller, partition: TopicPartition) -> Decision | Refused:
    """The leader lost its log (a failed disk): the same node may lead again, from what the log holds, under
    a new epoch.
    """
    leader = state.leader(partition)
    if leader is None:
        return Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    topic = state.topics[partition.topic]
    change, assign = _elect(
        topic, partition.partition, attrs.evolve(leader, leader_epoch=leader.leader_epoch + 1)
    )
    return Decision(records=(change,), effects=(assign,))


def _elect(topic: Topic, number: int, leader: Leader) -> tuple[LeaderChanged, Assign]:
    change = LeaderChanged(
        topic_id=topic.topic_id, partition=number, leader_id=leader.node_id, leader_epoch=leader.leader_epoch
    )
    assign = Assign(
        partition=TopicPartition(topic.name, number),
        leader_id=leader.node_id,
        leader_epoch=leader.leader_epoch,
    )
    return change, assign


def create_topics(
    state: Controller,
    request: CreateTopics,
    *,
    to: ReplyTo,
    node_id: int,
    internal: bool = False,
    leaving: Collection[str] = (),
) -> Decision:
    """Topics by name and number of partitions; each is made or refused on its own. `leaving` are names whose
    deletion is not durable yet.
    """
    records: list[ClusterRecord] = []
    effects: list[Effect] = []
    answers: list[TopicError] = []
    made: set[str] = set()
    for wanted in request.topics:
        problem = _topic_problem(state, wanted, made.union(leaving), internal=internal)
        if problem is None:
            topic_id = (state.topics_made + len(made) + 1).to_bytes(16, "big")
            made.add(wanted.topic)
            records.append(TopicCreated(topic=wanted.topic, topic_id=topic_id))
            for number in range(wanted.partition_count):
                records.append(
                    PartitionCreated(
                        topic_id=topic_id, partition=number, leader_id=node_id, leader_epoch=NEW_LEADER_EPOCH
                    )
                )
                effects.append(
                    Assign(
                        partition=TopicPartition(wanted.topic, number),
                        leader_id=node_id,
                        leader_epoch=NEW_LEADER_EPOCH,
                    )
                )
        refused = problem or Refused(ErrorCode.NONE)
        answers.append(TopicError(topic=wanted.topic, error=refused.error, because=refused.because))
    effects.append(Reply(to, body=CreateTopicsReply(topics=tuple(answers))))
    return Decision(records=tuple(records), effects=tuple(effects))


def _topic_problem(
    state: Controller, wanted: CreateTopic, made: set[str], *, internal: bool
) -> Refused | None:
    because = topic_name_problem(wanted.topic)
    if because is None and wanted.topic in INTERNAL_TOPICS and not internal:
        because = "the name belongs to an internal topic"
    if because is not None:
        return Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, because)
    if wanted.topic in state.topics or wanted.topic in made:
        return Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {wanted.topic} exists")
    if not 1 <= wanted.partition_count <= PARTITIONS_PER_TOPIC_MAX:
        return Refused(
            ErrorCode.INVALID_PARTITIONS, f"between 1 and {PARTITIONS_PER_TOPIC_MAX} partitions are possible"
        )
    return None


def delete_topics(state: Controller, request: DeleteTopics, *, to: ReplyTo) -> Decision:
    """Topics by name, with their data; internal ones stay."""
    records: list[ClusterRecord] = []
    effects: list[Effect] = []
    answers: list[TopicError] = []
    for name in dict.fromkeys(request.topics):
        topic = state.topics.get(name)
        if name in INTERNAL_TOPICS:
            answers.append(
                _topic_error(name, ErrorCode.INVALID_TOPIC_EXCEPTION, "internal topics cannot be deleted")
            )
        elif topic is None:
            answers.append(
                _topic_error(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
            )
        else:
            records.append(TopicRemoved(topic_id=topic.topic_id))
            effects.extend(Remove(partition=TopicPartition(name, number)) for number in topic.leaders)
            answers.append(_topic_error(name, ErrorCode.NONE, ""))
    effects.append(Reply(to, body=DeleteTopicsReply(topics=tuple(answers))))
    return Decision(records=tuple(records), effects=tuple(effects))


def _topic_error(name: str, error: ErrorCode, because: str) -> TopicError:
    return TopicError(topic=name, error=error, because=because)


def allocate_producer_ids(state: Controller, *, node_id: int, to: ReplyTo) -> Decision:
    """The next block of producer ids; ids are never handed out twice, gaps are normal (KIP-730)."""
    first = state.next_producer_id
    record = ProducerIdsAllocated(node_id=node_id, next_producer_id=first + PRODUCER_ID_BLOCK_SIZE)
    body = AllocateProducerIdsReply(first_producer_id=first, count=PRODUCER_ID_BLOCK_SIZE)
    return Decision(records=(record,), effects=(Reply(to, body=body),))


def apply(state: Controller, records: Iterable[ClusterRecord]) -> None:
    """The metadata log now holds these records, live and at recovery."""
    for record in records:
        match record:
            case TopicCreated():
                state.topics[record.topic] = Topic(record.topic, record.topic_id)
                state.removed.discard(record.topic)
                state.names[record.topic_id] = record.topic
                state.topics_made += 1
            case TopicRemoved():
                name = state.names.pop(record.topic_id)
                del state.topics[name]
                state.removed.add(name)
            case PartitionCreated() | LeaderChanged():
                topic = state.topics[state.names[record.topic_id]]
                topic.leaders[record.partition] = Leader(record.leader_id, record.leader_epoch)
            case ProducerIdsAllocated():
                state.next_producer_id = record.next_producer_id


METADATA_PARTITION: Final = TopicPartition(CLUSTER_METADATA_TOPIC, 0)
