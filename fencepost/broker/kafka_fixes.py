"""What Kafka mended over the years, each as a knob: with one off a broker answers as Kafka did before.

Rule: a knob is one branch in one place, or rows of a table; on is as Apache Kafka 4.3.1 answers. What differs
between generations of `transaction.version` is no knob (transaction_tables.GENERATIONS).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs


@attrs.frozen(kw_only=True)
class Fix:
    """What a knob is about, for people: how it is with it and without it, and which anomaly comes back."""

    name: str
    source: str
    """The KIP or the JIRA that brought it."""
    since: str
    """The first release that has it, or when it was merged, where no release is known."""
    on: str
    off: str
    opens: str
    """What goes wrong without it."""


@attrs.frozen(kw_only=True)
class KafkaFixes:
    """Which of Kafka's corrections a broker has: all of them, unless one is turned off."""

    group_fencing: bool = True
    """A group refuses offsets that a producer commits for a generation that is over."""
    require_stable: bool = True
    """A reader who asks for stable offsets is not told one that an undecided transaction is about to move."""
    unknown_producers_start_anywhere: bool = True
    """A partition takes any first sequence from a producer that it does not know."""
    strict_marker_epoch: bool = True
    """A marker of version 2 does not end a transaction that began under the marker's own epoch."""
    idempotent_marker_retry: bool = True
    """The repetition of a marker that was written is no stale marker."""
    tells_next_producer_id: bool = True
    """The answer to the EndTxn that uses up the last epoch names the producer id that comes next."""
    fences_once: bool = True
    """A fence raises the epoch by one, also where every end raises it."""
    rotates_when_fencing: bool = True
    """A fence that uses up the last epoch hands over to a fresh producer id, as an end does."""
    persists_previous_and_next_producer_id: bool = True
    """From `transaction.version` 1 on the log says which producer id was before, and which comes next."""

    @classmethod
    def without(cls, names: Iterable[str]) -> KafkaFixes:
        """All but these. ValueError for a name that is none, and says which there are."""
        off = tuple(names)
        if unknown := [name for name in off if name not in FIX_NAMES]:
            raise ValueError(f"there is no correction {', '.join(unknown)}; there are {', '.join(FIX_NAMES)}")
        return cls(**dict.fromkeys(off, False))

    @property
    def off(self) -> tuple[str, ...]:
        """The names of what is turned off, in their order."""
        return tuple(name for name in FIX_NAMES if not self.has(name))

    def has(self, name: str) -> bool:
        """Whether the knob of this name is on."""
        return bool(getattr(self, name))


FIXES: Final = (
    Fix(
        name="group_fencing",
        source="KIP-447 (KAFKA-8587)",
        since="2.5",
        on="TxnOffsetCommit is checked against the group's member, generation and instance",
        off="every TxnOffsetCommit is one of nobody, as from a client older than KIP-447",
        opens="a consumer that lost its partitions commits what its heir has done already: records are "
        "copied twice",
    ),
    Fix(
        name="require_stable",
        source="KIP-447 (KAFKA-8587)",
        since="2.5",
        on="OffsetFetch with require_stable answers UNSTABLE_OFFSET_COMMIT until the transaction is decided",
        off="OffsetFetch answers the last committed offset, whatever is pending",
        opens="a consumer that takes over before the marker begins at the old offset: records are copied "
        "twice",
    ),
    Fix(
        name="unknown_producers_start_anywhere",
        source="KIP-360 (KAFKA-7190)",
        since="2.5",
        on="an unknown producer's first batch may have any sequence (0 with Produce 12 in a transaction)",
        off="an unknown producer's batch with another sequence than 0 gets UNKNOWN_PRODUCER_ID",
        opens="a producer that was silent for longer than producer.id.expiration.ms loses its transaction, "
        "or must go on under a new identity",
    ),
    Fix(
        name="strict_marker_epoch",
        source="KIP-1228 (KAFKA-19446)",
        since="4.2",
        on="a marker of version 2 needs a higher epoch than the one whose transaction is open",
        off="a marker needs an epoch that is not lower",
        opens="a marker that comes late, or twice, ends part of the next transaction",
    ),
    Fix(
        name="idempotent_marker_retry",
        source="KAFKA-19999",
        since="merged December 2025",
        on="a marker of version 2 whose epoch is known is taken once more where nothing is open",
        off="it gets INVALID_PRODUCER_EPOCH, and its coordinator gives up (with strict_marker_epoch)",
        opens="after a lost answer or a failover a transaction stays in PREPARE_*: everybody gets "
        "CONCURRENT_TRANSACTIONS for good",
    ),
    Fix(
        name="tells_next_producer_id",
        source="KAFKA-18660",
        since="4.0",
        on="the EndTxn that uses up epoch 32766 answers the next producer id and epoch 0",
        off="it answers the old producer id and epoch 32767",
        opens="the producer goes on under an identity that nobody knows, and is refused for good",
    ),
    Fix(
        name="fences_once",
        source="KAFKA-19367",
        since="4.0.1",
        on="InitProducerId and timeouts raise the epoch of an open transaction by one",
        off="in version 2 they raise it by two; at 32766 it would turn negative, and they fail",
        opens="who was timed out cannot abort and go on; at epoch 32766 the transaction stays open for good",
    ),
    Fix(
        name="rotates_when_fencing",
        source="KAFKA-20090",
        since="merged February 2026",
        on="in version 2 a fence at epoch 32766 ends with the next producer id and epoch 0",
        off="it ends with the old producer id and epoch 32767, which the next InitProducerId replaces",
        opens="who was timed out is still the owner at an epoch that can be raised no more",
    ),
    Fix(
        name="persists_previous_and_next_producer_id",
        source="KAFKA-20310",
        since="merged March 2026",
        on="the log holds both (tags 0 and 1 of TransactionLogValue version 1)",
        off="they are in memory alone, as with transaction.version 0",
        opens="after a failover a rotation is forgotten: the producer that was told its next id is refused",
    ),
)

FIX_NAMES: Final = tuple(field.name for field in attrs.fields(KafkaFixes))

ALL_FIXES: Final = KafkaFixes()
"""As Apache Kafka 4.3.1."""
