"""The two ways in which every message names a partition.

Rule: messages are frozen, built by keyword, and hold values only.
"""

from __future__ import annotations

from fencepost.protocol.codec import Int32
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import TopicPartition
from fencepost.protocol.values import value


@value(kw_only=True)
class PartitionName:
    topic: str
    partition: Int32

    @property
    def key(self) -> TopicPartition:
        """As the cores name a partition."""
        return TopicPartition(self.topic, self.partition)


@value(kw_only=True)
class PartitionError:
    topic: str
    partition: Int32
    error: ErrorCode
