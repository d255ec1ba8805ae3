"""The worker in this process: it does aborted rounds again, stops where told, and starts from the log."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest

from fencepost.broker.embedded import Broker
from fencepost.client.errors import ProducerFailed
from fencepost.demo.dataset import flights_file, load, rows
from fencepost.demo.plan import PRODUCER_FAILED, WorkerPoint, WorkerTask
from fencepost.demo.verify import expected_output
from fencepost.demo.worker import Totals, main, read_totals, run
from fencepost.protocol.errors import ErrorCode

Output = pytest.CaptureFixture[str]
FLIGHTS = 60


@pytest.fixture
def bootstrap() -> Iterator[str]:
    with Broker() as broker:
        load(broker.address, enumerate(rows(flights_file(), limit=FLIGHTS), start=1))
        yield broker.address


def work(
    bootstrap: str, capsys: Output, *pauses: tuple[int, WorkerPoint], abort_share: float = 0
) -> list[Any]:
    """One life of the worker; what it said."""
    capsys.readouterr()
    task = WorkerTask(
        bootstrap=bootstrap, seed=1, records_per_transaction=20, abort_share=abort_share, pauses=pauses
    )
    run(WorkerTask.from_json(task.to_json()))
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def truth() -> Totals:
    return expected_output(rows(flights_file(), limit=FLIGHTS)).totals


def test_an_aborted_round_is_done_again(bootstrap: str, capsys: Output) -> None:
    said = [word["event"] for word in work(bootstrap, capsys, abort_share=1)]
    assert said == ["ready", *["aborted", "committed"] * 3, "finished"]
    assert read_totals(bootstrap, isolation_level="read_committed") == truth()


def test_a_pause_that_its_round_never_reached_waits_in_the_next(
    bootstrap: str, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first round is aborted, so it never gets to COMMITTED."""
    monkeypatch.setattr("sys.stdin", io.StringIO("on\non\n"))
    pauses = ((1, WorkerPoint.COMMITTED), (2, WorkerPoint.READ))
    said = work(bootstrap, capsys, *pauses, abort_share=1)
    stops = [(word["round"], word["point"]) for word in said if word["event"] == "at"]
    assert stops == [(2, "COMMITTED"), (3, "READ")]


def test_who_is_told_to_go_on_for_some_rounds_ends_then(
    bootstrap: str, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("go 1\n"))
    said = [word["event"] for word in work(bootstrap, capsys, (1, WorkerPoint.HALF), (2, WorkerPoint.HALF))]
    assert said == ["ready", "at", "committed", "committed", "finished"]
    heir = work(bootstrap, capsys)
    assert heir[0]["carriers"] > 0, "totals come from the log"
    assert [word["event"] for word in heir] == ["ready", "committed", "finished"]
    assert read_totals(bootstrap, isolation_level="read_committed") == truth()


def test_a_worker_whose_producer_failed_says_why(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without fencing, another worker can end its transaction between its last record and its EndTxn."""

    def fails(task: WorkerTask) -> None:
        raise ProducerFailed(f"EndTxn of seed {task.seed}", ErrorCode.INVALID_TXN_STATE)

    task = WorkerTask(bootstrap="", seed=7, records_per_transaction=20, abort_share=0, pauses=())
    monkeypatch.setattr("fencepost.demo.worker.run", fails)
    monkeypatch.setattr("sys.argv", ["worker", task.to_json()])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == PRODUCER_FAILED
    (said,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (said["event"], said["because"][:16]) == ("failed", "EndTxn of seed 7")
