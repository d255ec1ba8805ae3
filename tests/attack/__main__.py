"""`python -m tests.attack`: attacks a broker on loopback in every way that is known, and judges what a client
saw meanwhile. The last line is one JSON object; exit code 1 when a verdict fails.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import trio
from cyclopts import App, Parameter

from tests.attack import report
from tests.attack.playing import Run
from tests.attack.run import attacks_named, perform

app = App(name="tests.attack", help_format="plaintext")


@app.default
def attack(
    *,
    seed: int = 1,
    quick: Annotated[bool, Parameter(negative="")] = False,
    only: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    directory: Path | None = None,
    kafka_frames: int = 0,
) -> int:
    """Attack a broker, and judge what an ordinary client saw meanwhile.

    Parameters
    ----------
    seed
        Seed for all random decisions.
    quick
        The short form of each attack, all on one broker; late replies are reported, not judged.
    only
        Attacks by name, or by the beginning of a name. Repeatable.
    directory
        Keep data and output of the brokers here. By default they are removed at the end.
    kafka_frames
        How many damaged Kafka frames are sent, instead of 10,000.
    """
    with TemporaryDirectory(prefix="fencepost-attack-") as temporary:
        run = Run(
            seed=seed,
            is_quick=quick,
            judges_time=not quick,
            directory=directory or Path(temporary),
            kafka_frames=kafka_frames,
        )
        rows = trio.run(perform, attacks_named(only), run, report.tell)
    report.show(rows, seed=seed, quick=quick)
    return int(any(row.faults for row in rows))


if __name__ == "__main__":
    sys.exit(app())
