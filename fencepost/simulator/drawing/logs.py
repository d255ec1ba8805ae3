"""The log of each partition as a run left it: its batches, what became of them, and what readers could see.

Rule: a batch is aborted by the next abort marker of its producer in its own partition, and by nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import attrs

from fencepost.protocol.terms import (
    CLUSTER_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    TransactionResult,
)
from fencepost.simulator.history import Appended, Bounded, Event, Truncated

# What these hold is drawn as the states of transactions, or is the cluster's own business.
_UNDRAWN_TOPICS = frozenset({TRANSACTION_STATE_TOPIC, CLUSTER_METADATA_TOPIC})


class Fate(Enum):
    """What a batch is in the end."""

    PLAIN = "outside of transactions"
    OPEN = "undecided"
    COMMITTED = "committed"
    ABORTED = "aborted"
    COMMIT_MARKER = "a commit marker"
    ABORT_MARKER = "an abort marker"


_MARKERS = {TransactionResult.COMMIT: Fate.COMMIT_MARKER, TransactionResult.ABORT: Fate.ABORT_MARKER}
_DECIDED = {TransactionResult.COMMIT: Fate.COMMITTED, TransactionResult.ABORT: Fate.ABORTED}


@attrs.frozen(kw_only=True)
class Batch:
    """One batch: the place of its append in the run, and what it is in the end; `is_gone`: truncated."""

    place: int
    appended: Appended
    fate: Fate
    is_gone: bool = False


@attrs.frozen(kw_only=True)
class Log:
    """One partition: batches, moves of its bounds and truncations, each with its place among the events."""

    partition: TopicPartition
    batches: tuple[Batch, ...] = ()
    bounds: tuple[tuple[int, Bounded], ...] = ()
    truncations: tuple[tuple[int, Truncated], ...] = ()


def has_lane(partition: TopicPartition) -> bool:
    """Whether a partition's log is drawn: those of transaction states and of the cluster's metadata are
    not.
    """
    return partition.topic not in _UNDRAWN_TOPICS


def read_logs(events: Iterable[Event]) -> dict[TopicPartition, Log]:
    """The logs that are drawn, by partition, sorted by name."""
    logs: dict[TopicPartition, Log] = {}
    for place, event in enumerate(events):
        if not isinstance(event, Appended | Bounded | Truncated) or not has_lane(event.partition):
            continue
        log = logs.get(event.partition, Log(partition=event.partition))
        match event:
            case Appended():
                logs[event.partition] = _appended(log, place, event)
            case Bounded():
                logs[event.partition] = attrs.evolve(log, bounds=(*log.bounds, (place, event)))
            case Truncated(next_offset=next_offset):
                logs[event.partition] = attrs.evolve(
                    log,
                    truncations=(*log.truncations, (place, event)),
                    batches=tuple(_truncated(batch, next_offset) for batch in log.batches),
                )
    return dict(sorted(logs.items()))


def _appended(log: Log, place: int, event: Appended) -> Log:
    batches = log.batches
    if event.result is not None:
        fate = _MARKERS[event.result]
        decided = _DECIDED[event.result]
        batches = tuple(
            attrs.evolve(batch, fate=decided) if _is_decided_by(batch, event) else batch for batch in batches
        )
    else:
        fate = Fate.OPEN if event.is_transactional else Fate.PLAIN
    return attrs.evolve(log, batches=(*batches, Batch(place=place, appended=event, fate=fate)))


def _is_decided_by(batch: Batch, marker: Appended) -> bool:
    # The epoch says nothing: since KIP-890 a marker bears the next one.
    return batch.fate is Fate.OPEN and not batch.is_gone and batch.appended.producer_id == marker.producer_id


def _truncated(batch: Batch, next_offset: int) -> Batch:
    if batch.appended.next_offset > next_offset:
        return attrs.evolve(batch, is_gone=True)
    return batch
