"""InitProducerId, rule by rule: who is granted which producer id and epoch (KIP-98, KIP-360, KIP-890)."""

from __future__ import annotations

import pytest

from fencepost.broker.settings import NodeSettings
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import INT16_MAX, LAST_GRANTED_EPOCH, TransactionState
from tests.broker.requests import COMMIT, NOBODY, ORDERS, Identity, identity_of, init_request
from tests.broker.story import Story


def outcome(story: Story, expected: Identity) -> Identity | ErrorCode:
    reply = story.init("pay", expected)
    return identity_of(reply) if reply.error is ErrorCode.NONE else reply.error


def at_epoch(epoch: int) -> tuple[Story, int]:
    """An id that nobody has a transaction open for; its producer id."""
    story = Story()
    story.identity()
    return story, story.age(epoch).producer_id


def test_a_producer_without_a_name_gets_a_fresh_id_each_time() -> None:
    story = Story()
    granted = [identity_of(story.ask(init_request(None, timeout_ms=-5))) for _ in range(3)]
    assert [who.producer_epoch for who in granted] == [0, 0, 0]
    assert len({who.producer_id for who in granted}) == 3
    assert story.records() == []


@pytest.mark.parametrize("expected", [Identity(-1, 0), Identity(5, -1)])
def test_half_an_expectation_is_refused(expected: Identity) -> None:
    assert outcome(Story(), expected) is ErrorCode.INVALID_REQUEST


def test_an_empty_name_is_refused() -> None:
    assert Story().init("").error is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("timeout_ms", "error"),
    [
        (-1, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (0, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (1, ErrorCode.NONE),
        (900_000, ErrorCode.NONE),
        (900_001, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
    ],
)
def test_the_timeout_has_bounds(timeout_ms: int, error: ErrorCode) -> None:
    assert NodeSettings().transaction_max_timeout_ms == 900_000
    assert Story().init(timeout_ms=timeout_ms).error is error


def test_a_node_that_does_not_coordinate_the_name_says_so() -> None:
    story = Story()
    story.kill()
    story.start()
    to = story.offer(init_request())
    while to not in story.replies:
        story.work()
    assert story.replies[to].error in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    story.settle()
    assert story.init().error is ErrorCode.NONE


def test_a_new_name_needs_no_expectation_to_be_right() -> None:
    story = Story()
    assert outcome(story, Identity(4242, 7)) == Identity(0, 0)


def test_each_init_fences_the_one_before() -> None:
    story = Story()
    assert [story.identity() for _ in range(3)] == [Identity(0, 0), Identity(0, 1), Identity(0, 2)]


def test_the_new_timeout_counts() -> None:
    story = Story()
    story.identity(timeout_ms=1_000)
    story.identity(timeout_ms=2_000)
    assert story.transaction().timeout_ms == 2_000


# --- expectations (KIP-360) ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected_epoch", "granted"),
    [
        (10, 11),  # the owner itself
        (9, ErrorCode.PRODUCER_FENCED),
        (11, ErrorCode.PRODUCER_FENCED),
    ],
)
def test_an_expectation_of_the_current_producer(expected_epoch: int, granted: int | ErrorCode) -> None:
    story, producer_id = at_epoch(10)
    expected = granted if isinstance(granted, ErrorCode) else Identity(producer_id, granted)
    assert outcome(story, Identity(producer_id, expected_epoch)) == expected


def test_an_expectation_of_another_producer_is_fenced() -> None:
    story, producer_id = at_epoch(10)
    assert outcome(story, Identity(producer_id + 1, 10)) is ErrorCode.PRODUCER_FENCED


def test_a_bump_whose_answer_was_lost_is_granted_again_without_a_bump() -> None:
    story, producer_id = at_epoch(10)
    mine = Identity(producer_id, 10)
    assert outcome(story, mine) == Identity(producer_id, 11)
    assert outcome(story, mine) == Identity(producer_id, 11)
    assert outcome(story, mine) == Identity(producer_id, 11)
    assert outcome(story, Identity(producer_id, 11)) == Identity(producer_id, 12)
    assert outcome(story, mine) is ErrorCode.PRODUCER_FENCED


def test_a_foreign_init_ends_the_right_to_retry() -> None:
    story, producer_id = at_epoch(10)
    mine = Identity(producer_id, 10)
    assert outcome(story, mine) == Identity(producer_id, 11)
    assert outcome(story, NOBODY) == Identity(producer_id, 12)
    assert outcome(story, mine) is ErrorCode.PRODUCER_FENCED
    assert outcome(story, Identity(producer_id, 11)) is ErrorCode.PRODUCER_FENCED


def test_after_a_fence_the_fenced_owner_may_ask_for_the_fences_epoch() -> None:
    """Recorded of Kafka 4.3.1: in version 2 a fence keeps the last epoch."""
    story = Story()
    me = story.identity()
    story.produce(me, "a")
    assert outcome(story, NOBODY) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert outcome(story, me) == Identity(me.producer_id, me.producer_epoch + 1)


# --- an open transaction ---------------------------------------------------------------------------------


def test_an_open_transaction_is_aborted_first() -> None:
    story = Story()
    me = story.identity()
    story.produce(me, "a")
    assert outcome(story, NOBODY) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert story.states()[-2:] == [TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT]
    assert story.written() == f"a | abort {me.producer_id}/{me.producer_epoch + 1}"
    heir = outcome(story, NOBODY)
    assert heir == Identity(me.producer_id, me.producer_epoch + 2)  # the fence's epoch is never granted
    assert story.end(me, COMMIT).error is ErrorCode.PRODUCER_FENCED
    assert story.produce(me, "late", sequence=1).error is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_stale_epoch_of_the_same_producer_aborts_the_newer_ones_transaction() -> None:
    """Recorded of Kafka 4.3.1: while a transaction is open only the producer id of the expectation counts."""
    story = Story()
    old = story.identity()
    new = story.identity()
    story.produce(new, "a")
    assert outcome(story, old) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert story.states()[-1] is TransactionState.COMPLETE_ABORT
    assert outcome(story, old) is ErrorCode.PRODUCER_FENCED


def test_an_expectation_of_another_producer_does_not_abort() -> None:
    story = Story()
    me = story.identity()
    story.produce(me, "a")
    assert outcome(story, Identity(me.producer_id + 1, 0)) is ErrorCode.PRODUCER_FENCED
    assert story.transaction().state is TransactionState.ONGOING


# --- used-up epochs ----------------------------------------------------------------------------------------


def test_a_used_up_id_gives_way_to_a_new_one() -> None:
    for expected_epoch in (None, LAST_GRANTED_EPOCH):
        story, producer_id = at_epoch(LAST_GRANTED_EPOCH)
        mine = NOBODY if expected_epoch is None else Identity(producer_id, expected_epoch)
        granted = outcome(story, mine)
        assert isinstance(granted, Identity)
        assert granted.producer_id > producer_id
        assert granted.producer_epoch == 0
        assert story.records()[-1].previous_producer_id == producer_id


def test_a_rotation_whose_answer_was_lost_is_granted_again_once() -> None:
    story, producer_id = at_epoch(LAST_GRANTED_EPOCH)
    mine = Identity(producer_id, LAST_GRANTED_EPOCH)
    granted = outcome(story, mine)
    assert outcome(story, mine) == granted
    assert outcome(story, mine) is ErrorCode.PRODUCER_FENCED


def test_the_retry_of_a_rotation_must_show_the_last_epoch() -> None:
    story, producer_id = at_epoch(LAST_GRANTED_EPOCH)
    assert isinstance(outcome(story, Identity(producer_id, LAST_GRANTED_EPOCH)), Identity)
    assert outcome(story, Identity(producer_id, LAST_GRANTED_EPOCH - 1)) is ErrorCode.PRODUCER_FENCED


def test_a_former_producer_id_counts_for_its_last_epoch_alone() -> None:
    story = Story()
    story.identity()
    old = story.age(LAST_GRANTED_EPOCH)
    new = story.identity()
    story.produce(new, "a")
    assert outcome(story, Identity(old.producer_id, LAST_GRANTED_EPOCH - 1)) is ErrorCode.PRODUCER_FENCED
    assert story.transaction().state is TransactionState.ONGOING
    assert outcome(story, old) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert story.transaction().state is TransactionState.COMPLETE_ABORT


def test_the_lost_answer_to_the_last_possible_bump_cannot_be_repeated() -> None:
    """Recorded of Kafka 4.3.1: an internal error there, and told as one here."""
    story, producer_id = at_epoch(LAST_GRANTED_EPOCH - 1)
    mine = Identity(producer_id, LAST_GRANTED_EPOCH - 1)
    assert outcome(story, mine) == Identity(producer_id, LAST_GRANTED_EPOCH)
    assert outcome(story, mine) is ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_fence_at_the_last_epoch_takes_the_one_that_is_held_back() -> None:
    story = Story()
    story.identity()
    me = story.age(LAST_GRANTED_EPOCH)
    story.produce(me, "a")
    assert outcome(story, NOBODY) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert story.written() == f"a | abort {me.producer_id}/{INT16_MAX}"
    done = story.transaction()
    assert (done.state, done.producer_epoch) == (TransactionState.COMPLETE_ABORT, 0)
    assert done.producer_id > me.producer_id
    assert outcome(story, NOBODY) == Identity(done.producer_id, 1)
    assert story.partition(ORDERS).last_stable_offset == 2


def test_no_identity_is_granted_twice_on_the_way_round() -> None:
    """Across the end of a producer id: every granted (id, epoch) is new."""
    story = Story()
    story.identity()
    story.age(LAST_GRANTED_EPOCH - 3)
    seen: set[Identity] = set()
    for number in range(12):
        me = story.identity()
        assert me not in seen
        seen.add(me)
        story.produce(me, f"w{number}")
        if number % 2:
            heir = story.ended(me, COMMIT)
            assert heir not in seen
            seen.add(heir)
    assert len({who.producer_id for who in seen}) == 2
    assert story.visible().split() == [f"w{number}" for number in range(1, 12, 2)]
