"""The terms that all parts share: partitions, isolation levels, transaction states, the numbers that mean
"none".

Rule: a name means the same in broker, client, log and docs, and it is Kafka's where Kafka has one.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from enum import Enum, IntEnum
from functools import lru_cache
from typing import Annotated, Final, NamedTuple

# Kafka writes -1 for none in all of these fields. A name each, so that code says which none it means.
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_COORDINATOR_EPOCH: Final = -1  # no marker of the producer is in the partition
NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = -1
NO_OFFSET: Final = -1
NO_LEADER_EPOCH: Final = -1
NO_ACKS: Final = 0  # Produce: the producer wants no reply
NO_GENERATION: Final = -1  # not a member of a group (JoinGroupRequest.UNKNOWN_GENERATION_ID)
NO_MEMBER: Final = ""  # not a member yet (JoinGroupRequest.UNKNOWN_MEMBER_ID)
NO_TOPIC_ID: Final = bytes(16)  # Uuid.ZERO_UUID

INT16_MAX: Final = 2**15 - 1
INT32_MAX: Final = 2**31 - 1
INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1

# One epoch is held back so that the coordinator can always fence (TransactionMetadata.isEpochExhausted).
LAST_GRANTED_EPOCH: Final = INT16_MAX - 1

ASKED_NODE: Final = -1  # DescribeConfigs: the node that gets the request
NO_RETENTION: Final = -1  # OffsetCommit: the broker decides how long offsets are kept
BROKERS_DEFAULT: Final = -1  # CreateTopics: as many partitions as num.partitions says, and one replica
NEWEST_VERSION: Final = INT16_MAX  # of a request: the newest version of its API

LATEST_TIMESTAMP: Final = -1  # ListOffsets: the end that the isolation level allows
EARLIEST_TIMESTAMP: Final = -2  # ListOffsets: the log start offset
EARLIEST_LOCAL_TIMESTAMP: Final = -4  # ListOffsets: the same where nothing is tiered (KIP-405)
LATEST_TIERED_TIMESTAMP: Final = -5  # ListOffsets: none where nothing is tiered (KIP-1005)
MAX_TIMESTAMP: Final = -3  # ListOffsets: the newest record by its timestamp (KIP-734)
HIGH_WATERMARK: Final = -1  # DeleteRecords: everything up to the high watermark

MINUTE_MS: Final = 60_000
LATE_TRANSACTION_BUFFER_MS: Final = 5 * MINUTE_MS  # ProducerStateManager: granted beyond every timeout

RESOURCE_TYPES: Final = {"Topic": 2, "Group": 3, "Cluster": 4, "TransactionalId": 5}
"""The codes of Kafka's types of resources (ResourceType)."""

OPERATION_CODES: Final = {
    name: code
    for code, name in enumerate(
        (
            "All",
            "Read",
            "Write",
            "Create",
            "Delete",
            "Alter",
            "Describe",
            "ClusterAction",
            "DescribeConfigs",
            "AlterConfigs",
            "IdempotentWrite",
        ),
        start=2,
    )
}
"""The codes of Kafka's operations on resources (AclOperation)."""

OPERATION_BITS: Final = {name: 1 << code for name, code in OPERATION_CODES.items() if name != "All"}
"""The operations as bits, each at the place of its code (KIP-430)."""

TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
CONSUMER_OFFSETS_TOPIC: Final = "__consumer_offsets"
CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
CONSUMER_PROTOCOL: Final = "consumer"  # ConsumerProtocol.PROTOCOL_TYPE: groups that read partitions

INTERNAL_TOPICS: Final = frozenset({TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC, CLUSTER_METADATA_TOPIC})

# Topic.MAX_NAME_LENGTH: leaves room for "-<partition>" in a 255-byte file name
TOPIC_NAME_LENGTH_MAX: Final = 249
ID_LENGTH_MAX: Final = 249
"""The longest group id, transactional id and group instance id; Kafka limits only the last one."""
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)


class TopicPartition(NamedTuple):
    """One partition of a topic; sorts by `topic`, then by the number, `partition`."""

    topic: str
    partition: Annotated[int, 32]  # bits, for messages (codec.py)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


METADATA_PARTITION: Final = TopicPartition(CLUSTER_METADATA_TOPIC, 0)
"""Its only partition; the controller is on the node that leads it."""


class IsolationLevel(IntEnum):
    """Which offset bounds a reader (Kafka's `isolation.level`)."""

    READ_UNCOMMITTED = 0
    """Bounded by the high watermark."""
    READ_COMMITTED = 1
    """Bounded by the last stable offset; aborted transactions are filtered."""


class TransactionResult(IntEnum):
    """The result of a transaction, with the numbers of control records (KIP-98)."""

    ABORT = 0
    COMMIT = 1


class IdentityEnum(Enum):
    """An enum whose members are hashed by identity, in C: Enum's own hash is computed in Python, and tables
    are looked up often.
    """

    __hash__ = object.__hash__


class TitledEnum(IdentityEnum):
    """An enum whose members have a name for people."""

    @property
    def title(self) -> str:
        """The name that Kafka's tools print: `PrepareCommit`."""
        return "".join(word.capitalize() for word in self.name.split("_"))


class TransactionState(TitledEnum):
    """The states of a transactional id at its coordinator, with Kafka's numbers (TransactionState.java)."""

    EMPTY = 0
    """The id is registered and has had no transaction since."""
    ONGOING = 1
    """A transaction is open."""
    PREPARE_COMMIT = 2
    """Decided: it commits. Markers are being written."""
    PREPARE_ABORT = 3
    """Decided: it aborts. Markers are being written."""
    COMPLETE_COMMIT = 4
    """Committed, with every marker written."""
    COMPLETE_ABORT = 5
    """Aborted, with every marker written."""

    @property
    def is_open(self) -> bool:
        """Whether a transaction has begun and is not complete."""
        return self is TransactionState.ONGOING or self.is_prepared

    @property
    def is_prepared(self) -> bool:
        """Whether the result is decided, and markers may be missing."""
        return self in DECISIONS

    @property
    def is_complete(self) -> bool:
        """Whether a transaction has ended, with every marker written."""
        return self in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


DECISIONS: Final = {
    TransactionState.PREPARE_COMMIT: TransactionResult.COMMIT,
    TransactionState.PREPARE_ABORT: TransactionResult.ABORT,
}


class GroupType(TitledEnum):
    """The protocol of a group's members (Group.GroupType)."""

    CLASSIC = 0
    """JoinGroup and SyncGroup; a member assigns the partitions."""
    CONSUMER = 1
    """ConsumerGroupHeartbeat; the coordinator assigns them (KIP-848)."""


class GroupState(TitledEnum):
    """The state of a group: of the classic protocol (ClassicGroupState.java) up to DEAD, and of the consumer
    protocol (ConsumerGroup.ConsumerGroupState).
    """

    EMPTY = 0
    """No members; committed offsets may remain."""
    PREPARING_REBALANCE = 1
    """Waits for the members to join."""
    COMPLETING_REBALANCE = 2
    """Waits for the assignment of the leader."""
    STABLE = 3
    """Each member has its partitions."""
    DEAD = 4
    """The group does not exist."""
    ASSIGNING = 5
    """The coordinator computes a new assignment."""
    RECONCILING = 6
    """Members give up and take over partitions."""


class CoordinatorType(IntEnum):
    """FindCoordinator key types."""

    GROUP = 0
    TRANSACTION = 1


class ConfigSource(IntEnum):
    """Where the value of a setting comes from (DescribeConfigsResponse.ConfigSource)."""

    TOPIC = 1
    """The topic's own."""
    BROKER = 4
    """The broker's, in its file or on its command line."""
    DEFAULT = 5
    """The default: the setting was not set."""


class ConfigOperation(IntEnum):
    """What happens to a setting (AlterConfigOp.OpType). The last two are for lists."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigType(IntEnum):
    """The type of a setting's value (DescribeConfigsResponse.ConfigType): `BOOLEAN`, `STRING`, `LIST` (names
    with commas between), or a number: `INT` (32 bits), `LONG` (64 bits), `DOUBLE`.
    """

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


def sequence_after(sequence: int, count: int) -> int:
    """Wraps to zero, not to a negative: brokers accept 0 after INT32_MAX (ProducerAppendInfo.inSequence)."""
    return (sequence + count) % (INT32_MAX + 1)


def java_length(text: str) -> int:
    """String.length of Java: UTF-16 code units, of which an emoji has two."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def java_hash(text: str) -> int:
    """String.hashCode of Java: over UTF-16 code units, 32-bit signed."""
    code = 0
    units = text.encode("utf-16-le", "surrogatepass")
    # Code units, not characters: an emoji is two chars of Java.
    for i in range(0, len(units), 2):
        code = (31 * code + units[i] + (units[i + 1] << 8)) & 0xFFFF_FFFF
    # The sign matters: Java's int is signed, and the partition is taken from its absolute value.
    return code - 2**32 if code >= 2**31 else code


@lru_cache(maxsize=1024)  # used several times per transaction, and the hash takes a step per character
def coordinator_partition(key: str, partition_count: int) -> int:
    """The partition of `__transaction_state` or `__consumer_offsets` that owns an id or group (Utils.abs)."""
    code = java_hash(key)
    # Java has no positive 2**31; Utils.abs makes it 0. All brokers of a cluster must agree on it, always.
    return (0 if code == -(2**31) else abs(code)) % partition_count


def spell_topic_id(topic_id: bytes) -> str:
    """A topic id as Kafka writes it: 22 characters of base64 (Uuid.toString)."""
    return urlsafe_b64encode(topic_id).decode().rstrip("=")


def parse_topic_id(text: str) -> bytes:
    """The topic id that `spell_topic_id` wrote; ValueError for any other text."""
    topic_id = urlsafe_b64decode(f"{text}==")
    if spell_topic_id(topic_id) != text or len(topic_id) != len(NO_TOPIC_ID):
        raise ValueError(f"{text!r} is not a topic id")
    return topic_id


def escaped(text: str) -> str:
    """The text with `\\uXXXX` in place of what a terminal obeys instead of showing: control characters, and
    those that reorder a line. Ids, members and records come from anyone.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


_SPACES: Final = "".join(map(chr, range(ord(" ") + 1)))


def is_blank(text: str | None) -> bool:
    """Whether a text is given and has only spaces and control characters (those of Java's String.trim)."""
    return text is not None and not text.strip(_SPACES)


def topic_name_problem(name: str) -> str | None:
    """Why a topic cannot have this name, or None (Topic.validate). Checked before a directory is created."""
    if not name:
        return "the name is empty"
    if name in (".", ".."):
        return "the name cannot be '.' or '..'"
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        return f"the name is longer than {TOPIC_NAME_LENGTH_MAX} characters"
    if not _TOPIC_NAME.fullmatch(name):
        return f"the name {name!r} may contain only ASCII letters, digits, '.', '_' and '-'"
    return None
