"""Which marks of the space-time picture lie on each other, measured by their boxes in the browser.

Rule: words never meet words, crosses, bolts, badges or the heads of arrows. They may lie on lines, bars and
bands, which go through everything: a halo keeps them readable.
"""

from __future__ import annotations

from typing import Final, cast

from playwright.sync_api import Page

GAP: Final = 3  # px at least between two marks that stand beside each other
SHALLOW: Final = 3  # px: so far a box, which is higher than its letters, may reach into the next row
MEASURE: Final = """([gap, shallow]) => {
  const words = ".sheet text:not(.letter, .badge-text), .head";
  const signs = [".cross", ".bolt", ".badge", ".arrow"].map((each) => `.sheet ${each}`).join(", ");
  const boxOf = (it, kind) => {
    const area = document.createRange();
    area.selectNodeContents(it);
    const { left, right, top, bottom } = (it.matches(".head") ? area : it).getBoundingClientRect();
    return { left, right, top, bottom, kind, name: `${kind} ${it.textContent.trim()}` };
  };
  const boxes = [
    ...[...document.querySelectorAll(words)].map((it) => boxOf(it, "words")),
    ...[...document.querySelectorAll(signs)].map((it) => boxOf(it, it.classList[0])),
  ].filter(({ left, right }) => right > left);
  boxes.sort((one, other) => one.top - other.top);
  const meets = (one, other) =>
    Math.min(one.right, other.right) - Math.max(one.left, other.left) > -gap &&
    Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top) > shallow;
  const found = [];
  boxes.forEach((one, place) => {
    for (const other of boxes.slice(place + 1)) {
      if (other.top > one.bottom) break;
      const isOfWords = one.kind === "words" || other.kind === "words";
      if (isOfWords && meets(one, other)) found.push(`${one.name} meets ${other.name}`);
    }
  });
  return found;
}"""


def overlaps(page: Page) -> list[str]:
    """What lies on what, in words; the page must show all rows."""
    return cast("list[str]", page.evaluate(MEASURE, [GAP, SHALLOW]))
