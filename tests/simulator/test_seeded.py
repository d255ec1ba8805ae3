"""Worlds that a search found, as scenarios: what may be expected of them, and how they read."""

from __future__ import annotations

from fencepost.simulator.choices import Choices
from fencepost.simulator.plan import draw
from fencepost.simulator.scenarios.model import Expectation, Scenario, SeededRun
from fencepost.simulator.scenarios.reading import scenario_of
from fencepost.simulator.scenarios.runner import run
from fencepost.simulator.scenarios.seeded import Commentary, seeded_text

SEED = 3


def found(expect: Expectation) -> Scenario:
    """A seed's world with the choices of another one."""
    return Scenario(
        name="found",
        lesson="what it teaches",
        expect=expect,
        seeded=SeededRun(plan=draw(Choices(SEED))),
        choices=tuple(draw_many(SEED + 1)),
    )


def draw_many(seed: int) -> list[int]:
    choices = Choices(seed)
    return [choices.below(40) for _ in range(200)]


def problems(expect: Expectation) -> tuple[str, ...]:
    (report,) = run(found(expect))
    return report.problems


def test_what_is_expected_to_hold_was_put_to_the_test() -> None:
    assert problems(Expectation(holds=("I3 sequence once", "liveness", "unseen"))) == ()
    assert problems(Expectation(holds=("precommitted-read",))) == (
        "never puts precommitted-read to the test",
    )


def test_what_is_expected_to_break_and_keeps_is_told() -> None:
    assert problems(Expectation(violates=("G1a",))) == ("was expected to break G1a, and keeps it",)


def test_what_is_written_is_read_as_the_same() -> None:
    scenario = found(Expectation(holds=("G1a", "liveness")))
    text = seeded_text(scenario, Commentary(found="seed 3"))
    assert 'holds = ["G1a", "liveness"]' in text
    assert scenario_of(text, "found.toml") == scenario
