"""What to do about an error, where the request it answers
matters: the error table first, then these few exceptions.

Rule: no handler compares codes; all `match remedy_of(request,
error)`. Each exception below says why it is one.
"""

from __future__ import annotations

from typing import Final

from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode, Remedy
from fencepost.protocol.messages import Request

_E = ErrorCode

# A lost connection tells nothing about who leads now: the next try asks first (every request alike).
_ANY_REQUEST: Final[dict[ErrorCode, Remedy]] = {
    _E.NETWORK_EXCEPTION: Remedy.REFRESH,
    _E.REQUEST_TIMED_OUT: Remedy.REFRESH,
}

REMEDIES: Final[dict[tuple[type[Request], ErrorCode], Remedy]] = {
    # A refused batch spoils its transaction, not the producer (Sender.canRetry,
    # TransactionManager.handleFailedBatch):
    # what is fatal shows at EndTxn, which asks the coordinator.
    (m.Produce, _E.UNKNOWN_SERVER_ERROR): Remedy.ABORT,
    (m.Produce, _E.INVALID_REQUEST): Remedy.ABORT,
    (m.Produce, _E.INVALID_TXN_STATE): Remedy.ABORT,
    (m.Produce, _E.INVALID_PRODUCER_ID_MAPPING): Remedy.ABORT,
    # The coordinator itself saying "older epoch" means: fenced
    # (TransactionManager.handleResponse converts 47 to 90).
    (m.InitProducerId, _E.INVALID_PRODUCER_EPOCH): Remedy.FATAL,
    (m.EndTxn, _E.INVALID_PRODUCER_EPOCH): Remedy.FATAL,
    (m.AddPartitionsToTxn, _E.INVALID_PRODUCER_EPOCH): Remedy.FATAL,
    (m.AddOffsetsToTxn, _E.INVALID_PRODUCER_EPOCH): Remedy.FATAL,
    # With an epoch per transaction a commit finds this when the coordinator timed the transaction out, and an
    # abort
    # then succeeds and gives the next identity (KIP-890 part 2, recorded from Apache Kafka 4.3.1).
    (m.EndTxn, _E.INVALID_TXN_STATE): Remedy.ABORT,
    # A member joins again by itself, under the id that the answer gives it (KIP-394).
    (m.JoinGroup, _E.MEMBER_ID_REQUIRED): Remedy.RAISE,
    # Another member took the instance id: its offsets are not ours to commit, but the producer can go on
    # (TransactionManager.TxnOffsetCommitHandler).
    (m.TxnOffsetCommit, _E.FENCED_INSTANCE_ID): Remedy.ABORT,
    # A reader comes back to the log's own range by auto_offset_reset, not by asking again.
    (m.Fetch, _E.UNKNOWN_SERVER_ERROR): Remedy.RETRY,
    (m.TxnOffsetCommit, _E.OFFSET_METADATA_TOO_LARGE): Remedy.ABORT,
    # For plain calls "unknown" is an answer; only producers and readers wait for a topic that is being made.
    (m.Metadata, _E.UNKNOWN_TOPIC_OR_PARTITION): Remedy.RAISE,
    (m.DeleteTopics, _E.UNKNOWN_TOPIC_OR_PARTITION): Remedy.RAISE,
    (m.DescribeProducers, _E.UNKNOWN_TOPIC_OR_PARTITION): Remedy.RAISE,
    (m.DeleteRecords, _E.UNKNOWN_TOPIC_OR_PARTITION): Remedy.RAISE,
    (m.OffsetDelete, _E.UNKNOWN_TOPIC_OR_PARTITION): Remedy.RAISE,
    (m.OffsetCommit, _E.UNKNOWN_TOPIC_OR_PARTITION): Remedy.RAISE,
    (m.OffsetFetch, _E.UNKNOWN_TOPIC_OR_PARTITION): Remedy.RAISE,
}


def remedy_of(request: type[Request], error: ErrorCode) -> Remedy:
    """What the one who sent `request` does about `error`."""
    found = REMEDIES.get((request, error)) or _ANY_REQUEST.get(error)
    return error.remedy if found is None else found
