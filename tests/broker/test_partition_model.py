"""Any sequence of batches and markers against a model that knows no state: it reads the whole log each time.

Three producers send what is right, what is a repetition and what is wrong; markers come from coordinators of
every generation. Answers, the last stable offset, aborted ranges and the state after recovery must agree.
"""

from __future__ import annotations

import attrs
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fencepost.journal.indexes import AbortedRange
from fencepost.protocol.batches import read_marker
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import INT32_MAX, TransactionResult
from tests.broker.logs import Answer, Led
from tests.broker.requests import ABORT

PRODUCERS = st.integers(1, 3)
EPOCHS = st.integers(0, 3)
COUNTS = st.integers(1, 3)
SEQUENCES = st.sampled_from([0, 1, 2, 5, INT32_MAX - 1, INT32_MAX])


@attrs.frozen
class Batch:
    """One line of the log, as the model reads it."""

    offset: int
    producer: int = attrs.field(kw_only=True)
    epoch: int = attrs.field(kw_only=True)
    first: int = attrs.field(kw_only=True)
    count: int = attrs.field(kw_only=True)
    transactional: bool = attrs.field(kw_only=True)
    result: TransactionResult | None = attrs.field(kw_only=True)

    @property
    def last(self) -> int:
        return (self.first + self.count - 1) % 2**31


def read(led: Led) -> list[Batch]:
    return [
        Batch(
            header.base_offset,
            producer=header.producer_id,
            epoch=header.producer_epoch,
            first=header.base_sequence,
            count=header.record_count,
            transactional=header.is_transactional,
            result=read_marker(batch).result if header.is_control else None,
        )
        for header, batch in led.log
    ]


def opened_at(log: list[Batch], producer: int) -> int | None:
    """First offset of the producer's transactional data since its last marker."""
    first = None
    for batch in log:
        if batch.producer == producer and batch.result is not None:
            first = None
        elif batch.producer == producer and batch.transactional and first is None:
            first = batch.offset
    return first


def epoch_of(log: list[Batch], producer: int) -> int:
    return next((batch.epoch for batch in reversed(log) if batch.producer == producer), -1)


def recent(log: list[Batch], producer: int) -> list[Batch]:
    """The data batches of the producer's present epoch, the last five."""
    epoch, found = epoch_of(log, producer), list[Batch]()
    for batch in reversed(log):
        if batch.producer == producer and batch.epoch != epoch:
            break
        if batch.producer == producer and batch.result is None:
            found.append(batch)
    return found[:5]


def stable_offset(log: list[Batch], high_watermark: int) -> int:
    """Every transaction of the log by full scan: which began below the bound and is not decided below it?"""
    bound = high_watermark
    for number, batch in enumerate(log):
        if batch.result is None and batch.transactional:
            rest = log[number:]
            ends = [b.offset for b in rest if b.producer == batch.producer and b.result is not None]
            if not ends or ends[0] >= high_watermark:
                bound = min(bound, batch.offset)
    return bound


def aborted_ranges(log: list[Batch]) -> list[AbortedRange]:
    found: list[AbortedRange] = []
    for number, marker in enumerate(log):
        first = opened_at(log[:number], marker.producer)
        if marker.result is ABORT and first is not None:
            others = {batch.producer for batch in log} - {marker.producer}
            firsts = [opened_at(log[:number], other) for other in others]
            open_firsts = [offset for offset in firsts if offset is not None]
            stable = min(open_firsts, default=marker.offset + 1)
            found.append(AbortedRange(marker.producer, first, marker.offset, stable))
    return found


class PartitionAndModel(RuleBasedStateMachine):
    """The partition under test beside the log that the model reads."""

    @initialize()
    def begin(self) -> None:
        self.led = Led()
        self.questions: dict[int, tuple[int, int]] = {}  # producer -> (epoch, lowest sequence)
        self.stable = 0

    @property
    def log(self) -> list[Batch]:
        return read(self.led)

    def is_open(self, producer: int, epoch: int) -> bool:
        return opened_at(self.log, producer) is not None and epoch_of(self.log, producer) == epoch

    def expect(self, producer: int, epoch: int, first: int, count: int, transactional: bool) -> Answer:
        """What the rules say of a batch whose coordinator says yes."""
        known, cached = epoch_of(self.log, producer), recent(self.log, producer)
        last = (first + count - 1) % 2**31
        for batch in cached:
            if (batch.epoch, batch.first, batch.last) == (epoch, first, last):
                return batch.offset
        if epoch < known:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if producer in self.questions and (
            (not cached and first != 0) or first > self.questions[producer][1]
        ):
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        expected = 0 if epoch != known or not cached else (cached[0].last + 1) % 2**31
        if known != -1 and first != expected:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if not transactional and opened_at(self.log, producer) is not None:
            return ErrorCode.INVALID_TXN_STATE
        return self.led.partition.log_end_offset

    def send(self, producer: int, epoch: int, first: int, count: int, *, transactional: bool) -> None:
        if transactional and not self.is_open(producer, epoch):
            asked_epoch, lowest = self.questions.get(producer, (epoch, first))
            if epoch > asked_epoch:
                asked_epoch, lowest = epoch, first
            self.questions[producer] = (asked_epoch, min(lowest, first) if epoch == asked_epoch else lowest)
        expected = self.expect(producer, epoch, first, count, transactional)
        end = self.led.partition.log_end_offset
        answer = self.led.data(producer, count, epoch=epoch, sequence=first, transactional=transactional)
        assert answer == expected
        assert type(answer) is type(expected)
        event(answer.name if isinstance(answer, ErrorCode) else "new" if answer == end else "duplicate")
        if transactional and answer == end:
            self.questions.pop(producer, None)

    @rule(producer=PRODUCERS, count=COUNTS, transactional=st.booleans(), bump=st.booleans())
    def right(self, producer: int, count: int, transactional: bool, bump: bool) -> None:
        """The next batch as a producer would send it, now and then under its next epoch."""
        epoch, cached = max(0, epoch_of(self.log, producer)), recent(self.log, producer)
        first = 0 if bump or not cached else (cached[0].last + 1) % 2**31
        self.send(producer, epoch + bump, first, count, transactional=transactional)

    @rule(producer=PRODUCERS, epoch=EPOCHS, first=SEQUENCES, count=COUNTS, transactional=st.booleans())
    def anything(self, producer: int, epoch: int, first: int, count: int, transactional: bool) -> None:
        self.send(producer, epoch, first, count, transactional=transactional)

    @precondition(lambda self: any(batch.result is None for batch in self.log))
    @rule(data=st.data())
    def again(self, data: st.DataObject) -> None:
        """A batch of the log is sent once more."""
        batch = data.draw(st.sampled_from([batch for batch in self.log if batch.result is None]))
        self.send(batch.producer, batch.epoch, batch.first, batch.count, transactional=batch.transactional)

    @rule(
        producer=PRODUCERS,
        result=st.sampled_from(TransactionResult),
        step=st.integers(-1, 1),
        version=st.sampled_from([0, 2]),
    )
    def marker(self, producer: int, result: TransactionResult, step: int, version: int) -> None:
        known = epoch_of(self.log, producer)
        epoch = max(0, known + step)
        is_open = opened_at(self.log, producer) is not None
        refused = epoch < known or (version == 2 and epoch == known and is_open)
        end = self.led.partition.log_end_offset
        answer = self.led.marker(producer, result, epoch=epoch, version=version)
        assert answer == (ErrorCode.INVALID_PRODUCER_EPOCH if refused else end)
        if not refused:
            event(f"{result.name} of {'an open' if is_open else 'no'} transaction")
            self.questions.pop(producer, None)

    @rule(part=st.integers(0, 4))
    def durable(self, part: int) -> None:
        """The high watermark moves on to the end of some batch."""
        ends = [header.next_offset for header, _ in self.led.log]
        ahead = [end for end in ends if end > self.led.partition.high_watermark]
        if ahead:
            self.led.release(ahead[part * (len(ahead) - 1) // 4])

    @invariant()
    def bounds_agree(self) -> None:
        state = self.led.partition
        assert state.last_stable_offset == stable_offset(self.log, state.high_watermark)
        assert self.stable <= state.last_stable_offset <= state.high_watermark <= state.log_end_offset
        self.stable = state.last_stable_offset

    @invariant()
    def indexes_agree(self) -> None:
        assert self.led.aborted == aborted_ranges(self.log)

    @invariant()
    def recovery_agrees(self) -> None:
        assert self.led.recovered().key_of_state() == self.led.partition.key_of_state()


TestPartitionAndModel = PartitionAndModel.TestCase
TestPartitionAndModel.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
