"""Lengths in Kafka's requests that are not true: none is believed before it is compared with the bytes."""

from __future__ import annotations

import io
import struct
from dataclasses import fields
from functools import cache
from itertools import islice
from random import Random
from typing import Any, Final, get_args, get_origin

import pytest
from kio.index import load_request_schema
from kio.serial import entity_writer

from fencepost.broker.access.session import all_operations
from fencepost.kafka_bridge.apis import SERVED
from fencepost.kafka_bridge.connection import KafkaProtocol
from fencepost.kafka_bridge.counts import check_counts
from fencepost.kafka_bridge.wire import decode_request, read_header
from fencepost.protocol.codec import STRING_LENGTH_MAX
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.frames import REQUEST_ARRAY_LENGTH_MAX, REQUEST_HEADER_MAX
from fencepost.protocol.wire_protocol import SessionRoom
from tests.attack.kafka_frames import damaged_frames
from tests.kafka_bridge.samples import NoTopics, sample, with_unknown_tags

VERSIONS: Final = [
    (api.key, version) for api in SERVED.values() for version in range(api.first, api.last + 1)
]
PRODUCE, METADATA, DELETE_GROUPS = 0, 3, 42
FRAMES: Final = 2_000
HUGE: Final = b"\xff\xff\xff\xff\x07"  # 2,147,483,646 entries of a compact array


@cache
def schemas() -> list[type[Any]]:
    """Of every request that is served. Loading takes a second, which processes without these tests save."""
    return [load_request_schema(key, version) for key, version in VERSIONS]


def frame(key: int, version: int, body: bytes) -> memoryview:
    is_flexible = load_request_schema(key, version).__flexible__
    start = struct.pack(">hhih", key, version, 7, -1) + (b"\0" if is_flexible else b"")
    return memoryview(bytearray(start + body))


def refused(key: int, version: int, body: bytes) -> str:
    """Why a frame is not decoded."""
    sent = frame(key, version, body)
    with pytest.raises(ProtocolViolation) as caught:
        decode_request(sent, read_header(sent))
    return str(caught.value)


def varint(number: int) -> bytes:
    data = bytearray()
    while number >= 0x80:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(data) + bytes([number])


def produce(topics: bytes, count: int) -> bytes:
    """The body of a Produce of version 9."""
    return b"\0" + struct.pack(">hi", -1, 1_000) + varint(count + 1) + topics + b"\0"


def test_a_walk_misses_the_last_byte_of_every_request() -> None:
    random, count = Random(1), 0
    for schema in schemas():
        value, out = sample(schema, random), io.BytesIO()
        entity_writer(schema)(out, value)
        for data in filter(None, (out.getvalue(), with_unknown_tags(value, random))):
            check_counts(schema, memoryview(data), 0)
            with pytest.raises(ProtocolViolation):
                check_counts(schema, memoryview(data)[:-1], 0)
            count += 1
    assert count > len(VERSIONS)


@pytest.mark.parametrize(
    ("key", "version", "body"),
    [
        (METADATA, 1, struct.pack(">i", 2**31 - 1)),
        (DELETE_GROUPS, 2, HUGE),
        (PRODUCE, 9, b"\0" + struct.pack(">hi", -1, 1_000) + HUGE),
    ],
)
def test_a_few_bytes_that_announce_two_thousand_million_entries_take_no_memory(
    key: int, version: int, body: bytes
) -> None:
    assert "entries in a Kafka request of" in refused(key, version, body)


@pytest.mark.parametrize(
    "topic",
    [b"\1\1\0", b"\1\2" + b"\0\0\0\0\0\0" + b"\0"],
    ids=["topics without partitions", "partitions without records"],
)
def test_a_produce_has_a_limit_of_entries(topic: bytes) -> None:
    count = REQUEST_ARRAY_LENGTH_MAX
    sent = frame(PRODUCE, 9, produce(topic * count, count))
    assert len(decode_request(sent, read_header(sent)).topic_data) == count
    assert "an array of 32769 entries" in refused(PRODUCE, 9, produce(topic * (count + 1), count + 1))


def test_entries_of_several_arrays_are_added_up() -> None:
    partitions = varint(REQUEST_ARRAY_LENGTH_MAX) + b"\0\0\0\0\0\0" * (REQUEST_ARRAY_LENGTH_MAX - 1)
    topic = b"\1" + partitions + b"\0"
    assert "more than 65536 entries" in refused(PRODUCE, 9, produce(topic * 3, 3))


def test_a_compact_string_is_not_longer_than_a_string() -> None:
    """Its length could be any, and the records of a group have room for 16 bits of it."""
    name = b"t" * (STRING_LENGTH_MAX + 1)
    topic = varint(len(name) + 1) + name + b"\1\0"
    assert "a string of 32768 bytes" in refused(PRODUCE, 9, produce(topic, 1))


def test_what_is_not_records_has_the_limit_of_our_own_frames() -> None:
    name = b"t" * 32_000
    topic = varint(len(name) + 1) + name + b"\1\0"
    count = REQUEST_HEADER_MAX // len(topic) + 1
    assert "records not counted; the limit is 1048576" in refused(PRODUCE, 9, produce(topic * count, count))
    records = bytes(2 * REQUEST_HEADER_MAX)
    part = b"\0\0\0\0" + varint(len(records) + 1) + records + b"\0"
    sent = frame(PRODUCE, 9, produce(b"\2t\2" + part + b"\0", 1))
    assert decode_request(sent, read_header(sent)).topic_data[0].partition_data[0].records == records


def test_tagged_fields_are_counted() -> None:
    """Their number would keep the broker busy, though nobody reads them."""
    many = HUGE + b"\1\0" * 50_000
    assert "entries in a Kafka request" in refused(DELETE_GROUPS, 2, b"\1" + many)
    start = struct.pack(">hhih", DELETE_GROUPS, 2, 7, -1)
    sent = memoryview(bytearray(start + many + b"\1\0"))
    with pytest.raises(ProtocolViolation, match="entries in a Kafka request"):
        decode_request(sent, read_header(sent))


def test_an_array_is_null_only_where_the_schema_allows_it() -> None:
    null = struct.pack(">i", -1)
    sent = frame(METADATA, 1, null)
    assert decode_request(sent, read_header(sent)).topics is None
    assert refused(METADATA, 0, null) == "an array of -1 entries in a Kafka request"
    assert refused(METADATA, 1, struct.pack(">i", -2)) == "an array of -2 entries in a Kafka request"
    assert refused(DELETE_GROUPS, 2, b"\0\0") == "an array of -1 entries in a Kafka request"


def test_damaged_frames_are_refused_and_are_no_bugs() -> None:
    """`python -m tests.attack` sends many more to a broker."""
    read = 0
    for sent in islice(damaged_frames(Random(1)), FRAMES):
        try:
            KafkaProtocol(NoTopics(), SessionRoom(0), all_operations).ask(memoryview(bytearray(sent[4:])))
            read += 1
        except ProtocolViolation:
            continue
    assert FRAMES // 10 < read < FRAMES // 2


def test_no_tagged_field_of_a_request_is_an_array() -> None:
    """A walk steps over them by their size."""
    assert {schema: found for schema in schemas() if (found := arrays_in_tags(schema))} == {}


def arrays_in_tags(schema: Any, *, is_tagged: bool = False) -> list[str]:
    found: list[str] = []
    for field in fields(schema):
        here = is_tagged or "tag" in field.metadata
        for kind in (field.type, *get_args(field.type)):
            if get_origin(kind) is tuple:
                found += [field.name] if here else []
                kind = get_args(kind)[0]
            if hasattr(kind, "__dataclass_fields__"):
                found += arrays_in_tags(kind, is_tagged=here)
    return found
