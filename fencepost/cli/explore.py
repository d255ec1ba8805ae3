"""`fencepost explore`: checks every reachable state of a small cluster.

Rule: exit code 0 is a proof for that cluster. A violation and an incomplete search both exit with 1, and the
output says which of them it was.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Literal

import attrs
from cyclopts import Parameter, validators

from fencepost.cli.errors import FAILED, OK, Ended, code_of
from fencepost.cli.options import WithoutFixes
from fencepost.cli.output import Json, print_json, text_beside
from fencepost.cli.table import counted

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
    """Check every reachable state of a small cluster.

    Parameters
    ----------
    producers
        Number of producers, each with its own transactional id.
    transactions
        Number of transactions of each producer.
    retries
        How often each producer may give up a connection. Requests that it sent there can still arrive at any
        time.
    transaction_version
        Transaction protocol: 0 is KIP-98, 1 is the same with another format of the transaction log, 2 is
        KIP-890 with an epoch per transaction.
    partitions
        Number of partitions of the topic; every transaction writes to all of them.
    crashes
        How often the broker may crash, at any point, and restart from its logs.
    partition_verification
        Whether partition leaders verify transactions of older clients with the coordinator.
        [default: no in version 0, as it shipped; yes in versions 1 and 2]
    without_fixes
        Switch off one of Kafka's later fixes, by its name in docs/fidelity.md. Repeatable.
    max_states
        Stop the search after this number of states.
    """
    from fencepost.broker.kafka_fixes import KafkaFixes
    from fencepost.simulator.explore import ExploreConfig, StateSearch

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
    search, code = StateSearch(config), FAILED
    try:
        explored = search.run(_tell_progress if sys.stderr.isatty() else None)
    except Ended as ended:
        explored, code = search.so_far(), code_of(ended)
    seconds = time.perf_counter() - began
    with text_beside(as_json=as_json):
        _tell(explored, seconds, is_interrupted=code != FAILED)
    if as_json:
        print_json(_as_json(config, explored, seconds))
    return OK if explored.complete else code


def _tell_progress(states: int, waiting: int) -> None:
    print(f"\r{states:,} states checked, {waiting:,} waiting ", end="", file=sys.stderr, flush=True)


def _tell(explored: Explored, seconds: float, *, is_interrupted: bool) -> None:
    for number, step in enumerate(explored.trace, start=1):
        print(f"{number:>4}  {step}")
    states, steps = counted(explored.states, "state"), counted(explored.transitions, "transition")
    size = f"{states} and {steps} in {seconds:.2f} s"
    if explored.violation is not None:
        found = f"{explored.violation} after {counted(len(explored.trace), 'step')}"
        print(f"{found}: {explored.because} ({size}).")
    elif explored.complete:
        print(f"No violation in any reachable state: {size}, {counted(explored.ends, 'final state')}.")
    elif is_interrupted:
        print(f"No violation so far, but the search was interrupted before it checked all states: {size}.")
    else:
        print(
            f"No violation so far, but the search reached --max-states before it checked all states: {size}."
        )
    counts = ", ".join(f"{count:,} {name}" for name, count in explored.reached.items())
    print(f"The transitions include {counts}.")


def _as_json(config: ExploreConfig, explored: Explored, seconds: float) -> dict[str, Json]:
    return attrs.asdict(explored) | {
        "steps": len(explored.trace),
        "seconds": round(seconds, 3),
        "states_per_second": round(explored.states / seconds),
        "transaction_version": config.transaction_version,
    }
