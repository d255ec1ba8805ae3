"""`fencepost run`: runs scenarios and reports whether each met its expectations.

Rule: the exit code is 1 if one did not, or if --for ended before all were run. The same files print the same
output on every machine.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Final

import attrs
from cyclopts import Parameter

from fencepost.check.findings import counted
from fencepost.cli.drawing import NO_DRAWING, DrawOptions, Pictures
from fencepost.cli.errors import FAILED, OK, WrongUsage
from fencepost.cli.html_pages import files_line
from fencepost.cli.options import NOT_EMPTY, AsJson, Flag, TimeBudget
from fencepost.cli.output import Json, print_json
from fencepost.cli.scenario_files import Chosen, chosen, files_of
from fencepost.cli.table import GREEN, RED, print_table, styled, terminal_width
from fencepost.protocol.terms import escaped

if TYPE_CHECKING:
    from fencepost.cli.artefacts import JUnitCase
    from fencepost.simulator.run_result import RunResult
    from fencepost.simulator.scenarios.model import Case
    from fencepost.simulator.world.history import History

NS_PER_MS: Final = 1_000_000
LESSON_WIDTH_MIN: Final = 30  # columns
SHORT: Final = 50  # characters; after a first sentence below this, the list shows the second one, too
FEW: Final = 2  # up to this number of scenarios, every run is described in full


def run(
    *scenarios: str,
    list_: Annotated[bool, Parameter("--list", negative="")] = False,
    variant: Annotated[str | None, NOT_EMPTY] = None,
    draw: DrawOptions = NO_DRAWING,
    output: Path | None = None,
    junit: Path | None = None,
    for_: TimeBudget = None,
    verbose: Flag = False,
    step: Flag = False,
    beside: tuple[str, ...] = (),
    as_json: AsJson = False,
) -> int:
    """Run scenarios: scripted clients, nodes and faults.

    Parameters
    ----------
    scenarios
        Names of bundled scenarios, scenario files, or directories of them. [default: all bundled scenarios]
    list_
        List the scenarios without running them. If one or two are given, list their variants.
    variant
        Run only this variant: its number, or a part of its title.
    output
        Directory for the files of each run that fails: scenario, page, drawing, table and JSON.
    junit
        Write a report in JUnit's XML format to this file.
    for_
        Stop after this time, such as 10m. The exit code is 1 if runs were left out.
    verbose
        Print the expectations, the points reached and the faults of every run. This is the default for one or
        two scenarios without --until, and for runs that fail.
    step
        Walk through the runs in this terminal, step by step, with logs, states and reasons beside them.
        Press ? for the list of keys.
    beside
        On the right side of the --html page, show the same run with this setting changed:
        transaction_version=0, partition_verification=false, broken=dedup or without_fixes=NAME. Repeatable.
    """
    from fencepost.cli import artefacts
    from fencepost.simulator.scenarios.runner import record_case

    pictures = Pictures(draw)
    pictures.check(as_json=as_json)
    if step:
        return _walk(
            scenarios, variant, draw, is_other=list_ or as_json or bool(output or junit or for_ or beside)
        )
    stories = chosen(files_of(scenarios), variant)
    others = _others(stories, beside, draw.html)
    if list_:
        _list(stories, as_json=as_json)
        return OK
    artefacts.make_directory(output)
    report = artefacts.junit_target(junit)
    is_few = draw.text or (bool(scenarios) and len(stories) <= FEW)
    is_full = verbose or (is_few and not draw.until)  # a picture that stops early does not show the end
    for each in (each for story in stories for each in story if draw.is_partial):
        pictures.part_of(record_case(each.case).history)
    reporter = _RunReporter(
        is_full=is_full, is_json=as_json, pictures=pictures, others=others, output=output, seconds_max=for_
    )
    for story in stories:
        reporter.story(story)
    if report is not None:
        report.write(artefacts.junit(" ".join(("fencepost run", *scenarios)), reporter.cases))
    reporter.end(len(stories), sum(map(len, stories)))
    return FAILED if reporter.failed or reporter.left else OK


def _walk(scenarios: Sequence[str], variant: str | None, draw: DrawOptions, *, is_other: bool) -> int:
    """`--step`: the runs in the terminal. It judges nothing, so its exit code is 0."""
    from fencepost.cli.step import require_terminal, walk_through
    from fencepost.lab.recordings import record

    if is_other or draw.wanted or draw.html:
        raise WrongUsage(
            "--step shows runs in the terminal and writes nothing",
            then="use it with names of scenarios, --variant and --ascii only",
        )
    require_terminal()
    runs = [partial(record, each.case) for story in chosen(files_of(scenarios), variant) for each in story]
    walk_through(runs, ascii_only=draw.ascii)
    return OK


def _others(
    stories: list[list[Chosen]], texts: Sequence[str], html: Path | None
) -> dict[tuple[Path, int], Case] | None:
    """`--beside`: the run to show beside each run, by file and variant; None without the option."""
    from fencepost.cli.html_pages import beside, changes_of

    if not texts:
        return None
    if html is None:
        raise WrongUsage("--beside applies to pages only", then="add --html FILE")
    changes = changes_of(texts)
    found = {
        (each.path, each.number): other
        for story in stories
        for each in story
        if (other := beside(each, changes)) is not None
    }
    if not found:
        raise WrongUsage(
            f"--beside {' '.join(texts)} changes nothing in these runs",
            then="give another value; `fencepost run NAME --list` shows the variants",
        )
    return found


@attrs.define(kw_only=True)
class _RunReporter:
    """Runs scenarios and prints their results: a full description of each run if requested or failed, else a
    line per scenario.
    """

    is_full: bool
    is_json: bool
    pictures: Pictures
    others: dict[tuple[Path, int], Case] | None  # by file and variant: the run to show beside it
    output: Path | None
    seconds_max: float | None
    began: float = attrs.Factory(time.perf_counter)
    runs: int = 0
    left: int = 0
    failed: list[RunResult] = attrs.Factory(list["RunResult"])
    cases: list[JUnitCase] = attrs.Factory(list["JUnitCase"])
    drawn: list[Path] = attrs.Factory(list[Path])
    pages: list[Path] = attrs.Factory(list[Path])
    """The pictures and pages that were written, and not named yet."""

    def story(self, story: list[Chosen]) -> None:
        """Runs a scenario, and prints its line when all its runs are finished."""
        before, passed = self.runs, 0
        for each in story:
            if self.seconds_max is not None and time.perf_counter() - self.began >= self.seconds_max:
                self.left += 1
                continue
            passed += self._run(each)
        done = self.runs - before
        if passed and not self.is_full and not self.is_json:
            count = f"{passed}" if passed == done else f"{passed} of {done}"
            name = escaped(story[0].case.scenario.name)
            print(f"{styled('pass', GREEN)}  {name}  ({count} {'run' if done == 1 else 'runs'})")
            self._print_files()

    def _run(self, each: Chosen) -> bool:
        """Runs one variant, and prints or saves what was requested of it."""
        from fencepost.cli.artefacts import JUnitCase
        from fencepost.simulator.scenarios.runner import record_case, run_case

        began, history = time.perf_counter(), None
        if self.pictures.options.wanted:
            recorded = record_case(each.case)
            result, history = recorded.result, recorded.history
            self.drawn += self.pictures.show(history)
        else:
            result = run_case(each.case)
        if self.pictures.options.html is not None:
            self._page(each)
        seconds = time.perf_counter() - began
        self.runs += 1
        self._print(each, result)
        case = JUnitCase(suite=each.case.scenario.name, name=result.name, seconds=seconds)
        if not result.passed:
            self.failed.append(result)
            case = attrs.evolve(case, failure=result.problems[0], details="\n".join(_lines(result)))
            if self.output is not None:
                self._save(self.output, each, result, history or record_case(each.case).history)
        self.cases.append(case)
        return result.passed

    def _page(self, each: Chosen) -> None:
        """Writes the page of a run, unless `--beside` changes nothing in it."""
        other = None if self.others is None else self.others.get((each.path, each.number))
        if self.others is None or other is not None:
            self.pages.append(self.pictures.pages.of_case(each.case, other))

    def _print_files(self) -> None:
        for word, files in (("picture", self.drawn), ("page", self.pages)):
            if files:
                print(f"      {files_line(word, files, width=9)}")
            files.clear()

    def _print(self, each: Chosen, result: RunResult) -> None:
        if self.is_json:
            print_json(_as_json(result))
        elif self.is_full or not result.passed:
            sign = styled("pass", GREEN) if result.passed else styled("FAIL", RED)
            print(f"{sign}  {escaped(result.name)}")
            for line in _lines(result):
                print(f"      {escaped(line)}")
            self._print_files()
            if not result.passed:
                print(f"      show:     fencepost run {each.words} --text")

    def _save(self, directory: Path, each: Chosen, result: RunResult, history: History) -> None:
        from fencepost.cli.artefacts import FailedRun, files_in, save
        from fencepost.lab.recordings import record
        from fencepost.simulator.scenarios.found import case_text

        failure = FailedRun(
            name=each.stem,
            scenario=case_text(each.case),
            history=history,
            document=record(each.case),
            facts=_as_json(result),
        )
        written = save(directory, failure)
        if not self.is_json:
            print(f"    {files_in(directory, written)}")

    def end(self, scenarios: int, wanted: int) -> None:
        """Prints the failures again, where a reader looks first, and the counts."""
        summary: dict[str, Json] = {
            "scenarios": scenarios,
            "runs": self.runs,
            "passed": self.runs - len(self.failed),
            "failed": len(self.failed),
            "left_out": self.left,
            "seconds": round(time.perf_counter() - self.began, 3),
        }
        if self.is_json:
            print_json(summary)
            return
        for result in self.failed if self.runs > 1 else ():
            print(f"{styled('FAIL', RED)}  {escaped(f'{result.name}: {result.problems[0]}')}")
        count = "one scenario" if scenarios == 1 else f"{scenarios} scenarios"
        print(
            f"{summary['passed']} of {counted(self.runs, 'run')} of {count} met the expectations, in "
            f"{summary['seconds']} s"
        )
        if self.left:
            runs = counted(wanted, "run")
            print(f"The time limit of --for was reached; {self.left} of {runs} did not begin.")


def _list(stories: list[list[Chosen]], *, as_json: bool) -> None:
    """Prints a row for each scenario or, of a few, for each variant."""
    if as_json:
        for story in stories:
            scenario = story[0].case.scenario
            print_json(
                {
                    "scenario": story[0].path.stem,
                    "name": scenario.name,
                    "lesson": " ".join(scenario.lesson.split()),
                    "runs": story[0].of,
                    "variants": [{"number": each.number, "title": each.case.title} for each in story],
                    "file": str(story[0].path),
                }
            )
    elif len(stories) <= FEW:
        for story in stories:
            scenario = story[0].case.scenario
            print(f"{story[0].path.stem}: {escaped(_beginning(scenario.lesson) or scenario.name)}")
            print_table(("variant", "title"), [(each.number, each.case.title or "-") for each in story])
    else:
        margin = max(len(story[0].path.stem) for story in stories) + 2
        for story in stories:
            lesson, width = _beginning(story[0].case.scenario.lesson), terminal_width()
            words, name = f"{escaped(lesson)} ({counted(story[0].of, 'run')})", story[0].path.stem
            if width is not None and width - margin < LESSON_WIDTH_MIN:  # the lesson is below the name
                print(name, *(f"  {line}" for line in wrap(words, width - 2)), sep="\n")
                continue
            lines = [words] if width is None else wrap(words, width - margin)
            print(f"{name:{margin}}" + f"\n{'':{margin}}".join(lines))


def _beginning(lesson: str) -> str:
    """The first sentence; two if it is short."""
    first, *more = re.split(r"(?<=\.)\s+(?=[A-Z])", " ".join(lesson.split()))
    return " ".join((first, *more[: len(first) < SHORT]))


def _as_json(report: RunResult) -> dict[str, Json]:
    return {
        "scenario": report.name,
        "passed": report.passed,
        "problems": report.problems,
        "expected": report.expected,
        "reached": report.reached,
        "struck": report.struck,
        "broken": report.broken,
        "evidence": report.evidence,
        "digest": report.digest,
        "events": report.events,
        "virtual_ms": round(report.elapsed / NS_PER_MS, 3),
    }


def _lines(report: RunResult) -> list[str]:
    """What is known of one run: problems first."""
    return [
        f"{heading}{line}"
        for heading, lines in (
            ("", report.problems),
            ("expected: ", report.expected),
            ("reached:  ", report.reached),
            ("struck:   ", report.struck),
            ("broken:   ", report.evidence),
        )
        for line in lines
    ]
