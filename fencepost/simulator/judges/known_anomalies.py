"""What brokers did before each transaction had an epoch of its own, and do no longer: each by name, with its
cure.

Rule: an entry counts only in the generations that it names, and only where the run shows its reason; a run
that meets one ends there, so that nothing of what comes of it needs an excuse.
"""

from __future__ import annotations

from typing import Final

import attrs

from fencepost.broker.settings import NodeSettings
from fencepost.simulator.judges.violation import Violation


@attrs.frozen(kw_only=True)
class OldBehaviour:
    """`cured_by` is what ended it; `needs` is what the run must show. One that partition leaders prevent by
    asking the coordinator first is `despite_verification` no more.
    """

    name: str
    cured_by: str
    why: str
    needs: str
    despite_verification: bool = True

    def is_of(self, settings: NodeSettings) -> bool:
        """Whether brokers with these settings do it."""
        is_let_in = self.despite_verification or not settings.partition_verification
        return is_let_in and not settings.generation.renews_identity

    @property
    def generations(self) -> str:
        """Where it may be met, in words."""
        return "0 and 1" if self.despite_verification else "0 and 1 without verification"


class KnownAnomaly(Violation):
    """A run met what brokers of its generation do."""

    def __init__(self, behaviour: OldBehaviour, evidence: str) -> None:
        super().__init__(behaviour.name, evidence)


LATE_END: Final = OldBehaviour(
    name="a late EndTxn ends the next transaction",
    cured_by="KAFKA-17754, KIP-890 part 2",
    why="An EndTxn that its sender has asked again since comes when the next transaction is open. Both "
    "have one epoch, so it ends what it does not mean: records are committed that are aborted later, "
    "or the other way round, and what follows belongs to no transaction.",
    needs="The coordinator's log holds the beginning of the transaction, written after the EndTxn that "
    "ended it had left its sender, under the same producer id and epoch.",
)
LATE_MARKER: Final = OldBehaviour(
    name="a late marker is taken for one of the next transaction",
    cured_by="KIP-890 part 2, KIP-1228",
    why="The coordinator lost the answer to its markers and sent them again; the first ones come when "
    "the next transaction has begun. A marker says an epoch, and both have the same: it decides what "
    "the next one has written there so far. Where that is nothing, it stands in the log as a "
    "decision that nobody took.",
    needs="The marker had left before the coordinator wrote the beginning of the newest transaction; the "
    "partition knows neither a newer epoch of the producer nor of the coordinator.",
)
LATE_WRITE: Final = OldBehaviour(
    name="a late write joins the next transaction",
    cured_by="KIP-890 part 2",
    why="A batch or a commit of offsets comes when its transaction is over and the next one has the "
    "partition, too. Verification asks whether the partition is in the transaction, and it is.",
    needs="Its producer's marker stands in the log, written after the batch had left; the coordinator's "
    "log holds the partition in an open transaction of the same producer id and epoch, and the "
    "partition knows no newer epoch.",
)
LATE_WRITE_ALONE: Final = OldBehaviour(
    name="a late write opens a transaction that nobody ends",
    cured_by="KAFKA-14402, KIP-890 part 1",
    why="The same where no transaction has the partition. Without verification nobody asks, and readers "
    "of committed records wait behind it until a marker of the producer comes by chance.",
    needs="Its producer's marker stands in the log, written after the batch had left, and the partition "
    "knows no newer epoch.",
    despite_verification=False,
)
OLD_BEHAVIOURS: Final = (LATE_END, LATE_MARKER, LATE_WRITE, LATE_WRITE_ALONE)
