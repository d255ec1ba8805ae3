"""Where a broker listens and keeps its logs, as DescribeConfigs shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost.broker.access.session import AccessSettings
from fencepost.broker.embedded import Broker
from fencepost.broker.listeners import shown_listener
from fencepost.client.shells.sync import Admin
from fencepost.protocol import messages as m
from fencepost.protocol.scram import Users
from fencepost.protocol.terms import ASKED_NODE, ConfigSource, ConfigType
from tests.broker.requests import body_of
from tests.broker.wire import connecting

NAMES = ("listeners", "advertised.listeners", "log.dirs")


@pytest.mark.parametrize(
    ("tls", "users", "security"),
    [
        (None, None, "PLAINTEXT"),
        ("cert.pem", None, "SSL"),
        (None, Users(credentials={}, decoy_key=b""), "SASL_PLAINTEXT"),
        ("cert.pem", Users(credentials={}, decoy_key=b""), "SASL_SSL"),
    ],
)
def test_an_address_has_the_form_that_kafka_gives_it(
    tls: str | None, users: Users | None, security: str
) -> None:
    access = AccessSettings(tls_cert=tls, tls_key=tls, users=users)
    assert shown_listener("broker.example", 9092, access) == f"{security}://broker.example:9092"
    assert shown_listener("::1", 9092, access) == f"{security}://[::1]:9092"


def places_of(broker: Broker) -> dict[str, m.DescribedConfig]:
    with Admin(broker.address) as admin:
        found = {each.name: each for each in admin.describe_broker_configs(1)}
    return {name: found[name] for name in NAMES}


def test_a_broker_says_where_it_listens_and_what_it_keeps_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Apache Kafka 4.3.1 does: what is set in server.properties, and null without a value."""
    monkeypatch.chdir(tmp_path)
    with Broker("data") as broker:
        places = places_of(broker)
        assert {each.config_type for each in places.values()} == {ConfigType.LIST}
        assert all(each.is_read_only for each in places.values())
        for name, value in [("listeners", f"PLAINTEXT://{broker.address}"), ("log.dirs", f"{tmp_path}/data")]:
            assert (places[name].value, places[name].source) == (value, ConfigSource.BROKER)
            assert [each.value for each in places[name].synonyms] == [value]
        advertised = places["advertised.listeners"]
        assert (advertised.value, advertised.source) == (None, ConfigSource.DEFAULT)
        assert advertised.synonyms == ()


@pytest.mark.trio
async def test_a_broker_shows_the_address_that_it_advertises() -> None:
    with Broker(advertised_listener="broker.example:9092") as broker:
        async with connecting(("127.0.0.1", broker.port)) as wires:
            reply = await (await wires.open()).ask(m.DescribeConfigs(topics=(), node_id=ASKED_NODE))
    found = {each.name: each.value for each in body_of(reply, m.DescribeConfigsReply).node}
    assert found["advertised.listeners"] == "PLAINTEXT://broker.example:9092"
    assert found["listeners"] == f"PLAINTEXT://127.0.0.1:{broker.port}"


def test_logs_in_memory_have_no_directory() -> None:
    with Broker() as broker:
        assert places_of(broker)["log.dirs"].value == "memory"
