"""How long a log keeps its records: the settings of a topic, with Kafka's names and defaults.

Rule: a topic's own setting counts, else the broker's. Internal topics have settings of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Final

import attrs

from fencepost.journal.journal import SEGMENT_BYTES, SEGMENT_BYTES_MAX, SEGMENT_MS, JournalSettings
from fencepost.protocol.terms import INT32_MAX, INT64_MAX

COMPACT: Final = "compact"
DELETE: Final = "delete"
UNLIMITED: Final = -1  # of retention.ms and retention.bytes
# A reader that is slower than the compaction has delete.retention.ms to see a tombstone or a marker. An
# internal topic is read by its coordinator, all of it at once, so it needs little. With Kafka's day the log
# of offsets would hold a day of markers, and each start would read them.
INTERNAL_DELETE_RETENTION_MS: Final = 10_000


@attrs.frozen(kw_only=True)
class LogConfig:
    """The settings of one topic's logs (LogConfig). Times are in ms."""

    cleanup_policy: frozenset[str] = frozenset({DELETE})
    retention_ms: int
    retention_bytes: int
    segment_bytes: int = SEGMENT_BYTES
    segment_ms: int = SEGMENT_MS
    delete_retention_ms: int
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    max_message_bytes: int | None = None

    @property
    def is_compacted(self) -> bool:
        return COMPACT in self.cleanup_policy

    @property
    def is_deleted(self) -> bool:
        """Whether retention by time and size applies."""
        return DELETE in self.cleanup_policy

    def journal_settings(self, broker: JournalSettings) -> JournalSettings:
        """When a segment of such a log is full: never later than the broker's settings say."""
        segment_ms = min(broker.segment_ms, self.segment_ms)
        if self.is_compacted:  # an active segment is never compacted (LogConfig.maxSegmentMs)
            segment_ms = min(segment_ms, self.max_compaction_lag_ms)
        segment_bytes = min(broker.segment_bytes, self.segment_bytes)
        return JournalSettings(segment_bytes=segment_bytes, segment_ms=segment_ms)


def _integer(lowest: int, highest: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        # Long strings of digits are not parsed: that takes quadratic time.
        is_number = len(text) <= len(str(-INT64_MAX)) and text.isascii() and text.removeprefix("-").isdigit()
        if not is_number or not lowest <= int(text) <= highest:
            raise ValueError(f"it must be an integer from {lowest} to {highest}")
        return int(text)

    return parse


def _ratio(text: str) -> float:
    wrong = "it must be a number from 0 to 1"
    try:
        ratio = float(text) if len(text) <= 20 else inf
    except ValueError as problem:
        raise ValueError(wrong) from problem
    if not 0 <= ratio <= 1:
        raise ValueError(wrong)
    return ratio


def _policy(text: str) -> frozenset[str]:
    policies = frozenset(part.strip() for part in text.split(","))
    if not policies or policies - {COMPACT, DELETE}:
        raise ValueError(f"it must be {DELETE}, {COMPACT}, or both, separated by a comma")
    return policies


SEGMENT_BYTES_MIN: Final = 1 << 20  # as since Kafka 4.0 (KIP-1030): a smaller one would make a file per batch

# What a topic can set, and how its value is read (ValueError: the value is wrong).
TOPIC_CONFIGS: Final[Mapping[str, Callable[[str], Any]]] = {
    "cleanup.policy": _policy,
    "delete.retention.ms": _integer(0, INT64_MAX),
    "max.compaction.lag.ms": _integer(1, INT64_MAX),
    "max.message.bytes": _integer(0, INT32_MAX),
    "min.cleanable.dirty.ratio": _ratio,
    "min.compaction.lag.ms": _integer(0, INT64_MAX),
    "retention.bytes": _integer(UNLIMITED, INT64_MAX),
    "retention.ms": _integer(UNLIMITED, INT64_MAX),
    "segment.bytes": _integer(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX),
    "segment.ms": _integer(1, INT64_MAX),
}


def parse_config(name: str, value: str) -> tuple[str, Any]:
    """The field of LogConfig that a topic's setting is for, and its value; ValueError if either is wrong."""
    parse = TOPIC_CONFIGS.get(name)
    if parse is None:
        raise ValueError(f"a topic has no such setting; its settings are {', '.join(TOPIC_CONFIGS)}")
    return name.replace(".", "_"), parse(value)


def with_own(config: LogConfig, configs: Mapping[str, str]) -> LogConfig:
    """The broker's settings with those that a topic has of its own."""
    return attrs.evolve(config, **dict(parse_config(name, value) for name, value in configs.items()))
