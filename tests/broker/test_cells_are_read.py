"""Every cell that the docs draw is read: without it, the request that meets it fails.

Rule: a row that nothing reads is a picture of a machine that does not exist.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fencepost.broker.groups.tables import MEMBERSHIP, GroupInput
from fencepost.broker.transactions.init_producer_id import GRANTS, Expectation, Standing
from fencepost.broker.transactions.tables import (
    END_VERSION_0,
    END_VERSION_2,
    MOVES,
    CoordinatorInput,
    EndInput,
)
from fencepost.protocol.messages import EndTxn
from fencepost.protocol.terms import LAST_GRANTED_EPOCH, GroupState, TransactionState
from tests.broker import test_group_table as groups
from tests.broker.requests import (
    ABORT,
    COMMIT,
    NOBODY,
    OTHERS,
    Identity,
    add_request,
    end_request,
    init_request,
)
from tests.broker.story import SCAN_MS, Story
from tests.broker.test_tables import in_state

COMMITS = {EndInput.COMMIT, EndInput.COMMIT_RETRY}
RETRIES = {EndInput.COMMIT_RETRY, EndInput.ABORT_RETRY}
OLD_CLIENT = {EndTxn: 4}


def decided(state: TransactionState) -> tuple[Story, Identity]:
    """The id is in this state, and the record that says so is durable."""
    story, me = in_state(state)
    while story.coordinator().pending:
        assert story.work()
    assert story.states()[-1] is state
    return story, me


def before(me: Identity) -> Identity:
    return me._replace(producer_epoch=me.producer_epoch - 1)


@pytest.mark.parametrize("given", EndInput)
@pytest.mark.parametrize("state", TransactionState)
def test_every_cell_of_the_end_table(
    state: TransactionState, given: EndInput, monkeypatch: pytest.MonkeyPatch
) -> None:
    story, me = decided(state)
    if given in RETRIES and state in (TransactionState.EMPTY, TransactionState.ONGOING):
        me = story.identity()
        if state is TransactionState.ONGOING:
            story.produce(me, "b")
    monkeypatch.delitem(END_VERSION_2[state], given)
    caller = before(me) if given in RETRIES else me
    with pytest.raises(KeyError):
        story.ask(end_request(caller, COMMIT if given in COMMITS else ABORT))


@pytest.mark.parametrize("given", [EndInput.COMMIT, EndInput.ABORT])
@pytest.mark.parametrize("state", TransactionState)
def test_every_cell_of_the_old_end_table(
    state: TransactionState, given: EndInput, monkeypatch: pytest.MonkeyPatch
) -> None:
    story, me = decided(state)
    monkeypatch.setattr(story, "versions", OLD_CLIENT)
    monkeypatch.delitem(END_VERSION_0[state], given)
    with pytest.raises(KeyError):
        story.ask(end_request(me, COMMIT if given in COMMITS else ABORT))


MEETS: dict[CoordinatorInput, Callable[[Story, Identity], object]] = {
    CoordinatorInput.INIT: lambda story, me: story.ask(init_request()),
    CoordinatorInput.ADD: lambda story, me: story.ask(add_request(me, OTHERS)),
    CoordinatorInput.TIMEOUT: lambda story, me: story.wait(60_000 + 2 * SCAN_MS),
    CoordinatorInput.MARKERS_WRITTEN: lambda story, me: story.settle(),
}


@pytest.mark.parametrize(
    ("state", "given"), [(state, given) for state, row in MOVES.items() for given in row]
)
def test_every_cell_of_the_moves_table(
    state: TransactionState, given: CoordinatorInput, monkeypatch: pytest.MonkeyPatch
) -> None:
    story, me = decided(state)
    monkeypatch.delitem(MOVES[state], given)
    with pytest.raises(KeyError):
        MEETS[given](story, me)


@pytest.mark.parametrize("expected", Expectation)
@pytest.mark.parametrize("standing", Standing)
def test_every_cell_of_the_table_of_identities(
    standing: Standing, expected: Expectation, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story()
    if standing is Standing.USED_UP:
        story.identity()
        me = story.age(LAST_GRANTED_EPOCH - 1)
        me = story.ended(me, ABORT)
    else:
        me = story.identity()
        for _ in range(2):
            me = story.ended(me, ABORT)
    if standing is Standing.OPEN:
        story.produce(me, "a")
    caller = {
        Expectation.NONE: NOBODY,
        Expectation.CURRENT: me,
        Expectation.LAST: before(me),
        Expectation.PAST: before(before(me)),
        Expectation.FOREIGN: me._replace(producer_id=me.producer_id + 7),
    }[expected]
    monkeypatch.delitem(GRANTS[standing], expected)
    with pytest.raises(KeyError):
        story.init(expected=caller)


@pytest.mark.parametrize(("state", "given"), groups.CELLS, ids=lambda each: each.name)
def test_every_cell_of_the_group_table(
    state: GroupState, given: GroupInput, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = groups.scene_for(state, given)
    monkeypatch.delitem(MEMBERSHIP[state], given)
    with pytest.raises(KeyError):
        groups.DOES[given](scene)
