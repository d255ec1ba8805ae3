"""The harness itself: each kind of complaint that it looks for is found on a page that deserves it."""

from __future__ import annotations

from typing import Literal

import pytest
from playwright.sync_api import Page, expect

from tests.lab.browser.accessibility import violations
from tests.lab.browser.chromium import REQUIRED, path_of_chromium
from tests.lab.browser.complaints import Complaints

POLICY = "default-src 'none'; script-src 'unsafe-inline'"
STRICT = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
GOOD = '<!doctype html><html lang="en"><title>Good</title><main><h1>Good</h1><p>Words.</p></main></html>'

Happens = Literal["console", "pageerror", "request"]
FAULTS: list[tuple[Happens, str, str]] = [
    ("console", "console error: broken", "<script>console.error('broken')</script>"),
    ("console", "console warning: odd", "<script>console.warn('odd')</script>"),
    ("pageerror", "uncaught: planted", "<script>setTimeout(() => { throw new Error('planted') })</script>"),
    ("pageerror", "uncaught: promised", "<script>Promise.reject(new Error('promised'))</script>"),
    ("request", "foreign request: http://example.com/x", "<img alt='x' src='http://example.com/x'>"),
    (
        "console",
        "Applying inline style violates the following Content Security Policy",
        f"{STRICT}<p style='color: red'>red</p>",
    ),
    (
        "console",
        "Loading the image 'data:image/png,x' violates",
        f"{STRICT}<img alt='x' src='data:image/png,x'>",
    ),
]


@pytest.mark.parametrize(("happens", "words", "html"), FAULTS, ids=[words for _, words, _ in FAULTS])
def test_a_page_that_complains_is_noticed(
    page: Page, complaints: Complaints, happens: Happens, words: str, html: str
) -> None:
    with page.expect_event(happens):
        page.set_content(html)
    page.evaluate("0")  # events come in their order, and this answer after them
    complaints.expect(words)
    complaints.found.clear()  # the browser adds words of its own


def test_tests_are_skipped_without_a_browser_unless_it_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv(REQUIRED, raising=False)
    with pytest.raises(pytest.skip.Exception, match="there is no chromium"):
        path_of_chromium()
    monkeypatch.setenv(REQUIRED, "required")
    with pytest.raises(pytest.fail.Exception, match="there is no chromium"):
        path_of_chromium()


def test_a_good_page_is_left_alone(page: Page) -> None:
    page.set_content(GOOD)
    expect(page.get_by_role("heading")).to_have_text("Good")
    assert violations(page) == []


def test_an_inaccessible_page_is_noticed(page: Page) -> None:
    page.set_content(
        GOOD.replace("<p>", "<p style='color: #ccc'>").replace("</main>", "<button></button></main>")
    )
    found = "\n".join(violations(page))
    assert "color-contrast: " in found
    assert "button-name: " in found
