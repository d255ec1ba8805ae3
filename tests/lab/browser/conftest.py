"""One browser for these tests, a fresh page for each, and a failure for every complaint of a page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.lab.browser.chromium import launch, path_of_chromium
from tests.lab.browser.complaints import Complaints

PATIENCE_MS = 20_000  # a bound on a hang, also where brokers and sweeps compete for the same core


# A package and not the session: the event loop of playwright would stay in the thread, and later tests of
# this process run loops of their own.
@pytest.fixture(scope="package")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """The browser of all tests of this folder."""
    path_of_chromium()
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = launch(playwright, tmp_path_factory.mktemp("chromium"))
        yield browser
        browser.close()


@pytest.fixture
def complaints() -> Complaints:
    """What the pages of a test complain about; the test fails if anything is left of them at its end."""
    return Complaints()


@pytest.fixture
def context(browser: Browser, complaints: Complaints, tmp_path: Path) -> Iterator[BrowserContext]:
    """Fresh cookies, storage and history, in a window as large as a laptop's."""
    context = browser.new_context(
        viewport={"width": 1280, "height": 800},
        locale="en-GB",
        timezone_id="UTC",
        color_scheme="light",
        accept_downloads=True,
    )
    context.set_default_timeout(PATIENCE_MS)
    complaints.watch(context)
    yield context
    context.close()
    assert complaints.found == []


@pytest.fixture
def page(context: BrowserContext) -> Page:
    """A fresh page."""
    return context.new_page()
