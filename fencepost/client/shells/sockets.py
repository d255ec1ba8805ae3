"""What both drivers have in common: the network of one client, its clocks, and its sockets."""

from __future__ import annotations

import logging
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable
from itertools import islice

from fencepost.client.batch import OnDelivery, ProducerBatch
from fencepost.client.errors import ClientClosed
from fencepost.client.network import AddressInfo, ClientConnection, NetworkClient
from fencepost.client.security import Handshake, Security, SecuritySettings, StartHandshake
from fencepost.protocol.tls import PemFile, TlsChannel, client_context

Clock = Callable[[], int]

_log = logging.getLogger("fencepost.client")

READ_SIZE = 262_144
PIECES_PER_WRITE = 64  # far below IOV_MAX


def monotonic_ms() -> int:
    """Milliseconds of a monotonic clock, for timers."""
    return time.monotonic_ns() // 1_000_000


class NetworkDriver:
    """The network of one client, and its clocks. The drivers add how a caller waits."""

    def __init__(self, network: NetworkClient, clock: Clock) -> None:
        self.network = network
        network.warn = _log.warning
        self.resolved, self.answers = network.resolved, network.answers
        self._clock = clock
        self._due: deque[tuple[ProducerBatch, OnDelivery, int]] = deque()  # callbacks

    @property
    def has_callbacks(self) -> bool:
        return bool(self._due or self.network.callbacks)

    @property
    def is_in_call(self) -> bool:
        """Whether this runs in a call of the program, which an exception would reach."""
        return True

    def call_back(self) -> None:
        """Calls the callbacks of batches that are done, in their order. The caller holds no lock, and no
        script is in the middle of a step, so a callback may use the client.
        """
        while self.has_callbacks:
            # A callback may call this again, through flush(), or exit: what is due then is still here.
            if not self._due:
                batch = self.network.callbacks.popleft()
                self._due.extend((batch, on_delivery, index) for on_delivery, index in batch.calls())
                continue
            batch, on_delivery, index = self._due.popleft()
            try:
                on_delivery(*batch.outcome_of(index))
            except BaseException as problem:
                if self.is_in_call and not isinstance(problem, Exception):  # such as SystemExit
                    raise
                # The program's own; Kafka's producers log it, too.
                _log.exception("on_delivery failed for a record of partition %s", batch.where)

    def check_admitted(self) -> None:
        """Raises AuthenticationFailed when the broker has refused this client."""
        if self.network.failure is not None:
            raise self.network.failure.exception()

    @staticmethod
    def closed_meanwhile() -> ClientClosed:
        """The error of a call that waits when another thread or task closes the client."""
        return ClientClosed(
            "the client was closed during the call; a request that was sent may have been carried out"
        )

    @property
    def now(self) -> int:
        """Milliseconds of the clock that the client was given."""
        return self._clock()

    @property
    def wall_ms(self) -> int:
        """Milliseconds since 1970, for the timestamps of records."""
        return time.time_ns() // 1_000_000


def handshakes(settings: SecuritySettings) -> StartHandshake | None:
    """Makes the handshakes of a client's connections. ValueError for settings that contradict each other,
    BadCertificate for a file that cannot be used.
    """
    security = Security(**settings)
    if not security.has_tls and not security.has_sasl:
        return None
    context = None
    if security.has_tls:
        context = client_context(
            _pem_file("ssl_cafile", security.ssl_cafile),
            _pem_file("ssl_certfile", security.ssl_certfile),
            _pem_file("ssl_keyfile", security.ssl_keyfile),
            check_hostname=security.ssl_check_hostname,
        )

    def start(host: str) -> Handshake:
        tls = None if context is None else TlsChannel(context, server_hostname=host)
        return Handshake(security, tls, secrets.token_urlsafe(24))

    return start


def _pem_file(setting: str, path: str | None) -> PemFile | None:
    return None if path is None else PemFile(setting, path)


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
