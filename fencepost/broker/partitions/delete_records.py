"""DeleteRecords: move the start of a log forward; readers can no longer fetch the records before it.

Rule: the new start is durable before the node uses it, and before the client gets its reply.
"""

# Producers, open transactions and the index of aborted transactions stay (KAFKA-7190). A producer whose
# records are all deleted would otherwise be unknown, and an open transaction would lose its marker's effect.

from __future__ import annotations

from fencepost.broker.contract import LogStartMoved, MoveLogStart, Refused, ReplyTo
from fencepost.broker.leader_log import Collect, LeaderLog
from fencepost.broker.node import Node
from fencepost.broker.partitions import partition
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.messages import (
    DeletedRecords,
    DeleteRecords,
    DeleteRecordsPartition,
    DeleteRecordsReply,
)
from fencepost.protocol.terms import HIGH_WATERMARK, INTERNAL_TOPICS, NO_OFFSET, TopicPartition


def delete_records(node: Node, request: DeleteRecords, to: ReplyTo, now: int) -> None:
    """Each partition has its own result (ReplicaManager.deleteRecordsOnLocalLog)."""
    ticket = node.begin_reply(to, DeleteRecordsReply, len(request.partitions))
    for index, part in enumerate(request.partitions):
        key = TopicPartition(part.topic, part.partition)
        found = _new_start(node, key, part)
        if isinstance(found, ErrorCode):
            node.collect(_part(ticket, index, key, found))
            continue
        log, offset = found
        if offset <= log.partition.log_start_offset:
            node.collect(_part(ticket, index, key, NO_ERROR, log.partition.log_start_offset))
            continue
        node.outcome.effects.append(MoveLogStart(partition=key, offset=offset, ticket=ticket, index=index))


def _new_start(
    node: Node, key: TopicPartition, part: DeleteRecordsPartition
) -> tuple[LeaderLog, int] | ErrorCode:
    log = node.log_of(key)
    if isinstance(log, Refused):
        return log.error
    if key.topic in INTERNAL_TOPICS:
        # A coordinator reads its log from the start, and would miss what was deleted.
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    config = node.log_config(key.topic)
    if config.is_compacted and not config.is_deleted:  # it keeps the last value of each key
        return ErrorCode.POLICY_VIOLATION
    high_watermark = log.partition.high_watermark
    offset = high_watermark if part.offset == HIGH_WATERMARK else part.offset
    # A record that is not durable yet may still vanish, and the log would begin after its end.
    return (log, offset) if 0 <= offset <= high_watermark else ErrorCode.OFFSET_OUT_OF_RANGE


def _part(
    ticket: int, index: int, key: TopicPartition, error: ErrorCode, low_watermark: int = NO_OFFSET
) -> Collect:
    result = DeletedRecords(
        topic=key.topic, partition=key.partition, error=error, low_watermark=low_watermark
    )
    return Collect(ticket, index, result)


def moved(node: Node, arrived: LogStartMoved, now: int) -> None:
    """The journal has moved its start, or failed to."""
    order = arrived.order
    log, start = node.logs.get(order.partition), NO_OFFSET
    if arrived.error is NO_ERROR:
        start = order.offset
        if log is not None:
            partition.move_log_start(log.partition, start, batch_start=arrived.batch_start)
            start = log.partition.log_start_offset
            node.mark_readers(order.partition)
    if order.ticket is not None:
        node.collect(_part(order.ticket, order.index, order.partition, arrived.error, start))
