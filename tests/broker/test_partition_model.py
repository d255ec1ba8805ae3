"""Any sequence of batches and markers, and a disk that lags behind, against a model that knows no state: it
reads the whole log each time.

Three producers send what is right, what is a repetition and what is wrong; markers come from coordinators of
every generation. Answers, the last stable offset, aborted ranges and the state after recovery must agree.
"""

from __future__ import annotations

from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.fork import log_state
from fencepost.protocol.terms import INT32_MAX, TransactionResult
from tests.broker import naive_answers
from tests.broker.logs import Led
from tests.broker.naive_answers import Batch, Question
from tests.broker.naive_log import NONE, Known, Line, aborted_ranges, known_of, read, stable_offset
from tests.broker.requests import NOON, Identity

PRODUCERS = st.integers(1, 3)
EPOCHS = st.integers(0, 3)
COUNTS = st.integers(1, 3)
SEQUENCES = st.sampled_from([0, 1, 2, 5, INT32_MAX - 1, INT32_MAX])


class PartitionAndModel(RuleBasedStateMachine):
    """The partition under test beside the log that the model reads."""

    @initialize()
    def begin(self) -> None:
        self.led = Led()
        self.questions: dict[int, Question] = {}
        self.stable = 0

    @property
    def log(self) -> list[Line]:
        return read(self.led.log)

    def known(self, producer: int) -> Known:
        return known_of(self.log, producer)

    def question(self, producer: int) -> Question | None:
        found = self.questions.get(producer)
        return found if found is not None and found.stands(self.log, producer, ()) else None

    def send(self, producer: int, epoch: int, first: int, count: int, *, transactional: bool) -> None:
        """The coordinator says yes to whatever it is asked about."""
        known, end = self.known(producer), self.led.partition.log_end_offset
        who = Identity(producer, epoch)
        batch = Batch(who=who, first=first, count=count, is_transactional=transactional, adds=True)
        if transactional and naive_answers.needs_coordinator(known, who):
            question = self.question(producer)
            self.questions[producer] = naive_answers.asked(question, batch, now=NOON, end=end)
        expected = naive_answers.of_produce(known, self.question(producer), batch, end=end)
        answer = self.led.data(producer, count, epoch=epoch, sequence=first, transactional=transactional)
        assert answer == expected
        assert type(answer) is type(expected)
        event(answer.name if isinstance(answer, ErrorCode) else "new" if answer == end else "duplicate")

    @rule(producer=PRODUCERS, count=COUNTS, transactional=st.booleans(), bump=st.booleans())
    def right(self, producer: int, count: int, transactional: bool, bump: bool) -> None:
        """The next batch as a producer would send it, now and then under its next epoch."""
        known = self.known(producer)
        epoch = max(0, known.epoch)
        first = 0 if bump else naive_answers.next_sequence(known, epoch)
        self.send(producer, epoch + bump, first, count, transactional=transactional)

    @rule(producer=PRODUCERS, epoch=EPOCHS, first=SEQUENCES, count=COUNTS, transactional=st.booleans())
    def anything(self, producer: int, epoch: int, first: int, count: int, transactional: bool) -> None:
        self.send(producer, epoch, first, count, transactional=transactional)

    @precondition(lambda self: any(line.is_data for line in self.log))
    @rule(data=st.data())
    def again(self, data: st.DataObject) -> None:
        """A batch of the log is sent once more."""
        line = data.draw(st.sampled_from([line for line in self.log if line.is_data]))
        transactional = line.is_transactional
        self.send(line.producer, line.epoch, line.first, line.records, transactional=transactional)

    @rule(
        producer=PRODUCERS,
        result=st.sampled_from(TransactionResult),
        step=st.integers(-1, 1),
        version=st.sampled_from([0, 2]),
    )
    def marker(self, producer: int, result: TransactionResult, step: int, version: int) -> None:
        known, end = self.known(producer), self.led.partition.log_end_offset
        epoch = max(0, known.epoch + step)
        refused = naive_answers.of_marker(known, epoch, 0, version=version)
        answer = self.led.marker(producer, result, epoch=epoch, version=version)
        assert answer == (refused or end)
        if not refused:
            open_or_not = "no" if known.current_txn_first_offset == NONE else "an open"
            event(f"{result.name} of {open_or_not} transaction")

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
        assert log_state(self.led.recovered()) == log_state(self.led.partition)


TestPartitionAndModel = PartitionAndModel.TestCase
TestPartitionAndModel.settings = settings(max_examples=80, stateful_step_count=40)
