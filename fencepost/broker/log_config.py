"""How long a log keeps its records: the settings of a topic, with Kafka's names and defaults.

Rule: a topic's own setting counts, else the broker's. Internal topics have settings of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from math import inf
from typing import Any, Final, NamedTuple

import attrs

from fencepost.broker.fixed_configs import FIXED_CONFIGS
from fencepost.journal.journal import SEGMENT_BYTES_MAX, JournalSettings
from fencepost.protocol.terms import INT32_MAX, INT64_MAX, ConfigType

COMPACT: Final = "compact"
DELETE: Final = "delete"
UNLIMITED: Final = -1  # of retention.ms and retention.bytes
# A reader that is slower than the compaction has delete.retention.ms to see a tombstone or a marker. An
# internal topic is read by its coordinator, all of it at once, so it needs little. With Kafka's default of a
# day, the log of offsets would hold a day of markers, and each start would read them.
INTERNAL_DELETE_RETENTION_MS: Final = 1_000
INTERNAL_ACTIVE_BYTES_MAX: Final = 16_384  # a start reads up to this much of each partition


@attrs.frozen(kw_only=True)
class LogConfig:
    """The settings of one topic's logs (LogConfig). Times are in ms."""

    cleanup_policy: tuple[str, ...]
    retention_ms: int
    retention_bytes: int
    segment_bytes: int
    segment_ms: int
    active_bytes_max: int = SEGMENT_BYTES_MAX  # the cleaner rolls an active segment of this size
    delete_retention_ms: int
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    max_message_bytes: int | None = None
    message_timestamp_after_max_ms: int | None = None
    message_timestamp_before_max_ms: int | None = None

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


# Long strings of digits are not parsed: that takes quadratic time.
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")


def integer(lowest: int, highest: int) -> Callable[[str], int]:
    """A parser for a setting that is a whole number within these bounds."""

    def parse(text: str) -> int:
        text = text.strip()  # as ConfigDef.parseType
        if not _INTEGER.fullmatch(text) or not lowest <= int(text) <= highest:
            raise ValueError(f"it must be an integer from {lowest} to {highest}")
        return int(text)

    return parse


def ratio(text: str) -> float:
    """The value of a setting from 0 to 1."""
    wrong = "it must be a number from 0 to 1"
    try:
        value = float(text) if len(text) <= 20 else inf
    except ValueError as problem:
        raise ValueError(wrong) from problem
    if not 0 <= value <= 1:
        raise ValueError(wrong)
    return value


def cleanup_policy(text: str) -> tuple[str, ...]:
    """The policies that a text names, in its order; ValueError for any other word."""
    policies = tuple(dict.fromkeys(listed(text)))  # as in Kafka, a repetition does not count
    if set(policies) - {COMPACT, DELETE}:
        raise ValueError(f"it must be {DELETE}, {COMPACT}, both separated by a comma, or empty")
    return policies


def conflict(configs: Mapping[str, str]) -> str | None:
    """Why a topic cannot have these settings together; each of them is valid (LogConfig.validateValues)."""
    low, high = configs.get("min.compaction.lag.ms"), configs.get("max.compaction.lag.ms")
    if low is None or high is None or int(low) <= int(high):
        return None
    return f"min.compaction.lag.ms={low} is more than max.compaction.lag.ms={high}"


def listed(text: str) -> list[str]:
    """The entries of a setting of type LIST. An empty cleanup.policy keeps everything (KIP-1161)."""
    return [part.strip() for part in text.split(",")] if text.strip() else []


SEGMENT_BYTES_MIN: Final = 1 << 20  # as since Kafka 4.0 (KIP-1030): a smaller one would make a file per batch


class TopicSetting(NamedTuple):
    """How a topic's setting is read (ValueError: the value is wrong), and the name of the broker's setting
    that counts for topics without their own.
    """

    parse: Callable[[str], Any]
    config_type: ConfigType
    of_broker: str

    @property
    def field(self) -> str:
        """The broker's setting as a field of NodeSettings."""
        return self.of_broker.replace(".", "_")


_LONG, _INT = ConfigType.LONG, ConfigType.INT
TOPIC_CONFIGS: Final[Mapping[str, TopicSetting]] = {
    "cleanup.policy": TopicSetting(cleanup_policy, ConfigType.LIST, "log.cleanup.policy"),
    "delete.retention.ms": TopicSetting(integer(0, INT64_MAX), _LONG, "log.cleaner.delete.retention.ms"),
    "max.compaction.lag.ms": TopicSetting(integer(1, INT64_MAX), _LONG, "log.cleaner.max.compaction.lag.ms"),
    "max.message.bytes": TopicSetting(integer(0, INT32_MAX), _INT, "message.max.bytes"),
    "message.timestamp.after.max.ms": TopicSetting(
        integer(0, INT64_MAX), _LONG, "log.message.timestamp.after.max.ms"
    ),
    "message.timestamp.before.max.ms": TopicSetting(
        integer(0, INT64_MAX), _LONG, "log.message.timestamp.before.max.ms"
    ),
    "min.cleanable.dirty.ratio": TopicSetting(ratio, ConfigType.DOUBLE, "log.cleaner.min.cleanable.ratio"),
    "min.compaction.lag.ms": TopicSetting(integer(0, INT64_MAX), _LONG, "log.cleaner.min.compaction.lag.ms"),
    "retention.bytes": TopicSetting(integer(UNLIMITED, INT64_MAX), _LONG, "log.retention.bytes"),
    "retention.ms": TopicSetting(integer(UNLIMITED, INT64_MAX), _LONG, "log.retention.ms"),
    "segment.bytes": TopicSetting(integer(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX), _INT, "log.segment.bytes"),
    "segment.ms": TopicSetting(integer(1, INT64_MAX), _LONG, "log.roll.ms"),
}
"""What a topic can set; fixed_configs.py has the settings of Kafka that have one value here."""
SETTABLE: Final = (*TOPIC_CONFIGS, *FIXED_CONFIGS)
"""The names of both."""


NAME_MAX: Final = 100  # only the start of an unknown name is compared with the known ones


def parse_config(name: str, value: str) -> Any:
    """The value of a topic's setting; ValueError if there is no such setting, or the value is not valid."""
    if (setting := TOPIC_CONFIGS.get(name)) is not None:
        return setting.parse(value)
    if (fixed := FIXED_CONFIGS.get(name)) is None:
        close = get_close_matches(name[:NAME_MAX], SETTABLE, 1)
        what = f"did you mean {close[0]}?" if close else f"it has {', '.join(SETTABLE)}"
        raise ValueError(f"a topic has no such setting; {what}")
    fixed.check(value)
    return fixed.value


def with_own(config: LogConfig, configs: Mapping[str, str]) -> LogConfig:
    """The broker's settings with those that a topic has of its own."""
    own = {name: parse_config(name, value) for name, value in configs.items() if name in TOPIC_CONFIGS}
    return attrs.evolve(config, **{name.replace(".", "_"): value for name, value in own.items()})
