"""Records of groups, byte for byte as Apache Kafka's own classes write them, and back."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.protocol.batches import read_header
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.kafka_records import KafkaRecord, build_kafka_batch
from fencepost.protocol.offsets_log import (
    GroupBatch,
    GroupEntry,
    GroupRecord,
    MemberRecord,
    OffsetKey,
    OffsetRecord,
    group_batch,
    read_group_batch,
    read_offsets,
)
from fencepost.protocol.records import read_columns
from tests.protocol import kafka_bytes
from tests.protocol.strategies import int32s, int64s, words

NOON = 1_700_000_000_000
STABLE = GroupRecord(
    protocol_type="consumer",
    generation_id=5,
    protocol_name="range",
    leader="m-1",
    state_since_ms=1_700_000_000_123,
    members=(
        MemberRecord(
            member_id="m-1",
            group_instance_id="表",
            client_id="",
            client_host="",
            rebalance_timeout_ms=300_000,
            session_timeout_ms=45_000,
            subscription=b"\1\2\3",
            assignment=b"\x09",
        ),
        MemberRecord(
            member_id="m-2",
            group_instance_id=None,
            client_id="",
            client_host="",
            rebalance_timeout_ms=60_000,
            session_timeout_ms=6_000,
            subscription=b"",
            assignment=b"",
        ),
    ),
)
EMPTY = GroupRecord(
    protocol_type="", generation_id=0, protocol_name=None, leader=None, state_since_ms=NOON, members=()
)


def only_record(batch: bytearray) -> tuple[bytes, bytes]:
    columns = read_columns(batch, read_header(batch))
    assert columns.keys is not None
    (key,), (value,) = columns.keys, columns.values
    assert key is not None
    assert value is not None
    return bytes(key), bytes(value)


def written(record: GroupRecord) -> bytearray:
    return group_batch(GroupBatch(groups=(("readers", record),)), timestamp=NOON)


def groups_in(batch: bytearray) -> list[GroupEntry]:
    return list(read_group_batch(batch, read_header(batch)).groups)


@pytest.mark.parametrize(
    ("record", "value"), [(STABLE, kafka_bytes.STABLE_GROUP), (EMPTY, kafka_bytes.EMPTY_GROUP)]
)
def test_a_group_is_written_as_kafka_writes_it(record: GroupRecord, value: bytes) -> None:
    batch = written(record)
    assert only_record(batch) == (kafka_bytes.GROUP_KEY, value)
    assert groups_in(batch) == [("readers", record)]


def test_the_client_of_a_member_is_written_and_read() -> None:
    named = kafka_bytes.STABLE_GROUP.replace(
        b"m-1\x00\x03\xe8\xa1\xa8\0\0\0\0", b"m-1\x00\x03\xe8\xa1\xa8\0\1c\0\2/h"
    )
    first, second = STABLE.members
    record = attrs.evolve(STABLE, members=(attrs.evolve(first, client_id="c", client_host="/h"), second))
    assert only_record(written(record)) == (kafka_bytes.GROUP_KEY, named)
    batch = build_kafka_batch([KafkaRecord(kafka_bytes.GROUP_KEY, named)], timestamp=NOON)
    assert groups_in(batch) == [("readers", record)]


def test_a_group_is_forgotten_with_its_offsets() -> None:
    key = OffsetKey("readers", "orders", 3)
    entries = GroupBatch(offsets=((key, None),), groups=(("readers", None),))
    batch = group_batch(entries, timestamp=NOON)
    assert read_group_batch(batch, read_header(batch)) == entries


def test_offsets_are_no_groups_and_groups_no_offsets() -> None:
    offset = OffsetRecord(5, leader_epoch=-1, metadata="", commit_ms=NOON)
    entries = GroupBatch(offsets=((OffsetKey("readers", "orders", 3), offset),))
    offsets = group_batch(entries, timestamp=NOON)
    assert read_group_batch(offsets, read_header(offsets)) == entries
    group = written(STABLE)
    assert read_offsets(group, read_header(group)) == []


def test_a_record_of_another_version_or_too_short_is_refused() -> None:
    value = kafka_bytes.STABLE_GROUP
    for wrong in (b"\0\4" + value[2:], value[:-1], value + b"\0"):
        batch = build_kafka_batch([KafkaRecord(kafka_bytes.GROUP_KEY, wrong)], timestamp=NOON)
        with pytest.raises(ProtocolViolation):
            read_group_batch(batch, read_header(batch))


members = st.builds(
    MemberRecord,
    member_id=words,
    group_instance_id=st.none() | words,
    client_id=words,
    client_host=words,
    rebalance_timeout_ms=int32s,
    session_timeout_ms=int32s,
    subscription=st.binary(max_size=20),
    assignment=st.binary(max_size=20),
)
records = st.builds(
    GroupRecord,
    protocol_type=words,
    generation_id=int32s,
    protocol_name=st.none() | words,
    leader=st.none() | words,
    state_since_ms=int64s,
    members=st.lists(members, max_size=3).map(tuple),
)


@given(words, records)
def test_what_is_written_is_read(group_id: str, record: GroupRecord) -> None:
    batch = group_batch(GroupBatch(groups=((group_id, record),)), timestamp=NOON)
    assert groups_in(batch) == [(group_id, record)]
    other = attrs.evolve(record, generation_id=record.generation_id ^ 1)
    assert groups_in(batch) != [(group_id, other)]
