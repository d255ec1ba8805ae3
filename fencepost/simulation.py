"""Simulations from Python: random worlds, scenarios, and every state of a small cluster.

They run Fencepost's own brokers and clients under virtual time, before every judge, so they test Fencepost
and the protocol. To test an application of your own, run it against a broker with faults: docs/testing.md.

    simulate(seed)           one random world, as `fencepost fuzz` runs it
    fuzz(seeds=100)          many of them, up to the first that breaks a rule
    run_scenario("late_end_txn")   a bundled scenario, a file, or one that scenario(...) builds
    explore(transaction_version=0) every reachable state of a small cluster

Every result has `raise_if_failed()`, whose message shows the end of the run and the command that repeats it,
a repr that fits a screen, and a drawing that notebooks show. `save_html(result, "run.html")` writes a page on
which you step through it in a browser.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypedDict, Unpack, overload

import attrs

from fencepost.broker.kafka_fixes import KafkaFixes
from fencepost.bundled import bundled_scenarios
from fencepost.lab.document import RunDocument
from fencepost.lab.pages import file_page
from fencepost.lab.recordings import record_explored, record_result
from fencepost.simulator.draw.svg import draw
from fencepost.simulator.explore import ExploreConfig, Explored
from fencepost.simulator.explore import explore as explore_config
from fencepost.simulator.failure import SimulationFailed
from fencepost.simulator.fuzz.seeds import SeedFinding, SeedTally, try_one
from fencepost.simulator.fuzz.worlds import WorldKind, simulate
from fencepost.simulator.run_result import RunResult, counted
from fencepost.simulator.scenarios.builder import Builder, scenario
from fencepost.simulator.scenarios.codec import BadScenario
from fencepost.simulator.scenarios.files import scenario_of
from fencepost.simulator.scenarios.model import Scenario, variants
from fencepost.simulator.scenarios.runner import run_case
from fencepost.simulator.world.history import History

__all__ = (
    "BadScenario",
    "Builder",
    "Explored",
    "FuzzResult",
    "History",
    "RunResult",
    "Scenario",
    "ScenarioResult",
    "SeedFinding",
    "SimulationFailed",
    "bundled_scenarios",
    "explore",
    "fuzz",
    "read_scenario",
    "run_scenario",
    "save_html",
    "scenario",
    "simulate",
    "to_html",
)

Source = str | Path | Scenario | Builder
"""A bundled scenario by name, a file, or a scenario."""


# --- scenarios ----------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class ScenarioResult(Sequence[RunResult]):
    """The runs of a scenario, one for each variant that was asked for; a sequence of RunResult. `name`: the
    scenario's. `failed`: the `runs` that did not meet their expectations.
    """

    name: str
    runs: tuple[RunResult, ...] = attrs.field(repr=counted("runs"))
    failed: tuple[RunResult, ...] = attrs.field(
        repr=counted("failed"),
        init=False,
        default=attrs.Factory(lambda self: tuple(r for r in self.runs if not r.passed), takes_self=True),
    )

    @property
    def passed(self) -> bool:
        """Whether every run met its expectations."""
        return not self.failed

    def raise_if_failed(self) -> None:
        """Raises SimulationFailed for the first run that did not meet its expectations."""
        for run in self.failed:
            run.raise_if_failed()

    @overload
    def __getitem__(self, index: int) -> RunResult: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[RunResult]: ...

    def __getitem__(self, index: int | slice) -> RunResult | Sequence[RunResult]:
        return self.runs[index]

    def __len__(self) -> int:
        return len(self.runs)

    @property
    def first(self) -> RunResult:
        """The first run that failed; if none did, the first."""
        return (*self.failed, *self.runs)[0]

    def _repr_svg_(self) -> str:
        """The drawing of the first run that failed, or else of the first, for notebooks."""
        return draw(self.first.history)


def read_scenario(source: Source) -> Scenario:
    """The scenario of this `source`: the name of a bundled one, a file, or a builder. FileNotFoundError if
    there is none, BadScenario if its text is wrong.
    """
    if isinstance(source, Builder):
        return source.scenario()
    if isinstance(source, Scenario):
        return source
    path = _path_of(source)
    return scenario_of(path.read_text(encoding="utf-8"), str(path))


def _path_of(source: str | Path) -> Path:
    path = Path(source)
    if not path.exists() and str(path) == path.name:
        path = bundled_scenarios().get(path.name.removesuffix(".toml"), path)
    if not path.exists():
        raise FileNotFoundError(
            f"there is no scenario {str(source)!r}; the bundled ones are {', '.join(bundled_scenarios())}"
        )
    return path


def run_scenario(source: Source, *, variant: int | str | None = None) -> ScenarioResult:
    """Run a scenario: all its variants, or only one.

    `source`: the name of a bundled scenario, a file, or a scenario. `variant`: a number from 1, or a part of
    the variant's title. Raises ValueError if the scenario has no such variant, and the errors of
    read_scenario().
    """
    story = read_scenario(source)
    chosen = variants(story, variant)
    if not chosen:
        raise ValueError(f"{story.name} has no variant {variant!r}")
    known = isinstance(source, str | Path)
    runs: list[RunResult] = []
    for number, case in chosen:
        commands = (f"show: fencepost run {source} --variant {number} --text",) if known else ()
        runs.append(attrs.evolve(run_case(case), commands=commands))
    return ScenarioResult(name=story.name, runs=tuple(runs))


# --- random worlds ------------------------------------------------------------------------------------------


class WorldArguments(TypedDict, total=False):
    """The keyword arguments of `simulate`, which explains them."""

    workload: str
    transaction_version: int
    partition_verification: bool | None
    broken: Sequence[str]
    without_fixes: Sequence[str]


@attrs.frozen(kw_only=True)
class FuzzResult:
    """The result of many seeds.

    `first_seed`, `seeds`: where they began, and how many were run. `found`: those that broke a rule. `known`:
    anomalies that Apache Kafka has as well, each with the number of seeds that saw it. `met`: the same for
    known anomalies of older transaction versions, each of which ended its run. `transactions`: how many were
    run in all. `digest`: equal for equal histories. `world`: the arguments for `simulate`.
    """

    first_seed: int
    seeds: int
    found: tuple[SeedFinding, ...] = attrs.field(repr=lambda found: repr(found[:1]))
    known: Mapping[str, int]
    met: Mapping[str, int]
    transactions: int
    digest: str
    world: WorldArguments

    @property
    def passed(self) -> bool:
        """Whether no seed broke a rule."""
        return not self.found

    def first_failure(self) -> RunResult | None:
        """The run of the first seed that broke a rule, run again; None if none did."""
        return simulate(self.found[0].seed, **self.world) if self.found else None

    def raise_if_failed(self) -> None:
        """Raises SimulationFailed for the first seed that broke a rule."""
        failure = self.first_failure()
        if failure is not None:
            failure.raise_if_failed()

    def _repr_svg_(self) -> str | None:
        """The first seed that broke a rule."""
        failure = self.first_failure()
        return None if failure is None else draw(failure.history)


SEEDS: Final = 100


def fuzz(
    *, seeds: int = SEEDS, first_seed: int = 0, keep_going: bool = False, **world: Unpack[WorldArguments]
) -> FuzzResult:
    """Run random worlds in this process, about 20 ms each; `fencepost fuzz` uses several processes.

    `seeds`: how many. `first_seed`: where they begin. `keep_going`: do not stop at the first seed that breaks
    a rule. `world`: arguments of `simulate`, such as workload="groups". ValueError for an argument that is
    invalid.
    """
    if seeds < 1:
        raise ValueError(f"seeds must be a whole number from 1, not {seeds!r}")
    planner = WorldKind(**world).planner
    tally = SeedTally(first_seed, keep_going=keep_going)
    for seed in range(first_seed, first_seed + seeds):
        tally.add(try_one(seed, planner))
        if tally.is_over:
            break
    return FuzzResult(
        first_seed=first_seed,
        seeds=tally.seeds,
        found=tuple(tally.found),
        known=tally.known,
        met={name: len(found) for name, found in tally.behaviours.items()},
        transactions=tally.transactions,
        digest=tally.digest,
        world=world,
    )


# --- every state --------------------------------------------------------------------------------------------


def explore(
    *,
    producers: int = 1,
    transactions: int = 2,
    retries: int = 1,
    partitions: int = 1,
    transaction_version: int = 2,
    partition_verification: bool | None = None,
    crashes: int = 0,
    broken: Iterable[str] = (),
    without_fixes: Iterable[str] = (),
    max_states: int = 1_000_000,
) -> Explored:
    """Check every reachable state of a small cluster; stop at the first that is wrong.

    `producers`: how many, each with its own transactional id. `transactions`: of each producer. `retries`:
    how often each producer may give up a connection, whose requests can still arrive at any time.
    `partitions`: of the topic; every transaction writes to all of them. `transaction_version`: 0 is KIP-98, 1
    the same with another format of the transaction log, 2 KIP-890. `partition_verification`: whether
    partition leaders verify transactions of older clients; None: as shipped, not in version 0. `crashes`: how
    often the broker may crash and restart. `broken`: protections of the broker to turn off: "fencing",
    "dedup". `without_fixes`: Kafka's later fixes to turn off, by their names in docs/fidelity.md.
    `max_states`: stop after so many; then the result is not complete. ValueError for a name that does not
    exist.
    """
    return explore_config(
        ExploreConfig(
            producers=producers,
            transactions=transactions,
            retries=retries,
            partitions=partitions,
            transaction_version=transaction_version,
            partition_verification=partition_verification,
            crashes=crashes,
            broken=frozenset(broken),
            fixes=KafkaFixes.without(without_fixes),
            max_states=max_states,
        )
    )


# --- pages --------------------------------------------------------------------------------------------------

Shown = RunResult | ScenarioResult | FuzzResult | Explored
"""A result whose run a page can show: of several runs the first that failed, or else the first."""


def to_html(result: Shown) -> str:
    """A page on which you step through the run of a `result`: HTML that needs no other file.

    ValueError if there is no run to show, because a search found nothing.
    """
    document = _document_of(result)
    if document is None:
        raise ValueError("the search found no violation, so there is no run to show")
    return file_page([document])


def save_html(result: Shown, path: str | Path) -> Path:
    """Write the page of a `result` to the file `path`, and return the path. Errors: as `to_html`; OSError."""
    page, file = to_html(result), Path(path)
    file.write_text(page, encoding="utf-8")
    return file


def _document_of(result: Shown) -> RunDocument | None:
    match result:
        case RunResult():
            return record_result(result)
        case ScenarioResult():
            return record_result(result.first)
        case FuzzResult():
            failure = result.first_failure()
            return None if failure is None else record_result(failure)
        case Explored():
            return record_explored(result)
