"""The settings of a broker by their names in Kafka: how each is read, and its range.

Rule: a name is that of a field of NodeSettings or ConnectionSettings with dots, except those in `_FIELDS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from fencepost.broker.kafka_fixes import KafkaFixes
from fencepost.broker.limits import REQUEST_PARTITIONS
from fencepost.broker.log_config import SEGMENT_BYTES_MIN, UNLIMITED, cleanup_policy, integer, ratio
from fencepost.broker.settings import QUEUED_BYTES_MIN, NodeSettings
from fencepost.broker.transactions.tables import NEWEST, TRANSACTION_VERSIONS
from fencepost.faults.grammar import suggestion
from fencepost.journal.journal import SEGMENT_BYTES_MAX
from fencepost.protocol.terms import INT32_MAX, INT64_MAX, ConfigType

INTERNAL_SEGMENT_BYTES_MIN: Final = 1 << 14
_HIGHEST: Final = {ConfigType.INT: INT32_MAX, ConfigType.LONG: INT64_MAX}
_FIELDS: Final = {"transaction.partition.verification.enable": "partition_verification"}
_BOOLEANS: Final = {"true": True, "false": False}


class BrokerConfig(NamedTuple):
    """One setting. `lowest` and `highest` bound a numeric value."""

    name: str
    config_type: ConfigType
    lowest: int = 0
    highest: int | None = None
    """None: what the type can hold."""

    @property
    def field(self) -> str:
        """The field of NodeSettings or ConnectionSettings."""
        return _FIELDS.get(self.name, self.name.replace(".", "_"))

    def parse(self, text: str) -> Any:
        """The value that the text stands for; ValueError if there is none."""
        match self.config_type:
            case ConfigType.BOOLEAN:
                if text not in _BOOLEANS:
                    raise ValueError("it must be true or false")
                return _BOOLEANS[text]
            case ConfigType.DOUBLE:
                return ratio(text)
            case ConfigType.LIST:
                return cleanup_policy(text)
            case _:
                highest = _HIGHEST[self.config_type] if self.highest is None else self.highest
                return integer(self.lowest, highest)(text)

    @property
    def values(self) -> str:
        """What it can be, in words."""
        match self.config_type:
            case ConfigType.BOOLEAN:
                return "true, false"
            case ConfigType.DOUBLE:
                return "0 to 1"
            case ConfigType.LIST:
                return "delete, compact, both, or empty"
            case _ if self.highest is None:
                return f"at least {self.lowest:,}"
            case _:
                return f"{self.lowest:,} to {self.highest:,}"


def _by_name(*configs: BrokerConfig) -> Mapping[str, BrokerConfig]:
    return {config.name: config for config in configs}


_BOOLEAN, _INT, _LONG = ConfigType.BOOLEAN, ConfigType.INT, ConfigType.LONG
_SEGMENT: Final = (_INT, INTERNAL_SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX)
# Internal topics are created at first use, whatever the limits of a cluster are.
_PARTITIONS: Final = (_INT, 1, REQUEST_PARTITIONS.value)

NODE_CONFIGS: Final = _by_name(
    BrokerConfig("transaction.partition.verification.enable", _BOOLEAN),
    BrokerConfig("node.id", _INT),
    BrokerConfig("auto.create.topics.enable", _BOOLEAN),
    BrokerConfig("num.partitions", *_PARTITIONS),
    BrokerConfig("transaction.state.log.num.partitions", *_PARTITIONS),
    BrokerConfig("transaction.state.log.segment.bytes", *_SEGMENT),
    BrokerConfig("offsets.topic.num.partitions", *_PARTITIONS),
    BrokerConfig("offsets.topic.segment.bytes", *_SEGMENT),
    BrokerConfig("message.max.bytes", _INT),
    BrokerConfig("log.message.timestamp.after.max.ms", _LONG),
    BrokerConfig("log.message.timestamp.before.max.ms", _LONG),
    BrokerConfig("transaction.max.timeout.ms", _INT, 1),
    BrokerConfig("transaction.abort.timed.out.transaction.cleanup.interval.ms", _INT, 1),
    BrokerConfig("transactional.id.expiration.ms", _INT, 1),
    BrokerConfig("transaction.remove.expired.transaction.cleanup.interval.ms", _INT, 1),
    BrokerConfig("producer.id.expiration.ms", _INT, 1),
    BrokerConfig("producer.id.expiration.check.interval.ms", _INT, 1),
    BrokerConfig("offsets.retention.minutes", _INT, 1),
    BrokerConfig("offsets.retention.check.interval.ms", _LONG, 1),
    BrokerConfig("log.cleanup.policy", ConfigType.LIST),
    BrokerConfig("log.segment.bytes", _INT, SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX),
    BrokerConfig("log.roll.ms", _LONG, 1),
    BrokerConfig("log.retention.ms", _LONG, UNLIMITED),
    BrokerConfig("log.retention.bytes", _LONG, UNLIMITED),
    BrokerConfig("log.retention.check.interval.ms", _LONG, 1),
    BrokerConfig("log.cleaner.backoff.ms", _LONG, 1),
    BrokerConfig("log.cleaner.min.cleanable.ratio", ConfigType.DOUBLE),
    BrokerConfig("log.cleaner.min.compaction.lag.ms", _LONG),
    BrokerConfig("log.cleaner.max.compaction.lag.ms", _LONG, 1),
    BrokerConfig("log.cleaner.delete.retention.ms", _LONG),
    BrokerConfig("group.initial.rebalance.delay.ms", _INT),
    BrokerConfig("group.min.session.timeout.ms", _INT, 1),
    BrokerConfig("group.max.session.timeout.ms", _INT, 1),
    BrokerConfig("group.max.size", _INT, 1),
    BrokerConfig("group.consumer.session.timeout.ms", _INT, 1),
    BrokerConfig("group.consumer.heartbeat.interval.ms", _INT, 1),
    BrokerConfig("group.consumer.assignment.interval.ms", _INT),
    BrokerConfig("group.consumer.max.size", _INT, 1),
)
"""Those of NodeSettings, which DescribeConfigs shows."""

CONNECTION_CONFIGS: Final = _by_name(
    BrokerConfig("max.connections", _INT, 1),
    BrokerConfig("connections.max.idle.ms", _LONG, 1),
    BrokerConfig("queued.max.request.bytes", _LONG, QUEUED_BYTES_MIN),
    BrokerConfig("queued.max.response.bytes", _LONG, QUEUED_BYTES_MIN),
)
"""Those of ConnectionSettings."""

# Each row: the smaller setting, the larger one, and the minimum difference in ms. Otherwise no member could
# join, or each would be removed between two of its heartbeats.
_ORDERED: Final = (
    ("group.min.session.timeout.ms", "group.max.session.timeout.ms", 0),
    ("group.consumer.heartbeat.interval.ms", "group.consumer.session.timeout.ms", 1),
)


FIXED_CONFIGS: Final = {"node.id": "the broker is always node 1"}
"""Settings that are shown and cannot be overridden, with the reason."""


def overridden(override: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of NodeSettings and of ConnectionSettings for settings given by Kafka's names. A value
    is text, or an object that prints as that text. ValueError names a setting that is unknown or has a wrong
    value.
    """
    of_node: dict[str, Any] = {}
    of_connections: dict[str, Any] = {}
    for name, value in override.items():
        if name in FIXED_CONFIGS:
            raise ValueError(f"{name} cannot be set: {FIXED_CONFIGS[name]}")
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
    without_fixes: Iterable[str] = (),
    broken: Iterable[str] = (),
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
