"""A user who has only some rights sends each request in every version: Apache Kafka's answers and ours."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import attrs
import pytest
from kio.index import load_request_schema

import fencepost
from fencepost.protocol.errors import NO_ERROR
from fencepost.protocol.scram import plain_message
from tests.kafka_bridge.confluent import ADMIN
from tests.kafka_bridge.libraries import PATIENCE_S, POLLS_MAX
from tests.kafka_bridge.samples import bytes_of
from tests.kafka_bridge.test_first_versions import KafkaSocket, connected
from tests.kafka_clients import apache_kafka
from tests.kafka_clients.apache_kafka import PASSWORD, SETTINGS, USER
from tests.kafka_clients.test_acls import AUTHORIZER, OPERATION, PATTERN, PERMISSION, RESOURCE
from tests.kafka_clients.test_answers import ALIKE, REQUESTS, TOPIC, Peer, comparable, prepared, served

SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
OVERRIDE: Final = {name: SETTINGS[name] for name in ALIKE}
CLUSTER: Final = "kafka-cluster"
RESOURCES: Final = {
    "topic": RESOURCE.TOPIC,
    "group": RESOURCE.GROUP,
    "transactional_id": RESOURCE.TRANSACTIONAL_ID,
    "cluster": RESOURCE.BROKER,
}


class Right(NamedTuple):
    """An entry of an ACL file."""

    resource: str
    name: str
    operation: str
    allows: bool = True

    @property
    def toml(self) -> str:
        name = "cluster = true" if self.resource == "cluster" else f'{self.resource} = "{self.name}"'
        verb = "allow" if self.allows else "deny"
        return f'[[acl]]\nprincipal = "User:{USER}"\n{name}\n{verb} = ["{self.operation}"]\n'

    @property
    def binding(self) -> Any:
        operation = "".join(f"_{each}" if each.isupper() else each for each in self.operation).strip("_")
        return ADMIN.AclBinding(
            RESOURCES[self.resource],
            self.name,
            PATTERN.LITERAL,
            f"User:{USER}",
            "*",
            OPERATION[operation.upper()],
            PERMISSION.ALLOW if self.allows else PERMISSION.DENY,
        )


def rights(text: str) -> Sequence[Right]:
    """From words such as "Read topic *, no Write topic orders"."""
    found: list[Right] = []
    for each in text.split(", ") if text else ():
        operation, resource, name, *_ = [*each.removeprefix("no ").split(), CLUSTER]
        found.append(Right(resource, name, operation, not each.startswith("no ")))
    return found


OF_BOTH: Final = ("Describe", "Create", "Alter", "DescribeConfigs", "AlterConfigs")
EVERYTHING: Final = "All topic *, All group *, All transactional_id *"
HELD: Final = (
    "",
    *(f"{operation} topic {TOPIC}" for operation in (*OF_BOTH, "Read", "Write", "Delete", "All")),
    *(f"{operation} topic *" for operation in ("Read", "Write")),
    *(f"{operation} group *" for operation in ("Describe", "Read", "Delete")),
    *(f"{operation} transactional_id *" for operation in ("Describe", "Write")),
    *(f"{operation} cluster" for operation in (*OF_BOTH, "IdempotentWrite", "ClusterAction")),
    *(f"All topic *, no {operation} topic {TOPIC}" for operation in ("Describe", "Read", "Write")),
    "Write topic *, Write transactional_id *",
    f"Read topic {TOPIC}, Read group *, Write transactional_id *",
    f"Describe topic *, Delete topic {TOPIC}",
    EVERYTHING,
    f"{EVERYTHING}, Describe cluster, Alter cluster",
)
"""What the user may do, case by case."""
OF_LEADERS: Final = {"leader_epoch", "end_offset"}
"""Fields that each restart of our broker changes."""


def differs(name: str, held: str) -> bool:
    """Whether the answers differ, as docs/fidelity.md says."""
    return (
        (name == "offset_for_leader_epoch" and held.startswith("ClusterAction"))
        or (name == "offset_delete" and held == "Delete group *")
        or (name == "delete_topics" and "topic *" in held and "All" not in held)
        or (name == "list_partition_reassignments" and "Describe cluster" not in held)
    )


def logged_in(address: str) -> KafkaSocket:
    wire = connected(address)
    assert wire.ask(SASL_HANDSHAKE, 1, mechanism="PLAIN").error_code == NO_ERROR
    assert wire.ask(SASL_AUTHENTICATE, 1, auth_bytes=plain_message(USER, PASSWORD)).error_code == NO_ERROR
    return wire


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[Peer, Peer, Path, Any]]:
    """Apache Kafka and Fencepost's directory, with the same topics, and who may change Kafka's ACLs."""
    data = tmp_path_factory.mktemp("ours")
    with apache_kafka.running(tmp_path_factory.mktemp("kafka"), brokers=1, more=AUTHORIZER) as kafka:
        with fencepost.Broker(data, override=OVERRIDE) as broker:
            ours = prepared(broker.address)
        admin = ADMIN.AdminClient({"bootstrap.servers": kafka.address, "log_level": 0})
        theirs = prepared(kafka.address)
        for peer in (theirs, ours):
            peer.wire.close()
        yield attrs.evolve(theirs, address=kafka.login_address), ours, data, admin


def grant(admin: Any, held: Sequence[Right]) -> None:
    """Give the user exactly these rights in Kafka."""
    all_of_them = ADMIN.AclBindingFilter(
        RESOURCE.ANY, None, PATTERN.ANY, None, None, OPERATION.ANY, PERMISSION.ANY
    )
    for deleted in admin.delete_acls([all_of_them]).values():
        deleted.result(PATIENCE_S)
    bindings = [right.binding for right in held]
    for created in admin.create_acls(bindings).values() if bindings else ():
        created.result(PATIENCE_S)
    for _ in range(POLLS_MAX):
        if set(admin.describe_acls(all_of_them).result(PATIENCE_S)) == set(bindings):
            return
    raise AssertionError("Kafka's authorizer has not heard of the rights")


@pytest.mark.parametrize("held", HELD)
def test_both_answer_alike(peers: tuple[Peer, Peer, Path, Any], held: str) -> None:
    kafka, ours, data, admin = peers
    grant(admin, rights(held))
    acls = "\n".join(right.toml for right in rights(held))
    different: list[str] = []
    with fencepost.Broker(data, override=OVERRIDE, users={USER: PASSWORD}, acls=acls) as broker:
        both = [
            attrs.evolve(peer, wire=logged_in(address))
            for peer, address in ((kafka, kafka.address), (ours, broker.address))
        ]
        for name in REQUESTS:
            api = served(name)
            for version in range(api.first, api.last + 1):
                told = [answer(peer, name, version) for peer in both]
                if told[0] != told[1] and not differs(name, held):
                    different.append(f"{name} {version}:\n  {told[0]}\n  {told[1]}")
        for peer in both:
            peer.wire.close()
    assert not different, "\n".join(different)


def answer(peer: Peer, name: str, version: int) -> Any:
    """What a broker answers to a valid request, without what it chooses."""
    key = served(name).key
    request = bytes_of(load_request_schema(key, version), peer.requests[name])
    return without_epochs(comparable(peer.wire.ask_bytes(key, version, request), peer))


def without_epochs(part: Any) -> Any:
    """A part of what is compared without OF_LEADERS."""
    if isinstance(part, frozenset):
        return frozenset(map(without_epochs, cast("frozenset[Any]", part)))
    if not isinstance(part, tuple):
        return part
    entries = cast("tuple[Any, ...]", part)
    return tuple(
        without_epochs(each) for each in entries if not (isinstance(each, tuple) and each[0] in OF_LEADERS)
    )
