"""Sockets of the blocking shell: one selector round at a time, and
the keeper thread that does rounds when nobody calls.

Rule: the lock guards the session and is never held while waiting; one thread at a time waits for the sockets.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

from fencepost.client.connection import Connection
from fencepost.client.session import Session

Clock = Callable[[], int]

# The longest wait in one round: when two threads wait, the
# answer of one can arrive in the round of the other.
ROUND_MS = 100

READ_SIZE = 262_144
PIECES_PER_WRITE = 64  # far below IOV_MAX


def monotonic_ms() -> int:
    """Milliseconds that only go forward, for timers."""
    return time.monotonic_ns() // 1_000_000


def wall_ms() -> int:
    """Milliseconds since 1970, for the timestamps of records."""
    return time.time_ns() // 1_000_000


AddressInfo = tuple[int, int, int, str, Any]
"""What getaddrinfo gives: family, kind, protocol, canonical name, address."""


def connecting_socket(info: AddressInfo) -> socket.socket:
    """A non-blocking socket that is connecting; OSError when even that is not possible."""
    family, kind, protocol, _, address = info
    link = socket.socket(family, kind, protocol)
    link.setblocking(False)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        link.connect(address)
    except BlockingIOError:
        pass  # on its way: it is writable when it is there
    except OSError:
        link.close()
        raise
    return link


def write_some(link: socket.socket, connection: Connection) -> bool:
    """Writes what the socket takes; True when nothing is left. OSError when the connection is gone."""
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


class Wires:
    """The sockets of one session. `round` waits for them without holding the lock that guards the session."""

    def __init__(self, session: Session, *, lock: threading.Lock, clock: Clock) -> None:
        self.session = session
        self.lock = lock
        self.clock = clock
        self._sockets: dict[int, socket.socket] = {}
        self._connecting: set[int] = set()
        self._selector = selectors.DefaultSelector()
        self._pumping = threading.Lock()
        self._buffer = bytearray(READ_SIZE)

    def push(self) -> None:
        """Connects what must be connected and writes what can be written; the lock is held."""
        session = self.session
        while session.to_open:
            self._open(session.to_open.pop(0))
        for node, connection in list(session.connections.items()):
            if connection.outbox and node not in self._connecting and node in self._sockets:
                self._write(node, connection)

    def _open(self, node: int) -> None:
        address = self.session.address(node)
        try:
            if address is None:
                raise OSError(f"node {node} is not known any more")
            info = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
            self._sockets[node] = link = connecting_socket(info)
        except OSError:
            self.session.lost(node, self.clock())
            return
        self._connecting.add(node)
        self._selector.register(link, selectors.EVENT_WRITE, node)

    def _write(self, node: int, connection: Connection) -> None:
        link = self._sockets[node]
        try:
            is_empty = write_some(link, connection)
        except OSError:
            self._lost(node)
            return
        wanted = selectors.EVENT_READ if is_empty else selectors.EVENT_READ | selectors.EVENT_WRITE
        if self._selector.get_key(link).events != wanted:
            self._selector.modify(link, wanted, node)

    def round(self, timeout_ms: int, *, wait_for_turn: bool = True) -> None:
        """Waits up to `timeout_ms` for something to happen and deals with it; the caller holds no lock."""
        if not self._pumping.acquire(blocking=wait_for_turn):
            return
        try:
            with self.lock:
                self.push()
                wake_at = self.session.wake_at
            if wake_at is not None:
                timeout_ms = min(timeout_ms, max(0, wake_at - self.clock()))
            ready = self._selector.select(timeout_ms / 1000)
            with self.lock:
                for key, events in ready:
                    self._serve(key.data, events)
                for node in self.session.wake(self.clock()):
                    self._close(node)
                self.push()
        finally:
            self._pumping.release()

    def _serve(self, node: int, events: int) -> None:
        link = self._sockets.get(node)
        connection = self.session.connections.get(node)
        if link is None or connection is None:
            return
        if node in self._connecting:
            if link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self._lost(node)
                return
            self._connecting.discard(node)
        if events & selectors.EVENT_WRITE:
            self._write(node, connection)
        if events & selectors.EVENT_READ and self._sockets.get(node) is link:
            self._read(node, link)

    def _read(self, node: int, link: socket.socket) -> None:
        try:
            count = link.recv_into(self._buffer)
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if not count:
            self._lost(node)
        elif self.session.received(node, memoryview(self._buffer)[:count], self.clock()) is not None:
            self._close(node)

    def _lost(self, node: int) -> None:
        self._close(node)
        self.session.lost(node, self.clock())

    def _close(self, node: int) -> None:
        link = self._sockets.pop(node, None)
        self._connecting.discard(node)
        if link is not None:
            self._selector.unregister(link)
            link.close()

    def close(self) -> None:
        """Closes every socket."""
        for node in list(self._sockets):
            self._close(node)
        self._selector.close()


class Keeper:
    """A thread that does rounds while something is unfinished, so that nothing waits for the caller's next
    call.

    It looks every few milliseconds and steps aside when a caller does rounds, so callers never wait for it to
    wake up.
    """

    TICK_MAX_MS = 50

    def __init__(self, wires: Wires, has_work: Callable[[], bool], *, tick_ms: int) -> None:
        self._wires = wires
        self._has_work = has_work
        self._tick_ms = max(1, tick_ms)
        self._wanted = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def want(self) -> None:
        """There is work: called for each new batch, so it costs little when the thread is awake."""
        if self._wanted.is_set():
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="fencepost-keeper", daemon=True)
            self._thread.start()
        self._wanted.set()

    def stop(self) -> None:
        """Ends the thread and waits for its end."""
        with self._wires.lock:  # the thread decides under it to sleep: it must not do so after it was stopped
            self._stopped.set()
            self._wanted.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        tick_ms = self._tick_ms
        while True:
            self._wanted.wait()
            if self._stopped.wait(tick_ms / 1000):
                return
            self._wires.round(0, wait_for_turn=False)
            tick_ms = min(2 * tick_ms, self.TICK_MAX_MS)
            with self._wires.lock:
                if not self._has_work() and not self._stopped.is_set():
                    self._wanted.clear()
                    tick_ms = self._tick_ms
