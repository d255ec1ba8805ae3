"""A node: the partitions it leads, the coordinators on top of them, and everything that waits for
something.

Rule: an append enters log and state at once, its effects wait until the log is durable up to and including
it; a decision without appends waits just so for everything that it saw. Requests are handled in
`routing.py` and the files it names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import attrs

from fencepost.broker.cluster import controller
from fencepost.broker.cluster.controller import METADATA_PARTITION, Controller
from fencepost.broker.contract import (
    Append,
    Assign,
    BecomeLeader,
    Outcome,
    Refused,
    Remove,
    Reply,
    ReplyTo,
    Send,
    WakeMe,
)
from fencepost.broker.gathering import failed, gathered
from fencepost.broker.groups import state as groups
from fencepost.broker.groups.state import Groups, OffsetEntry
from fencepost.broker.partitions import partition
from fencepost.broker.partitions.partition import Partition
from fencepost.broker.purgatory import (
    Asked,
    AskedForProducerIds,
    Behind,
    Collect,
    Coordinator,
    FetchTicket,
    Following,
    Gathering,
    Inner,
    Log,
    ParkedFetch,
    ProducerIds,
    Scan,
    Ticket,
    Token,
)
from fencepost.broker.settings import NodeSettings
from fencepost.broker.transactions import state as transactions
from fencepost.broker.transactions.state import Transactions, WriteMarkers
from fencepost.protocol.batches import BatchHeader, Buffer, place, read_header
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import (
    AllocateProducerIds,
    AllocateProducerIdsReply,
    DeleteRecordsReply,
    ProduceReply,
    Request,
    WriteTxnMarkersReply,
)
from fencepost.protocol.metadata_log import ClusterRecord, cluster_batch, read_cluster_records
from fencepost.protocol.offsets_log import (
    GroupRecord,
    forgotten_group_batch,
    group_batch,
    read_groups,
    read_offsets,
)
from fencepost.protocol.states import Ignored, Ordered, Shared, log_state
from fencepost.protocol.terms import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from fencepost.protocol.transaction_log import TransactionRecord, read_transactions, transaction_batch

# ProducerIdManager.PID_PREFETCH_THRESHOLD: the next block is asked for when nine tenths of this one are used.
PREFETCH_BELOW: Final = controller.PRODUCER_ID_BLOCK_SIZE // 10


@attrs.define(eq=False)
class Node:
    """State of one node; `step` in routing.py is what moves it."""

    settings: Shared[NodeSettings]
    logs: dict[TopicPartition, Log] = attrs.Factory(dict[TopicPartition, Log])
    cluster: Controller = attrs.Factory(Controller)
    following: Following = attrs.Factory(Following)
    news: list[Assign | Remove] = attrs.Factory(list[Assign | Remove])  # durable, and not acted upon yet
    producer_ids: ProducerIds = attrs.Factory(ProducerIds)
    gatherings: dict[Ticket, Gathering] = attrs.Factory(dict[int, Gathering])
    asked: dict[Token, Asked] = attrs.Factory(dict[int, Asked])
    fetches: dict[FetchTicket, ParkedFetch] = attrs.Factory(dict[int, ParkedFetch])
    readers: Ignored[dict[TopicPartition, set[int]]] = attrs.Factory(dict[TopicPartition, set[int]])
    marker_retries: dict[tuple[TopicPartition, str], int] = attrs.Factory(
        dict[tuple[TopicPartition, str], int]
    )
    reelections: dict[TopicPartition, int] = attrs.Factory(dict[TopicPartition, int])
    movable: set[FetchTicket] = attrs.Factory(set[int])  # fetches that may see more since the step began
    tickets: Ignored[int] = 0
    scans_at_ms: Ordered[dict[Scan, int]] = attrs.Factory(dict[Scan, int])
    wakes_at_ms: int | None = None
    outcome: Shared[Outcome] = attrs.Factory(lambda: Outcome([], []))

    # --- the state that a log determines

    def state_of(self, key: TopicPartition) -> tuple[Any, ...]:
        """What the partition's log alone determines: `recover(log) == forget_notes(live)` compares these."""
        log = self.logs[key]
        above = () if log.coordinator is None else log_state(log.coordinator)
        return (log_state(log.partition), above)

    # --- leadership

    def log_of(self, key: TopicPartition) -> Log | Refused:
        """The log of a partition, if this node leads it."""
        log = self.logs.get(key)
        if log is not None:
            return log
        if self.cluster.leader(key) is None:
            return Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "is for a partition that does not exist")
        return Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "is for a partition that another node leads")

    def lead(self, order: BecomeLeader) -> Log:
        """Take a partition over: rebuild its state, and that of the coordinator on top, from snapshot and
        log.
        """
        state = Partition(
            order.partition,
            leader_epoch=order.leader_epoch,
            log_start_offset=order.log_start_offset,
            log_start_batch=order.batch_start,
            log_end_offset=order.oldest_offset,
        )
        # A question asked under an earlier leadership has a guard that no question of this one has.
        state.guards_given = order.leader_epoch << partition.GUARD_BITS
        log = Log(state, self._coordinator_for(order))
        if order.snapshot is not None:
            offset, entries = order.snapshot
            partition.restore(state, entries, at_offset=offset)
        for header, batch in order.batches:
            if header.base_offset >= state.log_end_offset:
                partition.apply(state, header, batch)
            self._apply_above(log, header, batch)
        if order.is_restart:
            partition.keep_last_batches(state)
        partition.advance_high_watermark(state, state.log_end_offset)
        self.logs[order.partition] = log
        return log

    def _coordinator_for(self, order: BecomeLeader) -> Coordinator | None:
        match order.partition.topic:
            case topic if topic == TRANSACTION_STATE_TOPIC:
                return Transactions(coordinator_epoch=order.leader_epoch)
            case topic if topic == CONSUMER_OFFSETS_TOPIC:
                return Groups()
            case topic if topic == METADATA_PARTITION.topic:
                self.cluster = Controller()
                return self.cluster
            case _:
                return None

    def _apply_above(self, log: Log, header: BatchHeader, batch: Buffer) -> None:
        match log.coordinator:
            case Transactions() as state:
                transactions.apply(state, read_transactions(batch, header))
            case Groups() as state:
                if header.is_control:
                    groups.apply(state, header, batch, ())
                else:
                    entries = read_offsets(batch, header)
                    groups.apply(state, header, batch, entries, read_groups(batch, header))
            case Controller() as state:
                controller.apply(state, read_cluster_records(batch, header))
            case None:
                return

    # --- appending

    def append(self, log: Log, batch: Buffer) -> BatchHeader:
        """Place a batch at the end of a log and let the partition see it; the coordinator on top is told by
        the caller.
        """
        state = log.partition
        writable = batch if isinstance(batch, bytearray) else _writable(batch)
        place(writable, base_offset=state.log_end_offset, leader_epoch=state.leader_epoch)
        header = read_header(writable)
        aborted = partition.apply(state, header, writable)
        self.outcome.appends.append(
            Append(state.key, header=header, batch=writable, leader_epoch=state.leader_epoch, aborted=aborted)
        )
        return header

    def append_transaction(self, log: Log, name: str, record: TransactionRecord | None, *, now: int) -> None:
        """A coordinator's decision enters its log, None to forget the id; until that is durable it is
        pending.
        """
        state = log.coordinator
        assert isinstance(state, Transactions), "transactions live on __transaction_state"
        header = self.append(log, transaction_batch(name, record, timestamp=now))
        transactions.apply(state, ((name, record),))
        state.pending[name] = header.next_offset

    def append_offsets(self, log: Log, batch: bytearray, entries: list[OffsetEntry]) -> None:
        """Committed or pending offsets enter the group coordinator's log."""
        assert isinstance(log.coordinator, Groups), "offsets live on __consumer_offsets"
        groups.apply(log.coordinator, self.append(log, batch), batch, entries)

    def append_group(self, log: Log, group_id: str, record: GroupRecord, *, now: int) -> None:
        """Where a group stands now enters its coordinator's log."""
        assert isinstance(log.coordinator, Groups), "groups live on __consumer_offsets"
        batch = group_batch(group_id, record, timestamp=now)
        groups.apply(log.coordinator, self.append(log, batch), batch, (), ((group_id, record),))

    def append_deleted_group(self, log: Log, group_id: str, *, now: int) -> None:
        """A group is forgotten, and every offset of it, decided or not."""
        state = log.coordinator
        assert isinstance(state, Groups), "groups live on __consumer_offsets"
        keys = [key for key in groups.offset_keys(state) if key.group_id == group_id]
        batch = forgotten_group_batch(group_id, keys, timestamp=now)
        entries = [(key, None) for key in keys]
        groups.apply(state, self.append(log, batch), batch, entries, ((group_id, None),))

    def append_marker(self, log: Log, batch: bytearray) -> None:
        """A transaction ends in this partition; on `__consumer_offsets` its offsets are decided with it."""
        header = self.append(log, batch)
        if isinstance(log.coordinator, Groups):
            groups.apply(log.coordinator, header, batch, ())
        self.moved(log.partition.key)

    def append_cluster(self, log: Log, records: tuple[ClusterRecord, ...], *, now: int) -> None:
        """The controller's decision enters the metadata log; what it means is done once that is durable."""
        if records:
            self.append(log, cluster_batch(records, timestamp=now))
            self.after(log, controller.apply(self.cluster, records))

    # --- waiting until it is safe

    def after(self, log: Log, effects: Iterable[Inner]) -> None:
        """Let effects happen once the log is durable up to where it ends now."""
        state = log.partition
        if state.high_watermark == state.log_end_offset:
            self.release(log, effects)
        else:
            log.waiting.append((state.log_end_offset, tuple(effects)))

    def after_all(self, keys: Iterable[TopicPartition], reply: Reply) -> None:
        """The same for an answer that tells of several logs."""
        ahead = tuple(keys)
        for at, key in enumerate(ahead):
            log = self.logs.get(key)
            if log is not None and log.partition.high_watermark < log.partition.log_end_offset:
                self.after(log, (Behind(ahead[at + 1 :], reply),))
                return
        self.outcome.effects.append(reply)

    def release(self, log: Log, effects: Iterable[Inner]) -> None:
        """What had to wait happens now; effects inside the node lead on to others."""
        for effect in effects:
            match effect:
                case Collect():
                    self.collect(effect)
                case WriteMarkers():
                    # Due at once, in this very step.
                    self.marker_retries[log.partition.key, effect.transactional_id] = 0
                case Behind():
                    self.after_all(effect.keys, effect.reply)
                case Assign() | Remove():
                    self.news.append(effect)  # acted upon as the step ends
                case _:
                    self.outcome.effects.append(effect)

    def durable(self, log: Log, offset: int) -> None:
        """The log is safe up to `offset`: the high watermark moves, and what waited for it happens."""
        state = log.partition
        partition.advance_high_watermark(state, offset)
        if isinstance(log.coordinator, Transactions):
            pending = log.coordinator.pending
            if pending:
                for name in [name for name, end in pending.items() if end <= offset]:
                    del pending[name]
        while log.waiting and log.waiting[0][0] <= offset:
            self.release(log, log.waiting.popleft()[1])
        self.moved(state.key)

    def moved(self, key: TopicPartition) -> None:
        """Whoever reads this partition may see more, or no more: looked at as the step ends."""
        if key in self.readers:
            self.movable |= self.readers[key]

    def drop(self, log: Log, error: ErrorCode) -> None:
        """Leadership is gone: whoever waits learns that the outcome is in doubt, and the state is
        forgotten.
        """
        del self.logs[log.partition.key]
        refused = Refused(error if log.coordinator is None else ErrorCode.NOT_COORDINATOR)
        for _, effects in log.waiting:
            for effect in effects:
                if isinstance(effect, Collect):
                    self.collect(attrs.evolve(effect, result=failed(effect.result, error)))
                elif isinstance(effect, Reply):
                    self.reply(effect.to, refused)
                elif isinstance(effect, Behind):
                    self.reply(effect.reply.to, refused)
        if isinstance(log.coordinator, Groups):
            for to in [to for group in log.coordinator.live.values() for to in group.waiting()]:
                self.reply(to, refused)
        self.moved(log.partition.key)

    # --- answering and asking

    def reply(self, to: ReplyTo, refused: Refused) -> None:
        """Answer a whole request with an error."""
        self.outcome.effects.append(Reply(to, error=refused.error))

    def gather(
        self,
        to: ReplyTo,
        kind: type[ProduceReply | WriteTxnMarkersReply | DeleteRecordsReply],
        count: int,
        producer_ids: tuple[int, ...] = (),
    ) -> int:
        """A ticket for an answer of `count` parts."""
        self.tickets += 1
        self.gatherings[self.tickets] = Gathering(to, kind, [None] * count, producer_ids)
        if count == 0:
            self._finish_gathering(self.tickets)
        return self.tickets

    def collect(self, part: Collect) -> None:
        """One part is there; the last one sends the answer."""
        gathering = self.gatherings[part.ticket]
        gathering.parts[part.index] = part.result
        if None not in gathering.parts:
            self._finish_gathering(part.ticket)

    def _finish_gathering(self, ticket: int) -> None:
        gathering = self.gatherings.pop(ticket)
        self.outcome.effects.append(Reply(gathering.to, body=gathered(gathering)))

    def ask(self, node_id: int, request: Request, why: Asked) -> None:
        """Send a request to a node, this one included; `why` says what to do with the answer."""
        self.tickets += 1
        self.asked[self.tickets] = why
        self.outcome.effects.append(Send(node_id=node_id, request=request, token=self.tickets))

    def wake_at(self, at_ms: int) -> None:
        """A Tick is needed at this time; an earlier one that is on its way will do."""
        if self.wakes_at_ms is None or at_ms < self.wakes_at_ms:
            self.wakes_at_ms = at_ms
            self.outcome.effects.append(WakeMe(at_ms))

    # --- producer ids

    def fresh_producer_id(self) -> int | None:
        """The id that the next producer would get, None while the controller is being asked for more."""
        ids = self.producer_ids
        if ids.is_empty and ids.next_block is not None:
            (ids.next_id, ids.end), ids.next_block = ids.next_block, None
        if ids.next_block is None and ids.end - ids.next_id < PREFETCH_BELOW:
            self.ask_for_producer_ids()
        return None if ids.is_empty else ids.next_id

    def use_producer_id(self, record: TransactionRecord | None) -> None:
        """The fresh id is used up when a decision took it."""
        ids = self.producer_ids
        if record is not None and ids.next_id in (record.producer_id, record.next_producer_id):
            ids.next_id += 1

    def ask_for_producer_ids(self) -> None:
        """Ask the controller for a block, once at a time."""
        if not self.producer_ids.is_asked:
            self.producer_ids.is_asked = True
            request = AllocateProducerIds(node_id=self.settings.node_id)
            self.ask(self.settings.controller_id, request, AskedForProducerIds())

    def take_producer_ids(self, block: AllocateProducerIdsReply | None) -> None:
        """The controller's answer; without one the next request that needs an id asks again."""
        self.producer_ids.is_asked = False
        if block is not None:
            self.producer_ids.next_block = (block.first_producer_id, block.first_producer_id + block.count)


def _writable(batch: Buffer) -> bytearray | memoryview:
    view = memoryview(batch)
    return bytearray(view) if view.readonly else view
