"""Pictures of runs: nothing that happened is left out, and what went wrong cannot be overlooked.

Rule: the histories are written by hand, so no picture depends on how the cores behave today.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from xml.etree.ElementTree import Element, fromstring

import attrs
import pytest
from rich.cells import cell_len

from fencepost.protocol.terms import TransactionState
from fencepost.simulator.draw.canvas import CHARACTER_WIDTH, TYPE_SIZE, fitted, width_of
from fencepost.simulator.draw.fates import BatchFate, follow, note, read_logs, shortened, timed_sentence
from fencepost.simulator.draw.svg import draw
from fencepost.simulator.draw.text import space_time
from fencepost.simulator.scenarios.builder import scenario
from fencepost.simulator.scenarios.model import cases
from fencepost.simulator.scenarios.runner import record_case
from fencepost.simulator.world.history import Arrived, History, Sent
from tests.simulator.histories import (
    ABORT,
    NODE,
    ORDERS,
    Chronicle,
    crash_between_prepare_and_markers,
    late_end_txn,
    long_run,
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
4.000 │         ══1▶│              LATE (after its retry 2) 1 EndTxn ABORT
4.500 │          ╷╌3●              3 EndTxn NONE
5.000 │✗3╌╌         │              LOST 3 EndTxn NONE: reset
5.500 │             ⚡             ⚡ n1: crash
6.000 ●4╌╷                         4 Metadata
6.500 end, messages still under way: 4
●──▶ message   ●╌╷ leaves   ╌▶ arrives   ═▶ arrives LATE   ●◀ to itself
╌✗ lost   ⚡ fault   » call   ■ data   C A markers   LSO last stable offset
HW high watermark   ◆ transaction state   / truncated   ✗ broken rule
0/2 producer id 0, epoch 2   @0 at offset 0   NONE success
"""


def test_the_table_of_a_small_run() -> None:
    assert space_time(small(), width=80) == GOLDEN


LESSON = "A request that was given up may still arrive, and then does what nobody wants any more."
EVIDENCE = 'G1a: r read b"b" at t-0 offset 1, which p aborted: the late request ended what came after it'


def broken() -> History:
    """The same run, with what it teaches and what it broke."""
    return attrs.evolve(small(), lesson=LESSON, broken=(EVIDENCE, "converges: p never ends"))


def test_the_table_begins_with_the_lesson_and_ends_with_what_was_broken() -> None:
    lines = space_time(broken(), width=80).splitlines()
    assert " ".join(lines[1:3]) == LESSON
    end = next(at for at, line in enumerate(lines) if "end, messages still under way" in line)
    assert lines[end - 3].startswith("    ✗ G1a: r read")
    assert f"{lines[end - 3].strip(' ✗')} {lines[end - 2].strip()}" == EVIDENCE
    assert lines[end - 1] == "    ✗ converges: p never ends"
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("history", STORIES, ids=lambda history: history.title)
@pytest.mark.parametrize("width", [60, 100, 160])
def test_the_table_keeps_its_width(history: History, width: int) -> None:
    assert max(cell_len(line) for line in space_time(history, width=width).splitlines()) <= width


FOLDED = """\
0.000 »         │          p: send value value value value
      │         │          value value value value value
      │         │          xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
      │         │          xxxxxxx
0.500 »         │          p: wait
"""
BELOW = """\
0.000 │      │      │      │      │      │      │      │      »
      p: send value value value value value value value value value
      xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
0.500 │      │      │      │      │      │      │      │      »
      p: wait
"""


@pytest.mark.parametrize(("lanes", "width", "rows"), [(["p", NODE], 60, FOLDED), ("abcdefghp", 70, BELOW)])
def test_a_long_row_goes_on_in_the_next_line(lanes: Iterable[str], width: int, rows: str) -> None:
    told = Chronicle()
    told.call("p", f"send {'value ' * 9}{'x' * 40}")
    told.call("p", "wait")
    assert rows in space_time(told.history("long", *lanes), width=width)


@pytest.mark.parametrize("history", STORIES, ids=lambda history: history.title)
@pytest.mark.parametrize("width", [60, 160])
def test_every_event_is_in_the_table(history: History, width: int) -> None:
    table = space_time(history, width=width, folds=False)
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


@pytest.mark.parametrize(
    ("text", "short"), [("abcd", "abcd"), ("abcde", "abc…"), ("日本語", "日 …"), ("\0" * 9, "\0\0\0…")]
)
def test_a_text_is_shortened_by_its_letters_and_its_width(text: str, short: str) -> None:
    assert shortened(text, 4) == short


def test_a_box_is_as_wide_as_its_text() -> None:
    """A letter of Chinese fills a square; an emoji takes a little more, as two others do."""
    assert width_of("日本語") == 3 * TYPE_SIZE
    assert width_of("a日") == CHARACTER_WIDTH + TYPE_SIZE
    assert width_of("\U0001f600") == 2 * CHARACTER_WIDTH
    assert fitted("日本語", 3 * TYPE_SIZE) == "日本語"
    assert fitted("日本語", 3 * TYPE_SIZE - 1) == "日本…"
    assert fitted("abc", 0) == "…"


def test_nothing_in_a_table_can_drive_a_terminal() -> None:
    odd = "a\x1b[2J\nb\u202ec"
    told = Chronicle()
    told.call(odd, f"send {odd}")
    told.deliver(odd, NODE, f"Produce {odd}")
    told.strike(odd, "crash")
    history = attrs.evolve(told.history(odd, odd, NODE), lesson=odd, broken=(odd,))
    lines = space_time(history, width=120).split("\n")
    assert all(line.isprintable() for line in lines)
    assert any(r"Produce a\x1b[2J\nb\u202ec" in line for line in lines)


def test_a_late_message_says_what_overtook_it() -> None:
    lines = space_time(late_end_txn(), width=100).splitlines()
    late = [line for line in lines if "LATE (" in line]
    assert len(late) == 1
    assert "══5▶" in late[0]
    assert late[0].endswith("LATE (after its retry 6) 5 EndTxn COMMIT 7/0")


def test_a_retry_names_the_message_that_it_repeats() -> None:
    table = space_time(late_end_txn(), width=100)
    assert "6 EndTxn COMMIT 7/0 AGAIN (as 5)" in table


def test_a_message_that_never_left_cannot_arrive() -> None:
    told = Chronicle()
    told.arrive(3)
    with pytest.raises(KeyError):
        space_time(told.history("nonsense", "p"), width=80)


SVG = "{http://www.w3.org/2000/svg}"


def titles(picture: str) -> Counter[str]:
    """How often each title stands in a picture; raises when it is not XML."""
    root = fromstring(picture)
    assert root.get("role") == "img"
    return Counter(title.text or "" for title in root.iter(f"{SVG}title"))


def texts(picture: str) -> list[str]:
    return [element.text or "" for element in fromstring(picture).iter(f"{SVG}text")]


def kinds(picture: str, kind: str) -> list[Element]:
    """The elements of a class."""
    return [element for element in fromstring(picture).iter() if kind in element.get("class", "").split()]


@pytest.mark.parametrize("history", STORIES, ids=lambda history: history.title)
def test_every_event_has_its_title_in_the_picture(history: History) -> None:
    found = titles(draw(history))
    messages = follow(history.events)
    expected = Counter(timed_sentence(event, messages) for event in history.events)
    assert expected - found == Counter()
    assert len(kinds(draw(history), "event")) == len(history.events)


@pytest.mark.parametrize("history", STORIES, ids=lambda history: history.title)
def test_the_same_history_gives_the_same_bytes(history: History) -> None:
    assert draw(history) == draw(attrs.evolve(history, events=tuple(history.events)))


def test_every_style_is_one_that_a_browser_reads() -> None:
    """A name that is broken over two lines is an error, and its style is dropped without a word."""
    (found,) = fromstring(draw(small())).iter(f"{SVG}style")
    rules = re.findall(r"[{;]([^{};]+)(?=[;}])", (found.text or "").replace("@media(", ""))
    assert len(rules) > 100
    assert [rule for rule in rules if not re.fullmatch(r"[a-z-]+:[^:]+", rule)] == []


def test_a_late_message_is_marked_by_word_and_weight() -> None:
    picture = draw(late_end_txn())
    assert texts(picture).count("LATE") == 1
    assert "5 EndTxn COMMIT 7/0, after its retry 6" in texts(picture)
    assert "6 EndTxn COMMIT 7/0 AGAIN (as 5)" in texts(picture)
    # One line each in the lanes, one in the legend.
    assert [len(kinds(picture, kind)) for kind in ("late", "again", "lost")] == [2, 2, 2]
    assert len(kinds(picture, "late-band")) == 1
    assert len(kinds(picture, "fault-band")) == 2


def test_a_lost_message_ends_in_a_cross_and_one_under_way_does_not() -> None:
    picture = draw(small())
    assert len(kinds(picture, "cross")) == 2
    assert len(kinds(picture, "under-way")) == 2
    assert "3 lost: reset" in texts(picture)


def test_the_picture_shows_the_lesson_and_what_was_broken() -> None:
    picture = draw(broken())
    root = fromstring(picture)
    assert [element.text for element in root.iter(f"{SVG}desc")] == [LESSON]
    assert [element.text for element in kinds(picture, "lesson")] == [LESSON]
    assert [element.text for element in kinds(picture, "broken")] == [EVIDENCE, "converges: p never ends"]
    assert len(kinds(picture, "cross")) == len(kinds(draw(small()), "cross")) + 2
    lowest = max(float(element.get("cy", 0)) for element in kinds(picture, "dot"))
    assert all(float(element.get("y", 0)) > lowest for element in kinds(picture, "broken"))
    assert all(float(element.get("y", 0)) < 78 for element in kinds(picture, "lesson"))


def test_a_silent_lane_is_a_broken_lifeline() -> None:
    picture = draw(crash_between_prepare_and_markers())
    assert len(kinds(picture, "silent")) == 2  # the crash until its restart, the pause until the end
    assert len(kinds(draw(late_end_txn()), "silent")) == 0


def test_the_foot_of_a_log_says_what_became_of_each_batch() -> None:
    found = titles(draw(crash_between_prepare_and_markers()))
    assert "t-0 at the end: 0 aborted of 7/0, 1 an abort marker of 7/0" in found
    assert "t-1 at the end: 0-1 outside of transactions" in found, "2 was truncated"


def test_undecided_data_is_not_drawn_as_committed() -> None:
    told = Chronicle()
    told.append(ORDERS, 0, "a")
    told.append(ORDERS, 1, "b", producer_id=8)
    told.append(ORDERS, 2, result=ABORT)
    (aborted, undecided, _) = read_logs(told.events)[ORDERS].batches().values()
    assert (aborted.fate, undecided.fate) == (BatchFate.ABORTED, BatchFate.OPEN)
    picture = draw(told.history("two producers", NODE))
    assert len(kinds(picture, "undecided")) == 3  # its row, the foot, the legend


def test_a_long_run_is_cut_and_says_so() -> None:
    history = long_run(10)
    count = len(history.events)
    picture = draw(history, events_max=50)
    assert f"the last 50 of {count} events: the first {count - 50} are not drawn" in texts(picture)
    assert len(kinds(picture, "event")) == 50
    messages = follow(history.events)
    found = titles(picture)
    assert all(found[timed_sentence(event, messages)] for event in history.events[-50:])
    assert not any("not drawn" in text for text in texts(draw(history)))


def test_a_log_of_many_offsets_has_a_picture_of_bounded_width() -> None:
    told = Chronicle()
    told.append(ORDERS, 0, "a")
    told.append(ORDERS, 100_000, "b")
    picture = draw(told.history("long", NODE))
    assert float(fromstring(picture).attrib["width"]) < 5_000
    assert {"a", "b"} <= {text for found in texts(picture) for text in found.split()}


def test_what_no_xml_may_hold_is_drawn_all_the_same() -> None:
    told = Chronicle()
    told.call("<p>", 'send "\x00\x1b" & \ud800')
    assert '0.000 ms: <p>: send "\ufffd\ufffd" & \ufffd' in titles(draw(told.history("a & b", "<p>")))


def test_a_label_steps_aside_for_a_message_that_would_cross_it() -> None:
    """The late EndTxn runs beside the node when it answers the second Produce, and not when it answers the
    first.
    """
    found = {
        element.text: element.get("text-anchor")
        for element in fromstring(draw(late_end_txn())).iter(f"{SVG}text")
    }
    assert (found["4 Produce NONE @0"], found["13 Produce NONE @2"]) == ("end", "start")


def test_only_what_left_later_overtakes() -> None:
    told = Chronicle()
    first, second = told.send("p", NODE, "a"), told.send("p", NODE, "b")
    other = told.deliver(NODE, "p", "c")
    told.arrive(second)
    told.arrive(first)
    found = follow(told.events)
    assert [found[number].overtaken_by for number in (first, second, other)] == [(second,), (), ()]


def test_a_request_is_repeated_until_its_answer_has_come() -> None:
    told = Chronicle()
    first = told.deliver("p", NODE, "write")
    told.lose(told.send(NODE, "p", "done", answers=first), "reset")
    second = told.deliver("p", NODE, "write")
    again = told.deliver(NODE, "p", "done", answers=second)
    third = told.deliver("p", NODE, "write")
    found = follow(told.events)
    assert (found[second].repeats, found[again].repeats) == (first, again - 2)
    assert found[third].repeats is None, "an equal one has its answer"


def test_equal_answers_to_different_requests_repeat_nothing() -> None:
    told = Chronicle()
    first, second = told.deliver("p", NODE, "write a"), told.deliver("p", NODE, "write b")
    answers = [told.send(NODE, "p", "done", answers=first), told.send(NODE, "p", "done", answers=second)]
    assert [follow(told.events)[number].repeats for number in answers] == [None, None]


def test_a_request_that_is_delivered_twice_is_two_messages() -> None:
    story = (
        scenario("twice").producer("p", "send t-0 a", "flush").when("p sends Produce").do("deliver twice")
    ).scenario()
    (case,) = cases(story)
    history = record_case(case).history
    produces = [each for each in follow(history.events).values() if each.event.label == "Produce t-0 a 0/0"]
    assert [each.arrived is not None for each in produces] == [True, True]
    assert [each.repeats for each in produces] == [None, produces[0].event.number]
    assert "AGAIN" in space_time(history, width=100)
