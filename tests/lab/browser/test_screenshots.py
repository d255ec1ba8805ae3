"""Six pages as pictures, compared with stored ones. `make screenshots` stores them anew."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

import attrs
import pytest
from playwright.sync_api import Page, expect

from fencepost.lab.comparison import compare
from fencepost.lab.document import RunDocument
from tests.lab.browser.chromium import FONTS, missing
from tests.lab.browser.driving import RunPage, document_of
from tests.lab.browser.screenshots import STORED, difference, taken
from tests.lab.lab_process import LabProcess, lab

pytestmark = pytest.mark.thorough

RENEW: Final = "FENCEPOST_SCREENSHOTS"
"""The variable of the environment by which `make screenshots` says to store the pictures: `renew`."""
LATE: Final = 63
"""The step at which the coordinator takes the late commit for the end of the second transaction."""


@pytest.fixture(scope="module", autouse=True)
def fonts() -> None:
    """The pictures are drawn with one font, which must be there."""
    if not (FONTS / "DejaVuSans.ttf").exists():
        missing("there are no DejaVu fonts (Debian: apt-get install fonts-dejavu-core)")


@pytest.fixture(scope="module")
def server() -> Iterator[LabProcess]:
    """One lab for all pictures."""
    with lab() as server:
        yield server


@cache
def late(variant: int) -> RunDocument:
    """The run with the late commit."""
    return document_of("late_end_txn", variant)


@attrs.frozen
class Sight:
    """What a picture is taken of: a fresh page, a folder, and the lab."""

    page: Page
    place: Path
    server: LabProcess

    def run(self) -> RunPage:
        """The late commit, at the step at which it is taken for another."""
        return RunPage.opened(self.page, self.place, [late(1)], link=f"step={LATE}")


def run_light(sight: Sight) -> None:
    sight.run()


def run_dark(sight: Sight) -> None:
    sight.page.emulate_media(color_scheme="dark")
    sight.run()


def run_projector(sight: Sight) -> None:
    sight.page.set_viewport_size({"width": 1920, "height": 1080})
    sight.run().press("l")  # large type
    expect(sight.page.locator("html")).to_have_class("large")


def beside(sight: Sight) -> None:
    both = compare(late(1), late(2))
    runs = [both["left"], both["right"]]
    RunPage.opened(sight.page, sight.place, runs, divergence=both["divergence"])


def lab_scenarios(sight: Sight) -> None:
    RunPage.at(sight.page, sight.server.address)


def lab_whatif(sight: Sight) -> None:
    run = RunPage.at(sight.page, sight.server.address)
    sight.page.locator("[data-scenario=duplicate_after_lost_ack]").click()
    run.click("tab-whatif")
    run.by("switch-dedup").uncheck()
    run.sees("outcome", "now breaks duplicate")
    run.click("next-violation")
    sight.page.mouse.move(0, 0)


PAGES: Final[list[Callable[[Sight], None]]] = [
    run_light, run_dark, run_projector, beside, lab_scenarios, lab_whatif,
]  # fmt: skip


def is_still(page: Page) -> None:
    """Waits until the fonts are there and two frames were drawn since."""
    page.evaluate("document.fonts.ready.then(() => new Promise(done => "
                  "requestAnimationFrame(() => requestAnimationFrame(() => done(0)))))")  # fmt: skip


@pytest.mark.parametrize("prepare", PAGES, ids=lambda prepare: prepare.__name__)
def test_a_page_looks_as_it_did(
    prepare: Callable[[Sight], None], page: Page, tmp_path: Path, server: LabProcess
) -> None:
    prepare(Sight(page, tmp_path, server))
    is_still(page)
    picture, stored = taken(page), STORED / f"{prepare.__name__}.png"
    if os.environ.get(RENEW) == "renew":
        STORED.mkdir(exist_ok=True)
        stored.write_bytes(picture)
        return
    found = difference(page, stored.read_bytes(), picture)
    if found.is_one:
        actual = tmp_path / stored.name
        actual.write_bytes(picture)
        pytest.fail(
            f"{stored} and {actual} differ: {found}. `make screenshots` stores the page as it is now."
        )


# --- the comparison itself ----------------------------------------------------------------------------------

HARMLESS: Final = {
    "a fraction of a pixel to the right": "document.body.style.transform = 'translate(0.4px, 0)'",
    "a fraction of a pixel down": "document.body.style.transform = 'translate(0.2px, 0.4px)'",
    "colours of another screen": "document.documentElement.style.filter = 'contrast(0.97)'",
}
FAULTS: Final = {
    "a missing sign": "document.querySelector('.picture .late, .picture [class*=late]').remove()",
    "a record less": "document.querySelector('.cells li:not(.held)').style.visibility = 'hidden'",
    "another colour": "document.documentElement.style.setProperty('--producer-0', '#888')",
    "a missing panel": "document.querySelector('[data-testid=panel-leader]').remove()",
    "a line less": "document.querySelector('.current').remove()",
    "type that is larger": "document.documentElement.style.fontSize = '15px'",
}


def test_the_comparison_sees_what_people_see(page: Page, tmp_path: Path, server: LabProcess) -> None:
    run_light(Sight(page, tmp_path, server))
    is_still(page)
    before = taken(page)
    for name, change in (HARMLESS | FAULTS).items():
        page.reload()
        is_still(page)
        page.evaluate(change)
        is_still(page)
        found = difference(page, before, taken(page))
        assert found.is_one == (name in FAULTS), f"{name}: {found}"
