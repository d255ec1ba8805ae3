"""What the report of a failed test shows of an error that Fencepost raised on purpose: the lines of the user,
and the message.

Rule: a bug of Fencepost, or `--full-trace`, shows every line.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final

import pytest

PACKAGE: Final = Path(__file__).parents[1]
INSTALLED: Final = frozenset({"site-packages", "dist-packages"})


def shorten(item: pytest.Item, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
    """Cuts the traceback where the user's code calls Fencepost, if Fencepost raised the error on purpose."""
    frames = list(_frames(excinfo.tb))
    if not _is_on_purpose(excinfo.value, frames[-1]) or item.config.getoption("fulltrace"):
        return
    while frames and not _is_users(_file(frames[-1]), item):
        frames.pop()
    shown: TracebackType | None = None  # pytest follows `tb_next`; the exception keeps its whole traceback
    for frame in reversed(frames):
        shown = TracebackType(shown, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    if shown is not None:
        excinfo.traceback = type(excinfo.traceback)(shown)


def _frames(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _file(frame: TracebackType) -> Path:
    return Path(frame.tb_frame.f_code.co_filename)


def _is_on_purpose(problem: BaseException, raised_at: TracebackType) -> bool:
    if type(problem).__module__.startswith(f"{PACKAGE.name}."):
        return True
    line = linecache.getline(str(_file(raised_at)), raised_at.tb_lineno)
    is_refusal = isinstance(problem, TypeError | ValueError) and line.lstrip().startswith("raise ")
    return is_refusal and PACKAGE in _file(raised_at).parents


def _is_users(path: Path, item: pytest.Item) -> bool:
    """Whether it is a file of the project whose test this is."""
    if path == item.path:
        return True
    is_installed = PACKAGE in path.parents or not INSTALLED.isdisjoint(path.parts)
    return item.config.rootpath in path.parents and not is_installed
