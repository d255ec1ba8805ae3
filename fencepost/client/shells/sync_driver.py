"""The blocking driver: selector rounds in the calling thread, and an IO thread between calls.

Rule: the lock guards the machine and its network. Scripts run under the lock and nothing waits under it; one
thread at a time waits for the sockets. No signal handler interrupts a step (signals.py).
"""

# A blocking client has no event loop. The thread that needs a reply drives the sockets: `Sockets.round`
# writes, waits in select(), reads, and passes on the replies of all callers, not only its own.
#
#         calling thread                                   IO thread (producers and group members only)
#         --------------                                   --------------------------------------------
#         run(script)                                      wakes every tick while there is work
#           lock: next(script), perform(effects)           open(); round(0), if no other thread does a round
#           no lock: open(), which resolves names          sleeps again when nothing is unfinished
#           no lock: round(100 ms), until `until()`
#
# Between calls a thread must still send batches that have lingered, take acknowledgements and send
# heartbeats; the IO thread does. It polls every few milliseconds instead of being notified per record, since
# an Event.set per record would cost more than the record. Two locks: `lock` for the machine, held for
# microseconds, and `_pumping`, held by the thread that is inside select(). They are never waited for in the
# opposite order. A producer has a third, for appending a record (`send_path`), which is taken last and held
# for less than a microsecond. Callbacks of the program run outside all of these, one at a time.
#
# An exception of a signal handler, such as KeyboardInterrupt, is thrown into the script where it waits. So
# Ctrl-C leaves no half step, and a handler may close the client that it interrupts. If the program has such
# handlers, a worker does what the drawing shows for the calling thread (signals.py).

from __future__ import annotations

import os
import selectors
import socket
import threading
from collections.abc import Callable
from functools import partial
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any, Final, Generic, TypeVar

import attrs

from fencepost.client.calls import Callback, CallScript, Wait
from fencepost.client.effects import Effect
from fencepost.client.errors import BELONGS_TO_PARENT, ClientClosed
from fencepost.client.network import AddressInfo, ClientConnection, NetworkClient
from fencepost.client.shells.signals import interruptions, uninterrupted
from fencepost.client.shells.sockets import READ_SIZE, Clock, NetworkDriver, connecting_socket, write_some
from fencepost.protocol.forked_process import in_child

ResultT = TypeVar("ResultT")

# The longest wait in one round. When two threads wait, the reply for one may arrive in the round of the
# other, which cannot wake it.
ROUND_MS: Final = 100


def if_free(lock: threading.Lock | threading.RLock, work: Callable[[], object]) -> None:
    """Does the work under a lock, unless another thread holds it."""
    if lock.acquire(blocking=False):
        try:
            work()
        finally:
            lock.release()


class Sockets:
    """The sockets of one client. `round` waits for them without the lock of the network, and then calls
    `afterwards`.
    """

    def __init__(
        self,
        network: NetworkClient,
        *,
        lock: threading.Lock,
        clock: Clock,
        afterwards: Callable[[], object] = object,
    ) -> None:
        self._afterwards = afterwards
        self.network = network
        self.lock = lock
        self.clock = clock
        self.is_closed = False
        self._sockets: dict[int, socket.socket] = {}
        self._connecting: dict[int, list[AddressInfo]] = {}  # what is left to try if connect() fails
        self._selector = selectors.DefaultSelector()
        self._pumping = threading.Lock()
        self._buffer = bytearray(READ_SIZE)

    def open(self) -> None:
        """Begins the connections that the network wants. The caller holds no lock: a name server that does
        not answer stops no other thread.
        """
        network = self.network
        while network.to_open:
            with self.lock:
                if self.is_closed or not network.to_open:  # another thread opens the last one
                    return
                node = network.to_open.pop(0)
                connection = network.connections[node]
                address = network.open(node)
                untried = [] if address is None else network.untried(node, address)
            found: list[AddressInfo] = []
            try:
                if address is not None:
                    # A resolver that does not answer takes many seconds.
                    found = untried or [*socket.getaddrinfo(*address, type=socket.SOCK_STREAM)]
            except OSError as problem:
                network.unreachable(node, problem)
            finally:
                # After any error: without a socket, a connection would hold its requests until a timeout.
                with self.lock:
                    if network.connections.get(node) is connection and not self.is_closed:
                        untried[:] = found
                        self._connect(node, untried)

    def _connect(self, node: int, untried: list[AddressInfo]) -> None:
        """Begins to connect to the next address; the node is lost when there is none."""
        while untried:
            try:
                link = connecting_socket(untried.pop(0))
            except OSError as problem:
                self.network.unreachable(node, problem)
                continue
            self._sockets[node] = link
            self._connecting[node] = untried
            self._selector.register(link, selectors.EVENT_WRITE, node)
            return
        self.network.lost(node, self.clock())

    def push(self) -> None:
        """Writes what the sockets accept; the lock is held."""
        for node, connection in list(self.network.connections.items()):
            if connection.outbox and node not in self._connecting and node in self._sockets:
                self._write(node, connection)

    def _write(self, node: int, connection: ClientConnection) -> None:
        link = self._sockets[node]
        try:
            is_empty = write_some(link, connection)
        except OSError:
            self._lost(node)
            return
        wanted = selectors.EVENT_READ if is_empty else selectors.EVENT_READ | selectors.EVENT_WRITE
        if self._selector.get_key(link).events != wanted:
            self._selector.modify(link, wanted, node)

    def round(self, timeout_ms: float) -> None:
        """Waits up to `timeout_ms` for an event and handles it, after the round of another thread if there is
        one. The caller holds no lock.
        """
        try:
            with self._pumping:
                self._round(timeout_ms)
        finally:
            if self.is_closed:
                self.close()
        self._afterwards()

    def round_if_free(self) -> None:
        """Handles what has arrived, unless another thread does a round; the caller holds no lock."""
        try:
            if_free(self._pumping, lambda: self._round(0))
        finally:
            if self.is_closed:
                self.close()
        self._afterwards()

    def _round(self, timeout_ms: float) -> None:
        with self.lock:
            if self.is_closed:
                return
            self.push()
            wake_at = self.network.wake_at
        if wake_at is not None:
            timeout_ms = min(timeout_ms, max(0, wake_at - self.clock()))
        ready = self._selector.select(timeout_ms / 1000)
        with self.lock:
            if self.is_closed:
                return
            now = self.clock()
            for key, events in ready:
                self._serve(key.data, events, now)
            for node in self.network.wake(now):
                self._close(node)
            self.push()

    def _serve(self, node: int, events: int, now: int) -> None:
        link = self._sockets.get(node)
        connection = self.network.connections.get(node)
        if link is None or connection is None:
            return
        if node in self._connecting:
            untried = self._connecting.pop(node)
            if code := link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self.network.unreachable(node, OSError(code, os.strerror(code)))
                self._close(node)
                self._connect(node, untried)
                return
            self.network.accepted(node)
        if events & selectors.EVENT_WRITE:
            self._write(node, connection)
        if events & selectors.EVENT_READ and self._sockets.get(node) is link:
            self._read(node, link, now)

    def _read(self, node: int, link: socket.socket, now: int) -> None:
        try:
            count = link.recv_into(self._buffer)
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if not count:
            self._lost(node)
        elif self.network.received(node, memoryview(self._buffer)[:count], now) is not None:
            self._close(node)

    def _lost(self, node: int) -> None:
        self._close(node)
        self.network.lost(node, self.clock())

    def _close(self, node: int) -> None:
        link = self._sockets.pop(node, None)
        self._connecting.pop(node, None)
        if link is not None:
            self._selector.unregister(link)
            link.close()

    def leave_to_parent(self, lock: threading.Lock) -> None:
        """In a forked process: closes its copies of the sockets. Unregistering them would affect the parent,
        whose selector is the same one in the kernel.
        """
        self.lock, self._pumping, self.is_closed = lock, threading.Lock(), True
        for link in self._sockets.values():
            link.close()
        self._sockets.clear()
        self._selector.close()

    def close(self) -> None:
        """Closes every socket. A thread that is in a round does it at the end of the round instead, because
        select() fails on a closed selector.
        """
        self.is_closed = True
        if_free(self._pumping, self._close_all)

    def _close_all(self) -> None:
        with self.lock:
            for node in list(self._sockets):
                self._close(node)
            self._selector.close()


class IOThread:
    """A thread that does rounds while something is unfinished, so that nothing waits for the next call.

    It polls after `tick_ms` at first, then in intervals that double up to TICK_MAX_MS. It skips its turn when
    a caller does a round, so no caller waits for it.
    """

    TICK_MAX_MS = 50

    def __init__(self, sockets: Sockets, has_work: Callable[[], bool], *, tick_ms: int) -> None:
        self._sockets = sockets
        self._has_work = has_work
        self._tick_ms = max(1, tick_ms)
        self._wanted = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_current(self) -> bool:
        """Whether this thread is the one that asks."""
        return self._thread is threading.current_thread()

    def want(self) -> None:
        """Wakes the thread; called for each new batch, so it is cheap when the thread is awake."""
        if self._wanted.is_set():
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="fencepost-io", daemon=True)
            self._thread.start()
        self._wanted.set()

    def stop(self) -> None:
        """Ends the thread and waits for its end."""
        # Under the lock the thread decides to sleep, which it must not do after this.
        with self._sockets.lock:
            self._stopped.set()
            self._wanted.set()
        if self._thread is not None and not self.is_current:  # a callback may close the client
            while self._thread.is_alive() and not interruptions():  # it may wait in a callback
                self._thread.join(ROUND_MS / 1000)

    def _run(self) -> None:
        tick_ms = self._tick_ms
        while True:
            self._wanted.wait()
            if self._stopped.wait(tick_ms / 1000):
                return
            self._sockets.open()
            self._sockets.round_if_free()
            tick_ms = min(2 * tick_ms, self.TICK_MAX_MS)
            with self._sockets.lock:
                if not self._has_work() and not self._stopped.is_set():
                    self._wanted.clear()
                    tick_ms = self._tick_ms


@attrs.define(eq=False)
class _Running(Generic[ResultT]):
    """A script on its way."""

    script: CallScript[ResultT]
    was_closed: bool = attrs.field(kw_only=True)
    """Whether the client was closed before the call."""
    interruptions: list[BaseException] = attrs.Factory(interruptions)
    """Of signal handlers, to be thrown into the script."""
    problems: list[BaseException] = attrs.Factory(list[BaseException])
    """Of a wait or a callback, to be thrown into the script before."""
    result: ResultT = attrs.field(init=False)

    def step(self) -> Wait | Callback:
        problems = self.problems or self.interruptions
        return self.script.throw(problems.pop(0)) if problems else next(self.script)


class Driver(NetworkDriver):
    """Runs the scripts of one client, for any number of threads besides its own IO thread."""

    cancelled: tuple[type[BaseException], ...] = ()
    """Empty: threads are not cancelled, and KeyboardInterrupt stays as it is."""

    def __init__(self, network: NetworkClient, clock: Clock) -> None:
        super().__init__(network, clock)
        machine = network.machine
        self.lock = threading.Lock()
        self._calling_back = threading.RLock()
        self._sockets = Sockets(network, lock=self.lock, clock=clock, afterwards=self._call_back_unless_busy)
        self._is_parents = False
        in_child(self, Driver.leave_to_parent)
        self._io_thread: IOThread | None = None
        if machine.io_tick_ms is not None:
            self._io_thread = IOThread(self._sockets, lambda: machine.has_work, tick_ms=machine.io_tick_ms)

    def check_running(self) -> None:
        """ClientClosed after `stop`. A blocking client needs no `with` block."""
        if self._is_parents:
            raise BELONGS_TO_PARENT.exception()
        if self._sockets.is_closed:
            raise ClientClosed("the call was made on a closed client")

    def perform(self, effects: list[Effect]) -> None:
        """Performs effects; writes at once what the sockets accept. The lock is held."""
        self.network.perform(effects, self._clock())
        if self._sockets.is_closed:
            return
        self._sockets.push()
        if self._io_thread is not None and self.network.machine.has_work:
            self._io_thread.want()

    def do(self, work: Callable[[], ResultT]) -> ResultT:
        """Does something that never waits, except for the lock."""
        return uninterrupted(partial(self._locked, work))

    def _locked(self, work: Callable[[], ResultT]) -> ResultT:
        with self.lock:
            return work()

    def run(self, script: CallScript[ResultT]) -> ResultT:
        """Runs a script to its end; returns or raises its result. Its callbacks run in this thread."""
        running = _Running(script, was_closed=self._sockets.is_closed)
        while True:
            try:
                callback = uninterrupted(partial(self._go_on, running), running.interruptions)
                if callback is None:
                    return running.result
                callback.function(callback.partitions)
            except BaseException as problem:
                if getgeneratorstate(script) == GEN_CLOSED:
                    raise
                # Ctrl-C, or an error of the callback: the script decides the result.
                running.problems.append(problem)

    def _go_on(self, running: _Running[Any]) -> Callback | None:
        """Runs a script to its next callback, or to its end."""
        while True:
            try:
                with self.lock:
                    step = running.step()
                self._call_back_unless_busy()
                if isinstance(step, Callback):
                    return step
                if running.was_closed:
                    self.check_running()
                self._wait(step, running.interruptions)
            except StopIteration as end:
                running.result = end.value
                self.call_back()
                return None
            except BaseException as problem:
                if getgeneratorstate(running.script) == GEN_CLOSED:
                    self.call_back()
                    raise
                running.problems.append(problem)

    @property
    def is_in_call(self) -> bool:
        """Whether a thread of the program runs this. An exception would end the IO thread, and with it the
        sending of batches that linger.
        """
        return self._io_thread is None or not self._io_thread.is_current

    def call_back(self) -> None:
        """Calls the callbacks that are due, and waits for those that another thread is calling. So what
        flush() waited for has been reported by the time it returns; an interruption is raised instead.
        """
        lock = self._calling_back  # in a process that a callback forks, it is replaced
        while not lock.acquire(timeout=ROUND_MS / 1000):
            if interruptions():
                return
        try:
            super().call_back()
        finally:
            lock.release()

    def _call_back_unless_busy(self) -> None:
        if self.has_callbacks:
            if_free(self._calling_back, super().call_back)

    def _wait(self, wait: Wait, interruptions: list[BaseException]) -> None:
        while True:
            if interruptions:
                raise interruptions.pop(0)
            with self.lock:
                # What happened before the client was closed counts: a commit may be known to be unknown.
                if wait.until():
                    return
                self.check_admitted()
                if self._is_parents:  # a callback of the call has forked
                    raise BELONGS_TO_PARENT.exception()
                if self._sockets.is_closed:
                    raise self.closed_meanwhile()
            self._sockets.open()
            left = wait.deadline - self._clock()
            # At least one round: poll(0) reads what has arrived.
            self._sockets.round(max(0, min(ROUND_MS, left)))
            if left <= 0:
                return

    def read_answers(self) -> None:
        """Reads replies that have arrived, without waiting; within `uninterrupted`."""
        with self.lock:
            expects_replies = self.network.has_requests_in_flight
        if expects_replies:
            self._sockets.round_if_free()

    def end(self, script: CallScript[None]) -> None:
        """Runs the last script of the client, and stops."""
        try:
            self.run(script)
        finally:
            self.stop()

    def stop(self) -> None:
        """Ends the IO thread and closes every socket."""
        uninterrupted(self._stop)

    def _stop(self) -> None:
        if self._io_thread is not None:
            self._io_thread.stop()
        self._sockets.close()

    def leave_to_parent(self) -> None:
        """In a forked process: the sockets, and what the brokers know of this client, are the parent's."""
        self._is_parents = True
        # A fork copies no threads, and the threads of the parent may hold these locks.
        self._io_thread = None
        self.lock, self._calling_back = threading.Lock(), threading.RLock()
        self._sockets.leave_to_parent(self.lock)
        self.network.machine.abandon(self._clock())
