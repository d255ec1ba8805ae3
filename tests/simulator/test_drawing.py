"""Pictures of runs: nothing that happened is left out, and what went wrong cannot be overlooked.

Rule: the histories are written by hand, so no picture depends on how the cores behave today.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from rich.cells import cell_len

from fencepost.protocol.terms import TransactionState
from fencepost.simulator.drawing.messages import follow
from fencepost.simulator.drawing.text import space_time
from fencepost.simulator.drawing.wording import note
from fencepost.simulator.history import Arrived, History, Sent
from tests.simulator.histories import (
    ABORT,
    NODE,
    ORDERS,
    Chronicle,
    crash_between_prepare_and_markers,
    late_end_txn,
)

STORIES = [late_end_txn(), crash_between_prepare_and_markers()]


def small() -> History:
    """A request that another overtakes, a lost answer, a crash, and one message that is never heard of
    again.
    """
    told = Chronicle()
    told.call("p", "abort")
    late = told.send("p", NODE, "EndTxn ABORT")
    told.strike("", "hold", number=late)
    retry = told.deliver("p", NODE, "EndTxn ABORT")
    told.coordinate(TransactionState.PREPARE_ABORT)
    told.append(ORDERS, 5, result=ABORT)
    told.bound(ORDERS, 6, 6)
    told.arrive(late)
    told.lose(told.send(NODE, "p", "EndTxn NONE", answers=retry), "reset")
    told.strike(NODE, "crash")
    told.send("p", NODE, "Metadata")
    return told.history("small", "p", NODE)


GOLDEN = """\
small
   ms p             n1
0.000 »             │              p: abort
0.500 ●1╌╷          │              1 EndTxn ABORT ⚡
1.000 │  ⚡         │              ⚡ network: hold (1)
1.500 ●2───────────▶│              2 EndTxn ABORT AGAIN (as 1)
2.500 │             ◆              pay PrepareAbort 7/0
3.000 │             A              [t-0 5 ABORT] 7/0
3.500 │             │              t-0 LSO 6 HW 6
4.000 │         ══1▶│              LATE (after 2) 1 EndTxn ABORT
4.500 │          ╷╌3●              3 EndTxn NONE
5.000 │✗3╌╌         │              LOST 3 EndTxn NONE: reset
5.500 │             ⚡             ⚡ n1: crash
6.000 ●4╌╷                         4 Metadata
6.500 end, under way: 4
●──▶ message   ●╌╷ leaves   ╌▶ comes   ═▶ comes LATE   ╌✗ lost   ⚡ fault
» call   ■ data   C A markers   LSO last stable offset   HW high watermark
◆ transaction state   / truncated
"""


def test_the_table_of_a_small_run() -> None:
    assert space_time(small(), width=80) == GOLDEN


@pytest.mark.parametrize("history", STORIES, ids=lambda history: history.title)
@pytest.mark.parametrize("width", [60, 100, 160])
def test_the_table_keeps_its_width(history: History, width: int) -> None:
    assert max(cell_len(line) for line in space_time(history, width=width).splitlines()) <= width


@pytest.mark.parametrize("history", STORIES, ids=lambda history: history.title)
def test_every_event_is_in_the_table(history: History) -> None:
    table = space_time(history, width=160)
    messages = follow(history.events)
    at_once = {
        after
        for before, after in pairwise(history.events)
        if isinstance(before, Sent) and isinstance(after, Arrived) and before.number == after.number
    }
    missing = [
        event
        for event in history.events
        if event not in at_once
        and not any(line.endswith(note(event, messages)) for line in table.splitlines())
    ]
    assert missing == []


def test_a_late_message_says_what_overtook_it() -> None:
    lines = space_time(late_end_txn(), width=100).splitlines()
    late = [line for line in lines if "LATE (" in line]
    assert len(late) == 1
    assert "══5▶" in late[0]
    assert late[0].endswith("LATE (after 6 and 2 more) 5 EndTxn COMMIT 7/0")


def test_a_retry_names_the_message_that_it_repeats() -> None:
    table = space_time(late_end_txn(), width=100)
    assert "6 EndTxn COMMIT 7/0 AGAIN (as 5)" in table


def test_a_message_that_never_left_cannot_arrive() -> None:
    told = Chronicle()
    told.arrive(3)
    with pytest.raises(KeyError):
        space_time(told.history("nonsense", "p"), width=80)
