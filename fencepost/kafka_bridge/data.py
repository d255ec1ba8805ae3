"""Produce, Fetch, ListOffsets and DeleteRecords of Kafka's clients.

Rule: records pass as bytes. Those of a Fetch were made readable for Kafka's clients when they were read
(records.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import attrs

from fencepost.kafka_bridge.exchange import (
    Answer,
    Context,
    Exchange,
    Translated,
    Values,
    exchange_in,
    known,
    nested,
    of_each,
    one,
)
from fencepost.kafka_bridge.fetch_session import FIRST_FETCH_BY_ID, NO_SESSION
from fencepost.kafka_bridge.topic_ids import ById, Replaced, id_of
from fencepost.kafka_bridge.wire import milliseconds
from fencepost.protocol import messages as m
from fencepost.protocol import refusals
from fencepost.protocol.batches import BASE_OFFSET_SIZE, HEADER_SIZE, MAGIC_AT, MAGIC_KAFKA, Buffer
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.terms import (
    EARLIEST_LOCAL_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    MAX_TIMESTAMP,
    NO_ACKS,
    NO_LEADER_EPOCH,
    IsolationLevel,
    TopicPartition,
)

EARLIEST_PENDING_UPLOAD_TIMESTAMP: Final = -6  # ListOffsets: of tiered storage (KIP-1023)
# ListOffsets: the versions in which special timestamps came (ReplicaManager.timestampMinSupportedVersion).
FIRST_WITH_TIMESTAMP: Final = {
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    LATEST_TIERED_TIMESTAMP: 9,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP: 11,
}


def _refused_produce(topic: Any) -> Values:
    parts = [TopicPartition("", part.index) for part in topic.partition_data]
    produced = [refusals.not_produced(part, ErrorCode.UNKNOWN_TOPIC_ID) for part in parts]
    return {"partition_responses": [_produced_values(part) for part in produced]}


@ById(
    first=13,
    entries="topic_data",
    answers="responses",
    refused=_refused_produce,
    is_unanswered=lambda request: request.acks == NO_ACKS,
)
def produce(request: Any, _: int) -> Exchange:
    """One batch for each partition."""
    parts = tuple(
        m.ProducePartition(
            topic=topic.name,
            topic_id=id_of(getattr(topic, "topic_id", None)),
            partition=part.index,
            records=_batch_of(part.records),
        )
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
        produced = of_each(answer, "partitions", parts, refusals.not_produced)
        return {
            "responses": nested(produced, _produced_values, partitions="partition_responses"),
            "throttle_time": 0,
        }

    return one(asked, respond)


def _batch_of(records: Buffer | None) -> Buffer:
    """The records of a partition; none if their base offset is not 0, so that they are refused as in Kafka
    (UnifiedLog.analyzeAndValidateRecords). The node cannot tell: it writes the offset into a request's batch.
    """
    if not records:
        return b""
    is_batch = len(records) >= HEADER_SIZE and records[MAGIC_AT] == MAGIC_KAFKA
    return b"" if is_batch and any(records[:BASE_OFFSET_SIZE]) else records


def _produced_values(part: m.ProducedPartition) -> Values:
    return {
        "index": part.partition,
        "error_code": part.error,
        "base_offset": part.base_offset,
        "log_append_time": part.log_append_time,
        "log_start_offset": part.log_start_offset,
        # KIP-467 names single records; here a batch is refused as a whole.
        "record_errors": (),
        "error_message": None if part.error is NO_ERROR else part.error.meaning,
    }


def fetch(request: Any, version: int) -> Translated:
    """Read batches, of all partitions of the connection's session."""

    def within_session(context: Context) -> Exchange:
        session = context.fetch_session
        # First the session, then the ids: it keeps topics as they were named, so each Fetch looks their ids
        # up anew.
        opened = session.open(request, version)
        if isinstance(opened, ErrorCode):
            # Such an error is for the whole request. The client then opens another session, with all its
            # partitions.
            return known(_fetched_values((), error=opened))
        translated = _fetch(Replaced(request, topics=opened.topics), version)
        exchange = exchange_in(context, translated)

        def respond(answers: Sequence[Answer]) -> Values:
            return session.answered(opened, exchange.respond(answers))

        return attrs.evolve(exchange, respond=respond)

    return within_session


def _refused_fetch(topic: Any) -> Values:
    parts = [TopicPartition("", part.partition) for part in topic.partitions]
    fetched = [refusals.not_fetched(part, ErrorCode.UNKNOWN_TOPIC_ID) for part in parts]
    return {"partitions": [_fetched_part(part) for part in fetched]}


@ById(first=FIRST_FETCH_BY_ID, entries="topics", answers="responses", name="topic", refused=_refused_fetch)
def _fetch(request: Any, version: int) -> Exchange:
    parts = tuple(
        m.FetchPartition(
            topic=topic.topic,
            partition=part.partition,
            current_leader_epoch=getattr(part, "current_leader_epoch", NO_LEADER_EPOCH),
            # LastFetchedEpoch (KIP-595) is not read: followers use it to truncate their logs, and there are
            # no followers.
            fetch_offset=part.fetch_offset,
            max_bytes=part.partition_max_bytes,
        )
        for topic in request.topics
        for part in topic.partitions
    )

    def respond(answer: Answer) -> Values:
        # Before version 13 an error of the whole request stands in each partition, too: the oldest versions
        # have no other place (FetchRequest.getErrorResponse).
        refused = parts if version < FIRST_FETCH_BY_ID else ()
        fetched = of_each(answer, "partitions", refused, refusals.not_fetched)
        return _fetched_values(fetched, error=answer.error)

    isolation_level = _isolation_level(request)
    if isolation_level is None:
        return known(respond(_NO_SUCH_LEVEL))
    asked = m.Fetch(
        max_wait_ms=milliseconds(request.max_wait),
        min_bytes=request.min_bytes,
        max_bytes=request.max_bytes,
        isolation_level=isolation_level,
        partitions=parts,
    )
    return one(asked, respond)


def _fetched_values(fetched: Sequence[m.FetchedPartition], *, error: ErrorCode) -> Values:
    return {
        "throttle_time": 0,
        "error_code": error,
        "session_id": NO_SESSION,
        "responses": nested(fetched, _fetched_part, name="topic"),
    }


def _fetched_part(part: m.FetchedPartition) -> Values:
    return {
        "partition_index": part.partition,
        "error_code": part.error,
        "high_watermark": part.high_watermark,
        "last_stable_offset": part.last_stable_offset,
        "log_start_offset": part.log_start_offset,
        # The preferred replica (KIP-392) and the diverging epoch (KIP-595) stay at their defaults: no
        # followers.
        "aborted_transactions": _aborted(part),
        "records": part.records,
    }


def _aborted(part: m.FetchedPartition) -> list[Values] | None:
    if part.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return []  # null is only for what a leader answers (FetchResponse.partitionResponse)
    if part.aborted is None:
        return None
    return [{"producer_id": each.producer_id, "first_offset": each.first_offset} for each in part.aborted]


_LEVELS: Final = {level.value: level for level in IsolationLevel}
_NO_SUCH_LEVEL: Final = Answer(ErrorCode.UNKNOWN_SERVER_ERROR, None)  # what IsolationLevel.forId leads to


def _isolation_level(request: Any) -> IsolationLevel | None:
    # ListOffsets 1 is older than transactions, and has no such field.
    return _LEVELS.get(getattr(request, "isolation_level", IsolationLevel.READ_UNCOMMITTED.value))


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
    times_named = Counter((part.topic, part.partition) for part in every)
    parts: list[m.ListOffsetsPartition] = []
    refused: dict[tuple[str, int], m.ListedOffset] = {}
    for part in every:
        key = part.topic, part.partition
        # Named twice: which of the two would the answer be for? (ListOffsetsRequest.duplicatePartitions)
        if times_named[key] > 1:
            refused[key] = refusals.offset_not_listed(part, ErrorCode.INVALID_REQUEST)
        elif version < FIRST_WITH_TIMESTAMP.get(part.timestamp, version):
            refused[key] = refusals.offset_not_listed(part, ErrorCode.UNSUPPORTED_VERSION)
        else:
            parts.append(_known_to_node(part))

    def respond(answer: Answer) -> Values:
        listed = of_each(answer, "partitions", parts, refusals.offset_not_listed)
        return {"throttle_time": 0, "topics": nested([*listed, *refused.values()], _listed_values)}

    isolation_level = _isolation_level(request)
    if isolation_level is None:
        return known(respond(_NO_SUCH_LEVEL))
    return one(m.ListOffsets(isolation_level=isolation_level, partitions=tuple(parts)), respond)


def _known_to_node(part: m.ListOffsetsPartition) -> m.ListOffsetsPartition:
    # The node knows the timestamps of one version. Both of these find nothing where nothing is tiered.
    is_newer = part.timestamp == EARLIEST_PENDING_UPLOAD_TIMESTAMP
    return attrs.evolve(part, timestamp=LATEST_TIERED_TIMESTAMP) if is_newer else part


def _listed_values(part: m.ListedOffset) -> Values:
    return {
        "partition_index": part.partition,
        "error_code": part.error,
        "timestamp": part.timestamp,
        "offset": part.offset,
        "leader_epoch": part.leader_epoch,
    }


def offset_for_leader_epoch(request: Any, _: int) -> Exchange:
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
        ends = of_each(answer, "partitions", parts, refusals.no_epoch_end)
        return {"throttle_time": 0, "topics": nested(ends, _epoch_values, name="topic")}

    return one(m.OffsetForLeaderEpoch(partitions=parts), respond)


def _epoch_values(part: m.EpochEndOffset) -> Values:
    return {
        "error_code": part.error,
        "partition": part.partition,
        "leader_epoch": part.leader_epoch,
        "end_offset": part.end_offset,
    }


def delete_records(request: Any, _: int) -> Exchange:
    """Move the start of logs forward."""
    # The last entry for a partition counts, as in Kafka (KafkaApis.handleDeleteRecordsRequest).
    offsets = {
        (topic.name, part.partition_index): part.offset
        for topic in request.topics
        for part in topic.partitions
    }
    parts = tuple(
        m.DeleteRecordsPartition(topic=topic, partition=partition, offset=offset)
        for (topic, partition), offset in offsets.items()
    )
    asked = m.DeleteRecords(timeout_ms=milliseconds(request.timeout), partitions=parts)

    def respond(answer: Answer) -> Values:
        deleted = of_each(answer, "partitions", parts, refusals.records_not_deleted)
        return {"throttle_time": 0, "topics": nested(deleted, _deleted_values)}

    return one(asked, respond)


def _deleted_values(part: m.DeletedRecords) -> Values:
    return {"partition_index": part.partition, "low_watermark": part.low_watermark, "error_code": part.error}
