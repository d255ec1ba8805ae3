"""What `send` and `send_many` return: futures of records, without an object per record until it is asked for.

Rule: a future is a tuple of its client, its batch and its index, so that creating one costs what a tuple
costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from fencepost.client.batch import ProducerBatch, RecordMetadata
from fencepost.protocol.terms import TopicPartition

OwnerT = TypeVar("OwnerT")


# One per record: this costs half of calling the class, whose __new__ is written in Python.
_tuple: Any = tuple
make_record_metadata: Callable[[tuple[str, int, int]], RecordMetadata] = partial(
    _tuple.__new__, RecordMetadata
)


class PendingRecord(tuple[OwnerT, ProducerBatch, int], Generic[OwnerT]):
    """One record that was sent: (client, batch, index)."""

    __slots__ = ()

    @property
    def batch(self) -> ProducerBatch:
        """The batch that carries the record."""
        return self[1]

    def done(self) -> bool:
        """Whether the record is stored or has failed."""
        return self[1].is_done

    @property
    def partition(self) -> TopicPartition:
        """The partition of the record."""
        return TopicPartition(self[1].topic, self[1].partition)

    def outcome(self) -> RecordMetadata:
        """The place of the record, or raises its error; only once it is done."""
        return delivered(self[1], self[2])


def delivered(batch: ProducerBatch, index: int) -> RecordMetadata:
    """The place of a record of a batch that is done, or raises its error."""
    base_offset = batch.base_offset
    if base_offset >= 0:  # the usual case, without another call
        return make_record_metadata((batch.topic, batch.partition, base_offset + index))
    assert batch.is_done, "the outcome of a batch that is still on its way"
    error, place = batch.outcome_of(index)
    if error is not None:
        raise error
    return place


class BatchRun(NamedTuple):
    """Consecutive records of one batch."""

    batch: ProducerBatch
    first: int
    length: int


class PendingColumn(Generic[OwnerT]):
    """The records of one `send_many`: runs in batches, each with its indexes in the columns."""

    __slots__ = ("_owner", "_runs")

    def __init__(self, owner: OwnerT) -> None:
        self._owner = owner
        self._runs: list[tuple[BatchRun, Sequence[int]]] = []

    def add(self, run: BatchRun, places: Sequence[int]) -> None:
        """Adds a `run` of records in one batch; `places` holds the index in the columns for each of them."""
        self._runs.append((run, places))

    def __len__(self) -> int:
        return sum(run.length for run, _ in self._runs)

    @property
    def batches(self) -> list[ProducerBatch]:
        """The batches of the records, without duplicates."""
        return list({run.batch.number: run.batch for run, _ in self._runs}.values())

    def done(self) -> bool:
        """Whether each record is stored or has failed."""
        return all(run.batch.is_done for run, _ in self._runs)

    def outcomes(self) -> list[RecordMetadata]:
        """The places in the order of the columns, or raises the first error; only when done."""
        found: dict[int, RecordMetadata] = {}
        for (batch, first, _), places in self._runs:
            found.update((place, delivered(batch, first + i)) for i, place in enumerate(places))
        return [found[place] for place in range(len(self))]
