"""The trio server on real sockets: many connections, strangers, slow readers, shared syncs, faults."""

from __future__ import annotations

import struct
import threading
from collections import Counter
from collections.abc import AsyncGenerator

import msgpack
import pytest
import trio

from fencepost.broker import connections
from fencepost.broker.broker_settings import BrokerSettings
from fencepost.broker.memory import FETCHES_MAX
from fencepost.broker.server import Server
from fencepost.broker.sync_policy import SyncPolicy
from fencepost.journal.memory import MemoryFile, MemoryStorage
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.frames import FRAME_SIZE_MAX, encode_request
from tests.broker.requests import (
    NOBODY,
    ORDERS,
    OTHERS,
    UNCOMMITTED,
    batch,
    body_of,
    fetch_request,
    fetched,
    produce_batches,
    produce_request,
    produced,
    visible_values,
)
from tests.broker.wire import PATIENCE_S, Wire, Wires, serving, until

pytestmark = pytest.mark.trio

Served = tuple[Server, Wires]
MEBIBYTE = 1 << 20


@pytest.fixture
async def served() -> AsyncGenerator[Served]:
    async with serving() as found:
        yield found


def plain(word: str) -> m.Produce:
    return produce_request(NOBODY, {ORDERS: word}, name=None)


# --- connections -----------------------------------------------------------------------------------------


async def test_many_connections_at_once(served: Served) -> None:
    _, wires = served
    await (await wires.open()).prepare()
    offsets: list[int] = []

    async def client(number: int) -> None:
        wire = await wires.open()
        for turn in range(5):
            reply = await wire.ask(produce_request(NOBODY, {ORDERS: f"{number}.{turn}"}, name=None))
            offsets.append(produced(reply)[ORDERS].base_offset)
        await wire.stream.aclose()

    async with trio.open_nursery() as nursery:
        for number in range(40):
            nursery.start_soon(client, number)
    assert sorted(offsets) == list(range(200))


async def test_requests_sent_in_one_go_are_answered_each(served: Served) -> None:
    _, wires = served
    wire = await wires.open()
    await wire.prepare()
    numbers = await wire.send(
        *(produce_request(NOBODY, {ORDERS: f"w{n}"}, name=None) for n in range(500)), m.Metadata(topics=None)
    )
    offsets = [produced(await wire.answer(number))[ORDERS].base_offset for number in numbers[:-1]]
    assert offsets == list(range(500))
    assert body_of(await wire.answer(numbers[-1]), m.MetadataReply).topics


async def test_a_request_may_arrive_in_pieces(served: Served) -> None:
    _, wires = served
    wire = await wires.open()
    data = b"".join(encode_request(m.Metadata(topics=None), correlation_id=1))
    wire.asked[1] = m.Metadata(topics=None)
    for at in range(len(data)):
        await wire.stream.send_all(data[at : at + 1])
    assert body_of(await wire.answer(1), m.MetadataReply).cluster_id


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        struct.pack(">I", FRAME_SIZE_MAX + 1),
        struct.pack(">I", 0),
        struct.pack(">II", 8, 4) + b"\xc1\xc1\xc1\xc1",
        struct.pack(">II", 8, 1 << 31) + bytes(4),
        bytes(100),
    ],
    ids=["http", "too large", "too short", "no msgpack", "header beyond the frame", "zeros"],
)
async def test_garbage_closes_the_connection_that_sent_it_and_no_other(
    served: Served, garbage: bytes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, wires = served
    # What could be the beginning of a frame in Kafka's protocol is given time to arrive.
    monkeypatch.setattr(connections, "FRAME_MS", 20)
    good, bad = await wires.open(), await wires.open()
    await good.prepare()
    await bad.stream.send_all(garbage)
    assert await bad.is_closed_by_peer()
    assert (await good.ask(m.Metadata(topics=None))).error is ErrorCode.NONE
    assert len(server.connections.opened) == 1
    assert "closed a connection" in caplog.text


async def test_a_version_that_is_not_spoken_is_answered(served: Served) -> None:
    _, wires = served
    wire = await wires.open()
    header = msgpack.packb([18, 99, 1, "", [[]]])
    await wire.stream.send_all(struct.pack(">II", 4 + len(header), len(header)) + header)
    wire.asked[1] = m.ApiVersions()
    assert (await wire.answer(1)).error is ErrorCode.UNSUPPORTED_VERSION
    assert (await wire.ask(m.ApiVersions())).error is ErrorCode.NONE


async def test_a_client_that_leaves_without_its_answer_is_forgotten(served: Served) -> None:
    server, wires = served
    stays, leaves = await wires.open(), await wires.open()
    await stays.prepare()
    await leaves.send(fetch_request(ORDERS, max_wait_ms=60_000))
    while not server.host.node.fetches:
        await trio.lowlevel.checkpoint()
    await leaves.stream.aclose()
    while server.host.node.fetches or len(server.connections.opened) > 1:
        await trio.lowlevel.checkpoint()
    assert (await stays.ask(m.Metadata(topics=None))).error is ErrorCode.NONE


# --- readers that wait, and readers that are slow ---------------------------------------------------------


async def test_a_reader_waits_for_data_and_another_client_brings_it(served: Served) -> None:
    _, wires = served
    reader, writer = await wires.open(), await wires.open()
    await writer.prepare()
    (number,) = await reader.send(fetch_request(ORDERS, max_wait_ms=60_000))
    await writer.ask(plain("news"))
    assert visible_values(fetched(await reader.answer(number))) == ["news"]


async def _filled(wires: Wires, mebibytes: int) -> Wire:
    wire = await wires.open()
    await wire.prepare()
    word = "x" * (MEBIBYTE - 100)
    for _ in range(mebibytes):
        await wire.ask(produce_batches({ORDERS: batch(NOBODY, word, transactional=False)}, name=None))
    return wire


async def test_a_reader_that_takes_nothing_holds_up_nobody_and_fills_no_memory(served: Served) -> None:
    """Two hundred fetches of 8 MiB in one go: 1.6 GiB, were they all answered at once."""
    server, wires = served
    other = await _filled(wires, 8)
    slow = await wires.open()
    wanted = fetch_request(ORDERS, UNCOMMITTED, max_bytes=8 * MEBIBYTE)
    numbers = await slow.send(*[wanted] * 200)
    unsent = 0
    for number in range(50):
        reply = await other.ask(produce_request(NOBODY, {OTHERS: f"w{number}"}, name=None))
        assert produced(reply)[OTHERS].base_offset == number
        unsent = sum(connection.answers.held for connection in server.connections.opened.values())
        assert unsent <= FETCHES_MAX * 8 * MEBIBYTE
    assert unsent > 4 * MEBIBYTE
    for number in numbers:  # once it reads, it gets every answer
        assert len(fetched(await slow.answer(number)).records) > 7 * MEBIBYTE


async def test_readers_that_wait_do_not_all_get_everything_at_once(served: Served) -> None:
    """Fetches that wait are bounded too: all of them wake when the data comes."""
    server, wires = served
    other = await wires.open()
    await other.prepare()
    many = await wires.open()
    wanted = fetch_request(ORDERS, UNCOMMITTED, max_wait_ms=60_000)
    numbers = await many.send(*[wanted] * 100)
    while len(server.host.node.fetches) < FETCHES_MAX:
        await trio.lowlevel.checkpoint()
    await other.ask(m.Metadata(topics=None))
    assert len(server.host.node.fetches) == FETCHES_MAX
    await other.ask(plain("news"))
    for number in numbers:
        assert visible_values(fetched(await many.answer(number))) == ["news"]


async def test_a_slow_reader_that_leaves_is_let_go(served: Served) -> None:
    server, wires = served
    other = await _filled(wires, 8)
    slow = await wires.open()
    await slow.send(*[fetch_request(ORDERS, UNCOMMITTED, max_bytes=8 * MEBIBYTE)] * 50)
    while not any(connection.answers.held for connection in server.connections.opened.values()):
        await trio.lowlevel.checkpoint()
    await slow.stream.aclose()
    while len(server.connections.opened) > 1:
        await trio.lowlevel.checkpoint()
    assert (await other.ask(m.Metadata(topics=None))).error is ErrorCode.NONE


# --- syncs -----------------------------------------------------------------------------------------------


class CountingFile(MemoryFile):
    """Counts its syncs, and can be told to hold them."""

    def __init__(self, file: MemoryFile, path: str, disk: CountingStorage) -> None:
        super().__init__()
        self.content = file.content
        self.path, self.disk = path, disk

    def sync(self) -> None:
        self.disk.syncs[self.path.partition("/")[0]] += 1
        if self.path.endswith(".log") and self.path.startswith(self.disk.held):
            self.disk.is_held.set()
            assert self.disk.go_on.wait(PATIENCE_S), "the test did not release the disk"


class CountingStorage(MemoryStorage):
    """A disk in memory that takes its time when asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs: Counter[str] = Counter()
        self.held = "nothing"
        self.is_held, self.go_on = threading.Event(), threading.Event()

    def _opened(self, path: str, file: MemoryFile) -> CountingFile:
        return CountingFile(file, path, self)


async def test_syncs_are_shared_by_all_who_wait() -> None:
    storage = CountingStorage()
    async with serving(BrokerSettings(sync=SyncPolicy.ALL), storage=storage) as (_, wires):
        clients = [await wires.open() for _ in range(20)]
        await clients[0].prepare()
        await clients[0].ask(plain("first"))
        storage.held = "orders-0"
        leader = clients[0]
        (leading,) = await leader.send(plain("a"))
        await until(storage.is_held.is_set)
        before = storage.syncs["orders-0"]
        asked = [(wire, (await wire.send(plain("b")))[0]) for wire in clients[1:]]
        await clients[1].ask(m.Metadata(topics=None))  # nobody is held up who does not wait for that log
        storage.go_on.set()
        await leader.answer(leading)
        for wire, number in asked:
            assert produced(await wire.answer(number))[ORDERS].error is ErrorCode.NONE
        assert storage.syncs["orders-0"] - before <= 2


async def test_a_late_sync_of_a_deleted_topic_says_nothing_of_the_next_one() -> None:
    storage = CountingStorage()
    async with serving(BrokerSettings(sync=SyncPolicy.ALL), storage=storage) as (server, wires):
        one, two = await wires.open(), await wires.open()
        await one.prepare()
        await one.ask(plain("old"))
        storage.held = "orders-0"
        await one.send(plain("last"))
        await until(storage.is_held.is_set)
        await one.send(m.DeleteTopics(topics=("orders",)))
        await until(lambda: not server.host.directory.has(ORDERS))
        storage.go_on.set()
        await two.ask(m.CreateTopics(topics=(m.CreateTopic(topic="orders", partition_count=2),)))
        assert not server.host.directory.has(ORDERS)  # nothing was made anew for the sync
        assert produced(await two.ask(plain("new")))[ORDERS].base_offset == 0
        assert server.host.troubles == []
