"""The records of `__consumer_offsets`, byte for byte in Kafka's schemas: committed offsets and groups.

Rule: a group's record holds what its members continue from when the coordinator fails: the generation, the
leader, the assignments. Kafka's own tools can read every record (OffsetCommitKey/Value.json,
GroupMetadataKey/Value.json); a record with a key of another kind is skipped.
"""

# Both kinds share the topic; the version of the key tells which one a record is:
#
#     key 0, 1   group, topic, partition   offset, leader epoch, metadata, time     last commit counts
#     key 2      group                     generation, leader, members              last generation counts
#     key 3 ...  consumer_group_log.py
#     null value                           the key is forgotten
#
# The topic is compacted by key. All records of a group are in one partition, the one that its coordinator
# leads, so an offset and the generation that allowed it never disagree about their order. Offsets of a
# transaction are the same records in a transactional batch: they count after its COMMIT marker.

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import attrs

from fencepost.protocol.batches import BatchHeader, Buffer
from fencepost.protocol.consumer_group_log import (
    ConsumerEntry,
    consumer_key,
    consumer_value,
    read_consumer_entry,
)
from fencepost.protocol.kafka_records import KafkaRecord, build_kafka_batch
from fencepost.protocol.primitives import (
    INT16,
    INT32,
    INT64,
    UUID_SIZE,
    Fields,
    put_compact_string,
    put_string,
    put_tagged_fields,
)
from fencepost.protocol.records import read_internal_records, read_keys_and_values
from fencepost.protocol.terms import (
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    NO_TOPIC_ID,
)

# --- committed offsets -----------------------------------------------------------------------------------


class OffsetKey(NamedTuple):
    """The group and partition of a committed offset (OffsetCommitKey)."""

    group_id: str
    topic: str
    partition: int


@attrs.frozen
class OffsetRecord:
    """A committed offset (OffsetCommitValue): where the group continues, and when it committed (ms).

    `expire_ms` is the time at which it expires, if the client chose it; the record then has neither a leader
    epoch nor a topic id. `topic_id` tells the topic from a later one of the same name.
    """

    offset: int
    leader_epoch: int = attrs.field(kw_only=True)
    metadata: str = attrs.field(kw_only=True)
    commit_ms: int = attrs.field(kw_only=True)
    expire_ms: int | None = attrs.field(kw_only=True, default=None)
    topic_id: bytes = attrs.field(kw_only=True, default=NO_TOPIC_ID)


OffsetEntry = tuple[OffsetKey, OffsetRecord | None]
"""A committed offset, None for a tombstone."""

_OFFSET_KEY_VERSIONS: Final = (0, 1)  # both have the same layout; 2 and above are the groups' own records
# Older brokers of Apache Kafka wrote 0, 2 and 3. Those of 4.3 write 1 if the client chose when the offset
# expires, and 4 otherwise (GroupCoordinatorRecordHelpers.offsetCommitValueVersion); so does this broker.
_WITH_EXPIRY: Final = 1
_WITH_LEADER_EPOCH: Final = 3
_WITH_TOPIC_ID: Final = 4  # and flexible
_TAG_TOPIC_ID: Final = 0
_NO_EXPIRY: Final = -1


def _offset_key(key: OffsetKey) -> bytes:
    out = bytearray(INT16.pack(_OFFSET_KEY_VERSIONS[-1]))
    put_string(out, key.group_id)
    put_string(out, key.topic)
    out += INT32.pack(key.partition)
    return bytes(out)


def _offset_value(record: OffsetRecord) -> bytes:
    if record.expire_ms is not None:
        more = (record.leader_epoch, record.topic_id)
        assert more == (NO_LEADER_EPOCH, NO_TOPIC_ID), f"version {_WITH_EXPIRY} has no room for {more}"
        out = bytearray(INT16.pack(_WITH_EXPIRY) + INT64.pack(record.offset))
        put_string(out, record.metadata)
        out += INT64.pack(record.commit_ms) + INT64.pack(record.expire_ms)
        return bytes(out)
    out = bytearray(INT16.pack(_WITH_TOPIC_ID) + INT64.pack(record.offset) + INT32.pack(record.leader_epoch))
    put_compact_string(out, record.metadata)
    out += INT64.pack(record.commit_ms)
    put_tagged_fields(out, [(_TAG_TOPIC_ID, record.topic_id)] if record.topic_id != NO_TOPIC_ID else [])
    return bytes(out)


def _read_offset_entry(data: bytes, value: bytes | None) -> OffsetEntry | None:
    """One record; None for a key of another kind."""
    fields = Fields(data, name="offset commit key")
    if fields.int16() not in _OFFSET_KEY_VERSIONS:
        return None
    key = OffsetKey(fields.string(), fields.string(), fields.int32())
    fields.finish()
    return key, None if value is None else _read_offset(value)


def _read_offset(value: bytes) -> OffsetRecord:
    fields = Fields(value, name="offset commit value")
    version = fields.int16()
    if not 0 <= version <= _WITH_TOPIC_ID:
        fields.fail(f"version {version} is unknown")
    is_flexible = version == _WITH_TOPIC_ID
    offset = fields.int64()
    leader_epoch = fields.int32() if version >= _WITH_LEADER_EPOCH else NO_LEADER_EPOCH
    metadata = fields.compact_string() if is_flexible else fields.string()
    commit_ms = fields.int64()
    expire_ms = fields.int64() if version == _WITH_EXPIRY else _NO_EXPIRY
    topic_id = fields.tagged_fields().get(_TAG_TOPIC_ID, NO_TOPIC_ID) if is_flexible else NO_TOPIC_ID
    if len(topic_id) != UUID_SIZE:
        fields.fail(f"the topic id has {len(topic_id)} bytes")
    fields.finish()
    return OffsetRecord(
        offset,
        leader_epoch=leader_epoch,
        metadata=metadata,
        commit_ms=commit_ms,
        expire_ms=None if expire_ms == _NO_EXPIRY else expire_ms,
        topic_id=topic_id,
    )


# --- groups ----------------------------------------------------------------------------------------------

_GROUP_KEY_VERSION: Final = 2  # 0 and 1 are committed offsets, 3 and above are of KIP-848
_GROUP_VALUE_VERSION: Final = 3  # 0 to 2 are read, too, and the flexible 4
_WITH_REBALANCE_TIMEOUT: Final = 1
_WITH_STATE_TIME: Final = 2
_WITH_INSTANCE_ID: Final = 3
_GROUP_VERSION_MAX: Final = 4
_NULL: Final = -1
_TIMEOUTS = struct.Struct(">ii")  # rebalance timeout, session timeout


@attrs.frozen(kw_only=True)
class MemberRecord:
    """One member of a stable group (MemberMetadata)."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes = attrs.field(repr=False)
    assignment: bytes = attrs.field(repr=False)


@attrs.frozen(kw_only=True)
class GroupRecord:
    """A generation with its assignments, or (without members) the one after the last member left."""

    protocol_type: str
    generation_id: int
    protocol_name: str | None
    leader: str | None
    state_since_ms: int
    members: tuple[MemberRecord, ...]


GroupEntry = tuple[str, GroupRecord | None]
"""A group's id and its record, None for a tombstone."""


def _group_key(group_id: str) -> bytes:
    key = bytearray(INT16.pack(_GROUP_KEY_VERSION))
    put_string(key, group_id)
    return bytes(key)


def _group_value(record: GroupRecord) -> bytes:
    out = bytearray(INT16.pack(_GROUP_VALUE_VERSION))
    put_string(out, record.protocol_type)
    out += INT32.pack(record.generation_id)
    _put_nullable(out, record.protocol_name)
    _put_nullable(out, record.leader)
    out += INT64.pack(record.state_since_ms)
    out += INT32.pack(len(record.members))
    for member in record.members:
        put_string(out, member.member_id)
        _put_nullable(out, member.group_instance_id)
        put_string(out, member.client_id)
        put_string(out, member.client_host)
        out += _TIMEOUTS.pack(member.rebalance_timeout_ms, member.session_timeout_ms)
        for content in (member.subscription, member.assignment):
            out += INT32.pack(len(content))
            out += content
    return bytes(out)


def _put_nullable(out: bytearray, text: str | None) -> None:
    if text is None:
        out += INT16.pack(_NULL)
    else:
        put_string(out, text)


def _read_group_entry(data: bytes, value: bytes | None) -> GroupEntry | None:
    """One record; None for a key of another kind."""
    fields = Fields(data, name="group metadata key")
    if fields.int16() != _GROUP_KEY_VERSION:
        return None
    group_id = fields.string()
    fields.finish()
    return group_id, None if value is None else _read_group(value)


def _read_group(value: bytes) -> GroupRecord:
    fields = Fields(value, name="group metadata value")
    version = fields.int16()
    if not 0 <= version <= _GROUP_VERSION_MAX:
        fields.fail(f"version {version} is unknown")
    is_flexible = version > _GROUP_VALUE_VERSION
    text, nullable, length = fields.string, fields.nullable_string, fields.array_length
    if is_flexible:
        text, nullable, length = (
            fields.compact_string,
            fields.compact_nullable_string,
            fields.compact_array_length,
        )
    protocol_type, generation_id = text(), fields.int32()
    protocol_name, leader = nullable(), nullable()
    state_since_ms = fields.int64() if version >= _WITH_STATE_TIME else NO_TIMESTAMP
    members = tuple([_read_member(fields, version) for _ in range(length())])
    if is_flexible:
        fields.tagged_fields()
    fields.finish()
    return GroupRecord(
        protocol_type=protocol_type,
        generation_id=generation_id,
        protocol_name=protocol_name,
        leader=leader,
        state_since_ms=state_since_ms,
        members=members,
    )


def _read_member(fields: Fields, version: int) -> MemberRecord:
    is_flexible = version > _GROUP_VALUE_VERSION
    text = fields.compact_string if is_flexible else fields.string
    nullable = fields.compact_nullable_string if is_flexible else fields.nullable_string
    member_id = text()
    group_instance_id = nullable() if version >= _WITH_INSTANCE_ID else None
    client_id, client_host = text(), text()
    rebalance_timeout_ms = fields.int32() if version >= _WITH_REBALANCE_TIMEOUT else None
    session_timeout_ms = fields.int32()
    subscription, assignment = [
        fields.take(fields.unsigned_varint() - 1 if is_flexible else fields.int32()) for _ in range(2)
    ]
    if is_flexible:
        fields.tagged_fields()
    return MemberRecord(
        member_id=member_id,
        group_instance_id=group_instance_id,
        client_id=client_id,
        client_host=client_host,
        # Before there were two timeouts, one served for both (GroupMetadataManager).
        rebalance_timeout_ms=session_timeout_ms if rebalance_timeout_ms is None else rebalance_timeout_ms,
        session_timeout_ms=session_timeout_ms,
        subscription=subscription,
        assignment=assignment,
    )


# --- batches ---------------------------------------------------------------------------------------------


class GroupBatch(NamedTuple):
    """The records of one batch of `__consumer_offsets`; None is a tombstone. `deltas` are the places of the
    offsets in a batch that compaction has thinned.
    """

    offsets: tuple[OffsetEntry, ...] = ()
    groups: tuple[GroupEntry, ...] = ()
    consumers: tuple[ConsumerEntry, ...] = ()
    deltas: tuple[int, ...] = ()


def group_batch(
    entries: GroupBatch,
    *,
    timestamp: int,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    transactional: bool = False,
) -> bytearray:
    """One batch with these records, offsets first: all or nothing. A transactional one belongs to its
    producer.
    """
    pairs = [(_offset_key(key), record and _offset_value(record)) for key, record in entries.offsets]
    pairs += [(_group_key(name), record and _group_value(record)) for name, record in entries.groups]
    pairs += [
        (consumer_key(key), None if record is None else consumer_value(record))
        for key, record in entries.consumers
    ]
    return build_kafka_batch(
        [KafkaRecord(key, value) for key, value in pairs],
        timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=transactional,
    )


def read_group_batch(batch: Buffer, header: BatchHeader) -> GroupBatch:
    """The records in a batch; those with a key of another kind are skipped."""
    offsets, groups, consumers = list[OffsetEntry](), list[GroupEntry](), list[ConsumerEntry]()
    deltas: list[int] = []
    for key, value, _, _, offset_delta in read_internal_records(batch, header):
        if (offset := _read_offset_entry(key or b"", value)) is not None:
            offsets.append(offset)
            deltas.append(offset_delta)
        elif (group := _read_group_entry(key or b"", value)) is not None:
            groups.append(group)
        elif (consumer := read_consumer_entry(key or b"", value)) is not None:
            consumers.append(consumer)
    places = tuple(deltas) if header.is_thinned else ()
    return GroupBatch(tuple(offsets), tuple(groups), tuple(consumers), places)


def read_offsets(batch: Buffer, header: BatchHeader) -> list[OffsetEntry]:
    """The committed offsets in a batch, even if other records in it cannot be read."""
    found = [_read_offset_entry(key or b"", value) for key, value in read_keys_and_values(batch, header)]
    return [entry for entry in found if entry is not None]
