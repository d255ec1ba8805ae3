"""`fencepost repair DIR`: lists what a damaged data directory has lost, and with --write, saves the rest.

Rule: a dry run changes nothing. With --write every damaged original is set aside, whole, and the report is on
the disk before anything is changed: a repair that is started again finds only the damage that is left. The
exit code is 0 if there was nothing to repair or the repair succeeded, 1 if a dry run found damage, a broker
runs there or the repair stopped halfway, and 2 if there is no such directory.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from itertools import count
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from fencepost.check.directory import check_directory
from fencepost.check.findings import Severity, counted
from fencepost.cli.errors import FAILED, OK, CommandFailed, WrongUsage
from fencepost.cli.options import AsJson, Flag
from fencepost.cli.output import print_json
from fencepost.journal.disk import DiskStorage
from fencepost.journal.storage import Storage, StorageError, StorageReader
from fencepost.protocol.terms import escaped
from fencepost.repair.directory_files import refuse_kafka
from fencepost.repair.perform import perform
from fencepost.repair.plan import Plan
from fencepost.repair.planner import make_plan
from fencepost.repair.report import as_facts, in_words

Facts = dict[str, Any]


def repair(
    directory: Path,
    /,
    *,
    write: Flag = False,
    adopt: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    as_json: AsJson = False,
) -> int:
    """List the damage of a data directory, and repair it.

    Parameters
    ----------
    directory
        The data directory of `fencepost serve`. The broker must be stopped.
    write
        Repair. Without it, nothing is changed.
    adopt
        Restore this topic, which the metadata has lost, from its directories. Repeatable.
    """
    storage = DiskStorage(directory, read_only=not write)
    storage.directories()  # before the lock, which creates a directory, and a file in it
    refuse_kafka(storage)
    try:
        if write:
            storage.lock()
        else:
            storage.keep_out()
        plan = make_plan(storage, adopt=frozenset(adopt))
        _check_adopted(plan, adopt, storage.directories())
        if write and plan.is_needed:
            lines, facts = _repaired(storage, plan)
        else:
            lines, facts = _text(plan, None, _end(plan)), _facts(plan, None, None)
    finally:
        storage.unlock()
    if as_json:
        print_json(facts)
    else:
        print("\n".join(lines))
    return OK if write or not plan.is_needed else FAILED


def _repaired(storage: Storage, plan: Plan) -> tuple[list[str], Facts]:
    """Carry out the plan; the report in words and as facts."""
    again = f"`fencepost repair {storage.location} --write`"
    found = counted(len(plan.damages), "damaged place")
    begun = f"The repair of {found} has begun. If this remains the last line, run {again} again."
    report = _new_report(storage)
    _write_report(storage, report, _text(plan, None, ["", begun]), _facts(plan, None, None))
    try:
        asides = perform(storage, plan)
    except StorageError as problem:
        what = f"the repair stopped halfway: {problem}. {storage.location}/{report} says what is lost"
        then = f"remove the cause, then run {again} again, which repairs the rest"
        raise CommandFailed(what, then=then) from problem
    problems = check_directory(storage).count(Severity.PROBLEM)
    left = f"`fencepost check` finds {counted(problems, 'problem')}"
    lines = _text(plan, asides, ["", f"{found} repaired; {left}. A broker can start."])
    facts = _facts(plan, asides, problems)
    _write_report(storage, report, lines, facts)
    return [*lines, f"This report is in {storage.location}/{report}."], facts


def _check_adopted(plan: Plan, topics: tuple[str, ...], directories: Collection[str]) -> None:
    for topic in topics:
        if topic not in plan.adopted:
            is_there = f"{topic}-0" in directories
            why = "the metadata still has this topic" if is_there else f"there is no directory {topic}-0"
            raise WrongUsage(
                f"--adopt {topic}: {why}",
                then=f"first rename the directories set aside, for example {topic}-0~1 to {topic}-0",
            )


def _text(plan: Plan, asides: list[str] | None, end: list[str]) -> list[str]:
    return [escaped(line) for line in [*in_words(plan, asides), *end]]


def _facts(plan: Plan, asides: list[str] | None, problems: int | None) -> Facts:
    return as_facts(plan, asides) | {"problems_left": problems}


def _end(plan: Plan) -> list[str]:
    """The last lines of a run that repaired nothing: what to do next."""
    if not plan.is_needed:
        return ["Nothing to repair."]
    found = counted(len(plan.damages), "damaged place")
    command = f"fencepost repair {plan.location} --write"
    return ["", f"{found}. Nothing was changed; `{command}` repairs the damage and keeps the originals."]


def _new_report(storage: StorageReader) -> str:
    """The name of a report next to those of earlier repairs."""
    names = storage.files("")
    return next(name for number in count(1) if (name := f"repair~{number}.txt") not in names)


def _write_report(storage: Storage, report: str, lines: list[str], facts: Facts) -> None:
    """The report as text and as JSON, durably."""
    storage.replace(report, ("\n".join(lines) + "\n").encode(), durable=True)
    content = (json.dumps(facts, indent=2) + "\n").encode()
    storage.replace(f"{report.removesuffix('.txt')}.json", content, durable=True)
