"""Finds batches in which all keys have one length and all values have one length; they need no decoding.

Such a column is a grid in the encoded batch: each item has the same msgpack prefix and the same length. The
grids of many batches become one Arrow array without an object, and without a type check, for each item.

Rule: every prefix is compared. What is not such a grid is left to `read_columns`, which refuses what is
invalid.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import attrs

from fencepost.protocol.batches import HEADER_SIZE, MAGIC_COLUMNS, BatchHeader
from fencepost.protocol.column_entries import ARRAY_LENGTH_SIZES, BYTES_LENGTH_SIZES, NIL

RECORDS_MIN: Final = 128  # for fewer, the check costs as much as it saves

_FIVE_COLUMNS: Final = 0x95  # msgpack's first bytes
_USUAL_TIMES_AND_HEADERS: Final = b"\xc0\xc0"


class Shape(NamedTuple):
    """The sizes of an item, in bytes."""

    prefix: int
    stride: int
    """Of the prefix and the item."""


class Grid(NamedTuple):
    """The items of a column, each with its prefix."""

    data: bytes
    shape: Shape

    def cut(self, first: int, last: int) -> Grid:
        """Returns the items [first, last)."""
        return Grid(self.data[first * self.shape.stride : last * self.shape.stride], self.shape)


@attrs.frozen
class Grids:
    """The records of a batch, as `Columns` has them: every other column has the usual values."""

    keys: Grid | None
    """None: every key is null."""
    values: Grid
    offset_deltas: None = None
    timestamp_deltas: None = None
    headers: None = None


def read_grids(batch: memoryview, header: BatchHeader) -> Grids | None:
    """Returns the keys and values of a batch; None if `read_columns` has to read it."""
    count = header.record_count
    if (
        header.magic != MAGIC_COLUMNS
        or header.compression
        or count < RECORDS_MIN
        or header.last_offset_delta != count - 1
    ):
        return None
    payload = batch[HEADER_SIZE : header.size]
    # The first column holds offsets, the last two hold timestamps and headers.
    if (
        len(payload) < count
        or payload[0] != _FIVE_COLUMNS
        or payload[1] != NIL
        or bytes(payload[-2:]) != _USUAL_TIMES_AND_HEADERS
    ):
        return None
    at, keys = 2, None
    if payload[at] == NIL:
        at += 1
    else:
        keys = _found(payload, at, count)
        if keys is None:
            return None
        at = keys.end
    values = _found(payload, at, count)
    if values is None or values.end != len(payload) - len(_USUAL_TIMES_AND_HEADERS):
        return None
    value_grid = _grid(payload, values, count)
    key_grid = None if keys is None else _grid(payload, keys, count)
    if value_grid is None or (keys is not None and key_grid is None):
        return None
    return Grids(key_grid, value_grid)


class _FoundColumn(NamedTuple):
    """Where a column lies if all items are like the first."""

    start: int
    end: int
    shape: Shape


def _found(payload: memoryview, at: int, count: int) -> _FoundColumn | None:
    """Finds the column at byte `at`; None if the first or the second item shows that it is not a grid."""
    first = _after_array_header(payload, at, count)
    if first is None or first >= len(payload):
        return None
    size = BYTES_LENGTH_SIZES.get(payload[first])
    if size is None:
        return None
    prefix = 1 + size
    stride = prefix + int.from_bytes(payload[first + 1 : first + prefix], "big")
    end, second = first + count * stride, first + stride
    if end > len(payload) or payload[first : first + prefix] != payload[second : second + prefix]:
        return None
    return _FoundColumn(first, end, Shape(prefix, stride))


def _grid(payload: memoryview, found: _FoundColumn, count: int) -> Grid | None:
    """Returns the column; None if an item does not have the prefix of the first."""
    data, (prefix, stride) = bytes(payload[found.start : found.end]), found.shape
    # Slices of bytes with a step are faster than those of a memoryview; numpy is slower for short columns.
    if all(data[at::stride] == data[at : at + 1] * count for at in range(prefix)):
        return Grid(data, found.shape)
    return None


def _after_array_header(payload: memoryview, at: int, count: int) -> int | None:
    """Returns the byte after the header of an array of `count` items; None for anything else at byte `at`."""
    if at >= len(payload):
        return None
    size = ARRAY_LENGTH_SIZES.get(payload[at], 0)
    after = at + 1 + size
    return after if size and int.from_bytes(payload[at + 1 : after], "big") == count else None
