"""The bytes that members of a consumer group give each other, against bytes laid out by hand."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.protocol.consumer_protocol import (
    MemberSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    subscribed_topics,
)
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.terms import TopicPartition

PARTITIONS = st.builds(TopicPartition, st.text(max_size=3), st.integers(0, 9))
NULL = struct.pack(">i", -1)
TOPICS = struct.pack(">i", 2) + b"\x00\x01a" + b"\x00\x02bc"
OWNED = struct.pack(">i", 1) + b"\x00\x01a" + struct.pack(">iii", 2, 0, 3)
EXPECTED = MemberSubscription(topics=("a", "bc"))
OWNING = MemberSubscription(topics=("a", "bc"), owned=(TopicPartition("a", 0), TopicPartition("a", 3)))


@pytest.mark.parametrize(
    ("version", "data", "expected"),
    [
        (0, TOPICS + NULL, EXPECTED),
        (1, TOPICS + NULL + OWNED, OWNING),
        (
            2,
            TOPICS + NULL + OWNED + struct.pack(">i", 7),
            MemberSubscription(topics=("a", "bc"), owned=OWNING.owned, generation_id=7),
        ),
        (
            3,
            TOPICS + struct.pack(">i", 2) + b"hi" + OWNED + struct.pack(">i", 7) + b"\xff\xff",
            MemberSubscription(topics=("a", "bc"), owned=OWNING.owned, generation_id=7, user_data=b"hi"),
        ),
        (9, TOPICS + NULL + OWNED + NULL + b"what a later version adds", OWNING),
    ],
)
def test_every_version_of_a_subscription_is_read(
    version: int, data: bytes, expected: MemberSubscription
) -> None:
    encoded = struct.pack(">h", version) + data
    assert decode_subscription(encoded) == expected
    assert subscribed_topics(encoded) == expected.topics
    if version == 3:
        assert encode_subscription(expected) == encoded


def test_a_subscription_that_ends_early_is_refused() -> None:
    with pytest.raises(ProtocolViolation, match="consumer protocol subscription"):
        decode_subscription(struct.pack(">h", 1) + TOPICS + NULL)


@given(st.sets(PARTITIONS, max_size=8))
def test_an_assignment_comes_back_sorted(partitions: set[TopicPartition]) -> None:
    assert decode_assignment(encode_assignment(partitions)) == tuple(sorted(partitions))
    assert decode_assignment(b"") == ()


@given(st.lists(st.text(max_size=3)), st.sets(PARTITIONS), st.integers(-1, 99), st.none() | st.binary())
def test_a_subscription_comes_back(
    topics: list[str], owned: set[TopicPartition], generation_id: int, user_data: bytes | None
) -> None:
    subscription = MemberSubscription(
        topics=tuple(topics), owned=tuple(sorted(owned)), generation_id=generation_id, user_data=user_data
    )
    assert decode_subscription(encode_subscription(subscription)) == subscription
