"""The logs that a host works on, and what it knows of one for as long as it leads it.

Rule: a log belongs to one leadership. Whoever was replaced keeps the log that it had, and finds it closed.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from fencepost.broker.partitions.partition import Partition
from fencepost.journal.journal import Journal
from fencepost.journal.manifest import ManifestState
from fencepost.journal.open_transactions import OpenTransaction
from fencepost.protocol.terms import INTERNAL_TOPICS, TopicPartition


class Journals(Protocol):
    """The logs that a host works on: a DataDirectory, or what a simulator puts in its place."""

    def journal(self, partition: TopicPartition) -> Journal: ...

    def has(self, partition: TopicPartition) -> bool: ...

    def partitions(self) -> list[TopicPartition]: ...

    def opened(self) -> list[TopicPartition]: ...

    def holds(self, journal: Journal) -> bool: ...

    def give_up(self, partition: TopicPartition) -> None: ...

    def delete(self, partition: TopicPartition) -> None: ...

    def close(self) -> None: ...

    def abandon(self) -> None: ...


class Held(NamedTuple):
    """A log that this host writes to, as of one leadership: whoever leads it after has another one of
    these.
    """

    journal: Journal
    leader_epoch: int

    @property
    def is_newest(self) -> bool:
        return self.journal.leader_epoch <= self.leader_epoch


def may_use_snapshot(key: TopicPartition) -> bool:
    """A coordinator's state is in no snapshot: what lies under one is read from the start of its log."""
    return key.topic not in INTERNAL_TOPICS


def manifest_of(state: Partition) -> ManifestState:
    """How far readers without a broker may go."""
    opened = [
        OpenTransaction(
            first_offset=offset,
            producer_id=producer_id,
            producer_epoch=state.producers[producer_id].producer_epoch,
        )
        for offset, producer_id in state.open_transactions.items()
    ]
    return ManifestState(
        last_stable_offset=state.last_stable_offset,
        high_watermark=state.high_watermark,
        open_transactions=tuple(opened),
    )
