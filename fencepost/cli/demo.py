"""`fencepost demo`: its options. The demonstration is imported only after they are valid."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter, validators

ALL_FLIGHTS = 336_776


def demo(
    *,
    flights: Annotated[int, Parameter(validator=validators.Number(gte=100, lte=ALL_FLIGHTS))] = ALL_FLIGHTS,
    kills: Annotated[int, Parameter(validator=validators.Number(gte=0, lte=100))] = 10,
    seed: int = 1,
    directory: Path | None = None,
    broken: Annotated[Literal["fencing", "dedup", "isolation"] | None, Parameter("--break")] = None,
    as_json: Annotated[bool, Parameter("--json", negative="")] = False,
) -> int:
    """Run a transactional pipeline over 336,776 real flights, kill it repeatedly, and check the result with
    Spark.

    Parameters
    ----------
    flights
        Number of flights to process, from the first of the year on.
    kills
        Number of kills. A fifth of them hit the broker (at least two, at most half), the others hit a worker.
    seed
        Seed for the points of the kills and for the transactions that are aborted on purpose.
    directory
        Keep the data in this empty directory. By default it is removed at the end.
    broken
        Turn off one protection, to show the damage that it prevents.
    as_json
        Also print the result as JSON, as the last line.
    """
    from fencepost.demo.run import run_demo

    return run_demo(
        flights=flights, kills=kills, seed=seed, directory=directory, broken=broken, as_json=as_json
    )
