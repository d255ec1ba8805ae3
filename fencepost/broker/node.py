"""A node: the partitions that it leads, the coordinators on top of them, and the effects that wait.

Rule: an append enters the log and the state at once; its effects wait until the log is durable up to that
append.
"""

# Theory of operation
#
# A node is a state with one entry point: `step(node, input, now) -> Outcome` (dispatch.py). It never waits,
# reads a clock or touches a file. An Outcome is a list of appends and a list of effects (and, for observers,
# rulings); the host performs them in this order and reports back with further inputs. Every wait of the
# broker is therefore an entry in the node's state, and a simulator can stop, copy or kill a node between any
# two steps.
#
#     input                step                                   outcome
#     Received(request) -> check, decide, append, after ------> [Append] [Reply | Send | WakeMe | ...]
#     Durable(offset)   -> high watermark moves, effects leave             |
#     Answered(token)   -> in_flight[token] says what for      <-----------+  the host performs them
#     Tick              -> timeouts, marker retries, parked fetches
#
# Each led partition is a LeaderLog of three layers. A batch enters the lower two, or none:
#
#     waiting      [(offset, effects)]   effects that wait for the log to be durable up to `offset`
#     coordinator  Transactions | Groups | Controller | None      what the records of the log mean
#     partition    Partition             producers, open transactions, offsets
#
# `append` places a batch at the log end and calls `enter`, the only way into the state: recovery (`rebuild`)
# replays a log through the same function. So the state after a restart equals the state before it, except for
# the fields that are notes (protocol/fork.py).
#
# `after` holds effects back until the log is durable up to its present end. A decision that appends nothing
# also goes through `after`, because it may have read a record that a loss of power still takes away:
#
#     log end        10          12          12                        12
#     client A       append ---> Reply waits for 12 ----------------> Reply
#     client B                   duplicate of 10..11: Reply waits, too  Reply
#     disk                                                  Durable(12)
#
# Without this rule a retry would be acknowledged for a batch that then vanishes, and an EndTxn would be
# confirmed although the next coordinator cannot find the decision.
#
# What waits for what:
#
#     LeaderLog.waiting   effects, for the durability of this log; Collect and AfterAll lead on from there
#     partial_replies     a reply of several parts, for the last of its parts
#     in_flight           a request that this node sent, for its reply
#     fetches             a Fetch without enough data, for more or its deadline (Kafka's purgatory)
#     Groups.live         a JoinGroup or SyncGroup, for the other members of its group
#     markers_due         a decided transaction, for the time of its next WriteTxnMarkers
#     reelections         a partition whose disk failed, for the time of its next election
#
# A node talks to itself through the same messages as to others: the coordinator asks the leader to write a
# marker by a Send even when both are this node. One code path serves a cluster of one and of many.

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, cast

import attrs

from fencepost.broker.cluster import controller
from fencepost.broker.cluster.controller import Controller
from fencepost.broker.config_sources import topic_configs
from fencepost.broker.contract import (
    Answered,
    Append,
    Assign,
    BecomeLeader,
    Configure,
    Durable,
    Input,
    LogStartMoved,
    MetadataChange,
    Outcome,
    Received,
    Refused,
    Remove,
    Reply,
    ReplyTo,
    ResignLeader,
    Ruling,
    Send,
    StorageFailed,
    WakeMe,
)
from fencepost.broker.groups import state as groups
from fencepost.broker.groups.state import Groups
from fencepost.broker.leader_log import (
    Above_co,
    AfterAll,
    Collect,
    Coordinator,
    CoordinatorLog,
    Inner,
    LeaderLog,
    Ticket,
)
from fencepost.broker.log_config import LogConfig, with_own
from fencepost.broker.partitions import partition
from fencepost.broker.partitions.partition import Partition
from fencepost.broker.purgatory import (
    FetchTicket,
    Following,
    InFlight,
    InFlightIdBlock,
    ParkedFetch,
    PartialReply,
    ProducerIds,
    Scan,
    Token,
    completed,
    failed,
)
from fencepost.broker.settings import NodeSettings
from fencepost.broker.transactions import state as transactions
from fencepost.broker.transactions.state import Transactions
from fencepost.journal.indexes import AbortedRange
from fencepost.journal.segments import BATCH_SIZE_MAX
from fencepost.protocol import messages as m
from fencepost.protocol.batches import BatchHeader, Buffer, place
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.fork import Ignored, Ordered, Shared, log_state
from fencepost.protocol.metadata_log import read_cluster_records
from fencepost.protocol.offsets_log import GroupBatch, read_group_batch
from fencepost.protocol.terms import (
    CONSUMER_OFFSETS_TOPIC,
    METADATA_PARTITION,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from fencepost.protocol.transaction_log import read_transactions

# RPCProducerIdManager.PID_PREFETCH_THRESHOLD: request the next block when nine tenths of this one are used.
PREFETCH_BELOW: Final = controller.PRODUCER_ID_BLOCK_SIZE // 10


Contain = Callable[[Exception, Input | None], None]
"""Deals with an exception of the handler of an input, or of other work (None); may raise it."""


def raise_it(problem: Exception, failed: Input | None) -> None:
    """Contain nothing: tests and simulations want to see a bug."""
    raise problem


@attrs.define(eq=False)
class Node:
    """State of one node. Only `step` in dispatch.py changes it."""

    settings: Shared[NodeSettings]
    verifies_entries: Shared[bool] = attrs.field(kw_only=True, default=False)
    """For tests: decode each batch as it enters and compare it with the caller's entries. In simulated worlds
    the white-box judge reads the batches instead."""
    contain: Shared[Contain] = attrs.field(kw_only=True, default=raise_it)
    logs: dict[TopicPartition, LeaderLog] = attrs.Factory(dict[TopicPartition, LeaderLog])
    cluster: Controller = attrs.Factory(Controller)
    following: Following = attrs.Factory(Following)
    metadata_changes: list[MetadataChange] = attrs.Factory(list[MetadataChange])
    """They are durable; `follower.act_on_changes` handles them as the step ends."""
    producer_ids: ProducerIds = attrs.Factory(ProducerIds)
    partial_replies: dict[Ticket, PartialReply] = attrs.Factory(dict[int, PartialReply])
    in_flight: dict[Token, InFlight] = attrs.Factory(dict[int, InFlight])
    fetches: dict[FetchTicket, ParkedFetch] = attrs.Factory(dict[int, ParkedFetch])
    fetch_deadlines: Ignored[list[tuple[int, FetchTicket]]] = attrs.Factory(list[tuple[int, int]])
    """A heap of the parked fetches' deadlines, and of some whose fetch was answered (partitions/fetch.py)."""
    fetches_of: Ignored[dict[int, set[FetchTicket]]] = attrs.Factory(dict[int, set[int]])  # by connection
    readers: Ignored[dict[TopicPartition, set[FetchTicket]]] = attrs.Factory(dict[TopicPartition, set[int]])
    """The parked fetches by the partitions that they read."""
    markers_due: dict[tuple[TopicPartition, str], int] = attrs.Factory(dict[tuple[TopicPartition, str], int])
    reelections: dict[TopicPartition, int] = attrs.Factory(dict[TopicPartition, int])
    damaged: set[TopicPartition] = attrs.Factory(set[TopicPartition])  # assigned, and not served
    undeleted: set[str] = attrs.Factory(set[str])  # deleted topics whose files are still there
    marked: dict[FetchTicket, set[TopicPartition]] = attrs.Factory(dict[int, set[TopicPartition]])
    """The fetches that may see more than before this step, and where."""
    fetch_sizes: dict[FetchTicket, dict[TopicPartition, int]] = attrs.Factory(
        dict[int, dict[TopicPartition, int]]
    )
    """The bytes that parked fetches can read, as far as they were measured."""
    tickets: Ignored[int] = 0
    scans_at_ms: Ordered[dict[Scan, int]] = attrs.Factory(dict[Scan, int])
    wakes_at_ms: int | None = None
    entering: Ignored[TopicPartition | None] = None  # set while `append` changes the state of a partition
    outcome: Shared[Outcome] = attrs.Factory(lambda: Outcome([], [], []))

    # --- the state that a log determines

    def state_of(self, key: TopicPartition) -> tuple[Any, ...]:
        """The state that the partition's log alone determines: recovery must reproduce exactly this."""
        log = self.logs[key]
        above = () if log.coordinator is None else log_state(log.coordinator)
        return (log_state(log.partition), above)

    # --- leadership

    @property
    def creates_named_topics(self) -> bool:
        """Whether a topic that a client only names is created: auto.create.topics.enable."""
        return self.settings.auto_create_topics_enable

    def topic_configs(self, own: Mapping[str, str]) -> Sequence[m.DescribedConfig]:
        """All settings of a topic that sets these itself."""
        settings = self.settings
        return tuple(topic_configs(settings, with_own(settings.log_config, own), own))

    def topic_name(self, topic_id: bytes) -> str | None:
        return self.cluster.names.get(topic_id)

    def topic_id(self, topic: str) -> bytes | None:
        """The id of the topic that has this name now, or None."""
        found = self.cluster.topics.get(topic)
        return None if found is None else found.topic_id

    def log_of(self, key: TopicPartition) -> LeaderLog | Refused:
        """The log of a partition, if this node leads it."""
        log = self.logs.get(key)
        if log is not None:
            return log
        if key in self.damaged:
            return _not_led(ErrorCode.KAFKA_STORAGE_ERROR, "is for a partition whose log needs an operator")
        if self.cluster.leader(key) is None:
            return _not_led(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "is for a partition that does not exist")
        return _not_led(ErrorCode.NOT_LEADER_OR_FOLLOWER, "is for a partition that another node leads")

    def log_config(self, topic_name: str) -> LogConfig:
        """How the logs of a topic are kept."""
        internal = self.settings.internal_log_configs.get(topic_name)
        topic = self.cluster.topics.get(topic_name)
        if internal is not None or topic is None or not topic.configs:
            return internal or self.settings.log_config
        return with_own(self.settings.log_config, topic.configs)

    def coordinator_count(self, topic: str) -> int:
        """The number of partitions of an internal topic, each with a coordinator. The settings count until
        the topic exists; later they say nothing about where records are.
        """
        topics = self.cluster.topics
        if topic in topics:
            return len(topics[topic].leaders)
        if topic == TRANSACTION_STATE_TOPIC:
            return self.settings.transaction_state_log_num_partitions
        return self.settings.offsets_topic_num_partitions

    def coordinator_log(self, kind: type[Above_co], key: TopicPartition) -> CoordinatorLog[Above_co] | None:
        """The log of a coordinator's partition, if this node leads it. The topic decides the kind."""
        log: Any = self.logs.get(key)
        return log

    def coordinator_logs(self, kind: type[Above_co]) -> list[CoordinatorLog[Above_co]]:
        """The logs under a coordinator of this kind that this node leads."""
        found: list[Any] = [log for log in self.logs.values() if isinstance(log.coordinator, kind)]
        return found

    def rebuild(self, order: BecomeLeader) -> LeaderLog:
        """Rebuild the state of a partition, and of the coordinator on top, from a snapshot and the log."""
        state = Partition(
            order.partition,
            leader_epoch=order.leader_epoch,
            log_start_offset=order.log_start_offset,
            log_start_batch_offset=order.batch_start,
            log_end_offset=order.oldest_offset,
        )
        # Guards contain the leader epoch: a late reply to an earlier leadership must not let a batch in.
        state.guards_issued = order.leader_epoch << partition.GUARD_BITS
        log = LeaderLog(state, self._coordinator_for(order))
        if order.snapshot is not None:
            # Kafka's snapshots hold producers only, so coordinators read their logs from the start
            # (TransactionStateManager.loadTransactionMetadata, CoordinatorLoaderImpl).
            assert log.coordinator is None, "a snapshot never holds the state of a coordinator"
            offset, entries = order.snapshot
            partition.restore(state, entries, at_offset=offset)
        for header, batch in order.batches:
            # `batches` begins with the batch that holds the snapshot's offset. If this batch begins earlier,
            # the snapshot has it already.
            if header.base_offset >= state.log_end_offset:
                self.enter(log, header, batch)
        if order.is_restart:
            partition.keep_last_batches(state)
        # There are no followers, and the host has synced what it found if the policy asks for it: all is
        # durable.
        partition.advance_high_watermark(state, state.log_end_offset)
        self.logs[order.partition] = log
        self.damaged.discard(order.partition)
        return log

    def _coordinator_for(self, order: BecomeLeader) -> Coordinator:
        match order.partition.topic:
            case topic if topic == TRANSACTION_STATE_TOPIC:
                # As in Kafka, the coordinator epoch is the leader epoch of the coordinator's partition.
                return Transactions(coordinator_epoch=order.leader_epoch)
            case topic if topic == CONSUMER_OFFSETS_TOPIC:
                return Groups()
            case topic if topic == METADATA_PARTITION.topic:
                self.cluster = Controller()
                return self.cluster
            case _:
                return None

    # --- the one way into the state

    def enter(
        self, log: LeaderLog, header: BatchHeader, batch: Buffer, entries: Entries | None = None
    ) -> tuple[AbortedRange | None, list[MetadataChange]]:
        """Apply a batch that the log now holds to partition and coordinator, live and at recovery.

        A live caller has just built the batch and passes its entries; recovery decodes them. With
        `verifies_entries` both happen, and must agree.
        """
        if entries is None or self.verifies_entries:
            found = _entries_of(log.coordinator, header, batch)
            assert entries is None or entries == found, (
                f"{log.partition.key}: {entries} is written as {found}"
            )
            entries = found
        aborted = partition.apply(log.partition, header, batch)
        match log.coordinator:
            case None:
                pass
            case Transactions() as state:
                transactions.apply(state, entries)
            case Groups() as state:
                groups.apply(state, header, batch, cast(GroupBatch, entries))
            case Controller() as state:
                return aborted, controller.apply(state, entries)
        return aborted, []

    def append(self, log: LeaderLog, batch: bytearray | memoryview, entries: Entries) -> BatchHeader:
        """Place a batch at the end of a log; `entries` are its records as the coordinator reads them.

        Data and markers have none: the partition applies them.
        """
        state = log.partition
        header = place(batch, base_offset=state.log_end_offset, leader_epoch=state.leader_epoch)
        self.entering = state.key
        aborted, consequences = self.enter(log, header, batch, entries)
        self.outcome.appends.append(Append(state.key, header, batch, state.leader_epoch, aborted))
        self.entering = None
        if consequences:
            self.after(log, tuple(consequences))
        return header

    def is_too_large(self, size: int) -> bool:
        """Whether a batch of this many bytes is larger than an internal topic takes (RecordTooLargeException
        of CoordinatorRuntime). Coordinators ask before they append, since what is appended is in the state.
        """
        return size > self.settings.message_max_bytes or size > BATCH_SIZE_MAX

    # --- waiting until it is safe

    def after(self, log: LeaderLog, effects: tuple[Inner, ...]) -> None:
        """Release effects when the log is durable up to its present end."""
        state = log.partition
        if state.high_watermark == state.log_end_offset:
            self.release(log, effects)
        else:
            log.waiting.append((state.log_end_offset, effects))

    def after_all(self, keys: Iterable[TopicPartition], reply: Reply) -> None:
        """Send a reply when each of these logs is durable up to its present end."""
        # One log after the other: an end that is passed once stays durable, so the order does not matter.
        ahead = tuple(keys)
        for at, key in enumerate(ahead):
            log = self.logs.get(key)
            if log is not None and log.partition.high_watermark < log.partition.log_end_offset:
                self.after(log, (AfterAll(ahead[at + 1 :], reply),))
                return
        self.outcome.effects.append(reply)

    def after_coordinators(self, kind: type[Above_co], reply: Reply) -> None:
        """Send a reply that tells what all coordinators of this kind know."""
        self.after_all([log.partition.key for log in self.coordinator_logs(kind)], reply)

    def release(self, log: LeaderLog, effects: Iterable[Inner]) -> None:
        """Perform effects whose wait is over; Collect and AfterAll may lead to further waits."""
        for effect in effects:
            match effect:
                case Reply():  # most effects
                    self.outcome.effects.append(effect)
                case Collect():
                    self.collect(effect)
                case AfterAll():
                    self.after_all(effect.keys, effect.reply)
                case Assign() | Remove() | Configure():
                    self.metadata_changes.append(effect)  # handled as the step ends
                case _:
                    self.outcome.effects.append(effect)

    def became_durable(self, arrived: Durable, now: int) -> None:
        """Move the high watermark of a log, and release the effects that waited for it."""
        log, offset = self.logs.get(arrived.partition), arrived.offset
        if log is None or offset <= log.partition.high_watermark:
            return
        state = log.partition
        partition.advance_high_watermark(state, offset)
        if type(log.coordinator) is Transactions and log.coordinator.pending:
            # The first attempt to write markers is a retry that is due at once. So one path sends them all:
            # after a decision, after a failed attempt, and after a failover (transactions/markers.py).
            for name in transactions.clear_pending(log.coordinator, offset):
                self.markers_due[state.key, name] = 0
        waiting = log.waiting
        while waiting and waiting[0][0] <= offset:
            self.release(log, waiting.popleft()[1])
        if self.readers:
            self.mark_readers(state.key)

    def mark_readers(self, key: TopicPartition) -> None:
        """Mark the parked fetches of this partition; `wake_readers` checks them once, as the step ends."""
        for ticket in self.readers.get(key, ()):
            self.marked.setdefault(ticket, set()).add(key)

    def drop(self, log: LeaderLog, error: ErrorCode) -> None:
        """Give up a partition: forget its state, and answer every waiting request with an error."""
        del self.logs[log.partition.key]
        # These batches may still become durable under the next leader, so the outcome is unknown to the
        # client: it retries, and the sequence numbers or the epoch tell a retry from a new request.
        refused = Refused(
            # A client of a coordinator looks for the next one at this error, as after a failed append in
            # Kafka (TransactionStateManager.appendTransactionToLog).
            error if log.coordinator is None else ErrorCode.NOT_COORDINATOR,
            "waited for a log that this node has given up",
            source="ReplicaManager.stopPartitions, DelayedProduce",
        )
        for _, effects in log.waiting:
            for effect in effects:
                if isinstance(effect, Collect):
                    self.note_ruling(
                        self.partial_replies[effect.ticket].to, refused, partition=log.partition.key
                    )
                    self.collect(attrs.evolve(effect, result=failed(effect.result, error)))
                elif isinstance(effect, Reply):
                    self.reply(effect.to, refused)
                elif isinstance(effect, AfterAll):
                    self.reply(effect.reply.to, refused)
        if isinstance(log.coordinator, Groups):
            for to in [to for group in log.coordinator.live.values() for to in group.waiting()]:
                self.reply(to, refused)
        if isinstance(log.coordinator, Controller):
            # Once its log has been read again, `cluster.handlers.resume` issues all that is still to be done.
            self.metadata_changes.clear()
        self.mark_readers(log.partition.key)

    @contextmanager
    def contained(self) -> Generator[None]:
        """Keep a failure of this block from the blocks after it: one deadline must not hold up the others."""
        try:
            yield
        except Exception as problem:  # noqa: BLE001 - `contain` decides
            self.contain(problem, None)

    def doubtful(self, failed: Input | None) -> set[TopicPartition]:
        """The partitions whose state may differ from their log after an exception in the handler of `failed`,
        or in other work (None).
        """
        doubtful: set[TopicPartition] = set()
        if self.entering is not None:
            doubtful.add(self.entering)
            self.entering = None
        match failed:
            case Durable() | BecomeLeader() | ResignLeader() | StorageFailed():
                doubtful.add(failed.partition)
            case LogStartMoved():
                doubtful.add(failed.order.partition)
            case Received() | Answered():
                # Its batches are in the state but not in the log, and the rest of its work was not done.
                doubtful.update(append.partition for append in self.outcome.appends)
            case _:
                pass
        return doubtful

    # --- replies and requests

    def reply(self, to: ReplyTo, refused: Refused) -> None:
        """Answer a whole request with an error."""
        self.note_ruling(to, refused)
        self.outcome.effects.append(Reply(to, error=refused.error))

    def note_ruling(
        self, to: ReplyTo, refused: Refused, *, table: str = "", partition: TopicPartition | None = None
    ) -> None:
        """Note by which rule a request, or its part for a partition, is refused; its reply may come
        later.
        """
        self.outcome.rulings.append(Ruling(to, refused, table or refused.table, partition))

    def begin_reply(
        self,
        to: ReplyTo,
        kind: type[m.ProduceReply | m.WriteTxnMarkersReply | m.DeleteRecordsReply],
        count: int,
        producer_ids: tuple[int, ...] = (),
    ) -> int:
        """Begin a reply of `count` parts; return its ticket."""
        self.tickets += 1
        self.partial_replies[self.tickets] = PartialReply(to, kind, [None] * count, count, producer_ids)
        if count == 0:
            self._finish_reply(self.tickets)
        return self.tickets

    def collect(self, part: Collect) -> None:
        """Store one part of a reply; the last part sends it."""
        partial = self.partial_replies[part.ticket]
        partial.parts[part.index] = part.result
        partial.missing -= 1
        if not partial.missing:
            self._finish_reply(part.ticket)

    def _finish_reply(self, ticket: int) -> None:
        partial = self.partial_replies.pop(ticket)
        self.outcome.effects.append(Reply(partial.to, completed(partial)))

    def ask(self, node_id: int, request: m.Request, why: InFlight) -> None:
        """Send a request to a node, perhaps this one; `why` selects the handler of the reply."""
        self.tickets += 1
        self.in_flight[self.tickets] = why
        self.outcome.effects.append(Send(node_id, request, self.tickets))

    def wake_at(self, at_ms: int) -> None:
        """Ask for a Tick at this time, unless an earlier one is already scheduled."""
        if self.wakes_at_ms is None or at_ms < self.wakes_at_ms:
            self.wakes_at_ms = at_ms
            self.outcome.effects.append(WakeMe(at_ms))

    # --- producer ids

    def fresh_producer_id(self) -> int | None:
        """An unused producer id. Without one, ask the controller for a block; the caller has to retry."""
        if self.producer_ids.is_empty:
            self.ask_for_producer_ids()
            return None
        return self.producer_ids.next_id

    def use_producer_id(self) -> None:
        """Consume the fresh id, and request the next block before this one runs out."""
        ids = self.producer_ids
        ids.next_id += 1
        ids.begin_next_block()
        if ids.next_block is None and ids.end - ids.next_id < PREFETCH_BELOW:
            self.ask_for_producer_ids()

    def ask_for_producer_ids(self) -> None:
        """Ask the controller for a block, unless a request is in flight."""
        if not self.producer_ids.is_asked:
            self.producer_ids.is_asked = True
            request = m.AllocateProducerIds(node_id=self.settings.node_id)
            self.ask(self.settings.controller_id, request, InFlightIdBlock())

    def take_producer_ids(self, block: m.AllocateProducerIdsReply | None) -> None:
        """Take the controller's block; after an error the next request for an id asks again."""
        ids = self.producer_ids
        ids.is_asked = False
        if block is not None:
            ids.next_block = (block.first_producer_id, block.first_producer_id + block.count)
            ids.begin_next_block()


def _not_led(error: ErrorCode, because: str) -> Refused:
    return Refused(error, because, source="ReplicaManager.getPartitionOrError")


Entries = Sequence[Any]
"""The records of a batch, decoded for the coordinator on top of its log."""


def _entries_of(coordinator: Coordinator, header: BatchHeader, batch: Buffer) -> Entries:
    match coordinator:
        case Transactions():
            return tuple(read_transactions(batch, header))
        case Groups() if not header.is_control:
            return read_group_batch(batch, header)
        case Controller():
            return tuple(read_cluster_records(batch, header))
        case _:
            return ()
