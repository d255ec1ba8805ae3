"""The columns of the table, as Spark's Kafka source has them, and which of them a user's schema asks for.

Rule: Spark does not tell a Python source which columns a query needs, so `.schema("offset bigint")` is how
one says it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from fencepost.spark_bridge.problems import UnusableOption

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
}

_INSIDE_RECORDS: Final = frozenset({"key", "value", "timestamp", "headers"})


def default_schema(*, include_headers: bool) -> str:
    """The schema in Spark's DDL when the user gives none."""
    return ", ".join(
        f"{name} {kind}" for name, kind in COLUMNS.items() if include_headers or name != "headers"
    )


def decoded_columns(names: Iterable[str]) -> frozenset[str]:
    """Those columns for which records have to be unpacked; the others are in the header of the batch."""
    return _INSIDE_RECORDS.intersection(names)


def checked_names(schema: StructType) -> tuple[str, ...]:
    """The names of the columns asked for, in order.

    UnusableOption unless each is one of ours with its type.
    """
    names: list[str] = []
    for field in schema.fields:
        if field.name not in COLUMNS:
            raise UnusableOption(f"there is no column {field.name}; there are {', '.join(COLUMNS)}")
        kind = field.dataType.simpleString()
        if kind != COLUMNS[field.name]:
            raise UnusableOption(
                f"column {field.name} is {COLUMNS[field.name]}, not {kind}: cast it after reading"
            )
        names.append(field.name)
    return tuple(names)
