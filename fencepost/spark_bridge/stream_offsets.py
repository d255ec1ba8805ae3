"""The offsets of a stream: a number per partition, and the cluster and the topics that they belong to.

Rule: the JSON is that of Spark's Kafka source, `{"orders":{"0":23}}`, plus one entry for the cluster and one
for the ids of topics. The names of these two contain a space, which the name of a topic cannot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fencepost.protocol.terms import TopicPartition

CLUSTER: Final = "cluster id"
TOPICS: Final = "topic ids"

Offsets = Mapping[TopicPartition, int]


def encode_offsets(offsets: Offsets, *, cluster_id: str, topic_ids: Mapping[str, str]) -> dict[str, Any]:
    """The JSON of these offsets, ordered, because Spark compares it as text; with the ids of their topics, as
    far as they are known.
    """
    encoded = by_topic(offsets)
    known = {topic: topic_ids[topic] for topic in encoded if topic in topic_ids}
    return {**encoded, CLUSTER: cluster_id, **({TOPICS: known} if known else {})}


def by_topic(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Offsets by topic and number, ordered, as in the options of a read."""
    found: dict[str, dict[str, int]] = {}
    for (topic, number), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(number)] = offset
    return found


def decode_offsets(encoded: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """The offsets in the JSON of `encode_offsets`."""
    return {
        TopicPartition(topic, int(number)): offset
        for topic, by_partition in encoded.items()
        if topic not in (CLUSTER, TOPICS)
        for number, offset in by_partition.items()
    }


def limited(starts: Offsets, ends: Offsets, most: int) -> dict[TopicPartition, int]:
    """Returns ends that are at most `most` offsets away in total, each by the share of its partition.

    Every partition with new offsets moves on by one at least (KafkaMicroBatchStream.rateLimit), so the total
    may be exceeded by fewer offsets than there are partitions.
    """
    sizes = {partition: max(0, ends[partition] - start) for partition, start in starts.items()}
    total = sum(sizes.values())
    if total <= most:
        return dict(ends)
    return {
        partition: start + min(sizes[partition], max(most * sizes[partition] // total, 1))
        for partition, start in starts.items()
    }
