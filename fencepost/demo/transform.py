"""What the pipeline computes: a flight out of a row, a delay out of a flight, running totals per carrier.

Rule: pure functions over JSON; the worker around them is killed at will.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

FLIGHTS = "flights"
DELAYS = "delays"
TOTALS = "totals"

Totals = dict[str, dict[str, int]]


class Output(NamedTuple):
    """What one transaction writes: columns for `delays`, and the totals that it changed, by carrier."""

    keys: list[bytes]
    values: list[bytes]
    totals: Totals


def flight_record(number: int, row: Mapping[str, str]) -> tuple[bytes, bytes]:
    """(key, value) for the topic `flights`: the carrier, and the flight as JSON with its row number."""
    flight = {
        "id": number,
        "carrier": row["carrier"],
        "flight": int(row["flight"]),
        "from": row["origin"],
        "to": row["dest"],
        "planned": row["time_hour"],
        "departed_late": minutes(row["dep_delay"]),
        "arrived_late": minutes(row["arr_delay"]),
    }
    return row["carrier"].encode(), json.dumps(flight, separators=(",", ":")).encode()


def minutes(text: str) -> int | None:
    """A delay in minutes; None for "NA"."""
    return None if text == "NA" else int(text)


def transform(values: Iterable[bytes], totals: Mapping[str, Mapping[str, int]]) -> Output:
    """One record per flight, keyed by destination, and new totals for the carriers seen."""
    keys: list[bytes] = []
    records: list[bytes] = []
    changed: Totals = {}
    for value in values:
        flight = json.loads(value)
        carrier = flight["carrier"]
        if carrier not in changed:
            changed[carrier] = dict(
                totals.get(carrier) or {"flights": 0, "cancelled": 0, "diverted": 0, "minutes": 0}
            )
        delay, status = judge(flight["departed_late"], flight["arrived_late"])
        total = changed[carrier]
        total["flights"] += 1
        if delay is None:
            total[status] += 1
        else:
            total["minutes"] += delay
        keys.append(flight["to"].encode())
        record = {
            "id": flight["id"],
            "carrier": carrier,
            "to": flight["to"],
            "status": status,
            "delay": delay,
        }
        records.append(json.dumps(record, separators=(",", ":")).encode())
    return Output(keys, records, changed)


def judge(departed_late: int | None, arrived_late: int | None) -> tuple[int | None, str]:
    """(delay on arrival or None, what became of it): no departure means cancelled, no arrival diverted."""
    if departed_late is None:
        return None, "cancelled"
    if arrived_late is None:
        return None, "diverted"
    return arrived_late, "late" if arrived_late > 0 else "on time"
