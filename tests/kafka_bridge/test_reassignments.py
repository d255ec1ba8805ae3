"""Elections and reassignments that Kafka's clients ask for, with the answers of Apache Kafka 4.3.1."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

import fencepost
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from tests.kafka_bridge.kafka_socket import KafkaSocket, connected
from tests.kafka_bridge.test_odd_requests import ALTER_CONFIGS, BROKERS, INCREMENTAL_ALTER_CONFIGS, ask

ELECT_LEADERS, ALTER_REASSIGNMENTS, LIST_REASSIGNMENTS = 43, 45, 46
SECOND_MS = 1_000
DELETE = 1  # AlterConfigOp.OpType
NOT_NEEDED, UNKNOWN = ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
NO_REASSIGNMENT, WRONG = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, ErrorCode.INVALID_REPLICA_ASSIGNMENT


@pytest.fixture(scope="module")
def broker() -> Iterator[fencepost.Broker]:
    with fencepost.Broker() as broker, fencepost.Admin(broker.address) as admin:
        admin.create_topic("orders", 2)
        yield broker


def elected(wire: KafkaSocket, version: int, topics: Any, election_type: int = 0) -> tuple[Any, list[Any]]:
    """The error of the request, and that of each partition."""
    asked = {"election_type": election_type, "topic_partitions": topics, "timeout": SECOND_MS}
    told = ask(wire, ELECT_LEADERS, version, **asked)
    results = [
        (topic.topic, part.partition_id, part.error_code)
        for topic in told.replica_election_results
        for part in topic.partition_result
    ]
    return getattr(told, "error_code", NO_ERROR), results


@pytest.mark.parametrize("election_type", [0, 1])
@pytest.mark.parametrize("version", [0, 1, 2])
def test_every_leader_is_the_preferred_one(wire: KafkaSocket, version: int, election_type: int) -> None:
    topics = [{"topic": "orders", "partitions": [1, 5, -1]}, {"topic": "absent", "partitions": [0]}]
    assert elected(wire, version, topics, election_type) == (
        NO_ERROR,
        [("orders", 1, NOT_NEEDED), ("orders", 5, UNKNOWN), ("orders", -1, UNKNOWN), ("absent", 0, UNKNOWN)],
    )
    assert elected(wire, version, None, election_type) == (NO_ERROR, [])


def test_an_unknown_election_is_refused(wire: KafkaSocket) -> None:
    wrong = ErrorCode.INVALID_REQUEST
    topics = [{"topic": "orders", "partitions": [0]}]
    assert elected(wire, 2, topics, 2) == (wrong, [("orders", 0, wrong)])
    assert elected(wire, 2, None, 2) == (wrong, [])
    assert elected(wire, 2, [], 2) == (NO_ERROR, [])


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    ("name", "number", "replicas", "error"),
    [
        ("orders", 0, [1], NO_ERROR),
        ("orders", 0, None, NO_REASSIGNMENT),
        ("orders", 0, [], WRONG),
        ("orders", 0, [1, 1], WRONG),
        ("orders", 0, [2], WRONG),
        ("orders", 0, [1, 2], WRONG),
        ("orders", 0, [-1], WRONG),
        ("orders", 7, [1], UNKNOWN),
        ("orders", 7, None, UNKNOWN),
        ("absent", 0, [1], UNKNOWN),
    ],
)
def test_partitions_stay_where_they_are(
    wire: KafkaSocket, version: int, name: str, number: int, replicas: list[int] | None, error: ErrorCode
) -> None:
    topics = [{"name": name, "partitions": [{"partition_index": number, "replicas": replicas}]}]
    told = ask(
        wire,
        ALTER_REASSIGNMENTS,
        version,
        timeout=SECOND_MS,
        allow_replication_factor_change=False,
        topics=topics,
    )
    (topic,) = told.responses
    (part,) = topic.partitions
    assert (told.error_code, topic.name, part.partition_index) == (NO_ERROR, name, number)
    assert (part.error_code, part.error_message is None) == (error, error is NO_ERROR)
    assert getattr(told, "allow_replication_factor_change", False) is False


@pytest.mark.parametrize("topics", [None, [{"name": "orders", "partition_indexes": [0]}]])
def test_no_reassignment_is_in_progress(wire: KafkaSocket, topics: Any) -> None:
    told = ask(wire, LIST_REASSIGNMENTS, 0, timeout=SECOND_MS, topics=topics)
    assert (told.error_code, told.error_message, told.topics) == (NO_ERROR, None, ())


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("1", NO_ERROR),
        ("", NO_ERROR),
        ("x", ErrorCode.INVALID_REQUEST),
        ("7", ErrorCode.INVALID_REQUEST),
        ("-1", ErrorCode.INVALID_REQUEST),
    ],
)
def test_throttles_that_no_broker_has_can_be_removed(wire: KafkaSocket, name: str, error: ErrorCode) -> None:
    """kafka-reassign-partitions removes them when it has verified an assignment."""
    rate = {"name": "follower.replication.throttled.rate", "config_operation": DELETE, "value": None}
    broker = {"resource_type": BROKERS, "resource_name": name, "configs": [rate]}
    told = ask(wire, INCREMENTAL_ALTER_CONFIGS, 1, resources=[broker], validate_only=False)
    assert [each.error_code for each in told.responses] == [error]
    told = ask(wire, ALTER_CONFIGS, 2, resources=[{**broker, "configs": []}], validate_only=False)
    assert [each.error_code for each in told.responses] == [error]


@pytest.mark.parametrize(
    ("api", "values"),
    [
        (ELECT_LEADERS, {"election_type": 0, "topic_partitions": [{"topic": "t", "partitions": [0]}]}),
        (
            ALTER_REASSIGNMENTS,
            {"topics": [{"name": "t", "partitions": [{"partition_index": 0, "replicas": [1]}]}]},
        ),
        (LIST_REASSIGNMENTS, {"topics": [{"name": "t", "partition_indexes": [0]}]}),
    ],
)
def test_a_client_without_rights_is_told_so(api: int, values: dict[str, Any]) -> None:
    denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    version = {ELECT_LEADERS: 2, ALTER_REASSIGNMENTS: 1, LIST_REASSIGNMENTS: 0}[api]
    with fencepost.Broker(acls="") as broker, closing(connected(broker.address)) as wire:
        told = ask(wire, api, version, timeout=SECOND_MS, allow_replication_factor_change=True, **values)
    assert told.error_code == denied
    if api == ELECT_LEADERS:
        assert told.replica_election_results[0].partition_result[0].error_code == denied
    if api == ALTER_REASSIGNMENTS:
        assert told.responses[0].partitions[0].error_code == denied
    if api == LIST_REASSIGNMENTS:
        (topic,) = told.topics
        assert (topic.name, [(each.partition_index, each.replicas) for each in topic.partitions]) == (
            "t",
            [(0, ())],
        ), "a refusal names what was asked for"
