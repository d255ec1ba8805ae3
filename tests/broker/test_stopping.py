"""A clean stop and the start after it: snapshots spare reading, and never say more than the log."""

from __future__ import annotations

from itertools import count

import pytest

from fencepost.broker.sync_policy import SyncPolicy
from fencepost.check.directory import check_directory
from fencepost.check.findings import Severity
from fencepost.journal.journal import JournalSettings
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.fork import log_state
from fencepost.protocol.terms import TransactionState
from tests.broker.requests import (
    COMMIT,
    NOBODY,
    ORDERS,
    UNCOMMITTED,
    Identity,
    end_request,
    marker_request,
    produce_request,
    produced,
)
from tests.broker.story import LARGE, Story


def stopped_and_started(story: Story) -> None:
    story.host.stop()
    story.start()
    story.settle()


def snapshots(story: Story) -> list[str]:
    return [name for name in story.storage.files("orders-0") if name.endswith(".snapshot")]


@pytest.mark.parametrize("first", ["a", LARGE])
def test_a_producer_goes_on_after_a_clean_stop(first: str) -> None:
    """A small log is read again at the next start. A larger one has a snapshot instead."""
    story = Story()
    me = story.identity()
    story.produce(me, f"{first} b")
    story.produce(me, "c", sequence=2)
    stopped_and_started(story)
    assert len(snapshots(story)) == (first == LARGE)
    assert story.produce(me, "c", sequence=2).base_offset == 2  # its last batch is still known
    assert story.produce(me, "d", sequence=3).base_offset == 3
    story.ended(me, COMMIT)
    assert story.visible() == f"{first} b c d"


def test_what_was_open_is_open_after_a_clean_stop() -> None:
    story = Story()
    me = story.identity()
    story.produce(NOBODY, LARGE, name=None)
    story.produce(me, "a")
    before = log_state(story.partition())
    stopped_and_started(story)
    assert snapshots(story)
    assert log_state(story.partition()) == before
    assert (story.visible(), story.visible(isolation_level=UNCOMMITTED)) == (LARGE, f"{LARGE} a")
    story.ended(me, COMMIT)
    assert story.visible() == f"{LARGE} a"


@pytest.mark.parametrize("policy", SyncPolicy)
def test_a_stop_in_the_middle_of_things_is_no_worse_than_a_kill(policy: SyncPolicy) -> None:
    """An error, or a rule that holds the broker, ends it with appends that its log does not have."""
    for place in count():
        story = Story(policy=policy)
        me = story.identity()
        story.produce(me, LARGE)
        request = produce_request(me, {ORDERS: "b"}, sequence=1)
        to = story.offer(request)
        for _ in range(place):
            if not story.work():
                story.sync()
        if to in story.replies:
            return
        stopped_and_started(story)
        again = produced(story.ask(request))[ORDERS]
        assert (again.error, again.base_offset) == (ErrorCode.NONE, 1)
        story.ended(me, COMMIT)
        assert story.visible() == f"{LARGE} b"


@pytest.mark.parametrize("policy", SyncPolicy)
def test_a_stop_during_recovery_leaves_nothing_that_a_check_calls_wrong(policy: SyncPolicy) -> None:
    """Killed in the middle of a commit, and stopped at any place of the start that finishes it."""
    for place in count():
        story = Story(policy=policy)
        me = story.identity()
        story.produce(me, "a")
        story.host.write_manifests()
        story.offer(end_request(me, COMMIT))
        while story.work() and story.records()[-1].state is not TransactionState.PREPARE_COMMIT:
            pass
        story.kill()
        story.start()
        for _ in range(place):
            if not story.work():
                story.sync()
        is_over = story.host.is_idle and not story.host.unsynced
        story.host.stop()
        found = check_directory(story.storage).found
        assert [each for each in found if each.severity is Severity.PROBLEM] == [], place
        story.start()
        story.settle()
        assert story.visible() == "a"
        if is_over:
            return


def test_a_segment_that_fills_up_in_the_middle_of_a_step_takes_no_snapshot_of_the_rest() -> None:
    """Two markers of one request, the first of which fills the segment; killed at every place in between."""
    place = 0
    for place in count():
        story = Story(journal=JournalSettings(segment_bytes=1))
        markers: list[m.TransactionMarker] = []
        for name, word in (("pay", "a"), ("ship", "b")):
            who = story.identity(name)
            story.produce(who, word, name=name)
            markers += marker_request(who, COMMIT, ORDERS, transaction_version=0).markers
        request = m.WriteTxnMarkers(markers=tuple(markers))
        to = story.offer(request)
        for _ in range(place):
            story.work()
        if to in story.replies:
            break
        story.restart()
        story.ask(request)
        assert story.visible() == "a b", place
    assert place > 2


def test_segments_roll_under_transactions_and_nothing_is_forgotten() -> None:
    """A log of tiny segments, killed again and again: snapshots, indexes and the log say the same."""
    story = Story(journal=JournalSettings(segment_bytes=300))
    me = story.identity()
    words: list[str] = []
    for number in range(30):
        word = f"w{number}"
        assert story.produce(me, word).error is ErrorCode.NONE
        if number % 7 == 3:
            story.restart()
        elif number % 7 == 5:
            stopped_and_started(story)
        if number % 3 == 0:
            me = story.identity()  # abandons the transaction
        else:
            me = story.ended(me, COMMIT)
            words.append(word)
    assert sum(name.endswith(".log") for name in story.storage.files("orders-0")) > 5
    assert story.visible().split() == words
    assert story.states()[-1] is TransactionState.COMPLETE_COMMIT
    assert story.partition().last_stable_offset == story.partition().log_end_offset
    assert isinstance(me, Identity)
