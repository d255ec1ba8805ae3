"""`fencepost explore`: checks every reachable state of a small cluster.

Rule: exit code 0 is a proof for that cluster. A violation and an incomplete search both exit with 1, and the
output says which of the two it was.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import attrs
from cyclopts import Parameter, validators

from fencepost.check.findings import counted
from fencepost.cli.drawing import NO_DRAWING, DrawOptions, Pictures
from fencepost.cli.errors import FAILED, OK, code_of
from fencepost.cli.html_pages import files_line
from fencepost.cli.interruptions import Ended
from fencepost.cli.options import AsJson, AtLeastOne, TimeBudget, WithoutFixes
from fencepost.cli.output import Json, print_json, print_progress, text_to_stderr

if TYPE_CHECKING:
    from fencepost.lab.document import RunDocument
    from fencepost.simulator.explore import ExploreConfig, Explored

_UpToNine = Annotated[int, Parameter(validator=validators.Number(gte=0, lte=9))]
_OneToNine = Annotated[int, Parameter(validator=validators.Number(gte=1, lte=9))]


def explore(
    *,
    producers: _OneToNine = 1,
    transactions: _OneToNine = 2,
    retries: _UpToNine = 1,
    transaction_version: Literal[0, 1, 2] = 2,
    partitions: _OneToNine = 1,
    crashes: _UpToNine = 0,
    partition_verification: bool | None = None,
    without_fixes: WithoutFixes = (),
    max_states: AtLeastOne = 1_000_000,
    for_: TimeBudget = None,
    draw: DrawOptions = NO_DRAWING,
    output: Path | None = None,
    junit: Path | None = None,
    as_json: AsJson = False,
) -> int:
    """Check every reachable state of a small cluster.

    Parameters
    ----------
    producers
        Number of producers, each with its own transactional id.
    transactions
        Number of transactions of each producer.
    retries
        How often each producer may give up a connection. Requests that it sent on that connection can still
        arrive at any time.
    transaction_version
        Transaction protocol: 0 is KIP-98, 1 is the same with another format of the transaction log, 2 is
        KIP-890 with an epoch per transaction.
    partitions
        Number of partitions of the topic; every transaction writes to all of them.
    crashes
        How often the broker may crash, at any point, and restart from its logs.
    partition_verification
        Whether partition leaders verify transactions of older clients with the coordinator.
        [default: no in version 0, as in Kafka before KIP-890; yes in versions 1 and 2]
    without_fixes
        Switch off one of Kafka's later fixes, by its name in `fencepost help fidelity`. Repeatable.
    max_states
        Stop the search after this number of states.
    for_
        Stop the search after this time, such as 10m. A search that stops before it has checked all states
        proves nothing, and its exit code is 1.
    output
        Directory for the files of a violation: page, drawing, table, JSON, and a scenario for `fencepost
        run` if a scenario can show the violation.
    junit
        Write a report in JUnit's XML format to this file.
    """
    from fencepost.broker.kafka_fixes import KafkaFixes
    from fencepost.cli import artefacts
    from fencepost.simulator.explore import ExploreConfig

    pictures = Pictures(draw)
    pictures.check(as_json=as_json)
    artefacts.make_directory(output)
    report = artefacts.junit_target(junit)
    config = ExploreConfig(
        producers=producers,
        transactions=transactions,
        retries=retries,
        partitions=partitions,
        transaction_version=transaction_version,
        partition_verification=partition_verification,
        fixes=KafkaFixes.without(without_fixes),
        crashes=crashes,
        max_states=max_states,
    )
    result = _search(config, for_)
    explored = result.explored
    document, written = _show(pictures, explored)
    told = result.words()
    with text_to_stderr(as_json=as_json):
        print("\n".join((*told, *written)))
        if output is not None and document is not None:
            _save(output, explored, document)
    if report is not None:
        case = artefacts.JUnitCase(
            suite="explore",
            name=explored.command,
            seconds=result.seconds,
            failure=None if explored.complete else told[-2],
            details="\n".join(told),
        )
        report.write(artefacts.junit(explored.command, [case]))
    if as_json:
        print_json(result.as_json())
    return OK if explored.complete else result.code


def _show(pictures: Pictures, explored: Explored) -> tuple[RunDocument | None, list[str]]:
    """Shows the trace to a violation. Returns its document, None if there is none, and lines that name the
    files.
    """
    from fencepost.lab.recordings import record_explored

    document, written = record_explored(explored), list[str]()
    if explored.history is not None and (drawn := pictures.show(explored.history)):
        written.append(f"  {files_line('picture', drawn, width=7)}")
    if document is not None and pictures.options.html is not None:
        written.append(f"  {files_line('page', [pictures.pages.write([document])], width=7)}")
    return document, written


class _TimeIsOver(Exception):
    """The time of --for is over."""


def _search(config: ExploreConfig, seconds_max: float | None) -> _SearchResult:
    """Searches to the end, to the first violation, or until the user or --for ends it."""
    from fencepost.simulator.explore import StateSearch

    began, search = time.perf_counter(), StateSearch(config)
    code, stopped_by = FAILED, "the search reached --max-states"

    def tell(states: int, waiting: int) -> None:
        print_progress(f"{states:,} states checked, {waiting:,} waiting")
        if seconds_max is not None and time.perf_counter() - began >= seconds_max:
            raise _TimeIsOver

    try:
        explored = search.run(tell)
    except Ended as ended:
        explored, code, stopped_by = search.so_far(), code_of(ended), "the search was interrupted"
    except _TimeIsOver:
        explored, stopped_by = search.so_far(), "the time limit of --for was reached"
    print_progress()
    seconds = time.perf_counter() - began
    return _SearchResult(explored=explored, code=code, stopped_by=stopped_by, seconds=seconds)


@attrs.frozen(kw_only=True)
class _SearchResult:
    """A search, its exit code and what stopped it if it is incomplete, and the time it took."""

    explored: Explored
    code: int
    stopped_by: str
    seconds: float

    def words(self) -> list[str]:
        """The trace of a violation, the result, and counts of the steps that the search took."""
        explored, lines = self.explored, list[str]()
        lines += [f"{number:>4}  {step}" for number, step in enumerate(explored.trace, start=1)]
        states, steps = counted(explored.states, "state"), counted(explored.transitions, "transition")
        size = f"{states} and {steps} in {self.seconds:.2f} s"
        if explored.violation is not None:
            found = f"{explored.violation} after {counted(len(explored.trace), 'step')}"
            lines.append(f"{found}: {explored.because} ({size}).")
        elif explored.complete:
            ends = counted(explored.ends, "final state")
            lines.append(f"No violation in any reachable state: {size}, {ends}.")
        else:
            lines.append(f"No violation so far, but {self.stopped_by} before it checked all states: {size}.")
        counts = ", ".join(f"{count:,} {name}" for name, count in explored.reached.items())
        return [*lines, f"The transitions include {counts}."]

    def as_json(self) -> dict[str, Json]:
        """The same as one JSON object."""
        explored = self.explored
        told = attrs.asdict(explored, filter=lambda field, _: field.name not in ("config", "retell"))
        return told | {
            "steps": len(explored.trace),
            "seconds": round(self.seconds, 3),
            "states_per_second": round(explored.states / self.seconds),
            "transaction_version": explored.config.transaction_version,
        }


def _save(directory: Path, explored: Explored, document: RunDocument) -> None:
    """Writes the files of a violation, and says whether a scenario can show it."""
    from fencepost.cli.artefacts import FailedRun, files_in, save
    from fencepost.simulator.scenarios.files import text_of

    assert explored.history is not None, "a violation has a history"
    assert explored.violation is not None, "only a violation is saved"
    scenario = explored.scenario()
    failure = FailedRun(
        name=f"explored-{explored.violation}",
        scenario="" if scenario is None else text_of(scenario),
        history=explored.history,
        document=document,
        facts={
            "violation": explored.violation,
            "because": explored.because,
            "trace": explored.trace,
            "replay": explored.command,
        },
    )
    written = save(directory, failure)
    print(files_in(directory, written))
    if scenario is None:
        why = "the faults of scenarios cannot reproduce the order of messages in this trace"
        print(f"  No scenario was written: {why}.")
    else:
        print(f"  replay: fencepost run {written[0]}")
