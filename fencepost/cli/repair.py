"""`fencepost repair DIR`: lists what a damaged data directory has lost, and with --write, saves the rest.

Rule: a dry run changes nothing. With --write every damaged original is set aside, whole. The exit code is 0
if there was nothing to repair or the repair succeeded, 1 if a dry run found damage or a broker runs there,
and 2 if there is no such directory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fencepost.check.directory import check_directory
from fencepost.check.findings import Severity
from fencepost.cli.errors import FAILED, OK, WRONG_USAGE, CommandFailed
from fencepost.cli.options import AsJson
from fencepost.cli.output import print_json
from fencepost.cli.table import counted
from fencepost.journal.disk import DiskStorage
from fencepost.protocol.terms import escaped
from fencepost.repair.perform import perform
from fencepost.repair.plan import Plan, make_plan, refuse_kafka
from fencepost.repair.report import as_facts, in_words


def repair(
    directory: Path,
    /,
    *,
    write: Annotated[bool, Parameter(negative="")] = False,
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
        _check_adopted(plan, adopt)
        asides = perform(storage, plan) if write and plan.is_needed else None
        problems = 0 if asides is None else check_directory(storage).count(Severity.PROBLEM)
    finally:
        storage.unlock()
    lines = [escaped(line) for line in [*in_words(plan, asides), *_end(plan, asides, problems)]]
    facts = as_facts(plan, asides) | {"problems_left": None if asides is None else problems}
    if asides is not None:
        report = _write_report(directory, lines, facts)
        lines.append(f"This report is in {report}.")
    if as_json:
        print_json(facts)
    else:
        print("\n".join(lines))
    return OK if asides is not None or not plan.is_needed else FAILED


def _check_adopted(plan: Plan, topics: tuple[str, ...]) -> None:
    for topic in topics:
        if topic not in plan.adopted:
            raise CommandFailed(
                f"--adopt {topic}: the metadata still has this topic, or there is no directory {topic}-0",
                then=f"first rename the directories set aside, for example {topic}-0~1 to {topic}-0",
                code=WRONG_USAGE,
            )


def _end(plan: Plan, asides: list[str] | None, problems: int) -> list[str]:
    """The last lines: what was done, and what to do next."""
    found = counted(len(plan.damages), "damaged place")
    if not plan.is_needed:
        return ["Nothing to repair."]
    if asides is None:
        command = f"fencepost repair {plan.location} --write"
        return ["", f"{found}. Nothing was changed; `{command}` repairs this and keeps the originals."]
    left = f"`fencepost check` finds {counted(problems, 'problem')}"
    return ["", f"{found} repaired; {left}. A broker can start."]


def _write_report(directory: Path, lines: list[str], facts: Mapping[str, object]) -> Path:
    """The report as text and as JSON, next to those of earlier repairs."""
    path = next(new for n in count(1) if not (new := directory / f"repair~{n}.txt").exists())
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    path.with_suffix(".json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return path
