"""Where the marks of the space-time picture stand, measured in the browser over all bundled scenarios."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Page, ViewportSize, expect

from fencepost.bundled import bundled_scenarios
from fencepost.lab.recordings import record
from fencepost.simulation import read_scenario
from fencepost.simulator.scenarios.model import variants
from tests.lab.browser.driving import RunPage, document_of
from tests.lab.browser.overlaps import overlaps
from tests.lab.lab_process import LabProcess, lab

pytestmark = pytest.mark.thorough

LAPTOP: Final[ViewportSize] = {"width": 1366, "height": 768}
PHONE: Final[ViewportSize] = {"width": 360, "height": 740}
WIDEST: Final = "lost_sequence"
OVERFLOW: Final = "(box => box.scrollWidth - box.clientWidth)(document.querySelector('.scroller'))"


@pytest.fixture(scope="module")
def server() -> Iterator[LabProcess]:
    """One lab for all scenarios."""
    with lab() as server:
        yield server


def test_scenarios_fit_a_laptop_beside_the_panel_of_the_lab(page: Page, server: LabProcess) -> None:
    page.set_viewport_size(LAPTOP)
    wide: list[str] = []
    for name in bundled_scenarios():
        page.goto("about:blank")
        run = RunPage.at(page, f"{server.address}#scenario={name}")
        wide += [name] if run.evaluate(OVERFLOW) > 0 else []
    assert wide == []


def test_names_and_times_stay_in_sight_while_a_phone_scrolls(page: Page, tmp_path: Path) -> None:
    page.set_viewport_size(PHONE)
    run = RunPage.opened(page, tmp_path, [document_of(WIDEST)], link="step=400")
    run.evaluate("document.querySelector('.scroller').scrollBy(1000, 0)")
    sheet, heads, times = (
        run.evaluate(f"document.querySelector('{each}').getBoundingClientRect()")
        for each in (".scroller", ".heads", ".times")
    )
    assert run.evaluate("document.querySelector('.scroller').scrollLeft") > 100
    assert heads["top"] - sheet["top"] < 2
    assert times["left"] - sheet["left"] < 2
    on_top = f"document.elementFromPoint({times['right'] - 12}, {sheet['top'] + 200})"
    assert run.evaluate(f"{on_top}.closest('.times') !== null")


def test_a_step_brings_its_lane_into_sight(page: Page, tmp_path: Path) -> None:
    page.set_viewport_size(PHONE)
    document = document_of(WIDEST)
    run = RunPage.opened(page, tmp_path, [document], link="step=0")
    for lane in ("node 1", "payer-1", "node 1"):
        step = max(number for number, each in enumerate(document["steps"]) if each.get("lane") == lane)
        run.evaluate(f"location.hash = 'step={step}'")
        run.is_at(step)
        expect(page.locator(f".head.lane[title='{lane}']")).to_be_in_viewport()


def test_no_mark_lies_on_another(page: Page, tmp_path: Path) -> None:
    """Every variant of every scenario, in a window so high that all rows are drawn."""
    found: dict[str, list[str]] = {}
    for name in bundled_scenarios():
        for number, (_, case) in enumerate(variants(read_scenario(name)), 1):
            document = record(case)
            page.set_viewport_size({**LAPTOP, "height": 22 * len(document["steps"]) + 400})
            page.goto("about:blank")
            RunPage.opened(page, tmp_path, [document], link="step=0")
            found[f"{name} {number}"] = overlaps(page)
    assert {name: marks for name, marks in found.items() if marks} == {}


PLANTED: Final = {
    "words on words": ("g.row text", "g.row + g.row text"),
    "the head of an arrow on words": (".message.again .arrow", "g.row text"),
    "a cross on a time": (".times .cross", ".times text"),
    "a bolt on words": (".bolt", "g.row text"),
    "a name on a name": (".head.lane", ".head.log"),
}
MOVE: Final = """([mark, other]) => {
  const [from, to] = [mark, other].map((each) => {
    const place = document.createRange();
    place.selectNode(document.querySelector(each).firstChild ?? document.querySelector(each));
    return place.getBoundingClientRect();
  });
  document.querySelector(mark).style.translate = `${to.left - from.left}px ${to.top - from.top}px`;
}"""


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_overlap_is_found(page: Page, tmp_path: Path, planted: str) -> None:
    page.set_viewport_size({**LAPTOP, "height": 3000})
    run = RunPage.opened(page, tmp_path, [document_of("duplicate_after_lost_ack", 2)], link="step=0")
    assert overlaps(page) == []
    run.page.evaluate(MOVE, PLANTED[planted])
    assert overlaps(page) != []
