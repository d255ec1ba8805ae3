"""The trio server: the shell of a broker process, with its sockets, clock, sync threads and signals.

Rule: per wake-up a connection reads all bytes that are there and sends all answers; no message awaits.
"""

# Theory of operation
#
# One thread runs everything except syncs. Node and host are plain function calls in it, so they need no
# locks.
#
#     task                    waits for              then
#     accept                  a connection           starts its `_serve`, or refuses it
#     _serve                  readable bytes         requests -> host.offer, turn(), one after the other
#     Connection._send_rest   a writable socket      sends what the kernel did not take at once
#     keep_time               the next deadline      host.tick, manifests, turn()
#     keep_room               idle or pressed        closes connections that hold what others need
#     sync                    a log in host.unsynced one fsync per log, each in a thread; as each ends, turn()
#     keep_clean              host.upkeep            compaction in a worker thread; files change between syncs
#     keep_faults             a fault's deadline     strikes, or undoes what it did (fault_injector.py)
#
# `turn` is the heart: it lets the host work until nothing is left to do, and hands all answers to the kernel.
# What trio's parts cost is measured in docs/performance.md.
#
# Connections take turns. A client may send many requests without waiting for answers, so a connection yields
# to the others when its part of a round is over: 10 ms, divided among all that have requests. A turn is at
# least one request. Many clients with costly requests would keep the others waiting for all of them. So a
# request that is large, or whose predecessor was slow, waits in a line of its own (`_costly`), and a round
# has at most one of them. memory.py says how much all connections may hold, and who waits for whom.
#
# Logs are synced in threads (sync_threads.py), each for itself. Every transaction whose record was written
# before a sync of its log begins shares its cost (group commit). Meanwhile the node takes further requests;
# their records wait for the next sync. Results return to the trio thread, so the host never sees another
# thread. A log may be deleted or given up during its sync; `directory.holds` then discards the result, since
# it is not about the log that has this name now.
#
# A stop closes host, directory and listener, in this order (`_opened`). A kill skips it and is equally legal:
# recovery must cope anyway, a clean stop only makes the next start faster. `Server.kill` may be called in
# the middle of a turn, between any two actions of the host; nothing is written or sent after it.

from __future__ import annotations

import errno
import gc
import math
import os
import signal
import socket
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import attrs
import trio

from fencepost.broker.access.session import AccessSettings, NotAdmitted, Session
from fencepost.broker.admission import Admission, admission_to
from fencepost.broker.cluster.controller import METADATA_PARTITION
from fencepost.broker.connections import (
    PRESSED_SWEEP_MS,
    SWEEP_MS,
    Connection,
    ConnectionTable,
    InProgress,
    SpareDescriptor,
    half_of_descriptors,
    monotonic_ms,
    raise_descriptor_limit,
)
from fencepost.broker.contract import Append, Disconnected, Input, Outcome, Received, Reply, ReplyTo
from fencepost.broker.counters import Counters
from fencepost.broker.fault_injector import BrokerFaultInjector
from fencepost.broker.fault_requests import FAULT_REQUESTS, is_of_this_machine
from fencepost.broker.faults import Abilities
from fencepost.broker.host import MANIFEST_INTERVAL_MS, Host, MetadataLost, SyncPolicy, Trouble, TroubleKind
from fencepost.broker.memory import MemoryBound
from fencepost.broker.node import Node
from fencepost.broker.notices import BROKER, FENCED, Notices
from fencepost.broker.observer import Observer
from fencepost.broker.settings import ConnectionSettings, NodeSettings
from fencepost.broker.status import with_counts
from fencepost.broker.sync_threads import SyncEnded, SyncThreads
from fencepost.broker.wire_protocols import ProtocolSwitchedOff, ServedProtocol
from fencepost.journal.data_directory import DataDirectory
from fencepost.journal.disk import DiskStorage
from fencepost.journal.journal import JournalSettings
from fencepost.journal.memory import MemoryStorage
from fencepost.journal.power import Machine
from fencepost.journal.storage import StorageError, directory_name
from fencepost.protocol.errors import ErrorCode, FencepostError, ProtocolViolation
from fencepost.protocol.frames import FrameTooLarge, PeerSpeaksTls, ReplyFrame, RequestFrame, encode_reply
from fencepost.protocol.messages import BrokerStatusReply, Produce, Request
from fencepost.protocol.secure import TlsFailed
from fencepost.protocol.wire_protocol import Asked

RECEIVE_SIZE: Final = 1 << 20  # bytes of a large frame per wake-up
# Connections with requests that have arrived share a round of this length; each gets at least one request.
ROUND_NS: Final = 10_000_000
OUT_OF_DESCRIPTORS_S: Final = 0.1
IDLE_WAKE_MS: Final = 3_600_000
PORT_MAX: Final = 65_535


class CannotListen(FencepostError):
    """The broker cannot listen on this address; the message says what to do."""


@attrs.frozen(kw_only=True)
class Killed:
    """How a server was killed. With `loses_power`, every byte that was not synced is lost. Without
    `restarts_after_ms`, the broker is not started again.
    """

    loses_power: bool = False
    restarts_after_ms: int | None = None


@attrs.frozen(kw_only=True)
class BrokerSettings:
    """Settings of one broker process. `directory` None means in memory; `port` 0 means any free port.
    `advertised` is the host and port that clients are told to connect to; None: where the broker listens.
    """

    directory: str | None = None
    host: str = "127.0.0.1"
    port: int = 0
    advertised: tuple[str, int] | None = None
    protocol: ServedProtocol = ServedProtocol.BOTH
    access: AccessSettings = attrs.Factory(AccessSettings)
    sync: SyncPolicy = SyncPolicy.NONE
    node: NodeSettings = attrs.Factory(NodeSettings)
    connections: ConnectionSettings = attrs.Factory(ConnectionSettings)
    journal: JournalSettings = attrs.Factory(JournalSettings)
    faults: tuple[str, ...] = ()
    metrics_port: int | None = None  # None: no metrics; 0: any free port
    metrics_host: str = "127.0.0.1"
    observer: Observer | None = None


@attrs.frozen
class Ready:
    """Where a broker listens, the most memory that it takes for its clients, and its server; the port for
    metrics, if it has one.
    """

    host: str
    port: int
    memory: MemoryBound
    server: Server = attrs.field(repr=False)
    metrics_port: int | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


def parsed_listener(text: str) -> tuple[str, int]:
    """The host and port of `HOST:PORT`; an IPv6 address stands in brackets. ValueError if it is not that."""
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not bare or (":" in bare) != (bare != host) or not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
        raise ValueError(f"{text!r} is not HOST:PORT, such as broker.example:9092")
    return bare, int(port)


def now_ms() -> int:
    """The time of records and deadlines: milliseconds since 1970."""
    return time.time_ns() // 1_000_000


EVERY_ADDRESS: Final = ("", "0.0.0.0", "::")  # the hosts that stand for all interfaces


class Server:
    """One broker: a host, its connections, and the tasks that serve them."""

    def __init__(
        self,
        settings: BrokerSettings,
        host: Host,
        listener: socket.socket,
        admission: Admission | None,
        faults: BrokerFaultInjector | None = None,
        metrics_listener: socket.socket | None = None,
    ) -> None:
        self.settings = settings
        self.host = host
        self.listener = listener
        self.metrics_listener = metrics_listener
        self.is_ready = False
        self.is_held = False
        self.killed: Killed | None = None
        self.failure: MetadataLost | None = None
        self.scope = trio.CancelScope()  # around the tasks
        self.admission = admission
        self.counters = Counters(now_ms())
        self.notices = Notices(monotonic_ms)
        host.watch = self._watch
        self.connections = ConnectionTable(
            settings.connections,
            host.node,
            report=self._log_dropped,
            pressed=self.hurry,
            has_tls=settings.access.tls_cert is not None,
            protocol=settings.protocol,
        )
        host.answers_pool, host.is_open = self.connections.answers, self.connections.is_open
        self.observer = settings.observer
        if self.observer is not None:
            self.observer.started(host.node)
        # One buffer serves all connections: its bytes are copied into frames before the next receive.
        self._received = memoryview(bytearray(RECEIVE_SIZE))
        self._unsynced = trio.lowlevel.ParkingLot()
        self._uncleaned = trio.lowlevel.ParkingLot()
        self._syncs = SyncThreads()
        self._alarm = trio.lowlevel.ParkingLot()
        self._alarm_at_ms = 0
        self._manifest_due_ms: int | None = None
        self._sweep = trio.lowlevel.ParkingLot()
        self._sweep_at_ms = 0
        self._costly = trio.Lock()  # held while a costly request is carried out, and for a turn of the others
        self._in_line = 0  # connections that have yielded and wait for their next turn
        self._deadline = trio.lowlevel.ParkingLot()  # of a fault
        self.faults = injector_of(settings) if faults is None else faults
        self.faults.attach(self)

    def start(self, nursery: trio.Nursery) -> None:
        """Start the tasks."""
        nursery.start_soon(self.accept, nursery)
        nursery.start_soon(self.keep_time)
        nursery.start_soon(self.keep_room)
        nursery.start_soon(self.sync)
        nursery.start_soon(self.keep_clean)
        nursery.start_soon(self.keep_faults)

    def kill(self, *, loses_power: bool = False, restarts_after_ms: int | None = None) -> None:
        """End the server as SIGKILL ends a process: from now on it neither writes nor sends. May be called
        between any two actions of the host.
        """
        if self.killed is None:
            self.killed = Killed(loses_power=loses_power, restarts_after_ms=restarts_after_ms)
            self.is_held = True
            if self.observer is not None:
                self.observer.killed()
            self.scope.cancel()
            for connection in list(self.connections.opened.values()):
                connection.reset()

    async def recover(self) -> None:
        """Read the logs, and do what they ask for. In between, the port for metrics says that it is not yet
        ready.
        """
        host = self.host
        if self.metrics_listener is not None and not self.faults.is_active and self.observer is None:
            ends_ns = time.monotonic_ns() + ROUND_NS
            while not host.is_idle:
                host.work(self.now())
                if time.monotonic_ns() >= ends_ns:
                    await trio.lowlevel.checkpoint()
                    ends_ns = time.monotonic_ns() + ROUND_NS
        self.turn()
        self.is_ready = True

    def ready(self) -> Ready:
        """Where it listens, and the most memory that it takes."""
        metrics = self.metrics_listener
        return Ready(
            self.settings.host,
            self.listener.getsockname()[1],
            self.connections.memory,
            self,
            None if metrics is None else metrics.getsockname()[1],
        )

    def fail(self, problem: MetadataLost) -> None:
        """End the server because of this error, without a clean stop: its state is ahead of its log."""
        self.failure = problem
        self.kill()

    # --- the loop

    def turn(self) -> None:
        """Let the host do everything that it can do now, and send its answers."""
        if not self.is_held and self.killed is None:
            try:
                self._turn()
            except MetadataLost as problem:
                self.fail(problem)

    def _turn(self) -> None:
        host, now = self.host, self.now()
        host.tick(now)
        if self.faults.is_active or self.observer is not None:
            self._work_by_steps(now)
        else:
            while not host.is_idle:
                # Answers leave together, but before work that no client waits for, such as markers: a commit
                # is acknowledged after PREPARE_COMMIT, and its markers should not delay that.
                host.work_until_idle(now, pauses=True)
                self.send_answers()
        self._log_troubles()
        if not host.unsynced <= self._syncs.syncing:
            self._unsynced.unpark_all()
        if host.upkeep.is_needed:
            self._uncleaned.unpark_all()
        if host.changed and self._manifest_due_ms is None:
            self._manifest_due_ms = now + MANIFEST_INTERVAL_MS
        if self._next_alarm_ms(now) < self._alarm_at_ms:
            self._alarm.unpark_all()

    def _watch(self, arrived: Input, outcome: Outcome) -> None:
        if outcome.appends:
            self.counters.appended(outcome)
        self.notices.step(arrived, outcome, self.host.node)
        if self.observer is not None:
            self.observer.stepped(arrived, outcome)

    def _log_troubles(self) -> None:
        troubles, self.host.troubles = self.host.troubles, []
        for trouble in troubles:
            self.notices.trouble(trouble)
            if trouble.kind is TroubleKind.DISK:
                self.counters.disk_failed(self.now(), trouble.text)

    def now(self) -> int:
        """The time of records and deadlines on this broker's clock, which a fault may have moved."""
        return now_ms() + self.faults.clock_ms

    def _work_by_steps(self, now: int) -> None:
        """As `work_until_idle`, and faults and an observer hear of each append."""
        host, faults = self.host, self.faults
        while not (host.is_idle or self.is_held):
            ahead = host.to_do[0] if host.to_do else None
            if ahead is None and host.answers and not host.requests_waiting:
                self.send_answers()
            elif not isinstance(ahead, Append):
                host.work(now)
            elif faults.allows(ahead):
                host.work(now)
                if self.observer is not None:
                    self.observer.appended(ahead)
                faults.written(ahead)
        self.send_answers()

    def send_answers(self) -> None:
        """Send what the host has answered."""
        answers, self.host.answers = self.host.answers, []
        has_faults, observer = self.faults.is_active, self.observer
        for answer in answers:
            connection = self.connections.opened.get(answer.to.connection)
            if connection is not None and has_faults and self.faults.keeps_reply(connection, answer):
                if connection.is_closed and observer is not None:
                    observer.answered(answer, "a fault drops it")
                continue
            if observer is not None:
                observer.answered(answer, "nobody waits for it" if connection is None else None)
            # Not in progress: refused already, when its handler failed after part of its work.
            if connection is not None and (ended := connection.end(answer.to.correlation_id)) is not None:
                self._count(connection, ended, answer)
                self._go_on(connection, self._answered(connection, answer))
        if self.host.read_bytes:
            self.host.sent_read()
        if self.connections.answers.free < 0:
            self.connections.shrink()

    def _count(self, connection: Connection, ended: InProgress, answer: Reply) -> None:
        """Count an answer, and tell of a producer that was refused because it is fenced."""
        errors = self.counters.answered(ended.kind, answer, time.monotonic_ns() - ended.began_ns)
        if errors and ended.transactional_id is not None:
            for error in FENCED.intersection(errors):
                self.notices.refusal(ended.kind, ended.transactional_id, error, connection.peer)

    def _answered(self, connection: Connection, answer: Reply) -> Asked:
        """What an answer of the node leads to."""
        number, session, protocol = answer.to.correlation_id, connection.session, connection.protocol
        try:
            if session is not None:
                answer = session.amended(answer)
            if type(answer.body) is BrokerStatusReply:
                answer = attrs.evolve(answer, body=self._with_counts(answer.body))
            return protocol.reply(ReplyFrame(number, error=answer.error, body=answer.body))
        except FrameTooLarge as problem:
            self.notices.log("a reply that is too large", f"{type(answer.body).__name__}: {problem}")
            return self._refused(connection, ReplyFrame(number, error=ErrorCode.INVALID_REQUEST, body=None))
        except Exception as problem:  # noqa: BLE001 - a bug costs this reply, not the others
            self.notices.trouble(Trouble.bug("drops a reply:", problem))
            error = ErrorCode.UNKNOWN_SERVER_ERROR
            return self._refused(connection, ReplyFrame(number, error=error, body=None))

    def _with_counts(self, status: BrokerStatusReply) -> BrokerStatusReply:
        sizes, connections = self.host.log_sizes(), len(self.connections.opened)
        return with_counts(status, self.counters, sizes=sizes, connections=connections)

    def _refused(self, connection: Connection, refusal: ReplyFrame) -> Asked:
        """What an error instead of an answer leads to; a connection that cannot be told of it is closed."""
        try:
            return connection.protocol.reply(refusal)
        except Exception as problem:  # noqa: BLE001 - a bug costs this connection, not the others
            self.notices.trouble(Trouble.bug("closed a connection:", problem))
            connection.close()
            return Asked()

    # --- connections

    async def accept(self, nursery: trio.Nursery) -> None:
        """Start a task for each connection, until cancelled."""
        with closing(SpareDescriptor()) as spare:
            while True:
                await trio.lowlevel.wait_readable(self.listener)
                try:
                    accepted, address = self.listener.accept()
                except OSError as problem:
                    if problem.errno in (errno.EMFILE, errno.ENFILE):
                        await self._refuse_with(spare)
                    elif problem.errno not in (errno.EAGAIN, errno.ECONNABORTED):
                        raise
                    continue
                if self.connections.is_full:
                    accepted.close()
                    why = f"all {self.connections.limit} connections (max.connections) are in use"
                    self._log_refused(why, peer=f"{address[0]}:{address[1]}")
                else:
                    session = None if self.admission is None else self.admission.session()
                    nursery.start_soon(
                        self._serve, self.connections.open(accepted, address[0], nursery, session)
                    )

    async def _refuse_with(self, spare: SpareDescriptor) -> None:
        """Out of file descriptors: accept the next connection with the spare one, and close it."""
        spare.close()
        with suppress(OSError):  # its client has left, or a sync took the descriptor
            self.listener.accept()[0].close()
        if not spare.open():
            await trio.sleep(OUT_OF_DESCRIPTORS_S)  # otherwise this would spin
        self._log_refused("no file descriptor is left; raise the limit (ulimit -n)")

    def _log_refused(self, why: str, *, peer: str = "") -> None:
        self.counters.refused_connections += 1
        whose = f" from {peer}" if peer else ""
        self.notices.log(f"refused: {why}", f"refused a connection{whose}: {why}", peer=peer or None)

    async def _serve(self, connection: Connection) -> None:
        """Serve one client until it leaves or violates the protocol; that ends this connection only."""
        try:
            is_open = self.admission is None or await self.admission.admit(connection, self._offer_early)
            while is_open:
                await self._take_up(connection)
                if connection.frames.arrived:
                    self.hurry(SWEEP_MS)
                is_open = await connection.receive(self._received)
        except NotAdmitted as problem:
            connection.reply(problem.reply)
            self._log_violation(connection, "a login", "refused", problem)
        except PeerSpeaksTls as problem:
            # Any frame will do: what is not TLS tells the client's TLS library what is wrong.
            connection.send(encode_reply(ReplyFrame(0, error=ErrorCode.INVALID_REQUEST, body=None)))
            self._log_violation(connection, "TLS", "refused", problem)
        except TlsFailed as problem:
            self._log_violation(connection, "TLS", "refused", problem)
        except ProtocolSwitchedOff as problem:
            self._log_violation(connection, "a protocol", "closed", problem)
        except ProtocolViolation as problem:
            violation = ProtocolViolation(f"it violated the protocol: {problem}")
            self._log_violation(connection, "a violation", "closed", violation)
        except Exception as problem:  # noqa: BLE001 - a bug costs this connection, not the others
            self.notices.trouble(Trouble.bug("closed a connection:", problem))
        finally:
            connection.close()
            del self.connections.opened[connection.number]
            self.host.offer(Disconnected(connection=connection.number))
            self.turn()

    def _log_dropped(self, connection: Connection, why: str) -> None:
        peer = connection.peer
        self.notices.log("a connection", f"closed a connection from {peer}: its client {why}", peer=peer)

    def _log_violation(
        self, connection: Connection, cause: str, what_happened: str, problem: FencepostError
    ) -> None:
        peer = connection.peer
        self.counters.refused_connections += 1
        self.notices.log(cause, f"{what_happened} a connection from {peer}: {problem}", peer=peer)

    def _offer_early(self, connection: Connection, arrived: RequestFrame) -> None:
        """Take up a request that needs no authentication."""
        self._begin(connection, arrived)
        self.turn()

    async def _take_up(self, connection: Connection) -> None:
        """Take up the requests that have arrived, one after the other, and yield when the turn is over."""
        ends_ns = self._turn_ends_ns()
        while (frame := await connection.next_request()) is not None:
            if connection.is_costly:
                async with self._costly:
                    self._carry_out(connection, frame)
                    await trio.lowlevel.checkpoint()  # a turn for everybody before the next one
            else:
                self._carry_out(connection, frame)
            if not connection.frames.arrived:
                return
            if time.monotonic_ns() >= ends_ns:
                self._in_line += 1
                await trio.lowlevel.checkpoint()
                self._in_line -= 1
                ends_ns = self._turn_ends_ns()

    def _carry_out(self, connection: Connection, frame: memoryview) -> None:
        if not connection.is_closed:
            began_ns = time.monotonic_ns()
            self._offer(connection, frame)
            self.turn()
            connection.drop_reserved()
            connection.was_slow = time.monotonic_ns() - began_ns >= ROUND_NS

    def _turn_ends_ns(self) -> int:
        return time.monotonic_ns() + ROUND_NS // (1 + self._in_line)

    def _offer(self, connection: Connection, frame: memoryview) -> None:
        self._go_on(connection, connection.protocol.ask(frame))

    def _go_on(self, connection: Connection, asked: Asked) -> None:
        if asked.pieces is not None:
            connection.send(asked.pieces)
        for arrived in asked.requests:
            self._begin(connection, arrived)

    def _begin(self, connection: Connection, arrived: RequestFrame) -> None:
        to, request = ReplyTo(connection.number, arrived.correlation_id), arrived.request
        session = connection.session
        if self.observer is not None:
            self.observer.asked(to, arrived)
        if to.correlation_id in connection.in_progress:
            raise ProtocolViolation(
                f"correlation id {to.correlation_id} is in use: an earlier request with it has no reply yet"
            )
        if not (type(request) is Produce and request.acks == 0):  # that gets no reply
            connection.begin(to.correlation_id, request, arrived.client_id)
        if session is not None:
            allowed = self._authorized(connection, session, arrived)
            if allowed is None:
                return
            request = allowed
        if type(request) in FAULT_REQUESTS:
            self._control_faults(connection, request, to)
            return
        received = Received(
            request,
            to=to,
            version=arrived.version,
            client_id=arrived.client_id,
            client_host=connection.client_host,
        )
        if not (self.faults.is_active and self.faults.keeps_request(connection, received)):
            self.host.offer(received)

    def _authorized(self, connection: Connection, session: Session, arrived: RequestFrame) -> Request | None:
        """The part of the request that the principal may have carried out; None if it is answered already."""
        number, request = arrived.correlation_id, arrived.request
        verdict = session.authorize(request, arrived.version)
        if verdict.denial is not None:
            what = f"{session.principal} may not {verdict.denial} ({type(request).__name__})"
            cause = f"a denial of {session.principal}"
            self.notices.log(cause, what, peer=connection.peer, principal=session.principal)
        if number in connection.in_progress:  # otherwise nobody waits for an answer (acks 0)
            if verdict.request is None:
                connection.end(number)
                to = ReplyTo(connection.number, number)
                denied = Reply(to, error=verdict.error, body=verdict.body)
                self._go_on(connection, self._answered(connection, denied))
            elif verdict.amendment is not None:
                session.amendments[number] = verdict.amendment
        return verdict.request

    # --- time and syncs

    async def keep_time(self) -> None:
        """Tick when the node asked for it, and write the manifests for readers without a broker."""
        while True:
            now = self.now()
            if self._manifest_due_ms is not None and self._manifest_due_ms <= now:
                self._manifest_due_ms = now if self.host.write_manifests() else None
            self.turn()
            self._alarm_at_ms = self._next_alarm_ms(now)
            with trio.move_on_after(max(0, self._alarm_at_ms - self.now()) / 1000):
                await self._alarm.park()

    def _next_alarm_ms(self, now: int) -> int:
        due = [at for at in (self._manifest_due_ms, self.host.wakes_at_ms) if at is not None]
        return min(due, default=now + IDLE_WAKE_MS)

    def hurry(self, within_ms: int = PRESSED_SWEEP_MS) -> None:
        """Look at all connections within this time."""
        at_ms = monotonic_ms() + within_ms
        if at_ms < self._sweep_at_ms:
            self._sweep_at_ms = at_ms
            self._sweep.unpark_all()

    async def keep_room(self) -> None:
        """Close connections that are idle, late, or in the way of others."""
        while True:
            now = monotonic_ms()
            if self._sweep_at_ms <= now:
                self._sweep_at_ms = self.connections.sweep(now)
                self.turn()
            with trio.move_on_after((self._sweep_at_ms - now) / 1000):
                await self._sweep.park()

    async def sync(self) -> None:
        """Sync the logs that wait, and let the host go on as each sync ends."""
        token = trio.lowlevel.current_trio_token()
        with self._syncs as syncs:
            syncs.wake_by(partial(token.run_sync_soon, self._unsynced.unpark_all, idempotent=True))
            while True:
                ended = syncs.take()
                for sync in ended:
                    self._synced(sync)
                if ended:
                    self.turn()
                if not syncs.is_paused and self._begin_syncs():
                    self.turn()
                else:
                    await self._unsynced.park()

    def _begin_syncs(self) -> bool:
        """Sync the logs that wait and are not being synced. Whether a fault has failed one instead."""
        host, faults, has_failed = self.host, self.faults, False
        for key in sorted(host.unsynced - self._syncs.syncing):
            try:
                if faults.is_active:
                    faults.check_sync(key)
            except StorageError as problem:
                host.sync_failed(key, problem)
                has_failed = True
            else:
                slower = faults.sync_takes(1) if faults.is_active else 0
                self._syncs.sync(host.directory.journal(key), slower=slower)
        return has_failed

    def _synced(self, sync: SyncEnded) -> None:
        """Report the result of a sync, unless the log was deleted or given up in the meantime."""
        journal, result, took_ms = sync
        match result:
            case int():
                self.counters.syncs.add(took_ms)
                if self.host.directory.holds(journal):
                    self.host.synced(journal.partition, result)
            case StorageError():
                if self.host.directory.holds(journal):
                    self.host.sync_failed(journal.partition, result)
            case _:
                raise result

    async def keep_clean(self) -> None:
        """Compact logs and delete old segments, one after the other, while everything else goes on."""
        upkeep = self.host.upkeep
        while True:
            if not upkeep.is_needed:
                await self._uncleaned.park()
            cleaning, has_more = upkeep.next_cleaning(), False
            if cleaning is not None:
                try:
                    # A stop does not wait for the thread: it ends soon, and has changed nothing yet.
                    has_more = await trio.to_thread.run_sync(cleaning.work, abandon_on_cancel=True)
                except StorageError as problem:
                    upkeep.failed(cleaning, problem)
                    cleaning = None
                except trio.Cancelled:
                    cleaning.is_cancelled = True
                    raise
            async with self._syncs.paused():
                upkeep.finish(cleaning, has_more=has_more)
            self.turn()

    # --- faults

    def _control_faults(self, connection: Connection, request: Request, to: ReplyTo) -> None:
        """Answer a request about faults: past the node, which may be paused."""
        session = connection.session
        has_rights = session is not None and session.acls is not None  # then they have been checked
        if has_rights or is_of_this_machine(connection.client_host):
            self.faults.send(Reply(to, body=FAULT_REQUESTS[type(request)](self.faults, request)))
        else:
            self.faults.send(Reply(to, error=ErrorCode.CLUSTER_AUTHORIZATION_FAILED))

    def struck(self, label: str, to: ReplyTo | None = None) -> None:
        """A fault struck, or ended."""
        BROKER.info("injected fault: %s", label)
        if self.observer is not None:
            self.observer.struck(label, to)

    def wake(self) -> None:
        """Look at all deadlines again: one has come, or the clock has jumped."""
        self._deadline.unpark_all()
        self._alarm.unpark_all()

    async def keep_faults(self) -> None:
        """Let faults strike, and end, at their times."""
        while True:
            due_ms = self.faults.next_due_ms
            if due_ms is not None and due_ms <= monotonic_ms():
                self.faults.due()
                self.turn()
                continue
            seconds = math.inf if due_ms is None else (due_ms - monotonic_ms()) / 1000
            with trio.move_on_after(seconds):
                await self._deadline.park()


# --- running ------------------------------------------------------------------------------------------


def injector_of(settings: BrokerSettings) -> BrokerFaultInjector:
    """The faults that the settings ask for. Raises BadPhrase if this broker cannot play one of them."""
    abilities = Abilities(node_id=settings.node.node_id, syncs=settings.sync is not SyncPolicy.NONE)
    injector = BrokerFaultInjector(monotonic_ms, abilities)
    for text in settings.faults:
        injector.add(text)
    return injector


class BoundSockets(NamedTuple):
    """The socket for clients, and the one for metrics if there is one."""

    clients: socket.socket
    metrics: socket.socket | None

    def close(self) -> None:
        self.clients.close()
        if self.metrics is not None:
            self.metrics.close()


def bound_sockets(settings: BrokerSettings, *, listens: bool) -> BoundSockets:
    """Sockets that are bound to the addresses of these settings; connections are refused unless they
    `listen`. Raises CannotListen.
    """
    if settings.advertised is None and settings.host in EVERY_ADDRESS:
        raise CannotListen(
            f"{settings.host!r} is every address of this machine, and clients must be told one that they can "
            "connect to; give it as advertised listener (--advertised-listener HOST:PORT)"
        )
    clients, metrics = _bound(settings.host, settings.port, listens=listens), None
    if settings.metrics_port is not None:
        try:
            metrics = _bound(settings.metrics_host, settings.metrics_port, listens=listens)
        except CannotListen:
            clients.close()
            raise
    return BoundSockets(clients, metrics)


def _bound(host: str, port: int, *, listens: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        if listens:
            listener.listen(1024)
    except (OSError, UnicodeError) as problem:  # UnicodeError: no host can have this name
        listener.close()
        is_wrong_host = isinstance(problem, socket.gaierror | UnicodeError)
        advice = "choose another host" if is_wrong_host else "choose another port, or 0 for a free one"
        reason = getattr(problem, "strerror", None) or problem
        raise CannotListen(f"cannot listen on {host}:{port}: {reason}; {advice}") from problem
    listener.setblocking(False)
    return listener


@contextmanager
def _opened(settings: BrokerSettings, machine: Machine, faults: BrokerFaultInjector) -> Generator[Server]:
    """A server over its started data directory and its listener; closes them in order."""
    # The port and the certificates come first: a broker without them leaves no trace in the directory.
    with closing(bound_sockets(settings, listens=True)) as (listener, metrics_listener):
        port = listener.getsockname()[1]
        admission = admission_to(listener, settings.access)
        storage = machine.process()
        directory = DataDirectory.open(storage, settings=settings.journal, open_files=half_of_descriptors())
        try:
            named, port = settings.advertised or (settings.host, port)
            node = Node(attrs.evolve(settings.node, host=named, port=port, cluster_id=directory.cluster_id))
            host = Host(node, directory, policy=settings.sync, contains_failures=True)
            host.start(now_ms() + faults.clock_ms)
            server = Server(settings, host, listener, admission, faults, metrics_listener)
            try:
                yield server
            except Exception:
                server.kill()  # a clean stop would hide the cause behind its own failure
                raise
            finally:
                faults.detach()
                if server.killed is None:
                    BROKER.info("stopping")
                    host.stop()
        finally:
            directory.abandon()
            storage.end()
            BROKER.info("stopped")


def machine_of(settings: BrokerSettings) -> Machine:
    """The machine on which a broker with these settings runs, and runs again after a crash."""
    if settings.directory is None:
        return Machine(MemoryStorage())
    # Each election writes to the log of the metadata, also one because another log found no room. The broker
    # would end if that failed.
    reserved_for = directory_name(METADATA_PARTITION)
    return Machine(DiskStorage(Path(settings.directory), reserved_for=reserved_for))


async def _serve_once(
    settings: BrokerSettings, machine: Machine, faults: BrokerFaultInjector, on_ready: Callable[[Ready], None]
) -> Killed | None:
    """Run a broker until cancelled, then stop it cleanly; or until it is killed, and return how."""
    began_ms = monotonic_ms()
    with _opened(settings, machine, faults) as server, server.scope:
        async with _monitored(server):
            await server.recover()
            if server.killed is None:
                ready = server.ready()
                _log_start(server, ready, monotonic_ms() - began_ms)
                on_ready(ready)
            try:
                async with trio.open_nursery() as nursery:
                    server.start(nursery)
            except* MetadataLost as group:
                server.fail(_first_of(group))
    if server.failure is not None:
        raise server.failure
    if server.killed is not None and server.killed.loses_power:
        BROKER.info("the power was cut: lost %d bytes that were not synced", machine.lose_power())
    return server.killed


@asynccontextmanager
async def _monitored(server: Server) -> AsyncGenerator[None]:
    """Serve the port for metrics, if there is one."""
    if server.metrics_listener is None:
        yield
        return
    from fencepost.broker.metrics_port import MetricsPort

    async with trio.open_nursery() as nursery:
        nursery.start_soon(MetricsPort(server, server.metrics_listener).serve)
        yield
        nursery.cancel_scope.cancel()


def _first_of(group: BaseExceptionGroup[MetadataLost]) -> MetadataLost:
    problem = group.exceptions[0]
    return _first_of(problem) if isinstance(problem, BaseExceptionGroup) else problem


async def serve(
    settings: BrokerSettings,
    *,
    machine: Machine,
    faults: BrokerFaultInjector,
    on_ready: Callable[[Ready], None],
) -> None:
    """Run a broker until cancelled, then stop it cleanly; or until it is killed. After a crash that is to end
    by itself, start it again. Raises CannotListen, DirectoryInUse or StorageError if it cannot start.
    """
    while True:
        killed = await _serve_once(settings, machine, faults, on_ready)
        if killed is None or killed.restarts_after_ms is None:
            return
        await trio.sleep(killed.restarts_after_ms / 1000)


def _log_start(server: Server, ready: Ready, took_ms: int) -> None:
    directory, node = server.settings.directory, server.host.node
    place = "in memory" if directory is None else f"in {directory}"
    BROKER.info(
        "node %d is ready on %s: partitions %s: %d, read in %d ms",
        node.settings.node_id, ready.address, place, len(node.logs), took_ms,
    )  # fmt: skip
    if ready.metrics_port is not None:
        BROKER.info("metrics are on http://%s:%d/metrics", server.settings.metrics_host, ready.metrics_port)


async def serve_until_signalled(
    settings: BrokerSettings, *, on_ready: Callable[[Ready], None], faults: BrokerFaultInjector | None = None
) -> signal.Signals:
    """Run a broker until SIGINT or SIGTERM; return the signal."""

    def became_ready(ready: Ready) -> None:
        gc.collect()
        # Modules and settings live for ever: frozen, the collector skips them. Only a process of its own may
        # do this, so `serve` itself does not.
        gc.freeze()
        on_ready(ready)

    async def run() -> None:
        machine, injector = machine_of(settings), faults or injector_of(settings)
        await serve(settings, machine=machine, faults=injector, on_ready=became_ready)
        os.kill(os.getpid(), signal.SIGKILL)  # as a fault asked

    raise_descriptor_limit()
    caught = signal.SIGTERM
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            async for number in signals:
                caught = signal.Signals(number)
                BROKER.info("caught %s", caught.name)
                nursery.cancel_scope.cancel()
                break
    return caught
