"""The host of a node: performs what the node decides, one thing at a time, over journals.

Rule: appends of a step are written before its effects happen, and nothing happens twice. Between any two
calls of `work` the process may die: what a journal then holds is all that the next start goes by.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple, Protocol

import attrs

from fencepost.broker.cluster.controller import METADATA_PARTITION
from fencepost.broker.contract import (
    NODE,
    Answered,
    Append,
    Assign,
    BecomeLeader,
    Durable,
    Effect,
    Input,
    LogStartMoved,
    MoveLogStart,
    Outcome,
    Received,
    Remove,
    Reply,
    ReplyFetched,
    ReplyListed,
    ReplyTo,
    ResignLeader,
    Send,
    Started,
    StorageFailed,
    Tick,
    WakeMe,
    Warn,
)
from fencepost.broker.dispatch import step
from fencepost.broker.node import Node
from fencepost.broker.partitions import fetch, partition
from fencepost.broker.partitions.partition import Partition
from fencepost.journal.journal import Journal, StaleLeader
from fencepost.journal.manifest import ManifestState
from fencepost.journal.open_transactions import OpenTransaction
from fencepost.journal.storage import StorageError
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.terms import (
    CLUSTER_METADATA_TOPIC,
    INTERNAL_TOPICS,
    NO_OFFSET,
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


class MetadataLost(StorageError):
    """The log of the cluster's metadata failed; a node cannot go on without it and stops."""


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


@attrs.define(eq=False)
class Host:
    """One node over one data directory, which nodes of a simulated cluster share. `answers` and `outbox` are
    for the shell to send, `unsynced` for it to sync, `troubles` for it to tell people.
    """

    node: Node
    directory: Journals
    policy: SyncPolicy = SyncPolicy.NONE
    watch: Watch | None = None
    inbox: deque[Input] = attrs.Factory(deque[Input])
    to_do: deque[Append | Effect] = attrs.Factory(deque[Append | Effect])
    answers: list[Reply] = attrs.Factory(list[Reply])
    outbox: list[Send] = attrs.Factory(list[Send])
    carries_own: bool = True  # False: what the node asks itself leaves by the outbox, too
    held: dict[TopicPartition, Held] = attrs.Factory(dict[TopicPartition, Held])
    unsynced: set[TopicPartition] = attrs.Factory(set[TopicPartition])
    changed: set[TopicPartition] = attrs.Factory(set[TopicPartition])
    written: dict[TopicPartition, int] = attrs.Factory(dict[TopicPartition, int])
    troubles: list[str] = attrs.Factory(list[str])
    requests_waiting: int = 0  # of clients, in the inbox
    wakes_at_ms: int | None = None

    # --- starting and stopping

    def start(self, now: int) -> None:
        """Take over the metadata log, if this is the controller's node; then every partition that it says is
        ours.
        """
        if self.node_id == self.node.settings.controller_id:
            epoch = self.directory.journal(METADATA_PARTITION).leader_epoch + 1
            self._lead(Assign(partition=METADATA_PARTITION, leader_id=self.node_id, leader_epoch=epoch), now)
            for key in self.directory.partitions():
                if key.topic in self.node.cluster.removed:
                    self.directory.delete(key)  # a kill came between the deletion's record and the deletion
        self.inbox.append(Started(node_id=self.node_id))

    @property
    def node_id(self) -> int:
        return self.node.settings.node_id

    def stop(self) -> None:
        """Close the journals that this node leads so that the next start need not read them. StorageError
        when a disk does not let us.
        """
        for key in sorted(self.held):
            log, (journal, _) = self.node.logs.get(key), self.held[key]
            if log is None or not self._still_writes(key):
                continue
            # Whoever stops in the middle of things has seen appends that no log holds: a snapshot with them
            # would answer the client that sends them again as if they were there.
            if log.partition.log_end_offset != journal.log_end_offset:
                journal.close()
            else:
                journal.close(manifest_of(log.partition), partition.snapshot(log.partition))
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
            self._take(arrived, now)

    def work_until_idle(self, now: int) -> None:
        """Do everything that can be done at time `now` (milliseconds)."""
        while self.to_do or self.inbox:
            self.work(now)

    def tick(self, now: int) -> None:
        """Offer a Tick when one is due."""
        if self.wakes_at_ms is not None and self.wakes_at_ms <= now:
            self.wakes_at_ms = None
            self.inbox.append(Tick())

    def _take(self, arrived: Input, now: int) -> None:
        outcome = step(self.node, arrived, now)
        self.to_do.extend(outcome.appends)
        self.to_do.extend(outcome.effects)
        if self.watch is not None:
            self.watch(arrived, outcome)

    def _perform(self, act: Append | Effect, now: int) -> None:
        match act:
            case Append():
                self._write(act)
            case Reply():
                self._answer(act)
            case Send():
                self._send(act)
            case ReplyFetched():
                self._answer(Reply(act.to, body=fetch.complete_fetch(act, self._journal)))
            case ReplyListed():
                self._answer(Reply(act.to, body=fetch.complete_list(act, self._journal)))
            case MoveLogStart():
                self._move_log_start(act)
            case Assign():
                self._lead(act, now)
            case Remove():
                self._remove(act.partition)
            case WakeMe():
                earlier = self.wakes_at_ms
                self.wakes_at_ms = act.at_ms if earlier is None else min(earlier, act.at_ms)
            case Warn():
                self.troubles.append(act.because)

    def _send(self, send: Send) -> None:
        if send.node_id == self.node_id and self.carries_own:
            to = ReplyTo(NODE, send.token)
            self.inbox.append(Received(send.request, to=to, version=send.version, from_node=self.node_id))
        else:
            self.outbox.append(send)

    def _answer(self, reply: Reply) -> None:
        if reply.to.connection == NODE:
            self.inbox.append(Answered(token=reply.to.correlation_id, error=reply.error, body=reply.body))
        else:
            self.answers.append(reply)

    # --- logs

    def _hold(self, key: TopicPartition, leader_epoch: int) -> Held:
        """The log as this leadership found it. Whoever was replaced and does not know it yet must not come
        upon the log of a later leader, or of a later topic, under the same name.
        """
        held = self.held[key] = Held(self.directory.journal(key), leader_epoch)
        return held

    def _journal(self, key: TopicPartition) -> Journal:
        """The log of a partition that this node leads; StorageError when it is deleted, or died with an
        heir.
        """
        held = self.held.get(key)
        if held is None:
            held = self._hold(key, self.node.logs[key].partition.leader_epoch)
        elif not self.directory.holds(held.journal):
            raise StorageError(f"{key}: the log that this node led is gone")
        return held.journal

    def _still_writes(self, key: TopicPartition) -> bool:
        """Whether this host is the newest to lead the partition, and its log neither deleted nor given up."""
        held = self.held.get(key)
        return held is not None and held.is_newest and self.directory.holds(held.journal)

    def _write(self, append: Append) -> None:
        """Write one batch; the policy says whether that is safe enough for those who wait."""
        key = append.partition
        try:
            held = self.held.get(key) or self._hold(key, append.leader_epoch)
            held.journal.append(
                append.batch, append.header, leader_epoch=append.leader_epoch, aborted=append.aborted
            )
            if held.journal.is_full or held.journal.snapshot_due:
                self._roll(held.journal)
        except StorageError as problem:
            self._lose(key, problem)
            return
        except StaleLeader:
            self._drop_appends(key)
            self.inbox.appendleft(ResignLeader(partition=key))
            return
        self.changed.add(key)
        self.written[key] = end = append.header.next_offset
        if self.policy is not SyncPolicy.NONE and (key in self.unsynced or _waits(self.policy, append)):
            self.unsynced.add(key)
        else:
            self.inbox.appendleft(Durable(partition=key, offset=end))

    def _move_log_start(self, order: MoveLogStart) -> None:
        key, error, batch_start = order.partition, ErrorCode.NOT_LEADER_OR_FOLLOWER, NO_OFFSET
        if self._still_writes(key):
            try:
                batch_start, error = self.held[key].journal.move_log_start(order.offset), NO_ERROR
                self.changed.add(key)
            except StorageError as problem:
                self._lose(key, problem)
                error = ErrorCode.KAFKA_STORAGE_ERROR
        self.inbox.appendleft(LogStartMoved(order, batch_start=batch_start, error=error))

    def _roll(self, journal: Journal) -> None:
        """A full segment is followed by a new one, with a snapshot of the producers at the log end."""
        log = self.node.logs.get(journal.partition)
        if log is not None and log.partition.log_end_offset == journal.log_end_offset:
            producers = partition.snapshot(log.partition)
            journal.roll(producers) if journal.is_full else journal.write_snapshot(producers)

    def synced(self, key: TopicPartition, offset: int) -> None:
        """A sync of this partition's log has ended well: it survives the loss of power up to `offset`."""
        if self.written.get(key, 0) <= offset:
            self.unsynced.discard(key)
        # A log that others lead by now may be safe further than this host wrote: that is not about its own.
        self.inbox.append(Durable(partition=key, offset=min(offset, self.written.get(key, 0))))

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
        if key not in self.held or self._still_writes(key):
            self.directory.give_up(key)
        self.held.pop(key, None)
        self.inbox.appendleft(StorageFailed(partition=key))

    def _drop_appends(self, key: TopicPartition) -> None:
        """Nothing more is written to a log that this node has lost."""
        self.to_do = deque(
            act for act in self.to_do if not (isinstance(act, Append) and act.partition == key)
        )
        self.unsynced.discard(key)

    @property
    def is_alone(self) -> bool:
        """Nobody else ever led what this node leads, nor will: a log need not be there before the first
        append.
        """
        return len(self.node.cluster.brokers) <= 1

    def _lead(self, assign: Assign, now: int) -> None:
        """Bring the partition's log to the node that leads it now."""
        key = assign.partition
        self.held.pop(key, None)
        try:
            if assign.is_new:
                self._clear_away(assign)
            if self.directory.has(key) or not self.is_alone:
                self._load(assign, now)
            else:
                self._take(BecomeLeader(partition=key, leader_epoch=assign.leader_epoch), now)
        except StorageError as problem:
            self._lose(key, problem)
        except StaleLeader as problem:
            # The metadata log lost its end with the power, and the next elections will pass this epoch; or
            # there was an election that this node has not heard of, and the controller will tell.
            self.troubles.append(f"{key}: {problem}")
            self.inbox.appendleft(StorageFailed(partition=key))

    def _clear_away(self, assign: Assign) -> None:
        """A new partition has no records yet, unless another node leads it already and this one is late."""
        key = assign.partition
        if self.directory.has(key) and (
            self.is_alone or self.directory.journal(key).leader_epoch < assign.leader_epoch
        ):
            self.troubles.append(f"{key}: deleted what was left of an older topic")
            self.directory.delete(key)

    def _load(self, assign: Assign, now: int) -> None:
        key = assign.partition
        journal = self._hold(key, assign.leader_epoch).journal
        if journal.dropped is not None:
            self.troubles.append(journal.dropped)
            journal.dropped = None
        is_restart = assign.was_leader and journal.is_fresh
        journal.lead(assign.leader_epoch)
        if self.policy is not SyncPolicy.NONE:
            journal.sync()  # what recovery found in the file is promised to readers again
        found = journal.newest_snapshot(journal.log_end_offset) if may_use_snapshot(key) else None
        order = BecomeLeader(
            partition=key,
            leader_epoch=assign.leader_epoch,
            log_start_offset=journal.log_start_offset,
            oldest_offset=journal.oldest_offset,
            batch_start=journal.batch_start(journal.log_start_offset),
            snapshot=None if found is None else (found[0], tuple(found[1])),
            is_restart=is_restart,
            batches=journal.batches(journal.oldest_offset if found is None else found[0]),
        )
        # The node reads the log in this very step: nothing else may be written to it in between.
        self._take(order, now)
        self.written[key] = journal.log_end_offset
        self.changed.add(key)

    def _remove(self, key: TopicPartition) -> None:
        self.held.pop(key, None)
        self.changed.discard(key)
        self.unsynced.discard(key)
        if self.directory.has(key):
            self.directory.delete(key)

    def write_manifests(self) -> None:
        """Tell readers without a broker how far each changed log goes now."""
        for key in self.changed:
            log = self.node.logs.get(key)
            if log is not None and self._still_writes(key):
                try:
                    self.held[key].journal.write_manifest(manifest_of(log.partition))
                except StorageError as problem:
                    self._lose(key, problem)
        self.changed.clear()


# Under `commit`, decisions and identities are as precious as the data they are about.
_COORDINATION: Final = frozenset({TRANSACTION_STATE_TOPIC, CLUSTER_METADATA_TOPIC})


def _waits(policy: SyncPolicy, append: Append) -> bool:
    """Whether an acknowledgement of this batch waits for a sync."""
    return policy is SyncPolicy.ALL or (
        policy is SyncPolicy.COMMIT
        and (append.header.is_transactional or append.partition.topic in _COORDINATION)
    )
