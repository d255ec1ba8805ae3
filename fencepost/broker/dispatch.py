"""`step`: one input goes into a node, appends and effects come out. Tables map inputs to their handlers.

Rule: a step never waits. It ends with the follow-up work inside the node (changes of the
metadata, due markers, readers with new data), because no later input would trigger it.
"""

# Theory of operation. One transaction of a current client, as steps of the nodes that serve it. Each line is
# an input, found in the table INPUTS; the last column says what its reply waits for:
#
#     Received   InitProducerId       transactions/handlers.py     the record with the new epoch
#     Received   Produce              partitions/produce.py        the coordinator's reply
#     Received     AddPartitionsToTxn   transactions/handlers.py     ONGOING; the leader sent this
#     Answered     InFlightAddPartitions  produce.answer_to_add      the batch
#     Received   TxnOffsetCommit      groups/offsets.py            the same two, and the offsets
#     Received   EndTxn               transactions/handlers.py     PREPARE_COMMIT
#     Durable      PREPARE_COMMIT       node.became_durable, then send_due_markers as the step ends
#     Received     WriteTxnMarkers      transactions/markers.py      the marker
#     Durable      the marker           node.became_durable: the LSO moves, readers wake as the step ends
#     Answered     InFlightMarkers      markers.take_marker_answers; the last one writes COMPLETE_COMMIT
#
# What a step appends is durable in a later step. So a handler ends with `node.after`, which keeps its reply
# until then, and the step goes on with the next input.

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

from fencepost.broker import expiration, limits, status
from fencepost.broker.cluster import describe, describe_configs, follower
from fencepost.broker.cluster import handlers as cluster_handlers
from fencepost.broker.cluster.controller import Controller
from fencepost.broker.contract import (
    Answered,
    BecomeLeader,
    Disconnected,
    Durable,
    FetchMeasured,
    Input,
    LogStartMoved,
    Outcome,
    Reassign,
    Received,
    RemoveFailed,
    ReplyTo,
    ResignLeader,
    Started,
    StorageFailed,
    Tick,
)
from fencepost.broker.groups import admin as group_admin
from fencepost.broker.groups import consumer_handlers, offsets
from fencepost.broker.groups import handlers as group_handlers
from fencepost.broker.groups.state import Groups
from fencepost.broker.leader_log import GroupLog, TransactionLog
from fencepost.broker.node import Node
from fencepost.broker.partitions import delete_records, fetch, produce
from fencepost.broker.purgatory import (
    InFlight,
    InFlightAddOffsets,
    InFlightAddPartitions,
    InFlightElection,
    InFlightIdBlock,
    InFlightLookup,
    InFlightMarkers,
    InFlightMetadataFetch,
    InFlightOffsetsTopic,
    InFlightRegistration,
    InFlightTopicCreation,
)
from fencepost.broker.transactions import handlers as transaction_handlers
from fencepost.broker.transactions import markers
from fencepost.broker.transactions.state import Transactions
from fencepost.broker.transactions.tables import ClientVersion, client_version_of
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import METADATA_PARTITION

Handler = Callable[[Node, Any, ReplyTo, int], None]
VersionedHandler = Callable[[Node, Any, ReplyTo, int, ClientVersion], None]
SenderHandler = Callable[[Node, Any, Received, int], None]
"""For a request whose sender matters, too."""


def step(node: Node, arrived: Input, now: int) -> Outcome:
    """Handle one input at time `now` (milliseconds). The host performs the appends, then the effects."""
    node.outcome = outcome = Outcome([], [], [])
    # A barrier around each part: a request that meets a bug must not end the broker for every other client,
    # nor one deadline keep the others from being handled. `node.contain` raises, except in a server.
    try:
        INPUTS[type(arrived)](node, arrived, now)
    except Exception as problem:  # noqa: BLE001 - see above
        node.contain(problem, arrived)
    try:
        # Order matters: a coordinator that is dropped sends no more markers, and dropping wakes readers.
        if node.metadata_changes:
            follower.act_on_changes(node, now)
        if node.markers_due:
            markers.send_due_markers(node, now)
        if node.marked:
            fetch.wake_readers(node)
    except Exception as problem:  # noqa: BLE001 - see above
        node.contain(problem, None)
    return outcome


# --- requests ---------------------------------------------------------------------------------------------

REQUESTS: Final[dict[type[Any], Handler]] = {
    m.Fetch: fetch.fetch,
    m.ListOffsets: fetch.list_offsets,
    m.OffsetForLeaderEpoch: fetch.offsets_for_leader_epochs,
    m.Metadata: describe.metadata,
    m.OffsetFetch: offsets.fetch,
    m.FindCoordinator: describe.find_coordinator,
    m.ApiVersions: describe.api_versions,
    m.SaslHandshake: describe.refuse_sasl,
    m.SaslAuthenticate: describe.refuse_sasl,
    m.DescribeAcls: describe.refuse_acls,
    m.CreateTopics: cluster_handlers.create_topics,
    m.DescribeConfigs: describe_configs.describe_configs,
    m.IncrementalAlterConfigs: cluster_handlers.alter_configs,
    m.CreatePartitions: cluster_handlers.create_partitions,
    m.DeleteRecords: delete_records.delete_records,
    m.DeleteTopics: cluster_handlers.delete_topics,
    m.WriteTxnMarkers: markers.write_markers,
    m.DescribeProducers: describe.describe_producers,
    m.DescribeTransactions: describe.describe_transactions,
    m.ListTransactions: describe.list_transactions,
    m.AllocateProducerIds: cluster_handlers.refuse_client,
    m.BrokerRegistration: cluster_handlers.refuse_client,
    m.ElectLeaders: cluster_handlers.elect_preferred_leaders,
    m.AlterPartitionReassignments: cluster_handlers.reassign,
    m.ListPartitionReassignments: cluster_handlers.list_reassignments,
    m.SyncGroup: group_handlers.sync_group,
    m.Heartbeat: group_handlers.heartbeat,
    m.LeaveGroup: group_handlers.leave_group,
    m.DescribeGroups: group_admin.describe_groups,
    m.ListGroups: group_admin.list_groups,
    m.DeleteGroups: group_admin.delete_groups,
    m.OffsetDelete: group_admin.delete_offsets,
    m.ConsumerGroupDescribe: consumer_handlers.describe,
    m.BrokerStatus: status.broker_status,
}

# Requests whose version tells the client's transaction version, or the errors that it knows.
VERSIONED_REQUESTS: Final[dict[type[Any], VersionedHandler]] = {
    m.InitProducerId: transaction_handlers.init_producer_id,
    m.AddOffsetsToTxn: transaction_handlers.add_offsets,
    m.Produce: produce.produce,
    m.AddPartitionsToTxn: transaction_handlers.add_partitions,
    m.EndTxn: transaction_handlers.end_transaction,
    m.OffsetCommit: offsets.commit,
    m.TxnOffsetCommit: offsets.commit_in_transaction,
}

# Requests whose handlers need the name and the address of the client.
REQUESTS_OF_MEMBERS: Final[dict[type[Any], SenderHandler]] = {
    m.JoinGroup: group_handlers.join_group,
    m.ConsumerGroupHeartbeat: consumer_handlers.heartbeat,
}

# Requests that mean more, or only something, when a node sends them. access/table.py has the rights for them.
REQUESTS_OF_NODES: Final[dict[type[Any], SenderHandler]] = {
    m.CreateTopics: cluster_handlers.create_any_topics,
    m.AllocateProducerIds: cluster_handlers.allocate_producer_ids,
    m.BrokerRegistration: cluster_handlers.register,
    m.ElectLeaders: cluster_handlers.elect_leaders,
}


# --- inputs ----------------------------------------------------------------------------------------------


def _received(node: Node, arrived: Received, now: int) -> None:
    request = arrived.request
    kind = type(request)
    if arrived.from_node is None:
        refused = limits.refused(request)
        if refused is not None:
            node.reply(arrived.to, refused)
            return
    elif kind in REQUESTS_OF_NODES:
        REQUESTS_OF_NODES[kind](node, request, arrived, now)
        return
    if kind in REQUESTS:
        REQUESTS[kind](node, request, arrived.to, now)
    elif kind in VERSIONED_REQUESTS:
        version = client_version_of(kind, arrived.version)
        VERSIONED_REQUESTS[kind](node, request, arrived.to, now, version)
    else:
        REQUESTS_OF_MEMBERS[kind](node, request, arrived, now)


def _answered(node: Node, arrived: Answered, now: int) -> None:
    why = node.in_flight.pop(arrived.token, None)
    if why is None:
        # A second reply: the handler of the request failed, and the node replied with an error, but an effect
        # that the handler had left behind sent a reply, too.
        return
    try:
        ANSWERS[type(why)](node, why, arrived, now)
    except Exception:
        # It stays in flight until `contain` answers it with an error: the requests that wait for it must not
        # wait forever.
        node.in_flight[arrived.token] = why
        raise


def _take_producer_ids(node: Node, in_flight: InFlightIdBlock, arrived: Answered, now: int) -> None:
    node.take_producer_ids(arrived.body if isinstance(arrived.body, m.AllocateProducerIdsReply) else None)


ANSWERS: Final[dict[type[InFlight], Callable[[Node, Any, Answered, int], None]]] = {
    InFlightAddPartitions: produce.answer_to_add,
    InFlightAddOffsets: offsets.answer_to_add,
    InFlightMarkers: markers.take_marker_answers,
    InFlightLookup: markers.take_lookup_answer,
    InFlightTopicCreation: describe.answer_topic,
    # The retry of the markers finds the topic, or asks again.
    InFlightOffsetsTopic: lambda node, in_flight, arrived, now: None,
    InFlightIdBlock: _take_producer_ids,
    InFlightRegistration: follower.answer_registration,
    InFlightMetadataFetch: follower.answer_metadata_fetch,
    InFlightElection: follower.answer_election,
}


def _lead(node: Node, arrived: BecomeLeader, now: int) -> None:
    log = node.rebuild(arrived)
    expiration.start(node, log, now)
    match log.coordinator:
        case Transactions():
            markers.resume(node, cast("TransactionLog", log), now)
            transaction_handlers.schedule_scans(node, cast("TransactionLog", log).coordinator, now)
        case Groups():
            group_handlers.resume(node, cast("GroupLog", log), now)
            consumer_handlers.resume(node, cast("GroupLog", log), now)
            offsets.forget_former_topics(node, cast("GroupLog", log), now)
        case Controller():
            cluster_handlers.resume(node)
        case None:
            pass


def _resign(node: Node, arrived: ResignLeader, now: int) -> None:
    log = node.logs.get(arrived.partition)
    if log is not None:
        node.drop(log, ErrorCode.NOT_LEADER_OR_FOLLOWER)


def _storage_failed(node: Node, arrived: StorageFailed, now: int) -> None:
    log = node.logs.get(arrived.partition)
    if log is not None:
        node.drop(log, ErrorCode.KAFKA_STORAGE_ERROR)
    if arrived.needs_operator:
        node.damaged.add(arrived.partition)
        return
    # Not at once: a disk that keeps failing must not occupy the node with elections.
    node.reelections[arrived.partition] = due_ms = now + node.settings.reelection_backoff_ms
    node.wake_at(due_ms)


def _remove_failed(node: Node, arrived: RemoveFailed, now: int) -> None:
    node.undeleted.add(arrived.partition.topic)


def _disconnected(node: Node, arrived: Disconnected, now: int) -> None:
    for ticket in sorted(node.fetches_of.get(arrived.connection, ())):
        fetch.forget_fetch(node, ticket)


def _started(node: Node, arrived: Started, now: int) -> None:
    if METADATA_PARTITION in node.logs:
        cluster_handlers.start(node, now)
    else:
        follower.register(node)
    # Before any producer needs one: the first InitProducerId would otherwise have to be retried.
    node.ask_for_producer_ids()


def _schedule_rest(node: Node, now: int) -> None:
    """The Tick is used up: schedule the earliest marker, election or fetch that remains. The handlers before
    this one have scheduled their own next deadlines.
    """
    first_fetch_ms = [until_ms for until_ms, _ in node.fetch_deadlines[:1]]
    for due_ms in (*node.markers_due.values(), *node.reelections.values(), *first_fetch_ms):
        if due_ms > now:
            node.wake_at(due_ms)


def _tick(node: Node, arrived: Tick, now: int) -> None:
    # Before the handlers, which ask for the next Tick.
    node.wakes_at_ms = None
    for handle_due in TICKS:
        try:
            handle_due(node, now)
        except Exception as problem:  # noqa: BLE001 - see `step`
            node.contain(problem, None)


INPUTS: Final[dict[type[Any], Callable[[Node, Any, int], None]]] = {
    Received: _received,
    Answered: _answered,
    BecomeLeader: _lead,
    ResignLeader: _resign,
    LogStartMoved: delete_records.moved,
    FetchMeasured: fetch.measured,
    StorageFailed: _storage_failed,
    RemoveFailed: _remove_failed,
    Durable: Node.became_durable,
    Tick: _tick,
    Disconnected: _disconnected,
    Started: _started,
    Reassign: cluster_handlers.move,
}

# Every kind of deadline, in this order; `step` itself sends the markers that are due.
TICKS: Final[tuple[Callable[[Node, int], None], ...]] = (
    transaction_handlers.abort_timed_out,
    group_handlers.expire,
    consumer_handlers.expire,
    expiration.scan_if_due,
    follower.ask_again_if_due,
    follower.reelect_due,
    fetch.end_waits,
    _schedule_rest,
)
