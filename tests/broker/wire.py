"""A connection by hand, on trio: frames out, frames in, so that a test can say anything it wants."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager

import attrs
import trio

from fencepost.broker.admission import admission_to
from fencepost.broker.broker_settings import BrokerSettings
from fencepost.broker.clocks import now_ms
from fencepost.broker.contract import Reply, ReplyTo
from fencepost.broker.host import Host
from fencepost.broker.node import Node
from fencepost.broker.server import Server
from fencepost.broker.settings import NodeSettings
from fencepost.journal.data_directory import DataDirectory
from fencepost.journal.memory import MemoryStorage
from fencepost.journal.storage import Storage
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.frames import FrameReader, decode_reply_of, encode_request
from fencepost.protocol.messages import API_BY_REQUEST, CreateTopic, CreateTopics, FindCoordinator, Request
from fencepost.protocol.terms import NEWEST_VERSION, CoordinatorType
from tests.broker.requests import Identity, identity_of, init_request
from tests.broker.story import SETTINGS

PATIENCE_S = 60.0  # longer than anything takes on a busy machine; only a failing test waits so long
RECEIVE_SIZE = 1 << 16
BUSY = frozenset(
    {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}
)


@attrs.define(eq=False)
class Wire:
    """One connection to a broker."""

    stream: trio.SocketStream
    frames: FrameReader = attrs.Factory(FrameReader)
    arrived: dict[int, Reply] = attrs.Factory(dict[int, Reply])
    asked: dict[int, Request] = attrs.Factory(dict[int, Request])
    versions: Mapping[type[Request], int] = attrs.Factory(dict[type[Request], int])
    """In which the client speaks, where that is not the newest."""

    async def send(self, *requests: Request) -> list[int]:
        """Send requests in one go; their correlation ids."""
        numbers: list[int] = []
        data = bytearray()
        for request in requests:
            number = len(self.asked) + 1
            self.asked[number] = request
            numbers.append(number)
            version = self.versions.get(type(request), NEWEST_VERSION)
            data += b"".join(encode_request(request, correlation_id=number, version=version))
        await self.stream.send_all(data)
        return numbers

    async def answer(self, number: int) -> Reply:
        """The answer to one of them. EOFError when the broker closes the connection."""
        with trio.fail_after(PATIENCE_S):
            while number not in self.arrived:
                chunk = await self.stream.receive_some(RECEIVE_SIZE)
                if not chunk:
                    raise EOFError("the broker closed the connection")
                for frame in self.frames.feed(chunk):
                    self._take(frame)
        return self.arrived.pop(number)

    def _take(self, frame: memoryview) -> None:
        found = decode_reply_of(frame, lambda number: API_BY_REQUEST[type(self.asked[number])])
        number = found.correlation_id
        self.arrived[number] = Reply(ReplyTo(0, number), error=found.error, body=found.body)

    async def ask(self, request: Request) -> Reply:
        (number,) = await self.send(request)
        return await self.answer(number)

    async def ask_until_done(self, request: Request) -> Reply:
        """Ask again while the broker says that it is busy with what came before."""
        with trio.fail_after(PATIENCE_S):
            while (reply := await self.ask(request)).error in BUSY:
                await trio.lowlevel.checkpoint()
        return reply

    async def prepare(self) -> None:
        """Topic `orders` with two partitions, and the internal topics."""
        await self.ask(CreateTopics(topics=(CreateTopic(topic="orders", partition_count=2),)))
        for kind in CoordinatorType:
            await self.ask(FindCoordinator(kind=kind, key="anybody"))

    async def identity(self, name: str = "pay") -> Identity:
        return identity_of(await self.ask_until_done(init_request(name)))

    async def is_closed_by_peer(self) -> bool:
        """Waits for the end of the stream; what comes before it is dropped."""
        with trio.move_on_after(PATIENCE_S):
            try:
                while await self.stream.receive_some(RECEIVE_SIZE):
                    pass
            except trio.BrokenResourceError:
                pass
            return True
        return False


@attrs.define(eq=False)
class Wires:
    """The connections of one test to one broker; all are closed at its end."""

    address: tuple[str, int]
    opened: list[Wire] = attrs.Factory(list[Wire])

    async def open(self) -> Wire:
        wire = Wire(await trio.open_tcp_stream(*self.address))
        self.opened.append(wire)
        return wire

    async def close(self) -> None:
        for wire in self.opened:
            with trio.CancelScope(shield=True):
                await wire.stream.aclose()


@asynccontextmanager
async def connecting(address: tuple[str, int]) -> AsyncGenerator[Wires]:
    wires = Wires(address)
    try:
        yield wires
    finally:
        await wires.close()


@contextmanager
def opened_server(
    settings: BrokerSettings | None = None,
    *,
    node: NodeSettings = SETTINGS,
    storage: Storage | None = None,
    contains_failures: bool = False,
) -> Generator[Server]:
    """A server whose tasks have not been started."""
    settings = settings or BrokerSettings()
    directory = DataDirectory.open(storage or MemoryStorage(), settings=settings.journal)
    host = Host(Node(node), directory, policy=settings.sync, contains_failures=contains_failures)
    host.start(now_ms())
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(100)
        listener.setblocking(False)
        yield Server(settings, host, listener, admission_to(listener, settings.access))


@asynccontextmanager
async def serving(
    settings: BrokerSettings | None = None,
    *,
    node: NodeSettings = SETTINGS,
    storage: Storage | None = None,
    contains_failures: bool = False,
) -> AsyncGenerator[tuple[Server, Wires]]:
    """A server in this very task tree, to look into. An exception in its steps ends the test, unless it
    `contains_failures`.
    """
    with opened_server(settings, node=node, storage=storage, contains_failures=contains_failures) as server:
        server.turn()
        async with trio.open_nursery() as nursery, connecting(server.listener.getsockname()) as wires:
            server.start(nursery)
            yield server, wires
            nursery.cancel_scope.cancel()


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for a condition that the broker's tasks make true."""
    with trio.fail_after(PATIENCE_S):
        while not is_so():
            await trio.lowlevel.checkpoint()
