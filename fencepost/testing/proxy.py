"""A TCP proxy between clients and a broker, for faults of the network: cut, refuse, delay, throttle, stall.

Rule: it passes bytes on and knows no protocol, so Kafka's clients go through it as well. A fault that struck
nothing raises FaultNeverStruck, because nearly always the clients have bypassed the proxy.
"""

# Theory of operation. Clients ask the first broker that they reach for the addresses of all, and connect to
# those; a proxy that is only in their bootstrap list is bypassed after the first reply. So `Proxy(broker)`
# makes the broker advertise the proxy. Each connection has two tasks for each direction:
#
#     client ── recv ──▶ (due time, bytes) ──▶ stalled? ──▶ sleep until due ──▶ send, throttled ──▶ broker
#
# One thread runs all of them; the methods for users hand their work to it and wait.

from __future__ import annotations

import errno
import math
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, Literal, TypeVar

import attrs
import trio

from fencepost.broker.embedded import Broker, BrokerFailed
from fencepost.broker.faults import FaultNeverStruck
from fencepost.broker.listeners import parsed_listener
from fencepost.broker.loop_calls import LoopCalls
from fencepost.protocol.errors import FencepostError
from fencepost.protocol.forked_process import in_child
from fencepost.testing.broker_process import BrokerProcess

Direction = Literal["to_broker", "to_clients"]
ResultT = TypeVar("ResultT")
BOTH: Final[tuple[Direction, ...]] = ("to_broker", "to_clients")
CHUNK_BYTES: Final = 1 << 16
CHUNKS_WAITING_MAX: Final = 256  # in one direction of a connection; then it is not read from
THROTTLED_S: Final = 0.02  # a throttled direction sends about as much at once as it may pass in this time
OUT_OF_DESCRIPTORS_S: Final = 0.05
RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)  # struct linger: on, 0 seconds
BYPASSED: Final = (
    "Give clients `proxy.address` as bootstrap server. The broker must advertise this address, too: "
    "Proxy(broker) makes it do so"
)


class ProxyNotRunning(FencepostError):
    """The proxy was not started, or is closed."""


@attrs.define(eq=False)
class NetworkFault:
    """A fault of a proxy; it lasts until `end()` or the end of its with block. `what`: the fault in words.
    `directions`: those that it strikes. `delay_s`, `bytes_per_second`, `stalls`, `refuses`: what it does
    there.
    """

    what: str
    _proxy: Proxy = attrs.field(repr=False)
    directions: frozenset[Direction]
    delay_s: float = 0.0
    bytes_per_second: float = math.inf
    stalls: bool = False
    refuses: bool = False
    struck: int = 0
    """How many pieces of data, or connections, it struck."""

    def end(self) -> None:
        """Let everything pass again."""
        self._proxy.end(self)

    def wait_until_struck(self, timeout: float = 10.0) -> None:
        """Return when it has struck. Raises FaultNeverStruck after `timeout` seconds."""
        ends = time.monotonic() + timeout
        while self.struck == 0:
            if time.monotonic() >= ends:
                raise FaultNeverStruck(self.missing)
            time.sleep(0.002)

    @property
    def missing(self) -> str:
        """The error message, if it has not struck."""
        return f"{self.what} struck nothing, after {self._proxy.summary}. {BYPASSED}"

    def __enter__(self) -> NetworkFault:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


@attrs.define(eq=False)
class _Link:
    """One client's connection, and the proxy's own to the broker."""

    client: trio.SocketStream
    broker: trio.SocketStream
    scope: trio.CancelScope

    def reset(self) -> None:
        for stream in (self.client, self.broker):
            _reset_on_close(stream)
        self.scope.cancel()


class Proxy:
    """A proxy between clients and a broker. Use it as a context manager, or call `start()` and `close()`."""

    def __init__(self, broker: Broker | BrokerProcess | str, *, port: int = 0) -> None:
        """`broker`: a Broker or a BrokerProcess, which then tells clients to connect to the proxy; if it is
        running, it is restarted for that. Or the HOST:PORT of another broker: then that one must advertise
        the proxy. `port`: of the proxy; 0 is any free one.
        """
        self._broker = None if isinstance(broker, str) else broker
        self._upstream = broker if isinstance(broker, str) else ""
        if self._broker is None:
            parsed_listener(self._upstream)
        self._advertised_before: str | None = None
        self._port = port
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._is_settled = threading.Event()
        """It accepts connections, or never will."""
        self._problem: BaseException | None = None
        """What prevented that."""
        self._loop = LoopCalls(lambda: self._token, lambda: self._is_alive, threading.Lock())
        self._scope = trio.CancelScope()
        self._changed = trio.Event()
        self._links: list[_Link] = []
        self._faults: list[NetworkFault] = []
        self._ended: list[NetworkFault] = []
        self.connections = 0
        """How many clients have connected."""
        self.passed: dict[Direction, int] = {"to_broker": 0, "to_clients": 0}
        """How many bytes have passed in each direction."""
        self._is_parents = False
        in_child(self, Proxy._leave_to_parent)

    def _leave_to_parent(self) -> None:
        self._is_parents = True

    # --- its life

    @property
    def address(self) -> str:
        """Where clients connect to."""
        if self._listener is None:
            raise ProxyNotRunning("the proxy is not running: use it as a context manager, or call start()")
        return f"127.0.0.1:{self._port}"

    def start(self) -> Proxy:
        """Accept connections, and let the broker advertise this address. Raises what prevented that, or what
        a restart of the broker raises; the proxy is closed then.
        """
        if self._thread is not None:
            raise ProxyNotRunning("this proxy was started before; make a new one")
        self._check_own()
        listener = socket.create_server(("127.0.0.1", self._port))
        self._listener = in_child(listener, socket.socket.close)
        self._port = listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run, name="fencepost proxy", daemon=True)
        self._thread.start()
        self._is_settled.wait()
        if self._problem is not None:
            self._thread.join()
            self._listener.close()
            self._listener = None
            raise self._problem
        if self._broker is not None:
            self._advertised_before = self._broker.advertised_listener
            self._broker.advertised_listener = self.address
            try:
                if self._broker.is_running:
                    self._broker.restart()
            # Also for KeyboardInterrupt: a `with` block that was not entered does not close.
            except BaseException:
                self.close()
                raise
        return self

    def close(self) -> None:
        """Close all connections. The broker advertises itself again from its next start on. In a forked
        process this does nothing: the proxy is the parent's.
        """
        if self._listener is not None and not self._is_parents:
            self._in_loop(self._scope.cancel)
            assert self._thread is not None, "it was started"
            self._thread.join()
            self._listener.close()
            self._listener = None
            if self._broker is not None:
                self._broker.advertised_listener = self._advertised_before

    def require_used(self) -> None:
        """Raise FaultNeverStruck if no client has connected, or a fault has struck nothing."""
        missing = [fault.missing for fault in (*self._ended, *self._faults) if fault.struck == 0]
        if self.connections == 0:
            missing.append(f"no client has connected to the proxy. {BYPASSED}")
        if missing:
            raise FaultNeverStruck("\n".join(missing))

    @property
    def summary(self) -> str:
        """What has passed, in words."""
        to_broker, to_clients = (self.passed[direction] for direction in BOTH)
        return f"{self.connections} connections, {to_broker} bytes to the broker and {to_clients} to clients"

    def __enter__(self) -> Proxy:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close. Without an error, raise FaultNeverStruck if the proxy or one of its faults had no effect."""
        self.close()
        if error is None and not self._is_parents:
            self.require_used()

    # --- faults

    def cut(self) -> int:
        """Reset all connections, and return how many there were. Raises FaultNeverStruck if none."""
        cut = self._in_loop(self._cut)
        if cut == 0:
            raise FaultNeverStruck(f"cut() struck nothing, after {self.summary}. {BYPASSED}")
        return cut

    def refuse(self) -> NetworkFault:
        """Reset every new connection at once; those that are open stay."""
        return self._add(NetworkFault("refuse()", self, frozenset(), refuses=True))

    def stall(self, direction: Direction | None = None) -> NetworkFault:
        """Let nothing pass; nothing is lost, and the connections stay open."""
        return self._add(NetworkFault(f"stall({direction or ''})", self, _given(direction), stalls=True))

    def delay(self, ms: float, direction: Direction | None = None) -> NetworkFault:
        """Let everything arrive `ms` milliseconds later. Raises ValueError if that is not above 0."""
        delay_ms = _positive("ms", ms)
        what = f"delay({delay_ms:g}, {direction or 'both directions'})"
        return self._add(NetworkFault(what, self, _given(direction), delay_s=delay_ms / 1000))

    def throttle(self, bytes_per_second: float, direction: Direction | None = None) -> NetworkFault:
        """Let each connection pass at most `bytes_per_second`. Raises ValueError if that is not above 0."""
        rate = _positive("bytes_per_second", bytes_per_second)
        what = f"throttle({rate:g}, {direction or 'both directions'})"
        return self._add(NetworkFault(what, self, _given(direction), bytes_per_second=rate))

    def end(self, fault: NetworkFault) -> None:
        """End one `fault` that this proxy returned; nothing happens if it has ended."""
        self._in_loop(lambda: self._end(fault))

    def _add(self, fault: NetworkFault) -> NetworkFault:
        self._in_loop(lambda: self._faults.append(fault))
        return fault

    # --- in the thread of the proxy

    @property
    def _is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _in_loop(self, do: Callable[[], ResultT]) -> ResultT:
        """Call a function in the proxy's thread, or in this one if it has ended."""
        self._check_own()
        if self._token is None:
            raise ProxyNotRunning("the proxy is not running: use it as a context manager, or call start()")
        return self._loop.call(do)

    def _check_own(self) -> None:
        if self._is_parents:
            raise ProxyNotRunning(
                "this proxy belongs to the parent of this forked process; make a new one here"
            )

    def _cut(self) -> int:
        links, self._links = self._links, []
        for link in links:
            link.reset()
        return len(links)

    def _end(self, fault: NetworkFault) -> None:
        if fault in self._faults:
            self._faults.remove(fault)
            self._ended.append(fault)
            self._changed.set()
            self._changed = trio.Event()

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as problem:
            if self._is_settled.is_set():
                raise
            self._problem = problem
            self._is_settled.set()

    async def _serve(self) -> None:
        assert self._listener is not None, "it was started"
        duplicate = in_child(self._listener.dup(), socket.socket.close)
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(duplicate))
        self._listener.setblocking(False)
        self._token = trio.lowlevel.current_trio_token()
        with self._scope:
            async with trio.open_nursery() as nursery:
                self._is_settled.set()
                async with listener:
                    while True:
                        nursery.start_soon(self._take, await accepted(listener))

    async def _take(self, client: trio.SocketStream) -> None:
        """Serve one connection of a client until one side ends it."""
        self.connections += 1
        refusing = [fault for fault in self._faults if fault.refuses]
        for fault in refusing:
            fault.struck += 1
        broker: trio.SocketStream | None = None
        if not refusing:
            with suppress(OSError, BrokerFailed):  # BrokerFailed: it was never started, so it has no port
                upstream = self._upstream if self._broker is None else self._broker.address
                broker = await trio.open_tcp_stream(*parsed_listener(upstream))
        if broker is None:
            _reset_on_close(client)
            await trio.aclose_forcefully(client)
            return
        for stream in (client, broker):
            in_child(stream, _leave_stream_to_parent)
        link = _Link(client, broker, trio.CancelScope())
        self._links.append(link)
        with link.scope:
            async with client, broker, trio.open_nursery() as nursery:
                nursery.start_soon(self._carry, link, client, broker, "to_broker")
                nursery.start_soon(self._carry, link, broker, client, "to_clients")
        if link in self._links:
            self._links.remove(link)

    async def _carry(
        self, link: _Link, source: trio.SocketStream, target: trio.SocketStream, direction: Direction
    ) -> None:
        """Carry one direction of a connection; its end is the end of both."""
        put, take = trio.open_memory_channel[tuple[float, bytes]](CHUNKS_WAITING_MAX)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._deliver, link, take, target, direction)
            async with put:
                with suppress(trio.BrokenResourceError):
                    while chunk := await source.receive_some(CHUNK_BYTES):
                        delay_s = sum(fault.delay_s for fault in self._striking(direction, "delay_s"))
                        await put.send((trio.current_time() + delay_s, chunk))
        link.scope.cancel()

    async def _deliver(
        self,
        link: _Link,
        take: trio.MemoryReceiveChannel[tuple[float, bytes]],
        target: trio.SocketStream,
        direction: Direction,
    ) -> None:
        async for due, chunk in take:
            await trio.sleep_until(due)
            left = memoryview(chunk)
            while left:
                while self._striking(direction, "stalls"):
                    await self._changed.wait()
                rates = [fault.bytes_per_second for fault in self._striking(direction, "bytes_per_second")]
                rate = min(rates, default=math.inf)
                size = len(left) if rate == math.inf else min(len(left), max(1, int(rate * THROTTLED_S)))
                try:
                    await target.send_all(left[:size])
                except trio.BrokenResourceError:
                    link.scope.cancel()
                    return
                self.passed[direction] += size
                left = left[size:]
                await trio.sleep(size / rate)

    def _striking(self, direction: Direction, kind: str) -> list[NetworkFault]:
        """The faults of this kind in this direction; they strike now."""
        default = getattr(attrs.fields(NetworkFault), kind).default
        striking = [
            fault
            for fault in self._faults
            if direction in fault.directions and getattr(fault, kind) != default
        ]
        for fault in striking:
            fault.struck += 1
        return striking


async def accepted(listener: trio.SocketListener) -> trio.SocketStream:
    """The next connection; while the process has no free descriptors, it waits in the kernel."""
    while True:
        try:
            return await listener.accept()
        except OSError as problem:
            if problem.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                await trio.sleep(OUT_OF_DESCRIPTORS_S)
            elif problem.errno != errno.ECONNABORTED:
                raise


def _leave_stream_to_parent(stream: trio.SocketStream) -> None:
    if (descriptor := stream.socket.detach()) >= 0:  # trio's `close` would tell its loop, which does not run
        os.close(descriptor)


def _reset_on_close(stream: trio.SocketStream) -> None:
    with suppress(OSError):
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)


def _given(direction: Direction | None) -> frozenset[Direction]:
    found = frozenset[Direction](each for each in BOTH if direction in (None, each))
    if not found:
        raise ValueError(f"direction={direction!r} is not one of 'to_broker', 'to_clients', None (both)")
    return found


def _positive(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise TypeError(f"{name}={value!r} is not a number")
    if not value > 0:
        raise ValueError(f"{name}={value!r} is not above 0")
    return value
