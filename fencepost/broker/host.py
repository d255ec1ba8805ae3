"""The host of a node: it performs the node's outcomes over journals, one action at a time.

Rule: the appends of a step are written before its effects happen. The process may die between any two.
"""

# Theory of operation
#
# A node only decides. The host owns the journals and turns outcomes into writes and messages. It has no
# threads and no sockets: a shell (server.py, or a simulated process) offers inputs, calls `work`, sends
# `answers` and `outbox`, and syncs the logs in `unsynced`.
#
#     shell --- offer ---> inbox --- step ---> to_do:  Append, Append, Effect, Effect, ...
#                            ^                   |
#                            |                   +-- Append: write to the journal
#                            +---- Durable ------+       policy none: durable as soon as it is written
#                            +---- Answered -----+       commit, all: in `unsynced`, until `synced`
#                            +---- Received -----+-- Send to this node: an input; to others: `outbox`
#                                                +-- Reply to this node: an input; to clients: `answers`
#
# `work` performs one action from `to_do`, or lets the node take one input when `to_do` is empty. So a step is
# finished completely, appends first, before the next step begins. A kill between two actions is a legal run:
# the journal then holds a prefix of the appends, and no effect of a missing append has left the process.
#
# A Durable goes to the front of the inbox, both after a write and after a sync. It only reports what is
# already true, and it releases replies; after a queue of requests it would delay them all. It also bounds
# memory: each Durable empties the node's queue of waiting effects before more requests add to it. The order
# of two Durables does not matter: those of one log rise, the node ignores a lower one, and no rule compares
# two logs. StorageFailed and LogStartMoved jump the queue, too, for another reason: the node must not decide
# further on a log whose state it does not know. So does RemoveFailed: a new topic must not find the files
# of a deleted one.
#
# Sync policies: `none` reports Durable after the write, which survives a kill of the process. `commit` and
# `all` put the log into `unsynced`; the shell syncs it and calls `synced`. Once a log is in `unsynced`, its
# later batches wait, too, since Durable is a prefix of the log and never skips a batch.
#
# When a write or a sync fails, it is unknown which bytes are on the disk, and a second fsync may succeed
# without having written them (the page is clean by then). So it is not repeated. The host drops the appends
# of this log that are still queued, closes the journal, and reports StorageFailed. The node sends an error to
# everyone who waits, and asks the controller for a new leader epoch; `led_logs.py` then reads the log again
# from the disk. Kafka takes a whole log directory offline instead (LogManager.handleLogDirFailure). The
# metadata log has no controller above it, so its failure stops the process (MetadataLost). A log that is
# damaged, or that this process has no right to read, stays out of service until the next start.
#
# Each log is held together with the leader epoch under which this host opened it (`Held`). In a simulated
# cluster the journals outlive their node: a replaced leader must neither write to the log of its successor
# nor report durability for it. `Journal.append` checks the epoch and raises StaleLeader; the host resigns.

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, Final, NamedTuple, Protocol

import attrs

from fencepost.broker.contract import (
    NODE,
    Answered,
    Append,
    Assign,
    BecomeLeader,
    CleanLog,
    Configure,
    Durable,
    Effect,
    ExpireLog,
    Input,
    LogStartMoved,
    MeasureFetch,
    MoveLogStart,
    Outcome,
    Received,
    Remove,
    Reply,
    ReplyEpochEnds,
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
from fencepost.broker.led_logs import FilesInTheWay, LedLogs
from fencepost.broker.log_cleanup import orders_to_clean_coordinators
from fencepost.broker.node import Node
from fencepost.broker.partitions import partition
from fencepost.broker.partitions.partition import Partition
from fencepost.broker.reads import Reads
from fencepost.broker.sync_policy import SyncPolicy, needs_sync
from fencepost.broker.troubles import Trouble, TroubleKind
from fencepost.broker.upkeep import Upkeep
from fencepost.journal.indexes import ProducerSnapshot
from fencepost.journal.journal import Journal, StaleLeader
from fencepost.journal.manifest import ManifestState
from fencepost.journal.open_transactions import OpenTransaction
from fencepost.journal.storage import DamagedLog, NoAccess, StorageError
from fencepost.protocol.errors import NO_ERROR, ErrorCode, ProtocolViolation
from fencepost.protocol.terms import (
    INTERNAL_TOPICS,
    METADATA_PARTITION,
    NO_OFFSET,
    NO_TOPIC_ID,
    TopicPartition,
)

MANIFEST_INTERVAL_MS: Final = 200  # readers without a broker lag this far, and more with many partitions
MANIFESTS_MAX: Final = 200  # written at a time, in about 20 ms: requests come in between

Watch = Callable[[Input, Outcome], None]
"""Observes each step: the input that the node took, and the outcome."""


class MetadataLost(StorageError):
    """The log of the cluster's metadata failed. A node cannot run without it and stops."""


class Journals(Protocol):
    """The logs that a host works on: a DataDirectory, or a simulator's substitute."""

    @property
    def warning(self) -> str: ...

    def journal(self, partition: TopicPartition, topic_id: bytes = NO_TOPIC_ID) -> Journal: ...

    def has(self, partition: TopicPartition) -> bool: ...

    def partitions(self) -> list[TopicPartition]: ...

    def holds(self, journal: Journal) -> bool: ...

    def give_up(self, partition: TopicPartition) -> None: ...

    def delete(self, partition: TopicPartition, topic_id: bytes) -> str | None: ...

    def set_aside(self, partition: TopicPartition) -> str | None: ...

    def finish_deleting(self) -> None: ...

    def close(
        self, led: Mapping[TopicPartition, tuple[ManifestState, Sequence[ProducerSnapshot]]]
    ) -> None: ...

    def abandon(self) -> None: ...


class Held(NamedTuple):
    """A log that this host writes to under one leader epoch; a later leadership has its own."""

    journal: Journal
    leader_epoch: int

    @property
    def is_newest(self) -> bool:
        return self.journal.leader_epoch <= self.leader_epoch


def manifest_of(state: Partition) -> ManifestState:
    """The offsets up to which readers without a broker may read."""
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
    """One node over one data directory, which the nodes of a simulated cluster share. The shell sends
    `answers` and `outbox`, syncs the logs in `unsynced`, and logs `troubles`.
    """

    node: Node
    directory: Journals
    policy: SyncPolicy = SyncPolicy.NONE
    watch: Watch | None = None
    wrote: Callable[[Append], None] | None = None  # called with each batch once it is in its log
    inbox: deque[Input] = attrs.Factory(deque[Input])
    to_do: deque[Append | Effect] = attrs.Factory(deque[Append | Effect])
    answers: list[Reply] = attrs.Factory(list[Reply])
    outbox: list[Send] = attrs.Factory(list[Send])
    carries_own: bool = True  # False: requests of the node to itself leave by the outbox, too
    held: dict[TopicPartition, Held] = attrs.Factory(dict[TopicPartition, Held])
    unsynced: set[TopicPartition] = attrs.Factory(set[TopicPartition])
    changed: dict[TopicPartition, None] = attrs.Factory(dict[TopicPartition, None])  # in order
    written: dict[TopicPartition, int] = attrs.Factory(dict[TopicPartition, int])
    troubles: list[Trouble] = attrs.Factory(list[Trouble])
    contains_failures: bool = False  # a server does; in tests and simulations an exception ends the run
    requests_waiting: int = 0  # client requests in the inbox
    wakes_at_ms: int | None = None
    led_logs: LedLogs = attrs.field(init=False)
    reads: Reads = attrs.field(init=False)
    upkeep: Upkeep = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.led_logs, self.reads, self.upkeep = LedLogs(self), Reads(self), Upkeep(self)
        if self.contains_failures:
            self.node.contain = self._contain

    # --- starting and stopping

    def start(self, now: int) -> None:
        """Lead the metadata log if this is the controller's node. Its records then assign the partitions."""
        if self.directory.warning:
            self.warn(self.directory.warning)
        if self.node_id == self.node.settings.controller_id:
            # The controller elects everyone but itself; a rising epoch fences its own earlier incarnation.
            epoch = self.directory.journal(METADATA_PARTITION).leader_epoch + 1
            assign = Assign(partition=METADATA_PARTITION, leader_id=self.node_id, leader_epoch=epoch)
            self.led_logs.lead(assign, now)
            # Before any partition is led: a new topic of the name would find the files of the old one.
            for key in self.directory.partitions():
                removed = self.node.cluster.removed.get(key.topic)
                if removed is not None:  # a kill came between the TopicRemoved record and this
                    self.led_logs.delete(key, removed.topic_id)
            self.directory.finish_deleting()
        self.inbox.append(Started(node_id=self.node_id))

    @property
    def node_id(self) -> int:
        return self.node.settings.node_id

    def stop(self) -> None:
        """Close the journals that this node leads, so that the next start can skip reading them. Raises
        StorageError when a disk fails.
        """
        led: dict[TopicPartition, tuple[ManifestState, Sequence[ProducerSnapshot]]] = {}
        for key in sorted(self.held):
            log, (journal, _) = self.node.logs.get(key), self.held[key]
            # A host that stops in mid-step has state for appends that were never written. With a snapshot of
            # that state, the next leader would take their retries for duplicates, and the records would be
            # lost.
            if (
                log is not None
                and self._still_writes(key)
                and log.partition.log_end_offset == journal.log_end_offset
            ):
                led[key] = (manifest_of(log.partition), partition.snapshot(log.partition))
        self.directory.close(led)

    # --- the loop

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do until the shell offers an input or a sync ends."""
        return not self.to_do and not self.inbox

    def offer(self, arrived: Input) -> None:
        """Add an input from outside at the end of the inbox."""
        self.inbox.append(arrived)
        if type(arrived) is Received:
            self.requests_waiting += 1

    def work(self, now: int) -> None:
        """Perform the next action: write one append, perform one effect, or let the node take one input."""
        if self.to_do:
            act = self.to_do.popleft()
            try:
                self._performs[type(act)](self, act, now)
            except Exception as problem:  # noqa: BLE001 - the barrier, see dispatch.step
                self._contain_act(problem, act, now)
        elif self.inbox:
            self.take(self.inbox.popleft(), now)

    def work_until_idle(self, now: int, *, pauses: bool = False) -> None:
        """Perform every action that is possible at time `now` (milliseconds). With `pauses`, stop as soon as
        replies may leave: they leave together, before the node continues with work that no client waits for.
        """
        to_do, inbox, performs = self.to_do, self.inbox, self._performs
        while True:
            while to_do:
                act = to_do.popleft()
                try:  # not a method of its own: this loop runs for every append and effect
                    performs[type(act)](self, act, now)
                except Exception as problem:  # noqa: BLE001 - the barrier, see dispatch.step
                    self._contain_act(problem, act, now)
            if not inbox or (pauses and self.answers and not self.requests_waiting):
                return
            self.take(inbox.popleft(), now)

    def tick(self, now: int) -> None:
        """Offer a Tick when one is due."""
        if self.wakes_at_ms is not None and self.wakes_at_ms <= now:
            self.wakes_at_ms = None
            self.inbox.append(Tick())

    def take(self, arrived: Input, now: int) -> None:
        """Let the node take an input; appends are performed before effects."""
        if self.requests_waiting and type(arrived) is Received and arrived.to.connection != NODE:
            self.requests_waiting -= 1
        outcome = step(self.node, arrived, now)
        if outcome.appends:
            self.to_do.extend(outcome.appends)
        if outcome.effects:
            self.to_do.extend(outcome.effects)
        # At a Durable, because only what is below the high watermark can be compacted.
        if self.upkeep.bytes_left <= 0 and type(arrived) is Durable:
            self.upkeep.bytes_left = self.node.settings.coordinator_logs_dirty_bytes_max
            self.to_do.extend(orders_to_clean_coordinators(self.node, now))
        if self.watch is not None:
            self.watch(arrived, outcome)

    # --- failures of the broker's own code

    def _contain(self, problem: Exception, arrived: Input | None) -> None:
        """A step raised: refuse its request, and recover from the log what it changed. Nothing else stops.

        The appends of this step have not been written. A partition whose state they entered differs from its
        log, so it is read again. Other effects are performed: they concern what happened before.
        """
        if isinstance(problem, StorageError):
            raise problem  # an error of the disk from which a log is read, not a bug: see `LedLogs.lead`
        if isinstance(arrived, BecomeLeader) and arrived.partition == METADATA_PARTITION:
            # Reading it again would fail again, and without it nothing can be served.
            raise MetadataLost(f"the log of the cluster's metadata cannot be read: {problem}") from problem
        if isinstance(arrived, BecomeLeader) and isinstance(problem, ProtocolViolation):
            # A coordinator could not read its log. It would fail again at once, with each election.
            problem = self.held[arrived.partition].journal.unreadable(problem)
        else:
            self._report(problem, arrived)
        node, outcome = self.node, self.node.outcome
        doubtful = node.doubtful(arrived)
        outcome.appends = [append for append in outcome.appends if append.partition not in doubtful]
        for key in doubtful:
            self._give_up(key, problem)
        match arrived:
            case Received():
                outcome.effects = [act for act in outcome.effects if getattr(act, "to", None) != arrived.to]
                outcome.effects.append(Reply(arrived.to, error=ErrorCode.UNKNOWN_SERVER_ERROR))
            case Answered(token=token, body=None):
                node.in_flight.pop(token, None)  # the error path failed, too
            case Answered(token=token):
                failure = Answered(token=token, error=ErrorCode.NETWORK_EXCEPTION, body=None)
                self.inbox.appendleft(failure)
            case _:
                pass

    def _contain_act(self, problem: Exception, act: Append | Effect, now: int) -> None:
        """An append or effect raised: the partition is in doubt, or a client gets an error."""
        if not self.contains_failures or isinstance(problem, MetadataLost):
            raise problem
        self._report(problem, act)
        if isinstance(act, Append | Assign | MoveLogStart):
            self.lose(act.partition, problem)
        if isinstance(act, MoveLogStart):
            failed = LogStartMoved(act, batch_start=NO_OFFSET, error=ErrorCode.UNKNOWN_SERVER_ERROR)
            self.inbox.appendleft(failed)
        elif isinstance(act, ReplyFetched | ReplyListed | ReplyEpochEnds):
            self.answer(Reply(act.to, error=ErrorCode.UNKNOWN_SERVER_ERROR), now)

    def _report(self, problem: Exception, failed: Input | Append | Effect | None) -> None:
        self.bug(f"drops the request and continues: {failed!r:.1000}", problem)

    def _give_up(self, key: TopicPartition, problem: Exception) -> None:
        """Within a step: stop serving a partition at once, so that what follows does not append to it, and
        read its log again.
        """
        log = self.node.logs.get(key)
        if log is not None:
            self.node.drop(log, ErrorCode.KAFKA_STORAGE_ERROR)
        if key != METADATA_PARTITION:
            self.lose(key, problem)
        else:
            # No controller is above this log, so the host itself leads it again, under a new epoch.
            self._drop_appends(key)
            self.directory.give_up(key)
            epoch = self.directory.journal(key).leader_epoch + 1
            self.to_do.append(Assign(partition=key, leader_id=self.node_id, leader_epoch=epoch))

    def _wake_me(self, act: WakeMe, now: int) -> None:
        earlier = self.wakes_at_ms
        self.wakes_at_ms = act.at_ms if earlier is None else min(earlier, act.at_ms)

    def bug(self, what: str, problem: Exception) -> None:
        """Report a failure of the broker's own code, and what the broker does about it."""
        self.troubles.append(Trouble.bug(what, problem))

    def warn(self, text: str) -> None:
        """Report something to the operator."""
        self.troubles.append(Trouble.of(text, TroubleKind.NOTE))

    def disk_failed(self, text: str) -> None:
        """Report to the operator that a file could not be read or written."""
        self.troubles.append(Trouble.of(text, TroubleKind.DISK))

    def _send(self, send: Send, now: int) -> None:
        if self.carries_own and send.node_id == self.node.settings.node_id:
            to = ReplyTo(NODE, send.token)
            self.inbox.append(Received(send.request, to, send.version, from_node=send.node_id))
        else:
            self.outbox.append(send)

    def answer(self, reply: Reply, now: int) -> None:
        """Send a reply: to the client, or back to the node."""
        if reply.to.connection == NODE:
            self.inbox.append(Answered(reply.to.correlation_id, reply.error, reply.body))
        else:
            self.answers.append(reply)

    # --- logs

    def _create(self, key: TopicPartition, leader_epoch: int) -> Held:
        """Create the log of a partition that was led without files, for the topic of this name."""
        return self.hold(key, leader_epoch, self.node.topic_id(key.topic) or NO_TOPIC_ID)

    def hold(self, key: TopicPartition, leader_epoch: int, topic_id: bytes) -> Held:
        """Open a log for this leadership. A replaced leader keeps this object, so that it never reaches the
        log of a later leader, or of a later topic, under the same name.
        """
        journal = self.directory.journal(key, topic_id)
        self._follow_settings(key, journal)
        held = self.held[key] = Held(journal, leader_epoch)
        return held

    def _configure(self, changed: Configure, now: int) -> None:
        held = self.held.get(changed.partition)
        if held is not None and self.directory.holds(held.journal):
            self._follow_settings(changed.partition, held.journal)

    def _follow_settings(self, key: TopicPartition, journal: Journal) -> None:
        journal.configure(self.node.log_config(key.topic).journal_settings(journal.broker_settings))

    def log_sizes(self) -> dict[TopicPartition, int]:
        """The bytes of each log that this node leads and that has files."""
        return {key: held.journal.segments.size for key, held in self.held.items()}

    def led_journal(self, key: TopicPartition) -> Journal:
        """The log of a partition that this node leads. Raises StorageError when a later leader closed or
        deleted it.
        """
        held = self.held.get(key)
        if held is None:
            held = self._create(key, self.node.logs[key].partition.leader_epoch)
        elif not self.directory.holds(held.journal):
            raise StorageError(f"{key}: the log that this node led is gone")
        return held.journal

    def writable_journal(self, key: TopicPartition) -> Journal | None:
        """The journal of a partition that this host leads; None if it no longer leads it."""
        return self.held[key].journal if self._still_writes(key) else None

    def _still_writes(self, key: TopicPartition) -> bool:
        """Whether this host has the newest leadership of the partition and its log is still open."""
        held = self.held.get(key)
        return held is not None and held.is_newest and self.directory.holds(held.journal)

    def _write(self, append: Append, now: int) -> None:
        """Write one batch; the sync policy decides whether it is durable now or after a sync."""
        key = append.partition
        try:
            journal, _ = self.held.get(key) or self._create(key, append.leader_epoch)
            journal.append(
                append.batch, append.header, leader_epoch=append.leader_epoch, aborted=append.aborted
            )
            if journal.is_full or journal.snapshot_due:
                self.roll(journal)
            if key.topic in INTERNAL_TOPICS:
                self.upkeep.bytes_left -= append.header.size
        except StorageError as problem:
            self.lose(key, problem)
            return
        except StaleLeader:
            # Another node leads by now. It decides about the clients' retries.
            self._drop_appends(key)
            self.inbox.appendleft(ResignLeader(partition=key))
            return
        if self.wrote is not None:
            self.wrote(append)
        self.changed[key] = None
        self.written[key] = end = append.header.next_offset
        if self.policy is not SyncPolicy.NONE and (key in self.unsynced or needs_sync(self.policy, append)):
            self.unsynced.add(key)
        else:
            self.inbox.appendleft(Durable(key, end))

    def move_log_start(self, order: MoveLogStart, now: int) -> None:
        """Move the start of a log, and let `upkeep` delete what is before it."""
        key, error, batch_start = order.partition, ErrorCode.NOT_LEADER_OR_FOLLOWER, NO_OFFSET
        if self._still_writes(key):
            try:
                batch_start, error = self.held[key].journal.move_log_start(order.offset), NO_ERROR
                self.changed[key] = None
                self.upkeep.outdated.add(key)
            except StorageError as problem:
                self.lose(key, problem)
                error = ErrorCode.KAFKA_STORAGE_ERROR
        self.inbox.appendleft(LogStartMoved(order, batch_start=batch_start, error=error))

    def roll(self, journal: Journal) -> None:
        """Begin a new segment, with a snapshot of the producers at its start (UnifiedLog.roll)."""
        log = self.node.logs.get(journal.partition)
        # The node may be ahead of its journal within a step; such a state does not belong to this offset.
        if log is not None and log.partition.log_end_offset == journal.log_end_offset:
            producers = partition.snapshot(log.partition)
            # It may have begun a segment by itself, and then only lacks the snapshot.
            has_rolled = journal.snapshot_due and not journal.is_full
            journal.write_snapshot(producers) if has_rolled else journal.roll(producers)

    def synced(self, key: TopicPartition, offset: int) -> None:
        """A sync succeeded: the log survives a loss of power up to `offset`."""
        if self.written.get(key, 0) <= offset:
            self.unsynced.discard(key)
        # A later leader may have written beyond this host's end; this host only vouches for its own batches.
        self.inbox.appendleft(Durable(key, min(offset, self.written.get(key, 0))))

    def lose(self, key: TopicPartition, problem: Exception) -> None:
        """The disk of a log failed: give up leadership, and read the log again. A sync that failed is not
        repeated (see above).
        """
        if isinstance(problem, MetadataLost):
            raise problem
        if key == METADATA_PARTITION:
            raise MetadataLost(f"the log of the cluster's metadata failed: {problem}") from problem
        self.upkeep.forget(key)
        # The next election would refuse a damaged log again, and would serve files in the way that have no
        # manifest. Each election writes to the metadata, so a log that waits for an operator gets none.
        needs_operator = isinstance(problem, DamagedLog | FilesInTheWay | NoAccess)
        rest = "" if needs_operator else "; gave up leadership to read the log again"
        if isinstance(problem, NoAccess):
            rest = ", then restart the broker: until then it does not serve this partition"
        report = self.disk_failed if isinstance(problem, StorageError) else self.warn
        report(f"{key}: {problem}{rest}")
        self._drop_appends(key)
        if key not in self.held or self._still_writes(key):
            self.directory.give_up(key)
        self.held.pop(key, None)
        self.inbox.appendleft(StorageFailed(partition=key, needs_operator=needs_operator))

    def _drop_appends(self, key: TopicPartition) -> None:
        """Discard the queued appends of a log that this node has lost."""
        kept = [act for act in self.to_do if not (isinstance(act, Append) and act.partition == key)]
        self.to_do.clear()  # and not another deque: `work_until_idle` is at work on this one
        self.to_do.extend(kept)
        self.unsynced.discard(key)

    def write_manifests(self) -> bool:
        """Write the manifests of changed logs, for readers without a broker, up to MANIFESTS_MAX of them.
        Returns whether more are waiting.

        After a failed write the older manifest stays, and what it says is still true: the next round tries
        again. But a log file that someone removed under the broker is noticed here, and the log is given up.
        """
        failed: list[TopicPartition] = []
        for key in list(islice(self.changed, MANIFESTS_MAX)):
            del self.changed[key]
            log = self.node.logs.get(key)
            if log is None or not self._still_writes(key):
                continue
            try:
                self.held[key].journal.write_manifest(manifest_of(log.partition))
            except DamagedLog as problem:
                self.lose(key, problem)
            except StorageError as problem:
                failed.append(key)
                trouble = (
                    f"{key}: {problem}; until the manifest is written, readers of the files see older records"
                )
                self.disk_failed(trouble)
        is_more_waiting = bool(self.changed) and not failed
        self.changed.update(dict.fromkeys(failed))
        return is_more_waiting

    _performs: ClassVar[dict[type[Append | Effect], Callable[[Host, Any, int], None]]] = {
        Append: _write,
        Reply: answer,
        Send: _send,
        ReplyFetched: lambda host, act, now: host.reads.fetch(act, now),
        MeasureFetch: lambda host, act, now: host.reads.measure(act),
        ReplyListed: lambda host, act, now: host.reads.list_offsets(act, now),
        ReplyEpochEnds: lambda host, act, now: host.reads.epoch_ends(act, now),
        MoveLogStart: move_log_start,
        ExpireLog: lambda host, act, now: host.upkeep.expire(act, now),
        CleanLog: lambda host, act, now: host.upkeep.clean(act, now),
        Assign: lambda host, act, now: host.led_logs.lead(act, now),
        Remove: lambda host, act, now: host.led_logs.remove(act),
        Configure: _configure,
        WakeMe: _wake_me,
        Warn: lambda host, act, now: host.warn(act.because),
    }
