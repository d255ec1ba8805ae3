"""axe-core looks at a page: what people with a screen reader, a keyboard or weak eyes would stumble over.

Rule: every rule of WCAG 2.2 (A and AA) and of axe's best practices counts; none is switched off.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final, TypedDict, cast

from playwright.sync_api import Page

AXE: Final = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
RUN: Final = """async () => {
  const found = await axe.run(document, { resultTypes: ["violations"] });
  return found.violations.map(({ id, help, nodes }) =>
    ({ id, help, nodes: nodes.map(({ html, failureSummary }) => `${html}\\n${failureSummary}`) }));
}"""


class _Violation(TypedDict):
    id: str
    help: str
    nodes: list[str]


def violations(page: Page) -> list[str]:
    """What axe finds on a page as it is now, in words: the rule, and each element that breaks it."""
    page.evaluate(AXE)
    found = cast("list[_Violation]", page.evaluate(RUN))
    return ["\n".join((f"{each['id']}: {each['help']}", *each["nodes"])) for each in found]
