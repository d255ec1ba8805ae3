"""ElectLeaders, AlterPartitionReassignments and ListPartitionReassignments (KIP-460, KIP-455).

Rule: a partition has one replica here, which leads it. So there is nothing to elect, and no reassignment is
ever in progress.
"""

from __future__ import annotations

from typing import Any, Final

from fencepost.kafka_bridge.exchange import Answer, Exchange, Values, explained, in_time, nested, of_each, one
from fencepost.protocol import messages as m
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.refusals import refused_partition
from fencepost.protocol.terms import TopicPartition

PREFERRED: Final = 0  # ElectionType
UNCLEAN: Final = 1


@in_time
def elect_leaders(request: Any, _: int) -> Exchange:
    """Elect leaders of some partitions, or of all."""
    # Of all partitions, Kafka names those that have a new leader, and there are none.
    parts = [
        TopicPartition(topic.topic, number)
        for topic in request.topic_partitions or ()
        for number in topic.partitions
    ]
    is_known = getattr(request, "election_type", PREFERRED) in (PREFERRED, UNCLEAN)
    is_nothing = request.topic_partitions == ()

    def respond(answer: Answer) -> Values:
        if answer.error is NO_ERROR and not is_known and not is_nothing:
            answer = Answer(ErrorCode.INVALID_REQUEST, None)
        results = of_each(answer, "partitions", parts, refused_partition)
        return {
            "throttle_time": 0,
            "error_code": answer.error,
            "replica_election_results": nested(
                results,
                lambda part: {"partition_id": part.partition, **explained(part.error)},
                name="topic",
                partitions="partition_result",
            ),
        }

    return one(m.ElectLeaders(partitions=tuple(parts)), respond)


@in_time
def alter_partition_reassignments(request: Any, _: int) -> Exchange:
    """Assign partitions to brokers."""
    parts = tuple(
        m.PartitionReassignment(topic=topic.name, partition=part.partition_index, node_ids=part.replicas)
        for topic in request.topics
        for part in topic.partitions
    )

    def respond(answer: Answer) -> Values:
        results = of_each(answer, "partitions", parts, refused_partition)
        return {
            "throttle_time": 0,
            "allow_replication_factor_change": getattr(request, "allow_replication_factor_change", True),
            **explained(answer.error),
            "responses": nested(
                results, lambda part: {"partition_index": part.partition, **explained(part.error)}
            ),
        }

    return one(m.AlterPartitionReassignments(partitions=parts), respond)


def list_partition_reassignments(request: Any, _: int) -> Exchange:
    def respond(answer: Answer) -> Values:
        # A refusal names what was asked for, as if it had no replicas.
        refused = () if answer.error is NO_ERROR else request.topics or ()
        topics = [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": index, "replicas": (), "adding_replicas": (), "removing_replicas": ()}
                    for index in topic.partition_indexes
                ],
            }
            for topic in refused
        ]
        return {"throttle_time": 0, **explained(answer.error), "topics": topics}

    return one(m.ListPartitionReassignments(), respond)
