"""The records of `__consumer_offsets` about groups of the consumer protocol (KIP-848), byte for byte in
Kafka's schemas.

Rule: each record is one part of a group's state, and the newest record of a part counts; null removes the
part. What Kafka's own tools cannot read is never written (ConsumerGroup*Key.json, ConsumerGroup*Value.json).
"""

# The version of the key tells the kind of a record. Those of committed offsets and of classic groups are in
# offsets_log.py.
#
#     key 3    group               group epoch, hash of the topics' metadata
#     key 5    group, member       subscription
#     key 6    group               epoch of the target assignment, and when it was computed
#     key 7    group, member       the member's part of the target assignment
#     key 8    group, member       member epoch, state, what it owns, what it must revoke
#     key 16   group, expression   the topics whose names match
#
# Key 4 held the metadata of partitions until Kafka 4.0; such records are skipped.

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Final, NamedTuple

import attrs

from fencepost.protocol.primitives import (
    INT16,
    INT32,
    INT64,
    Fields,
    put_compact_int32s,
    put_compact_nullable_string,
    put_compact_string,
    put_string,
    put_tagged_fields,
    put_unsigned_varint,
)
from fencepost.protocol.terms import TitledEnum


class ConsumerRecordKind(IntEnum):
    """The version of the key of a record."""

    __hash__ = object.__hash__  # by identity; Enum's own hash is computed in Python

    GROUP = 3
    MEMBER = 5
    TARGET = 6
    TARGET_MEMBER = 7
    CURRENT_ASSIGNMENT = 8
    REGULAR_EXPRESSION = 16

    @property
    def title(self) -> str:
        return self.name.lower().replace("_", " ")


class ConsumerRecordKey(NamedTuple):
    """The part of a group's state that a record is about. `name` is a member id or a regular expression."""

    kind: ConsumerRecordKind
    group_id: str
    name: str = ""


class TopicIdPartition(NamedTuple):
    """A partition by the id of its topic: if the topic is deleted and made again, it is a different one."""

    topic_id: bytes
    partition: int


Partitions = frozenset[TopicIdPartition]
PartitionEpochs = dict[TopicIdPartition, int]
"""Partitions, and the member epoch at which the member got each."""

NO_PARTITIONS: Final[Partitions] = frozenset()
JOINING_EPOCH: Final = 0  # ConsumerGroupHeartbeatRequest.JOIN_GROUP_MEMBER_EPOCH
LEFT_EPOCH: Final = -1  # LEAVE_GROUP_MEMBER_EPOCH
AWAY_EPOCH: Final = -2  # LEAVE_GROUP_STATIC_MEMBER_EPOCH: a static member that will return


class AssignmentState(TitledEnum):
    """How far a member is on its way to the target assignment, with Kafka's numbers (MemberState.java)."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2


@attrs.frozen
class GroupEpoch:
    """The group epoch rises with each change of members, subscriptions or topics (ConsumerGroupMetadata)."""

    epoch: int
    metadata_hash: int = attrs.field(kw_only=True, default=0)


@attrs.frozen(kw_only=True)
class Subscription:
    """What a member said about itself (ConsumerGroupMemberMetadata)."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    """Sorted, each once."""
    regex: str
    rebalance_timeout_ms: int
    assignor: str | None


@attrs.frozen
class TargetEpoch:
    """The group epoch of the target assignment, and its time (ConsumerGroupTargetAssignmentMetadata)."""

    epoch: int
    computed_ms: int = attrs.field(kw_only=True, default=0)


@attrs.frozen(kw_only=True)
class CurrentAssignment:
    """What a member owns now (ConsumerGroupCurrentMemberAssignment)."""

    epoch: int = JOINING_EPOCH
    previous_epoch: int = JOINING_EPOCH
    state: AssignmentState = AssignmentState.STABLE
    assigned: PartitionEpochs = attrs.Factory(PartitionEpochs)
    revoking: PartitionEpochs = attrs.Factory(PartitionEpochs)


@attrs.frozen(kw_only=True)
class ResolvedRegex:
    """The topics that matched a regular expression (ConsumerGroupRegularExpression)."""

    topics: tuple[str, ...]
    version: int
    """Which topics there were: the number of the newest. Kafka has the offset in the cluster's metadata."""
    resolved_ms: int


ConsumerRecord = GroupEpoch | Subscription | TargetEpoch | Partitions | CurrentAssignment | ResolvedRegex
ConsumerEntry = tuple[ConsumerRecordKey, ConsumerRecord | None]
"""A part of a group's state and its record, None for a tombstone."""

_NAMELESS: Final = frozenset({ConsumerRecordKind.GROUP, ConsumerRecordKind.TARGET})
_VALUE_VERSION: Final = 0
_FIRST_TAG: Final = 0


# --- writing ---------------------------------------------------------------------------------------------


def consumer_key(key: ConsumerRecordKey) -> bytes:
    out = bytearray(INT16.pack(key.kind))
    put_string(out, key.group_id)
    if key.kind not in _NAMELESS:
        put_string(out, key.name)
    return bytes(out)


def consumer_value(record: ConsumerRecord) -> bytes:
    out = bytearray(INT16.pack(_VALUE_VERSION))
    tags: list[tuple[int, bytes]] = []
    match record:
        case GroupEpoch():
            out += INT32.pack(record.epoch)
            if record.metadata_hash:
                tags.append((_FIRST_TAG, INT64.pack(record.metadata_hash)))
        case TargetEpoch():
            out += INT32.pack(record.epoch)
            if record.computed_ms:
                tags.append((_FIRST_TAG, INT64.pack(record.computed_ms)))
        case Subscription():
            _put_subscription(out, record)
        case CurrentAssignment():
            out += INT32.pack(record.epoch) + INT32.pack(record.previous_epoch)
            out.append(record.state.value)
            _put_partition_epochs(out, record.assigned)
            _put_partition_epochs(out, record.revoking)
        case ResolvedRegex():
            _put_texts(out, record.topics)
            out += INT64.pack(record.version) + INT64.pack(record.resolved_ms)
        case frozenset():
            _put_partitions(out, record)
    put_tagged_fields(out, tags)
    return bytes(out)


def _put_subscription(out: bytearray, record: Subscription) -> None:
    put_compact_nullable_string(out, record.instance_id)
    put_compact_nullable_string(out, record.rack_id)
    put_compact_string(out, record.client_id)
    put_compact_string(out, record.client_host)
    _put_texts(out, record.topics)
    put_compact_string(out, record.regex)
    out += INT32.pack(record.rebalance_timeout_ms)
    put_compact_nullable_string(out, record.assignor)


def _put_texts(out: bytearray, texts: tuple[str, ...]) -> None:
    put_unsigned_varint(out, len(texts) + 1)
    for text in texts:
        put_compact_string(out, text)


def by_topic_id(partitions: Iterable[TopicIdPartition]) -> dict[bytes, tuple[int, ...]]:
    topics: defaultdict[bytes, list[int]] = defaultdict(list)
    for topic_id, partition in sorted(partitions):
        topics[topic_id].append(partition)
    return {topic_id: tuple(numbers) for topic_id, numbers in topics.items()}


def _put_partitions(out: bytearray, partitions: Partitions) -> None:
    topics = by_topic_id(partitions)
    put_unsigned_varint(out, len(topics) + 1)
    for topic_id, numbers in topics.items():
        out += topic_id
        put_compact_int32s(out, numbers)
        put_tagged_fields(out, [])


def _put_partition_epochs(out: bytearray, partitions: Mapping[TopicIdPartition, int]) -> None:
    topics = by_topic_id(partitions)
    put_unsigned_varint(out, len(topics) + 1)
    for topic_id, numbers in topics.items():
        out += topic_id
        put_compact_int32s(out, numbers)
        epochs = bytearray()
        put_compact_int32s(epochs, tuple(partitions[TopicIdPartition(topic_id, each)] for each in numbers))
        put_tagged_fields(out, [(_FIRST_TAG, bytes(epochs))])


# --- reading ---------------------------------------------------------------------------------------------

_KINDS: Final = {int(kind): kind for kind in ConsumerRecordKind}


def read_consumer_entry(key: bytes, value: bytes | None) -> ConsumerEntry | None:
    """One record; None for a key of another kind."""
    fields = Fields(key, name="consumer group key")
    kind = _KINDS.get(fields.int16())
    if kind is None:
        return None
    read = ConsumerRecordKey(kind, fields.string(), "" if kind in _NAMELESS else fields.string())
    fields.finish()
    return read, None if value is None else _read_value(kind, value)


def _read_value(kind: ConsumerRecordKind, value: bytes) -> ConsumerRecord:
    fields = Fields(value, name=f"consumer group value of kind {kind.value}")
    version = fields.int16()
    if version != _VALUE_VERSION:
        fields.fail(f"version {version} is unknown")
    record = _read_record(kind, fields)
    fields.finish()
    return record


def _read_record(kind: ConsumerRecordKind, fields: Fields) -> ConsumerRecord:
    match kind:
        case ConsumerRecordKind.GROUP:
            epoch, tags = fields.int32(), fields.tagged_fields()
            return GroupEpoch(epoch, metadata_hash=fields.tagged_int(tags, _FIRST_TAG, INT64, default=0))
        case ConsumerRecordKind.TARGET:
            epoch, tags = fields.int32(), fields.tagged_fields()
            return TargetEpoch(epoch, computed_ms=fields.tagged_int(tags, _FIRST_TAG, INT64, default=0))
        case ConsumerRecordKind.MEMBER:
            record: ConsumerRecord = _read_subscription(fields)
        case ConsumerRecordKind.TARGET_MEMBER:
            record = frozenset(_read_partition_epochs(fields, 0))
        case ConsumerRecordKind.CURRENT_ASSIGNMENT:
            record = _read_current_assignment(fields)
        case ConsumerRecordKind.REGULAR_EXPRESSION:
            topics, version = _read_texts(fields), fields.int64()
            record = ResolvedRegex(topics=topics, version=version, resolved_ms=fields.int64())
    fields.tagged_fields()
    return record


def _read_subscription(fields: Fields) -> Subscription:
    return Subscription(
        instance_id=fields.compact_nullable_string(),
        rack_id=fields.compact_nullable_string(),
        client_id=fields.compact_string(),
        client_host=fields.compact_string(),
        topics=_read_texts(fields),
        regex=fields.compact_nullable_string() or "",
        rebalance_timeout_ms=fields.int32(),
        assignor=fields.compact_nullable_string(),
    )


def _read_texts(fields: Fields) -> tuple[str, ...]:
    return tuple([fields.compact_string() for _ in range(fields.compact_array_length())])


def _read_current_assignment(fields: Fields) -> CurrentAssignment:
    epoch, previous_epoch = fields.int32(), fields.int32()
    state = fields.take(1)[0]
    if state not in _STATES:
        fields.fail(f"state {state} is unknown")
    return CurrentAssignment(
        epoch=epoch,
        previous_epoch=previous_epoch,
        state=_STATES[state],
        assigned=_read_partition_epochs(fields, epoch),
        revoking=_read_partition_epochs(fields, epoch),
    )


_STATES: Final = {state.value: state for state in AssignmentState}


def _read_partition_epochs(fields: Fields, epoch: int) -> PartitionEpochs:
    """Partitions and their epochs; records without these have `epoch`."""
    found: PartitionEpochs = {}
    for _ in range(fields.compact_array_length()):
        topic_id = fields.uuid()
        numbers = fields.int32s(fields.compact_array_length())
        content = fields.tagged_fields().get(_FIRST_TAG)
        epochs = (epoch,) * len(numbers)
        if content is not None:
            tag = Fields(content, name="assignment epochs")
            epochs = tag.int32s(tag.compact_array_length())
            tag.finish()
        if len(epochs) != len(numbers):
            fields.fail(f"{len(epochs)} epochs for {len(numbers)} partitions")
        found.update(zip([TopicIdPartition(topic_id, number) for number in numbers], epochs, strict=True))
    return found
