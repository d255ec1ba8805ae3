"""The exceptions of the clients: one class per next step of the caller, each with a sentence that names it.

Rule: machines keep failures as values (`Failure`), shells raise them. An unknown outcome is never reported as
a failure.
"""

# A message has two parts, "<object and cause> (<ERROR_CODE>). <next step>". The first part is `because` and
# depends on the case; the second is `advice` and depends on the class, because a program branches on that,
# and in a few rows also on the error code. Kafka's exceptions are grouped in the same way since KIP-1050:
# retriable errors never leave the client, abortable ones raise TransactionAborted, fatal ones ProducerFenced
# or ProducerFailed.

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Final

import attrs

from fencepost.protocol.errors import NO_ERROR, ErrorCode, FencepostError
from fencepost.protocol.terms import TopicPartition


class ClientError(FencepostError):
    """Parent of a client's exceptions; `error` is the broker's error code, NONE if no broker answered."""

    advice: ClassVar[str] = ""
    """The next step of the program, with which the message ends."""

    def __init__(self, because: str, error: ErrorCode = NO_ERROR) -> None:
        advice = _ADVICE_BY_ERROR.get((type(self), error), self.advice)
        super().__init__(f"{because}. {advice}" if advice else because)
        self.because = because
        """What happened, and to what, without the advice."""
        self.error = error


class WrongState(ClientError):
    """The client does not allow this call in its present state; nothing was sent and nothing changed."""


class ClientClosed(WrongState):
    """The client was closed before or during the call; in the latter case, a request may have been sent. Or
    a forked process uses a client of its parent.
    """

    advice = "Create a new client"


class BufferFull(ClientError):
    """`buffer_memory` is full; the record was not accepted."""

    advice = "Call send(), which waits for room, or flush()"


class RecordTooLarge(ClientError):
    """The record is larger than this producer can ever send; it was not accepted."""

    advice = "Split the record, or store the data elsewhere and send a reference"


_ABORT: Final = "Call abort_transaction(), unless a `with` block has done so"


class TransactionAborted(ClientError):
    """A part of the transaction failed, so it cannot commit; read_committed never shows its records."""

    advice = f"{_ABORT}; then repeat the transaction"


class ProducerFenced(ClientError):
    """The coordinator has given a newer epoch to this transactional id and aborted its open transaction: for
    a newer producer, or because the transaction lasted longer than `transaction_timeout_ms`.
    """

    advice = "Close this producer; the newer one continues. If there is none, create one"


class ProducerFailed(ClientError):
    """The producer hit a fatal error and cannot continue."""

    advice = "Close it and create a new one, whose init_transactions() ends the open transaction"


class CommitOutcomeUnknown(ClientError):
    """The commit request was sent, but its reply is missing: the transaction is committed or aborted."""

    advice = (
        "Close this producer and call init_transactions() on a new one with the same transactional id: it "
        "waits until the transaction is decided; then the committed offsets or the output show the result"
    )


class DeliveryTimeout(ClientError):
    """No acknowledgement arrived within `delivery_timeout_ms`; the record may or may not be in the log."""

    advice = "In a transaction, abort it; otherwise read the log to see whether the record was stored"


class DeliveryFailed(ClientError):
    """The broker rejected the batch that contains this record, or the batch's partition is gone."""

    advice = "In a transaction, abort it; otherwise fix the cause above, then resend the record"


class RequestTimeout(ClientError):
    """The call did not finish in time; the same call continues to wait for the same request."""

    advice = "Call again to keep waiting; if no broker answered, check that one runs at its address"


class UnknownTopic(ClientError):
    """The topic or partition does not exist."""

    advice = "Use an existing topic, or create this one with Admin.create_topic()"


class OffsetOutOfRange(ClientError):
    """The position is before the log start or after the log end, or the log has lost records before it, and
    `auto_offset_reset` is "none".
    """

    advice = 'seek() to an existing offset, or set auto_offset_reset="earliest" or "latest"'


class CommitFailed(ClientError):
    """This consumer is no longer a member of the group's generation; nothing was committed, and other members
    may already read its partitions.
    """

    advice = "Discard what was read since the last commit; poll() rejoins the group"


class RebalanceInProgress(ClientError):
    """The group is between two generations; the coordinator accepts commits of neither."""

    advice = "Call poll() until the rebalance has ended, then commit the partitions that are still assigned"


class FencedInstanceId(ClientError):
    """Another consumer with the same `group_instance_id` has replaced this one in the group."""

    advice = "Close this consumer, and give each process its own group_instance_id"


class CorruptRecords(ClientError):
    """The bytes at the position are not a valid batch, or their checksum is wrong."""

    advice = "Inspect the log with `fencepost dump`; seek() to a later offset skips the damaged batch"


class AuthenticationFailed(ClientError):
    """The broker refused the connection, or its certificate or its signature is not valid. Every call of this
    client raises it from now on.
    """

    advice = "Close this client, correct its security settings or the broker's, and create a new client"


class RequestFailed(ClientError):
    """The broker rejected the request; `error` is its error code."""

    advice = "Fix the cause above, then repeat the call"


class AuthorizationFailed(RequestFailed):
    """The broker's ACLs do not allow this; `error` says for which kind of resource."""

    advice = "Ask an administrator of the broker for an ACL entry that allows it; then create a new client"


_SPOILED: Final = (
    f"{_ABORT}: it raises ProducerFenced if a newer producer has this transactional id; otherwise the "
    "transaction has timed out, and can be repeated"
)
_SMALLER: Final = "smaller records, set a batch_size below max.message.bytes of the topic, or raise that"
_NAME: Final = "Choose another name, of up to 249 ASCII letters, digits, '.', '_' and '-'"
_MEMBERS: Final = "Stop the members of the group first; Admin.describe_consumer_group() shows them"
_TOPICS: Final = "Admin.list_topics() shows the topics"
_E = ErrorCode

_ADVICE_BY_ERROR: Final[dict[tuple[type[ClientError], ErrorCode], str]] = {
    # A partition cannot know whether the producer was replaced; only its coordinator does (KIP-588).
    (DeliveryFailed, _E.INVALID_PRODUCER_EPOCH): _SPOILED,
    (TransactionAborted, _E.INVALID_PRODUCER_EPOCH): _SPOILED,
    (DeliveryFailed, _E.MESSAGE_TOO_LARGE): f"Send {_SMALLER}",
    (TransactionAborted, _E.MESSAGE_TOO_LARGE): f"{_ABORT}; then repeat with {_SMALLER}",
    (DeliveryFailed, _E.UNKNOWN_TOPIC_OR_PARTITION): "Send the record again, to a partition that exists",
    (DeliveryFailed, _E.INVALID_RECORD): "A record of a compacted topic needs a key: send it with one",
    (ProducerFailed, _E.INVALID_TRANSACTION_TIMEOUT): "Close it and create one with a shorter "
    "transaction_timeout_ms, or raise transaction.max.timeout.ms of the broker",
    (ProducerFailed, _E.UNSUPPORTED_VERSION): "Close it and create one with transaction_version=0, unless "
    "Admin.transaction_version() of the cluster is 2",
    (UnknownTopic, _E.INVALID_TOPIC_EXCEPTION): _NAME,
    (UnknownTopic, _E.NONE): "Use an existing partition, or add partitions with Admin.create_partitions()",
    (RequestFailed, _E.INVALID_TOPIC_EXCEPTION): f"{_NAME}; internal topics belong to the broker",
    (RequestFailed, _E.UNKNOWN_TOPIC_OR_PARTITION): _TOPICS,
    (RequestFailed, _E.TOPIC_ALREADY_EXISTS): "Use the existing topic, or delete it first",
    (RequestFailed, _E.TRANSACTIONAL_ID_NOT_FOUND): "Admin.list_transactions() shows the transactional ids",
    (RequestFailed, _E.GROUP_ID_NOT_FOUND): "Admin.list_consumer_groups() shows the groups",
    (RequestFailed, _E.NON_EMPTY_GROUP): _MEMBERS,
    (RequestFailed, _E.GROUP_SUBSCRIBED_TO_TOPIC): _MEMBERS,
    (RequestFailed, _E.OFFSET_OUT_OF_RANGE): "Admin.beginning_offsets() and end_offsets() show the range",
}
"""The next step where that of the class would not help."""


@attrs.frozen
class Failure:
    """An error as a value: comparable and hashable. It becomes an exception when a shell raises it."""

    kind: type[ClientError]
    because: str = attrs.field(kw_only=True)
    error: ErrorCode = attrs.field(default=NO_ERROR, kw_only=True)

    def exception(self) -> ClientError:
        """A new exception: each waiting caller gets its own traceback."""
        return self.kind(self.because, self.error)


BELONGS_TO_PARENT: Final = Failure(
    ClientClosed, because="this client belongs to the parent of this forked process"
)
"""Of every call in a process that has inherited the client by a fork."""

AUTHORIZATION_ERRORS: Final = frozenset({
    ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
})  # fmt: skip


def unknown_topic(topic: str, error: ErrorCode) -> Failure:
    """The failure of a producer or consumer whose topic has this error in the cluster's metadata."""
    if error in AUTHORIZATION_ERRORS:
        return refused(AuthorizationFailed, error, f"topic {topic!r}")
    is_missing = error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    why = f"topic {topic!r} does not exist" if is_missing else f"topic {topic!r}: {error.meaning}"
    return Failure(UnknownTopic, because=f"{why} ({error.name})", error=error)


def unknown_partition(partition: TopicPartition, count: int) -> Failure:
    """The failure of a producer or consumer whose topic has `count` partitions, and not this one."""
    topic, number = partition
    existing = partitions_in_words(count)
    return Failure(UnknownTopic, because=f"topic {topic!r} has {existing}; there is no partition {number}")


def unknown_broker(broker_id: int, running: Iterable[int]) -> Failure:
    """The failure of a call to a broker that is not among the running ones."""
    others = ", ".join(map(str, sorted(running)))
    because = f"broker {broker_id} is not running; the running brokers are: {others}"
    return Failure(RequestFailed, because=because)


def partitions_in_words(count: int) -> str:
    """Such as `3 partitions (0 to 2)`."""
    return "1 partition (0)" if count == 1 else f"{count} partitions (0 to {count - 1})"


def refused(kind: type[ClientError], error: ErrorCode, what: str, because: str = "") -> Failure:
    """The failure for an error code in the reply to `what`; `because` is the broker's explanation, if any."""
    if kind is RequestFailed and error in AUTHORIZATION_ERRORS:
        kind = AuthorizationFailed
    return Failure(kind, because=f"{what}: {because or error.meaning} ({error.name})", error=error)
