"""Collects the decoded records of many batches, column by column, until they become Arrow arrays.

Rule: a column that has only the usual value so far, no key, no header and no timestamp of its own, takes
neither time nor memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, repeat
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from fencepost.protocol.kafka_records import Header
from fencepost.protocol.records import Columns
from fencepost.spark_bridge.equal_lengths import Grid, Grids, Shape
from fencepost.spark_bridge.kafka_positions import Positioned

Decoded = Columns | Grids | Positioned

_Items: TypeAlias = "list[bytes | None] | Grid | pa.Array[Any]"
_Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"


class Gathered:
    """The columns that lie inside records: key, value, headers, and the producer's timestamp."""

    def __init__(self) -> None:
        self._row_count = 0
        self._keys: _BytesColumn | None = None  # None while every key is null
        self._values = _BytesColumn()
        self._headers: list[list[Header] | None] | None = None  # None while no record has any
        self._time_deltas: list[Sequence[int] | _Numbers] | None = None  # None while all are 0

    def add(self, records: Decoded, first: int, last: int, *, has_append_time: bool) -> None:
        """Appends records [first, last). With `has_append_time`, their own times do not matter."""
        before, count = self._row_count, last - first
        self._row_count += count
        self._values.extend(_cut(records.values, first, last))
        if records.keys is not None and self._keys is None:
            self._keys = _BytesColumn()
            self._keys.extend(_null_items(before))
        if self._keys is not None:
            self._keys.extend(_null_items(count) if records.keys is None else _cut(records.keys, first, last))
        if records.headers is not None and self._headers is None:
            self._headers = list(repeat(None, before))
        if self._headers is not None:
            headers = records.headers
            self._headers.extend(repeat(None, count) if headers is None else headers[first:last])
        deltas = None if has_append_time else records.timestamp_deltas
        if deltas is not None and self._time_deltas is None:
            self._time_deltas = [np.zeros(before, np.int64)]
        if self._time_deltas is not None:
            self._time_deltas.append(np.zeros(count, np.int64) if deltas is None else deltas[first:last])

    def keys(self) -> pa.Array[Any]:
        return _nulls(self._row_count, pa.binary()) if self._keys is None else self._keys.array()

    def values(self) -> pa.Array[Any]:
        return self._values.array()

    def headers(self, kind: pa.DataType) -> pa.Array[Any]:
        return _nulls(self._row_count, kind) if self._headers is None else pa.array(self._headers, kind)

    def time_deltas(self) -> _Numbers | None:
        """Milliseconds since the base timestamp of the batch; None if all are 0."""
        if self._time_deltas is None:
            return None
        return np.concatenate([np.asarray(part, np.int64) for part in self._time_deltas])


class _BytesColumn:
    """A column of keys or values."""

    def __init__(self) -> None:
        self._parts: list[_Items] = []

    def extend(self, items: _Items) -> None:
        """Appends items."""
        if not isinstance(items, list):
            self._parts.append(items)
        elif self._parts and isinstance(last := self._parts[-1], list):
            last.extend(items)
        elif items:
            self._parts.append(items.copy())

    def array(self) -> pa.Array[Any]:
        """Returns the column."""
        arrays: list[pa.Array[Any]] = []
        for shape, parts in groupby(self._parts, _shape):
            if shape is None:
                arrays.extend(map(_as_array, parts))
            else:
                arrays.append(_array_of_grids((part.data for part in parts if isinstance(part, Grid)), shape))
        return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _shape(part: _Items) -> Shape | None:
    return part.shape if isinstance(part, Grid) else None


def _as_array(items: _Items) -> pa.Array[Any]:
    return items if isinstance(items, pa.Array) else pa.array(items, pa.binary())


def _array_of_grids(parts: Iterable[bytes], shape: Shape) -> pa.Array[Any]:
    joined = np.frombuffer(b"".join(parts), np.uint8).reshape(-1, shape.stride)
    items = joined[:, shape.prefix :]
    count, length = items.shape
    # 32 bits are enough: BYTES_PER_BATCH and one batch are less than 2 GiB.
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(length)
    buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(items.tobytes())]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _cut(items: _Items, first: int, last: int) -> _Items:
    """Returns the items [first, last)."""
    if isinstance(items, Grid):
        return items.cut(first, last)
    return items if first == 0 and last == len(items) else items[first:last]


def _null_items(count: int) -> list[bytes | None]:
    return [None] * count


def _nulls(count: int, kind: pa.DataType) -> pa.Array[Any]:
    return pa.array(repeat(None, count), kind, size=count)
