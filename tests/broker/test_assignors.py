"""The server-side assignors: what those of Apache Kafka 4.3.1 returned for the same members and topics."""

from __future__ import annotations

import pytest

from fencepost.broker.groups.assignors import ASSIGNORS, AssignmentInput
from fencepost.protocol.consumer_group_log import Partitions, TopicIdPartition

Shares = dict[str, str]


def partitions(text: str) -> Partitions:
    """`t0 u1` is partition 0 of topic t and partition 1 of topic u."""
    return frozenset(TopicIdPartition(each[0].encode(), int(each[1:])) for each in text.split())


def assign(
    assignor: str, sizes: dict[str, int], targets: Shares, instances: Shares, topics: Shares
) -> dict[str, Partitions]:
    return ASSIGNORS[assignor](
        AssignmentInput(
            topics={name: frozenset(each.encode() for each in topics.get(name, sizes)) for name in targets},
            targets={name: partitions(target) for name, target in targets.items()},
            counts={topic.encode(): count for topic, count in sizes.items()},
            instances=instances,
        )
    )


@pytest.mark.parametrize(
    ("sizes", "targets", "instances", "topics", "expected"),
    [
        ({"t": 5}, {"a": "", "b": "", "c": ""}, {}, {}, {"a": "t0 t1", "b": "t2 t3", "c": "t4"}),
        # What the members have does not matter: partitions of the same number belong together.
        (
            {"t": 3, "u": 3},
            {"a": "t2 u0", "b": "t0 u1", "c": "t1 u2"},
            {},
            {},
            {"a": "t0 u0", "b": "t1 u1", "c": "t2 u2"},
        ),
        ({"t": 2}, {"a": "t0", "b": "t1", "c": ""}, {}, {}, {"a": "t0", "b": "t1", "c": ""}),
        # A static member has its place by its instance id, before all others.
        ({"t": 2}, {"a": "t0", "z": ""}, {"z": "2"}, {}, {"a": "t1", "z": "t0"}),
        ({"t": 3}, {"x": "", "y": "", "z": ""}, {"z": "1", "x": "2"}, {}, {"z": "t0", "x": "t1", "y": "t2"}),
        # Members that have not subscribed to a topic do not count.
        (
            {"t": 3, "u": 2},
            {"a": "", "b": "", "c": ""},
            {},
            {"a": "t", "c": "tu"},
            {"a": "t0", "b": "t1 u0", "c": "t2 u1"},
        ),
    ],
)
def test_range(
    sizes: dict[str, int], targets: Shares, instances: Shares, topics: Shares, expected: Shares
) -> None:
    shares = assign("range", sizes, targets, instances, topics)
    assert shares == {name: partitions(text) for name, text in expected.items()}


@pytest.mark.parametrize(
    ("count", "targets", "expected"),
    [
        (5, {"a": "", "b": ""}, {"a": "t0 t1", "b": "t2 t3 t4"}),
        # A partition does not move only because its owner comes later in the order of ids.
        (5, {"a": "t0 t1", "b": "t2 t3 t4"}, {"a": "t0 t1", "b": "t2 t3 t4"}),
        (5, {"a": "", "b": "t0 t1 t2 t3 t4"}, {"a": "t3 t4", "b": "t0 t1 t2"}),
        (4, {"a": "t0", "b": "t1", "c": "t2 t3"}, {"a": "t0", "b": "t1", "c": "t2 t3"}),
        (3, {"a": "t0 t1 t2", "b": "", "c": ""}, {"a": "t0", "b": "t1", "c": "t2"}),
    ],
)
def test_uniform(count: int, targets: Shares, expected: Shares) -> None:
    shares = assign("uniform", {"t": count}, targets, {}, {})
    assert shares == {name: partitions(text) for name, text in expected.items()}
