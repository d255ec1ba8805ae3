"""Versions that no client of today asks for by itself: a join without an id, a login without headers, and a
list of transactions by pattern."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any, get_args, get_type_hints

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode as KafkaErrorCode

import fencepost
from fencepost.protocol.scram import PLAIN, SCRAM_SHA_256
from tests.kafka_bridge.conftest import IMPATIENT
from tests.kafka_bridge.kafka_socket import KafkaSocket, connected

JOIN_GROUP, SASL_HANDSHAKE, METADATA, LIST_TRANSACTIONS = 11, 17, 3, 66
SESSION_TIMEOUT = timedelta(seconds=10)
USERS = {"alice": "alice-secret"}


@pytest.fixture
def broker() -> Iterator[fencepost.Broker]:
    with fencepost.Broker(override=IMPATIENT) as broker:
        with fencepost.Admin(broker.address) as admin:
            admin.list_consumer_group_offsets("any")  # the coordinator of groups is there
        yield broker


def join(wire: KafkaSocket, version: int, member_id: str = "") -> Any:
    schema: Any = load_request_schema(JOIN_GROUP, version)
    protocol = get_args(get_type_hints(schema)["protocols"])[0]
    timeout = SESSION_TIMEOUT
    more = {} if version == 0 else {"rebalance_timeout": timeout}
    return wire.ask(
        JOIN_GROUP,
        version,
        group_id=f"group of {version}",
        session_timeout=timeout,
        member_id=member_id,
        protocol_type="consumer",
        protocols=(protocol(name="range", metadata=b"what I read"),),
        **more,
    )


@pytest.mark.parametrize("version", range(4))
def test_an_old_client_joins_at_once(broker: fencepost.Broker, version: int) -> None:
    with closing(connected(broker.address)) as wire:
        joined = join(wire, version)
        assert joined.error_code is KafkaErrorCode.none
        assert joined.generation_id == 1
        assert joined.leader == joined.member_id
        assert joined.member_id.startswith("old-")
        assert [member.metadata for member in joined.members] == [b"what I read"]
        again = join(wire, version, joined.member_id)
        assert (again.error_code, again.member_id) == (KafkaErrorCode.none, joined.member_id)


def test_a_newer_client_is_given_its_id_first(broker: fencepost.Broker) -> None:
    with closing(connected(broker.address)) as wire:
        refused = join(wire, 4)
        assert refused.error_code is KafkaErrorCode.member_id_required
        assert join(wire, 4, refused.member_id).error_code is KafkaErrorCode.none


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (None, ["pay", "pry"]),
        ("", ["pay", "pry"]),
        ("p.y", ["pay", "pry"]),
        ("a", []),
        ("pa.|till", ["pay"]),
        ("(?i)PAY", ["pay"]),
        ("(.*)*b", []),
    ],
)
def test_transactions_are_listed_by_pattern(
    broker: fencepost.Broker, pattern: str | None, found: list[str]
) -> None:
    for name in ("pay", "pry"):
        with fencepost.Producer(broker.address, transactional_id=name) as producer:
            producer.init_transactions()
    with closing(connected(broker.address)) as wire:
        listed = list_transactions(wire, pattern)
        assert listed.error_code is KafkaErrorCode.none
        assert sorted(each.transactional_id for each in listed.transaction_states) == found


@pytest.mark.parametrize(("duration_ms", "found"), [(0, ["pay"]), (1 << 40, ["pay"]), (2**63 - 1, [])])
def test_an_id_without_a_transaction_has_been_open_since_1970(
    broker: fencepost.Broker, duration_ms: int, found: list[str]
) -> None:
    with fencepost.Producer(broker.address, transactional_id="pay") as producer:
        producer.init_transactions()
    with closing(connected(broker.address)) as wire:
        filters = {"state_filters": (), "producer_id_filters": (), "transactional_id_pattern": None}
        listed = wire.ask(LIST_TRANSACTIONS, 2, duration_filter=duration_ms, **filters)
    assert [each.transactional_id for each in listed.transaction_states] == found


def test_a_pattern_that_is_none_is_refused(broker: fencepost.Broker) -> None:
    with closing(connected(broker.address)) as wire:
        for pattern in ("(pay", "[", "((a{99}){99}){99}", "(?=look)"):
            listed = list_transactions(wire, pattern)
            assert listed.error_code is KafkaErrorCode.invalid_regular_expression, pattern
            assert listed.transaction_states == ()


def list_transactions(wire: KafkaSocket, pattern: str | None) -> Any:
    return wire.ask(
        LIST_TRANSACTIONS, 2, state_filters=(), producer_id_filters=(), transactional_id_pattern=pattern
    )


# --- logins --------------------------------------------------------------------------------------------


@pytest.fixture
def guarded() -> Iterator[fencepost.Broker]:
    with fencepost.Broker(users=USERS) as broker:
        yield broker


def shake_hands(wire: KafkaSocket, mechanism: str) -> None:
    assert wire.ask(SASL_HANDSHAKE, 0, mechanism=mechanism).error_code is KafkaErrorCode.none


def assert_served(wire: KafkaSocket) -> None:
    assert wire.ask(METADATA, 1, topics=None).brokers


def test_a_login_with_a_plain_token(guarded: fencepost.Broker) -> None:
    with closing(connected(guarded.address)) as wire:
        shake_hands(wire, PLAIN)
        assert wire.exchange(b"\0alice\0alice-secret") == b""
        assert_served(wire)


def test_a_login_with_scram_tokens(guarded: fencepost.Broker) -> None:
    with closing(connected(guarded.address)) as wire:
        shake_hands(wire, SCRAM_SHA_256)
        first = b"n=alice,r=mine"
        challenge = wire.exchange(b"n,," + first)
        final = b"c=biws," + challenge.split(b",")[0]
        proof = scram_proof(USERS["alice"], challenge, b",".join((first, challenge, final)))
        assert wire.exchange(final + b",p=" + proof).startswith(b"v=")
        assert_served(wire)


def scram_proof(password: str, challenge: bytes, message: bytes) -> bytes:
    """The proof of RFC 5802 for a challenge `r=...,s=...,i=...`."""
    salt, rounds = (part[2:] for part in challenge.split(b",")[1:])
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(salt), int(rounds))
    key = hmac.digest(salted, b"Client Key", "sha256")
    signature = hmac.digest(hashlib.sha256(key).digest(), message, "sha256")
    return base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True)))


def test_a_wrong_token_closes_the_connection_without_a_word(guarded: fencepost.Broker) -> None:
    with closing(connected(guarded.address)) as wire:
        shake_hands(wire, PLAIN)
        with pytest.raises(EOFError):
            wire.exchange(b"\0alice\0guessed")


def test_a_refused_mechanism_expects_no_token(guarded: fencepost.Broker) -> None:
    with closing(connected(guarded.address)) as wire:
        refused = wire.ask(SASL_HANDSHAKE, 0, mechanism="GSSAPI")
        assert refused.error_code is KafkaErrorCode.unsupported_sasl_mechanism
        assert PLAIN in refused.mechanisms
