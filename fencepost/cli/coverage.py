"""What a search came through of the coordinator's tables, in words and as JSON: state x input x fault.

Rule: what was missed is always said; the whole table only to whoever asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from fencepost.cli.printing import Json, print_table

if TYPE_CHECKING:
    from fencepost.simulator.judges.coverage import Coverage, Row

TOLD_MAX: Final = 4  # of what was missed, on one line


def tell_coverage(coverage: Coverage, transaction_version: int, faults: Sequence[str], *, all_: bool) -> None:
    """One line, or the table before it. `faults` are those that struck in this search."""
    rows = coverage.rows(transaction_version)
    if all_:
        print_table(
            ("state", "input", "times", "faults in the same run"),
            [(row.state, row.given, row.count, _notes(row, faults)) for row in rows],
        )
    reachable = [row for row in rows if not row.unreachable]
    missed = [f"{row.state} x {row.given}" for row in reachable if not row.count]
    reached = f"{len(reachable) - len(missed)} of the coordinator's {len(reachable)} cells"
    more = f" and {len(missed) - TOLD_MAX} more (--coverage)" if len(missed) > TOLD_MAX else ""
    then = f"not reached: {', '.join(missed[:TOLD_MAX])}{more}" if missed else "none was missed"
    print(f"{reached} (state x input): {then}")


def _notes(row: Row, faults: Sequence[str]) -> str:
    """Which faults met the cell, or which did not, whichever is shorter."""
    if row.unreachable:
        return f"cannot be: {row.unreachable}"
    without = [fault for fault in faults if fault not in row.faults]
    if not row.faults:
        return "none"
    if not without:
        return "all"
    if len(without) < len(row.faults):
        return f"all but {', '.join(without)}"
    return ", ".join(row.faults)


def coverage_as_json(coverage: Coverage, transaction_version: int) -> dict[str, Json]:
    """All of it, with counts by fault."""
    rows = coverage.rows(transaction_version)
    return {
        "reachable": sum(1 for row in rows if not row.unreachable),
        "missed": [[row.state, row.given] for row in rows if not row.count and not row.unreachable],
        "unreachable": [[row.state, row.given, row.unreachable] for row in rows if row.unreachable],
        "cells": [
            {"state": row.state, "input": row.given, "times": row.count, "faults": row.faults}
            for row in rows
            if row.count
        ],
    }
