"""`fencepost fuzz`: runs random simulated clusters, one per seed, and checks every rule in each.

Rule: the same seeds give the same results on any number of cores. The first violation ends the search, and
the output says how to replay it. `--for` ends it too, and what was found by then decides the exit code.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import attrs
from cyclopts import Parameter

from fencepost.check.findings import counted
from fencepost.cli.errors import FAILED, OK, code_of
from fencepost.cli.html_pages import Pages
from fencepost.cli.interruptions import Ended
from fencepost.cli.options import AsJson, AtLeastOne, AtLeastZero, Flag, TimeBudget, WithoutFixes
from fencepost.cli.output import Json, print_json, text_to_stderr
from fencepost.cli.table import print_table

if TYPE_CHECKING:
    from fencepost.simulator.fuzz.seeds import SeedFinding, SeedTally, Tried
    from fencepost.simulator.fuzz.worlds import WorldKind
    from fencepost.simulator.judges.coverage import Coverage, Row


NS_PER_SECOND: Final = 1_000_000_000
PRINTED_MAX: Final = 20  # violations printed as text and saved; the JSON has all of them
SEEDS: Final = 1_000
SEEDS_MAX: Final = 1 << 62  # as many as there is time for
DIGITLESS: Final = 10  # seconds; fewer are printed with decimals

Version = Literal[0, 1, 2]
Protection = Literal["fencing", "dedup"]
Workload = Literal[
    "transactions", "groups", "power", "damage", "requests", "identities", "compaction", "topics"
]


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class WorldOptions:
    """The options that describe the simulated cluster; `str()` repeats them."""

    workload: Annotated[
        Workload,
        Parameter(
            help="What happens in each simulated cluster. transactions: clients write and copy with "
            "transactional ids. groups: the members of a consumer group process a topic. power: like "
            "transactions, under the sync policies commit and all, and nodes lose power. damage: like "
            "transactions, and disks damage synced data. requests: like transactions, and one more client "
            "sends extreme values. identities: like transactions, and producer ids are used up, "
            "transactional ids expire, and markers of replaced coordinators arrive late. compaction: clients "
            "read and write a compacted topic while it is compacted, and nodes die during compactions. "
            "topics: like transactions, power or damage, and a topic that clients use is deleted and created "
            "again. The same seed gives a different cluster in each workload."
        ),
    ] = "transactions"
    transaction_version: Annotated[
        Version | None,
        Parameter(
            help="Transaction protocol: 0 is KIP-98, 1 is the same with another format of the transaction "
            "log, 2 is KIP-890 with an epoch per transaction. [default: 2]"
        ),
    ] = None
    partition_verification: Annotated[
        bool | None,
        Parameter(
            help="Whether partition leaders verify transactions of older clients with the coordinator. "
            "[default: no in version 0, as in Kafka before KIP-890; yes in versions 1 and 2]"
        ),
    ] = None
    without_fixes: Annotated[
        WithoutFixes,
        Parameter(
            show_default=False,
            help="Switch off one of Kafka's later fixes, by its name in `fencepost help fidelity`. "
            "Repeatable.",
        ),
    ] = ()
    broken: Annotated[
        tuple[Protection, ...],
        Parameter(
            "--break",
            negative="",
            show_default=False,
            help="Turn off a protection of the broker, to show what it protects against.",
        ),
    ] = ()

    @property
    def version(self) -> Version:
        """The transaction version, given or by default."""
        return 2 if self.transaction_version is None else self.transaction_version

    @property
    def kind(self) -> WorldKind:
        """The same for the simulator."""
        from fencepost.simulator.fuzz.worlds import WorldKind

        given = attrs.asdict(self)
        given["transaction_version"] = self.version
        return WorldKind(**given)

    @property
    def verifies(self) -> bool:
        """Whether partition leaders verify transactions, given or by default."""
        from fencepost.simulator.fuzz.plan import verifies

        return verifies(self.version, self.partition_verification)

    def __str__(self) -> str:
        return str(self.kind)


DEFAULT_WORLD: Final = WorldOptions()


def fuzz(
    *,
    seeds: AtLeastOne | None = None,
    for_: TimeBudget = None,
    first_seed: AtLeastZero = 0,
    cores: AtLeastOne | None = None,
    options: WorldOptions = DEFAULT_WORLD,
    keep_going: Flag = False,
    shrink: Flag = False,
    html: Path | None = None,
    output: Path | None = None,
    junit: Path | None = None,
    coverage: Flag = False,
    as_json: AsJson = False,
) -> int:
    """Run random simulated clusters until one violates a rule.

    Parameters
    ----------
    seeds
        Number of seeds to run. [default: 1000, or as many as --for allows]
    for_
        Stop after this time, such as 10m.
    first_seed
        The first seed; the others follow it.
    cores
        Number of worker processes. [default: number of CPU cores]
    keep_going
        Do not stop at the first violation.
    shrink
        Shrink each seed that violates a rule to a small scenario, seed-K.toml.
    html
        Write a page to this HTML file, on which you step through the run of the first seed that violates a
        rule; pages of further seeds go to NAME-2.html, and so on.
    output
        Directory for the files of each seed that violates a rule: scenario, page, drawing, table and
        JSON.
    junit
        Write a report in JUnit's XML format to this file.
    coverage
        Print how often each cell of the coordinator's state tables was covered, and with which faults; and
        the rare states that this workload is made for.
    """
    from fencepost.cli import artefacts
    from fencepost.cli.fuzz_findings import junit_cases

    artefacts.make_directory(output)
    pages = Pages(html)
    pages.check()
    report = artefacts.junit_target(junit)
    is_limited = seeds is not None or for_ is None
    wanted = seeds or (SEEDS if is_limited else SEEDS_MAX)
    cores = min(cores or os.cpu_count() or 1, wanted)
    search = _Search(options=options, first_seed=first_seed, wanted=wanted, seconds_max=for_)
    tally, code = search.run(cores, keep_going=keep_going)
    seconds = time.monotonic() - search.began
    with text_to_stderr(as_json=as_json):
        code = _print_findings(tally, options, shrinks=shrink, output=output, pages=pages) or code
        print_coverage(tally.coverage, options.version, tally.faults, all_=coverage)
        _print_rare_states(tally.coverage, options.workload, all_=coverage)
        is_known = is_limited and not search.is_late
        _print_counts(tally, seconds, wanted=wanted if is_known else tally.seeds, cores=cores)
    if report is not None:
        found = junit_cases(tally, options, first_seed=first_seed, seconds=seconds)
        report.write(artefacts.junit(f"fencepost fuzz{options}", found))
    if as_json:
        print_json(_as_json(tally, options) | {"seconds": round(seconds, 3), "cores": cores})
    return FAILED if tally.found else code


@attrs.define(kw_only=True)
class _Search:
    """A search over seeds until the first violation, the last seed, or the end of its time."""

    options: WorldOptions
    first_seed: int
    wanted: int
    seconds_max: float | None
    began: float = attrs.Factory(time.monotonic)
    is_late: bool = False

    def run(self, cores: int, *, keep_going: bool) -> tuple[SeedTally, int]:
        """What the seeds add up to, and the exit code if the user ended the search."""
        from fencepost.cli.fuzz_workers import try_seeds
        from fencepost.simulator.fuzz.seeds import SeedTally

        tally = SeedTally(self.first_seed, keep_going=keep_going)
        seeds = range(self.first_seed, self.first_seed + self.wanted)
        results = try_seeds(seeds, self.options.kind.planner, cores=cores)
        try:
            with closing(results), _progress(None if self.wanted == SEEDS_MAX else self.wanted) as tell:
                self._add(results, tally, tell)
        except Ended as ended:
            return tally, code_of(ended)
        return tally, OK

    def _add(self, results: Iterator[Tried | None], tally: SeedTally, tell: Tell) -> None:
        for tried in results:
            if tried is not None:
                tally.add(tried)
            tell(tally)
            # A search that tried no seed says nothing, so the first one always counts.
            self.is_late = bool(
                self.seconds_max is not None
                and tally.seeds
                and time.monotonic() - self.began >= self.seconds_max
            )
            if tally.is_over or self.is_late:
                return


Tell = Callable[["SeedTally"], None]


@contextmanager
def _progress(seeds: int | None) -> Generator[Tell]:
    """A progress bar on a terminal, nothing in a pipe. None: the number of seeds is not known."""
    if not sys.stderr.isatty():
        yield lambda _tally: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("seeds  {task.fields[speed]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task, began = bar.add_task("", total=seeds, speed=""), time.monotonic()

        def tell(tally: SeedTally) -> None:
            seconds = time.monotonic() - began
            speed = (
                f"{tally.seeds / seconds:,.1f} seeds/s  {tally.transactions / seconds:,.0f} transactions/s"
            )
            bar.update(task, completed=tally.seeds, speed=f"{speed}  violations: {len(tally.found)}")

        yield tell


# --- the end ------------------------------------------------------------------------------------------------


def _print_findings(
    tally: SeedTally, options: WorldOptions, *, shrinks: bool, output: Path | None, pages: Pages
) -> int:
    """Prints the findings, and shrinks and saves them; the exit code if the user interrupted that."""
    from fencepost.cli.fuzz_findings import FindingFiles

    files, code = FindingFiles(options=options, shrinks=shrinks, output=output, pages=pages), OK
    is_kept = shrinks or output is not None or pages.path is not None
    for finding in tally.found[:PRINTED_MAX]:
        print(f"Seed {finding.seed} violates {finding.rule}: {finding.evidence}")
        print(f"  replay: {options.kind.replay(finding.seed)}")
        if not shrinks:
            print(f"  shrink: {options.kind.shrink(finding.seed)}")
        if code == OK and is_kept:
            code = files.keep(finding)
    if len(tally.found) > PRINTED_MAX:
        print(f"... and {len(tally.found) - PRINTED_MAX} more")
    if tally.known:
        print("Not counted as violations, because Apache Kafka behaves the same way:")
        print_table(("anomaly", "seeds"), tally.known.items())
    if tally.met:
        _print_old_behaviours(tally.behaviours, options)
    return code


def _print_old_behaviours(behaviours: dict[str, list[SeedFinding]], options: WorldOptions) -> None:
    print("Not counted as violations: known anomalies of Apache Kafka in this transaction version.")
    cures = _cures()
    rows = [(name, cures[name], len(found), found[0].seed) for name, found in behaviours.items()]
    print_table(("anomaly", "fixed by", "seeds", "first seed"), rows)
    print(f"  shrink: {options.kind.shrink(rows[0][-1])}")


def _cures() -> dict[str, str]:
    """What fixed each known anomaly of older generations, by its name."""
    from fencepost.simulator.judges.known_anomalies import OLD_BEHAVIOURS

    return {behaviour.name: behaviour.cured_by for behaviour in OLD_BEHAVIOURS}


def _print_counts(tally: SeedTally, seconds: float, *, wanted: int, cores: int) -> None:
    outcome = {0: "no violation", 1: "one violation"}.get(len(tally.found), f"{len(tally.found)} violations")
    seeds = counted(wanted, "seed")
    tried = seeds if tally.seeds == wanted else f"{tally.seeds:,} of {seeds}"
    print(f"{tried}, {outcome}, in {seconds:,.1f} s on {counted(cores, 'core')}:", end=" ")
    virtual = tally.elapsed / NS_PER_SECOND
    print(
        f"{counted(tally.transactions, 'transaction')} and {counted(tally.events, 'event')} in "
        f"{virtual:,.{0 if virtual >= DIGITLESS else 2}f} virtual seconds, "
        f"{tally.per_core_second(tally.transactions):,.0f} transactions per core second."
    )


def _as_json(tally: SeedTally, options: WorldOptions) -> dict[str, Json]:
    cures = _cures()
    return {
        "seeds": tally.seeds,
        "violations": len(tally.found),
        "found": [attrs.asdict(finding) for finding in tally.found],
        "transactions": tally.transactions,
        "transactions_per_core_second": round(tally.per_core_second(tally.transactions), 1),
        "seeds_per_core_second": round(tally.per_core_second(tally.seeds), 1),
        "events": tally.events,
        "virtual_seconds": round(tally.elapsed / NS_PER_SECOND, 3),
        "core_seconds": round(tally.seconds, 3),
        "known": tally.known,
        "met": [
            {"behaviour": name, "ended_by": cures[name], "seeds": len(found), "first": attrs.asdict(found[0])}
            for name, found in tally.behaviours.items()
        ],
        "reached": dict(sorted(tally.marks.items())),
        "coverage": coverage_as_json(tally.coverage, options.version)
        | {"rare_states": _rare_states(tally.coverage, options.workload)},
        "digest": tally.digest,
        "workload": options.workload,
        "transaction_version": options.version,
        "partition_verification": options.verifies,
    }


MISSED_MAX: Final = 4  # cells not covered, on one line


def print_coverage(
    coverage: Coverage, transaction_version: int, faults: Sequence[str], *, all_: bool
) -> None:
    """Prints a line about the coverage of the coordinator's tables, and before it the whole table if `all_`.

    `faults` are the faults that struck in this search.
    """
    rows = coverage.rows(transaction_version)
    if all_:
        print_table(
            ("state", "input", "times", "faults in the same run"),
            [(row.state, row.given, row.count, _notes(row, faults)) for row in rows],
        )
    reachable = [row for row in rows if not row.unreachable]
    missed = [f"{row.state} x {row.given}" for row in reachable if not row.count]
    reached = (
        f"Coverage: {len(reachable) - len(missed)} of {len(reachable)} cells of the coordinator's tables"
    )
    more = f" and {len(missed) - MISSED_MAX} more (--coverage)" if len(missed) > MISSED_MAX else ""
    then = f"; not covered: {', '.join(missed[:MISSED_MAX])}{more}" if missed else ""
    print(f"{reached} (state x input){then}.")


def _print_rare_states(coverage: Coverage, workload: Workload, *, all_: bool) -> None:
    """Prints a line about the rare states of this workload, if it has some, and before it each of them if
    `all_`.
    """
    rare_states = _rare_states(coverage, workload)
    if not rare_states:
        return
    if all_:
        print_table(("rare state", "times"), rare_states.items())
    missed = [name for name, count in rare_states.items() if not count]
    then = f"; not reached: {'; '.join(missed)}" if missed else ""
    print(f"Rare states: {len(rare_states) - len(missed)} of {len(rare_states)} of this workload{then}.")


def _rare_states(coverage: Coverage, workload: Workload) -> dict[str, int]:
    """How often each rare state of this workload was reached."""
    from fencepost.simulator.judges.rare_states import RARE_STATES

    return {name: coverage.rare_states[name] for name in RARE_STATES.get(workload, ())}


def _notes(row: Row, faults: Sequence[str]) -> str:
    """The faults that struck in runs through this cell, or those that did not, whichever list is shorter."""
    if row.unreachable:
        return f"unreachable: {row.unreachable}"
    without = [fault for fault in faults if fault not in row.faults]
    if not row.faults:
        return "none"
    if not without:
        return "all"
    if len(without) < len(row.faults):
        return f"all but {', '.join(without)}"
    return ", ".join(row.faults)


def coverage_as_json(coverage: Coverage, transaction_version: int) -> dict[str, Json]:
    rows = coverage.rows(transaction_version)
    return {
        "reachable": sum(1 for row in rows if not row.unreachable),
        "missed": [[row.state, row.given] for row in rows if not row.count and not row.unreachable],
        "unreachable": [[row.state, row.given, row.unreachable] for row in rows if row.unreachable],
        "cells": [
            {"state": row.state, "input": row.given, "times": row.count, "faults": row.faults}
            for row in rows
            if row.count
        ],
    }
