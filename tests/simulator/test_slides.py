"""The geometry of drawings: no text is cut off, slides fit a screen, a crop shows what it names."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from xml.etree.ElementTree import Element, fromstring

import attrs
import pytest

from fencepost.bundled import bundled_scenarios
from fencepost.protocol.terms import TransactionState
from fencepost.simulator.draw.canvas import width_of
from fencepost.simulator.draw.crop import Crop, NothingToDraw, lanes_of
from fencepost.simulator.draw.fates import follow, timed_sentence
from fencepost.simulator.draw.slides import slides
from fencepost.simulator.draw.svg import draw
from fencepost.simulator.draw.text import space_time
from fencepost.simulator.scenarios.files import scenario_of
from fencepost.simulator.scenarios.model import cases
from fencepost.simulator.scenarios.runner import record_case
from fencepost.simulator.world.history import Called, History, Sent
from tests.simulator.histories import NODE, ORDERS, Chronicle, crash_between_prepare_and_markers, late_end_txn
from tests.simulator.test_drawing import texts

SVG = "{http://www.w3.org/2000/svg}"
STORIES = sorted(bundled_scenarios())


@cache
def history_of(name: str) -> History:
    """The first run of a bundled scenario."""
    path: Path = bundled_scenarios()[name]
    return record_case(next(cases(scenario_of(path.read_text(), str(path))))).history


def extent(element: Element) -> tuple[float, float]:
    """Where a text begins and ends, a little too far rather than too near."""
    x, kind = float(element.get("x", 0)), element.get("class", "").split()
    sizes = {"small": 10, "name": 12, "title": 14}
    size = next((size for name, size in sizes.items() if name in kind), 11)
    wide = width_of(element.text or "") * size / 11
    left = {"start": x, "middle": x - wide / 2, "end": x - wide}[element.get("text-anchor", "start")]
    return left, left + wide


def is_name(text: Element) -> bool:
    return "name" in text.get("class", "").split()


def outside(picture: str) -> list[str]:
    """The texts of a picture that its edges cut off."""
    root = fromstring(picture)
    width = float(root.get("viewBox", "").split()[2])
    moved = {  # signs of a legend are drawn at 0 and moved
        text
        for group in root.iter(f"{SVG}g")
        if "translate" in group.get("transform", "")
        for text in group.iter(f"{SVG}text")
    }
    return [
        text.text or ""
        for text in root.iter(f"{SVG}text")
        if text not in moved and not (extent(text)[0] >= -0.5 and extent(text)[1] <= width + 0.5)
    ]


@pytest.mark.parametrize("name", STORIES)
def test_no_text_is_cut_off(name: str) -> None:
    picture = draw(history_of(name))
    assert outside(picture) == []
    elided = [text for text in texts(picture) if text.endswith("…")]
    assert all(len(text) > 36 for text in elided), "lanes are made wider for shorter ones"
    names = sorted(extent(text) for text in fromstring(picture).iter(f"{SVG}text") if is_name(text))
    assert all(left[1] < right[0] for left, right in pairwise(names))


LONG = "an-id-with-a-long-name-" * 4


@pytest.mark.parametrize("lane", [LONG, "日本語" * 30])
def test_long_names_and_values_stay_in_their_places(lane: str) -> None:
    told = Chronicle()
    told.call(lane, f"send {LONG * 20}")
    held = told.send(lane, NODE, f"Produce {LONG * 20}")
    told.strike("", f"hold {LONG * 20}", number=held)
    told.deliver(lane, NODE, f"Produce {LONG}")
    told.arrive(held)
    for name in (f"{lane}1", f"{lane}2"):
        told.coordinate(TransactionState.ONGOING, transactional_id=name)
    told.append(ORDERS, 0, label=lane)
    picture = draw(told.history(LONG * 20, lane, f"{lane}2", NODE))
    assert outside(picture) == []
    names = [text for text in fromstring(picture).iter(f"{SVG}text") if is_name(text)]
    assert len({text.text for text in names}) == len(names)
    assert all(left[1] < right[0] for left, right in pairwise(sorted(map(extent, names))))


def test_the_title_above_a_narrow_lane_is_not_cut_off() -> None:
    told = Chronicle()
    for _ in range(5):
        told.call("p", "flush")
    history = told.history("a title that is wider than its only lane (variant)", "p")
    assert outside(draw(history)) == outside(draw(history, first=3)) == []


@pytest.mark.parametrize("name", ["late_end_txn", "hanging_transaction", "late_record"])
def test_what_is_written_about_a_late_message_ends_before_the_coordinators(name: str) -> None:
    root = fromstring(draw(history_of(name)))
    bars = min(
        float(text.get("x", 0))
        for text in root.iter(f"{SVG}text")
        if is_name(text) and (text.text or "").startswith("txn ")
    )
    late = [text for text in root.iter(f"{SVG}text") if ", after " in (text.text or "")]
    assert late
    assert all(extent(text)[1] <= bars for text in late)


@pytest.mark.parametrize("name", ["zombie_fencing", "late_end_txn", "processor_dies"])
def test_slides_fit_a_screen_and_leave_nothing_out(name: str) -> None:
    history, shown = history_of(name), set[str]()
    pages = slides(history)
    assert len(pages) > 1
    for number, page in enumerate(pages, start=1):
        root = fromstring(page)
        assert (root.get("width"), root.get("height")) == ("1920", "1080")
        _, _, width, height = map(float, root.get("viewBox", "").split())
        assert width / height == pytest.approx(16 / 9, rel=0.01)
        assert outside(page) == []
        assert any(text.endswith(f"{number} / {len(pages)}") for text in texts(page))
        window = next(inner for inner in root if inner.tag == f"{SVG}svg")
        low = float(window.get("y", 0)) + float(window.get("height", 0))
        legend = re.search(r"translate\(0 ([\d.]+)\)", page)
        assert legend is not None
        assert low <= float(legend[1]) < height
        shown |= {title.text or "" for title in root.iter(f"{SVG}title")}
    messages = follow(history.events)
    assert {timed_sentence(event, messages) for event in history.events} <= shown


def test_fewer_lanes_mean_larger_type() -> None:
    history = history_of("zombie_fencing")
    part, first = Crop(only=tuple(history.participants[:2])).of(history)

    def type_size(page: str) -> float:
        root = fromstring(page)
        return 11 * float(root.get("width", 0)) / float(root.get("viewBox", "").split()[2])

    assert type_size(slides(part, first=first)[0]) > type_size(slides(history)[0]) > 11
    assert len(slides(part, first=first)) < len(slides(history))


def test_a_long_lesson_and_a_long_legend_leave_room_for_rows() -> None:
    told = Chronicle()
    for number in range(100):
        told.append(ORDERS, number, label="a", producer_id=number)
    history = attrs.evolve(told.history("many", NODE), lesson="word " * 2_000)
    assert len(slides(history)) < 20


def test_a_long_time_breaks_the_axis_and_is_named() -> None:
    told = Chronicle()
    for _ in range(10):
        told.deliver("p", NODE, "a")
    told.events.append(Called(100_000 * 10**6, participant="p", label="much later"))
    picture = draw(attrs.evolve(told.history("jump", "p", NODE), end=100_000 * 10**6))
    breaks = [e for e in fromstring(picture).iter() if e.get("class") == "axis-break"]
    assert [e[0].text for e in breaks] == ["99990.500 ms pass here"]
    assert outside(picture) == [], "long times have room"
    assert "axis-break" not in draw(late_end_txn())


def test_the_legend_has_only_what_occurs() -> None:
    quiet = Chronicle()
    quiet.deliver("p", NODE, "Metadata")
    assert set(texts(draw(quiet.history("quiet", "p", NODE)))) & LEGEND == {"message"}
    assert "again" in texts(draw(late_end_txn()))
    assert "undecided" not in texts(draw(late_end_txn()))


LEGEND = {
    "message",
    "again",
    "late",
    "lost",
    "committed",
    "aborted",
    "undecided",
    "LSO",
    "held back",
    "at offset 0",
}


def test_several_producers_have_their_colours_in_the_legend() -> None:
    told = Chronicle()
    told.append(ORDERS, 0, "a")
    told.append(ORDERS, 1, "b", producer_id=8)
    assert {"producer 7", "producer 8"} <= set(texts(draw(told.history("two producers", NODE))))
    found = texts(draw(history_of("commit_outcome_unknown")))
    assert not any(text.startswith("producer 0 (") for text in found), "there is only one"


# --- crops --------------------------------------------------------------------------------------------------


def test_a_crop_begins_and_ends_at_messages() -> None:
    history = late_end_txn()
    part, first = Crop(since="6", until="10").of(history)
    begins = part.events[first]
    assert isinstance(begins, Sent)
    assert begins.number == 6
    ends = part.events[-1]
    assert getattr(ends, "number", None) == 10
    assert part.end == ends.at < history.end
    assert (part.broken, part.lesson) == ((), "")
    table = space_time(part, width=100, first=first)
    assert "6 EndTxn COMMIT 7/0 AGAIN (as 5)" in table
    assert "1 " not in table.splitlines()[3][:20]


def test_what_comes_after_a_crop_has_not_happened() -> None:
    """The late EndTxn is under way, and what it will decide is undecided."""
    history = late_end_txn()
    part, first = Crop(until="6").of(history)
    picture = draw(part, first=first)
    assert "LATE" not in texts(picture)
    assert "under way at the end" in texts(picture)


def test_a_crop_by_time() -> None:
    history = late_end_txn()
    part, first = Crop(since="3 ms", until="0.01 s").of(history)
    assert part.events[first].at >= 3 * 10**6
    assert part.events[first - 1].at < 3 * 10**6
    assert part.end <= 10 * 10**6


def test_only_some_lanes() -> None:
    history = crash_between_prepare_and_markers()
    assert lanes_of(history)[: len(history.participants)] == list(history.participants)
    part, first = Crop(only=("p", NODE, "log t-0")).of(history)
    assert (lanes_of(part), first) == (["p", NODE, "log t-0"], 0)
    picture = draw(part)
    assert not any(text.startswith("txn ") for text in texts(picture))
    alone, _ = Crop(only=("log t-0",)).of(history)
    assert "log t-0" in texts(draw(alone))
    assert not any(isinstance(event, Sent | Called) for event in alone.events)
    assert space_time(alone, width=80)


@pytest.mark.parametrize(
    ("crop", "words"),
    [
        (Crop(since="99"), "no message 99"),
        (Crop(until="0"), "no message 0"),
        (Crop(since="x"), "is not a step"),
        (Crop(only=("q",)), "no lane 'q'; its lanes are p, "),
        (Crop(since="900 s"), "nothing between 900 s and its end"),
    ],
)
def test_a_part_that_a_run_does_not_have(crop: Crop, words: str) -> None:
    with pytest.raises(NothingToDraw, match=words):
        crop.of(late_end_txn())


def test_an_empty_history_is_drawn_all_the_same() -> None:
    empty = attrs.evolve(late_end_txn(), events=(), participants=())
    assert len(slides(empty)) == 1
    assert fromstring(draw(empty)) is not None
