"""A plan follows from its seed, stays within the run, and has enough kills inside a transaction."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost.cli.application import run
from fencepost.cli.errors import WRONG_USAGE
from fencepost.demo.plan import (
    INSIDE,
    Disruption,
    DisruptionPlan,
    TooManyKills,
    draw_plan,
    is_aborted_on_purpose,
)

BROKER_KILLS = {Disruption.KILL_BROKER, Disruption.KILL_BROKER_AT_PREPARE}


def kills_inside(plan: DisruptionPlan) -> int:
    return sum(event.kind is Disruption.KILL_WORKER and event.point in INSIDE for event in plan.events)


@pytest.mark.parametrize(("flights", "kills"), [(336_776, 10), (3_000, 4), (400, 3), (5_000, 40), (100, 0)])
def test_every_seed_strikes_as_promised(flights: int, kills: int) -> None:
    for seed in range(50):
        plan = draw_plan(seed=seed, flights=flights, kills=kills)
        worker_kills, broker_kills = plan.count(Disruption.KILL_WORKER), plan.count(*BROKER_KILLS)
        assert worker_kills + broker_kills == kills
        assert 2 * kills_inside(plan) >= worker_kills
        if kills >= 4:
            assert broker_kills >= 2
            assert plan.count(Disruption.KILL_BROKER_AT_PREPARE) >= 1
        rounds = [event.round for event in plan.events]
        assert rounds == sorted(set(rounds)), "one disruption per round, in order"
        assert all(2 <= number < flights // plan.records_per_transaction for number in rounds)


def test_a_seed_is_a_plan() -> None:
    plans = [draw_plan(seed=seed, flights=10_000, kills=10) for seed in (1, 1, 2)]
    assert plans[0] == plans[1]
    assert plans[0] != plans[2]


def test_a_run_too_short_for_its_kills_is_refused() -> None:
    with pytest.raises(TooManyKills, match="need at least"):
        draw_plan(seed=1, flights=100, kills=100)


def test_some_transactions_are_aborted_on_purpose_and_only_once() -> None:
    first = [is_aborted_on_purpose(7, (offset, 3), share=0.04, attempt=0) for offset in range(2_000)]
    assert 20 < sum(first) < 200
    assert not any(is_aborted_on_purpose(7, (offset, 3), share=1, attempt=1) for offset in range(2_000))


@pytest.mark.parametrize(("place", "why"), [("file", "File exists"), ("file/data", "Not a directory")])
def test_a_place_that_cannot_hold_the_data_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str, why: str
) -> None:
    (tmp_path / "file").touch()
    assert run(["demo", "--directory", str(tmp_path / place)]) == WRONG_USAGE
    assert capsys.readouterr().err == (
        f"fencepost: cannot keep the data in {tmp_path / place}: {why}\n"
        "  give a new or empty directory with --directory\n"
    )
