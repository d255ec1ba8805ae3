"""What the lab's processes may take: time, memory, number; and that none of them is left behind."""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from socket import create_server
from typing import Final

import pytest
import trio

from fencepost.cli import lab as lab_command
from fencepost.cli.application import run
from fencepost.lab.search_jobs import SearchJobs
from fencepost.lab.workers import MIB, WORKERS, Unplayable, WorkerPool, WorkLimits
from tests.cli.processes import fencepost, started
from tests.cli.tool import Output
from tests.lab.lab_process import LabProcess, lab, lab_of

LONG: Final = """name = "long"
[seeded]
nodes = 3
idempotent_writes = 3000
[[seeded.txn_writer]]
name = "a"
transactions = 2000
[[seeded.txn_writer]]
name = "b"
transactions = 2000
"""
LARGE_VALUES: Final = [f"{number}{'x' * 500_000}" for number in range(60)]
LARGE: Final = f"""name = "large"
[[producer]]
name = "p"
script = {[f"send t-0 {value}" for value in LARGE_VALUES]}
"""
"""4 MB of records, of which a run and its document have many copies."""
SHORT: Final = 'name = "short"\n[[producer]]\nname = "p"\nscript = ["send t-0 a"]\n'
ENDLESS: Final = {"kind": "fuzz", "seeds": 1_000_000}


def played(text: str) -> dict[str, object]:
    return {"do": "play", "run": {"text": text}}


async def refusal_of(pool: WorkerPool, text: str) -> Unplayable:
    with pytest.raises(Unplayable) as refused:
        await pool.done(played(text))
    return refused.value


# --- depth --------------------------------------------------------------------------------------------------


NESTED: Final = 200_000  # deeper than any version of Python writes as JSON


async def with_requests_that_cannot_be_sent() -> None:
    nested: list[object] = []
    for _ in range(NESTED):
        nested = [nested]
    async with trio.open_nursery() as searching:
        book = SearchJobs(WorkLimits(), searching)
        number = book.begin({"kind": "fuzz", "seeds": nested})
    assert "nested too deeply" in book.state(number)["error"]
    async with trio.open_nursery() as nursery:
        pool = WorkerPool(WorkLimits(), nursery)
        for _ in range(WORKERS + 1):
            with trio.fail_after(60), pytest.raises(Unplayable, match="nested too deeply"):
                await pool.done({"do": "check", "text": nested})
        with trio.fail_after(60):
            assert (await pool.done(played(SHORT)))["document"]["title"] == "short"
        nursery.cancel_scope.cancel()


def test_requests_that_cannot_be_sent_to_a_worker_cost_no_worker() -> None:
    trio.run(with_requests_that_cannot_be_sent)


# --- time and memory ----------------------------------------------------------------------------------------


async def with_pool(limits: WorkLimits, text: str) -> Unplayable:
    """Plays a text that is too much, and then another run, which another process plays."""
    async with trio.open_nursery() as nursery:
        pool = WorkerPool(limits, nursery)
        refused = await refusal_of(pool, text)
        answer = await pool.done(played(SHORT))
        assert answer["document"]["title"] == "short"
        nursery.cancel_scope.cancel()
    return refused


def test_a_run_that_takes_too_long_is_stopped_and_the_next_one_plays() -> None:
    refused = trio.run(with_pool, WorkLimits(seconds_max=3.0), LONG)
    assert refused.status == 504
    assert "this takes longer than 3 s, and was stopped" in str(refused)
    assert "--time-limit" in str(refused)


def test_a_run_that_takes_too_much_memory_is_stopped_and_the_next_one_plays() -> None:
    refused = trio.run(with_pool, WorkLimits(seconds_max=300.0, memory_bytes_max=200 * MIB), LARGE)
    assert refused.status == 413
    assert "this needs more than 200 MiB of memory" in str(refused)
    assert "--memory-limit" in str(refused)


def test_a_process_that_cannot_start_is_told() -> None:
    """With so little memory Python itself does not start; the lab says so, and serves on."""

    async def ask() -> Unplayable:
        async with trio.open_nursery() as nursery:
            refused = await refusal_of(WorkerPool(WorkLimits(memory_bytes_max=MIB), nursery), SHORT)
            nursery.cancel_scope.cancel()
        return refused

    refused = trio.run(ask)
    assert refused.status == 500
    assert "the process that played this run died" in str(refused)


def test_what_is_wrong_costs_no_process() -> None:
    async def twice() -> None:
        async with trio.open_nursery() as nursery:
            pool = WorkerPool(WorkLimits(), nursery)
            for _ in range(3):
                refused = await refusal_of(pool, "name = 3")
                assert refused.status == 422
                assert not refused.is_spent
            nursery.cancel_scope.cancel()

    trio.run(twice)


def test_only_so_many_runs_wait() -> None:
    async def crowd() -> list[int]:
        statuses: list[int] = []

        async def ask() -> None:
            try:
                await pool.done(played(SHORT))
                statuses.append(200)
            except Unplayable as problem:
                statuses.append(problem.status)

        async with trio.open_nursery() as nursery:
            pool = WorkerPool(WorkLimits(), nursery)
            async with trio.open_nursery() as crowd:
                for _ in range(30):
                    crowd.start_soon(ask)
            nursery.cancel_scope.cancel()
        return statuses

    statuses = trio.run(crowd)
    assert set(statuses) == {200, 429}
    assert statuses.count(200) >= 8


# --- processes ----------------------------------------------------------------------------------------------


def children_of(pid: int) -> list[int]:
    """The processes that a process has started, and that run."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(each) for each in listed.stdout.split()]


@pytest.fixture
def page() -> Iterator[LabProcess]:
    with lab() as running:
        yield running


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux can wait for processes of others")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left_behind(page: LabProcess, number: signal.Signals) -> None:
    """Whatever ends the lab: two processes wait for a run, and one is in the middle of a search."""
    page.answer("/api/searches", ENDLESS)
    page.play()
    children = children_of(page.process.pid)
    assert len(children) == 3
    watched = [(child, os.pidfd_open(child)) for child in children]
    page.process.send_signal(number)
    code = page.process.wait(60)
    assert code == (-signal.SIGKILL if number is signal.SIGKILL else 0)
    for _, descriptor in watched:
        assert ended(descriptor)


def test_ctrl_c_in_the_terminal_reaches_the_lab_only(page: LabProcess) -> None:
    """It ends its processes itself. One that still imports would print a traceback."""
    page.play()
    session = os.getsid(page.process.pid)
    assert all(os.getsid(child) != session for child in children_of(page.process.pid))


def ended(descriptor: int) -> bool:
    """Waits for the end of a process, a minute at most."""
    try:
        return bool(select.select([descriptor], [], [], 60)[0])
    finally:
        os.close(descriptor)


def test_a_process_that_is_killed_is_replaced(page: LabProcess) -> None:
    page.play()
    before = children_of(page.process.pid)
    for child in before:
        os.kill(child, signal.SIGKILL)
    statuses = [page.ask("/api/play", {"scenario": "late_end_txn"}).status for _ in range(3)]
    assert statuses[-1] == 200
    assert set(statuses) <= {200, 500}
    assert set(children_of(page.process.pid)).isdisjoint(before)


def test_searches_are_few_and_end_when_they_are_stopped(page: LabProcess) -> None:
    numbers = [page.answer("/api/searches", ENDLESS)["id"] for _ in range(2)]
    refused = page.ask("/api/searches", ENDLESS)
    assert refused.status == 429
    assert refused.error == "2 searches are running already: stop one, or wait until one ends"
    for number in numbers:
        assert page.ask(f"/api/searches/{number}", method="DELETE").json["state"] == "stopped"
    page.answer("/api/searches", ENDLESS)
    assert page.ask("/api/searches/99").status == 404
    assert page.ask(f"/api/searches/{'9' * 5_000}").status == 404


# --- the command --------------------------------------------------------------------------------------------


def test_a_port_in_use_is_an_error_that_says_what_to_do() -> None:
    with create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        failed = fencepost("lab", "--port", str(port), "--no-browser")
    assert failed.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in failed.stderr
    assert "or give another port (0: any free one)" in failed.stderr
    assert failed.stdout == ""


def test_a_port_in_use_is_reported_before_a_broker_is_looked_for(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(_broker: str, _security: object) -> int:
        raise AssertionError("it takes seconds")

    monkeypatch.setattr(lab_command, "_check_broker", look)
    with create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run(["lab", "--bootstrap-server", "127.0.0.1:1", "--port", str(port), "--no-browser"]) == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in capsys.readouterr().err


def test_a_port_that_this_user_may_not_have_needs_another_port_or_user(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    assert run(["lab", "--port", "80", "--no-browser"]) == 1
    assert capsys.readouterr().err == (
        "fencepost: cannot listen on 127.0.0.1:80: Permission denied\n"
        "  give a port above 1023 (0: any free one), or run the lab as a user who may use lower ones\n"
    )


def test_without_its_packages_the_command_says_what_to_install(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_spec(name: str) -> str | None:
        return None if name == "hypercorn" else name

    monkeypatch.setattr("fencepost.cli.lab.find_spec", find_spec)
    assert run(["lab", "--no-browser"]) == 2
    said = capsys.readouterr().err
    assert "the lab needs the package hypercorn" in said
    assert f"`{sys.executable} -m pip install 'fencepost[lab]'` adds what is missing" in said


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipe from which comes what the browser, for which a program stands, is told to open."""
    pipe, program = tmp_path / "opened", tmp_path / "browser"
    os.mkfifo(pipe)
    program.write_text(f'#!/bin/sh\nprintf "%s" "$1" > {pipe}\n')
    program.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(program))
    return pipe


def test_the_browser_opens_the_address(opened: Path) -> None:
    with started("lab", "--port", "0") as process:
        assert opened.read_text() == lab_of(process).address


def test_no_browser_opens_where_none_shall(opened: Path) -> None:
    with started("lab", "--port", "0", "--no-browser") as process:
        page = lab_of(process)
        page.play()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    with open(os.open(opened, os.O_RDONLY | os.O_NONBLOCK), encoding="utf-8") as nothing:
        assert nothing.read() == ""


def test_the_limits_are_options() -> None:
    with lab("--time-limit", "1ms", "--memory-limit", "512") as page:
        refused = page.ask("/api/play", {"scenario": "late_end_txn"})
        assert refused.status == 504
        assert "this takes longer than 0.001 s" in refused.error
