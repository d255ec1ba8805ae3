"""Commands whose parent has closed stdout or stderr, or that cannot print a name as it is: they do their
work, and show no traceback.
"""

from __future__ import annotations

import os
import subprocess
from io import StringIO
from pathlib import Path
from typing import cast

import pytest
import trio
from rich.console import Console

from fencepost import Broker
from fencepost.cli.application import run
from fencepost.demo.run import Demo
from tests.cli.processes import COMMAND, PATIENCE_S

COMMANDS = [
    (["--version"], 0),
    (["help"], 0),
    (["status", "-b", "BROKER"], 0),
    (["status", "-b", "BROKER", "--json"], 0),
    (["fault", "list", "-b", "BROKER"], 0),
    (["top", "-b", "BROKER", "--once"], 0),
    (["consume", "t", "-b", "BROKER"], 1),
    (["fuzz", "--seeds", "1"], 0),
    (["run", "--list"], 0),
    (["run", "zombie_fencing", "--text"], 0),
    (["check", "DIRECTORY"], 2),
    (["topic", "create"], 2),
]


def _name(given: object) -> str:
    return "_".join(cast("list[str]", given)) if isinstance(given, list) else str(given)


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
@pytest.mark.parametrize(("words", "code"), COMMANDS, ids=_name)
def test_a_closed_stream_is_no_error(words: list[str], code: int, closed: str, tmp_path: Path) -> None:
    """The exit code is the answer, and what is open shows no traceback."""
    with Broker() as broker:
        named = {"BROKER": broker.address, "DIRECTORY": str(tmp_path)}
        arguments = [*COMMAND, *(named.get(word, word) for word in words)]
        ended = subprocess.run(
            ["sh", "-c", f'exec "$@" {closed}', "sh", *arguments],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    assert "Traceback" not in ended.stderr + ended.stdout
    assert ended.returncode == code


def test_a_full_disk_under_stdout_is_named() -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [*COMMAND, "run", "--list"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S
        )
    assert ended.stderr == (
        "fencepost: standard output: No space left on device\n  free some space, or write to another disk\n"
    )
    assert ended.returncode == 1


@pytest.mark.parametrize("words", ["serve --memory --port 0", "lab --port 0 --no-browser"])
def test_a_server_whose_reader_has_gone_is_not_told_to_start_a_broker(words: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        [*COMMAND, *words.split()], stdout=writing, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S
    )
    os.close(writing)
    assert ended.stderr.splitlines()[-1] == "fencepost: standard output: Broken pipe"
    assert ended.returncode == 1


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_what_the_encoding_does_not_have_is_escaped(encoding: str, tmp_path: Path) -> None:
    directory = os.fsencode(tmp_path) + "/größe-".encode() + b"\xff"
    arguments = [*map(os.fsencode, COMMAND), b"serve", directory, b"--port", b"0"]
    environment = os.environ | {"PYTHONIOENCODING": f"{encoding}:strict"}
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, env=environment) as serving:
        assert serving.stdout is not None
        line = serving.stdout.readline()
        serving.terminate()
    assert line.startswith(b"Fencepost is ready on ")
    assert (b"-\\udcff" in line, b"gr\\xf6" in line) == (True, encoding == "ascii")


def test_a_demonstration_that_nobody_reads_ends_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """`fencepost demo | head -1`."""

    async def perform(_: Demo) -> None:
        async with trio.open_nursery():
            Console(file=UnreadPipe()).print("one more line")

    def keep(*_: int) -> None:
        """Leaves stdout open, which rich would redirect."""

    class UnreadPipe(StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("fencepost.demo.run.perform_unless_stopped", perform)
    monkeypatch.setattr("os.dup2", keep)
    assert run(["demo", "--flights", "1000"]) == 0
