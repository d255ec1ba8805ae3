"""The host of a node: performs what the node decides, one thing at a time, over journals.

Rule: appends of a step are written before its effects happen, and nothing happens twice. Between any two
calls of `work` the process may die: what a journal then holds is all that the next start goes by.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Final, Protocol

import attrs

from fencepost.broker import partition, reading
from fencepost.broker.controller import METADATA_PARTITION, NEW_LEADER_EPOCH
from fencepost.broker.node import Node
from fencepost.broker.routing import step
from fencepost.broker.words import (
    NODE,
    Answered,
    Append,
    Assign,
    Durable,
    Effect,
    Input,
    Lead,
    Outcome,
    Received,
    Remove,
    Reply,
    ReplyFetched,
    ReplyListed,
    ReplyTo,
    Resign,
    Send,
    Started,
    StorageFailed,
    Tick,
    WakeMe,
)
from fencepost.journal.journal import Journal, StaleLeader
from fencepost.journal.manifest import ManifestState
from fencepost.journal.open_transactions import OpenTransaction
from fencepost.journal.storage import StorageError
from fencepost.protocol.batches import BatchHeader
from fencepost.protocol.terms import (
    CLUSTER_METADATA_TOPIC,
    INTERNAL_TOPICS,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)


class SyncPolicy(Enum):
    """What an acknowledgement waits for: `--sync`."""

    NONE = "none"  # the write: survives kills of the process, not the loss of power; Kafka's default
    COMMIT = "commit"  # the sync, for all that belongs to transactions: data, offsets, markers, decisions
    ALL = "all"  # the sync, always


MANIFEST_INTERVAL_MS: Final = 200  # readers without a broker see at most this much less than there is

Watch = Callable[[Input, Outcome], None]
"""Sees each step: the input that the node took, and what it led to."""


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


class MetadataLost(StorageError):
    """The log of the cluster's metadata failed; a node cannot go on without it and stops."""


@attrs.define(eq=False)
class Host:
    """One node over one data directory. `answers` is for the shell to send, `unsynced` for it to sync,
    `troubles` for it to tell people.
    """

    node: Node
    directory: Journals
    policy: SyncPolicy = SyncPolicy.NONE
    watch: Watch | None = None
    inbox: deque[Input] = attrs.Factory(deque[Input])
    to_do: deque[Append | Effect] = attrs.Factory(deque[Append | Effect])
    answers: list[Reply] = attrs.Factory(list[Reply])
    unsynced: set[TopicPartition] = attrs.Factory(set[TopicPartition])
    changed: set[TopicPartition] = attrs.Factory(set[TopicPartition])
    written: dict[TopicPartition, int] = attrs.Factory(dict[TopicPartition, int])
    troubles: list[str] = attrs.Factory(list[str])
    requests_waiting: int = 0  # of clients, in the inbox
    wakes_at_ms: int | None = None

    # --- starting and stopping

    def start(self, now: int) -> None:
        """Take over the data directory: the metadata log first, then every partition that it says is ours."""
        journal = self.directory.journal(METADATA_PARTITION)
        epoch = journal.leader_epoch + 1
        self._lead(Assign(partition=METADATA_PARTITION, leader_id=self.node_id, leader_epoch=epoch), now)
        for key in self.directory.partitions():
            if key.topic in self.node.cluster.removed:
                self.directory.delete(key)  # a kill came between the deletion's record and the deletion
        self.inbox.append(Started(node_id=self.node_id))

    @property
    def node_id(self) -> int:
        return self.node.settings.node_id

    def stop(self) -> None:
        """Close every journal so that the next start need not read it. StorageError when a disk does not
        let us.
        """
        for key in self.directory.opened():
            log, journal = self.node.logs.get(key), self.directory.journal(key)
            # Whoever stops in the middle of things has seen appends that no log holds: a snapshot with them
            # would answer the client that sends them again as if they were there.
            if log is None or log.partition.log_end_offset != journal.log_end_offset:
                journal.close()
            else:
                journal.close(_manifest(log.partition), partition.snapshot(log.partition))
        self.directory.close()

    # --- working

    @property
    def is_idle(self) -> bool:
        """Nothing is left to do until somebody offers an input or a sync ends."""
        return not self.to_do and not self.inbox

    def offer(self, arrived: Input) -> None:
        """An input from outside; it is taken after those that are there already."""
        self.inbox.append(arrived)
        if type(arrived) is Received:
            self.requests_waiting += 1

    def work(self, now: int) -> None:
        """Do the next thing: write one append, make one effect happen, or let the node take one input."""
        if self.to_do:
            self._perform(self.to_do.popleft(), now)
        elif self.inbox:
            arrived = self.inbox.popleft()
            if type(arrived) is Received and arrived.to.connection != NODE:
                self.requests_waiting -= 1
            outcome = step(self.node, arrived, now)
            self._schedule(outcome)
            if self.watch is not None:
                self.watch(arrived, outcome)

    def work_until_idle(self, now: int) -> None:
        """Do everything that can be done at time `now` (milliseconds)."""
        while self.to_do or self.inbox:
            self.work(now)

    def tick(self, now: int) -> None:
        """Offer a Tick when one is due."""
        if self.wakes_at_ms is not None and self.wakes_at_ms <= now:
            self.wakes_at_ms = None
            self.inbox.append(Tick())

    def _schedule(self, outcome: Outcome) -> None:
        self.to_do.extend(outcome.appends)
        self.to_do.extend(outcome.effects)

    def _perform(self, act: Append | Effect, now: int) -> None:
        match act:
            case Append():
                self._write(act)
            case Reply():
                self._answer(act)
            case ReplyFetched():
                self._answer(Reply(act.to, body=reading.complete_fetch(act, self.directory.journal)))
            case ReplyListed():
                self._answer(Reply(act.to, body=reading.complete_list(act, self.directory.journal)))
            case Send():
                assert act.node_id == self.node_id, "this host has one node"
                self.inbox.append(Received(act.request, to=ReplyTo(NODE, act.token)))
            case Assign():
                if act.leader_epoch == NEW_LEADER_EPOCH and self.directory.has(act.partition):
                    self.troubles.append(f"{act.partition}: deleted what was left of an older topic")
                    self.directory.delete(act.partition)
                self._lead(act, now)
            case Remove():
                self._remove(act.partition)
            case WakeMe():
                earlier = self.wakes_at_ms
                self.wakes_at_ms = act.at_ms if earlier is None else min(earlier, act.at_ms)

    def _answer(self, reply: Reply) -> None:
        if reply.to.connection == NODE:
            self.inbox.append(Answered(token=reply.to.correlation_id, error=reply.error, body=reply.body))
        else:
            self.answers.append(reply)

    # --- logs

    def _write(self, append: Append) -> None:
        """Write one batch; the policy says whether that is safe enough for those who wait."""
        key = append.partition
        journal = self.directory.journal(key)
        try:
            journal.append(
                append.batch, append.header, leader_epoch=append.leader_epoch, aborted=append.aborted
            )
            self._roll(journal)
        except StorageError as problem:
            self._lose(key, problem)
            return
        except StaleLeader:
            self._drop_appends(key)
            self.inbox.appendleft(Resign(partition=key))
            return
        self.changed.add(key)
        self.written[key] = append.header.next_offset
        if key in self.unsynced or _waits(self.policy, key, append.header):
            self.unsynced.add(key)
        else:
            self.inbox.appendleft(Durable(partition=key, offset=append.header.next_offset))

    def _roll(self, journal: Journal) -> None:
        """A full segment is followed by a new one, with a snapshot of the producers as they stand at the
        log end.
        """
        log = self.node.logs.get(journal.partition)
        at_end = log is not None and log.partition.log_end_offset == journal.log_end_offset
        if log is not None and at_end and (journal.is_full or journal.snapshot_due):
            producers = partition.snapshot(log.partition)
            journal.roll(producers) if journal.is_full else journal.write_snapshot(producers)

    def synced(self, key: TopicPartition, offset: int) -> None:
        """A sync of this partition's log has ended well: it survives the loss of power up to `offset`."""
        if self.written.get(key, 0) <= offset:
            self.unsynced.discard(key)
        self.inbox.append(Durable(partition=key, offset=offset))

    def sync_failed(self, key: TopicPartition, problem: Exception) -> None:
        """Nobody knows what a second sync would have written: leadership is given up and the log read
        again.
        """
        self._lose(key, problem)

    def _lose(self, key: TopicPartition, problem: Exception) -> None:
        if key == METADATA_PARTITION:
            raise MetadataLost(f"the log of the cluster's metadata failed: {problem}") from problem
        self.troubles.append(f"{key}: {problem}")
        self._drop_appends(key)
        self.directory.give_up(key)
        self.inbox.appendleft(StorageFailed(partition=key))

    def _drop_appends(self, key: TopicPartition) -> None:
        """Nothing more is written to a log that this node has lost."""
        self.to_do = deque(
            act for act in self.to_do if not (isinstance(act, Append) and act.partition == key)
        )
        self.unsynced.discard(key)

    def _lead(self, assign: Assign, now: int) -> None:
        """Bring the partition's log to the node that leads it now."""
        try:
            if self.directory.has(assign.partition):
                self._load(assign, now)
            else:
                self.inbox.append(Lead(partition=assign.partition, leader_epoch=assign.leader_epoch))
        except (StorageError, StaleLeader) as problem:
            # A stale epoch: the metadata log lost its end with the power. The next elections will pass it.
            self._lose(assign.partition, problem)

    def _load(self, assign: Assign, now: int) -> None:
        key = assign.partition
        journal = self.directory.journal(key)
        if journal.dropped is not None:
            self.troubles.append(f"{key}: {journal.dropped}")
            journal.dropped = None
        journal.lead(assign.leader_epoch)
        if self.policy is not SyncPolicy.NONE:
            journal.sync()  # what recovery found in the file is promised to readers again
        found = journal.newest_snapshot(journal.log_end_offset) if _may_use_snapshot(key) else None
        order = Lead(
            partition=key,
            leader_epoch=assign.leader_epoch,
            log_start_offset=journal.log_start_offset,
            snapshot=None if found is None else (found[0], tuple(found[1])),
            batches=journal.batches(journal.log_start_offset if found is None else found[0]),
        )
        # The node reads the log in this very step: nothing else may be written to it in between.
        self._schedule(step(self.node, order, now))
        self.written[key] = journal.log_end_offset
        self.changed.add(key)

    def _remove(self, key: TopicPartition) -> None:
        self.inbox.appendleft(Resign(partition=key))
        self.changed.discard(key)
        self.unsynced.discard(key)
        if self.directory.has(key):
            self.directory.delete(key)

    def write_manifests(self) -> None:
        """Tell readers without a broker how far each changed log goes now."""
        for key in self.changed:
            log = self.node.logs.get(key)
            if log is not None and self.directory.has(key):
                try:
                    self.directory.journal(key).write_manifest(_manifest(log.partition))
                except StorageError as problem:
                    self._lose(key, problem)
        self.changed.clear()


# Under `commit`, decisions and identities are as precious as the data they are about.
_COORDINATION: Final = frozenset({TRANSACTION_STATE_TOPIC, CLUSTER_METADATA_TOPIC})


def _waits(policy: SyncPolicy, key: TopicPartition, header: BatchHeader) -> bool:
    """Whether an acknowledgement of this batch waits for a sync."""
    return policy is SyncPolicy.ALL or (
        policy is SyncPolicy.COMMIT and (header.is_transactional or key.topic in _COORDINATION)
    )


def _may_use_snapshot(key: TopicPartition) -> bool:
    """A coordinator's state is in no snapshot: what lies under one is read from the start of its log."""
    return key.topic not in INTERNAL_TOPICS


def _manifest(state: partition.Partition) -> ManifestState:
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
