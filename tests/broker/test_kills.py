"""A process may die between any two things that its host does: every such place of whole stories is tried.

Rule: what was decided is finished as decided, what was open goes on or times out, nothing aborted is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from itertools import count, pairwise
from typing import Final

import attrs
import pytest

from fencepost.broker.contract import Reply, ReplyTo
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import ProduceReply, Request, TxnOffsetCommitReply
from fencepost.protocol.terms import LAST_GRANTED_EPOCH, TransactionResult, TransactionState
from tests.broker.requests import (
    ABORT,
    COMMIT,
    ORDERS,
    OTHERS,
    Identity,
    end_request,
    identity_of,
    init_request,
    offset_request,
    produce_request,
)
from tests.broker.story import Story

Script = Generator[Request, Reply, None]
Tale = Callable[[TransactionResult], Script]

PREPARED: Final = {TransactionState.PREPARE_COMMIT: COMMIT, TransactionState.PREPARE_ABORT: ABORT}
COMPLETE: Final = {
    TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
    TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
}
AGAIN: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)


def whole(result: TransactionResult) -> Script:
    """Init, data for two partitions, offsets, end."""
    me = identity_of((yield init_request()))
    yield produce_request(me, {ORDERS: "a b", OTHERS: "c"})
    yield offset_request(me, "readers", {ORDERS: 7})
    yield end_request(me, result)


def second(result: TransactionResult) -> Script:
    """An aborted transaction first, then the one that counts, of the same producer."""
    me = identity_of((yield init_request()))
    yield produce_request(me, {ORDERS: "x y z"})
    me = identity_of((yield end_request(me, ABORT)))
    yield produce_request(me, {ORDERS: "a b", OTHERS: "c"})
    yield offset_request(me, "readers", {ORDERS: 7})
    yield end_request(me, result)


def last_epoch(result: TransactionResult) -> Script:
    """The last transaction of a producer id: it ends under the next id, which then ends one of its own."""
    me = Identity(0, LAST_GRANTED_EPOCH)
    yield produce_request(me, {ORDERS: "a", OTHERS: "c"})
    me = identity_of((yield end_request(me, result)))
    assert me.producer_id > 0
    assert me.producer_epoch == 0
    yield produce_request(me, {ORDERS: "b"})
    yield offset_request(me, "readers", {ORDERS: 7})
    yield end_request(me, result)


def takeover(result: TransactionResult) -> Script:
    """A producer dies in its transaction and comes back: the new one aborts what the old one left."""
    me = identity_of((yield init_request()))
    yield produce_request(me, {ORDERS: "x", OTHERS: "y"})
    yield offset_request(me, "readers", {ORDERS: 3})
    me = identity_of((yield init_request()))
    yield produce_request(me, {ORDERS: "a b", OTHERS: "c"})
    yield offset_request(me, "readers", {ORDERS: 7})
    yield end_request(me, result)


TALES: Final = (whole, second, last_epoch, takeover)


def beginning(tale: Tale) -> Story:
    story = Story()
    if tale is last_epoch:
        story.identity()
        story.age(LAST_GRANTED_EPOCH)
    return story


@attrs.define
class Client:
    """Plays a script as a client does: what gets no answer, or an error that passes, is asked again."""

    story: Story
    script: Script
    request: Request = attrs.field(init=False)
    waits_for: ReplyTo | None = None
    is_done: bool = False

    def __attrs_post_init__(self) -> None:
        self.request = next(self.script)

    def work(self) -> bool:
        """Ask or let the host do one thing; False when there is neither."""
        if self.waits_for is None:
            if self.is_done:
                return self.story.work()
            self.waits_for = self.story.offer(self.request)
        if reply := self.story.replies.pop(self.waits_for, None):
            self._take(reply)
            return True
        return self.story.work()

    def _take(self, reply: Reply) -> None:
        self.waits_for = None
        error = error_of(reply)
        if error in AGAIN:
            self.story.settle()
            return
        assert error is ErrorCode.NONE, reply
        try:
            self.request = self.script.send(reply)
        except StopIteration:
            self.is_done = True

    def finish(self) -> None:
        """To the end of the script, asking again what is not answered yet."""
        self.waits_for = None
        while not self.is_done:
            if not self.work():
                self.story.settle()
        self.story.settle()


def error_of(reply: Reply) -> ErrorCode:
    """An error of the whole answer, or the first of its parts."""
    if isinstance(reply.body, ProduceReply | TxnOffsetCommitReply):
        return next((part.error for part in reply.body.partitions if part.error), ErrorCode.NONE)
    return reply.error


def deaths(tale: Tale, result: TransactionResult) -> Iterator[tuple[Story, Client]]:
    """The story, dead and started again, once for each place where it can die."""
    for place in count():
        story = beginning(tale)
        client = Client(story, tale(result))
        for _ in range(place):
            if not client.work():
                assert client.is_done
                return
        story.kill()
        story.start()
        yield story, client


def check_decisions(story: Story) -> None:
    """Every PREPARE_* is followed by its COMPLETE_*, once and at once."""
    states = story.states()
    for state, following in pairwise([*states, None]):
        assert following is COMPLETE.get(state, following) if state else True, states
    completed = [state for state in states if state in COMPLETE.values()]
    assert completed == [COMPLETE[state] for state in states if state in PREPARED], states


def check_end(story: Story, *, result: TransactionResult) -> None:
    """Everything is decided, and readers see just what was committed."""
    check_decisions(story)
    assert story.states()[-1] not in {TransactionState.ONGOING, *PREPARED}
    for key in (ORDERS, OTHERS):
        state = story.partition(key)
        assert state.last_stable_offset == state.high_watermark == state.log_end_offset, key
    seen = (story.visible(), story.visible(OTHERS), story.offset("readers", require_stable=True).offset)
    assert seen == (("a b", "c", 7) if result is COMMIT else ("", "", -1))
    story.check_recovery()


@pytest.mark.parametrize("result", TransactionResult)
@pytest.mark.parametrize("tale", TALES)
def test_a_client_that_asks_again_after_a_kill_ends_as_if_there_had_been_none(
    tale: Tale, result: TransactionResult
) -> None:
    places = 0
    for story, client in deaths(tale, result):
        story.settle()
        check_decisions(story)
        client.finish()
        check_end(story, result=result)
        places += 1
    assert places > 40


@pytest.mark.parametrize("tale", TALES)
def test_a_client_that_never_comes_back_leaves_all_or_nothing(tale: Tale) -> None:
    outcomes: set[tuple[str, str, int]] = set()
    for story, _ in deaths(tale, COMMIT):
        story.wait(60_000 + 1_000)
        check_decisions(story)
        assert not set(story.states()[-1:]) & {TransactionState.ONGOING, *PREPARED}
        outcomes.add((story.visible(), story.visible(OTHERS), story.offset("readers").offset))
        for key in (ORDERS, OTHERS):
            assert story.partition(key).last_stable_offset == story.partition(key).log_end_offset
    halfway = {("a", "c", -1)} if tale is last_epoch else set[tuple[str, str, int]]()
    assert outcomes == {("", "", -1), ("a b", "c", 7), *halfway}


@pytest.mark.parametrize("result", TransactionResult)
@pytest.mark.parametrize("tale", TALES)
def test_a_kill_between_any_two_things_of_the_recovery_itself(tale: Tale, result: TransactionResult) -> None:
    """The worst place to die first: PREPARE_* is written, no marker is."""
    story = beginning(tale)
    client = Client(story, tale(result))
    while story.states()[-1:] != [_PREPARE[result]]:
        assert client.work()
    assert "commit" not in story.written()
    for place in count():
        story.kill()
        story.start()
        if not all(story.work() for _ in range(place)):
            break
    check_decisions(story)
    client.finish()
    check_end(story, result=result)


_PREPARE: Final = {COMMIT: TransactionState.PREPARE_COMMIT, ABORT: TransactionState.PREPARE_ABORT}


@pytest.mark.parametrize("tale", TALES)
def test_at_every_moment_the_log_says_what_its_node_knows(tale: Tale) -> None:
    story = beginning(tale)
    client = Client(story, tale(COMMIT))
    checked = 0
    while client.work():
        checked += story.check_recovery()
    assert client.is_done
    assert checked > 300
