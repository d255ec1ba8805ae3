"""Records of groups of the consumer protocol, byte for byte as Apache Kafka's own classes write them, and
back.
"""

from __future__ import annotations

from typing import Final

import pytest

from fencepost.protocol.batches import read_header
from fencepost.protocol.consumer_group_log import (
    AssignmentState,
    ConsumerEntry,
    ConsumerRecordKey,
    ConsumerRecordKind,
    CurrentAssignment,
    GroupEpoch,
    ResolvedRegex,
    Subscription,
    TargetEpoch,
    TopicIdPartition,
    consumer_key,
    consumer_value,
)
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.kafka_records import KafkaRecord, build_kafka_batch
from fencepost.protocol.offsets_log import GroupBatch, OffsetKey, group_batch, read_group_batch

NOON: Final = 1_700_000_000_000
KIND = ConsumerRecordKind
TOPIC: Final = bytes.fromhex("01020304050607081112131415161718")


# Partitions 0 and 2, which the member has had since epochs 6 and 3; and 1, since epoch 4.
ASSIGNED_0_2: Final = TOPIC.hex() + "030000000000000002" + "01000903" + "0000000600000003"
REVOKING_1: Final = TOPIC.hex() + "0200000001" + "01000502" + "00000004"


def part(number: int) -> TopicIdPartition:
    return TopicIdPartition(TOPIC, number)


# Written by the generated classes of Apache Kafka 4.3.1 (org.apache.kafka.coordinator.group.generated).
WRITTEN: Final[list[tuple[ConsumerEntry, str, str]]] = [
    (
        (ConsumerRecordKey(KIND.GROUP, "g"), GroupEpoch(7, metadata_hash=99)),
        "0003000167",
        "0000000000070100080000000000000063",
    ),
    ((ConsumerRecordKey(KIND.GROUP, "g"), GroupEpoch(7)), "0003000167", "00000000000700"),
    (
        (
            ConsumerRecordKey(KIND.MEMBER, "g", "m"),
            Subscription(
                instance_id="i", rack_id=None, client_id="c", client_host="/h", topics=("a", "b"),
                regex="x.*", rebalance_timeout_ms=5_000, assignor="range",
            ),
        ),
        "000500016700016d",
        "00000269000263032f68030261026204782e2a000013880672616e676500",
    ),
    (
        (ConsumerRecordKey(KIND.TARGET, "g"), TargetEpoch(6, computed_ms=1_234)),
        "0006000167",
        "00000000000601000800000000000004d2",
    ),
    (
        (ConsumerRecordKey(KIND.TARGET_MEMBER, "g", "m"), frozenset({part(0), part(2)})),
        "000700016700016d",
        "000002010203040506070811121314151617180300000000000000020000",
    ),
    (
        (
            ConsumerRecordKey(KIND.CURRENT_ASSIGNMENT, "g", "m"),
            CurrentAssignment(
                epoch=6, previous_epoch=5, state=AssignmentState.UNREVOKED_PARTITIONS,
                assigned={part(0): 6, part(2): 3}, revoking={part(1): 4},
            ),
        ),
        "000800016700016d",
        "0000" + "00000006" + "00000005" + "01" + "02" + ASSIGNED_0_2 + "02" + REVOKING_1 + "00",
    ),
    (
        (
            ConsumerRecordKey(KIND.REGULAR_EXPRESSION, "g", "x.*"),
            ResolvedRegex(topics=("xa",), version=7, resolved_ms=1_234),
        ),
        "00100001670003782e2a",
        "000002037861000000000000000700000000000004d200",
    ),
]  # fmt: skip


def read(key: bytes, value: bytes | None) -> list[ConsumerEntry]:
    batch = build_kafka_batch([KafkaRecord(key, value)], timestamp=NOON)
    return list(read_group_batch(batch, read_header(batch)).consumers)


@pytest.mark.parametrize(("entry", "key", "value"), WRITTEN, ids=lambda each: str(each)[:40])
def test_records_are_kafkas(entry: ConsumerEntry, key: str, value: str) -> None:
    name, record = entry
    assert record is not None
    assert consumer_key(name).hex() == key
    assert consumer_value(record).hex() == value
    assert read(bytes.fromhex(key), bytes.fromhex(value)) == [entry]
    assert read(bytes.fromhex(key), None) == [(name, None)]


def test_partitions_without_epochs_have_that_of_the_member() -> None:
    """Before KIP-1251 there was none for each partition."""
    value = "00000000000600000005000201020304050607081112131415161718020000000100" + "01" + "00"
    ((_, record),) = read(bytes.fromhex("000800016700016d"), bytes.fromhex(value))
    assert record == CurrentAssignment(epoch=6, previous_epoch=5, assigned={part(1): 6})


def test_offsets_and_groups_of_both_protocols_share_a_batch() -> None:
    entries = tuple(entry for entry, _, _ in WRITTEN)
    mixed = GroupBatch(((OffsetKey("g", "t", 0), None),), (("classic", None),), entries)
    batch = group_batch(mixed, timestamp=NOON)
    assert read_group_batch(batch, read_header(batch)) == mixed


def test_partition_metadata_of_older_brokers_is_skipped() -> None:
    assert read(bytes.fromhex("0004000167"), b"anything") == []


@pytest.mark.parametrize("key", [key for _, key, _ in WRITTEN])
def test_damaged_values_are_refused(key: str) -> None:
    for value in (b"", b"\0\x01", b"\0\0", b"\0\0\xff\xff", bytes(200)):
        with pytest.raises(ProtocolViolation):
            read(bytes.fromhex(key), value)


def test_a_state_that_is_not_known_is_refused() -> None:
    value = bytes.fromhex("0000000000060000000509010100")
    with pytest.raises(ProtocolViolation, match="state 9 is unknown"):
        read(bytes.fromhex("000800016700016d"), value)


def test_partitions_and_epochs_must_be_as_many() -> None:
    value = bytes.fromhex("000000000006000000050002" + TOPIC.hex() + "0200000001" + "01000901" + "01" + "00")
    with pytest.raises(ProtocolViolation):
        read(bytes.fromhex("000800016700016d"), value)
