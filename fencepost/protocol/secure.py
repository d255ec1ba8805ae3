"""TLS as cores see it: bytes in, bytes out. `tls.py` has the real one.

Rule: a connection that mixes TLS and plaintext fails with a sentence on both sides, never by a timeout.
"""

# The first byte tells the two apart. A TLS connection begins with a handshake record (0x16), or with an alert
# (0x15). A frame that began with either would be longer than 350 MB, which no side accepts.

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from fencepost.protocol.batches import Buffer
from fencepost.protocol.errors import ProtocolViolation

HANDSHAKE_RECORD: Final = 0x16
ALERT_RECORD: Final = 0x15
VERSION_ALERT: Final = bytes((ALERT_RECORD, 3, 3, 0, 2, 2, 70))
"""A fatal alert, protocol_version: what a TLS server says to a client without TLS."""


class TlsFailed(ProtocolViolation):
    """The TLS handshake failed, or what came later was not TLS; the message says why."""


class WrongTransport(TlsFailed):
    """One side speaks TLS and the other does not."""


class Tls(Protocol):
    """One side of a TLS connection."""

    is_ready: bool
    """Whether the handshake is done."""
    is_ended: bool
    """Whether the peer has said that it will send no more (close_notify), and expects the end."""

    def start(self) -> None:
        """Begin the handshake, as the client."""
        ...

    def receive(self, chunk: Buffer) -> bytes:
        """Take bytes from the peer; return what they decrypt to. TlsFailed ends the connection."""
        ...

    def send(self, pieces: Iterable[Buffer]) -> None:
        """Encrypt; only after the handshake."""
        ...

    def outgoing(self) -> list[Buffer]:
        """The bytes to write to the peer since the last call."""
        ...

    @property
    def peer(self) -> str | None:
        """The name in the peer's certificate, as RFC 2253 writes it; None without a certificate."""
        ...
