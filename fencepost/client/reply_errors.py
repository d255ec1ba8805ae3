"""What an error in a reply means: the first error inside a reply, and the remedy of the sender.

Rule: no handler compares codes. The error table of the protocol names the remedy; `REMEDIES` holds the few
exceptions that depend on the request, each with its reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Final

from fencepost.protocol import messages as m
from fencepost.protocol.errors import NO_ERROR, ErrorCode, Remedy
from fencepost.protocol.messages import ReplyBody, Request

_E = ErrorCode

# A lost connection may mean that the leader has moved: the next attempt looks it up first.
_ANY_REQUEST: Final[dict[ErrorCode, Remedy]] = {
    _E.NETWORK_EXCEPTION: Remedy.REFRESH,
    _E.REQUEST_TIMED_OUT: Remedy.REFRESH,
}

REMEDIES: Final[dict[tuple[type[Request], ErrorCode], Remedy]] = {
    # A rejected batch makes its transaction abortable and keeps the producer (Sender.canRetry,
    # TransactionManager.handleFailedBatch). A fatal error shows at EndTxn, at the coordinator.
    (m.Produce, _E.UNKNOWN_SERVER_ERROR): Remedy.ABORT,
    (m.Produce, _E.INVALID_REQUEST): Remedy.ABORT,
    (m.Produce, _E.INVALID_TXN_STATE): Remedy.ABORT,
    (m.Produce, _E.INVALID_PRODUCER_ID_MAPPING): Remedy.ABORT,
    # "Older epoch" from the coordinator, not from a partition, means: fenced
    # (TransactionManager.handleResponse converts 47 to 90).
    (m.InitProducerId, _E.INVALID_PRODUCER_EPOCH): Remedy.FATAL,
    (m.EndTxn, _E.INVALID_PRODUCER_EPOCH): Remedy.FATAL,
    (m.AddPartitionsToTxn, _E.INVALID_PRODUCER_EPOCH): Remedy.FATAL,
    (m.AddOffsetsToTxn, _E.INVALID_PRODUCER_EPOCH): Remedy.FATAL,
    # With an epoch per transaction, a commit gets this after the coordinator has timed the transaction out.
    # An abort then succeeds and returns the next identity (KIP-890 part 2, recorded from Apache Kafka 4.3.1).
    (m.EndTxn, _E.INVALID_TXN_STATE): Remedy.ABORT,
    # GroupMember joins again with the member id in the reply (KIP-394).
    (m.JoinGroup, _E.MEMBER_ID_REQUIRED): Remedy.RAISE,
    # INVALID_TXN_STATE stays fatal for a TxnOffsetCommit, as in Kafka ("Unexpected error" in its
    # TxnOffsetCommitHandler): the coordinator has timed the transaction out while the commit was on its way.
    # A new producer continues from the committed offsets. A Produce in the same race is abortable, see above.
    #
    # Another member has the instance id: these offsets cannot be committed, but the producer can continue
    # (TransactionManager.TxnOffsetCommitHandler).
    (m.TxnOffsetCommit, _E.FENCED_INSTANCE_ID): Remedy.ABORT,
    # A consumer retries unknown errors of a fetch, because another read is harmless (FetchCollector).
    (m.Fetch, _E.UNKNOWN_SERVER_ERROR): Remedy.RETRY,
    (m.TxnOffsetCommit, _E.OFFSET_METADATA_TOO_LARGE): Remedy.ABORT,
    # For an admin "unknown" is an answer; only producers and consumers wait for a topic that is being
    # created.
    (m.Metadata, _E.UNKNOWN_TOPIC_OR_PARTITION): Remedy.RAISE,
    (m.DeleteTopics, _E.UNKNOWN_TOPIC_OR_PARTITION): Remedy.RAISE,
    (m.IncrementalAlterConfigs, _E.UNKNOWN_TOPIC_OR_PARTITION): Remedy.RAISE,
    (m.CreatePartitions, _E.UNKNOWN_TOPIC_OR_PARTITION): Remedy.RAISE,
    (m.DescribeConfigs, _E.UNKNOWN_TOPIC_OR_PARTITION): Remedy.RAISE,
    (m.DescribeProducers, _E.UNKNOWN_TOPIC_OR_PARTITION): Remedy.RAISE,
    (m.DeleteRecords, _E.UNKNOWN_TOPIC_OR_PARTITION): Remedy.RAISE,
    (m.OffsetDelete, _E.UNKNOWN_TOPIC_OR_PARTITION): Remedy.RAISE,
    (m.OffsetCommit, _E.UNKNOWN_TOPIC_OR_PARTITION): Remedy.RAISE,
    (m.OffsetFetch, _E.UNKNOWN_TOPIC_OR_PARTITION): Remedy.RAISE,
}


# "no such topic" alone does not say which one: these read as "topic 'nope' does not exist".
_NOT_FOUND: Final = frozenset(
    {_E.UNKNOWN_TOPIC_OR_PARTITION, _E.TRANSACTIONAL_ID_NOT_FOUND, _E.GROUP_ID_NOT_FOUND}
)


def remedy_of(request: type[Request], error: ErrorCode) -> Remedy:
    """What the sender of `request` does about `error`."""
    found = REMEDIES.get((request, error)) or _ANY_REQUEST.get(error)
    return error.remedy if found is None else found


def worst_error(body: ReplyBody) -> tuple[ErrorCode, str]:
    """The first error among the parts of a reply, and a sentence about it: the broker's, or one of ours."""
    for part in _parts(body):
        error = getattr(part, "error", NO_ERROR)
        if error is not NO_ERROR:
            return error, getattr(part, "because", "") or _sentence(error, part)
    return NO_ERROR, ""


CLUSTER_RIGHTS: Final[dict[type[Request], str]] = {
    m.AddFaults: "Alter",
    m.AlterPartitionReassignments: "Alter",
    m.BrokerStatus: "Describe",
    m.DescribeAcls: "Describe",
    m.DescribeConfigs: "DescribeConfigs",
    m.ElectLeaders: "Alter",
    m.Follow: "ClusterAction",
    m.IncrementalAlterConfigs: "AlterConfigs",
    m.InitProducerId: "IdempotentWrite",
    m.ListFaults: "Describe",
    m.ListPartitionReassignments: "Describe",
    m.RemoveFaults: "Alter",
    m.WriteTxnMarkers: "Alter",
}
"""The operation on the cluster that a request of a client needs."""


def explanation(request: Request, error: ErrorCode) -> str:
    """What an error of the whole reply means for this request, if that is more than the error's own
    sentence: the group that does not exist, or the right that is missing.
    """
    if error is _E.GROUP_ID_NOT_FOUND:
        return _sentence(error, request)
    right = CLUSTER_RIGHTS.get(type(request))
    if error is _E.CLUSTER_AUTHORIZATION_FAILED and right is not None:
        return f"not authorized for {right} on the cluster"
    return ""


def _parts(body: ReplyBody) -> Iterator[object]:
    if isinstance(body, m.WriteTxnMarkersReply):
        for marker in body.markers:
            yield from marker.partitions
    for name in _fields_of_parts(type(body)):
        yield from getattr(body, name)


@cache
def _fields_of_parts(kind: type[ReplyBody]) -> tuple[str, ...]:
    names = ("partitions", "topics", "offsets", "transactions", "groups", "faults")
    return tuple(name for name in names if hasattr(kind, name))


def _sentence(error: ErrorCode, part: object) -> str:
    subject = _subject_of(part)
    return f"{subject} does not exist" if error in _NOT_FOUND else f"{subject}: {error.meaning}"


def _subject_of(part: object) -> str:
    """The object of one part of a reply: a transactional id, a group, a topic, or a partition."""
    number = getattr(part, "partition", None)
    for name in ("transactional_id", "group_id", "topic"):
        found = getattr(part, name, None)
        if found is not None:
            kind = name.removesuffix("_id").replace("transactional", "transactional id")
            return f"{kind} {found!r}" if number is None else f"partition {found}-{number}"
    raise AssertionError(f"{part} has an error and no name")
