"""`fencepost shrink`: reduces a seed that violates a rule to the smallest scenario that still does.

Rule: a scenario is read back and run before it is reported, and it is never lost: if the file cannot be
written, it is printed.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fencepost.check.findings import counted
from fencepost.cli.errors import OK, CommandFailed, WrongUsage, code_of
from fencepost.cli.files import FileKind, Target
from fencepost.cli.fuzz import DEFAULT_WORLD, WorldOptions
from fencepost.cli.fuzz_workers import PausedCollector
from fencepost.cli.html_pages import Pages, files_line
from fencepost.cli.interruptions import Ended
from fencepost.cli.options import AsJson, AtLeastOne, AtLeastZero
from fencepost.cli.output import Json, print_json, print_progress, text_to_stderr
from fencepost.cli.scenario_files import file_of, name_of, read

if TYPE_CHECKING:
    from fencepost.simulator.fuzz.shrinking import Failing, ShrinkSearch, Tell

COLLECT_EVERY: Final = 50  # attempts


def shrink(
    scenario: str | None = None,
    /,
    *,
    seed: AtLeastZero | None = None,
    options: WorldOptions = DEFAULT_WORLD,
    output: Path | None = None,
    html: Path | None = None,
    budget: AtLeastOne | None = None,
    as_json: AsJson = False,
) -> int:
    """Reduce a failing run to a small scenario.

    Parameters
    ----------
    scenario
        The file of a generated scenario (one with a [seeded] table) that violates a rule, instead of --seed.
        The bundled scenarios violate none.
    seed
        The seed, as `fencepost fuzz` prints it. Repeat the options of that search.
    output
        Output file; replaces an existing file only if that is a generated scenario. [default: seed-K.toml, or
        NAME-small.toml beside NAME.toml; replaces only results of the same run]
    html
        Write a page of the shrunk run to this HTML file, on which you step through it in a browser.
    budget
        Limit for the number of simulated events in all attempts. [default: about half a minute of work]
    """
    from fencepost.simulator.judges.known_anomalies import KnownAnomaly
    from fencepost.simulator.scenarios.model import cases

    file = None if scenario is None else file_of(scenario)
    if file is not None and options != DEFAULT_WORLD:
        raise WrongUsage(
            f"{scenario} already contains the options of its run",
            then="--workload, --transaction-version, --partition-verification, --without-fix and --break "
            "can only be given with --seed",
        )
    name, failing = _failing_of(file, seed, options)
    target = _target(output, file, name=name, origin=f"{name}{options}")
    target.check()
    pages = Pages(html)
    pages.check()
    does = "shows" if isinstance(failing.violation, KnownAnomaly) else "violates"
    with text_to_stderr(as_json=as_json):
        print(f"{name} {does} {failing.violation}", flush=True)
    code = shrink_to(target, name, failing, origin=f"{name}{options}", budget=budget, as_json=as_json)
    if html is not None and target.path.exists():
        (case,) = cases(read(target.path))
        with text_to_stderr(as_json=as_json):
            print(f"  {files_line('page', [pages.of_case(case)], width=9)}")
    return code


def shrink_to(
    target: Target,
    name: str,
    failing: Failing,
    *,
    origin: str,
    budget: int | None = None,
    as_json: bool = False,
) -> int:
    """Shrinks a failing run, writes the scenario and prints what to do next; returns the exit code."""
    from fencepost.simulator.fuzz.shrinking import BUDGET
    from fencepost.simulator.scenarios.found import scenario_text

    began = time.perf_counter()
    with text_to_stderr(as_json=as_json):
        search, code = _search(failing, budget or BUDGET)
        seconds = time.perf_counter() - began
        is_kept = code == OK or search.best is not failing
        if is_kept:
            sizes = f"{_size(failing)} -> {_size(search.best)}"
            _write(target, scenario_text(name, search.best, f"{origin}, shrunk: {sizes}."))
            print(f"{sizes}, in {seconds:.1f} s: {target.path}")
            _print_next_steps(target.path, search, budget or BUDGET, is_interrupted=code != OK)
        else:
            print("Interrupted before a smaller run was found; no file was written.")
    if as_json:
        print_json(_as_json(failing, search, target.path if is_kept else None, seconds))
    return code


def _search(failing: Failing, budget: int) -> tuple[ShrinkSearch, int]:
    """The search when it has ended or was interrupted, and the exit code."""
    from fencepost.simulator.fuzz.shrinking import ShrinkSearch

    search = ShrinkSearch(failing, budget=budget)
    try:
        with _progress() as search.tell:
            search.run()
    except Ended as ended:
        return search, code_of(ended)
    return search, OK


def _print_next_steps(path: Path, search: ShrinkSearch, budget: int, *, is_interrupted: bool) -> None:
    if is_interrupted:
        print(f"  continue: fencepost shrink {path} (interrupted before everything had been tried)")
    elif search.is_cut_short:
        print(f"  continue: with --budget {2 * budget} (the budget ran out before everything had been tried)")
    print(f"  replay:   fencepost run {path}")
    print(f"  show:     fencepost run {path} --text")


def _target(output: Path | None, file: Path | None, *, name: str, origin: str) -> Target:
    """The output file. A file named by the user may replace any generated scenario; a default name replaces
    only a scenario that was shrunk from the same run.
    """
    if output is not None:
        return Target(path=output, option="--output", kind=GENERATED)
    beside = None if file is None else file.with_name(f"{file.stem}-small.toml")
    return Target(
        path=beside or Path(f"{name.replace(' ', '-')}.toml"),
        option="--output",
        kind=FileKind(
            f"a scenario shrunk from {origin}",
            lambda text: _is_generated(text) and f"# {origin}, shrunk: " in text,
            ".toml",
        ),
    )


def _is_generated(text: str) -> bool:
    """Whether a search wrote this text, so that it may be overwritten."""
    from fencepost.simulator.scenarios.codec import BadScenario
    from fencepost.simulator.scenarios.files import scenario_of

    try:
        return scenario_of(text, "what is there").seeded is not None
    except BadScenario:
        return False


GENERATED: Final = FileKind("a generated scenario", _is_generated, ".toml")


def _write(target: Target, text: str) -> None:
    """Writes the scenario; prints it if it cannot be written, because the search took long."""
    try:
        target.write(text)
    except CommandFailed:
        print(text)
        raise


def _failing_of(file: Path | None, seed: int | None, options: WorldOptions) -> tuple[str, Failing]:
    """The run to shrink, with its name; CommandFailed if there is none."""
    from fencepost.simulator.fuzz.shrinking import failing_run, failing_seed

    if (file is None) is (seed is None):
        given = "none was given" if file is None else "not both"
        raise WrongUsage(
            f"shrink needs either --seed or a scenario; {given}",
            then="for example: fencepost shrink --seed 17",
        )
    if file is None:
        assert seed is not None, "one of the two is given"
        name, failing = f"seed {seed}", failing_seed(seed, options.kind.planner)
    else:
        scenario = read(
            file, advice="`fencepost fuzz` finds failing seeds; `fencepost shrink --seed` writes a scenario"
        )
        given = name_of(file)
        if scenario.seeded is None:
            raise WrongUsage(
                f"{given} was written by hand; shrink is for generated scenarios (with a [seeded] table)",
                then=f"to see what happens in it: fencepost run {given} --text",
            )
        if scenario.faults:
            raise WrongUsage(
                f"{given} has [[fault]] tables, and shrink can shrink only what is in its [seeded] table",
                then="remove them, or shrink the scenario that they were added to",
            )
        name, failing = given, failing_run(scenario.seeded, scenario.choices)
    if failing is None:
        raise CommandFailed(
            f"{name} violates no rule, so there is nothing to shrink",
            then="`fencepost fuzz` finds seeds that violate one",
        )
    return name, failing


@contextmanager
def _progress() -> Generator[Tell]:
    """Shows the size so far on a terminal, and frees the memory of past attempts now and then."""
    attempts = 0

    def tell(best: Failing) -> None:
        nonlocal attempts
        attempts += 1
        if attempts % COLLECT_EVERY == 0:
            gc.collect()
            print_progress(f"{attempts:,} attempts, {_size(best)}")

    try:
        with PausedCollector():
            yield tell
    finally:
        print_progress()


def _size(failing: Failing) -> str:
    return f"{counted(failing.events, 'event')} and {counted(failing.size, 'choice')}"


def _as_json(failing: Failing, search: ShrinkSearch, target: Path | None, seconds: float) -> dict[str, Json]:
    small = search.best
    return {
        "rule": small.violation.rule,
        "evidence": small.violation.evidence,
        "events_before": failing.events,
        "events": small.events,
        "choices_before": failing.size,
        "choices": small.size,
        "faults": [kind.value for kind in small.plan.kinds],
        "cut_short": search.is_cut_short,
        "file": None if target is None else str(target),
        "seconds": round(seconds, 3),
    }
