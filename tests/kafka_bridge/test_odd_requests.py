"""Requests that clients rarely send, or never, and the answers that Apache Kafka 4.3.1 gave to them."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_request_schema

import fencepost
from fencepost.kafka_bridge import groups
from fencepost.protocol import messages as m
from fencepost.protocol.batches import CONTROL_BIT, build_batch, checksum_matches, walk
from fencepost.protocol.compression import Compression, compress
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.kafka_records import encode_record
from fencepost.protocol.terms import NO_RETENTION, ConfigSource
from tests.kafka_bridge.conftest import IMPATIENT
from tests.kafka_bridge.kafka_socket import KafkaSocket, connected
from tests.kafka_bridge.samples import bytes_of, filled
from tests.kafka_bridge.test_topic_ids import ORDERS, in_context

PRODUCE, FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT, OFFSET_FETCH, JOIN_GROUP = 0, 1, 2, 3, 8, 9, 11
API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS, CREATE_PARTITIONS = 18, 19, 20, 21, 37
SYNC_GROUP, DESCRIBE_GROUPS, SASL_HANDSHAKE, DELETE_GROUPS, DESCRIBE_CLUSTER = 14, 15, 17, 42, 60
DESCRIBE_CONFIGS, ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS = 32, 33, 44
CONSUMER_GROUP_HEARTBEAT, CONSUMER_GROUP_DESCRIBE, DESCRIBE_TOPIC_PARTITIONS = 68, 69, 75
DESCRIBE_PRODUCERS, DESCRIBE_LOG_DIRS, DESCRIBE_TRANSACTIONS = 61, 35, 65
TOPIC, GROUP = "orders", "readers"


@pytest.fixture(scope="module")
def broker() -> Iterator[fencepost.Broker]:
    with fencepost.Broker(override=IMPATIENT) as broker:
        with fencepost.Admin(broker.address) as admin:
            admin.create_topic(TOPIC, 2)
            admin.list_consumer_group_offsets(GROUP)  # the coordinator of groups is there
        yield broker


def ask(wire: KafkaSocket, api_key: int, version: int, **values: Any) -> Any:
    """Send a request of plain values; those of other versions are left out."""
    request = filled(load_request_schema(api_key, version), values)
    return wire.ask(
        api_key, version, **{field.name: getattr(request, field.name) for field in fields(request)}
    )


def topic_id(wire: KafkaSocket, name: str = TOPIC) -> UUID | None:
    topics = [{"topic_id": None, "name": name}]
    told = ask(
        wire,
        METADATA,
        12,
        topics=topics,
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    return told.topics[0].topic_id


@pytest.mark.parametrize("version", [10, 11])
@pytest.mark.parametrize("also", ["", None])
def test_two_versions_have_ids_and_refuse_them(wire: KafkaSocket, version: int, also: str | None) -> None:
    told = ask(
        wire,
        METADATA,
        version,
        topics=[
            {"topic_id": None, "name": TOPIC},
            {"topic_id": also if also is None else ORDERS, "name": also},
        ],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    error = ErrorCode.INVALID_REQUEST
    assert [(topic.name, topic.error_code) for topic in told.topics] == [(TOPIC, error), ("", error)]
    assert (told.brokers, told.controller_id, told.cluster_id) == ((), -1, None)


# --- authorized operations ---------------------------------------------------------------------------------

NOT_ASKED = -(2**31)
OF_TOPIC, OF_GROUP, OF_CLUSTER = 3576, 3400, 8096  # all operations that a resource of this type has


@pytest.mark.parametrize("version", [8, 10, 13])
@pytest.mark.parametrize("of_cluster", [False, True])
@pytest.mark.parametrize("of_topic", [False, True])
def test_metadata_tells_operations_if_asked(
    wire: KafkaSocket, version: int, of_cluster: bool, of_topic: bool
) -> None:
    told = ask(
        wire,
        METADATA,
        version,
        topics=[{"topic_id": None, "name": name} for name in (TOPIC, "absent", "a/b")],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=of_cluster,
        include_topic_authorized_operations=of_topic,
    )
    found = {topic.topic_authorized_operations for topic in told.topics}
    assert found == {OF_TOPIC if of_topic else NOT_ASKED}
    if version <= 10:
        assert told.cluster_authorized_operations == (OF_CLUSTER if of_cluster else NOT_ASKED)


@pytest.mark.parametrize("is_asked", [False, True])
def test_descriptions_tell_operations_if_asked(wire: KafkaSocket, is_asked: bool) -> None:
    join(wire, 3, "described")
    asks = {"include_authorized_operations": is_asked}
    for version, of_absent in ((3, OF_GROUP), (6, NOT_ASKED)):  # since version 6, it is an error
        told = ask(wire, DESCRIBE_GROUPS, version, groups=["described", "absent"], **asks)
        found = {group.group_id: group.authorized_operations for group in told.groups}
        expected = {"described": OF_GROUP, "absent": of_absent}
        assert found == (expected if is_asked else dict.fromkeys(expected, NOT_ASKED))
    told = ask(wire, CONSUMER_GROUP_DESCRIBE, 1, group_ids=["absent"], **asks)
    assert [group.authorized_operations for group in told.groups] == [NOT_ASKED]
    told = ask(wire, CONSUMER_GROUP_DESCRIBE, 1, group_ids=["", "absent"], **asks)
    errors = [ErrorCode.INVALID_GROUP_ID, ErrorCode.GROUP_ID_NOT_FOUND]
    assert [group.error_code for group in told.groups] == errors
    cluster = {"include_cluster_authorized_operations": is_asked, "include_fenced_brokers": False}
    for endpoint_type, bits in ((1, OF_CLUSTER), (2, NOT_ASKED)):
        told = ask(wire, DESCRIBE_CLUSTER, 2, endpoint_type=endpoint_type, **cluster)
        assert told.cluster_authorized_operations == (bits if is_asked else NOT_ASKED)


def test_partitions_are_described_with_the_operations_on_their_topic(wire: KafkaSocket) -> None:
    topics = [{"name": TOPIC}, {"name": "absent"}, {"name": "a/b"}]
    told = ask(wire, DESCRIBE_TOPIC_PARTITIONS, 0, topics=topics, response_partition_limit=10, cursor=None)
    assert {topic.topic_authorized_operations for topic in told.topics} == {OF_TOPIC}


RIGHTS = """
[[acl]]
principal = "User:alice"
topic = "orders"
allow = ["Read"]
"""
READ_AND_DESCRIBE = 1 << 3 | 1 << 8  # Read includes Describe


def test_a_client_is_told_its_own_operations() -> None:
    with (
        fencepost.Broker(users={"alice": "alice-secret"}, acls=RIGHTS) as guarded,
        closing(connected(guarded.address)) as wire,
    ):
        assert ask(wire, SASL_HANDSHAKE, 0, mechanism="PLAIN").error_code == NO_ERROR
        wire.exchange(b"\0alice\0alice-secret")
        told = ask(
            wire,
            METADATA,
            10,
            topics=[{"topic_id": None, "name": name} for name in (TOPIC, "secret")],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=True,
            include_topic_authorized_operations=True,
        )
    found = {topic.name: topic.topic_authorized_operations for topic in told.topics}
    assert found == {TOPIC: READ_AND_DESCRIBE, "secret": NOT_ASKED}
    assert told.cluster_authorized_operations == 0  # it may not describe the cluster


# --- ApiVersions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize(
    ("name", "number", "error"),
    [
        ("librdkafka", "2.11.0", NO_ERROR),
        ("a.b-c", "1-2.3", NO_ERROR),
        ("a" * 300, "x", NO_ERROR),
        ("", "1", ErrorCode.INVALID_REQUEST),
        ("a", "", ErrorCode.INVALID_REQUEST),
        ("a b", "1", ErrorCode.INVALID_REQUEST),
        ("-a", "1", ErrorCode.INVALID_REQUEST),
        ("a.", "1", ErrorCode.INVALID_REQUEST),
        ("ü", "1", ErrorCode.INVALID_REQUEST),
        ("a_b", "1", ErrorCode.INVALID_REQUEST),
        ("a", "1\n", ErrorCode.INVALID_REQUEST),
    ],
)
def test_software_has_a_name_and_a_version(
    wire: KafkaSocket, version: int, name: str, number: str, error: ErrorCode
) -> None:
    told = ask(wire, API_VERSIONS, version, client_software_name=name, client_software_version=number)
    assert (told.error_code, bool(told.api_keys)) == (error, error is NO_ERROR)


@pytest.mark.parametrize(
    ("version", "supported"), [(3, {}), (4, {"transaction.version": 2, "group.version": 1})]
)
def test_older_clients_do_not_learn_of_features_that_can_be_off(
    wire: KafkaSocket, version: int, supported: dict[str, int]
) -> None:
    """Java's clients 3.3 to 3.7 break off when they read 0 as a feature's first version (KAFKA-17011)."""
    told = ask(wire, API_VERSIONS, version, client_software_name="java", client_software_version="3.7.2")
    assert {each.name: each.max_version for each in told.supported_features} == supported
    assert {each.name for each in told.finalized_features} == {"transaction.version", "group.version"}


# --- topics ------------------------------------------------------------------------------------------------


def new_topic(name: str, *configs: tuple[str, str | None], **values: Any) -> dict[str, Any]:
    usual = {
        "name": name,
        "num_partitions": 1,
        "replication_factor": 1,
        "assignments": [],
        "configs": [{"name": config, "value": value} for config, value in configs],
    }
    return usual | values


def create(wire: KafkaSocket, name: str, *configs: tuple[str, str | None], **values: Any) -> Any:
    topics = [new_topic(name, *configs, **values)]
    (created,) = ask(wire, CREATE_TOPICS, 7, topics=topics, timeout=9_000, validate_only=False).topics
    return created


def assigned(*partitions: tuple[int, list[int]]) -> dict[str, Any]:
    return {
        "num_partitions": -1,
        "replication_factor": -1,
        "assignments": [{"partition_index": number, "broker_ids": ids} for number, ids in partitions],
    }


@pytest.mark.parametrize(
    ("unavailable", "of_replicas"),
    [
        ({"replication_factor": 3}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"replication_factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
        (assigned((0, [2])), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
@pytest.mark.parametrize(
    ("name", "configs", "error"),
    [
        (TOPIC, (), ErrorCode.TOPIC_ALREADY_EXISTS),
        ("a/b", (), ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("unavailable", (("nonsense", "1"),), ErrorCode.INVALID_CONFIG),
    ],
)
def test_where_replicas_are_is_looked_at_last(
    wire: KafkaSocket, unavailable: Any, of_replicas: ErrorCode, name: str, configs: Any, error: ErrorCode
) -> None:
    assert create(wire, name, *configs, **unavailable).error_code == error
    assert create(wire, "unavailable", **unavailable).error_code == of_replicas
    assert topic_id(wire, "unavailable") is None


@pytest.mark.parametrize(
    ("partitions", "replicas", "error"),
    [
        (0, 0, ErrorCode.INVALID_REPLICATION_FACTOR),
        (-2, -2, ErrorCode.INVALID_REPLICATION_FACTOR),
        (-1, 0, ErrorCode.INVALID_REPLICATION_FACTOR),
        (0, 1, ErrorCode.INVALID_PARTITIONS),
        (0, 2, ErrorCode.INVALID_PARTITIONS),
        (0, -1, ErrorCode.INVALID_PARTITIONS),
        (1, 2, ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
)
def test_replicas_are_counted_before_partitions(
    wire: KafkaSocket, partitions: int, replicas: int, error: ErrorCode
) -> None:
    """As Apache Kafka 4.3.1 answered on one broker."""
    topic = create(wire, "unavailable", num_partitions=partitions, replication_factor=replicas)
    assert topic.error_code == error


def test_a_topic_that_is_named_twice_is_not_created(wire: KafkaSocket) -> None:
    topics = [new_topic("two"), new_topic("two", replication_factor=3), new_topic("one")]
    told = ask(wire, CREATE_TOPICS, 7, topics=topics, timeout=9_000, validate_only=False).topics
    assert {(topic.name, topic.error_code) for topic in told} == {
        ("two", ErrorCode.INVALID_REQUEST),
        ("one", NO_ERROR),
    }
    assert len(told) == 2


def test_assignments_are_looked_at_after_the_topic(wire: KafkaSocket) -> None:
    assigned = [{"broker_ids": [1]}]
    topics = [{"name": name, "count": 9, "assignments": assigned} for name in (TOPIC, "absent")]
    topics.append({"name": TOPIC, "count": 1, "assignments": assigned})
    wrong = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    errors = [wrong, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_PARTITIONS]
    for topic, error in zip(topics, errors, strict=True):
        told = ask(wire, CREATE_PARTITIONS, 3, topics=[topic], timeout=9_000, validate_only=False)
        assert [result.error_code for result in told.results] == [error]


def test_a_new_topic_has_no_setting_without_a_value(wire: KafkaSocket) -> None:
    created = create(wire, "null", ("retention.ms", None), ("cleanup.policy", "compact"), ("nonsense", None))
    assert created.error_code == ErrorCode.INVALID_CONFIG
    assert created.error_message.endswith("retention.ms, nonsense")


# --- the data directory ------------------------------------------------------------------------------------


def log_dirs(wire: KafkaSocket, version: int, topics: Any) -> Any:
    return ask(wire, DESCRIBE_LOG_DIRS, version, topics=topics)


@pytest.mark.parametrize("version", range(1, 6))
def test_logs_are_measured(wire: KafkaSocket, version: int) -> None:
    create(wire, f"measured-{version}", num_partitions=2)
    (found,) = log_dirs(wire, version, None).results
    names = {topic.name for topic in found.topics}
    assert f"measured-{version}" in names
    assert "__cluster_metadata" not in names
    produce(wire, (1, batch()), topic=f"measured-{version}")
    named = [{"topic": name, "partitions": [1, 7]} for name in (f"measured-{version}", "absent")]
    (found,) = log_dirs(wire, version, named).results
    ((part,),) = (topic.partitions for topic in found.topics)
    assert (part.partition_index, part.partition_size) == (1, len(batch()))
    assert found.log_dir == "memory"


@pytest.mark.parametrize("version", range(1, 6))
def test_who_may_not_describe_the_cluster_is_shown_no_logs(version: int) -> None:
    with fencepost.Broker(acls=RIGHTS) as broker, closing(connected(broker.address)) as wire:
        told = log_dirs(wire, version, None)
    assert told.results == ()
    assert getattr(told, "error_code", None) == (
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED if version >= 3 else None
    )


# --- settings ----------------------------------------------------------------------------------------------

OWN = {"retention.ms": "5000", "cleanup.policy": "compact"}


@pytest.mark.parametrize("version", range(1, 5))
@pytest.mark.parametrize("is_asked", [False, True])
def test_settings_are_explained_to_those_who_ask(wire: KafkaSocket, version: int, is_asked: bool) -> None:
    """Since version 3 (KIP-569)."""
    named = {"resource_type": 2, "resource_name": TOPIC, "configuration_keys": ["segment.ms"]}
    asks = {"include_synonyms": False, "include_documentation": is_asked}
    ((config,),) = (
        found.configs for found in ask(wire, DESCRIBE_CONFIGS, version, resources=[named], **asks).results
    )
    text = "A segment is also full when a new batch is this much newer than its first one."
    assert getattr(config, "documentation", None) == (text if is_asked and version >= 3 else None)


TOPICS, BROKERS, GROUPS = 2, 4, 32


@pytest.fixture
def kept(wire: KafkaSocket) -> str:
    """A topic with settings of its own."""
    name = f"kept-{time.monotonic_ns()}"
    assert create(wire, name, *OWN.items()).error_code == NO_ERROR
    return name


def resource(name: str, *configs: tuple[str, str | None], kind: int = TOPICS) -> dict[str, Any]:
    entries = [{"name": config, "value": value, "config_operation": 0} for config, value in configs]
    return {"resource_type": kind, "resource_name": name, "configs": entries}


def alter(
    wire: KafkaSocket, version: int, *resources: Any, api: int = ALTER_CONFIGS, only: bool = False
) -> list[Any]:
    told = ask(wire, api, version, resources=resources, validate_only=only).responses
    return [(each.resource_name, each.error_code) for each in told]


def own_settings(wire: KafkaSocket, topic: str) -> dict[str, str | None]:
    """The settings that are the topic's own."""
    asked = {"resource_type": TOPICS, "resource_name": topic, "configuration_keys": None}
    (told,) = ask(wire, DESCRIBE_CONFIGS, 1, resources=[asked], include_synonyms=False).results
    return {each.name: each.value for each in told.configs if each.config_source == ConfigSource.TOPIC}


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize(
    "configs", [{}, OWN, {"retention.ms": "7"}, {"segment.bytes": "2097152", "compression.type": "producer"}]
)
def test_settings_that_are_not_named_are_defaults_again(
    wire: KafkaSocket, kept: str, version: int, configs: dict[str, str]
) -> None:
    asked = resource(kept, *configs.items())
    assert alter(wire, version, asked, only=True) == [(kept, NO_ERROR)]
    assert own_settings(wire, kept) == OWN
    assert alter(wire, version, asked) == [(kept, NO_ERROR)]
    assert own_settings(wire, kept) == configs


def test_a_new_topic_is_shown_with_the_settings_as_they_were_written(wire: KafkaSocket) -> None:
    """A description shows what they mean."""
    written = {"retention.bytes": "-5", "retention.ms": " 7 ", "cleanup.policy": "compact,compact"}
    topics = [new_topic("written", *written.items())]
    (made,) = ask(wire, CREATE_TOPICS, 7, topics=topics, timeout=9_000, validate_only=False).topics
    assert made.error_code == NO_ERROR
    shown = {each.name: each.value for each in made.configs if each.config_source == ConfigSource.TOPIC}
    assert shown == written
    meant = {"retention.bytes": "-5", "retention.ms": "7", "cleanup.policy": "compact"}
    assert own_settings(wire, "written") == meant


@pytest.mark.parametrize(
    ("configs", "error"),
    [
        ([("retention.ms", None)], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", "x"), ("cleanup.policy", None)], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", "x"), ("retention.ms", "1")], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", "x")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", "1"), ("nonsense", "1")], ErrorCode.INVALID_CONFIG),
        ([("min.compaction.lag.ms", "2"), ("max.compaction.lag.ms", "1")], ErrorCode.INVALID_CONFIG),
    ],
)
def test_settings_that_are_refused_replace_nothing(
    wire: KafkaSocket, kept: str, configs: list[tuple[str, str | None]], error: ErrorCode
) -> None:
    assert alter(wire, 2, resource(kept, *configs), resource("absent")) == [
        (kept, error),
        ("absent", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert own_settings(wire, kept) == OWN


@pytest.mark.parametrize(("api", "version"), [(ALTER_CONFIGS, 2), (INCREMENTAL_ALTER_CONFIGS, 1)])
def test_a_resource_that_is_refused_does_not_refuse_the_others(
    wire: KafkaSocket, kept: str, api: int, version: int
) -> None:
    """Kafka accepts settings of brokers and of groups, too. To a resource that AlterConfigs names twice it
    never answers.
    """
    named_once = resource(kept, ("retention.ms", "7"), ("cleanup.policy", "delete"))
    others = [
        resource(TOPIC, ("retention.ms", "1")),
        resource("", ("retention.ms", "1")),
        resource("1", ("message.max.bytes", "1"), kind=BROKERS),
        resource("g", ("consumer.session.timeout.ms", "50000"), kind=GROUPS),
        resource(TOPIC),
    ]
    error = ErrorCode.INVALID_REQUEST
    assert alter(wire, version, named_once, *others, api=api) == [
        (kept, NO_ERROR),
        *((each["resource_name"], error) for each in others),
    ]
    assert own_settings(wire, kept) == {"retention.ms": "7", "cleanup.policy": "delete"}
    assert own_settings(wire, TOPIC) == {}


# --- topics that are deleted -------------------------------------------------------------------------------


def delete(wire: KafkaSocket, *topics: tuple[str | None, UUID | None]) -> set[Any]:
    named = [{"name": name, "topic_id": topic_id} for name, topic_id in topics]
    told = ask(wire, DELETE_TOPICS, 6, topics=named, timeout=9_000)
    assert len(told.responses) == len({(each.name, each.topic_id) for each in told.responses})
    return {(each.name, each.topic_id, each.error_code) for each in told.responses}


@pytest.mark.parametrize("timeout", [0, -1])
def test_without_time_the_controller_does_nothing(wire: KafkaSocket, timeout: int) -> None:
    late = ErrorCode.REQUEST_TIMED_OUT
    made = ask(wire, CREATE_TOPICS, 7, topics=[new_topic("late")], timeout=timeout, validate_only=False)
    assert [(each.name, each.error_code) for each in made.topics] == [("late", late)]
    topics = [{"name": TOPIC, "topic_id": None}]
    deleted = ask(wire, DELETE_TOPICS, 6, topics=topics, timeout=timeout)
    assert [(each.name, each.error_code) for each in deleted.responses] == [(TOPIC, late)]
    topics = [{"name": TOPIC, "count": 3, "assignments": None}]
    grown = ask(wire, CREATE_PARTITIONS, 3, topics=topics, timeout=timeout, validate_only=False)
    assert [(each.name, each.error_code) for each in grown.results] == [(TOPIC, late)]
    names = [{"topic_id": None, "name": name} for name in (TOPIC, "late")]
    found = ask(wire, METADATA, 12, topics=names, allow_auto_topic_creation=False)
    assert sorted((each.name, len(each.partitions)) for each in found.topics) == [("late", 0), (TOPIC, 2)]


def test_a_topic_that_is_named_twice_is_not_deleted(wire: KafkaSocket) -> None:
    name, other = "twice", "another"
    twice, theirs = create(wire, name).topic_id, create(wire, other).topic_id
    wrong, unknown, ghost = ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_TOPIC_ID, UUID(int=7)
    assert delete(wire, (name, None), (name, None)) == {(name, None, wrong)}
    assert delete(wire, (None, twice), (None, twice)) == {(None, twice, wrong)}
    assert delete(wire, (name, None), (None, twice)) == {(name, twice, wrong)}
    assert delete(wire, (None, twice), (name, None), (None, twice)) == {
        (None, twice, wrong),
        (name, twice, wrong),
    }
    assert delete(wire, (name, twice)) == {(name, twice, wrong)}
    assert delete(wire, (None, None)) == {(None, None, wrong)}
    assert delete(wire, (None, ghost)) == {(None, ghost, unknown)}
    assert delete(wire, (None, ghost), (None, ghost)) == {(None, ghost, wrong)}
    assert delete(wire, (name, None), (name, None), (other, None)) == {
        (name, None, wrong),
        (other, theirs, NO_ERROR),
    }
    # What is named twice by name does not count, so that its id names it once.
    assert delete(wire, (name, None), (None, twice), (name, None)) == {
        (name, None, wrong),
        (name, twice, NO_ERROR),
    }


# --- groups ------------------------------------------------------------------------------------------------


def join(wire: KafkaSocket, version: int, group_id: str, member_id: str = "", **more: Any) -> Any:
    usual = {
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"m"}],
        "reason": None,
    }
    return ask(wire, JOIN_GROUP, version, group_id=group_id, member_id=member_id, **usual | more)


@pytest.mark.parametrize("version", range(10))
def test_a_refused_join_has_no_protocol(wire: KafkaSocket, version: int) -> None:
    refused = join(wire, version, f"no protocol {version}", "nobody")
    assert refused.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert refused.protocol_name == ("" if version < 7 else None)


@pytest.mark.parametrize("version", range(5, 10))
def test_a_static_leader_that_comes_back_assigns_nothing(wire: KafkaSocket, version: int) -> None:
    group_id = f"static {version}"
    first = join(wire, version, group_id, group_instance_id="i1")
    parts = [{"member_id": first.member_id, "assignment": b"a"}]
    usual = {"group_id": group_id, "generation_id": 1, "group_instance_id": "i1"}
    ask(wire, SYNC_GROUP, 4, **usual, member_id=first.member_id, assignments=parts)
    again = join(wire, version, group_id, group_instance_id="i1")
    assert again.member_id != first.member_id
    expected = (again.member_id, 1) if version >= 9 else (first.member_id, 0)
    assert (again.leader, len(again.members)) == expected
    synced = ask(wire, SYNC_GROUP, 4, **usual, member_id=again.member_id, assignments=[])
    assert synced.assignment == b"a"


@pytest.mark.parametrize("named", [{}, {"protocol_type": "consumer"}, {"protocol_name": "range"}], ids=str)
def test_a_sync_names_its_protocol(wire: KafkaSocket, named: dict[str, str]) -> None:
    """Since version 5, type and name of the protocol are mandatory
    (SyncGroupRequest.areMandatoryProtocolTypeAndNamePresent).
    """
    group_id = f"unnamed {named}"
    first = join(wire, 7, group_id, group_instance_id="i1")
    parts = [{"member_id": first.member_id, "assignment": b"a"}]
    usual = {
        "group_id": group_id,
        "generation_id": 1,
        "member_id": first.member_id,
        "group_instance_id": "i1",
        "assignments": parts,
    }
    refused = ask(wire, SYNC_GROUP, 5, **usual, **named)
    assert (refused.error_code, refused.assignment) == (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, b"")
    both = {"protocol_type": first.protocol_type, "protocol_name": first.protocol_name}
    assert ask(wire, SYNC_GROUP, 5, **usual, **both).assignment == b"a"


@pytest.mark.parametrize("version", range(2, 11))
def test_an_old_client_says_how_long_its_offsets_are_kept(version: int) -> None:
    part = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    values = {
        "group_id": "g",
        "member_id": "",
        "retention_time": 5_000,
        "topics": [{"name": TOPIC, "topic_id": ORDERS, "partitions": [part]}],
        "generation_id": -1,
        "generation_id_or_member_epoch": -1,
    }
    request = filled(load_request_schema(OFFSET_COMMIT, version), values)
    (asked,) = in_context(groups.offset_commit(request, version)).requests
    assert isinstance(asked, m.OffsetCommit)
    assert asked.retention_ms == (5_000 if version <= 4 else NO_RETENTION)


@pytest.mark.parametrize("version", range(2, 5))
@pytest.mark.parametrize("retention_ms", [-(2**63), 2**63 - 1])
def test_offsets_may_be_kept_for_longer_than_python_can_count(
    wire: KafkaSocket, version: int, retention_ms: int
) -> None:
    part = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    values = {
        "group_id": "kept",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "retention_time": retention_ms,
        "topics": [{"name": TOPIC, "partitions": [part]}],
    }
    request = bytes_of(load_request_schema(OFFSET_COMMIT, version), values)
    ((committed,),) = (topic.partitions for topic in wire.ask_bytes(OFFSET_COMMIT, version, request).topics)
    assert committed.error_code == NO_ERROR


@pytest.mark.parametrize("version", range(3))
def test_a_group_that_is_named_twice_is_deleted_once(wire: KafkaSocket, version: int) -> None:
    part = {
        "partition_index": 0,
        "committed_offset": 1,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    ask(
        wire,
        OFFSET_COMMIT,
        8,
        group_id="twice",
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=[{"name": TOPIC, "partitions": [part]}],
    )
    told = ask(wire, DELETE_GROUPS, version, groups_names=["twice", "absent", "twice", "absent"]).results
    assert [(each.group_id, each.error_code) for each in told] == [
        ("twice", NO_ERROR),
        ("absent", ErrorCode.GROUP_ID_NOT_FOUND),
    ]


def beat(wire: KafkaSocket, **values: Any) -> Any:
    """Join a group of the consumer protocol."""
    usual = {
        "group_id": "beating",
        "member_id": "m",
        "member_epoch": 0,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": 5_000,
        "subscribed_topic_names": [TOPIC],
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": [],
    }
    return ask(wire, CONSUMER_GROUP_HEARTBEAT, 1, **usual | values)


@pytest.mark.parametrize("name", ["group_id", "member_id", "instance_id", "rack_id"])
@pytest.mark.parametrize("blank", ["", " ", "\t\n \x1f"])
def test_the_name_of_a_member_is_not_blank(wire: KafkaSocket, name: str, blank: str) -> None:
    assert beat(wire, **{name: blank}).error_code == ErrorCode.INVALID_REQUEST
    visible = blank + "\u2003"  # a space, but none that Java's String.trim removes
    assert beat(wire, **{"group_id": f"beating {name} {blank}", name: visible}).error_code == NO_ERROR


@pytest.mark.parametrize("version", range(9, 11))
def test_a_refused_group_has_no_offsets(wire: KafkaSocket, version: int) -> None:
    joined = beat(wire, group_id="refused", member_id="m")
    topics = [{"name": TOPIC, "topic_id": topic_id(wire), "partition_indexes": [0]}]
    stale = {
        "group_id": "refused",
        "member_id": "m",
        "member_epoch": joined.member_epoch + 1,
        "topics": topics,
    }
    fetched = ask(wire, OFFSET_FETCH, version, groups=[stale], require_stable=False)
    (group,) = fetched.groups
    assert (group.error_code, group.topics) == (ErrorCode.STALE_MEMBER_EPOCH, ())


# --- writing -----------------------------------------------------------------------------------------------


def batch(count: int = 1, *, compression: Compression = Compression.NONE, **header: int) -> bytes:
    """A batch of records without keys."""
    records = b"".join(encode_record(None, b"value", None, 0, delta) for delta in range(count))
    usual = {
        "attributes": compression.value,
        "record_count": count,
        "last_offset_delta": count - 1,
        "base_timestamp": time.time_ns() // 1_000_000,
    }
    return bytes(build_batch(compress(records, compression), **usual | header))


def produce(wire: KafkaSocket, *parts: tuple[int, bytes], version: int = 12, topic: str = TOPIC) -> Any:
    """The results by partition."""
    data = [{"index": index, "records": records} for index, records in parts]
    told = ask(
        wire,
        PRODUCE,
        version,
        transactional_id=None,
        acks=-1,
        timeout=9_000,
        topic_data=[{"name": topic, "partition_data": data}],
    )
    (answered,) = told.responses
    results = {part.index: part for part in answered.partition_responses}
    assert len(results) == len(answered.partition_responses)
    return results


def test_a_producer_that_wants_no_answer_learns_that_its_topic_is_another_one(
    broker: fencepost.Broker,
) -> None:
    """It knows the topic by the id that it had before it was deleted."""
    with closing(connected(broker.address)) as admin, fencepost.Admin(broker.address) as ours:
        create(admin, "again")
        known, old = topic_id(admin), topic_id(admin, "again")
        ours.delete_topic("again")
        create(admin, "again")
        with closing(connected(broker.address)) as wire:
            data = [{"index": 1, "records": batch()}]
            sent = [{"topic_id": each, "partition_data": data} for each in (old, known)]
            with pytest.raises(EOFError):
                ask(wire, PRODUCE, 13, transactional_id=None, acks=0, timeout=9_000, topic_data=sent)
        assert produce(admin, (1, batch()))[1].base_offset >= 1, "the known topic got its records"


def test_zstd_is_written_from_version_7_on_and_read_in_all(wire: KafkaSocket) -> None:
    packed = batch(compression=Compression.ZSTD)
    refused = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    create(wire, "zstd")
    for version in (3, 6):
        assert produce(wire, (0, packed), version=version, topic="zstd")[0].error_code == refused
        unknown = produce(wire, (0, packed), version=version, topic="nowhere")[0].error_code
        assert unknown == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    results = produce(wire, (0, packed), (1, batch()), version=6)
    assert [results[index].error_code for index in (0, 1)] == [refused, NO_ERROR]
    assert produce(wire, (0, packed), version=7, topic="zstd")[0].error_code == NO_ERROR
    for version in (4, 9, 10):
        ((part,),) = (topic.partitions for topic in fetch(wire, version, topic="zstd").responses)
        assert (part.error_code, len(part.records)) == (NO_ERROR, len(packed))


@pytest.mark.parametrize("base_offset", [1, -1, 2**62])
def test_a_batch_begins_at_offset_0(wire: KafkaSocket, base_offset: int) -> None:
    assert produce(wire, (0, batch(base_offset=base_offset)))[0].error_code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("version", [3, 9, 12])
def test_the_last_entry_of_a_partition_counts(wire: KafkaSocket, version: int) -> None:
    name = f"doubled {version}".replace(" ", "-")
    create(wire, name)
    control = batch(attributes=CONTROL_BIT)
    assert produce(wire, (0, batch()), (0, batch(2)), topic=name, version=version)[0].base_offset == 0
    assert produce(wire, (0, control), (0, batch(3)), topic=name, version=version)[0].base_offset == 2
    refused = produce(wire, (0, batch()), (0, control), topic=name, version=version)[0]
    assert refused.error_code == ErrorCode.INVALID_RECORD
    assert produce(wire, (0, batch()), topic=name, version=version)[0].base_offset == 5
    corrupt = produce(wire, (0, b"x" * 80), (0, batch()), topic=name, version=version)[0]
    assert corrupt.error_code == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("version", [3, 9, 12])
@pytest.mark.parametrize("wrong", [b"", batch() * 2], ids=["no batch", "two batches"])
def test_an_entry_that_is_not_one_batch_refuses_its_partition(
    wire: KafkaSocket, version: int, wrong: bytes
) -> None:
    end = produce(wire, (0, batch()), version=version)[0].base_offset + 1
    for entries in ([wrong, batch()], [batch(), wrong]):
        results = produce(wire, *((0, entry) for entry in entries), (1, batch()), version=version)
        assert (results[0].error_code, results[0].base_offset) == (ErrorCode.INVALID_RECORD, -1)
        assert results[1].error_code == NO_ERROR
    assert produce(wire, (0, batch()), version=version)[0].base_offset == end  # nothing was appended


def test_results_tell_where_the_log_starts(wire: KafkaSocket) -> None:
    create(wire, "start")
    produce(wire, (0, batch(5)), topic="start")
    part = {"partition_index": 0, "offset": 3}
    ask(wire, DELETE_RECORDS, 2, topics=[{"name": "start", "partitions": [part]}], timeout=9_000)
    first = batch(producer_id=7_000, producer_epoch=0, base_sequence=0)
    gap = batch(producer_id=7_000, producer_epoch=0, base_sequence=9)
    torn = batch()[:-1] + b"?"
    steps: list[tuple[bytes, ErrorCode, int]] = [
        (first, NO_ERROR, 3),
        (first, NO_ERROR, 3),
        (gap, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 3),
        (batch(attributes=CONTROL_BIT), ErrorCode.INVALID_RECORD, 3),
        (batch(base_timestamp=2**50), ErrorCode.INVALID_TIMESTAMP, 3),
        (torn, ErrorCode.CORRUPT_MESSAGE, -1),
        (batch(200_000), ErrorCode.MESSAGE_TOO_LARGE, -1),
        (b"", ErrorCode.INVALID_RECORD, -1),
    ]
    for records, error, log_start_offset in steps:
        result = produce(wire, (0, records), topic="start")[0]
        assert (result.error_code, result.log_start_offset) == (error, log_start_offset)


def test_a_retry_is_told_the_time_of_its_batch(wire: KafkaSocket) -> None:
    """Kafka answers so whether or not it is a LogAppendTime (UnifiedLog.append)."""
    create(wire, "retried")
    sent_ms = 1_000_000_000_000
    usual: Any = {"producer_id": 7_001, "producer_epoch": 0, "base_timestamp": sent_ms}
    first = batch(2, base_sequence=0, max_timestamp=sent_ms + 5, **usual)
    next_one = batch(2, base_sequence=2, max_timestamp=sent_ms + 9, **usual)
    gap = batch(2, base_sequence=9, **usual)
    times = [produce(wire, (0, each), topic="retried")[0].log_append_time for each in (first, next_one, gap)]
    assert times == [None, None, None]
    again = produce(wire, (0, first), topic="retried")[0]
    assert (again.base_offset, again.log_append_time.timestamp()) == (0, (sent_ms + 5) / 1_000)


def test_the_time_of_a_record_is_that_of_its_producer(wire: KafkaSocket) -> None:
    """The broker clears the bit of LogAppendTime, and keeps those without a meaning."""
    create(wire, "bits")
    for attributes in (0x08, 0x80, 0x108):
        assert produce(wire, (0, batch(attributes=attributes)), topic="bits")[0].error_code == NO_ERROR
    ((part,),) = (topic.partitions for topic in fetch(wire, 12, topic="bits").responses)
    stored = [header for at, header in walk(part.records) if checksum_matches(part.records, at, header)]
    assert [header.attributes for header in stored] == [0, 0x80, 0x100]


@pytest.mark.parametrize(
    ("name", "error"),
    [("absent", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), ("a/b", ErrorCode.INVALID_TOPIC_EXCEPTION)],
)
def test_a_topic_that_is_not_there_has_no_producers(wire: KafkaSocket, name: str, error: ErrorCode) -> None:
    told = ask(wire, DESCRIBE_PRODUCERS, 0, topics=[{"name": name, "partition_indexes": [0]}])
    assert [part.error_code for topic in told.topics for part in topic.partitions] == [error]


# --- reading -----------------------------------------------------------------------------------------------

UNKNOWN = ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize("level", [2, -1])
@pytest.mark.parametrize(("version", "parts"), [(4, [UNKNOWN]), (12, [UNKNOWN]), (17, [])])
def test_there_are_two_isolation_levels(
    wire: KafkaSocket, level: int, version: int, parts: list[ErrorCode]
) -> None:
    fetched = fetch(wire, version, isolation_level=level)
    assert version < 7 or fetched.error_code == UNKNOWN
    assert [part.error_code for topic in fetched.responses for part in topic.partitions] == parts
    part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": 0}
    listed = ask(
        wire,
        LIST_OFFSETS,
        version // 2,
        replica_id=-1,
        isolation_level=level,
        topics=[{"name": TOPIC, "partitions": [part]}],
    )
    assert [part.error_code for topic in listed.topics for part in topic.partitions] == [UNKNOWN]


@pytest.mark.parametrize("version", range(1, 12))
def test_a_partition_whose_offset_is_asked_for_twice_gets_none(wire: KafkaSocket, version: int) -> None:
    def asked(partition: int, timestamp: int) -> dict[str, int]:
        return {"partition_index": partition, "current_leader_epoch": -1, "timestamp": timestamp}

    latest, earliest = -1, -2
    topics = [
        {"name": TOPIC, "partitions": [asked(0, latest), asked(1, earliest)]},
        {"name": TOPIC, "partitions": [asked(0, latest)]},
    ]
    told = ask(wire, LIST_OFFSETS, version, replica_id=-1, isolation_level=0, timeout=1_000, topics=topics)
    (topic,) = told.topics
    assert {part.partition_index: (part.error_code, part.offset) for part in topic.partitions} == {
        0: (ErrorCode.INVALID_REQUEST, -1),
        1: (NO_ERROR, 0),
    }
    assert len(topic.partitions) == 2


@pytest.mark.parametrize("version", range(3))
def test_the_last_offset_before_which_records_are_deleted_counts(wire: KafkaSocket, version: int) -> None:
    """That of another entry for the partition may be higher, or beyond the end of the log."""
    name = f"deleted-{version}"
    create(wire, name)
    produce(wire, (0, batch(5)), topic=name)
    entries = [{"partition_index": 0, "offset": offset} for offset in (3, 99, 2)]
    told = ask(wire, DELETE_RECORDS, version, topics=[{"name": name, "partitions": entries}], timeout=9_000)
    (topic,) = told.topics
    assert [(part.error_code, part.low_watermark) for part in topic.partitions] == [(NO_ERROR, 2)]


def fetch(wire: KafkaSocket, version: int, topic: str = TOPIC, partition: int = 0, **more: Any) -> Any:
    """Read a partition of a topic."""
    part = {
        "partition": partition,
        "current_leader_epoch": -1,
        "fetch_offset": 0,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 1 << 20,
    }
    usual = {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": topic, "topic_id": topic_id(wire, topic), "partitions": [part]}],
        "forgotten_topics_data": (),
        "rack_id": "",
    }
    return ask(wire, FETCH, version, **usual | more)


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("version", range(4, 18))
def test_null_in_place_of_aborted_transactions_is_an_answer_of_a_leader(
    wire: KafkaSocket, version: int, level: int
) -> None:
    """Null is for readers of uncommitted records, and for errors of a partition's leader."""

    def aborted(**asked: Any) -> tuple[ErrorCode, Any]:
        (topic,) = fetch(wire, version, isolation_level=level, **asked).responses
        (part,) = topic.partitions
        return part.error_code, part.aborted_transactions

    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert aborted(partition=9) == (unknown, ())
    assert aborted(topic="ghost") == (ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else unknown, ())
    assert aborted() == (NO_ERROR, () if level else None)


@pytest.mark.parametrize("version", [4, 7, 11])
def test_an_unknown_special_timestamp_is_refused_before_the_partition_is_looked_up(
    wire: KafkaSocket, version: int
) -> None:
    later = -7
    asked = [
        {"partition_index": 0, "current_leader_epoch": 5, "timestamp": later},
        {"partition_index": 9, "current_leader_epoch": -1, "timestamp": later},
        {"partition_index": 8, "current_leader_epoch": -1, "timestamp": -1},
    ]
    topics = [{"name": TOPIC, "partitions": asked}]
    told = ask(wire, LIST_OFFSETS, version, replica_id=-1, isolation_level=0, timeout=1_000, topics=topics)
    assert {part.partition_index: part.error_code for part in told.topics[0].partitions} == {
        0: ErrorCode.UNSUPPORTED_VERSION,
        9: ErrorCode.UNSUPPORTED_VERSION,
        8: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_a_transactional_id_that_is_not_described_has_zeros(
    broker: fencepost.Broker, wire: KafkaSocket
) -> None:
    """Kafka leaves the fields at the defaults of its schema. kio does not read such a timestamp."""
    with fencepost.Producer(broker.address, transactional_id="present") as producer:
        producer.init_transactions()  # the coordinator is there
    frame = struct.pack(">hhih", DESCRIBE_TRANSACTIONS, 0, 7, -1) + b"\0" + b"\3\7absent\1\0"
    described = wire.exchange(frame)
    nothing = b"\1" + struct.pack(">iqqh", 0, 0, 0, 0) + b"\1\0"  # no state, times, producer, no topics
    not_found = struct.pack(">h", ErrorCode.TRANSACTIONAL_ID_NOT_FOUND) + b"\7absent" + nothing
    invalid = struct.pack(">h", ErrorCode.INVALID_REQUEST) + b"\1" + nothing
    header = struct.pack(">i", 7) + b"\0" + struct.pack(">i", 0)
    assert described == header + b"\3" + not_found + invalid + b"\0"
