"""Produce, Fetch, ListOffsets and DeleteRecords of Kafka's clients.

Rule: records pass as bytes. Only a reader that cannot read columns makes the broker encode a batch again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import attrs

from fencepost.kafka_bridge.exchange import (
    Answer,
    Context,
    Exchange,
    Translated,
    Values,
    by_topic,
    known,
    one,
)
from fencepost.kafka_bridge.fetch_session import FIRST_FETCH_BY_ID, NO_SESSION
from fencepost.kafka_bridge.records import for_kafka, uses_zstd
from fencepost.kafka_bridge.topic_ids import ById, Replaced
from fencepost.kafka_bridge.wire import milliseconds
from fencepost.protocol import messages as m
from fencepost.protocol.errors import NO_ERROR, ErrorCode, ProtocolViolation
from fencepost.protocol.terms import (
    EARLIEST_LOCAL_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    MAX_TIMESTAMP,
    NO_LEADER_EPOCH,
    NO_OFFSET,
    NO_TIMESTAMP,
    IsolationLevel,
)

FIRST_ZSTD_VERSION: Final = 10
EARLIEST_PENDING_UPLOAD_TIMESTAMP: Final = -6  # ListOffsets: of tiered storage (KIP-1023)
# ListOffsets: the versions in which special timestamps came (ReplicaManager.timestampMinSupportedVersion).
FIRST_WITH_TIMESTAMP: Final = {
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    LATEST_TIERED_TIMESTAMP: 9,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP: 11,
}


def _refused_produce(topic: Any) -> Values:
    parts = tuple(
        m.ProducePartition(topic="", partition=part.index, records=b"") for part in topic.partition_data
    )
    produced = _produced(parts, ErrorCode.UNKNOWN_TOPIC_ID)
    return {"partition_responses": [_produced_values(part) for part in produced]}


@ById(first=13, entries="topic_data", answers="responses", refused=_refused_produce)
def produce(request: Any, _: int) -> Exchange:
    """One batch for each partition."""
    parts = tuple(
        m.ProducePartition(topic=topic.name, partition=part.index, records=part.records or b"")
        for topic in request.topic_data
        for part in topic.partition_data
    )
    asked = m.Produce(
        transactional_id=request.transactional_id,
        acks=request.acks,
        timeout_ms=milliseconds(request.timeout),
        partitions=parts,
    )

    def respond(answer: Answer) -> Values:
        produced = _produced(parts, answer.error) if answer.body is None else answer.body.partitions
        return {
            "responses": [
                {"name": topic, "partition_responses": [_produced_values(part) for part in its]}
                for topic, its in by_topic(produced).items()
            ],
            "throttle_time": 0,
        }

    return one(asked, respond)


def _produced(parts: tuple[m.ProducePartition, ...], error: ErrorCode) -> tuple[m.ProducedPartition, ...]:
    return tuple(
        m.ProducedPartition(
            topic=part.topic,
            partition=part.partition,
            error=error,
            base_offset=NO_OFFSET,
            log_start_offset=NO_OFFSET,
        )
        for part in parts
    )


def _produced_values(part: m.ProducedPartition) -> Values:
    return {
        "index": part.partition,
        "error_code": part.error,
        "base_offset": part.base_offset,
        "log_append_time": NO_TIMESTAMP,  # the time of a record is that of its producer (CreateTime)
        "log_start_offset": part.log_start_offset,
        "record_errors": (),
        "error_message": None if part.error is NO_ERROR else part.error.meaning,
    }


def fetch(request: Any, version: int) -> Translated:
    """Read batches, of all partitions of the connection's session."""

    def within_session(context: Context) -> Exchange:
        session = context.fetch_session
        opened = session.open(request, version)
        if isinstance(opened, ErrorCode):
            return known(_fetched_values((), error=opened, version=version))
        translated = _fetch(Replaced(request, topics=opened.topics), version)
        exchange = translated if isinstance(translated, Exchange) else translated(context)

        def respond(answers: Sequence[Answer]) -> Values:
            return session.answered(opened, exchange.respond(answers))

        return attrs.evolve(exchange, respond=respond)

    return within_session


def _refused_fetch(topic: Any) -> Values:
    parts = tuple(
        m.FetchPartition(
            topic="",
            partition=part.partition,
            fetch_offset=part.fetch_offset,
            max_bytes=part.partition_max_bytes,
        )
        for part in topic.partitions
    )
    fetched = _not_fetched(parts, ErrorCode.UNKNOWN_TOPIC_ID)
    return {"partitions": [_fetched_part(part, FIRST_FETCH_BY_ID) for part in fetched]}


@ById(first=FIRST_FETCH_BY_ID, entries="topics", answers="responses", name="topic", refused=_refused_fetch)
def _fetch(request: Any, version: int) -> Exchange:
    parts = tuple(
        m.FetchPartition(
            topic=topic.topic,
            partition=part.partition,
            current_leader_epoch=getattr(part, "current_leader_epoch", NO_LEADER_EPOCH),
            fetch_offset=part.fetch_offset,
            max_bytes=part.partition_max_bytes,
        )
        for topic in request.topics
        for part in topic.partitions
    )
    asked = m.Fetch(
        max_wait_ms=milliseconds(request.max_wait),
        min_bytes=request.min_bytes,
        max_bytes=request.max_bytes,
        isolation_level=_isolation_level(request),
        partitions=parts,
    )

    def respond(answer: Answer) -> Values:
        if answer.body is not None:
            fetched = answer.body.partitions
        elif version < FIRST_FETCH_BY_ID:  # the oldest have no other place for the error
            fetched = _not_fetched(parts, answer.error)
        else:
            fetched = ()
        return _fetched_values(fetched, error=answer.error, version=version)

    return one(asked, respond)


def _not_fetched(parts: tuple[m.FetchPartition, ...], error: ErrorCode) -> tuple[m.FetchedPartition, ...]:
    return tuple(
        m.FetchedPartition(
            topic=part.topic,
            partition=part.partition,
            error=error,
            high_watermark=NO_OFFSET,
            last_stable_offset=NO_OFFSET,
            log_start_offset=NO_OFFSET,
            aborted=None,
            records=b"",
        )
        for part in parts
    )


def _fetched_values(fetched: tuple[m.FetchedPartition, ...], *, error: ErrorCode, version: int) -> Values:
    return {
        "throttle_time": 0,
        "error_code": error,
        "session_id": NO_SESSION,
        "responses": [
            {"topic": topic, "partitions": [_fetched_part(part, version) for part in its]}
            for topic, its in by_topic(fetched).items()
        ],
    }


def _fetched_part(part: m.FetchedPartition, version: int) -> Values:
    error, records = part.error, part.records
    if version < FIRST_ZSTD_VERSION and uses_zstd(records):
        error, records = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, b""
    return {
        "partition_index": part.partition,
        "error_code": error,
        "high_watermark": part.high_watermark,
        "last_stable_offset": part.last_stable_offset,
        "log_start_offset": part.log_start_offset,
        "aborted_transactions": None
        if part.aborted is None
        else [{"producer_id": each.producer_id, "first_offset": each.first_offset} for each in part.aborted],
        "records": bytes(for_kafka(records)),
    }


def _isolation_level(request: Any) -> IsolationLevel:
    level = getattr(request, "isolation_level", IsolationLevel.READ_UNCOMMITTED)
    try:
        return IsolationLevel(level)
    except ValueError as problem:
        raise ProtocolViolation(f"isolation level {level} is neither 0 nor 1") from problem


def list_offsets(request: Any, version: int) -> Exchange:
    """Find offsets by timestamp, or the ends of logs."""
    every = tuple(
        m.ListOffsetsPartition(
            topic=topic.name,
            partition=part.partition_index,
            current_leader_epoch=getattr(part, "current_leader_epoch", NO_LEADER_EPOCH),
            timestamp=part.timestamp,
        )
        for topic in request.topics
        for part in topic.partitions
    )
    too_new = tuple(part for part in every if _is_too_new(part, version))
    parts = tuple(_known_to_node(part) for part in every if not _is_too_new(part, version))
    asked = m.ListOffsets(isolation_level=_isolation_level(request), partitions=parts)

    def respond(answer: Answer) -> Values:
        found = _not_listed(parts, answer.error) if answer.body is None else answer.body.partitions
        listed = (*found, *_not_listed(too_new, ErrorCode.UNSUPPORTED_VERSION))
        return {
            "throttle_time": 0,
            "topics": [
                {"name": topic, "partitions": [_listed_values(part) for part in its]}
                for topic, its in by_topic(listed).items()
            ],
        }

    return one(asked, respond)


def _is_too_new(part: m.ListOffsetsPartition, version: int) -> bool:
    """Whether the timestamp of a partition has a meaning that this version does not know."""
    return version < FIRST_WITH_TIMESTAMP.get(part.timestamp, version)


def _known_to_node(part: m.ListOffsetsPartition) -> m.ListOffsetsPartition:
    # The node knows the timestamps of one version. Both of these find nothing where nothing is tiered.
    is_newer = part.timestamp == EARLIEST_PENDING_UPLOAD_TIMESTAMP
    return attrs.evolve(part, timestamp=LATEST_TIERED_TIMESTAMP) if is_newer else part


def _not_listed(parts: tuple[m.ListOffsetsPartition, ...], error: ErrorCode) -> tuple[m.ListedOffset, ...]:
    return tuple(
        m.ListedOffset(
            topic=part.topic, partition=part.partition, error=error, timestamp=NO_TIMESTAMP, offset=NO_OFFSET
        )
        for part in parts
    )


def _listed_values(part: m.ListedOffset) -> Values:
    return {
        "partition_index": part.partition,
        "error_code": part.error,
        "timestamp": part.timestamp,
        "offset": part.offset,
        "leader_epoch": part.leader_epoch,
    }


def offset_for_leader_epoch(request: Any, _: int) -> Exchange:
    """Find where leader epochs end."""
    parts = tuple(
        m.LeaderEpochPartition(
            topic=topic.topic,
            partition=part.partition,
            current_leader_epoch=part.current_leader_epoch,
            leader_epoch=part.leader_epoch,
        )
        for topic in request.topics
        for part in topic.partitions
    )

    def respond(answer: Answer) -> Values:
        found = _no_epochs(parts, answer.error) if answer.body is None else answer.body.partitions
        return {
            "throttle_time": 0,
            "topics": [
                {
                    "topic": topic,
                    "partitions": [
                        {
                            "error_code": part.error,
                            "partition": part.partition,
                            "leader_epoch": part.leader_epoch,
                            "end_offset": part.end_offset,
                        }
                        for part in its
                    ],
                }
                for topic, its in by_topic(found).items()
            ],
        }

    return one(m.OffsetForLeaderEpoch(partitions=parts), respond)


def _no_epochs(parts: tuple[m.LeaderEpochPartition, ...], error: ErrorCode) -> tuple[m.EpochEndOffset, ...]:
    return tuple(
        m.EpochEndOffset(
            topic=part.topic,
            partition=part.partition,
            error=error,
            leader_epoch=NO_LEADER_EPOCH,
            end_offset=NO_OFFSET,
        )
        for part in parts
    )


def delete_records(request: Any, _: int) -> Exchange:
    """Move the start of logs forward."""
    parts = tuple(
        m.DeleteRecordsPartition(topic=topic.name, partition=part.partition_index, offset=part.offset)
        for topic in request.topics
        for part in topic.partitions
    )
    asked = m.DeleteRecords(timeout_ms=milliseconds(request.timeout), partitions=parts)

    def respond(answer: Answer) -> Values:
        deleted = (
            tuple(
                m.DeletedRecords(
                    topic=part.topic, partition=part.partition, low_watermark=NO_OFFSET, error=answer.error
                )
                for part in parts
            )
            if answer.body is None
            else answer.body.partitions
        )
        return {
            "throttle_time": 0,
            "topics": [
                {
                    "name": topic,
                    "partitions": [
                        {
                            "partition_index": part.partition,
                            "low_watermark": part.low_watermark,
                            "error_code": part.error,
                        }
                        for part in its
                    ],
                }
                for topic, its in by_topic(deleted).items()
            ],
        }

    return one(asked, respond)
