"""The records of `__transaction_state`: each transactional id's history, its decisions, and how they compare
with the markers in the partitions.

Rule: a decision is what a PREPARE_* record says. Each has a marker in every partition, with the same result.
"""

# Theory of operation
#
# A transaction is decided by its PREPARE_* record: from then on each of the record's partitions must get a
# marker with the record's producer id, epoch and result. The COMPLETE_* record that follows says that all of
# them are written. Three things can be wrong, and each is a Disagreement:
#
#     decision   marker
#     COMMIT     -         completed, and a marker is missing: the transaction is torn
#     COMMIT     ABORT     committed in some partitions and aborted in others
#     -          COMMIT    no coordinator decided it; an ABORT may be an administrator's
#
# A marker may be repeated: a coordinator that lost the reply sends it again, and the next coordinator sends
# the markers of every PREPARE_* that it finds. Before KIP-890 part 2 the transactions of a producer share one
# epoch, so decisions and markers are matched in the order in which they were written. Compaction takes
# decisions and markers away. Then only what it cannot explain is a Disagreement.

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from fencepost.log_model.partitions import LoggedMarker
from fencepost.protocol.terms import DECISIONS, TopicPartition, TransactionResult, TransactionState
from fencepost.protocol.transaction_log import TransactionRecord

_S = TransactionState
_ENDS_IN_ABORT: Final = (_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT)

FOLLOWERS: Final[Mapping[TransactionState, tuple[TransactionState, ...]]] = {
    # An end without a beginning happens only as an abort: to raise the epoch of an owner that left.
    _S.EMPTY: _ENDS_IN_ABORT,
    _S.ONGOING: (_S.ONGOING, _S.PREPARE_COMMIT, _S.PREPARE_ABORT),
    _S.PREPARE_COMMIT: (_S.COMPLETE_COMMIT,),
    _S.PREPARE_ABORT: (_S.COMPLETE_ABORT,),
    _S.COMPLETE_COMMIT: _ENDS_IN_ABORT,
    _S.COMPLETE_ABORT: _ENDS_IN_ABORT,
}
"""Which state the next record of a transactional id may have: the checkers' own table, independent of the
coordinator's.
"""

_RENEWS_IDENTITY: Final = 2  # the transaction version (KIP-890) from which each end raises the epoch

Identity = tuple[int, int]
"""A producer id and its epoch."""


class LoggedState(NamedTuple):
    """One record of the transaction log where it stands; None is a tombstone."""

    record: TransactionRecord | None
    file: str
    offset: int
    leader_epoch: int


Histories = Mapping[str, Sequence[LoggedState]]
"""The records of each transactional id, in order."""


class LoggedDecision(NamedTuple):
    """What a PREPARE_* record decides for one partition."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    result: TransactionResult
    is_complete: bool
    """Whether a COMPLETE_* record follows: all markers were written before it."""
    has_own_identity: bool
    """Whether no other transaction has this producer id and epoch (KIP-890 part 2)."""
    decided_by: LoggedState
    decided_ms: int


class Disagreement(NamedTuple):
    """A decision without its marker (`marker` is None), a marker without its decision, or two that say
    different things."""

    decision: LoggedDecision | None
    marker: LoggedMarker | None

    def __str__(self) -> str:
        decision, marker = self
        if marker is None:
            assert decision is not None, "one of the two is there"
            return f"{decision.transactional_id!r} completed {_of(decision)}, but its marker is missing"
        if decision is None:
            return f"{_of(marker)}, but no coordinator decided it"
        return f"{_of(marker)}, but {decision.transactional_id!r} decided {decision.result.name}"


def _of(what: LoggedDecision | LoggedMarker) -> str:
    return f"{what.result.name} of producer {what.producer_id} epoch {what.producer_epoch}"


def lowest_epoch_after(before: TransactionRecord, record: TransactionRecord) -> int:
    """The lowest epoch that `record` may have when it keeps the producer id of the record before it."""
    is_renewed = record.state.is_prepared and record.client_version >= _RENEWS_IDENTITY
    return before.producer_epoch + is_renewed


def decisions_of(histories: Histories) -> dict[TopicPartition, dict[Identity, list[LoggedDecision]]]:
    """Return every decision, by the partition that must have its marker and by the identity that the marker
    has.
    """
    found: dict[TopicPartition, dict[Identity, list[LoggedDecision]]] = {}
    for name, history in histories.items():
        for index, state in enumerate(history):
            record = state.record
            if record is None or not record.state.is_prepared:
                continue
            # With a COMPLETE_* after it, all markers must be there. Without one, the coordinator may still be
            # writing them.
            after = history[index + 1].record if index + 1 < len(history) else None
            decision = LoggedDecision(
                name,
                record.producer_id,
                record.producer_epoch,
                DECISIONS[record.state],
                after is not None and after.state.is_complete,
                record.client_version >= _RENEWS_IDENTITY,
                state,
                record.update_ms,
            )
            for partition in record.partitions:
                here = found.setdefault(partition, {})
                here.setdefault((record.producer_id, record.producer_epoch), []).append(decision)
    return found


def disagreements(
    decisions: Mapping[Identity, Sequence[LoggedDecision]],
    markers: Iterable[LoggedMarker],
    *,
    since: int,
    has_every_decision: bool,
    has_every_marker: bool,
) -> Iterator[Disagreement]:
    """Yield where the decisions for one partition and the markers in it differ. A decision that is
    not complete may lack its marker: the coordinator is still writing it.

    `since` (ms): when the topic was created. Earlier decisions are about a deleted topic of the same name, or
    the clock was set back. So they need no marker, but explain one.
    `has_every_decision`, `has_every_marker`: whether compaction removed none.
    """
    by_identity: dict[Identity, list[LoggedMarker]] = {}
    for marker in markers:
        by_identity.setdefault((marker.producer_id, marker.producer_epoch), []).append(marker)
    # Not a set: findings come in the same order in every run.
    for identity in dict.fromkeys([*decisions, *by_identity]):
        every = decisions.get(identity, ())
        here = [decision for decision in every if decision.decided_ms >= since]
        earlier = {decision.result for decision in every if decision.decided_ms < since}
        missing, undecided = _match(here, by_identity.get(identity, ()), in_order=has_every_marker)
        if has_every_marker:
            yield from (Disagreement(decision, None) for decision in missing if decision.is_complete)
        # Otherwise, a decision that compaction removed may explain the marker.
        if has_every_decision or any(decision.has_own_identity for decision in here):
            for marker in (each for each in undecided if each.result not in earlier):
                against = next((each for each in missing if each.result is not marker.result), None)
                yield Disagreement(against, marker)


def _match(
    decisions: Sequence[LoggedDecision], markers: Sequence[LoggedMarker], *, in_order: bool
) -> tuple[list[LoggedDecision], list[LoggedMarker]]:
    """Return the decisions without a marker, and the markers without a decision, of one identity.

    Before KIP-890 part 2, several decisions share an identity. `in_order`: each one takes the next marker
    with its result, and a marker that is left over must repeat one that was taken. Otherwise, a marker may
    belong to any decision with its result.
    """
    decided = set[TransactionResult]()
    missing: list[LoggedDecision] = []
    at = 0
    for decision in decisions:
        found = next((n for n in range(at, len(markers)) if markers[n].result is decision.result), None)
        if found is None:
            missing.append(decision)
        else:
            decided.add(decision.result)
            at = found + 1 if in_order else 0
    return missing, [marker for marker in markers if marker.result not in decided]
