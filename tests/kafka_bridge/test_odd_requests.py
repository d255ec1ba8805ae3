"""Requests that clients rarely send, or never, and the answers that Apache Kafka 4.3.1 gave to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields
from typing import Any

import pytest
from kio.index import load_request_schema

import fencepost
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from tests.kafka_bridge.conftest import IMPATIENT
from tests.kafka_bridge.samples import filled
from tests.kafka_bridge.test_first_versions import KafkaSocket, connected

JOIN_GROUP, API_VERSIONS = 11, 18
TOPIC, GROUP = "orders", "readers"


@pytest.fixture(scope="module")
def broker() -> Iterator[fencepost.Broker]:
    with fencepost.Broker(override=IMPATIENT) as broker:
        with fencepost.Admin(broker.address) as admin:
            admin.create_topic(TOPIC, 2)
            admin.list_consumer_group_offsets(GROUP)  # the coordinator of groups is there
        yield broker


@pytest.fixture
def wire(broker: fencepost.Broker) -> Iterator[KafkaSocket]:
    with closing(connected(broker.address)) as wire:
        yield wire


def ask(wire: KafkaSocket, api_key: int, version: int, **values: Any) -> Any:
    """Send a request of plain values; those of other versions are left out."""
    request = filled(load_request_schema(api_key, version), values)
    return wire.ask(
        api_key, version, **{field.name: getattr(request, field.name) for field in fields(request)}
    )


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
