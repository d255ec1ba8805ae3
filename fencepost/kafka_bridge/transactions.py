"""The requests of transactional producers, and questions about transactions.

Rule: an error of the whole request is an error of each of its partitions where the response has no other
place for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from fencepost.kafka_bridge.exchange import Answer, Exchange, Values, explained, nested, of_each, one
from fencepost.kafka_bridge.wire import milliseconds
from fencepost.protocol import messages as m
from fencepost.protocol import refusals
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.terms import (
    NO_GENERATION,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TopicPartition,
    TransactionResult,
)

FIRST_BATCHED_ADD_PARTITIONS: Final = 4
ERRORS_OF_ALL: Final = frozenset({ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.UNSUPPORTED_VERSION})
"""Those of an AddPartitionsToTxn as a whole, since it has a field for them."""


def partition_errors(asked: Iterable[TopicPartition], answer: Answer) -> Sequence[m.PartitionError]:
    """The result of each partition."""
    return of_each(answer, "partitions", asked, refusals.refused_partition)


def error_values(part: m.PartitionError) -> Values:
    """The result of a partition in most responses."""
    return {"partition_index": part.partition, "error_code": part.error}


def init_producer_id(request: Any, _: int) -> Exchange:
    asked = m.InitProducerId(
        transactional_id=request.transactional_id,
        transaction_timeout_ms=milliseconds(request.transaction_timeout),
        producer_id=getattr(request, "producer_id", NO_PRODUCER_ID),
        producer_epoch=getattr(request, "producer_epoch", NO_PRODUCER_EPOCH),
    )
    return one(asked, _identity_values)


def _identity_values(answer: Answer) -> Values:
    granted = answer.body
    return {
        "throttle_time": 0,
        "error_code": answer.error,
        "producer_id": NO_PRODUCER_ID if granted is None else granted.producer_id,
        "producer_epoch": NO_PRODUCER_EPOCH if granted is None else granted.producer_epoch,
    }


def add_partitions_to_txn(request: Any, version: int) -> Exchange:
    """Add partitions to a transaction; since version 4, to several, as brokers do (KIP-890)."""
    if version >= FIRST_BATCHED_ADD_PARTITIONS:
        return _add_partitions_of_several(request)
    parts = _partitions_of(request.v3_and_below_topics)
    asked = m.AddPartitionsToTxn(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        verify_only=False,
        partitions=parts,
    )

    def respond(answer: Answer) -> Values:
        return {"throttle_time": 0, "results_by_topic_v3_and_below": _added(parts, answer)}

    return one(asked, respond)


def _add_partitions_of_several(request: Any) -> Exchange:
    asked = tuple(
        m.AddPartitionsToTxn(
            transactional_id=each.transactional_id,
            producer_id=each.producer_id,
            producer_epoch=each.producer_epoch,
            verify_only=each.verify_only,
            partitions=_partitions_of(each.topics),
        )
        for each in request.transactions
    )

    def respond(answers: Sequence[Answer]) -> Values:
        # These two concern the sender or the cluster and not a transaction: the first of them speaks for all.
        of_all = next((answer.error for answer in answers if answer.error in ERRORS_OF_ALL), NO_ERROR)
        results = [
            {"transactional_id": each.transactional_id, "topic_results": _added(each.partitions, answer)}
            for each, answer in zip(asked, answers, strict=True)
        ]
        return {
            "throttle_time": 0,
            "error_code": of_all,
            "results_by_transaction": results if of_all is NO_ERROR else [],
        }

    return Exchange(asked, respond)


def _partitions_of(topics: Iterable[Any]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic.name, partition) for topic in topics for partition in topic.partitions)


def _added(parts: Iterable[TopicPartition], answer: Answer) -> list[Values]:
    return nested(
        partition_errors(parts, answer),
        lambda part: {"partition_index": part.partition, "partition_error_code": part.error},
        partitions="results_by_partition",
    )


def add_offsets_to_txn(request: Any, _: int) -> Exchange:
    """Add a group's offsets to a transaction."""
    asked = m.AddOffsetsToTxn(
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        group_id=request.group_id,
    )
    return one(asked, lambda answer: {"throttle_time": 0, "error_code": answer.error})


def end_txn(request: Any, _: int) -> Exchange:
    """End a transaction. Only the reply of version 5 has an identity: that of the next one (KIP-890)."""
    asked = m.EndTxn(
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        result=TransactionResult.COMMIT if request.committed else TransactionResult.ABORT,
    )
    return one(asked, _identity_values)


def offsets_to_commit(request: Any) -> tuple[m.OffsetToCommit, ...]:
    return tuple(
        m.OffsetToCommit(
            topic=topic.name,
            partition=part.partition_index,
            offset=part.committed_offset,
            leader_epoch=getattr(part, "committed_leader_epoch", NO_LEADER_EPOCH),
            # Kafka stores null as an empty text, too (OffsetAndMetadata.fromRequest).
            metadata=part.committed_metadata or "",
        )
        for topic in request.topics
        for part in topic.partitions
    )


def committed(offsets: Iterable[m.OffsetToCommit], answer: Answer) -> Values:
    """The response to an OffsetCommit or TxnOffsetCommit."""
    asked = [TopicPartition(each.topic, each.partition) for each in offsets]
    return {"throttle_time": 0, "topics": nested(partition_errors(asked, answer), error_values)}


def txn_offset_commit(request: Any, _: int) -> Exchange:
    """Commit offsets as part of a transaction."""
    offsets = offsets_to_commit(request)
    asked = m.TxnOffsetCommit(
        transactional_id=request.transactional_id,
        group_id=request.group_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        # Before version 3 a client cannot say who it is in its group, so a member that was replaced is not
        # fenced (KIP-447).
        generation_id=getattr(request, "generation_id", NO_GENERATION),
        member_id=getattr(request, "member_id", ""),
        group_instance_id=getattr(request, "group_instance_id", None),
        offsets=offsets,
    )
    return one(asked, lambda answer: committed(offsets, answer))


def describe_producers(request: Any, _: int) -> Exchange:
    """List the producers that a partition leader remembers (KIP-664)."""
    parts = tuple(
        TopicPartition(topic.name, partition)
        for topic in request.topics
        for partition in topic.partition_indexes
    )

    def respond(answer: Answer) -> Values:
        described = of_each(answer, "partitions", parts, refusals.producers_not_described)
        return {"throttle_time": 0, "topics": nested(described, _producers)}

    return one(m.DescribeProducers(partitions=parts), respond)


def _producers(part: m.DescribedProducers) -> Values:
    return {
        "partition_index": part.partition,
        **explained(part.error),
        "active_producers": [
            {
                "producer_id": each.producer_id,
                "producer_epoch": each.producer_epoch,
                "last_sequence": each.last_sequence,
                "last_timestamp": each.last_timestamp,
                "coordinator_epoch": each.coordinator_epoch,
                "current_txn_start_offset": each.open_since_offset,
            }
            for each in part.producers
        ],
    }


def describe_transactions(request: Any, _: int) -> Exchange:
    """Describe the current transaction of each transactional id (KIP-664)."""
    names = tuple(request.transactional_ids)

    def respond(answer: Answer) -> Values:
        described = of_each(answer, "transactions", names, refusals.transaction_not_described)
        return {"throttle_time": 0, "transaction_states": [_transaction(each) for each in described]}

    return one(m.DescribeTransactions(transactional_ids=names), respond)


# Kafka's schema has no other defaults.
_UNDESCRIBED: Final[Values] = {
    "transaction_state": "",
    "transaction_timeout": 0,
    "transaction_start_time": 0,
    "producer_id": 0,
    "producer_epoch": 0,
    "topics": (),
}
"""The fields of an entry with an error."""


def _transaction(described: m.TransactionDescription) -> Values:
    if described.error is not NO_ERROR:
        return {"error_code": described.error, "transactional_id": described.transactional_id, **_UNDESCRIBED}
    return {
        "error_code": NO_ERROR,
        "transactional_id": described.transactional_id,
        "transaction_state": described.state.title,
        "transaction_timeout": described.timeout_ms,
        "transaction_start_time": described.start_ms,
        "producer_id": described.producer_id,
        "producer_epoch": described.producer_epoch,
        "topics": nested(described.partitions, lambda part: part.partition, name="topic"),
    }


def list_transactions(request: Any, _: int) -> Exchange:
    """List the transactions of this coordinator (KIP-664, KIP-994, KIP-1152)."""
    asked = m.ListTransactions(
        states=tuple(request.state_filters),
        producer_ids=tuple(request.producer_id_filters),
        duration_ms=getattr(request, "duration_filter", -1),  # -1: any
        transactional_id_pattern=getattr(request, "transactional_id_pattern", None),
    )

    def respond(answer: Answer) -> Values:
        body = answer.body or m.ListTransactionsReply(unknown_states=(), transactions=())
        return {
            "throttle_time": 0,
            "error_code": answer.error,
            "unknown_state_filters": body.unknown_states,
            "transaction_states": [
                {
                    "transactional_id": each.transactional_id,
                    "producer_id": each.producer_id,
                    "transaction_state": each.state.title,
                }
                for each in body.transactions
            ],
        }

    return one(asked, respond)


def write_txn_markers(request: Any, _: int) -> Exchange:
    """Append markers, as a transaction coordinator would; an administrator aborts with it (KIP-664)."""
    asked = m.WriteTxnMarkers(
        markers=tuple(
            m.TransactionMarker(
                producer_id=each.producer_id,
                producer_epoch=each.producer_epoch,
                result=TransactionResult.COMMIT if each.transaction_result else TransactionResult.ABORT,
                coordinator_epoch=each.coordinator_epoch,
                # Only version 2 says it (KIP-1228). A marker of version 0 is judged by the older, weaker rule
                # for epochs.
                transaction_version=getattr(each, "transaction_version", 0),
                partitions=tuple(
                    TopicPartition(topic.name, partition)
                    for topic in each.topics
                    for partition in topic.partition_indexes
                ),
            )
            for each in request.markers
        )
    )

    return one(asked, lambda answer: _written(asked.markers, answer))


def _written(markers: Sequence[m.TransactionMarker], answer: Answer) -> Values:
    return {
        "markers": [
            {"producer_id": marker.producer_id, "topics": nested(marker.partitions, error_values)}
            for marker in of_each(answer, "markers", markers, _not_written)
        ]
    }


def _not_written(marker: m.TransactionMarker, error: ErrorCode) -> m.WrittenMarker:
    refused = partition_errors(marker.partitions, Answer(error, None))
    return m.WrittenMarker(producer_id=marker.producer_id, partitions=tuple(refused))
