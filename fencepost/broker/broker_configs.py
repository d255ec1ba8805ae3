"""The settings of a broker by their names in Kafka: the table of them, and what `serve --override` takes.

Rule: a setting that a topic can have, too, is defined once, with the topic's (log_config.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from fencepost.broker.config_def import ConfigDef
from fencepost.broker.kafka_fixes import KafkaFixes
from fencepost.broker.limits import REQUEST_PARTITIONS
from fencepost.broker.log_config import TOPIC_CONFIGS
from fencepost.broker.settings import QUEUED_BYTES_MIN, NodeSettings
from fencepost.broker.transactions.tables import NEWEST, TRANSACTION_VERSIONS
from fencepost.journal.journal import SEGMENT_BYTES_MAX
from fencepost.protocol.suggestions import suggestion
from fencepost.protocol.terms import ConfigType

INTERNAL_SEGMENT_BYTES_MIN: Final = 1 << 14


def _by_name(*configs: ConfigDef) -> Mapping[str, ConfigDef]:
    return {config.name: config for config in configs}


_BOOLEAN, _INT, _LONG = ConfigType.BOOLEAN, ConfigType.INT, ConfigType.LONG
_SEGMENT: Final = (_INT, INTERNAL_SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX)
# Internal topics are created at first use, whatever the limits of a cluster are.
_PARTITIONS: Final = (_INT, 1, REQUEST_PARTITIONS.value)

NODE_CONFIGS: Final = _by_name(
    ConfigDef("transaction.partition.verification.enable", _BOOLEAN),
    ConfigDef("node.id", _INT),
    ConfigDef("listeners", ConfigType.LIST),
    ConfigDef("advertised.listeners", ConfigType.LIST),
    ConfigDef("log.dirs", ConfigType.LIST),
    ConfigDef("auto.create.topics.enable", _BOOLEAN),
    ConfigDef("num.partitions", *_PARTITIONS),
    ConfigDef("transaction.state.log.num.partitions", *_PARTITIONS),
    ConfigDef("transaction.state.log.segment.bytes", *_SEGMENT),
    ConfigDef("offsets.topic.num.partitions", *_PARTITIONS),
    ConfigDef("offsets.topic.segment.bytes", *_SEGMENT),
    TOPIC_CONFIGS["max.message.bytes"],
    TOPIC_CONFIGS["message.timestamp.after.max.ms"],
    TOPIC_CONFIGS["message.timestamp.before.max.ms"],
    ConfigDef("transaction.max.timeout.ms", _INT, 1),
    ConfigDef("transaction.abort.timed.out.transaction.cleanup.interval.ms", _INT, 1),
    ConfigDef("transactional.id.expiration.ms", _INT, 1),
    ConfigDef("transaction.remove.expired.transaction.cleanup.interval.ms", _INT, 1),
    ConfigDef("producer.id.expiration.ms", _INT, 1),
    ConfigDef("producer.id.expiration.check.interval.ms", _INT, 1),
    ConfigDef("offsets.retention.minutes", _INT, 1),
    ConfigDef("offsets.retention.check.interval.ms", _LONG, 1),
    TOPIC_CONFIGS["cleanup.policy"],
    TOPIC_CONFIGS["segment.bytes"],
    TOPIC_CONFIGS["segment.ms"],
    TOPIC_CONFIGS["retention.ms"],
    TOPIC_CONFIGS["retention.bytes"],
    ConfigDef("log.retention.check.interval.ms", _LONG, 1),
    ConfigDef("log.cleaner.backoff.ms", _LONG, 1),
    TOPIC_CONFIGS["min.cleanable.dirty.ratio"],
    TOPIC_CONFIGS["min.compaction.lag.ms"],
    TOPIC_CONFIGS["max.compaction.lag.ms"],
    TOPIC_CONFIGS["delete.retention.ms"],
    ConfigDef("group.initial.rebalance.delay.ms", _INT),
    ConfigDef("group.min.session.timeout.ms", _INT, 1),
    ConfigDef("group.max.session.timeout.ms", _INT, 1),
    ConfigDef("group.max.size", _INT, 1),
    ConfigDef("group.consumer.session.timeout.ms", _INT, 1),
    ConfigDef("group.consumer.heartbeat.interval.ms", _INT, 1),
    ConfigDef("group.consumer.assignment.interval.ms", _INT),
    ConfigDef("group.consumer.max.size", _INT, 1),
)
"""Those of NodeSettings, which DescribeConfigs shows."""

CONNECTION_CONFIGS: Final = _by_name(
    ConfigDef("max.connections", _INT, 1),
    ConfigDef("connections.max.idle.ms", _LONG, 1),
    ConfigDef("queued.max.request.bytes", _LONG, QUEUED_BYTES_MIN),
    ConfigDef("queued.max.response.bytes", _LONG, QUEUED_BYTES_MIN),
)
"""Those of ConnectionSettings."""

# Each row: the smaller setting, the larger one, and the minimum difference in ms. Otherwise no member could
# join, or each would be removed between two of its heartbeats.
_ORDERED: Final = (
    ("group.min.session.timeout.ms", "group.max.session.timeout.ms", 0),
    ("group.consumer.heartbeat.interval.ms", "group.consumer.session.timeout.ms", 1),
)


READ_ONLY_CONFIGS: Final = {
    "node.id": "the broker is always node 1",
    "listeners": "the broker is started with a host and a port",
    "advertised.listeners": "the broker is started with it, if clients need another address than its own",
    "log.dirs": "the broker is started with its data directory",
}
"""Settings that are shown and cannot be overridden, with the reason."""


def overridden(override: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of NodeSettings and of ConnectionSettings for settings given by Kafka's names. A value
    is text, or an object that prints as that text. ValueError names a setting that is unknown or has a wrong
    value.
    """
    of_node: dict[str, Any] = {}
    of_connections: dict[str, Any] = {}
    for name, value in override.items():
        if name in READ_ONLY_CONFIGS:
            raise ValueError(f"{name} cannot be set: {READ_ONLY_CONFIGS[name]}")
        config = NODE_CONFIGS.get(name) or CONNECTION_CONFIGS.get(name)
        if config is None:
            possible = (*NODE_CONFIGS, *CONNECTION_CONFIGS)
            raise ValueError(f"a broker has no setting {name}{suggestion(name, possible)}")
        text = str(value).lower() if isinstance(value, bool) else str(value)
        try:
            (of_node if name in NODE_CONFIGS else of_connections)[config.field] = config.parse(text)
        except ValueError as problem:
            raise ValueError(f"{name}={text}: {problem}") from problem
    return of_node, of_connections


def kafka_generation(
    transaction_version: int = NEWEST.number,
    partition_verification: bool = True,
    *,
    without_fixes: Iterable[str],
    broken: Iterable[str],
) -> NodeSettings:
    """The generation of Kafka that a broker behaves like, and the protections that are turned off in it.
    TypeError or ValueError for a version or a name that does not exist.
    """
    if type(partition_verification) is not bool:
        raise TypeError(f"partition_verification must be True or False, not {partition_verification!r}")
    if transaction_version not in TRANSACTION_VERSIONS:
        raise ValueError(
            f"transaction_version must be one of {sorted(TRANSACTION_VERSIONS)}, not {transaction_version!r}"
        )
    for name, given in (("without_fixes", without_fixes), ("broken", broken)):
        if isinstance(given, str):
            raise TypeError(f"{name} must be a list of names, such as [{given!r}], not one name")
    return NodeSettings(
        transaction_version=TRANSACTION_VERSIONS[transaction_version],
        partition_verification=partition_verification,
        fixes=KafkaFixes.without(without_fixes),
        broken=frozenset(broken),
    )


def check_together(settings: NodeSettings) -> None:
    """ValueError if settings contradict each other (GroupCoordinatorConfig)."""
    for smaller, larger, apart in _ORDERED:
        low, high = (getattr(settings, NODE_CONFIGS[name].field) for name in (smaller, larger))
        if low + apart > high:
            raise ValueError(f"{smaller}={low} is too long for {larger}={high}")
