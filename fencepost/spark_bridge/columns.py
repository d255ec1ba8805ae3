"""The columns of the records, and which of them a schema asks for.

Rule: names and types are those of Spark's Kafka source, as far as it has them; the case of a name does not
matter, as in Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.spark_bridge.option_values import UnusableOption

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

COLUMNS: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
    "producerId": "bigint",  # null, like the next two, for records without a producer
    "producerEpoch": "int",
    "sequence": "int",
    "transactionState": "string",  # committed, aborted or open; none outside transactions
}

HEADERS: Final = ("headers",)
TRANSACTION_STATE: Final = "transactionState"
TRANSACTIONS: Final = ("producerId", "producerEpoch", "sequence", TRANSACTION_STATE)

_INSIDE_RECORDS: Final = frozenset({"key", "value", "timestamp", "headers"})


class Column(NamedTuple):
    """A column that is read, under the name that the schema gives it."""

    name: str
    title: str


def default_schema(*, include_headers: bool, include_transactions: bool) -> str:
    """The schema, as Spark DDL, for a read without a schema of its own."""
    left_out = {*(() if include_headers else HEADERS), *(() if include_transactions else TRANSACTIONS)}
    return ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items() if name not in left_out)


def decoded_columns(columns: Iterable[Column]) -> frozenset[str]:
    """The columns that need decoded records; the others are computed from batch headers."""
    return _INSIDE_RECORDS.intersection(column.name for column in columns)


def checked_columns(schema: StructType, known: Mapping[str, str] = COLUMNS) -> tuple[Column, ...]:
    """Returns the columns of a schema, in order; `known` has the types by names.

    Raises UnusableOption for an unknown column or a wrong type.
    """
    names = {name.lower(): name for name in known}
    columns: list[Column] = []
    for field in schema.fields:
        name = names.get(field.name.lower())
        if name is None:
            raise UnusableOption(f"column {field.name} is unknown; the columns are {', '.join(known)}")
        kind = field.dataType.simpleString()
        if kind != known[name]:
            raise UnusableOption(f"column {field.name} is {known[name]}, not {kind}: cast it after reading")
        columns.append(Column(name, field.name))
    return tuple(columns)
