"""Readers: what a Fetch and a ListOffsets may see, and those who wait for more."""

from __future__ import annotations

from typing import Any

import attrs
import msgpack
import pytest

from fencepost.broker.contract import FetchPlan, Reply, ReplyTo
from fencepost.broker.partitions import fetch
from fencepost.broker.partitions.fetch import OUTLIVED_FACTOR, OUTLIVED_MIN
from fencepost.journal.journal import JournalSettings
from fencepost.journal.log_segments import LogSegments
from fencepost.journal.storage import StorageError, StorageFile
from fencepost.kafka_bridge.records import KafkaEncoding
from fencepost.protocol import messages as m
from fencepost.protocol.batches import build_batch, walk
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import (
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    NO_OFFSET,
    NO_TIMESTAMP,
    IsolationLevel,
    TopicPartition,
)
from tests.broker.requests import (
    ABORT,
    COMMIT,
    COMMITTED,
    NOBODY,
    NOON,
    ORDERS,
    OTHERS,
    UNCOMMITTED,
    Identity,
    batch,
    body_of,
    end_request,
    fetch_request,
    fetched,
    produce_batches,
    produce_request,
    visible_values,
)
from tests.broker.story import Memory, Story

MISSING = TopicPartition("missing", 0)
WAIT_MS = 500


def listed(story: Story, timestamp: int, level: IsolationLevel = UNCOMMITTED) -> tuple[int, int]:
    part = m.ListOffsetsPartition(topic=ORDERS.topic, partition=ORDERS.partition, timestamp=timestamp)
    request = m.ListOffsets(isolation_level=level, partitions=(part,))
    (found,) = body_of(story.ask(request), m.ListOffsetsReply).partitions
    assert found.error is ErrorCode.NONE
    return found.offset, found.timestamp


def waiting(story: Story, request: m.Fetch, connection: int = 1) -> ReplyTo:
    """A Fetch that finds nothing now."""
    to = story.offer(request, connection=connection)
    story.run()
    assert to not in story.replies
    return to


# --- bounds ----------------------------------------------------------------------------------------------


def test_an_undecided_transaction_ends_what_a_committed_reader_sees() -> None:
    """testReadCommittedConsumerShouldNotSeeUndecidedData: two producers, the older one open."""
    story = Story()
    one, two = story.identity("one"), story.identity("two")
    story.produce(NOBODY, "plain", name=None)
    story.produce(one, "x", name="one")
    story.produce(two, "y", name="two")
    story.ended(two, COMMIT, "two")
    assert story.visible() == "plain"
    assert story.visible(isolation_level=UNCOMMITTED) == "plain x y"
    assert listed(story, LATEST_TIMESTAMP, COMMITTED) == (1, NO_TIMESTAMP)
    assert listed(story, LATEST_TIMESTAMP) == (4, NO_TIMESTAMP)
    assert listed(story, EARLIEST_TIMESTAMP, COMMITTED) == (0, NO_TIMESTAMP)
    assert listed(story, LATEST_TIERED_TIMESTAMP) == (NO_OFFSET, NO_TIMESTAMP)
    story.ended(one, COMMIT, "one")
    assert story.visible() == "plain x y"


def test_beyond_its_bound_a_reader_finds_nothing_and_beyond_the_log_an_error() -> None:
    story = Story()
    me = story.identity()
    story.produce(me, "a b c")
    inside = story.fetch(offset=2)
    assert (inside.error, bytes(inside.records), inside.last_stable_offset) == (ErrorCode.NONE, b"", 0)
    assert inside.aborted == ()
    assert story.fetch(offset=3).error is ErrorCode.NONE
    for offset in (-1, 4):
        beyond = story.fetch(offset=offset)
        assert (beyond.error, beyond.high_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, NO_OFFSET)
    assert story.fetch(MISSING).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_fetch_from_inside_a_batch_gets_the_batch() -> None:
    story = Story()
    story.produce(NOBODY, "a b c", name=None)
    part = story.fetch(offset=1)
    assert [header.base_offset for _, header in walk(part.records)] == [0]
    assert (part.high_watermark, part.last_stable_offset, part.log_start_offset) == (3, 3, 0)


def test_one_batch_comes_whole_however_little_is_asked_for() -> None:
    story = Story()
    story.produce(NOBODY, "a" * 1_000, name=None)
    story.produce(NOBODY, "b" * 1_000, name=None)
    part = fetched(story.ask(fetch_request(ORDERS, max_bytes=10)))
    assert visible_values(part) == ["a" * 1_000]
    assert len(visible_values(fetched(story.ask(fetch_request(ORDERS, max_bytes=1 << 20))))) == 2


def test_a_reader_of_uncommitted_data_is_told_of_no_aborted_transactions() -> None:
    story = Story()
    me = story.identity()
    story.produce(me, "a")
    story.ended(me, ABORT)
    assert story.fetch(isolation_level=UNCOMMITTED).aborted is None
    assert story.fetch().aborted
    assert story.fetch(offset=2).aborted == ()


# --- timestamps --------------------------------------------------------------------------------------------


def test_the_first_offset_at_or_after_a_time_that_the_isolation_level_allows() -> None:
    story = Story()
    me = story.identity()
    for number, word in enumerate(("a", "b")):
        records = batch(NOBODY, word, transactional=False, timestamp=NOON + 10 * number)
        story.ask(produce_batches({ORDERS: records}, name=None))
    story.ask(produce_batches({ORDERS: batch(me, "c", timestamp=NOON + 20)}, name="pay"))
    assert listed(story, NOON) == (0, NOON)
    assert listed(story, NOON + 1) == (1, NOON + 10)
    assert listed(story, NOON + 11) == (2, NOON + 20)
    assert listed(story, NOON + 11, COMMITTED) == (NO_OFFSET, NO_TIMESTAMP)
    assert listed(story, MAX_TIMESTAMP) == (2, NOON + 20)
    # The newest of all is not visible yet: no older one is given in its place (KIP-734).
    assert listed(story, MAX_TIMESTAMP, COMMITTED) == (NO_OFFSET, NO_TIMESTAMP)
    assert listed(story, NOON + 10_000_000) == (NO_OFFSET, NO_TIMESTAMP)


# --- what cannot be read -------------------------------------------------------------------------------


NUMBERS = 1_000


def nonsense(timestamp: int) -> bytearray:
    """A batch whose values are numbers, and whose timestamps are text: of a batch that is not small, the
    broker counts the entries, and does not look at their types.
    """
    columns = msgpack.packb([None, None, [7] * NUMBERS, ["noon"] * NUMBERS, None])
    return build_batch(
        columns, magic=109, record_count=NUMBERS, last_offset_delta=NUMBERS - 1, base_timestamp=timestamp
    )


def test_records_that_nobody_can_read_do_no_harm_to_the_broker() -> None:
    story = Story()
    story.ask(produce_batches({ORDERS: nonsense(NOON)}, name=None))
    assert len(story.fetch(isolation_level=UNCOMMITTED).records) > 0  # the reader finds out by itself
    part = m.ListOffsetsPartition(topic=ORDERS.topic, partition=ORDERS.partition, timestamp=NOON)
    request = m.ListOffsets(isolation_level=UNCOMMITTED, partitions=(part,))
    (found,) = body_of(story.ask(request), m.ListOffsetsReply).partitions
    assert (found.error, found.offset) == (ErrorCode.CORRUPT_MESSAGE, NO_OFFSET)
    assert story.produce(NOBODY, "a", name=None).base_offset == NUMBERS


class Unreadable(Memory):
    """A disk with a spot that cannot be read."""

    is_broken = False

    def open(self, path: str, *, create: bool = False) -> StorageFile:
        if self.is_broken and path.startswith("orders-0/") and path.endswith(".log"):
            raise StorageError(f"cannot read {path}")
        return super().open(path, create=create)


def test_a_log_that_cannot_be_read_is_an_error_of_its_partition_alone() -> None:
    storage = Unreadable()
    story = Story(storage=storage, journal=JournalSettings(segment_bytes=1))
    for word in ("a", "b", "c"):
        story.produce(NOBODY, word, name=None)
    storage.is_broken = True
    one, other = fetch_request(ORDERS), fetch_request(OTHERS)
    parts = body_of(story.ask(attrs.evolve(one, partitions=one.partitions + other.partitions)), m.FetchReply)
    assert [part.error for part in parts.partitions] == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]
    part = m.ListOffsetsPartition(topic=ORDERS.topic, partition=ORDERS.partition, timestamp=1)
    request = m.ListOffsets(isolation_level=UNCOMMITTED, partitions=(part,))
    (found,) = body_of(story.ask(request), m.ListOffsetsReply).partitions
    assert found.error is ErrorCode.KAFKA_STORAGE_ERROR
    storage.is_broken = False
    assert story.visible() == "a b c"


# --- waiting -------------------------------------------------------------------------------------------


def test_a_waiting_reader_gets_what_comes() -> None:
    story = Story()
    to = waiting(story, fetch_request(ORDERS, UNCOMMITTED, max_wait_ms=WAIT_MS))
    story.offer(produce_request(NOBODY, {OTHERS: "elsewhere"}, name=None))
    story.run()
    assert to not in story.replies
    story.offer(produce_request(NOBODY, {ORDERS: "news"}, name=None))
    story.run()
    assert visible_values(fetched(story.replies[to])) == ["news"]


def test_a_reader_of_committed_data_waits_for_the_last_stable_offset() -> None:
    story = Story()
    me = story.identity()
    story.produce(me, "a")
    to = waiting(story, fetch_request(ORDERS, max_wait_ms=WAIT_MS))
    story.offer(produce_request(me, {ORDERS: "b"}, sequence=1))
    story.run()
    assert to not in story.replies
    story.offer(end_request(me, COMMIT))
    story.run()
    assert visible_values(fetched(story.replies[to])) == ["a", "b"]


def test_what_a_waiting_reader_gets_names_its_aborted_transactions() -> None:
    """testDelayedFetchIncludesAbortedTransaction."""
    story = Story()
    me = story.identity()
    story.produce(me, "a")
    to = waiting(story, fetch_request(ORDERS, max_wait_ms=WAIT_MS))
    story.offer(end_request(me, ABORT))
    story.run()
    part = fetched(story.replies[to])
    assert part.aborted is not None
    assert [aborted.producer_id for aborted in part.aborted] == [me.producer_id]
    assert visible_values(part) == []


def test_a_waiting_reader_is_answered_when_its_time_is_up() -> None:
    story = Story()
    to = waiting(story, fetch_request(ORDERS, max_wait_ms=WAIT_MS))
    story.now += WAIT_MS - 1
    story.run()
    assert to not in story.replies
    story.now += 1
    story.run()
    assert bytes(fetched(story.replies[to]).records) == b""
    assert (story.host.node.fetches, story.host.node.readers) == ({}, {})


def test_readers_wait_each_for_their_own_time() -> None:
    story = Story()
    asked = [waiting(story, fetch_request(ORDERS, max_wait_ms=ms)) for ms in (300, 100, 200)]
    answered: list[int] = []
    for _ in range(4):
        story.run()
        answered += [n for n, to in enumerate(asked) if to in story.replies and n not in answered]
        story.now += 100
    assert answered == [1, 2, 0]


def test_the_deadlines_of_answered_readers_do_not_pile_up() -> None:
    story = Story()
    node = story.host.node
    for connection in range(1_000):
        waiting(story, fetch_request(ORDERS, max_wait_ms=WAIT_MS), connection=connection)
        story.disconnect(connection)
        assert len(node.fetch_deadlines) <= OUTLIVED_MIN + OUTLIVED_FACTOR
    stays = waiting(story, fetch_request(ORDERS, max_wait_ms=WAIT_MS))
    story.now += WAIT_MS
    story.run()
    assert stays in story.replies
    assert node.fetch_deadlines == []


def test_a_reader_that_leaves_is_forgotten() -> None:
    story = Story()
    waiting(story, fetch_request(ORDERS, max_wait_ms=WAIT_MS), connection=7)
    stays = waiting(story, fetch_request(ORDERS, max_wait_ms=WAIT_MS), connection=8)
    story.disconnect(7)
    assert [parked.to.connection for parked in story.host.node.fetches.values()] == [8]
    story.disconnect(9)
    story.offer(produce_request(NOBODY, {ORDERS: "news"}, name=None))
    story.run()
    assert stays in story.replies
    assert {to.connection for to in story.replies} == {1, 8}
    assert story.host.node.readers == {}


def test_a_reader_of_several_partitions_is_woken_by_any() -> None:
    story = Story()
    one = fetch_request(ORDERS, max_wait_ms=WAIT_MS)
    other = fetch_request(OTHERS, max_wait_ms=WAIT_MS)
    to = waiting(story, attrs.evolve(one, partitions=one.partitions + other.partitions))
    story.offer(produce_request(NOBODY, {OTHERS: "news"}, name=None))
    story.run()
    parts = body_of(story.replies[to], m.FetchReply).partitions
    assert [visible_values(part) for part in parts] == [[], ["news"]]


def test_a_reader_of_a_topic_that_is_deleted_learns_of_it() -> None:
    story = Story()
    to = waiting(story, fetch_request(ORDERS, max_wait_ms=WAIT_MS))
    story.offer(m.DeleteTopics(topics=("orders",)))
    story.run()
    assert fetched(story.replies[to]).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("reason", ["data", "error", "no wait", "no bytes"])
def test_who_need_not_wait_does_not(reason: str) -> None:
    story = Story()
    request = fetch_request(MISSING if reason == "error" else ORDERS, max_wait_ms=WAIT_MS)
    if reason == "data":
        story.produce(NOBODY, "a", name=None)
    elif reason == "no wait":
        request = attrs.evolve(request, max_wait_ms=0)
    elif reason == "no bytes":
        request = attrs.evolve(request, min_bytes=0)
    to = story.offer(request)
    story.run()
    assert to in story.replies


def test_a_request_that_is_delivered_twice_means_the_same_again() -> None:
    """The broker writes offsets into the batch of the first delivery, whose memory the second one shares."""
    story = Story()
    story.produce(NOBODY, "first", name=None)
    for who, sent, expected in ((NOBODY, "x", [1, 2]), (story.identity(), "y", [3, 3])):
        is_plain = who is NOBODY
        request = produce_request(who, {ORDERS: sent}, name=None if is_plain else "pay")
        replies = [body_of(story.ask(request), m.ProduceReply).partitions[0] for _ in range(2)]
        assert [(reply.error, reply.base_offset) for reply in replies] == [
            (ErrorCode.NONE, offset) for offset in expected
        ]


# --- fetch.min.bytes ---------------------------------------------------------------------------------------


def wanting(min_bytes: int, *keys: TopicPartition, level: IsolationLevel = COMMITTED) -> m.Fetch:
    parts = [part for key in keys for part in fetch_request(key).partitions]
    request = fetch_request(ORDERS, level, max_wait_ms=WAIT_MS)
    return attrs.evolve(request, min_bytes=min_bytes, partitions=tuple(parts))


def bytes_of(reply: Reply) -> int:
    return sum(len(part.records) for part in body_of(reply, m.FetchReply).partitions)


def test_a_reader_that_wants_many_bytes_waits_for_them_in_all_its_partitions() -> None:
    story = Story()
    story.produce(NOBODY, "a" * 400, name=None)
    to = waiting(story, wanting(1_000, ORDERS, OTHERS))
    story.ask(produce_request(NOBODY, {OTHERS: "b" * 200}, name=None))
    assert to not in story.replies
    story.ask(produce_request(NOBODY, {OTHERS: "c" * 300}, name=None))
    assert 1_000 <= bytes_of(story.replies[to]) < 1_300
    assert story.host.node.fetches == {}


def test_a_reader_that_wants_more_bytes_than_come_gets_the_others_in_the_end() -> None:
    story = Story()
    to = waiting(story, wanting(1_000, ORDERS))
    story.produce(NOBODY, "a", name=None)
    assert to not in story.replies
    story.now += WAIT_MS
    story.run()
    assert visible_values(fetched(story.replies[to])) == ["a"]


def test_bytes_behind_the_lso_do_not_count_for_a_committed_reader() -> None:
    story = Story()
    me = story.identity()
    story.produce(me, "a" * 2_000)
    to = waiting(story, wanting(1_000, ORDERS))
    assert bytes_of(story.ask(wanting(1_000, ORDERS, level=UNCOMMITTED))) > 2_000
    story.ended(me, COMMIT)
    assert bytes_of(story.replies[to]) > 2_000


@pytest.mark.parametrize("limit", ["of the request", "of the partition"])
def test_a_reader_that_wants_more_bytes_than_fit_waits_for_no_more_than_fit(limit: str) -> None:
    story = Story()
    request = wanting(1_000, ORDERS)
    if limit == "of the request":
        request = attrs.evolve(request, max_bytes=300)
    else:
        parts = (attrs.evolve(request.partitions[0], max_bytes=300),)
        request = attrs.evolve(request, partitions=parts)
    to = waiting(story, request)
    story.produce(NOBODY, "a" * 400, name=None)
    story.produce(NOBODY, "b" * 400, name=None)
    assert (to in story.replies) == (limit == "of the request")  # as in Kafka: a partition counts this far


@pytest.mark.parametrize("max_bytes", [0, -1])
def test_a_reader_that_has_no_room_does_not_wait(max_bytes: int) -> None:
    story = Story()
    assert bytes_of(story.ask(attrs.evolve(wanting(1_000, ORDERS), max_bytes=max_bytes))) == 0


def test_a_reader_in_an_older_segment_does_not_wait_for_bytes_of_the_next() -> None:
    """One Fetch reads to the end of a segment, so further bytes would come too late for it."""
    story = Story(journal=JournalSettings(segment_bytes=1))
    story.produce(NOBODY, "a", name=None)
    to = waiting(story, wanting(1_000, ORDERS))
    story.produce(NOBODY, "b", name=None)
    assert visible_values(fetched(story.replies[to])) == ["a"]


def test_a_fetch_that_was_put_off_does_not_wait_again() -> None:
    story = Story()
    to = waiting(story, wanting(1_000, ORDERS))
    story.host.reads.encoding_for = lambda connection: KafkaEncoding()
    story.host.reads.work_left = 0
    story.now += WAIT_MS
    story.run()
    assert to not in story.replies, "the round is over"
    story.host.reads.begin_round()
    assert story.host.reads.offer_put_off()
    story.run()
    assert bytes_of(story.replies[to]) == 0


def test_only_what_changed_is_planned_for_a_reader_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each append would cost as much as the reader has partitions."""
    story = Story()
    waiting(story, wanting(1_000, ORDERS, OTHERS, level=UNCOMMITTED))
    planned: list[TopicPartition] = []

    def noting(**fields: Any) -> Any:
        planned.append(fields["partition"])
        return FetchPlan(**fields)

    monkeypatch.setattr(fetch, "FetchPlan", noting)
    story.produce(NOBODY, "a", name=None)
    assert set(planned) == {ORDERS}


def test_a_reader_that_wants_many_bytes_learns_of_an_error_at_once() -> None:
    story = Story()
    assert fetched(story.ask(wanting(1_000, MISSING))).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    to = waiting(story, wanting(1_000, ORDERS))
    story.ask(m.DeleteTopics(topics=("orders",)))
    assert fetched(story.replies[to]).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_reader_that_wants_many_bytes_learns_of_a_damaged_log(monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*_: Any, **__: Any) -> int:
        raise StorageError("the disk refused to read")

    story = Story()
    story.produce(NOBODY, "a", name=None)
    monkeypatch.setattr(LogSegments, "bytes_between", damaged)
    assert visible_values(fetched(story.ask(wanting(1_000, ORDERS)))) == ["a"]


def test_other_acks_are_refused() -> None:
    story = Story()
    request = attrs.evolve(produce_request(Identity(), {ORDERS: "a"}, name=None), acks=2)
    story.ask(request)
    assert story.visible() == ""
