"""The story that all others vary: one transaction over two partitions and a group's offsets."""

from __future__ import annotations

from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import TransactionState
from tests.broker.requests import ABORT, COMMIT, ORDERS, OTHERS, UNCOMMITTED, Identity
from tests.broker.story import Story


def test_a_transaction_is_seen_whole_once_it_is_committed() -> None:
    story = Story()
    me = story.identity()
    assert story.produce(me, "a b").error is ErrorCode.NONE
    assert story.produce(me, "c", key=OTHERS).error is ErrorCode.NONE
    assert story.commit_offset(me, "readers", 7) is ErrorCode.NONE
    assert (story.visible(), story.visible(OTHERS), story.offset("readers").offset) == ("", "", -1)
    assert story.visible(isolation_level=UNCOMMITTED) == "a b"
    heir = story.ended(me, COMMIT)
    assert heir == Identity(me.producer_id, me.producer_epoch + 1)
    assert (story.visible(), story.visible(OTHERS), story.offset("readers").offset) == ("a b", "c", 7)
    assert story.states() == [
        TransactionState.EMPTY,
        TransactionState.ONGOING,
        TransactionState.ONGOING,
        TransactionState.ONGOING,
        TransactionState.PREPARE_COMMIT,
        TransactionState.COMPLETE_COMMIT,
    ]
    assert story.written() == f"a b | commit {me.producer_id}/{heir.producer_epoch}"


def test_an_aborted_transaction_is_never_seen() -> None:
    story = Story()
    me = story.identity()
    story.produce(me, "a b")
    story.commit_offset(me, "readers", 7)
    heir = story.ended(me, ABORT)
    story.produce(heir, "c")
    story.ended(heir, COMMIT)
    assert (story.visible(), story.offset("readers").offset) == ("c", -1)
    assert story.visible(isolation_level=UNCOMMITTED) == "a b c"
    part = story.fetch(ORDERS)
    assert part.aborted is not None
    assert [(found.producer_id, found.first_offset) for found in part.aborted] == [(me.producer_id, 0)]


def test_a_log_says_all_that_its_node_knows() -> None:
    story = Story()
    me = story.identity()
    story.produce(me, "a b")
    story.commit_offset(me, "readers", 7)
    assert story.check_recovery() == len(story.host.node.logs) == 7
    story.ended(me, COMMIT)
    assert story.check_recovery() == 7
