"""Sockets and clocks, as both drivers use them."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

from fencepost.client.network import ClientConnection

Clock = Callable[[], int]

READ_SIZE = 262_144
PIECES_PER_WRITE = 64  # far below IOV_MAX


def monotonic_ms() -> int:
    """Milliseconds of a monotonic clock, for timers."""
    return time.monotonic_ns() // 1_000_000


def wall_ms() -> int:
    """Milliseconds since 1970, for the timestamps of records."""
    return time.time_ns() // 1_000_000


AddressInfo = tuple[int, int, int, str, Any]
"""A result of getaddrinfo: family, kind, protocol, canonical name, address."""


def connecting_socket(info: AddressInfo) -> socket.socket:
    """A non-blocking socket that is connecting; OSError if connect() fails at once."""
    family, kind, protocol, _, address = info
    link = socket.socket(family, kind, protocol)
    link.setblocking(False)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        link.connect(address)
    except BlockingIOError:
        pass  # in progress: the socket becomes writable when it is connected
    except OSError:
        link.close()
        raise
    return link


def write_some(link: socket.socket, connection: ClientConnection) -> bool:
    """Writes what the socket accepts; True when the outbox is empty. OSError when the connection is lost."""
    outbox = connection.outbox
    while outbox:
        try:
            written = link.sendmsg(list(islice(outbox, PIECES_PER_WRITE)))
        except BlockingIOError:
            return False
        while written:
            piece = memoryview(outbox[0])
            if written < len(piece):
                outbox[0] = piece[written:]
                break
            written -= len(piece)
            outbox.popleft()
    return True
