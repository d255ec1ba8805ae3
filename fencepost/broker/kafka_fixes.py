"""Bugs that Kafka fixed over the years, each as a switch: without a fix, a broker answers as Kafka did
before it.

Rule: a fix is one branch in one place, or rows of a table; with all fixes a broker answers as Apache Kafka
4.3.1 does. Differences between values of `transaction.version` are not fixes (transactions/tables.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import attrs


@attrs.frozen(kw_only=True)
class Fix:
    """The description of one fix: the behaviour with it and without it, and the anomaly that it removed."""

    name: str
    source: str
    """The KIP or the JIRA issue that introduced it."""
    since: str
    """The first release with the fix, or the month of the merge where no release has it yet."""
    on: str
    off: str
    opens: str
    """The anomaly without it."""


def _fix(*, source: str, since: str, on: str, off: str, opens: str) -> Any:
    """The field of a fix, with the rest of its description."""
    about = {"source": source, "since": since, "on": on, "off": off, "opens": opens}
    return attrs.field(default=True, metadata=about)


@attrs.frozen(kw_only=True)
class KafkaFixes:
    """The fixes that a broker has: all of them, unless one is turned off."""

    group_fencing: bool = _fix(
        source="KIP-447 (KAFKA-8587)",
        since="2.5",
        on="TxnOffsetCommit is checked against the group's member, generation and instance",
        off="TxnOffsetCommit is accepted without member checks, as from a client older than KIP-447",
        opens="a consumer that lost its partitions commits offsets of records that the new owner also "
        "processes: records are copied twice",
    )
    require_stable: bool = _fix(
        source="KIP-447 (KAFKA-8587)",
        since="2.5",
        on="OffsetFetch with require_stable returns UNSTABLE_OFFSET_COMMIT until the transaction is complete",
        off="OffsetFetch returns the last committed offset and ignores pending ones",
        opens="a consumer that takes over before the marker is written starts at the old offset: records "
        "are copied twice",
    )
    unknown_producers_start_anywhere: bool = _fix(
        source="KIP-360 (KAFKA-7190)",
        since="2.5",
        on="the first batch of an unknown producer may have any sequence (in a Produce 12 transaction: 0)",
        off="the first batch of an unknown producer gets UNKNOWN_PRODUCER_ID unless its sequence is 0",
        opens="a producer that was idle for longer than producer.id.expiration.ms loses its transaction "
        "or needs a new producer id",
    )
    strict_marker_epoch: bool = _fix(
        source="KIP-1228 (KAFKA-19446)",
        since="4.2",
        on="a marker of version 2 needs a higher epoch than the open transaction",
        off="the epoch of a marker may equal that of the open transaction",
        opens="a late or duplicate marker ends part of the next transaction",
    )
    idempotent_marker_retry: bool = _fix(
        source="KAFKA-19999",
        since="merged December 2025",
        on="a retried marker of version 2 is accepted if no transaction is open",
        off="if strict_marker_epoch is on, the retried marker gets INVALID_PRODUCER_EPOCH, and its "
        "coordinator stops retrying",
        opens="after a lost reply or a failover, a transaction stays in PREPARE_* forever: every request "
        "for its transactional id gets CONCURRENT_TRANSACTIONS",
    )
    tells_next_producer_id: bool = _fix(
        source="KAFKA-18660",
        since="4.0",
        on="EndTxn at epoch 32766 returns the next producer id and epoch 0",
        off="it returns the old producer id and epoch 32767",
        opens="the producer continues with an id and epoch that no broker accepts",
    )
    fences_once: bool = _fix(
        source="KAFKA-19367",
        since="4.0.1",
        on="InitProducerId and timeouts raise the epoch of an open transaction by one",
        off="in version 2 they raise it by two; at 32766 that overflows, and they fail",
        opens="a producer whose transaction timed out cannot abort and continue; at epoch 32766 the "
        "transaction stays open forever",
    )
    rotates_when_fencing: bool = _fix(
        source="KAFKA-20090",
        since="merged February 2026",
        on="in version 2, fencing at epoch 32766 switches to the next producer id and epoch 0",
        off="it keeps the producer id and sets epoch 32767; the next InitProducerId replaces both",
        opens="a producer whose transaction timed out still owns its transactional id, at an epoch that "
        "cannot be raised",
    )
    persists_previous_and_next_producer_id: bool = _fix(
        source="KAFKA-20310",
        since="merged March 2026",
        on="the log stores the previous and the next producer id (tags 0 and 1 of TransactionLogValue "
        "version 1)",
        off="they exist only in the coordinator's memory, as with transaction.version 0",
        opens="a failover loses the switch to a new id: the producer that already uses it is rejected",
    )

    @classmethod
    def without(cls, names: Iterable[str]) -> KafkaFixes:
        """All fixes but these. Raises ValueError for an unknown name; the message lists the names."""
        off = tuple(names)
        if unknown := [name or "''" for name in off if name not in FIX_NAMES]:
            raise ValueError(f"unknown fix {', '.join(unknown)}; the fixes are {', '.join(FIX_NAMES)}")
        return cls(**dict.fromkeys(off, False))

    @property
    def off(self) -> tuple[str, ...]:
        """The names of the fixes that are turned off, in the order of the fields."""
        return tuple(name for name in FIX_NAMES if not self.has(name))

    def has(self, name: str) -> bool:
        """Whether the broker has the fix of this name."""
        return bool(getattr(self, name))


FIXES: Final = tuple(Fix(name=field.name, **field.metadata) for field in attrs.fields(KafkaFixes))
FIX_NAMES: Final = tuple(fix.name for fix in FIXES)

ALL_FIXES: Final = KafkaFixes()
"""The behaviour of Apache Kafka 4.3.1."""
