"""What breaks a rule in Apache Kafka too: listed by name, counted, and no violation.

Rule: an entry says exactly whose operations it excuses and why, and the log itself must bear it out; whatever
else breaks the rule is a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import attrs

from fencepost.protocol.batches import BatchHeader
from fencepost.protocol.terms import TopicPartition
from fencepost.simulator.judges.anomalies import DUPLICATE, NONMONOTONIC_SEND, Anomaly, Rule
from fencepost.simulator.judges.partition_record import PartitionRecord

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
    """It came again under a new identity, when a new leader found newer batches of the old one."""
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
    """It stands behind a later one because it came again under a new identity, after a change of leaders."""
    is_another = _identity(log.batch_at(first)) != _identity(log.batch_at(second))
    return is_another and any(first < taken_over <= second for taken_over in log.taken_over_at)


def _identity(header: BatchHeader) -> tuple[int, int]:
    return header.producer_id, header.producer_epoch


KNOWN: Final = (
    KnownBehaviour(
        name="an unknown producer may start anywhere",
        rule=NONMONOTONIC_SEND,
        why="Since KIP-360 a partition takes any first sequence of a producer that it does not know. Batches "
        "in flight together while the partition gets its first leader can so enter out of order.",
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
        name="a batch that is sent again comes behind newer ones",
        rule=NONMONOTONIC_SEND,
        why="The same, where the newer batches had been acknowledged.",
        needs="Between the two a leader took over, and the later one has another identity.",
        explains=_was_sent_again,
    ),
)


def known(anomaly: Anomaly, partitions: Mapping[TopicPartition, PartitionRecord]) -> KnownBehaviour | None:
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
