"""`fencepost run`: runs scenarios and reports whether each met its expectations.

Rule: the exit code is 1 if one did not. The same files print the same output on every machine.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import attrs
from cyclopts import Parameter

from fencepost.cli.errors import FAILED, OK, WRONG_USAGE, CommandFailed
from fencepost.cli.output import Json, Target, print_json

if TYPE_CHECKING:
    from fencepost.simulator.run import RunResult
    from fencepost.simulator.scenarios.model import Case, Scenario
    from fencepost.simulator.world.history import History

NS_PER_MS = 1_000_000
WIDTH_MIN = 60
WIDTH_IN_PIPE = 160
SVG = ".svg"
FEW = 2  # up to this number of files, every run is described in full


def run(
    *files: Path,
    as_json: Annotated[bool, Parameter("--json", negative="")] = False,
    text: Annotated[bool, Parameter(negative="")] = False,
    svg: Path | None = None,
    verbose: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Run scenarios: scripted clients, nodes and faults.

    Parameters
    ----------
    files
        Scenario files. [default: the bundled scenarios]
    as_json
        One JSON object per run, and one for all of them at the end.
    text
        Print each run as a table: one column per client and node, time downwards.
    svg
        Draw the run to this SVG file; further runs go to NAME-2.svg, NAME-3.svg, and so on.
    verbose
        Print the expectations, the points reached and the faults of every run. This is the default for one or
        two files, and for runs that fail.
    """
    from fencepost.simulator.scenarios.model import cases

    began = time.perf_counter()
    if svg is not None:
        _picture(svg).prove()
    scenarios = [(path, read(path)) for path in (files or shipped())]
    told = _Told(is_full=verbose or text or 0 < len(files) <= FEW, is_json=as_json)
    reports: list[RunResult] = []
    for path, scenario in scenarios:
        runs: list[RunResult] = []
        for case in cases(scenario):
            runs.append(_play(case, text=text, svg=svg, number=len(reports) + len(runs) + 1))
            told.run(runs[-1], path)
        told.story(scenario.name, runs)
        reports += runs
    failed = [report for report in reports if not report.passed]
    summary: dict[str, Json] = {
        "scenarios": len(scenarios),
        "runs": len(reports),
        "passed": len(reports) - len(failed),
        "failed": len(failed),
        "seconds": round(time.perf_counter() - began, 3),
    }
    if as_json:
        print_json(summary)
    else:
        told.again(failed if len(reports) > 1 else [])
        count = "one scenario" if len(scenarios) == 1 else f"{len(scenarios)} scenarios"
        print(
            f"{summary['passed']} of {summary['runs']} runs of {count} met their expectations, in "
            f"{summary['seconds']} s"
        )
    return FAILED if failed else OK


def read(path: Path, *, advice: str | None = None) -> Scenario:
    """The scenario in a file; an error says what is wrong and where. `advice` is for a missing file."""
    from fencepost.simulator.scenarios.codec import BadScenario
    from fencepost.simulator.scenarios.files import scenario_of

    try:
        return scenario_of(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        problem = f"no such file: {path}"
        then = advice or "`fencepost run` without a file runs the bundled scenarios"
    except IsADirectoryError:
        problem = f"{path} is a directory"
        then = advice or f"give the files in it: fencepost run {path}/*.toml"
    except UnicodeDecodeError as undecodable:
        problem, then = f"{path} is not UTF-8: {undecodable}", "give a scenario, which is a TOML file"
    except BadScenario as bad:
        problem, then = str(bad), "scenarios/README.md describes the format of scenarios"
    raise CommandFailed(problem, then=then, code=WRONG_USAGE)


def shipped() -> list[Path]:
    """The bundled scenarios: inside the package in a wheel, beside the package in a checkout."""
    package = Path(__file__).parent.parent
    found = [package / "scenarios", package.parent / "scenarios"]
    stories = sorted(path for folder in found for path in folder.glob("*.toml"))
    return [*stories, *sorted(path for folder in found for path in folder.glob("found/*.toml"))]


def _play(case: Case, *, text: bool, svg: Path | None, number: int) -> RunResult:
    from fencepost.simulator.scenarios.runner import record_case, run_case

    if not text and svg is None:
        return run_case(case)
    recorded = record_case(case)
    report, history = recorded.result, recorded.history
    _show(history, text=text, svg=svg, number=number)
    return report


@attrs.frozen(kw_only=True)
class _Told:
    """Prints the results: a full description of each run if requested or failed, else a line per scenario."""

    is_full: bool
    is_json: bool

    def run(self, report: RunResult, path: Path) -> None:
        """Prints one finished run of the scenario in this file."""
        if self.is_json:
            print_json(_as_json(report))
        elif self.is_full or not report.passed:
            _print(report)
            if not report.passed:
                print(f"      show:     fencepost run {path} --text")

    def story(self, name: str, runs: list[RunResult]) -> None:
        """Prints the line of a scenario whose runs are all finished."""
        passed = sum(report.passed for report in runs)
        if passed and not self.is_full and not self.is_json:
            count = f"{passed}" if passed == len(runs) else f"{passed} of {len(runs)}"
            print(f"pass  {name}  ({count} {'run' if len(runs) == 1 else 'runs'})")

    def again(self, failed: list[RunResult]) -> None:
        """Repeats the failures at the end of the output, where a reader looks first."""
        for report in failed:
            print(f"FAIL  {report.name}: {report.problems[0]}")


def _show(history: History, *, text: bool, svg: Path | None, number: int) -> None:
    from rich.console import Console

    from fencepost.simulator.draw.svg import draw
    from fencepost.simulator.draw.text import space_time

    if text:
        on_terminal = sys.stdout.isatty()
        width = max(Console().width, WIDTH_MIN) if on_terminal else WIDTH_IN_PIPE
        print(space_time(history, width=width, folds=on_terminal))
    if svg is not None:
        path = svg if number == 1 else svg.with_name(f"{svg.stem}-{number}{svg.suffix or SVG}")
        target = _picture(path)
        target.prove()
        target.write(draw(history))


def _picture(path: Path) -> Target:
    return Target(path=path, option="--svg", kind="an SVG picture", is_kind=lambda text: "<svg" in text)


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


def _print(report: RunResult) -> None:
    print(f"{'pass' if report.passed else 'FAIL'}  {report.name}")
    for heading, lines in (
        ("", report.problems),
        ("expected: ", report.expected),
        ("reached:  ", report.reached),
        ("struck:   ", report.struck),
        ("broken:   ", report.evidence),
    ):
        for line in lines:
            print(f"      {heading}{line}")
