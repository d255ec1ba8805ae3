"""What the internal topics hold, byte for byte in Kafka's schemas: transactions, offsets, cluster metadata.

Rule: Kafka's tools read from these records what was meant; a key of a kind not kept here is passed over.
Sources: TransactionLogKey/Value.json, OffsetCommitKey/Value.json; cluster metadata has a file of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

import attrs

from fencepost.protocol.batches import BatchHeader, Buffer
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.kafka_records import KafkaRecord, build_kafka_batch
from fencepost.protocol.primitives import (
    INT16,
    INT32,
    INT64,
    Fields,
    put_compact_int32s,
    put_compact_string,
    put_string,
    put_tagged_fields,
    put_unsigned_varint,
)
from fencepost.protocol.records import read_keys_and_values
from fencepost.protocol.stored_cluster import (
    BrokerRegistered,
    ClusterRecord,
    LeaderChanged,
    PartitionCreated,
    ProducerIdsAllocated,
    TopicConfigured,
    TopicCreated,
    TopicRemoved,
    cluster_batch,
    read_cluster_records,
)
from fencepost.protocol.terms import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition, TransactionState

__all__ = [
    "BrokerRegistered",
    "ClusterRecord",
    "LeaderChanged",
    "OffsetKey",
    "OffsetRecord",
    "PartitionCreated",
    "ProducerIdsAllocated",
    "TopicConfigured",
    "TopicCreated",
    "TopicRemoved",
    "TransactionRecord",
    "cluster_batch",
    "offset_tombstone",
    "offsets_batch",
    "read_cluster_records",
    "read_offsets",
    "read_transactions",
    "transaction_batch",
]

_TRANSACTION_KEY_VERSION: Final = 0
_TRANSACTION_VALUE_VERSION: Final = 1
_TAG_PREVIOUS_PRODUCER_ID: Final = 0
_TAG_NEXT_PRODUCER_ID: Final = 1
_TAG_CLIENT_VERSION: Final = 2


class TransactionRecord(NamedTuple):
    """The state of one transactional id (TransactionLogValue). Times in ms; -1 stands for none everywhere.

    A tuple, as each transaction changes one three times.
    """

    producer_id: int
    previous_producer_id: int
    next_producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: tuple[TopicPartition, ...]
    """Sorted; empty in EMPTY, where Kafka stores null."""
    update_ms: int
    start_ms: int
    client_version: int
    """The transaction version that the client speaks (KIP-890)."""


def transaction_batch(
    transactional_id: str, record: TransactionRecord | None, *, timestamp: int
) -> bytearray:
    """One batch that says where `transactional_id` stands; None is the tombstone that forgets it."""
    value = None if record is None else _transaction_value(record)
    return build_kafka_batch([KafkaRecord(_transaction_key(transactional_id), value)], timestamp=timestamp)


# Three records are written per transaction, mostly with the same id and partitions: what does not change is
# encoded once.
_REMEMBERED: Final = 1024


@lru_cache(_REMEMBERED)
def _transaction_key(transactional_id: str) -> bytes:
    key = bytearray(INT16.pack(_TRANSACTION_KEY_VERSION))
    put_string(key, transactional_id)
    return bytes(key)


_TRANSACTION_START = struct.Struct(">hqhib")  # version, producer id and epoch, timeout, state
_TRANSACTION_TIMES = struct.Struct(">qq")  # last update, start


STATE_NUMBERS: Final = {state: state.value for state in TransactionState}
_EMPTY: Final = TransactionState.EMPTY


def _transaction_value(record: TransactionRecord) -> bytes:
    """TransactionLogValue version 1, the flexible one that transaction.version 1 and later write."""
    start = _TRANSACTION_START.pack(
        _TRANSACTION_VALUE_VERSION,
        record.producer_id,
        record.producer_epoch,
        record.timeout_ms,
        STATE_NUMBERS[record.state],
    )
    times = _TRANSACTION_TIMES.pack(record.update_ms, record.start_ms)
    tags = _tags(record.previous_producer_id, record.next_producer_id, record.client_version)
    return start + _partitions(record.partitions, record.state is _EMPTY) + times + tags


@lru_cache(_REMEMBERED)
def _tags(previous_producer_id: int, next_producer_id: int, client_version: int) -> bytes:
    tags: list[tuple[int, bytes]] = []
    if previous_producer_id != NO_PRODUCER_ID:
        tags.append((_TAG_PREVIOUS_PRODUCER_ID, INT64.pack(previous_producer_id)))
    if next_producer_id != NO_PRODUCER_ID:
        tags.append((_TAG_NEXT_PRODUCER_ID, INT64.pack(next_producer_id)))
    if client_version:
        tags.append((_TAG_CLIENT_VERSION, INT16.pack(client_version)))
    out = bytearray()
    put_tagged_fields(out, tags)
    return bytes(out)


@lru_cache(_REMEMBERED)
def _partitions(partitions: tuple[TopicPartition, ...], is_empty: bool) -> bytes:
    out = bytearray()
    if is_empty:
        assert not partitions, "an empty transaction has no partitions"
        put_unsigned_varint(out, 0)  # null, which Kafka writes exactly in this state
        return bytes(out)
    topics = [(topic, tuple(p.partition for p in group)) for topic, group in _by_topic(partitions)]
    put_unsigned_varint(out, len(topics) + 1)
    for topic, numbers in topics:
        put_compact_string(out, topic)
        put_compact_int32s(out, numbers)
        put_tagged_fields(out, [])
    return bytes(out)


def _by_topic(partitions: tuple[TopicPartition, ...]) -> Iterator[tuple[str, Iterator[TopicPartition]]]:
    return groupby(sorted(partitions), key=attrgetter("topic"))


def read_transactions(batch: Buffer, header: BatchHeader) -> list[tuple[str, TransactionRecord | None]]:
    """What a batch of `__transaction_state` says, None for a tombstone; reads value versions 0 and 1."""
    found: list[tuple[str, TransactionRecord | None]] = []
    for key, value in _keys_and_values(batch, header):
        fields = Fields(key, name="transaction log key")
        if fields.int16() != _TRANSACTION_KEY_VERSION:
            continue
        transactional_id = fields.string()
        fields.finish()
        found.append((transactional_id, None if value is None else _read_transaction(value)))
    return found


def _read_transaction(value: bytes) -> TransactionRecord:
    fields = Fields(value, name="transaction log value")
    version, producer_id, producer_epoch, timeout_ms, number = fields.fixed(_TRANSACTION_START)
    if version not in (0, _TRANSACTION_VALUE_VERSION):
        fields.fail(f"version {version} is unknown")
    if number not in _STATES:
        fields.fail(f"state {number} is unknown")
    partitions = _read_partitions(fields, flexible=version > 0)
    if (partitions is None) != (_STATES[number] is TransactionState.EMPTY):
        fields.fail("partitions are null exactly in the state Empty")
    update_ms, start_ms = fields.fixed(_TRANSACTION_TIMES)
    tags = fields.tagged_fields() if version else {}
    fields.finish()
    return TransactionRecord(
        producer_id=producer_id,
        previous_producer_id=fields.tagged_int(
            tags, _TAG_PREVIOUS_PRODUCER_ID, INT64, default=NO_PRODUCER_ID
        ),
        next_producer_id=fields.tagged_int(tags, _TAG_NEXT_PRODUCER_ID, INT64, default=NO_PRODUCER_ID),
        producer_epoch=producer_epoch,
        timeout_ms=timeout_ms,
        state=_STATES[number],
        partitions=tuple(sorted(partitions or ())),
        update_ms=update_ms,
        start_ms=start_ms,
        client_version=fields.tagged_int(tags, _TAG_CLIENT_VERSION, INT16, default=0),
    )


_STATES: Final = {number: state for state, number in STATE_NUMBERS.items()}


def _read_partitions(fields: Fields, *, flexible: bool) -> list[TopicPartition] | None:
    length, text = fields.array_length, fields.string
    if flexible:
        length, text = fields.compact_array_length, fields.compact_string
    count = length()
    if count < 0:
        return None
    partitions: list[TopicPartition] = []
    for _ in range(count):
        topic = text()
        partitions += [TopicPartition(topic, number) for number in fields.int32s(length())]
        if flexible:
            fields.tagged_fields()
    return partitions


class OffsetKey(NamedTuple):
    """Whose offset of which partition (OffsetCommitKey)."""

    group_id: str
    topic: str
    partition: int


@attrs.frozen
class OffsetRecord:
    """A committed offset (OffsetCommitValue): where the group reads on, and when it said so (ms)."""

    offset: int
    leader_epoch: int = attrs.field(kw_only=True)
    metadata: str = attrs.field(kw_only=True)
    commit_ms: int = attrs.field(kw_only=True)


_OFFSET_KEY_VERSIONS: Final = (0, 1)  # both have the same layout; 2 and above are the groups' own records
_OFFSET_VALUE_VERSION: Final = 3
_OFFSET_START = struct.Struct(">hqi")  # version, offset, leader epoch


def offsets_batch(
    entries: Sequence[tuple[OffsetKey, OffsetRecord | None]],
    *,
    timestamp: int,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    transactional: bool = False,
) -> bytearray:
    """One batch of committed offsets, None for one that is forgotten; the producer's when transactional."""
    records = [KafkaRecord(_offset_key(key), record and _offset_value(record)) for key, record in entries]
    return build_kafka_batch(
        records,
        timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=transactional,
    )


def offset_tombstone(key: OffsetKey) -> KafkaRecord:
    """The record that forgets an offset."""
    return KafkaRecord(_offset_key(key), None)


def _offset_key(key: OffsetKey) -> bytes:
    out = bytearray(INT16.pack(_OFFSET_KEY_VERSIONS[-1]))
    put_string(out, key.group_id)
    put_string(out, key.topic)
    out += INT32.pack(key.partition)
    return bytes(out)


def _offset_value(record: OffsetRecord) -> bytes:
    out = bytearray(_OFFSET_START.pack(_OFFSET_VALUE_VERSION, record.offset, record.leader_epoch))
    put_string(out, record.metadata)
    out += INT64.pack(record.commit_ms)
    return bytes(out)


def read_offsets(batch: Buffer, header: BatchHeader) -> list[tuple[OffsetKey, OffsetRecord | None]]:
    """What a batch of `__consumer_offsets` says, None for a tombstone; records of groups are passed over."""
    found: list[tuple[OffsetKey, OffsetRecord | None]] = []
    for data, value in _keys_and_values(batch, header):
        fields = Fields(data, name="offset commit key")
        if fields.int16() not in _OFFSET_KEY_VERSIONS:
            continue
        key = OffsetKey(fields.string(), fields.string(), fields.int32())
        fields.finish()
        found.append((key, None if value is None else _read_offset(value)))
    return found


def _read_offset(value: bytes) -> OffsetRecord:
    fields = Fields(value, name="offset commit value")
    version, offset, leader_epoch = fields.fixed(_OFFSET_START)
    if version != _OFFSET_VALUE_VERSION:
        fields.fail(f"version {version} is unknown")
    metadata, commit_ms = fields.string(), fields.int64()
    fields.finish()
    return OffsetRecord(offset, leader_epoch=leader_epoch, metadata=metadata, commit_ms=commit_ms)


def _keys_and_values(batch: Buffer, header: BatchHeader) -> Iterator[tuple[bytes, bytes | None]]:
    for key, value in read_keys_and_values(batch, header):
        if key is None:
            raise ProtocolViolation("a record of an internal topic without its key")
        yield key, value
