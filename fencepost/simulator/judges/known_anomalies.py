"""Anomalies that are known: breaches of a rule that Apache Kafka shows, too. They are counted by name and are
not violations.

Two kinds. An *old behaviour* is what brokers did before each transaction had an epoch of its own (KIP-890): a
run that meets one ends there, so that nothing that follows from it needs an excuse. A *known behaviour* is
what the newest brokers still do to producers without transactions. Every entry names its cure or its reason,
and it counts only where the run bears it out: the log itself must hold what `needs` says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import attrs

from fencepost.broker.settings import NodeSettings
from fencepost.protocol.batches import BatchHeader
from fencepost.protocol.terms import TopicPartition
from fencepost.simulator.judges.partition_rules import PartitionRecord
from fencepost.simulator.judges.rules import DUPLICATE, NONMONOTONIC_SEND, Anomaly, Rule, Violation

# --- old generations ----------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class OldBehaviour:
    """`cured_by` is what ended it; `needs` is what the run must show. It happens `despite_verification`
    unless partition leaders prevent it by asking the coordinator first (KIP-890 part 1).
    """

    name: str
    cured_by: str
    why: str
    needs: str
    despite_verification: bool = True

    def is_of(self, settings: NodeSettings) -> bool:
        """Whether brokers with these settings do it."""
        is_let_in = self.despite_verification or not settings.partition_verification
        return is_let_in and not settings.transaction_version.renews_identity

    @property
    def generations(self) -> str:
        """The transaction versions that show it, in words."""
        return "0 and 1" if self.despite_verification else "0 and 1 without verification"


class KnownAnomaly(Violation):
    """A run met what brokers of its generation do: it ends, and it is not a violation."""

    def __init__(self, behaviour: OldBehaviour, evidence: str) -> None:
        super().__init__(behaviour.name, evidence)


LATE_END: Final = OldBehaviour(
    name="a late EndTxn ends the next transaction",
    cured_by="KAFKA-17754, KIP-890 part 2",
    why="An EndTxn arrives late: its sender has retried it, and the next transaction is open. Both "
    "have one epoch, so it ends the wrong one: records are committed that the client aborts later, "
    "or the other way round, and the records that follow belong to no transaction.",
    needs="The coordinator's log holds the beginning of the transaction, written after the EndTxn that "
    "ended it had left its sender, under the same producer id and epoch.",
)
LATE_MARKER: Final = OldBehaviour(
    name="a late marker is taken for one of the next transaction",
    cured_by="KIP-890 part 2, KIP-1228",
    why="The coordinator did not get the answer to its markers and retried them; the first ones arrive "
    "after the next transaction has begun. Both transactions have the same epoch, so the late marker ends "
    "what the next one has written there so far. If that is nothing, the log holds a decision that "
    "no coordinator made.",
    needs="The marker had left before the coordinator wrote the beginning of the newest transaction; the "
    "partition knows neither a newer epoch of the producer nor of the coordinator.",
)
LATE_WRITE: Final = OldBehaviour(
    name="a late write joins the next transaction",
    cured_by="KIP-890 part 2",
    why="A batch or a commit of offsets arrives when its transaction is over and the next one has the "
    "partition, too. Verification asks whether the partition is in the transaction, and it is.",
    needs="Its producer's marker is in the log, written after the batch had left; the coordinator's "
    "log holds the partition in an open transaction of the same producer id and epoch, and the "
    "partition knows no newer epoch.",
)
LATE_WRITE_ALONE: Final = OldBehaviour(
    name="a late write opens a transaction that nobody ends",
    cured_by="KAFKA-14402, KIP-890 part 1",
    why="A late write arrives in a partition without an open transaction. Without verification the "
    "leader accepts it, and readers of committed records wait for a marker of the producer that may "
    "never come.",
    needs="Its producer's marker is in the log, written after the batch had left, and the partition "
    "knows no newer epoch.",
    despite_verification=False,
)
OLD_BEHAVIOURS: Final = (LATE_END, LATE_MARKER, LATE_WRITE, LATE_WRITE_ALONE)


# --- anomalies that Apache Kafka shows, too -----------------------------------------------------------------

Explains = Callable[[PartitionRecord, int, int], bool]
"""Whether a log explains an anomaly between two of its offsets, the lower one first."""


@attrs.frozen(kw_only=True)
class KnownBehaviour:
    """A rule that producers without transactions may see broken; `needs` is what the log must hold, which
    `explains` looks for.
    """

    name: str
    rule: Rule
    why: str
    needs: str
    explains: Explains


def _was_unknown(log: PartitionRecord, first: int, _second: int) -> bool:
    entered = log.batch_at(first)
    known = (header.producer_id for header in log.headers if header.base_offset < entered.base_offset)
    return entered.producer_id not in known


def _was_forgotten(log: PartitionRecord, first: int, second: int) -> bool:
    """It was sent again under a new identity, when a new leader found newer batches of the old one."""
    before, again = log.batch_at(first), log.batch_at(second)
    identity = _identity(before)
    newer = [
        header.base_offset
        for header in log.headers
        if before.base_offset < header.base_offset < second and _identity(header) == identity
    ]
    return _identity(again) != identity and any(
        newest < taken_over <= second for newest in newer for taken_over in log.taken_over_at
    )


def _was_sent_again(log: PartitionRecord, first: int, second: int) -> bool:
    """It is after a later one because it was sent again under a new identity, after a change of leaders."""
    is_another = _identity(log.batch_at(first)) != _identity(log.batch_at(second))
    return is_another and any(first < taken_over <= second for taken_over in log.taken_over_at)


def _identity(header: BatchHeader) -> tuple[int, int]:
    return header.producer_id, header.producer_epoch


KNOWN: Final = (
    KnownBehaviour(
        name="an unknown producer may start anywhere",
        rule=NONMONOTONIC_SEND,
        why="Since KIP-360 a partition takes any first sequence of a producer that it does not know. Batches "
        "in flight together while the partition gets its first leader can therefore enter out of order.",
        needs="The batch that came too early is the first one of its producer id.",
        explains=_was_unknown,
    ),
    KnownBehaviour(
        name="one batch per producer survives a leader",
        rule=DUPLICATE,
        why="A snapshot keeps the last batch of each producer, so a new leader may not recognise an older "
        "one that is sent again. It answers OUT_OF_ORDER_SEQUENCE_NUMBER; an idempotent producer then sends "
        "the batch under a new identity, as Kafka's does (TransactionManager.canRetry). A transaction is "
        "aborted.",
        needs="Between the two a leader took over, which found a newer batch of the old identity.",
        explains=_was_forgotten,
    ),
    KnownBehaviour(
        name="a batch that is sent again lands after newer ones",
        rule=NONMONOTONIC_SEND,
        why="The same retry under a new identity, where newer batches had already been acknowledged.",
        needs="Between the two a leader took over, and the later one has another identity.",
        explains=_was_sent_again,
    ),
)


def known_kafka(
    anomaly: Anomaly, partitions: Mapping[TopicPartition, PartitionRecord]
) -> KnownBehaviour | None:
    """The entry that explains an anomaly, if there is one."""
    if not anomaly.operations or any(operation.transactional for operation in anomaly.operations):
        return None
    for entry in KNOWN:
        if entry.rule is anomaly.rule:
            assert anomaly.partition is not None, "who excuses a rule knows the log"
            first, second = sorted(offset for offset, _ in anomaly.records)
            if entry.explains(partitions[anomaly.partition], first, second):
                return entry
    return None
