"""Admission: TLS and SASL of a new connection, before the server reads its requests.

Rule: a stranger costs little and not for long: small frames, one deadline, few password checks at a time.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from ipaddress import ip_address
from typing import Final

import trio

from fencepost.broker.access.session import SASL_SERVER_MAX_RECEIVE_SIZE, AccessSettings, NotAdmitted, Session
from fencepost.broker.connections import Connection
from fencepost.protocol.errors import NO_ERROR, ErrorCode, ProtocolViolation
from fencepost.protocol.frames import FRAME_SIZE_MAX, ReplyFrame, RequestFrame
from fencepost.protocol.messages import ApiVersions, ReplyBody, SaslAuthenticate, SaslHandshake
from fencepost.protocol.scram import PLAIN, SCRAM_SHA_256
from fencepost.protocol.tls import PemFile, TlsChannel, server_context

PASSWORD_CHECKS_MAX: Final = 2  # at a time: guesses must not take all processors
RECEIVE_SIZE: Final = 1 << 14
STRANGER_REQUESTS_MAX: Final = 16  # before the login is done; clients send up to five

PassOn = Callable[[Connection, RequestFrame], None]
"""Handles a request that needs no authentication."""


class Admission:
    """How the connections of one listener are admitted. BadCertificate if a file cannot be used."""

    def __init__(self, access: AccessSettings, *, address: str) -> None:
        self.access = access
        self._tls = None
        if access.tls_cert is not None and access.tls_key is not None:
            ca = access.tls_client_ca
            self._tls = server_context(
                PemFile("tls_cert", access.tls_cert),
                PemFile("tls_key", access.tls_key),
                None if ca is None else PemFile("tls_client_ca", ca),
            )
        # PLAIN sends the password in clear text: anyone on the path can read it.
        is_private = self._tls is not None or ip_address(address.partition("%")[0]).is_loopback
        self._mechanisms = (SCRAM_SHA_256, PLAIN) if is_private else (SCRAM_SHA_256,)
        self._checks = trio.CapacityLimiter(PASSWORD_CHECKS_MAX)

    def session(self) -> Session:
        """The session of a new connection."""
        access = self.access
        return Session(
            secrets.token_urlsafe(24),
            users=access.users,
            mechanisms=self._mechanisms,
            acls=access.acls,
            tls=None if self._tls is None else TlsChannel(self._tls, is_server=True),
        )

    async def admit(self, connection: Connection, pass_on: PassOn) -> bool:
        """Wait until the connection is admitted; False if it ended first. What came after the login is in
        its `frames`. Raises NotAdmitted, TlsFailed or another ProtocolViolation.
        """
        assert connection.session is not None, "every connection of this listener has one"
        seconds = self.access.authentication_timeout_ms / 1000
        with trio.move_on_after(seconds):
            return await self._admit(connection, connection.session, pass_on)
        raise NotAdmitted(f"no authentication within {seconds:g} s", 0, ErrorCode.REQUEST_TIMED_OUT)

    async def _admit(self, connection: Connection, session: Session, pass_on: PassOn) -> bool:
        buffer = memoryview(bytearray(RECEIVE_SIZE))
        session.admit_stranger()
        asked = 0
        while not session.is_admitted:
            connection.frames.frame_size_max = SASL_SERVER_MAX_RECEIVE_SIZE
            if not await connection.receive(buffer):
                return False
            while not session.is_admitted and (frame := connection.frames.take()) is not None:
                asked += 1
                await self._take(connection, session, frame, pass_on, asked)
                await trio.lowlevel.checkpoint()  # let the other connections have their turns
        connection.frames.frame_size_max = FRAME_SIZE_MAX
        return True

    async def _take(
        self, connection: Connection, session: Session, frame: memoryview, pass_on: PassOn, asked: int
    ) -> None:
        taken = connection.protocol.ask(frame)
        if taken.pieces is not None:  # a version that is not supported
            if taken.needs_login or asked > STRANGER_REQUESTS_MAX:
                raise ProtocolViolation("the client sent a request before it authenticated")
            connection.send(taken.pieces)
        for arrived in taken.requests:
            await self._answer(connection, session, arrived, pass_on, asked)

    async def _answer(
        self, connection: Connection, session: Session, arrived: RequestFrame, pass_on: PassOn, asked: int
    ) -> None:
        request, number = arrived.request, arrived.correlation_id
        if asked > STRANGER_REQUESTS_MAX:
            # Each of these requests costs as much as one from an authenticated user.
            because = f"more than {STRANGER_REQUESTS_MAX} requests before the client authenticated"
            raise NotAdmitted(because, number, ErrorCode.ILLEGAL_SASL_STATE)
        body: ReplyBody
        match request:
            case ApiVersions():
                pass_on(connection, arrived)
                return
            case SaslHandshake():
                body = session.handshake(request, number)
            case SaslAuthenticate() if session.is_authenticating:
                body = await self._authenticate(session, request.auth_bytes, number)
            case _:
                because = f"{type(request).__name__} before the client authenticated"
                raise NotAdmitted(because, number, ErrorCode.ILLEGAL_SASL_STATE)
        connection.reply(ReplyFrame(number, error=NO_ERROR, body=body))

    async def _authenticate(self, session: Session, message: bytes, number: int) -> ReplyBody:
        try:
            return await trio.to_thread.run_sync(session.authenticate, message, number, limiter=self._checks)
        except NotAdmitted:
            # Each guess costs its client a while, as in Kafka (KIP-306). The limiter is free again by now.
            await trio.sleep(self.access.connection_failed_authentication_delay_ms / 1000)
            raise


def admission_to(listener: socket.socket, access: AccessSettings) -> Admission | None:
    """How connections to the listener are admitted; None if everyone may do everything. Raises
    BadCertificate.
    """
    return None if access.is_off else Admission(access, address=listener.getsockname()[0])
