"""The docs show the live tables: a page that lags behind fails, and so does a table with an unexplained
gap.
"""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path

import pytest

from fencepost.broker.transactions.tables import (
    END_VERSION_0,
    END_VERSION_2,
    MOVES,
    TRANSACTION_VERSIONS,
    CoordinatorInput,
)
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import TransactionState
from tools.docs import pages as docs
from tools.docs import tables
from tools.docs.fidelity import DIFFERENCES, VALUES

SLIDE_LINES_MAX = 24  # of text at the size of a slide

PAGES = sorted(docs.DOCS.glob("*.md"))


class Light(Enum):
    RED = 0
    GREEN = 1


class Push(Enum):
    GO = "go"
    STOP = "stop"


CROSSING: dict[Enum, dict[Enum, Enum]] = {
    Light.RED: {Push.GO: Light.GREEN, Push.STOP: Light.RED},
    Light.GREEN: {Push.STOP: Light.RED, Push.GO: ErrorCode.INVALID_REQUEST},
}


@pytest.mark.parametrize("path", PAGES, ids=[path.name for path in PAGES])
def test_a_page_shows_the_live_tables(path: Path) -> None:
    assert path.read_text() == docs.refreshed(path.read_text()), "run `make docs`"


def test_a_slide_fits_one_screen() -> None:
    """A title, at most one table or diagram, and a few lines of what to see."""
    settings, *slides = (docs.DOCS / "slides.md").read_text().split("\n---\n")
    assert settings.startswith("---\nmarp: true\n"), "what Marp needs to show the page as slides"
    for slide in slides:
        lines = [line for line in slide.strip().splitlines() if line]
        assert [line for line in lines if line.startswith("#")] == lines[:1], "one title"
        assert slide.count("<!-- generated: ") <= 1, lines[0]
        assert len(lines) <= SLIDE_LINES_MAX, lines[0]
        assert sum(line.startswith("* ") for line in lines) <= 3, lines[0]


def test_every_generation_is_described_and_one_value_of_each_setting_is_the_default() -> None:
    described = {row.value for row in VALUES if row.setting == "transaction_version"}
    assert described == {str(version) for version in TRANSACTION_VERSIONS}
    defaults = [row.setting for row in VALUES if row.is_default]
    assert defaults == list(dict.fromkeys(row.setting for row in VALUES))


def test_a_difference_is_told_once() -> None:
    assert len({row.what for row in DIFFERENCES}) == len(DIFFERENCES)


def test_the_purpose_of_a_request_is_not_cut_off() -> None:
    _, _, *rows = docs.SECTIONS["apis"]().strip().splitlines()
    assert [row for row in rows if not row.endswith(". |")] == []


def test_every_generated_section_is_shown_somewhere() -> None:
    shown = "".join(path.read_text() for path in PAGES)
    assert [name for name in docs.SECTIONS if f"<!-- generated: {name} -->" not in shown] == []


def test_a_page_that_lags_behind_is_noticed() -> None:
    page = "<!-- generated: end-table -->\nold\n<!-- end -->\n"
    assert docs.refreshed(page) != page
    with pytest.raises(KeyError):
        docs.refreshed("<!-- generated: nothing -->\n<!-- end -->\n")


def test_a_table_as_markdown() -> None:
    assert tables.markdown(CROSSING).splitlines() == [
        "| state | go | stop |",
        "| --- | --- | --- |",
        "| RED | **GREEN** | stays |",
        "| GREEN | `INVALID_REQUEST` | **RED** |",
    ]


def test_a_table_as_a_diagram() -> None:
    assert tables.mermaid(CROSSING, start=Light.RED).splitlines() == [
        "stateDiagram-v2",
        "    [*] --> RED",
        "    RED --> GREEN: go",
        "    GREEN --> RED: stop",
    ]


def test_gaps_are_found() -> None:
    assert tables.gaps(CROSSING) == []
    assert tables.gaps({**CROSSING, Light.GREEN: {Push.STOP: Light.RED}}) == [(Light.GREEN, Push.GO)]


def test_the_coordinator_answers_every_end() -> None:
    for table in (END_VERSION_0, END_VERSION_2):
        assert list(table) == list(TransactionState)
        assert tables.gaps(table) == []


def test_the_coordinator_is_never_asked_the_impossible() -> None:
    """Only an open transaction has a deadline, and only a decided one is owed markers."""
    possible = {
        CoordinatorInput.TIMEOUT: {"ONGOING"},
        CoordinatorInput.MARKERS_WRITTEN: {"PREPARE_COMMIT", "PREPARE_ABORT"},
    }
    assert set(tables.gaps(MOVES)) == {
        (state, happened)
        for happened, names in possible.items()
        for state in TransactionState
        if state.name not in names
    }


LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
ROOT = docs.DOCS.parent
LINKING = [*PAGES, *(ROOT / name for name in ("README.md", "scenarios/README.md", "examples/README.md"))]


def anchors(page: Path) -> set[str]:
    """The headings of a page, as GitHub links to them."""
    titles = re.findall(r"^#+ (.*)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(path: Path, text: str) -> list[str]:
    """The links that lead to no file, or to no heading of a page."""
    found = [(name, path.parent / name if name else path, anchor) for name, anchor in LINK.findall(text)]
    return [
        f"{name}#{anchor}"
        for name, target, anchor in found
        if not target.exists() or (anchor and anchor not in anchors(target))
    ]


@pytest.mark.parametrize("path", LINKING, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_leads_to_a_heading_of_a_page(path: Path) -> None:
    assert broken_links(path, path.read_text()) == []


@pytest.mark.parametrize("link", ["trust.md#no-such-heading", "#no-such-heading", "no-such-page.md#"])
def test_a_link_that_leads_nowhere_is_noticed(link: str) -> None:
    text = f"See [there]({link.removesuffix('#')}) and [here](trust.md#limits)."
    assert broken_links(docs.DOCS / "trust.md", text) == [link]
