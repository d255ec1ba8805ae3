"""The result of a run: what it reached and what it broke, and how to see it again.

Rule: equal runs have equal results, in any process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from typing import TYPE_CHECKING

import attrs

from fencepost.simulator.draw.svg import draw
from fencepost.simulator.failure import failure_of
from fencepost.simulator.judges.coverage import Coverage
from fencepost.simulator.judges.known_anomalies import KnownAnomaly
from fencepost.simulator.judges.rules import Violation
from fencepost.simulator.world.history import History
from fencepost.simulator.world.recording import Recorder

if TYPE_CHECKING:
    from fencepost.simulator.run import Run


RunObserver = Callable[["Run", Recorder], None]
"""Watches a run beside its recorder, which has subscribed before it; the judges subscribe after it."""


def unobserved(_run: Run, _recorder: Recorder) -> None:
    """Observes nothing."""


def counted(what: str) -> Callable[[Sized], str]:
    """Shows how many values a field has, for a repr that fits a screen."""
    return lambda values: f"<{len(values)} {what}>"


def _words(breaches: tuple[Violation, ...]) -> tuple[str, ...]:
    """What makes breaches equal: two exceptions never are."""
    return tuple(map(str, breaches))


@attrs.frozen(kw_only=True)
class RunResult:
    """The result of a run: of a random world or of a scenario.

    `choices`: they replay it. `breaches`: every broken rule with its evidence. `digest`: equal for equal
    runs, in any process. `marks`: counts of what happened in the run, by name. `transactions`, `events`: how
    many there were. `elapsed`: virtual nanoseconds. `coverage`: counts cells of the coordinator's tables by
    the kinds of fault that struck. `known_anomaly`: one of an older transaction version; a random world ends
    there. `commands`: commands that show the run again. `record`: makes the history by playing the run again
    with another watcher.

    Only scenarios have these. `name`: the scenario's. `problems`: how the run differs from what is expected;
    empty for one that passed. `expected`, `reached`, `struck`: the expectations, the points that were
    reached, and the faults that struck.
    """

    choices: tuple[int, ...] = attrs.field(repr=counted("choices"))
    breaches: tuple[Violation, ...] = attrs.field(eq=_words)
    known_anomaly: KnownAnomaly | None = attrs.field(eq=str)
    digest: str
    marks: Mapping[str, int] = attrs.field(repr=counted("marks"))
    transactions: int
    events: int
    elapsed: int
    coverage: Coverage = attrs.field(repr=False)
    name: str = ""
    problems: tuple[str, ...] = ()
    expected: tuple[str, ...] = attrs.field(default=(), repr=counted("expectations"))
    reached: tuple[str, ...] = attrs.field(default=(), repr=counted("points"))
    struck: tuple[str, ...] = attrs.field(default=(), repr=counted("faults"))
    commands: tuple[str, ...] = attrs.field(default=(), eq=False, repr=False)
    record: Callable[[RunObserver], History] = attrs.field(eq=False, repr=False)

    @property
    def passed(self) -> bool:
        """Whether a scenario met its expectations, or a random run violated no rule."""
        return not (self.problems or (self.violation is not None and not self.name))

    @property
    def history(self) -> History:
        """Everything that happened, for tables and drawings."""
        return self.record(unobserved)

    def raise_if_failed(self) -> None:
        """Raises SimulationFailed, which shows the end of the run and how to repeat it, unless it passed."""
        if not self.passed:
            history = self.history
            problems = self.problems or (str(self.violation),)
            lines = [f"{history.title}: {problems[0]}", *problems[1:]]
            raise failure_of(lines, history, self.commands)

    def _repr_svg_(self) -> str:
        """The drawing of the run, for notebooks."""
        return draw(self.history)

    @property
    def violation(self) -> Violation | None:
        """The first rule that was broken, with its evidence; None for a known anomaly."""
        return next((each for each in self.breaches if not isinstance(each, KnownAnomaly)), None)

    @property
    def breach(self) -> Violation | None:
        """The first broken rule, or the known anomaly that came before."""
        return self.breaches[0] if self.breaches else None

    @property
    def first_breaches(self) -> dict[str, Violation]:
        """The first breach of each broken rule, by the rule's name."""
        found: dict[str, Violation] = {}
        for each in self.breaches:
            found.setdefault(each.rule, each)
        return found

    @property
    def broken(self) -> tuple[str, ...]:
        """The names of the rules that were broken, once each."""
        return tuple(self.first_breaches)

    @property
    def evidence(self) -> tuple[str, ...]:
        """The first breach of each broken rule, in words."""
        return tuple(map(str, self.first_breaches.values()))
