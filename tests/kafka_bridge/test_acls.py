"""DescribeAcls of Kafka's clients: the ACLs of a broker, filtered as by Apache Kafka 4.3.1."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import pytest

import fencepost
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from tests.kafka_bridge.kafka_python import ERRORS, KAFKA
from tests.kafka_bridge.kafka_socket import KafkaSocket, connected
from tests.kafka_bridge.test_odd_requests import ask

DESCRIBE_ACLS: Final = 29
ACLS: Final = """
super_users = ["User:ANONYMOUS"]

[[acl]]
principal = "User:alice"
topic = "orders"
allow = ["Read"]

[[acl]]
principal = "User:bob"
topic = "*"
deny = ["Describe"]

[[acl]]
principal = "User:*"
topic_prefix = "ord"
allow = ["All"]

[[acl]]
principal = "User:alice"
group = "readers"
allow = ["Read"]

[[acl]]
principal = "User:bob"
cluster = true
allow = ["Describe"]
"""
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = 2, 3, 4, 5  # ResourceType
ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4  # PatternType
ALL, READ, DESCRIBE = 2, 3, 8  # AclOperation
DENY, ALLOW = 2, 3  # AclPermissionType
ORDERS = (TOPIC, "orders", LITERAL, "User:alice", READ, ALLOW)
EVERY_TOPIC = (TOPIC, "*", LITERAL, "User:bob", DESCRIBE, DENY)
ORD = (TOPIC, "ord", PREFIXED, "User:*", ALL, ALLOW)
READERS = (GROUP, "readers", LITERAL, "User:alice", READ, ALLOW)
OF_CLUSTER = (CLUSTER, "kafka-cluster", LITERAL, "User:bob", DESCRIBE, ALLOW)
EVERYTHING: Final[dict[str, Any]] = {
    "resource_type_filter": ANY,
    "resource_name_filter": None,
    "pattern_type_filter": ANY,
    "principal_filter": None,
    "host_filter": None,
    "operation": ANY,
    "permission_type": ANY,
}
ENUMS: Final = ("resource_type_filter", "pattern_type_filter", "operation", "permission_type")


def named(name: str, pattern_type: int) -> dict[str, Any]:
    return {"resource_name_filter": name, "pattern_type_filter": pattern_type}


FILTERED: Final[list[tuple[dict[str, Any], set[Any]]]] = [
    ({}, {ORDERS, EVERY_TOPIC, ORD, READERS, OF_CLUSTER}),
    ({"resource_type_filter": TOPIC}, {ORDERS, EVERY_TOPIC, ORD}),
    ({"resource_type_filter": GROUP}, {READERS}),
    ({"resource_type_filter": CLUSTER}, {OF_CLUSTER}),
    ({"resource_type_filter": TRANSACTIONAL_ID}, set()),
    ({"pattern_type_filter": MATCH}, {ORDERS, EVERY_TOPIC, ORD, READERS, OF_CLUSTER}),
    ({"pattern_type_filter": LITERAL}, {ORDERS, EVERY_TOPIC, READERS, OF_CLUSTER}),
    ({"pattern_type_filter": PREFIXED}, {ORD}),
    ({"operation": ALL}, {ORD}),
    ({"operation": READ}, {ORDERS, READERS}),
    ({"operation": DESCRIBE}, {EVERY_TOPIC, OF_CLUSTER}),
    ({"permission_type": DENY}, {EVERY_TOPIC}),
    ({"permission_type": ALLOW}, {ORDERS, ORD, READERS, OF_CLUSTER}),
    ({"principal_filter": "User:alice"}, {ORDERS, READERS}),
    ({"principal_filter": "User:*"}, {ORD}),
    ({"principal_filter": "alice"}, set()),
    ({"host_filter": "*"}, {ORDERS, EVERY_TOPIC, ORD, READERS, OF_CLUSTER}),
    ({"host_filter": "127.0.0.1"}, set()),
    (named("orders", ANY), {ORDERS}),
    (named("ord", ANY), {ORD}),
    (named("*", ANY), {EVERY_TOPIC}),
    (named("", ANY), set()),
    (named("orders", MATCH), {ORDERS, EVERY_TOPIC, ORD}),
    (named("orde", MATCH), {EVERY_TOPIC, ORD}),
    (named("*", MATCH), {EVERY_TOPIC}),
    (named("", MATCH), {EVERY_TOPIC}),
    (named("orders", LITERAL), {ORDERS}),
    (named("ord", LITERAL), set()),
    (named("ord", PREFIXED), {ORD}),
    (named("orders", PREFIXED), set()),
    *(({name: code}, set()) for name in ENUMS for code in (-1, 16)),
]
"""By filter: what Apache Kafka 4.3.1 lists with the same ACLs."""


def of_acl(acl: Any) -> tuple[Any, ...]:
    return acl.principal, acl.operation, acl.permission_type


@pytest.fixture(scope="module")
def guarded() -> Iterator[fencepost.Broker]:
    with fencepost.Broker(acls=ACLS) as broker:
        yield broker


@pytest.fixture
def wire(guarded: fencepost.Broker) -> Iterator[KafkaSocket]:
    with closing(connected(guarded.address)) as wire:
        yield wire


@pytest.mark.parametrize(("asked", "listed"), FILTERED)
def test_filters_are_kafkas(wire: KafkaSocket, asked: dict[str, Any], listed: set[Any]) -> None:
    for version in (1, 2, 3):
        reply = ask(wire, DESCRIBE_ACLS, version, **EVERYTHING | asked)
        assert reply.error_code == NO_ERROR
        found = [
            (each.resource_type, each.resource_name, each.pattern_type, *of_acl(acl))
            for each in reply.resources
            for acl in each.acls
        ]
        assert (set(found), len(found)) == (listed, len(listed))
        assert {acl.host for each in reply.resources for acl in each.acls} <= {"*"}


@pytest.mark.parametrize("name", ENUMS)
def test_unknown_elements_close_the_connection_as_in_kafka(wire: KafkaSocket, name: str) -> None:
    with pytest.raises(EOFError):
        ask(wire, DESCRIBE_ACLS, 3, **EVERYTHING | {name: 0})


def test_an_acl_is_listed_once() -> None:
    twice = '[[acl]]\nprincipal = ["User:a", "User:b"]\ntopic = "t"\nallow = ["Write", "Read"]\n' * 2
    with (
        fencepost.Broker(acls=f'super_users = ["User:ANONYMOUS"]\n{twice}') as broker,
        closing(connected(broker.address)) as wire,
    ):
        (topic,) = ask(wire, DESCRIBE_ACLS, 3, **EVERYTHING).resources
        assert [(acl.principal, acl.operation) for acl in topic.acls] == [
            ("User:a", 3), ("User:a", 4), ("User:b", 3), ("User:b", 4)
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("acls", "error"), [(None, ErrorCode.SECURITY_DISABLED), ("", ErrorCode.CLUSTER_AUTHORIZATION_FAILED)]
)
def test_a_library_is_told_why_it_gets_no_acls(acls: str | None, error: ErrorCode) -> None:
    every = KAFKA.admin.ACLFilter(
        principal=None,
        host="*",
        operation=KAFKA.admin.ACLOperation.ANY,
        permission_type=KAFKA.admin.ACLPermissionType.ANY,
        resource_pattern=KAFKA.admin.ResourcePatternFilter(
            KAFKA.admin.ResourceType.ANY, None, KAFKA.admin.ACLResourcePatternType.ANY
        ),
    )
    with fencepost.Broker(acls=acls) as broker:
        admin: Any = KAFKA.KafkaAdminClient(bootstrap_servers=broker.address)
        with closing(admin), pytest.raises(ERRORS.KafkaError) as raised:
            admin.describe_acls(every)
    assert (raised.value.errno, error.meaning in str(raised.value)) == (error, True)
