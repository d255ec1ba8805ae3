"""The attack in its short form, and faults planted beside it: the canary can fail."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.attack.attacks import Attack, Row
from tests.attack.ledger import Fate, Ledger, value_of
from tests.attack.playing import Run, play
from tests.attack.run import ATTACKS
from tests.attack.scene import BrokerOptions, Scene

PATIENCE_S = 300.0  # a bound on a hang


def test_the_short_form_of_every_attack() -> None:
    """Figures are told and not judged: a test asserts no time."""
    command = [sys.executable, "-m", "tests.attack", "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert {row["name"] for row in told["rows"]} == {attack.name for attack in ATTACKS}
    assert all(row["transactions"] > 0 for row in told["rows"])


# --- planted faults -----------------------------------------------------------------------------------------


async def waits(scene: Scene) -> None:
    """No attack at all."""
    await scene.canary.meanwhile(8)


async def reads_uncommitted(scene: Scene) -> None:
    """The canary's reader takes what is undecided, as from a broker that shows it to everybody."""
    await scene.canary.stop()
    scene.canary.options["isolation_level"] = "read_uncommitted"
    await scene.canary.start()
    await scene.canary.meanwhile(8)


async def played(attack: Attack, directory: Path) -> Row:
    (row,) = await play([attack], Run(seed=1, is_quick=True, judges_time=False, directory=directory))
    return row


@pytest.mark.trio
async def test_a_broker_that_stores_a_retried_batch_again_is_found(tmp_path: Path) -> None:
    lossy = ("--break", "dedup", "--fault", "when node 1 sends Produce reply do drop every 4 times")
    attack = Attack(name="calm", does="nothing", act=waits, options=BrokerOptions(arguments=lossy))
    row = await played(attack, tmp_path)
    assert row.verdict == "FAIL"
    assert any(fault.startswith("read 2 times") for fault in row.faults), row.faults


@pytest.mark.trio
async def test_a_reader_that_gets_aborted_records_is_found(tmp_path: Path) -> None:
    row = await played(Attack(name="calm", does="nothing", act=reads_uncommitted), tmp_path)
    assert any(fault.startswith("aborted") for fault in row.faults), row.faults
    assert not any(fault.startswith("a new reader") for fault in row.faults), "that one reads committed"


FATES = {1: Fate.COMMITTED, 2: Fate.ABORTED, 3: Fate.UNKNOWN}
FIRST, SECOND = [value_of(1, 0), value_of(1, 1)], [value_of(1, 0)]


@pytest.mark.parametrize(
    ("read", "fault"),
    [
        ({0: FIRST, 1: SECOND}, None),
        ({0: [*FIRST, value_of(3, 0), value_of(3, 1)], 1: [*SECOND, value_of(3, 0)]}, None),
        ({0: FIRST[1:], 1: SECOND}, "lost: 2 of 3 records of transaction 1"),
        ({0: [], 1: []}, "lost: 0 of 3 records of transaction 1"),
        ({0: [*FIRST, FIRST[0]], 1: SECOND}, "read 2 times: 1.0"),
        ({0: [*FIRST, value_of(2, 0)], 1: SECOND}, "aborted: 1 of 3 records of transaction 2"),
        ({0: [*FIRST, value_of(3, 0)], 1: SECOND}, "torn: 1 of 3 records of transaction 3"),
        ({0: FIRST[::-1], 1: SECOND}, "out of order: partition 0"),
        ({0: FIRST, 1: [*SECOND, value_of(1, 1)]}, "never sent: 1.1 in partition 1"),
    ],
)
def test_a_ledger_finds_what_contradicts_it(read: dict[int, list[str]], fault: str | None) -> None:
    faults = Ledger(fates=FATES).faults(read)
    assert faults == [] if fault is None else any(each.startswith(fault) for each in faults), faults


@pytest.mark.trio
async def test_an_answer_that_is_late_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.attack.playing.ANSWER_MS_MAX", 0)
    run = Run(seed=1, is_quick=True, judges_time=True, directory=tmp_path)
    (row,) = await play([Attack(name="calm", does="nothing", act=waits)], run)
    assert [fault.split(":")[0] for fault in row.faults] == ["late"]


@pytest.mark.trio
async def test_a_broker_that_ends_is_found(tmp_path: Path) -> None:
    async def end(scene: Scene) -> None:
        scene.target.child.send(signal.SIGKILL)
        await scene.target.child.wait()

    run = Run(seed=1, is_quick=True, judges_time=False, directory=tmp_path)
    (row,) = await play([Attack(name="calm", does="nothing", act=end)], run)
    assert "the broker ended" in row.faults
