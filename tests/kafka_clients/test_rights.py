"""A user who has only some rights sends each request in every version: Apache Kafka's answers and ours."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import attrs
import pytest
from kio.index import load_request_schema

import fencepost
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.scram import plain_message
from tests.kafka_bridge.confluent import ADMIN
from tests.kafka_bridge.kafka_socket import KafkaSocket, connected
from tests.kafka_bridge.libraries import PATIENCE_S
from tests.kafka_bridge.samples import bytes_of
from tests.kafka_clients import apache_kafka
from tests.kafka_clients.apache_kafka import PASSWORD, SETTINGS, USER
from tests.kafka_clients.test_acls import AUTHORIZER, OPERATION, PATTERN, PERMISSION, RESOURCE
from tests.kafka_clients.test_answers import (
    ABSENT,
    ALIKE,
    GROUP,
    REQUESTS,
    TOPIC,
    Peer,
    comparable,
    prepared,
    served,
)

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
    *(
        f"{operation} group *"
        for operation in ("Describe", "Read", "Delete", "DescribeConfigs", "AlterConfigs")
    ),
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


BROKERS, LOGGERS, CLIENT_METRICS, GROUPS = 4, 8, 16, 32
SET, DELETE = 0, 1
RATE: Final = {"name": "leader.replication.throttled.rate", "value": None, "config_operation": DELETE}
HAVE_SETTINGS: Final = {
    f"{kind} {name!r}": {"resource_type": number, "resource_name": name}
    for kind, number, name in (
        ("broker", BROKERS, "1"),
        ("broker", BROKERS, ""),
        ("broker", BROKERS, "one"),
        ("loggers", LOGGERS, "1"),
        ("loggers", LOGGERS, ""),
        ("client metrics", CLIENT_METRICS, "m"),
        ("client metrics", CLIENT_METRICS, ""),
        ("group", GROUPS, GROUP),
        ("group", GROUPS, ""),
        ("nothing", 3, "x"),
        ("topic", 2, ""),
        ("topic", 2, ABSENT),
    )
}


def requests_of_settings() -> Mapping[str, Mapping[str, Any]]:
    """More requests about settings, by their API and what they ask: of resources that are not topics."""
    found: dict[str, Mapping[str, Any]] = {}
    shown = {"include_synonyms": False, "include_documentation": False}
    for which, resource in HAVE_SETTINGS.items():
        # Not the settings themselves: Kafka has 300 more, and loggers.
        described = {**resource, "configuration_keys": ["no.setting"]}
        found[f"describe_configs {which}"] = {"resources": [described], **shown}
        for what, configs in {
            "nothing": [],
            "what is not set": [RATE],
            "nothing twice": [RATE, RATE],
            "no value": [{**RATE, "config_operation": SET}],
        }.items():
            altered = {"resources": [{**resource, "configs": configs}], "validate_only": False}
            found[f"incremental_alter_configs {which} {what}"] = altered
            # Kafka does not replace the settings of all brokers, among which it has set one (KIP-966).
            if RATE not in configs and which != "broker ''":
                found[f"alter_configs {which} {what}"] = {**altered, "validate_only": True}
    return found


OF_SETTINGS: Final = requests_of_settings()


def known_error(name: str, held: str) -> tuple[ErrorCode, ErrorCode] | None:
    """The error that Kafka answers to a request and the one that we answer, as docs/fidelity.md says."""
    if name == "delete_topics" and "topic *" in held and "All" not in held:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return None


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
    until = time.monotonic() + PATIENCE_S  # Kafka's brokers hear of changes later than it answers
    while set(admin.describe_acls(all_of_them).result(PATIENCE_S)) != set(bindings):
        assert time.monotonic() < until, "Kafka's authorizer has not heard of the rights"


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
        for name in (*REQUESTS, *OF_SETTINGS):
            api, known = served(name), known_error(name, held)
            for version in range(api.first, api.last + 1):
                theirs, ours = (answer(peer, name, version) for peer in both)
                expected = theirs if known is None else with_error(theirs, *known)
                if expected != ours or (known is not None and expected == theirs):
                    different.append(f"{name} {version}:\n  {theirs}\n  {ours}")
        for peer in both:
            peer.wire.close()
    assert not different, "\n".join(different)


def test_beside_a_known_error_every_other_difference_counts() -> None:
    theirs, ours = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    answered = (("responses", frozenset({(("name", ABSENT), ("error_code", theirs)), ("name", TOPIC)})),)
    assert with_error(answered, theirs, ours) == (
        ("responses", frozenset({(("name", ABSENT), ("error_code", ours)), ("name", TOPIC)})),
    )


def answer(peer: Peer, name: str, version: int) -> Any:
    """What a broker answers to a valid request, without what it chooses."""
    key = served(name).key
    values = OF_SETTINGS[name] if name in OF_SETTINGS else peer.requests[name]
    request = bytes_of(load_request_schema(key, version), values)
    return without_epochs(comparable(peer.wire.ask_bytes(key, version, request), peer))


def with_error(part: Any, theirs: ErrorCode, ours: ErrorCode) -> Any:
    """A part of what is compared, with our error in the place of theirs and nothing else changed."""
    if isinstance(part, frozenset):
        return frozenset(with_error(each, theirs, ours) for each in cast("frozenset[Any]", part))
    if not isinstance(part, tuple):
        return part
    entries = cast("tuple[Any, ...]", part)
    if entries == ("error_code", theirs):
        return ("error_code", ours)
    return tuple(with_error(each, theirs, ours) for each in entries)


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
