"""The consumer core by values alone: the filter against Kafka's own vectors, positions, resets, and what a
seek makes stale.
"""

from __future__ import annotations

from typing import TypeVar

import pytest

from fencepost.client.consumer import WAITING_FETCHES_MAX, ConsumerMachine
from fencepost.client.consumer_problems import RETRY_WARNING_MS
from fencepost.client.consumer_records import AbortedFilter, ConsumedBatch, RecordDecoder, select
from fencepost.client.effects import CallAnswered, Effect, SendRequest, WakeAt, WarnProgram
from fencepost.client.errors import ClientError, CorruptRecords, OffsetOutOfRange, UnknownTopic, WrongState
from fencepost.client.serializers import json_deserializer, json_serializer, string_deserializer
from fencepost.client.settings import ConsumerSettings
from fencepost.protocol import messages as m
from fencepost.protocol.batches import build_marker, place
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.fork import fingerprint, fork
from fencepost.protocol.messages import AbortedTransaction, ReplyBody
from fencepost.protocol.records import build_data_batch
from fencepost.protocol.terms import IsolationLevel, TopicPartition, TransactionResult
from tests.batches import read_batch

HERE = TopicPartition("t", 0)
RequestT = TypeVar("RequestT")
COMMIT, ABORT = TransactionResult.COMMIT, TransactionResult.ABORT


class Log:
    """A log as bytes, built batch by batch."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.end = 0

    def add(self, producer_id: int, count: int = 1, *, transactional: bool = True) -> Log:
        values = [b"%d" % (self.end + i) for i in range(count)]
        batch = build_data_batch(
            values,
            base_timestamp=1_000,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=transactional,
        )
        return self._append(batch, count)

    def mark(self, producer_id: int, result: TransactionResult) -> Log:
        marker = build_marker(
            result, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp=1
        )
        return self._append(marker, 1)

    def _append(self, batch: bytearray, count: int) -> Log:
        place(batch, base_offset=self.end, leader_epoch=0)
        self.data += batch
        self.end += count
        return self


def aborted(*entries: tuple[int, int]) -> tuple[AbortedTransaction, ...]:
    return tuple(AbortedTransaction(producer_id=who, first_offset=first) for who, first in entries)


def offsets(batches: list[ConsumedBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.offsets]


def interleaved() -> Log:
    """FetcherTest.testReadCommittedWithCommittedAndAbortedTransactions."""
    log = Log().add(1).add(1).add(2).mark(1, COMMIT).add(2).mark(2, ABORT)
    return log.add(1).add(2).add(1).mark(1, ABORT).mark(2, COMMIT)


Case = tuple[Log, tuple[AbortedTransaction, ...] | None, int, list[int], int]
CASES: list[Case] = [
    # log, aborted list, from, offsets that are handed out, where the reader goes on
    (interleaved(), aborted((2, 2), (1, 6)), 0, [0, 1, 7], 11),
    (interleaved(), None, 0, [0, 1, 2, 4, 6, 7, 8], 11),
    (
        Log().add(1).mark(1, ABORT).mark(1, ABORT).add(1).mark(1, COMMIT),
        aborted((1, 0)),
        0,
        [3],
        5,
    ),  # MultipleAbortMarkers
    (Log().mark(1, ABORT).add(1).mark(1, COMMIT), aborted(), 0, [1], 3),  # AbortMarkerWithNoData
    (Log().add(1, 3).mark(1, ABORT), aborted((1, 0)), 0, [], 4),  # ConsumerPositionUpdatedWhenSkippingAborted
    (Log().add(1, 3).mark(1, ABORT).add(1, 2).mark(1, COMMIT), aborted((1, 0)), 2, [4, 5], 7),
    (Log().add(1, 5, transactional=False).mark(1, ABORT), aborted((1, 0)), 0, [0, 1, 2, 3, 4], 6),
    (
        Log().add(1, 3).mark(1, ABORT).add(1, 3).mark(1, ABORT),
        aborted((1, 0), (1, 4)),
        0,
        [],
        8,
    ),  # added again
    (Log().add(9, 6), aborted(), 4, [4, 5], 6),
]


@pytest.mark.parametrize(("log", "aborted_list", "position", "expected", "next_offset"), CASES)
def test_what_a_fetch_hands_out(
    log: Log,
    aborted_list: tuple[AbortedTransaction, ...] | None,
    position: int,
    expected: list[int],
    next_offset: int,
) -> None:
    selection = select(HERE, memoryview(log.data), position=position, aborted=aborted_list)
    assert offsets(selection.batches) == expected
    assert [value for batch in selection.batches for value in batch.values] == [b"%d" % o for o in expected]
    assert selection.next_offset == next_offset


def test_without_its_filter_read_committed_would_show_aborted_records() -> None:
    """The planted fault of `--break isolation`: this test would pass for a filter that drops nothing."""
    log = interleaved()
    shown = [
        AbortedFilter(aborted((2, 2), (1, 6))).drops(read_batch(log.data, at), memoryview(log.data), at)
        for at in (0,)
    ]
    assert shown == [False]
    machine = reading(log, ConsumerSettings(filters_aborted=False), aborted((2, 2), (1, 6)))
    assert offsets(machine.take()) == [0, 1, 2, 4, 6, 7, 8]


def test_a_batch_is_a_view_with_columns_and_records() -> None:
    batch = build_data_batch(
        [json_serializer({"n": 1}), None],
        keys=[b"k", None],
        timestamp_deltas=[0, 7],
        headers=[None, [("h", b"x")]],
        base_timestamp=1_000,
        producer_id=3,
    )
    place(batch, base_offset=40, leader_epoch=0)
    decoding = RecordDecoder(key=string_deserializer, value=json_deserializer)
    (view,) = select(HERE, memoryview(batch), position=40, aborted=None, decoding=decoding).batches
    assert (view.base_offset, view.next_offset, view.producer_id, len(view)) == (40, 42, 3, 2)
    assert (view.keys, view.values, view.timestamps) == (["k", None], [{"n": 1}, None], [1_000, 1_007])
    first, second = view
    assert (first.topic, first.partition, first.offset, first.key, first.value) == ("t", 0, 40, "k", {"n": 1})
    assert (second.timestamp, second.headers) == (1_007, [("h", b"x")])
    (rest,) = select(HERE, memoryview(batch), position=41, aborted=None).batches
    assert (rest.base_offset, rest.values, rest.headers, list(rest.offsets)) == (
        41,
        [None],
        [[("h", b"x")]],
        [41],
    )


def test_a_compacted_batch_is_trimmed_by_offsets_and_left_by_its_header() -> None:
    batch = build_data_batch([b"a", b"c"], offset_deltas=[1, 4], last_offset_delta=9, base_timestamp=0)
    place(batch, base_offset=100, leader_epoch=0)
    selection = select(HERE, memoryview(batch), position=102, aborted=None)
    assert [list(view.offsets) for view in selection.batches] == [[104]]
    assert selection.next_offset == 110


# --- the machine --------------------------------------------------------------------------------------------


class Reader:
    """A consumer core, with what it sent and has no answer to."""

    def __init__(self, settings: ConsumerSettings, *partitions: TopicPartition) -> None:
        self.machine = ConsumerMachine("h:1", settings)
        self.machine.assign(partitions or (HERE,))
        self.now = 1_000
        self.sent: list[SendRequest] = []
        self.answered: list[CallAnswered] = []
        self.warned: list[str] = []
        self.wake_at: int | None = None
        self.unknown: ErrorCode = ErrorCode.NONE
        self.wake()

    def wake(self) -> None:
        self.hear(self.machine.wake(self.now))

    def hear(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendRequest(request=m.Metadata()):
                    self.hear(self.machine.on_reply(effect.token, ErrorCode.NONE, self.metadata(), self.now))
                case SendRequest(request=m.FindCoordinator()):
                    found = m.FindCoordinatorReply(node_id=1, host="h", port=1)
                    self.hear(self.machine.on_reply(effect.token, ErrorCode.NONE, found, self.now))
                case SendRequest():
                    self.sent.append(effect)
                case WakeAt():
                    self.wake_at = effect.at
                case CallAnswered():
                    self.answered.append(effect)
                case WarnProgram():
                    self.warned.append(effect.because)
                case _:
                    raise AssertionError(effect)

    def metadata(self) -> m.MetadataReply:
        parts = tuple(
            m.PartitionMetadata(partition=number, leader_id=1, leader_epoch=0)
            for number in range(WAITING_FETCHES_MAX + 2)
        )
        topic = m.TopicMetadata(topic="t", error=self.unknown, is_internal=False, partitions=parts)
        nodes = (m.NodeAddress(node_id=1, host="h", port=1),)
        return m.MetadataReply(cluster_id="c", controller_id=1, nodes=nodes, topics=(topic,))

    def after(self, ms: int) -> None:
        self.now += ms
        self.wake()

    def answer(self, kind: type, body: ReplyBody | None, error: ErrorCode = ErrorCode.NONE) -> None:
        send = next(send for send in self.sent if isinstance(send.request, kind))
        self.sent.remove(send)
        self.hear(self.machine.on_reply(send.token, error, body, self.now))

    def start_at(self, offset: int) -> None:
        """Answers the question where to begin."""
        listed = m.ListedOffset(topic="t", partition=0, error=ErrorCode.NONE, timestamp=-1, offset=offset)
        self.answer(m.ListOffsets, m.ListOffsetsReply(partitions=(listed,)))

    def fetched(
        self,
        data: bytes | bytearray,
        *,
        error: ErrorCode = ErrorCode.NONE,
        aborted_list: tuple[AbortedTransaction, ...] | None = None,
    ) -> None:
        part = m.FetchedPartition(
            topic="t", partition=0, error=error, high_watermark=9, last_stable_offset=9, log_start_offset=0,
            aborted=aborted_list, records=memoryview(data),
        )  # fmt: skip
        self.answer(m.Fetch, m.FetchReply(partitions=(part,)))

    def answer_fetch(self, partitions: set[int], *, with_records: set[int]) -> None:
        """Answers the fetch of these partitions; a batch has one record."""
        send = next(each for each in self.sent if self._fetches(each) == partitions)
        parts = tuple(
            m.FetchedPartition(
                topic="t", partition=number, error=ErrorCode.NONE, high_watermark=9, last_stable_offset=9,
                log_start_offset=0, aborted=None,
                records=memoryview(Log().add(1).data if number in with_records else b""),
            )
            for number in sorted(partitions)
        )  # fmt: skip
        self.sent.remove(send)
        self.hear(self.machine.on_reply(send.token, ErrorCode.NONE, m.FetchReply(partitions=parts), self.now))

    @staticmethod
    def _fetches(send: SendRequest) -> set[int]:
        return (
            {part.partition for part in send.request.partitions}
            if isinstance(send.request, m.Fetch)
            else set()
        )

    @property
    def fetches(self) -> list[tuple[set[int], int]]:
        """The partitions of each fetch without an answer, and how long it may wait, in ms."""
        return [
            (self._fetches(send), send.request.max_wait_ms)
            for send in self.sent
            if isinstance(send.request, m.Fetch)
        ]

    def waiting(self, kind: type[RequestT]) -> list[RequestT]:
        return [send.request for send in self.sent if isinstance(send.request, kind)]

    @property
    def fetch_offsets(self) -> list[int]:
        return [part.fetch_offset for fetch in self.waiting(m.Fetch) for part in fetch.partitions]


def reading(
    log: Log, settings: ConsumerSettings, aborted_list: tuple[AbortedTransaction, ...] | None = None
) -> ConsumerMachine:
    reader = Reader(settings)
    reader.start_at(0)
    reader.fetched(log.data, aborted_list=aborted_list)
    return reader.machine


def test_the_next_fetch_is_on_its_way_before_the_batches_are_read() -> None:
    reader = Reader(ConsumerSettings())
    reader.start_at(0)
    reader.fetched(Log().add(1, 5).data)
    assert not reader.waiting(m.Fetch), "what waits is bounded: one fetch per partition"
    batches = reader.machine.take()
    reader.wake()
    assert reader.fetch_offsets == [5]
    assert offsets(batches) == [0, 1, 2, 3, 4]
    assert reader.machine.positions == {HERE: 5}


def test_few_fetches_of_a_node_wait_at_once() -> None:
    """A broker reads no request from a connection with eight fetches in progress: a further fetch would wait
    until one of them is answered, even if there are records for it.
    """
    count = WAITING_FETCHES_MAX + 2
    reader = Reader(ConsumerSettings(), *[TopicPartition("t", number) for number in range(count)])
    for where in reader.machine.assigned:
        reader.machine.seek(where, 0)
    reader.sent.clear()
    reader.wake()
    others, last = set(range(count)), WAITING_FETCHES_MAX - 1
    for number in range(last):  # one partition after the other gets a fetch of its own
        reader.answer_fetch(others, with_records={number})
        others -= {number}
        reader.machine.take()
        reader.wake()
    reader.answer_fetch(others, with_records={last})
    others -= {last}
    alone = [({number}, 500) for number in range(last)]
    assert reader.fetches == [*alone, (others, 500)]
    reader.machine.take()
    reader.wake()
    assert reader.fetches[len(alone) + 1 :] == [({last}, 0)], (
        "there may be records, so this one does not wait"
    )
    reader.answer_fetch({last}, with_records=set())
    assert reader.fetches == [*alone, (others, 500)], "its end is known: it is not asked again"
    reader.answer_fetch({0}, with_records=set())
    assert reader.fetches == [*alone[1:], (others, 500), ({0, last}, 500)], "it waits together with the next"


def test_a_fetch_from_before_a_seek_still_waits_at_the_broker() -> None:
    reader = Reader(ConsumerSettings())
    reader.start_at(0)
    for _ in range(WAITING_FETCHES_MAX):
        reader.machine.seek(HERE, 9)
        reader.wake()
    assert [wait for _, wait in reader.fetches] == [500] * WAITING_FETCHES_MAX + [0]


def test_the_position_moves_with_what_is_handed_out_and_over_what_never_is() -> None:
    reader = Reader(ConsumerSettings())
    reader.start_at(0)
    reader.fetched(Log().add(1, 2).mark(1, ABORT).data, aborted_list=aborted((1, 0)))
    assert reader.machine.positions == {HERE: 3}
    assert reader.fetch_offsets == [3]
    reader.fetched(b"")
    assert reader.machine.take() == []
    assert reader.machine.positions == {HERE: 3}


def test_an_answer_from_before_a_seek_is_dropped() -> None:
    reader = Reader(ConsumerSettings())
    reader.start_at(0)
    reader.machine.seek(HERE, 3)
    reader.wake()
    assert reader.fetch_offsets == [0, 3]
    reader.fetched(Log().add(1, 2).data)
    assert reader.machine.take() == []
    reader.fetched(Log().add(1, 5).data)
    assert offsets(reader.machine.take()) == [3, 4]


def test_a_question_where_to_begin_is_dropped_by_a_seek() -> None:
    reader = Reader(ConsumerSettings())
    reader.machine.seek(HERE, 3)
    reader.wake()
    reader.start_at(0)
    assert reader.machine.positions == {HERE: 3}
    assert not reader.answered, "nobody waits for that answer any more"


@pytest.mark.parametrize(
    ("reset", "timestamp"), [("earliest", -2), ("latest", -1), ("by_duration:P99999999D", 0)]
)
def test_out_of_range_goes_where_the_policy_says(reset: str, timestamp: int) -> None:
    reader = Reader(ConsumerSettings(auto_offset_reset=reset))
    reader.machine.seek(HERE, 999)
    reader.sent.clear()
    reader.wake()
    reader.fetched(b"", error=ErrorCode.OFFSET_OUT_OF_RANGE)
    (asked,) = reader.waiting(m.ListOffsets)
    assert asked.partitions[0].timestamp == timestamp
    reader.start_at(6)
    reader.after(1_000)
    assert reader.fetch_offsets == [6]


def test_out_of_range_is_an_error_when_the_policy_says_so() -> None:
    reader = Reader(ConsumerSettings(auto_offset_reset="error"))
    with pytest.raises(OffsetOutOfRange, match="seek"):
        reader.machine.take()
    reader.machine.seek(HERE, 999)
    reader.wake()
    reader.fetched(b"", error=ErrorCode.OFFSET_OUT_OF_RANGE)
    with pytest.raises(OffsetOutOfRange):
        reader.machine.take()


@pytest.mark.parametrize("isolation_level", IsolationLevel)
def test_a_group_begins_at_its_committed_offsets_once_they_are_stable(
    isolation_level: IsolationLevel,
) -> None:
    """For every reader: one that reads open transactions would otherwise copy their input a second time."""
    reader = Reader(ConsumerSettings(group_id="g", isolation_level=isolation_level))
    (asked,) = reader.waiting(m.OffsetFetch)
    assert asked.require_stable
    reader.answer(m.OffsetFetch, committed(-1, ErrorCode.UNSTABLE_OFFSET_COMMIT))
    assert not reader.waiting(m.OffsetFetch)
    reader.after(1_000)
    reader.answer(m.OffsetFetch, committed(7))
    assert reader.fetch_offsets == [7]


def test_a_group_that_committed_nothing_begins_where_the_policy_says() -> None:
    reader = Reader(ConsumerSettings(group_id="g", isolation_level=IsolationLevel.READ_UNCOMMITTED))
    reader.answer(m.OffsetFetch, committed(-1))
    assert reader.waiting(m.ListOffsets)


def committed(offset: int, error: ErrorCode = ErrorCode.NONE) -> m.OffsetFetchReply:
    entry = m.FetchedOffset(topic="t", partition=0, error=error, offset=offset, leader_epoch=-1, metadata="")
    return m.OffsetFetchReply(offsets=(entry,))


@pytest.mark.parametrize(
    "error", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR]
)
def test_a_fetch_is_tried_again_after_a_pause(error: ErrorCode) -> None:
    reader = Reader(ConsumerSettings())
    reader.start_at(0)
    reader.fetched(b"", error=error)
    assert not reader.waiting(m.Fetch)
    assert reader.wake_at is not None
    reader.after(1_000)
    assert reader.fetch_offsets == [0]


def test_a_problem_of_one_partition_does_not_wait_for_the_end_of_another() -> None:
    """There may always be records of the other one: the program would never hear of the problem."""
    other = TopicPartition("t", 1)
    reader = Reader(ConsumerSettings(auto_offset_reset="none"), HERE, other)
    reader.machine.seek(HERE, 99)
    reader.machine.seek(other, 0)
    reader.wake()
    log = Log().add(1)
    reader.answer(m.Fetch, m.FetchReply(partitions=(out_of_range(HERE), fetched_from(other, log))))
    assert offsets(reader.machine.take()) == [0]
    reader.wake()
    reader.answer(m.Fetch, m.FetchReply(partitions=(fetched_from(other, log.add(1)),)))
    with pytest.raises(OffsetOutOfRange):
        reader.machine.take()
    assert offsets(reader.machine.take()) == [1], "no record is lost by it"


def fetched_from(where: TopicPartition, log: Log, error: ErrorCode = ErrorCode.NONE) -> m.FetchedPartition:
    return m.FetchedPartition(
        topic=where.topic, partition=where.partition, error=error, high_watermark=9, last_stable_offset=9,
        log_start_offset=0, aborted=None, records=memoryview(log.data),
    )  # fmt: skip


def out_of_range(where: TopicPartition) -> m.FetchedPartition:
    return fetched_from(where, Log(), ErrorCode.OFFSET_OUT_OF_RANGE)


def test_damage_is_told_after_everything_before_it_was_handed_out() -> None:
    log = Log().add(1, 2)
    damaged = bytearray(Log().add(1, 2).data)
    damaged[-1] ^= 1
    reader = Reader(ConsumerSettings())
    reader.start_at(0)
    reader.fetched(log.data)
    assert offsets(reader.machine.take()) == [0, 1]
    reader.wake()
    reader.fetched(damaged)
    with pytest.raises(CorruptRecords, match="checksum"):
        reader.machine.take()


def test_what_a_fetch_has_before_a_damaged_batch_is_handed_out_first() -> None:
    fetched = Log().add(1, 2).add(1, 2).data
    fetched[-1] ^= 1
    reader = Reader(ConsumerSettings())
    reader.start_at(0)
    reader.fetched(fetched)
    assert offsets(reader.machine.take()) == [0, 1]
    with pytest.raises(CorruptRecords, match=r"at offset 2: .*checksum"):
        reader.machine.take()
    reader.wake()
    assert reader.fetch_offsets == [2], "and it stays there"


def test_a_topic_that_stays_unknown_is_told() -> None:
    reader = Reader(ConsumerSettings())
    reader.unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    reader.machine.cluster.is_stale = True
    for _ in range(30):
        reader.after(100)
    with pytest.raises(UnknownTopic, match="create_topic"):
        reader.machine.take()


def test_a_partition_that_stays_missing_is_told_and_the_others_are_read() -> None:
    reader = Reader(ConsumerSettings())
    missing = TopicPartition("t", 9)
    reader.machine.assign([HERE, missing])
    reader.start_at(0)
    reader.fetched(Log().add(1, 2).data)
    for _ in range(30):
        reader.after(100)
    assert offsets(reader.machine.take()) == [0, 1]
    with pytest.raises(UnknownTopic, match="there is no partition 9"):
        reader.machine.take()


def test_a_poll_without_partitions_is_refused() -> None:
    machine = Reader(ConsumerSettings()).machine
    machine.check_has_partitions()
    machine.assign([])
    with pytest.raises(WrongState, match=r"call subscribe\(\) or assign\(\) first"):
        machine.check_has_partitions()


def test_only_assigned_partitions_can_be_sought() -> None:
    reader = Reader(ConsumerSettings())
    with pytest.raises(WrongState, match="assign"):
        reader.machine.seek(TopicPartition("t", 5), 0)
    with pytest.raises(ClientError, match="group_id"):
        reader.machine.committed_request([HERE])


def test_a_copy_goes_its_own_way() -> None:
    reader = Reader(ConsumerSettings())
    reader.start_at(0)
    reader.fetched(Log().add(1, 5).data)
    twin = fork(reader.machine)
    before = fingerprint(twin)
    assert before == fingerprint(reader.machine)
    assert hash(before) == hash(fingerprint(reader.machine))
    assert offsets(reader.machine.take()) == [0, 1, 2, 3, 4]
    assert fingerprint(twin) == before
    assert offsets(twin.take()) == [0, 1, 2, 3, 4]


def refuse(reader: Reader, kind: type, error: ErrorCode, ms: int) -> None:
    """The leader answers each request of a kind with an error, for so long; then the next one waits."""
    until = reader.now + ms
    while True:
        while not any(isinstance(send.request, kind) for send in reader.sent):
            reader.after(100)
        if reader.now >= until:
            return
        reader.answer(kind, None, error)


@pytest.mark.parametrize("kind", [m.ListOffsets, m.Fetch])
def test_a_partition_whose_leader_refuses_to_read_it_is_warned_of_once(kind: type) -> None:
    reader = Reader(ConsumerSettings())
    if kind is m.Fetch:
        reader.start_at(0)
    refuse(reader, kind, ErrorCode.KAFKA_STORAGE_ERROR, RETRY_WARNING_MS // 2)
    assert reader.warned == []
    refuse(reader, kind, ErrorCode.KAFKA_STORAGE_ERROR, 10 * RETRY_WARNING_MS)
    (warned,) = reader.warned
    assert warned == (
        "cannot read t-0: the broker's disk failed, or the log is damaged (KAFKA_STORAGE_ERROR); "
        "the consumer keeps trying"
    )
    if kind is m.ListOffsets:
        reader.start_at(0)
    reader.fetched(Log().add(1).data)
    assert offsets(reader.machine.take()) == [0]
    reader.wake()
    refuse(reader, m.Fetch, ErrorCode.KAFKA_STORAGE_ERROR, 2 * RETRY_WARNING_MS)
    assert reader.warned == [warned, warned], "it could be read meanwhile"


def test_an_error_that_passes_is_not_warned_of() -> None:
    reader = Reader(ConsumerSettings())
    reader.start_at(0)
    for _ in range(10):
        refuse(reader, m.Fetch, ErrorCode.KAFKA_STORAGE_ERROR, RETRY_WARNING_MS // 2)
        reader.fetched(b"")
    refuse(reader, m.Fetch, ErrorCode.NETWORK_EXCEPTION, 2 * RETRY_WARNING_MS)
    assert reader.warned == []
