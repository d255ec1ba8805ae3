"""The settings of a topic and of a node as DescribeConfigs shows them, with their sources.

Rule: a value in force is the one that the logs and coordinators use; only settings that have a name in Kafka
are shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, cast

from fencepost.broker.broker_configs import NODE_CONFIGS
from fencepost.broker.config_meanings import MEANINGS
from fencepost.broker.fixed_configs import FIXED_CONFIGS
from fencepost.broker.log_config import TOPIC_CONFIGS, LogConfig
from fencepost.broker.settings import NodeSettings
from fencepost.protocol import messages as m
from fencepost.protocol.terms import ConfigSource, ConfigType

_DEFAULTS: Final = NodeSettings()
# Of these, Kafka's brokers have no default: if they are not set, others count, such as log.retention.hours.
_WITHOUT_DEFAULT: Final = frozenset(
    {"log.flush.interval.ms", "log.retention.ms", "log.roll.jitter.ms", "log.roll.ms"}
)


class _Value(NamedTuple):
    text: str | None
    source: ConfigSource


_NamedValues = list[tuple[str | None, _Value]]
"""The values that a setting has, the one in force first, each with the name of the setting that it is of."""


def topic_configs(
    settings: NodeSettings, in_force: LogConfig, own: Mapping[str, str]
) -> Iterator[m.DescribedConfig]:
    """The settings of a topic that has set some itself: first those that it can change, in the order of their
    names.
    """
    of_broker = settings.log_config
    for name, setting in TOPIC_CONFIGS.items():
        field = name.replace(".", "_")
        value = getattr(in_force, field)
        # Internal topics have settings of their own that are in no record.
        is_own = name in own or value != getattr(of_broker, field)
        values: _NamedValues = [(name, _Value(_text(value), ConfigSource.TOPIC))] if is_own else []
        values += [(setting.name, each) for each in _values(settings, setting.field)]
        yield _config(name, setting.config_type, MEANINGS[name], values, is_read_only=False)
    for name, fixed in FIXED_CONFIGS.items():
        values = [(name, _Value(fixed.value, ConfigSource.TOPIC))] if name in own else []
        values.append((fixed.of_broker, _Value(fixed.value, ConfigSource.DEFAULT)))
        yield _config(name, fixed.config_type, fixed.meaning, values, is_read_only=False)


def node_configs(settings: NodeSettings) -> Iterator[m.DescribedConfig]:
    for name, setting in NODE_CONFIGS.items():
        values: _NamedValues = [(name, each) for each in _values(settings, setting.field)]
        yield _config(name, setting.config_type, MEANINGS[name], values, is_read_only=True)


def _values(settings: NodeSettings, field: str) -> list[_Value]:
    """The values of a node's setting, the one in force first: an override, if any, then the default."""
    given, default = getattr(settings, field), getattr(_DEFAULTS, field)
    values = [_Value(_text(default), ConfigSource.DEFAULT)]
    return values if given == default else [_Value(_text(given), ConfigSource.BROKER), *values]


def _config(
    name: str, config_type: ConfigType, meaning: str, values: _NamedValues, *, is_read_only: bool
) -> m.DescribedConfig:
    _, first = values[0]
    return m.DescribedConfig(
        name=name,
        value=first.text,
        source=first.source,
        config_type=config_type,
        is_read_only=is_read_only,
        synonyms=tuple(
            m.ConfigSynonym(name=known_as, value=each.text, source=each.source)
            for known_as, each in values
            if known_as is not None
            and each.text is not None
            and not (each.source is ConfigSource.DEFAULT and known_as in _WITHOUT_DEFAULT)
        ),
        meaning=meaning,
    )


def _text(value: Any) -> str | None:
    """A value as Kafka writes it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(cast("tuple[str, ...]", value)) if isinstance(value, tuple) else str(value)
