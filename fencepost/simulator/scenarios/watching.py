"""The white-box judge of a scenario: it keeps the first rule that it finds broken, and the story goes on.

Rule: a scenario may expect a rule to be broken and still say what comes of it; after a breach the judge's
own record is no longer to be trusted, so it looks no further.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from fencepost.simulator.judges.rules import Violation
from fencepost.simulator.judges.white_box import Invariants
from fencepost.simulator.world.world import World


@attrs.define(eq=False)
class StepJudge:
    """A judge of a world that never stops it; `breach` is the first that was found."""

    inner: Invariants
    breach: Violation | None = None

    def attach(self, world: World) -> None:
        """From now on."""
        for kind, look in self.inner.subscriptions.items():
            world.events.subscribe(kind, self._guarded(look))

    def _guarded(self, look: Callable[[Any], None]) -> Callable[[Any], None]:
        def guarded(event: object) -> None:
            if self.breach is None:
                self._ask(lambda: look(event))

        return guarded

    @property
    def is_settled(self) -> bool:
        """Whether it sees nothing that still goes on."""
        return self.breach is not None or self.inner.is_settled

    def end(self) -> None:
        """The story is over."""
        if self.breach is None:
            self._ask(self.inner.judge_end)

    def _ask(self, judge: Callable[[], None]) -> None:
        try:
            judge()
        except Violation as breach:
            self.breach = breach
