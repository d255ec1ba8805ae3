"""Plays a world that a search found, as every scenario is played: with a report, and recorded if asked.

Rule: the run is the one that was found, whether somebody looks at it or not.
"""

from __future__ import annotations

import attrs

from fencepost.simulator.faults.kinds import FaultKind, Struck
from fencepost.simulator.fuzz.plan import FuzzPlan
from fencepost.simulator.fuzz.simulation import FINAL_READER, Part, Simulation
from fencepost.simulator.fuzz.trial import CORE_FAILED, NOT_LIVE, Trial, try_choices
from fencepost.simulator.scenarios.model import Scenario, ScenarioExpectation
from fencepost.simulator.world.choices import Choices
from fencepost.simulator.world.history import History
from fencepost.simulator.world.noted_choices import Note, NotedChoices
from fencepost.simulator.world.recording import Recorder


@attrs.define(eq=False)
class SeededPlay:
    """A run, with what is known of it afterwards."""

    plan: FuzzPlan
    choices: tuple[int, ...]
    simulation: Simulation = attrs.field(init=False)
    trial: Trial = attrs.field(init=False)

    def run(self) -> None:
        """From beginning to end."""
        self._try(Choices(recorded=self.choices))

    def _try(self, choices: Choices) -> None:
        self.trial = try_choices(choices, lambda _: self.plan, self._watch)

    def _watch(self, simulation: Simulation) -> None:
        self.simulation = simulation

    @property
    def struck(self) -> tuple[Struck, ...]:
        """The faults that happened."""
        return tuple(self.simulation.nemesis.struck)

    def problems(self, expect: ScenarioExpectation) -> list[str]:
        """In what it was not as expected."""
        violation = self.trial.breach
        broken = None if violation is None else violation.rule
        found = [f"was expected to break {name}, and keeps it" for name in expect.violates if name != broken]
        found += [f"never puts {name} to the test" for name in expect.holds if not self._puts_to_test(name)]
        if violation is None:
            found += [f"fault never struck: {kind.value}" for kind in self._never_struck()]
        elif broken not in expect.violates:
            found.append(f"breaks {violation}")
        return found

    def _never_struck(self) -> list[FaultKind]:
        """Kinds of fault that the plan names, of a run that came to its end."""
        seen = {struck.kind for struck in self.struck}
        return [kind for kind in self.plan.kinds if kind not in seen]

    def _puts_to_test(self, rule: str) -> bool:
        if rule in (NOT_LIVE, CORE_FAILED):  # whoever works asks something of the cores, and must get done
            return any(role.part is not Part.READ for role, _ in self.simulation.cast)
        return bool(self.trial.marks.get(f"exercised: {rule}"))


@attrs.define(eq=False)
class RecordedPlay(SeededPlay):
    """The same, with everything that happened, and what each choice decided."""

    recorder: Recorder = attrs.field(init=False)
    noted: NotedChoices = attrs.field(init=False)

    def run(self) -> None:
        """From beginning to end."""
        self.noted = NotedChoices(self.choices)
        self._try(self.noted)
        if self.trial.breach is not None:
            self.recorder.stopped()

    def _watch(self, simulation: Simulation) -> None:
        super()._watch(simulation)
        self.noted.clock = simulation.world
        self.recorder = Recorder(simulation.world, unseen=("admin", FINAL_READER))
        self.recorder.attach()

    @property
    def notes(self) -> dict[int, Note]:
        """What was chosen, by place."""
        return self.noted.notes

    def history(self, title: str) -> History:
        """Everything that happened: who writes, then the nodes, then who reads."""
        cast = [
            (role.part, runner.process.participant)
            for role, runner in self.simulation.cast
            if runner.process.participant != FINAL_READER
        ]
        writers = [participant for part, participant in cast if part is not Part.READ]
        readers = [participant for part, participant in cast if part is Part.READ]
        nodes = [node.participant for node in self.simulation.world.nodes]
        return self.recorder.history(title, (*writers, *nodes, *readers))


def play(scenario: Scenario) -> SeededPlay:
    """A scenario's run, over."""
    assert scenario.seeded is not None, "only a scenario with a plan is played like this"
    played = SeededPlay(scenario.seeded.plan, scenario.choices)
    played.run()
    return played


def record(scenario: Scenario) -> RecordedPlay:
    """The same, recorded."""
    assert scenario.seeded is not None, "only a scenario with a plan is played like this"
    played = RecordedPlay(scenario.seeded.plan, scenario.choices)
    played.run()
    return played
