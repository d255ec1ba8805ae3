"""The page of every bundled scenario, as `fencepost run --html` writes it, in a browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from fencepost.bundled import bundled_scenarios
from fencepost.cli.application import run
from tests.lab.browser.complaints import Complaints
from tests.lab.browser.driving import RunPage
from tests.lab.reading import runs_in

pytestmark = pytest.mark.thorough

SIZE_MAX = 1_000_000


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The page of the first variant of each scenario, in their order."""
    place = tmp_path_factory.mktemp("pages")
    assert run(["run", "--variant", "1", "--html", str(place / "page.html")]) == 0
    count = len(bundled_scenarios())
    return [place / "page.html", *(place / f"page-{number}.html" for number in range(2, count + 1))]


def test_every_scenario_has_a_small_page_that_opens_in_silence(
    page: Page, pages: list[Path], complaints: Complaints
) -> None:
    for name, file in zip(bundled_scenarios(), pages, strict=True):
        assert file.stat().st_size < SIZE_MAX, name
        (document,) = runs_in(file)["documents"]
        last = len(document["steps"]) - 1
        shown = RunPage.at(page, f"{file.as_uri()}#step={last}")
        shown.is_at(last)
        assert page.title() == document["title"]
        expect(page.get_by_role("heading", level=1)).to_have_text(document["title"])
        assert complaints.found == [], name
