"""The white-box judge: looks at each step of each node, before anything of it is written or sent.

Rule: it keeps its own record of every log and transaction, and looks only at what a step touched. Of the
cores it reads what they show (bounds, offsets) to compare, never to know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from fencepost.broker.contract import (
    Append,
    BecomeLeader,
    Durable,
    Input,
    Outcome,
    Received,
    Remove,
    Reply,
    Tick,
)
from fencepost.broker.groups.state import Groups
from fencepost.broker.host import Host
from fencepost.broker.partitions.partition import Partition
from fencepost.protocol.batches import BatchHeader
from fencepost.protocol.messages import EndTxn, InitProducerId, WriteTxnMarkers
from fencepost.protocol.offsets_log import read_offsets
from fencepost.protocol.terms import (
    CONSUMER_OFFSETS_TOPIC,
    NO_PRODUCER_ID,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    TransactionResult,
    TransactionState,
)
from fencepost.protocol.transaction_log import read_transactions
from fencepost.simulator.judges.anomalies import Looks
from fencepost.simulator.judges.answer_rules import AnswerRules
from fencepost.simulator.judges.convergence import is_settled, judge_convergence
from fencepost.simulator.judges.coverage import COUNTED, CellCounter, Coverage
from fencepost.simulator.judges.offsets_record import OffsetsEntry, OffsetsRecord
from fencepost.simulator.judges.partition_record import PartitionRecord, judge_order, marker_result
from fencepost.simulator.judges.reading_rule import judge_fetched
from fencepost.simulator.judges.recovery_rule import RecoveryRule
from fencepost.simulator.judges.retry_rule import RetryRule
from fencepost.simulator.judges.step_rules import CONVERGENCE, TIMEOUT
from fencepost.simulator.judges.transaction_record import TransactionBook
from fencepost.simulator.judges.violation import Violation
from fencepost.simulator.world.events import FetchAnswered, NodeKilled, NodeStepped
from fencepost.simulator.world.nodes import SimulatedNode
from fencepost.simulator.world.world import World


class Invariants:
    """A judge of a world. `judge_end` when a healed run is over, `cover` in any case."""

    def __init__(self, world: World) -> None:
        settings = world.settings
        self.world = world
        self.sometimes = Looks(int)
        self.partitions: dict[TopicPartition, PartitionRecord] = {}
        self.transactions = TransactionBook(self.sometimes, self.partitions)
        self.offsets: dict[TopicPartition, OffsetsRecord] = {}
        self.answers = AnswerRules(self.sometimes, self.partitions, self.transactions)
        self.retries = RetryRule(self.sometimes, self.partitions, self.transactions)
        self.recovery = RecoveryRule(self.sometimes, settings.policy, world.journals)
        self.moved: list[tuple[PartitionRecord, Partition]] = []  # in this step, by their newest leader
        self.cells = CellCounter(settings.node_settings.generation, self.transactions)

    # --- events ---------------------------------------------------------------------------------------------

    def attach(self) -> None:
        """From now on it looks at each step, and raises Violation in the middle of the first bad one."""
        for kind, look in self.looks.items():
            self.world.events.subscribe(kind, look)

    @property
    def looks(self) -> dict[type, Callable[[Any], None]]:
        """What it looks at, by the type of event."""
        return {NodeStepped: self.stepped, FetchAnswered: self.fetched, NodeKilled: self.killed}

    def stepped(self, step: NodeStepped) -> None:
        """A node took one input; nothing of the outcome is written or sent yet."""
        node, arrived, outcome = step.node, step.arrived, step.outcome
        host = node.host
        assert host is not None, "who takes an input lives"
        kind = type(arrived)
        look = _BEFORE_APPENDS.get(kind)
        if look is not None:
            look(self, host, arrived, outcome)
        for append in outcome.appends:
            self._append(host, arrived, append)
        for effect in outcome.effects:
            if type(effect) is Reply:
                self.answers.replied(node, effect)
                self.retries.replied(effect)
            elif type(effect) is Remove:
                self._removed(effect.partition)
        if self.moved:
            for record, partition in self.moved:
                record.judge_bounds(partition)
            self.moved.clear()
        if kind is Tick:
            self._judge_timeouts(node, host)

    def fetched(self, answered: FetchAnswered) -> None:
        """A node replies to a Fetch, with what it read."""
        for part in answered.reply.partitions:
            if len(part.records):
                judge_fetched(
                    part, self.partitions[TopicPartition(part.topic, part.partition)], self.sometimes
                )

    def killed(self, killed: NodeKilled) -> None:
        """A node was killed; its logs are still open."""
        node, host = killed.node, killed.host
        self.answers.died(node.settings.node_id)
        self.retries.died(node.callers)
        for record in self.partitions.values():
            if record.host is host:
                self.recovery.died(record, host, power_is_lost=killed.power_is_lost)
                record.host = None

    # --- the end --------------------------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """Whether `judge_end` would find nothing that is still going on."""
        return is_settled(self.world, self.transactions)

    def judge_end(self) -> None:
        """All faults are over, and all work: nothing may be left open."""
        self.sometimes[CONVERGENCE.name] += 1
        judge_convergence(self.world, self.transactions)

    def cover(self, coverage: Coverage, faults: Iterable[str]) -> None:
        """Add the cells of this run, and the kinds of fault that struck in it."""
        coverage.add(self.cells.cells, faults)

    # --- inputs ---------------------------------------------------------------------------------------------

    def durable(self, host: Host, arrived: Durable, outcome: Outcome) -> None:
        key = arrived.partition
        log, record = host.node.logs.get(key), self.partitions.get(key)
        if log is None or record is None:
            return
        if record.host is not host:
            record.judge_replaced(arrived.offset)
            judge_order(log.partition)
            return
        record.durable(arrived.offset)
        if key.topic == TRANSACTION_STATE_TOPIC:
            self.transactions.durable(key, arrived.offset)
        self.moved.append((record, log.partition))

    def received(self, host: Host, arrived: Received, outcome: Outcome) -> None:
        request: Any = arrived.request
        kind = type(arrived.request)
        if kind in COUNTED:
            self.cells.received(host, arrived)
        if kind is EndTxn or kind is WriteTxnMarkers:
            self.answers.asked[host.node.settings.node_id, arrived.to] = request
        if kind is EndTxn or kind is InitProducerId:
            self.retries.asked(host, arrived.to, request)

    def led(self, host: Host, arrived: BecomeLeader, outcome: Outcome) -> None:
        key = arrived.partition
        record = self.partitions.get(key)
        if record is None:
            record = self.partitions[key] = PartitionRecord(key, self.sometimes)
        is_untouched = all(append.partition != key for append in outcome.appends)
        count = self.recovery.take_over(record, arrived, host.node, is_untouched=is_untouched)
        is_cut = count < len(record.headers)
        if is_cut:
            record.cut(count)
        record.taken_over(host, arrived.leader_epoch, is_cut=is_cut)
        self._moves(host, record)
        if key.topic == TRANSACTION_STATE_TOPIC:
            self.transactions.cut(key, record.log_end_offset)
        elif key in self.offsets:
            self.offsets[key].cut(record.log_end_offset)
            groups = host.node.logs[key].coordinator
            if is_untouched and isinstance(groups, Groups):
                self.offsets[key].judge_all(groups)

    def _moves(self, host: Host, record: PartitionRecord) -> None:
        log = host.node.logs.get(record.key)
        if log is not None:
            self.moved.append((record, log.partition))

    def _removed(self, key: TopicPartition) -> None:
        self.partitions.pop(key, None)
        self.offsets.pop(key, None)

    # --- appends --------------------------------------------------------------------------------------------

    def _append(self, host: Host, arrived: Input, append: Append) -> None:
        """What a leader who was replaced decides is never written, and never safe."""
        key, header = append.partition, append.header
        record = self.partitions.get(key)
        if record is None or record.host is not host or record.leader_epoch != append.leader_epoch:
            return
        result = None
        if header.producer_id != NO_PRODUCER_ID:
            if header.is_control:
                result = marker_result(append.batch)
                self.transactions.judge_marker(key, (header.producer_id, header.producer_epoch), result)
                self._moves(host, record)
            else:
                self._judge_batch(record, header)
        record.enter(header, result)
        if key.topic == TRANSACTION_STATE_TOPIC:
            # Read from the batch, since a coordinator's memory may hold what its log does not.
            (name, told), *_ = read_transactions(append.batch, header)
            if told is not None:
                self.cells.decided(name, told, is_tick=isinstance(arrived, Tick))
                self.transactions.enter(key, (record.log_end_offset, name, told))
        elif key.topic == CONSUMER_OFFSETS_TOPIC:
            self._enter_offsets(host, append, result)

    def _judge_batch(self, record: PartitionRecord, header: BatchHeader) -> None:
        identity = (header.producer_id, header.producer_epoch)
        starts_at_zero = False
        record.judge_behind_marker(header)
        if header.is_transactional:
            self.transactions.judge_fenced(record.key, *identity)
            starts_at_zero = self.transactions.judge_write(record.key, *identity).renews_identity
        record.judge_sequence(header, starts_at_zero=starts_at_zero)

    def _enter_offsets(self, host: Host, append: Append, result: TransactionResult | None) -> None:
        header, batch = append.header, append.batch
        offsets = self.offsets.get(append.partition)
        if offsets is None:
            offsets = self.offsets[append.partition] = OffsetsRecord(self.sometimes)
        entry = OffsetsEntry(
            header.base_offset,
            header.producer_id,
            header.is_transactional,
            result,
            tuple(read_offsets(batch, header)) if result is None else (),
        )
        groups = host.node.logs[append.partition].coordinator
        assert isinstance(groups, Groups), "groups live on __consumer_offsets"
        offsets.enter(entry, groups)

    # --- after the step -------------------------------------------------------------------------------------

    def _judge_timeouts(self, node: SimulatedNode, host: Host) -> None:
        """A scan leaves nothing open that is overdue, unless there is no producer id to abort it with."""
        ids, book = host.node.producer_ids, self.transactions
        if ids.is_empty and ids.next_block is None:
            return
        now = node.clock.ms(self.world.now)
        for name, record in book.latest.items():
            if (
                record.state is TransactionState.ONGOING
                and self._leads(host, book.homes[name])
                and book.durable_records.get(name) is record
            ):
                self.sometimes[TIMEOUT.name] += 1
                if record.start_ms + record.timeout_ms < now:
                    raise Violation(
                        TIMEOUT.name,
                        f"{name} is open since {record.start_ms} ms for at most {record.timeout_ms} ms, and "
                        f"was left open at {now} ms",
                    )

    def _leads(self, host: Host, key: TopicPartition) -> bool:
        return self.partitions[key].host is host and key in host.node.logs


_BEFORE_APPENDS: Final[dict[type[Any], Callable[[Invariants, Host, Any, Outcome], None]]] = {
    Durable: Invariants.durable,
    Received: Invariants.received,
    BecomeLeader: Invariants.led,
}
