"""How a host begins to lead the log of a partition, and how it deletes the log of a topic that is gone.

Rule: only what the metadata has removed is deleted; files that it does not know are moved aside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from fencepost.broker.contract import Assign, BecomeLeader, Remove, RemoveFailed, StorageFailed
from fencepost.broker.sync_policy import SyncPolicy
from fencepost.journal.indexes import ProducerSnapshot
from fencepost.journal.journal import Journal, StaleLeader
from fencepost.journal.storage import StorageError
from fencepost.protocol.terms import INTERNAL_TOPICS, METADATA_PARTITION, TopicPartition

if TYPE_CHECKING:
    from fencepost.broker.host import Host


class FilesInTheWay(StorageError):
    """Files of an unknown topic lie where a new partition begins, and the broker cannot move them: an
    operator has to.
    """


def may_use_snapshot(key: TopicPartition) -> bool:
    """Snapshots hold producers only, so a log with a coordinator on top is read from its start."""
    return key.topic not in INTERNAL_TOPICS


FoundSnapshot = tuple[int, Sequence[ProducerSnapshot]]
"""The offset of a snapshot, and its producers."""


def order_to_lead(
    journal: Journal, leader_epoch: int, found: FoundSnapshot | None, *, is_restart: bool
) -> BecomeLeader:
    """What a new leader learns of its log. `batches` is lazy: the log must not change before it is read."""
    return BecomeLeader(
        partition=journal.partition,
        leader_epoch=leader_epoch,
        log_start_offset=journal.log_start_offset,
        oldest_offset=journal.segments.oldest_offset,
        batch_start=journal.segments.batch_start(journal.log_start_offset),
        snapshot=None if found is None else (found[0], tuple(found[1])),
        is_restart=is_restart,
        batches=journal.segments.batches(journal.segments.oldest_offset if found is None else found[0]),
    )


@attrs.define(eq=False)
class LedLogs:
    """The logs that one host leads: opens those that it begins to lead, deletes those of deleted topics."""

    host: Host

    def lead(self, assign: Assign, now: int) -> None:
        """Load the partition's log, and give it to the node as BecomeLeader."""
        host, key = self.host, assign.partition
        # Each leadership opens its log under its own epoch: `_load` does, or without files the first append.
        host.held.pop(key, None)
        try:
            if assign.is_new:
                self._set_aside(assign)
            if host.directory.has(key) or not self._is_alone:
                self._load(assign, now)
            else:
                host.take(BecomeLeader(partition=key, leader_epoch=assign.leader_epoch), now)
        except StorageError as problem:
            host.lose(key, problem)
        except StaleLeader as problem:
            # Either a loss of power took the end of the metadata log, and later elections will exceed this
            # epoch; or another election has happened, and the controller will report it. Retry later.
            host.warn(f"{key}: {problem}")
            host.inbox.appendleft(StorageFailed(partition=key))

    def _set_aside(self, assign: Assign) -> None:
        """Move files away that lie where a new partition begins, unless a newer leader already writes there.

        Files of a partition that the metadata removed were deleted by `Host.start` or `remove`. So the
        metadata lost its records, or an operator put the files there: either way someone may need them.
        """
        host, key = self.host, assign.partition
        if host.directory.has(key) and (
            self._is_alone or host.directory.journal(key).leader_epoch < assign.leader_epoch
        ):
            try:
                aside = host.directory.set_aside(key)
            except StorageError as problem:
                raise FilesInTheWay(
                    f"{problem}. {key} has files of a topic that the metadata does not know, so the new "
                    f"partition is not served. Stop the broker, and move {key} out of the data directory "
                    "before it starts again. Do not delete the topic: files without a manifest go with it"
                ) from problem
            if aside is not None:
                text = f"{key}: found files of a topic that the metadata does not know; moved them to {aside}"
                host.warn(text)

    def _load(self, assign: Assign, now: int) -> None:
        host, key = self.host, assign.partition
        journal = host.hold(key, assign.leader_epoch, assign.topic_id).journal
        if journal.dropped is not None:
            host.warn(journal.dropped)
            journal.dropped = None
        host.upkeep.forget(key)
        # A node that opens its log anew knows only the last batch of each producer, as Kafka does after a
        # restart; an election while the log is open loses none.
        is_restart = assign.was_leader and journal.is_fresh
        journal.lead(assign.leader_epoch)
        if host.policy is not SyncPolicy.NONE:
            journal.sync()  # readers will see the recovered batches, so these must not vanish again
        found = journal.newest_snapshot(journal.log_end_offset) if may_use_snapshot(key) else None
        for removed in journal.take_removed_snapshots():
            host.warn(removed)
        if found is None and journal.segments.oldest_offset and may_use_snapshot(key):
            host.warn(
                f"{key}: the records before offset {journal.segments.oldest_offset} were deleted, and no "
                "snapshot is left that names their producers. If one of these retries its last batch, the "
                "batch is stored again"
            )
        order = order_to_lead(journal, assign.leader_epoch, found, is_restart=is_restart)
        host.take(order, now)  # reads the log within this step, before anything else writes to it
        host.written[key] = journal.log_end_offset
        host.changed[key] = None

    def remove(self, removed: Remove) -> None:
        """Delete the files of a partition that the metadata has removed."""
        host, key = self.host, removed.partition
        self._sync_deletion()
        host.upkeep.forget(key)
        host.held.pop(key, None)
        host.changed.pop(key, None)
        host.written.pop(key, None)
        host.unsynced.discard(key)
        if host.directory.has(key):
            self.delete(key, removed.topic_id)
        # Sync once for all partitions of a topic, and before the next record of the metadata is written.
        if not (host.to_do and isinstance(host.to_do[0], Remove)):
            try:
                host.directory.finish_deleting()
            except StorageError as problem:
                host.disk_failed(f"{key}: {problem}; a loss of power may bring the deleted log back")

    def _sync_deletion(self) -> None:
        """Make the record of a deletion durable before the files go: a loss of power must not take it alone,
        and bring the topic back without them.
        """
        host = self.host
        if host.policy is SyncPolicy.NONE:  # under the others, it was durable before anyone acted on it
            try:
                host.led_journal(METADATA_PARTITION).sync()
            except StorageError as problem:
                host.lose(METADATA_PARTITION, problem)

    def delete(self, key: TopicPartition, topic_id: bytes) -> None:
        """Delete the files of a partition; files of another topic of its name are moved aside."""
        host = self.host
        try:
            aside = host.directory.delete(key, topic_id)
            if aside is not None:
                host.warn(f"{key}: found files of another topic than the deleted one; moved them to {aside}")
        except StorageError as problem:
            host.disk_failed(
                f"{key}: {problem}; the topic is deleted, and no other one can have its name until a start "
                "of the broker deletes these files"
            )
            host.inbox.appendleft(RemoveFailed(partition=key))

    @property
    def _is_alone(self) -> bool:
        """Whether this is a cluster of one. Then the files of a new partition may wait for its first append:
        no other node needs to find them.
        """
        return len(self.host.node.cluster.brokers) <= 1
