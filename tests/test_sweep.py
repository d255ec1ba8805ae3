"""The sweep's own work: it adds up, and a fault in any part fails it. The parts have tests of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator

import attrs
import pytest

from tests import sweep
from tests.broker import test_every_byte
from tests.groups import outages


def test_a_violation_of_one_seed_fails_the_sweep(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweep.Sweep, "_command", staticmethod(one_bad_seed))
    assert sweep.sweep(seed=3, seeds=1_200, only=("power",)) == 1
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["ok"] is False
    assert said["power"]["seeds"] == 1_200
    assert said["power"]["violations"] == 1


def one_bad_seed(*arguments: str) -> dict[str, object]:
    """What `fencepost fuzz` says, when seed 4,100 breaks a rule."""
    options = dict(zip(arguments[1::2], arguments[2::2], strict=False))
    first, count = int(options["--first-seed"]), int(options["--seeds"])
    found = [{"seed": 4_100, "rule": "lost-write"}] * (first <= 4_100 < first + count)
    reached = {"fault: power loss": count - 1}
    return {
        "seeds": count, "violations": len(found), "transactions": 9, "reached": reached, "found": found
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["wrong", "silent"])
def test_a_wrong_byte_and_a_silent_loss_fail_the_sweep(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    def cases(*_: object) -> Iterator[tuple[str, str]]:
        yield from (("meta.json 1", "refused"), ("orders-0 2", kind))

    monkeypatch.setattr(test_every_byte, "flips", cases)
    monkeypatch.setattr(test_every_byte, "removals", cases)
    done = sweep.Sweep(seed=1)
    done.bytes()
    assert len(done.faults) == len(sweep.BITS) + 1
    assert done.facts["bits flipped"]["refused"] == len(sweep.BITS)


@pytest.mark.parametrize("lacks", ["lost", "twice", "wrong"])
def test_a_record_that_a_group_does_not_copy_once_fails_the_sweep(
    monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    good = outages.Outcome(outages={"faults": 9}, numbers=3_600, lost=0, twice=0, wrong=0)
    done = sweep.Sweep(seed=1)
    for outcome in (good, attrs.evolve(good, **{lacks: 1})):

        def found(*_: object, outcome: outages.Outcome = outcome) -> outages.Outcome:
            return outcome

        monkeypatch.setattr(outages, "run", found)
        done.groups(9)
    assert len(done.faults) == 1


def test_power_is_lost_in_most_seeds_of_its_workload(capsys: pytest.CaptureFixture[str]) -> None:
    done = sweep.Sweep(seed=0)
    done.power(8)
    assert done.faults == []
    assert done.facts["power"]["seeds in which power was lost"] >= 5
