"""A Kafka client's connection: the order of responses, what cannot be answered, and what is left behind."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from fencepost.broker.memory import SESSION_PARTITIONS_MAX
from fencepost.broker.server import Server
from fencepost.kafka_bridge import connection
from fencepost.kafka_bridge.wire import encode_response
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.frames import FrameReader, ReplyFrame
from fencepost.protocol.messages import Request
from fencepost.protocol.terms import NO_TOPIC_ID, CoordinatorType, IsolationLevel, TopicPartition
from tests.broker.requests import init_request
from tests.broker.wire import PATIENCE_S, RECEIVE_SIZE, serving
from tests.oracle.batches import recorded_batch
from tests.oracle.kafka_words import kafka_reply, kafka_request

ORDERS = TopicPartition("orders", 0)
VERSIONS: dict[type[Any], int] = {m.Produce: 9, m.Fetch: 12, m.OffsetFetch: 8, m.FindCoordinator: 4}
LISTS = m.ListTransactions(states=(), producer_ids=(), duration_ms=-1)
FINDS = m.FindCoordinator(kind=CoordinatorType.GROUP.value, key="g")
OFFSETS = m.OffsetFetch(group_id="g", require_stable=False, partitions=(ORDERS,))


def version_of(request: Request) -> int:
    return VERSIONS.get(type(request), 0)


def produce(acks: int, topic: str = ORDERS.topic) -> m.Produce:
    batch = recorded_batch({"records": 1}, producer_id=-1, now_ms=1, is_kafka=True)
    part = m.ProducePartition(topic=topic, topic_id=NO_TOPIC_ID, partition=0, records=batch)
    return m.Produce(transactional_id=None, acks=acks, timeout_ms=1_000, partitions=(part,))


def fetch(offset: int, *, wait_ms: int = 0) -> m.Fetch:
    part = m.FetchPartition(topic=ORDERS.topic, partition=0, fetch_offset=offset, max_bytes=1_000)
    level = IsolationLevel.READ_UNCOMMITTED
    return m.Fetch(
        max_wait_ms=wait_ms, min_bytes=1, max_bytes=1_000, isolation_level=level, partitions=(part,)
    )


def opening_a_session() -> bytes:
    """A Fetch of version 7 with the first epoch of a session, for one partition."""
    topic = ORDERS.topic.encode()
    request = struct.pack(">hhih", 1, 7, 0, -1)  # API key, version, correlation id, no client id
    request += struct.pack(">iiiibii", -1, 0, 0, 1_000, 0, 0, 0)  # ..., session id, session epoch
    request += struct.pack(">ih", 1, len(topic)) + topic + struct.pack(">iiqqi", 1, 0, 0, -1, 1_000)
    request += struct.pack(">i", 0)  # no forgotten topics
    return struct.pack(">i", len(request)) + request


@attrs.define(eq=False)
class KafkaWire:
    """One connection of a Kafka client."""

    stream: trio.SocketStream
    frames: FrameReader = attrs.Factory(FrameReader)
    asked: list[Request] = attrs.Factory(list[Request])
    arrived: list[bytes] = attrs.Factory(list[bytes])

    async def send(self, *requests: Request) -> None:
        """Send requests in one go; a correlation id is the place of its request among all."""
        data = b""
        for request in requests:
            data += kafka_request(request, version=version_of(request), correlation_id=len(self.asked))
            self.asked.append(request)
        await self.stream.send_all(data)

    async def answers(self, count: int) -> list[Any]:
        """The next responses, in the order in which they arrive."""
        with trio.fail_after(PATIENCE_S):
            while len(self.arrived) < count:
                chunk = await self.stream.receive_some(RECEIVE_SIZE)
                if not chunk:
                    raise EOFError("the broker closed the connection")
                self.arrived += map(bytes, self.frames.feed(chunk))
        taken, self.arrived = self.arrived[:count], self.arrived[count:]
        return [self._read(memoryview(frame)) for frame in taken]

    def _read(self, frame: memoryview) -> ReplyFrame:
        request = self.asked[int.from_bytes(frame[:4], "big")]
        return kafka_reply(frame, request, version=version_of(request))

    async def ask(self, request: Request) -> Any:
        await self.send(request)
        return (await self.answers(1))[0]


@asynccontextmanager
async def kafka_client() -> AsyncGenerator[tuple[Server, KafkaWire]]:
    """A broker with the topic `orders`, and a Kafka client of it."""
    async with serving() as (server, wires):
        own = await wires.open()
        await own.prepare()
        for number in range(30):
            await own.ask_until_done(init_request(f"{number:0240}"))
        await own.stream.aclose()
        async with await trio.open_tcp_stream(*wires.address) as stream:
            yield server, KafkaWire(stream)


def numbers(replies: Sequence[ReplyFrame]) -> list[int]:
    return [reply.correlation_id for reply in replies]


@pytest.mark.trio
async def test_responses_leave_in_the_order_of_the_requests() -> None:
    """Beside a Produce that gets none, and a Fetch that waits for data from somebody else."""
    async with kafka_client() as (_, wire):
        mixed = (FINDS, produce(1), OFFSETS, produce(0), LISTS, fetch(0))
        await wire.send(*mixed * 17)
        expected = [number for number in range(17 * len(mixed)) if number % len(mixed) != 3]
        replies = await wire.answers(len(expected))
        assert numbers(replies) == expected
        assert all(reply.error is ErrorCode.NONE for reply in replies)
        end = 2 * 17
        await wire.send(fetch(end, wait_ms=100), FINDS, LISTS)
        replies = await wire.answers(3)
        assert numbers(replies) == [len(wire.asked) - 3 + place for place in range(3)]
        assert replies[0].body.partitions[0].high_watermark == end


@pytest.mark.trio
async def test_a_produce_without_acknowledgement_that_fails_closes_its_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """So the producer looks for the topic again, instead of losing all further records."""
    async with kafka_client() as (server, wire):
        await wire.send(produce(0), FINDS)
        assert numbers(await wire.answers(1)) == [1]
        await wire.send(produce(0, "missing"))
        with pytest.raises(EOFError):
            await wire.answers(1)
        what = "sent a Produce with acks 0 that failed: UNKNOWN_TOPIC_OR_PARTITION for missing-0"
        assert caplog.text.count(what) == 1
        host, port = server.listener.getsockname()
        async with await trio.open_tcp_stream(host, port) as stream:
            reply = await KafkaWire(stream).ask(fetch(0))
            assert reply.body.partitions[0].high_watermark == 1


@pytest.mark.trio
async def test_a_response_that_is_too_large_is_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with kafka_client() as (_, wire):
        assert len((await wire.ask(LISTS)).body.transactions) == 30
        monkeypatch.setattr("fencepost.kafka_bridge.wire.FRAME_SIZE_MAX", 4_096)
        for _ in range(5):
            reply = await wire.ask(LISTS)
            assert (reply.error, reply.body.transactions) == (ErrorCode.INVALID_REQUEST, ())
        assert caplog.text.count("ListTransactionsReply: a reply of") == 1
        assert (await wire.ask(FINDS)).error is ErrorCode.NONE


class Broken(Exception):
    """A planted bug."""


def breaks(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """No response can be encoded, so many times."""
    left = [times]

    def encode(*arguments: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise Broken
        return encode_response(*arguments)

    monkeypatch.setattr(connection, "encode_response", encode)


@pytest.mark.trio
async def test_a_bug_in_a_response_costs_one_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with kafka_client() as (_, wire):
        breaks(monkeypatch, 1)
        assert (await wire.ask(LISTS)).error is ErrorCode.UNKNOWN_SERVER_ERROR
        assert (await wire.ask(LISTS)).error is ErrorCode.NONE
        assert caplog.text.count("drops a reply") == 1


@pytest.mark.trio
async def test_a_bug_in_the_error_instead_costs_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async with kafka_client() as (server, wire):
        breaks(monkeypatch, 2)
        with pytest.raises(EOFError):
            await wire.ask(LISTS)
        host, port = server.listener.getsockname()
        async with await trio.open_tcp_stream(host, port) as stream:
            assert (await KafkaWire(stream).ask(LISTS)).error is ErrorCode.NONE


@pytest.mark.trio
async def test_a_client_that_leaves_in_the_middle_of_its_requests_leaves_nothing_behind() -> None:
    async with kafka_client() as (server, wire):
        await wire.send(*(FINDS, OFFSETS, LISTS) * 20, fetch(0, wait_ms=60_000))
        await wire.answers(60)
        wire.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await wire.stream.aclose()
        with trio.fail_after(PATIENCE_S):
            while server.connections.opened:
                await trio.lowlevel.checkpoint()
        node = server.host.node
        assert (node.fetches, node.fetches_of, node.readers) == ({}, {}, {})
        assert (server.connections.requests.taken, server.connections.answers.taken) == (0, 0)


@pytest.mark.trio
async def test_a_client_that_leaves_gives_the_room_of_its_fetch_session_back() -> None:
    async with kafka_client() as (server, wire):
        await wire.stream.send_all(opening_a_session())
        with trio.fail_after(PATIENCE_S):
            assert await wire.stream.receive_some()
        assert server.connections.sessions.free == SESSION_PARTITIONS_MAX - 1
        await wire.stream.aclose()
        with trio.fail_after(PATIENCE_S):
            while server.connections.opened:
                await trio.lowlevel.checkpoint()
        assert server.connections.sessions.free == SESSION_PARTITIONS_MAX
