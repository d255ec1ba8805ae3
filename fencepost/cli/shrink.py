"""`fencepost shrink`: a seed that breaks a rule becomes the smallest scenario that breaks it still.

Rule: what is written was read back and run before anything is said of it, and is never lost.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from cyclopts import Parameter, validators

from fencepost.cli.errors import OK, WRONG_USAGE, CommandFailed, Ended, code_of
from fencepost.cli.fixes import WithoutFixes
from fencepost.cli.fuzz import WorldOptions
from fencepost.cli.fuzz_workers import PausedCollector
from fencepost.cli.output import Json, Target, counted, print_json
from fencepost.cli.run import read

if TYPE_CHECKING:
    from fencepost.simulator.fuzz.shrinking import Failing, Shrunk, Tell

COLLECT_EVERY: Final = 50  # attempts

_Number = Annotated[int, Parameter(validator=validators.Number(gte=0))]


def shrink(
    file: Path | None = None,
    /,
    *,
    seed: _Number | None = None,
    transaction_version: Literal[0, 1, 2] | None = None,
    partition_verification: bool | None = None,
    without_fixes: WithoutFixes = (),
    break_: Annotated[tuple[Literal["fencing", "dedup"], ...], Parameter("--break", negative="")] = (),
    output: Path | None = None,
    budget: Annotated[int | None, Parameter(validator=validators.Number(gte=1))] = None,
    as_json: Annotated[bool, Parameter("--json", negative="")] = False,
) -> int:
    """Make a run that breaks a rule as small as it can be, and write it as a scenario.

    Ctrl-C ends the search, and writes the smallest that was found until then.

    Parameters
    ----------
    file
        A scenario that a search has found (one with a [seeded] table), instead of a seed.
    seed
        The seed, as `fencepost fuzz` tells it.
    transaction_version
        The protocol of that search, when it was not 2.
    partition_verification
        Whether partition leaders asked the coordinator in that search, if that was said there.
    without_fixes
        The fixes that were turned off in that search.
    break_
        The protections that were turned off in that search.
    output
        The file to write, over another one that a search has found. When it is not said: seed-K.toml, or
        NAME-small.toml beside a FILE NAME.toml, and never over what was made of another run.
    budget
        How much to try: events of all attempts together. By default what takes about half a minute.
    as_json
        Print the result once more as JSON, as the last line.
    """
    from fencepost.simulator.fuzz.shrinking import BUDGET
    from fencepost.simulator.scenarios.shrunk import scenario_text

    version = 2 if transaction_version is None else transaction_version
    options = WorldOptions(
        transaction_version=version,
        partition_verification=partition_verification,
        without_fixes=without_fixes,
        broken=break_,
    )
    if file is not None and (transaction_version is not None or str(options)):
        raise CommandFailed(
            f"{file} says itself which protocol it is, and what is turned off in it",
            then="--transaction-version, --partition-verification, --without-fix and --break "
            "go with --seed alone",
            code=WRONG_USAGE,
        )
    name, failing = _failing_of(file, seed, options)
    target = _target(output, file, name=name, origin=f"{name}{options}")
    target.prove()
    began = time.perf_counter()
    shrunk, code = _search(name, failing, budget or BUDGET)
    seconds = time.perf_counter() - began
    is_kept = code == OK or shrunk.best is not failing
    if is_kept:
        sizes = f"{_size(failing)} -> {_size(shrunk.best)}"
        _write(target, scenario_text(name, shrunk.best, f"{name}{options}, made small: {sizes}."))
        print(f"{sizes}, in {seconds:.1f} s: {target.path}")
        _tell_next(target.path, shrunk, budget or BUDGET, is_interrupted=code != OK)
    else:
        print("It was interrupted before anything smaller was found: nothing was written.")
    if as_json:
        print_json(_as_json(failing, shrunk, target.path if is_kept else None, seconds))
    return code


def _search(name: str, failing: Failing, budget: int) -> tuple[Shrunk, int]:
    """The smallest there is, and the exit code: a search that is ended keeps what it had found."""
    from fencepost.simulator.fuzz.shrinking import ShrinkSearch
    from fencepost.simulator.judges.known_anomalies import KnownAnomaly

    search = ShrinkSearch(failing, budget=budget)
    try:
        does = "meets" if isinstance(failing.violation, KnownAnomaly) else "breaks"
        print(f"{name} {does} {failing.violation}", flush=True)
        with _progress() as tell:
            return search.run(tell), OK
    except Ended as ended:
        return search.so_far(), code_of(ended)


def _tell_next(path: Path, shrunk: Shrunk, budget: int, *, is_interrupted: bool) -> None:
    if is_interrupted:
        print(f"  more:   interrupted before all was tried; fencepost shrink {path} goes on from there")
    elif shrunk.is_cut_short:
        print(f"  more:   the budget ran out before all was tried; --budget {2 * budget} tries more")
    print(f"  again:  fencepost run {path}")
    print(f"  seen:   fencepost run {path} --text")


def _target(output: Path | None, file: Path | None, *, name: str, origin: str) -> Target:
    """What is named may give way to any that was found; a name of ours only to one of the same origin."""
    if output is not None:
        kind = "scenario that a search has found"
        return Target(path=output, option="--output", kind=kind, is_kind=_is_found)
    beside = None if file is None else file.with_name(f"{file.stem}-small.toml")
    return Target(
        path=beside or Path(f"{name.replace(' ', '-')}.toml"),
        option="--output",
        kind=f"scenario made of {origin}",
        is_kind=lambda text: _is_found(text) and f"# {origin}, made small: " in text,
    )


def _is_found(text: str) -> bool:
    from fencepost.simulator.scenarios.codec import BadScenario
    from fencepost.simulator.scenarios.files import scenario_of

    try:
        return scenario_of(text, "what is there").seeded is not None
    except BadScenario:
        return False


def _write(target: Target, text: str) -> None:
    """A search takes long: what it found is printed where it cannot be kept."""
    try:
        target.write(text)
    except CommandFailed:
        print(text)
        raise


def _failing_of(file: Path | None, seed: int | None, options: WorldOptions) -> tuple[str, Failing]:
    """What there is to make small, with its name; CommandFailed when there is nothing."""
    from fencepost.simulator.fuzz.shrinking import failing_run, failing_seed

    if (file is None) is (seed is None):
        raise CommandFailed(
            "one run is made small: that of a seed, or of a file",
            then="fencepost shrink --seed 17",
            code=WRONG_USAGE,
        )
    if file is None:
        assert seed is not None, "one of the two is there"
        name, failing = f"seed {seed}", failing_seed(seed, options.planner)
    else:
        scenario = read(
            file, advice="fencepost fuzz finds a seed, and fencepost shrink --seed makes a file of it"
        )
        if scenario.seeded is None:
            raise CommandFailed(
                f"{file} is a story that somebody wrote: only what a search has found is made small",
                then=f"fencepost run {file} --text",
                code=WRONG_USAGE,
            )
        name, failing = scenario.name, failing_run(scenario.seeded.plan, scenario.choices)
    if failing is None:
        raise CommandFailed(f"{name} breaks no rule", then="fencepost fuzz finds a seed that does")
    return name, failing


@contextmanager
def _progress() -> Generator[Tell]:
    """How small it is so far, for people; and between attempts, what attempts have left behind is cleared."""
    attempts = 0

    def tell(best: Failing) -> None:
        nonlocal attempts
        attempts += 1
        if attempts % COLLECT_EVERY == 0:
            gc.collect()
            if sys.stderr.isatty():
                print(f"\r{attempts:,} attempts, {_size(best)}  ", end="", file=sys.stderr, flush=True)

    try:
        with PausedCollector():
            yield tell
    finally:
        if sys.stderr.isatty():
            print(file=sys.stderr)


def _size(failing: Failing) -> str:
    return f"{counted(failing.events, 'event')} and {counted(failing.size, 'choice')}"


def _as_json(failing: Failing, shrunk: Shrunk, target: Path | None, seconds: float) -> dict[str, Json]:
    small = shrunk.best
    return {
        "rule": small.violation.rule,
        "evidence": small.violation.evidence,
        "events_before": failing.events,
        "events": small.events,
        "choices_before": failing.size,
        "choices": small.size,
        "faults": [kind.value for kind in small.plan.kinds],
        "cut_short": shrunk.is_cut_short,
        "file": None if target is None else str(target),
        "seconds": round(seconds, 3),
    }
