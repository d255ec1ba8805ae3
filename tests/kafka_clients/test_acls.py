"""DescribeAcls with filters that are drawn: Apache Kafka's answers and ours."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from random import Random
from typing import Any, Final

import pytest
from kio.index import load_request_schema

import fencepost
from tests.kafka_bridge.confluent import ADMIN
from tests.kafka_bridge.kafka_socket import connected
from tests.kafka_bridge.libraries import PATIENCE_S
from tests.kafka_bridge.samples import bytes_of
from tests.kafka_bridge.test_acls import ACLS, DESCRIBE_ACLS, EVERYTHING, of_acl
from tests.kafka_clients import apache_kafka

AUTHORIZER: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
CLUSTER: Final = "kafka-cluster"
RESOURCE, PATTERN = ADMIN.ResourceType, ADMIN.ResourcePatternType
OPERATION, PERMISSION = ADMIN.AclOperation, ADMIN.AclPermissionType
# Those of ACLS.
BINDINGS: Final = (
    (RESOURCE.TOPIC, "orders", PATTERN.LITERAL, "User:alice", "*", OPERATION.READ, PERMISSION.ALLOW),
    (RESOURCE.TOPIC, "*", PATTERN.LITERAL, "User:bob", "*", OPERATION.DESCRIBE, PERMISSION.DENY),
    (RESOURCE.TOPIC, "ord", PATTERN.PREFIXED, "User:*", "*", OPERATION.ALL, PERMISSION.ALLOW),
    (RESOURCE.GROUP, "readers", PATTERN.LITERAL, "User:alice", "*", OPERATION.READ, PERMISSION.ALLOW),
    (
        RESOURCE.BROKER,
        "kafka-cluster",
        PATTERN.LITERAL,
        "User:bob",
        "*",
        OPERATION.DESCRIBE,
        PERMISSION.ALLOW,
    ),
)
VALUES: Final = {
    "resource_type_filter": (-1, *range(1, 9)),
    "resource_name_filter": (None, "orders", "ord", "orde", "or", "*", "", "readers", CLUSTER),
    "pattern_type_filter": (-1, *range(1, 6)),
    "principal_filter": (None, "User:alice", "User:bob", "User:*", "alice", ""),
    "host_filter": (None, "*", "127.0.0.1"),
    "operation": (-1, *range(1, 16)),
    "permission_type": (-1, *range(1, 5)),
}


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[str, str]]:
    """Those of Apache Kafka and of our broker, with the same ACLs."""
    with (
        apache_kafka.running(tmp_path_factory.mktemp("kafka"), brokers=1, more=AUTHORIZER) as kafka,
        fencepost.Broker(acls=ACLS) as ours,
    ):
        admin = ADMIN.AdminClient({"bootstrap.servers": kafka.address, "log_level": 0})
        for created in admin.create_acls([ADMIN.AclBinding(*each) for each in BINDINGS]).values():
            created.result(PATIENCE_S)
        yield kafka.address, ours.address


def acls_in(reply: Any) -> list[Any]:
    return sorted(
        (each.resource_type, each.resource_name, each.pattern_type, acl.host, *of_acl(acl))
        for each in reply.resources
        for acl in each.acls
    )


def test_both_list_the_same_acls(addresses: tuple[str, str]) -> None:
    random, listed = Random(1), 0
    with closing(connected(addresses[0])) as kafka, closing(connected(addresses[1])) as ours:
        for _ in range(2_000):
            # Few fields at once, since a filter of many lists nothing.
            narrowed = random.sample(sorted(VALUES), k=random.randrange(4))
            asked = {**EVERYTHING, **{name: random.choice(VALUES[name]) for name in narrowed}}
            version = random.randint(1, 3)
            request = bytes_of(load_request_schema(DESCRIBE_ACLS, version), asked)
            replies = [wire.ask_bytes(DESCRIBE_ACLS, version, request) for wire in (kafka, ours)]
            assert acls_in(replies[0]) == acls_in(replies[1]), asked
            assert replies[0].error_code == replies[1].error_code
            listed += bool(acls_in(replies[0]))
    assert listed > 500
