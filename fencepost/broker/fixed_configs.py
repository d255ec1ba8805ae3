"""Kafka's topic settings that can have only one value here.

Rule: a topic may have such a setting with this value, as scripts and tools write it. Any other value is
refused, with the reason: a setting that is accepted is in force.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from fencepost.broker.config_def import BLANKS, integer_of
from fencepost.journal.indexes import INDEX_INTERVAL_BYTES
from fencepost.protocol.terms import INT64_MAX, ConfigType


class FixedSetting(NamedTuple):
    """The only value, why there is no other, and the name of the broker's setting, if Kafka has one."""

    value: str
    config_type: ConfigType
    because: str
    of_broker: str | None = None

    @property
    def meaning(self) -> str:
        """What the setting means, in words."""
        return f"It is always {self.wanted}: {self.because}."

    @property
    def wanted(self) -> str:
        """The only value, in words."""
        return self.value or "empty"

    def parse(self, text: str) -> str:
        """The value; ValueError if the text is another one."""
        text = text.strip(BLANKS)
        if self.config_type in (ConfigType.INT, ConfigType.LONG):
            text = str(integer_of(text))  # 060000 is 60000, too
        elif self.config_type is ConfigType.BOOLEAN:
            text = text.lower()
        if text != self.value:
            raise ValueError(f"it must be {self.wanted}: {self.because}")
        return self.value


_ONE_REPLICA: Final = "a partition has one replica"
_AS_SENT: Final = "batches are stored as their producers compressed them"
_SYNC: Final = "the broker's --sync says when batches are synced"
_NOT_TIERED: Final = "there is no tiered storage"
_UNUSED: Final = "this broker does not implement the setting"
_BOOLEAN, _INT, _LONG = ConfigType.BOOLEAN, ConfigType.INT, ConfigType.LONG
_LIST, _STRING = ConfigType.LIST, ConfigType.STRING

FIXED_CONFIGS: Final[Mapping[str, FixedSetting]] = {
    "compression.gzip.level": FixedSetting("-1", _INT, _AS_SENT, "compression.gzip.level"),
    "compression.lz4.level": FixedSetting("9", _INT, _AS_SENT, "compression.lz4.level"),
    "compression.type": FixedSetting("producer", _STRING, _AS_SENT, "compression.type"),
    "compression.zstd.level": FixedSetting("3", _INT, _AS_SENT, "compression.zstd.level"),
    "file.delete.delay.ms": FixedSetting("60000", _LONG, _UNUSED, "log.segment.delete.delay.ms"),
    "flush.messages": FixedSetting(str(INT64_MAX), _LONG, _SYNC, "log.flush.interval.messages"),
    "flush.ms": FixedSetting(str(INT64_MAX), _LONG, _SYNC, "log.flush.interval.ms"),
    "follower.replication.throttled.replicas": FixedSetting("", _LIST, _ONE_REPLICA),
    "index.interval.bytes": FixedSetting(
        str(INDEX_INTERVAL_BYTES), _INT, _UNUSED, "log.index.interval.bytes"
    ),
    "leader.replication.throttled.replicas": FixedSetting("", _LIST, _ONE_REPLICA),
    "local.retention.bytes": FixedSetting("-2", _LONG, _NOT_TIERED, "log.local.retention.bytes"),
    "local.retention.ms": FixedSetting("-2", _LONG, _NOT_TIERED, "log.local.retention.ms"),
    "message.timestamp.type": FixedSetting(
        "CreateTime", _STRING, "records keep the timestamps of their producers", "log.message.timestamp.type"
    ),
    "min.insync.replicas": FixedSetting("1", _INT, _ONE_REPLICA, "min.insync.replicas"),
    "preallocate": FixedSetting("false", _BOOLEAN, _UNUSED, "log.preallocate"),
    "remote.log.copy.disable": FixedSetting("false", _BOOLEAN, _NOT_TIERED),
    "remote.log.delete.on.disable": FixedSetting("false", _BOOLEAN, _NOT_TIERED),
    "remote.storage.enable": FixedSetting("false", _BOOLEAN, _NOT_TIERED),
    "segment.index.bytes": FixedSetting("10485760", _INT, _UNUSED, "log.index.size.max.bytes"),
    "segment.jitter.ms": FixedSetting("0", _LONG, _UNUSED, "log.roll.jitter.ms"),
    "unclean.leader.election.enable": FixedSetting(
        "false", _BOOLEAN, _ONE_REPLICA, "unclean.leader.election.enable"
    ),
}
