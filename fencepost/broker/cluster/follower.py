"""How a node follows the controller: it registers, reads the metadata log, and does what the records say of
it.

Rule: a record means something to a node once it is durable, and from the node's own registration on. The
controller's node hears of its own records; the others fetch them, as KRaft's observers do.
"""

from __future__ import annotations

from typing import Final

from fencepost.broker.cluster import controller
from fencepost.broker.cluster.controller import METADATA_PARTITION, Controller, Leader
from fencepost.broker.contract import Answered, Assign, Remove
from fencepost.broker.groups import offsets
from fencepost.broker.groups.state import Groups
from fencepost.broker.node import Node
from fencepost.broker.purgatory import (
    Following,
    InFlightElection,
    InFlightMetadataFetch,
    InFlightRegistration,
)
from fencepost.protocol.batches import walk
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.messages import (
    BrokerRegistration,
    BrokerRegistrationReply,
    ElectLeaders,
    ElectLeadersReply,
    Fetch,
    FetchedPartition,
    FetchPartition,
    FetchReply,
    PartitionName,
)
from fencepost.protocol.metadata_log import read_cluster_records
from fencepost.protocol.terms import NO_OFFSET, IsolationLevel, TopicPartition

NEWS_BYTES_MAX: Final = 8 * 1024 * 1024  # KafkaRaftClient.MAX_FETCH_SIZE_BYTES

# The controller knows better who leads: there is nothing to ask for.
_NO_ELECTION: Final = frozenset(
    {NO_ERROR, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER}
)


# --- from the controller's log ---------------------------------------------------------------------------


def register(node: Node) -> None:
    """Tell the controller that this node starts; its partitions get new leader epochs before it leads any."""
    settings = node.settings
    request = BrokerRegistration(node_id=settings.node_id, host=settings.host, port=settings.port)
    node.ask(settings.controller_id, request, InFlightRegistration())


def answer_registration(node: Node, answer: Answered, now: int) -> None:
    """Registered: from here on the node reads what the controller has to say."""
    if isinstance(answer.body, BrokerRegistrationReply):
        node.following.broker_epoch = answer.body.broker_epoch
        _ask_for_news(node)
    else:
        _ask_later(node, now)


def _ask_for_news(node: Node) -> None:
    part = FetchPartition(
        topic=METADATA_PARTITION.topic,
        partition=METADATA_PARTITION.partition,
        fetch_offset=node.following.offset,
        max_bytes=NEWS_BYTES_MAX,
    )
    request = Fetch(
        max_wait_ms=node.settings.metadata_max_wait_ms,
        min_bytes=1,
        max_bytes=NEWS_BYTES_MAX,
        isolation_level=IsolationLevel.READ_UNCOMMITTED,
        partitions=(part,),
    )
    node.ask(node.settings.controller_id, request, InFlightMetadataFetch())


def answer_news(node: Node, answer: Answered, now: int) -> None:
    """What the log holds is known now; news of this node's own partitions are acted upon as the step ends."""
    found = answer.body.partitions[0] if isinstance(answer.body, FetchReply) else None
    if found is not None and found.error is NO_ERROR:
        _learn(node, found)
        _ask_for_news(node)
    elif found is not None and found.error is ErrorCode.OFFSET_OUT_OF_RANGE:
        # The controller lost the end of its log, which this node knew: all that it knows is in doubt.
        node.cluster, node.following = Controller(), Following()
        register(node)
    else:
        _ask_later(node, now)


def _learn(node: Node, found: FetchedPartition) -> None:
    following = node.following
    for at, header in walk(found.records):
        batch = memoryview(found.records)[at : at + header.size]
        news = controller.apply(node.cluster, read_cluster_records(batch, header))
        if header.base_offset >= following.broker_epoch:
            node.news.extend(news)
        following.offset = header.next_offset


def _ask_later(node: Node, now: int) -> None:
    node.following.due_ms = now + node.settings.controller_quorum_retry_backoff_ms
    node.wake_at(node.following.due_ms)


def ask_again_if_due(node: Node, now: int) -> None:
    """The controller did not answer, or not well: it is asked again after a pause, however often."""
    following = node.following
    if following.due_ms is None:
        return
    if following.due_ms > now:
        node.wake_at(following.due_ms)
        return
    following.due_ms = None
    if following.broker_epoch == NO_OFFSET:
        register(node)
    else:
        _ask_for_news(node)


# --- what it says to this node ---------------------------------------------------------------------------


def act_on_news(node: Node, now: int) -> None:
    """Lead what this node is to lead now, and let go of what it led before."""
    news, node.news = node.news, []
    gone: set[str] = set()
    for change in news:
        log = node.logs.get(change.partition)
        match change:
            case Assign():
                if log is not None and log.partition.leader_epoch < change.leader_epoch:
                    node.drop(log, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                _lead_if_mine(node, change)
            case Remove():
                if log is not None:
                    node.drop(log, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                if METADATA_PARTITION in node.logs:
                    node.outcome.effects.append(change)
                gone.add(change.partition.topic)
    if gone:
        for log in [log for log in node.logs.values() if isinstance(log.coordinator, Groups)]:
            offsets.forget_topics(node, log, gone, now)


def _lead_if_mine(node: Node, change: Assign) -> None:
    """Unless it is known already that somebody else leads by now, or the same node under a newer epoch."""
    newest = Leader(change.leader_id, change.leader_epoch)
    if change.leader_id == node.settings.node_id and node.cluster.leader(change.partition) == newest:
        node.outcome.effects.append(change)


# --- logs that were lost ---------------------------------------------------------------------------------


def reelect_due(node: Node, now: int) -> None:
    """Ask to lead again what was given up after a failure of its disk."""
    due = tuple(sorted(key for key, due_ms in node.reelections.items() if due_ms <= now))
    for key in due:
        del node.reelections[key]
    if due:
        names = tuple(PartitionName(topic=key.topic, partition=key.partition) for key in due)
        node.ask(node.settings.controller_id, ElectLeaders(partitions=names), InFlightElection(due))


def answer_election(node: Node, in_flight: InFlightElection, answer: Answered, now: int) -> None:
    """New epochs come with the news; without an answer they are asked for again."""
    errors = dict.fromkeys(in_flight.partitions, answer.error)
    if isinstance(answer.body, ElectLeadersReply):
        errors = {TopicPartition(part.topic, part.partition): part.error for part in answer.body.partitions}
    for key in [
        key for key in in_flight.partitions if errors[key] not in _NO_ELECTION and key not in node.logs
    ]:
        node.reelections[key] = due_ms = now + node.settings.reelection_backoff_ms
        node.wake_at(due_ms)
