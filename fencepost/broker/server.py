"""The trio server: it accepts connections, feeds the node, and performs the effects of what it decides.

Rule: per wake-up a connection reads all bytes that are there and sends all replies. No message needs an
`await` of its own.
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
#     keep_time               the next deadline      host.tick, manifests, Fetches that were put off, turn()
#     keep_room               the next sweep         closes connections that are idle, late or in the way
#
# More tasks run beside these: two wait for the disk (disk_tasks.py), one for the deadlines of faults
# (fault_site.py), and one answers followers (follow_site.py). monitor.py counts and logs what happens here;
# lifecycle.py starts and ends servers.
#
# `turn` is the heart: it lets the host work until nothing is left to do, and hands all replies to the kernel.
# What trio's parts cost is measured in docs/performance.md.
#
# Connections take turns. A client may send many requests without waiting for replies, so a connection yields
# to the others when its part of a round is over: 10 ms, divided among all that have requests. A turn is at
# least one request, so the other connections would have to wait for one request of each client with costly
# ones. Therefore a request that is large, or whose predecessor was slow, waits in a line of its own
# (`_costly`), and a round has at most one of them. A request of a Kafka client that becomes many for the
# node, for example one about 20,000 groups, is carried out in parts; each of them waits in this line, too.
# Fetches of Kafka's clients for which batches must be encoded share what one round allows, 0.1 to 0.4 s of
# work (protocol/batch_work.py). memory.py says how much all connections may hold, and who waits for whom.
#
# `Server.kill` may be called in the middle of a turn, between any two actions of the host; nothing is written
# or sent after it.

from __future__ import annotations

import socket
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from itertools import count
from typing import Final

import attrs
import trio

from fencepost.broker.access.session import NotAdmitted, Session
from fencepost.broker.access.table import commits
from fencepost.broker.admission import Admission
from fencepost.broker.broker_settings import BrokerSettings
from fencepost.broker.clocks import monotonic_ms
from fencepost.broker.connections import (
    NO_DESCRIPTOR,
    NO_MEMORY,
    OF_ONE_CONNECTION,
    PRESSED_SWEEP_MS,
    SWEEP_MS,
    Connection,
    ConnectionTable,
    SpareDescriptor,
)
from fencepost.broker.contract import Disconnected, Input, Outcome, Received, Reply, ReplyTo
from fencepost.broker.disk_tasks import DiskTasks
from fencepost.broker.fault_injector import BrokerFaultInjector
from fencepost.broker.fault_requests import FAULT_REQUESTS
from fencepost.broker.fault_site import FaultSite, injector_of
from fencepost.broker.follow_site import FollowSite, observer_of
from fencepost.broker.host import MANIFEST_INTERVAL_MS, Host, MetadataLost
from fencepost.broker.monitor import Monitor
from fencepost.broker.observer import UNAWAITED
from fencepost.broker.wire_protocols import ProtocolSwitchedOff
from fencepost.protocol.errors import ErrorCode, ProtocolViolation
from fencepost.protocol.frames import FrameTooLarge, PeerSpeaksTls, ReplyFrame, RequestFrame, encode_reply
from fencepost.protocol.messages import (
    BrokerStatusReply,
    Follow,
    ProduceReply,
    Request,
    WriteTxnMarkers,
    is_answered,
)
from fencepost.protocol.secure import TlsFailed
from fencepost.protocol.wire_protocol import Asked

RECEIVE_SIZE: Final = 1 << 20  # bytes of a large frame per wake-up
# Connections with requests that have arrived share a round of this length; each gets at least one request.
ROUND_NS: Final = 10_000_000
# A Kafka request may become many for the node; a round has at most this many of them.
REQUESTS_AT_ONCE: Final = 50
OUT_OF_RESOURCES_S: Final = 0.1
IDLE_WAKE_MS: Final = 3_600_000
FIRST_UNACKNOWLEDGED: Final = 1 << 31
"""Requests with acks 0, whose replies are not sent, get correlation ids from here on: no client has them."""
NEEDS_TRUST: Final = frozenset({*FAULT_REQUESTS, Follow, WriteTxnMarkers})
"""Without ACLs, a client of another machine may not send these, except for ABORT markers."""


@attrs.frozen(kw_only=True)
class Killed:
    """How a server was killed. With `loses_power`, every byte that was not synced is lost. Without
    `restarts_after_ms`, the broker is not started again.
    """

    loses_power: bool = False
    restarts_after_ms: int | None = None


class Server:
    """One broker: a host, its connections, and the tasks that serve them."""

    def __init__(
        self,
        settings: BrokerSettings,
        host: Host,
        listener: socket.socket,
        admission: Admission | None,
        faults: BrokerFaultInjector | None = None,
    ) -> None:
        self.settings = settings
        self.host = host
        self.listener = listener
        self.is_ready = False
        self.killed: Killed | None = None
        self.failure: MetadataLost | None = None
        self.scope = trio.CancelScope()  # around the tasks
        self.admission = admission
        self.monitor = Monitor(host)
        self.connections = ConnectionTable(
            settings.connections,
            host.node,
            report=self.monitor.dropped,
            pressed=self.hurry,
            has_tls=settings.access.tls_cert is not None,
            protocol=settings.protocol,
        )
        host.reads.pool, host.reads.is_open = self.connections.answers, self.connections.is_open
        host.reads.encoding_for = self.connections.fetch_encoding
        self.observer = observer_of(settings)
        host.watch = self.monitor.stepped
        if self.observer is not None:
            host.watch, host.wrote = self._stepped, self.observer.appended
            self.observer.started(host.node)
        # One buffer serves all connections: its bytes are copied into frames before the next receive.
        self._received = memoryview(bytearray(RECEIVE_SIZE))
        self._alarm = trio.lowlevel.ParkingLot()
        self._alarm_at_ms = 0
        self._unacknowledged = count(FIRST_UNACKNOWLEDGED)
        self._manifest_due_ms: int | None = None
        self._sweep = trio.lowlevel.ParkingLot()
        self._sweep_at_ms = 0
        self._costly = trio.Lock()  # held while a costly request is carried out, and for a turn of the others
        self._in_line = 0  # connections that have yielded and wait for their next turn
        self.faults = injector_of(settings) if faults is None else faults
        self.disk_tasks = DiskTasks(host, self.faults, self.monitor.counters, turn=self.turn)
        self.fault_site = FaultSite(self, self.faults)
        self.follow_site = FollowSite(self, None if settings.feed is None else settings.feed.buffer)
        self.faults.attach(self.fault_site)

    def start(self, nursery: trio.Nursery) -> None:
        nursery.start_soon(self.accept, nursery)
        nursery.start_soon(self.keep_time)
        nursery.start_soon(self.keep_room)
        nursery.start_soon(self.disk_tasks.sync)
        nursery.start_soon(self.disk_tasks.keep_clean)
        nursery.start_soon(self.fault_site.keep_faults)
        nursery.start_soon(self.follow_site.keep_followed)

    def kill(self, *, loses_power: bool = False, restarts_after_ms: int | None = None) -> None:
        """End the server as SIGKILL ends a process: from now on it neither writes nor sends. May be called
        between any two actions of the host.
        """
        if self.killed is None:
            self.killed = Killed(loses_power=loses_power, restarts_after_ms=restarts_after_ms)
            self.fault_site.is_held = True
            if self.observer is not None:
                self.observer.killed()
                self.follow_site.hurry()
            self.scope.cancel()
            for connection in list(self.connections.opened.values()):
                connection.reset()

    def fail(self, problem: MetadataLost) -> None:
        """End the server because of this error, without a clean stop: its state is ahead of its log."""
        self.failure = problem
        self.kill()

    # --- the loop

    def turn(self) -> None:
        """Let the host do everything that it can do now, and send its replies."""
        host, site = self.host, self.fault_site
        if site.is_held or self.killed is not None:
            return
        now = site.now()
        host.tick(now)
        try:
            if site.goes_by_steps:
                site.work_by_steps(now)
                if site.is_held:
                    self.follow_site.hurry()
            else:
                while host.to_do or host.inbox:
                    # Replies leave together, but before work that no client waits for, such as markers: a
                    # commit is acknowledged after PREPARE_COMMIT, and its markers should not delay that.
                    host.work_until_idle(now, pauses=True)
                    if host.answers:
                        self.send_answers()
        except MetadataLost as problem:
            self.fail(problem)
            return
        if host.troubles:
            self.monitor.take_troubles(now)
        if host.unsynced or host.upkeep.is_needed:
            self.disk_tasks.wake()
        if host.changed and self._manifest_due_ms is None:
            self._manifest_due_ms = now + MANIFEST_INTERVAL_MS
        if self._next_alarm_ms(now) < self._alarm_at_ms:
            self._alarm.unpark_all()

    def _stepped(self, arrived: Input, outcome: Outcome) -> None:
        assert self.observer is not None, "without one, only the monitor watches"
        self.monitor.stepped(arrived, outcome)
        self.observer.stepped(arrived, outcome)

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
            if answer.to.correlation_id >= FIRST_UNACKNOWLEDGED:
                if connection is not None:
                    self._close_if_failed(connection, answer)
                continue
            if observer is not None:
                observer.answered(answer, UNAWAITED if connection is None else None)
            # Not in progress: refused already, when its handler failed after part of its work.
            if connection is not None and (ended := connection.end(answer.to.correlation_id)) is not None:
                self.monitor.answered(
                    connection, ended, answer, is_injected=answer.to == self.faults.injected
                )
                self._go_on(connection, self._answered(connection, answer))
        if self.host.reads.unsent_bytes:
            self.host.reads.sent()
        pool = self.connections.answers
        if pool.taken > pool.limit:
            self.connections.shrink()

    def _close_if_failed(self, connection: Connection, answer: Reply) -> None:
        """Close the connection of a Produce with acks 0 that failed: its producer waits for no reply, but
        fetches the metadata again when a connection breaks (KafkaApis.handleProduceRequest).
        """
        parts = answer.body.partitions if isinstance(answer.body, ProduceReply) else ()
        failed = [f"{part.error.name} for {part.topic}-{part.partition}" for part in parts if part.error]
        if answer.error or failed:
            why = failed[0] if failed else answer.error.name
            self.connections.drop(connection, f"sent a Produce with acks 0 that failed: {why}")

    def reply_past_node(self, answer: Reply) -> None:
        """Send a reply at once: no fault touches it, and it overtakes the replies of the node."""
        connection = self.connections.opened.get(answer.to.connection)
        if connection is None:
            return
        if answer.to.correlation_id >= FIRST_UNACKNOWLEDGED:
            self._close_if_failed(connection, answer)
        elif connection.end(answer.to.correlation_id) is not None:
            self._go_on(connection, self._answered(connection, answer))

    def _answered(self, connection: Connection, answer: Reply) -> Asked:
        """What a reply leads to."""
        number, session, protocol = answer.to.correlation_id, connection.session, connection.protocol
        try:
            if session is not None:
                answer = session.amended(answer)
            if type(answer.body) is BrokerStatusReply:
                status = self.monitor.with_counts(
                    answer.body, directory=self.settings.directory, connections=len(self.connections.opened)
                )
                answer = attrs.evolve(answer, body=status)
            return protocol.reply(ReplyFrame(number, answer.error, answer.body))
        except FrameTooLarge as problem:
            self.monitor.too_large(answer, problem)
            return self._refused(connection, ReplyFrame(number, error=ErrorCode.INVALID_REQUEST, body=None))
        except Exception as problem:  # noqa: BLE001 - a bug costs this reply, not the others
            self.monitor.bug("drops a reply:", problem)
            error = ErrorCode.UNKNOWN_SERVER_ERROR
            return self._refused(connection, ReplyFrame(number, error=error, body=None))

    def _refused(self, connection: Connection, refusal: ReplyFrame) -> Asked:
        """What an error instead of a reply leads to; a connection that cannot be told of it is closed."""
        try:
            return connection.protocol.reply(refusal)
        except Exception as problem:  # noqa: BLE001 - a bug costs this connection, not the others
            self.monitor.bug("closed a connection:", problem)
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
                    await self._not_accepted(problem, spare)
                    continue
                if self.connections.is_full:
                    accepted.close()
                    why = f"all {self.connections.limit} connections (max.connections) are in use"
                    self.monitor.refused(why, peer=f"{address[0]}:{address[1]}")
                else:
                    session = None if self.admission is None else self.admission.session()
                    nursery.start_soon(
                        self._serve, self.connections.open(accepted, address[0], nursery, session)
                    )

    async def _not_accepted(self, problem: OSError, spare: SpareDescriptor) -> None:
        """The kernel did not hand a connection over. Raises `problem` if it is an error of the listener."""
        if problem.errno in NO_DESCRIPTOR:
            await self._refuse_with(spare)
        elif problem.errno in NO_MEMORY:
            await trio.sleep(OUT_OF_RESOURCES_S)  # still in the backlog: without a pause this would spin
            self.monitor.refused(f"the kernel has no memory for it: {problem.strerror}")
        elif problem.errno not in OF_ONE_CONNECTION:
            raise problem

    async def _refuse_with(self, spare: SpareDescriptor) -> None:
        """Out of file descriptors: accept the next connection with the spare one, and close it."""
        spare.close()
        with suppress(OSError):  # its client has left, or a sync took the descriptor
            self.listener.accept()[0].close()
        if not spare.open():
            await trio.sleep(OUT_OF_RESOURCES_S)  # otherwise this would spin
        self.monitor.refused("no file descriptor is left; raise the limit (ulimit -n)")

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
            self.monitor.violated(connection, "a login", problem, what_happened="refused")
        except PeerSpeaksTls as problem:
            # Any frame will do: what is not TLS tells the client's TLS library what is wrong.
            connection.send(encode_reply(ReplyFrame(0, error=ErrorCode.INVALID_REQUEST, body=None)))
            self.monitor.violated(connection, "TLS", problem, what_happened="refused")
        except TlsFailed as problem:
            self.monitor.violated(connection, "TLS", problem, what_happened="refused")
        except ProtocolSwitchedOff as problem:
            self.monitor.violated(connection, "a protocol", problem, what_happened="closed")
        except ProtocolViolation as problem:
            violation = ProtocolViolation(f"it violated the protocol: {problem}")
            self.monitor.violated(connection, "a violation", violation, what_happened="closed")
        except Exception as problem:  # noqa: BLE001 - a bug costs this connection, not the others
            self.monitor.bug("closed a connection:", problem)
        finally:
            connection.close()
            del self.connections.opened[connection.number]
            self.host.offer(Disconnected(connection=connection.number))
            self.turn()

    def _offer_early(self, connection: Connection, arrived: RequestFrame) -> None:
        """Handle a request that needs no authentication."""
        self._begin(connection, arrived)
        self.turn()

    async def _take_up(self, connection: Connection) -> None:
        """Handle the requests that have arrived, one after another, and yield when the turn is over."""
        ends_ns = None
        while (frame := await connection.next_request()) is not None:
            if connection.is_costly:
                async with self._costly_turn(connection):
                    left = self._carry_out(connection, frame)
            else:
                left = self._carry_out(connection, frame)
            if left:
                await self._carry_out_in_parts(connection, left)
            if not connection.frames.arrived:
                return
            if ends_ns is None:  # a turn begins with its first request
                ends_ns = connection.took_ns + ROUND_NS // (1 + self._in_line)
            if time.monotonic_ns() >= ends_ns:
                self._in_line += 1
                await trio.lowlevel.checkpoint()
                self._in_line -= 1
                ends_ns = None

    def _carry_out(self, connection: Connection, frame: memoryview) -> Sequence[RequestFrame]:
        """Carry out a request, or return what it becomes if that is more than REQUESTS_AT_ONCE."""
        if connection.is_closed:
            return ()
        connection.took_ns = time.monotonic_ns()
        asked = connection.protocol.ask(frame)
        if len(asked.requests) > REQUESTS_AT_ONCE:
            return asked.requests
        self._go_on(connection, asked)
        self._handle(connection)
        return ()

    async def _carry_out_in_parts(self, connection: Connection, requests: Sequence[RequestFrame]) -> None:
        """Carry out what one request has become for the node, each part in a turn for costly requests."""
        room, connection.reserved = connection.reserved, 0
        for start in range(0, len(requests), REQUESTS_AT_ONCE):
            async with self._costly_turn(connection):
                if connection.is_closed:
                    return
                connection.took_ns = time.monotonic_ns()
                end = start + REQUESTS_AT_ONCE
                part = requests[start:end]
                self._begin_each(connection, part[:-1])
                if end >= len(requests) and not connection.is_closed:
                    connection.reserved = room  # it is given back with the reply to the last one
                self._begin_each(connection, part[-1:])
                if connection.is_closed:  # no further turn comes, and what a fault delays arrives whole
                    self._begin_each(connection, requests[end:])
                self._handle(connection)

    @asynccontextmanager
    async def _costly_turn(self, connection: Connection) -> AsyncGenerator[None]:
        """Wait in line for a turn for a costly request. Everybody else has a turn before the next one."""
        connection.is_in_line = True
        async with self._costly:
            connection.is_in_line, connection.progress_ms = False, monotonic_ms()
            yield
            await trio.lowlevel.checkpoint()

    def _handle(self, connection: Connection) -> None:
        """Let the node handle what a connection has begun."""
        self.turn()
        # No request holds this room: the frame was answered at once, or it is a Produce with acks 0.
        if connection.reserved:
            connection.drop_reserved()
        connection.was_slow = time.monotonic_ns() - connection.took_ns >= ROUND_NS

    def _go_on(self, connection: Connection, asked: Asked) -> None:
        if asked.pieces is not None:
            connection.send(asked.pieces)
        if asked.requests:
            self._begin_each(connection, asked.requests)

    def _begin_each(self, connection: Connection, requests: Sequence[RequestFrame]) -> None:
        """Begin what one request has become. If a fault closes the connection at one of them, the rest never
        arrives, except after one that arrives late.
        """
        for arrived in requests:
            if connection.is_closed and not self.faults.delays(connection):
                return
            self._begin(connection, arrived)

    def _begin(self, connection: Connection, arrived: RequestFrame) -> None:
        request, session = arrived.request, connection.session
        has_answer = is_answered(request)
        number = arrived.correlation_id if has_answer else next(self._unacknowledged)
        to = ReplyTo(connection.number, number)
        if self.observer is not None:
            self.observer.asked(to, arrived)
        if number in connection.in_progress:
            raise ProtocolViolation(
                f"correlation id {number} is in use: an earlier request with it has no reply yet"
            )
        if has_answer:
            connection.begin(number, request, arrived.client_id)
        if session is not None:
            allowed = self._authorized(connection, session, arrived, to)
            if allowed is None:
                return
            request = allowed
        if type(request) in NEEDS_TRUST and self._handled_here(connection, request, to):
            return
        received = Received(request, to, arrived.version, arrived.client_id, connection.client_host)
        if not (self.faults.is_active and self.faults.keeps_request(connection, received)):
            self.host.offer(received)

    def _handled_here(self, connection: Connection, request: Request, to: ReplyTo) -> bool:
        """Refuse a request of a client that is not trusted with it, or answer one about faults or from a
        follower. Returns False if the node has to handle it.
        """
        markers = request if isinstance(request, WriteTxnMarkers) else None
        if not connection.is_trusted and (markers is None or commits(markers)):
            self.reply_past_node(Reply(to, error=ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
            return True
        if isinstance(request, Follow):
            self.follow_site.take_up(request, to)
        elif markers is None:
            self.fault_site.control(request, to)
        return markers is None

    def _authorized(
        self, connection: Connection, session: Session, arrived: RequestFrame, to: ReplyTo
    ) -> Request | None:
        """The part of the request that the principal is allowed; None if the request was already answered."""
        number, request = to.correlation_id, arrived.request
        verdict = session.authorize(request, arrived.version)
        if verdict.denial is not None:
            what = f"{verdict.denial} ({type(request).__name__})"
            self.monitor.denied(connection, session.principal, what)
            if number >= FIRST_UNACKNOWLEDGED:  # the part that is allowed is appended all the same
                self.connections.drop(connection, f"sent a Produce with acks 0 that failed: may not {what}")
        if number in connection.in_progress:
            if verdict.request is None:
                connection.end(number)
                denied = Reply(to, verdict.body, error=verdict.error)
                self._go_on(connection, self._answered(connection, denied))
            elif verdict.amendment is not None:
                session.amendments[number] = verdict.amendment
        return verdict.request

    # --- time

    async def keep_time(self) -> None:
        """Tick when the node asked for it, write the manifests for readers without a broker, and begin rounds
        of opening batches: a request that finds no time left in a round wakes this task.
        """
        while True:
            now = self.fault_site.now()
            if self._manifest_due_ms is not None and self._manifest_due_ms <= now:
                self._manifest_due_ms = now if self.host.write_manifests() else None
            self.host.reads.begin_round()
            while self.host.reads.offer_put_off():
                self.turn()
            self.turn()
            self._alarm_at_ms = self._next_alarm_ms(now)
            with trio.move_on_after(max(0, self._alarm_at_ms - self.fault_site.now()) / 1000):
                await self._alarm.park()

    def _next_alarm_ms(self, now: int) -> int:
        if self.host.reads.put_off and not self.fault_site.is_held:
            return now  # when the other tasks have had their turn
        manifest_ms, wake_ms = self._manifest_due_ms, self.host.wakes_at_ms
        if manifest_ms is None:
            return now + IDLE_WAKE_MS if wake_ms is None else wake_ms
        return manifest_ms if wake_ms is None else min(manifest_ms, wake_ms)

    def wake_clock(self) -> None:
        """Look at the deadlines of the node again: its clock has jumped."""
        self._alarm.unpark_all()

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
