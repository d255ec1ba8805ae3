"""What the members of a consumer group tell each other: subscriptions for the leader, assignments from it.

The coordinator carries these bytes without reading them, except the topics of a subscription: Kafka's
ConsumerProtocol, schemas ConsumerProtocolSubscription and ConsumerProtocolAssignment.

Rule: a reader takes every version, because a member of the group may be older or newer; fields after those
that this reader knows are ignored.
"""

#     member ── JoinGroup(subscription) ──▶ coordinator ── all subscriptions ──▶ leader (a member)
#     member ◀── assignment ── coordinator ◀── SyncGroup(all assignments) ───── leader
#
# Partitions are assigned by a client, not by the broker, so that an application can use its own way of doing
# it (KAFKA-2464). Versions were only ever extended at the end:
#
#     subscription   topics, user data | 1: owned partitions (KIP-429) | 2: generation (KIP-792)
#                    | 3: rack (KIP-881)
#     assignment     partitions, user data

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from fencepost.protocol.primitives import INT16, INT32, Fields, put_string
from fencepost.protocol.terms import NO_GENERATION, TopicPartition
from fencepost.protocol.values import value

_VERSION: Final = 3  # the newest of both schemas
_OWNED_SINCE: Final = 1  # KIP-429: what a member owns, so that the leader can leave it there
_GENERATION_SINCE: Final = 2  # KIP-792: the generation in which it got them, so that old claims count less
_NULL: Final = INT32.pack(-1)
_NO_RACK: Final = INT16.pack(-1)


@value(kw_only=True)
class MemberSubscription:
    """What one member wants to read, and the partitions that it owns since generation `generation_id`."""

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation_id: int = NO_GENERATION
    user_data: bytes | None = None


def encode_subscription(subscription: MemberSubscription) -> bytes:
    """The metadata of a member in JoinGroup."""
    out = bytearray(INT16.pack(_VERSION))
    out += INT32.pack(len(subscription.topics))
    for topic in subscription.topics:
        put_string(out, topic)
    _put_user_data(out, subscription.user_data)
    _put_partitions(out, subscription.owned)
    out += INT32.pack(subscription.generation_id)
    return bytes(out + _NO_RACK)


def decode_subscription(data: bytes) -> MemberSubscription:
    """A member's metadata in any version; ProtocolViolation when the bytes are not one."""
    # Fields after the last one read here are of a newer version; `finish` would refuse them.
    fields, version = _open(data, "consumer protocol subscription")
    topics = _topics(fields)
    user_data = _user_data(fields)
    owned = _partitions(fields) if version >= _OWNED_SINCE else ()
    generation_id = fields.int32() if version >= _GENERATION_SINCE else NO_GENERATION
    return MemberSubscription(topics=topics, owned=owned, generation_id=generation_id, user_data=user_data)


def subscribed_topics(data: bytes) -> tuple[str, ...]:
    """The topics alone: all that a coordinator reads (ClassicGroup.computeSubscribedTopics)."""
    return _topics(_open(data, "consumer protocol subscription")[0])


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """The share of one member in SyncGroup."""
    out = bytearray(INT16.pack(_VERSION))
    _put_partitions(out, partitions)
    return bytes(out + _NULL)


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """The partitions of a share, sorted; an empty reply from the coordinator is an empty share."""
    if not data:
        return ()
    return tuple(sorted(_partitions(_open(data, "consumer protocol assignment")[0])))


def _open(data: bytes, name: str) -> tuple[Fields, int]:
    fields = Fields(data, name=name)
    return fields, fields.int16()


def _topics(fields: Fields) -> tuple[str, ...]:
    return tuple([fields.string() for _ in range(fields.array_length())])


def _user_data(fields: Fields) -> bytes | None:
    size = fields.int32()
    return None if size < 0 else fields.take(size)


def _put_user_data(out: bytearray, user_data: bytes | None) -> None:
    out += _NULL if user_data is None else INT32.pack(len(user_data)) + user_data


def _partitions(fields: Fields) -> tuple[TopicPartition, ...]:
    return tuple(
        [
            TopicPartition(topic, number)
            for topic in (fields.string() for _ in range(fields.array_length()))
            for number in fields.int32s(fields.array_length())
        ]
    )


def _put_partitions(out: bytearray, partitions: Iterable[TopicPartition]) -> None:
    by_topic: defaultdict[str, list[int]] = defaultdict(list)
    for topic, number in sorted(partitions):
        by_topic[topic].append(number)
    out += INT32.pack(len(by_topic))
    for topic, numbers in by_topic.items():
        put_string(out, topic)
        out += INT32.pack(len(numbers)) + b"".join(map(INT32.pack, numbers))
