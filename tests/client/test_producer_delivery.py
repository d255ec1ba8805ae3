"""Stories of batches: order, sequences, retries, time limits and memory, by values alone."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.client.batch import ProducerRecord
from fencepost.client.errors import (
    BufferFull,
    ClientClosed,
    DeliveryFailed,
    DeliveryTimeout,
    RecordTooLarge,
    WrongState,
)
from fencepost.client.producer_states import ProducerState
from fencepost.protocol import messages as m
from fencepost.protocol.compression import Compression
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.records import read_columns
from tests.batches import read_batch
from tests.client.conversation import ProducerTalk, idempotent, transactional


def started(**settings: int) -> ProducerTalk:
    """An idempotent producer whose first batch, of one record, is stored."""
    talk = idempotent(**settings)
    talk.send(b"0")
    talk.grant(producer_id=7)
    talk.store(base_offset=0)
    talk.done.clear()
    return talk


def test_the_first_record_asks_for_a_producer_id() -> None:
    talk = idempotent()
    talk.send(b"x")
    assert talk.waiting(m.InitProducerId)[0].transactional_id is None
    assert not talk.waiting(m.Produce)
    talk.grant(producer_id=11, epoch=0)
    ((_, header),) = talk.batches()
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (11, 0, 0)
    assert not header.is_transactional


def test_sequences_count_records_and_five_batches_are_in_flight() -> None:
    talk = started()
    for value in range(7):
        talk.send(b"%d" % value)
    assert talk.sequences() == [1, 2, 3, 4, 5]
    talk.store()
    assert talk.sequences() == [2, 3, 4, 5, 6]


def test_no_batch_goes_so_far_ahead_that_the_oldest_unanswered_one_would_be_forgotten() -> None:
    talk = started()
    for value in range(7):
        talk.send(b"%d" % value)
    second, third = [send for send in talk.sent if isinstance(send.request, m.Produce)][1:3]
    for send in (second, third):
        part = m.ProducedPartition(
            topic="t", partition=0, error=ErrorCode.NONE, base_offset=2, log_start_offset=0
        )
        talk.reply(send, m.ProduceReply(partitions=(part,)))
    assert talk.sequences() == [1, 4, 5]
    talk.store()
    assert talk.sequences() == [4, 5, 6, 7]


def test_one_request_carries_the_batches_of_several_partitions() -> None:
    talk = started(max_in_flight_requests_per_connection=1)
    talk.send(b"x")
    for partition in (0, 1):
        talk.send(b"y", partition=partition)
    talk.store()
    (produce,) = talk.waiting(m.Produce)
    assert [part.partition for part in produce.partitions] == [0, 1]


def test_a_retried_batch_keeps_its_sequence_and_goes_before_all_later_ones() -> None:
    talk = started()
    for value in (b"a", b"b", b"c"):
        talk.send(value)
    talk.lose(m.Produce)
    talk.store(error=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    talk.store(error=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    talk.send(b"d")
    talk.after(1_000)
    assert talk.sequences() == [1], "while one waits for its retry only the lowest sequence goes"
    for expected in ([2], [3, 4], [4]):
        talk.store()
        talk.after(1_000)
        assert talk.sequences() == expected, "a new one goes once none waits for a retry"
    talk.store()
    assert [done.failure for done in talk.done] == [None] * 4


def test_bytes_do_not_change_by_a_retry() -> None:
    talk = started()
    talk.send(b"x")
    first = bytes(talk.waiting(m.Produce)[0].partitions[0].records)
    talk.lose(m.Produce)
    talk.after(1_000)
    assert bytes(talk.waiting(m.Produce)[0].partitions[0].records) == first


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    ],
)
def test_what_passes_is_tried_again(error: ErrorCode) -> None:
    talk = started()
    talk.send(b"x")
    talk.store(error=error)
    assert not talk.waiting(m.Produce)
    talk.after(1_000)
    assert talk.sequences() == [1]
    talk.store(base_offset=5)
    assert [(done.base_offset, done.failure) for done in talk.done] == [(5, None)]


def test_a_batch_that_meets_the_end_of_the_last_transaction_is_soon_retried() -> None:
    talk = started()
    talk.send(b"x")
    for pause_ms in (1, 2, 4, 8):
        talk.store(error=ErrorCode.CONCURRENT_TRANSACTIONS)
        talk.after(pause_ms - 1)
        assert not talk.waiting(m.Produce)
        talk.after(1)
        assert talk.sequences() == [1]


def test_a_forgotten_duplicate_is_stored_at_an_unknown_offset() -> None:
    talk = started()
    talk.send(b"x")
    talk.store(error=ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    assert [(done.base_offset, done.failure) for done in talk.done] == [(-1, None)]


def test_answers_may_come_in_any_order() -> None:
    talk = started()
    talk.send(b"a")
    talk.send(b"b", partition=1)
    late, early = [send for send in talk.sent if isinstance(send.request, m.Produce)]
    for send, offset in ((early, 50), (late, 60)):
        talk.sent.remove(send)
        talk.sent.insert(0, send)
        talk.store(base_offset=offset)
    assert [(done.partition, done.base_offset) for done in talk.done] == [(1, 50), (0, 60)]


# --- a sequence that is missing -----------------------------------------------------------------------------


def test_a_refused_batch_leads_to_a_new_producer_id_and_later_batches_are_numbered_anew() -> None:
    talk = started()
    talk.send(b"bad")
    talk.send(b"good")
    talk.store(error=ErrorCode.INVALID_RECORD)
    assert [done.failure.kind for done in talk.done if done.failure] == [DeliveryFailed]
    talk.store(error=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    talk.send(b"new")
    assert not talk.waiting(m.Produce)
    talk.grant(producer_id=8)
    assert [(h.producer_id, h.base_sequence) for _, h in talk.batches()] == [(8, 0), (8, 1)]
    assert values_on_the_wire(talk) == [[b"good"], [b"new"]]


def test_a_batch_after_a_missing_one_that_may_be_stored_keeps_its_number_until_it_is_surely_not() -> None:
    """Its answer was lost: renumbering it at once could store it twice."""
    talk = started()
    talk.send(b"bad")
    talk.send(b"good")
    talk.store(error=ErrorCode.INVALID_RECORD)
    talk.grant(producer_id=8)
    talk.lose(m.Produce)
    talk.after(1_000)
    assert [(h.producer_id, h.base_sequence) for _, h in talk.batches()] == [(7, 2)]
    talk.store(error=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    talk.after(1_000)
    ((_, header),) = talk.batches()
    assert (header.producer_id, header.base_sequence) == (8, 0)


def test_a_batch_that_expired_names_the_last_error_of_its_broker() -> None:
    talk = started(delivery_timeout_ms=5_000)
    talk.send(b"x")
    talk.store(error=ErrorCode.KAFKA_STORAGE_ERROR)
    talk.after(5_000)
    (failure,) = [done.failure for done in talk.done if done.failure]
    assert failure.error is ErrorCode.KAFKA_STORAGE_ERROR
    assert "the log is damaged (KAFKA_STORAGE_ERROR)" in failure.because


def test_a_batch_that_expired_after_it_was_sent_leaves_its_sequence_unresolved() -> None:
    talk = started(delivery_timeout_ms=5_000)
    talk.send(b"x")
    talk.after(4_000)
    talk.send(b"y")
    talk.after(1_000)
    assert [done.failure.kind for done in talk.done if done.failure] == [DeliveryTimeout]
    assert talk.machine.state is ProducerState.INITIALIZING
    talk.store()  # the expired batch was stored after all: nothing changes
    talk.store()  # and so the next one was in order
    assert [done.failure for done in talk.done[1:]] == [None]
    talk.grant(producer_id=9)
    talk.send(b"z")
    assert [(h.producer_id, h.base_sequence) for _, h in talk.batches()] == [(9, 0)]


def test_a_batch_that_expired_before_it_was_sent_leaves_no_gap() -> None:
    talk = started(delivery_timeout_ms=5_000, max_in_flight_requests_per_connection=1)
    talk.send(b"x")
    talk.after(4_999)
    talk.store()
    talk.send(b"sent")
    talk.send(b"never sent")
    talk.after(4_999)
    talk.store()
    talk.lose(m.Produce)
    talk.after(1)
    assert talk.machine.state is not ProducerState.FATAL_ERROR


def test_other_partitions_go_on_while_one_waits_for_its_new_identity() -> None:
    talk = started()
    talk.send(b"bad")
    talk.store(error=ErrorCode.INVALID_RECORD)
    talk.send(b"waits")
    talk.send(b"goes", partition=1)
    assert [partition for partition, _ in talk.batches()] == [1]


@pytest.mark.parametrize("error", [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID])
def test_an_epoch_that_is_lost_at_one_partition_is_renewed(error: ErrorCode) -> None:
    """The broker forgot us: it says the second only if it is older than KIP-360."""
    talk = started()
    talk.send(b"x")
    talk.store(error=error)
    talk.grant(producer_id=8)
    assert [(h.producer_id, h.base_sequence) for _, h in talk.batches()] == [(8, 0)]
    talk.store()
    assert [done.failure for done in talk.done] == [None]


# --- batching -----------------------------------------------------------------------------------------------


def append(talk: ProducerTalk, value: bytes, key: bytes | None = None, partition: int | None = None) -> None:
    place = talk.machine.append(ProducerRecord("t", value, key, partition), now=talk.now, wall_ms=9_000)
    assert place is not None
    talk.hear(talk.machine.wake(talk.now))


def values_on_the_wire(talk: ProducerTalk) -> list[list[bytes | None]]:
    return [
        read_columns(part.records, read_batch(part.records)).values
        for produce in talk.waiting(m.Produce)
        for part in produce.partitions
    ]


def test_records_wait_for_company_and_no_longer() -> None:
    talk = started(linger_ms=20)
    append(talk, b"a", partition=0)
    talk.after(10)
    append(talk, b"b", partition=0)
    assert not talk.waiting(m.Produce)
    talk.after(10)
    assert values_on_the_wire(talk) == [[b"a", b"b"]]


def test_records_gather_while_no_more_may_be_in_flight() -> None:
    talk = started(linger_ms=1, max_in_flight_requests_per_connection=1)
    for value in (b"a", b"b", b"c", b"d"):
        append(talk, value, partition=0)
        talk.after(1)
    assert values_on_the_wire(talk) == [[b"a"]]
    talk.store()
    assert values_on_the_wire(talk) == [[b"b"]]
    talk.store()
    assert values_on_the_wire(talk) == [[b"c", b"d"]]
    assert talk.wake_at is not None
    assert talk.wake_at > talk.now, "what waits for an answer has no time of its own"


def test_without_linger_a_lone_record_goes_at_once_and_the_next_ones_together() -> None:
    talk = started(linger_ms=0)
    for value in (b"a", b"b", b"c"):
        append(talk, value, partition=0)
    append(talk, b"elsewhere", partition=1)
    assert values_on_the_wire(talk) == [[b"a"], [b"elsewhere"]]
    talk.after(100)
    assert len(talk.waiting(m.Produce)) == 2
    talk.store()
    assert values_on_the_wire(talk) == [[b"elsewhere"], [b"b", b"c"]]
    assert talk.wake_at is not None
    assert talk.wake_at > talk.now, "what waits for an answer has no time of its own"


def test_a_full_batch_does_not_wait() -> None:
    talk = started(linger_ms=1_000, batch_size=100)
    for _ in range(3):
        append(talk, bytes(40), partition=0)
    assert values_on_the_wire(talk) == [[bytes(40), bytes(40)]]


def test_a_record_larger_than_a_batch_goes_alone() -> None:
    talk = started(batch_size=100, buffer_memory=1_000)
    append(talk, bytes(500), partition=0)
    append(talk, b"x", partition=0)
    talk.after(5)
    assert [len(values) for values in values_on_the_wire(talk)] == [1, 1]


def test_equal_keys_go_to_one_partition_and_null_keys_take_turns_by_batch() -> None:
    talk = started(linger_ms=1)
    for key in (b"a", b"b", b"a", b"b"):
        append(talk, b"v", key)
        talk.after(1)
    by_key: dict[bytes | None, set[int]] = {}
    for produce in talk.waiting(m.Produce):
        for part in produce.partitions:
            for key in read_columns(part.records, read_batch(part.records)).keys or []:
                by_key.setdefault(key, set()).add(part.partition)
    assert all(len(partitions) == 1 for partitions in by_key.values())
    assert set(by_key) == {b"a", b"b"}
    calm = started(linger_ms=1)
    for _ in range(4):
        append(calm, b"v")
        calm.after(1)
    first, second, third, fourth = [partition for partition, _ in calm.batches()]
    assert {first, second} == {0, 1}
    assert (third, fourth) == (first, second)


def test_null_keys_values_headers_and_timestamps_survive_in_one_batch() -> None:
    talk = started()
    records = [
        (b"v", None, None, None),
        (None, b"k", None, None),
        (b"v", b"k", 9_500, None),
        (b"v", None, None, [("h", b"1"), ("n", None)]),
    ]
    for value, key, timestamp, headers in records:
        record = ProducerRecord("t", value, key, 0, timestamp, headers)
        talk.machine.append(record, now=talk.now, wall_ms=9_000)
    talk.hear(talk.machine.flush(talk.now))
    (part,) = talk.waiting(m.Produce)[0].partitions
    header = read_batch(part.records)
    columns = read_columns(part.records, header)
    assert columns.values == [b"v", None, b"v", b"v"]
    assert columns.keys == [None, b"k", b"k", None]
    assert [header.base_timestamp + delta for delta in columns.timestamp_deltas or []] == [
        9_000,
        9_000,
        9_500,
        9_000,
    ]
    assert columns.headers == [None, None, None, [("h", b"1"), ("n", None)]]


def test_a_record_that_comes_in_while_its_batch_is_closed_is_sent_once() -> None:
    """What a sending thread and the keeper do between two instructions of the other, step by step."""
    talk = started(linger_ms=1_000)
    append(talk, b"in", b"k", partition=0)
    (batch,) = talk.machine.accumulator.batches.values()
    assert batch.keys is not None
    batch.keys.append(b"k")  # the sender is in the middle of its record ...
    batch.close()  # ... when the keeper sets the mark ...
    batch.values.append(b"late")  # ... and goes on
    assert batch.record_count == 1, "so the sender sends it again"
    batch.base_sequence = 1
    batch.build(producer_id=7, producer_epoch=0, transactional=False, compression=Compression.NONE)
    assert batch.data is not None
    columns = read_columns(batch.data, read_batch(batch.data))
    assert (columns.keys, columns.values) == ([b"k"], [b"in"])
    assert len(batch.values) >= batch.record_count, (
        "one that comes later still must not take itself for a part"
    )


def test_memory_is_bounded_and_given_back() -> None:
    talk = started(batch_size=100, buffer_memory=250, linger_ms=1_000)
    append(talk, bytes(90), partition=0)
    append(talk, bytes(90), partition=1)
    with pytest.raises(BufferFull, match="flush"):
        append(talk, bytes(90), partition=0)
    talk.hear(talk.machine.flush(talk.now))
    talk.store()
    append(talk, bytes(90), partition=0)
    assert talk.machine.accumulator.used <= 250


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"value": "text"}, TypeError, "value_serializer"),
    ({"key": 7}, TypeError, "key_serializer"),
    ({"topic": 3}, TypeError, "topic must be a string"),
    ({"partition": "0"}, TypeError, "partition must be a whole number or None, not '0'"),
    ({"partition": 1.0}, TypeError, r"partition must be a whole number or None, not 1\.0"),
    ({"timestamp_ms": -5}, ValueError, "timestamp_ms must be a whole number from 0"),
    ({"timestamp_ms": 2**63}, ValueError, "timestamp_ms must be a whole number from 0"),
    ({"headers": [("h", "text")]}, TypeError, "each of headers must be a pair"),
    ({"headers": [(b"h", b"x")]}, TypeError, "each of headers must be a pair"),
    ({"topic": "\ud800"}, ValueError, "topic must be text that UTF-8 can encode"),
    ({"headers": [("\ud800", b"x")]}, ValueError, "each name of headers must be text that UTF-8 can encode"),
    ({"value": bytes(2_000_000)}, RecordTooLarge, "Split the record"),
]


@pytest.mark.parametrize(("wrong", "kind", "words"), WRONG)
def test_what_no_batch_can_hold_is_refused_before_it_is_taken(
    wrong: dict[str, Any], kind: type[Exception], words: str
) -> None:
    talk = started(buffer_memory=1_000_000)
    record: dict[str, Any] = {"topic": "t", "value": b"v"} | wrong
    with pytest.raises(kind, match=words):
        talk.machine.append(ProducerRecord(**record), now=0, wall_ms=0)
    assert not talk.machine.accumulator.batches


def test_a_producer_without_a_transactional_id_has_no_transactions() -> None:
    talk = idempotent()
    with pytest.raises(WrongState, match="transactional_id"):
        talk.machine.begin()


def test_closing_gives_every_record_an_outcome() -> None:
    talk = started()
    talk.send(b"x")
    append(talk, b"y", partition=0)
    talk.hear(talk.machine.close(talk.now))
    assert [done.failure.kind for done in talk.done if done.failure] == [ClientClosed, ClientClosed]
    assert talk.machine.accumulator.used == 0


def test_a_spoiled_transaction_gives_every_record_an_outcome() -> None:
    talk = transactional(max_in_flight_requests_per_connection=1)
    talk.machine.begin()
    for _ in range(3):
        talk.send(b"x")
    talk.store(error=ErrorCode.INVALID_RECORD)
    assert len(talk.done) == 3
    assert not talk.machine.accumulator.batches
