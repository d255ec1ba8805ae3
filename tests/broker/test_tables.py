"""The coordinator's tables: no state without an answer, and every cell seen through the real functions."""

from __future__ import annotations

import pytest

from fencepost.broker.contract import Reply
from fencepost.broker.sync_policy import SyncPolicy
from fencepost.broker.transactions.tables import (
    END_VERSION_2,
    MOVES,
    NEWEST,
    Cell,
    CoordinatorInput,
    EndInput,
)
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import AddPartitionsToTxnReply
from fencepost.protocol.terms import INT16_MAX, LAST_GRANTED_EPOCH, TransactionState
from tests.broker.refusals import CarefulStory
from tests.broker.requests import (
    ABORT,
    COMMIT,
    ORDERS,
    OTHERS,
    Identity,
    add_request,
    body_of,
    end_request,
    identity_of,
    init_request,
)
from tests.broker.story import SCAN_MS, Story

EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT

COMPLETE_OF = {PREPARE_COMMIT: COMPLETE_COMMIT, PREPARE_ABORT: COMPLETE_ABORT}
# What cannot happen: a timeout without an open transaction, and markers that nobody decided on.
IMPOSSIBLE = {
    CoordinatorInput.TIMEOUT: set(TransactionState) - {ONGOING},
    CoordinatorInput.MARKERS_WRITTEN: set(TransactionState) - set(COMPLETE_OF),
}


def in_state(state: TransactionState, *, policy: SyncPolicy = SyncPolicy.NONE) -> tuple[Story, Identity]:
    """A story whose id is in this state, and its owner. PREPARE_* waits for its markers."""
    story = CarefulStory(policy=policy)
    me = story.identity()
    if state is EMPTY:
        return story, me
    story.produce(me, "a")
    if state is ONGOING:
        return story, me
    result = COMMIT if state in (PREPARE_COMMIT, COMPLETE_COMMIT) else ABORT
    if state in COMPLETE_OF.values():
        return story, story.ended(me, result)
    story.offer(end_request(me, result))
    while story.states()[-1] is not state:
        assert story.work()
    return story, Identity(me.producer_id, me.producer_epoch + 1)


def error_of(cell: Cell) -> ErrorCode:
    return cell if isinstance(cell, ErrorCode) else ErrorCode.NONE


def after(cell: Cell, state: TransactionState) -> TransactionState:
    """Where a transaction has come to when everything that follows has happened."""
    target = state if isinstance(cell, ErrorCode) else cell
    return COMPLETE_OF.get(target, target)


def test_every_state_has_an_answer_to_every_input() -> None:
    assert NEWEST.end is END_VERSION_2
    assert NEWEST.moves is MOVES
    assert set(END_VERSION_2) == set(MOVES) == set(TransactionState)
    for state in TransactionState:
        assert set(END_VERSION_2[state]) == set(EndInput)
        possible = {given for given in CoordinatorInput if state not in IMPOSSIBLE.get(given, set())}
        assert set(MOVES[state]) == possible


@pytest.mark.parametrize("given", EndInput)
@pytest.mark.parametrize("state", TransactionState)
def test_each_cell_of_the_end_table_is_what_an_end_meets(state: TransactionState, given: EndInput) -> None:
    story, me = in_state(state)
    is_retry = given in (EndInput.COMMIT_RETRY, EndInput.ABORT_RETRY)
    result = COMMIT if given in (EndInput.COMMIT, EndInput.COMMIT_RETRY) else ABORT
    caller = me._replace(producer_epoch=me.producer_epoch - 1) if is_retry else me
    if is_retry and state in (EMPTY, ONGOING):  # an epoch that was once granted, without any end
        story, caller = in_state(EMPTY)
        me = story.identity()
        if state is ONGOING:
            story.produce(me, "a")
    cell = END_VERSION_2[state][given]
    reply = story.ask(end_request(caller, result))
    assert reply.error is error_of(cell)
    if reply.error is ErrorCode.NONE:
        moved = 0 if cell is state else 1
        assert identity_of(reply) == Identity(me.producer_id, me.producer_epoch + moved)
    assert story.states()[-1] is after(cell, COMPLETE_OF.get(state, state))


@pytest.mark.parametrize("state", TransactionState)
def test_each_cell_of_init_is_what_an_init_meets(state: TransactionState) -> None:
    story, me = in_state(state)
    cell = MOVES[state][CoordinatorInput.INIT]
    reply = story.ask(init_request())
    if cell is EMPTY:
        assert identity_of(reply) == Identity(me.producer_id, me.producer_epoch + 1)
        assert story.states()[-1] is EMPTY
    else:  # decided already, or the open transaction is aborted first: ask again
        assert reply.error is ErrorCode.CONCURRENT_TRANSACTIONS
        expected = COMPLETE_ABORT if cell is PREPARE_ABORT else COMPLETE_OF[state]
        assert story.states()[-1] is expected
        assert story.init().error is ErrorCode.NONE


@pytest.mark.parametrize("state", TransactionState)
def test_each_cell_of_add_is_what_an_add_meets(state: TransactionState) -> None:
    story, me = in_state(state)
    cell = MOVES[state][CoordinatorInput.ADD]
    reply = story.ask(add_request(me, OTHERS))
    assert reply.error is error_of(cell)
    if reply.error is ErrorCode.NONE:
        assert body_of(reply, AddPartitionsToTxnReply).partitions[0].error is ErrorCode.NONE
        assert story.transaction().state is cell is ONGOING
        assert OTHERS in story.transaction().partitions


@pytest.mark.parametrize("state", TransactionState)
def test_only_an_open_transaction_times_out(state: TransactionState) -> None:
    story, _ = in_state(state)
    story.wait(60_000 + 2 * SCAN_MS)
    expected = MOVES[state].get(CoordinatorInput.TIMEOUT, state)
    assert story.states()[-1] is after(expected, state)


@pytest.mark.parametrize("state", [PREPARE_COMMIT, PREPARE_ABORT])
def test_a_decided_transaction_completes_by_itself(state: TransactionState) -> None:
    story, me = in_state(state)
    story.settle()
    assert story.states()[-1] is MOVES[state][CoordinatorInput.MARKERS_WRITTEN]
    assert story.transaction().producer_epoch == me.producer_epoch


# --- EndTxn beside the table: who asks --------------------------------------------------------------------


def test_an_end_of_nobody_or_of_another_is_refused() -> None:
    story, me = in_state(ONGOING)
    refused: list[tuple[Reply, ErrorCode]] = [
        (story.end(me, COMMIT, ""), ErrorCode.INVALID_REQUEST),
        (story.end(me, COMMIT, "nobody"), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (story.end(Identity(me.producer_id + 7, 0), COMMIT), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (story.end(Identity(me.producer_id, 1), COMMIT), ErrorCode.PRODUCER_FENCED),
        (story.end(Identity(me.producer_id, -1), COMMIT), ErrorCode.PRODUCER_FENCED),
    ]
    for reply, error in refused:
        assert reply.error is error
    assert story.transaction().state is ONGOING


@pytest.mark.parametrize("result", [COMMIT, ABORT])
def test_the_last_epoch_hands_over_to_the_next_producer_id(result: object) -> None:
    story = Story()
    first = story.identity()
    me = story.age(LAST_GRANTED_EPOCH)
    story.produce(me, "a")
    end = end_request(me, COMMIT if result is COMMIT else ABORT)
    heir = identity_of(story.ask(end))
    assert heir.producer_epoch == 0
    assert heir.producer_id > first.producer_id
    prepared, completed = story.records()[-2:]
    assert (prepared.producer_id, prepared.producer_epoch) == (me.producer_id, INT16_MAX)
    assert prepared.next_producer_id == heir.producer_id
    assert (completed.producer_id, completed.producer_epoch) == heir
    assert completed.previous_producer_id == me.producer_id
    decision = "commit" if result is COMMIT else "abort"
    assert story.written() == f"a | {decision} {me.producer_id}/{INT16_MAX}"
    # The answer was lost: the same end again, under an identity that is gone (KAFKA-18660).
    assert identity_of(story.ask(end)) == heir
    other = ABORT if result is COMMIT else COMMIT
    assert story.end(me, other).error is ErrorCode.INVALID_TXN_STATE
    # Once the heir has begun something of its own, the old identity is no retry any more.
    story.produce(heir, "b")
    assert story.ask(end).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    story.ended(heir, COMMIT)
    assert story.ask(end).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_retry_of_an_end_survives_the_coordinator() -> None:
    """The epoch before an end, and the producer id before a rotation, are in the log."""
    story = Story()
    me = story.identity()
    story.produce(me, "a")
    heir = story.ended(me, COMMIT)
    story.restart()
    assert identity_of(story.end(me, COMMIT)) == heir
    me = story.age(LAST_GRANTED_EPOCH)
    story.produce(me, "b")
    heir = story.ended(me, COMMIT)
    story.restart()
    assert identity_of(story.end(me, COMMIT)) == heir
    assert story.visible() == "a b"


def test_an_empty_abort_raises_the_epoch_and_writes_no_marker() -> None:
    story = Story()
    me = story.identity()
    heir = story.ended(me, ABORT)
    assert heir == Identity(me.producer_id, me.producer_epoch + 1)
    assert story.states() == [EMPTY, PREPARE_ABORT, COMPLETE_ABORT]
    assert story.written() == ""
    assert story.produce(me, "late").error is ErrorCode.INVALID_PRODUCER_EPOCH
    assert story.produce(heir, "a").error is ErrorCode.NONE
    assert ORDERS in story.transaction().partitions
