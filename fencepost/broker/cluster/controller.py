"""The controller over `__cluster_metadata-0`: nodes, topics, leadership with rising epochs, and blocks of
producer ids.

Rule: every grant is a record first, and nodes learn of it only from the log (cluster/follower.py).
"""

# Theory of operation (Kafka: QuorumController, ReplicationControlManager, ClusterControlManager)
#
# The state of the cluster is the sum of the records in this log. Each request is decided here and becomes one
# batch. Once that is durable, each node does its part:
#
#     request                    records                                what a node then does
#     BrokerRegistration         BrokerRegistered, LeaderChanged ...    leads its partitions under new epochs
#     CreateTopics               TopicCreated, TopicConfigured ...,     leads its share of them, in new logs
#                                PartitionCreated ...
#     CreatePartitions           PartitionCreated ...                   the same for the new ones
#     ElectLeaders, Reassign,    LeaderChanged ...                      reads the log again, or gives it up
#     AlterPartitionReassignments
#     IncrementalAlterConfigs    TopicConfigured ...                    keeps its logs by the new settings
#     DeleteTopics               TopicRemoved                           drops the partitions and their files
#     AllocateProducerIds        ProducerIdsAllocated                   -          the reply grants the block
#     -                          ClusterSnapshot, then all that is true   -        the older records can go
#
# The invariant: under one name the leader epoch of a partition never falls. Elections and starts raise it. A
# topic that is deleted and created again continues above the old one:
#
#     create   start   delete            create
#     epoch 0  1       `removed` has 1   2
#
# A snapshot forgets the names of deleted topics, and keeps the largest leader epoch of them all: whatever is
# created later begins above it. It is written when most of the log is out of date, but not while the files of
# a deleted topic may still be there. Then the log is compacted up to the snapshot before, which stays: so a
# damaged snapshot costs a repair nothing.
#
#     S1 ... changes ... S2 ... changes ...        S2 is written: what is before S1 goes
#
# All fencing below rests on it: a journal refuses an older epoch (StaleLeader), a marker carries it as
# coordinator epoch, a verification guard contains it.
#
# There is one replica of each partition and one controller, the node `controller_id`. So no decision is about
# replicas in sync, and a partition whose node is down is led by nobody else.

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

import attrs

from fencepost.broker.config_def import DELETE
from fencepost.broker.contract import (
    Assign,
    Configure,
    Decision,
    MetadataChange,
    Refused,
    Remove,
    Reply,
    ReplyTo,
)
from fencepost.broker.fixed_configs import FixedSetting
from fencepost.broker.limits import (
    CLUSTER_CONFIGS,
    CLUSTER_PARTITIONS,
    CONFIG_VALUE,
    REQUEST_PARTITIONS,
    Limit,
)
from fencepost.broker.log_config import SETTABLE, conflict, parse_config
from fencepost.protocol import messages as m
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.fork import Ignored, Shared
from fencepost.protocol.metadata_log import (
    BrokerRegistered,
    ClusterRecord,
    ClusterSnapshot,
    LeaderChanged,
    PartitionCreated,
    ProducerIdsAllocated,
    TopicConfigured,
    TopicCreated,
    TopicRemoved,
    new_topic_id,
    topic_number,
)
from fencepost.protocol.terms import (
    BROKERS_DEFAULT,
    CLUSTER_METADATA_TOPIC,
    INTERNAL_TOPICS,
    NO_LEADER_EPOCH,
    NO_TOPIC_ID,
    ConfigOperation,
    ConfigType,
    TopicPartition,
    topic_name_problem,
)

PRODUCER_ID_BLOCK_SIZE: Final = 1_000  # ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE
BECAUSE_LENGTH_MAX: Final = 1_000  # a reason quotes the request, whose strings may be long


@attrs.frozen
class Leader:
    """The leader of a partition, and its leader epoch."""

    node_id: int
    leader_epoch: int


@attrs.define(eq=False)
class Topic:
    """A topic, the leaders of its partitions by number, and its own configuration."""

    name: str
    topic_id: bytes
    created_ms: int = attrs.field(kw_only=True)
    leaders: dict[int, Leader] = attrs.Factory(dict[int, Leader])
    configs: dict[str, str] = attrs.Factory(dict[str, str])  # its own settings, by Kafka's names
    described: Shared[m.TopicMetadata | None] = None  # the reply to Metadata, until a leader changes


@attrs.frozen
class RemovedTopic:
    """A topic that was deleted."""

    topic_id: bytes
    partition_count: int
    leader_epoch: int
    """The last one of its partitions."""


NO_SNAPSHOT: Final = ClusterSnapshot(0, leader_epoch=NO_LEADER_EPOCH, topic_number=0)

ClusterDecision = Decision[ClusterRecord]

NAMED_TWICE: Final = Refused(ErrorCode.INVALID_REQUEST, "the request names the topic twice")

Wanted = TypeVar("Wanted", m.CreateTopic, m.NewPartitions, m.TopicConfigChanges)


@attrs.define(eq=False)
class Controller:
    """State of the cluster; all of it comes from the log."""

    topics: dict[str, Topic] = attrs.Factory(dict[str, Topic])
    names: Ignored[dict[bytes, str]] = attrs.Factory(dict[bytes, str])
    brokers: dict[int, m.NodeAddress] = attrs.Factory(dict[int, m.NodeAddress])
    # Topics that were deleted since the last snapshot: files may remain after a kill, and the epochs of a new
    # topic start above the last one.
    removed: dict[str, RemovedTopic] = attrs.Factory(dict[str, RemovedTopic])
    snapshot: ClusterSnapshot = NO_SNAPSHOT  # the last one
    # Not a count of topics: a repair may have saved a topic and lost an earlier one.
    newest_topic_number: int = 0
    next_producer_id: int = 0

    def leader(self, partition: TopicPartition) -> Leader | None:
        """The leader of a partition, or None if the partition is unknown."""
        name, number = partition
        return self.topics[name].leaders.get(number) if name in self.topics else None

    def is_deleted(self, topic: str, topic_id: bytes) -> bool:
        """Whether the topic that had this name and id was deleted; not if this node has not read of it."""
        if topic in self.removed:
            return True
        if topic_id == NO_TOPIC_ID or topic_id in self.names:
            return False
        return topic in self.topics or topic_number(topic_id) <= self.snapshot.topic_number


def register(
    state: Controller, node: m.NodeAddress, *, broker_epoch: int, to: ReplyTo | None
) -> ClusterDecision:
    """Register a node that starts, and raise the leader epoch of each of its partitions, which fences its
    earlier incarnation. `to` is None for the controller's own node.
    """
    registered = BrokerRegistered(node.node_id, broker_epoch=broker_epoch, host=node.host, port=node.port)
    changes = [
        _elect(topic, number, node.node_id)
        for topic in state.topics.values()
        for number, leader in topic.leaders.items()
        if leader.node_id == node.node_id
    ]
    body = m.BrokerRegistrationReply(broker_epoch=broker_epoch)
    return Decision(entries=(registered, *changes), effects=() if to is None else (Reply(to, body=body),))


def elect_again(state: Controller, request: m.ElectLeaders, *, node_id: int, to: ReplyTo) -> ClusterDecision:
    """Let a node lead again under new epochs after a storage failure, unless another node leads by now."""
    records: list[ClusterRecord] = []
    answers: list[m.PartitionError] = []
    for part in request.partitions:
        leader, error = state.leader(part), NO_ERROR
        if leader is None:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif leader.node_id != node_id:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        else:
            records.append(_elect(state.topics[part.topic], part.partition, node_id))
        answers.append(m.PartitionError(topic=part.topic, partition=part.partition, error=error))
    reply = Reply(to, body=m.ElectLeadersReply(partitions=tuple(answers)))
    return Decision(entries=tuple(records), effects=(reply,))


def move(state: Controller, partition: TopicPartition, *, node_id: int) -> ClusterDecision | Refused:
    """Elect a node, perhaps the present one, as leader of the partition."""
    if state.leader(partition) is None:
        return Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {partition} to move")
    if node_id not in state.brokers:
        return Refused(ErrorCode.INVALID_REQUEST, f"no node {node_id} is registered to lead {partition}")
    return Decision(entries=(_elect(state.topics[partition.topic], partition.partition, node_id),))


def elect_preferred(state: Controller, request: m.ElectLeaders, *, to: ReplyTo) -> ClusterDecision:
    """Elect nobody: each partition is led by its only replica."""
    answers = tuple(
        m.PartitionError(
            topic=part.topic,
            partition=part.partition,
            error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if state.leader(part) is None
            else ErrorCode.ELECTION_NOT_NEEDED,
        )
        for part in request.partitions
    )
    return Decision(effects=(Reply(to, body=m.ElectLeadersReply(partitions=answers)),))


def reassign(state: Controller, request: m.AlterPartitionReassignments, *, to: ReplyTo) -> ClusterDecision:
    """Elect the nodes that partitions are assigned to, where they are not the leaders already."""
    records: dict[TopicPartition, ClusterRecord] = {}
    answers: list[m.PartitionError] = []
    for wanted in request.partitions:
        part = TopicPartition(wanted.topic, wanted.partition)
        leader, error = state.leader(part), NO_ERROR
        if leader is None:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif wanted.node_ids is None:
            error = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        elif (problem := _replicas_problem(state, [wanted.node_ids])) is not None:
            error = problem.error
        elif wanted.node_ids[0] != leader.node_id:
            records[part] = _elect(state.topics[part.topic], part.partition, wanted.node_ids[0])
        answers.append(m.PartitionError(topic=part.topic, partition=part.partition, error=error))
    reply = Reply(to, body=m.AlterPartitionReassignmentsReply(partitions=tuple(answers)))
    return Decision(entries=tuple(records.values()), effects=(reply,))


def _elect(topic: Topic, number: int, node_id: int) -> LeaderChanged:
    return LeaderChanged(
        topic_id=topic.topic_id,
        partition=number,
        leader_id=node_id,
        leader_epoch=topic.leaders[number].leader_epoch + 1,
    )


def create_topics(
    state: Controller,
    request: m.CreateTopics,
    *,
    to: ReplyTo,
    now: int,
    internal: bool = False,
    leaving: Collection[str] = (),
) -> ClusterDecision:
    """Create topics; within the limits each is created or refused on its own. `leaving`: deleted topics
    whose files are still there, so that their names are taken.
    """
    records: list[ClusterRecord] = []
    answers: list[m.TopicError] = []
    made: dict[str, bytes] = {}
    count = sum(max(_partition_count(topic), 0) for topic in request.topics)
    too_many = None if internal else _too_many_partitions(state, count) or _too_large_configs(state, request)
    like = {} if internal else _names_by_unified(state, [each.topic for each in request.topics])
    for wanted, named_twice in _each_topic(request.topics):
        problem = too_many or named_twice or _topic_problem(state, wanted, leaving, like, internal=internal)
        if problem is None:
            at = state.newest_topic_number + len(made)
            made[wanted.topic] = new_topic_id(wanted.topic, number=at + 1, created_ms=now)
            created = TopicCreated(wanted.topic, topic_id=made[wanted.topic], created_ms=now)
            records.extend(_new_topic(state, wanted, created, at=at))
        topic_id = made.get(wanted.topic, NO_TOPIC_ID)
        told = _told(wanted.topic, problem, topic_id)
        answers.append(told if problem else attrs.evolve(told, partition_count=_partition_count(wanted)))
    reply = Reply(to, body=m.CreateTopicsReply(topics=tuple(answers)))
    return Decision(entries=() if request.validate_only else tuple(records), effects=(reply,))


def _each_topic(topics: Sequence[Wanted]) -> Iterator[tuple[Wanted, Refused | None]]:
    """The topics of a request, each once; with the refusal if it is named more often."""
    times_named = Counter([wanted.topic for wanted in topics])
    for wanted in {each.topic: each for each in topics}.values():
        yield wanted, NAMED_TWICE if times_named[wanted.topic] > 1 else None


def _partition_count(wanted: m.CreateTopic) -> int:
    return len(wanted.assignments) or wanted.partition_count


def _new_topic(
    state: Controller, wanted: m.CreateTopic, created: TopicCreated, *, at: int
) -> Iterator[ClusterRecord]:
    """The records of a topic: its partitions are spread over the nodes, round robin, unless the request
    assigns them, and `at` says where the first one goes.
    """
    assert state.brokers, "the controller's node registers itself before anybody asks it"
    node_ids = sorted(state.brokers)
    assigned = {each.partition: each.node_ids[0] for each in wanted.assignments}
    yield created
    for name, value in {config.name: config.value for config in wanted.configs}.items():
        yield TopicConfigured(wanted.topic, name=name, value=value)  # if named twice, the last value counts
    # Not 0 if there was a topic of this name: its leader may not know of the deletion yet, and must be
    # refused.
    former = state.removed.get(wanted.topic, state.snapshot).leader_epoch
    for number in range(_partition_count(wanted)):
        leader_id = assigned.get(number, node_ids[(at + number) % len(node_ids)])
        yield PartitionCreated(
            topic_id=created.topic_id, partition=number, leader_id=leader_id, leader_epoch=former + 1
        )


def create_partitions(state: Controller, request: m.CreatePartitions, *, to: ReplyTo) -> ClusterDecision:
    """Add partitions to topics, each topic on its own."""
    records: list[ClusterRecord] = []
    answers: list[m.TopicError] = []
    too_many = _too_many_partitions(state, sum(_growth(state, wanted) for wanted in request.topics))
    for wanted, named_twice in _each_topic(request.topics):
        problem = too_many or named_twice or _growth_problem(state, wanted)
        if problem is None:
            records.extend(_new_partitions(state, wanted))
        answers.append(_told(wanted.topic, problem))
    reply = Reply(to, body=m.CreatePartitionsReply(topics=tuple(answers)))
    return Decision(entries=() if request.validate_only else tuple(records), effects=(reply,))


def _growth(state: Controller, wanted: m.NewPartitions) -> int:
    topic = state.topics.get(wanted.topic)
    return 0 if topic is None else max(wanted.count - len(topic.leaders), 0)


def _growth_problem(state: Controller, wanted: m.NewPartitions) -> Refused | None:
    topic = state.topics.get(wanted.topic)
    if wanted.topic in INTERNAL_TOPICS:
        because = "an internal topic cannot grow: its partitions decide which node coordinates an id"
        return Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, because)
    if topic is None:
        return Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {wanted.topic!r} does not exist")
    if wanted.count <= len(topic.leaders):
        because = (
            f"topic {wanted.topic!r}: the number of partitions can only grow; it is {len(topic.leaders):,}, "
            f"and {wanted.count:,} was requested"
        )
        return Refused(ErrorCode.INVALID_PARTITIONS, because)
    if wanted.assignments is None:
        return None
    growth = wanted.count - len(topic.leaders)
    if len(wanted.assignments) != growth:
        because = f"{growth:,} partitions would be new, and {len(wanted.assignments):,} are assigned"
        return Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, because)
    return _replicas_problem(state, wanted.assignments)


def _new_partitions(state: Controller, wanted: m.NewPartitions) -> Iterator[ClusterRecord]:
    topic, node_ids = state.topics[wanted.topic], sorted(state.brokers)
    numbers = range(len(topic.leaders), wanted.count)
    if wanted.assignments is None:
        leaders = [node_ids[number % len(node_ids)] for number in numbers]
    else:
        leaders = [assigned[0] for assigned in wanted.assignments]
    # Not 0: an older topic of this name may have had these partitions.
    leader_epoch = max(leader.leader_epoch for leader in topic.leaders.values())
    for number, leader_id in zip(numbers, leaders, strict=True):
        yield PartitionCreated(
            topic_id=topic.topic_id, partition=number, leader_id=leader_id, leader_epoch=leader_epoch
        )


def _too_many_partitions(state: Controller, wanted: int) -> Refused | None:
    """Why a request for this number of partitions is refused as a whole, before a record of it is made
    (ReplicationControlManager.validateTotalNumberOfPartitions).
    """
    if wanted > REQUEST_PARTITIONS.value:
        return _beyond(REQUEST_PARTITIONS, wanted)
    # Internal topics count, and are created all the same: without them no coordinator works.
    total = wanted + sum(len(topic.leaders) for topic in state.topics.values())
    return _beyond(CLUSTER_PARTITIONS, total) if total > CLUSTER_PARTITIONS.value else None


def _too_large_configs(
    state: Controller, request: m.CreateTopics | m.IncrementalAlterConfigs
) -> Refused | None:
    """Why a request with settings is refused as a whole: a snapshot might then be larger than a batch."""
    wanted = sum(
        _config_size(topic.topic, each.name, each.value)
        for topic in request.topics
        for each in (topic.configs if isinstance(topic, m.CreateTopic) else topic.changes)
        if each.value is not None
    )
    if not wanted:
        return None
    total = wanted + sum(
        _config_size(topic.name, name, value)
        for topic in state.topics.values()
        for name, value in topic.configs.items()
    )
    return _beyond(CLUSTER_CONFIGS, total) if total > CLUSTER_CONFIGS.value else None


def _config_size(topic: str, name: str, value: str) -> int:
    return len(topic) + len(name) + len(value)


def _beyond(limit: Limit, count: int) -> Refused:
    return Refused(ErrorCode.POLICY_VIOLATION, f"{count} {limit.what}; the limit is {limit.value}")


def _topic_problem(
    state: Controller,
    wanted: m.CreateTopic,
    leaving: Collection[str],
    like: Mapping[str, str],
    *,
    internal: bool,
) -> Refused | None:
    if (because := topic_name_problem(wanted.topic)) is not None:
        return Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, because)
    if wanted.topic in state.topics:
        return Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {wanted.topic!r} already exists")
    if wanted.topic in INTERNAL_TOPICS and not internal:
        return Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, "the name belongs to an internal topic")
    if wanted.topic in leaving:
        because = f"topic {wanted.topic!r} is deleted, but its files are still there"
        return Refused(ErrorCode.TOPIC_ALREADY_EXISTS, because)
    if (other := like.get(_unified(wanted.topic))) is not None:
        because = f"the topic {other!r} exists, and the name differs from it only in dots and underscores"
        return Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, because)
    if without := [config.name for config in wanted.configs if config.value is None]:
        return Refused(ErrorCode.INVALID_CONFIG, f"these settings need a value: {', '.join(without)}")
    configs = {config.name: config.value for config in wanted.configs if config.value is not None}
    for name, value in configs.items():
        if (problem := _config_problem(name, value)) is not None:
            return problem
    if (problem := _conflict(configs)) is not None:
        return problem
    return _layout_problem(state, wanted)


def _layout_problem(state: Controller, wanted: m.CreateTopic) -> Refused | None:
    """Why a topic cannot have these partitions and replicas, in Kafka's order
    (ReplicationControlManager.createTopic).
    """
    factor = wanted.replication_factor
    if wanted.assignments:
        if (factor, wanted.partition_count) != (BROKERS_DEFAULT, BROKERS_DEFAULT):
            because = "with assignments, the replication factor and the number of partitions must be -1"
            return Refused(ErrorCode.INVALID_REQUEST, because)
        numbers = sorted(each.partition for each in wanted.assignments)
        if numbers != list(range(len(numbers))):
            because = "the assignments must name each partition once, from 0 on without a gap"
            return Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, because)
        return _replicas_problem(state, [each.node_ids for each in wanted.assignments])
    because = f"replication factor {factor} is not possible: a partition has one replica here"
    wrong_factor = Refused(ErrorCode.INVALID_REPLICATION_FACTOR, because)
    if factor < 1 and factor != BROKERS_DEFAULT:
        return wrong_factor
    if wanted.partition_count < 1:
        return Refused(ErrorCode.INVALID_PARTITIONS, "a topic needs at least one partition")
    return wrong_factor if factor > 1 else None


def _replicas_problem(state: Controller, assignments: Iterable[Sequence[int]]) -> Refused | None:
    """Why partitions cannot have these replicas."""
    for node_ids in assignments:
        for node_id in node_ids:
            if node_id not in state.brokers:
                return Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"there is no broker {node_id}")
        if len(node_ids) != 1:
            because = f"a partition has one replica here, and {len(node_ids):,} are assigned"
            return Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, because)
    return None


def _names_by_unified(state: Controller, wanted: Iterable[str]) -> dict[str, str]:
    """The topics with which a new one may collide: Kafka's metrics show dots as underscores (Topic.java)."""
    if not any("." in name or "_" in name for name in wanted):
        return {}
    return {_unified(name): name for name in state.topics}


def _unified(name: str) -> str:
    return name.replace(".", "_")


def _told(topic: str, refused: Refused | None, topic_id: bytes = NO_TOPIC_ID) -> m.TopicError:
    """The result for one topic; without a refusal, what was asked for is done."""
    error, because = (NO_ERROR, "") if refused is None else (refused.error, refused.because)
    return m.TopicError(topic=topic, error=error, because=because[:BECAUSE_LENGTH_MAX], topic_id=topic_id)


def delete_topics(state: Controller, request: m.DeleteTopics, *, to: ReplyTo) -> ClusterDecision:
    """Delete topics with their data; internal topics cannot be deleted."""
    records: list[ClusterRecord] = []
    answers: list[m.TopicError] = []
    for name, times_named in Counter(request.topics).items():
        topic, refused = None if times_named > 1 else state.topics.get(name), None
        if times_named > 1:
            refused = NAMED_TWICE
        elif name in INTERNAL_TOPICS:
            refused = Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, "internal topics cannot be deleted")
        elif topic is None:
            refused = Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
        else:
            records.append(TopicRemoved(topic_id=topic.topic_id))
        answers.append(_told(name, refused, NO_TOPIC_ID if topic is None else topic.topic_id))
    reply = Reply(to, body=m.DeleteTopicsReply(topics=tuple(answers)))
    return Decision(entries=tuple(records), effects=(reply,))


def alter_configs(state: Controller, request: m.IncrementalAlterConfigs, *, to: ReplyTo) -> ClusterDecision:
    """Change settings of topics; the records that are written are the settings from now on."""
    records: list[ClusterRecord] = []
    answers: list[m.TopicError] = []
    too_large = _too_large_configs(state, request)
    for wanted, named_twice in _each_topic(request.topics):
        changed = too_large or named_twice or _changed_configs(state, wanted)
        if not isinstance(changed, Refused):
            records += [] if request.validate_only else changed
        answers.append(_told(wanted.topic, changed if isinstance(changed, Refused) else None))
    reply = Reply(to, body=m.IncrementalAlterConfigsReply(topics=tuple(answers)))
    return Decision(entries=tuple(records), effects=(reply,))


def _changed_configs(state: Controller, wanted: m.TopicConfigChanges) -> list[TopicConfigured] | Refused:
    """The records of one topic's changes (ConfigurationControlManager.incrementalAlterConfigs)."""
    if len({change.name for change in wanted.changes}) < len(wanted.changes):
        return Refused(ErrorCode.INVALID_REQUEST, "the request changes a setting twice")
    if without := [each.name for each in wanted.changes if each.value is None and _needs_value(each)]:
        return Refused(ErrorCode.INVALID_REQUEST, f"these settings need a value: {', '.join(without)}")
    because = topic_name_problem(wanted.topic)
    if because is None and wanted.topic in INTERNAL_TOPICS:
        because = "internal topics follow the broker's settings and have none of their own"
    if because is not None:
        return Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, because)
    topic = state.topics.get(wanted.topic)
    before: Mapping[str, str] = {} if topic is None else topic.configs
    records: list[TopicConfigured] = []
    for change in wanted.changes:
        value = _changed_value(before.get(change.name), change)
        if isinstance(value, Refused):
            return value
        if value != before.get(change.name):
            records.append(TopicConfigured(wanted.topic, name=change.name, value=value))
    own = {**before, **{record.name: record.value for record in records}}
    refused = _conflict({name: value for name, value in own.items() if value is not None})
    if refused is None and topic is None:  # after the settings, as in Kafka
        refused = Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {wanted.topic!r} does not exist")
    return refused or records


def _changed_value(own: str | None, change: m.ConfigChange) -> str | Refused | None:
    """The value that a topic's own setting has after the change, None if it then has none."""
    if change.value is None or not _needs_value(change):
        return None
    value = change.value
    if change.operation is not ConfigOperation.SET:
        setting = SETTABLE.get(change.name)
        if setting is not None and setting.config_type is not ConfigType.LIST:
            because = f"{change.name} is not a list: nothing can be added to it or removed from it"
            return Refused(ErrorCode.INVALID_CONFIG, because)
        # A list that the topic does not have yet starts as Kafka's default, whatever the broker's is.
        default = setting.value if isinstance(setting, FixedSetting) else DELETE
        value = _changed_list(default if own is None else own, change.operation, value)
    return _config_problem(change.name, value) or value


def _needs_value(change: m.ConfigChange) -> bool:
    return change.operation is not ConfigOperation.DELETE


def _changed_list(old: str, operation: ConfigOperation, value: str) -> str:
    """The list with the entries of `value` added or removed, which Java splits: without the empty entries at
    the end, but an empty text has one.
    """
    parts = [part for part in old.split(",") if part]
    entries = value.rstrip(",").split(",") if value.strip(",") or not value else []
    if operation is ConfigOperation.APPEND:
        return ",".join(dict.fromkeys([*parts, *entries]))
    return ",".join(part for part in parts if part not in entries)


def _config_problem(name: str, value: str) -> Refused | None:
    try:
        if len(value) > CONFIG_VALUE.value:
            raise ValueError(f"it has {len(value):,} characters, and the limit is {CONFIG_VALUE.value:,}")
        parse_config(name, value)
    except ValueError as problem:
        because = f"{name:.100}={value:.100} cannot be set: {problem}"
        return Refused(ErrorCode.INVALID_CONFIG, because)
    return None


def _conflict(configs: Mapping[str, str]) -> Refused | None:
    because = conflict(configs)
    return None if because is None else Refused(ErrorCode.INVALID_CONFIG, because)


def allocate_producer_ids(state: Controller, *, node_id: int, to: ReplyTo) -> ClusterDecision:
    """Grant the next block of producer ids. No id is granted twice; gaps are normal (KIP-730)."""
    first = state.next_producer_id
    record = ProducerIdsAllocated(node_id=node_id, next_producer_id=first + PRODUCER_ID_BLOCK_SIZE)
    body = m.AllocateProducerIdsReply(first_producer_id=first, count=PRODUCER_ID_BLOCK_SIZE)
    return Decision(entries=(record,), effects=(Reply(to, body=body),))


def snapshot_is_due(state: Controller, *, log_end_offset: int, records_between: int) -> bool:
    """Whether most of the log is out of date, and so many records that a snapshot is worth it."""
    records = log_end_offset - state.snapshot.offset
    if records <= records_between:
        return False
    live = sum(1 + len(topic.configs) + len(topic.leaders) for topic in state.topics.values())
    return records > records_between + 2 * live


def snapshot_of(state: Controller, *, offset: int, node_id: int) -> tuple[ClusterRecord, ...]:
    """The whole state as one batch, which will be at this offset."""
    former = [state.snapshot.leader_epoch, *(removed.leader_epoch for removed in state.removed.values())]
    records: list[ClusterRecord] = [
        ClusterSnapshot(offset, leader_epoch=max(former), topic_number=state.newest_topic_number),
        ProducerIdsAllocated(node_id, next_producer_id=state.next_producer_id),
    ]
    records += [
        BrokerRegistered(node.node_id, broker_epoch=offset, host=node.host, port=node.port)
        for node in state.brokers.values()
    ]
    for topic in state.topics.values():
        records.append(TopicCreated(topic.name, topic_id=topic.topic_id, created_ms=topic.created_ms))
        records += [TopicConfigured(topic.name, name=name, value=own) for name, own in topic.configs.items()]
        records += [
            PartitionCreated(
                topic.topic_id, partition=number, leader_id=leader.node_id, leader_epoch=leader.leader_epoch
            )
            for number, leader in topic.leaders.items()
        ]
    return tuple(records)


def apply(state: Controller, records: Sequence[ClusterRecord]) -> list[MetadataChange]:
    """Apply records that the metadata log now holds. Returns the changes on which nodes act, once durable."""
    if not records or not isinstance(records[0], ClusterSnapshot):
        return _apply(state, records)
    snapshot = records[0]
    for known in (state.topics, state.names, state.brokers, state.removed):
        known.clear()
    state.snapshot, state.newest_topic_number = snapshot, snapshot.topic_number
    _apply(state, records[1:])
    # Whoever has read the records before the snapshot has acted on them, and others register after it.
    return []


def _apply(state: Controller, records: Iterable[ClusterRecord]) -> list[MetadataChange]:
    news: list[MetadataChange] = []
    for record in records:
        match record:
            case TopicCreated():
                state.topics[record.topic] = Topic(
                    record.topic, record.topic_id, created_ms=record.created_ms
                )
                state.removed.pop(record.topic, None)
                state.names[record.topic_id] = record.topic
                state.newest_topic_number = max(state.newest_topic_number, topic_number(record.topic_id))
            case TopicConfigured():
                news.extend(_configure(state.topics[record.topic], record))
            case TopicRemoved():
                news.extend(_remove(state, record.topic_id))
            case PartitionCreated() | LeaderChanged():
                news.append(_assign(state, record))
            case ProducerIdsAllocated():
                state.next_producer_id = record.next_producer_id
            case BrokerRegistered():
                address = m.NodeAddress(node_id=record.node_id, host=record.host, port=record.port)
                state.brokers[record.node_id] = address
            case ClusterSnapshot():
                raise AssertionError("a snapshot is a batch of its own")
    return news


def present_changes(state: Controller) -> list[MetadataChange]:
    """The changes that bring a node from any earlier state of the cluster to the present one."""
    changes: list[MetadataChange] = [
        Remove(partition=TopicPartition(name, number), topic_id=removed.topic_id)
        for name, removed in state.removed.items()
        for number in range(removed.partition_count)
    ]
    for topic in state.topics.values():
        for number, leader in topic.leaders.items():
            key = TopicPartition(topic.name, number)
            changes.append(
                # As one that was led before: files that are already there may hold its records.
                Assign(
                    partition=key,
                    leader_id=leader.node_id,
                    leader_epoch=leader.leader_epoch,
                    topic_id=topic.topic_id,
                    was_leader=True,
                )
            )
            changes.append(Configure(partition=key))
    return changes


def _remove(state: Controller, topic_id: bytes) -> list[MetadataChange]:
    name = state.names.pop(topic_id)
    leaders = state.topics.pop(name).leaders
    last = max(leader.leader_epoch for leader in leaders.values())
    state.removed[name] = RemovedTopic(topic_id, len(leaders), last)
    return [Remove(partition=TopicPartition(name, number), topic_id=topic_id) for number in leaders]


def _configure(topic: Topic, record: TopicConfigured) -> Iterator[MetadataChange]:
    """The changes that follow; none for a topic that is being created, as it has no partitions yet."""
    if record.value is None:
        topic.configs.pop(record.name, None)
    else:
        topic.configs[record.name] = record.value
    return (Configure(partition=TopicPartition(topic.name, number)) for number in topic.leaders)


def _assign(state: Controller, record: PartitionCreated | LeaderChanged) -> Assign:
    topic = state.topics[state.names[record.topic_id]]
    before = topic.leaders.get(record.partition)
    topic.leaders[record.partition] = Leader(record.leader_id, record.leader_epoch)
    # The kept reply to Metadata names leaders and epochs.
    topic.described = None
    return Assign(
        partition=TopicPartition(topic.name, record.partition),
        leader_id=record.leader_id,
        leader_epoch=record.leader_epoch,
        topic_id=record.topic_id,
        is_new=isinstance(record, PartitionCreated),
        was_leader=before is not None and before.node_id == record.leader_id,
    )


METADATA_PARTITION: Final = TopicPartition(CLUSTER_METADATA_TOPIC, 0)
