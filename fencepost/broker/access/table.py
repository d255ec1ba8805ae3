"""The table of rights: which operation on which resource each request needs.

Rule: the table is what runs (`authorize.py`), what docs/access.md shows, and what the tests try row by row.
Its source is Kafka's documentation, "Protocols: operations and resources", and KafkaApis.
"""

# A need is met by any of its rights. It concerns the whole request, or each entry of one of its lists. If a
# request has needs for its entries only, it is carried out for the allowed ones, and the reply has an error
# for each of the others. A filter does not refuse anything: the reply leaves out what the principal may not
# see.

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import attrs

from fencepost.broker.access.acls import Operation, Resource
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import CoordinatorType, TransactionResult

_O, _R = Operation, Resource

ERRORS: Final = {
    _R.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    _R.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    _R.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    _R.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}
"""The error for a right that is missing, by the resource of the need."""


class Right(NamedTuple):
    """An operation on a resource; with `any_name`, on any resource of the type, with `every_name` on all."""

    resource: Resource
    operation: Operation
    any_name: bool = False
    every_name: bool = False


@attrs.frozen
class Condition:
    """The requests, in a version of the API, to which a need or a filter applies; and the same in words."""

    text: str
    holds: Callable[[Any, int], bool]


ALWAYS: Final = Condition("", lambda request, version: True)


class Need(NamedTuple):
    """One of these rights is needed; the first one gives the error."""

    rights: tuple[Right, ...]
    entries: str = ""
    """The list of the request whose entries name the resources; empty: the whole request needs it."""
    when: Condition = ALWAYS


class Filter(NamedTuple):
    """Entries of the reply that are left out if the principal has none of these rights."""

    entries: str
    rights: tuple[Right, ...]
    inner: str = ""
    """If set, this list inside each entry is filtered, not the entries themselves."""
    when: Condition = ALWAYS
    names: Callable[[Any], Iterable[str]] | None = None
    """The names in an entry with several. If the right to one is missing, the entry gets an error instead."""


class RequestRights(NamedTuple):
    needs: tuple[Need, ...] = ()
    filters: tuple[Filter, ...] = ()
    all_or_none: bool = False
    """One refused entry refuses the others too, with OPERATION_NOT_ATTEMPTED."""


def _need(resource: Resource, operation: Operation, entries: str = "", *, when: Condition = ALWAYS) -> Need:
    return Need((Right(resource, operation),), entries, when)


# --- conditions ---------------------------------------------------------------------------------------------

ADD_PARTITIONS_OF_NODES: Final = 4
"""From this version on, AddPartitionsToTxn is sent by partition leaders (KIP-890)."""

_HAS_ID: Final = Condition("with a transactional id", lambda r, _: r.transactional_id is not None)
_HAS_NO_ID: Final = Condition("without one", lambda r, _: r.transactional_id is None)
_NAMES_TOPICS: Final = Condition("named topics", lambda r, _: r.topics is not None)
_NAMES_NO_TOPICS: Final = Condition("all topics", lambda r, _: r.topics is None)
_NAMES_PARTITIONS: Final = Condition("named partitions", lambda r, _: r.partitions is not None)
_NAMES_NO_PARTITIONS: Final = Condition("all partitions", lambda r, _: r.partitions is None)
_FINDS_GROUP: Final = Condition("a group", lambda r, _: r.kind == CoordinatorType.GROUP)
_FINDS_TRANSACTION: Final = Condition(
    "a transactional id", lambda r, _: r.kind == CoordinatorType.TRANSACTION
)
_SUBSCRIBES: Final = Condition("named topics", lambda r, _: r.subscribed_topic_names is not None)
_NAMES_REGEX: Final = Condition("with a regular expression", lambda r, _: bool(r.subscribed_topic_regex))
_OF_NODE: Final = Condition("of a broker", lambda r, _: r.node_id is not None)
_OF_GROUP: Final = Condition("of a group", lambda r, _: r.group_id is not None)
_IS_OF_CLIENT: Final = Condition("up to version 3", lambda _, version: version < ADD_PARTITIONS_OF_NODES)
_IS_OF_NODE: Final = Condition(
    "from version 4, which brokers send", lambda _, version: version >= ADD_PARTITIONS_OF_NODES
)
_ONLY_ABORTS: Final = Condition("ABORT markers", lambda r, _: not commits(r))
_COMMITS: Final = Condition("COMMIT markers", lambda r, _: commits(r))


def commits(request: m.WriteTxnMarkers) -> bool:
    """Whether a request of markers has one that makes records visible."""
    return any(marker.result is TransactionResult.COMMIT for marker in request.markers)


def _topics_of_members(group: m.DescribedConsumerGroup) -> Iterable[str]:
    """The topics that the members own or should own."""
    return {
        topic.topic for member in group.members for topic in (*member.assignment, *member.target_assignment)
    }


# --- the table ----------------------------------------------------------------------------------------------

_CLUSTER_ACTION: Final = _need(_R.CLUSTER, _O.CLUSTER_ACTION)
_READ_GROUP: Final = _need(_R.GROUP, _O.READ)
_WRITE_ID: Final = _need(_R.TRANSACTIONAL_ID, _O.WRITE)
_DESCRIBE_TOPIC: Final = (Right(_R.TOPIC, _O.DESCRIBE),)
_ANYONE: Final = RequestRights()

RIGHTS: Final[dict[type[Any], RequestRights]] = {
    m.Produce: RequestRights((
        _WRITE_ID._replace(when=_HAS_ID),
        _need(_R.TOPIC, _O.WRITE, "partitions"),
    )),
    m.Fetch: RequestRights((_need(_R.TOPIC, _O.READ, "partitions"),)),
    m.ListOffsets: RequestRights((_need(_R.TOPIC, _O.DESCRIBE, "partitions"),)),
    m.OffsetForLeaderEpoch: RequestRights((
        Need((Right(_R.TOPIC, _O.DESCRIBE), Right(_R.CLUSTER, _O.CLUSTER_ACTION)), "partitions"),
    )),
    m.Metadata: RequestRights(
        (_need(_R.TOPIC, _O.DESCRIBE, "topics", when=_NAMES_TOPICS),),
        (Filter("topics", _DESCRIBE_TOPIC, when=_NAMES_NO_TOPICS),),
    ),
    m.OffsetCommit: RequestRights((_READ_GROUP, _need(_R.TOPIC, _O.READ, "offsets"))),
    m.OffsetFetch: RequestRights(
        (
            _need(_R.GROUP, _O.DESCRIBE),
            _need(
                _R.TOPIC, _O.DESCRIBE, "partitions", when=_NAMES_PARTITIONS
            ),
        ),
        (Filter("offsets", _DESCRIBE_TOPIC, when=_NAMES_NO_PARTITIONS),),
    ),
    m.FindCoordinator: RequestRights((
        _need(_R.GROUP, _O.DESCRIBE, when=_FINDS_GROUP),
        _need(
            _R.TRANSACTIONAL_ID, _O.DESCRIBE, when=_FINDS_TRANSACTION
        ),
    )),
    m.JoinGroup: RequestRights((_READ_GROUP,)),
    m.SyncGroup: RequestRights((_READ_GROUP,)),
    m.Heartbeat: RequestRights((_READ_GROUP,)),
    m.LeaveGroup: RequestRights((_READ_GROUP,)),
    # A subscription is allowed as a whole or not at all. In Kafka an expression matches what the member may
    # describe; here the coordinator does not know who asks.
    m.ConsumerGroupHeartbeat: RequestRights((
        _READ_GROUP,
        Need(
            (Right(_R.TOPIC, _O.DESCRIBE, every_name=True),),
            when=_NAMES_REGEX,
        ),
        _need(
            _R.TOPIC, _O.DESCRIBE, "subscribed_topic_names", when=_SUBSCRIBES
        ),
    )),
    m.ConsumerGroupDescribe: RequestRights(
        (_need(_R.GROUP, _O.DESCRIBE, "groups"),),
        (Filter("groups", _DESCRIBE_TOPIC, names=_topics_of_members),),
    ),
    m.DescribeGroups: RequestRights((_need(_R.GROUP, _O.DESCRIBE, "groups"),)),
    m.ListGroups: RequestRights(
        filters=(Filter("groups", (Right(_R.CLUSTER, _O.DESCRIBE), Right(_R.GROUP, _O.DESCRIBE))),)
    ),
    m.DeleteGroups: RequestRights((_need(_R.GROUP, _O.DELETE, "groups"),)),
    m.OffsetDelete: RequestRights((_need(_R.GROUP, _O.DELETE), _need(_R.TOPIC, _O.READ, "partitions"))),
    m.ApiVersions: _ANYONE,
    m.SaslHandshake: _ANYONE,
    m.SaslAuthenticate: _ANYONE,
    m.CreateTopics: RequestRights((
        Need((Right(_R.TOPIC, _O.CREATE), Right(_R.CLUSTER, _O.CREATE)), "topics"),
    )),
    m.DeleteTopics: RequestRights((_need(_R.TOPIC, _O.DELETE, "topics"),)),
    m.DescribeAcls: RequestRights((_need(_R.CLUSTER, _O.DESCRIBE),)),
    m.DescribeConfigs: RequestRights((
        _need(_R.CLUSTER, _O.DESCRIBE_CONFIGS, when=_OF_NODE),
        _need(_R.GROUP, _O.DESCRIBE_CONFIGS, when=_OF_GROUP),
        _need(_R.TOPIC, _O.DESCRIBE_CONFIGS, "topics"),
    )),
    m.IncrementalAlterConfigs: RequestRights((
        _need(_R.CLUSTER, _O.ALTER_CONFIGS, when=_OF_NODE),
        _need(_R.GROUP, _O.ALTER_CONFIGS, when=_OF_GROUP),
        _need(_R.TOPIC, _O.ALTER_CONFIGS, "topics"),
    )),
    m.CreatePartitions: RequestRights((_need(_R.TOPIC, _O.ALTER, "topics"),)),
    m.DeleteRecords: RequestRights((_need(_R.TOPIC, _O.DELETE, "partitions"),)),
    m.InitProducerId: RequestRights((
        _WRITE_ID._replace(when=_HAS_ID),
        Need(
            # Producers are idempotent by default, so whoever may write to some topic may be one (KIP-679).
            (Right(_R.CLUSTER, _O.IDEMPOTENT_WRITE), Right(_R.TOPIC, _O.WRITE, any_name=True)),
            when=_HAS_NO_ID,
        ),
    )),
    m.AddPartitionsToTxn: RequestRights(
        (
            _WRITE_ID._replace(when=_IS_OF_CLIENT),
            _need(_R.TOPIC, _O.WRITE, "partitions", when=_IS_OF_CLIENT),
            _CLUSTER_ACTION._replace(when=_IS_OF_NODE),
        ),
        all_or_none=True,
    ),
    m.AddOffsetsToTxn: RequestRights((_WRITE_ID, _READ_GROUP)),
    m.EndTxn: RequestRights((_WRITE_ID,)),
    m.TxnOffsetCommit: RequestRights((_WRITE_ID, _READ_GROUP, _need(_R.TOPIC, _O.READ, "offsets"))),
    # Kafka asks for Alter or ClusterAction for either marker. Here an administrator can abort a hanging
    # transaction and can never commit one. An ABORT marker between the decision to commit and the COMMIT
    # marker would undo a part of it, as in Kafka: abort only what no coordinator knows (`find-hanging`).
    m.WriteTxnMarkers: RequestRights((
        Need(
            (Right(_R.CLUSTER, _O.ALTER), Right(_R.CLUSTER, _O.CLUSTER_ACTION)),
            when=_ONLY_ABORTS,
        ),
        _CLUSTER_ACTION._replace(when=_COMMITS),
    )),
    m.DescribeProducers: RequestRights((_need(_R.TOPIC, _O.READ, "partitions"),)),
    m.DescribeTransactions: RequestRights(
        (_need(_R.TRANSACTIONAL_ID, _O.DESCRIBE, "transactional_ids"),),
        (Filter("transactions", _DESCRIBE_TOPIC, inner="partitions"),),
    ),
    m.ListTransactions: RequestRights(
        filters=(Filter("transactions", (Right(_R.TRANSACTIONAL_ID, _O.DESCRIBE),)),)
    ),
    m.AllocateProducerIds: RequestRights((_CLUSTER_ACTION,)),
    m.BrokerRegistration: RequestRights((_CLUSTER_ACTION,)),
    m.ElectLeaders: RequestRights((_need(_R.CLUSTER, _O.ALTER),)),
    m.AlterPartitionReassignments: RequestRights((_need(_R.CLUSTER, _O.ALTER),)),
    m.ListPartitionReassignments: RequestRights((_need(_R.CLUSTER, _O.DESCRIBE),)),
    m.BrokerStatus: RequestRights((_need(_R.CLUSTER, _O.DESCRIBE),)),
    # Without ACLs, only clients of the same machine may send these (fault_requests.py).
    m.AddFaults: RequestRights((_need(_R.CLUSTER, _O.ALTER),)),
    m.ListFaults: RequestRights((_need(_R.CLUSTER, _O.DESCRIBE),)),
    m.RemoveFaults: RequestRights((_need(_R.CLUSTER, _O.ALTER),)),
    # A follower sees the records of every topic, as a Kafka replica does.
    m.Follow: RequestRights((_CLUSTER_ACTION,)),
}  # fmt: skip
