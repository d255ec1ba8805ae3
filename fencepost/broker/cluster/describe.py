"""Requests that describe: metadata, coordinators, versions, producers and transactions.

Rule: nothing here changes a log, except that the first FindCoordinator creates the internal topic.
"""

from __future__ import annotations

from typing import Final

from fencepost.broker.cluster.controller import Topic
from fencepost.broker.contract import Answered, Refused, Reply, ReplyTo
from fencepost.broker.node import Node
from fencepost.broker.partitions.partition import ProducerEntry
from fencepost.broker.patterns import BadPattern, whole_match
from fencepost.broker.purgatory import InFlightTopicCreation
from fencepost.broker.transactions.handlers import log_of_id
from fencepost.broker.transactions.state import Transactions
from fencepost.protocol import messages as m
from fencepost.protocol.codec import Kept
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.terms import (
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    METADATA_PARTITION,
    TRANSACTION_STATE_TOPIC,
    CoordinatorType,
    TopicPartition,
    TransactionState,
    coordinator_partition,
    topic_name_problem,
)

COORDINATOR_TYPES: Final = frozenset(CoordinatorType)
# Two of Kafka's states exist only in memory there; filters may name them, and find nothing here.
STATE_TITLES: Final = frozenset({state.title for state in TransactionState} | {"Dead", "PrepareEpochFence"})


def api_versions(node: Node, request: m.ApiVersions, to: ReplyTo, now: int) -> None:
    """The supported request versions, and the transaction version."""
    versions = tuple(
        m.ApiVersionRange(api_key=api.key, minimum=api.minimum, maximum=api.maximum) for api in m.APIS
    )
    version = node.settings.transaction_version.number
    node.outcome.effects.append(Reply(to, m.ApiVersionsReply(versions=versions, transaction_version=version)))


def refuse_sasl(node: Node, request: m.SaslHandshake | m.SaslAuthenticate, to: ReplyTo, now: int) -> None:
    """A connection authenticates before its requests reach the node; later, or without users, it cannot."""
    node.reply(to, Refused(ErrorCode.ILLEGAL_SASL_STATE, "no authentication is expected here"))


def refuse_acls(node: Node, request: m.DescribeAcls, to: ReplyTo, now: int) -> None:
    """A connection with ACLs answers this before it reaches the node."""
    node.reply(to, Refused(ErrorCode.SECURITY_DISABLED, "no ACLs are configured"))


def metadata(node: Node, request: m.Metadata, to: ReplyTo, now: int) -> None:
    """Topics with their leaders. An unknown topic has its own error and is never created by this request."""
    # Each name once, as in Kafka: a request of 4 KB could otherwise ask for 10 million partitions.
    names = sorted(node.cluster.topics) if request.topics is None else list(dict.fromkeys(request.topics))
    brokers = node.cluster.brokers
    body = m.MetadataReply(
        cluster_id=node.settings.cluster_id,
        controller_id=node.settings.controller_id,
        nodes=tuple(brokers[node_id] for node_id in sorted(brokers)),
        topics=tuple(_topic(name, node.cluster.topics.get(name)) for name in names),
    )
    node.after_all((METADATA_PARTITION,), Reply(to, body))


def _topic(name: str, topic: Topic | None) -> m.TopicMetadata:
    if topic is None:
        is_missing = topic_name_problem(name) is None
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_missing else ErrorCode.INVALID_TOPIC_EXCEPTION
        return m.TopicMetadata(topic=name, error=error, is_internal=name in INTERNAL_TOPICS)
    if topic.described is None:
        # Clients ask for this again and again, and a topic of 10,000 partitions takes 20 ms.
        parts = (
            m.PartitionMetadata(partition=number, leader_id=leader.node_id, leader_epoch=leader.leader_epoch)
            for number, leader in sorted(topic.leaders.items())
        )
        topic.described = m.TopicMetadata(
            topic=name,
            error=NO_ERROR,
            is_internal=name in INTERNAL_TOPICS,
            partitions=Kept(parts),
            topic_id=topic.topic_id,
        )
    return topic.described


# --- coordinators ----------------------------------------------------------------------------------------


def find_coordinator(node: Node, request: m.FindCoordinator, to: ReplyTo, now: int) -> None:
    """The leader of the partition to which the id hashes; the first request creates the internal topic."""
    if request.kind not in COORDINATOR_TYPES:
        node.reply(to, Refused(ErrorCode.INVALID_REQUEST, f"key type {request.kind} has no coordinator"))
    elif _internal_topic(node, request).topic in node.cluster.topics:
        _answer_coordinator(node, request, to)
    else:
        wanted = m.CreateTopics(topics=(_internal_topic(node, request),))
        node.ask(node.settings.controller_id, wanted, InFlightTopicCreation(request=request, to=to))


def answer_topic(node: Node, in_flight: InFlightTopicCreation, answer: Answered, now: int) -> None:
    """Answer after the creation. If this node has not read the topic's records yet, clients retry."""
    if _internal_topic(node, in_flight.request).topic in node.cluster.topics:
        _answer_coordinator(node, in_flight.request, in_flight.to)
    else:
        node.reply(in_flight.to, Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE))


def _internal_topic(node: Node, request: m.FindCoordinator) -> m.CreateTopic:
    is_transactional = request.kind == CoordinatorType.TRANSACTION
    topic = TRANSACTION_STATE_TOPIC if is_transactional else CONSUMER_OFFSETS_TOPIC
    return m.CreateTopic(topic=topic, partition_count=node.coordinator_count(topic))


def _answer_coordinator(node: Node, request: m.FindCoordinator, to: ReplyTo) -> None:
    wanted = _internal_topic(node, request)
    number = coordinator_partition(request.key, wanted.partition_count)
    leader = node.cluster.leader(TopicPartition(wanted.topic, number))
    address = None if leader is None else node.cluster.brokers.get(leader.node_id)
    if address is None:
        node.reply(to, Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return
    body = m.FindCoordinatorReply(node_id=address.node_id, host=address.host, port=address.port)
    node.after_all((METADATA_PARTITION,), Reply(to, body))


# --- producers and transactions (KIP-664) ----------------------------------------------------------------


def describe_producers(node: Node, request: m.DescribeProducers, to: ReplyTo, now: int) -> None:
    """The producers of each partition, as its leader knows them."""
    keys = dict.fromkeys(request.partitions)
    parts = tuple(_producers(node, key) for key in keys)
    node.after_all(keys, Reply(to, m.DescribeProducersReply(partitions=parts)))


def _producers(node: Node, key: TopicPartition) -> m.DescribedProducers:
    log = node.log_of(key)
    if isinstance(log, Refused):
        is_name = topic_name_problem(key.topic) is None
        error = log.error if is_name else ErrorCode.INVALID_TOPIC_EXCEPTION
        return m.DescribedProducers(topic=key.topic, partition=key.partition, error=error, producers=())
    found = sorted(log.partition.producers.items())
    return m.DescribedProducers(
        topic=key.topic,
        partition=key.partition,
        error=NO_ERROR,
        producers=tuple(_producer(producer_id, producer) for producer_id, producer in found),
    )


def _producer(producer_id: int, producer: ProducerEntry) -> m.ProducerDescription:
    return m.ProducerDescription(
        producer_id=producer_id,
        producer_epoch=producer.producer_epoch,
        last_sequence=producer.last_sequence,
        last_timestamp=producer.last_timestamp,
        coordinator_epoch=producer.coordinator_epoch,
        open_since_offset=producer.current_txn_first_offset,
    )


def describe_transactions(node: Node, request: m.DescribeTransactions, to: ReplyTo, now: int) -> None:
    """The state of each transaction; in PREPARE_* with only the partitions whose marker is missing."""
    found = {name: _transaction(node, name) for name in dict.fromkeys(request.transactional_ids)}
    # Kafka repeats the reply for a name that is requested twice.
    answers = tuple([found[name] for name in request.transactional_ids])
    node.after_coordinators(Transactions, Reply(to, m.DescribeTransactionsReply(transactions=answers)))


def _transaction(node: Node, name: str) -> m.TransactionDescription:
    log = log_of_id(node, name)
    if not name or isinstance(log, Refused):
        # An empty id hashes to a partition, too, so it would otherwise be called unknown.
        error = ErrorCode.INVALID_REQUEST if not name else ErrorCode.NOT_COORDINATOR
        return m.TransactionDescription(transactional_id=name, error=error)
    state = log.coordinator
    record = state.records.get(name)
    if record is None:
        error = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        return m.TransactionDescription(transactional_id=name, error=error)
    partitions = record.partitions
    if record.state.is_prepared:
        partitions = tuple(sorted(state.pending_markers.get(name, partitions)))
    return m.TransactionDescription(
        transactional_id=name,
        error=NO_ERROR,
        state=record.state,
        timeout_ms=record.timeout_ms,
        start_ms=record.start_ms,
        producer_id=record.producer_id,
        producer_epoch=record.producer_epoch,
        partitions=tuple(partitions),
    )


def list_transactions(node: Node, request: m.ListTransactions, to: ReplyTo, now: int) -> None:
    """The transactional ids that this node coordinates, filtered (KIP-664, KIP-994, KIP-1152)."""
    pattern = request.transactional_id_pattern
    try:
        is_wanted = whole_match(pattern, characters=_characters(node)) if pattern else _always
    except BadPattern as problem:
        node.reply(to, Refused(ErrorCode.INVALID_REGULAR_EXPRESSION, str(problem)))
        return
    found = sorted(
        (
            (name, record)
            for log in node.coordinator_logs(Transactions)
            for name, record in log.coordinator.records.items()
            if (not request.states or record.state.title in request.states)
            and (not request.producer_ids or record.producer_id in request.producer_ids)
            # An id without a transaction counts as open since 1970, as in Kafka.
            and (request.duration_ms < 0 or now - record.start_ms > request.duration_ms)
            and is_wanted(name)
        ),
        key=lambda item: item[0],
    )
    listed = tuple(
        m.ListedTransaction(transactional_id=name, producer_id=record.producer_id, state=record.state)
        for name, record in found
    )
    unknown = tuple(dict.fromkeys(state for state in request.states if state not in STATE_TITLES))
    body = m.ListTransactionsReply(unknown_states=unknown, transactions=listed)
    node.after_coordinators(Transactions, Reply(to, body))


def _characters(node: Node) -> int:
    """The number of characters in all transactional ids together."""
    return sum(len(name) for log in node.coordinator_logs(Transactions) for name in log.coordinator.records)


def _always(_: str) -> bool:
    return True
