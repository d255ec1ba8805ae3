"""Histories written by hand: what pictures and readers of a run are tried on.

Rule: they say what real cores would do, but no core has run; one event each 0.5 ms.
"""

from __future__ import annotations

from fencepost.protocol.batches import CONTROL_BIT, MAGIC_KAFKA, TRANSACTIONAL_BIT, BatchHeader
from fencepost.protocol.terms import (
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TopicPartition,
    TransactionResult,
    TransactionState,
)
from fencepost.protocol.transaction_log import TransactionRecord
from fencepost.simulator.world.history import (
    Appended,
    Arrived,
    Bounded,
    Called,
    Coordinated,
    Event,
    History,
    Lost,
    Sent,
    Struck,
    Truncated,
)

TICK = 500_000  # nanoseconds
ORDERS = TopicPartition("t", 0)
OTHERS = TopicPartition("t", 1)
NODE = "n1"
PAY = "pay"
PRODUCER_ID = 7

COMMIT = TransactionResult.COMMIT
ABORT = TransactionResult.ABORT
_PREPARE = {COMMIT: TransactionState.PREPARE_COMMIT, ABORT: TransactionState.PREPARE_ABORT}
_COMPLETE = {COMMIT: TransactionState.COMPLETE_COMMIT, ABORT: TransactionState.COMPLETE_ABORT}


class Chronicle:
    """Writes a history event by event; messages are numbered from 1."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.last_number = 0

    @property
    def now(self) -> int:
        return len(self.events) * TICK

    def send(self, source: str, target: str, label: str, *, answers: int | None = None) -> int:
        self.last_number += 1
        number = self.last_number
        self.events.append(
            Sent(self.now, number=number, source=source, target=target, label=label, answers=answers)
        )
        return number

    def arrive(self, number: int) -> None:
        self.events.append(Arrived(self.now, number=number))

    def lose(self, number: int, because: str) -> None:
        self.events.append(Lost(self.now, number=number, because=because))

    def deliver(self, source: str, target: str, label: str, *, answers: int | None = None) -> int:
        number = self.send(source, target, label, answers=answers)
        self.arrive(number)
        return number

    def append(
        self,
        partition: TopicPartition,
        base_offset: int,
        label: str = "",
        *,
        result: TransactionResult | None = None,
        producer_id: int = PRODUCER_ID,
        is_transactional: bool = True,
    ) -> None:
        count = 1 if result is not None else len(label.split())
        header = BatchHeader(
            base_offset=base_offset,
            batch_length=0,
            leader_epoch=0,
            magic=MAGIC_KAFKA,
            crc=0,
            attributes=TRANSACTIONAL_BIT * is_transactional | CONTROL_BIT * (result is not None),
            last_offset_delta=count - 1,
            base_timestamp=NO_TIMESTAMP,
            max_timestamp=NO_TIMESTAMP,
            producer_id=producer_id,
            producer_epoch=-1 if producer_id < 0 else 0,
            base_sequence=NO_SEQUENCE,
            record_count=count,
        )
        self.events.append(
            Appended(at=self.now, node=NODE, partition=partition, header=header, result=result, label=label)
        )

    def bound(self, partition: TopicPartition, last_stable_offset: int, high_watermark: int) -> None:
        self.events.append(
            Bounded(
                at=self.now,
                partition=partition,
                last_stable_offset=last_stable_offset,
                high_watermark=high_watermark,
            )
        )

    def truncate(self, partition: TopicPartition, next_offset: int) -> None:
        self.events.append(Truncated(at=self.now, node=NODE, partition=partition, next_offset=next_offset))

    def coordinate(self, state: TransactionState, *, transactional_id: str = PAY) -> None:
        record = TransactionRecord(
            producer_id=PRODUCER_ID,
            previous_producer_id=NO_PRODUCER_ID,
            next_producer_id=NO_PRODUCER_ID,
            producer_epoch=0,
            timeout_ms=60_000,
            state=state,
            partitions=(ORDERS,),
            update_ms=0,
            start_ms=0,
            client_version=0,
        )
        self.events.append(
            Coordinated(at=self.now, node=NODE, transactional_id=transactional_id, record=record)
        )

    def call(self, participant: str, label: str) -> None:
        self.events.append(Called(self.now, participant=participant, label=label))

    def strike(self, participant: str, label: str, *, number: int | None = None) -> None:
        self.events.append(Struck(self.now, participant=participant, label=label, number=number))

    def history(self, title: str, *participants: str) -> History:
        return History(title=title, participants=participants, events=tuple(self.events), end=self.now)


def _ask(told: Chronicle, label: str) -> int:
    return told.deliver("p", NODE, label)


def _answer(told: Chronicle, label: str, request: int) -> None:
    told.deliver(NODE, "p", label, answers=request)


def _begin_and_send(told: Chronicle, value: str, *, offset: int) -> None:
    """A transaction of the old generation up to its only record."""
    told.call("p", "begin")
    request = _ask(told, "AddPartitionsToTxn t-0")
    told.coordinate(TransactionState.ONGOING)
    _answer(told, "AddPartitionsToTxn NONE", request)
    request = _ask(told, f"Produce t-0 {value} 7/0")
    told.append(ORDERS, offset, value)
    told.bound(ORDERS, offset, offset + 1)
    _answer(told, f"Produce NONE @{offset}", request)


def _decide(told: Chronicle, result: TransactionResult, *, offset: int) -> None:
    """What follows an EndTxn that the coordinator takes."""
    told.coordinate(_PREPARE[result])
    markers = told.deliver(NODE, NODE, f"WriteTxnMarkers {result.name}")
    told.append(ORDERS, offset, result=result)
    told.bound(ORDERS, offset + 1, offset + 1)
    told.deliver(NODE, NODE, "WriteTxnMarkers NONE", answers=markers)
    told.coordinate(_COMPLETE[result])


def late_end_txn() -> History:
    """KAFKA-17754: p commits its first transaction twice over, and the older EndTxn commits the second one.

    p asks to abort the second; its record is visible all the same.
    """
    told = Chronicle()
    _begin_and_send(told, "a", offset=0)
    told.call("p", "commit")
    late = told.send("p", NODE, "EndTxn COMMIT 7/0")
    told.strike("", "hold the message", number=late)
    told.call("p", "timeout: retry on a second connection")
    retry = _ask(told, "EndTxn COMMIT 7/0")
    _decide(told, COMMIT, offset=1)
    _answer(told, "EndTxn NONE", retry)
    told.call("p", "commit: ok")
    _begin_and_send(told, "b", offset=2)
    told.strike("", "let go of the message", number=late)
    told.arrive(late)
    _decide(told, COMMIT, offset=3)
    told.lose(told.send(NODE, "p", "EndTxn NONE", answers=late), "its connection is gone")
    told.call("p", "abort")
    request = _ask(told, "EndTxn ABORT 7/0")
    _answer(told, "EndTxn INVALID_TXN_STATE", request)
    told.call("p", "abort: INVALID_TXN_STATE")
    request = told.deliver("reader", NODE, "Fetch t-0 @0 read_committed")
    told.deliver(NODE, "reader", "Fetch NONE a b", answers=request)
    told.call("reader", "poll: a b")
    return told.history("a late EndTxn decides the next transaction (KAFKA-17754)", "p", NODE, "reader")


def crash_between_prepare_and_markers() -> History:
    """The coordinator dies once its decision is durable; it finishes the work when it is back."""
    told = Chronicle()
    _begin_and_send(told, "a", offset=0)
    told.append(OTHERS, 0, "x y", producer_id=-1, is_transactional=False)
    told.bound(OTHERS, 2, 2)
    told.append(OTHERS, 2, "z", producer_id=-1, is_transactional=False)
    told.call("p", "abort")
    request = _ask(told, "EndTxn ABORT 7/0")
    told.coordinate(TransactionState.PREPARE_ABORT)
    told.strike(NODE, "crash")
    told.lose(told.send("p", NODE, "Heartbeat"), "n1 is down")
    told.strike(NODE, "restart")
    told.truncate(OTHERS, 2)
    told.append(ORDERS, 1, result=ABORT)
    told.bound(ORDERS, 2, 2)
    told.coordinate(TransactionState.COMPLETE_ABORT)
    again = _ask(told, "EndTxn ABORT 7/0")
    _answer(told, "EndTxn NONE", again)
    told.call("p", "abort: ok")
    told.strike("p", "pause")
    told.send(NODE, "p", "EndTxn NONE", answers=request)
    return told.history("a crash after PREPARE_ABORT", "p", NODE)


def long_run(transactions: int) -> History:
    """Many transactions of one producer, every third of which is aborted."""
    told = Chronicle()
    for count in range(transactions):
        _begin_and_send(told, f"v{count}", offset=2 * count)
        result = ABORT if count % 3 == 2 else COMMIT
        request = _ask(told, f"EndTxn {result.name} 7/0")
        _decide(told, result, offset=2 * count + 1)
        _answer(told, "EndTxn NONE", request)
    return told.history(f"{transactions} transactions", "p", NODE)
