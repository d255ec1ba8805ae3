"""The records of `__transaction_state`, byte for byte in Kafka's schemas (TransactionLogKey/Value.json).

Rule: Kafka's own tools can read every record written here; a record with a key of another kind is skipped.
"""

#     key     i16 0, STRING transactional id
#     value   i16 1, i64 producer id, i16 producer epoch, i32 timeout (ms), i8 state,
#             COMPACT_ARRAY of (COMPACT_STRING topic, COMPACT_ARRAY of i32 partitions, no tags),
#             i64 last update, i64 start,
#             tag 0: i64 previous producer id   tag 1: i64 next producer id   tag 2: i16 transaction version
#     null    the id has expired: it has no owner
#
# One record per transactional id is live at a time: the topic is compacted, and each change of state writes
# the whole TransactionMetadata again. A transaction writes at least three: Ongoing whenever partitions are
# added, PrepareCommit when the outcome is decided, CompleteCommit when every marker is written. Fields that
# came after version 0 (the producer ids around a rotation, the client's transaction version) are tagged
# fields (KIP-482), which older readers skip.

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

from fencepost.protocol.batches import BatchHeader, Buffer
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.kafka_records import build_state_batch
from fencepost.protocol.primitives import (
    INT16,
    INT64,
    Fields,
    put_compact_int32s,
    put_compact_string,
    put_string,
    put_tagged_fields,
    put_unsigned_varint,
)
from fencepost.protocol.records import read_keys_and_values
from fencepost.protocol.terms import NO_PRODUCER_ID, TopicPartition, TransactionState

_TRANSACTION_KEY_VERSION: Final = 0
_TRANSACTION_VALUE_VERSION: Final = 1
_TAG_PREVIOUS_PRODUCER_ID: Final = 0
_TAG_NEXT_PRODUCER_ID: Final = 1
_TAG_CLIENT_VERSION: Final = 2
_VALUE: Final = "transaction log value"


class TransactionRecord(NamedTuple):
    """The state of one transactional id (TransactionLogValue). Times are in ms; -1 means none.

    A tuple, since each transaction makes at least three of them.
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
    """The transaction version of the client (KIP-890)."""


def transaction_batch(
    transactional_id: str, record: TransactionRecord | None, *, timestamp: int
) -> bytearray:
    """One batch with the state of a transactional id; None writes its tombstone."""
    value = None if record is None else _transaction_value(record)
    return build_state_batch(_transaction_key(transactional_id), value, timestamp=timestamp)


# Most transactions write three records with the same id and partitions: what does not change is
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
    # For transaction.version 0, too: what its records cannot store, the coordinator leaves out
    # (`without_other_ids`).
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
    # groupby sees only neighbours.
    return groupby(sorted(partitions), key=attrgetter("topic"))


def read_transactions(batch: Buffer, header: BatchHeader) -> list[tuple[str, TransactionRecord | None]]:
    """The records in a batch of `__transaction_state`, None for a tombstone; reads value versions 0 and 1."""
    found: list[tuple[str, TransactionRecord | None]] = []
    for key, value in read_keys_and_values(batch, header):
        transactional_id = _read_key(key or b"")
        if transactional_id is not None:
            found.append((transactional_id, None if value is None else _read_transaction(value)))
    return found


@lru_cache(_REMEMBERED)
def _read_key(key: bytes) -> str | None:
    """The transactional id, None in a key of another kind."""
    fields = Fields(key, name="transaction log key")
    if fields.int16() != _TRANSACTION_KEY_VERSION:
        return None
    transactional_id = fields.string()
    fields.finish()
    return transactional_id


def _read_transaction(value: bytes) -> TransactionRecord:
    try:
        version, producer_id, producer_epoch, timeout_ms, number = _TRANSACTION_START.unpack_from(value)
        partitions, at = _partitions_in(value, version)
        update_ms, start_ms = _TRANSACTION_TIMES.unpack_from(value, at)
    except struct.error:
        raise _malformed(f"more is announced than {len(value)} bytes hold") from None
    state = _STATES.get(number)
    if state is None:
        raise _malformed(f"state {number} is unknown")
    # Kafka's writer has this rule, and `_partitions` above; a record without it was not written by either.
    if (partitions is None) != (state is _EMPTY):
        raise _malformed("partitions are null exactly in the state Empty")
    tags = value[at + _TRANSACTION_TIMES.size :]
    previous_producer_id, next_producer_id, client_version = _read_tags(tags) if version else _NO_TAGS
    if not version and tags:
        raise _malformed(f"{len(tags)} bytes follow the last field")
    return TransactionRecord(
        producer_id,
        previous_producer_id,
        next_producer_id,
        producer_epoch,
        timeout_ms,
        state,
        partitions or (),
        update_ms,
        start_ms,
        client_version,
    )


@lru_cache(_REMEMBERED)
def _read_tags(content: bytes) -> tuple[int, int, int]:
    """The previous and the next producer id, and the client's transaction version."""
    fields = Fields(content, name=_VALUE)
    tags = fields.tagged_fields()
    fields.finish()
    return (
        fields.tagged_int(tags, _TAG_PREVIOUS_PRODUCER_ID, INT64, default=NO_PRODUCER_ID),
        fields.tagged_int(tags, _TAG_NEXT_PRODUCER_ID, INT64, default=NO_PRODUCER_ID),
        fields.tagged_int(tags, _TAG_CLIENT_VERSION, INT16, default=0),
    )


def _malformed(because: str) -> ProtocolViolation:
    return ProtocolViolation(f"{_VALUE}: {because}")


_STATES: Final = {number: state for state, number in STATE_NUMBERS.items()}
_NO_TAGS: Final = (NO_PRODUCER_ID, NO_PRODUCER_ID, 0)


def _partitions_in(value: bytes, version: int) -> tuple[tuple[TopicPartition, ...] | None, int]:
    """The partitions of a record, decoded once for all that hold the same bytes, and where they end."""
    at = _TRANSACTION_START.size
    if version == _TRANSACTION_VALUE_VERSION:
        # Where they end is guessed, as if each length were one byte. A wrong guess costs only time: no
        # encoding is the beginning of another one, so bytes that decode to their last one are all of them.
        try:
            end = at + 1
            for _ in range(value[at] - 1):
                end += value[end]  # the name of a topic
                end += 4 * value[end] - 2  # its partitions, and no tagged fields
            return _remembered_partitions(value[at:end]), end
        except (IndexError, ProtocolViolation):
            pass
    # Version 0 is what brokers before transaction.version 1 wrote; a directory may hold it after an upgrade.
    elif version != 0:
        raise _malformed(f"version {version} is unknown")
    fields = Fields(value, name=_VALUE)
    fields.at = at
    return _read_partitions(fields, flexible=version != 0), fields.at


@lru_cache(_REMEMBERED)
def _remembered_partitions(content: bytes) -> tuple[TopicPartition, ...] | None:
    fields = Fields(content, name=_VALUE)
    partitions = _read_partitions(fields, flexible=True)
    fields.finish()
    return partitions


def _read_partitions(fields: Fields, *, flexible: bool) -> tuple[TopicPartition, ...] | None:
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
    return tuple(sorted(partitions))
