"""What the report of a failed test shows of an error that Fencepost raised on purpose, and of its causes: the
lines of the user, and the message.

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
    if item.config.getoption("fulltrace"):
        return
    _shorten_causes(item, excinfo.value)
    frames = list(_frames(excinfo.tb))
    if not _is_on_purpose(excinfo.value, frames[-1]):
        return
    while frames and not _is_users(_file(frames[-1]), item):
        frames.pop()
    if (shown := _linked(frames)) is not None:  # the exception itself keeps its whole traceback
        excinfo.traceback = type(excinfo.traceback)(shown)


def _shorten_causes(item: pytest.Item, problem: BaseException) -> None:
    """Cuts the tracebacks of the causes, from the first error that Fencepost raised on purpose. pytest reads
    them from the exceptions; of one without a traceback, it shows the message.
    """
    cuts = False
    for each in _chain(problem):
        frames = list(_frames(each.__traceback__))
        cuts = cuts or bool(frames and _is_on_purpose(each, frames[-1]))
        if cuts and each is not problem:
            each.__traceback__ = _linked(_of_user(frames, item))


def _chain(problem: BaseException | None) -> Iterator[BaseException]:
    """The exception, its cause, the cause of that, and so on, as pytest shows them."""
    seen: list[BaseException] = []
    while problem is not None and problem not in seen:
        seen.append(problem)
        yield problem
        problem = problem.__cause__ or (None if problem.__suppress_context__ else problem.__context__)


def _of_user(frames: list[TracebackType], item: pytest.Item) -> list[TracebackType]:
    """The frames of the user, and those of libraries that the user called."""
    found: list[TracebackType] = []
    is_users = False
    for frame in frames:
        is_users = _is_users(_file(frame), item) or (is_users and PACKAGE not in _file(frame).parents)
        found += [frame] if is_users else []
    return found


def _linked(frames: list[TracebackType]) -> TracebackType | None:
    """The frames as one traceback; pytest follows `tb_next`."""
    linked: TracebackType | None = None
    for frame in reversed(frames):
        linked = TracebackType(linked, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return linked


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
