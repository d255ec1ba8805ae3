"""`fencepost run NAME --step`: what a walk shows, what keys do, and a terminal that comes back as it was."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from fcntl import ioctl
from functools import cache
from typing import Any, Final, cast

import attrs
import pytest
from rich.cells import cell_len

from fencepost.cli.application import run
from fencepost.cli.step import keys_of
from fencepost.cli.step_screen import KEYS, Shown, in_ascii, screen
from fencepost.cli.step_walk import Walk
from fencepost.lab.document import RunDocument
from fencepost.lab.recordings import record
from fencepost.simulation import read_scenario
from fencepost.simulator.scenarios.model import variants
from tests.cli.processes import COMMAND, PATIENCE_S, fencepost

STYLES: Final = re.compile(r"\x1b\[[\d;]*m")
HOME: Final = "\x1b[H"


@cache
def late_end_txn() -> RunDocument:
    """The run whose second commit is late, in version 0."""
    return record(variants(read_scenario("late_end_txn"), 1)[0][1])


def walk_to(words: str) -> Walk:
    """A walk that stands at the first step with these words."""
    walk = Walk(late_end_txn())
    walk.go_to(next(number for number, step in enumerate(walk.steps) if words in step["text"]))
    return walk


def words_of(walk: Walk, shown: Shown | None = None, *, width: int = 80, height: int = 24) -> list[str]:
    return [line.plain for line in screen(walk, shown or Shown(), width, height)]


# --- the walk -----------------------------------------------------------------------------------------------


def test_a_step_back_shows_what_the_step_forward_showed() -> None:
    walk = Walk(late_end_txn())
    forward = [words_of(walk)]
    while walk.move(1):
        forward.append(words_of(walk))
    backward = [words_of(walk)]
    while walk.move(-1):
        backward.append(words_of(walk))
    assert forward == backward[::-1]
    assert len(forward) == len(walk.steps) > 100


def test_a_walk_jumps_to_what_is_remarkable() -> None:
    walk = Walk(late_end_txn())
    flags = {
        flag: [number for number, step in enumerate(walk.steps) if flag in step.get("flags", ())]
        for flag in ("fault", "refusal", "marker", "violation")
    }
    assert all(flags.values()), flags
    for flag, numbers in flags.items():
        walk.go_to(0)
        met: list[int] = []
        while walk.jump(flag):
            met.append(walk.step)
        assert met == numbers
        assert not walk.jump(flag)
        while walk.jump(flag, back=True):
            met.pop()
        assert met == numbers[:1]


def test_the_filter_shows_the_steps_of_one_transactional_id_after_the_other() -> None:
    document = record(variants(read_scenario("two_instances"), 1)[0][1])
    ids = [each["transactional_id"] for each in document["producers"] if each["transactional_id"]]
    walk = Walk(document)
    for name in dict.fromkeys(ids):
        walk.next_filter()
        assert walk.transaction == name
        assert f"only {name}" in words_of(walk)[1]
        walk.go_to(0)
        while walk.move(1):
            assert name in walk.steps[walk.step].get("transactions", ())
    walk.next_filter()
    assert walk.transaction == ""


def test_moves_end_at_the_first_and_the_last_step() -> None:
    walk = Walk(late_end_txn())
    assert not walk.move(-1)
    assert walk.move(10**6)
    assert walk.step == len(walk.steps) - 1
    assert not walk.move(1)
    walk.go_to(10**6)
    assert walk.step == len(walk.steps) - 1
    assert walk.move(-10)
    assert walk.step == len(walk.steps) - 11


# --- the screen ---------------------------------------------------------------------------------------------


def test_a_screen_shows_logs_states_readers_and_the_reason() -> None:
    walk = walk_to(", late: after its retry")
    assert walk.move(1)  # the coordinator takes the late commit for the end of the second transaction
    shown = "\n".join(words_of(walk, width=160, height=40))
    assert "late EndTxn" in shown
    assert "transaction_version 0" in shown
    assert "✗ G1a" in shown
    assert "app at node 1: PrepareCommit" in shown
    assert "t-0 read_committed up to 2: a" in shown
    assert "t-0 read_uncommitted up to 3: a b" in shown
    assert re.search(r"a✓ C │LSO b\? │HW", shown)
    assert "__transaction_state" not in shown
    assert "t-1" not in shown, "nothing is ever written there"
    why = (walk.here or {}).get("why")
    assert why is not None
    assert why["text"].split()[0] in shown
    assert f"{why.get('table')} · {why.get('rule')}" in shown


SIZES = [(60, 16), (80, 24), (81, 24), (100, 30), (149, 50), (150, 50), (220, 70), (80, 16), (59, 15), (1, 1)]


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_a_screen_fits_its_terminal(width: int, height: int) -> None:
    for number in (0, 26, 63, len(late_end_txn()["steps"]) - 1):
        for has_help in (False, True):
            walk = Walk(late_end_txn())
            walk.go_to(number)
            lines = words_of(walk, Shown(has_help=has_help, runs=3), width=width, height=height)
            assert len(lines) == height
            assert max(map(cell_len, lines)) <= width


def test_what_has_no_room_is_counted_and_tab_brings_it_up() -> None:
    walk = walk_to(", late: after its retry")
    before = words_of(walk, height=16)
    assert any("more lines: Tab" in line for line in before)
    assert not any("What readers see" in line for line in before)
    after = words_of(walk, Shown(first_panel=3), height=16)
    assert any("What readers see" in line for line in after)


def test_the_help_names_every_key_on_a_small_terminal() -> None:
    shown = "\n".join(words_of(Walk(late_end_txn()), Shown(has_help=True)))
    for keys, what in KEYS:
        assert ", ".join(keys) in shown
        assert what in shown


def test_names_from_a_run_cannot_move_the_cursor() -> None:
    document = cast("dict[str, Any]", {**late_end_txn()})
    evil = "a\x1b[2Jb\r\n"
    document["title"] = evil
    document["steps"] = [
        {**step, "text": evil, "note": evil, "lane": evil, "why": {"text": evil, "rule": evil}}
        for step in document["steps"]
    ]
    document["broken"] = [{"rule": evil, "text": evil, "step": 3}]
    walk = Walk(cast("RunDocument", document))
    walk.go_to(3)
    for line in words_of(walk):
        assert line.isprintable(), line


def test_a_screen_in_ascii() -> None:
    walk = Walk(late_end_txn())
    while walk.move(1):
        for line in words_of(walk, width=160, height=40):
            assert in_ascii(line).isascii()
            assert "?" not in in_ascii(line.replace("?", ""))


def test_a_run_in_which_nothing_happens_is_shown() -> None:
    empty = cast("RunDocument", {**late_end_txn(), "steps": [], "batches": [], "broken": []})
    walk = Walk(empty)
    assert not walk.move(1)
    assert not walk.jump("fault")
    walk.next_filter()
    walk.go_to(3)
    assert "Nothing happens in this run." in "\n".join(words_of(walk))


# --- keys ---------------------------------------------------------------------------------------------------

PRESSED: list[tuple[str, list[str]]] = [
    ("\x1b[C", ["right"]),
    ("\x1b[D\x1bOD", ["left", "left"]),
    ("\x1b[5~\x1b[6~", ["page up", "page down"]),
    ("lhq", ["right", "left", "quit"]),
    ("42\r", ["4", "2", "enter"]),
    ("\x1b", ["escape"]),
    ("\x1bf", ["escape", "f"]),
    ("\x1b[1;5Cf", ["f"]),
    ("\x1b[99", []),
    ("é", ["é"]),
]


@pytest.mark.parametrize(("text", "keys"), PRESSED)
def test_what_terminals_send_becomes_keys(text: str, keys: list[str]) -> None:
    assert list(keys_of(text)) == keys


# --- at a terminal ------------------------------------------------------------------------------------------

# A session on the terminal, as a shell at it has: it runs a job in the foreground, and goes on with
# it whenever that stops.
SHELL: Final = """
import os, signal, subprocess, sys, termios
os.login_tty(0)
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
job = subprocess.Popen(sys.argv[1:], process_group=0)
os.tcsetpgrp(0, job.pid)
while True:
    _, status = os.waitpid(job.pid, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        sys.exit(os.waitstatus_to_exitcode(status) % 256)
    os.tcsetpgrp(0, os.getpid())
    print("stopped; echo is", "on" if termios.tcgetattr(0)[3] & termios.ECHO else "off", flush=True)
    assert sys.stdin.readline() == "fg\\n"
    os.tcsetpgrp(0, job.pid)
    os.killpg(job.pid, signal.SIGCONT)
"""
FAILS: Final = """
from fencepost.cli.step import Terminal
with Terminal():
    raise RuntimeError("planted")
"""
LEFT: Final = "\x1b[?1049l"


@attrs.define
class Seat:
    """A person at a terminal in which a command runs."""

    shell: subprocess.Popen[bytes]
    keyboard: int
    terminal: int
    output: str = ""

    def read_until(self, is_there: Callable[[str], bool]) -> str:
        """What was drawn last, as soon as this is true of it."""
        while not is_there(self.drawn):
            ready, _, _ = select.select([self.keyboard], [], [], 20)
            assert ready, f"it never came: {self.drawn}"
            self.output += os.read(self.keyboard, 65_536).decode(errors="replace")
        return self.drawn

    def see(self, words: str) -> str:
        """Waits until these words are on the screen, and returns all of it."""
        return self.read_until(lambda drawn: words in drawn)

    def press(self, text: str) -> None:
        """Sends keys."""
        os.write(self.keyboard, text.encode())

    def resize(self, width: int, height: int) -> None:
        """Makes the terminal larger or smaller, of which the system tells the job."""
        ioctl(self.keyboard, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    @property
    def drawn(self) -> str:
        """The text after the cursor went home for the last time."""
        return STYLES.sub("", self.output.rpartition(HOME)[2])

    @property
    def job(self) -> int:
        """The process in the foreground."""
        return os.tcgetpgrp(self.keyboard)

    def modes(self) -> list[Any]:
        """How the terminal treats keys: whether it echoes them, and waits for whole lines."""
        return termios.tcgetattr(self.terminal)[:4]

    def end(self) -> int:
        """The exit code of the job; the screen of before is back, with its cursor."""
        code = self.shell.wait(PATIENCE_S)
        while select.select([self.keyboard], [], [], 0)[0]:
            self.output += os.read(self.keyboard, 65_536).decode(errors="replace")
        for on, off in (("\x1b[?1049h", LEFT), ("\x1b[?25l", "\x1b[?25h"), ("\x1b[?7l", "\x1b[?7h")):
            assert self.output.rfind(on) < self.output.rfind(off), "the terminal was not restored"
        return code


@contextmanager
def seated(*command: str, **environment: str) -> Generator[Seat]:
    """A command in a fresh terminal of 80 x 24."""
    keyboard, terminal = pty.openpty()
    seat = None
    try:
        ioctl(keyboard, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        shell = subprocess.Popen(
            [sys.executable, "-c", SHELL, *command],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env={**os.environ, "TERM": "xterm", "PYTHONIOENCODING": "utf-8", **environment},
        )
        seat = Seat(shell, keyboard, terminal)
        yield seat
    finally:
        os.close(keyboard)  # hangs up: whatever still runs at the terminal ends
        os.close(terminal)
        if seat is not None:
            seat.shell.kill()
            seat.shell.wait()


@pytest.fixture
def seat() -> Iterator[Seat]:
    with seated(*COMMAND, "run", "late_end_txn", "--step") as seat:
        yield seat


def test_a_walk_key_by_key(seat: Seat) -> None:
    usual = seat.modes()
    seat.see("run 1 of 2  step 0 of ")
    assert seat.modes() != usual
    seat.press("\x1b[C")
    seat.see("step 1 of ")
    seat.press("\x1b[D")
    seat.see("step 0 of ")
    seat.press("\x1b[D")
    seat.see("This is the first step.")
    seat.press("f")
    seat.see("step 26 of ")
    seat.see("fault at the network: hold (9)")
    seat.press("45")
    seat.see("go to step 45")
    seat.press("\r")
    seat.see("step 45 of ")
    seat.press("GF")
    seat.see("fault at the network: release (9)")
    seat.press("?")
    seat.see("move the next right-hand panel")
    seat.press("?t")
    seat.see("only app")
    seat.press("]")
    seat.see("run 2 of 2  step 0 of ")
    seat.see("transaction_version 2")
    seat.press("]")
    seat.see("There are no more runs.")
    seat.press("q")
    assert seat.end() == 0
    assert seat.modes() == usual


def test_the_screen_follows_the_size_of_the_terminal(seat: Seat) -> None:
    seat.see("step 0 of ")
    seat.resize(160, 50)
    seat.read_until(lambda drawn: drawn.count("\n") == 49)
    seat.see("Partition leader")
    seat.resize(40, 10)
    seat.see("The terminal has 40 x 10 cells; --step")
    seat.see("needs 60 x 16.")
    seat.resize(80, 24)
    seat.see("step 0 of ")


def test_ctrl_c_ends_the_walk_and_restores_the_terminal(seat: Seat) -> None:
    usual = seat.modes()
    seat.see("step 0 of ")
    seat.press("\x03")
    assert seat.end() == 130
    assert seat.modes() == usual
    assert "Traceback" not in seat.output


def test_sigterm_ends_the_walk_and_restores_the_terminal(seat: Seat) -> None:
    usual = seat.modes()
    seat.see("step 0 of ")
    os.kill(seat.job, signal.SIGTERM)
    assert seat.end() == 143
    assert seat.modes() == usual
    assert "Traceback" not in seat.output


def test_an_error_is_shown_on_the_restored_terminal() -> None:
    with seated(sys.executable, "-c", FAILS, NO_COLOR="1") as seat:
        usual = seat.modes()
        assert seat.end() == 1
        assert seat.modes() == usual
        assert "RuntimeError: planted" in seat.output.partition(LEFT)[2]


def test_ctrl_z_gives_the_terminal_back_until_the_job_goes_on(seat: Seat) -> None:
    seat.see("step 0 of ")
    seat.press("l")
    seat.see("step 1 of ")
    seat.press("\x1a")
    seat.see("stopped; echo is on")
    assert seat.output.rfind("\x1b[?1049h") < seat.output.rfind(LEFT)
    seat.press("fg\n")
    seat.read_until(lambda drawn: "step 1 of " in drawn and "stopped" not in drawn)
    seat.press("l")
    seat.see("step 2 of ")
    seat.press("q")
    assert seat.end() == 0


def test_a_terminal_without_unicode_gets_ascii() -> None:
    command = [*COMMAND, "run", "late_end_txn", "--variant", "2", "--step"]
    with seated(*command, PYTHONIOENCODING="ascii") as seat, seated(*command, "--ascii") as other:
        for each in (seat, other):
            assert each.see("q quit").isascii()
            each.press("f")
            each.see("fault at the network: hold")
            each.press("\x1b")
            assert each.end() == 0


def test_without_a_terminal_it_says_what_to_do_instead() -> None:
    ended = fencepost("run", "late_end_txn", "--step")
    assert ended.returncode == 2
    assert ended.stderr.splitlines() == [
        "fencepost: --step needs a terminal, for keys and for the screen",
        "  --text prints the run as a table; --html FILE writes a page on which you step through it",
    ]


@pytest.mark.parametrize("other", ["--json", "--text", "--svg x.svg", "--list", "--output x", "--for 1s"])
def test_it_stands_alone(capsys: pytest.CaptureFixture[str], other: str) -> None:
    assert run(["run", "late_end_txn", "--step", *other.split()]) == 2
    assert "--step shows runs in the terminal and writes nothing" in capsys.readouterr().err
