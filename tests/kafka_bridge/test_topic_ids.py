"""Metadata and DeleteTopics by topic ids (KIP-516), and what older versions are refused."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID

import pytest

from fencepost.kafka_bridge import cluster, data
from fencepost.kafka_bridge.data import EARLIEST_PENDING_UPLOAD_TIMESTAMP
from fencepost.kafka_bridge.exchange import Answer, Context, Exchange, Translated, exchange_in
from fencepost.kafka_bridge.fetch_session import FetchSession
from fencepost.protocol import messages as m
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.terms import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    NO_TOPIC_ID,
)
from fencepost.protocol.wire_protocol import SessionRoom
from tests.kafka_bridge.samples import NoTopics

ORDERS, GHOST, NEW = UUID(int=1), UUID(int=2), UUID(int=3)
UNKNOWN: Final = ErrorCode.UNKNOWN_TOPIC_ID


class Topics(NoTopics):
    def topic_name(self, topic_id: bytes) -> str | None:
        return "orders" if topic_id == ORDERS.bytes else None

    def topic_id(self, topic: str) -> bytes | None:
        return ORDERS.bytes if topic == "orders" else None


def in_context(translated: Translated) -> Exchange:
    return exchange_in(Context(Topics(), FetchSession(SessionRoom(10))), translated)


def described(error: ErrorCode, topic_id: UUID) -> Answer:
    topic = m.TopicMetadata(
        topic="orders", error=error, is_internal=False, partitions=(), topic_id=topic_id.bytes
    )
    return Answer(NO_ERROR, m.MetadataReply(cluster_id="c", controller_id=1, nodes=(), topics=(topic,)))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(described(NO_ERROR, ORDERS), ("orders", NO_ERROR), id="there"),
        pytest.param(described(NO_ERROR, NEW), (None, UNKNOWN), id="made again meanwhile"),
        pytest.param(
            described(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ORDERS), (None, UNKNOWN), id="deleted meanwhile"
        ),
        pytest.param(
            described(ErrorCode.TOPIC_AUTHORIZATION_FAILED, UUID(int=0)),
            (None, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
            id="a name that is a secret",
        ),
    ],
)
def test_metadata_by_id(answer: Answer, expected: tuple[str | None, ErrorCode]) -> None:
    asked = [SimpleNamespace(topic_id=each, name=None) for each in (ORDERS, GHOST, ORDERS)]
    request = SimpleNamespace(topics=asked, allow_auto_topic_creation=True)
    exchange = in_context(cluster.metadata(request, 12))
    assert exchange.requests == (m.Metadata(topics=("orders",)),)
    assert exchange.follow_up([answer]) == ()
    topics = {
        topic["topic_id"]: (topic["name"], topic["error_code"])
        for topic in exchange.respond([answer])["topics"]
    }
    assert topics == {ORDERS: expected, GHOST: (None, UNKNOWN)}


@pytest.mark.parametrize(("version", "topic_id"), [(12, NO_TOPIC_ID), (13, ORDERS.bytes)])
def test_a_produce_by_id_keeps_the_id(version: int, topic_id: bytes) -> None:
    """The topic may be another one when the node handles the request."""
    parts = [SimpleNamespace(index=0, records=b"")]
    topic = (
        SimpleNamespace(name="orders", partition_data=parts)
        if version < 13
        else SimpleNamespace(name=None, topic_id=ORDERS, partition_data=parts)
    )
    request = SimpleNamespace(
        transactional_id=None, acks=-1, timeout=timedelta(seconds=1), topic_data=[topic]
    )
    (asked,) = in_context(data.produce(request, version)).requests
    assert isinstance(asked, m.Produce)
    assert [(part.topic, part.topic_id) for part in asked.partitions] == [("orders", topic_id)]


def test_topics_are_deleted_by_name_and_by_id() -> None:
    named = [("orders", None), (None, ORDERS), (None, GHOST), ("other", None)]
    topics = [SimpleNamespace(name=name, topic_id=topic_id) for name, topic_id in named]
    request = SimpleNamespace(topics=topics, timeout=timedelta(seconds=1))
    exchange = in_context(cluster.delete_topics(request, 6))
    describe = m.Metadata(topics=("orders",))
    assert exchange.requests == (m.DeleteTopics(topics=("orders", "other", "orders")), describe)
    twice, denied = ErrorCode.INVALID_REQUEST, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    refused = m.TopicError(topic="orders", error=twice, because="")
    answer = Answer(NO_ERROR, m.DeleteTopicsReply(topics=(refused,)))
    told = [(None, GHOST, UNKNOWN)]
    assert deleted(exchange, answer, described(NO_ERROR, ORDERS)) == [("orders", ORDERS, twice), *told]
    # A client that may not describe the topic does not learn that its name and its id belong together.
    refusals = tuple(m.TopicError(topic="orders", error=denied, because="") for _ in range(2))
    answer = Answer(NO_ERROR, m.DeleteTopicsReply(topics=refusals))
    told = [(None, ORDERS, denied), ("orders", None, denied), *told]
    assert deleted(exchange, answer, described(denied, ORDERS)) == told


def test_an_id_that_is_named_twice_does_not_tell_a_name() -> None:
    """A client that may not delete the topic does not learn that the id and the name belong together."""
    named = [("orders", None), (None, ORDERS), (None, ORDERS)]
    topics = [SimpleNamespace(name=name, topic_id=topic_id) for name, topic_id in named]
    request = SimpleNamespace(topics=topics, timeout=timedelta(seconds=1))
    exchange = in_context(cluster.delete_topics(request, 6))
    twice, denied = ErrorCode.INVALID_REQUEST, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    for may_describe in (NO_ERROR, denied):
        refusals = tuple(m.TopicError(topic="orders", error=denied, because="") for _ in range(2))
        answer = Answer(NO_ERROR, m.DeleteTopicsReply(topics=refusals))
        told = [("orders", None, denied), (None, ORDERS, twice)]
        assert deleted(exchange, answer, described(may_describe, ORDERS)) == told


def deleted(exchange: Exchange, *answers: Answer) -> list[tuple[str | None, UUID | None, ErrorCode]]:
    responses = exchange.respond(answers)["responses"]
    return [(each["name"], each["topic_id"], each["error_code"]) for each in responses]


@pytest.mark.parametrize(
    ("may_describe", "name"), [(NO_ERROR, "orders"), (ErrorCode.TOPIC_AUTHORIZATION_FAILED, None)]
)
def test_a_topic_that_may_not_be_deleted_keeps_its_id_and_a_secret_name(
    may_describe: ErrorCode, name: str | None
) -> None:
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    topics = [SimpleNamespace(name=None, topic_id=ORDERS), SimpleNamespace(name="other", topic_id=None)]
    request = SimpleNamespace(topics=topics, timeout=timedelta(seconds=1))
    exchange = in_context(cluster.delete_topics(request, 6))
    refused = m.DeleteTopicsReply(
        topics=tuple(m.TopicError(topic=topic, error=denied, because="") for topic in ("orders", "other"))
    )
    values = exchange.respond([Answer(NO_ERROR, refused), described(may_describe, ORDERS)])
    told: list[Any] = [(each["name"], each["topic_id"], each["error_code"]) for each in values["responses"]]
    assert told == [(name, ORDERS, denied), ("other", None, denied)]


@pytest.mark.parametrize(
    ("timestamp", "first"),
    [
        pytest.param(0, 1, id="a time"),
        pytest.param(LATEST_TIMESTAMP, 1, id="latest"),
        pytest.param(EARLIEST_TIMESTAMP, 1, id="earliest"),
        pytest.param(MAX_TIMESTAMP, 7, id="max"),
        pytest.param(EARLIEST_LOCAL_TIMESTAMP, 8, id="earliest local"),
        pytest.param(LATEST_TIERED_TIMESTAMP, 9, id="latest tiered"),
        pytest.param(EARLIEST_PENDING_UPLOAD_TIMESTAMP, 11, id="earliest pending upload"),
    ],
)
def test_a_special_timestamp_is_of_its_version(timestamp: int, first: int) -> None:
    for version in range(1, 12):
        part = SimpleNamespace(partition_index=3, timestamp=timestamp)
        topic = SimpleNamespace(name="orders", partitions=[part])
        exchange = data.list_offsets(SimpleNamespace(topics=[topic]), version)
        (asked,) = exchange.requests
        assert isinstance(asked, m.ListOffsets)
        values = exchange.respond([Answer(NO_ERROR, m.ListOffsetsReply(partitions=()))])
        errors = [part["error_code"] for topic in values["topics"] for part in topic["partitions"]]
        is_known = version >= first
        assert (len(asked.partitions), errors) == (
            (1, []) if is_known else (0, [ErrorCode.UNSUPPORTED_VERSION])
        )


def test_no_partition_is_compared_with_the_others() -> None:
    """32,768 partitions in one ListOffsets would otherwise keep the broker busy for half a minute."""
    compared = 0

    class Counting(int):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return super().__eq__(other)

        __hash__ = int.__hash__

    parts = [SimpleNamespace(partition_index=Counting(number), timestamp=0) for number in range(10)]
    data.list_offsets(SimpleNamespace(topics=[SimpleNamespace(name="orders", partitions=parts)]), 5)
    assert compared == 0
