"""The async driver, for trio and asyncio: one task per connection, one for timers, direct writes.

Rule: no streams, no locks, no task per request. The calling task writes at once; the task of a connection
reads, passes on everything that has arrived, and wakes the callers whose condition may be true.
"""

# Tasks, all in one task group that `async with` opens and closes; `close()` only ends the tasks, because only
# the task that has opened a group may close it:
#
#     the caller          runs its script; writes to the socket directly; parks on an Event in `_waiters`
#     _serve (per node)   connects, then reads until the connection ends, and reports its end
#     _drain (per node)   only while the kernel's buffer is full: waits until the socket is writable again
#     _keep_time          sleeps until the next deadline of the network or of a caller, by the clock of the
#                         client; `_set_alarm` wakes it when an earlier one appears
#
# The keys of `_waiters` are the `woken_by` of each Wait, so a finished batch wakes its own callers and not
# all of them: a program may have thousands of tasks that wait for a record each. ANYTHING is woken by every
# read.
#
# Raw sockets instead of anyio's streams: a stream copies each piece, and its send is a checkpoint, so that
# `send` could not stay synchronous while the buffer has room.

from __future__ import annotations

import os
import socket
import sys
import weakref
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable
from inspect import GEN_CLOSED, getgeneratorstate, isawaitable
from math import inf
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from fencepost.client.calls import ANYTHING, Callback, CallScript, Wait
from fencepost.client.effects import Effect
from fencepost.client.errors import ClientClosed, ClientError, WrongState
from fencepost.client.network import AddressInfo, ClientConnection, NetworkClient
from fencepost.client.shells.sockets import READ_SIZE, Clock, NetworkDriver, connecting_socket, write_some

ResultT = TypeVar("ResultT")


class AsyncDriver(NetworkDriver):
    """Runs the scripts of one client; has its sockets and its waiting tasks."""

    def __init__(self, network: NetworkClient, clock: Clock) -> None:
        super().__init__(network, clock)
        network.notify = self._wake
        self._links: dict[int, socket.socket] = {}
        self._group: TaskGroup | None = None  # from `start` to `leave`
        self._tasks: TaskGroup | None = None  # the same until `stop`
        self._waiters: defaultdict[Hashable, dict[anyio.Event, None]] = defaultdict(dict)
        self._deadlines: dict[anyio.Event, float] = {}  # of the waiting callers
        self._sleeps_until: float = 0
        self._buffer = bytearray(READ_SIZE)
        self._view = memoryview(self._buffer)
        self._alarm = anyio.Event()
        self._draining: set[ClientConnection] = set()
        self._scopes: set[anyio.CancelScope] = set()  # of the tasks
        self._ended = anyio.Event()  # the next of them
        self._is_stopped = False
        self._has_failed = False  # a task ended with an error, so it wakes no caller that waits

    @property
    def cancelled(self) -> tuple[type[BaseException], ...]:
        return (anyio.get_cancelled_exc_class(),)

    # --- life -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Opens the task group; `leave` must follow in the same task."""
        self._group = self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._start(self._keep_time)

    def _start(self, task: Callable[..., Awaitable[None]], *args: object) -> None:
        if self._tasks is not None:
            self._tasks.start_soon(self._run_task, task, *args)

    async def _run_task(self, task: Callable[..., Awaitable[None]], *args: object) -> None:
        """Runs a task of the client until `stop`, even when the program is cancelled: its last calls need it.
        An error of the task ends the client.
        """
        tasks = self._tasks
        if tasks is None:
            return  # stopped before this task had its first turn
        with anyio.CancelScope(shield=True) as scope:
            self._scopes.add(scope)
            try:
                await task(*args)
            except BaseException:
                if self._tasks is tasks:  # not cancelled by `stop`
                    self._has_failed = True
                    self._wake_all()
                raise
            finally:
                self._scopes.discard(scope)
                self._ended.set()
                self._ended = anyio.Event()

    async def stop(self) -> None:
        """Ends all tasks, which close their sockets; calls that wait get ClientClosed. Any task may do so."""
        self._tasks, self._is_stopped = None, True
        self._wake_all()
        for scope in self._scopes:
            scope.cancel()
        with anyio.CancelScope(shield=True):
            while self._scopes:
                await self._ended.wait()
        assert not self._links, "each task closes its own socket"

    async def leave(self) -> None:
        """Stops, and closes the task group; raises the errors of its tasks."""
        await self.stop()
        group, self._group = self._group, None
        if group is not None:
            group.cancel_scope.cancel()
            await group.__aexit__(None, None, None)

    async def end(self, script: CallScript[None]) -> None:
        """Runs the last script of the client, unless it is not running, and stops."""
        try:
            if self._tasks is not None and not self._has_failed:
                await self.run(script)
        finally:
            await self.stop()

    def check_running(self) -> None:
        """ClientClosed after `stop`, WrongState before the `async with` block of the client."""
        if self._is_stopped:
            raise ClientClosed("the call was made on a closed client")
        if self._tasks is None:
            raise WrongState("an async client works only inside `async with`: enter it before the first call")

    # --- scripts --------------------------------------------------------------------------------------------

    async def run(self, script: CallScript[ResultT]) -> ResultT:
        """Runs a script to its end; returns or raises its result."""
        self.check_running()
        interruption: BaseException | None = None
        while True:
            try:
                step = next(script) if interruption is None else script.throw(interruption)
                interruption = None
                self.call_back()
                if isinstance(step, Callback):
                    await self._run_callback(step)
                elif not step.until():
                    await self._wait(step)
            except BaseException as problem:
                if getgeneratorstate(script) != GEN_CLOSED:
                    interruption = problem  # cancelled, or an error of the callback: the script decides
                    continue
                self.call_back()
                if isinstance(interruption, self.cancelled):
                    _cancel_after(problem, interruption)
                if isinstance(problem, StopIteration):
                    return problem.value
                raise

    async def _run_callback(self, callback: Callback) -> None:
        """Runs a callback of the program to its end, even if the task is cancelled meanwhile: the effect of
        half a callback would be unknown.
        """
        result = callback.function(callback.partitions)
        if not isawaitable(result):
            return
        asyncio, cancellation = _asyncio_of(*self.cancelled), None
        with anyio.CancelScope(shield=True):
            if asyncio is None:
                await result
                return
            task = asyncio.ensure_future(result)  # of its own, because no scope shields from Task.cancel()
            while not task.done():
                try:
                    await asyncio.wait([task])
                except asyncio.CancelledError as problem:
                    cancellation = problem
            try:
                task.result()
            finally:
                if cancellation is not None:
                    raise cancellation

    async def _wait(self, wait: Wait) -> None:
        with anyio.CancelScope(shield=wait.is_shielded):
            if wait.deadline <= self._clock():
                # So that a program which only polls, again and again, lets the other tasks run too.
                await anyio.lowlevel.checkpoint()
            while not wait.until() and wait.deadline > self._clock():
                self.check_admitted()
                if self._tasks is None or self._has_failed:
                    raise self.closed_meanwhile()
                event = anyio.Event()
                self._waiters[wait.woken_by][event] = None
                if wait.deadline != inf:  # thousands of tasks may wait for a record without a limit
                    self._deadlines[event] = wait.deadline
                    self._set_alarm(wait.deadline)
                try:
                    await event.wait()
                finally:
                    self._deadlines.pop(event, None)
                    waiting = self._waiters.get(wait.woken_by)
                    if waiting is not None:  # timed out or cancelled, unless a later one waits for the same
                        waiting.pop(event, None)
                        if not waiting:
                            del self._waiters[wait.woken_by]

    def perform(self, effects: list[Effect]) -> None:
        """Performs effects; writes at once what the sockets accept."""
        self.network.perform(effects, self._clock())
        self.push()

    def push(self) -> None:
        """Connects, writes and sets the alarm; called after each change of the network."""
        network = self.network
        while network.to_open and self._tasks is not None:
            node = network.to_open.pop(0)
            self._start(self._serve, node, network.connections[node])
        for node, connection in list(network.connections.items()):
            if connection.outbox and node in self._links and connection not in self._draining:
                self._write(node, connection)
        self._set_alarm(network.wake_at)

    def _set_alarm(self, at: float | None) -> None:
        if at is not None and at < self._sleeps_until:
            self._alarm.set()

    def _wake(self, key: Hashable) -> None:
        if key in self._waiters:
            for event in self._waiters.pop(key):
                event.set()

    def _wake_all(self) -> None:
        for key in list(self._waiters):
            self._wake(key)

    # --- tasks ----------------------------------------------------------------------------------------------

    async def _serve(self, node: int, connection: ClientConnection) -> None:
        """Serves one connection until it ends."""
        if self.network.connections.get(node) is not connection:
            return  # it ended before this task had its first turn
        link: socket.socket | None = None
        try:
            link = await self._connect(node, connection)
            if self.network.connections.get(node) is connection:
                self._links[node] = link
                self.network.accepted(node)
                self.push()
                await self._read(node, link)
        except (OSError, anyio.ClosedResourceError):
            pass  # the peer closed it, or a request timed out: `lost` below ends its requests
        finally:
            if link is not None:
                if self._links.get(node) is link:
                    del self._links[node]
                self._drop(link)
        if self.network.connections.get(node) is connection:
            self.network.lost(node, self._clock())
        if self.network.failure is not None:
            self._wake_all()
        self.push()
        self.call_back()

    def _drop(self, link: socket.socket) -> None:
        """Closes a socket, if it is open, and wakes the tasks that wait for it."""
        if link.fileno() >= 0:
            anyio.notify_closing(link)
            link.close()

    async def _connect(self, node: int, connection: ClientConnection) -> socket.socket:
        """A connected socket: tries the addresses of the node one after the other."""
        address = self.network.open(node)
        if address is None:
            raise OSError(f"the address of node {node} is not known")
        untried = self.network.untried(node, address)
        # Encoded as `can_be_host` does: anyio refuses names that the blocking client resolves.
        host, port = address[0].encode("idna"), address[1]
        while True:
            try:
                if not untried:
                    untried += await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                return await self._connected(untried.pop(0))
            except OSError as problem:
                self.network.unreachable(node, problem)
                # A connection that timed out meanwhile leaves the other addresses to its successor.
                if not untried or self.network.connections.get(node) is not connection:
                    raise

    async def _connected(self, info: AddressInfo) -> socket.socket:
        link = connecting_socket(info)
        try:
            await anyio.wait_writable(link)
            if code := link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(code, os.strerror(code))
        except BaseException:
            link.close()
            raise
        return link

    async def _read(self, node: int, link: socket.socket) -> None:
        """Reads until the connection ends or violates the protocol."""
        while True:
            await anyio.wait_readable(link)
            if not self._receive(node, link):
                return

    def _receive(self, node: int, link: socket.socket) -> bool:
        """Passes on the received bytes; False when the connection has ended."""
        try:
            count = link.recv_into(self._buffer)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not count or self.network.received(node, self._view[:count], self._clock()) is not None:
            return False
        self.push()
        self.call_back()
        self._wake(ANYTHING)
        return True

    def _write(self, node: int, connection: ClientConnection) -> None:
        link = self._links[node]
        try:
            is_empty = write_some(link, connection)
        except OSError:
            return  # the reading task gets the same error and reports it
        if not is_empty and self._tasks is not None:
            self._draining.add(connection)
            self._start(self._drain, node, link, connection)

    async def _drain(self, node: int, link: socket.socket, connection: ClientConnection) -> None:
        """The slow path of writing: waits until the socket accepts more."""
        try:
            while connection.outbox and self._links.get(node) is link:
                await anyio.wait_writable(link)
                write_some(link, connection)
        except (OSError, anyio.ClosedResourceError):
            pass  # the connection ended meanwhile; its reading task reports it
        finally:
            self._draining.discard(connection)

    async def _keep_time(self) -> None:
        """Wakes the network when a timer is due."""
        while True:
            for node, link in list(self._links.items()):
                # If the program did not yield for long, replies are read before timeouts are checked.
                if not self._receive(node, link):
                    self._drop(self._links.pop(node))  # its reading task wakes up and reports the end
            now = self._clock()
            for node in self.network.wake(now):
                if node in self._links:
                    self._drop(self._links.pop(node))
            self.push()
            self.call_back()
            self._wake(ANYTHING)
            for event, deadline in self._deadlines.items():
                if deadline <= now:
                    event.set()
            wake_at = self.network.wake_at
            waiting = (deadline for deadline in self._deadlines.values() if deadline > now)
            self._sleeps_until = min(waiting, default=inf)
            if wake_at is not None:
                self._sleeps_until = min(self._sleeps_until, wake_at)
            self._alarm = anyio.Event()
            # The callbacks have taken time, so what is left is less than at `now`.
            with anyio.move_on_after(max(0, self._sleeps_until - self._clock()) / 1000):
                await self._alarm.wait()
            self._sleeps_until = 0


def _asyncio_of(cancelled: type[BaseException]) -> Any:
    """The module asyncio, if a task that it runs is cancelled by this exception; else None."""
    asyncio = sys.modules.get("asyncio")
    return asyncio if asyncio is not None and issubclass(cancelled, asyncio.CancelledError) else None


def _cancel_after(end: BaseException, cancellation: BaseException) -> None:
    """A script has ended with a result or an error of its own (`end`), and not with the cancellation of its
    task, as a commit does. asyncio delivers a cancellation once, so the task would never hear of it. It is
    cancelled where it waits next; after an error, not before the program has handled it, or the cancellation
    would hide it. A cancellation that was withdrawn, as at the end of asyncio.timeout(), stays so. On trio, a
    cancelled scope does all that itself.
    """
    asyncio = _asyncio_of(type(cancellation))
    if asyncio is None or end is cancellation:
        return
    task, loop, message = asyncio.current_task(), asyncio.get_running_loop(), cancellation.args
    requests = task.cancelling()

    def cancel() -> None:
        if requests and task.cancelling() >= requests and not task.done():
            task.uncancel()
            task.cancel(*message)  # by its message, anyio knows the cancellations of its scopes

    def cancel_soon() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(cancel)  # the garbage collector runs in any thread

    if isinstance(end, ClientError):
        weakref.finalize(end, cancel_soon).atexit = False  # a handled error is dropped
    else:
        loop.call_soon(cancel)
