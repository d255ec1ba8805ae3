"""The result of a run, as a table for people and as JSON for programs.

Rule: `ok` depends only on the numbers in the result.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

import attrs
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from fencepost.cli.output import Json
from fencepost.cli.table import as_words
from fencepost.demo.plan import Disruption, DisruptionPlan


@attrs.define(kw_only=True)
class DemoResult:
    """What a run has counted so far: records, unless the name says otherwise. Each part adds its counts."""

    seed: int
    broken: str | None
    flights: int
    planned_worker_kills: int
    planned_broker_kills: int
    planned_stream_kills: int
    flights_loaded: int = 0
    delays_committed: int = 0
    duplicates: int = 0
    lost: int = 0
    wrong: int = 0
    totals_match: bool = False
    uncommitted_visible: int = 0
    worker_kills: int = 0
    worker_kills_in_transaction: int = 0
    unplanned_ends: int = 0
    broker_kills: int = 0
    broker_kills_between_prepare_and_complete: int = 0
    zombies: int = 0
    zombies_fenced: int = 0
    committed_transactions: int = 0
    aborted_transactions: int = 0
    aborted_on_purpose: int = 0
    lost_replies: int = 0
    stream_kills: int = 0
    stream_batches: int = 0
    stream_matches: bool = False
    log_problems: int = 0
    seconds: float = 0

    @staticmethod
    def of(plan: DisruptionPlan, *, broken: str | None) -> DemoResult:
        """An empty result for the run of a plan."""
        return DemoResult(
            seed=plan.seed,
            broken=broken,
            flights=plan.flights,
            planned_worker_kills=plan.count(Disruption.KILL_WORKER),
            planned_broker_kills=plan.count(Disruption.KILL_BROKER, Disruption.KILL_BROKER_AT_PREPARE),
            planned_stream_kills=1 if plan.events and broken is None else 0,
        )

    @property
    def has_stream(self) -> bool:
        """Whether a stream runs next to the pipeline; it would not show what `broken` turns off."""
        return self.broken is None

    @property
    def isolation_level(self) -> str:
        """The isolation level of every reader in the run."""
        return "read_uncommitted" if self.broken == "isolation" else "read_committed"

    @property
    def output_is_right(self) -> bool:
        """Whether each flight is in the output exactly once and correct, and every zombie was fenced."""
        damage = (
            self.duplicates,
            self.lost,
            self.wrong,
            self.log_problems,
            self.flights - self.flights_loaded,
            self.flights - self.delays_committed,
        )
        is_streamed = self.stream_matches or not self.has_stream
        return not any(damage) and self.totals_match and is_streamed and self.zombies_fenced == self.zombies

    @property
    def disruptions_happened(self) -> bool:
        """Whether processes were killed and frozen as planned; a run without that proves nothing."""
        return (
            self.worker_kills >= self.planned_worker_kills
            and self.broker_kills >= self.planned_broker_kills
            and self.stream_kills >= self.planned_stream_kills
            and self.lost_replies > 0
            and 2 * self.worker_kills_in_transaction >= self.worker_kills
            and (self.broker_kills_between_prepare_and_complete > 0 or self.planned_broker_kills == 0)
        )

    @property
    def ok(self) -> bool:
        """Whether the output is right although the disruptions happened as planned."""
        return self.output_is_right and self.disruptions_happened

    def to_json(self) -> dict[str, Json]:
        """The result for programs."""
        return {**attrs.asdict(self), "ok": self.ok}

    def to_table(self) -> Table:
        """The result for people."""
        table = Table(box=box.SIMPLE_HEAD, show_header=False, pad_edge=False)
        table.add_column(style="bold")
        table.add_column(justify="right")
        table.add_column(style="dim")
        for name, value, why, is_bad in self._lines():
            table.add_row(
                name,
                f"{value:,}" if type(value) is int else as_words(value),
                why,
                style="red" if is_bad else None,
            )
        return table

    def _lines(self) -> list[tuple[str, object, str, bool]]:
        """The rows: name, value, explanation, whether it is an error."""
        return [
            ("flights in", self.flights, "rows of the CSV file", False),
            ("  loaded", self.flights_loaded, "records of the input topic `flights`",
             self.flights_loaded != self.flights),
            ("records out", self.delays_committed, f"visible in `delays` with {self.isolation_level}",
             self.delays_committed != self.flights),
            ("duplicates", self.duplicates, "flights counted more than once", self.duplicates > 0),
            ("lost", self.lost, "flights missing from the output", self.lost > 0),
            ("wrong", self.wrong, "flights whose delay differs from the CSV file", self.wrong > 0),
            ("totals are right", self.totals_match,
             "the last totals per carrier equal the sums of the CSV file", not self.totals_match),
            ("workers killed", self.worker_kills, "SIGKILL; the next one has the same transactional id",
             False),
            ("  in an open transaction", self.worker_kills_in_transaction, "the next one aborted it",
             False),
            ("brokers killed", self.broker_kills, "SIGKILL; the next one uses the same directory", False),
            ("  between PREPARE and COMPLETE", self.broker_kills_between_prepare_and_complete,
             "the next one finished the decided transaction", False),
            ("workers frozen, then thawed", self.zombies, "zombies: each was replaced meanwhile", False),
            ("  fenced", self.zombies_fenced, "zombies whose next request was refused",
             self.zombies_fenced != self.zombies),
            ("replies lost", self.lost_replies, "the producer retried its batch each time", False),
            *self._stream_lines(),
            ("transactions committed", self.committed_transactions, "", False),
            ("transactions aborted", self.aborted_transactions,
             f"{self.aborted_on_purpose} on purpose, the others were interrupted", False),
            ("read_uncommitted would show", self.uncommitted_visible, "additional records, all aborted",
             False),
            ("problems in the log", self.log_problems, "found by `fencepost check`", self.log_problems > 0),
        ]  # fmt: skip

    def _stream_lines(self) -> list[tuple[str, object, str, bool]]:
        if not self.has_stream:
            return []
        return [
            ("streams killed", self.stream_kills,
             "SIGKILL inside a micro-batch; the next one has the same checkpoint", False),
            ("  micro-batches", self.stream_batches, "of the aggregation of `flights` by carrier", False),
            ("  its result is right", self.stream_matches, "it equals the result of a batch query",
             not self.stream_matches),
        ]  # fmt: skip

    def sentence(self) -> str:
        """The result in one sentence."""
        if self.ok:
            return "Exactly once: every flight is in the output once, despite all kills."
        if not self.output_is_right:
            cause = f" This is what {BREAKS[self.broken]} prevents." if self.broken else ""
            return f"NOT exactly once: see the numbers above.{cause}"
        return "The output is right, but the kills did not happen as planned, so this run proves nothing."


BREAKS = {
    "fencing": "fencing (refusing the former owner of a transactional id)",
    "dedup": "deduplication (recognising a retried batch)",
    "isolation": "read_committed (skipping aborted records)",
}


class StoryLog:
    """Prints the events of a run and its progress to stdout."""

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
        """Prints one line, with the seconds since the start."""
        self.console.print(f"{self.seconds:6.1f} s  {text}", markup=False, soft_wrap=True)

    def show(self, table: Table) -> None:
        """Prints a table, in a pipe without the spaces that fill up its last column."""
        with self.console.capture() as drawn:
            self.console.print(table)
        for line in drawn.get().splitlines():
            self.console.out(line.rstrip(" "), highlight=False)

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    @contextmanager
    def progress(self, title: str, *, total: int | None) -> Generator[ProgressBar]:
        """Shows a progress bar for the block."""
        self.tell(title)
        with self._progress:
            task = self._progress.add_task(title, total=total)
            try:
                yield ProgressBar(self._progress, task)
            finally:
                self._progress.remove_task(task)


class ProgressBar:
    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def reach(self, amount: int) -> None:
        """Sets the completed amount."""
        self._progress.update(self._task, completed=amount)
