"""Rows of tables as Arrow record batches, with the columns that a query asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa

from fencepost.spark_bridge.arrow_types import ARROW_TYPES, MILLISECONDS_MAX, ROWS_PER_BATCH
from fencepost.spark_bridge.columns import Column
from fencepost.spark_bridge.tables.table import Row


def to_arrow(
    rows: Iterator[Row], kinds: Mapping[str, str], columns: Sequence[Column]
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a table, whose types are `kinds` by name, with these columns."""
    names = list(kinds)
    numbers = [names.index(column.name) for column in columns]
    types = [ARROW_TYPES[kinds[column.name]] for column in columns]
    schema = pa.schema([pa.field(column.title, kind) for column, kind in zip(columns, types, strict=True)])
    while chunk := list(islice(rows, ROWS_PER_BATCH)):
        arrays = [
            _array([row[number] for row in chunk], kind) for number, kind in zip(numbers, types, strict=True)
        ]
        yield pa.record_batch(arrays, schema=schema)


def _array(values: list[Any], kind: pa.DataType) -> pa.Array[Any]:
    if kind == ARROW_TYPES["timestamp"]:
        values = [
            None if each is None else max(-MILLISECONDS_MAX, min(each, MILLISECONDS_MAX)) * 1000
            for each in values
        ]
    return pa.array(values, kind)
