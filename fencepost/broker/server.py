"""The trio server: the shell of a broker process, with its sockets, clock, sync threads and signals.

Rule: per wake-up a connection reads all bytes that are there and sends all answers; no message awaits.
"""

# Theory of operation
#
# One thread runs everything except syncs. Node and host are plain function calls in it, so they need no
# locks.
#
#     task              waits for                    then
#     accept            a connection                 starts its `_serve`
#     _serve / _read    readable bytes               frames -> host.offer, then turn()
#     _serve / write_rest  a writable socket         sends what the kernel did not take at once
#     keep_time         the next deadline            host.tick, manifests, turn()
#     sync              a log in host.unsynced       one fsync per log, each in a worker thread, then turn()
#
# `turn` is the heart: it lets the host work until nothing is left to do, and hands all answers to the kernel.
# One receive often brings many requests and one send takes many answers, so the costs of trio (a checkpoint,
# a cancel scope) occur once per wake-up, not once per message. What they would cost otherwise is measured in
# docs/performance.md.
#
# Back-pressure has two limits per connection. A client that does not take its answers is not read from while
# more than UNSENT_BYTES_MAX are waiting: its requests then stay in its own send buffer. A Fetch may be
# answered with 50 MiB, so at most FETCHES_MAX of one connection are in progress at a time. A slow reader
# therefore costs memory up to these limits, and it does not delay other clients.
#
# Syncs run in rounds. All logs that wait are synced in parallel threads, one fsync each, and every
# transaction whose record was written before the round shares its cost (group commit). While they run, the
# node takes further requests; their records wait for the next round. Results return to the trio thread, so
# the host never sees another thread. A log may be deleted or given up during its sync; `directory.holds` then
# discards the result, since it is not about the log that has this name now.
#
# A stop closes host, directory and listener, in this order (`_opened`). A kill skips it and is equally legal:
# recovery must cope anyway, a clean stop only makes the next start faster.

from __future__ import annotations

import errno
import gc
import json
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final

import attrs
import trio

from fencepost.broker.contract import Append, Disconnected, Received, Reply, ReplyTo
from fencepost.broker.faults import DropReply, PauseAfterAppend, server_faults
from fencepost.broker.host import MANIFEST_INTERVAL_MS, Host, SyncPolicy, Trouble
from fencepost.broker.node import Node
from fencepost.broker.settings import NodeSettings
from fencepost.journal.data_directory import DataDirectory
from fencepost.journal.disk import DiskStorage
from fencepost.journal.journal import Journal, JournalSettings
from fencepost.journal.memory import MemoryStorage
from fencepost.journal.storage import StorageError
from fencepost.protocol.batches import Buffer
from fencepost.protocol.errors import ErrorCode, FencepostError, ProtocolViolation
from fencepost.protocol.frames import (
    FrameReader,
    FrameTooLarge,
    ReplyFrame,
    UnsupportedVersion,
    decode_request,
    encode_reply,
)
from fencepost.protocol.messages import Fetch, Produce
from fencepost.protocol.terms import escaped

# Bytes per wake-up of a connection: a limit, so that one busy client does not starve the others.
RECEIVE_SIZE: Final = 1 << 20
FETCHES_MAX: Final = 4  # in progress per connection: each may be answered with `fetch.max.bytes`
IDLE_WAKE_MS: Final = 3_600_000


class CannotListen(FencepostError):
    """The broker cannot listen on this address; the message says what to do."""


@attrs.frozen(kw_only=True)
class BrokerSettings:
    """Settings of one broker process. `directory` None means in memory; `port` 0 means any free port."""

    directory: str | None = None
    host: str = "127.0.0.1"
    port: int = 0
    sync: SyncPolicy = SyncPolicy.NONE
    node: NodeSettings = attrs.Factory(NodeSettings)
    journal: JournalSettings = attrs.Factory(JournalSettings)
    faults: tuple[str, ...] = ()


@attrs.frozen
class Ready:
    """The address on which a broker listens."""

    host: str
    port: int

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


def now_ms() -> int:
    """The time of records and deadlines: milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Milliseconds that never go back, for intervals."""
    return time.monotonic_ns() // 1_000_000


UNSENT_BYTES_MAX: Final = 64 << 20  # beyond this a connection is not read from until its peer takes answers
PIECES_PER_SEND_MAX: Final = 256  # below IOV_MAX, which is 1024 on Linux and macOS


@attrs.define(eq=False)
class Connection:
    """One client: the frame that it is sending, and the answers that it has not taken yet."""

    number: int
    socket: socket.socket
    frames: FrameReader = attrs.Factory(FrameReader)
    unsent: deque[memoryview] = attrs.Factory(deque[memoryview])
    unsent_bytes: int = 0
    waiting: dict[int, bool] = attrs.Factory(dict[int, bool])  # correlation id without a reply: is it a Fetch
    fetches: int = 0  # of them
    is_closed: bool = False
    room: trio.lowlevel.ParkingLot = attrs.Factory(trio.lowlevel.ParkingLot)
    work: trio.lowlevel.ParkingLot = attrs.Factory(trio.lowlevel.ParkingLot)

    def send(self, pieces: list[Buffer]) -> None:
        """Send an answer: at once as far as the kernel takes it; `write_rest` sends the rest."""
        if self.is_closed:
            return
        was_waiting = bool(self.unsent)
        # An empty piece would stay in the queue for ever: `sendmsg` never reports it as sent.
        self.unsent.extend(memoryview(piece) for piece in pieces if len(piece))
        self.unsent_bytes += sum(len(piece) for piece in pieces)
        if not was_waiting:
            self._send_some()
            if self.unsent:
                self.work.unpark_all()

    def _send_some(self) -> None:
        while self.unsent:
            try:
                sent = self.socket.sendmsg(list(islice(self.unsent, PIECES_PER_SEND_MAX)))
            except BlockingIOError:
                return
            except OSError:
                self.close()  # the peer is gone; `_serve` reports Disconnected to the node
                return
            self.unsent_bytes -= sent
            while sent:
                piece = self.unsent[0]
                if sent < len(piece):
                    self.unsent[0] = piece[sent:]
                    return
                sent -= len(piece)
                self.unsent.popleft()

    async def write_rest(self) -> None:
        """Send what the kernel did not take at once, as the peer makes room, until the connection ends."""
        while not self.is_closed:
            if not self.unsent:
                await self.work.park()
                continue
            try:
                await trio.lowlevel.wait_writable(self.socket)
            except (OSError, trio.ClosedResourceError):
                self.close()
                return
            self._send_some()
            if self.unsent_bytes < UNSENT_BYTES_MAX:
                self.room.unpark_all()

    def close(self) -> None:
        """Close the socket and wake the tasks that wait for it. Further calls do nothing."""
        if not self.is_closed:
            self.is_closed = True
            trio.lowlevel.notify_closing(self.socket)
            self.socket.close()
            self.work.unpark_all()
            self.room.unpark_all()


NOTICE_INTERVAL_MS: Final = 10_000


class Notices:
    """Lines on stderr, at most one per cause and interval: a client that misbehaves must not fill the disk.
    The next line of a cause says how many were left out.
    """

    CAUSES_MAX = 1_000  # remembered; beyond this the oldest is forgotten

    def __init__(self, clock: Callable[[], int]) -> None:
        """`clock` gives milliseconds that never go back."""
        self._clock = clock
        self._logged: dict[str, tuple[int, int]] = {}  # cause: (when last printed, lines left out since)

    def log(self, cause: str, line: str) -> None:
        """Print the line, unless one of the same cause was printed within the interval."""
        now = self._clock()
        logged_ms, left_out = self._logged.pop(cause, (now - NOTICE_INTERVAL_MS, 0))
        if now - logged_ms < NOTICE_INTERVAL_MS:
            self._logged[cause] = (logged_ms, left_out + 1)
            return
        more = f" ({left_out} more like this in between)" if left_out else ""
        print("\n".join(map(escaped, f"{line}{more}".splitlines())), file=sys.stderr, flush=True)
        self._logged[cause] = (now, 0)
        if len(self._logged) > self.CAUSES_MAX:
            del self._logged[next(iter(self._logged))]


class Server:
    """One broker: a host, its connections, and the tasks that serve them."""

    def __init__(self, settings: BrokerSettings, host: Host, listener: socket.socket) -> None:
        self.settings = settings
        self.host = host
        self.listener = listener
        self.connections: dict[int, Connection] = {}
        self.connections_made = 0
        self.is_held = False
        faults = server_faults(settings.faults, node_id=settings.node.node_id)
        self.pauses = [fault for fault in faults if isinstance(fault, PauseAfterAppend)]
        self.drops = [fault for fault in faults if isinstance(fault, DropReply)]
        self.lost: set[ReplyTo] = set()
        self.notices = Notices(monotonic_ms)
        # One buffer serves all connections: its bytes are copied into frames before the next receive.
        self._received = memoryview(bytearray(RECEIVE_SIZE))
        self._unsynced = trio.lowlevel.ParkingLot()
        self._alarm = trio.lowlevel.ParkingLot()
        self._alarm_at_ms = 0
        self._manifest_due_ms: int | None = None

    # --- the loop

    def turn(self) -> None:
        """Let the host do everything that it can do now, and send its answers."""
        if self.is_held:
            return
        host, now = self.host, now_ms()
        host.tick(now)
        if not self.pauses:
            while not host.is_idle:
                # Answers leave together, but before work that no client waits for, such as markers: a commit
                # is acknowledged after PREPARE_COMMIT, and its markers should not delay that.
                host.work_until_idle(now, pauses=True)
                self._send_answers()
        else:
            self._work_until_held(now)
        self._send_answers()
        self._tell_troubles()
        if host.unsynced:
            self._unsynced.unpark_all()
        if host.changed and self._manifest_due_ms is None:
            self._manifest_due_ms = now + MANIFEST_INTERVAL_MS
        if self._next_alarm_ms(now) < self._alarm_at_ms:
            self._alarm.unpark_all()

    def _tell_troubles(self) -> None:
        troubles, self.host.troubles = self.host.troubles, []
        for trouble in troubles:
            self._log(trouble)

    def _log(self, trouble: Trouble) -> None:
        self.notices.log(trouble.cause, trouble.text)

    def _work_until_held(self, now: int) -> None:
        """Check after each append whether a fault stops the node before the append's effects."""
        while not self.host.is_idle:
            ahead = self.host.to_do[0] if self.host.to_do else None
            self.host.work(now)
            if isinstance(ahead, Append):
                # A list, not a generator: every fault must count every append.
                states = list(filter(None, [pause.strikes(ahead) for pause in self.pauses]))
                if states:
                    self.is_held = True
                    print(json.dumps({"held": states[0].name, "pid": os.getpid()}), flush=True)
                    return

    def _send_answers(self) -> None:
        answers, self.host.answers = self.host.answers, []
        for answer in answers:
            connection = self.connections.get(answer.to.connection)
            if connection is None:
                continue
            is_fetch = connection.waiting.pop(answer.to.correlation_id, None)
            if is_fetch is None:
                continue  # refused already, when its handler failed after part of its work
            if is_fetch:
                connection.fetches -= 1
                connection.room.unpark_all()
            if answer.to in self.lost:
                self.lost.discard(answer.to)
                print(json.dumps({"lost_reply": type(answer.body).__name__}), flush=True)
                connection.close()
            else:
                connection.send(self._encode(answer))

    def _encode(self, answer: Reply) -> list[Buffer]:
        number = answer.to.correlation_id
        try:
            return encode_reply(ReplyFrame(number, error=answer.error, body=answer.body))
        except FrameTooLarge as problem:
            self.notices.log("a reply that is too large", f"{type(answer.body).__name__}: {problem}")
            return encode_reply(ReplyFrame(number, error=ErrorCode.INVALID_REQUEST, body=None))
        except Exception as problem:  # noqa: BLE001 - a bug costs this reply, not the others
            self._log(Trouble.bug("drops a reply:", problem))
            return encode_reply(ReplyFrame(number, error=ErrorCode.UNKNOWN_SERVER_ERROR, body=None))

    # --- connections

    async def accept(self, nursery: trio.Nursery) -> None:
        """Start a task for each connection, until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self.listener)
            try:
                accepted, _ = self.listener.accept()
            except BlockingIOError:
                continue
            except OSError as problem:
                if problem.errno not in (errno.EMFILE, errno.ENFILE, errno.ECONNABORTED):
                    raise
                # Out of file descriptors. The connection stays in the backlog; without a pause this would
                # spin.
                await trio.sleep(0.1)
                continue
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections_made += 1
            nursery.start_soon(self._serve, Connection(self.connections_made, accepted))

    async def _serve(self, connection: Connection) -> None:
        self.connections[connection.number] = connection
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connection.write_rest)
                await self._read(connection)
                nursery.cancel_scope.cancel()
        finally:
            connection.close()
            del self.connections[connection.number]
            self.host.offer(Disconnected(connection=connection.number))
            self.turn()

    async def _read(self, connection: Connection) -> None:
        """Read requests until the peer closes or violates the protocol; that ends this connection only."""
        while not connection.is_closed:
            if connection.unsent_bytes > UNSENT_BYTES_MAX:
                await connection.room.park()
                continue
            try:
                await trio.lowlevel.wait_readable(connection.socket)
                size = connection.socket.recv_into(self._received)
            except BlockingIOError:
                continue
            except (OSError, trio.ClosedResourceError):
                return
            if size == 0:
                return
            try:
                for frame in connection.frames.feed(self._received[:size]):
                    if connection.fetches >= FETCHES_MAX:
                        await self._make_room(connection)
                    self._receive(connection, frame)
            except ProtocolViolation as problem:
                self.notices.log("a violation", f"closed a connection that violated the protocol: {problem}")
                return
            except Exception as problem:  # noqa: BLE001 - a bug costs this connection, not the others
                self._log(Trouble.bug("closed a connection:", problem))
                return
            finally:
                self.turn()

    async def _make_room(self, connection: Connection) -> None:
        """Wait until the connection has fewer than FETCHES_MAX fetches and room for their answers."""
        self.turn()
        while not connection.is_closed and (
            connection.fetches >= FETCHES_MAX or connection.unsent_bytes > UNSENT_BYTES_MAX
        ):
            await connection.room.park()

    def _receive(self, connection: Connection, frame: memoryview) -> None:
        try:
            arrived = decode_request(frame)
        except UnsupportedVersion as problem:
            refused = ReplyFrame(problem.correlation_id, error=ErrorCode.UNSUPPORTED_VERSION, body=None)
            connection.send(encode_reply(refused))
            return
        to = ReplyTo(connection.number, arrived.correlation_id)
        if to.correlation_id in connection.waiting:
            raise ProtocolViolation(
                f"correlation id {to.correlation_id} is in use: an earlier request with it has no reply yet"
            )
        is_fetch = type(arrived.request) is Fetch
        if not (type(arrived.request) is Produce and arrived.request.acks == 0):  # that gets no reply
            connection.waiting[to.correlation_id] = is_fetch
        connection.fetches += is_fetch
        for drop in self.drops:
            if drop.strikes(arrived.request):
                self.lost.add(to)
        self.host.offer(Received(arrived.request, to=to, version=arrived.version))

    # --- time and syncs

    async def keep_time(self) -> None:
        """Tick when the node asked for it, and write the manifests for readers without a broker."""
        while True:
            now = now_ms()
            if self._manifest_due_ms is not None and self._manifest_due_ms <= now:
                self._manifest_due_ms = None
                self.host.write_manifests()
            self.turn()
            self._alarm_at_ms = self._next_alarm_ms(now)
            with trio.move_on_after(max(0, self._alarm_at_ms - now_ms()) / 1000):
                await self._alarm.park()

    def _next_alarm_ms(self, now: int) -> int:
        due = [at for at in (self._manifest_due_ms, self.host.wakes_at_ms) if at is not None]
        return min(due, default=now + IDLE_WAKE_MS)

    async def sync(self) -> None:
        """Sync all waiting logs, round after round, each log in a worker thread."""
        while True:
            if not self.host.unsynced:
                await self._unsynced.park()
            async with trio.open_nursery() as nursery:
                for key in sorted(self.host.unsynced):
                    nursery.start_soon(self._sync_one, self.host.directory.journal(key))
            self.turn()

    async def _sync_one(self, journal: Journal) -> None:
        """Sync one log and report the result, unless the log was deleted or given up in the meantime."""
        try:
            offset = await trio.to_thread.run_sync(journal.sync)
        except StorageError as problem:
            if self.host.directory.holds(journal):
                self.host.sync_failed(journal.partition, problem)
        else:
            if self.host.directory.holds(journal):
                self.host.synced(journal.partition, offset)


# --- running ------------------------------------------------------------------------------------------


def _listen(settings: BrokerSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(1024)
    except (OSError, UnicodeError) as problem:  # UnicodeError: no host can have this name
        listener.close()
        is_wrong_host = isinstance(problem, socket.gaierror | UnicodeError)
        advice = "choose another host" if is_wrong_host else "choose another port, or 0 for a free one"
        reason = getattr(problem, "strerror", None) or problem
        raise CannotListen(
            f"cannot listen on {settings.host}:{settings.port}: {reason}; {advice}"
        ) from problem
    listener.setblocking(False)
    return listener


@contextmanager
def _opened(settings: BrokerSettings) -> Generator[tuple[Host, socket.socket, Ready]]:
    """A started host over its data directory, with its listener; closes them in order."""
    # The port comes first: a broker that cannot have it leaves no trace in the directory.
    with _listen(settings) as listener:
        port = listener.getsockname()[1]
        storage = MemoryStorage() if settings.directory is None else DiskStorage(Path(settings.directory))
        directory = DataDirectory.open(storage, settings=settings.journal)
        try:
            node = Node(
                attrs.evolve(settings.node, host=settings.host, port=port, cluster_id=directory.cluster_id)
            )
            host = Host(node, directory, policy=settings.sync, contains_failures=True)
            host.start(now_ms())
            try:
                yield host, listener, Ready(settings.host, port)
            finally:
                host.stop()
        finally:
            directory.abandon()


async def serve(settings: BrokerSettings, *, on_ready: Callable[[Ready], None]) -> None:
    """Run a broker until cancelled, then stop it cleanly. Raises CannotListen, DirectoryInUse or StorageError
    if it cannot start.
    """
    with _opened(settings) as (host, listener, ready):
        server = Server(settings, host, listener)
        server.turn()
        on_ready(ready)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.accept, nursery)
            nursery.start_soon(server.keep_time)
            nursery.start_soon(server.sync)


async def serve_until_signalled(
    settings: BrokerSettings, *, on_ready: Callable[[Ready], None]
) -> signal.Signals:
    """Run a broker until SIGINT or SIGTERM; return the signal."""

    def became_ready(ready: Ready) -> None:
        gc.collect()
        # Modules and settings live for ever: frozen, the collector skips them. Only a process of its own may
        # do this, so `serve` itself does not.
        gc.freeze()
        on_ready(ready)

    caught = signal.SIGTERM
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: serve(settings, on_ready=became_ready))
            async for number in signals:
                caught = signal.Signals(number)
                nursery.cancel_scope.cancel()
                break
    return caught
