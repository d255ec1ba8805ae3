"""SCRAM-SHA-256 for both sides (RFC 5802, RFC 7677), and PLAIN (RFC 4616), as values and bytes.

Rule: nothing here draws a nonce or a salt, and no password is kept: a broker stores a `Credential`.
"""

# Theory of operation
#
#     client                                      broker, which stores salt, StoredKey, ServerKey
#     n,,n=alice,r=<client nonce>          -->
#                                          <--    r=<client nonce><broker nonce>,s=<salt>,i=4096
#     c=biws,r=<both nonces>,p=<proof>     -->    H(proof xor HMAC(StoredKey, all messages)) = StoredKey?
#     HMAC(ServerKey, all messages) = v?   <--    v=<signature>
#
# No message lets a listener compute the password, and the stored credential does not let its thief log in.
# Both nonces are part of what is signed, so an exchange cannot be replayed. The last message proves that the
# broker knows the credential, so the client checks it: without that check anyone could play the broker.
#
# A name that has no credential gets one that is made up (`Users.credential_of`), and the exchange fails at
# its end, like that with a wrong password. Passwords are UTF-8 bytes without SASLprep, as in Kafka
# (ScramFormatter.normalize). There is no channel binding, as in Kafka: the gs2 header is "n,,".

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Mapping
from typing import Final, NamedTuple

import attrs

from fencepost.protocol.errors import FencepostError
from fencepost.protocol.values import value

PLAIN: Final = "PLAIN"
SCRAM_SHA_256: Final = "SCRAM-SHA-256"

ITERATIONS: Final = 4096  # ScramMechanism.SCRAM_SHA_256.minIterations; a client refuses less
ITERATIONS_MAX: Final = 1_000_000  # what a client computes for a broker that it does not know yet: 0.5 s
SALT_SIZE: Final = 16
KEY_SIZE: Final = 32

_GS2_HEADER = "n,,"
_NONCE = re.compile(r"[!-+\--~]+")  # printable ASCII without the comma
_CLIENT_FIRST = re.compile(r"([ny],(?:a=([^,]*))?,)(n=([^,]+),r=([!-+\--~]+)(?:,.*)?)", re.DOTALL)
_SERVER_FIRST = re.compile(r"r=([!-+\--~]+),s=([^,]+),i=([0-9]{1,10})(?:,.*)?", re.DOTALL)
_CLIENT_FINAL = re.compile(r"(c=([^,]+),r=([!-+\--~]+)(?:,.*)?),p=([^,]+)", re.DOTALL)
_SERVER_FINAL = re.compile(r"v=([^,]+)(?:,.*)?", re.DOTALL)


class SaslFailed(FencepostError):
    """The exchange failed: a message is malformed, or a proof is wrong. The text is for the log of the side
    that found the fault, and is never sent.
    """


@value(kw_only=True)
class Credential:
    """What a broker stores of a password: enough to check it, not to know it."""

    salt: bytes
    iterations: int
    stored_key: bytes = attrs.field(repr=False)
    server_key: bytes = attrs.field(repr=False)


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _salted(password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations)


def make_credential(password: str, salt: bytes, iterations: int = ITERATIONS) -> Credential:
    """The credential of a password; slow by design (a millisecond or two)."""
    salted = _salted(password, salt, iterations)
    return Credential(
        salt=salt,
        iterations=iterations,
        stored_key=_sha256(_hmac(salted, b"Client Key")),
        server_key=_hmac(salted, b"Server Key"),
    )


@attrs.frozen(kw_only=True)
class Users:
    """The users of a broker. `decoy_key` makes up the credentials of names that are not among them."""

    credentials: Mapping[str, Credential]
    decoy_key: bytes = attrs.field(repr=False)
    iterations: int = ITERATIONS

    def credential_of(self, name: str) -> Credential:
        """The credential of a user; for any other name one that no password fits, the same at each call."""
        # Always computed, so that both kinds of names take the same time.
        salt = _hmac(self.decoy_key, b"salt " + name.encode())[:SALT_SIZE]
        unknown = _hmac(self.decoy_key, b"key " + name.encode())
        decoy = Credential(
            salt=salt, iterations=self.iterations, stored_key=unknown, server_key=_sha256(unknown)
        )
        return self.credentials.get(name, decoy)


# --- PLAIN --------------------------------------------------------------------------------------------------


def plain_message(username: str, password: str) -> bytes:
    return f"\0{username}\0{password}".encode()


def check_plain(message: bytes, users: Users) -> str:
    """The user of a PLAIN message, if the password is right; else SaslFailed."""
    authorization, username, password = _plain_fields(message)
    credential = users.credential_of(username)
    found = make_credential(password, credential.salt, credential.iterations)
    if not hmac.compare_digest(found.stored_key, credential.stored_key):
        raise SaslFailed(f"wrong password for {username!r}, or no such user")
    if authorization not in ("", username):
        raise SaslFailed(f"{username!r} asks to act as {authorization!r}")
    return username


def _plain_fields(message: bytes) -> tuple[str, str, str]:
    parts = _text(message).split("\0")
    if len(parts) != 3 or not parts[1] or not parts[2]:
        raise SaslFailed("the PLAIN message is not [id] NUL name NUL password")
    return parts[0], parts[1], parts[2]


# --- SCRAM: the broker's side -------------------------------------------------------------------------------


class ServerFirst(NamedTuple):
    """The state between the broker's two messages."""

    username: str
    credential: Credential
    gs2_header: str
    nonce: str
    signed: str
    """client-first-bare and server-first, joined by a comma: the beginning of what both sides sign."""
    message: bytes


def server_first(client_first: bytes, users: Users, nonce: str) -> ServerFirst:
    """The reply to the client's first message; SaslFailed if it is malformed."""
    found = _CLIENT_FIRST.fullmatch(_text(client_first))
    if found is None:
        raise SaslFailed("the first SCRAM message is malformed, or asks for channel binding")
    gs2_header, authorization, bare, name, client_nonce = found.groups()
    username = _unescaped(name)
    if authorization and _unescaped(authorization) != username:
        raise SaslFailed(f"{username!r} asks to act as {authorization!r}")
    credential = users.credential_of(username)
    nonces = client_nonce + nonce
    salt = b64encode(credential.salt).decode()
    message = f"r={nonces},s={salt},i={credential.iterations}"
    return ServerFirst(username, credential, gs2_header, nonces, f"{bare},{message}", message.encode())


def server_final(first: ServerFirst, client_final: bytes) -> bytes:
    """The broker's signature, if the client's proof is right; else SaslFailed."""
    found = _CLIENT_FINAL.fullmatch(_text(client_final))
    if found is None:
        raise SaslFailed("the final SCRAM message is malformed")
    unproven, binding, nonce, proof = found.groups()
    if _decoded(binding) != first.gs2_header.encode():
        raise SaslFailed("the channel binding differs from that of the first message")
    if nonce != first.nonce:
        if nonce.endswith(first.nonce):
            raise SaslFailed(
                "the client repeats its nonce, as librdkafka before 2.6.1 does: upgrade, or use PLAIN"
            )
        raise SaslFailed("the nonce is not that of this exchange")
    signed = f"{first.signed},{unproven}".encode()
    credential, proved = first.credential, _decoded(proof)
    if len(proved) != KEY_SIZE:
        raise SaslFailed("the proof has the wrong length")
    client_key = _xor(proved, _hmac(credential.stored_key, signed))
    if not hmac.compare_digest(_sha256(client_key), credential.stored_key):
        raise SaslFailed(f"wrong password for {first.username!r}, or no such user")
    return b"v=" + b64encode(_hmac(credential.server_key, signed))


# --- SCRAM: the client's side -------------------------------------------------------------------------------


class ClientFinal(NamedTuple):
    """The client's proof, and the signature that the broker must answer with."""

    message: bytes
    signature: bytes


def client_first(username: str, nonce: str) -> bytes:
    """The first message: who wants to log in. The nonce must be new."""
    return (_GS2_HEADER + _bare(username, nonce)).encode()


def client_final(username: str, password: str, nonce: str, server_first: bytes) -> ClientFinal:
    """The proof for the broker's first message; SaslFailed if that is malformed or weak."""
    text = _text(server_first)
    found = _SERVER_FIRST.fullmatch(text)
    if found is None:
        raise SaslFailed("the broker's first SCRAM message is malformed")
    nonces, salt, iterations = found[1], _decoded(found[2]), int(found[3])
    if not nonces.startswith(nonce) or len(nonces) == len(nonce):
        raise SaslFailed("the broker's nonce does not extend the nonce of this exchange")
    if not ITERATIONS <= iterations <= ITERATIONS_MAX:
        raise SaslFailed(
            f"the broker asks for {iterations} iterations; the limits are {ITERATIONS} to {ITERATIONS_MAX}"
        )
    salted = _salted(password, salt, iterations)
    unproven = f"c={b64encode(_GS2_HEADER.encode()).decode()},r={nonces}"
    signed = f"{_bare(username, nonce)},{text},{unproven}".encode()
    client_key = _hmac(salted, b"Client Key")
    proof = _xor(client_key, _hmac(_sha256(client_key), signed))
    signature = _hmac(_hmac(salted, b"Server Key"), signed)
    return ClientFinal(f"{unproven},p={b64encode(proof).decode()}".encode(), signature)


def check_server(final: ClientFinal, server_final: bytes) -> None:
    """SaslFailed unless the broker's final message proves that it knows the credential."""
    found = _SERVER_FINAL.fullmatch(_text(server_final))
    if found is None or not hmac.compare_digest(_decoded(found[1]), final.signature):
        raise SaslFailed("the broker did not prove that it knows this user: it may be an impostor")


# --- fields -------------------------------------------------------------------------------------------------


def _bare(username: str, nonce: str) -> str:
    assert _NONCE.fullmatch(nonce), "a nonce is printable ASCII without commas"
    return f"n={username.replace('=', '=3D').replace(',', '=2C')},r={nonce}"


def _unescaped(name: str) -> str:
    if re.search(r"=(?!2C|3D)", name):
        raise SaslFailed("a name has an escape that is neither =2C nor =3D")
    return name.replace("=2C", ",").replace("=3D", "=")


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise SaslFailed("a SASL message is not UTF-8") from None


def _decoded(field: str) -> bytes:
    try:
        return b64decode(field, validate=True)
    except (NotBase64, ValueError):
        raise SaslFailed("a field of a SCRAM message is not base64") from None


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
