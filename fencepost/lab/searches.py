"""Searches from the page: random worlds, every state of a small cluster, and making a failing run smaller.

Rule: a search tells its progress as it goes. What it found is a scenario that was played, or, where no
scenario can show it, the document of its trace.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from fencepost.broker.kafka_fixes import KafkaFixes
from fencepost.lab.arguments import Arguments, BadRequest
from fencepost.lab.recordings import record_explored
from fencepost.simulator.explore import ExploreConfig, Explored, StateSearch
from fencepost.simulator.fuzz.seeds import SeedFinding, SeedTally, try_one
from fencepost.simulator.fuzz.shrinking import Failing, ShrinkSearch, failing_run, failing_seed
from fencepost.simulator.fuzz.worlds import WorldKind
from fencepost.simulator.judges.known_anomalies import KnownAnomaly
from fencepost.simulator.scenarios.files import scenario_of, text_of
from fencepost.simulator.scenarios.found import scenario_text

Progress = dict[str, Any]
Tell = Callable[[Progress], None]

EVERY_SECONDS: Final = 0.2  # between two messages about progress
SEEDS_MAX: Final = 1_000_000
SEED_MAX: Final = 2**53 - 1  # JSON in a browser has no larger whole numbers
STATES_MAX: Final = 2_000_000
COUNT_MAX: Final = 9


class Search:
    """A search in progress. `words` says how far it is, `at` of `of` in numbers where the end is known."""

    def __init__(self, asked: Arguments, tell: Tell) -> None:
        self.asked = asked
        self.found: list[Progress] = []
        self._tell = tell
        self._last = time.monotonic()

    def progress(self, words: str, *, at: int = 0, of: int | None = None, is_last: bool = False) -> None:
        """Report, unless the last report was a moment ago."""
        now = time.monotonic()
        if is_last or now - self._last >= EVERY_SECONDS:
            self._last = now
            self._tell({"words": words, "at": at, "of": of, "found": self.found})

    @property
    def transaction_version(self) -> int:
        return self.asked.number("transaction_version", 2, least=0, most=2)

    @property
    def verification(self) -> bool | None:
        """Whether partition leaders verify transactions; None: as that version shipped."""
        return self.asked.value("partition_verification", bool)


def search(raw: object, tell: Tell) -> None:
    """Search to the end, or to the first violation. BadRequest for a value that describes no search."""
    given = cast("dict[str, Any]", raw) if isinstance(raw, dict) else {}
    kind = given.get("kind")
    if not isinstance(kind, str) or kind not in _SEARCHES:
        raise BadRequest(f"kind: there is no {kind!r:.80} (possible: {', '.join(_SEARCHES)})")
    begin, keys = _SEARCHES[kind]
    asked = Arguments({key: value for key, value in given.items() if key != "kind"})
    asked.refuse_others(keys)
    try:
        begin(Search(asked, tell))
    except ValueError as problem:  # a name that does not exist: the message lists the names
        raise BadRequest(str(problem)) from None


# --- random worlds ------------------------------------------------------------------------------------------


def _fuzz(search: Search) -> None:
    """Seeds one after the other, up to the first violation. Behaviour of older brokers is reported once."""
    first = search.asked.number("first_seed", 0, least=0, most=SEED_MAX)
    seeds = search.asked.number("seeds", 1_000, least=1, most=SEEDS_MAX)
    world: dict[str, Any] = {
        "workload": search.asked.value("workload", str) or "transactions",
        "transaction_version": search.transaction_version,
        "partition_verification": search.verification,
        "broken": search.asked.names("broken") or (),
        "without_fixes": search.asked.names("without_fixes") or (),
    }
    kind, tally = WorldKind(**world), SeedTally(first)
    known: set[str] = set()

    def progress(*, is_last: bool = False) -> None:
        counts = f"{tally.transactions:,} transactions, {tally.events:,} events"
        words = f"{tally.seeds:,} of {seeds:,} seeds, {counts}"
        search.progress(words, at=tally.seeds, of=seeds, is_last=is_last)

    for seed in range(first, first + seeds):
        tried = try_one(seed, kind.planner)
        tally.add(tried)
        if tried.met is not None and tried.met.rule not in known:
            known.add(tried.met.rule)
            search.found.append(_told(tried.met, kind, is_known=True))
        if tried.finding is not None:
            search.found.append(_told(tried.finding, kind, is_known=False))
            break
        progress()
    progress(is_last=True)


def _told(finding: SeedFinding, kind: WorldKind, *, is_known: bool) -> Progress:
    failing = failing_seed(finding.seed, kind.planner)
    assert failing is not None, "the seed failed a moment ago"
    name = f"seed {finding.seed}"
    return {
        "title": name,
        "rule": finding.rule,
        "evidence": finding.evidence,
        "known": is_known,
        "text": scenario_text(name, failing, f"{name}{kind}."),
        "command": kind.replay(finding.seed),
    }


# --- every state --------------------------------------------------------------------------------------------


def _explore(search: Search) -> None:
    """Every state, up to the first violation."""
    defaults = ExploreConfig()
    config = ExploreConfig(
        producers=search.asked.number("producers", defaults.producers, least=1, most=COUNT_MAX),
        transactions=search.asked.number("transactions", defaults.transactions, least=1, most=COUNT_MAX),
        retries=search.asked.number("retries", defaults.retries, least=0, most=COUNT_MAX),
        partitions=search.asked.number("partitions", defaults.partitions, least=1, most=COUNT_MAX),
        crashes=search.asked.number("crashes", defaults.crashes, least=0, most=COUNT_MAX),
        transaction_version=search.transaction_version,
        partition_verification=search.verification,
        broken=frozenset(search.asked.names("broken") or ()),
        fixes=KafkaFixes.without(search.asked.names("without_fixes") or ()),
        max_states=search.asked.number("max_states", defaults.max_states, least=1, most=STATES_MAX),
    )

    def tell(states: int, waiting: int) -> None:
        search.progress(f"{states:,} states checked, {waiting:,} waiting", at=states)

    explored = StateSearch(config).run(tell)
    if explored.violation is not None:
        story = explored.scenario()
        search.found.append(
            {
                "title": f"explored: {explored.violation}",
                "rule": explored.violation,
                "evidence": explored.because,
                "known": False,
                "text": None if story is None else text_of(story),
                "document": None if story is not None else record_explored(explored),
                "command": explored.command,
            }
        )
    search.progress(_outcome(explored), at=explored.states, is_last=True)


def _outcome(explored: Explored) -> str:
    size = f"{explored.states:,} states, {explored.transitions:,} transitions"
    if explored.violation is not None:
        return f"{explored.violation} after {len(explored.trace)} steps ({size})"
    if explored.complete:
        return f"no violation in any reachable state ({size})"
    return f"no violation so far, but the limit of states was reached ({size})"


# --- smaller runs -------------------------------------------------------------------------------------------


def _shrink(search: Search) -> None:
    """The smallest run that breaks the same rule as this one, which a search found."""
    scenario = scenario_of(search.asked.value("text", str) or "")
    if scenario.seeded is None or scenario.faults:
        raise BadRequest("only a run that `fuzz` found can be shrunk: a [seeded] table, and no [[fault]]")
    failing = failing_run(scenario.seeded, scenario.choices)
    if failing is None:
        raise BadRequest(f"{scenario.name} violates no rule, so there is nothing to shrink")
    attempts = 0

    def tell(best: Failing) -> None:
        nonlocal attempts
        attempts += 1
        search.progress(f"{attempts:,} attempts: {_size(failing)} -> {_size(best)}")

    best = ShrinkSearch(failing, tell=tell).run()
    sizes = f"{_size(failing)} -> {_size(best)}"
    search.found.append(
        {
            "title": f"{scenario.name}, shrunk",
            "rule": best.violation.rule,
            "evidence": best.violation.evidence,
            "known": isinstance(best.violation, KnownAnomaly),
            "text": scenario_text(f"{scenario.name}, shrunk", best, f"{scenario.name}, shrunk: {sizes}."),
            "command": "fencepost shrink FILE",
        }
    )
    search.progress(sizes, is_last=True)


def _size(failing: Failing) -> str:
    return f"{failing.events:,} events and {failing.size:,} choices"


_WORLD: Final = ("transaction_version", "partition_verification", "broken", "without_fixes")
_SEARCHES: Final[Mapping[str, tuple[Callable[[Search], None], tuple[str, ...]]]] = {
    "fuzz": (_fuzz, ("first_seed", "seeds", "workload", *_WORLD)),
    "explore": (
        _explore,
        ("producers", "transactions", "retries", "partitions", "crashes", "max_states", *_WORLD),
    ),
    "shrink": (_shrink, ("text",)),
}
"""What can be searched, and the keys that describe it."""
