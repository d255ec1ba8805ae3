"""Records of internal topics in the versions that brokers of Apache Kafka wrote: from 0, before leader epochs
and static members, to the flexible ones of 4.3."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from fencepost.protocol.batches import build_batch, control_type, marker_in, read_header
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.kafka_records import KafkaRecord, build_kafka_batch
from fencepost.protocol.offsets_log import (
    GroupRecord,
    MemberRecord,
    OffsetKey,
    OffsetRecord,
    read_group_batch,
    read_offsets,
)
from tests.protocol.batches_drawn import encode_kafka_records

OFFSET_KEY = b"\0\1" + b"\0\1g" + b"\0\1t" + b"\0\0\0\7"
GROUP_KEY = b"\0\2" + b"\0\1g"
OFFSET, TIME, EPOCH = struct.pack(">q", 42), struct.pack(">q", 1_000), struct.pack(">i", 5)
NO_TIME = struct.pack(">q", -1)
TOPIC_ID_TAG = b"\1\0\x10" + bytes(range(16))


def committed(value: bytes) -> OffsetRecord | None:
    batch = build_kafka_batch([KafkaRecord(OFFSET_KEY, value)], timestamp=1)
    ((key, record),) = read_offsets(batch, read_header(batch))
    assert key == OffsetKey("g", "t", 7)
    return record


@pytest.mark.parametrize(
    ("value", "more"),
    [
        (b"\0\0" + OFFSET + b"\0\4meta" + TIME, {}),
        (b"\0\1" + OFFSET + b"\0\4meta" + TIME + TIME, {"expire_ms": 1_000}),
        (b"\0\1" + OFFSET + b"\0\4meta" + TIME + NO_TIME, {}),
        (b"\0\2" + OFFSET + b"\0\4meta" + TIME, {}),
        (b"\0\3" + OFFSET + EPOCH + b"\0\4meta" + TIME, {"leader_epoch": 5}),
        (b"\0\4" + OFFSET + EPOCH + b"\5meta" + TIME + b"\0", {"leader_epoch": 5}),
        (
            b"\0\4" + OFFSET + EPOCH + b"\5meta" + TIME + TOPIC_ID_TAG,
            {"leader_epoch": 5, "topic_id": bytes(range(16))},
        ),
    ],
    ids=["0", "1", "1 without an end", "2", "3", "4", "4 with a topic id"],
)
def test_a_committed_offset(value: bytes, more: dict[str, Any]) -> None:
    wanted: dict[str, Any] = {"leader_epoch": -1, "metadata": "meta", "commit_ms": 1_000, **more}
    assert committed(value) == OffsetRecord(42, **wanted)
    for size in range(2, len(value)):
        with pytest.raises(ProtocolViolation):
            committed(value[:size])


@pytest.mark.parametrize("version", [-1, 5])
def test_an_unknown_version_of_an_offset(version: int) -> None:
    with pytest.raises(ProtocolViolation, match=f"version {version} is unknown"):
        committed(struct.pack(">h", version) + OFFSET)


@pytest.mark.parametrize("version", range(5))
def test_a_group(version: int) -> None:
    def text(content: str) -> bytes:
        size = len(content)
        return (bytes((size + 1,)) if version == 4 else struct.pack(">h", size)) + content.encode()

    def data(content: bytes) -> bytes:
        size = len(content)
        return (bytes((size + 1,)) if version == 4 else struct.pack(">i", size)) + content

    end = b"\0" if version == 4 else b""
    value = struct.pack(">h", version) + text("consumer") + EPOCH + text("range") + text("m")
    value += TIME if version >= 2 else b""
    value += b"\2" if version == 4 else b"\0\0\0\1"
    value += text("m") + (text("i") if version >= 3 else b"") + text("c") + text("h")
    value += (struct.pack(">i", 300) if version >= 1 else b"") + struct.pack(">i", 30)
    value += data(b"s") + data(b"as") + end + end
    batch = build_kafka_batch([KafkaRecord(GROUP_KEY, value)], timestamp=1)
    ((group_id, record),) = read_group_batch(batch, read_header(batch)).groups
    member = MemberRecord(
        member_id="m",
        group_instance_id="i" if version >= 3 else None,
        client_id="c",
        client_host="h",
        rebalance_timeout_ms=300 if version >= 1 else 30,
        session_timeout_ms=30,
        subscription=b"s",
        assignment=b"as",
    )
    assert (group_id, record) == (
        "g",
        GroupRecord(
            protocol_type="consumer",
            generation_id=5,
            protocol_name="range",
            leader="m",
            state_since_ms=1_000 if version >= 2 else -1,
            members=(member,),
        ),
    )


def control(key: bytes, value: bytes = b"\0\0") -> bytearray:
    return build_batch(encode_kafka_records([KafkaRecord(key, value)]), attributes=0x20, base_timestamp=1)


@pytest.mark.parametrize("kind", range(2, 7))
def test_a_control_record_of_another_kind_is_no_marker(kind: int) -> None:
    batch = control(struct.pack(">hh", 0, kind))
    header = read_header(batch)
    assert (control_type(batch, header), marker_in(batch, header)) == (kind, None)


def test_a_control_batch_that_compaction_emptied_has_no_type() -> None:
    batch = build_batch(b"", attributes=0x20, record_count=0, base_timestamp=1)
    header = read_header(batch)
    assert (control_type(batch, header), marker_in(batch, header)) == (None, None)


@pytest.mark.parametrize("key", [b"", b"\0\0\0", struct.pack(">hh", 0, 7), struct.pack(">hh", 0, -1)])
def test_a_control_record_without_a_known_type(key: bytes) -> None:
    batch = control(key)
    with pytest.raises(ProtocolViolation, match="a control record"):
        control_type(batch, read_header(batch))
