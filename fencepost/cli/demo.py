"""`fencepost demo`: its options, its directory and its result. The demonstration is imported when it runs.

Rule: files stay only with --directory.
"""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter, validators

from fencepost.cli.errors import FAILED, OK, WrongUsage
from fencepost.cli.options import AsJson, Flag
from fencepost.cli.output import print_json, text_to_stderr

ALL_FLIGHTS = 336_776


def demo(
    *,
    flights: Annotated[int, Parameter(validator=validators.Number(gte=100, lte=ALL_FLIGHTS))] = ALL_FLIGHTS,
    kills: Annotated[int, Parameter(validator=validators.Number(gte=0, lte=100))] = 10,
    seed: int = 1,
    sync: Literal["none", "commit", "all"] = "none",
    directory: Path | None = None,
    broken: Annotated[Literal["fencing", "dedup", "isolation"] | None, Parameter("--break")] = None,
    follow: Flag = False,
    as_json: AsJson = False,
) -> int:
    """Run a transactional pipeline over 336,776 real flights, kill it repeatedly, and check the result with
    Spark.

    Parameters
    ----------
    flights
        Number of flights to process, beginning with the first of the year.
    kills
        Number of kills. A fifth of them hit the broker (at least two, at most half); the others hit a worker.
    seed
        Seed for the points of the kills and for the transactions that are aborted on purpose.
    sync
        When the broker forces the log to disk, as in `fencepost serve`.
    directory
        Keep the data in this empty directory. By default it is removed at the end.
    broken
        Turn off one protection, to show the damage that it prevents.
    follow
        Let `fencepost lab` follow the broker; the command to start it is printed at the beginning.
    """
    import trio

    from fencepost.demo.dataset import flights_file
    from fencepost.demo.plan import TooManyKills, draw_plan
    from fencepost.demo.processes import Demo
    from fencepost.demo.report import DemoResult, StoryLog
    from fencepost.demo.run import perform_unless_stopped
    from fencepost.spark_bridge.session import require_spark

    try:
        plan = draw_plan(seed=seed, flights=flights, kills=kills, sync=sync)
    except TooManyKills as problem:
        raise WrongUsage(str(problem), then="give a smaller --kills or a larger --flights") from problem
    require_spark()
    _check_directory(directory)
    result = DemoResult.of(plan, broken=broken)
    story = StoryLog()
    with (
        text_to_stderr(as_json=as_json),
        tempfile.TemporaryDirectory(prefix="fencepost-demo-")
        if directory is None
        else nullcontext(directory) as place,
    ):
        data = Path(place, "data")
        demo = Demo(plan=plan, data=data, source=flights_file(), story=story, result=result, follow=follow)
        trio.run(perform_unless_stopped, demo)
        if directory is not None:
            story.tell(f"the log is in {data}; read it with `fencepost dump {data}`")
        story.show(result.to_table())
        story.console.print(result.sentence(), style="green" if result.ok else "red", markup=False)
    if as_json:
        print_json(result.to_json())
    return OK if result.ok else FAILED


def _check_directory(directory: Path | None) -> None:
    """WrongUsage if the data cannot be kept in the directory; makes it."""
    if directory is None:
        return
    from fencepost.journal.data_directory import refuse_nested
    from fencepost.journal.disk import DiskStorage
    from fencepost.journal.storage import NotADataDirectory

    then = "give a new or empty directory with --directory"
    try:
        refuse_nested(DiskStorage(directory))
        directory.mkdir(parents=True, exist_ok=True)
        is_empty = not any(directory.iterdir())
    except NotADataDirectory as problem:
        raise WrongUsage(str(problem), then=then) from problem
    except OSError as problem:
        raise WrongUsage(f"cannot keep the data in {directory}: {problem.strerror}", then=then) from problem
    if not is_empty:
        raise WrongUsage(f"{directory} is not empty", then=then)
