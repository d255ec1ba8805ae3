"""Converts batches to Arrow: the columns of many batches become one record batch of about 16,000 rows.

Rule: no Python code runs per record. Lists are extended; numpy computes offsets and timestamps from runs.
"""

from __future__ import annotations

import gc
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple, cast

import numpy as np
import pyarrow as pa

from fencepost.protocol.batches import LOG_APPEND_TIME_BIT, BatchHeader
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.records import Columns, read_columns
from fencepost.protocol.terms import INT32_MAX, NO_SEQUENCE, TopicPartition
from fencepost.spark_bridge.arrow_types import ARROW_TYPES, MILLISECONDS_MAX, ROWS_PER_BATCH
from fencepost.spark_bridge.columns import COLUMNS, TRANSACTION_STATE, TRANSACTIONS, Column, decoded_columns
from fencepost.spark_bridge.equal_lengths import Grids, read_grids
from fencepost.spark_bridge.gathered_columns import Decoded, Gathered
from fencepost.spark_bridge.kafka_positions import Spans, find_spans, read_spans
from fencepost.spark_bridge.partition_files import CorruptLog
from fencepost.spark_bridge.planning import PartitionRange
from fencepost.spark_bridge.scanning import RangeScan

BYTES_PER_BATCH: Final = 32 << 20  # limits memory when values are large
_VALUES_SHARED: Final = 64  # columns of equal values that are kept, each of 2 * ROWS_PER_BATCH rows


@contextmanager
def gc_paused() -> Generator[None]:
    """Pauses garbage collection while a chunk is decoded: it would run often and find nothing to free."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


Records = Columns | Grids | Spans


class _CutBatch(NamedTuple):
    """Records [first, last) of a batch."""

    records: Records
    first: int
    last: int
    partition: TopicPartition
    has_append_time: bool
    """Whether all of them have the time of the append."""


class Rows:
    """Collects rows for an Arrow record batch with these columns, in this order."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = columns
        self.schema = pa.schema(
            [pa.field(column.title, ARROW_TYPES[COLUMNS[column.name]]) for column in columns]
        )
        self._partition: TopicPartition | None = None
        names = {column.name for column in columns}
        self.has_states = TRANSACTION_STATE in names
        self._has_producers = not names.isdisjoint(TRANSACTIONS)
        self._filled: dict[object, pa.Array[Any]] = {}
        self._clear()

    def _clear(self) -> None:
        self.row_count = 0
        self.byte_count = 0
        self._parts: list[_CutBatch] = []
        self._gathered = Gathered()
        self._offset_runs: list[tuple[int, int]] = []  # first offset, how many
        self._batch_runs: list[tuple[int, int, int]] = []  # base timestamp, timestamp type, how many
        self._producer_runs: list[tuple[BatchHeader, str, int]] = []  # with transaction state and how many
        self._partition_starts: list[tuple[int, TopicPartition]] = []  # the first row of each

    @property
    def is_full(self) -> bool:
        return self.row_count >= ROWS_PER_BATCH or self.byte_count >= BYTES_PER_BATCH

    def add(
        self, header: BatchHeader, records: Records | None, range_: PartitionRange, *, state: str = "none"
    ) -> None:
        """Adds the records of a batch with offsets in the range.

        `records` is None if no requested column needs them; `state` is that of their transaction.
        """
        low, high = max(range_.start, header.base_offset), min(range_.end, header.next_offset)
        if not self._partition_starts or self._partition_starts[-1][1] != range_.partition:
            self._partition_starts.append((self.row_count, range_.partition))
        deltas = records.offset_deltas if isinstance(records, Columns) else None
        if deltas is None:
            count = high - low
            self._offset_runs.append((low, count))
            first = low - header.base_offset
        else:
            runs, first = _sparse_runs(deltas, header.base_offset, low, high)
            self._offset_runs.extend(runs)
            count = sum(length for _, length in runs)
        is_append_time = header.attributes & LOG_APPEND_TIME_BIT != 0
        if records is not None:
            self._parts.append(_CutBatch(records, first, first + count, range_.partition, is_append_time))
        timestamp = header.max_timestamp if is_append_time else header.base_timestamp
        self._batch_runs.append((timestamp, int(is_append_time), count))
        if self._has_producers:
            self._producer_runs.append((header, state, count))
        self.row_count += count
        self.byte_count += _unpacked_size(header, records)

    def take(self) -> pa.RecordBatch:
        """Returns the collected rows as a record batch and starts a new one; CorruptLog if one is invalid."""
        self._gather()
        arrays: list[Any] = [_BUILD[column.name](self) for column in self.columns]
        batch = pa.record_batch(arrays, schema=self.schema)
        self._clear()
        return batch

    def _gather(self) -> None:
        for (has_append_time, _), parts in groupby(self._parts, _kind):
            for records, first, last in _decoded(list(parts)):
                self._gathered.add(records, first, last, has_append_time=has_append_time)

    def key_column(self) -> pa.Array[Any]:
        return self._gathered.keys()

    def value_column(self) -> pa.Array[Any]:
        return self._gathered.values()

    def headers_column(self) -> pa.Array[Any]:
        return self._gathered.headers(ARROW_TYPES[COLUMNS["headers"]])

    def topic_column(self) -> pa.Array[Any]:
        return self._repeated(pa.string(), attrgetter("topic"))

    def partition_column(self) -> pa.Array[Any]:
        return self._repeated(pa.int32(), attrgetter("partition"))

    def _repeated(self, kind: pa.DataType, value_of: Callable[[TopicPartition], object]) -> pa.Array[Any]:
        """A column with the same value in all rows of a partition."""
        ends = [start for start, _ in self._partition_starts[1:]] + [self.row_count]
        parts = [
            self._filled_with(value_of(partition), kind, end - start)
            for (start, partition), end in zip(self._partition_starts, ends, strict=True)
        ]
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

    def _filled_with(self, value: object, kind: pa.DataType, count: int) -> pa.Array[Any]:
        """`count` times a value; record batches of one partition share one array."""
        filled = self._filled.get(value)
        if filled is None or len(filled) < count:
            if len(self._filled) == _VALUES_SHARED:
                self._filled.clear()
            scalar: Any = pa.scalar(value, kind)
            # If one was too short, more of about this length will follow.
            length = count if filled is None else max(count, 2 * ROWS_PER_BATCH)
            filled = cast("pa.Array[Any]", pa.repeat(scalar, length))
            self._filled[value] = filled
        return filled.slice(0, count)

    def offset_column(self) -> pa.Array[Any]:
        return pa.array(self._offsets(), pa.int64())

    def _offsets(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        runs = np.array(self._offset_runs, np.int64).reshape(-1, 2)
        lengths = runs[:, 1]
        ends = np.cumsum(lengths)
        return np.arange(self.row_count, dtype=np.int64) + np.repeat(runs[:, 0] - ends + lengths, lengths)

    def timestamp_column(self) -> pa.Array[Any]:
        runs = np.array(self._batch_runs, np.int64).reshape(-1, 3)
        times = np.repeat(runs[:, 0], runs[:, 2])
        deltas = self._gathered.time_deltas()
        if deltas is not None:
            times = times + deltas
        times = np.clip(times, -MILLISECONDS_MAX, MILLISECONDS_MAX) * 1000
        return pa.array(times, pa.int64()).view(ARROW_TYPES["timestamp"])

    def timestamp_type_column(self) -> pa.Array[Any]:
        runs = np.array(self._batch_runs, np.int64).reshape(-1, 3)
        return pa.array(np.repeat(runs[:, 1], runs[:, 2]).astype(np.int32), pa.int32())

    def producer_id_column(self) -> pa.Array[Any]:
        return self._of_producers([header.producer_id for header, _, _ in self._producer_runs], pa.int64())

    def producer_epoch_column(self) -> pa.Array[Any]:
        return self._of_producers([header.producer_epoch for header, _, _ in self._producer_runs], pa.int32())

    def _of_producers(self, values: list[int], kind: pa.DataType) -> pa.Array[Any]:
        """A column with the same value in all rows of a batch; a negative one means that there is none."""
        repeated = np.repeat(np.array(values, np.int64), self._producer_counts())
        return pa.array(repeated, kind, mask=repeated < 0)

    def sequence_column(self) -> pa.Array[Any]:
        firsts = [header.base_sequence for header, _, _ in self._producer_runs]
        bases = [header.base_offset for header, _, _ in self._producer_runs]
        counts = self._producer_counts()
        # Records have consecutive sequences, as they have offsets. The largest one is followed by 0.
        shifts = np.array(firsts, np.int64) - np.array(bases, np.int64)
        sequences = (self._offsets() + np.repeat(shifts, counts)) & INT32_MAX
        has_none = np.repeat(np.array(firsts, np.int64) == NO_SEQUENCE, counts)
        return pa.array(sequences, pa.int32(), mask=has_none)

    def transaction_state_column(self) -> pa.Array[Any]:
        states = pa.array([state for _, state, _ in self._producer_runs], pa.string())
        runs = np.repeat(np.arange(len(self._producer_runs), dtype=np.int64), self._producer_counts())
        return states.take(runs)

    def _producer_counts(self) -> list[int]:
        return [count for _, _, count in self._producer_runs]


_BUILD: Final[dict[str, Callable[[Rows], pa.Array[Any]]]] = {
    "key": Rows.key_column,
    "value": Rows.value_column,
    "topic": Rows.topic_column,
    "partition": Rows.partition_column,
    "offset": Rows.offset_column,
    "timestamp": Rows.timestamp_column,
    "timestampType": Rows.timestamp_type_column,
    "headers": Rows.headers_column,
    "producerId": Rows.producer_id_column,
    "producerEpoch": Rows.producer_epoch_column,
    "sequence": Rows.sequence_column,
    "transactionState": Rows.transaction_state_column,
}


def record_batches(scans: Iterable[RangeScan], columns: Sequence[Column]) -> Iterator[pa.RecordBatch]:
    """Yields the rows of the ranges of a task as Arrow record batches.

    Raises CorruptLog if a batch has a valid checksum but invalid records, and what scans raise.
    """
    rows = Rows(columns)
    decodes = bool(decoded_columns(columns))
    batches = ((scan, *batch) for scan in scans for batch in scan)
    more = True
    while more:
        with gc_paused():
            more = _fill(rows, batches, decodes=decodes)
            batch = rows.take() if rows.row_count else None
        if batch is not None:
            yield batch


def _fill(rows: Rows, batches: Iterator[tuple[RangeScan, BatchHeader, memoryview]], *, decodes: bool) -> bool:
    """Collects rows until one Arrow batch is full; returns False if there are no more batches."""
    for scan, header, batch in batches:
        if not header.record_count:
            continue  # compaction removed all records of this batch and kept its header
        # After compaction, the remaining records of a batch carry their offset deltas.
        sparse = header.record_count != header.last_offset_delta + 1
        with _refused(header, scan.range.partition):
            records = _read(batch, header) if decodes or sparse else None
        state = scan.transaction_state(header) if rows.has_states else "none"
        rows.add(header, records, scan.range, state=state)
        if rows.is_full:
            return True
    return False


def _read(batch: memoryview, header: BatchHeader) -> Records:
    """Reads a batch as far as is needed to count its records; ProtocolViolation if they are invalid."""
    return read_grids(batch, header) or find_spans(batch, header) or read_columns(batch, header)


@contextmanager
def _refused(header: BatchHeader, partition: TopicPartition) -> Generator[None]:
    """Raises CorruptLog for records that are invalid."""
    try:
        yield
    except ProtocolViolation as problem:
        raise CorruptLog(
            f"the batch at offset {header.base_offset} of {partition}: {problem}. "
            "`fencepost check` lists all batches whose records cannot be read"
        ) from problem


def _kind(part: _CutBatch) -> tuple[bool, bool]:
    return part.has_append_time, isinstance(part.records, Spans)


def _decoded(parts: Sequence[_CutBatch]) -> Iterator[tuple[Decoded, int, int]]:
    """Yields records and which of them to take, [first, last); `parts` are all spans, or none is."""
    several = [part.records for part in parts if isinstance(part.records, Spans)]
    positioned = read_spans(several) if several else None
    if positioned is None:
        for part in parts:
            yield _decoded_alone(part), part.first, part.last
        return
    # The records of all these batches are in one column, and those to take mostly follow each other.
    first = last = at = 0
    for part, spans in zip(parts, several, strict=True):
        if at + part.first != last:
            yield positioned, first, last
            first = at + part.first
        last = at + part.last
        at += spans.header.record_count
    yield positioned, first, last


def _decoded_alone(part: _CutBatch) -> Columns | Grids:
    if not isinstance(part.records, Spans):
        return part.records
    header = part.records.header
    with _refused(header, part.partition):
        return read_columns(part.records.batch, header)


def _unpacked_size(header: BatchHeader, records: Records | None) -> int:
    """Estimates the bytes that a batch adds to an Arrow batch, which is limited to 2 GiB."""
    match records:
        case Spans() if header.compression:
            return len(records.payload)
        case Columns() if header.compression:
            return sum(map(len, filter(None, (*records.values, *(records.keys or ())))))
        case _:
            return header.size


def _sparse_runs(
    deltas: list[int], base_offset: int, low: int, high: int
) -> tuple[list[tuple[int, int]], int]:
    """Returns the runs of consecutive offsets in [low, high) of a compacted batch, and the index of the
    first record among them.
    """
    first, last = bisect_left(deltas, low - base_offset), bisect_left(deltas, high - base_offset)
    offsets = np.array(deltas[first:last], np.int64) + base_offset
    if not len(offsets):
        return [], first
    starts = np.concatenate(([0], np.flatnonzero(np.diff(offsets) != 1) + 1))
    lengths = np.diff(np.concatenate((starts, [len(offsets)])))
    return list(zip(offsets[starts].tolist(), lengths.tolist(), strict=True)), first
