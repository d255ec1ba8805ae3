"""SCRAM-SHA-256 and PLAIN: the vector of the RFC, every message altered, strangers' bytes."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.protocol import scram
from fencepost.protocol.scram import SaslFailed, Users, check_plain, make_credential, plain_message

# RFC 7677, section 3.
SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
USERS = Users(credentials={"user": make_credential("pencil", SALT)}, decoy_key=b"d" * 32)

few = settings(max_examples=50, deadline=None)


def test_the_vector_of_the_rfc() -> None:
    hello = scram.client_first("user", CLIENT_NONCE)
    assert hello == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    first = scram.server_first(hello, USERS, SERVER_NONCE)
    nonces = CLIENT_NONCE + SERVER_NONCE
    assert first.message == f"r={nonces},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    final = scram.client_final("user", "pencil", CLIENT_NONCE, first.message)
    proof = b"dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert final.message == f"c=biws,r={nonces},p=".encode() + proof
    answer = scram.server_final(first, final.message)
    assert answer == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    scram.check_server(final, answer)


def log_in(
    username: str, password: str, *, nonce: str = "broker", change: tuple[int, bytes, bytes] | None = None
) -> str:
    """A whole exchange: the user, or SaslFailed. `change` replaces bytes in the n-th message."""
    number = 0

    def sent(message: bytes) -> bytes:
        nonlocal number
        number += 1
        if change is None or change[0] != number:
            return message
        assert change[1] in message
        return message.replace(change[1], change[2], 1)

    first = scram.server_first(sent(scram.client_first(username, "client")), USERS, nonce)
    final = scram.client_final(username, password, "client", sent(first.message))
    scram.check_server(final, sent(scram.server_final(first, sent(final.message))))
    return first.username


def test_the_right_password() -> None:
    assert log_in("user", "pencil") == "user"


@pytest.mark.parametrize(
    ("username", "password"), [("user", "pencil "), ("nobody", "pencil"), ("User", "pencil")]
)
def test_a_wrong_password_and_an_unknown_user_fail_with_the_same_words(username: str, password: str) -> None:
    with pytest.raises(SaslFailed, match=rf"^wrong password for '{username}', or no such user$"):
        log_in(username, password)
    with pytest.raises(SaslFailed, match=rf"^wrong password for '{username}', or no such user$"):
        check_plain(plain_message(username, password), USERS)


def test_an_unknown_user_gets_the_same_salt_each_time_and_another_than_its_neighbour() -> None:
    salts = [
        scram.server_first(scram.client_first(name, "x"), USERS, "y").message for name in ("a", "a", "b")
    ]
    assert salts[0] == salts[1] != salts[2]
    known = scram.server_first(scram.client_first("user", "x"), USERS, "y").message
    assert len(salts[0]) == len(known), "nothing but the salt may differ"


@pytest.mark.parametrize(
    ("number", "old", "new"),
    [
        (1, b"n=user", b"n=usex"),
        (1, b"r=client", b"r=cliexx"),
        (1, b"n,,", b"y,,"),
        (2, b"r=client", b"r=xlient"),
        (2, b"broker", b"brokex"),
        (2, b"broker", b""),
        (2, b"s=W22", b"s=X22"),
        (2, b"i=4096", b"i=4097"),
        (3, b"c=biws", b"c=eSws"),
        (3, b"broker", b"brokex"),
        (3, b",p=", b",x=1,p="),
        (3, b"p=", b"p=AAAA"),
        (4, b"v=", b"v=AAAA"),
        (4, b"v=", b"e="),
    ],
)
def test_a_changed_message_fails(number: int, old: bytes, new: bytes) -> None:
    with pytest.raises(SaslFailed):
        log_in("user", "pencil", change=(number, old, new))


def test_a_client_that_repeats_its_nonce_is_told_apart_from_a_wrong_password() -> None:
    with pytest.raises(SaslFailed, match=r"librdkafka before 2\.6\.1"):
        log_in("user", "pencil", change=(3, b"r=client", b"r=clientclient"))


@pytest.mark.parametrize("iterations", [1, 4095, 1_000_001, 9_999_999_999])
def test_a_broker_cannot_ask_for_weak_or_endless_work(iterations: int) -> None:
    with pytest.raises(SaslFailed, match="iterations"):
        scram.client_final("user", "pencil", "n", f"r=nm,s=AAAA,i={iterations}".encode())


def test_a_replayed_proof_fails() -> None:
    first = scram.server_first(scram.client_first("user", "client"), USERS, "one")
    final = scram.client_final("user", "pencil", "client", first.message)
    scram.server_final(first, final.message)
    again = scram.server_first(scram.client_first("user", "client"), USERS, "two")
    with pytest.raises(SaslFailed, match="nonce"):
        scram.server_final(again, final.message)


def test_an_impostor_that_does_not_know_the_user_is_found() -> None:
    stolen = USERS.credentials["user"]  # without the server key, as a listener would have to invent it
    impostor = Users(
        credentials={"user": scram.Credential(
            salt=stolen.salt, iterations=4096, stored_key=stolen.stored_key, server_key=b"?" * 32
        )},
        decoy_key=b"",
    )  # fmt: skip
    first = scram.server_first(scram.client_first("user", "client"), impostor, "n")
    final = scram.client_final("user", "pencil", "client", first.message)
    with pytest.raises(SaslFailed, match="impostor"):
        scram.check_server(final, scram.server_final(first, final.message))


names = st.text(min_size=1, max_size=20).filter(lambda name: "\0" not in name and name.isprintable())


@few
@given(name=names, password=names)
def test_any_name_and_password_log_in(name: str, password: str) -> None:
    users = Users(credentials={name: make_credential(password, SALT)}, decoy_key=b"")
    first = scram.server_first(scram.client_first(name, "c"), users, "b")
    final = scram.client_final(name, password, "c", first.message)
    scram.check_server(final, scram.server_final(first, final.message))
    assert first.username == check_plain(plain_message(name, password), users) == name


@few
@given(message=st.binary(max_size=60) | st.text("n=,ryap0+/\0", max_size=40).map(str.encode))
def test_strangers_bytes_fail_with_saslfailed_alone(message: bytes) -> None:
    first = scram.server_first(b"n,,n=user,r=c", USERS, "b")
    steps = (
        lambda: scram.server_final(first, message),
        lambda: check_plain(message, USERS),
        lambda: scram.client_final("user", "pencil", "c", message),
    )
    for step in steps:
        with pytest.raises(SaslFailed):
            step()
    try:
        parsed = scram.server_first(message, USERS, "b")
    except SaslFailed:
        return
    # What is accepted has a name and a nonce, and the nonce of the answer begins with it.
    assert parsed.username
    assert re.search(rb"r=[!-+\--~]+", message)


@few
@given(message=st.binary(max_size=80))
def test_only_the_one_signature_passes(message: bytes) -> None:
    final = scram.ClientFinal(b"", b"s" * 32)
    if message != b"v=" + b64encode(b"s" * 32):
        with pytest.raises(SaslFailed):
            scram.check_server(final, message)


def test_a_credential_shows_no_key() -> None:
    assert "key" not in repr(USERS.credentials["user"])
