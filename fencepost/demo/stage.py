"""What one sees while it runs: progress bars and one line per event; plain lines when nobody watches.

Rule: the same story is told on a terminal and in a pipe.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class Stage:
    """Prints to stdout."""

    def __init__(self) -> None:
        on_terminal = sys.stdout.isatty()
        self.console = Console(highlight=False, width=None if on_terminal else 160)
        self._progress = Progress(
            TextColumn("{task.description:<28}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
            disable=not on_terminal,
            transient=True,
        )
        self._start = time.monotonic()

    def tell(self, text: str) -> None:
        """One line of the story, with the seconds since the start."""
        self.console.print(f"{self.seconds:6.1f} s  {text}", markup=False, soft_wrap=True)

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._start

    @contextmanager
    def act(self, title: str, *, total: int | None) -> Generator[Act]:
        """One long part, with a bar of its own."""
        self.tell(title)
        with self._progress:
            task = self._progress.add_task(title, total=total)
            try:
                yield Act(self._progress, task)
            finally:
                self._progress.remove_task(task)


class Act:
    """The bar of one part."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def reach(self, amount: int) -> None:
        """How far it got."""
        self._progress.update(self._task, completed=amount)
