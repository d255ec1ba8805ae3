"""What `send` and `send_many` return: futures of records, without an object per record until it is asked for.

Rule: a future is a tuple of its client, its batch and its index, so that creating one costs what a tuple
costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar, cast, overload

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

    def __repr__(self) -> str:
        batch, index = self[1:]
        if batch.base_offset >= 0:
            state = f"offset {batch.base_offset + index}"
        else:
            state = "failed" if batch.is_done else "pending"
        return f"<{type(self).__name__} {self.partition}: {state}>"

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
        """Returns the metadata of the record, or raises its error; only once it is done."""
        return delivered(self[1], self[2])


def delivered(batch: ProducerBatch, index: int) -> RecordMetadata:
    """Returns the metadata of a record of a batch that is done, or raises its error."""
    base_offset = batch.base_offset
    if base_offset >= 0:  # the usual case, without another call
        return make_record_metadata((batch.topic, batch.partition, base_offset + index))
    assert batch.is_done, "the outcome of a batch that is still on its way"
    error, metadata = batch.outcome_of(index)
    if error is not None:
        raise error
    return metadata


class BatchRun(NamedTuple):
    """Consecutive records of one batch."""

    batch: ProducerBatch
    first: int
    length: int

    def outcomes(self) -> list[RecordMetadata]:
        """Returns the metadata of the records, or raises the first error; only when the batch is done."""
        return [delivered(self.batch, index) for index in range(self.first, self.first + self.length)]


class PendingColumn(Generic[OwnerT]):
    """The records of one `send_many`: runs of records in batches, each with its indexes in the columns."""

    __slots__ = ("_owner", "_runs")

    def __init__(self, owner: OwnerT) -> None:
        self._owner = owner
        self._runs: list[tuple[BatchRun, Sequence[int]]] = []

    def add(self, run: BatchRun, indexes: Sequence[int]) -> None:
        """Adds a `run` of records in one batch; `indexes` holds the index in the columns for each of them."""
        self._runs.append((run, indexes))

    def __len__(self) -> int:
        return sum(run.length for run, _ in self._runs)

    @property
    def batches(self) -> list[ProducerBatch]:
        """The batches of the records, without duplicates."""
        return list({run.batch.number: run.batch for run, _ in self._runs}.values())

    def done(self) -> bool:
        """Whether each record is stored or has failed."""
        return all(run.batch.is_done for run, _ in self._runs)

    def outcomes(self) -> StoredRecords:
        """Returns the metadata in the order of the columns, or raises the first error; only when done."""
        for run, _ in self._runs:
            if run.batch.base_offset < 0:  # not every record of the batch has an offset
                run.outcomes()
        return StoredRecords(self._runs)


class StoredRecords(Sequence[RecordMetadata]):
    """The RecordMetadata of the records of one `send_many`, in the order of its columns. They become objects
    at first use, so a program that only counts the records pays per batch.
    """

    __slots__ = ("_metadata", "_runs")

    def __init__(self, runs: Sequence[tuple[BatchRun, Sequence[int]]]) -> None:
        self._runs = runs
        self._metadata: list[RecordMetadata] | None = None

    def __len__(self) -> int:
        return sum(run.length for run, _ in self._runs)

    @overload
    def __getitem__(self, index: int) -> RecordMetadata: ...
    @overload
    def __getitem__(self, index: slice) -> list[RecordMetadata]: ...
    def __getitem__(self, index: int | slice) -> RecordMetadata | list[RecordMetadata]:
        return self._all()[index]

    def __iter__(self) -> Iterator[RecordMetadata]:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all() == list(cast("Sequence[object]", other))

    __hash__ = None  # pyright: ignore[reportAssignmentType] - like a list, whose place it takes

    def __repr__(self) -> str:
        return repr(self._all())

    def _all(self) -> list[RecordMetadata]:
        if self._metadata is None:
            found: dict[int, RecordMetadata] = {}
            for run, indexes in self._runs:
                found.update(zip(indexes, run.outcomes(), strict=True))
            self._metadata = [found[index] for index in range(len(found))]
        return self._metadata
