"""How results look: tables on a terminal, and the same as Markdown in a marked section of a page.

Rule: what is between the marks belongs to the program, everything else on the page to people.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.results import Spread


@attrs.frozen
class Grid:
    """A table as words."""

    title: str
    columns: Sequence[str] = attrs.field(kw_only=True)
    rows: Sequence[Sequence[str]] = attrs.field(kw_only=True)


def spread(figures: Spread, pattern: str) -> str:
    """The median, and the range behind it when there is one."""
    middle = pattern.format(figures.middle)
    if figures.least == figures.most:
        return middle
    return f"{middle} ({pattern.format(figures.least)} to {pattern.format(figures.most)})"


def goal(words: str | None, *, is_reached: bool | None) -> str:
    """A goal and whether it was reached, as far as there is one."""
    if words is None:
        return "-"
    return words + {None: "", True: " reached", False: " missed"}[is_reached]


def show(grids: Sequence[Grid], conditions: str, console: Console) -> None:
    """The tables on a terminal, and where and how they were measured."""
    for grid in grids:
        table = Table(*grid.columns, title=grid.title, title_justify="left", box=box.SIMPLE_HEAD)
        for row in grid.rows:
            table.add_row(*row)
        console.print(table)
    console.print(conditions)


def markdown(grids: Sequence[Grid], conditions: str) -> str:
    """The same as Markdown."""
    return "\n\n".join([conditions + ".", *(_markdown_table(grid) for grid in grids)])


def _markdown_table(grid: Grid) -> str:
    lines = [grid.columns, ["---"] * len(grid.columns), *grid.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_section(page: Path, name: str, text: str) -> None:
    """Replaces what is between the marks of that name; ValueError when the page has none."""
    before_mark, after_mark = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, begin, rest = page.read_text(encoding="utf-8").partition(before_mark)
    _, end, after = rest.partition(after_mark)
    if not begin or not end:
        raise ValueError(f"{page} has no section between {before_mark} and {after_mark}")
    page.write_text(f"{before}{before_mark}\n{text}\n{after_mark}{after}", encoding="utf-8")
