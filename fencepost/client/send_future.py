"""What `send` and `send_many` return: futures of records, without an object per record until it is asked for.

Rule: a future is a tuple of its client, its batch and its index, so that creating one costs what a tuple
costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from fencepost.client.batch import ProducerBatch
from fencepost.protocol.terms import NO_OFFSET, TopicPartition

OwnerT = TypeVar("OwnerT")


class RecordMetadata(NamedTuple):
    """Where a record lies; `offset` is -1 when the broker stored it before and forgot where (a duplicate)."""

    topic: str
    partition: int
    offset: int


# Asked for once per record: half the cost of calling the class.
_tuple: Any = tuple
make_record_metadata: Callable[[tuple[str, int, int]], RecordMetadata] = partial(
    _tuple.__new__, RecordMetadata
)


class PendingRecord(tuple[OwnerT, ProducerBatch, int], Generic[OwnerT]):
    """One record that was sent: (client, batch, index)."""

    __slots__ = ()

    @property
    def batch(self) -> ProducerBatch:
        return self[1]

    def done(self) -> bool:
        """Whether it is known what became of the record."""
        return self[1].is_done

    @property
    def partition(self) -> TopicPartition:
        """Where the record goes."""
        return TopicPartition(self[1].topic, self[1].partition)

    def outcome(self) -> RecordMetadata:
        """Where the record lies, or the error that it ended in; only once it is done."""
        return delivered(self[1], self[2])


def delivered(batch: ProducerBatch, index: int) -> RecordMetadata:
    """The outcome of one record of a batch that is done."""
    base_offset = batch.base_offset
    if base_offset >= 0:
        return make_record_metadata((batch.topic, batch.partition, base_offset + index))
    if batch.failure is not None:
        raise batch.failure.exception()
    assert batch.is_done, "the outcome of a batch that is still on its way"
    return RecordMetadata(batch.topic, batch.partition, NO_OFFSET)


class BatchRun(NamedTuple):
    """Records that lie one after the other in one batch."""

    batch: ProducerBatch
    first: int
    length: int


class PendingColumn(Generic[OwnerT]):
    """The records of one `send_many`: runs of them, each with the places in the columns that it holds."""

    __slots__ = ("_owner", "_runs")

    def __init__(self, owner: OwnerT) -> None:
        self._owner = owner
        self._runs: list[tuple[BatchRun, Sequence[int]]] = []

    def add(self, run: BatchRun, places: Sequence[int]) -> None:
        """Takes note of a run; `places` has an index into the columns for each of its records."""
        self._runs.append((run, places))

    def __len__(self) -> int:
        return sum(run.length for run, _ in self._runs)

    @property
    def batches(self) -> list[ProducerBatch]:
        """The batches that hold them, each once."""
        return list({run.batch.number: run.batch for run, _ in self._runs}.values())

    def done(self) -> bool:
        """Whether it is known what became of all of them."""
        return all(run.batch.is_done for run, _ in self._runs)

    def outcomes(self) -> list[RecordMetadata]:
        """Where each lies, in the order of the columns, or the first error; only once all are done."""
        found: dict[int, RecordMetadata] = {}
        for (batch, first, _), places in self._runs:
            found.update((place, delivered(batch, first + i)) for i, place in enumerate(places))
        return [found[place] for place in range(len(self))]
