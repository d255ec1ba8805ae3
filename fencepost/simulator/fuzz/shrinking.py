"""Shrinks a failing run: first its plan, then its choices, as long as it still breaks the same rule.

Theory of operation. A run is a plan (who works, which faults may strike) and the list of its choices.
Both are shrunk in turn, until neither changes or the budget of events is spent:

    plan       for each dimension (fewer faults, fewer processes, less work, fewer features), boldest first:
               try the smaller plan with the same choices, then with those of a few other seeds
    choices    cut the end, cut out of the middle, set to 0, lower: 0 is always the calmest choice

An attempt counts only when it was run and broke the same rule (for a failed core: in the same place),
within 1.2 times the events of the first run. Nothing is assumed about what a choice means, so a shrunk
run is true by construction: it was run. No chance is left in the search itself, so the same failing run
always becomes the same small one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import attrs

from fencepost.simulator.fuzz.smaller_plans import DIMENSIONS
from fencepost.simulator.fuzz.worlds import Planner, spec_of, try_choices, try_spec
from fencepost.simulator.judges.rules import Violation
from fencepost.simulator.run import CORE_FAILED, NOT_LIVE
from fencepost.simulator.run_result import RunResult
from fencepost.simulator.scenarios.model import FuzzPlan
from fencepost.simulator.world.choices import Choices

BUDGET: Final = 1_500_000
"""Events of all attempts together: half a minute, about."""
FOR_PLANS: Final = 0.6  # of the budget
TRIES: Final = 16  # of a smaller plan, with choices of other seeds
LONGER: Final = 1.2  # a calmer run may take a little longer than the one that was found, and no more

SMALLEST_CUT: Final = 64  # of the whole: finer cuts out of the middle only shift what comes after them

Tell = Callable[["Failing"], None]
Attempt = Callable[[Sequence[int]], "tuple[int, ...] | None"]
"""Runs with a list of choices: those that were taken, if it still fails; else None."""


@attrs.frozen(kw_only=True)
class Failing:
    """A run that breaks a rule or shows a known anomaly. `choices` are those after the plan was drawn; what
    is missing at their end is 0.
    """

    plan: FuzzPlan
    choices: tuple[int, ...]
    violation: Violation
    events: int

    @property
    def size(self) -> int:
        """How many choices are not the calmest ones."""
        return sum(1 for choice in self.choices if choice)


def failing_seed(seed: int, planner: Planner) -> Failing | None:
    """The failing run of a seed; None if the run comes to its end."""
    drawn = Choices(seed)
    plan = planner(drawn)
    result = try_choices(Choices(seed), planner)
    return _failing(plan, result, result.choices[len(drawn.taken) :])


def failing_run(plan: FuzzPlan, choices: Sequence[int]) -> Failing | None:
    """The failing run of a plan with these choices; None if the run comes to its end."""
    result = try_spec(spec_of(plan), Choices(recorded=choices))
    return _failing(plan, result, result.choices)


def _failing(plan: FuzzPlan, result: RunResult, choices: Sequence[int]) -> Failing | None:
    if result.breach is None:
        return None
    return Failing(plan=plan, choices=trimmed(choices), violation=result.breach, events=result.events)


class ShrinkSearch:
    """Makes a run small. `best` is the smallest so far, even when the search is interrupted. `is_cut_short`
    until everything was tried, for which the budget may be too small. `tell` gets the best so far after each
    attempt.
    """

    def __init__(self, failing: Failing, *, budget: int = BUDGET, tell: Tell | None = None) -> None:
        self.best = failing
        self.budget = int(budget * FOR_PLANS)
        self.for_choices = budget - self.budget
        self.tell = tell
        self.events_max = int(failing.events * LONGER)
        self.ran_out = False
        self.is_cut_short = True

    def run(self) -> Failing:
        """Search until nothing smaller is found, or the budget is spent."""
        # Choices of other seeds only here: later they would replace those that were made small.
        self._reduce_plan(TRIES)
        self.budget += self.for_choices
        while not self.is_spent:
            before = self.best
            self._reduce_choices()
            self._reduce_plan(0)
            if self.best is before:
                break
        self.is_cut_short = self.ran_out
        return self.best

    @property
    def is_spent(self) -> bool:
        """Whether the budget allows no further attempt."""
        return self.budget <= 0

    def _reduce_plan(self, tries: int) -> None:
        """Make the plan smaller in every dimension, until nothing can be taken away."""
        before = None
        while before is not self.best:
            before = self.best
            for dimension in DIMENSIONS:
                while any(self._keep(plan, tries) for plan in dimension(self.best.plan)):
                    pass

    def _keep(self, plan: FuzzPlan, tries: int) -> bool:
        """Keep a smaller plan if it fails as well, with the same choices or with those of some seed."""
        found = self._attempt(plan, Choices(recorded=self.best.choices))
        for seed in range(tries):
            if found is None:
                found = self._attempt(plan, Choices(seed))
        if found is not None:
            self.best = found
        return found is not None

    def _reduce_choices(self) -> None:
        """Make the choices smaller, with the same plan."""

        def attempt(choices: Sequence[int]) -> tuple[int, ...] | None:
            found = self._attempt(self.best.plan, Choices(recorded=choices))
            if found is None or size_of(found.choices) >= size_of(self.best.choices):
                return None
            self.best = found
            return found.choices

        smaller(self.best.choices, attempt)

    def _attempt(self, plan: FuzzPlan, choices: Choices) -> Failing | None:
        if self.is_spent:
            self.ran_out = True
            return None
        result = self._run(plan, choices)
        self.budget -= result.events
        if self.tell is not None:
            self.tell(self.best)
        if result.breach is None or _kind(result.breach) != _kind(self.best.violation):
            return None
        if result.events > self.events_max:
            return None
        # The choices that were taken: a smaller world asks for fewer, and cuts numbers that are too large.
        return _failing(plan, result, result.choices)

    def _run(self, plan: FuzzPlan, choices: Choices) -> RunResult:
        spec = spec_of(plan)
        # A run that hangs is known by the limit that it reaches, so it needs the real one.
        if self.best.violation.rule != NOT_LIVE:
            events_max = min(spec.world.events_max, self.events_max)
            spec = attrs.evolve(spec, world=attrs.evolve(spec.world, events_max=events_max))
        return try_spec(spec, choices)


def _kind(violation: Violation) -> str:
    """What makes two violations equal: the rule and, for a core that failed, the place."""
    if violation.rule in (CORE_FAILED, NOT_LIVE):
        # A smaller run may fail in another line of the same function.
        return f"{violation.rule} {violation.evidence.partition(', line')[0]}"
    return violation.rule


# --- choices ------------------------------------------------------------------------------------------------


def smaller(choices: Sequence[int], attempt: Attempt) -> tuple[int, ...]:
    """The smallest list that can be reached by cutting, by zeros and by lower numbers."""
    best = trimmed(choices)
    while True:
        before = best
        for reduce in (_shorter, _cut, _calmer, _lower):
            best = reduce(best, attempt)
        if best == before:
            return best


def trimmed(choices: Sequence[int]) -> tuple[int, ...]:
    """The choices without the zeros at their end, which are implied."""
    end = len(choices)
    while end and not choices[end - 1]:
        end -= 1
    return tuple(choices[:end])


def _tried(choices: Sequence[int], attempt: Attempt, instead_of: tuple[int, ...]) -> tuple[int, ...] | None:
    """The choices that the run took, if it fails and they are smaller than the others."""
    taken = attempt(choices)
    if taken is None:
        return None
    found = trimmed(taken)
    return found if size_of(found) < size_of(instead_of) else None


def size_of(choices: Sequence[int]) -> tuple[int, int, int]:
    """The size of a list: how many choices are not 0, how many there are, and their sum."""
    # In this order, as each choice that is not 0 is a line of the scenario that somebody reads.
    return sum(1 for choice in choices if choice), len(choices), sum(choices)


def _shorter(best: tuple[int, ...], attempt: Attempt) -> tuple[int, ...]:
    """Cut the end, which is as good as zeros."""
    size = len(best) // 2
    while size:
        found = _tried(best[:-size], attempt, best)
        best = best if found is None else found
        size = min(size // 2 if found is None else size, len(best) // 2)
    return best


def _cut(best: tuple[int, ...], attempt: Attempt) -> tuple[int, ...]:
    """Cut pieces out of the middle."""
    parts = 2
    while parts <= SMALLEST_CUT:
        size, at = len(best) // parts, 0
        while size and at < len(best):
            found = _tried(best[:at] + best[at + size :], attempt, best)
            if found is None:
                at += size
            else:
                best = found
        parts *= 2
    return best


def _calmer(best: tuple[int, ...], attempt: Attempt) -> tuple[int, ...]:
    """Set choices to 0: many at once, then fewer and fewer."""
    size = len(_places(best))
    while size:
        at = 0
        while at < len(places := _places(best)):
            calmed = list(best)
            for place in places[at : at + size]:
                calmed[place] = 0
            found = _tried(calmed, attempt, best)
            if found is None:
                at += size
            else:
                best = found
        size //= 2
    return best


def _places(choices: Sequence[int]) -> list[int]:
    return [place for place, choice in enumerate(choices) if choice]


def _lower(best: tuple[int, ...], attempt: Attempt) -> tuple[int, ...]:
    """Make each remaining choice as low as possible, by bisection."""
    for place in _places(best):
        low = 1
        while place < len(best) and low < best[place]:
            middle = (low + best[place]) // 2
            found = _tried((*best[:place], middle, *best[place + 1 :]), attempt, best)
            if found is None:
                low = middle + 1
            else:
                best = found
    return best
