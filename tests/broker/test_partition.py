"""One partition by itself: sequences, duplicates, epochs, guards, markers and what bounds readers."""

from __future__ import annotations

import pytest

from fencepost.broker.partitions import partition
from fencepost.broker.partitions.partition import CACHED_BATCHES_MAX
from fencepost.journal.indexes import AbortedRange
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.fork import fork, log_state
from fencepost.protocol.terms import INT32_MAX, TransactionResult
from tests.broker.logs import Led
from tests.broker.requests import ABORT, COMMIT

OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
OLD_EPOCH = ErrorCode.INVALID_PRODUCER_EPOCH
WRONG_STATE = ErrorCode.INVALID_TXN_STATE


# --- sequences (ProducerStateManagerTest, UnifiedLogTest) ------------------------------------------------


@pytest.mark.parametrize(
    ("last", "following", "is_next"),
    [
        (4, 5, True),
        (4, 6, False),
        (4, 0, False),
        (INT32_MAX, 0, True),
        (INT32_MAX, 1, False),
        (INT32_MAX - 1, INT32_MAX, True),
        (INT32_MAX - 1, 0, False),
    ],
)
def test_a_sequence_follows_the_last_one_and_wraps_to_zero(last: int, following: int, is_next: bool) -> None:
    led = Led()
    assert led.data(7, sequence=last) == 0
    assert led.data(7, sequence=following) == (1 if is_next else OUT_OF_ORDER)


def test_a_batch_may_straddle_the_wrap() -> None:
    led = Led()
    assert led.data(7, 10, sequence=INT32_MAX - 4) == 0  # ..., INT32_MAX, 0, 1, 2, 3, 4
    assert led.partition.producers[7].last_sequence == 4
    assert led.data(7, 10, sequence=INT32_MAX - 4) == 0  # and is recognised when repeated
    assert led.data(7, sequence=5) == 10


def test_an_unknown_producer_may_start_anywhere_unless_it_is_in_a_transaction() -> None:
    led = Led()
    assert led.data(7, sequence=16) == 0
    assert led.data(8, sequence=16, transactional=True) is OUT_OF_ORDER
    assert led.data(8, sequence=0, transactional=True) == 1


def test_a_new_epoch_starts_at_zero() -> None:
    led = Led()
    led.data(7, 3)
    assert led.data(7, sequence=3, epoch=1) is OUT_OF_ORDER
    assert led.data(7, sequence=0, epoch=1) == 3
    assert led.data(7, sequence=3, epoch=0) is OLD_EPOCH


def test_after_a_marker_that_raised_the_epoch_only_zero_is_accepted() -> None:
    for epoch in (1, 2):
        led = Led()
        led.data(7, 3, transactional=True)
        led.marker(7, ABORT, epoch=1, version=2)
        assert led.data(7, sequence=2, epoch=epoch, transactional=True) is OUT_OF_ORDER
        assert led.data(7, sequence=0, epoch=epoch, transactional=True) == 4


def test_a_marker_without_state_fences_and_expects_zero() -> None:
    led = Led()
    assert led.marker(7, ABORT, epoch=3) == 0
    assert led.data(7, epoch=2, transactional=True) is OLD_EPOCH
    assert led.data(7, sequence=17, epoch=3) is OUT_OF_ORDER
    assert led.data(7, sequence=0, epoch=3) == 1


# --- duplicates ------------------------------------------------------------------------------------------


def test_the_last_five_batches_are_answered_with_their_first_offset() -> None:
    led = Led()
    for number in range(CACHED_BATCHES_MAX + 2):
        assert led.data(7, 2, sequence=2 * number) == 2 * number
    end = led.partition.log_end_offset
    for number in range(2, CACHED_BATCHES_MAX + 2):
        assert led.data(7, 2, sequence=2 * number) == 2 * number
    for forgotten in (0, 1):
        assert led.data(7, 2, sequence=2 * forgotten) is OUT_OF_ORDER
    assert led.partition.log_end_offset == end


@pytest.mark.parametrize(("sequence", "count"), [(2, 3), (2, 1), (3, 2), (1, 2), (0, 4)])
def test_only_the_very_same_batch_is_a_duplicate(sequence: int, count: int) -> None:
    led = Led()
    led.data(7, 2, sequence=0)
    led.data(7, 2, sequence=2)
    assert led.data(7, count, sequence=sequence) is OUT_OF_ORDER


def test_a_batch_of_an_older_epoch_is_no_duplicate() -> None:
    led = Led()
    led.data(7, 2)
    led.data(7, 2, epoch=1)
    assert led.data(7, 2, epoch=0) is OLD_EPOCH


def test_a_duplicate_is_recognised_before_anything_else_is_asked() -> None:
    """Also when its transaction is over, under the same epoch, as in the older generations."""
    led = Led()
    led.data(7, 2, transactional=True)
    led.marker(7, COMMIT, epoch=0, version=0)
    assert led.data(7, 2, transactional=True, guard=999) == 0
    assert led.data(7, 2, sequence=2, transactional=True, guard=999) is WRONG_STATE


# --- epochs, guards, plain batches ---------------------------------------------------------------------


def test_a_batch_needs_the_guard_of_its_question() -> None:
    led = Led()
    assert led.data(7, transactional=True, guard=1) is WRONG_STATE
    guard = led.ask(7)
    assert led.data(7, transactional=True, guard=guard + 1) is WRONG_STATE
    assert led.data(7, transactional=True, guard=guard) == 0
    assert led.data(7, sequence=1, transactional=True, guard=0) == 1  # open: nobody is asked any more


@pytest.mark.parametrize("asked_again", [False, True])
def test_a_batch_asked_about_before_a_marker_does_not_get_in_after_it(asked_again: bool) -> None:
    """KAFKA-14884: also when the next transaction has been asked about meanwhile, and at the same epoch."""
    led = Led()
    guard = led.ask(7, starts_at_zero=False)
    led.marker(7, ABORT, epoch=0, version=0)
    newer = led.ask(7, starts_at_zero=False) if asked_again else None
    assert newer != guard
    assert led.data(7, transactional=True, guard=guard) is WRONG_STATE
    if newer is not None:
        assert led.data(7, transactional=True, guard=newer) == 1
    assert led.last_stable_offset == led.partition.high_watermark


@pytest.mark.parametrize("ended", [COMMIT, ABORT])
def test_a_late_marker_of_the_last_transaction_leaves_the_question_about_the_next(
    ended: TransactionResult,
) -> None:
    """In version 2 it has the epoch of the next transaction, whose first batch may be parked already."""
    led = Led()
    guard = led.ask(7, epoch=1)
    led.marker(7, ended, epoch=1, version=2)
    assert led.ask(7, epoch=1) == guard
    assert led.data(7, epoch=1, transactional=True, guard=guard) == 1


def test_a_marker_of_version_two_removes_the_question_about_the_transaction_that_it_ends() -> None:
    led = Led()
    guard = led.ask(7)
    led.marker(7, ABORT, epoch=1, version=2)
    assert led.data(7, transactional=True, guard=guard) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert led.ask(7, epoch=1) != guard


def test_while_an_earlier_batch_is_asked_about_later_ones_are_out_of_order() -> None:
    led = Led()
    later = led.ask(7, sequence=5)
    assert led.ask(7, sequence=0) == later  # one question; the lowest sequence counts
    assert led.data(7, sequence=5, transactional=True, guard=later) is OUT_OF_ORDER
    assert led.data(7, 5, sequence=0, transactional=True, guard=later) == 0
    assert led.data(7, sequence=5, transactional=True) == 5


def test_a_repetition_that_is_asked_about_holds_back_what_follows() -> None:
    """The lowest sequence in question counts, whichever was asked about first."""
    for order in ((5, 3), (3, 5)):
        led = Led()
        led.data(7, 3)
        led.data(7, 2, sequence=3)
        guards = {led.ask(7, sequence=sequence) for sequence in order}
        assert len(guards) == 1
        assert led.data(7, sequence=5, transactional=True, guard=guards.pop()) is OUT_OF_ORDER


def test_a_newer_epoch_takes_over_the_question() -> None:
    led = Led()
    guard = led.ask(7, sequence=3)
    assert led.ask(7, epoch=1, sequence=2) == guard
    assert led.ask(7, epoch=0, sequence=0) == guard  # changes nothing
    assert led.data(7, epoch=1, sequence=3, transactional=True, guard=guard) is OUT_OF_ORDER
    led.ask(7, epoch=1, sequence=0)
    assert led.data(7, epoch=1, transactional=True, guard=guard) == 0


@pytest.mark.parametrize("first_is_old", [False, True])
def test_who_asked_first_says_whether_the_first_sequence_must_be_zero(first_is_old: bool) -> None:
    """Recorded of Kafka 4.3.1: clients of both kinds, and the question of the first was refused."""
    led = Led()
    led.ask(7, starts_at_zero=not first_is_old)
    guard = led.ask(7, epoch=1, sequence=1, starts_at_zero=first_is_old)
    answer = led.data(7, epoch=1, sequence=1, transactional=True, guard=guard)
    assert answer == (0 if first_is_old else OUT_OF_ORDER)


def test_a_plain_batch_inside_its_producers_transaction_is_refused() -> None:
    led = Led()
    led.data(7, transactional=True)
    assert led.data(7, sequence=1) is WRONG_STATE
    assert led.plain() == 1
    led.marker(7, COMMIT, epoch=0, version=0)
    assert led.data(7, sequence=1) == 3


def test_an_open_transaction_of_an_older_epoch_is_not_mine() -> None:
    """KIP-890 part 2: the last transaction's marker may be late; the coordinator is asked."""
    led = Led()
    led.data(7, transactional=True)
    assert led.partition.is_open(7, 0)
    assert not led.partition.is_open(7, 1)
    assert not led.partition.is_open(8, 0)


# --- markers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "epoch", "is_open", "accepted"),
    [
        (2, 2, True, True),
        (2, 1, True, False),  # since version 2 a marker carries the next epoch (KIP-1228)
        (2, 1, False, True),  # the repetition of one that was written (KAFKA-19999)
        (2, 0, True, False),
        (2, 0, False, False),
        (0, 1, True, True),
        (0, 1, False, True),
        (0, 0, True, False),
        (0, 0, False, False),
        (1, 1, True, True),
    ],
)
def test_the_epoch_of_a_marker(version: int, epoch: int, is_open: bool, accepted: bool) -> None:
    led = Led()
    if is_open:
        led.data(7, epoch=1, transactional=True)
    else:
        led.marker(7, COMMIT, epoch=1)
    answer = led.marker(7, ABORT, epoch=epoch, version=version)
    assert answer == (1 if accepted else OLD_EPOCH)


def test_a_repeated_marker_is_written_again_and_changes_nothing() -> None:
    led = Led()
    led.data(7, transactional=True)
    led.marker(7, COMMIT, epoch=1, version=2)
    assert led.marker(7, ABORT, epoch=1, version=2) == 2  # even with the other decision
    led.release()
    assert led.last_stable_offset == 3
    assert led.aborted == []


def test_a_coordinator_that_was_replaced_is_fenced_here() -> None:
    led = Led()
    led.marker(7, ABORT, epoch=0, coordinator_epoch=4)
    assert led.marker(7, ABORT, epoch=1, coordinator_epoch=3) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert led.marker(7, ABORT, epoch=1, coordinator_epoch=4) == 1
    assert led.marker(8, ABORT, epoch=0, coordinator_epoch=1) == 2  # per producer
    led.partition = led.recovered()
    assert led.marker(7, ABORT, epoch=2, coordinator_epoch=3) is ErrorCode.TRANSACTION_COORDINATOR_FENCED


# --- the offsets that bound readers (facts of UnifiedLogTest.testTransactionIndexUpdated) -------------------


def worked_example() -> Led:
    led = Led()
    led.data(1, 5, transactional=True)
    led.plain(3)
    led.data(2, 2, transactional=True)
    led.data(1, 4, sequence=5, transactional=True)
    led.data(3, 3, transactional=True)
    led.plain(2)
    led.data(1, 10, sequence=9, transactional=True)
    assert led.marker(1, ABORT) == 29
    led.data(2, 6, sequence=2, transactional=True)
    led.data(4, 3, transactional=True)
    led.plain(10)
    led.data(3, 9, sequence=3, transactional=True)
    assert led.marker(3, COMMIT) == 58
    led.data(4, 8, sequence=3, transactional=True)
    led.data(2, 7, sequence=8, transactional=True)
    assert led.marker(2, ABORT) == 74
    led.plain(10)
    led.data(4, 4, sequence=11, transactional=True)
    assert led.marker(4, COMMIT) == 89
    return led


def test_the_index_of_aborted_transactions() -> None:
    assert worked_example().aborted == [
        AbortedRange(1, first_offset=0, last_offset=29, last_stable_offset=8),
        AbortedRange(2, first_offset=8, last_offset=74, last_stable_offset=36),
    ]


@pytest.mark.parametrize(
    ("high_watermark", "first_unstable"),
    [
        (29, 0),  # the marker at 29 is not below it
        (30, 8),
        (58, 8),
        (74, 8),
        (75, 36),
        (89, 36),
        (90, None),
    ],
)
def test_a_transaction_is_stable_once_its_marker_is_below_the_high_watermark(
    high_watermark: int, first_unstable: int | None
) -> None:
    led = worked_example()
    led.release(high_watermark)
    assert led.partition.first_unstable_offset == first_unstable
    expected = high_watermark if first_unstable is None else min(first_unstable, high_watermark)
    assert led.last_stable_offset == expected


def test_an_empty_transaction_leaves_no_trace_in_index_or_bounds() -> None:
    """KAFKA-10702."""
    led = Led()
    led.data(1, 2, transactional=True)
    led.marker(2, ABORT)
    led.release()
    assert led.aborted == []
    assert led.last_stable_offset == 0
    led.marker(1, COMMIT)
    led.release()
    assert led.last_stable_offset == led.partition.log_end_offset == 4


def test_the_last_stable_offset_never_falls() -> None:
    led = Led()
    seen = [led.last_stable_offset]
    for step in range(12):
        producer = step % 3
        if led.partition.is_open(producer, step // 6):
            led.marker(producer, COMMIT, epoch=step // 6)
        else:
            led.data(producer, epoch=step // 6, transactional=True)
        led.release()
        seen.append(led.last_stable_offset)
    assert seen == sorted(seen)


# --- recovery ----------------------------------------------------------------------------------------------


def test_recovery_reads_from_the_log_what_is_not_a_note() -> None:
    led = worked_example()
    led.release(30)
    led.ask(99)
    live = led.partition
    assert log_state(led.recovered()) == log_state(live)
    copied = fork(live)
    led.data(5, transactional=True)
    assert log_state(copied) != log_state(live)


def test_a_snapshot_keeps_the_last_batch_of_each_producer() -> None:
    led = Led()
    led.data(1, 2)
    led.data(1, 3, sequence=2)
    led.data(2, 4, transactional=True)
    led.marker(3, ABORT, epoch=5, coordinator_epoch=2)
    restored = Led()
    end = led.partition.log_end_offset
    partition.restore(restored.partition, partition.snapshot(led.partition), at_offset=end)
    restored.release(end)
    assert restored.last_stable_offset == 5
    assert restored.data(1, 3, sequence=2) == 2
    assert restored.data(1, 2) is OUT_OF_ORDER  # one batch is kept, not five
    assert restored.data(2, sequence=4, transactional=True) == end
    assert restored.data(3, epoch=4) is OLD_EPOCH
    assert restored.marker(3, ABORT, epoch=5, coordinator_epoch=1) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert partition.snapshot(restored.partition)[0] == partition.snapshot(led.partition)[0]
