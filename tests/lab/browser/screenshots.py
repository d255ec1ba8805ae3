"""Screenshots, and how two of them are compared: as people see them, not pixel by pixel.

Rule: a picture is kept at half its size. Two of them are softened and compared in squares of 6 x 6 pixels,
each with the most similar place of the other picture, at most a pixel away. So antialiasing, and what is
drawn a fraction of a pixel beside its place, are no difference; a missing sign, another colour and another
size are. Single letters are for the tests that read the page.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, Final

import attrs
from playwright.sync_api import Page

STORED: Final = Path(__file__).parent / "screenshots"
SQUARE: Final = 6  # pixels of half the size
APART_MAX: Final = 15  # of 255: the mean distance of the pixels of two squares
SQUARES_MAX: Final = 4  # how many may be further apart

HALF: Final = """async (png) => {
  const full = await createImageBitmap(await (await fetch(`data:image/png;base64,${png}`)).blob());
  const canvas = new OffscreenCanvas(full.width / 2, full.height / 2);
  const pen = canvas.getContext("2d");
  pen.imageSmoothingQuality = "high";
  pen.drawImage(full, 0, 0, canvas.width, canvas.height);
  const bytes = new Uint8Array(await (await canvas.convertToBlob({ type: "image/png" })).arrayBuffer());
  return btoa(bytes.reduce((text, byte) => text + String.fromCharCode(byte), ""));
}"""
COMPARE: Final = """async ({ pngs, side, limit }) => {
  const [one, other] = await Promise.all(pngs.map(async (png) =>
    createImageBitmap(await (await fetch(`data:image/png;base64,${png}`)).blob())));
  const { width, height } = one;
  if (width !== other.width || height !== other.height) {
    return { size: `${width} x ${height}, not ${other.width} x ${other.height}`, squares: [] };
  }
  const softened = (image, right, down) => {
    const pen = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
    pen.filter = "blur(1px)";
    pen.drawImage(image, right, down);
    return pen.getImageData(0, 0, width, height).data;
  };
  const apart = (here, there, left, top) => {
    let sum = 0;
    for (let y = top; y < top + side; y++)
      for (let at = (y * width + left) * 4, end = at + side * 4; at < end; at++)
        sum += Math.abs(here[at] - there[at]);
    return sum / (side * side * 3);
  };
  const places = [0, 0.5, -0.5, 1, -1];
  const moved = []; // made when they are needed: most squares are alike where they are
  const movedBy = (at) => (moved[at] ??= softened(other, places[at % 5], places[Math.floor(at / 5)]));
  const fixed = softened(one, 0, 0);
  const squares = [];
  for (let top = 2; top + side < height - 2; top += side)
    for (let left = 2; left + side < width - 2; left += side) {
      let least = 255;
      for (let at = 0; at < 25 && least > limit; at++)
        least = Math.min(least, apart(fixed, movedBy(at), left, top));
      if (least > limit) squares.push([left * 2, top * 2, Math.round(least)]);
    }
  return { size: "", squares };
}"""


@attrs.frozen
class Difference:
    """How two pictures differ: their sizes, or the squares (x, y, how far) that do, in pixels of the page."""

    size: str
    squares: list[tuple[int, int, int]]

    @property
    def is_one(self) -> bool:
        """Whether a person would see it."""
        return bool(self.size) or len(self.squares) > SQUARES_MAX

    def __str__(self) -> str:
        if self.size or not self.squares:
            return self.size or "none"
        left, top = (min(each[at] for each in self.squares) for at in (0, 1))
        right, bottom = (max(each[at] for each in self.squares) + 2 * SQUARE for at in (0, 1))
        return f"{len(self.squares)} squares between ({left}, {top}) and ({right}, {bottom})"


def taken(page: Page) -> bytes:
    """The page as it is seen now, at half its size."""
    full = page.screenshot(animations="disabled", caret="hide", scale="css")
    return base64.b64decode(_on_blank_page(page, HALF, _text(full)))


def difference(page: Page, one: bytes, other: bytes) -> Difference:
    """How two pictures differ."""
    given = {"pngs": [_text(one), _text(other)], "side": SQUARE, "limit": APART_MAX}
    found = _on_blank_page(page, COMPARE, given)
    return Difference(found["size"], [tuple(each) for each in found["squares"]])


def _on_blank_page(page: Page, script: str, given: object) -> Any:
    """The value of a script that runs where no content security policy forbids it to read data."""
    blank = page.context.new_page()
    try:
        return blank.evaluate(script, given)
    finally:
        blank.close()


def _text(png: bytes) -> str:
    return base64.b64encode(png).decode()
