"""KIP-320 at the client: who led before leads no more, whoever says so, and positions stay through it."""

from __future__ import annotations

import pytest

from fencepost.client.consumer import ConsumerMachine
from fencepost.client.effects import SendRequest
from fencepost.client.metadata import FIRST_BOOTSTRAP_NODE, ClusterMetadata
from fencepost.client.retries import METADATA_PAUSE_MS
from fencepost.client.settings import ConsumerSettings
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.fork import fingerprint, fork
from fencepost.protocol.messages import ReplyBody
from fencepost.protocol.terms import EARLIEST_TIMESTAMP, TopicPartition
from tests.client.conversation import Talk

CONTROLLER, OLD, NEW = 1, 2, 3
HERE, THERE = TopicPartition("t", 0), TopicPartition("t", 1)


def told(
    *leaders: tuple[int, int], error: ErrorCode = ErrorCode.NONE, topics: tuple[str, ...] = ("t",)
) -> m.MetadataReply:
    """Who leads each partition, and in which epoch."""
    parts = tuple(
        m.PartitionMetadata(partition=number, leader_id=leader, leader_epoch=epoch)
        for number, (leader, epoch) in enumerate(leaders)
    )
    return m.MetadataReply(
        cluster_id="c",
        controller_id=CONTROLLER,
        nodes=tuple(m.NodeAddress(node_id=i, host="h", port=i) for i in (CONTROLLER, OLD, NEW)),
        topics=tuple(
            m.TopicMetadata(topic=topic, error=error, is_internal=False, partitions=parts) for topic in topics
        ),
    )


def moved() -> ClusterMetadata:
    """A client that has heard of the move from OLD to NEW."""
    cluster = ClusterMetadata((("h", 9),))
    cluster.want("t")
    cluster.learn(told((NEW, 1), (OLD, 0)), from_node=NEW)
    return cluster


def test_a_leader_of_before_is_not_believed_and_somebody_else_is_asked() -> None:
    cluster = moved()
    cluster.forget_leader(HERE)
    asked = cluster.any_node()
    cluster.learn(told((OLD, 0), (OLD, 0)), from_node=OLD)
    assert (cluster.leader(HERE), cluster.leader(THERE)) == (None, OLD)
    assert cluster.is_stale
    assert cluster.any_node() != asked


def test_the_leader_that_is_known_outlives_older_news() -> None:
    cluster = moved()
    cluster.learn(told((OLD, 0), (NEW, 1)), from_node=OLD)
    assert (cluster.leader(HERE), cluster.leader(THERE)) == (NEW, NEW)
    assert not cluster.is_stale


def test_a_node_that_has_not_heard_of_the_topic_makes_nobody_forget_its_epochs() -> None:
    cluster = moved()
    cluster.learn(told(error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), from_node=OLD)
    cluster.learn(told((OLD, 0), (OLD, 0)), from_node=OLD)
    assert (cluster.leader(HERE), cluster.leader(THERE)) == (None, OLD)


def test_fewer_partitions_are_believed_of_a_topic_that_was_created_again() -> None:
    cluster = moved()
    cluster.learn(told((OLD, 2)), from_node=OLD)
    assert (cluster.partition_counts["t"], cluster.leader(HERE), cluster.leader(THERE)) == (1, OLD, None)
    cluster.learn(told((NEW, 1), (OLD, 0)), from_node=NEW)  # it has not heard of that yet
    assert (cluster.partition_counts["t"], cluster.leader(HERE)) == (1, OLD)
    cluster.learn(told((OLD, 2)), from_node=OLD)
    cluster.learn(told((OLD, 2), (NEW, 2)), from_node=OLD)
    assert (cluster.partition_counts["t"], cluster.leader(THERE)) == (2, NEW)


@pytest.mark.parametrize("has_heard_of_the_topic", [True, False])
def test_a_node_that_has_not_heard_of_new_partitions_makes_nobody_forget_them(
    *, has_heard_of_the_topic: bool
) -> None:
    cluster = moved()
    asked = cluster.any_node()
    if not has_heard_of_the_topic:
        cluster.learn(told(error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), from_node=OLD)
    cluster.learn(told((NEW, 1)), from_node=OLD)
    assert (cluster.partition_counts["t"], cluster.leader(HERE)) == (2, NEW)
    assert cluster.leader(THERE) == (OLD if has_heard_of_the_topic else None)
    assert cluster.any_node() != asked


def test_the_controller_may_have_lost_partitions_with_the_power_and_is_believed() -> None:
    cluster = moved()
    cluster.learn(told((NEW, 1)), from_node=CONTROLLER)
    assert cluster.partition_counts["t"] == 1


@pytest.mark.parametrize("from_node", [CONTROLLER, FIRST_BOOTSTRAP_NODE])
def test_the_controller_may_have_lost_an_election_with_the_power_and_is_believed(from_node: int) -> None:
    """Epochs are its own: without this a client would wait for ever for what nobody knows any more."""
    cluster = ClusterMetadata((("h", CONTROLLER),))
    cluster.learn(told((NEW, 5)), from_node=NEW)
    cluster.learn(told((OLD, 3)), from_node=from_node)
    assert cluster.leader(HERE) == OLD
    cluster.learn(told((NEW, 4)), from_node=NEW)
    assert cluster.leader(HERE) == NEW


def test_each_node_is_asked_in_its_turn_until_one_knows() -> None:
    """However many topics and partitions an answer is behind with."""
    cluster = moved()
    cluster.learn(told((NEW, 1), (NEW, 1), topics=("u",)), from_node=NEW)
    older = told((OLD, 0), (OLD, 0), topics=("t", "u"))
    cluster.forget_leader(HERE)
    asked: list[int] = []
    for _ in range(4):
        asked.append(cluster.any_node())
        cluster.learn(older, from_node=OLD)
    assert asked == [CONTROLLER, OLD, NEW, FIRST_BOOTSTRAP_NODE]


def test_what_is_known_of_epochs_tells_clusters_apart_and_is_copied() -> None:
    cluster, naive = moved(), ClusterMetadata((("h", 9),))
    naive.want("t")
    naive.learn(told((NEW, 0), (OLD, 0)), from_node=NEW)
    assert fingerprint(cluster) != fingerprint(naive)
    twin = fork(cluster)
    twin.learn(told((OLD, 2), (OLD, 2)), from_node=OLD)
    assert (cluster.leader_epoch(HERE), twin.leader_epoch(HERE)) == (1, 2)


# --- a consumer ---------------------------------------------------------------------------------------------


class Reading(Talk):
    """A consumer of t-0 at offset 2, which NEW leads; metadata says what the test says."""

    machine: ConsumerMachine

    def __init__(self) -> None:
        machine = ConsumerMachine("h:9", ConsumerSettings())
        super().__init__(machine)
        self.machine = machine
        self.known = told((NEW, 1))
        self.asked: list[int] = []
        machine.assign([HERE])
        machine.seek(HERE, 2)
        self.after(0)

    def metadata(self, request: m.Metadata) -> m.MetadataReply:
        return self.known

    def reply(self, send: SendRequest, body: ReplyBody | None, error: ErrorCode = ErrorCode.NONE) -> None:
        if isinstance(send.request, m.Metadata):
            self.asked.append(send.node_id)
            if send.node_id == CONTROLLER:  # it can be reached by nodes alone
                body, error = None, ErrorCode.NETWORK_EXCEPTION
        super().reply(send, body, error)

    def refuse_fetch(self, error: ErrorCode) -> None:
        part = m.FetchedPartition(
            topic="t", partition=0, error=error, high_watermark=-1, last_stable_offset=-1,
            log_start_offset=-1, aborted=None, records=b"",
        )  # fmt: skip
        self.reply(self.first(m.Fetch), m.FetchReply(partitions=(part,)))

    @property
    def fetches(self) -> list[tuple[int, int, int]]:
        """(node, offset, leader epoch) of each fetch on the wire."""
        return [
            (send.node_id, part.fetch_offset, part.current_leader_epoch)
            for send in self.sent
            if isinstance(send.request, m.Fetch)
            for part in send.request.partitions
        ]


def test_a_reader_that_lost_its_connections_does_not_fetch_from_a_leader_of_before() -> None:
    talk = Reading()
    assert talk.fetches == [(NEW, 2, 1)]
    talk.known = told((OLD, 0))
    talk.lose(m.Fetch)
    talk.after(5_000)
    assert talk.fetches == []
    assert len(set(talk.asked)) > 2
    talk.known = told((NEW, 1))
    talk.after(5_000)
    assert talk.fetches == [(NEW, 2, 1)]


@pytest.mark.parametrize("error", [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH])
def test_a_reader_of_another_leadership_asks_who_leads_and_keeps_its_position(error: ErrorCode) -> None:
    talk = Reading()
    talk.known = told((NEW, 2))
    talk.refuse_fetch(error)
    assert talk.fetches == []
    talk.after(5_000)
    assert talk.fetches == [(NEW, 2, 2)]
    assert talk.machine.positions == {HERE: 2}


def test_where_to_begin_is_asked_again_under_the_epoch_that_is_known_by_then() -> None:
    talk = Reading()
    talk.machine.seek_to(HERE, EARLIEST_TIMESTAMP)
    talk.after(0)
    (asked,) = talk.waiting(m.ListOffsets)
    assert asked.partitions[0].current_leader_epoch == 1
    talk.known = told((NEW, 2))
    part = m.ListedOffset(
        topic="t", partition=0, error=ErrorCode.FENCED_LEADER_EPOCH, timestamp=-1, offset=-1
    )
    talk.reply(talk.first(m.ListOffsets), m.ListOffsetsReply(partitions=(part,)))
    talk.after(METADATA_PAUSE_MS * 100)
    (again,) = talk.waiting(m.ListOffsets)
    assert again.partitions[0].current_leader_epoch == 2
