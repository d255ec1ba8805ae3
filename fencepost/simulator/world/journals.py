"""The logs of a simulated cluster: one journal per partition, which outlives the nodes that lead it.

Rule: only the leader of the newest epoch writes; a loss of power loses its unsynced bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import attrs

from fencepost.journal.indexes import CorruptIndex
from fencepost.journal.journal import Journal, JournalSettings, StaleLeader
from fencepost.journal.manifest import MANIFEST_FILE, decode_manifest
from fencepost.journal.simulated import Breaks, Choose, SimulatedStorage
from fencepost.journal.storage import directory_name
from fencepost.protocol.metadata_log import topic_number
from fencepost.protocol.terms import NO_TOPIC_ID, TopicPartition


class DeletedLog(NamedTuple):
    """The disk of a log that was deleted, and whether its name was synced."""

    disk: SimulatedStorage
    is_named: bool


@attrs.define(eq=False)
class ClusterJournals:
    """Every partition's log on a disk of its own. The hosts of all nodes share one of these.

    `listed` are the logs that have files, as a catalogue lists them, and whether their names are synced.
    `damaged` are the logs of which a fault has damaged something, and what. `former` are the logs of deleted
    topics, and `leaving` those whose deletion is not synced.
    """

    choose: Choose
    settings: JournalSettings
    breaks: Breaks
    when_deleted: Callable[[TopicPartition], None] = lambda _: None
    disks: dict[TopicPartition, SimulatedStorage] = attrs.Factory(dict[TopicPartition, SimulatedStorage])
    opened: dict[TopicPartition, Journal] = attrs.Factory(dict[TopicPartition, Journal])
    aside: list[SimulatedStorage] = attrs.Factory(list[SimulatedStorage])
    listed: dict[TopicPartition, bool] = attrs.Factory(dict[TopicPartition, bool])
    damaged: dict[TopicPartition, str] = attrs.Factory(dict[TopicPartition, str])
    topic_ids: dict[TopicPartition, bytes] = attrs.Factory(dict[TopicPartition, bytes])
    former: dict[TopicPartition, DeletedLog] = attrs.Factory(dict[TopicPartition, DeletedLog])
    leaving: dict[TopicPartition, DeletedLog] = attrs.Factory(dict[TopicPartition, DeletedLog])

    def journal(self, partition: TopicPartition, topic_id: bytes = NO_TOPIC_ID) -> Journal:
        """The log, created or recovered if no node has it open. Who asks without an id, as judges do, gets no
        log of a deleted topic that damage put in its place.
        """
        if topic_id == NO_TOPIC_ID:
            topic_id = self.topic_ids.get(partition, NO_TOPIC_ID)
        else:
            known = self.topic_ids.setdefault(partition, topic_id)
            # A node that learns late of a deletion. With a directory of its own, it would do no harm.
            if topic_number(known) > topic_number(topic_id):
                raise StaleLeader(f"{partition}: the log is that of a later topic of this name")
            if known != topic_id:
                self.delete(partition, known)
                self.topic_ids[partition] = topic_id
        journal = self.opened.get(partition)
        if journal is None:
            disk = self.disks.get(partition)
            if disk is None:
                disk = self.disks[partition] = SimulatedStorage(self.choose, breaks=self.breaks)
            journal = Journal(
                disk,
                partition,
                settings=self.settings,
                is_known=partition in self.listed,
                topic_id=topic_id,
                on_names_synced=partial(self.listed.__setitem__, partition, True),
            )
            self.opened[partition] = journal
            # Until the first sync, the names of its files may be lost with the power.
            self.listed.setdefault(partition, False)
        # A judge may have opened it before the id of its topic was known.
        if journal.topic_id == NO_TOPIC_ID:
            journal.topic_id = topic_id
        return journal

    def has(self, partition: TopicPartition) -> bool:
        """Whether the partition has a log; does not create one."""
        return partition in self.disks

    def partitions(self) -> list[TopicPartition]:
        """The partitions that have a log, sorted."""
        return sorted(self.disks)

    def holds(self, journal: Journal) -> bool:
        """Whether this is still the open log of its partition."""
        return self.opened.get(journal.partition) is journal

    def give_up(self, partition: TopicPartition, *, power_is_lost: bool = False) -> None:
        """The leader that had the log open died or lost it: the next one recovers the log from the disk."""
        journal = self.opened.pop(partition, None)
        if journal is not None:
            journal.abandon()
            disk = self.disks[partition]
            if power_is_lost:
                disk.lose_power()
                # No name was ever synced, so the next leader need not find the log, and creates it.
                if not self.listed[partition]:
                    del self.listed[partition]
            else:
                disk.kill()

    def delete(self, partition: TopicPartition, topic_id: bytes) -> None:
        """Deletes the log with its records, even for a node that still holds it. Until `finish_deleting`, a
        loss of power may bring it back.
        """
        # Another node deleted the log already, and this one is that of the next topic of the name.
        if self.topic_ids.get(partition, topic_id) != topic_id:
            return
        journal = self.opened.pop(partition, None)
        if journal is not None:
            journal.abandon()
        disk = self.disks.pop(partition, None)  # the next topic of this name gets a disk of its own
        is_named = self.listed.pop(partition, False)
        self.damaged.pop(partition, None)
        self.topic_ids.pop(partition, None)
        if disk is not None:
            disk.kill()
            self.leaving[partition] = self.former[partition] = DeletedLog(disk, is_named)
            self.when_deleted(partition)

    def set_aside(self, partition: TopicPartition) -> str:
        """Takes the disk of a partition that the metadata does not know out of service."""
        self.give_up(partition)
        # Kept, as a real broker renames the directory, but no node looks at it again.
        self.aside.append(self.disks.pop(partition))
        self.listed.pop(partition, None)
        self.damaged.pop(partition, None)
        self.topic_ids.pop(partition, None)
        self.when_deleted(partition)
        return f"{partition}~{len(self.aside)}"

    @property
    def warning(self) -> str:
        """Nothing: a simulated cluster has no catalogue that could be lost."""
        return ""

    def finish_deleting(self) -> None:
        """A disk that is gone does not come back."""
        self.leaving.clear()

    def lose_deletions(self) -> None:
        """Power was lost: a deletion that is not synced may not have happened, neither for the files nor for
        the catalogue, which then expects the files that were synced.
        """
        for partition, (disk, is_named) in self.leaving.items():
            if self.choose(1):
                if partition not in self.disks:
                    disk.lose_power()
                    self.disks[partition] = disk
                if is_named:
                    self.listed[partition] = True
        self.leaving.clear()

    def restore_former(self, partition: TopicPartition) -> bool:
        """The directory of a log was lost; the one of the last deleted topic of the name takes its place, if
        there was one. Returns whether there was.
        """
        former = self.former.pop(partition, None)
        if former is None:
            return False
        directory = directory_name(partition)
        data = former.disk.content_of(f"{directory}/{MANIFEST_FILE}")
        try:
            # Without an intact manifest, nothing says whose files these are.
            decode_manifest(data or b"", directory=directory)
        except CorruptIndex:
            return False
        self.give_up(partition)
        self.disks[partition] = former.disk
        return True

    def close(self, led: object) -> None:
        """The logs outlive every node."""

    def abandon(self) -> None:
        """The logs outlive every node."""

    def contents(self) -> Iterator[tuple[str, bytes]]:
        """What lies on every disk: path and bytes of each file, in order."""
        for partition in sorted(self.disks):
            disk = self.disks[partition]
            for directory in ("", *disk.directories()):
                for name in disk.files(directory):
                    path = f"{directory}/{name}" if directory else name
                    content = disk.content_of(path)
                    assert content is not None, "a file that is listed is there"
                    yield f"{partition} {path}", content
