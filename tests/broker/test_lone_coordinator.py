"""A transaction coordinator whose peers answer late or not at all: the leaders of the partitions, and the
controller, which grants producer ids."""

from __future__ import annotations

import attrs

from fencepost.broker.cluster.controller import Leader, Topic
from fencepost.broker.contract import (
    Answered,
    BecomeLeader,
    Durable,
    Input,
    Received,
    Reply,
    ReplyTo,
    Send,
    Tick,
)
from fencepost.broker.dispatch import step
from fencepost.broker.node import Node
from fencepost.broker.settings import NodeSettings
from fencepost.broker.transactions.state import Transactions
from fencepost.protocol import messages as m
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.terms import LAST_GRANTED_EPOCH, TopicPartition, TransactionResult, TransactionState
from fencepost.protocol.transaction_log import TransactionRecord

LOG = TopicPartition("__transaction_state", 0)
A, B = TopicPartition("a", 0), TopicPartition("b", 0)
ID = "pay"
PRODUCER_ID, EPOCH = 100, 0
TIMEOUT_MS = 60_000
BEFORE_VERSION_2 = 3  # of AddPartitionsToTxn and EndTxn: an epoch may have many transactions


@attrs.define(eq=False)
class LoneCoordinator:
    """Node 1 with the coordinator; nodes 2 and 3 lead a partition each. Every record is durable at once."""

    node: Node = attrs.field(init=False)
    now: int = 0
    sent: list[Send] = attrs.Factory(list[Send])

    def __attrs_post_init__(self) -> None:
        self.node = node = Node(NodeSettings(node_id=1, transaction_state_log_num_partitions=1))
        for number, topic in enumerate((LOG.topic, A.topic, B.topic), 1):
            node.cluster.topics[topic] = Topic(
                topic, bytes([number]) * 16, {0: Leader(number, 0)}, created_ms=0
            )
        node.producer_ids.next_id, node.producer_ids.end = PRODUCER_ID, PRODUCER_ID + 1_000
        self.offer(BecomeLeader(partition=LOG, leader_epoch=0))
        self.init(ID)

    def offer(self, arrived: Input) -> list[ErrorCode]:
        """Returns the errors of the answers to clients."""
        outcome = step(self.node, arrived, self.now)
        errors = [act.error for act in outcome.effects if isinstance(act, Reply)]
        self.sent += [act for act in outcome.effects if isinstance(act, Send)]
        for append in outcome.appends:
            errors += self.offer(Durable(partition=append.partition, offset=append.header.next_offset))
        return errors

    def ask(self, request: m.Request, error: ErrorCode = NO_ERROR) -> None:
        assert self.offer(Received(request, to=ReplyTo(1, 1), version=BEFORE_VERSION_2)) == [error]

    def init(self, transactional_id: str, error: ErrorCode = NO_ERROR) -> None:
        self.ask(
            m.InitProducerId(
                transactional_id=transactional_id,
                transaction_timeout_ms=TIMEOUT_MS,
                producer_id=-1,
                producer_epoch=-1,
            ),
            error,
        )

    def add(self, *partitions: TopicPartition) -> None:
        self.ask(
            m.AddPartitionsToTxn(
                transactional_id=ID,
                producer_id=PRODUCER_ID,
                producer_epoch=EPOCH,
                verify_only=False,
                partitions=partitions,
            )
        )

    def commit(self, *partitions: TopicPartition) -> dict[int, Send]:
        """Returns the markers that are sent, by node."""
        self.add(*partitions)
        self.ask(
            m.EndTxn(
                transactional_id=ID,
                producer_id=PRODUCER_ID,
                producer_epoch=EPOCH,
                result=TransactionResult.COMMIT,
            )
        )
        return self.markers()

    def markers(self) -> dict[int, Send]:
        found = {sent.node_id: sent for sent in self.sent if isinstance(sent.request, m.WriteTxnMarkers)}
        self.sent.clear()
        return found

    def forget(self, key: TopicPartition) -> Topic:
        """The metadata of this node do not have the topic."""
        return self.node.cluster.topics.pop(key.topic)

    def lookups(self) -> list[Send]:
        found = [sent for sent in self.sent if isinstance(sent.request, m.Metadata)]
        self.sent.clear()
        return found

    def told(self, lookup: Send, *known: Topic) -> None:
        """The controller answers a lookup: it knows these of the topics."""
        topics = tuple(
            m.TopicMetadata(
                topic=topic.name,
                error=NO_ERROR,
                is_internal=False,
                partitions=tuple(
                    m.PartitionMetadata(
                        partition=number, leader_id=leader.node_id, leader_epoch=leader.leader_epoch
                    )
                    for number, leader in topic.leaders.items()
                ),
            )
            for topic in known
        )
        body = m.MetadataReply(cluster_id="", controller_id=1, nodes=(), topics=topics)
        self.offer(Answered(token=lookup.token, error=NO_ERROR, body=body))

    def retry(self) -> None:
        """The time of the next attempt to write markers."""
        self.now += self.node.settings.marker_retry_backoff_ms
        self.offer(Tick())

    def written(self, sent: Send) -> None:
        assert isinstance(sent.request, m.WriteTxnMarkers)
        parts = tuple(
            m.PartitionError(topic=key.topic, partition=key.partition, error=NO_ERROR)
            for key in sent.request.markers[0].partitions
        )
        body = m.WriteTxnMarkersReply(markers=(m.WrittenMarker(producer_id=PRODUCER_ID, partitions=parts),))
        self.offer(Answered(token=sent.token, error=NO_ERROR, body=body))

    def lost(self, sent: Send) -> dict[int, Send]:
        """Returns the markers that are sent again, by node."""
        self.offer(Answered(token=sent.token, error=ErrorCode.NETWORK_EXCEPTION, body=None))
        self.retry()
        return self.markers()

    @property
    def records(self) -> dict[str, TransactionRecord]:
        log = self.node.coordinator_log(Transactions, LOG)
        assert log is not None
        return log.coordinator.records

    @property
    def state(self) -> TransactionState:
        return self.records[ID].state


def test_a_transaction_ends_when_no_marker_of_it_is_in_flight() -> None:
    """Or a late answer would stand for the marker of the next transaction, which may have the same epoch."""
    coordinator = LoneCoordinator()
    first = coordinator.commit(A, B)
    assert first.keys() == {2, 3}
    again = coordinator.lost(first[2])
    assert again.keys() == {2}  # the other one may still be written
    coordinator.written(again[2])
    assert coordinator.state is TransactionState.PREPARE_COMMIT
    coordinator.written(first[3])
    assert coordinator.state is TransactionState.COMPLETE_COMMIT
    second = coordinator.commit(B)
    assert coordinator.state is TransactionState.PREPARE_COMMIT
    assert coordinator.lost(second[3]).keys() == {3}


def test_a_coordinator_that_leads_again_ignores_replies_to_its_earlier_self() -> None:
    coordinator = LoneCoordinator()
    first = coordinator.commit(A, B)
    coordinator.offer(BecomeLeader(partition=LOG, leader_epoch=1))
    coordinator.init(ID)
    coordinator.written(first[2])
    coordinator.written(first[3])
    assert coordinator.state is TransactionState.EMPTY


# --- partitions that the coordinator's node does not know


def begun_without_b() -> tuple[LoneCoordinator, Topic, Send]:
    """A committed transaction that wrote to a and b, the lookup of b, and b. The marker of a is written."""
    coordinator = LoneCoordinator()
    coordinator.add(A, B)
    topic = coordinator.forget(B)
    coordinator.ask(
        m.EndTxn(
            transactional_id=ID,
            producer_id=PRODUCER_ID,
            producer_epoch=EPOCH,
            result=TransactionResult.COMMIT,
        )
    )
    sent = list(coordinator.sent)
    (lookup,) = coordinator.lookups()
    assert (lookup.node_id, lookup.request) == (1, m.Metadata(topics=("b",)))
    (marker,) = [each for each in sent if isinstance(each.request, m.WriteTxnMarkers)]
    coordinator.written(marker)
    assert coordinator.state is TransactionState.PREPARE_COMMIT
    return coordinator, topic, lookup


def test_a_partition_that_the_controller_does_not_know_needs_no_marker() -> None:
    """A loss of power took the creation of its topic, and left the transaction."""
    coordinator, _, lookup = begun_without_b()
    coordinator.told(lookup)
    assert coordinator.state is TransactionState.COMPLETE_COMMIT


def test_a_partition_that_this_node_has_not_read_of_gets_its_marker() -> None:
    coordinator, topic, lookup = begun_without_b()
    coordinator.told(lookup, topic)
    coordinator.retry()
    (again,) = coordinator.lookups()
    coordinator.node.cluster.topics[B.topic] = topic
    coordinator.told(again, topic)
    coordinator.retry()
    coordinator.written(coordinator.markers()[3])
    assert coordinator.state is TransactionState.COMPLETE_COMMIT


def test_a_topic_with_fewer_partitions_lacks_the_others() -> None:
    coordinator, topic, lookup = begun_without_b()
    coordinator.told(lookup, attrs.evolve(topic, leaders={1: Leader(3, 0)}))
    assert coordinator.state is TransactionState.COMPLETE_COMMIT


def test_a_controller_that_does_not_answer_is_asked_again() -> None:
    coordinator, _, lookup = begun_without_b()
    coordinator.offer(Answered(token=lookup.token, error=ErrorCode.NETWORK_EXCEPTION, body=None))
    assert coordinator.state is TransactionState.PREPARE_COMMIT
    coordinator.retry()
    (again,) = coordinator.lookups()
    coordinator.told(again)
    assert coordinator.state is TransactionState.COMPLETE_COMMIT


def test_a_partition_is_not_sent_its_marker_while_it_is_looked_up() -> None:
    """Or the answer could come when the transaction has ended, and count for the next one."""
    coordinator, topic, lookup = begun_without_b()
    coordinator.node.cluster.topics[B.topic] = topic
    coordinator.node.markers_due[LOG, ID] = coordinator.now
    coordinator.offer(Tick())
    assert coordinator.sent == []
    coordinator.told(lookup, topic)
    coordinator.retry()
    coordinator.written(coordinator.markers()[3])
    assert coordinator.state is TransactionState.COMPLETE_COMMIT


def test_a_coordinator_that_leads_again_ignores_what_its_earlier_self_looked_up() -> None:
    coordinator, topic, lookup = begun_without_b()
    coordinator.node.cluster.topics[B.topic] = topic
    coordinator.offer(BecomeLeader(partition=LOG, leader_epoch=1))
    coordinator.told(lookup)
    assert coordinator.markers().keys() <= {2, 3}
    coordinator.init(ID)
    assert coordinator.state is TransactionState.EMPTY


def test_a_coordinator_that_the_metadata_do_not_know_concludes_nothing() -> None:
    coordinator, _, lookup = begun_without_b()
    coordinator.forget(LOG)
    coordinator.told(lookup)
    assert coordinator.state is TransactionState.PREPARE_COMMIT


# --- producer ids


def test_only_who_needs_a_producer_id_waits_for_the_controller() -> None:
    """As in Kafka: generateProducerId is called for a new id, and where the epochs are used up."""
    coordinator = LoneCoordinator()
    coordinator.node.producer_ids.next_id = coordinator.node.producer_ids.end
    coordinator.init("new", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    coordinator.written(coordinator.commit(A)[2])
    assert coordinator.state is TransactionState.COMPLETE_COMMIT
    coordinator.add(A)
    coordinator.now += 2 * TIMEOUT_MS
    coordinator.offer(Tick())
    assert coordinator.state is TransactionState.PREPARE_ABORT
    coordinator.written(coordinator.markers()[2])
    coordinator.init(ID)
    assert coordinator.state is TransactionState.EMPTY
    coordinator.records[ID] = coordinator.records[ID]._replace(producer_epoch=LAST_GRANTED_EPOCH)
    coordinator.init(ID, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
