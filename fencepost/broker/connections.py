"""One connection: the frame that its client is sending, the requests in progress, the replies not yet taken.

Rule: a connection takes room before it reads a request, and is not read from while its client does not take
the replies.
"""

# Theory of operation
#
#     receive ---> frames ---> next_request ---> begin ... end ---> send ---> unsent
#     bytes        until a     waits (below)     in_progress:       at once   what the kernel did not take;
#                  frame is                      the room of a                `_send_rest` sends it
#                  whole                         request is held
#
# Backpressure has one place: `next_request` takes no request while the peer has replies to read, there is no
# room in the pool, FETCHES_MAX fetches wait, or, in Kafka's protocol, the one before it is not answered. Then
# nothing is read either, TCP's window closes, and the peer has to stop sending.
#
# Three clocks watch a peer, each against another way to hold resources:
#
#     active_ms     nothing moves in either direction             `is_idle`: connections.max.idle.ms
#     frame_ms      a frame that is begun and never completed     `is_late`: FRAME_MS, and a second per 64 KiB
#     progress_ms   holds room that others wait for               `relieve`: STALLED_MS

from __future__ import annotations

import errno
import os
import resource
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from ipaddress import IPv4Address, ip_address
from itertools import islice
from typing import Final

import attrs
import trio

from fencepost.broker.access.session import Session, all_operations
from fencepost.broker.clocks import monotonic_ms
from fencepost.broker.memory import (
    CONNECTIONS_MAX,
    FETCH_OWN_BYTES,
    FETCHES_MAX,
    FRAME_MS,
    KIBIBYTE,
    READ_SIZE,
    REQUEST_OWN_BYTES,
    SESSION_PARTITIONS_MAX,
    MemoryBound,
    MemoryPool,
    PoolShare,
    request_bytes,
)
from fencepost.broker.settings import ConnectionSettings
from fencepost.broker.wire_protocols import ServedProtocol, Undecided
from fencepost.protocol.batches import Buffer
from fencepost.protocol.errors import FencepostError
from fencepost.protocol.forked_process import in_child
from fencepost.protocol.frames import FrameReader, ReplyFrame
from fencepost.protocol.messages import Fetch, Produce, Request
from fencepost.protocol.values import value
from fencepost.protocol.wire_protocol import FetchEncoding, NodeTopics, SessionRoom, WireProtocol

PIECES_PER_SEND_MAX: Final = 256  # below IOV_MAX, which is 1024 on Linux and macOS
COSTLY_BYTES: Final = 1 << 20  # of reserved room: 900 KB of records, or a header of 40 KB to decode
PARTS: Final = 16  # a peer makes progress when 1/16 of the bytes held for it has arrived or left
FRAME_BYTES_PER_SECOND: Final = 64 * KIBIBYTE
RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)  # a struct linger of no seconds
SWEEP_MS: Final = 1_000  # between two looks at all connections while a frame is unfinished
PRESSED_SWEEP_MS: Final = 250  # while a connection waits for room
STALLED_MS: Final = 1_000  # how long a peer may make no progress while others wait for what it holds
DESCRIPTORS_WANTED: Final = 65_536  # for connections, and for two files of each partition that is in use
DESCRIPTORS_MIN: Final = 128
DESCRIPTORS_RESERVED: Final = 64  # the listener, the lock, manifests and snapshots while they are written


def kafka_host(address: str) -> str:
    """The address of a client as Kafka shows it: /127.0.0.1, or /0:0:0:0:0:0:0:1 (InetAddress.toString)."""
    bare, percent, scope = address.partition("%")
    found = ip_address(bare)
    if isinstance(found, IPv4Address) or found.ipv4_mapped is not None:
        return f"/{found if isinstance(found, IPv4Address) else found.ipv4_mapped}"
    groups = ":".join(f"{int(group, 16):x}" for group in found.exploded.split(":"))
    return f"/{groups}{percent}{scope}"


@value
class InProgress:
    """A request without a reply, the room that it takes, when it was taken up, and whose it is."""

    kind: type[Request]
    size: int
    began_ns: int
    transactional_id: str | None
    client_id: str


@attrs.define(eq=False)
class Connection:
    """One client: the frame that it sends, its requests in progress, and the replies it has yet to read."""

    number: int
    socket: socket.socket
    client_host: str
    nursery: trio.Nursery
    requests: PoolShare
    answers: PoolShare
    protocol: WireProtocol
    session: Session | None = None  # None: everyone may do everything
    reserved: int = 0  # room that was taken for the next frame
    took_ns: int = 0  # when work on its last frame began
    was_slow: bool = False  # its last request took a whole round
    is_in_line: bool = False  # its request waits for costly ones of others
    in_progress: dict[int, InProgress] = attrs.Factory(dict[int, InProgress])  # by correlation id
    fetches: int = 0  # how many of them are fetches
    unsent: deque[memoryview] = attrs.Factory(deque[memoryview])
    unsent_from: int = 0  # the bytes of the first piece that were sent
    is_closed: bool = False
    is_reading: bool = False  # it waits for its peer, not for room
    room: trio.lowlevel.ParkingLot = attrs.Factory(trio.lowlevel.ParkingLot)
    active_ms: int = attrs.Factory(monotonic_ms)
    frame_ms: int = 0  # when the current frame began; time that it waited for room does not count
    progress_ms: int = attrs.Factory(monotonic_ms)  # when the last sixteenth of what is held arrived or left
    progress_bytes: int = 0  # since then
    # What has arrived but is not in progress: `protocol.frames`, kept here because every request uses it.
    frames: FrameReader = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.frames = self.protocol.frames

    # --- requests

    async def receive(self, into: memoryview) -> bool:
        """Wait for bytes, and add them to `frames`. False when the connection has ended."""
        if self.session is not None and self.session.tls is not None and self.session.tls.is_ended:
            return False
        size_max = READ_SIZE - self.frames.arrived
        if size_max <= 0:
            # A large frame has begun to arrive. Its bytes are read once there is room for all of them, and
            # with them the beginning of the next frame.
            announced = self.frames.announced()
            assert announced is not None, "this many bytes hold the two lengths"
            if not (self.reserved or self._reserves(*announced)):
                await self._wait_for_room()
            size_max = announced[0] - self.frames.arrived + READ_SIZE
        while not self.is_closed:
            self.is_reading = True
            try:
                await trio.lowlevel.wait_readable(self.socket)
                size = self.socket.recv_into(into[:size_max])
            except BlockingIOError:
                continue
            except (OSError, trio.ClosedResourceError):
                break
            finally:
                self.is_reading = False
            self._progressed(size)
            if not self.frames.arrived:
                self.frame_ms = self.active_ms
            chunk = into[:size]
            self.frames.add(chunk if self.session is None else self._decrypted(self.session, chunk))
            if isinstance(self.protocol, Undecided):
                self.protocol = self.protocol.decided()
                self.frames = self.protocol.frames
            return size > 0
        return False

    def _decrypted(self, session: Session, chunk: memoryview) -> Buffer:
        """The bytes that the client sent, decrypted; TLS may send messages of its own in between."""
        try:
            return session.decrypt(chunk)
        finally:
            if session.tls is not None:
                self._send(session.tls.outgoing())

    async def next_request(self) -> memoryview | None:
        """The next request that has arrived whole, as soon as there is room for it and for its reply.

        None if the bytes do not suffice, or the connection has ended.
        """
        announced = self.frames.announced()
        if announced is None:
            return None
        size, header_size = announced
        if self.frames.arrived < size:
            return None
        if not (self.reserved or self._reserves(size, header_size)):
            await self._wait_for_room()
        # Some replies must leave before this request is taken up.
        while (
            self.unsent or self.fetches >= FETCHES_MAX or (self.protocol.is_serial and self.in_progress)
        ) and not self.is_closed:
            await self.room.park()
        self.frame_ms = self.active_ms
        return None if self.is_closed else self.frames.take_whole(size)

    def _reserves(self, size: int, header_size: int) -> bool:
        """Take room for the next frame, and for what is decoded from it. False if it must wait for room."""
        needed = request_bytes(size, header_size)
        if self.is_closed or not self.requests.ask(needed, self._continue):
            return False
        self.reserved = needed
        return True

    async def _wait_for_room(self) -> None:
        began_ms = monotonic_ms()
        size = self.requests.asked
        while self.requests.asked:
            await self.room.park()
        if not self.is_closed:
            self.frame_ms += monotonic_ms() - began_ms
            self.reserved = size

    def _continue(self) -> None:
        self.progress_ms, self.progress_bytes = monotonic_ms(), 0
        self.room.unpark_all()

    @property
    def is_costly(self) -> bool:
        """Whether the request that was just taken may keep the others waiting."""
        return self.was_slow or self.reserved > COSTLY_BYTES

    def begin(self, correlation_id: int, request: Request, client_id: str) -> None:
        """A request is in progress, with the room that was taken for it."""
        kind, name = type(request), getattr(request, "transactional_id", None)
        began_ns = time.monotonic_ns()
        self.in_progress[correlation_id] = InProgress(kind, self.reserved, began_ns, name, client_id)
        self.fetches += kind is Fetch
        self.reserved = 0

    def end(self, correlation_id: int) -> InProgress | None:
        """A request is answered: give its room back. None if it was answered before."""
        ended = self.in_progress.pop(correlation_id, None)
        if ended is None:
            return None
        if ended.kind is Fetch:
            self.fetches -= 1
        if ended.kind is Fetch or self.protocol.is_serial:
            self.room.unpark_all()
        self.requests.give(ended.size)
        return ended

    def drop_reserved(self) -> None:
        """Give back the room of a request that gets no reply, or got one at once."""
        size, self.reserved = self.reserved, 0
        self.requests.give(size)

    # --- replies

    def reply(self, reply: ReplyFrame) -> None:
        """Send the reply to a request that never reached the node."""
        pieces = self.protocol.reply(reply).pieces
        if pieces is not None:
            self.send(pieces)

    def send(self, pieces: list[Buffer]) -> None:
        """Send a reply: as much as the kernel takes at once; a task sends the rest."""
        if self.session is not None and (tls := self.session.tls) is not None:
            if not tls.is_ready:
                return  # before the handshake is done, a refusal cannot be sent
            tls.send(pieces)
            pieces = tls.outgoing()
        self._send(pieces)

    def _send(self, pieces: list[Buffer]) -> None:
        if self.is_closed or not pieces:
            return
        if self.unsent:
            self._queue(pieces)
            return
        self.active_ms = self.progress_ms = monotonic_ms()
        self.progress_bytes = 0
        sent = self._push(pieces[:PIECES_PER_SEND_MAX])
        if sent < sum(map(len, pieces)) and not self.is_closed:
            self._queue(pieces)
            self._drop_sent(sent)
            self.nursery.start_soon(self._send_rest)

    def _queue(self, pieces: list[Buffer]) -> None:
        # An empty piece would stay in the queue forever: `sendmsg` never reports it as sent.
        self.unsent.extend(memoryview(piece) for piece in pieces if len(piece))
        self.answers.take(sum(map(len, pieces)))

    def _drop_sent(self, sent: int) -> None:
        sent += self.unsent_from
        while self.unsent and sent >= len(self.unsent[0]):
            # A piece keeps all of its memory until it is sent completely.
            size = len(self.unsent.popleft())
            self.answers.give(size)
            sent -= size
        self.unsent_from = sent

    def _push(self, pieces: list[Buffer]) -> int:
        try:
            return self.socket.sendmsg(pieces)
        except BlockingIOError:
            return 0
        except OSError:
            self.close()  # the peer is gone; the task that reads reports Disconnected to the node
            return 0

    async def _send_rest(self) -> None:
        """Send what the kernel did not take at once, as the peer makes room."""
        while self.unsent:
            try:
                await trio.lowlevel.wait_writable(self.socket)
            except (OSError, trio.ClosedResourceError):
                self.close()
                return
            if self.unsent:  # else it was closed in the meantime
                first = self.unsent[0][self.unsent_from :]
                sent = self._push([first, *islice(self.unsent, 1, PIECES_PER_SEND_MAX)])
                self._progressed(sent)
                self._drop_sent(sent)
        self.room.unpark_all()

    # --- both

    @property
    def is_trusted(self) -> bool:
        """Whether requests that need trust are carried out: with ACLs, the rights to them have been checked;
        without, the client must be on this machine.
        """
        if self.session is not None and self.session.acls is not None:
            return True
        return ip_address(self.client_host.removeprefix("/").partition("%")[0]).is_loopback

    @property
    def peer(self) -> str:
        """The address of the client, for the log."""
        try:
            host, port = self.socket.getpeername()[:2]
        except OSError:
            return "a closed connection"
        return f"{host}:{port}"

    @property
    def stalled_bytes(self) -> int:
        """The bytes that it holds until its peer makes progress: of its frame, of requests that wait for
        others, and of replies. What waits for the broker does not count: a Produce, and a request in line.
        """
        if self.is_in_line:
            return 0
        produced = sum(each.size for each in self.in_progress.values() if each.kind is Produce)
        return self.requests.held - produced + self.answers.held

    def is_idle(self, now: int, idle_ms: int) -> bool:
        """Whether no byte was sent or received for `idle_ms`, although it was the peer's turn."""
        waits_for_peer = self.unsent or (self.is_reading and not self.in_progress)
        return bool(waits_for_peer) and now - self.active_ms >= idle_ms

    def is_late(self, now: int) -> bool:
        """Whether its peer takes too long for the frame that it has begun."""
        arrived = self.frames.arrived
        in_time_ms = FRAME_MS + 1_000 * arrived // FRAME_BYTES_PER_SECOND
        return self.is_reading and arrived > 0 and now - self.frame_ms > in_time_ms

    def _progressed(self, size: int) -> None:
        self.active_ms = monotonic_ms()
        self.progress_bytes += size
        if self.progress_bytes * PARTS >= self.requests.held + self.answers.held:
            self.progress_ms, self.progress_bytes = self.active_ms, 0

    def reset(self) -> None:
        """Close the socket as the death of a process does: unsent and unread bytes are lost."""
        if not self.is_closed:
            with suppress(OSError):  # the peer was faster
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self.close()

    def close(self) -> None:
        """Close the socket, give all room back, and wake the tasks that wait. Further calls do nothing."""
        if not self.is_closed:
            self.is_closed = True
            trio.lowlevel.notify_closing(self.socket)
            self.socket.close()
            self.unsent.clear()
            self.in_progress.clear()
            self.fetches = self.reserved = 0
            self.requests.close()
            self.answers.close()
            self.protocol.close()
            self.room.unpark_all()


def raise_descriptor_limit() -> None:
    """Let this process open as many files and sockets as its hard limit allows, within reason.

    TooFewDescriptors if that is not enough: with fewer than DESCRIPTORS_MIN a broker starts, and then can
    neither open its logs nor accept connections.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_WANTED)
    if wanted < DESCRIPTORS_MIN:
        raise TooFewDescriptors(
            f"this process may open at most {wanted} files and sockets (ulimit -Hn), and a broker needs at "
            f"least {DESCRIPTORS_MIN}. Start it from a shell or a service with a higher hard limit"
        )
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class TooFewDescriptors(FencepostError):
    """The operating system lets this process open too few files and sockets."""


NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE})
NO_MEMORY: Final = frozenset({errno.ENOBUFS, errno.ENOMEM})
OF_ONE_CONNECTION: Final = frozenset(
    {errno.EAGAIN, errno.EPERM, errno.ECONNABORTED, errno.ECONNRESET, errno.ETIMEDOUT, errno.EPROTO}
    | {errno.ENOPROTOOPT, errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT, errno.EOPNOTSUPP}
    | {errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH}
)
"""What accept() raises because the next connection is gone, or a firewall forbids it: Linux passes pending
network errors on through accept(2). The connections behind it can still be accepted.
"""


def half_of_descriptors() -> int:
    """Half of the descriptors that this process may open; the other half is for the files of the logs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return DESCRIPTORS_WANTED
    return max(1, (soft - DESCRIPTORS_RESERVED) // 2)


class SpareDescriptor:
    """A descriptor to give up when no other one is left, so that a connection can be accepted and closed.

    A connection that is left in the backlog would wake the broker again at once, and its client would wait in
    vain.
    """

    def __init__(self) -> None:
        self._number: int | None = None
        self.open()

    def open(self) -> bool:
        """Take it. False if no descriptor is left."""
        try:
            self._number = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Give it up."""
        number, self._number = self._number, None
        if number is not None:
            os.close(number)


@attrs.define(eq=False)
class ConnectionTable:
    """All connections of a broker, and what they share. `report` tells the operator why one is
    closed; `pressed` is called when one must wait for room.
    """

    settings: ConnectionSettings
    topics: NodeTopics
    report: Callable[[Connection, str], None]
    pressed: Callable[[], None]
    has_tls: bool = False
    protocol: ServedProtocol = ServedProtocol.BOTH
    opened: dict[int, Connection] = attrs.Factory(dict[int, Connection])
    made: int = 0
    sessions: SessionRoom = attrs.Factory(lambda: SessionRoom(SESSION_PARTITIONS_MAX))
    limit: int = attrs.field(init=False)
    requests: MemoryPool = attrs.field(init=False)
    answers: MemoryPool = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.limit = min(self.settings.max_connections or CONNECTIONS_MAX, half_of_descriptors())
        self.requests = MemoryPool(self.settings.queued_max_request_bytes, pressed=self.pressed)
        self.answers = MemoryPool(self.settings.queued_max_response_bytes, pressed=self.pressed)

    def open(
        self, accepted: socket.socket, host: str, nursery: trio.Nursery, session: Session | None = None
    ) -> Connection:
        in_child(accepted, socket.socket.close).setblocking(False)
        with suppress(OSError):  # macOS: the peer has reset it already, which the first read reports
            # A reply is handed over whole; to wait for more of it would only delay it.
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.made += 1
        number = self.made
        connection = self.opened[number] = Connection(
            number,
            accepted,
            kafka_host(host),
            nursery,
            PoolShare(self.requests, number, REQUEST_OWN_BYTES),
            PoolShare(self.answers, number, FETCHES_MAX * FETCH_OWN_BYTES),
            Undecided(
                self.topics,
                self.sessions,
                all_operations if session is None else session.operations,
                self.protocol,
            ),
            session,
        )
        return connection

    @property
    def is_full(self) -> bool:
        """Whether max.connections connections are open."""
        return len(self.opened) >= self.limit

    @property
    def memory(self) -> MemoryBound:
        """The most memory that the broker takes for its clients."""
        return MemoryBound.of(self.settings, connections=self.limit, has_tls=self.has_tls)

    def is_open(self, number: int) -> bool:
        """Whether this connection is open, so that a reply can be sent."""
        connection = self.opened.get(number)
        return connection is not None and not connection.is_closed

    def fetch_encoding(self, number: int) -> FetchEncoding | None:
        """How the records of a Fetch of this connection are encoded; None: as they are stored."""
        connection = self.opened.get(number)
        return None if connection is None else connection.protocol.fetch_encoding()

    def sweep(self, now: int) -> int:
        """Close connections that are idle or late, or hold what others wait for. Returns when to look again
        (ms).
        """
        idle_ms = self.settings.connections_max_idle_ms
        again_ms = now + max(1, idle_ms // 4)
        for connection in list(self.opened.values()):
            if connection.is_late(now):
                arrived, taken_ms = connection.frames.arrived, now - connection.frame_ms
                self.drop(connection, f"sent {arrived} bytes of a request in {taken_ms} ms")
            elif connection.is_idle(now, idle_ms):
                connection.close()
            elif connection.frames.arrived:
                again_ms = min(again_ms, now + SWEEP_MS)
        if self.requests.is_wanted or self.answers.is_wanted:
            again_ms = now + PRESSED_SWEEP_MS
            self.relieve(now)
        return again_ms

    def relieve(self, now: int) -> None:
        """Close connections whose peers make no progress while others wait for room, the largest first."""
        stalled = [each for each in self.opened.values() if now - each.progress_ms >= STALLED_MS]
        for connection in sorted(stalled, key=lambda each: each.stalled_bytes, reverse=True):
            holds_wanted = (self.requests.is_wanted and connection.requests.is_from_pool) or (
                self.answers.is_wanted and connection.answers.is_from_pool
            )
            if holds_wanted and connection.stalled_bytes:
                held = connection.stalled_bytes
                why = f"made no progress for a second and held {held} bytes of memory that others need"
                self.drop(connection, why)

    def shrink(self) -> None:
        """Close the connections with the largest replies until all replies fit into their pool."""
        while self.answers.free < 0:
            largest = max(self.opened.values(), key=lambda each: each.answers.held)
            self.drop(largest, f"had not read {largest.answers.held} bytes of replies")

    def drop(self, connection: Connection, why: str) -> None:
        """Close a connection, and tell the operator why."""
        self.report(connection, why)
        connection.close()
