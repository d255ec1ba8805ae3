"""The pipeline's arithmetic against the truth, which is computed apart from it."""

from __future__ import annotations

import json
from collections.abc import Mapping

from fencepost.demo.dataset import flight_record, flights_file, rows
from fencepost.demo.verify import expected_output
from fencepost.demo.worker import Totals, transform

FLIGHTS = 5_000


def run_pipeline(some: list[Mapping[str, str]], portion: int) -> tuple[dict[int, int | None], Totals]:
    """All delays and totals, portion by portion as the worker does it."""
    values = [flight_record(number, row)[1] for number, row in enumerate(some, start=1)]
    delays: dict[int, int | None] = {}
    totals: Totals = {}
    for start in range(0, len(values), portion):
        output = transform(values[start : start + portion], totals)
        totals.update(output.totals)
        for value in output.values:
            record = json.loads(value)
            delays[record["id"]] = record["delay"]
    return delays, totals


def test_the_pipeline_computes_what_the_csv_says() -> None:
    some = list(rows(flights_file(), limit=FLIGHTS))
    truth = expected_output(some)
    assert sum(total["cancelled"] for total in truth.totals.values()) > 10
    assert sum(total["diverted"] for total in truth.totals.values()) > 10
    assert run_pipeline(list(some), 37) == (truth.delays, truth.totals)


def test_a_flight_counted_twice_shows_in_the_totals() -> None:
    some = list(rows(flights_file(), limit=100))
    truth = expected_output(some)
    _, totals = run_pipeline([*some, some[-1]], 10)
    assert totals != truth.totals


def test_totals_of_an_aborted_transaction_leave_no_trace() -> None:
    values = [flight_record(number, row)[1] for number, row in enumerate(rows(flights_file(), limit=50), 1)]
    totals: Totals = {}
    totals.update(transform(values[:25], totals).totals)
    before = json.dumps(totals)
    transform(values[25:], totals)
    assert json.dumps(totals) == before
