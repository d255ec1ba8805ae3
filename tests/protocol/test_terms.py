"""The words everybody uses: hashes as Java makes them, sequences that wrap, names of topics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.protocol.terms import (
    INT32_MAX,
    TOPIC_NAME_LENGTH_MAX,
    TopicPartition,
    TransactionState,
    coordinator_partition,
    java_hash,
    sequence_after,
    topic_name_problem,
)

# What String.hashCode of Java gives, and Utils.abs(hash) % 50.
JAVA_HASHES = [
    ("first-transactional", 1476685612, 12),
    ("my-transactional-id", -959806496, 46),
    ("foo", 101574, 24),
    ("bar", 97299, 49),
    ("test", 3556498, 48),
    ("polygenelubricants", -(2**31), 0),
    ("transactional-producer", 804003158, 8),
    ("group0323", -1484114301, 1),
    ("表1", 1082569, 19),
    ("𐐷x", 54888162, 12),
    ("", 0, 0),
]


@pytest.mark.parametrize(("text", "code", "partition"), JAVA_HASHES)
def test_the_coordinator_of_an_id_is_the_one_that_kafka_would_pick(
    text: str, code: int, partition: int
) -> None:
    assert java_hash(text) == code
    assert coordinator_partition(text, 50) == partition


@given(st.text(), st.integers(1, 1000))
def test_every_id_has_a_coordinator(text: str, partition_count: int) -> None:
    assert -(2**31) <= java_hash(text) < 2**31
    assert 0 <= coordinator_partition(text, partition_count) < partition_count


@pytest.mark.parametrize(
    ("sequence", "count", "after"),
    [(0, 1, 1), (INT32_MAX, 1, 0), (INT32_MAX - 1, 3, 1), (INT32_MAX, 0, INT32_MAX), (5, INT32_MAX, 4)],
)
def test_sequences_wrap_to_zero(sequence: int, count: int, after: int) -> None:
    assert sequence_after(sequence, count) == after


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "..a", "...", "_", "x" * TOPIC_NAME_LENGTH_MAX])
def test_names_that_a_topic_may_have(name: str) -> None:
    assert topic_name_problem(name) is None


@pytest.mark.parametrize(
    ("name", "because"),
    [
        ("", "empty"),
        (".", "cannot be"),
        ("..", "cannot be"),
        ("x" * (TOPIC_NAME_LENGTH_MAX + 1), "longer"),
        ("a/b", "only"),
        ("a\\b", "only"),
        ("a b", "only"),
        ("a\n", "only"),
        ("a\0", "only"),
        ("é", "only"),
        ("٣", "only"),
    ],
)
def test_names_that_it_may_not(name: str, because: str) -> None:
    assert because in (topic_name_problem(name) or "")


def test_states_are_numbered_and_titled_as_kafka_prints_them() -> None:
    titles = [state.title for state in sorted(TransactionState, key=lambda state: state.value)]
    assert titles == ["Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"]
    assert [state.value for state in TransactionState] == list(range(6))


def test_partitions_sort_by_topic_then_number_and_read_as_their_directory() -> None:
    partitions = [TopicPartition("b", 0), TopicPartition("a", 10), TopicPartition("a", 2)]
    assert [str(partition) for partition in sorted(partitions)] == ["a-2", "a-10", "b-0"]
