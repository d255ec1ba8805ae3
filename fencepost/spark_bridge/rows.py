"""Decoded batches to Arrow: columns are gathered over many batches and become one record batch of about
16,000 rows.

Rule: nothing is done per record in Python. Lists are extended, offsets and times are computed by numpy from
runs.
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
    16_384  # measured the best of 8,000, 16,000 and 64,000; uncoalesced batches of 20 are 4 times slower
)
BYTES_PER_BATCH: Final = 32 << 20  # so that large values do not pile up by the thousand

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
    """No garbage collection while a chunk is decoded: its many young objects would start it in vain."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Rows:
    """Rows of one partition that wait to become an Arrow record batch with the columns `names`, in this
    order.
    """

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
        """The records of a batch with offsets from `start` up to `end`.

        `columns` is None when nobody asks for what is inside.
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
        """The gathered rows as one record batch; starts anew."""
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
        """The same value in every row; one array serves all batches of a task."""
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
        # Spark counts microseconds: a time beyond its reach (the year 294,000) is shown as the last it knows.
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
    """The rows of a task as Arrow.

    CorruptLog when a batch with the right checksum holds something that is no records.
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
    """Gathers rows until there are enough for one Arrow batch; False when there are no more batches."""
    for header, batch in batches:
        if not header.record_count:
            continue  # compaction took its records and kept its offsets
        try:
            # A batch that compaction has thinned out keeps the offsets of its records inside.
            sparse = header.record_count != header.last_offset_delta + 1
            columns = read_columns(batch, header) if decodes or sparse else None
        except ProtocolViolation as problem:
            raise CorruptLog(
                f"the batch at offset {header.base_offset} of {task.partition}: {problem}"
            ) from problem
        rows.add(header, columns, start=task.start, end=task.end)
        if rows.is_full:
            return True
    return False


def _unpacked_size(header: BatchHeader, columns: Columns | None) -> int:
    """Bytes that a batch adds to an Arrow batch, closely enough to stay far from Arrow's limit of 2 GiB."""
    if columns is None or not header.compression:
        return header.size
    return sum(map(len, filter(None, columns.values))) + sum(map(len, filter(None, columns.keys or ())))


def _nulls(count: int, kind: pa.DataType) -> pa.Array[Any]:
    return pa.array(repeat(None, count), kind, size=count)


def _extended(gathered: Any, column: Any, usual: Any, before: int, first: int, last: int) -> Any:
    """The gathered column with a piece of another behind it.

    None stands for a column of nothing but the usual value.
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
    """Runs of consecutive offsets in [low, high) of a batch that compaction has thinned out, and the index
    of their first record.
    """
    first, last = bisect_left(deltas, low - base_offset), bisect_left(deltas, high - base_offset)
    offsets = np.array(deltas[first:last], np.int64) + base_offset
    if not len(offsets):
        return [], first
    starts = np.concatenate(([0], np.flatnonzero(np.diff(offsets) != 1) + 1))
    lengths = np.diff(np.concatenate((starts, [len(offsets)])))
    return list(zip(offsets[starts].tolist(), lengths.tolist(), strict=True)), first
