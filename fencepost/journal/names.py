"""Partitions and the directories that hold them: `<topic>-<partition>`, both ways.

Rule: only what Kafka allows as a topic's name becomes a directory, and every directory so named is a
partition.
"""

from __future__ import annotations

from fencepost.protocol.terms import TopicPartition, topic_name_problem


def directory_name(partition: TopicPartition) -> str:
    """The directory of a partition. The name was checked when the topic was made."""
    problem = topic_name_problem(partition.topic)
    assert problem is None, f"a journal for topic {partition.topic!r}: {problem}"
    assert partition.partition >= 0, f"a journal for partition {partition.partition}"
    return f"{partition.topic}-{partition.partition}"


def parse_directory_name(name: str) -> TopicPartition | None:
    """The partition that a directory holds, None when it holds none. Topics may contain '-': the last one
    counts."""
    topic, dash, digits = name.rpartition("-")
    if not dash or topic_name_problem(topic) is not None or not (digits.isascii() and digits.isdigit()):
        return None
    return TopicPartition(topic, int(digits)) if digits == str(int(digits)) else None
