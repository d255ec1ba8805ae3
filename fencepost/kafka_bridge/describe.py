"""DescribeCluster and DescribeTopicPartitions: what Metadata says, in other words. DescribeLogDirs: what
BrokerStatus says.

Rule: a client learns nothing here that these two would not tell it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

from fencepost.kafka_bridge.cluster import described_topic
from fencepost.kafka_bridge.exchange import NOT_ASKED, Answer, Exchange, Values, known, one
from fencepost.kafka_bridge.operations import AuthorizedOperations
from fencepost.protocol import messages as m
from fencepost.protocol.errors import NO_ERROR, ErrorCode

BROKERS: Final = 1  # EndpointType
CONTROLLERS: Final = 2
# Kafka's codes (KIP-919). Only this bridge gives them, so ErrorCode, which Fencepost's own clients read, has
# no names for them.
MISMATCHED_ENDPOINT_TYPE: Final = 114
UNSUPPORTED_ENDPOINT_TYPE: Final = 115
PARTITIONS_MAX: Final = 2_000  # max.request.partition.size.limit
UNKNOWN_BYTES: Final = -1  # DescribeLogDirsResponse.UNKNOWN_VOLUME_BYTES


# --- the cluster -----------------------------------------------------------------------------------------


@AuthorizedOperations(
    kind="Cluster", asked="include_cluster_authorized_operations", field="cluster_authorized_operations"
)
def describe_cluster(request: Any, _: int) -> Exchange:
    """Describe the nodes. Only dedicated controllers answer about controllers, and there are none here."""
    wanted = getattr(request, "endpoint_type", BROKERS)
    if wanted == CONTROLLERS:
        because = "the request was sent to a broker, and asks for controllers"
        return known(_cluster_values(MISMATCHED_ENDPOINT_TYPE, because))
    if wanted != BROKERS:
        return known(_cluster_values(UNSUPPORTED_ENDPOINT_TYPE, f"unsupported endpoint type {wanted}"))

    def respond(answer: Answer) -> Values:
        if answer.body is None:
            return _cluster_values(answer.error, answer.error.meaning)
        return _cluster_values(NO_ERROR, None, answer.body)

    return one(m.Metadata(topics=()), respond)


def _cluster_values(error: int, because: str | None, body: m.MetadataReply | None = None) -> Values:
    nodes: tuple[m.NodeAddress, ...] = () if body is None else body.nodes
    return {
        "throttle_time": 0,
        "error_code": error,
        "error_message": because,
        "endpoint_type": BROKERS,
        "cluster_id": "" if body is None else body.cluster_id,
        "controller_id": -1 if body is None else body.controller_id,
        "brokers": [
            {
                "broker_id": node.node_id,
                "host": node.host,
                "port": node.port,
                "rack": None,
                # Kafka lists fenced brokers on request (KIP-1073); a node that does not run is in no list
                # here.
                "is_fenced": False,
            }
            for node in nodes
        ],
        "cluster_authorized_operations": NOT_ASKED,
    }


# --- the data directory ------------------------------------------------------------------------------------


def describe_log_dirs(request: Any, _: int) -> Exchange:
    """Describe the one directory, and how many bytes its logs have: those that are named, or all."""
    named = None
    if request.topics is not None:
        named = {(topic.topic, number) for topic in request.topics for number in topic.partitions}

    def respond(answer: Answer) -> Values:
        # Before version 3 there is no place for the error, and nothing is described.
        described = [] if answer.body is None else [_log_dir(answer.body, named)]
        return {"throttle_time": 0, "error_code": answer.error, "results": described}

    return one(m.BrokerStatus(), respond)


def _log_dir(status: m.BrokerStatusReply, named: Collection[tuple[str, int]] | None) -> Values:
    sizes = {
        topic.topic: [each for each in topic.sizes if named is None or (topic.topic, each.partition) in named]
        for topic in status.topics
    }
    return {
        "error_code": NO_ERROR,
        "log_dir": status.directory,
        "topics": [
            {
                "name": topic,
                "partitions": [
                    {
                        "partition_index": each.partition,
                        "partition_size": each.size_bytes,
                        "offset_lag": 0,  # of a replica behind its leader
                        "is_future_key": False,
                    }
                    for each in parts
                ],
            }
            for topic, parts in sizes.items()
            if parts
        ],
        "total_bytes": UNKNOWN_BYTES,
        "usable_bytes": UNKNOWN_BYTES,
        "is_cordoned": False,
    }


# --- the partitions of topics ----------------------------------------------------------------------------


@AuthorizedOperations(kind="Topic", asked=None, field="topic_authorized_operations", entries="topics")
def describe_topic_partitions(request: Any, _: int) -> Exchange:
    """Describe partitions in the order of the topics' names, a page at a time (KIP-966)."""
    cursor = request.cursor
    names = sorted({topic.name for topic in request.topics})
    wanted = [name for name in names if cursor is None or name >= cursor.topic_name]
    if cursor is not None and (cursor.partition_index < 0 or (names and cursor.topic_name not in names)):
        error = ErrorCode.INVALID_REQUEST
        refused = [described_topic(m.TopicMetadata(topic=name, error=error)) for name in names]
        return known({"throttle_time": 0, "topics": refused, "next_cursor": None})

    def respond(answer: Answer) -> Values:
        if answer.body is None:
            topics = [described_topic(m.TopicMetadata(topic=name, error=answer.error)) for name in wanted]
            return {"throttle_time": 0, "topics": topics, "next_cursor": None}
        # At least one, or no page would ever bring its reader further.
        limit = max(1, min(request.response_partition_limit, PARTITIONS_MAX))
        return _page(answer.body.topics, cursor, limit)

    return one(m.Metadata(topics=tuple(wanted) if names else None), respond)


def _page(topics: Iterable[m.TopicMetadata], cursor: Any, limit: int) -> Values:
    """The topics from the cursor on, until the page is full, and the cursor of the next page."""
    shown: list[Values] = []
    ordered = sorted(topics, key=lambda topic: topic.topic)
    rest_of_topics = [topic for topic in ordered if cursor is None or topic.topic >= cursor.topic_name]
    for number, topic in enumerate(rest_of_topics, start=1):
        first = 0 if cursor is None or topic.topic != cursor.topic_name else cursor.partition_index
        rest = topic.partitions[first:]
        shown.append(described_topic(topic, rest[:limit]))
        # Below 0, it is minus the number of partitions that found no room, which the next page begins with.
        limit -= len(rest)
        if limit < 0:
            return _paged(shown, (topic.topic, first + len(rest) + limit))
        # Full exactly at the end of a topic: the next page begins with the next topic, if there is one.
        if limit == 0 and number < len(rest_of_topics):
            return _paged(shown, (rest_of_topics[number].topic, 0))
    return _paged(shown, None)


def _paged(shown: list[Values], after: tuple[str, int] | None) -> Values:
    cursor = None if after is None else {"topic_name": after[0], "partition_index": after[1]}
    return {"throttle_time": 0, "topics": shown, "next_cursor": cursor}
