"""What `fencepost fuzz` leaves of seeds that violate a rule: scenarios, drawings and a report.

Rule: each finding is run again from its seed, so the files show what `--first-seed K --seeds 1` shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from fencepost.check.findings import counted
from fencepost.cli.artefacts import FailedRun, JUnitCase, files_in, save
from fencepost.cli.errors import OK
from fencepost.cli.files import Target
from fencepost.cli.html_pages import Pages, files_line
from fencepost.cli.shrink import GENERATED, shrink_to
from fencepost.lab.recordings import record
from fencepost.simulator.fuzz.shrinking import failing_seed
from fencepost.simulator.scenarios.files import scenario_of
from fencepost.simulator.scenarios.found import scenario_text
from fencepost.simulator.scenarios.model import Case, cases
from fencepost.simulator.scenarios.runner import record_case

if TYPE_CHECKING:
    from fencepost.cli.fuzz import WorldOptions
    from fencepost.simulator.fuzz.seeds import SeedFinding, SeedTally


@attrs.frozen(kw_only=True)
class FindingFiles:
    """Writes the files of findings into `output`, or, without it, only the shrunk scenario into the current
    directory; also writes their `pages`.
    """

    options: WorldOptions
    shrinks: bool
    output: Path | None
    pages: Pages

    def keep(self, finding: SeedFinding) -> int:
        """Shrinks and saves one finding; the exit code says whether it was interrupted."""
        failing = failing_seed(finding.seed, self.options.kind.planner)
        assert failing is not None, "the seed failed a moment ago"
        name, path = f"seed {finding.seed}", (self.output or Path()) / f"seed-{finding.seed}.toml"
        target = Target(path=path, option="--output", kind=GENERATED)
        text = scenario_text(name, failing, f"{name}{self.options}.")
        if self.shrinks or self.output is not None:
            target.check()
        if self.shrinks:
            code = shrink_to(target, name, failing, origin=f"{name}{self.options}")
            if code != OK:
                return code
            text = path.read_text(encoding="utf-8")
        elif self.output is not None:
            target.write(text)
        (case,) = cases(scenario_of(text, str(path)))
        if self.output is not None:
            self._draw(self.output, finding, path, case)
        if self.pages.path is not None:
            print(f"  {files_line('page', [self.pages.of_case(case)], width=7)}")
        return OK

    def _draw(self, directory: Path, finding: SeedFinding, path: Path, case: Case) -> None:
        recorded = record_case(case)
        facts = attrs.asdict(finding) | {
            "replay": self.options.kind.replay(finding.seed),
            "shrink": self.options.kind.shrink(finding.seed),
            "events": recorded.result.events,
            "digest": recorded.result.digest,
        }
        failure = FailedRun(
            name=path.stem,
            scenario=path.read_text(encoding="utf-8"),
            history=recorded.history,
            document=record(case),
            facts=facts,
        )
        print(files_in(directory, save(directory, failure)))


def junit_cases(
    tally: SeedTally, options: WorldOptions, *, first_seed: int, seconds: float
) -> list[JUnitCase]:
    """One test case for each seed that violates a rule, and one for all the others."""
    suite = f"fuzz{options}"
    failed = [
        JUnitCase(
            suite=suite,
            name=f"seed {finding.seed}",
            seconds=0.0,
            failure=f"{finding.rule}: {finding.evidence}",
            details=f"{finding.rule}: {finding.evidence}\nreplay: {options.kind.replay(finding.seed)}\n"
            f"shrink: {options.kind.shrink(finding.seed)}",
        )
        for finding in tally.found
    ]
    clean = tally.seeds - len(failed)
    if not clean:
        return failed
    name = f"{counted(clean, 'seed')} of {first_seed} to {first_seed + tally.seeds - 1}"
    return [*failed, JUnitCase(suite=suite, name=name, seconds=seconds)]
