"""`python -m tools.docs.lab_pictures`: retakes the pictures of docs/lab.md, with the browser of the tests.

Rule: nothing is retouched. Each picture is a page, or a part of one, that a bundled scenario leads to; the
live view shows a real broker, so its times are those of one run. Pictures have at most 256 colours, since
they are part of the package.
"""

from __future__ import annotations

import base64
import struct
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import attrs
from confluent_kafka import Producer
from playwright.sync_api import Browser, FloatRect, Page, expect, sync_playwright

from fencepost import Admin, BrokerProcess
from fencepost.lab.comparison import compare
from tests.lab.browser.chromium import launch
from tests.lab.browser.driving import RunPage, document_of
from tests.lab.lab_process import LabProcess, lab

PICTURES: Final = Path(__file__).parents[2] / "docs" / "pictures"
LATE: Final = "late_end_txn"
LOST_ACK: Final = "duplicate_after_lost_ack"
TAKEN_FOR_ANOTHER: Final = 63
"""The step of the late commit at which the coordinator takes it for the end of the second transaction."""
LAPTOP: Final = (1366, 768)
MARGIN: Final = 4  # pixels around a part of a page
COLOURS: Final = 256

PIXELS: Final = """async (png) => {
  const full = await createImageBitmap(await (await fetch(`data:image/png;base64,${png}`)).blob());
  const pen = new OffscreenCanvas(full.width, full.height).getContext("2d");
  pen.drawImage(full, 0, 0);
  const bytes = pen.getImageData(0, 0, full.width, full.height).data;
  const text = [];
  for (let at = 0; at < bytes.length; at += 32768)
    text.push(String.fromCharCode(...bytes.subarray(at, at + 32768)));
  return [full.width, full.height, btoa(text.join(""))];
}"""
STILL: Final = """document.fonts.ready.then(() => new Promise(done =>
  requestAnimationFrame(() => requestAnimationFrame(() => done(0)))))"""


# --- what is shown ------------------------------------------------------------------------------------------


@attrs.frozen
class Sight:
    """What pictures are taken with: a browser, a folder for pages, and the lab."""

    browser: Browser
    place: Path
    server: LabProcess

    def page(self, width: int, height: int) -> Page:
        """A fresh page of this size."""
        context = self.browser.new_context(
            viewport={"width": width, "height": height},
            locale="en-GB",
            timezone_id="UTC",
            color_scheme="light",
        )
        return context.new_page()

    def run(self, name: str, variant: int, step: int, size: tuple[int, int] = LAPTOP) -> RunPage:
        """The page of a run at a step."""
        return RunPage.opened(self.page(*size), self.place, [document_of(name, variant)], link=f"step={step}")

    def lab(self, scenario: str) -> RunPage:
        """The lab with a scenario."""
        run = RunPage.at(self.page(*LAPTOP), self.server.address)
        run.page.locator(f"[data-scenario={scenario}]").click()
        is_idle(run)
        return run


def is_idle(run: RunPage) -> None:
    """Waits until nothing is being played."""
    expect(run.page.locator("#lab-panel")).to_have_attribute("aria-busy", "false")


def picture(run: RunPage, *test_ids: str) -> bytes:
    """The page as it is seen, or the parts with these test ids."""
    run.page.mouse.move(0, 0)
    run.evaluate(STILL)
    if not test_ids:
        return run.page.screenshot(animations="disabled", caret="hide")
    boxes = [run.by(each).bounding_box() for each in test_ids]
    found = [box for box in boxes if box is not None]
    left, top = (min(box[axis] for box in found) - MARGIN for axis in ("x", "y"))
    right = max(box["x"] + box["width"] for box in found) + MARGIN
    bottom = max(box["y"] + box["height"] for box in found) + MARGIN
    clip = FloatRect(x=max(left, 0), y=max(top, 0), width=right - left, height=bottom - top)
    return run.page.screenshot(animations="disabled", caret="hide", clip=clip)


def lab_page(sight: Sight) -> bytes:
    run = sight.run(LATE, 1, 0, (1060, 768))
    run.click("next-violation")
    return picture(run)


def space_time(sight: Sight) -> bytes:
    return picture(sight.run(LATE, 1, TAKEN_FOR_ANOTHER, (1366, 900)), "panel-space-time")


def logs(sight: Sight) -> bytes:
    run = sight.run(LATE, 1, 0)
    run.click("next-violation")
    return picture(run, "panel-logs")


def coordinator(sight: Sight) -> bytes:
    return picture(sight.run(LATE, 1, TAKEN_FOR_ANOTHER, (1366, 900)), "panel-coordinator")


def leaders(sight: Sight) -> bytes:
    return picture(sight.run(LATE, 1, TAKEN_FOR_ANOTHER, (1366, 900)), "panel-leader")


def readers(sight: Sight) -> bytes:
    return picture(sight.run(LATE, 1, TAKEN_FOR_ANOTHER), "panel-readers")


def why(sight: Sight) -> bytes:
    run = sight.run(LATE, 2, 0)
    run.click("next-refusal")
    return picture(run, "why")


def beside(sight: Sight) -> bytes:
    both = compare(document_of(LATE, 1), document_of(LATE, 2))
    runs = [both["left"], both["right"]]
    run = RunPage.opened(sight.page(*LAPTOP), sight.place, runs, divergence=both["divergence"])
    run.click("next-violation")
    return picture(run)


def whatif_menu(sight: Sight) -> bytes:
    run = sight.lab(LOST_ACK)
    run.click("first")
    run.page.locator(".picture [data-message]").filter(has_text="Produce NONE @1").first.click()
    expect(run.by("whatif-menu")).to_be_visible()
    return picture(run)


def whatif(sight: Sight) -> bytes:
    run = sight.lab(LOST_ACK)
    run.click("tab-whatif")
    run.by("switch-dedup").uncheck()
    run.sees("outcome", "now breaks duplicate")
    run.click("next-violation")
    return picture(run)


def editor(sight: Sight) -> bytes:
    run = sight.lab(LOST_ACK)
    run.click("tab-editor")
    text = run.by("editor")
    expect(text).not_to_have_value("")
    text.fill(text.input_value().replace('do = "drop"', 'do = "drip"'))
    run.sees("editor-error", "drip")
    text.press("Escape")  # closes the list of completions
    return picture(run)


def searches(sight: Sight) -> bytes:
    run = sight.lab(LATE)
    run.click("tab-search")
    run.by("search-explore").check()
    run.by("search-version").select_option("0")
    run.click("search-start")
    expect(run.by("search-progress")).to_contain_text("done", timeout=120_000)
    expect(run.by("found")).to_contain_text("G1a")
    return picture(run)


def live(sight: Sight) -> bytes:
    """A real broker, while confluent-kafka commits a transaction, aborts one, and leaves one open."""
    with (
        BrokerProcess(sight.place / "data", options=("--follow",)) as broker,
        lab("--bootstrap-server", broker.address) as shown,
    ):
        with Admin(broker.address) as admin:
            admin.create_topic("orders")
        run = RunPage.at(sight.page(*LAPTOP), shown.address)
        shop = Producer(
            {
                "bootstrap.servers": broker.address,
                "transactional.id": "shop",
                "client.id": "shop",
                "log_level": 0,  # the broker ends before it
            }
        )
        shop.init_transactions()
        for value, end in (
            ("apple", shop.commit_transaction),
            ("pear", shop.abort_transaction),
            ("plum", None),
        ):
            shop.begin_transaction()
            shop.produce("orders", value)
            shop.flush()
            if end is not None:
                end()
            run.sees("panel-logs", value)
        return picture(run)


SHOWN: Final[dict[str, Callable[[Sight], bytes]]] = {
    "lab": lab_page,
    "space-time": space_time,
    "logs": logs,
    "readers": readers,
    "coordinator": coordinator,
    "leaders": leaders,
    "why": why,
    "beside": beside,
    "whatif-menu": whatif_menu,
    "whatif": whatif,
    "editor": editor,
    "searches": searches,
    "live": live,
}


# --- small files --------------------------------------------------------------------------------------------


def small(browser: Browser, png: bytes) -> bytes:
    """The same picture with its 256 most frequent colours; each other colour becomes the nearest of them."""
    page = browser.new_page()
    width, height, text = page.evaluate(PIXELS, base64.b64encode(png).decode())
    page.close()
    pixels = memoryview(base64.b64decode(text)).cast("I")
    counts = Counter(pixels)
    kept = [colour for colour, _ in counts.most_common(COLOURS)]
    places = {colour: _nearest(kept, colour) for colour in counts}
    rows = (pixels[at : at + width] for at in range(0, width * height, width))
    return _png(width, height, kept, (bytes(places[pixel] for pixel in row) for row in rows))


def _nearest(kept: list[int], colour: int) -> int:
    red, green, blue, _ = colour.to_bytes(4, sys.byteorder)

    def distance(place: int) -> int:
        r, g, b, _ = kept[place].to_bytes(4, sys.byteorder)
        return (red - r) ** 2 + (green - g) ** 2 + (blue - b) ** 2

    return min(range(len(kept)), key=distance)


def _png(width: int, height: int, palette: list[int], rows: Iterator[bytes]) -> bytes:
    """A PNG file with a palette (RFC 2083)."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    colours = b"".join(colour.to_bytes(4, sys.byteorder)[:3] for colour in palette)
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    packed = zlib.compress(b"".join(b"\0" + row for row in rows), 9)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        chunk(*each) for each in ((b"IHDR", header), (b"PLTE", colours), (b"IDAT", packed), (b"IEND", b""))
    )


@contextmanager
def sights() -> Generator[Sight]:
    """A browser and a lab, in a folder that is removed at the end."""
    with TemporaryDirectory() as folder, sync_playwright() as playwright, lab() as server:
        place = Path(folder)
        browser = launch(playwright, place)
        expect.set_options(timeout=60_000)
        yield Sight(browser, place, server)
        browser.close()


def main(names: list[str]) -> None:
    """Takes these pictures, or all of them, and prints their sizes."""
    PICTURES.mkdir(exist_ok=True)
    with sights() as sight:
        for name in names or SHOWN:
            file = PICTURES / f"{name}.png"
            file.write_bytes(small(sight.browser, SHOWN[name](sight)))
            print(f"{file.relative_to(PICTURES.parents[1])}: {file.stat().st_size:,} bytes", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
