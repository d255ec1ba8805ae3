"""KIP-320 at the client: who led before leads no more, whoever says so, and positions stay through it."""

from __future__ import annotations

import pytest

from fencepost.client.consumer import ConsumerMachine
from fencepost.client.effects import SendRequest
from fencepost.client.errors import OffsetOutOfRange
from fencepost.client.group_offsets import OffsetAndMetadata
from fencepost.client.metadata import FIRST_BOOTSTRAP_NODE, METADATA_BACKOFF_MS, ClusterMetadata
from fencepost.client.settings import ConsumerSettings
from fencepost.protocol import messages as m
from fencepost.protocol.batches import build_marker, place
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.fork import fingerprint, fork
from fencepost.protocol.messages import ReplyBody
from fencepost.protocol.records import build_data_batch
from fencepost.protocol.terms import (
    EARLIEST_TIMESTAMP,
    NO_LEADER_EPOCH,
    NO_OFFSET,
    TopicPartition,
    TransactionResult,
)
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


def test_the_same_leader_is_believed_again() -> None:
    cluster = moved()
    cluster.forget_leader(HERE)
    cluster.learn(told((NEW, 1), (OLD, 0)), from_node=NEW)
    assert cluster.leader(HERE) == NEW


def test_a_topic_that_is_gone_leaves_no_leader_and_others_keep_theirs() -> None:
    cluster = moved()
    cluster.learn(told((NEW, 1), (NEW, 1), topics=("u",)), from_node=NEW)
    cluster.learn(told(error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topics=("u",)), from_node=NEW)
    assert cluster.leaders == {HERE: NEW, THERE: OLD}


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
    """Epochs are its own: without this a client would wait forever for what nobody knows any more."""
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


def marker() -> bytearray:
    return build_marker(
        TransactionResult.COMMIT, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp=1
    )


class Reading(Talk):
    """A consumer of t-0 at offset 2, which NEW leads; metadata says what the test says."""

    machine: ConsumerMachine

    def __init__(self, settings: ConsumerSettings | None = None, offset: int | None = 2) -> None:
        machine = ConsumerMachine("h:9", settings or ConsumerSettings())
        super().__init__(machine)
        self.machine = machine
        self.known = told((NEW, 1))
        self.asked: list[int] = []
        machine.assign([HERE])
        if offset is not None:
            machine.seek(HERE, offset)
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

    def fetched(self, *epochs: int, marks: bool = False) -> None:
        """Answers the fetch: a batch of one record for each leader epoch."""
        (_, first, _), *_ = self.fetches
        records = bytearray()
        for offset, epoch in enumerate(epochs, first):
            batch = marker() if marks else build_data_batch([b"x"], base_timestamp=0)
            place(batch, base_offset=offset, leader_epoch=epoch)
            records += batch
        part = m.FetchedPartition(
            topic="t", partition=0, error=ErrorCode.NONE, high_watermark=9, last_stable_offset=9,
            log_start_offset=0, aborted=(), records=memoryview(records),
        )  # fmt: skip
        self.reply(self.first(m.Fetch), m.FetchReply(partitions=(part,)))

    def take(self) -> list[int]:
        """poll(): the offsets of the records."""
        batches = self.machine.take()
        self.hear(self.machine.wake(self.now))
        return [offset for batch in batches for offset in batch.offsets]

    def leads(self, leader: int, epoch: int) -> None:
        """The leader changes, and the fetch in flight is refused, so the consumer asks who leads now."""
        self.known = told((leader, epoch))
        self.refuse_fetch(ErrorCode.FENCED_LEADER_EPOCH)
        self.after(1_000)

    def ends(self, leader_epoch: int, end_offset: int, error: ErrorCode = ErrorCode.NONE) -> None:
        """The leader says where an epoch ends."""
        end = m.EpochEndOffset(
            topic="t", partition=0, error=error, leader_epoch=leader_epoch, end_offset=end_offset
        )
        self.reply(self.first(m.OffsetForLeaderEpoch), m.OffsetForLeaderEpochReply(partitions=(end,)))

    def committed(self, offset: int, leader_epoch: int) -> None:
        """The coordinator says where the group is."""
        part = m.FetchedOffset(
            topic="t", partition=0, error=ErrorCode.NONE, offset=offset, leader_epoch=leader_epoch,
            metadata="",
        )  # fmt: skip
        self.reply(self.first(m.OffsetFetch), m.OffsetFetchReply(offsets=(part,)))

    def listed(self, offset: int, leader_epoch: int) -> None:
        """The leader says where a lookup ends."""
        part = m.ListedOffset(
            topic="t", partition=0, error=ErrorCode.NONE, timestamp=-1, offset=offset,
            leader_epoch=leader_epoch,
        )  # fmt: skip
        self.reply(self.first(m.ListOffsets), m.ListOffsetsReply(partitions=(part,)))

    @property
    def checks(self) -> list[tuple[int, int, int]]:
        """(node, leader epoch of the position, leader epoch) of each check on the wire."""
        return [
            (send.node_id, part.leader_epoch, part.current_leader_epoch)
            for send in self.sent
            if isinstance(send.request, m.OffsetForLeaderEpoch)
            for part in send.request.partitions
        ]

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
    talk.after(METADATA_BACKOFF_MS * 100)
    (again,) = talk.waiting(m.ListOffsets)
    assert again.partitions[0].current_leader_epoch == 2


# --- positions in a log that may have lost records ----------------------------------------------------------


def read_then_moved(settings: ConsumerSettings | None = None) -> Reading:
    """It has read offset 2 under leader epoch 1, and OLD leads under epoch 2 now."""
    talk = Reading(settings)
    talk.fetched(1)
    assert talk.take() == [2]
    talk.leads(OLD, 2)
    return talk


def test_under_a_new_leader_the_position_is_checked_before_the_next_fetch_and_only_once() -> None:
    talk = read_then_moved()
    assert (talk.checks, talk.fetches) == ([(OLD, 1, 2)], [])
    talk.ends(1, 3)
    assert (talk.checks, talk.fetches) == ([], [(OLD, 3, 2)])
    talk.fetched()
    assert (talk.checks, talk.fetches) == ([], [(OLD, 3, 2)])
    talk.leads(NEW, 3)
    assert (talk.checks, talk.fetches) == ([(NEW, 1, 3)], [])
    assert talk.warned == []


def test_what_was_read_under_the_leader_of_now_is_not_checked() -> None:
    talk = read_then_moved()
    talk.ends(1, 3)
    talk.fetched(1, 2)
    assert talk.take() == [3, 4]
    assert (talk.checks, talk.fetches) == ([], [(OLD, 5, 2)])


def test_an_offset_of_the_program_has_no_epoch_and_is_not_checked() -> None:
    talk = Reading()
    talk.leads(OLD, 2)
    assert (talk.checks, talk.fetches) == ([], [(OLD, 2, 2)])
    talk.machine.seek(HERE, OffsetAndMetadata(2, leader_epoch=0))
    talk.after(0)
    assert talk.checks == [(OLD, 0, 2)]


@pytest.mark.parametrize("strategy", ["earliest", "latest", "by_duration:PT1H"])
def test_a_reader_of_lost_records_goes_back_to_where_the_logs_part(strategy: str) -> None:
    talk = read_then_moved(ConsumerSettings(auto_offset_reset=strategy))
    talk.ends(0, 1)
    (line,) = talk.warned
    assert line == (
        "partition t-0 has lost records before offset 3, the position of this consumer: leader epoch 1 ends "
        "at offset 1; the consumer continues at that offset"
    )
    assert (talk.checks, talk.fetches) == ([], [(OLD, 1, 2)])
    assert talk.machine.committable == {HERE: OffsetAndMetadata(1, leader_epoch=0)}


@pytest.mark.parametrize(("strategy", "timestamp"), [("earliest", -2), ("latest", -1)])
def test_a_reader_of_a_log_that_is_gone_begins_where_the_policy_says(strategy: str, timestamp: int) -> None:
    talk = read_then_moved(ConsumerSettings(auto_offset_reset=strategy))
    talk.ends(NO_LEADER_EPOCH, NO_OFFSET)
    (line,) = talk.warned
    assert line.endswith(f"leader epoch 1 is unknown; the consumer uses auto_offset_reset: {strategy}")
    (asked,) = talk.waiting(m.ListOffsets)
    assert asked.partitions[0].timestamp == timestamp
    talk.listed(7, 2)
    assert (talk.checks, talk.fetches) == ([], [(OLD, 7, 2)])


@pytest.mark.parametrize("end", [(1, 2), (NO_LEADER_EPOCH, NO_OFFSET)])
def test_without_a_policy_lost_records_are_an_error_until_the_program_decides(end: tuple[int, int]) -> None:
    talk = read_then_moved(ConsumerSettings(auto_offset_reset="none"))
    for _ in range(2):
        talk.ends(*end)
        with pytest.raises(OffsetOutOfRange, match=r"t-0 has lost records before offset 3"):
            talk.take()
        talk.after(0)
        assert (talk.checks, talk.fetches) == ([(OLD, 1, 2)], [])
    talk.machine.seek(HERE, 1)
    talk.after(0)
    talk.ends(*end)  # of before the seek: nobody waits for it
    assert (talk.checks, talk.fetches, talk.warned) == ([], [(OLD, 1, 2)], [])


def test_a_check_that_is_refused_asks_who_leads_and_is_repeated() -> None:
    talk = read_then_moved()
    talk.known = told((NEW, 3))
    talk.ends(NO_LEADER_EPOCH, NO_OFFSET, ErrorCode.FENCED_LEADER_EPOCH)
    talk.after(1_000)
    assert (talk.checks, talk.fetches) == ([(NEW, 1, 3)], [])
    talk.lose(m.OffsetForLeaderEpoch)
    talk.after(1_000)
    talk.ends(1, 3)
    assert talk.fetches == [(NEW, 3, 3)]


def test_records_that_no_reader_gets_count_as_read() -> None:
    talk = Reading()
    talk.fetched(0, 1, marks=True)
    talk.known = told((OLD, 2))
    assert talk.machine.committable == {HERE: OffsetAndMetadata(4, leader_epoch=1)}
    talk.leads(OLD, 2)
    assert talk.checks == [(OLD, 1, 2)]


def test_one_request_checks_all_partitions_of_a_leader() -> None:
    talk = Reading()
    talk.known = told((NEW, 1), (NEW, 4))
    talk.refuse_fetch(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    talk.after(1_000)
    talk.machine.assign([HERE, THERE])
    for where in (HERE, THERE):
        talk.machine.seek(where, OffsetAndMetadata(5, leader_epoch=0))
    talk.after(0)
    assert len(talk.waiting(m.OffsetForLeaderEpoch)) == 1
    assert talk.checks == [(NEW, 0, 1), (NEW, 0, 4)]


@pytest.mark.parametrize(("epoch", "is_checked"), [(-1, False), (0, True), (1, False)])
def test_a_committed_position_of_an_older_leader_is_checked(epoch: int, *, is_checked: bool) -> None:
    talk = Reading(ConsumerSettings(group_id="g"), offset=None)
    talk.committed(5, epoch)
    talk.after(1_000)
    assert talk.checks == ([(NEW, 0, 1)] if is_checked else [])
    assert talk.fetches == ([] if is_checked else [(NEW, 5, 1)])


def test_a_committed_position_of_a_leader_to_come_is_read_from_nobody_before() -> None:
    talk = Reading(ConsumerSettings(group_id="g"), offset=None)
    talk.known = told((OLD, 1))
    talk.committed(5, 2)
    talk.after(1_000)
    assert (talk.checks, talk.fetches) == ([], [])
    talk.known = told((NEW, 3))
    talk.after(1_000)
    assert (talk.checks, talk.fetches) == ([(NEW, 2, 3)], [])


def test_where_a_leader_lets_a_reader_begin_is_checked_by_the_next_one() -> None:
    talk = Reading(offset=None)
    talk.listed(5, 0)
    assert (talk.checks, talk.fetches) == ([], [(NEW, 5, 1)])
    talk.leads(OLD, 2)
    assert (talk.checks, talk.fetches) == ([(OLD, 0, 2)], [])


def test_before_the_first_offset_nothing_can_be_lost() -> None:
    talk = Reading(offset=None)
    talk.listed(0, 0)
    talk.leads(OLD, 2)
    assert (talk.checks, talk.fetches) == ([], [(OLD, 0, 2)])


def test_positions_of_two_leaders_are_told_apart_and_copied() -> None:
    talk, other = Reading(), Reading()
    talk.fetched(1)
    other.fetched(0)
    assert talk.take() == other.take()
    assert fingerprint(talk.machine) != fingerprint(other.machine)
    assert fork(talk.machine).committable == {HERE: OffsetAndMetadata(3, leader_epoch=1)}
