"""Questions and answers in Kafka's own bytes, by kafka-python, which shares no code with the broker.

Rule: a pair of functions per request, as in speech.py: ask_* gives the fields of Kafka's request, read_* the
error and the body that our clients would have got.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Final, NamedTuple

from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.frames import ReplyFrame
from fencepost.protocol.messages import Request
from fencepost.protocol.terms import (
    NO_LEADER_EPOCH,
    GroupState,
    GroupType,
    TopicPartition,
    TransactionResult,
    TransactionState,
)

Values = Mapping[str, Any]
Read = tuple[ErrorCode, Any]

OWN_FIELDS_UNTIL: Final = 3  # AddPartitionsToTxn: later versions ask for several transactions
MODULES: Final = ("producer", "consumer", "admin", "metadata")
NOBODY: Final = -1  # the replica id of a client


class Words(NamedTuple):
    """One request: the fields of Kafka's request in a version, and what its response says."""

    ask: Callable[[Any, int], Values]
    read: Callable[[Any, int], Read]


def kafka_request(request: Request, *, version: int, correlation_id: int) -> bytes:
    """The frame of a request in its version."""
    kind = _class(f"{type(request).__name__}Request")
    asked = _filled(kind, WORDS[type(request)].ask(request, version), version=version)
    asked.with_header(correlation_id=correlation_id, client_id="oracle")
    return bytes(asked.encode(header=True, framed=True))


def kafka_reply(frame: memoryview, request: Request, *, version: int) -> ReplyFrame:
    """What the bytes of a response say, as an answer of ours."""
    response = _class(f"{type(request).__name__}Response").decode(bytes(frame), version=version, header=True)
    error, body = WORDS[type(request)].read(response, version)
    return ReplyFrame(response.header.correlation_id, error=error, body=body)


@cache
def _class(name: str) -> Any:
    modules = (import_module(f"kafka.protocol.{each}") for each in MODULES)
    return next(getattr(module, name) for module in modules if hasattr(module, name))


def _filled(kind: Any, values: Values, *, version: int) -> Any:
    def made(name: str, value: Any) -> Any:
        field = kind.fields[name]
        if value is None or not field.is_struct_array():
            return value
        return [_filled(field.data_class, each, version=version) for each in value]

    return kind(version=version, **{name: made(name, value) for name, value in values.items()})


# --- parts of topics -------------------------------------------------------------------------------------


def _nested(
    parts: Iterable[Any], make: Callable[[Any], Any], *, topic: str = "name", inner: str = "partitions"
) -> list[dict[str, Any]]:
    """Kafka's messages have the partitions of a topic under it."""
    topics: dict[str, list[Any]] = {}
    for part in parts:
        topics.setdefault(part.topic, []).append(make(part))
    return [{topic: name, inner: found} for name, found in topics.items()]


def _numbers(parts: Iterable[TopicPartition], **names: str) -> list[dict[str, Any]]:
    return _nested(parts, lambda part: part.partition, **names)


def _flat(topics: Iterable[Any], inner: str = "partitions") -> list[tuple[str, Any]]:
    return [(topic.name, part) for topic in topics for part in getattr(topic, inner)]


def _errors(topics: Iterable[Any]) -> tuple[m.PartitionError, ...]:
    return tuple(
        m.PartitionError(topic=topic, partition=part.partition_index, error=ErrorCode(part.error_code))
        for topic, part in _flat(topics)
    )


def _error(response: Any) -> ErrorCode:
    return ErrorCode(response.error_code)


def _only_error(response: Any, _: int) -> Read:
    return _error(response), None


# --- records ---------------------------------------------------------------------------------------------


def ask_produce(asked: m.Produce, _: int) -> Values:
    return {
        "transactional_id": asked.transactional_id,
        "acks": asked.acks,
        "timeout_ms": asked.timeout_ms,
        "topic_data": _nested(
            asked.partitions,
            lambda part: {"index": part.partition, "records": bytes(part.records)},
            inner="partition_data",
        ),
    }


def read_produced(response: Any, _: int) -> Read:
    parts = (
        m.ProducedPartition(
            topic=topic,
            partition=part.index,
            error=ErrorCode(part.error_code),
            base_offset=part.base_offset,
            log_start_offset=part.log_start_offset,
        )
        for topic, part in _flat(response.responses, "partition_responses")
    )
    return ErrorCode.NONE, m.ProduceReply(partitions=tuple(parts))


def ask_fetch(asked: m.Fetch, _: int) -> Values:
    return {
        "replica_id": NOBODY,
        "max_wait_ms": asked.max_wait_ms,
        "min_bytes": asked.min_bytes,
        "max_bytes": asked.max_bytes,
        "isolation_level": asked.isolation_level.value,
        "session_id": 0,
        "session_epoch": -1,
        "topics": _nested(
            asked.partitions,
            lambda part: {
                "partition": part.partition,
                "current_leader_epoch": part.current_leader_epoch,
                "fetch_offset": part.fetch_offset,
                "partition_max_bytes": part.max_bytes,
            },
            topic="topic",
        ),
        "forgotten_topics_data": [],
        "rack_id": "",
    }


def read_fetched(response: Any, _: int) -> Read:
    parts = (
        m.FetchedPartition(
            topic=topic.topic,
            partition=part.partition_index,
            error=ErrorCode(part.error_code),
            high_watermark=part.high_watermark,
            last_stable_offset=part.last_stable_offset,
            log_start_offset=part.log_start_offset,
            aborted=tuple(
                m.AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset)
                for each in part.aborted_transactions or ()
            ),
            records=bytes(part.records or b""),
        )
        for topic in response.responses
        for part in topic.partitions
    )
    error = _error(response)
    return error, None if error else m.FetchReply(partitions=tuple(parts))


def ask_list_offsets(asked: m.ListOffsets, _: int) -> Values:
    return {
        "replica_id": NOBODY,
        "isolation_level": asked.isolation_level.value,
        "topics": _nested(
            asked.partitions,
            lambda part: {
                "partition_index": part.partition,
                "current_leader_epoch": part.current_leader_epoch,
                "timestamp": part.timestamp,
            },
        ),
    }


def read_listed_offsets(response: Any, _: int) -> Read:
    parts = (
        m.ListedOffset(
            topic=topic,
            partition=part.partition_index,
            error=ErrorCode(part.error_code),
            timestamp=part.timestamp,
            offset=part.offset,
            leader_epoch=getattr(part, "leader_epoch", NO_LEADER_EPOCH),
        )
        for topic, part in _flat(response.topics)
    )
    return ErrorCode.NONE, m.ListOffsetsReply(partitions=tuple(parts))


def ask_delete_records(asked: m.DeleteRecords, _: int) -> Values:
    topics = _nested(
        asked.partitions, lambda part: {"partition_index": part.partition, "offset": part.offset}
    )
    return {"topics": topics, "timeout_ms": asked.timeout_ms}


def read_deleted_records(response: Any, _: int) -> Read:
    parts = (
        m.DeletedRecords(
            topic=topic,
            partition=part.partition_index,
            low_watermark=part.low_watermark,
            error=ErrorCode(part.error_code),
        )
        for topic, part in _flat(response.topics)
    )
    return ErrorCode.NONE, m.DeleteRecordsReply(partitions=tuple(parts))


def ask_describe_producers(asked: m.DescribeProducers, _: int) -> Values:
    return {"topics": _numbers(asked.partitions, inner="partition_indexes")}


def read_producers(response: Any, _: int) -> Read:
    parts = (
        m.DescribedProducers(
            topic=topic,
            partition=part.partition_index,
            error=ErrorCode(part.error_code),
            producers=tuple(
                m.ProducerDescription(
                    producer_id=each.producer_id,
                    producer_epoch=each.producer_epoch,
                    last_sequence=each.last_sequence,
                    last_timestamp=each.last_timestamp,
                    coordinator_epoch=each.coordinator_epoch,
                    open_since_offset=each.current_txn_start_offset,
                )
                for each in part.active_producers
            ),
        )
        for topic, part in _flat(response.topics)
    )
    return ErrorCode.NONE, m.DescribeProducersReply(partitions=tuple(parts))


# --- transactions ----------------------------------------------------------------------------------------


def _identity(asked: m.AddPartitionsToTxn | m.AddOffsetsToTxn | m.EndTxn | m.TxnOffsetCommit) -> Values:
    return {
        "transactional_id": asked.transactional_id,
        "producer_id": asked.producer_id,
        "producer_epoch": asked.producer_epoch,
    }


def ask_init(asked: m.InitProducerId, _: int) -> Values:
    return {
        "transactional_id": asked.transactional_id,
        "transaction_timeout_ms": asked.transaction_timeout_ms,
        "producer_id": asked.producer_id,
        "producer_epoch": asked.producer_epoch,
    }


def read_identity(response: Any, _: int) -> Read:
    granted = m.InitProducerIdReply(producer_id=response.producer_id, producer_epoch=response.producer_epoch)
    return _error(response), granted


def ask_add(asked: m.AddPartitionsToTxn, version: int) -> Values:
    own = {**_identity(asked), "topics": _numbers(asked.partitions)}
    if version > OWN_FIELDS_UNTIL:
        return {"transactions": [{**own, "verify_only": asked.verify_only}]}
    return {f"v3_and_below_{name}": value for name, value in own.items()}


def read_added(response: Any, version: int) -> Read:
    if version > OWN_FIELDS_UNTIL:
        error, results = _error(response), response.results_by_transaction
        topics = [topic for result in results for topic in result.topic_results]
    else:
        error, topics = ErrorCode.NONE, response.results_by_topic_v3_and_below
    parts = (
        m.PartitionError(
            topic=topic, partition=part.partition_index, error=ErrorCode(part.partition_error_code)
        )
        for topic, part in _flat(topics, "results_by_partition")
    )
    return error, m.AddPartitionsToTxnReply(partitions=tuple(parts))


def ask_add_offsets(asked: m.AddOffsetsToTxn, _: int) -> Values:
    return {**_identity(asked), "group_id": asked.group_id}


def ask_end(asked: m.EndTxn, _: int) -> Values:
    return {**_identity(asked), "committed": asked.result is TransactionResult.COMMIT}


def read_ended(response: Any, _: int) -> Read:
    ended = m.EndTxnReply(producer_id=response.producer_id, producer_epoch=response.producer_epoch)
    return _error(response), ended


def ask_markers(asked: m.WriteTxnMarkers, _: int) -> Values:
    return {
        "markers": [
            {
                "producer_id": each.producer_id,
                "producer_epoch": each.producer_epoch,
                "transaction_result": each.result is TransactionResult.COMMIT,
                "topics": _numbers(each.partitions, inner="partition_indexes"),
                "coordinator_epoch": each.coordinator_epoch,
                "transaction_version": each.transaction_version,
            }
            for each in asked.markers
        ]
    }


def read_markers(response: Any, _: int) -> Read:
    written = (
        m.WrittenMarker(producer_id=each.producer_id, partitions=_errors(each.topics))
        for each in response.markers
    )
    return ErrorCode.NONE, m.WriteTxnMarkersReply(markers=tuple(written))


def ask_describe_transactions(asked: m.DescribeTransactions, _: int) -> Values:
    return {"transactional_ids": list(asked.transactional_ids)}


_TRANSACTION_STATES: Final = {state.title: state for state in TransactionState}


def read_transactions(response: Any, _: int) -> Read:
    found = (
        m.TransactionDescription(
            transactional_id=each.transactional_id,
            error=ErrorCode(each.error_code),
            state=_TRANSACTION_STATES.get(each.transaction_state, TransactionState.EMPTY),
            timeout_ms=each.transaction_timeout_ms,
            start_ms=each.transaction_start_time_ms,
            producer_id=each.producer_id,
            producer_epoch=each.producer_epoch,
            partitions=tuple(
                TopicPartition(topic.topic, number) for topic in each.topics for number in topic.partitions
            ),
        )
        for each in response.transaction_states
    )
    return ErrorCode.NONE, m.DescribeTransactionsReply(transactions=tuple(found))


def ask_list_transactions(asked: m.ListTransactions, _: int) -> Values:
    return {
        "state_filters": list(asked.states),
        "producer_id_filters": list(asked.producer_ids),
        "duration_filter": asked.duration_ms,
    }


def read_listed_transactions(response: Any, _: int) -> Read:
    listed = (
        m.ListedTransaction(
            transactional_id=each.transactional_id,
            producer_id=each.producer_id,
            state=_TRANSACTION_STATES[each.transaction_state],
        )
        for each in response.transaction_states
    )
    states = tuple(response.unknown_state_filters)
    return _error(response), m.ListTransactionsReply(unknown_states=states, transactions=tuple(listed))


# --- groups ----------------------------------------------------------------------------------------------


def _member(asked: Any) -> Values:
    return {
        "group_id": asked.group_id,
        "generation_id": asked.generation_id,
        "member_id": asked.member_id,
        "group_instance_id": asked.group_instance_id,
    }


def _offsets(offsets: Sequence[m.OffsetToCommit]) -> list[dict[str, Any]]:
    return _nested(
        offsets,
        lambda each: {
            "partition_index": each.partition,
            "committed_offset": each.offset,
            "committed_leader_epoch": each.leader_epoch,
            "committed_metadata": each.metadata,
        },
    )


def ask_commit(asked: m.OffsetCommit, _: int) -> Values:
    member = dict(_member(asked))
    generation = member.pop("generation_id")
    return {**member, "generation_id_or_member_epoch": generation, "topics": _offsets(asked.offsets)}


def read_committed(response: Any, _: int) -> Read:
    return ErrorCode.NONE, m.OffsetCommitReply(partitions=_errors(response.topics))


def ask_commit_in_transaction(asked: m.TxnOffsetCommit, _: int) -> Values:
    return {**_identity(asked), **_member(asked), "topics": _offsets(asked.offsets)}


def read_committed_in_transaction(response: Any, _: int) -> Read:
    return ErrorCode.NONE, m.TxnOffsetCommitReply(partitions=_errors(response.topics))


def ask_offsets(asked: m.OffsetFetch, _: int) -> Values:
    topics = None if asked.partitions is None else _numbers(asked.partitions, inner="partition_indexes")
    return {
        "groups": [
            {
                "group_id": asked.group_id,
                "topics": topics,
                "member_id": asked.member_id,
                "member_epoch": asked.member_epoch,
            }
        ],
        "require_stable": asked.require_stable,
    }


def read_offsets(response: Any, _: int) -> Read:
    (group,) = response.groups
    offsets = (
        m.FetchedOffset(
            topic=topic,
            partition=part.partition_index,
            error=ErrorCode(part.error_code),
            offset=part.committed_offset,
            leader_epoch=part.committed_leader_epoch,
            metadata=part.metadata or "",
        )
        for topic, part in _flat(group.topics)
    )
    return _error(group), m.OffsetFetchReply(offsets=tuple(offsets))


def ask_join(asked: m.JoinGroup, _: int) -> Values:
    return {
        "group_id": asked.group_id,
        "session_timeout_ms": asked.session_timeout_ms,
        "rebalance_timeout_ms": asked.rebalance_timeout_ms,
        "member_id": asked.member_id,
        "group_instance_id": asked.group_instance_id,
        "protocol_type": asked.protocol_type,
        "protocols": [{"name": each.name, "metadata": each.metadata} for each in asked.protocols],
    }


def read_joined(response: Any, _: int) -> Read:
    joined = m.JoinGroupReply(
        generation_id=response.generation_id,
        protocol_type=response.protocol_type,
        protocol_name=response.protocol_name,
        leader=response.leader,
        skip_assignment=response.skip_assignment,
        member_id=response.member_id,
        members=tuple(
            m.JoinedMember(
                member_id=each.member_id,
                group_instance_id=each.group_instance_id,
                metadata=bytes(each.metadata),
            )
            for each in response.members
        ),
    )
    return _error(response), joined


def ask_sync(asked: m.SyncGroup, _: int) -> Values:
    return {
        **_member(asked),
        "protocol_type": asked.protocol_type,
        "protocol_name": asked.protocol_name,
        "assignments": [
            {"member_id": each.member_id, "assignment": each.assignment} for each in asked.assignments
        ],
    }


def read_synced(response: Any, _: int) -> Read:
    synced = m.SyncGroupReply(
        protocol_type=response.protocol_type,
        protocol_name=response.protocol_name,
        assignment=bytes(response.assignment),
    )
    return _error(response), synced


def ask_heartbeat(asked: m.Heartbeat, _: int) -> Values:
    return _member(asked)


def ask_leave(asked: m.LeaveGroup, _: int) -> Values:
    members = [
        {"member_id": each.member_id, "group_instance_id": each.group_instance_id} for each in asked.members
    ]
    return {"group_id": asked.group_id, "members": members}


def read_left(response: Any, _: int) -> Read:
    left = (
        m.LeftMember(
            member_id=each.member_id,
            group_instance_id=each.group_instance_id,
            error=ErrorCode(each.error_code),
        )
        for each in response.members
    )
    return _error(response), m.LeaveGroupReply(members=tuple(left))


def ask_describe_groups(asked: m.DescribeGroups, _: int) -> Values:
    return {"groups": list(asked.groups), "include_authorized_operations": False}


_GROUP_STATES: Final = {state.title: state for state in GroupState}
_GROUP_TYPES: Final = {kind.title.lower(): kind for kind in GroupType}


def read_groups(response: Any, _: int) -> Read:
    groups = (
        m.DescribedGroup(
            group_id=each.group_id,
            error=ErrorCode(each.error_code),
            state=_GROUP_STATES[each.group_state],
            protocol_type=each.protocol_type,
            protocol=each.protocol_data,
            members=tuple(
                m.DescribedMember(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    metadata=bytes(member.member_metadata),
                    assignment=bytes(member.member_assignment),
                )
                for member in each.members
            ),
        )
        for each in response.groups
    )
    return ErrorCode.NONE, m.DescribeGroupsReply(groups=tuple(groups))


def ask_list_groups(asked: m.ListGroups, _: int) -> Values:
    return {
        "states_filter": [state.title for state in asked.states],
        "types_filter": [kind.title for kind in asked.types],
    }


def read_listed_groups(response: Any, _: int) -> Read:
    groups = (
        m.ListedGroup(
            group_id=each.group_id,
            protocol_type=each.protocol_type,
            state=_GROUP_STATES[each.group_state],
            group_type=_GROUP_TYPES[getattr(each, "group_type", "classic")],
        )
        for each in response.groups
    )
    return _error(response), m.ListGroupsReply(groups=tuple(groups))


def ask_delete_groups(asked: m.DeleteGroups, _: int) -> Values:
    return {"groups_names": list(asked.groups)}


def read_deleted_groups(response: Any, _: int) -> Read:
    results = (m.GroupError(group_id=r.group_id, error=ErrorCode(r.error_code)) for r in response.results)
    return ErrorCode.NONE, m.DeleteGroupsReply(groups=tuple(results))


def ask_delete_offsets(asked: m.OffsetDelete, _: int) -> Values:
    topics = _nested(asked.partitions, lambda part: {"partition_index": part.partition})
    return {"group_id": asked.group_id, "topics": topics}


def read_deleted_offsets(response: Any, _: int) -> Read:
    return _error(response), m.OffsetDeleteReply(partitions=_errors(response.topics))


# --- the cluster -----------------------------------------------------------------------------------------


def ask_find(asked: m.FindCoordinator, _: int) -> Values:
    return {"key_type": asked.kind, "coordinator_keys": [asked.key]}


def read_found(response: Any, _: int) -> Read:
    (found,) = response.coordinators
    node = m.FindCoordinatorReply(node_id=found.node_id, host=found.host, port=found.port)
    return _error(found), node


def ask_create_partitions(asked: m.CreatePartitions, _: int) -> Values:
    topics = [{"name": each.topic, "count": each.count, "assignments": None} for each in asked.topics]
    return {"topics": topics, "timeout_ms": 5_000, "validate_only": asked.validate_only}


def read_created_partitions(response: Any, _: int) -> Read:
    topics = (m.TopicError(topic=each.name, error=ErrorCode(each.error_code)) for each in response.results)
    return ErrorCode.NONE, m.CreatePartitionsReply(topics=tuple(topics))


def ask_delete_topics(asked: m.DeleteTopics, _: int) -> Values:
    topics = [{"name": name, "topic_id": None} for name in asked.topics]
    return {"topics": topics, "topic_names": list(asked.topics), "timeout_ms": 5_000}


def read_deleted_topics(response: Any, _: int) -> Read:
    topics = (
        m.TopicError(topic=each.name, error=ErrorCode(each.error_code), because=each.error_message or "")
        for each in response.responses
    )
    return ErrorCode.NONE, m.DeleteTopicsReply(topics=tuple(topics))


WORDS: Final[Mapping[type[Any], Words]] = {
    m.Produce: Words(ask_produce, read_produced),
    m.Fetch: Words(ask_fetch, read_fetched),
    m.ListOffsets: Words(ask_list_offsets, read_listed_offsets),
    m.DeleteRecords: Words(ask_delete_records, read_deleted_records),
    m.DescribeProducers: Words(ask_describe_producers, read_producers),
    m.InitProducerId: Words(ask_init, read_identity),
    m.AddPartitionsToTxn: Words(ask_add, read_added),
    m.AddOffsetsToTxn: Words(ask_add_offsets, _only_error),
    m.EndTxn: Words(ask_end, read_ended),
    m.WriteTxnMarkers: Words(ask_markers, read_markers),
    m.DescribeTransactions: Words(ask_describe_transactions, read_transactions),
    m.ListTransactions: Words(ask_list_transactions, read_listed_transactions),
    m.OffsetCommit: Words(ask_commit, read_committed),
    m.TxnOffsetCommit: Words(ask_commit_in_transaction, read_committed_in_transaction),
    m.OffsetFetch: Words(ask_offsets, read_offsets),
    m.JoinGroup: Words(ask_join, read_joined),
    m.SyncGroup: Words(ask_sync, read_synced),
    m.Heartbeat: Words(ask_heartbeat, _only_error),
    m.LeaveGroup: Words(ask_leave, read_left),
    m.DescribeGroups: Words(ask_describe_groups, read_groups),
    m.ListGroups: Words(ask_list_groups, read_listed_groups),
    m.DeleteGroups: Words(ask_delete_groups, read_deleted_groups),
    m.OffsetDelete: Words(ask_delete_offsets, read_deleted_offsets),
    m.FindCoordinator: Words(ask_find, read_found),
    m.CreatePartitions: Words(ask_create_partitions, read_created_partitions),
    m.DeleteTopics: Words(ask_delete_topics, read_deleted_topics),
}
