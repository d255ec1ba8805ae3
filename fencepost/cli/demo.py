"""`fencepost demo`: the knobs. Rule: nothing heavy is imported before they are understood."""

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
    """A transactional pipeline over 336,776 real flights, killed again and again, then checked with Spark.

    Parameters
    ----------
    flights
        How many flights to process, from the first of the year on.
    kills
        How often to kill, worker and broker together. A fifth of them hit the broker, two at least, but never
        more than half.
    seed
        Draws where the kills fall, and which transactions are aborted on purpose.
    directory
        Keep the data here (it must be empty); else it is removed at the end.
    broken
        Turn one protection off, to see the damage that it prevents.
    as_json
        Print the result once more as JSON, as the last line.
    """
    from fencepost.demo.run import run_demo

    return run_demo(
        flights=flights, kills=kills, seed=seed, directory=directory, broken=broken, as_json=as_json
    )
