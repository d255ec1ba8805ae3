"""What must come out, computed from the CSV alone, without the pipeline's code.

Rule: shares nothing with `transform.py`: a mistake there must not be able to hide here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import attrs


@attrs.frozen
class Truth:
    """Per flight (1 is the first row) its delay in minutes, None if it never arrived; sums per carrier."""

    delays: dict[int, int | None]
    totals: dict[str, dict[str, int]] = attrs.field(kw_only=True)


def compute_truth(rows: Iterable[Mapping[str, str]]) -> Truth:
    """Reads the CSV's rows in order."""
    delays: dict[int, int | None] = {}
    totals: defaultdict[str, dict[str, int]] = defaultdict(
        lambda: {"flights": 0, "cancelled": 0, "diverted": 0, "minutes": 0}
    )
    for number, row in enumerate(rows, start=1):
        total = totals[row["carrier"]]
        total["flights"] += 1
        delays[number] = None
        if row["dep_time"] == "NA":
            total["cancelled"] += 1
        elif row["arr_delay"] == "NA":
            total["diverted"] += 1
        else:
            delays[number] = int(row["arr_delay"])
            total["minutes"] += int(row["arr_delay"])
    return Truth(delays, totals=dict(totals))
