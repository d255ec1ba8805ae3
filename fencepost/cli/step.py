"""`fencepost run NAME --step`: walks through runs in a terminal, key by key.

Rule: the terminal is restored whenever the command ends or is suspended: after q, Ctrl-C, SIGTERM, Ctrl-Z and
errors.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from types import FrameType
from typing import Any, Final, Self

import attrs
from rich.console import Console

from fencepost.cli.errors import WrongUsage
from fencepost.cli.step_screen import Shown, in_ascii, screen
from fencepost.cli.step_walk import PAGE, Walk
from fencepost.lab.document import RunDocument

# The alternate screen, without a cursor and without wrapping: what was on the screen comes back afterwards.
ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l"
LEAVE: Final = "\x1b[?7h\x1b[?25h\x1b[?1049l"
HOME: Final = "\x1b[H"
CLEAR_LINE: Final = "\x1b[K"
ESCAPE: Final = "\x1b"
ESCAPE_SECONDS: Final = 0.05  # longer than a terminal takes between the bytes of one key
CHUNK: Final = 1024
DIGITS_MAX: Final = 9

SEQUENCES: Final = {
    "[A": "left", "[B": "right", "[C": "right", "[D": "left",
    "OA": "left", "OB": "right", "OC": "right", "OD": "left",
    "[H": "home", "[F": "end", "OH": "home", "OF": "end",
    "[1~": "home", "[4~": "end", "[7~": "home", "[8~": "end",
    "[5~": "page up", "[6~": "page down",
}  # fmt: skip
"""What terminals send after an escape for keys without a letter; "up" is a step back, as in the list of
steps.
"""
LETTERS: Final = {
    " ": "right", "l": "right", "n": "right", "j": "right",
    "h": "left", "p": "left", "k": "left", "\x7f": "left", "\b": "left",
    "g": "home", "G": "end", "\t": "tab", "\r": "enter", "\n": "enter", "q": "quit", "\x04": "quit",
}  # fmt: skip
FLAGS: Final = {"f": "fault", "r": "refusal", "m": "marker", "v": "violation"}
STEPS: Final = {
    "right": 1,
    "left": -1,
    "page down": PAGE,
    "page up": -PAGE,
    "home": -sys.maxsize,
    "end": sys.maxsize,
}


def require_terminal() -> None:
    """CommandFailed unless a person is at a terminal that can move its cursor."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM", "dumb") == "dumb":
        raise WrongUsage(
            "--step needs a terminal, for keys and for the screen",
            then="--text prints the run as a table; --html FILE writes a page on which you step through it",
        )


def walk_through(runs: Sequence[Callable[[], RunDocument]], *, ascii_only: bool) -> None:
    """Shows the runs, beginning with the first, until the user quits. Each is made when it is first shown."""
    encoding = (sys.stdout.encoding or "ascii").lower().replace("-", "")
    session = _Session(runs=runs, ascii_only=ascii_only or encoding != "utf8")
    with Terminal() as terminal:
        while not session.is_over:
            terminal.show(session.draw(*terminal.size()))
            for key in terminal.pressed():
                session.press(key)


# --- what keys do -------------------------------------------------------------------------------------------


@attrs.define(eq=False, kw_only=True)
class _Session:
    runs: Sequence[Callable[[], RunDocument]]
    ascii_only: bool
    shown: Shown = attrs.field(init=False)
    is_over: bool = False
    _walks: dict[int, Walk] = attrs.Factory(dict[int, Walk])

    def __attrs_post_init__(self) -> None:
        self.shown = Shown(runs=len(self.runs))

    @property
    def walk(self) -> Walk:
        number = self.shown.run
        if number not in self._walks:
            self._walks[number] = Walk(self.runs[number - 1]())
        return self._walks[number]

    def draw(self, width: int, height: int) -> list[str]:
        """The lines of the screen, with their colours."""
        console = Console(
            file=StringIO(),
            force_terminal=True,
            width=width,
            height=height,
            highlight=False,
            legacy_windows=False,
        )
        lines: list[str] = []
        for line in screen(self.walk, self.shown, width, height):
            if self.ascii_only:
                line.plain = in_ascii(line.plain)
            with console.capture() as capture:
                console.print(line, end="", no_wrap=True, overflow="crop", crop=False)
            lines.append(capture.get())
        return lines

    def press(self, key: str) -> None:
        """Does what a key does."""
        typed = self.shown.typed
        self.shown = attrs.evolve(self.shown, news="", typed="")
        if key.isdecimal() and len(typed) < DIGITS_MAX:
            self._show(typed=typed + key)
        elif key == "enter" and typed:
            self.walk.go_to(int(typed))
        elif key in ("quit", "escape"):
            self.is_over = not (typed or self.shown.has_help)
            self._show(has_help=False)
        elif key == "?":
            self._show(has_help=not self.shown.has_help)
        elif key == "tab":
            self._show(first_panel=self.shown.first_panel + 1)
        elif key in ("[", "]"):
            self._turn_to(self.shown.run + (1 if key == "]" else -1))
        else:
            self._move(key)

    def _move(self, key: str) -> None:
        walk, flag = self.walk, FLAGS.get(key.lower())
        if key in STEPS and not walk.move(STEPS[key]):
            self._show(news="This is the last step." if STEPS[key] > 0 else "This is the first step.")
        elif flag is not None and not walk.jump(flag, back=key.isupper()):
            self._show(news=f"There is no {flag} {'before' if key.isupper() else 'after'} this step.")
        elif key == "t":
            walk.next_filter()

    def _turn_to(self, run: int) -> None:
        if 1 <= run <= len(self.runs):
            self._show(run=run)
        else:
            self._show(news="There is no other run." if len(self.runs) == 1 else "There are no more runs.")

    def _show(self, **changes: Any) -> None:
        self.shown = attrs.evolve(self.shown, **changes)


# --- the terminal -------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Terminal:
    """The terminal of the process, without echo and on its alternate screen, while the block lasts."""

    _usual: list[Any] = attrs.Factory(list[Any])
    _signals: dict[signal.Signals, Any] = attrs.Factory(dict[signal.Signals, Any])
    _woken: tuple[int, int] = (-1, -1)
    _is_open: bool = False

    def __enter__(self) -> Self:
        self._usual = termios.tcgetattr(sys.stdin)
        self._woken = os.pipe()
        for end in self._woken:
            os.set_blocking(end, False)
        # Python runs signal handlers only between its own instructions: the pipe ends the wait for a key.
        signal.set_wakeup_fd(self._woken[1], warn_on_full_buffer=False)
        handlers = {signal.SIGWINCH: _ignore, signal.SIGTSTP: self._suspend}
        self._signals = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            self._open()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        for number, handler in self._signals.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(-1)
        for end in self._woken:
            os.close(end)

    def _open(self) -> None:
        self._is_open = True
        tty.setcbreak(sys.stdin)
        _write(ENTER)

    def _close(self) -> None:
        """Restores the terminal, once."""
        if self._is_open:
            self._is_open = False
            _write(LEAVE)
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._usual)

    def _suspend(self, number: int, _: FrameType | None) -> None:
        """Ctrl-Z: gives the terminal back, stops, and takes it again when the shell resumes this job."""
        self._close()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, self._suspend)
        self._open()

    def size(self) -> tuple[int, int]:
        """Columns and lines, as they are now."""
        size = os.get_terminal_size(sys.stdout.fileno())
        return size.columns or 80, size.lines or 24

    def show(self, lines: Sequence[str]) -> None:
        """Draws the whole screen over what it showed."""
        _write(HOME + "\n".join(f"{line}{CLEAR_LINE}" for line in lines))

    def pressed(self) -> Iterator[str]:
        """Waits for keys; none if the terminal changed its size or the job was resumed. "quit" at its end."""
        ready = self._wait(None)
        if self._woken[0] in ready:
            os.read(self._woken[0], CHUNK)
        if sys.stdin.fileno() not in ready:
            return
        text = self._read()
        if text.endswith(ESCAPE) and self._wait(ESCAPE_SECONDS):
            text += self._read()
        yield from keys_of(text) if text else ("quit",)

    def _wait(self, seconds: float | None) -> list[int]:
        return select.select([sys.stdin.fileno(), self._woken[0]], [], [], seconds)[0]

    def _read(self) -> str:
        return os.read(sys.stdin.fileno(), CHUNK).decode(errors="replace")


def keys_of(text: str) -> Iterator[str]:
    """The keys that a terminal's text stands for: names such as "left", or the character itself."""
    while text:
        if text[0] != ESCAPE:
            yield LETTERS.get(text[0], text[0])
            text = text[1:]
        elif found := next((known for known in SEQUENCES if text.startswith(known, 1)), None):
            yield SEQUENCES[found]
            text = text[1 + len(found) :]
        elif len(text) == 1 or text[1] not in "[O":
            yield "escape"
            text = text[1:]
        else:  # a key without a meaning here: skip it up to its last byte
            end = next(
                (at for at, each in enumerate(text[2:], start=2) if each.isalpha() or each == "~"), len(text)
            )
            text = text[end + 1 :]


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """A signal that only ends the wait for a key."""


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
