"""The table of attacks, and the same as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from tests.attack.attacks import Row


def tell(row: Row) -> None:
    """Progress: one line on stderr."""
    print(f"{row.seconds:6.1f} s  {row.name}: {row.verdict}", *row.faults, sep="\n  ", file=sys.stderr)


def show(rows: Sequence[Row], *, seed: int, quick: bool) -> None:
    """Prints the table, the faults in words, and the JSON object."""
    console = Console(width=None if sys.stdout.isatty() else 170, highlight=False)
    console.print(table_of(rows))
    for row in rows:
        for fault in row.faults:
            console.print(f"{row.name}: {fault}", markup=False)
    print(json.dumps(summary(rows, seed=seed, quick=quick)))


def table_of(rows: Sequence[Row]) -> Table:
    """A row per attack."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("attack", "figures"):
        table.add_column(title)
    for title in ("transactions", "p50 ms", "p99 ms", "max ms", "MB before", "peak", "bound", "s"):
        table.add_column(title, justify="right")
    table.add_column("verdict")
    for row in rows:
        figures = ", ".join(f"{name} {value:,}" for name, value in row.figures.items())
        late = row.latency
        table.add_row(
            row.name,
            figures,
            f"{row.transactions:,}",
            f"{late.p50:,.0f}",
            f"{late.p99:,.0f}",
            f"{late.max:,.0f}",
            f"{row.memory_before_mb:,.0f}",
            f"{row.memory_peak_mb:,.0f}",
            f"{row.memory_bound_mb:,.0f}",
            f"{row.seconds:,.1f}",
            row.verdict,
            style="red" if row.faults else None,
        )
    return table


def summary(rows: Sequence[Row], *, seed: int, quick: bool) -> dict[str, Any]:
    """The result for programs."""
    return {
        "ok": not any(row.faults for row in rows),
        "seed": seed,
        "quick": quick,
        "attacks": len(rows),
        "transactions": sum(row.transactions for row in rows),
        "p99_ms_max": max((row.latency.p99 for row in rows), default=0.0),
        "rows": [row.to_json() for row in rows],
    }
