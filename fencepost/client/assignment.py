"""What a consumer of either shell reads, and from where: calls that touch no socket, so that they are
written once.

Rule: a position that must be asked for is looked up by the next poll() or position(), never here.
"""

from __future__ import annotations

from collections.abc import Iterable

from fencepost.client.consumer import ConsumerMachine
from fencepost.protocol.terms import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition


class Assigning:
    """The part of a consumer that says which partitions are read, and where each goes on."""

    _machine: ConsumerMachine

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads these, from the group's committed offsets or as `auto_offset_reset` says, unless sought."""
        self._machine.assign(partitions)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """The next record is the one at `offset`."""
        self._machine.seek(partition, offset)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """The next record is the first of the log; of all assigned partitions when none is named."""
        self._seek_to(partitions, EARLIEST_TIMESTAMP)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """The next record is one that is not there yet: after the end that the isolation level allows."""
        self._seek_to(partitions, LATEST_TIMESTAMP)

    def _seek_to(self, partitions: Iterable[TopicPartition], timestamp: int) -> None:
        for partition in list(partitions) or list(self._machine.readings):
            self._machine.seek_to(partition, timestamp)
