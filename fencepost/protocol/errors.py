"""The error table: Kafka's codes and names, what a client does about each, and whether the request had no
effect.

Rule: clients `match error.remedy` instead of comparing codes, and docs print the table.
"""

# `definite` says whether a refused request surely changed nothing. It decides what a lost commit is called:
# after NETWORK_EXCEPTION the coordinator may have committed, so the outcome is unknown; after PRODUCER_FENCED
# it has not. `error is NO_ERROR` is the test for success: a member of an IntEnum is looked up in Python until
# 3.12, and one that is NONE is also falsy, which reads like a missing error.

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final

import attrs


class Remedy(Enum):
    """What the caller does next."""

    NONE = "nothing: it succeeded"
    RETRY = "send it again after a pause"
    REFRESH = "find the leader or coordinator again, then send it again"
    ABORT = "abort this transaction; the producer can go on"
    FATAL = "this producer is done: close it"
    RAISE = "report it to the caller: a retry will not help"


class ErrorCode(IntEnum):
    """Kafka's error codes that Fencepost knows (org.apache.kafka.common.protocol.Errors)."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    NOT_ENOUGH_REPLICAS = 19
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    UNKNOWN_PRODUCER_ID = 59
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    PRODUCER_FENCED = 90
    TRANSACTIONAL_ID_NOT_FOUND = 105
    TRANSACTION_ABORTABLE = 120

    @property
    def remedy(self) -> Remedy:
        """What the caller does next."""
        return ERRORS[self].remedy

    @property
    def definite(self) -> bool:
        """True when the request had no effect; False when it may have had one."""
        return ERRORS[self].definite

    @property
    def meaning(self) -> str:
        """One sentence for people."""
        return ERRORS[self].meaning


@attrs.frozen
class ErrorRow:
    """One line of the error table."""

    remedy: Remedy
    definite: bool = attrs.field(kw_only=True)
    meaning: str = attrs.field(kw_only=True)


def _row(remedy: Remedy, meaning: str, *, definite: bool = True) -> ErrorRow:
    return ErrorRow(remedy, definite=definite, meaning=meaning)


_E = ErrorCode
_R = Remedy

ERRORS: dict[ErrorCode, ErrorRow] = {
    _E.UNKNOWN_SERVER_ERROR: _row(_R.FATAL, "the broker failed in a way it does not explain", definite=False),
    _E.NONE: _row(_R.NONE, "success"),
    _E.OFFSET_OUT_OF_RANGE: _row(_R.RAISE, "the offset is before the log start or beyond the log end"),
    _E.CORRUPT_MESSAGE: _row(_R.RETRY, "the checksum of the batch does not match its bytes"),
    _E.UNKNOWN_TOPIC_OR_PARTITION: _row(_R.REFRESH, "no such topic or partition"),
    _E.LEADER_NOT_AVAILABLE: _row(_R.REFRESH, "the partition has no leader now"),
    # A leader that is replaced answers so for batches that it has written and that the next leader may keep.
    # The same goes for NOT_COORDINATOR and a decision.
    _E.NOT_LEADER_OR_FOLLOWER: _row(_R.REFRESH, "this node does not lead the partition", definite=False),
    _E.REQUEST_TIMED_OUT: _row(_R.RETRY, "no answer in time", definite=False),
    _E.MESSAGE_TOO_LARGE: _row(_R.ABORT, "the batch is larger than the broker takes"),
    _E.OFFSET_METADATA_TOO_LARGE: _row(_R.RAISE, "the metadata string beside an offset is too long"),
    # No broker sends this one: the client makes it when the connection ends before the reply.
    _E.NETWORK_EXCEPTION: _row(_R.RETRY, "the connection was lost before the answer came", definite=False),
    _E.COORDINATOR_LOAD_IN_PROGRESS: _row(_R.RETRY, "the coordinator is still reading its log"),
    _E.COORDINATOR_NOT_AVAILABLE: _row(_R.REFRESH, "there is no coordinator now"),
    _E.NOT_COORDINATOR: _row(_R.REFRESH, "this node does not coordinate that id", definite=False),
    _E.INVALID_TOPIC_EXCEPTION: _row(_R.RAISE, "the topic's name is not allowed"),
    _E.NOT_ENOUGH_REPLICAS: _row(_R.RETRY, "the partition cannot take the batch yet"),
    _E.INVALID_REQUIRED_ACKS: _row(_R.RAISE, "acks must be 0, 1 or -1"),
    _E.ILLEGAL_GENERATION: _row(_R.ABORT, "the group has moved on to another generation"),
    _E.INCONSISTENT_GROUP_PROTOCOL: _row(_R.RAISE, "the group assigns partitions in another way"),
    _E.INVALID_GROUP_ID: _row(_R.RAISE, "a group needs a name"),
    _E.UNKNOWN_MEMBER_ID: _row(_R.ABORT, "the group does not know this member"),
    _E.INVALID_SESSION_TIMEOUT: _row(_R.RAISE, "the session timeout is beyond the broker's bounds"),
    _E.REBALANCE_IN_PROGRESS: _row(_R.ABORT, "the group's next generation is being made: join again"),
    _E.TOPIC_AUTHORIZATION_FAILED: _row(_R.ABORT, "only the broker's own requests may name this topic"),
    _E.UNSUPPORTED_VERSION: _row(_R.FATAL, "the broker does not speak this version of the request"),
    _E.TOPIC_ALREADY_EXISTS: _row(_R.RAISE, "a topic of that name exists"),
    _E.INVALID_PARTITIONS: _row(_R.RAISE, "the number of partitions is not allowed"),
    _E.INVALID_CONFIG: _row(_R.RAISE, "no such setting, or not with this value"),
    _E.INVALID_REQUEST: _row(_R.FATAL, "the request contradicts itself"),
    _E.OUT_OF_ORDER_SEQUENCE_NUMBER: _row(_R.ABORT, "a batch before this one is missing"),
    # A success: the batch is in the log. Kafka's Sender, too, completes it without an offset.
    _E.DUPLICATE_SEQUENCE_NUMBER: _row(_R.NONE, "the batch was stored before; its offset is forgotten"),
    # Not fatal, unlike PRODUCER_FENCED: a partition cannot know whether the producer was replaced or its
    # transaction only timed out. The producer aborts, and its coordinator decides (KIP-588).
    _E.INVALID_PRODUCER_EPOCH: _row(_R.ABORT, "the epoch is older than one the partition has seen"),
    _E.INVALID_TXN_STATE: _row(_R.FATAL, "the transaction is not in a state that allows this"),
    _E.INVALID_PRODUCER_ID_MAPPING: _row(_R.FATAL, "the transactional id belongs to another producer id"),
    _E.INVALID_TRANSACTION_TIMEOUT: _row(_R.FATAL, "the timeout is not between 1 and the broker's maximum"),
    # The coordinator still writes the markers of the previous transaction: a matter of milliseconds.
    _E.CONCURRENT_TRANSACTIONS: _row(_R.RETRY, "the previous step of this id is still being finished"),
    _E.TRANSACTION_COORDINATOR_FENCED: _row(_R.RAISE, "the marker is from a coordinator that was replaced"),
    _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _row(_R.FATAL, "transactional batch without its id"),
    # AddPartitionsToTxn adds all of its partitions or none.
    _E.OPERATION_NOT_ATTEMPTED: _row(_R.ABORT, "another partition of the same request failed"),
    # The failed write may have reached the disk, and the next recovery may keep it.
    _E.KAFKA_STORAGE_ERROR: _row(_R.REFRESH, "the broker's disk failed", definite=False),
    # The producer goes on under a new epoch with sequence 0 (KIP-360).
    _E.UNKNOWN_PRODUCER_ID: _row(_R.ABORT, "the partition has forgotten the producer"),
    _E.NON_EMPTY_GROUP: _row(_R.RAISE, "the group has members"),
    _E.GROUP_ID_NOT_FOUND: _row(_R.RAISE, "no such group"),
    _E.FENCED_LEADER_EPOCH: _row(_R.REFRESH, "the reader knows of an older leadership than this leader's"),
    _E.UNKNOWN_LEADER_EPOCH: _row(_R.REFRESH, "the reader knows of a newer leadership than this leader"),
    _E.OFFSET_NOT_AVAILABLE: _row(_R.RETRY, "the new leader does not know its end yet"),
    _E.MEMBER_ID_REQUIRED: _row(_R.RETRY, "here is an id: join again with it"),
    _E.GROUP_MAX_SIZE_REACHED: _row(_R.RAISE, "the group has as many members as the broker allows"),
    _E.FENCED_INSTANCE_ID: _row(_R.FATAL, "another member has taken over this instance id"),
    _E.GROUP_SUBSCRIBED_TO_TOPIC: _row(_R.RAISE, "a member of the group reads the topic"),
    _E.INVALID_RECORD: _row(_R.ABORT, "the batch breaks a rule of its format"),
    _E.UNSTABLE_OFFSET_COMMIT: _row(_R.RETRY, "a transaction that moves this offset is not decided yet"),
    _E.PRODUCER_FENCED: _row(_R.FATAL, "a newer producer with the same transactional id took over"),
    _E.TRANSACTIONAL_ID_NOT_FOUND: _row(_R.RAISE, "no such transactional id"),
    # Clients from before KIP-890 get INVALID_TXN_STATE in its place, which is fatal to them.
    _E.TRANSACTION_ABORTABLE: _row(_R.ABORT, "the transaction cannot go on and must be aborted"),
}


# A module constant, since enum members are looked up in Python until 3.12, and this one at every step.
NO_ERROR: Final = ErrorCode.NONE


class FencepostError(Exception):
    """Parent of every error that Fencepost raises on purpose."""


class ProtocolViolation(FencepostError):
    """The bytes are not a message, frame or batch of this protocol; the connection that sent them is
    closed.
    """


class BrokerError(FencepostError):
    """The broker refused a request; `error` is its row of the error table."""

    def __init__(self, error: ErrorCode, because: str = "") -> None:
        super().__init__(f"{error.name}: {because or error.meaning}")
        self.error = error
        self.because = because
