"""Filters that Spark hands to the source: what they exclude is not read.

Rule: a filter is either followed exactly, or Spark applies it, too. What a filter lets through is never left
out.
"""

# Spark offers the parts of a WHERE clause that compare one column with literals, joined by AND:
#
#     topic, partition     choose partitions                               exact
#     offset               narrows the range of each partition             exact
#     timestamp            a lower bound moves the start of each           Spark filters, too: timestamps
#                          partition to its first record that is as new    may go back
#     IS NOT NULL          nothing: these columns are never null           exact

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from operator import contains, eq, ge, gt, le, lt
from typing import Any, Final

import attrs
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from fencepost.protocol.terms import INT64_MAX, TopicPartition
from fencepost.spark_bridge.partition_files import PartitionFiles
from fencepost.spark_bridge.planning import PartitionRange
from fencepost.spark_bridge.times import find_timestamp

_NEVER_NULL: Final = frozenset({"topic", "partition", "offset", "timestamp", "timestamptype"})
_COMPARISONS: Final[Mapping[type[Filter], Callable[[Any, Any], bool]]] = {
    EqualTo: eq,
    EqualNullSafe: eq,
    GreaterThan: gt,
    GreaterThanOrEqual: ge,
    LessThan: lt,
    LessThanOrEqual: le,
    In: lambda value, choices: contains(choices, value),
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@attrs.define
class PushedFilters:
    """What the filters of a query let through."""

    tests: list[Callable[[TopicPartition], bool]] = attrs.Factory(list[Callable[[TopicPartition], bool]])
    low: int = 0
    high: int = INT64_MAX
    """Offsets [low, high)."""
    since_ms: int | None = None
    """No record that is older."""

    def take(self, filters: Iterable[Filter]) -> list[Filter]:
        """Follows the filters as far as possible; returns those that Spark must apply."""
        return [each for each in filters if not self._follows(each)]

    def _follows(self, filter_: Filter) -> bool:
        """Whether the filter is followed exactly."""
        attribute: tuple[str, ...] = getattr(filter_, "attribute", ())
        if len(attribute) != 1:
            return False
        name = attribute[0].lower()
        if isinstance(filter_, IsNotNull):
            return name in _NEVER_NULL
        compare = _COMPARISONS.get(type(filter_))
        value: Any = getattr(filter_, "value", None)
        if compare is None or value is None:
            return False
        match name:
            case "topic" | "partition":
                self.tests.append(lambda partition: compare(getattr(partition, name), value))
                return True
            case "offset":
                return self._narrow(filter_, value)
            case "timestamp":
                self._begin(filter_, value)
                return False
            case _:
                return False

    def _narrow(self, filter_: Filter, offset: Any) -> bool:
        match filter_:
            case EqualTo() | EqualNullSafe():
                low, high = offset, offset + 1
            case GreaterThan():
                low, high = offset + 1, INT64_MAX
            case GreaterThanOrEqual():
                low, high = offset, INT64_MAX
            case LessThan():
                low, high = 0, offset
            case LessThanOrEqual():
                low, high = 0, offset + 1
            case In():
                choices = [each for each in offset if each is not None]  # nothing equals NULL
                low, high = min(choices, default=0), max(choices, default=-1) + 1
            case _:
                return False
        self.low, self.high = max(self.low, low), min(self.high, high)
        return not isinstance(filter_, In)

    def _begin(self, filter_: Filter, time: datetime) -> None:
        if isinstance(filter_, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual):
            # A record has milliseconds, and Spark compares microseconds.
            since_ms = (_as_utc(time) - _EPOCH) // timedelta(milliseconds=1)
            self.since_ms = since_ms if self.since_ms is None else max(self.since_ms, since_ms)

    def has(self, partition: TopicPartition) -> bool:
        """Whether a partition may have a record that they let through."""
        return all(test(partition) for test in self.tests)

    def narrowed(self, log: PartitionFiles, range_: PartitionRange) -> PartitionRange:
        """The part of a range that may have a record that they let through."""
        start, end = max(range_.start, self.low), min(range_.end, self.high)
        if self.since_ms is not None and start < end:
            found = find_timestamp(log, self.since_ms, low=start, high=end)
            start = end if found is None else found
        if start >= end:
            return attrs.evolve(range_, end=range_.start)
        return attrs.evolve(range_, start=start, end=end)


def _as_utc(time: datetime) -> datetime:
    """Spark gives TIMESTAMP literals in UTC, with or without saying so."""
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time
