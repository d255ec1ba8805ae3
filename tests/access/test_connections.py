"""Connections on real sockets: who gets in, what the others are told, and how long they may stay."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import attrs
import pytest
import trustme

from fencepost import (
    Admin,
    AsyncAdmin,
    AuthenticationFailed,
    AuthorizationFailed,
    Broker,
    CommitOutcomeUnknown,
    Consumer,
    Producer,
    TopicPartition,
)
from fencepost.broker.access.acls import Acls
from fencepost.broker.access.session import SASL_SERVER_MAX_RECEIVE_SIZE, AccessSettings
from fencepost.broker.admission import STRANGER_REQUESTS_MAX, Admission
from fencepost.broker.broker_settings import BrokerSettings
from fencepost.broker.embedded import users_of
from fencepost.client import security
from fencepost.kafka_bridge.configs import ResourceType
from fencepost.kafka_bridge.wire import API_VERSIONS_KEY
from fencepost.protocol import messages as m
from fencepost.protocol import scram
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.frames import ReplyFrame, encode_reply, encode_request
from fencepost.protocol.scram import Users, plain_message
from fencepost.protocol.terms import ConfigOperation
from fencepost.protocol.tls import BadCertificate
from tests.attack.kafka_frames import encoded, sized
from tests.broker.requests import NOBODY, ORDERS, produce_request
from tests.broker.wire import Wires, serving

INCREMENTAL_ALTER_CONFIGS = 44
LOGIN: dict[str, Any] = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_plain_username": "alice",
    "sasl_plain_password": "secret",
}
Output = pytest.CaptureFixture[str]


class Certificates(NamedTuple):
    """PEM files: an authority, the broker's certificate and key, a client's of both, another authority."""

    ca: str
    cert: str
    key: str
    alice: str
    stranger: str

    @property
    def broker(self) -> dict[str, Any]:
        return {"tls_cert": self.cert, "tls_key": self.key}

    @property
    def client(self) -> dict[str, Any]:
        return {"security_protocol": "SSL", "ssl_cafile": self.ca}


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    place = tmp_path_factory.mktemp("tls")
    ca, stranger = trustme.CA(), trustme.CA()
    broker = ca.issue_cert("127.0.0.1")
    alice = ca.issue_cert(common_name="alice,O=Acme", organization_name="Acme")
    paths = [str(place / name) for name in ("ca", "cert", "key", "alice", "stranger")]
    ca.cert_pem.write_to_path(paths[0])
    broker.cert_chain_pems[0].write_to_path(paths[1])
    broker.private_key_pem.write_to_path(paths[2])
    alice.private_key_and_cert_chain_pem.write_to_path(paths[3])
    stranger.cert_pem.write_to_path(paths[4])
    return Certificates(*paths)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """With one user, over plaintext."""
    with Broker(users={"alice": "secret"}) as found:
        yield found


def exchange(address: str, settings: dict[str, Any]) -> int:
    """A transaction written and read; the number of its records."""
    with Admin(address, **settings) as admin:
        topic = f"t{len(admin.list_topics())}"
        admin.create_topic(topic, 1)
    with Producer(address, transactional_id="pay", **settings) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send_many(topic, [b"x" * 100] * 20_000)  # more than one TLS record, and one receive
    with Consumer(address, **settings) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        found = 0
        for _ in range(100):
            if found < 20_000:
                found += sum(map(len, consumer.poll(2_000)))
    return found


@pytest.mark.parametrize("mechanism", security.MECHANISMS)
def test_a_user_logs_in(broker: Broker, mechanism: str) -> None:
    assert exchange(broker.address, {**LOGIN, "sasl_mechanism": mechanism}) == 20_000


def test_tls_with_a_login(certificates: Certificates) -> None:
    with Broker(users={"alice": "secret"}, **certificates.broker) as broker:
        settings = {**LOGIN, **certificates.client, "security_protocol": "SASL_SSL"}
        assert exchange(broker.address, settings) == 20_000


def test_a_client_that_ends_tls_is_answered_by_the_end_of_the_connection(certificates: Certificates) -> None:
    """asyncio waits half a minute for it."""

    async def leave(address: str) -> None:
        host, port = address.split(":")
        context = ssl.create_default_context(cafile=certificates.ca)
        _, writer = await asyncio.open_connection(host, int(port), ssl=context)
        writer.close()
        await asyncio.wait_for(writer.wait_closed(), 10)

    with Broker(**certificates.broker) as broker:
        asyncio.run(leave(broker.address))


def test_a_certificate_names_its_principal(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    acls = '[[acl]]\nprincipal = "User:O=Acme"\ncluster = true\nallow = "All"\n'
    with Broker(**certificates.broker, tls_client_ca=certificates.ca, acls=acls) as broker:
        settings: dict[str, Any] = {**certificates.client, "ssl_certfile": certificates.alice}
        with Admin(broker.address, **settings) as admin:
            assert admin.list_topics() == []
            with pytest.raises(Exception, match="TOPIC_AUTHORIZATION_FAILED"):
                admin.create_topic("orders", 1)
        with Admin(broker.address, **certificates.client) as admin:
            with pytest.raises(AuthenticationFailed, match="certificate required"):
                admin.list_topics()
    said = caplog.text
    # The comma of the CN is escaped: otherwise this would be the CN `alice` of the organisation `Acme`.
    assert "CN=alice\\\\,O\\\\=Acme" in said or "CN=alice\\,O\\=Acme" in said
    assert "peer did not return a certificate" in said


def test_a_subscription_that_acls_forbid_is_raised_by_poll() -> None:
    acls = "".join(
        f'[[acl]]\nprincipal = "User:alice"\n{resource} = "g"\nallow = "Read"\n'
        for resource in ("group", "topic")
    )
    with Broker(users={"alice": "secret"}, acls=acls) as broker:
        with Consumer(broker.address, group_id="g", **LOGIN) as consumer:
            consumer.subscribe(["secret"])
            with pytest.raises(AuthorizationFailed, match="topic 'secret'"):
                consumer.poll(60_000)


def test_a_missing_right_to_a_group_or_a_transactional_id_names_it() -> None:
    acls = '[[acl]]\nprincipal = "User:alice"\ntopic = "*"\nallow = "All"\n'
    with Broker(users={"alice": "secret"}, acls=acls) as broker:
        with Consumer(broker.address, group_id="readers", **LOGIN) as consumer:
            consumer.subscribe(["orders"])
            with pytest.raises(AuthorizationFailed, match="group 'readers': not authorized"):
                consumer.poll(60_000)
        with Producer(broker.address, transactional_id="pay", **LOGIN) as producer:
            with pytest.raises(AuthorizationFailed, match="transactional id 'pay': not authorized"):
                producer.init_transactions()
        with Admin(broker.address, **LOGIN) as admin:
            with pytest.raises(AuthorizationFailed, match="group 'readers': not authorized"):
                admin.list_consumer_group_offsets("readers")


def test_a_missing_right_to_the_cluster_is_named() -> None:
    acls = '[[acl]]\nprincipal = "User:alice"\ntopic = "*"\nallow = "All"\n'
    with Broker(users={"alice": "secret"}, acls=acls) as broker, Admin(broker.address, **LOGIN) as admin:
        with pytest.raises(AuthorizationFailed, match="not authorized for Describe on the cluster"):
            admin.broker_status()
        with pytest.raises(AuthorizationFailed, match="not authorized for Alter on the cluster"):
            admin.add_fault("when p sends Produce do drop")


REFUSED: list[tuple[bool, dict[str, Any], str]] = [
    (
        False,
        {**LOGIN, "sasl_plain_password": "x"},
        "name or the password is wrong .SASL_AUTHENTICATION_FAILED",
    ),
    (
        False,
        {**LOGIN, "sasl_plain_username": "x"},
        "name or the password is wrong .SASL_AUTHENTICATION_FAILED",
    ),
    (False, {**LOGIN, "sasl_plain_password": "x", "sasl_mechanism": "PLAIN"}, "password is wrong"),
    (False, {}, "the broker requires a login: set security_protocol"),
    (False, {"security_protocol": "SSL"}, "the broker does not speak TLS on this port"),
    (True, {}, "the broker requires TLS: set security_protocol"),
    (True, LOGIN, "the broker requires TLS: set security_protocol"),
    (True, {"security_protocol": "SSL", "ssl_cafile": "stranger"}, "certificate of the peer is not valid"),
    (True, {"security_protocol": "SSL"}, "certificate of the peer is not valid"),
]


@pytest.mark.parametrize(("has_tls", "settings", "words"), REFUSED)
def test_a_refusal_is_told_at_once_and_ends_the_client(
    broker: Broker, certificates: Certificates, has_tls: bool, settings: dict[str, Any], words: str
) -> None:
    if "ssl_cafile" in settings:
        settings = {**settings, "ssl_cafile": certificates.stranger}
    with Broker(users={"alice": "secret"}, **certificates.broker if has_tls else {}) as found:
        with Admin(found.address, **settings, default_api_timeout_ms=600_000) as admin:
            for _ in range(2):
                with pytest.raises(AuthenticationFailed, match=words):
                    admin.list_topics()
        with pytest.raises(AuthenticationFailed, match=words):
            with Producer(found.address, **settings, max_block_ms=600_000) as producer:
                producer.send("orders", b"x")


@pytest.mark.parametrize("settings", [LOGIN, {**LOGIN, "security_protocol": "SASL_SSL"}])
def test_a_login_at_a_broker_without_users_is_refused(
    certificates: Certificates, settings: dict[str, Any]
) -> None:
    has_tls = settings["security_protocol"] == "SASL_SSL"
    more: dict[str, Any] = {"ssl_cafile": certificates.ca} if has_tls else {}
    with Broker(**certificates.broker if has_tls else {}) as found:
        with Admin(found.address, **settings, **more) as admin:
            with pytest.raises(AuthenticationFailed, match="the broker has no users"):
                admin.list_topics()


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_the_certificate_must_be_for_the_host(certificates: Certificates, name: str) -> None:
    with Broker(**certificates.broker) as found:
        address = found.address.replace("127.0.0.1", name)
        with Admin(address, **certificates.client, ssl_check_hostname=name != "localhost") as admin:
            assert admin.list_topics() == []
        if name == "localhost":
            with Admin(address, **certificates.client) as admin:
                with pytest.raises(AuthenticationFailed, match="Hostname mismatch"):
                    admin.list_topics()


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_async_clients_are_refused_too(broker: Broker, backend: str) -> None:
    async def ask(settings: dict[str, Any]) -> object:
        async with AsyncAdmin(broker.address, **settings) as admin:
            return await admin.list_brokers()

    assert anyio.run(ask, LOGIN, backend=backend)
    with pytest.raises(AuthenticationFailed, match="password is wrong"):
        anyio.run(ask, {**LOGIN, "sasl_plain_password": "x"}, backend=backend)


def test_old_tls_is_refused(certificates: Certificates) -> None:
    with Broker(**certificates.broker) as found:
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.load_verify_locations(certificates.ca)
        with pytest.warns(DeprecationWarning, match="deprecated"):
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        host, _, port = found.address.rpartition(":")
        with socket.create_connection((host, int(port))) as link, pytest.raises(ssl.SSLError):
            old.wrap_socket(link, server_hostname=host)


# --- the client does not trust the broker -------------------------------------------------------------------


def log_in_at_an_impostor() -> None:
    """It has the user's StoredKey, and invents the ServerKey."""
    with with_users(users := users_of({"alice": "secret"})) as found:
        right = users.credentials["alice"]
        known(users)["alice"] = attrs.evolve(right, server_key=b"?" * 32)
        with Admin(found.address, **LOGIN) as admin, pytest.raises(AuthenticationFailed, match="impostor"):
            admin.list_topics()


def known(users: Users) -> dict[str, scram.Credential]:
    """The users of a running broker, to change them."""
    assert isinstance(users.credentials, dict)
    return users.credentials


def with_users(users: Users, *faults: str) -> Broker:
    broker = Broker(faults=faults)
    broker.settings = attrs.evolve(broker.settings, access=AccessSettings(users=users))
    return broker


def test_an_impostor_is_found() -> None:
    log_in_at_an_impostor()


def test_a_client_that_skips_the_signature_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "check_server", print)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        log_in_at_an_impostor()


def test_a_client_falls_back_to_nothing() -> None:
    """A broker, or somebody in between, that offers PLAIN alone does not get the password."""
    settings = security.Security(**LOGIN, sasl_mechanism="SCRAM-SHA-256")
    handshake = security.Handshake(settings, None, "nonce")
    said = b"".join(handshake.outgoing())
    offer = ReplyFrame(
        1, error=ErrorCode.UNSUPPORTED_SASL_MECHANISM, body=m.SaslHandshakeReply(mechanisms=("PLAIN",))
    )
    with pytest.raises(security.HandshakeRefused, match=r"it offers PLAIN$"):
        handshake.receive(b"".join(encode_reply(offer)))
    said += b"".join(handshake.outgoing())
    assert b"SCRAM-SHA-256" in said
    assert b"secret" not in said


def test_a_commit_stays_unknown_when_the_next_connection_is_refused() -> None:
    users = users_of({"alice": "secret"})
    with with_users(users, "when node 1 sends EndTxn reply #1 do drop") as found:
        with Admin(found.address, **LOGIN) as admin:
            admin.create_topic("orders", 1)
        producer = Producer(found.address, transactional_id="pay", **LOGIN)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"x").result()
        known(users).clear()
        with pytest.raises(CommitOutcomeUnknown):
            producer.commit_transaction()
        producer.close()


# --- connections by hand ------------------------------------------------------------------------------------


@pytest.fixture
async def wires() -> AsyncGenerator[Wires]:
    access = AccessSettings(users=users_of({"alice": "secret"}), connection_failed_authentication_delay_ms=1)
    async with serving(BrokerSettings(access=access)) as (_, found):
        yield found


@pytest.mark.trio
async def test_only_three_requests_are_answered_before_the_login(wires: Wires) -> None:
    wire = await wires.open()
    assert (await wire.ask(m.ApiVersions())).error is ErrorCode.NONE
    assert (await wire.ask(m.Metadata(topics=None))).error is ErrorCode.ILLEGAL_SASL_STATE
    assert await wire.is_closed_by_peer()


@pytest.mark.trio
@pytest.mark.parametrize(
    ("requests", "error"),
    [
        ([m.SaslAuthenticate(auth_bytes=b"")], ErrorCode.ILLEGAL_SASL_STATE),
        ([m.SaslHandshake(mechanism="PLAIN")] * 2, ErrorCode.ILLEGAL_SASL_STATE),
        ([m.SaslHandshake(mechanism="GSSAPI")], ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (
            [m.SaslHandshake(mechanism="PLAIN"), m.SaslAuthenticate(auth_bytes=b"garbage")],
            ErrorCode.SASL_AUTHENTICATION_FAILED,
        ),
    ],
)
async def test_a_wrong_order_ends_the_connection(wires: Wires, requests: list[Any], error: ErrorCode) -> None:
    wire = await wires.open()
    for request in requests[:-1]:
        assert (await wire.ask(request)).error is ErrorCode.NONE
    assert (await wire.ask(requests[-1])).error is error
    assert await wire.is_closed_by_peer()


@pytest.mark.trio
async def test_nobody_logs_in_twice(wires: Wires) -> None:
    wire = await wires.open()
    await wire.ask(m.SaslHandshake(mechanism="PLAIN"))
    message = plain_message("alice", "secret")
    assert (await wire.ask(m.SaslAuthenticate(auth_bytes=message))).error is ErrorCode.NONE
    assert (await wire.ask(m.SaslHandshake(mechanism="PLAIN"))).error is ErrorCode.ILLEGAL_SASL_STATE
    assert (await wire.ask(m.Metadata(topics=None))).error is ErrorCode.NONE, "it stays logged in"


@pytest.mark.trio
async def test_a_produce_without_acknowledgement_that_is_not_allowed_closes_its_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    access = AccessSettings(users=users_of({"alice": "secret"}), acls=Acls())
    async with serving(BrokerSettings(access=access)) as (_, found):
        wire = await found.open()
        await wire.ask(m.SaslHandshake(mechanism="PLAIN"))
        await wire.ask(m.SaslAuthenticate(auth_bytes=plain_message("alice", "secret")))
        await wire.send(produce_request(NOBODY, {ORDERS: "a"}, name=None, acks=0))
        assert await wire.is_closed_by_peer()
    assert "acks 0 that failed: may not Write on Topic" in caplog.text


@pytest.mark.trio
async def test_a_recorded_login_does_not_work_again(wires: Wires) -> None:
    recorded: list[bytes] = []
    for attempt in range(2):
        wire = await wires.open()
        await wire.ask(m.SaslHandshake(mechanism="SCRAM-SHA-256"))
        hello = scram.client_first("alice", "nonce")
        body = (await wire.ask(m.SaslAuthenticate(auth_bytes=hello))).body
        assert isinstance(body, m.SaslAuthenticateReply)
        if not attempt:
            recorded.append(scram.client_final("alice", "secret", "nonce", body.auth_bytes).message)
        error = (await wire.ask(m.SaslAuthenticate(auth_bytes=recorded[0]))).error
        assert error is (ErrorCode.SASL_AUTHENTICATION_FAILED if attempt else ErrorCode.NONE)


@pytest.mark.trio
async def test_requests_are_small_before_the_login_and_as_large_as_ever_after_it(wires: Wires) -> None:
    large = m.DescribeGroups(groups=tuple(f"group-{number:05}" for number in range(2_000)))
    stranger = await wires.open()
    await stranger.send(large)
    assert await stranger.is_closed_by_peer()
    assert not stranger.arrived
    wire = await wires.open()
    await wire.ask(m.SaslHandshake(mechanism="PLAIN"))
    await wire.ask(m.SaslAuthenticate(auth_bytes=plain_message("alice", "secret")))
    assert (await wire.ask(large)).error is ErrorCode.NONE
    assert sum(map(len, encode_request(large, correlation_id=1))) > SASL_SERVER_MAX_RECEIVE_SIZE


@pytest.mark.trio
async def test_a_stranger_who_says_nothing_has_to_leave(certificates: Certificates) -> None:
    for access in (
        AccessSettings(users=users_of({}), authentication_timeout_ms=50),
        AccessSettings(**certificates.broker, authentication_timeout_ms=50),
    ):
        async with serving(BrokerSettings(access=access)) as (_, wires):
            assert await (await wires.open()).is_closed_by_peer()


@pytest.mark.trio
async def test_failed_logins_are_reported_and_do_not_fill_the_log(
    wires: Wires, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(20):
        wire = await wires.open()
        await wire.ask(m.SaslHandshake(mechanism="PLAIN"))
        await wire.ask(m.SaslAuthenticate(auth_bytes=plain_message(f"user{number}", "guess")))
    said = caplog.messages
    assert len(said) == 1
    assert "PLAIN: wrong password for 'user0', or no such user" in said[0]
    assert "guess" not in said[0]


@pytest.mark.trio
async def test_a_port_probe_is_no_news(wires: Wires, caplog: pytest.LogCaptureFixture) -> None:
    await (await wires.open()).stream.aclose()
    wire = await wires.open()
    await wire.ask(m.ApiVersions())  # the broker has noticed the first one by now
    assert caplog.messages == []


def test_plain_is_not_offered_where_others_can_listen() -> None:
    beyond = Admission(AccessSettings(users=users_of({})), address="192.0.2.1")
    assert beyond.session().mechanisms == ("SCRAM-SHA-256",)
    assert "PLAIN" in Admission(AccessSettings(users=users_of({})), address="::1").session().mechanisms


def test_each_connection_has_its_own_nonce() -> None:
    admission = Admission(AccessSettings(users=users_of({})), address="127.0.0.1")
    assert len({admission.session().nonce for _ in range(100)}) == 100


def test_a_broker_that_cannot_use_its_certificate_leaves_no_trace(tmp_path: Path) -> None:
    with pytest.raises(BadCertificate):
        Broker(str(tmp_path / "data"), tls_cert="nowhere.pem", tls_key="nowhere.pem").start()
    assert not (tmp_path / "data").exists()


def test_a_file_that_is_no_certificate_is_named(certificates: Certificates) -> None:
    cert, key = certificates.cert, certificates.key
    for files, words in {
        (key, cert): f"tls_cert {key} holds no certificate, but a private key; check .* swapped",
        (cert, cert): f"tls_key {cert} holds no private key, but a certificate; check .* swapped",
        (
            certificates.ca,
            key,
        ): f"key {key} does not belong to the certificate in tls_cert {certificates.ca};",
        (cert, __file__): f"tls_key {__file__} holds no private key; give a file in PEM format",
        ("nowhere.pem", key): "cannot read tls_cert nowhere.pem: No such file or directory; check its path",
    }.items():
        with pytest.raises(BadCertificate, match=words):
            Broker(tls_cert=files[0], tls_key=files[1]).start()
    with pytest.raises(BadCertificate, match=r"cannot read ssl_cafile nowhere.pem: No such file"):
        Admin("localhost:1", security_protocol="SSL", ssl_cafile="nowhere.pem")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"security_protocol": "TLS"}, "must be 'PLAINTEXT' or 'SSL' or 'SASL_PLAINTEXT' or 'SASL_SSL'"),
        ({**LOGIN, "sasl_mechanism": "GSSAPI"}, "sasl_mechanism must be 'PLAIN' or 'SCRAM-SHA-256'"),
        ({"security_protocol": "SASL_SSL"}, "needs sasl_plain_username and sasl_plain_password"),
        ({**LOGIN, "security_protocol": "SSL"}, "does not log in"),
        ({"ssl_cafile": "ca.pem"}, "has no TLS"),
        ({"security_protocol": "SSL", "ssl_cafile": ""}, "ssl_cafile is empty"),
        ({"security_protocol": "SSL", "ssl_certfile": ""}, "ssl_certfile is empty"),
        ({"security_protocol": "SSL", "ssl_certfile": "c.pem", "ssl_keyfile": ""}, "ssl_keyfile is empty"),
        ({"security_protocol": "SSL", "ssl_keyfile": "key.pem"}, "ssl_keyfile needs ssl_certfile"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Admin("localhost:1", **settings)


@pytest.mark.trio
async def test_a_stranger_asks_a_few_questions_only(wires: Wires) -> None:
    """Each costs the broker as much as a request of a user, and strangers have no turns."""
    wire = await wires.open()
    for _ in range(STRANGER_REQUESTS_MAX):
        assert (await wire.ask(m.ApiVersions())).error is ErrorCode.NONE
    assert (await wire.ask(m.ApiVersions())).error is ErrorCode.ILLEGAL_SASL_STATE
    assert await wire.is_closed_by_peer()


@pytest.mark.trio
async def test_a_stranger_is_not_told_what_needs_no_node(wires: Wires) -> None:
    """Its answer may be ten times as large as the request."""
    wire = await wires.open()
    config = {"name": "log.dirs", "config_operation": ConfigOperation.SET.value, "value": None}
    resource = {"resource_type": ResourceType.BROKER, "resource_name": "0", "configs": [config]}
    await wire.stream.send_all(
        encoded(INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=True)
    )
    assert await wire.stream.receive_some(1) == b""


@pytest.mark.trio
async def test_a_stranger_is_not_told_for_ever_that_a_version_is_unknown(wires: Wires) -> None:
    wire = await wires.open()
    newer = sized(struct.pack(">hhih", API_VERSIONS_KEY, 99, 0, -1))
    for _ in range(STRANGER_REQUESTS_MAX):
        await wire.stream.send_all(newer)
        assert await wire.stream.receive_some(1_000)
    await wire.stream.send_all(newer)
    assert await wire.stream.receive_some(1) == b""
