"""Decisions about topics: they are created, grow, and are deleted.

Rule: within the limits of a request each topic is decided on its own, and every refusal says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

import attrs

from fencepost.broker.cluster.config_changes import config_problem, conflict_of, too_large_configs
from fencepost.broker.cluster.controller import ClusterDecision, Controller
from fencepost.broker.cluster.elections import replicas_problem
from fencepost.broker.cluster.per_topic import NAMED_TWICE, each_topic, result_for
from fencepost.broker.contract import Decision, Refused, Reply, ReplyTo
from fencepost.broker.limits import CLUSTER_PARTITIONS, REQUEST_PARTITIONS, exceeded
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.metadata_log import (
    ClusterRecord,
    PartitionCreated,
    TopicConfigured,
    TopicCreated,
    TopicRemoved,
    new_topic_id,
)
from fencepost.protocol.terms import BROKERS_DEFAULT, INTERNAL_TOPICS, NO_TOPIC_ID, topic_name_problem


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
    too_many = None if internal else _too_many_partitions(state, count) or too_large_configs(state, request)
    like = {} if internal else _names_by_unified(state, [each.topic for each in request.topics])
    for wanted, named_twice in each_topic(request.topics):
        problem = too_many or named_twice or _topic_problem(state, wanted, leaving, like, internal=internal)
        if problem is None:
            at = state.newest_topic_number + len(made)
            made[wanted.topic] = new_topic_id(wanted.topic, number=at + 1, created_ms=now)
            created = TopicCreated(wanted.topic, topic_id=made[wanted.topic], created_ms=now)
            records.extend(_new_topic(state, wanted, created, at=at))
        topic_id = made.get(wanted.topic, NO_TOPIC_ID)
        told = result_for(wanted.topic, problem, topic_id)
        answers.append(told if problem else attrs.evolve(told, partition_count=_partition_count(wanted)))
    reply = Reply(to, m.CreateTopicsReply(topics=tuple(answers)))
    return Decision(() if request.validate_only else tuple(records), (reply,))


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
    for wanted, named_twice in each_topic(request.topics):
        problem = too_many or named_twice or _growth_problem(state, wanted)
        if problem is None:
            records.extend(_new_partitions(state, wanted))
        answers.append(result_for(wanted.topic, problem))
    reply = Reply(to, m.CreatePartitionsReply(topics=tuple(answers)))
    return Decision(() if request.validate_only else tuple(records), (reply,))


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
    return replicas_problem(state, wanted.assignments)


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
        answers.append(result_for(name, refused, NO_TOPIC_ID if topic is None else topic.topic_id))
    reply = Reply(to, m.DeleteTopicsReply(topics=tuple(answers)))
    return Decision(tuple(records), (reply,))


def _too_many_partitions(state: Controller, wanted: int) -> Refused | None:
    """Why a request for this number of partitions is refused as a whole, before a record of it is made
    (ReplicationControlManager.validateTotalNumberOfPartitions).
    """
    if wanted > REQUEST_PARTITIONS.value:
        return exceeded(REQUEST_PARTITIONS, wanted)
    # Internal topics count, and are created all the same: without them no coordinator works.
    total = wanted + sum(len(topic.leaders) for topic in state.topics.values())
    return exceeded(CLUSTER_PARTITIONS, total) if total > CLUSTER_PARTITIONS.value else None


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
        if (problem := config_problem(name, value)) is not None:
            return problem
    if (problem := conflict_of(configs)) is not None:
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
        return replicas_problem(state, [each.node_ids for each in wanted.assignments])
    because = f"replication factor {factor} is not possible: a partition has one replica here"
    wrong_factor = Refused(ErrorCode.INVALID_REPLICATION_FACTOR, because)
    if factor < 1 and factor != BROKERS_DEFAULT:
        return wrong_factor
    if wanted.partition_count < 1:
        return Refused(ErrorCode.INVALID_PARTITIONS, "a topic needs at least one partition")
    return wrong_factor if factor > 1 else None


def _names_by_unified(state: Controller, wanted: Iterable[str]) -> dict[str, str]:
    """The topics with which a new one may collide: Kafka's metrics show dots as underscores (Topic.java)."""
    if not any("." in name or "_" in name for name in wanted):
        return {}
    return {_unified(name): name for name in state.topics}


def _unified(name: str) -> str:
    return name.replace(".", "_")
