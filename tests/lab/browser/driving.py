"""Drives the page of a run by its test ids, as a reader does with mouse and keyboard."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

import attrs
from playwright.sync_api import Locator, Page, expect

from fencepost.lab.document import RunDocument
from fencepost.lab.pages import file_page
from fencepost.lab.recordings import record
from fencepost.simulation import read_scenario
from fencepost.simulator.scenarios.model import variants

TIGHT_MOMENTS: Final = """() => [...document.querySelectorAll(".moment")].filter((moment) => {
  const parts = [moment, ...moment.querySelectorAll(".what, .when")];
  const [card, what, when] = parts.map((part) => part.getBoundingClientRect());
  const isCut = moment.firstElementChild.scrollWidth > Math.ceil(what.width) || what.right > card.right;
  const isBeside = when.width > 0 && when.top < what.bottom;
  return isCut || (isBeside && when.left - what.right < 4);
}).map((moment) => moment.textContent)"""
OBEYED_SIGNS: Final = r"""() => {
  const said = ["title", "aria-label", "aria-valuetext"];
  const textsOf = (each) =>
    [...said.map((name) => each.getAttribute(name)), ...[...each.childNodes].map((node) => node.nodeValue)];
  const texts = [...document.body.querySelectorAll(":not(script)")].flatMap(textsOf);
  return texts.filter((text) => /[\0-\x08\x0e-\x1f\u200b\u202a-\u202e\u2066-\u2069]/.test(text ?? ""));
}"""


def obeyed_signs(page: Page) -> list[str]:
    """The texts on a page with signs that a browser obeys instead of showing them."""
    return cast("list[str]", page.evaluate(OBEYED_SIGNS))


def document_of(name: str, variant: int = 1) -> RunDocument:
    """The run of a variant of a bundled scenario."""
    ((_, case),) = variants(read_scenario(name), variant)
    return record(case)


def flagged(document: RunDocument, flag: str) -> list[int]:
    """The numbers of the steps with this flag."""
    return [number for number, step in enumerate(document["steps"]) if flag in step.get("flags", ())]


@attrs.frozen
class RunPage:
    """A page that shows a run, or two side by side."""

    page: Page

    @classmethod
    def opened(
        cls,
        page: Page,
        place: Path,
        documents: Sequence[RunDocument],
        *,
        divergence: tuple[int, int] | None = None,
        link: str = "",
    ) -> RunPage:
        """Writes the page to a file and opens that; `link` is what follows the # in its address."""
        file = place / "run.html"
        file.write_text(file_page(documents, divergence=divergence), encoding="utf-8")
        return cls.at(page, f"{file.as_uri()}#{link}")

    @classmethod
    def at(cls, page: Page, address: str) -> RunPage:
        """Opens an address and waits until a run is shown."""
        page.goto(address)
        expect(page.get_by_test_id("step-counter")).to_be_visible()
        return cls(page)

    def by(self, test_id: str) -> Locator:
        """The control or panel with this id."""
        return self.page.get_by_test_id(test_id)

    def click(self, *test_ids: str) -> None:
        """Clicks one control after the other."""
        for test_id in test_ids:
            self.by(test_id).click()

    def press(self, *keys: str) -> None:
        """Presses keys, one after the other, wherever the focus is."""
        for key in keys:
            self.page.keyboard.press(key)

    def is_at(self, *steps: int) -> None:
        """Waits until the page shows this step of the run; of two runs, these."""
        words = " \\| ".join(rf"step {step} of \d+" for step in steps)
        expect(self.by("step-counter")).to_have_text(re.compile(rf"^{words}[\d.]+ ms$"))

    def sees(self, test_id: str, *words: str) -> None:
        """Waits until a panel shows these words."""
        for each in words:
            expect(self.by(test_id).first).to_contain_text(each)

    def read_committed(self, partition: str, *, side: int = 0) -> list[str]:
        """The values that read_committed readers see of a partition, as a screen reader says them."""
        seen = self.by("panel-readers").nth(side).get_by_label(f"read_committed readers see of {partition}")
        return [" ".join(text.split()) for text in seen.get_by_role("listitem").all_inner_texts()]

    def tight_moments(self) -> list[str]:
        """The key moments whose word is cut off, or has less than 4 px to its time."""
        found: list[str] = self.evaluate(TIGHT_MOMENTS)
        return found

    def evaluate(self, script: str) -> Any:
        """The value of a script that reads the page."""
        return self.page.evaluate(script)
