"""ApiVersions, Metadata, FindCoordinator, and topics that are created and deleted.

Rule: for what this broker does not have (replicas, racks), the response is Kafka's for unknown values.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final, TypeVar
from uuid import UUID

import attrs

from fencepost.kafka_bridge.configs import config_values
from fencepost.kafka_bridge.exchange import (
    NOT_ASKED,
    Answer,
    Context,
    Exchange,
    Translated,
    Values,
    explained,
    in_time,
    known,
    of_each,
    one,
)
from fencepost.kafka_bridge.operations import AuthorizedOperations
from fencepost.kafka_bridge.topic_ids import name_of, uuid_of
from fencepost.protocol import messages as m
from fencepost.protocol import refusals
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.terms import BROKERS_DEFAULT, OPERATION_BITS, CoordinatorType
from fencepost.protocol.wire_protocol import NodeTopics

TRANSACTION_VERSION: Final = "transaction.version"
GROUP_VERSION: Final = "group.version"
GROUP_VERSION_MAX: Final = 1  # the consumer protocol (KIP-848)
FEATURES: Final = {TRANSACTION_VERSION: 2, GROUP_VERSION: GROUP_VERSION_MAX}
"""The features of the broker (KIP-584), and the newest version of each."""
FIRST_WITH_SOFTWARE: Final = 3  # ApiVersions
FIRST_WITH_FEATURES_FROM_0: Final = 4  # ApiVersions
SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""The name of a client's software, and its version (ApiVersionsRequest.isValid)."""
FIRST_BY_ID: Final = 12  # Metadata
FIRST_DELETE_BY_ID: Final = 6  # DeleteTopics
NO_CLUSTER: Final = m.MetadataReply(cluster_id="", controller_id=-1, nodes=(), topics=())
AUTO_CREATES_ALWAYS: Final = 3  # Metadata: the last version that does not say whether topics may be created


def api_versions(versions: Iterable[tuple[int, int, int]]) -> Any:
    """The translation of ApiVersions for a broker that serves these (API key, first, last version)."""
    keys = [{"api_key": key, "min_version": first, "max_version": last} for key, first, last in versions]

    def translate(request: Any, version: int) -> Exchange:
        is_valid = version < FIRST_WITH_SOFTWARE or (
            SOFTWARE.fullmatch(request.client_software_name) is not None
            and SOFTWARE.fullmatch(request.client_software_version) is not None
        )

        def respond(answer: Answer) -> Values:
            if not is_valid:
                return {"error_code": ErrorCode.INVALID_REQUEST, "api_keys": (), "throttle_time": 0}
            transaction_version = 0 if answer.body is None else answer.body.transaction_version
            finalized = {TRANSACTION_VERSION: transaction_version, GROUP_VERSION: GROUP_VERSION_MAX}
            return {
                "error_code": answer.error,
                "api_keys": keys,
                "throttle_time": 0,
                "supported_features": [
                    {"name": name, "min_version": 0, "max_version": newest}
                    for name, newest in FEATURES.items()
                    # Older clients of Java break off when they read that a feature begins at 0 (KAFKA-17011).
                    if version >= FIRST_WITH_FEATURES_FROM_0
                ],
                # Features never change while a broker runs. -1 would say that the epoch is unknown.
                "finalized_features_epoch": 0,
                "finalized_features": [
                    {"name": name, "max_version_level": level, "min_version_level": level}
                    # A feature at level 0 is off, and is not listed. Java's producer has an epoch for each
                    # transaction (KIP-890) if it finds transaction.version at 2.
                    for name, level in finalized.items()
                    if level
                ],
            }

        return one(m.ApiVersions(), respond)

    return translate


@AuthorizedOperations(
    kind="Cluster", asked="include_cluster_authorized_operations", field="cluster_authorized_operations"
)
@AuthorizedOperations(
    kind="Topic",
    asked="include_topic_authorized_operations",
    field="topic_authorized_operations",
    entries="topics",
)
def metadata(request: Any, version: int) -> Translated:
    """Describe topics and their leaders. A topic that does not exist is created, if client and broker allow
    it; the client asks again until it is there.
    """
    asked = request.topics
    named_otherwise = any(topic.name is None or getattr(topic, "topic_id", None) for topic in asked or ())
    if version < FIRST_BY_ID and named_otherwise:
        return known(_not_by_id(asked))
    # One id makes it a request by ids, and names beside it do not count
    # (KafkaApis.handleTopicMetadataRequest).
    if asked and any(getattr(topic, "topic_id", None) for topic in asked):
        ids = tuple(dict.fromkeys(topic.topic_id for topic in asked if topic.topic_id is not None))
        return lambda context: _metadata_by_id(ids, context.topics)
    # An empty list asks for no topic; in version 0, which cannot send null, for all topics.
    names = None if asked is None or not (asked or version) else tuple(topic.name or "" for topic in asked)
    may_create = version <= AUTO_CREATES_ALWAYS or request.allow_auto_topic_creation
    return lambda context: _metadata_by_name(names, may_create and context.topics.creates_named_topics)


def _metadata_by_name(names: tuple[str, ...] | None, creates: bool) -> Exchange:
    """Describe topics by their names, and create those that are missing if it `creates` topics."""

    def follow_up(answers: Sequence[Answer]) -> tuple[m.Request, ...]:
        body = answers[0].body
        missing = tuple(
            m.CreateTopic(topic=topic.topic, partition_count=BROKERS_DEFAULT)
            for topic in (() if body is None else body.topics)
            if topic.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
        return (m.CreateTopics(topics=missing),) if creates and missing else ()

    def respond(answers: Sequence[Answer]) -> Values:
        described = _or_refused(answers[0], names or ())
        created = answers[1].body.topics if len(answers) > 1 and answers[1].body else ()
        # A topic that is created now is still missing from this response: the client asks again.
        # To a client that may not create it, Kafka denies a missing topic instead of calling it unknown.
        denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        not_created = {topic.topic for topic in created if topic.error is denied}
        topics = tuple(
            attrs.evolve(topic, error=denied) if topic.topic in not_created else topic
            for topic in described.topics
        )
        return _described(attrs.evolve(described, topics=topics))

    return Exchange((m.Metadata(topics=names),), respond, follow_up)


def _not_by_id(topics: Iterable[Any]) -> Values:
    """The refusal of a version that has a field for ids, and was never to use it (KAFKA-12701)."""
    refused = m.TopicMetadata(topic="", error=ErrorCode.INVALID_REQUEST)
    described = [
        {**described_topic(refused), "name": topic.name or "", "topic_id": topic.topic_id} for topic in topics
    ]
    return {**_described(NO_CLUSTER), "topics": described}


def _metadata_by_id(ids: Sequence[UUID], topics: NodeTopics) -> Exchange:
    """Describe topics by their ids; none is created."""
    named = {name: topic_id for topic_id in ids if (name := name_of(topics, topic_id)) is not None}

    def respond(answers: Sequence[Answer]) -> Values:
        reply = _or_refused(answers[0], tuple(named))
        described: list[Values] = []
        for topic in reply.topics:
            # By now the topic may be deleted, and its name may belong to another one.
            is_same = topic.error is not NO_ERROR or topic.topic_id == named[topic.topic].bytes
            if is_same and topic.error is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                # The name of a topic that the client may not describe is a secret, its id is not.
                name = topic.topic if topic.error is NO_ERROR else None
                described.append({**described_topic(topic), "name": name, "topic_id": named[topic.topic]})
        known = {topic["topic_id"] for topic in described}
        unknown = m.TopicMetadata(topic="", error=ErrorCode.UNKNOWN_TOPIC_ID)
        described += [
            {**described_topic(unknown), "name": None, "topic_id": topic_id}
            for topic_id in ids
            if topic_id not in known
        ]
        return {**_described(reply), "topics": described}

    return Exchange((m.Metadata(topics=tuple(named)),), respond)


def _or_refused(answer: Answer, names: Iterable[str]) -> m.MetadataReply:
    if answer.body is not None:
        return answer.body
    topics = tuple(m.TopicMetadata(topic=name, error=answer.error) for name in names)
    return attrs.evolve(NO_CLUSTER, topics=topics)


def _described(reply: m.MetadataReply) -> Values:
    return {
        "throttle_time": 0,
        "error_code": NO_ERROR,
        "brokers": [
            {"node_id": node.node_id, "host": node.host, "port": node.port, "rack": None}
            for node in reply.nodes
        ],
        "cluster_id": reply.cluster_id or None,
        "controller_id": reply.controller_id,
        "topics": [described_topic(topic) for topic in reply.topics],
        "cluster_authorized_operations": NOT_ASKED,
    }


def described_topic(
    topic: m.TopicMetadata, partitions: Iterable[m.PartitionMetadata] | None = None
) -> Values:
    """A topic with all of its partitions, or with these."""
    return {
        "error_code": topic.error,
        "name": topic.topic,
        "topic_id": uuid_of(topic.topic_id),
        "is_internal": topic.is_internal,
        "partitions": [
            {
                "error_code": NO_ERROR,
                "partition_index": each.partition,
                "leader_id": each.leader_id,
                "leader_epoch": each.leader_epoch,
                "replica_nodes": [each.leader_id],
                "isr_nodes": [each.leader_id],
                "eligible_leader_replicas": [],
                "last_known_elr": [],
                "offline_replicas": [],
            }
            for each in (topic.partitions if partitions is None else partitions)
        ],
        "topic_authorized_operations": NOT_ASKED,
    }


def find_coordinator(request: Any, version: int) -> Exchange:
    """Find the coordinators of groups or transactional ids; before version 4, of one."""
    keys = tuple(request.coordinator_keys) if version >= 4 else (request.key,)
    # Version 0 knows no kinds: transactions came with version 1 (KIP-98).
    kind = getattr(request, "key_type", CoordinatorType.GROUP.value)

    def respond(answers: Sequence[Answer]) -> Values:
        found = [_coordinator(key, answer) for key, answer in zip(keys, answers, strict=True)]
        # Older versions have the fields of their only coordinator at the top (KIP-699).
        return {"throttle_time": 0, "coordinators": found, **(found[0] if version < 4 else {})}

    return Exchange(tuple(m.FindCoordinator(kind=kind, key=key) for key in keys), respond)


def _coordinator(key: str, answer: Answer) -> Values:
    # Kafka's Node.noNode.
    node = answer.body or m.FindCoordinatorReply(node_id=-1, host="", port=-1)
    return {
        "key": key,
        "node_id": node.node_id,
        "host": node.host,
        "port": node.port,
        **explained(answer.error),
    }


@in_time
def create_topics(request: Any, _: int) -> Translated:
    """Create topics. The response shows what they have become (KIP-525), or would become if they are only
    checked, to those who may see it.
    """
    return lambda context: _create_topics(request, context)


def _create_topics(request: Any, context: Context) -> Exchange:
    asked = m.CreateTopics(topics=tuple(map(_new_topic, request.topics)), validate_only=request.validate_only)
    own = {topic.topic: topic.configs for topic in asked.topics}

    @cache
    def configs(own: Sequence[m.TopicConfig]) -> list[Values]:
        """The settings of a topic, its own as they were written. Most topics have the same ones, and theirs
        are made once.
        """
        texts = {each.name: each.value for each in own if each.value is not None}
        return [
            {**config_values(config), "value": texts.get(config.name, config.value)}
            for config in context.topics.topic_configs(texts)
        ]

    def created(result: m.TopicError) -> Values:
        is_created, error = result.error is NO_ERROR, NO_ERROR
        if is_created and not context.operations("Topic", result.topic) & OPERATION_BITS["DescribeConfigs"]:
            # The topic was created nevertheless: the reason why its numbers are -1 has a field of its own.
            is_created, error = False, ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return _topic_values(result) | {
            "topic_config_error_code": error,
            "num_partitions": result.partition_count if is_created else -1,
            "replication_factor": 1 if is_created else -1,
            # Never null: Java's admin client fails on null.
            "configs": configs(own[result.topic]) if is_created else [],
        }

    def respond(answer: Answer) -> Values:
        results = of_each(answer, "topics", own, refusals.refused_topic)
        return {"throttle_time": 0, "topics": [created(result) for result in results]}

    return one(asked, respond)


def _new_topic(topic: Any) -> m.CreateTopic:
    return m.CreateTopic(
        topic=topic.name,
        partition_count=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=tuple(
            m.ReplicaAssignment(partition=each.partition_index, node_ids=each.broker_ids)
            for each in topic.assignments
        ),
        configs=tuple(m.TopicConfig(name=each.name, value=each.value) for each in topic.configs),
    )


def _topic_values(result: m.TopicError) -> dict[str, Any]:
    return {
        "name": result.topic,
        "topic_id": uuid_of(result.topic_id),
        **explained(result.error, result.because),
    }


@in_time
def delete_topics(request: Any, version: int) -> Translated:
    """Delete topics by name; since version 6, also by id."""
    if version < FIRST_DELETE_BY_ID:
        return _delete_topics(tuple(request.topic_names))
    return lambda context: _delete_any_topics(request.topics, context.topics)


def _delete_any_topics(topics: Sequence[Any], known: NodeTopics) -> Exchange:
    by_name = Counter[str](topic.name for topic in topics if topic.name is not None and not topic.topic_id)
    by_id = Counter[UUID](topic.topic_id for topic in topics if topic.name is None and topic.topic_id)
    refused = [
        _not_deleted(topic.name, topic.topic_id, ErrorCode.INVALID_REQUEST)
        for topic in topics
        # One of the two must be given, not both (ControllerApis.deleteTopics).
        if (topic.name is None) == (topic.topic_id is None)
    ]
    # What is named twice in the same way does not count (ControllerApis.deleteTopics).
    refused += [_not_deleted(name, None, ErrorCode.INVALID_REQUEST) for name in _twice(by_name)]
    refused += [_not_deleted(None, topic_id, ErrorCode.INVALID_REQUEST) for topic_id in _twice(by_id)]
    named = [name for name, times_named in by_name.items() if times_named == 1]
    ids = dict[str, UUID]()
    for topic_id, times_named in by_id.items():
        name = name_of(known, topic_id)
        if name is None and times_named == 1:
            refused.append(_not_deleted(None, topic_id, ErrorCode.UNKNOWN_TOPIC_ID))
        elif name is not None and (times_named == 1 or by_name[name] == 1):
            ids[name] = topic_id
    # The controller refuses what is named in both ways.
    deleting = _delete_topics((*named, *ids))
    describing = (m.Metadata(topics=tuple(ids)),) if ids else ()

    def respond(answers: Sequence[Answer]) -> Values:
        # The name of a topic that the client may not describe is a secret, its id is not.
        described = _or_refused(answers[1], tuple(ids)).topics if ids else ()
        hidden = {topic.topic for topic in described if topic.error is ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        results: list[Values] = []
        for values in deleting.respond(answers)["responses"]:
            name, is_denied = values["name"], values["error_code"] is ErrorCode.TOPIC_AUTHORIZATION_FAILED
            is_by_id = name in ids and (by_id[ids[name]] == 1 or not is_denied)
            if is_by_id:
                results.append({**values, "name": None if name in hidden else name, "topic_id": ids[name]})
            # A hidden topic that was named by its id and by its name gets an entry for each: a single one
            # would tell that they belong together.
            if not is_by_id or (by_name[name] == 1 and name in hidden):
                results.append(values)
        return {"throttle_time": 0, "responses": [*results, *refused]}

    return Exchange((*deleting.requests, *describing), respond)


_Named = TypeVar("_Named")


def _twice(times_named: Counter[_Named]) -> list[_Named]:
    return [each for each, times in times_named.items() if times > 1]


def _not_deleted(name: str | None, topic_id: UUID | None, error: ErrorCode) -> Values:
    values = _topic_values(refusals.refused_topic("", error))
    return {**values, "name": name, "topic_id": topic_id}


def _delete_topics(names: tuple[str, ...]) -> Exchange:
    asked = m.DeleteTopics(topics=names)

    def respond(answer: Answer) -> Values:
        # A name that was given twice gets one result, as in Kafka.
        results = {each.topic: each for each in of_each(answer, "topics", names, refusals.refused_topic)}
        return {"throttle_time": 0, "responses": [_topic_values(result) for result in results.values()]}

    return one(asked, respond)


@in_time
def create_partitions(request: Any, _: int) -> Exchange:
    topics = tuple(map(_new_partitions, request.topics))
    names = dict.fromkeys(topic.topic for topic in topics)

    def respond(answer: Answer) -> Values:
        results = of_each(answer, "topics", names, refusals.refused_topic)
        return {"throttle_time": 0, "results": [_topic_values(result) for result in results]}

    return one(m.CreatePartitions(topics=topics, validate_only=request.validate_only), respond)


def _new_partitions(topic: Any) -> m.NewPartitions:
    assignments = topic.assignments
    return m.NewPartitions(
        topic=topic.name,
        count=topic.count,
        assignments=None if assignments is None else tuple(each.broker_ids for each in assignments),
    )
