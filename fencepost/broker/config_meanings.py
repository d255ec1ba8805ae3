"""What the settings of topics and brokers mean, in words: the documentation in DescribeConfigs (KIP-569), and
the table of settings in clients.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fencepost.broker.log_config import TOPIC_CONFIGS

_OF_TOPICS: Final = {
    "cleanup.policy": (
        "What happens to old records: delete removes whole segments by age and size, compact keeps the "
        "last value of each key. Both may be given, separated by a comma; empty keeps everything."
    ),
    "delete.retention.ms": (
        "How long a compacted log keeps a record without a value, or the marker of a transaction, so that"
        " slow readers still see it."
    ),
    "max.compaction.lag.ms": "A record that is older is compacted, whatever min.cleanable.dirty.ratio is.",
    "max.message.bytes": "The size of the largest batch that a producer may write.",
    "message.timestamp.after.max.ms": "How far ahead of the broker's clock the timestamp of a record may be.",
    "message.timestamp.before.max.ms": "How far behind the broker's clock the timestamp of a record may be.",
    "min.cleanable.dirty.ratio": (
        "A log is compacted when more than this share of its bytes was written since the last compaction."
    ),
    "min.compaction.lag.ms": "A record that is younger is not compacted.",
    "retention.bytes": (
        "The oldest segments of a partition are deleted while it has more bytes than this; -1: never."
    ),
    "retention.ms": "A segment is deleted when its newest record is older than this; -1: never.",
    "segment.bytes": "The size of a full segment. Only full segments are compacted.",
    "segment.ms": "A segment is also full when a new batch is this much newer than its first one.",
}
_OF_BROKERS: Final = {
    "transaction.partition.verification.enable": (
        "Whether leaders of partitions ask the coordinator if a transaction is open before they accept "
        "its batches from older clients."
    ),
    "node.id": "The id of the broker.",
    "listeners": "The security protocol and the address on which the broker listens.",
    "advertised.listeners": "The address that the broker gives to clients, if it is not that of listeners.",
    "log.dirs": "The data directory; memory, if the broker keeps its logs there.",
    "auto.create.topics.enable": "Whether a topic is created when a Kafka client asks for its metadata.",
    "num.partitions": "The number of partitions of a topic that is created without a number.",
    "transaction.state.log.num.partitions": (
        "The number of partitions of __transaction_state; it counts until that topic exists."
    ),
    "transaction.state.log.segment.bytes": "The size of a full segment of __transaction_state.",
    "offsets.topic.num.partitions": (
        "The number of partitions of __consumer_offsets; it counts until that topic exists."
    ),
    "offsets.topic.segment.bytes": "The size of a full segment of __consumer_offsets.",
    "transaction.max.timeout.ms": "The longest transaction timeout that a producer may ask for.",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": (
        "How often the broker looks for transactions that have timed out."
    ),
    "transactional.id.expiration.ms": "How long the broker remembers a transactional id that is not used.",
    "transaction.remove.expired.transaction.cleanup.interval.ms": (
        "How often the broker looks for transactional ids that have expired."
    ),
    "producer.id.expiration.ms": "How long a partition remembers a producer that writes nothing.",
    "producer.id.expiration.check.interval.ms": "How often the broker looks for producers that have expired.",
    "offsets.retention.minutes": (
        "How long offsets are kept after their group has lost its last member, or after they were committed "
        "if it has none."
    ),
    "offsets.retention.check.interval.ms": "How often the broker looks for offsets that have expired.",
    "log.retention.check.interval.ms": "How often the broker looks for segments to delete.",
    "log.cleaner.backoff.ms": "How long the broker waits before it looks for logs to compact again.",
    "group.initial.rebalance.delay.ms": (
        "How long the first rebalance of a new group waits for further members."
    ),
    "group.min.session.timeout.ms": (
        "The shortest session timeout that a member of a classic group may ask for."
    ),
    "group.max.session.timeout.ms": (
        "The longest session timeout that a member of a classic group may ask for."
    ),
    "group.max.size": "The largest number of members of a classic group.",
    "group.consumer.session.timeout.ms": (
        "A member of the consumer protocol that is silent for this long is removed from its group."
    ),
    "group.consumer.heartbeat.interval.ms": "How often members of the consumer protocol send heartbeats.",
    "group.consumer.assignment.interval.ms": (
        "The shortest time between two assignments of a group of the consumer protocol."
    ),
    "group.consumer.max.size": "The largest number of members of a group of the consumer protocol.",
    "max.connections": "The largest number of connections.",
    "connections.max.idle.ms": "A connection without requests is closed after this time.",
    "queued.max.request.bytes": "The memory that all requests together may take.",
    "queued.max.response.bytes": "The memory that all responses together may take.",
}

MEANINGS: Final[Mapping[str, str]] = {
    **_OF_TOPICS,
    **_OF_BROKERS,
    **{
        setting.name: f"{_OF_TOPICS[name]} A topic can set {name} itself."
        for name, setting in TOPIC_CONFIGS.items()
    },
}
"""By the names of settings; fixed_configs.py has those with a single value."""
