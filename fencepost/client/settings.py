"""The settings of producers and consumers, validated when a client is created. Names and defaults are
Kafka's where it has the setting.

Rule: one frozen value per client; times are milliseconds, sizes are bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

import attrs

from fencepost.client.assignors import ASSIGNORS
from fencepost.client.partitioners import Partitioner, murmur2
from fencepost.protocol import messages as m
from fencepost.protocol.compression import Compression
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.messages import Request
from fencepost.protocol.terms import (
    EARLIEST_TIMESTAMP,
    ID_LENGTH_MAX,
    INT32_MAX,
    INT64_MAX,
    LATEST_TIMESTAMP,
    IsolationLevel,
)

# Retries start soon, because most errors of a local broker last a few milliseconds (Kafka: retry.backoff.ms
# is 100, retry.backoff.max.ms 1000).
RETRY_BACKOFF_MS: Final = 10
RETRY_BACKOFF_MAX_MS: Final = 1_000
# After CONCURRENT_TRANSACTIONS: the broker is still syncing its log or writing the markers of the last
# transaction, which takes about a millisecond, so a pause of 10 would be most of a short transaction. Kafka
# shortens this pause too, to 20 ms (TransactionManager.ADD_PARTITIONS_RETRY_BACKOFF_MS).
CONCURRENT_BACKOFF_MS: Final = 1

# How long a topic or a broker may be unknown before a caller gets an error: long enough for a topic that is
# being created right now, and for a broker that is starting.
UNKNOWN_GRACE_MS: Final = 1_000

# A producer requests the metadata of a topic until this long after its last record for it
# (metadata.max.idle.ms, KIP-526).
METADATA_MAX_IDLE_MS: Final = 300_000

# How long close() waits for acknowledgements: normally, and after Ctrl-C or an exception in the block.
# Kafka's close() waits forever; a broker that is down would then hang the end of every program.
CLOSE_TIMEOUT_MS: Final = 30_000
ABORT_GRACE_MS: Final = 5_000

# The coordinator may answer JoinGroup only at the end of its rebalance timeout: a member waits this much
# longer (AbstractCoordinator.JOIN_GROUP_TIMEOUT_LAPSE). LeaveGroup is a courtesy and gets less time, because
# the session of the member times out anyway.
JOIN_GROUP_TIMEOUT_LAPSE_MS: Final = 5_000
LEAVE_TIMEOUT_MS: Final = 5_000

RESETS: Final = {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP, "none": None, "error": None}
"""`auto_offset_reset` by Kafka's names ("none") and librdkafka's ("error")."""
BY_DURATION: Final = "by_duration:"
_DURATION: Final = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?")
_UNITS_MS: Final = (86_400_000, 3_600_000, 60_000, 1_000)


def duration_ms(strategy: str) -> int | None:
    """The milliseconds of "by_duration:PT1H" (KIP-1106), an ISO 8601 duration; None for other strategies."""
    text = strategy.removeprefix(BY_DURATION)
    found = _DURATION.fullmatch(text) if text != strategy else None
    if found is None or not any(found.groups()):
        return None
    return int(sum(float(part or 0) * unit for part, unit in zip(found.groups(), _UNITS_MS, strict=True)))


def backoff_ms(attempts: int, error: ErrorCode = NO_ERROR) -> int:
    """The pause (ms) after `attempts` attempts, the last of which ended with `error`.

    It doubles with each attempt, without jitter, so that simulated runs repeat.
    """
    first = CONCURRENT_BACKOFF_MS if error is ErrorCode.CONCURRENT_TRANSACTIONS else RETRY_BACKOFF_MS
    return min(RETRY_BACKOFF_MAX_MS, first << min(max(attempts - 1, 0), 10))


def _from(low: int, high: int = INT32_MAX) -> Callable[[object, attrs.Attribute[int], int], None]:
    def check(_settings: object, attribute: attrs.Attribute[int], value: int) -> None:
        if not low <= value <= high:
            raise ValueError(f"{attribute.name} must be a whole number from {low} to {high}, not {value}")

    return check


_positive: Final = _from(1)


def _check_length(name: str, given: str | None) -> None:
    """ValueError for an id that no broker takes."""
    if given is not None and len(given) > ID_LENGTH_MAX:
        raise ValueError(f"{name} must have at most {ID_LENGTH_MAX} characters, not {len(given)}")


@attrs.frozen(kw_only=True)
class ProducerProtocol:
    """The protocol of one generation of producers."""

    versions: Mapping[type[Request], int]
    """The requests that it sends in an older version than the newest."""
    adds_partitions_first: bool
    """It adds partitions and groups to the transaction at the coordinator first (KIP-98)."""
    renews_identity: bool
    """EndTxn's reply holds its epoch for the next transaction (KIP-890 part 2)."""


PRODUCER_PROTOCOLS: Final = {
    0: ProducerProtocol(
        versions={m.Produce: 11, m.AddPartitionsToTxn: 3, m.EndTxn: 4, m.TxnOffsetCommit: 4},
        adds_partitions_first=True,
        renews_identity=False,
    ),
    2: ProducerProtocol(versions={}, adds_partitions_first=False, renews_identity=True),
}
"""By `transaction.version`."""


def newest_producer_version(transaction_version: int) -> int:
    """The newest version that a producer can use with a cluster of this `transaction.version`. Version 1
    changed only the log format; its clients use the protocol of 0.
    """
    return max(version for version in PRODUCER_PROTOCOLS if version <= transaction_version)


@attrs.frozen(kw_only=True)
class ProducerSettings:
    """The settings of one producer; it is transactional with a `transactional_id`, else idempotent."""

    transactional_id: str | None = None
    transaction_timeout_ms: int = attrs.field(default=60_000, validator=_positive)
    batch_size: int = attrs.field(default=131_072, validator=_positive)
    linger_ms: int = attrs.field(default=5, validator=_from(0))
    buffer_memory: int = attrs.field(default=33_554_432, validator=_from(1, INT64_MAX))
    delivery_timeout_ms: int = attrs.field(default=120_000, validator=_from(1, INT64_MAX))
    request_timeout_ms: int = attrs.field(default=30_000, validator=_positive)
    max_in_flight_requests_per_connection: int = attrs.field(default=5, validator=_from(1, 5))
    """The broker recognises a producer's last five batches (ProducerStateEntry.NUM_BATCHES_TO_RETAIN)."""
    max_block_ms: int = attrs.field(default=60_000, validator=_from(1, INT64_MAX))
    compression_type: Compression = Compression.NONE
    partitioner: Partitioner = murmur2
    """Selects the partition of a record with a key."""
    client_id: str = ""
    transaction_version: int = 2
    """The protocol to use, 2 or 0. Kafka's client reads it from the features in ApiVersions."""

    def __attrs_post_init__(self) -> None:
        if self.transactional_id == "":
            raise ValueError("transactional_id must not be empty; None makes a producer without transactions")
        _check_length("transactional_id", self.transactional_id)
        if self.transaction_version not in PRODUCER_PROTOCOLS:
            raise ValueError(f"transaction_version must be 0 or 2, not {self.transaction_version}")
        if self.buffer_memory < self.batch_size:
            raise ValueError(
                f"buffer_memory ({self.buffer_memory}) must be at least batch_size ({self.batch_size})"
            )
        if self.delivery_timeout_ms <= self.linger_ms:
            raise ValueError(
                f"delivery_timeout_ms ({self.delivery_timeout_ms}) must be above linger_ms "
                f"({self.linger_ms}); otherwise a record fails before it is sent"
            )

    @property
    def protocol(self) -> ProducerProtocol:
        """How to speak, by `transaction_version`."""
        return PRODUCER_PROTOCOLS[self.transaction_version]


@attrs.frozen(kw_only=True)
class ConsumerSettings:
    """The settings of one consumer. With `filters_aborted` off, read_committed waits for the LSO but shows
    aborted records.

    There is no automatic commit. Members of a group send a heartbeat every `heartbeat_interval_ms`; the
    coordinator expels a member without heartbeats for `session_timeout_ms`, and a member leaves when its
    program does not poll for `max_poll_interval_ms`.
    """

    group_id: str | None = None
    group_instance_id: str | None = None
    """Makes a static member (KIP-345), which may restart within the session timeout without a rebalance."""
    session_timeout_ms: int = attrs.field(default=45_000, validator=_positive)
    heartbeat_interval_ms: int = attrs.field(default=3_000, validator=_positive)
    max_poll_interval_ms: int = attrs.field(default=300_000, validator=_positive)
    partition_assignment_strategy: tuple[str, ...] = attrs.field(
        default=("range", "cooperative-sticky"), converter=tuple
    )
    """Assignors by preference: the group uses one that all members support. Incremental rebalances (KIP-429)
    need "cooperative-sticky" alone.
    """
    metadata_max_age_ms: int = attrs.field(default=300_000, validator=_positive)
    """How often a group leader checks its topics for new partitions."""
    isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED
    fetch_max_bytes: int = attrs.field(default=1_048_576, validator=_positive)
    fetch_max_wait_ms: int = attrs.field(default=500, validator=_from(0))
    auto_offset_reset: str = "earliest"
    request_timeout_ms: int = attrs.field(default=30_000, validator=_positive)
    default_api_timeout_ms: int = attrs.field(default=60_000, validator=_positive)
    client_id: str = ""
    filters_aborted: bool = True

    def __attrs_post_init__(self) -> None:
        reset = self.auto_offset_reset
        if reset not in RESETS and duration_ms(reset) is None:
            raise ValueError(
                f"auto_offset_reset must be earliest, latest, none, or by_duration:DURATION, such as "
                f"by_duration:PT1H30M, not {reset!r}"
            )
        if self.group_id == "":
            raise ValueError("group_id must not be empty; None makes a consumer without a group")
        if self.group_instance_id is not None and not (self.group_id and self.group_instance_id):
            raise ValueError("group_instance_id must not be empty, and needs a group_id")
        _check_length("group_id", self.group_id)
        _check_length("group_instance_id", self.group_instance_id)
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ValueError(
                f"heartbeat_interval_ms ({self.heartbeat_interval_ms}) must be below session_timeout_ms "
                f"({self.session_timeout_ms}); otherwise the session expires between two heartbeats"
            )
        if self.fetch_max_wait_ms >= self.request_timeout_ms:
            raise ValueError(
                f"fetch_max_wait_ms ({self.fetch_max_wait_ms}) must be below request_timeout_ms "
                f"({self.request_timeout_ms}); otherwise a fetch at the end of a log times out"
            )
        unknown = [name for name in self.partition_assignment_strategy if name not in ASSIGNORS]
        if unknown or not self.partition_assignment_strategy:
            raise ValueError(
                f"partition_assignment_strategy must name {' or '.join(ASSIGNORS)}, "
                f"not {list(self.partition_assignment_strategy)}"
            )


_COMPRESSIONS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


def compression_named(name: str) -> Compression:
    """The compression called "none", "gzip", "snappy", "lz4" or "zstd"."""
    if name not in _COMPRESSIONS:
        raise ValueError(f"compression_type must be none, gzip, snappy, lz4 or zstd, not {name!r}")
    return Compression[name.upper()]


_ISOLATION_LEVELS: Final = {level.name.lower(): level for level in IsolationLevel}


def isolation_named(name: str | IsolationLevel) -> IsolationLevel:
    """The isolation level called "read_committed" or "read_uncommitted", or the level itself."""
    level = name if isinstance(name, IsolationLevel) else _ISOLATION_LEVELS.get(name)
    if level is None:
        raise ValueError(f"isolation_level must be read_committed or read_uncommitted, not {name!r}")
    return level
