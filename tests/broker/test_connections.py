"""Connections on real sockets: how many, how long, how much they hold, and whose turn it is."""

from __future__ import annotations

import errno
import os
import resource
import socket
import struct
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import trio

from fencepost.broker import connections
from fencepost.broker import server as server_module
from fencepost.broker.broker_settings import BrokerSettings
from fencepost.broker.clocks import monotonic_ms
from fencepost.broker.memory import FETCHES_MAX, MEBIBYTE, READ_SIZE
from fencepost.broker.partitions import fetch
from fencepost.broker.server import Server
from fencepost.broker.settings import ConnectionSettings
from fencepost.broker.wire_protocols import ARRAY_OF_FIVE
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.frames import FRAME_SIZE_MAX, REQUEST_HEADER_MAX, RequestFrame, encode_request
from tests.broker.requests import (
    NOBODY,
    ORDERS,
    OTHERS,
    UNCOMMITTED,
    batch,
    fetch_request,
    fetched,
    produce_batches,
    produce_request,
    produced,
    visible_values,
)
from tests.broker.wire import PATIENCE_S, Wire, Wires, serving, until

pytestmark = pytest.mark.trio

RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, for no time
KIBIBYTE = 1024


@asynccontextmanager
async def limited(**settings: int) -> AsyncGenerator[tuple[Server, Wires]]:
    """A server with these settings for its clients."""
    async with serving(BrokerSettings(connections=ConnectionSettings(**settings))) as found:
        yield found


def plain(size: int) -> m.Produce:
    """A record of so many bytes."""
    return produce_batches({ORDERS: batch(NOBODY, "x" * size, transactional=False)}, name=None)


async def is_served(wire: Wire) -> bool:
    return (await wire.ask(m.Metadata(topics=None))).error is ErrorCode.NONE


# --- how many -------------------------------------------------------------------------------------------


async def test_a_connection_beyond_the_limit_is_closed_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async with limited(max_connections=2) as (server, wires):
        first, second = await wires.open(), await wires.open()
        assert await is_served(first)
        assert await is_served(second)
        for _ in range(5):
            assert await (await wires.open()).is_closed_by_peer()
        (said,) = caplog.messages
        assert said.startswith("refused a connection from 127.0.0.1:")
        assert said.endswith(": all 2 connections (max.connections) are in use")
        await second.stream.aclose()
        await until(lambda: len(server.connections.opened) == 1)
        assert await is_served(await wires.open())


def duplicate(descriptor: int) -> int | None:
    """Another one for the same file, or None if there is none left."""
    try:
        return os.dup(descriptor)
    except OSError:
        return None


@contextmanager
def no_descriptor_left() -> Generator[None]:
    """Within the block, this process cannot open anything."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 20, hard))
    try:
        while (descriptor := duplicate(taken[0])) is not None:
            taken.append(descriptor)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)


async def test_without_descriptors_new_connections_are_refused_and_others_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with limited() as (server, wires):
        good = await wires.open()
        await good.prepare()
        strangers = [socket.create_connection(wires.address) for _ in range(5)]  # in the backlog by now
        streams = [trio.SocketStream(trio.socket.from_stdlib_socket(each)) for each in strangers]
        with no_descriptor_left():
            for stream in streams:
                assert await Wire(stream).is_closed_by_peer()
            assert await is_served(good)
        assert len(server.connections.opened) == 1
        assert caplog.text.count("no file descriptor is left") == 1
        assert await is_served(await wires.open())
        for stream in streams:
            await stream.aclose()


class FailingListener:
    """A listener whose accept() fails with each of these errors before it works."""

    def __init__(self, listener: socket.socket, errors: list[int]) -> None:
        self.listener, self.errors = listener, errors

    def fileno(self) -> int:
        return self.listener.fileno()

    def accept(self) -> tuple[socket.socket, Any]:
        if self.errors:
            raise OSError(number := self.errors.pop(), os.strerror(number))
        return self.listener.accept()


@pytest.mark.parametrize("number", [errno.ENOBUFS, errno.ENOMEM])
async def test_without_memory_for_a_connection_it_waits_and_the_log_says_so_once(
    number: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "OUT_OF_RESOURCES_S", 0)
    async with limited() as (server, wires):
        failing = FailingListener(server.listener, [number] * 3)
        monkeypatch.setattr(server, "listener", failing)
        assert await is_served(await wires.open())
        assert failing.errors == []
        assert caplog.text.count("the kernel has no memory for it") == 1


@pytest.mark.parametrize("number", sorted(connections.OF_ONE_CONNECTION))
async def test_a_connection_that_is_gone_leaves_the_next_one_its_turn(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with limited() as (server, wires):
        failing = FailingListener(server.listener, [number])
        monkeypatch.setattr(server, "listener", failing)
        assert await is_served(await wires.open())
        assert failing.errors == []


class ResetSocket(socket.socket):
    """macOS sets no option of a connection that its peer has reset already."""

    def setsockopt(self, *_: Any) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


class ResettingListener(FailingListener):
    """A listener whose next connections were reset in the backlog."""

    def accept(self) -> tuple[socket.socket, Any]:
        accepted, address = self.listener.accept()
        if self.errors:
            self.errors.pop()
            accepted = ResetSocket(fileno=accepted.detach())
        return accepted, address


async def test_a_connection_that_was_reset_in_the_backlog_does_not_end_the_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with limited() as (server, wires):
        resetting = ResettingListener(server.listener, [errno.EINVAL])
        monkeypatch.setattr(server, "listener", resetting)
        await wires.open()
        assert await is_served(await wires.open())
        assert resetting.errors == []


# --- how long -------------------------------------------------------------------------------------------


async def test_an_idle_connection_is_closed_and_one_that_waits_for_an_answer_is_not() -> None:
    async with limited(connections_max_idle_ms=200) as (_, wires):
        waiting, idle = await wires.open(), await wires.open()
        await waiting.prepare()
        (number,) = await waiting.send(fetch_request(ORDERS, max_wait_ms=60_000))
        assert await idle.is_closed_by_peer()
        writer = await wires.open()
        await writer.ask(plain(1))
        assert fetched(await waiting.answer(number)).records


async def test_a_frame_that_is_not_finished_in_time_costs_its_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "FRAME_MS", 20)
    monkeypatch.setattr(server_module, "SWEEP_MS", 5)
    async with limited() as (_, wires):
        slow, quiet = await wires.open(), await wires.open()
        await slow.stream.send_all(b"".join(encode_request(m.Metadata(topics=None), correlation_id=1))[:9])
        assert await slow.is_closed_by_peer()
        assert "sent 9 bytes of a request in" in caplog.text
        assert await is_served(quiet)


async def test_a_header_that_is_too_large_is_refused_before_it_arrives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # In Kafka's protocol these bytes could be the beginning of a frame, which is given time to arrive.
    monkeypatch.setattr(connections, "FRAME_MS", 20)
    monkeypatch.setattr(server_module, "SWEEP_MS", 5)
    async with limited() as (_, wires):
        wire = await wires.open()
        await wire.stream.send_all(struct.pack(">II", FRAME_SIZE_MAX, REQUEST_HEADER_MAX + 1))
        assert await wire.is_closed_by_peer()


# --- how much: requests ---------------------------------------------------------------------------------


def beginning(size: int, *, arrived: int) -> bytes:
    """The first bytes of a request with so many bytes of records."""
    return struct.pack(">IIB", size, 16, ARRAY_OF_FIVE) + bytes(arrived - 9)


async def test_an_announced_length_takes_nothing_before_bytes_arrive() -> None:
    async with limited() as (server, wires):
        pool = server.connections.requests
        for _ in range(20):
            await (await wires.open()).stream.send_all(beginning(FRAME_SIZE_MAX, arrived=READ_SIZE - 1))
        opened = server.connections.opened
        await until(lambda: sum(each.frames.arrived for each in opened.values()) == 20 * (READ_SIZE - 1))
        assert pool.taken == 0
        (first, *_) = wires.opened
        await first.stream.send_all(b"x")
        await until(lambda: pool.taken > FRAME_SIZE_MAX)


async def test_a_request_waits_for_room_until_a_client_that_stalls_is_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with limited() as (server, wires):
        pool = server.connections.requests
        pool.limit = MEBIBYTE
        good, small, bad = await wires.open(), await wires.open(), await wires.open()
        await good.prepare()
        monkeypatch.setattr(connections, "STALLED_MS", 1_000 * PATIENCE_S)
        await bad.stream.send_all(beginning(800 * KIBIBYTE, arrived=20 * KIBIBYTE))
        await until(lambda: pool.taken > 800 * KIBIBYTE)

        async def write() -> None:
            reply = await good.ask(plain(500 * KIBIBYTE))
            assert produced(reply)[ORDERS].error is ErrorCode.NONE

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            await until(lambda: pool.is_wanted)
            assert await is_served(small), "a small request never waits"
            assert pool.is_wanted
            monkeypatch.setattr(connections, "STALLED_MS", 0)
        assert await bad.is_closed_by_peer()
        assert "made no progress for a second and held" in caplog.text
        await until(lambda: pool.taken == 0)
        assert len(server.connections.opened) == 2


async def test_a_request_that_waits_for_costly_ones_of_others_is_not_stalled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "COSTLY_BYTES", 100_000)
    monkeypatch.setattr(connections, "STALLED_MS", 0)
    async with limited() as (server, wires):
        pool = server.connections.requests
        line = server._costly  # pyright: ignore[reportPrivateUsage] # where it waits
        pool.limit = MEBIBYTE
        first, second = await wires.open(), await wires.open()
        await first.prepare()

        async def write(wire: Wire) -> None:
            reply = await wire.ask(plain(500 * KIBIBYTE))
            assert produced(reply)[ORDERS].error is ErrorCode.NONE

        async with trio.open_nursery() as nursery:
            async with line:
                nursery.start_soon(write, first)
                await until(lambda: line.statistics().tasks_waiting == 1)
                nursery.start_soon(write, second)
                await until(lambda: pool.is_wanted)
                server.connections.relieve(monotonic_ms())
        assert len(server.connections.opened) == 2


async def test_requests_that_do_not_fit_together_are_all_answered_in_turn() -> None:
    async with limited() as (server, wires):
        pool = server.connections.requests
        pool.limit = MEBIBYTE
        opened = [await wires.open() for _ in range(6)]
        await opened[0].prepare()
        most = 0

        async def write(wire: Wire) -> None:
            nonlocal most
            for _ in range(3):
                reply = await wire.ask(plain(700 * KIBIBYTE))
                assert produced(reply)[ORDERS].error is ErrorCode.NONE
                most = max(most, pool.taken)

        async with trio.open_nursery() as nursery:
            for wire in opened:
                nursery.start_soon(write, wire)
        assert most <= MEBIBYTE
        assert (pool.taken, pool.is_wanted) == (0, False)


async def test_room_is_given_back_when_a_client_leaves_in_the_middle() -> None:
    async with limited() as (server, wires):
        pool, leaves = server.connections.requests, await wires.open()
        await leaves.stream.send_all(beginning(FRAME_SIZE_MAX, arrived=20 * KIBIBYTE))
        await until(lambda: pool.taken > 0)
        await leaves.stream.aclose()
        await until(lambda: pool.taken == 0)
        assert server.connections.opened == {}


# --- how much: answers ----------------------------------------------------------------------------------

EVERYTHING = fetch_request(ORDERS, UNCOMMITTED, max_bytes=8 * MEBIBYTE)


async def filled(wires: Wires, mebibytes: int) -> Wire:
    wire = await wires.open()
    await wire.prepare()
    for _ in range(mebibytes):
        await wire.ask(plain(MEBIBYTE - 100))
    return wire


async def test_readers_that_take_nothing_share_what_there_is_and_hold_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fifteen times eight fetches of 8 MiB: 960 MiB, were they all answered at once."""
    monkeypatch.setattr(connections, "STALLED_MS", 50)
    async with limited() as (server, wires):
        pool = server.connections.answers
        pool.limit = 16 * MEBIBYTE
        canary = await filled(wires, 8)
        for _ in range(15):
            await (await wires.open()).send(*[EVERYTHING] * FETCHES_MAX)
        most, waited = 0, False
        for number in range(10):
            await canary.ask(produce_request(NOBODY, {OTHERS: f"w{number}"}, name=None))
            reply = await canary.ask(fetch_request(OTHERS, UNCOMMITTED, offset=number))
            assert visible_values(fetched(reply)) == [f"w{number}"]
            most, waited = max(most, pool.taken), waited or pool.is_wanted
        assert 2 * MEBIBYTE < most <= 16 * MEBIBYTE
        assert waited, "there was less room than they asked for"
        # A reader that takes its answers gets its turn.
        assert fetched(await canary.ask(EVERYTHING)).records


async def test_a_fetch_that_waits_for_room_is_answered_when_another_client_has_taken_its_answer() -> None:
    async with limited() as (server, wires):
        pool = server.connections.answers
        await filled(wires, 8)
        first, second = await wires.open(), await wires.open()
        pool.take(pool.limit)
        (one,) = await first.send(EVERYTHING)
        (two,) = await second.send(EVERYTHING)
        await until(lambda: pool.is_wanted and len(server.connections.opened) == 3)
        pool.give(pool.limit)
        server.turn()
        assert fetched(await first.answer(one)).records
        assert fetched(await second.answer(two)).records
        await until(lambda: pool.taken == 0)


async def test_answers_that_did_not_ask_cost_the_worst_reader_its_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with limited() as (server, wires):
        good, bad = await wires.open(), await wires.open()
        await good.prepare()
        await is_served(bad)
        worst = max(server.connections.opened.values(), key=lambda each: each.number)
        pool = server.connections.answers
        pool.limit = 0
        worst.send([bytes(16 * MEBIBYTE)])
        assert await is_served(good)
        assert worst.is_closed
        assert "had not read" in caplog.text
        assert pool.taken == 0


# --- closed connections -----------------------------------------------------------------------------------


async def test_fetches_of_a_client_that_has_left_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    complete = fetch.complete_fetch

    def counted(*arguments: object, **options: object) -> object:
        reads.append(1)
        return complete(*arguments, **options)  # type: ignore[arg-type] # the test only counts

    async with limited() as (server, wires):
        other = await filled(wires, 8)
        leaves = await wires.open()
        monkeypatch.setattr(fetch, "complete_fetch", counted)
        await leaves.send(*[EVERYTHING] * 500)
        leaves.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        leaves.stream.socket.close()
        await until(lambda: len(server.connections.opened) == 1)
        assert len(reads) <= FETCHES_MAX
        assert await is_served(other)


async def test_records_are_not_read_for_a_connection_that_was_closed_in_the_same_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads: list[object] = []

    def read(*arguments: object, **options: object) -> None:
        reads.append(arguments)

    def is_open(number: int) -> bool:
        return False

    async with limited() as (server, wires):
        await filled(wires, 1)
        monkeypatch.setattr(fetch, "complete_fetch", read)
        monkeypatch.setattr(server.host.reads, "is_open", is_open)
        await (await wires.open()).send(EVERYTHING)
        await until(lambda: sum(each.fetches for each in server.connections.opened.values()) == 1)
    assert reads == []


async def test_a_fetch_that_waits_for_room_is_forgotten_with_its_connection() -> None:
    async with limited() as (server, wires):
        pool = server.connections.answers
        await filled(wires, 1)
        leaves = await wires.open()
        pool.take(pool.limit)
        await leaves.send(EVERYTHING)
        await until(lambda: pool.is_wanted)
        await leaves.stream.aclose()
        await until(lambda: not pool.is_wanted)
        pool.give(pool.limit)
        assert pool.taken == 0


# --- turns ----------------------------------------------------------------------------------------------


async def test_a_client_with_many_requests_does_not_keep_others_from_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "ROUND_NS", 0)
    monkeypatch.setattr(connections.Connection, "is_costly", False)
    async with limited() as (server, wires):
        busy, other = await wires.open(), await wires.open()
        await busy.prepare()
        numbers = await busy.send(*[m.ApiVersions()] * 1_000)

        async def read() -> None:
            for number in numbers:
                await busy.answer(number)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            for _ in range(20):
                assert await is_served(other)
            left = server.connections.opened[1].frames.arrived
        assert left > 0, "the busy client was not served to its end first"


class Rounds(trio.abc.Instrument):
    """Counts the rounds of the scheduler; in each, every task that can run runs once."""

    def __init__(self) -> None:
        self.number = 0

    def before_io_wait(self, timeout: float) -> None:
        self.number += 1


async def test_a_round_has_at_most_one_costly_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise an ordinary client waited for as many of them as there are clients that send them."""
    rounds, costly = Rounds(), list[int]()
    carry_out = Server._carry_out  # pyright: ignore[reportPrivateUsage] # where a request is decoded

    def noted(
        server: Server, connection: connections.Connection, frame: memoryview
    ) -> Sequence[RequestFrame]:
        if connection.is_costly:
            costly.append(rounds.number)
        return carry_out(server, connection, frame)

    monkeypatch.setattr(Server, "_carry_out", noted)
    monkeypatch.setattr(connections, "COSTLY_BYTES", 100_000)
    trio.lowlevel.add_instrument(rounds)
    async with limited() as (server, wires), trio.open_nursery() as nursery:
        pool, opened = server.connections.requests, server.connections.opened
        pool.take(pool.limit)  # so that all begin at the same time
        for _ in range(6):
            wire = await wires.open()
            nursery.start_soon(wire.send, *[m.Metadata(topics=("x" * 200,) * 100)] * 3)
        await until(lambda: sum(each.requests.asked > 0 for each in opened.values()) == 6)
        pool.give(pool.limit)
        await until(lambda: len(costly) == 18)
    trio.lowlevel.remove_instrument(rounds)
    assert len(set(costly)) == 18
