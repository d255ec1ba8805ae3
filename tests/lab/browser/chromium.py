"""The browser that tests drive: Debian's chromium, without a screen, without the network, with one font.

Rule: what a page looks like depends on the page and on the browser, never on the fonts, the language, the
time zone or the network of the machine.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final, NoReturn

import pytest
from playwright.sync_api import Browser, Playwright

REQUIRED: Final = "FENCEPOST_BROWSER"
"""The variable of the environment by which CI says that a missing browser is a failure: `required`."""
NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FONTS: Final = Path("/usr/share/fonts/truetype/dejavu")
# Only loopback has an address. Chromium's own requests (updates, experiments) end there as well.
OFFLINE: Final = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"
SAME_PIXELS: Final = (
    "--disable-lcd-text",
    "--font-render-hinting=none",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
)
ONE_FONT: Final = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>{fonts}</dir>
  <cachedir>{cache}</cachedir>
  <selectfont>
    <acceptfont><glob>*/DejaVuSans.ttf</glob><glob>*/DejaVuSans-*</glob><glob>*/DejaVuSansMono*</glob></acceptfont>
    <rejectfont><glob>*</glob></rejectfont>
  </selectfont>
  <match target="pattern">
    <test name="family" compare="eq"><string>monospace</string></test>
    <edit name="family" mode="prepend" binding="strong"><string>DejaVu Sans Mono</string></edit>
  </match>
  <match target="pattern">
    <edit name="family" mode="append" binding="strong"><string>DejaVu Sans</string></edit>
  </match>
</fontconfig>
"""


def path_of_chromium() -> str:
    """Where chromium is. Without one the test is skipped or, where it is required, fails."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    return path or missing("there is no chromium (Debian: apt-get install chromium)")


def missing(because: str) -> NoReturn:
    """Ends a test that cannot run on this machine."""
    if os.environ.get(REQUIRED) == "required":
        pytest.fail(f"{because}, and {REQUIRED}=required", pytrace=False)
    pytest.skip(because)


def launch(playwright: Playwright, place: Path) -> Browser:
    """A browser whose files are in `place`. It ends with this process, however that ends."""
    fonts = place / "fonts.conf"
    fonts.write_text(ONE_FONT.format(fonts=FONTS, cache=place / "fonts"))
    environment = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "LANG")}
    return playwright.chromium.launch(
        executable_path=path_of_chromium(),
        args=[OFFLINE, *SAME_PIXELS],
        env={**environment, "FONTCONFIG_FILE": str(fonts), "LANG": "C.UTF-8"},
    )
