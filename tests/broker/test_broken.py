"""Each protection beside the damage that it prevents: with it off, the same story must go wrong.

Otherwise nobody could tell whether a check of the whole system, with a protection off, can fail at all.
"""

from __future__ import annotations

import attrs
import pytest

from fencepost.broker.settings import PROTECTIONS, NodeSettings
from fencepost.protocol.errors import ErrorCode
from tests.broker.requests import COMMIT, NOBODY, ORDERS, OTHERS, identity_of
from tests.broker.story import SETTINGS, Story


def broken(*protections: str) -> Story:
    return Story(settings=attrs.evolve(SETTINGS, broken=frozenset(protections)))


def test_only_protections_that_exist_can_be_broken() -> None:
    assert set(PROTECTIONS) == {"fencing", "dedup"}
    with pytest.raises(ValueError, match="isolation"):
        NodeSettings(broken=frozenset({"isolation"}))


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_batch_sent_twice(is_broken: bool) -> None:
    story = broken("dedup") if is_broken else Story()
    me = story.identity()
    first = story.produce(me, "a b")
    again = story.produce(me, "a b")
    assert (again.error, again.base_offset == first.base_offset) == (ErrorCode.NONE, not is_broken)
    story.ended(me, COMMIT)
    assert story.visible() == ("a b a b" if is_broken else "a b")


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_batch_left_out(is_broken: bool) -> None:
    story = broken("dedup") if is_broken else Story()
    me = story.identity()
    story.produce(me, "a")
    later = story.produce(me, "c", sequence=2)
    assert later.error is (ErrorCode.NONE if is_broken else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    story.ended(me, COMMIT)
    assert story.visible() == ("a c" if is_broken else "a")


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_zombie_that_wakes_after_its_heir_has_done_the_work(is_broken: bool) -> None:
    """It paused before its transaction; its heir processed the same input and committed."""
    story = broken("fencing") if is_broken else Story()
    zombie = story.identity()
    heir = story.identity()
    story.produce(heir, "result")
    story.commit_offset(heir, "input", 5)
    story.ended(heir, COMMIT)
    late = story.produce(zombie, "result")
    offset = story.commit_offset(zombie, "input", 3)
    ended = story.end(zombie, COMMIT)
    if is_broken:
        assert {late.error, offset, ended.error} == {ErrorCode.NONE}
        assert story.visible() == "result result"
        assert story.offset("input").offset == 3
    else:
        assert late.error is offset is ErrorCode.INVALID_PRODUCER_EPOCH
        assert ended.error is ErrorCode.PRODUCER_FENCED
        assert story.visible() == "result"
        assert story.offset("input").offset == 5


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_zombie_that_wakes_inside_its_transaction(is_broken: bool) -> None:
    """Its open transaction was aborted by its heir; what it sends to another partition must not count."""
    story = broken("fencing") if is_broken else Story()
    zombie = story.identity()
    story.produce(zombie, "first")
    heir = story.identity()
    late = story.produce(zombie, "second", key=OTHERS)
    ended = story.end(zombie, COMMIT)
    if is_broken:
        assert (late.error, ended.error) == (ErrorCode.NONE, ErrorCode.NONE)
        assert (story.visible(), story.visible(OTHERS)) == ("", "second")  # half a transaction
    else:
        assert late.error is ErrorCode.INVALID_PRODUCER_EPOCH
        assert ended.error is ErrorCode.PRODUCER_FENCED
        assert (story.visible(), story.visible(OTHERS)) == ("", "")
        story.produce(heir, "all")
        assert identity_of(story.end(heir, COMMIT))
        assert story.visible() == "all"


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_transactional_batch_that_nobody_added(is_broken: bool) -> None:
    """With fencing off a stranger's batch gets into the transaction of another."""
    story = broken("fencing") if is_broken else Story()
    me = story.identity()
    story.produce(me, "mine")
    stranger = me._replace(producer_epoch=me.producer_epoch + 3)
    late = story.produce(stranger, "theirs", key=OTHERS)
    assert late.error is (ErrorCode.NONE if is_broken else ErrorCode.INVALID_PRODUCER_EPOCH)
    assert story.produce(NOBODY, "plain", key=ORDERS, name=None).error is ErrorCode.NONE
