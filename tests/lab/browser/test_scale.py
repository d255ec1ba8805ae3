"""10,000 events: the page draws what is in sight, and scrolling always finds it drawn.

Rule: what is drawn is counted. How long it takes depends on the machine, and is not asserted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Page

from fencepost.lab.document import RunDocument
from fencepost.lab.recordings import record
from fencepost.simulation import scenario
from fencepost.simulator.scenarios.model import variants
from tests.lab.browser.driving import RunPage

pytestmark = pytest.mark.thorough

EVENTS: Final = 10_000
MARKS_MAX: Final = 2_500  # elements of the picture, of which 10,000 steps would need ten times as many
COUNT: Final = "document.querySelectorAll('.picture *').length"
COVERS: Final = """() => {
  const placeOf = (selector) => document.querySelector(selector).getBoundingClientRect();
  const [seen, drawn] = [placeOf(".scroller"), placeOf(".picture")];
  return drawn.top <= seen.top + 40 && drawn.bottom >= seen.bottom - 1;
}"""
SCROLL: Final = """part => {
  const scroller = document.querySelector(".scroller");
  scroller.scrollTop = part * (scroller.scrollHeight - scroller.clientHeight);
}"""


@pytest.fixture(scope="module")
def long_run() -> RunDocument:
    """A producer that sends many records, one after the other."""
    script = [line for number in range(1_300) for line in (f"send t-0 {number}", "flush")]
    story = scenario("many records").producer("p", *script)
    ((_, case),) = variants(story.scenario())
    return record(case)


def test_ten_thousand_events_scroll(page: Page, tmp_path: Path, long_run: RunDocument) -> None:
    last = len(long_run["steps"]) - 1
    assert last >= EVENTS
    run = RunPage.opened(page, tmp_path, [long_run], link="step=0")
    for part in (0.0, 0.13, 0.5, 0.501, 0.87, 1.0, 0.25, 0.0):
        page.evaluate(SCROLL, part)
        page.wait_for_function(COVERS)
        assert 0 < run.evaluate(COUNT) < MARKS_MAX
    run.by("scrub").fill(str(last // 2))
    run.is_at(last // 2)
    run.sees("panel-logs", long_run["batches"][-1]["partition"])
    run.press("End", "ArrowLeft", "ArrowLeft", "ArrowRight")
    run.is_at(last - 1)
    page.wait_for_function(COVERS)
    assert 0 < run.evaluate(COUNT) < MARKS_MAX
    assert run.evaluate("document.querySelectorAll('[data-testid=panel-logs] *').length") < MARKS_MAX
