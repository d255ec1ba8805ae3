"""The ids of topics, which tell a topic from a later one of the same name.

Rule: an offset means something only in the log that it was read from. A reader that remembers an offset also
remembers the id of its topic.
"""

from __future__ import annotations

from collections.abc import Iterable

from fencepost.journal.layouts import LogLayout
from fencepost.protocol.terms import TopicPartition


def find_topic_ids(layout: LogLayout, partitions: Iterable[TopicPartition]) -> dict[str, str]:
    """The ids of topics, as far as they are known, as Kafka spells them."""
    found: dict[str, str] = {}
    for partition in partitions:
        if partition.topic not in found and (topic_id := layout.topic_id(partition, None)):
            found[partition.topic] = topic_id
    return found
