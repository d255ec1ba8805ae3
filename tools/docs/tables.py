"""State tables as Markdown and Mermaid, and the gaps in them.

Rule: a machine is a table {state: {input: next state, or the error that refuses it}}. Docs draw the table
that runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from itertools import chain
from typing import Any, cast

from fencepost.protocol.errors import ErrorCode

Table = Mapping[Any, Mapping[Any, Enum]]
"""{state: {input: next state or ErrorCode}}; states and inputs are enums, each of one class or several."""


def title(member: Enum) -> str:
    """The text for a state or input: its title, else its value if that is a string, else its name."""
    named = getattr(member, "title", None)
    if isinstance(named, str):
        return named
    return member.value if isinstance(member.value, str) else member.name


def inputs_of(table: Table) -> list[Enum]:
    """The inputs that occur, in the order of their classes."""
    found = {happened for row in table.values() for happened in row}
    # In the order of their classes, not of the rows: all tables of a machine have the same columns.
    kinds = cast("list[type[Enum]]", list(dict.fromkeys(map(type, chain(*table.values())))))
    return [member for kind in kinds for member in kind if member in found]


def gaps(table: Table) -> list[tuple[Enum, Enum]]:
    """The pairs of state and input without a cell: each cannot happen, or is a mistake."""
    inputs = inputs_of(table)
    return [(state, happened) for state in table for happened in inputs if happened not in table[state]]


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table of any rows."""
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def markdown(table: Table, *, corner: str = "state") -> str:
    """One line per state, one column per input; an error in code, the same state as `stays`, no cell as a
    dash.
    """
    inputs = inputs_of(table)
    rows = [[title(state), *(_cell(table, state, happened) for happened in inputs)] for state in table]
    return markdown_table([corner, *map(title, inputs)], rows)


def markdown_turned(table: Table) -> str:
    """The same table with one line per input, for a table that is wider than a page."""
    states = list(table)
    rows = [
        [title(happened), *(_cell(table, state, happened) for state in states)]
        for happened in inputs_of(table)
    ]
    return markdown_table(["what happens", *map(title, states)], rows)


def _cell(table: Table, state: Enum, happened: Enum) -> str:
    target = table[state].get(happened)
    if target is None:
        return "-"
    if isinstance(target, ErrorCode):
        return f"`{target.name}`"
    return "stays" if target is state else f"**{title(target)}**"


def mermaid(table: Table, *, start: Enum) -> str:
    """A Mermaid state diagram of the moves, without refusals and cells that stay."""
    # One arrow with several labels reads better than several arrows between the same states.
    arrows: dict[tuple[Enum, Enum], list[str]] = {}
    for state, row in table.items():
        for happened, target in row.items():
            if not isinstance(target, ErrorCode) and target is not state:
                arrows.setdefault((state, target), []).append(title(happened))
    lines = ["stateDiagram-v2", f"    [*] --> {start.name}"]
    lines += [
        f"    {source.name} --> {target.name}: {', '.join(labels)}"
        for (source, target), labels in arrows.items()
    ]
    return "\n".join(lines)
