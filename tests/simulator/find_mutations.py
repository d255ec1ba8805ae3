"""Searches the first seed that finds each planted bug, and writes them to docs/mutations.json:
`python -m tests.simulator.find_mutations`, then `make docs`.

Rule: every bug is looked for in the very same worlds, those of `fencepost fuzz` with its workload.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, RawTextHelpFormatter
from concurrent.futures import ProcessPoolExecutor
from typing import Final

import attrs

from fencepost.simulator.fuzz.plan import PLANNERS
from fencepost.simulator.fuzz.worlds import try_seed
from tests.simulator.mutations import MUTATIONS
from tests.simulator.planting import Mutation, planted
from tools.docs.pages import PLANTED_BUGS, PlantedBug

SEEDS_MAX: Final = 2_000
CORES: Final = 2


def search(mutation: Mutation) -> PlantedBug | None:
    """The first of the seeds that finds this bug; None when none does."""
    with planted(mutation):
        for seed in range(SEEDS_MAX):
            violation = try_seed(seed, PLANNERS[mutation.workload]).violation
            if violation is not None and mutation.rule in ("", violation.rule):
                return PlantedBug(
                    mutation=mutation.name,
                    breaks=mutation.breaks,
                    workload=mutation.workload,
                    seed=seed,
                    rule=violation.rule,
                )
    return None


def main() -> int:
    """Searches for all of them; 1 when one is not found, and then nothing is written."""
    ArgumentParser(
        prog="python -m tests.simulator.find_mutations",
        description=__doc__,
        formatter_class=RawTextHelpFormatter,
    ).parse_args()
    found: list[PlantedBug] = []
    with ProcessPoolExecutor(CORES) as processes:
        for mutation, bug in zip(MUTATIONS, processes.map(search, MUTATIONS), strict=True):
            seen = f"not in {SEEDS_MAX} seeds" if bug is None else f"seed {bug.seed}, {bug.rule}"
            print(f"{mutation.name}: {seen}", flush=True)
            if bug is not None:
                found.append(bug)
    if len(found) < len(MUTATIONS):
        return 1
    PLANTED_BUGS.write_text(json.dumps([attrs.asdict(bug) for bug in found], indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
