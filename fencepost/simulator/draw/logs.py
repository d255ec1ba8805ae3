"""The log of each partition as a run left it: its batches, what became of them, and what readers could see.

Rule: a batch is aborted by the next abort marker of its producer in its own partition, and by nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

import attrs

from fencepost.protocol.terms import (
    CLUSTER_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    TransactionResult,
)
from fencepost.simulator.world.history import Appended, Bounded, Event, Truncated

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
    """One partition: its batches by their place in the run, and the moves of its bounds, each with its
    place.
    """

    batches: Mapping[int, Batch]
    bounds: tuple[tuple[int, Bounded], ...]


def has_lane(partition: TopicPartition) -> bool:
    """Whether a partition's log is drawn: those of transaction states and of the cluster's metadata are
    not.
    """
    return partition.topic not in _UNDRAWN_TOPICS


@attrs.define
class _Reading:
    """A log as far as it has been read; `undecided` are the places in `batches` of each producer's open
    data.
    """

    batches: list[Batch] = attrs.Factory(list[Batch])
    bounds: list[tuple[int, Bounded]] = attrs.Factory(list[tuple[int, Bounded]])
    undecided: dict[int, list[int]] = attrs.Factory(dict[int, list[int]])

    def append(self, place: int, event: Appended) -> None:
        """A batch comes in; a marker decides what its producer left open."""
        fate = Fate.OPEN if event.is_transactional else Fate.PLAIN
        if event.result is not None:
            fate = _MARKERS[event.result]
            # The epoch says nothing: since KIP-890 a marker bears the next one.
            for index in self.undecided.pop(event.producer_id, []):
                self.batches[index] = attrs.evolve(self.batches[index], fate=_DECIDED[event.result])
        elif fate is Fate.OPEN:
            self.undecided.setdefault(event.producer_id, []).append(len(self.batches))
        self.batches.append(Batch(place=place, appended=event, fate=fate))

    def truncate(self, next_offset: int) -> None:
        """The log ends earlier now."""
        for index, batch in enumerate(self.batches):
            if batch.appended.next_offset > next_offset:
                self.batches[index] = attrs.evolve(batch, is_gone=True)
        for producer_id, places in self.undecided.items():
            self.undecided[producer_id] = [index for index in places if not self.batches[index].is_gone]


def read_logs(events: Iterable[Event]) -> dict[TopicPartition, Log]:
    """The logs that are drawn, by partition, sorted by name."""
    logs: dict[TopicPartition, _Reading] = {}
    for place, event in enumerate(events):
        if not isinstance(event, Appended | Bounded | Truncated) or not has_lane(event.partition):
            continue
        log = logs.setdefault(event.partition, _Reading())
        match event:
            case Appended():
                log.append(place, event)
            case Bounded():
                log.bounds.append((place, event))
            case Truncated(next_offset=next_offset):
                log.truncate(next_offset)
    return {
        partition: Log(batches={batch.place: batch for batch in log.batches}, bounds=tuple(log.bounds))
        for partition, log in sorted(logs.items())
    }
