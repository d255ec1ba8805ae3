"""The error table: Kafka's codes and names, what a client does about each, and whether the request had no
effect.

Rule: clients `match error.remedy` instead of comparing codes, and docs print the table.
"""

# `definite` says whether a refused request surely changed nothing. It decides what a lost commit is called:
# after NETWORK_EXCEPTION the coordinator may have committed, so the outcome is unknown; after PRODUCER_FENCED
# it has not. `error is NO_ERROR` is the test for success. `ErrorCode.NONE` would be looked up in Python code
# until 3.12, and `if error` reads as if an error might be missing.

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final, Self


class Remedy(Enum):
    """What the caller does next."""

    NONE = "nothing: it succeeded"
    RETRY = "send it again after a pause"
    REFRESH = "find the leader or coordinator again, then send it again"
    ABORT = "abort this transaction; the producer can go on"
    FATAL = "this producer is done: close it"
    RAISE = "report it to the caller: a retry will not help"


_R = Remedy
_UNSURE: Final = False  # whether the request had no effect: it may have had one


class ErrorCode(IntEnum):
    """Kafka's error codes that Fencepost knows (org.apache.kafka.common.protocol.Errors)."""

    _value_: int
    remedy: Remedy
    """What the caller does next."""
    meaning: str
    """One sentence for people."""
    definite: bool
    """True when the request had no effect; False when it may have had one."""

    def __new__(cls, code: int, remedy: Remedy, meaning: str, definite: bool = True) -> Self:
        made = int.__new__(cls, code)
        made._value_, made.remedy, made.meaning, made.definite = code, remedy, meaning, definite
        return made

    UNKNOWN_SERVER_ERROR = -1, _R.FATAL, "the broker failed unexpectedly", _UNSURE
    NONE = 0, _R.NONE, "success"
    OFFSET_OUT_OF_RANGE = 1, _R.RAISE, "the offset is before the log start or beyond the log end"
    CORRUPT_MESSAGE = 2, _R.RETRY, "the checksum of the batch does not match its bytes"
    UNKNOWN_TOPIC_OR_PARTITION = 3, _R.REFRESH, "no such topic or partition"
    LEADER_NOT_AVAILABLE = 5, _R.REFRESH, "the partition currently has no leader"
    # Not definite: a leader that is replaced also returns this for batches that it has written and that the
    # next leader may keep. NOT_COORDINATOR is the same for the decision of a coordinator.
    NOT_LEADER_OR_FOLLOWER = 6, _R.REFRESH, "this node does not lead the partition", _UNSURE
    REQUEST_TIMED_OUT = 7, _R.RETRY, "the reply did not come in time", _UNSURE
    MESSAGE_TOO_LARGE = 10, _R.ABORT, "the batch is larger than the broker accepts"
    OFFSET_METADATA_TOO_LARGE = 12, _R.RAISE, "the metadata string of the offset is too long"
    # No broker sends this one: the client makes it when the connection ends before the reply.
    NETWORK_EXCEPTION = 13, _R.RETRY, "the connection was lost before the reply came", _UNSURE
    COORDINATOR_LOAD_IN_PROGRESS = 14, _R.RETRY, "the coordinator is still reading its log"
    COORDINATOR_NOT_AVAILABLE = 15, _R.REFRESH, "no coordinator is currently available"
    NOT_COORDINATOR = 16, _R.REFRESH, "this node does not coordinate that id", _UNSURE
    INVALID_TOPIC_EXCEPTION = 17, _R.RAISE, "the topic's name is not allowed"
    NOT_ENOUGH_REPLICAS = 19, _R.RETRY, "the partition cannot accept the batch yet"
    INVALID_REQUIRED_ACKS = 21, _R.RAISE, "acks must be 0, 1 or -1"
    ILLEGAL_GENERATION = 22, _R.ABORT, "the group has moved on to another generation"
    INCONSISTENT_GROUP_PROTOCOL = (
        23,
        _R.RAISE,
        "the other members support none of this member's assignment strategies",
    )
    INVALID_GROUP_ID = 24, _R.RAISE, "the group id is empty or too long"
    UNKNOWN_MEMBER_ID = 25, _R.ABORT, "the group does not know this member"
    INVALID_SESSION_TIMEOUT = 26, _R.RAISE, "the session timeout is outside the broker's limits"
    REBALANCE_IN_PROGRESS = 27, _R.ABORT, "the group is rebalancing: join again"
    TOPIC_AUTHORIZATION_FAILED = 29, _R.ABORT, "not authorized for this operation on the topic"
    GROUP_AUTHORIZATION_FAILED = 30, _R.ABORT, "not authorized for this operation on the group"
    CLUSTER_AUTHORIZATION_FAILED = 31, _R.FATAL, "not authorized for this operation on the cluster"
    INVALID_TIMESTAMP = 32, _R.ABORT, "the timestamp of a record is too far from the broker's time"
    UNSUPPORTED_SASL_MECHANISM = 33, _R.FATAL, "the broker does not offer this SASL mechanism"
    ILLEGAL_SASL_STATE = 34, _R.FATAL, "the request does not fit the state of the authentication"
    UNSUPPORTED_VERSION = 35, _R.FATAL, "the broker does not support this version of the request"
    TOPIC_ALREADY_EXISTS = 36, _R.RAISE, "a topic with that name already exists"
    INVALID_PARTITIONS = 37, _R.RAISE, "the number of partitions is not allowed"
    INVALID_REPLICATION_FACTOR = 38, _R.RAISE, "the cluster does not have that many brokers"
    INVALID_REPLICA_ASSIGNMENT = 39, _R.RAISE, "the partitions cannot be placed on these brokers"
    INVALID_CONFIG = 40, _R.RAISE, "the setting is unknown, or its value is not allowed"
    INVALID_REQUEST = 42, _R.FATAL, "the request is not valid"
    POLICY_VIOLATION = 44, _R.RAISE, "a limit of the cluster, or a setting of the topic, forbids the request"
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, _R.ABORT, "a batch before this one is missing"
    # A success: the batch is in the log. Kafka's Sender, too, completes it without an offset.
    DUPLICATE_SEQUENCE_NUMBER = 46, _R.NONE, "the batch was stored before; its offset is no longer known"
    # Not fatal, unlike PRODUCER_FENCED: a partition cannot know whether the producer was replaced or its
    # transaction only timed out. The producer aborts, and its coordinator decides (KIP-588).
    INVALID_PRODUCER_EPOCH = 47, _R.ABORT, "the epoch is older than the newest that the partition has seen"
    INVALID_TXN_STATE = 48, _R.FATAL, "the transaction is not in a state that allows this"
    INVALID_PRODUCER_ID_MAPPING = 49, _R.FATAL, "the transactional id belongs to another producer id"
    INVALID_TRANSACTION_TIMEOUT = (
        50,
        _R.FATAL,
        "the transaction timeout is not between 1 ms and the broker's maximum",
    )
    # The coordinator is still writing the markers of the previous transaction: a matter of milliseconds.
    CONCURRENT_TRANSACTIONS = (
        51,
        _R.RETRY,
        "the previous request or transaction of this transactional id is still in progress",
    )
    TRANSACTION_COORDINATOR_FENCED = 52, _R.RAISE, "the marker is from a coordinator that was replaced"
    # Also the reply to a transactional batch without its transactional id.
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = (
        53,
        _R.FATAL,
        "not authorized for this operation on the transactional id",
    )
    SECURITY_DISABLED = 54, _R.RAISE, "no ACLs are configured on the broker"
    # AddPartitionsToTxn adds all of its partitions or none.
    OPERATION_NOT_ATTEMPTED = 55, _R.ABORT, "another partition in the same request failed"
    # The failed write may have reached the disk, and the next recovery may keep it.
    KAFKA_STORAGE_ERROR = 56, _R.REFRESH, "the broker's disk failed, or the log is damaged", _UNSURE
    SASL_AUTHENTICATION_FAILED = 58, _R.FATAL, "the user name or the password is wrong"
    # The producer continues under a new epoch with sequence 0 (KIP-360).
    UNKNOWN_PRODUCER_ID = 59, _R.ABORT, "the partition has forgotten the producer"
    NON_EMPTY_GROUP = 68, _R.RAISE, "the group has members"
    GROUP_ID_NOT_FOUND = 69, _R.RAISE, "no such group"
    FETCH_SESSION_ID_NOT_FOUND = 70, _R.RETRY, "the broker does not know this fetch session"
    INVALID_FETCH_SESSION_EPOCH = 71, _R.RETRY, "the fetch does not follow the last one of its session"
    FENCED_LEADER_EPOCH = 74, _R.REFRESH, "the reader's leader epoch is older than the leader's"
    UNKNOWN_LEADER_EPOCH = 75, _R.REFRESH, "the reader's leader epoch is newer than the leader's"
    UNSUPPORTED_COMPRESSION_TYPE = 76, _R.RAISE, "a client of this version cannot decompress the records"
    OFFSET_NOT_AVAILABLE = 78, _R.RETRY, "the new leader does not know the end of its log yet"
    MEMBER_ID_REQUIRED = 79, _R.RETRY, "the broker has assigned a member id: join again with it"
    GROUP_MAX_SIZE_REACHED = (
        81,
        _R.RAISE,
        "the group has reached the broker's limit on members or on their metadata",
    )
    FENCED_INSTANCE_ID = 82, _R.FATAL, "another member has taken over this instance id"
    ELECTION_NOT_NEEDED = 84, _R.RAISE, "the preferred replica leads the partition already"
    NO_REASSIGNMENT_IN_PROGRESS = 85, _R.RAISE, "the partition is not being reassigned"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, _R.RAISE, "a member of the group reads the topic"
    INVALID_RECORD = 87, _R.ABORT, "the batch breaks a rule of its format"
    UNSTABLE_OFFSET_COMMIT = 88, _R.RETRY, "a transaction that commits this offset is not complete yet"
    PRODUCER_FENCED = 90, _R.FATAL, "a newer producer has this transactional id, or the transaction timed out"
    UNKNOWN_TOPIC_ID = 100, _R.REFRESH, "the topic with this id was deleted, or is not known yet"
    TRANSACTIONAL_ID_NOT_FOUND = 105, _R.RAISE, "no such transactional id"
    FETCH_SESSION_TOPIC_ID_ERROR = 106, _R.RETRY, "a fetch session names topics by names or by ids, not both"
    FENCED_MEMBER_EPOCH = (
        110,
        _R.ABORT,
        "the member's epoch was fenced: it must give up its partitions and join again",
    )
    UNRELEASED_INSTANCE_ID = 111, _R.RETRY, "another member with this instance id has not left yet"
    UNSUPPORTED_ASSIGNOR = 112, _R.FATAL, "the broker does not have this assignor"
    STALE_MEMBER_EPOCH = 113, _R.ABORT, "the member's epoch is not the current one"
    # Clients from before KIP-890 get INVALID_TXN_STATE in its place, which is fatal to them.
    TRANSACTION_ABORTABLE = 120, _R.ABORT, "the transaction cannot continue and must be aborted"
    INVALID_REGULAR_EXPRESSION = 128, _R.RAISE, "the broker cannot parse the regular expression"


# A module constant, since enum members are looked up in Python until 3.12, and this one at every step.
NO_ERROR: Final = ErrorCode.NONE


class FencepostError(Exception):
    """Parent of every error that Fencepost raises on purpose."""


class Unusable(FencepostError):
    """A file, a directory or a package that the user must provide is missing or wrong; nothing was done."""


class ProtocolViolation(FencepostError):
    """The bytes are not a message, frame or batch of this protocol; the connection that sent them is
    closed.
    """
