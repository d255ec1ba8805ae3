"""The settings of topics and of this node as DescribeConfigs shows them, with their sources.

Rule: a value in force is the one that the logs and coordinators use (`Node.log_config`, NodeSettings); only
settings that have a name in Kafka are shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, cast

from fencepost.broker.broker_configs import NODE_CONFIGS
from fencepost.broker.cluster.controller import METADATA_PARTITION
from fencepost.broker.contract import Refused, Reply, ReplyTo
from fencepost.broker.fixed_configs import FIXED_CONFIGS
from fencepost.broker.log_config import TOPIC_CONFIGS
from fencepost.broker.node import Node
from fencepost.broker.settings import NodeSettings
from fencepost.protocol import messages as m
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.terms import ASKED_NODE, ConfigSource, ConfigType, topic_name_problem

_DEFAULTS: Final = NodeSettings()


# Of these, Kafka's brokers have no default: if they are not set, others count, such as log.retention.hours.
_WITHOUT_DEFAULT: Final = frozenset(
    {"log.flush.interval.ms", "log.retention.ms", "log.roll.jitter.ms", "log.roll.ms"}
)


class _Value(NamedTuple):
    text: str
    source: ConfigSource


_NamedValues = list[tuple[str | None, _Value]]
"""The values that a setting has, the one in force first, each with the name of the setting that it is of."""


def describe_configs(node: Node, request: m.DescribeConfigs, to: ReplyTo, now: int) -> None:
    """The settings of each topic, and of this node if the request asks for them."""
    own_id = node.settings.node_id
    if request.node_id not in (None, ASKED_NODE, own_id):
        node.reply(to, Refused(ErrorCode.INVALID_REQUEST, f"this is node {own_id}, not {request.node_id}"))
        return
    # Most topics have no settings of their own, and share one list.
    plain = tuple(_described(node, "", {}))
    body = m.DescribeConfigsReply(
        topics=tuple(_topic(node, name, plain) for name in dict.fromkeys(request.topics)),
        node=() if request.node_id is None else tuple(_of_node(node.settings)),
    )
    node.after_all((METADATA_PARTITION,), Reply(to, body=body))


def _topic(node: Node, name: str, plain: tuple[m.DescribedConfig, ...]) -> m.TopicConfigs:
    because = topic_name_problem(name)
    if because is not None:
        error = ErrorCode.INVALID_TOPIC_EXCEPTION
        return m.TopicConfigs(topic=name, error=error, because=because)
    topic = node.cluster.topics.get(name)
    if topic is None:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return m.TopicConfigs(topic=name, error=error)
    is_plain = not topic.configs and name not in node.settings.internal_log_configs
    configs = plain if is_plain else tuple(_described(node, name, topic.configs))
    return m.TopicConfigs(topic=name, error=NO_ERROR, configs=configs)


def _described(node: Node, topic: str, own: Mapping[str, str]) -> Iterator[m.DescribedConfig]:
    """The settings of a topic: first those that it can change, in the order of their names."""
    in_force, of_broker = node.log_config(topic), node.settings.log_config
    for name, setting in TOPIC_CONFIGS.items():
        field = name.replace(".", "_")
        value = getattr(in_force, field)
        # Internal topics have settings of their own that are in no record.
        is_own = name in own or value != getattr(of_broker, field)
        values: _NamedValues = [(name, _Value(_text(value), ConfigSource.TOPIC))] if is_own else []
        values += [(setting.of_broker, each) for each in _values(node.settings, setting.field)]
        yield _config(name, values, setting.config_type, is_read_only=False)
    for name, fixed in FIXED_CONFIGS.items():
        values = [(name, _Value(fixed.value, ConfigSource.TOPIC))] if name in own else []
        values.append((fixed.of_broker, _Value(fixed.value, ConfigSource.DEFAULT)))
        yield _config(name, values, fixed.config_type, is_read_only=False)


def _of_node(settings: NodeSettings) -> Iterator[m.DescribedConfig]:
    for name, setting in NODE_CONFIGS.items():
        values: _NamedValues = [(name, each) for each in _values(settings, setting.field)]
        yield _config(name, values, setting.config_type, is_read_only=True)


def _values(settings: NodeSettings, field: str) -> list[_Value]:
    """The values of a node's setting, the one in force first: an override, if any, then the default."""
    given, default = getattr(settings, field), getattr(_DEFAULTS, field)
    values = [_Value(_text(default), ConfigSource.DEFAULT)]
    return values if given == default else [_Value(_text(given), ConfigSource.BROKER), *values]


def _config(
    name: str, values: _NamedValues, config_type: ConfigType, *, is_read_only: bool
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
            and not (each.source is ConfigSource.DEFAULT and known_as in _WITHOUT_DEFAULT)
        ),
    )


def _text(value: Any) -> str:
    """A value as Kafka writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(cast("tuple[str, ...]", value)) if isinstance(value, tuple) else str(value)
