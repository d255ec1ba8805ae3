"""Frames: every message there and back, and what strangers send."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

import attrs
import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.protocol import codec
from fencepost.protocol import messages as m
from fencepost.protocol.batches import Buffer
from fencepost.protocol.errors import ErrorCode, ProtocolViolation
from fencepost.protocol.frames import (
    FRAME_SIZE_MAX,
    REQUEST_ARRAY_LENGTH_MAX,
    REQUEST_HEADER_MAX,
    FrameReader,
    FrameTooLarge,
    ReplyFrame,
    UnsupportedVersion,
    decode_reply,
    decode_reply_of,
    decode_request,
    encode_reply,
    encode_request,
)
from fencepost.protocol.terms import NO_TOPIC_ID, CoordinatorType
from tests.protocol.strategies import values_of

each_api = pytest.mark.parametrize("api", m.APIS, ids=lambda api: api.name)
few = settings(max_examples=15)  # for each of forty APIs
correlation_ids = st.integers(0, 2**31 - 1)

NONE: list[Any] = []  # no fields
END_TXN = m.API_BY_KEY[26]


def joined(pieces: list[Buffer]) -> bytes:
    return b"".join(pieces)


def after_length(pieces: list[Buffer]) -> bytes:
    """A frame as FrameReader hands it out."""
    return joined(pieces)[4:]


def frame(header: Any, payload: bytes = b"") -> bytes:
    """A frame around any header: bytes as they are, else packed."""
    packed = header if isinstance(header, bytes) else msgpack.packb(header)
    return struct.pack(">I", len(packed)) + packed + payload


@each_api
@few
@given(data=st.data())
def test_a_request_comes_back_as_it_was_sent(api: m.Api, data: st.DataObject) -> None:
    request = data.draw(values_of(api.request))
    correlation_id = data.draw(correlation_ids)
    got = decode_request(after_length(encode_request(request, correlation_id=correlation_id, client_id="me")))
    assert got.request == request
    assert (got.correlation_id, got.version, got.client_id) == (correlation_id, api.maximum, "me")
    older = decode_request(after_length(encode_request(request, correlation_id=1, version=api.minimum)))
    assert (older.request, older.version) == (request, api.minimum)


@each_api
@few
@given(data=st.data())
def test_a_reply_comes_back_as_it_was_sent(api: m.Api, data: st.DataObject) -> None:
    body = data.draw(values_of(api.reply))
    error = data.draw(st.sampled_from(ErrorCode))
    reply = ReplyFrame(data.draw(correlation_ids), error=error, body=body)
    sent = after_length(encode_reply(reply))
    assert decode_reply(sent, api) == reply


def test_a_reply_that_is_an_error_needs_no_body() -> None:
    reply = ReplyFrame(7, error=ErrorCode.NOT_COORDINATOR, body=None)
    assert decode_reply(after_length(encode_reply(reply)), END_TXN) == reply
    with pytest.raises(ProtocolViolation, match="neither an error"):
        decode_reply(frame([7, 0, None]), END_TXN)


def test_record_batches_are_neither_copied_on_the_way_out_nor_on_the_way_in() -> None:
    records = bytearray(b"batch" * 100)
    request = m.Produce(
        transactional_id=None,
        acks=-1,
        timeout_ms=1,
        partitions=(m.ProducePartition(topic="t", topic_id=NO_TOPIC_ID, partition=0, records=records),),
    )
    pieces = encode_request(request, correlation_id=1)
    assert pieces[1] is records
    received = bytearray(after_length(pieces))
    got = decode_request(received).request
    assert isinstance(got, m.Produce)
    received[-1] = 0
    assert bytes(got.partitions[0].records)[-1] == 0


@pytest.mark.parametrize(
    ("header", "because"),
    [
        pytest.param(b"\xc1", "not msgpack", id="a byte that msgpack never uses"),
        pytest.param([], "not an array of 5", id="no fields"),
        pytest.param([26, 5, 1, "", NONE, 0], "not an array of 5", id="a field too many"),
        pytest.param({}, "not msgpack|not an array", id="a map"),
        pytest.param(b"\x81\x90\x00", "not msgpack", id="a map with an array as key"),
        pytest.param(b"\x95\x1a\x05\x01\xa0\x81\x90\x00", "not msgpack", id="such a map as the body"),
        pytest.param(b"\xd6\xff\x00\x00\x00\x00", "not", id="a timestamp"),
        pytest.param(b"\xc7\x03\xff\x00\x00\x00", "not msgpack", id="a timestamp of three bytes"),
        pytest.param([26, 5, -1, "", NONE], "correlation id", id="a negative correlation id"),
        pytest.param([26, 5, True, "", NONE], "correlation id", id="true as correlation id"),
        pytest.param([26, 5, 2**31, "", NONE], "correlation id", id="a correlation id of 32 bits"),
        pytest.param([26, 5, 1, None, NONE], "client id", id="no client id"),
        pytest.param([26, 5, 1, "x" * 256, NONE], "client id", id="a long client id"),
        pytest.param([True, 5, 1, "", NONE], "integers", id="true as API key"),
        pytest.param([26, 5.0, 1, "", NONE], "integers", id="a version of 5.0"),
        pytest.param([26, 5, 1, "", None], "EndTxn has 4 fields", id="no body"),
        pytest.param([26, 5, 1, "", ["t", 1, 2]], "EndTxn has 4 fields", id="a field of the body missing"),
        pytest.param([26, 5, 1, "", ["t", 1, 2, 2]], "TransactionResult", id="a result that is neither"),
        pytest.param([26, 5, 1, "", ["t", 1, 2, True]], "TransactionResult", id="true as result"),
        pytest.param([26, 5, 1, "", ["t", 1, 2**15, 1]], "16 bits", id="an epoch of 17 bits"),
        pytest.param([26, 5, 1, "", ["t", 2**63, 0, 1]], "64 bits", id="a producer id of 65 bits"),
        pytest.param([26, 5, 1, "", [b"t", 1, 0, 1]], "string", id="bytes for a string"),
        pytest.param([10, 3, 1, "", [0, "x" * 32_768]], "string", id="a string of 32,768 bytes"),
        pytest.param([10, 3, 1, "", [0, "表" * 10_923]], "string", id="the same in 10,923 characters"),
        pytest.param(
            b"\x95\x0a\x03\x01\xa0\x92\x00\xa2\xff\xfe", "not msgpack", id="a string that is not UTF-8"
        ),
        pytest.param([18, 3, 1, "", 0], "ApiVersions has 0 fields", id="a number for a body"),
    ],
)
def test_a_malformed_request_is_refused_with_a_reason(header: Any, because: str) -> None:
    with pytest.raises(ProtocolViolation, match=because):
        decode_request(frame(header))


def test_the_longest_string_still_passes() -> None:
    request = m.FindCoordinator(kind=CoordinatorType.GROUP, key="表" * 10_922 + "x")
    assert decode_request(after_length(encode_request(request, correlation_id=1))).request == request


@pytest.mark.parametrize("depth", [100, 900, 980, 1000, 1020])
def test_nesting_is_refused_and_never_overflows_the_stack(depth: int) -> None:
    nested = b"\x95\x12\x03\x01\xa0" + b"\x91" * depth + b"\xc0"
    with pytest.raises(ProtocolViolation):
        decode_request(frame(nested))


def test_a_reason_stays_short_whatever_was_sent() -> None:
    for strange in ("x" * 10**6, b"x" * 10**6, [[0] * 1000] * 1000, 2**64 - 1, 1e300):
        with pytest.raises(ProtocolViolation) as caught:
            decode_request(frame([18, 3, 1, "", strange]))
        assert len(str(caught.value)) < 200


@pytest.mark.parametrize("error", [True, 1.0, None, "1", [], 9999])
def test_an_error_code_is_one_of_the_table_as_an_integer(error: Any) -> None:
    with pytest.raises(ProtocolViolation, match="ErrorCode"):
        decode_reply(frame([1, error, None]), END_TXN)


def test_a_version_that_is_not_spoken_can_be_answered() -> None:
    for api_key, version in ((0, 2), (26, 6), (9999, 0)):
        with pytest.raises(UnsupportedVersion) as caught:
            decode_request(frame([api_key, version, 12, "", []]))
        assert caught.value.correlation_id == 12


@pytest.mark.parametrize("data", [b"", b"\0\0\0", b"\0\0\0\x05\x90", b"\xff\xff\xff\xff"])
def test_a_header_longer_than_its_frame_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        decode_request(data)
    with pytest.raises(ProtocolViolation):
        decode_reply_of(data, lambda _: pytest.fail("an id was read"))


@pytest.mark.parametrize(("length", "carried"), [(5, 4), (4, 5), (2**40, 5), (-1, 5)])
def test_lengths_of_records_match_the_bytes_that_follow(length: int, carried: int) -> None:
    header = [0, 12, 1, "", [None, -1, 1, [["t", 0, length]]]]
    with pytest.raises(ProtocolViolation):
        decode_request(frame(header, b"x" * carried))


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=20,
)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_a_violation(data: bytes) -> None:
    for stranger in (data, frame(data)):
        try:
            decode_request(stranger)
        except ProtocolViolation:
            continue


@each_api
@few
@given(body=anything, error=anything, payload=st.binary(max_size=8))
def test_any_header_is_a_message_or_a_violation(api: m.Api, body: Any, error: Any, payload: bytes) -> None:
    try:
        got = decode_request(frame([api.key, api.maximum, 1, "", body], payload))
    except ProtocolViolation:
        pass
    else:
        assert isinstance(got.request, api.request)
    for code in (0, error):
        try:
            reply = decode_reply(frame([1, code, body], payload), api)
        except ProtocolViolation:
            continue
        assert reply.body is None or isinstance(reply.body, api.reply)


@each_api
@few
@given(data=st.data())
def test_a_message_with_one_byte_changed_is_a_message_or_a_violation(api: m.Api, data: st.DataObject) -> None:
    sent = after_length(encode_request(data.draw(values_of(api.request)), correlation_id=1))
    body = ReplyFrame(1, error=ErrorCode.NONE, body=data.draw(values_of(api.reply)))
    answered = after_length(encode_reply(body))
    for original in (sent, answered):
        damaged = bytearray(original)
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
        try:
            _ = decode_request(damaged) if original is sent else decode_reply(damaged, api)
        except ProtocolViolation:
            continue


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(c, len(data)) for c in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@given(
    bodies=st.lists(st.binary(min_size=4, max_size=50), max_size=5),
    cuts=st.lists(st.integers(0, 300), max_size=10),
)
def test_frames_come_out_whole_however_they_are_cut(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(struct.pack(">I", len(body)) + body for body in bodies)
    reader = FrameReader()
    received: list[memoryview] = []
    for chunk in cut(stream, cuts):
        reused = bytearray(chunk)
        received += reader.feed(reused)
        reused[:] = bytes(len(reused))  # the caller may reuse its buffer at once
    assert [bytes(got) for got in received] == bodies


@given(data=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300), max_size=10))
def test_any_stream_gives_frames_or_a_violation(data: bytes, cuts: list[int]) -> None:
    reader = FrameReader(frame_size_max=64)
    try:
        for chunk in cut(data, cuts):
            for got in reader.feed(chunk):
                assert 4 <= len(got) <= 64
    except ProtocolViolation:
        return
    assert len(data) < 4 or struct.unpack_from(">I", data)[0] <= 64


@pytest.mark.parametrize("length", [0, 3, FRAME_SIZE_MAX + 1, 2**32 - 1])
def test_a_length_out_of_bounds_is_refused_before_a_byte_of_it_is_awaited(length: int) -> None:
    with pytest.raises(ProtocolViolation, match="a frame of"):
        FrameReader().feed(struct.pack(">I", length))


def test_a_frame_larger_than_anybody_accepts_is_never_built() -> None:
    records = memoryview(bytes(1)).cast("B")
    huge = m.ProducePartition(topic="t", topic_id=NO_TOPIC_ID, partition=0, records=bytes(FRAME_SIZE_MAX))
    request = m.Produce(transactional_id=None, acks=-1, timeout_ms=1, partitions=(huge,))
    with pytest.raises(FrameTooLarge, match="the limit is"):
        encode_request(request, correlation_id=1)
    small = attrs.evolve(request, partitions=(attrs.evolve(huge, records=records),))
    assert len(joined(encode_request(small, correlation_id=1))) > 8, "more than the two lengths"


def test_what_msgpack_must_decode_is_bounded_apart_from_the_records() -> None:
    """20 MB of empty arrays would take 1.4 GB and seconds of everybody's time."""
    many = m.DescribeGroups(groups=("g" * 1000,) * (REQUEST_HEADER_MAX // 1000))
    with pytest.raises(FrameTooLarge, match="name fewer"):
        encode_request(many, correlation_id=1)
    with pytest.raises(ProtocolViolation, match=f"the limit is {REQUEST_HEADER_MAX}"):
        decode_request(frame(bytes(REQUEST_HEADER_MAX + 1)))


def test_arrays_are_bounded_by_the_frame_that_holds_them() -> None:
    """Nested array headers promise a million entries each; what they cost must not."""
    promise = struct.pack(">BI", 0xDD, codec.ARRAY_LENGTH_MAX)
    with pytest.raises(ProtocolViolation, match="not msgpack"):
        decode_request(frame(promise * 500))


def test_an_array_of_a_request_that_is_far_too_long_is_not_decoded() -> None:
    """350,000 partitions fit into the header of a Produce, and would take a second and 90 MB."""
    part = m.ProducePartition(topic="", topic_id=NO_TOPIC_ID, partition=0, records=b"")
    for count, is_decoded in ((REQUEST_ARRAY_LENGTH_MAX, True), (REQUEST_ARRAY_LENGTH_MAX + 1, False)):
        request = m.Produce(transactional_id=None, acks=1, timeout_ms=1, partitions=(part,) * count)
        data = after_length(encode_request(request, correlation_id=1))
        if is_decoded:
            assert decode_request(data).request == request
        else:
            with pytest.raises(ProtocolViolation, match="max_array_len"):
                decode_request(data)


def test_a_request_of_nothing_but_arrays_is_not_decoded_to_its_end() -> None:
    inner = struct.pack(">BH", 0xDC, 30_000) + b"\x90" * 30_000
    body = struct.pack(">BH", 0xDC, 30) + inner * 30
    assert len(body) < REQUEST_HEADER_MAX
    with pytest.raises(ProtocolViolation, match="more than 65536 arrays"):
        decode_request(frame(b"\x95\x03\x0c\x01\xa0" + body))


def test_the_sizes_of_a_frame_are_known_before_it_arrives() -> None:
    reader = FrameReader()
    assert reader.announced() is None
    reader.add(struct.pack(">IIB", 20, 7, 1))
    assert reader.announced() == (24, 7)
    assert (reader.arrived, reader.take()) == (9, None)
    reader.add(bytes(15) + struct.pack(">II", 8, 0))
    first = reader.take()
    assert first is not None
    assert (len(first), reader.arrived, reader.announced()) == (20, 8, (12, 0))
    reader.add(bytes(4))
    assert len(first) == 20, "a frame that was taken stays"
    assert reader.take() == struct.pack(">II", 0, 0)
    for lengths in ((3,), (FRAME_SIZE_MAX + 1,), (20, REQUEST_HEADER_MAX + 1)):
        bad = FrameReader()
        bad.add(struct.pack(f">{len(lengths)}I", *lengths))
        with pytest.raises(ProtocolViolation, match="the limit is"):
            bad.announced()


def test_a_tuple_that_keeps_its_encoding_is_sent_like_any_other() -> None:
    parts = tuple(m.PartitionMetadata(partition=n, leader_id=1, leader_epoch=n) for n in range(5))
    kept = codec.Kept(parts)
    for _ in range(2):
        for topic in (parts, kept):
            body = m.TopicMetadata(topic="t", error=ErrorCode.NONE, is_internal=False, partitions=topic)
            assert codec.encode(body, []) == ["t", 0, False, [[n, 1, n] for n in range(5)], bytes(16)]
    assert kept.encoded is not None
