"""`fencepost explore`: every future of a small world, looked at one by one.

Rule: exit code 0 is a proof. When something is found, as a linter's, and when not all was looked at, it is
another, and the words say which.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter, validators

from fencepost.cli.errors import FAILED, OK, Ended, code_of
from fencepost.cli.fixes import WithoutFixes
from fencepost.cli.output import Json, counted, print_json

if TYPE_CHECKING:
    from fencepost.simulator.explore import ExploreConfig, Explored

_Count = Annotated[int, Parameter(validator=validators.Number(gte=0, lte=9))]
_AtLeastOne = Annotated[int, Parameter(validator=validators.Number(gte=1, lte=9))]


def explore(
    *,
    producers: _AtLeastOne = 1,
    transactions: _AtLeastOne = 2,
    retries: _Count = 1,
    transaction_version: Literal[0, 1, 2] = 2,
    partitions: _AtLeastOne = 1,
    crashes: _Count = 0,
    partition_verification: bool | None = None,
    without_fixes: WithoutFixes = (),
    max_states: Annotated[int, Parameter(validator=validators.Number(gte=1))] = 1_000_000,
    as_json: Annotated[bool, Parameter("--json", negative="")] = False,
) -> int:
    """Look at every state that a small world can come to, and stop at the first that is wrong.

    The world is the real broker and real producers: each begins its transactions one after the other,
    writes one record into every partition, and commits or aborts: both are tried. Exit code 1 when
    something is found, and when the search is cut short before all was looked at.

    Parameters
    ----------
    producers
        How many producers, each with a transactional id of its own.
    transactions
        How many transactions each of them makes.
    retries
        How often each may give up a connection; what it had sent there can still arrive, at any time.
    transaction_version
        The protocol: 2 is KIP-890's with an epoch per transaction, 0 is KIP-98's.
    partitions
        Partitions of the one topic; every transaction writes into all of them.
    crashes
        How often the broker may die, at any moment, and start again from its logs.
    partition_verification
        Whether partition leaders ask the coordinator about batches of older clients; else as that version was
        shipped: not in version 0.
    without_fixes
        One of Kafka's later fixes to turn off, by its name in docs/fidelity.md; may be repeated.
    max_states
        Where the search is cut short.
    as_json
        Print the result once more as JSON, as the last line.
    """
    from fencepost.broker.kafka_fixes import KafkaFixes
    from fencepost.simulator.explore import ExploreConfig, Search

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
    began = time.perf_counter()
    search, code = Search(config), FAILED
    try:
        explored = search.run(_tell_progress if sys.stderr.isatty() else None)
    except Ended as ended:
        explored, code = search.so_far(), code_of(ended)
    seconds = time.perf_counter() - began
    _tell(explored, seconds, is_interrupted=code != FAILED)
    if as_json:
        print_json(_as_json(config, explored, seconds))
    return OK if explored.complete else code


def _tell_progress(states: int, waiting: int) -> None:
    print(f"\r{states:,} states, {waiting:,} to look at ", end="", file=sys.stderr, flush=True)


def _tell(explored: Explored, seconds: float, *, is_interrupted: bool) -> None:
    for number, step in enumerate(explored.trace, start=1):
        print(f"{number:>4}  {step.label}")
    states, steps = counted(explored.states, "state"), counted(explored.transitions, "step")
    size = f"{states} and {steps} between them in {seconds:.2f} s"
    if explored.violation is not None:
        found = f"{explored.violation} after {counted(len(explored.trace), 'step')}"
        print(f"{found}: {explored.because} ({size}).")
    elif explored.complete:
        ends = counted(explored.ends, "way")
        print(f"Nothing wrong in any state of this world: {size}, {ends} to end.")
    elif is_interrupted:
        print(f"Nothing wrong so far, but it was interrupted before all was looked at: {size}.")
    else:
        print(f"Nothing wrong so far, but not all was looked at: {size}. --max-states lets it go on.")
    print(f"Among these steps: {', '.join(f'{count:,} {name}' for name, count in explored.reached.items())}.")


def _as_json(config: ExploreConfig, explored: Explored, seconds: float) -> dict[str, Json]:
    return {
        "violation": explored.violation,
        "because": explored.because,
        "steps": len(explored.trace),
        "trace": [step.label for step in explored.trace],
        "states": explored.states,
        "transitions": explored.transitions,
        "complete": explored.complete,
        "core_steps": explored.core_steps,
        "ends": explored.ends,
        "reached": dict(explored.reached),
        "seconds": round(seconds, 3),
        "states_per_second": round(explored.states / seconds),
        "transaction_version": config.transaction_version,
    }
