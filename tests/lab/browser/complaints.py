"""What a page complained about while a test looked at it: errors, warnings and foreign requests.

The browser reports each refusal of the content security policy as an error of the console.

Rule: a test passes only if its pages did not complain.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

import attrs
from playwright.sync_api import BrowserContext, ConsoleMessage, Page, Request

LOUD: Final = frozenset({"error", "warning", "assert"})
LOCAL_SCHEMES: Final = frozenset({"file", "data", "blob", "about"})
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


@attrs.define(eq=False, slots=False)  # playwright notes on an object which of its methods listen
class Complaints:
    """The complaints of every page of a browser context, in their order."""

    found: list[str] = attrs.Factory(list[str])

    def watch(self, context: BrowserContext) -> None:
        """Listens from now on."""
        context.on("console", self._console)
        context.on("weberror", lambda error: self.found.append(f"uncaught: {error.error}"))
        context.on("request", self._request)
        context.on("page", self._page)

    def expect(self, words: str) -> None:
        """Takes back one complaint that a test provoked; an AssertionError if there is none."""
        met = next((complaint for complaint in self.found if words in complaint), None)
        assert met is not None, f"no page complained of {words!r}: {self.found}"
        self.found.remove(met)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in LOUD:
            self.found.append(f"console {message.type}: {message.text}")

    def _request(self, request: Request) -> None:
        address = urlsplit(request.url)
        if address.scheme not in LOCAL_SCHEMES and address.hostname not in LOOPBACK:
            self.found.append(f"foreign request: {request.url}")

    def _page(self, page: Page) -> None:
        page.on("crash", lambda _: self.found.append("the page crashed"))
