"""Fetch sessions (KIP-227), and topics by their ids (KIP-516), on one connection and without a broker."""

from __future__ import annotations

import importlib
import struct
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from fencepost.broker.access.session import all_operations
from fencepost.kafka_bridge.connection import KafkaProtocol
from fencepost.kafka_bridge.data import fetch as translate
from fencepost.kafka_bridge.exchange import Answer, Context, Exchange
from fencepost.kafka_bridge.fetch_session import (
    FINAL_EPOCH,
    FIRST_EPOCH,
    NO_SESSION,
    SESSION_SIZE_MAX,
    FetchSession,
    SessionFetch,
)
from fencepost.protocol import messages as m
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.frames import ReplyFrame
from fencepost.protocol.wire_protocol import SessionRoom
from tests.kafka_bridge.samples import NoTopics, without_tags

BY_NAME: Final = 12
BY_ID: Final = 13
ORDERS, GHOST = UUID(int=1), UUID(int=2)
Parts = dict[tuple[str, int], int]
"""Offsets by topic and partition."""


def request(session_id: int, epoch: int, parts: Parts, *forgotten: tuple[str, int]) -> Any:
    topics = [
        SimpleNamespace(
            topic=topic,
            partitions=[SimpleNamespace(partition=number, fetch_offset=offset, partition_max_bytes=1)],
        )
        for (topic, number), offset in parts.items()
    ]
    gone = [SimpleNamespace(topic=topic, partitions=[number]) for topic, number in forgotten]
    return SimpleNamespace(
        session_id=session_id, session_epoch=epoch, topics=topics, forgotten_topics_data=gone
    )


def offsets(opened: SessionFetch | ErrorCode) -> Parts:
    assert isinstance(opened, SessionFetch)
    return {
        (str(topic.topic), part.partition): part.fetch_offset
        for topic in opened.topics
        for part in topic.partitions
    }


def response(**parts: dict[str, Any]) -> dict[str, Any]:
    usual = {
        "partition_index": 0,
        "error_code": NO_ERROR,
        "high_watermark": 5,
        "log_start_offset": 0,
        "records": b"",
    }
    topics = [{"topic": name, "partitions": [usual | part]} for name, part in parts.items()]
    return {"error_code": NO_ERROR, "session_id": NO_SESSION, "responses": topics}


A, B = ("a", 0), ("b", 0)
ROOM: Final = 100_000  # partitions: enough for each session here


def opened_session(parts: Parts) -> FetchSession:
    session = FetchSession(SessionRoom(ROOM))
    assert offsets(session.open(request(NO_SESSION, FIRST_EPOCH, parts), BY_NAME)) == parts
    assert session.session_id == 1
    return session


def test_a_session_adds_what_the_client_does_not_name() -> None:
    session = opened_session({A: 0, B: 0})
    steps: list[tuple[Parts, list[tuple[str, int]], Parts]] = [
        ({}, [], {A: 0, B: 0}),
        ({A: 7}, [], {A: 7, B: 0}),
        ({("c", 0): 1}, [B], {A: 7, ("c", 0): 1}),
    ]
    for epoch, (changed, forgotten, expected) in enumerate(steps, start=1):
        assert offsets(session.open(request(1, epoch, changed, *forgotten), BY_NAME)) == expected
    assert session.open(request(1, 4, {}, A, ("c", 0)), BY_NAME) == SessionFetch(())
    assert session.open(request(1, 5, {}), BY_NAME) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize(
    ("asked", "version", "expected"),
    [
        pytest.param(request(2, 1, {}), BY_NAME, ErrorCode.FETCH_SESSION_ID_NOT_FOUND, id="another"),
        pytest.param(request(0, 1, {}), BY_NAME, ErrorCode.FETCH_SESSION_ID_NOT_FOUND, id="none"),
        pytest.param(request(1, 2, {}), BY_NAME, ErrorCode.INVALID_FETCH_SESSION_EPOCH, id="too new"),
        pytest.param(request(1, 3, {}), BY_NAME, ErrorCode.INVALID_FETCH_SESSION_EPOCH, id="far too new"),
        pytest.param(request(1, 1, {}), BY_ID, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, id="by id"),
    ],
)
def test_a_fetch_that_does_not_belong_to_the_session_is_refused(
    asked: Any, version: int, expected: ErrorCode
) -> None:
    session = opened_session({A: 0})
    assert session.open(asked, version) is expected
    assert offsets(session.open(request(1, 1, {}), BY_NAME)) == {A: 0}
    assert session.open(request(1, 1, {}), BY_NAME) is ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_the_epoch_after_the_greatest_is_one() -> None:
    session = opened_session({A: 0})
    session.epoch = 2**31 - 1
    session.open(request(1, 2**31 - 1, {}), BY_NAME)
    assert session.epoch == 1


def test_a_client_ends_its_session_and_opens_another() -> None:
    session = opened_session({A: 0})
    assert offsets(session.open(request(1, FINAL_EPOCH, {B: 3}), BY_NAME)) == {B: 3}
    assert session.open(request(1, 1, {}), BY_NAME) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    session = opened_session({A: 0})
    opened = session.open(request(1, FIRST_EPOCH, {B: 3}), BY_NAME)
    assert isinstance(opened, SessionFetch)
    assert (offsets(opened), opened.session_id) == ({B: 3}, 2)


def test_all_sessions_share_a_room() -> None:
    room = SessionRoom(3)
    first, second = FetchSession(room), FetchSession(room)
    first.open(request(NO_SESSION, FIRST_EPOCH, {A: 0, B: 0}), BY_NAME)
    second.open(request(NO_SESSION, FIRST_EPOCH, {A: 0, B: 0}), BY_NAME)
    assert (first.session_id, second.session_id, room.free) == (1, NO_SESSION, 1)
    more = {("c", 0): 0, ("d", 0): 0}
    assert first.open(request(1, 1, more), BY_NAME) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert room.free == 3
    second.open(request(NO_SESSION, FIRST_EPOCH, {A: 0, B: 0}), BY_NAME)
    assert (second.session_id, room.free) == (1, 1)
    second.end()
    assert room.free == 3


def test_a_session_has_a_limit() -> None:
    many = {("a", number): 0 for number in range(SESSION_SIZE_MAX + 1)}
    session = FetchSession(SessionRoom(ROOM))
    opened = session.open(request(NO_SESSION, FIRST_EPOCH, many), BY_NAME)
    assert offsets(opened) == many
    assert session.session_id == NO_SESSION
    long_names = {("a" * 32_000 + str(number), 0): 0 for number in range(10)}
    session.open(request(NO_SESSION, FIRST_EPOCH, long_names), BY_NAME)
    assert session.session_id == NO_SESSION
    session = opened_session({A: 0})
    assert session.open(request(1, 1, many), BY_NAME) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert session.open(request(1, 1, {}), BY_NAME) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_only_news_is_told() -> None:
    session = opened_session({A: 0, B: 0})
    first = SessionFetch((), 1)
    assert session.answered(first, response(a={}, b={}))["responses"] == response(a={}, b={})["responses"]
    later = SessionFetch((), 1, is_incremental=True)
    failed = {"error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER, "high_watermark": -1}
    steps: list[tuple[dict[str, Any], bool]] = [
        ({}, False),
        ({"records": b"r"}, True),
        ({}, False),
        ({"high_watermark": 6}, True),
        ({"high_watermark": 6}, False),
        ({"high_watermark": 6, "log_start_offset": 1}, True),
        (failed, True),
        (failed, True),
        ({"high_watermark": 6, "log_start_offset": 1}, True),  # the error is over
        ({"high_watermark": 6, "log_start_offset": 1}, False),
    ]
    for part, is_news in steps:
        told = session.answered(later, response(a=part, b={}))
        assert told["session_id"] == 1
        assert [topic["topic"] for topic in told["responses"]] == ["a"] * is_news, part


def test_a_partition_that_gave_records_queues_up_behind_the_others() -> None:
    session = opened_session({A: 0, B: 0})
    session.answered(SessionFetch((), 1), response(a={"records": b"r"}, b={}))
    assert list(offsets(session.open(request(1, 1, {}), BY_NAME))) == [B, A]


def test_a_partition_that_gave_records_queues_up_behind_those_of_other_topics() -> None:
    """Otherwise it could fill every response, as long as its topic has a partition without records."""
    full, other = ("a", 1), ("b", 0)
    session = opened_session({A: 0, full: 0, other: 0})
    gave = response(a={"partition_index": 1, "records": b"r"})
    session.answered(SessionFetch((), 1), gave)
    assert list(offsets(session.open(request(1, 1, {}), BY_NAME))) == [A, other, full]


@pytest.mark.parametrize(("version", "parts"), [(4, [0, 1]), (6, [0, 1]), (12, [0, 1]), (13, [])])
def test_a_fetch_that_is_refused_tells_each_partition(version: int, parts: list[int]) -> None:
    """Before version 7, a response has no error of its own; since 13, Kafka says it only there."""
    asked = request(NO_SESSION, FINAL_EPOCH, {A: 0})
    if version >= BY_ID:
        asked.topics[0].topic_id = ORDERS
    asked.topics[0].partitions.append(SimpleNamespace(partition=1, fetch_offset=0, partition_max_bytes=1))
    asked.max_wait, asked.min_bytes, asked.max_bytes = timedelta(0), 1, 10
    translated = translate(asked, version)
    assert not isinstance(translated, Exchange)
    exchange = translated(Context(Topics(), FetchSession(SessionRoom(ROOM))))
    refused = exchange.respond([Answer(ErrorCode.INVALID_REQUEST, None)])
    assert refused["error_code"] is ErrorCode.INVALID_REQUEST
    told = [
        (topic["topic"], part["partition_index"], part["error_code"], part["high_watermark"])
        for topic in refused["responses"]
        for part in topic["partitions"]
    ]
    assert told == [("a", number, ErrorCode.INVALID_REQUEST, -1) for number in parts]


# --- through the protocol -----------------------------------------------------------------------------------


class Topics(NoTopics):
    def topic_name(self, topic_id: bytes) -> str | None:
        return "orders" if topic_id == ORDERS.bytes else None

    def topic_id(self, topic: str) -> bytes | None:
        return ORDERS.bytes if topic == "orders" else None


FETCH, VERSION = 1, 17
SCHEMAS: Any = importlib.import_module(load_request_schema(FETCH, VERSION).__module__)


def fetch(protocol: KafkaProtocol, session_id: int, epoch: int, *topic_ids: UUID) -> m.Fetch:
    part = SCHEMAS.FetchPartition(partition=0, fetch_offset=3, partition_max_bytes=10)
    topics = tuple(SCHEMAS.FetchTopic(topic_id=each, partitions=(part,)) for each in topic_ids)
    asked = SCHEMAS.FetchRequest(
        max_wait=timedelta(0),
        min_bytes=1,
        session_id=session_id,
        session_epoch=epoch,
        topics=topics,
        forgotten_topics_data=(),
    )
    frame = struct.pack(">hhih", FETCH, VERSION, 7, 0) + b"\0" + without_tags(asked)
    taken = protocol.ask(memoryview(frame))
    (node_request,) = taken.requests
    assert taken.pieces is None
    assert isinstance(node_request.request, m.Fetch)
    return node_request.request


def answer(protocol: KafkaProtocol, number: int, *names: str) -> Any:
    parts = tuple(
        m.FetchedPartition(
            topic=name,
            partition=0,
            error=NO_ERROR,
            high_watermark=3,
            last_stable_offset=3,
            log_start_offset=0,
            aborted=None,
            records=b"",
        )
        for name in names
    )
    reply = protocol.reply(ReplyFrame(number, error=NO_ERROR, body=m.FetchReply(partitions=parts)))
    assert reply.pieces is not None
    read = entity_reader(load_response_schema(FETCH, VERSION))
    return read(b"".join(reply.pieces)[9:], 0)[0]  # length, correlation id, no tags


def test_a_session_of_topic_ids() -> None:
    protocol = KafkaProtocol(Topics(), SessionRoom(ROOM), all_operations)
    asked = fetch(protocol, 0, 0, ORDERS, GHOST)
    assert [part.topic for part in asked.partitions] == ["orders"]
    first = answer(protocol, 0, "orders")
    assert first.session_id == 1
    assert {each.topic_id: each.partitions[0].error_code for each in first.responses} == {
        ORDERS: NO_ERROR,
        GHOST: ErrorCode.UNKNOWN_TOPIC_ID,
    }
    again = fetch(protocol, 1, 1)
    assert [(part.topic, part.fetch_offset) for part in again.partitions] == [("orders", 3)]
    assert [each.topic_id for each in answer(protocol, 1, "orders").responses] == [GHOST]
