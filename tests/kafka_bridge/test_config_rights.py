"""The rights on settings that are not those of a topic: which are needed, and what is answered with them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, contextmanager
from itertools import product
from typing import Any, Final

import pytest

import fencepost
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from tests.kafka_bridge.kafka_socket import KafkaSocket, connected
from tests.kafka_bridge.test_odd_requests import (
    ALTER_CONFIGS,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    ask,
)

TOPIC, BROKER, LOGGERS, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE = 0, 1
INVALID, CLUSTER_DENIED = ErrorCode.INVALID_REQUEST, ErrorCode.CLUSTER_AUTHORIZATION_FAILED
GROUP_DENIED, TOPIC_DENIED = ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED
ON_CLUSTER, ON_GROUP, ON_TOPIC = "cluster = true", 'group = "g"', 'topic = "*"'
SOME: Final = {"name": "log.cleaner.threads", "value": "1", "config_operation": SET}
NONE_SET: Final = {"name": "leader.replication.throttled.rate", "value": None, "config_operation": DELETE}


@contextmanager
def allowed(*rights: str) -> Generator[KafkaSocket]:
    """A connection of someone with exactly these rights, such as `AlterConfigs group = "g"`."""
    entries: list[str] = []
    for right in rights:
        operation, _, resource = right.partition(" ")
        entries.append(f'[[acl]]\nprincipal = "User:ANONYMOUS"\n{resource}\nallow = ["{operation}"]\n')
    with fencepost.Broker(acls="\n".join(entries)) as broker, closing(connected(broker.address)) as wire:
        yield wire


def describe(wire: KafkaSocket, kind: int, name: str) -> int:
    named = {"resource_type": kind, "resource_name": name, "configuration_keys": ["log.dirs"]}
    return ask(wire, DESCRIBE_CONFIGS, 1, resources=[named], include_synonyms=False).results[0].error_code


def alter(
    wire: KafkaSocket,
    kind: int,
    name: str,
    *configs: Any,
    api: int = INCREMENTAL_ALTER_CONFIGS,
    validate_only: bool = False,
) -> int:
    named = {"resource_type": kind, "resource_name": name, "configs": configs}
    version = 2 if api == ALTER_CONFIGS else 1
    return ask(wire, api, version, resources=[named], validate_only=validate_only).responses[0].error_code


OTHER_RIGHTS: Final = (
    f"DescribeConfigs {ON_TOPIC}",
    f"AlterConfigs {ON_TOPIC}",
    f"Alter {ON_CLUSTER}",
    f"ClusterAction {ON_CLUSTER}",
    f"Read {ON_GROUP}",
)
RESOURCES: Final = (
    (BROKER, "1", ON_CLUSTER, CLUSTER_DENIED),
    (BROKER, "", ON_CLUSTER, CLUSTER_DENIED),
    (LOGGERS, "1", ON_CLUSTER, CLUSTER_DENIED),
    (CLIENT_METRICS, "m", ON_CLUSTER, CLUSTER_DENIED),
    (GROUP, "g", ON_GROUP, GROUP_DENIED),
)


@pytest.mark.parametrize(("kind", "name", "where", "denied"), RESOURCES)
def test_settings_are_described_to_whoever_may_describe_them(
    kind: int, name: str, where: str, denied: ErrorCode
) -> None:
    with allowed(f"DescribeConfigs {where}") as wire:
        assert describe(wire, kind, name) == NO_ERROR
        assert alter(wire, kind, name) == denied
    with allowed(f"AlterConfigs {where}") as wire:
        assert describe(wire, kind, name) == NO_ERROR, "AlterConfigs includes DescribeConfigs"
    others = [f"DescribeConfigs {each}" for each in (ON_CLUSTER, ON_GROUP) if each != where]
    with allowed(*OTHER_RIGHTS, *others) as wire:
        assert describe(wire, kind, name) == denied


@pytest.mark.parametrize(("kind", "name", "where", "denied"), RESOURCES)
def test_a_right_to_change_settings_is_asked_for_before_their_values(
    kind: int, name: str, where: str, denied: ErrorCode
) -> None:
    apis = [INCREMENTAL_ALTER_CONFIGS] if kind == LOGGERS else [INCREMENTAL_ALTER_CONFIGS, ALTER_CONFIGS]
    requests = list(product(apis, (False, True)))
    refused = ErrorCode.INVALID_CONFIG if kind == LOGGERS else INVALID
    others = [f"AlterConfigs {each}" for each in (ON_CLUSTER, ON_GROUP) if each != where]
    with allowed(*OTHER_RIGHTS, *others, f"DescribeConfigs {where}") as wire:
        for api, validate_only in requests:
            assert alter(wire, kind, name, api=api, validate_only=validate_only) == denied
            assert alter(wire, kind, name, SOME, api=api, validate_only=validate_only) == denied
    with allowed(f"AlterConfigs {where}") as wire:
        for api, validate_only in requests:
            assert alter(wire, kind, name, SOME, api=api, validate_only=validate_only) == refused


@pytest.mark.parametrize(("kind", "name", "where", "denied"), RESOURCES)
def test_a_setting_that_nobody_has_set_is_deleted_by_whoever_may_change_it(
    kind: int, name: str, where: str, denied: ErrorCode
) -> None:
    with allowed(f"DescribeConfigs {where}") as wire:
        assert alter(wire, kind, name, NONE_SET) == denied
    with allowed(f"AlterConfigs {where}") as wire:
        unset = ErrorCode.INVALID_CONFIG if kind == LOGGERS else NO_ERROR  # no logger has this name
        assert alter(wire, kind, name, NONE_SET) == unset


def test_what_no_resource_can_have_is_refused_before_rights() -> None:
    without = {**SOME, "value": None}
    with allowed() as wire:
        for kind in (TOPIC, BROKER, LOGGERS, CLIENT_METRICS, GROUP):
            assert alter(wire, kind, "1", without) == INVALID
            assert alter(wire, kind, "1", without, api=ALTER_CONFIGS) == INVALID
            assert alter(wire, kind, "1", NONE_SET, NONE_SET) == INVALID


def test_a_broker_is_named_by_a_number_before_rights() -> None:
    with allowed() as wire:
        assert alter(wire, BROKER, "one") == INVALID
        assert describe(wire, BROKER, "one") == CLUSTER_DENIED, "to describe it, rights come first"
        assert alter(wire, 3, "x") == describe(wire, 3, "x") == INVALID


def test_the_older_request_knows_no_loggers() -> None:
    with allowed() as wire:
        assert alter(wire, LOGGERS, "1", api=ALTER_CONFIGS) == INVALID
        assert alter(wire, LOGGERS, "1") == CLUSTER_DENIED


def test_a_resource_without_a_name_has_no_settings() -> None:
    with allowed(
        f"AlterConfigs {ON_CLUSTER}", 'AlterConfigs group = "*"', f"AlterConfigs {ON_TOPIC}"
    ) as wire:
        for kind in (TOPIC, LOGGERS, CLIENT_METRICS, GROUP):
            assert alter(wire, kind, "") == INVALID
            described = ErrorCode.INVALID_TOPIC_EXCEPTION if kind == TOPIC else INVALID
            assert describe(wire, kind, "") == described
        assert alter(wire, LOGGERS, "2") == describe(wire, LOGGERS, "2") == INVALID, "of another broker"
    with allowed() as wire:
        assert alter(wire, TOPIC, "") == TOPIC_DENIED
