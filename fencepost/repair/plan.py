"""What a repair will do: the damage, what is at stake, what is saved, and what to write.

Rule: the same plan is the report of a dry run and the orders of `perform`.
"""

from __future__ import annotations

import attrs

from fencepost.journal.manifest import LOG_START_FILE
from fencepost.log_model.partitions import PartitionModel
from fencepost.protocol.terms import NO_LEADER_EPOCH, NO_TOPIC_ID
from fencepost.repair.outcomes import Settled
from fencepost.repair.salvage import SalvagedLog


@attrs.frozen
class DamageReport:
    """One damaged place: where, what, what is at stake, and what the repair saves."""

    file: str
    kind: str
    because: str
    stake: str = attrs.field(kw_only=True)
    saved: str = attrs.field(kw_only=True)
    offsets: tuple[int, int] | None = attrs.field(default=None, kw_only=True)
    """First and last lost offset."""
    span: tuple[int, int] | None = attrs.field(default=None, kw_only=True)
    """First damaged byte, and the one after the last."""


@attrs.define(eq=False)
class LogPlan:
    """What is done to one partition. `appended` are batches for its end, without offsets."""

    log: SalvagedLog
    is_new: bool = False
    """Whether it begins again, in the place of one that vanished."""
    model: PartitionModel = attrs.Factory(PartitionModel)
    last_epoch: int = NO_LEADER_EPOCH
    is_compacted: bool = False
    settled: list[Settled] = attrs.Factory(list[Settled])
    appended: list[bytearray] = attrs.Factory(list[bytearray])
    derived: set[str] = attrs.Factory(set[str])
    """Derived files that are set aside and rebuilt."""
    believes_manifest: bool = True
    """False if its manifest is not that of this log, and with it what it says of other files."""
    start_offset: int = 0
    """The log start offset that its small files prove."""
    log_start: int | None = None
    """What to write as the log start offset, None if its file is right."""
    topic_id: bytes = NO_TOPIC_ID
    """In its manifest; NO_TOPIC_ID if unknown."""

    @property
    def is_needed(self) -> bool:
        is_changed = self.is_new or self.log.is_altered or self.log_start is not None
        return bool(is_changed or self.appended or self.derived)


@attrs.define(eq=False)
class Plan:
    """What is done to a data directory."""

    location: str
    damages: list[DamageReport] = attrs.Factory(list[DamageReport])
    notes: list[str] = attrs.Factory(list[str])
    logs: list[LogPlan] = attrs.Factory(list[LogPlan])
    aside: list[str] = attrs.Factory(list[str])
    """Directories of topics that the metadata has lost."""
    adopted: set[str] = attrs.Factory(set[str])
    """Topics that are put back into the metadata."""
    files: dict[str, bytes | None] = attrs.Factory(dict[str, bytes | None])
    """Files of the data directory itself: their new content, or None to set them aside."""

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.logs or self.aside or self.files)

    def report_derived(self, file: str, because: str, *, stake: str, saved: str) -> None:
        """Add a damaged file other than a log: it is written again, or set aside."""
        self.damages.append(DamageReport(file, "damaged derived file", because, stake=stake, saved=saved))

    def rewrite_log_start(self, log: LogPlan, because: str) -> None:
        """Write the log start offset of a partition again: its file is damaged or wrong."""
        start, partition = log.start_offset, log.log.partition
        log.log_start = start
        self.report_derived(
            f"{partition}/{LOG_START_FILE}",
            because,
            stake=f"records of {partition} that were deleted may be readable again",
            saved=f"the log starts at offset {start}, as its manifest and its oldest file say",
        )
