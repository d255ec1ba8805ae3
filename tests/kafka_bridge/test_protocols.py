"""One port, two protocols: which are served, and which address clients are told."""

from __future__ import annotations

import socket

import pytest

import fencepost
from fencepost.broker.listeners import parsed_listener
from tests.cli.processes import fencepost as run
from tests.kafka_bridge.confluent import Confluent
from tests.kafka_bridge.libraries import Access

API_VERSIONS = bytes.fromhex("0000000a 0012 0000 00000001 0000")  # of a Kafka client without a name
OURS = bytes.fromhex("00000010 00000009 95 12 00 00 a0 90") + bytes(8)


def answered(address: str, frame: bytes) -> bytes:
    """What a broker answers to a frame before it waits for more, or closes."""
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(frame)
        return client.recv(4)


def test_a_client_of_kafka_is_closed_where_only_ours_is_served(caplog: pytest.LogCaptureFixture) -> None:
    with fencepost.Broker(protocol="fencepost") as served:
        for _ in range(3):
            assert answered(served.bootstrap_servers, API_VERSIONS) == b""
        with fencepost.Admin(served.address) as admin:
            assert admin.list_topics() == []
    logged = caplog.messages
    assert len(logged) == 1
    assert "speaks the protocol 'kafka', and this broker serves 'fencepost' only" in logged[0]
    assert logged[0].endswith("start the broker with --protocol both")


def test_our_client_is_closed_where_only_kafka_is_served(caplog: pytest.LogCaptureFixture) -> None:
    with fencepost.Broker(protocol="kafka") as served:
        assert answered(served.address, API_VERSIONS) != b""
        assert answered(served.address, OURS) == b""
    assert "serves 'kafka' only; start the broker with --protocol both" in caplog.text


def test_clients_are_told_the_advertised_listener() -> None:
    with fencepost.Broker(advertised_listener="broker.example:19092") as served:
        with fencepost.Admin(served.address) as admin:
            assert admin.list_brokers() == [1]
        raw = Confluent().admin(Access(servers=served.bootstrap_servers))
        (node,) = raw.brokers()
        assert node == ("broker.example", 19092)


@pytest.mark.parametrize(
    ("text", "meant"),
    [("a:1", ("a", 1)), ("[::1]:9092", ("::1", 9092)), ("10.0.0.1:65535", ("10.0.0.1", 65535))],
)
def test_listeners(text: str, meant: tuple[str, int]) -> None:
    assert parsed_listener(text) == meant


@pytest.mark.parametrize("text", ["a", ":1", "a:", "a:0", "a:65536", "::1:9092", "[a]:1", "a:-1", ""])
def test_what_is_not_a_listener_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        parsed_listener(text)


def test_serve_says_what_a_listener_is() -> None:
    refused = run("serve", "--memory", "--advertised-listener", "nowhere")
    assert refused.returncode == 2
    assert "--advertised-listener: 'nowhere' is not HOST:PORT" in refused.stderr
