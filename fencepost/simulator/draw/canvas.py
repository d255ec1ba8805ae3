"""The marks a picture is made of: SVG elements, glyphs drawn as paths, and the style sheet.

Rule: a meaning never rests on colour alone: each kind of line has its own dash or weight, each kind of event
its own glyph, so a grey print says the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import hypot
from unicodedata import category, east_asian_width
from xml.sax.saxutils import escape, quoteattr

from rich.cells import cell_len

TYPE_SIZE = 11  # px
CHARACTER_WIDTH = 6.7  # of this monospaced type, in the widest of its usual fonts
# Okabe and Ito's, its yellow darker
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b58900", "#56b4e9")

# What XML 1.0 forbids even when escaped: a record's bytes may hold it.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

# Without geometricPrecision some browsers round the width of each letter up to a whole pixel.
STYLE = """
text{text-rendering:geometricPrecision}
text{font:11px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#1c2128}
.halo{paint-order:stroke;stroke:#fff;stroke-width:4px;stroke-linejoin:round}
.title{font-size:14px;font-weight:bold}.name{font-size:12px;font-weight:bold}
.small{font-size:10px;fill:#57606a}.loud{font-weight:bold}.lesson{fill:#57606a}
.broken{fill:#b3261e;font-weight:bold}.broken-band{fill:#ffd3cc;opacity:.8}
.paper{fill:#fff}.pill{fill:#fff;stroke:#57606a}.badge{fill:#b3261e;stroke:none}
.badge-text{fill:#fff;font-weight:bold}.fault-band{fill:#ffe9b8;opacity:.55}.late-band{fill:#ffd3cc;opacity:.6}
.silence{fill:#8c959f;opacity:.25}.lifeline{stroke:#8c959f;stroke-width:1.5}
.silent{stroke:#8c959f;stroke-width:1.5;stroke-dasharray:1 5}
.guide{stroke:#8c959f;stroke-width:.8;stroke-dasharray:1 3;fill:none}.rule{stroke:#d0d7de;stroke-width:1}
.cut{stroke:#57606a;stroke-width:1.4}
.message{stroke:#31597f;stroke-width:1.6;fill:none}.reply{stroke:#31597f;stroke-width:1;fill:none}
.late{stroke:#b3261e;stroke-width:3.2;fill:none}.again{stroke:#7d3c98;stroke-width:2.4;fill:none}
.lost{stroke:#b3261e;stroke-width:1.6;stroke-dasharray:6 4;fill:none}
.under-way{stroke:#8c959f;stroke-width:1.4;stroke-dasharray:2 4;fill:none}
.head-message,.head-reply{fill:#31597f}.head-late{fill:#b3261e}.head-again{fill:#7d3c98}
.dot{fill:#1c2128}.bolt{fill:#f2b705;stroke:#1c2128;stroke-width:1}
.cross{stroke:#b3261e;stroke-width:2.4;fill:none}
.commit-marker{fill:#1c2128;stroke:#1c2128}.abort-marker{fill:#fff;stroke:#b3261e;stroke-width:2}
.commit-letter{fill:#fff;font-weight:bold}.abort-letter{fill:#b3261e;font-weight:bold}
.undecided{stroke-dasharray:3 2;fill-opacity:.25}.outside{fill-opacity:.25}
.held-back{fill:#f2b705;opacity:.3}.lso{stroke:#007a4d;stroke-width:3;fill:none}
.hw{stroke:#1c2128;stroke-width:1.2;stroke-dasharray:4 2;fill:none}
.empty{fill:none;stroke:#8c959f}.ongoing{fill:#56b4e9;stroke:#31597f}
.prepare{fill:#f2b705;stroke:#1c2128;stroke-dasharray:3 2}
.complete-commit{fill:#007a4d;fill-opacity:.3;stroke:#007a4d}
.complete-abort{fill:none;stroke:#b3261e;stroke-width:2}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.halo{stroke:#0d1117}.small{fill:#9198a1}
.paper,.pill,.abort-marker{fill:#0d1117}.fault-band{fill:#4d3800}.late-band{fill:#5a1a14}
.message,.reply{stroke:#79b8ff}.head-message,.head-reply{fill:#79b8ff}.late,.lost,.cross{stroke:#ff7b72}
.head-late{fill:#ff7b72}.again{stroke:#d2a8ff}.head-again{fill:#d2a8ff}.dot{fill:#e6edf3}.rule{stroke:#30363d}
.commit-marker{fill:#e6edf3;stroke:#e6edf3}.commit-letter{fill:#0d1117}.hw{stroke:#e6edf3}.lso{stroke:#3fb950}
.abort-letter,.broken{fill:#ff7b72}.broken-band{fill:#5a1a14}.lesson{fill:#9198a1}.badge-text{fill:#fff}}
""".strip()


def tag(name: str, /, *inside: str, **attributes: str | float) -> str:
    """One element; `stroke_width` and `class_` become `stroke-width` and `class`."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}={quoteattr(_written(value))}"
        for key, value in attributes.items()
    )
    return f"<{name}{written}>{''.join(inside)}</{name}>" if inside else f"<{name}{written}/>"


def _written(value: str | float) -> str:
    # One decimal: below a pixel, and far above where machines could round differently.
    return value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")


def printable(text: str) -> str:
    """The text, with a replacement character for each one that XML forbids."""
    return _FORBIDDEN.sub("\ufffd", text)


def words(text: str) -> str:
    """Text between tags."""
    return escape(printable(text))


def width_of(text: str) -> float:
    """The width of a label in pixels, a little too large rather than too small. A letter of Chinese fills a
    square; an emoji, which is a symbol, is a little wider, as two other letters are.
    """
    squares = sum(east_asian_width(sign) in "FW" and category(sign) != "So" for sign in text)
    return (cell_len(text) - 2 * squares) * CHARACTER_WIDTH + squares * TYPE_SIZE


def fitted(text: str, room: float) -> str:
    """As much of a text as fits into so many pixels, with an ellipsis for the rest."""
    kept = text[: int(2 * room / TYPE_SIZE)]  # nothing with a width is narrower than half a square
    if kept == text and width_of(text) <= room:
        return text
    while kept and width_of(f"{kept}…") > room:
        kept = kept[:-1]
    return f"{kept}…"


def label(x: float, y: float, text: str, *, kind: str = "halo", anchor: str = "start") -> str:
    """Text whose baseline is at `y`."""
    return tag("text", words(text), x=x, y=y, class_=kind, text_anchor=anchor)


def line(x1: float, y1: float, x2: float, y2: float, *, kind: str) -> str:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)


def box(x: float, y: float, width: float, height: float, *, kind: str, **more: str | float) -> str:
    """A rectangle from its upper left corner."""
    return tag("rect", x=x, y=y, width=width, height=height, class_=kind, **more)


def path(points: Iterable[tuple[float, float]], *, kind: str, is_closed: bool = False) -> str:
    """Straight lines from point to point."""
    steps = "L".join(f"{_written(x)} {_written(y)}" for x, y in points)
    return tag("path", d=f"M{steps}{'Z' if is_closed else ''}", class_=kind)


def head(x: float, y: float, *, from_x: float, from_y: float, kind: str) -> str:
    """An arrowhead whose tip is at (x, y)."""
    length = hypot(x - from_x, y - from_y) or 1.0
    along_x, along_y = (x - from_x) / length, (y - from_y) / length
    size, half = (11, 5.5) if kind == "head-late" else (8, 4) if kind != "head-reply" else (7, 3)
    back_x, back_y = x - size * along_x, y - size * along_y
    corners = [
        (x, y),
        (back_x - half * along_y, back_y + half * along_x),
        (back_x + half * along_y, back_y - half * along_x),
    ]
    return path(corners, kind=kind, is_closed=True)


def cross(x: float, y: float) -> str:
    """✗, drawn, so that no font is needed."""
    left, right, top, low = (_written(value) for value in (x - 5, x + 5, y - 5, y + 5))
    return tag("path", d=f"M{left} {top}L{right} {low}M{right} {top}L{left} {low}", class_="cross")


def bolt(x: float, y: float) -> str:
    """⚡, drawn around its centre."""
    outline = ((2, -9), (-5, 1), (-1, 1), (-2, 9), (5, -2), (1, -2))
    return path([(x + right, y + down) for right, down in outline], kind="bolt", is_closed=True)


def pill(x: float, y: float, text: str, *, text_kind: str = "") -> str:
    """A framed label around the centre (x, y)."""
    width = width_of(text) + 8
    return box(x - width / 2, y - 8, width, 15, kind="pill", rx=4) + label(
        x, y + 3.5, text, kind=text_kind, anchor="middle"
    )
