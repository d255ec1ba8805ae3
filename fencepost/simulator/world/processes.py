"""Client processes in a world: machines with their connections, and the script that a process runs.

Rule: a process sees its own clock and what its machines resolved. When it dies, its connections close after
what it had sent.
"""

# Theory of operation
#
#     script ── yields a wait ──▶ advance ── until the wait is over ──▶ script goes on
#     script ── calls ──▶ machine ── effects ──▶ Port.perform ──▶ requests, timers, results
#     network ── answered, lost ──▶ machine ── effects ──▶ perform; then advance looks at the wait again
#
# The machines, and the scripts of their calls (client/calls.py), are those of the real clients; a process
# takes the place of the threads or trio tasks that run them there. A script waits for a condition, for
# milliseconds of its own clock, or for what a call waits for. Nothing polls: whatever may end a wait calls
# `advance`.
#
# A request that gets no reply in time makes its port give up the whole connection, as Kafka's client does
# (NetworkClient.handleTimedOutRequests): the retry takes another connection, and the old request may arrive
# late. A process that is killed leaves its requests in the same way.

from __future__ import annotations

from collections.abc import Callable, Generator
from math import ceil, inf
from typing import Final, TypeVar

import attrs

from fencepost.client.calls import Callback, RequestCalls, Wait
from fencepost.client.effects import (
    BatchDone,
    CallAnswered,
    Effect,
    Resolve,
    SendRequest,
    TransactionCall,
    WakeAt,
    WarnProgram,
)
from fencepost.client.errors import Failure
from fencepost.client.requests import RequestMachine
from fencepost.protocol.errors import ErrorCode
from fencepost.simulator.world.events import CallEnded, Life, LifeChanged
from fencepost.simulator.world.network import ReplyMessage, RequestMessage, SimulatedConnection
from fencepost.simulator.world.participants import NS_PER_MS, Participant

Result = TypeVar("Result")
Waiting = Callable[[], bool] | int | Wait | Callback
"""What a script waits for: a condition, a number of milliseconds of its own clock, or what a client call
waits for or calls back.
"""
WARNED: Final = "client: warned"
Script = Generator[Waiting, None, Result]


@attrs.define(eq=False)
class Port:
    """One machine of a process, and its connection to each node that it talks to: the driver of its calls."""

    process: ClientProcess
    machine: RequestMachine
    request_timeout_ms: int
    connections: dict[int, SimulatedConnection] = attrs.Factory(dict[int, SimulatedConnection])
    resolved: dict[TransactionCall, Failure | None] = attrs.Factory(dict[TransactionCall, Failure | None])
    answers: dict[int, CallAnswered] = attrs.Factory(dict[int, CallAnswered])
    wakes_at_ms: int | None = None
    timed: set[int] = attrs.Factory(set[int])
    """The tokens of requests that have a timeout of their own."""

    @property
    def participant(self) -> str:
        return self.process.participant

    @property
    def owner(self) -> Participant:
        return self.process

    def check_running(self) -> None:
        """A process that does not run makes no calls."""

    @property
    def now(self) -> int:
        """The time in milliseconds, as this machine sees it."""
        return self.process.now_ms

    @property
    def wall_ms(self) -> int:
        """The time for timestamps of records: a process has one clock."""
        return self.now

    @property
    def cancelled(self) -> tuple[type[BaseException], ...]:
        """Nothing cancels a call here: a process is killed as a whole."""
        return ()

    def perform(self, effects: list[Effect]) -> None:
        """Carry out the effects of the machine."""
        for effect in effects:
            match effect:
                case SendRequest():
                    self._send(effect)
                case WakeAt():
                    self._wake_at(effect.at)
                case Resolve():
                    self.resolved[effect.operation] = effect.failure
                    self.process.world.events.publish(CallEnded(self.process, effect))
                case BatchDone():
                    pass  # those who wait look at the batch itself, and none of them has callbacks
                case CallAnswered():
                    self.answers[effect.number] = effect
                case WarnProgram():
                    self.process.world.marks[WARNED] += 1

    def wake(self) -> None:
        self.perform(self.machine.wake(self.now))

    # --- connections ----------------------------------------------------------------------------------------

    def _send(self, send: SendRequest) -> None:
        world = self.process.world
        connection = self.connections.get(send.node_id)
        if connection is None:
            address = self.machine.cluster.address(send.node_id)
            server = None if address is None else world.server(address[1])
            if server is None:  # refused, but only after this call has returned
                world.at(world.now, self._refused, send.token)
                return
            connection = self.connections[send.node_id] = world.network.connect(self, server)
        if send.timeout_ms is not None:
            self.timed.add(send.token)
            world.at(world.now + send.timeout_ms * NS_PER_MS, self._time_out_one, (connection, send.token))
        elif not connection.is_timed:
            # One act for a connection and not for each request: the oldest request is the first to be late.
            self._time(connection, world.now)
        world.network.ask(connection, RequestMessage(send.token, send.request, send.version))

    def _refused(self, token: int) -> None:
        if not self.process.is_over:
            self.perform(self.machine.on_reply(token, ErrorCode.NETWORK_EXCEPTION, None, self.now))
            self.process.advance()

    def _time(self, connection: SimulatedConnection, asked_at: int) -> None:
        """Check the oldest request of a connection when its timeout is over."""
        connection.is_timed = True
        at = asked_at + self.request_timeout_ms * NS_PER_MS
        self.process.world.at(at, self._time_out, connection)

    def _time_out(self, connection: SimulatedConnection) -> None:
        connection.is_timed = False
        usual = (at for token, (_, at) in connection.in_flight.items() if token not in self.timed)
        asked_at = next(usual, None)
        if asked_at is None or self.process.is_over:
            return
        # The request for which this was planned is answered, and the oldest one is younger now.
        if asked_at + self.request_timeout_ms * NS_PER_MS > self.process.world.now:
            self._time(connection, asked_at)
        else:
            self.give_up(connection)

    def _time_out_one(self, request: tuple[SimulatedConnection, int]) -> None:
        connection, token = request
        self.timed.discard(token)
        if token in connection.in_flight and not self.process.is_over:
            self.give_up(connection)

    def give_up(self, connection: SimulatedConnection) -> None:
        """Stops waiting on this connection; requests that it carried may still have their effect."""
        lost = list(connection.in_flight)
        self.process.world.network.give_up(connection)
        self._forget(connection, lost)

    def answered(self, connection: SimulatedConnection, reply: ReplyMessage) -> None:
        process = self.process
        if not process.is_over:
            self.perform(self.machine.on_reply(reply.token, reply.error, reply.body, self.now))
            process.advance()

    def lost(self, connection: SimulatedConnection) -> None:
        self._forget(connection, list(connection.in_flight))

    def _forget(self, connection: SimulatedConnection, tokens: list[int]) -> None:
        # First of all: a machine that retries at once must get another connection.
        for node_id, known in list(self.connections.items()):
            if known is connection:
                del self.connections[node_id]
        connection.in_flight.clear()
        if self.process.is_over:
            return
        for token in tokens:
            self.perform(self.machine.on_reply(token, ErrorCode.NETWORK_EXCEPTION, None, self.now))
        self.process.advance()

    # --- time -----------------------------------------------------------------------------------------------

    def _wake_at(self, shown_ms: int) -> None:
        self.wakes_at_ms = shown_ms
        world = self.process.world
        world.at(max(self.process.clock.when(shown_ms), world.now), self._wake_due, shown_ms)

    def _wake_due(self, shown_ms: int) -> None:
        # A later WakeAt replaces this one, whose act is still in the queue.
        if shown_ms == self.wakes_at_ms and not self.process.is_over:
            self.look_at_clock()

    def look_at_clock(self) -> None:
        """Time passed, or the clock jumped."""
        if self.wakes_at_ms is None:
            return
        # The clock was set back.
        if self.wakes_at_ms > self.now:
            self._wake_at(self.wakes_at_ms)
            return
        self.wakes_at_ms = None
        self.wake()
        self.process.advance()


_END: Final = "the script is over"


def _at_once() -> bool:
    return True


@attrs.define(eq=False)
class ClientProcess(Participant):
    """A client process: its ports, and its script until that ends or the process is killed."""

    ports: list[Port] = attrs.Factory(list[Port])
    script: Script[None] | None = None
    waits_for: Callable[[], bool] = _at_once
    is_over: bool = False
    is_advancing: bool = False

    @property
    def now_ms(self) -> int:
        return self.clock.ms(self.world.now)

    def port(self, machine: RequestMachine, *, request_timeout_ms: int) -> Port:
        port = Port(self, machine, request_timeout_ms)
        self.ports.append(port)
        return port

    def request_calls(self, *, request_timeout_ms: int, api_timeout_ms: int) -> RequestCalls:
        """A client that sends single requests."""
        machine = RequestMachine(self.world.bootstrap)
        port = self.port(machine, request_timeout_ms=request_timeout_ms)
        return RequestCalls(machine, port, api_timeout_ms=api_timeout_ms)

    def start(self, script: Script[None]) -> None:
        """Start the script; it runs up to its first wait."""
        self.world.events.publish(LifeChanged(self.participant, Life.STARTS))
        self.script = script
        self.advance()

    def advance(self) -> None:
        """Run the script until it waits for something that has not happened yet."""
        # A script that calls its machine gets here from within; the outer loop continues anyway.
        if self.is_advancing or self.is_paused or self.script is None:
            return
        self.is_advancing = True
        try:
            while not self.is_over and self.waits_for():
                wait = next(self.script, _END)
                if wait is _END:
                    self.world.events.publish(LifeChanged(self.participant, Life.ENDS))
                    self._end()
                elif isinstance(wait, int):
                    self._wait(lambda: False, self.now_ms + wait)
                elif isinstance(wait, Wait):
                    self._wait(wait.until, wait.deadline)
                elif isinstance(wait, Callback):
                    wait.function(wait.partitions)
                    self.waits_for = _at_once
                else:
                    assert not isinstance(wait, str), "a script yields a condition, a Wait or milliseconds"
                    self.waits_for = wait
        finally:
            self.is_advancing = False

    def _wait(self, until: Callable[[], bool], deadline_ms: float) -> None:
        self.waits_for = until
        if deadline_ms != inf:
            due = self.clock.when(ceil(deadline_ms))
            self.world.at(max(due, self.world.now), self._waited_enough, until)

    def _waited_enough(self, until: Callable[[], bool]) -> None:
        # The same wait, not a later one that began meanwhile.
        if until is self.waits_for and not self.is_over:
            self.waits_for = _at_once
            self.advance()

    def kill(self) -> None:
        """The process dies between two things that it does."""
        if not self.is_over:
            assert self.script is not None, "a process that runs has a script"
            self.script.close()
            self._end()
            self.world.events.publish(LifeChanged(self.participant, Life.DIES))

    def _end(self) -> None:
        self.is_over = True
        self.is_paused = False
        self.backlog.clear()
        for port in self.ports:
            for connection in port.connections.values():
                self.world.network.give_up(connection)
            port.connections.clear()

    def catch_up(self) -> None:
        self.look_at_clock()
        # After the clock: what became overdue in the pause is overdue, even if its reply is in the backlog.
        super().catch_up()
        self.advance()

    def look_at_clock(self) -> None:
        """Wake every machine whose time has come."""
        if self.is_paused or self.is_over:
            return
        for port in self.ports:
            port.look_at_clock()
