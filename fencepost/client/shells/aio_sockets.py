"""Sockets of the async shell, on trio and asyncio alike: one
task per connection, one for the time, direct writes.

Rule: no streams, no locks, no task per request. Whoever calls writes at once; a task reads, hands over all
that is there, and wakes those whose answer came.
"""

from __future__ import annotations

import socket
from collections import defaultdict
from collections.abc import Callable, Hashable
from math import inf
from types import TracebackType

import anyio
from anyio.abc import TaskGroup

from fencepost.client.connection import Connection
from fencepost.client.effects import Answered, BatchDone, Effect, Operation, Resolve
from fencepost.client.errors import Failure
from fencepost.client.session import Machine, Session
from fencepost.client.shells.sync_sockets import READ_SIZE, Clock, connecting_socket, write_some


class AsyncWires:
    """The sockets and waiters of one client."""

    def __init__(self, machine: Machine, *, client_id: str, request_timeout_ms: int, clock: Clock) -> None:
        self.session = Session(machine, client_id=client_id, request_timeout_ms=request_timeout_ms)
        self.clock = clock
        self._links: dict[int, socket.socket] = {}
        self._tasks: TaskGroup | None = None
        self._waiters: defaultdict[Hashable, list[anyio.Event]] = defaultdict(list)
        self._sleeps_until: float = 0
        self._buffer = bytearray(READ_SIZE)
        self._view = memoryview(self._buffer)
        self._alarm = anyio.Event()
        self._draining: set[Connection] = set()
        self.resolved: dict[Operation, Failure | None] = {}
        self.answers: dict[int, Answered] = {}

    # --- life -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Opens the task group in which connections are read; `stop` must follow in the same task."""
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._keep_time)

    async def stop(self) -> None:
        """Ends every task and closes every socket."""
        tasks, self._tasks = self._tasks, None
        if tasks is not None:
            tasks.cancel_scope.cancel()
            await tasks.__aexit__(None, None, None)
        assert not self._links, "each task closes its own socket"

    @property
    def is_running(self) -> bool:
        """Whether it was started and not stopped."""
        return self._tasks is not None

    # --- effects --------------------------------------------------------------------------------------------

    def perform(self, effects: list[Effect], now: int) -> None:
        """Does what a machine wants: writes what can be written, wakes whom it concerns."""
        self.session.perform(effects, now)
        self.push()

    def push(self) -> None:
        """Connects, writes, wakes waiters and sets the alarm; after all that happens to the session."""
        session = self.session
        while session.to_open and self._tasks is not None:
            node = session.to_open.pop(0)
            self._tasks.start_soon(self._serve, node, session.connections[node])
        for node, connection in list(session.connections.items()):
            if connection.outbox and node in self._links and connection not in self._draining:
                self._write(node, connection)
        if session.outcomes:
            self._tell()
        wake_at = session.wake_at
        if wake_at is not None and wake_at < self._sleeps_until:
            self._alarm.set()

    def _tell(self) -> None:
        """Wakes those who wait for what is known now."""
        outcomes, self.session.outcomes = self.session.outcomes, []
        for effect in outcomes:
            if isinstance(effect, BatchDone):
                self._wake(("batch", effect.number))
                self._wake("room")
            elif isinstance(effect, Resolve):
                self.resolved[effect.operation] = effect.failure
                self._wake(effect.operation)
            elif isinstance(effect, Answered):
                self.answers[effect.number] = effect
                self._wake(("answer", effect.number))

    def _wake(self, key: Hashable) -> None:
        if key in self._waiters:
            for event in self._waiters.pop(key):
                event.set()

    async def wait(self, key: Hashable, is_over: Callable[[], bool], timeout_ms: float = inf) -> bool:
        """Parks until `is_over`, looked at each time `key` happens; False when `timeout_ms` passes first."""
        if is_over():
            return True
        deadline = inf if timeout_ms == inf else anyio.current_time() + timeout_ms / 1000
        with anyio.CancelScope(deadline=deadline):
            while not is_over():
                event = anyio.Event()
                self._waiters[key].append(event)
                await event.wait()
            return True
        return is_over()

    # --- tasks ----------------------------------------------------------------------------------------------

    async def _serve(self, node: int, connection: Connection) -> None:
        """One connection from its first packet to its last."""
        link: socket.socket | None = None
        try:
            link = await self._connect(node)
            if self.session.connections.get(node) is connection:
                self._links[node] = link
                self.push()
                await self._read(node, link)
        except (OSError, anyio.ClosedResourceError):
            pass  # the peer is gone, or its request timed out: what was in flight is told below
        finally:
            if link is not None:
                if self._links.get(node) is link:
                    del self._links[node]
                self._drop(link)
        if self.session.connections.get(node) is connection:
            self.session.lost(node, self.clock())
        self.push()

    def _drop(self, link: socket.socket) -> None:
        """Closes a socket, if it is open; tasks that wait for it hear of it."""
        if link.fileno() >= 0:
            anyio.notify_closing(link)
            link.close()

    async def _connect(self, node: int) -> socket.socket:
        address = self.session.address(node)
        if address is None:
            raise OSError(f"node {node} is not known any more")
        found = await anyio.getaddrinfo(*address, type=socket.SOCK_STREAM)
        link = connecting_socket(found[0])
        try:
            await anyio.wait_writable(link)
            problem = link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if problem:
                raise OSError(problem, f"cannot connect to {address}")
        except BaseException:
            link.close()
            raise
        return link

    async def _read(self, node: int, link: socket.socket) -> None:
        """Reads until the connection ends or says something that is no protocol."""
        while True:
            await anyio.wait_readable(link)
            if not self._receive(node, link):
                return

    def _receive(self, node: int, link: socket.socket) -> bool:
        """Hands over what has come; False when the connection is over."""
        try:
            count = link.recv_into(self._buffer)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not count or self.session.received(node, self._view[:count], self.clock()) is not None:
            return False
        self.push()
        self._wake("anything")
        return True

    def _write(self, node: int, connection: Connection) -> None:
        try:
            is_empty = write_some(self._links[node], connection)
        except OSError:
            return  # reading finds the same end and tells of it
        if not is_empty and self._tasks is not None:
            self._draining.add(connection)
            self._tasks.start_soon(self._drain, node, connection)

    async def _drain(self, node: int, connection: Connection) -> None:
        """The slow path of writing: waits until the kernel takes more."""
        link = self._links[node]
        try:
            while connection.outbox and self._links.get(node) is link:
                await anyio.wait_writable(link)
                write_some(link, connection)
        except (OSError, anyio.ClosedResourceError):
            pass  # the connection ended meanwhile; its reading task tells
        finally:
            self._draining.discard(connection)

    async def _keep_time(self) -> None:
        """Wakes the session when something in it is due."""
        while True:
            for node, link in list(self._links.items()):
                # A program that did not yield for long finds its answers here, not its time limits.
                if not self._receive(node, link):
                    self._drop(self._links.pop(node))  # its task hears of it and tells the session
            now = self.clock()
            for node in self.session.wake(now):
                if node in self._links:
                    self._drop(self._links.pop(node))
            self.push()
            self._wake("anything")
            wake_at = self.session.wake_at
            self._sleeps_until = inf if wake_at is None else wake_at
            self._alarm = anyio.Event()
            delay = inf if wake_at is None else max(0, wake_at - now) / 1000
            with anyio.move_on_after(None if delay == inf else delay):
                await self._alarm.wait()
            self._sleeps_until = 0


class AsyncClient:
    """What every async client is: entered and left with `async with`, in one task."""

    _wires: AsyncWires

    async def _close(self, problem: BaseException | None) -> None:
        """What is to be done before the connections are closed."""

    async def __aexit__(
        self, _kind: type[BaseException] | None, problem: BaseException | None, _trace: TracebackType | None
    ) -> None:
        try:
            await self._close(problem)
        finally:
            await self._wires.stop()
