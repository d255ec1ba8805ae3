"""`step`: one input into a node, out come appends and effects. Three tables say who handles what.

Rule: a step never waits. What a handler lets happen inside the node (markers that are due, readers that can
go on) happens before the step ends, so that nothing is left to do that no input would ever trigger.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fencepost.broker import controller, coordinating, describing, offsets, producing, reading
from fencepost.broker.controller import METADATA_PARTITION
from fencepost.broker.groups import Groups
from fencepost.broker.node import Node
from fencepost.broker.transaction_tables import Generation, spoken
from fencepost.broker.transactions import Transactions
from fencepost.broker.waiting import (
    AskedForProducerIds,
    AskedForTopic,
    AskedMarkers,
    AskedToAdd,
    AskedToAddOffsets,
)
from fencepost.broker.words import (
    NODE,
    Answered,
    Disconnected,
    Durable,
    Input,
    Lead,
    Outcome,
    Received,
    Refused,
    ReplyTo,
    Resign,
    Started,
    StorageFailed,
    Tick,
)
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import (
    AddOffsetsToTxn,
    AddPartitionsToTxn,
    AllocateProducerIds,
    AllocateProducerIdsReply,
    ApiVersions,
    CreateTopics,
    DeleteTopics,
    DescribeProducers,
    DescribeTransactions,
    EndTxn,
    Fetch,
    FindCoordinator,
    InitProducerId,
    ListOffsets,
    ListTransactions,
    Metadata,
    OffsetCommit,
    OffsetFetch,
    Produce,
    TxnOffsetCommit,
    WriteTxnMarkers,
)

Handler = Callable[[Node, Any, ReplyTo, int], None]
HandlerOfGeneration = Callable[[Node, Any, ReplyTo, int, Generation], None]


def step(node: Node, arrived: Input, now: int) -> Outcome:
    """One input at time `now` (milliseconds). The shell performs the appends, then the effects, then
    reports Durable.
    """
    node.outcome = outcome = Outcome()
    INPUTS[type(arrived)](node, arrived, now)
    if node.marker_retries:
        coordinating.send_due_markers(node, now)
    if node.movable:
        reading.wake_readers(node)
    return outcome


# --- requests to the controller --------------------------------------------------------------------------


def _create_topics(node: Node, request: CreateTopics, to: ReplyTo, now: int) -> None:
    log = node.logs.get(METADATA_PARTITION)
    is_settled = log is not None and log.partition.high_watermark == log.partition.log_end_offset
    decision = controller.create_topics(
        node.cluster,
        request,
        to=to,
        node_id=node.settings.node_id,
        internal=to.connection == NODE,
        leaving=() if is_settled else node.cluster.removed,
    )
    _control(node, decision, to, now)


def _delete_topics(node: Node, request: DeleteTopics, to: ReplyTo, now: int) -> None:
    _control(node, controller.delete_topics(node.cluster, request, to=to), to, now)


def _allocate_producer_ids(node: Node, request: AllocateProducerIds, to: ReplyTo, now: int) -> None:
    _control(node, controller.allocate_producer_ids(node.cluster, node_id=request.node_id, to=to), to, now)


def _control(node: Node, decision: controller.Decision, to: ReplyTo, now: int) -> None:
    log = node.logs.get(METADATA_PARTITION)
    if log is None:
        node.reply(to, Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        return
    node.append_cluster(decision.records, now=now)
    node.after(log, decision.effects)


REQUESTS: Final[dict[type[Any], Handler]] = {
    Fetch: reading.fetch,
    ListOffsets: reading.list_offsets,
    Metadata: describing.metadata,
    OffsetCommit: offsets.commit,
    OffsetFetch: offsets.fetch,
    FindCoordinator: describing.find_coordinator,
    ApiVersions: describing.api_versions,
    CreateTopics: _create_topics,
    DeleteTopics: _delete_topics,
    InitProducerId: coordinating.init_producer_id,
    AddOffsetsToTxn: coordinating.add_offsets,
    WriteTxnMarkers: producing.write_markers,
    DescribeProducers: describing.describe_producers,
    DescribeTransactions: describing.describe_transactions,
    ListTransactions: describing.list_transactions,
    AllocateProducerIds: _allocate_producer_ids,
}

# Those whose version says which generation the client speaks.
REQUESTS_OF_GENERATIONS: Final[dict[type[Any], HandlerOfGeneration]] = {
    Produce: producing.produce,
    AddPartitionsToTxn: coordinating.add_partitions,
    EndTxn: coordinating.end_transaction,
    TxnOffsetCommit: offsets.commit_in_transaction,
}


# --- inputs ----------------------------------------------------------------------------------------------


def _received(node: Node, arrived: Received, now: int) -> None:
    kind = type(arrived.request)
    handler = REQUESTS_OF_GENERATIONS.get(kind)
    if handler is None:
        REQUESTS[kind](node, arrived.request, arrived.to, now)
    else:
        handler(node, arrived.request, arrived.to, now, spoken(kind, arrived.version))


def _answered(node: Node, arrived: Answered, now: int) -> None:
    match node.asked.pop(arrived.token):
        case AskedToAdd() as asked:
            producing.answer_to_add(node, asked, arrived)
        case AskedToAddOffsets() as asked:
            offsets.answer_to_add(node, asked, arrived, now)
        case AskedMarkers() as asked:
            coordinating.answer_markers(node, asked, arrived, now)
        case AskedForTopic() as asked:
            describing.answer_topic(node, asked, arrived)
        case AskedForProducerIds():
            body = arrived.body
            node.take_producer_ids(body if isinstance(body, AllocateProducerIdsReply) else None)


def _lead(node: Node, arrived: Lead, now: int) -> None:
    log = node.lead(arrived)
    if isinstance(log.coordinator, Transactions):
        coordinating.resume(node, log, now)
    elif isinstance(log.coordinator, Groups):
        offsets.forget_deleted(node, log, now)


def _resign(node: Node, arrived: Resign, now: int) -> None:
    log = node.logs.get(arrived.partition)
    if log is not None:
        node.drop(log, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if node.cluster.leader(arrived.partition) is None:
        for log in [log for log in node.logs.values() if isinstance(log.coordinator, Groups)]:
            offsets.forget_deleted(node, log, now)


def _storage_failed(node: Node, arrived: StorageFailed, now: int) -> None:
    log = node.logs.get(arrived.partition)
    if log is not None:
        node.drop(log, ErrorCode.KAFKA_STORAGE_ERROR)
    # Not at once: a disk that goes on failing must not keep the node from everything else.
    node.reelections[arrived.partition] = due_ms = now + node.settings.reelection_backoff_ms
    node.wake_at(due_ms)


def _reelect_due(node: Node, now: int) -> None:
    for key in [key for key, due_ms in node.reelections.items() if due_ms <= now]:
        del node.reelections[key]
        decided = controller.reelect(node.cluster, key)
        if isinstance(decided, controller.Decision) and METADATA_PARTITION in node.logs:
            node.append_cluster(decided.records, now=now)
            node.after(node.logs[METADATA_PARTITION], decided.effects)


def _durable(node: Node, arrived: Durable, now: int) -> None:
    log = node.logs.get(arrived.partition)
    if log is not None and arrived.offset > log.partition.high_watermark:
        node.durable(log, arrived.offset)


def _disconnected(node: Node, arrived: Disconnected, now: int) -> None:
    for ticket in [
        ticket for ticket, parked in node.fetches.items() if parked.to.connection == arrived.connection
    ]:
        reading.forget_fetch(node, ticket)


def _started(node: Node, arrived: Started, now: int) -> None:
    decision = controller.start_node(node.cluster, arrived.node_id)
    node.append_cluster(decision.records, now=now)
    node.after(node.logs[METADATA_PARTITION], decision.effects)
    node.ask_for_producer_ids()


def _tick(node: Node, arrived: Tick, now: int) -> None:
    """Every deadline of the node: timeouts of transactions here, marker retries and parked fetches as the
    step ends.
    """
    node.wakes_at_ms = None
    coordinating.abort_timed_out(node, now)
    _reelect_due(node, now)
    reading.end_waits(node, now)
    waits_end_ms = [parked.until_ms for parked in node.fetches.values()]
    for due_ms in (*node.marker_retries.values(), *node.reelections.values(), *waits_end_ms):
        if due_ms > now:
            node.wake_at(due_ms)


INPUTS: Final[dict[type[Any], Callable[[Node, Any, int], None]]] = {
    Received: _received,
    Answered: _answered,
    Lead: _lead,
    Resign: _resign,
    StorageFailed: _storage_failed,
    Durable: _durable,
    Disconnected: _disconnected,
    Started: _started,
    Tick: _tick,
}
