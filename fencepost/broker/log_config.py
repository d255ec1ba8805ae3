"""How long a log keeps its records: the settings of a topic, with Kafka's names and defaults.

Rule: a topic's own setting counts, else the broker's. Internal topics have settings of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from fencepost.broker.config_def import COMPACT, DELETE, ConfigDef
from fencepost.broker.fixed_configs import FIXED_CONFIGS, FixedSetting
from fencepost.journal.journal import SEGMENT_BYTES_MAX, JournalSettings
from fencepost.protocol.suggestions import question
from fencepost.protocol.terms import INT64_MIN, ConfigType

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


def conflict(configs: Mapping[str, str]) -> str | None:
    """Why a topic cannot have these settings together; each of them is valid (LogConfig.validateValues)."""
    names = ("min.compaction.lag.ms", "max.compaction.lag.ms")
    if not configs.keys() >= {*names}:
        return None
    low, high = (parse_config(name, configs[name]) for name in names)
    return None if low <= high else f"{names[0]}={low} is more than {names[1]}={high}"


SEGMENT_BYTES_MIN: Final = 1 << 20  # as since Kafka 4.0 (KIP-1030): a smaller one would make a file per batch


_LONG, _INT = ConfigType.LONG, ConfigType.INT
TOPIC_CONFIGS: Final[Mapping[str, ConfigDef]] = {
    "cleanup.policy": ConfigDef("log.cleanup.policy", ConfigType.LIST),
    "delete.retention.ms": ConfigDef("log.cleaner.delete.retention.ms", _LONG),
    "max.compaction.lag.ms": ConfigDef("log.cleaner.max.compaction.lag.ms", _LONG, 1),
    "max.message.bytes": ConfigDef("message.max.bytes", _INT),
    "message.timestamp.after.max.ms": ConfigDef("log.message.timestamp.after.max.ms", _LONG),
    "message.timestamp.before.max.ms": ConfigDef("log.message.timestamp.before.max.ms", _LONG),
    "min.cleanable.dirty.ratio": ConfigDef("log.cleaner.min.cleanable.ratio", ConfigType.DOUBLE),
    "min.compaction.lag.ms": ConfigDef("log.cleaner.min.compaction.lag.ms", _LONG),
    "retention.bytes": ConfigDef("log.retention.bytes", _LONG, INT64_MIN),  # any negative one is unlimited
    "retention.ms": ConfigDef("log.retention.ms", _LONG, UNLIMITED),
    "segment.bytes": ConfigDef("log.segment.bytes", _INT, SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX),
    "segment.ms": ConfigDef("log.roll.ms", _LONG, 1),
}
"""What a topic can set, each with the broker's setting, which counts for topics without their own and takes
the same values. fixed_configs.py has the settings of Kafka that have one value here.
"""
SETTABLE: Final[Mapping[str, ConfigDef | FixedSetting]] = {**TOPIC_CONFIGS, **FIXED_CONFIGS}
"""Both."""


def parse_config(name: str, value: str) -> Any:
    """The value of a topic's setting; ValueError if there is no such setting, or the value is not valid."""
    setting = SETTABLE.get(name)
    if setting is None:
        what = question(name, SETTABLE) or f"it has {', '.join(SETTABLE)}"
        raise ValueError(f"a topic has no such setting; {what}")
    return setting.parse(value)


def with_own(config: LogConfig, configs: Mapping[str, str]) -> LogConfig:
    """The broker's settings with those that a topic has of its own."""
    own = {
        name.replace(".", "_"): TOPIC_CONFIGS[name].parse(value)
        for name, value in configs.items()
        if name in TOPIC_CONFIGS
    }
    return attrs.evolve(config, **own)
