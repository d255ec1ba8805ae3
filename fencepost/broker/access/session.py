"""The session of a connection: who it is, and what that allows. Values and bytes, no socket.

Rule: before a session is admitted, only ApiVersions and the two SASL requests are answered.
"""

# Theory of operation
#
#     state            SaslHandshake          SaslAuthenticate                   any other request
#     ---------------  ---------------------  ---------------------------------  -----------------
#     TLS handshake    (bytes of TLS only)
#     new              -> authenticating, or  ILLEGAL_SASL_STATE                 ILLEGAL_SASL_STATE
#                      UNSUPPORTED_SASL_...
#     authenticating   ILLEGAL_SASL_STATE     -> again, -> admitted, or          ILLEGAL_SASL_STATE
#                                             SASL_AUTHENTICATION_FAILED
#     admitted         ILLEGAL_SASL_STATE     ILLEGAL_SASL_STATE                 as the ACLs say
#
# Every error before "admitted" ends the connection (SaslServerAuthenticator). Without users there is no SASL,
# and the TLS handshake admits the connection; then the principal is the name in the certificate, or
# ANONYMOUS.
#
# The broker offers every client the same mechanisms, and a client never falls back to another one, so an
# attacker in the middle cannot make the two use a weaker mechanism.

from __future__ import annotations

from typing import Final

import attrs

from fencepost.broker import limits
from fencepost.broker.access.acls import ANONYMOUS, ANYONE, OPERATIONS, Acls, Resource, bits
from fencepost.broker.access.authorize import Amendment, Verdict, authorize
from fencepost.broker.contract import Reply
from fencepost.protocol.errors import ErrorCode, FencepostError
from fencepost.protocol.frames import ReplyFrame
from fencepost.protocol.messages import (
    DescribeAcls,
    DescribeAclsReply,
    ReplyBody,
    Request,
    SaslAuthenticateReply,
    SaslHandshake,
    SaslHandshakeReply,
)
from fencepost.protocol.scram import (
    PLAIN,
    SCRAM_SHA_256,
    SaslFailed,
    ServerFirst,
    Users,
    check_plain,
    server_final,
    server_first,
)
from fencepost.protocol.secure import Tls
from fencepost.protocol.wire_protocol import ResourceKind

SASL_SERVER_MAX_RECEIVE_SIZE: Final = 16_384
"""Bytes of a frame before a session is admitted (sasl.server.max.receive.size: 524,288 in Kafka)."""


@attrs.frozen(kw_only=True)
class AccessSettings:
    """Who may connect to a broker and do what. Paths are PEM files; None turns a part off."""

    tls_cert: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    """Each client must present a certificate issued by these; without users, it names the principal."""
    users: Users | None = None
    acls: Acls | None = None
    connection_failed_authentication_delay_ms: int = 100
    authentication_timeout_ms: int = 10_000
    """For the TLS handshake and SASL together; after this time, an unauthenticated connection is closed."""

    def __attrs_post_init__(self) -> None:
        # With only one of them, the broker would silently serve without TLS.
        if (self.tls_cert is None) != (self.tls_key is None) or (self.tls_client_ca and not self.tls_cert):
            raise ValueError("TLS needs both a certificate and its private key; a client CA needs them, too")

    @property
    def is_off(self) -> bool:
        """Whether anyone may connect and do anything."""
        return self.tls_cert is None and self.users is None and self.acls is None

    @property
    def missing(self) -> list[str]:
        """The protections that a broker needs if other machines can reach it, and that are missing."""
        parts = {
            "TLS": self.tls_cert is not None,
            "users or client certificates": self.users is not None or self.tls_client_ca is not None,
            "ACLs": self.acls is not None,
        }
        return [part for part, is_there in parts.items() if not is_there]

    @property
    def unknown_principals(self) -> list[str]:
        """The principals that ACLs name and that no connection can have: most of them are typing errors.
        Empty if certificates name the principals, because any name may be in one.
        """
        if self.acls is None or (self.users is None and self.tls_client_ca is not None):
            return []
        known = {ANONYMOUS} if self.users is None else {f"User:{name}" for name in self.users.credentials}
        return sorted(self.acls.principals - known - {ANYONE})


class NotAdmitted(FencepostError):
    """The connection must end; `reply` is for the client, the text is for the broker's log."""

    def __init__(
        self, because: str, correlation_id: int, error: ErrorCode, body: ReplyBody | None = None
    ) -> None:
        super().__init__(because)
        self.reply = ReplyFrame(correlation_id, error=error, body=body)


@attrs.define(eq=False)
class Session:
    """One connection's session. `nonce` is the broker's part of the SCRAM nonce, new for each session."""

    nonce: str
    users: Users | None = attrs.field(kw_only=True)
    mechanisms: tuple[str, ...] = attrs.field(kw_only=True, default=(SCRAM_SHA_256, PLAIN))
    acls: Acls | None = attrs.field(kw_only=True)
    tls: Tls | None = attrs.field(kw_only=True, default=None)
    principal: str = ANONYMOUS
    is_admitted: bool = False
    amendments: dict[int, Amendment] = attrs.field(factory=dict)
    """By correlation id: how the reply to a request that is in progress will differ."""
    _mechanism: str | None = None
    _first: ServerFirst | None = None

    # --- bytes

    def decrypt(self, chunk: memoryview) -> bytes | memoryview:
        """Decrypt what arrived. TlsFailed ends the connection; `outgoing` then holds the alert of TLS."""
        if self.tls is None:
            return chunk
        data = self.tls.receive(chunk)
        self.admit_stranger()
        return data

    def admit_stranger(self) -> None:
        """Without users, a connection is admitted as soon as it is secure."""
        if self.is_admitted or self.users is not None or (self.tls is not None and not self.tls.is_ready):
            return
        if self.tls is not None and self.tls.peer is not None:
            self.principal = f"User:{self.tls.peer}"
        self.is_admitted = True

    # --- SASL

    def handshake(self, request: SaslHandshake, correlation_id: int) -> SaslHandshakeReply:
        """Choose the mechanism."""
        reply = SaslHandshakeReply(mechanisms=self.mechanisms)
        if self._mechanism is not None:
            because = "the client asked for a second SASL mechanism"
            raise NotAdmitted(because, correlation_id, ErrorCode.ILLEGAL_SASL_STATE)
        if request.mechanism not in self.mechanisms:
            because = f"the client asked for the SASL mechanism {request.mechanism!r}"
            raise NotAdmitted(because, correlation_id, ErrorCode.UNSUPPORTED_SASL_MECHANISM, reply)
        self._mechanism = request.mechanism
        return reply

    def authenticate(self, message: bytes, correlation_id: int) -> SaslAuthenticateReply:
        """Take one SASL message. It may compute for milliseconds, so a shell calls it in a thread."""
        try:
            return SaslAuthenticateReply(auth_bytes=self._evaluate(message))
        except SaslFailed as problem:
            # One error for a wrong password, an unknown user and a malformed message, so it reveals nothing.
            because = f"{self._mechanism}: {problem}"
            raise NotAdmitted(because, correlation_id, ErrorCode.SASL_AUTHENTICATION_FAILED) from problem

    def _evaluate(self, message: bytes) -> bytes:
        assert self.users is not None, "without users there is no SASL"
        if self._mechanism == PLAIN:
            self._admit(check_plain(message, self.users))
            return b""
        if self._first is None:
            self._first = server_first(message, self.users, self.nonce)
            return self._first.message
        answer = server_final(self._first, message)
        self._admit(self._first.username)
        return answer

    @property
    def is_authenticating(self) -> bool:
        return self._mechanism is not None

    def _admit(self, username: str) -> None:
        self.principal = f"User:{username}"
        self.is_admitted = True

    # --- ACLs

    def authorize(self, request: Request, version: int) -> Verdict:
        """The part of the request that is carried out; without ACLs all of it."""
        if self.acls is None:
            return Verdict(request=request)
        # Limits first, because rights cost time for each entry. Without ACLs, the node checks the limits.
        if (refused := limits.refused(request)) is not None:
            return Verdict(error=refused.error)
        verdict = authorize(self.acls, self.principal, request, version)
        if isinstance(verdict.request, DescribeAcls):
            return Verdict(body=DescribeAclsReply(acls=self.acls.described()))
        return verdict

    def operations(self, kind: ResourceKind, name: str) -> int:
        """The operations that the principal may perform on a resource, as Kafka's bit field."""
        if self.acls is None:
            return all_operations(kind, name)
        return bits(self.acls.operations(self.principal, Resource(kind), name))

    def amended(self, reply: Reply) -> Reply:
        """The reply as this principal may see it."""
        amendment = self.amendments.pop(reply.to.correlation_id, None)
        if amendment is None or reply.body is None:
            return reply
        return attrs.evolve(reply, body=amendment.apply(reply.body))


def all_operations(kind: ResourceKind, _name: str) -> int:
    """The operations that everyone may do without ACLs, as Kafka's bit field."""
    return bits(OPERATIONS[Resource(kind)])
