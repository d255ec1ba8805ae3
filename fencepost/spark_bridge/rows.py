"""Converts batches to Arrow: the columns of many batches become one record batch of about 16,000 rows.

Rule: no Python code runs per record. Lists are extended; numpy computes offsets and timestamps from runs.
"""

from __future__ import annotations

import gc
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import repeat
from typing import Any, Final

import numpy as np
import pyarrow as pa

from fencepost.protocol.batches import BatchHeader
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.records import Columns, read_columns
from fencepost.protocol.terms import INT64_MAX
from fencepost.spark_bridge.options import decoded_columns
from fencepost.spark_bridge.partition_files import CorruptLog
from fencepost.spark_bridge.planning import ReadTask
from fencepost.spark_bridge.scanning import VisibleBatch

ROWS_PER_BATCH: Final = (
    16_384  # the fastest of 8,000, 16,000 and 64,000; unmerged batches of 20 records are 4 times slower
)
BYTES_PER_BATCH: Final = 32 << 20  # limits memory when values are large

_TIMESTAMP_TYPE_BIT: Final = 0x08  # attribute bit 3: 0 the producer's clock, 1 the broker's
_MILLISECONDS_MAX: Final = INT64_MAX // 1000

_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
ARROW_TYPES: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(_HEADER),
}


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


class Rows:
    """Collects rows of one partition for an Arrow record batch with the columns `names`, in this order."""

    def __init__(self, names: tuple[str, ...], *, topic: str, partition: int) -> None:
        self.names = names
        self.schema = pa.schema([pa.field(name, ARROW_TYPES[name]) for name in names])
        self._constants = {
            "topic": pa.scalar(topic, pa.string()),
            "partition": pa.scalar(partition, pa.int32()),
        }
        self._filled: dict[str, pa.Array[Any]] = {}
        self._clear()

    def _clear(self) -> None:
        self.row_count = 0
        self.byte_count = 0
        self._keys: list[bytes | None] | None = None
        self._values: list[bytes | None] = []
        self._headers: list[list[tuple[str, bytes | None]] | None] | None = None
        self._time_deltas: list[int] | None = None
        self._offset_runs: list[tuple[int, int]] = []  # first offset, how many
        self._batch_runs: list[tuple[int, int, int]] = []  # base timestamp, timestamp type, how many

    @property
    def is_full(self) -> bool:
        return self.row_count >= ROWS_PER_BATCH or self.byte_count >= BYTES_PER_BATCH

    def add(self, header: BatchHeader, columns: Columns | None, *, start: int, end: int) -> None:
        """Adds the records of a batch with offsets in [start, end).

        `columns` is None if no requested column needs decoded records.
        """
        low, high = max(start, header.base_offset), min(end, header.next_offset)
        deltas = columns.offset_deltas if columns else None
        if deltas is None:
            count = high - low
            self._offset_runs.append((low, count))
            first = low - header.base_offset
        else:
            runs, first = _sparse_runs(deltas, header.base_offset, low, high)
            self._offset_runs.extend(runs)
            count = sum(length for _, length in runs)
        if columns is not None:
            self._add_columns(columns, first, first + count)
        self._batch_runs.append(
            (header.base_timestamp, (header.attributes & _TIMESTAMP_TYPE_BIT) >> 3, count)
        )
        self.row_count += count
        self.byte_count += _unpacked_size(header, columns)

    def _add_columns(self, columns: Columns, first: int, last: int) -> None:
        whole = first == 0 and last == len(columns.values)
        before = self.row_count
        self._values.extend(columns.values if whole else columns.values[first:last])
        self._keys = _extended(self._keys, columns.keys, None, before, first, last)
        self._headers = _extended(self._headers, columns.headers, None, before, first, last)
        self._time_deltas = _extended(self._time_deltas, columns.timestamp_deltas, 0, before, first, last)

    def take(self) -> pa.RecordBatch:
        """Returns the collected rows as a record batch and starts a new one."""
        arrays: list[Any] = [_BUILD[name](self) for name in self.names]
        batch = pa.record_batch(arrays, schema=self.schema)
        self._clear()
        return batch

    def key_column(self) -> pa.Array[Any]:
        return (
            _nulls(self.row_count, pa.binary()) if self._keys is None else pa.array(self._keys, pa.binary())
        )

    def value_column(self) -> pa.Array[Any]:
        return pa.array(self._values, pa.binary())

    def headers_column(self) -> pa.Array[Any]:
        kind = ARROW_TYPES["headers"]
        return _nulls(self.row_count, kind) if self._headers is None else pa.array(self._headers, kind)

    def repeated_column(self, name: str) -> pa.Array[Any]:
        """A column with the same value in every row; all batches of a task share one array."""
        filled = self._filled.get(name)
        if filled is None or len(filled) < self.row_count:
            filled = self._filled[name] = pa.repeat(
                self._constants[name], max(self.row_count, 2 * ROWS_PER_BATCH)
            )
        return filled.slice(0, self.row_count)

    def offset_column(self) -> pa.Array[Any]:
        runs = np.array(self._offset_runs, np.int64).reshape(-1, 2)
        lengths = runs[:, 1]
        ends = np.cumsum(lengths)
        offsets = np.arange(self.row_count, dtype=np.int64) + np.repeat(runs[:, 0] - ends + lengths, lengths)
        return pa.array(offsets, pa.int64())

    def timestamp_column(self) -> pa.Array[Any]:
        runs = np.array(self._batch_runs, np.int64).reshape(-1, 3)
        times = np.repeat(runs[:, 0], runs[:, 2])
        if self._time_deltas is not None:
            times = times + np.array(self._time_deltas, np.int64)
        # Spark counts microseconds: times from the year 294,000 on become the last one that it represents.
        times = np.clip(times, -_MILLISECONDS_MAX, _MILLISECONDS_MAX) * 1000
        return pa.array(times, pa.int64()).view(ARROW_TYPES["timestamp"])

    def timestamp_type_column(self) -> pa.Array[Any]:
        runs = np.array(self._batch_runs, np.int64).reshape(-1, 3)
        return pa.array(np.repeat(runs[:, 1], runs[:, 2]).astype(np.int32), pa.int32())


_BUILD: Final[dict[str, Callable[[Rows], pa.Array[Any]]]] = {
    "key": Rows.key_column,
    "value": Rows.value_column,
    "topic": lambda rows: rows.repeated_column("topic"),
    "partition": lambda rows: rows.repeated_column("partition"),
    "offset": Rows.offset_column,
    "timestamp": Rows.timestamp_column,
    "timestampType": Rows.timestamp_type_column,
    "headers": Rows.headers_column,
}


def record_batches(
    scan: Iterable[VisibleBatch], task: ReadTask, names: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a task as Arrow record batches.

    Raises CorruptLog if a batch has a valid checksum but invalid records.
    """
    rows = Rows(names, topic=task.partition.topic, partition=task.partition.partition)
    decodes = bool(decoded_columns(names))
    batches = iter(scan)
    more = True
    while more:
        with gc_paused():
            more = _fill(rows, batches, task, decodes=decodes)
            batch = rows.take() if rows.row_count else None
        if batch is not None:
            yield batch


def _fill(rows: Rows, batches: Iterator[VisibleBatch], task: ReadTask, *, decodes: bool) -> bool:
    """Collects rows until one Arrow batch is full; returns False if there are no more batches."""
    for header, batch in batches:
        if not header.record_count:
            continue  # compaction removed all records of this batch and kept its header
        try:
            # After compaction, the remaining records of a batch carry their offset deltas.
            sparse = header.record_count != header.last_offset_delta + 1
            columns = read_columns(batch, header) if decodes or sparse else None
        except ProtocolViolation as problem:
            raise CorruptLog(
                f"the batch at offset {header.base_offset} of {task.partition}: {problem}. "
                "`fencepost check` lists all batches whose records cannot be read"
            ) from problem
        rows.add(header, columns, start=task.start, end=task.end)
        if rows.is_full:
            return True
    return False


def _unpacked_size(header: BatchHeader, columns: Columns | None) -> int:
    """Estimates the bytes that a batch adds to an Arrow batch, which is limited to 2 GiB."""
    if columns is None or not header.compression:
        return header.size
    return sum(map(len, filter(None, columns.values))) + sum(map(len, filter(None, columns.keys or ())))


def _nulls(count: int, kind: pa.DataType) -> pa.Array[Any]:
    return pa.array(repeat(None, count), kind, size=count)


def _extended(gathered: Any, column: Any, usual: Any, before: int, first: int, last: int) -> Any:
    """Appends rows [first, last) of `column` to `gathered`.

    None stands for a column in which every row has the usual value.
    """
    if gathered is None and column is None:
        return None
    if gathered is None:
        gathered = [usual] * before
    gathered.extend(repeat(usual, last - first) if column is None else column[first:last])
    return gathered


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
