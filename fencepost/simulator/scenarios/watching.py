"""The white-box judge of a scenario: it keeps the first rule that it finds broken, and the story goes on.

Rule: a scenario may expect a rule to be broken and still say what comes of it; after a breach the judge's
own record is no longer to be trusted, so it looks no further.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from fencepost.broker.contract import Input, Outcome
from fencepost.broker.host import Host
from fencepost.protocol.messages import FetchReply
from fencepost.simulator.judges.invariants import Invariants
from fencepost.simulator.judges.violation import Violation
from fencepost.simulator.world.nodes import SimulatedNode


@attrs.define(eq=False)
class StepJudge:
    """A judge of a world that never stops it; `breach` is the first that was found."""

    inner: Invariants
    breach: Violation | None = None

    def took(self, node: SimulatedNode, arrived: Input, outcome: Outcome) -> None:
        """A node took an input."""
        if self.breach is None:
            self._ask(lambda: self.inner.took(node, arrived, outcome))

    def fetched(self, node: SimulatedNode, reply: FetchReply) -> None:
        """A node answers a reader."""
        if self.breach is None:
            self._ask(lambda: self.inner.fetched(node, reply))

    def died(self, node: SimulatedNode, host: Host, *, power_is_lost: bool) -> None:
        """A node was killed."""
        if self.breach is None:
            self._ask(lambda: self.inner.died(node, host, power_is_lost=power_is_lost))

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
