"""The logs of a simulated cluster: one journal per partition, which outlives the nodes that lead it.

Rule: only the leader of the newest epoch writes; a loss of power loses its unsynced bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from fencepost.journal.journal import Journal, JournalSettings
from fencepost.journal.simulated import Breaks, Choose, SimulatedStorage
from fencepost.protocol.terms import TopicPartition


@attrs.define(eq=False)
class ClusterJournals:
    """Every partition's log on a disk of its own. All nodes of a cluster share one of these."""

    choose: Choose
    settings: JournalSettings
    breaks: Breaks
    disks: dict[TopicPartition, SimulatedStorage] = attrs.Factory(dict[TopicPartition, SimulatedStorage])
    opened: dict[TopicPartition, Journal] = attrs.Factory(dict[TopicPartition, Journal])

    def journal(self, partition: TopicPartition) -> Journal:
        """The log, created or recovered if no node has it open."""
        journal = self.opened.get(partition)
        if journal is None:
            disk = self.disks.get(partition)
            if disk is None:
                disk = self.disks[partition] = SimulatedStorage(self.choose, breaks=self.breaks)
            journal = Journal.open(disk, partition, settings=self.settings)
            self.opened[partition] = journal
        return journal

    def let_go(self, partition: TopicPartition, *, power_is_lost: bool = False) -> None:
        """The node that had the log open is dead: the next node recovers the log from the disk."""
        journal = self.opened.pop(partition, None)
        if journal is not None:
            journal.abandon()
            disk = self.disks[partition]
            if power_is_lost:
                disk.lose_power()
            else:
                disk.kill()

    def delete(self, partition: TopicPartition) -> None:
        """Deletes the log with its records, also for a node that still holds it."""
        journal = self.opened.pop(partition, None)
        if journal is not None:
            journal.abandon()
        self.disks.pop(partition, None)

    def contents(self) -> Iterator[tuple[str, bytes]]:
        """What lies on every disk: path and bytes of each file, in order."""
        for partition in sorted(self.disks):
            disk = self.disks[partition]
            for directory in ("", *disk.directories()):
                for name in disk.files(directory):
                    path = f"{directory}/{name}" if directory else name
                    content = disk.read_file(path)
                    assert content is not None, "a file that is listed is there"
                    yield f"{partition} {path}", content


@attrs.define(eq=False)
class NodeJournals:
    """The same logs as one node's host sees them: its `Journals`."""

    shared: ClusterJournals

    def journal(self, partition: TopicPartition) -> Journal:
        return self.shared.journal(partition)

    def has(self, partition: TopicPartition) -> bool:
        return partition in self.shared.disks

    def partitions(self) -> list[TopicPartition]:
        return sorted(self.shared.disks)

    def opened(self) -> list[TopicPartition]:
        return sorted(self.shared.opened)

    def holds(self, journal: Journal) -> bool:
        return self.shared.opened.get(journal.partition) is journal

    def give_up(self, partition: TopicPartition) -> None:
        self.shared.let_go(partition)

    def delete(self, partition: TopicPartition) -> None:
        self.shared.delete(partition)

    def close(self) -> None:
        """Nothing is the node's own."""

    def abandon(self) -> None:
        """Nothing is the node's own."""
