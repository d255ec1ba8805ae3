"""A run that is watched from its first event to its last, as a history.

Rule: a run goes the same way with a watcher and without one, so any run can be recorded afterwards, by
playing it again.
"""

from __future__ import annotations

import attrs

from fencepost.simulator.run import Run
from fencepost.simulator.run_result import RunObserver, RunResult, unobserved
from fencepost.simulator.world.history import History
from fencepost.simulator.world.recording import Recorder
from fencepost.simulator.world.world import ADMIN


@attrs.define(eq=False)
class Watcher:
    """Records the run that `watch` is given; the last reader and the admin are not shown. `observer` watches
    the same run.
    """

    observer: RunObserver = unobserved
    run: Run = attrs.field(init=False)
    recorder: Recorder = attrs.field(init=False)

    def watch(self, run: Run) -> None:
        """Begin, before the first event of the run."""
        self.run = run
        self.recorder = Recorder(run.world, unseen=(ADMIN, run.spec.final.name))
        self.recorder.attach()
        self.observer(run, self.recorder)

    def history(self, title: str, result: RunResult) -> History:
        """The whole run, with the rules that it broke."""
        if result.breach is not None and not self.run.spec.keeps_going:
            self.recorder.stopped()
        history = self.recorder.history(title, self.run.participants())
        return attrs.evolve(history, broken=result.evidence)
