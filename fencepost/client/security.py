"""How a client secures a connection: TLS, then SASL, then its requests. Bytes in, bytes out.

Rule: a client uses exactly the security that its settings ask for. If the broker offers less, every call
raises AuthenticationFailed; the client never falls back to less.
"""

# What the machines send before the connection is ready waits in `held`. So the machines need not know about
# security, and a request whose connection never became ready was never sent.
#
#     PLAINTEXT        (no object of this module at all)
#     SSL              TLS -> ready
#     SASL_PLAINTEXT          SaslHandshake -> SaslAuthenticate, once or twice -> ready
#     SASL_SSL         TLS -> SaslHandshake -> SaslAuthenticate, once or twice -> ready
#
# A retry does not make a wrong password right, and to the broker each attempt is a guess. So the first
# refusal ends the client (Kafka: AuthenticationException is not retriable). A connection that breaks without
# a refusal is opened again like any other.

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, TypedDict

import attrs

from fencepost.client.errors import AuthenticationFailed, Failure
from fencepost.protocol.batches import Buffer
from fencepost.protocol.errors import NO_ERROR, ErrorCode, ProtocolViolation
from fencepost.protocol.frames import FrameReader, decode_reply, encode_request
from fencepost.protocol.messages import (
    API_BY_REQUEST,
    Request,
    SaslAuthenticate,
    SaslAuthenticateReply,
    SaslHandshake,
    SaslHandshakeReply,
)
from fencepost.protocol.scram import (
    PLAIN,
    SCRAM_SHA_256,
    ClientFinal,
    SaslFailed,
    check_server,
    client_final,
    client_first,
    plain_message,
)
from fencepost.protocol.secure import Tls, TlsFailed

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256"]
PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = (PLAIN, SCRAM_SHA_256)
REFUSALS: Final = frozenset({
    ErrorCode.ILLEGAL_SASL_STATE, ErrorCode.UNSUPPORTED_SASL_MECHANISM, ErrorCode.SASL_AUTHENTICATION_FAILED
})  # fmt: skip
"""The errors by which a broker refuses a connection, not a request."""


class SecuritySettings(TypedDict, total=False):
    """The settings of a client's connections, with the names of Kafka's clients for Python."""

    security_protocol: SecurityProtocol
    """PLAINTEXT (the default), SSL, SASL_PLAINTEXT or SASL_SSL."""
    sasl_mechanism: SaslMechanism
    """SCRAM-SHA-256 (the default), or PLAIN, which shows the password to the broker."""
    sasl_plain_username: str
    """The user, for either mechanism."""
    sasl_plain_password: str
    """Its password."""
    ssl_cafile: str
    """PEM file of the authorities that may sign the broker's certificate; else those of the system."""
    ssl_certfile: str
    """PEM file of the client's own certificate, if the broker requires one."""
    ssl_keyfile: str
    """PEM file of its key, if it is not in the same file."""
    ssl_check_hostname: bool
    """Whether the certificate must be for the host that the client connects to (default: True)."""


@attrs.frozen(kw_only=True)
class Security:
    """The same as a value, validated."""

    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str = SCRAM_SHA_256
    sasl_plain_username: str | None = None
    sasl_plain_password: str | None = attrs.field(default=None, repr=False)
    ssl_cafile: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_check_hostname: bool = True

    def __attrs_post_init__(self) -> None:
        if self.security_protocol not in PROTOCOLS:
            raise ValueError(
                f"security_protocol must be {', '.join(PROTOCOLS[:-1])} or {PROTOCOLS[-1]}, "
                f"not {self.security_protocol!r}"
            )
        if self.sasl_mechanism not in MECHANISMS:
            raise ValueError(f"sasl_mechanism must be {' or '.join(MECHANISMS)}, not {self.sasl_mechanism!r}")
        has_user = bool(self.sasl_plain_username and self.sasl_plain_password)
        if self.has_sasl and not has_user:
            raise ValueError(
                f"security_protocol {self.security_protocol} needs sasl_plain_username and "
                "sasl_plain_password"
            )
        if not self.has_sasl and (self.sasl_plain_username or self.sasl_plain_password):
            raise ValueError(
                f"security_protocol {self.security_protocol} does not log in, so sasl_plain_username would "
                "be ignored: choose SASL_SSL or SASL_PLAINTEXT"
            )
        if not self.has_tls and (self.ssl_cafile or self.ssl_certfile or self.ssl_keyfile):
            raise ValueError(
                f"security_protocol {self.security_protocol} has no TLS, so the ssl_... settings would be "
                "ignored: choose SSL or SASL_SSL"
            )
        for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile"):
            if self.has_tls and getattr(self, name) == "":
                raise ValueError(f"{name} is empty: give the path of a PEM file, or leave the setting out")
        if self.ssl_keyfile and not self.ssl_certfile:
            raise ValueError("ssl_keyfile needs ssl_certfile")

    @property
    def has_tls(self) -> bool:
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def has_sasl(self) -> bool:
        return self.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")


class HandshakeRefused(ProtocolViolation):
    """The broker refused the connection, and would refuse the next one, too."""

    def __init__(self, because: str, error: ErrorCode = NO_ERROR) -> None:
        super().__init__(because)
        self.failure = Failure(AuthenticationFailed, because=because, error=error)


def refusal(error: ErrorCode, security: Security | None) -> HandshakeRefused:
    """What a broker's error means for these settings."""
    match error:
        case ErrorCode.ILLEGAL_SASL_STATE if security is None or not security.has_sasl:
            because = 'the broker requires a login: set security_protocol to "SASL_SSL" or "SASL_PLAINTEXT"'
        case ErrorCode.ILLEGAL_SASL_STATE if security is not None:
            protocol = "SSL" if security.has_tls else "PLAINTEXT"
            because = f'the broker has no users: set security_protocol to "{protocol}"'
        case ErrorCode.SASL_AUTHENTICATION_FAILED if security is not None:
            because = (
                f"the broker refused user {security.sasl_plain_username!r} ({security.sasl_mechanism}): the "
                "name or the password is wrong"
            )
        case _:
            because = error.meaning
    return HandshakeRefused(f"{because} ({error.name})", error)


@attrs.define(eq=False)
class Handshake:
    """TLS and SASL of one connection, up to its first request."""

    security: Security
    tls: Tls | None
    nonce: str
    """New for each connection."""
    is_ready: bool = False
    held: list[Buffer] = attrs.field(factory=list)
    """What will be sent as soon as the connection is ready."""
    _leaving: list[Buffer] = attrs.field(factory=list)
    _frames: FrameReader = attrs.field(factory=FrameReader)
    _final: ClientFinal | None = None
    _asked: type[Request] | None = None
    _steps: int = 0

    def __attrs_post_init__(self) -> None:
        if self.tls is not None:
            self.tls.start()
        else:
            self._begin()

    def send(self, pieces: list[Buffer]) -> None:
        """Send the bytes of a request, or hold them until the connection is ready."""
        if not self.is_ready:
            self.held += pieces
        elif self.tls is None:
            self._leaving += pieces
        else:
            self.tls.send(pieces)

    def outgoing(self) -> list[Buffer]:
        """The bytes to write, since the last call."""
        leaving, self._leaving = self._leaving, []
        if self.tls is None:
            return leaving
        self.tls.send(leaving)
        return self.tls.outgoing()

    def receive(self, chunk: Buffer) -> Buffer:
        """What arrived for the requests. Raises HandshakeRefused, or another ProtocolViolation."""
        if self.tls is not None:
            was_ready = self.tls.is_ready
            try:
                chunk = self.tls.receive(chunk)
            except TlsFailed as problem:
                raise HandshakeRefused(f"no secure connection to the broker: {problem}") from problem
            if self.tls.is_ready and not was_ready:
                self._begin()
        if self.is_ready:
            return chunk
        for frame in self._frames.feed(chunk):
            self._take(frame)
        return b""

    # --- SASL

    def _begin(self) -> None:
        if self.security.has_sasl:
            self._ask(SaslHandshake(mechanism=self.security.sasl_mechanism))
        else:
            self._finish()

    def _finish(self) -> None:
        held, self.held = self.held, []
        self.is_ready = True
        self.send(held)

    def _ask(self, request: SaslHandshake | SaslAuthenticate) -> None:
        self._steps += 1
        self._leaving += encode_request(request, correlation_id=self._steps)
        self._asked = type(request)

    def _take(self, frame: memoryview) -> None:
        """Takes one reply from the broker: each leads to at most one next message."""
        assert self._asked is not None, "the broker only answers"
        reply = decode_reply(frame, API_BY_REQUEST[self._asked])
        if reply.correlation_id != self._steps:
            raise ProtocolViolation(f"a reply to {reply.correlation_id} during the login")
        if reply.error is not NO_ERROR:
            offered = ""
            if isinstance(reply.body, SaslHandshakeReply):
                offered = f"; it offers {', '.join(reply.body.mechanisms)}"
            problem = refusal(reply.error, self.security)
            raise HandshakeRefused(f"{problem}{offered}", reply.error)
        if isinstance(reply.body, SaslAuthenticateReply):
            self._continue(reply.body.auth_bytes)
        else:
            self._ask(SaslAuthenticate(auth_bytes=self._first_message()))

    @property
    def _user(self) -> tuple[str, str]:
        username, password = self.security.sasl_plain_username, self.security.sasl_plain_password
        assert username is not None, "the settings were checked"
        assert password is not None, "the settings were checked"
        return username, password

    def _first_message(self) -> bytes:
        username, password = self._user
        if self.security.sasl_mechanism == PLAIN:
            return plain_message(username, password)
        return client_first(username, self.nonce)

    def _continue(self, answer: bytes) -> None:
        if self.security.sasl_mechanism == PLAIN:
            self._finish()
            return
        try:
            if self._final is None:
                self._final = client_final(*self._user, self.nonce, answer)
                self._ask(SaslAuthenticate(auth_bytes=self._final.message))
            else:
                check_server(self._final, answer)
                self._finish()
        except SaslFailed as problem:
            raise HandshakeRefused(f"the login failed: {problem}") from problem


StartHandshake = Callable[[str], Handshake]
"""Makes the handshake of a new connection to a host; None in its place: no security."""
