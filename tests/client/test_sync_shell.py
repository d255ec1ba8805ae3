"""The blocking shell against a real broker on a real socket; faults of the broker lose what a story says."""

from __future__ import annotations

import math
import socket
import threading
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fencepost.broker.embedded import Broker
from fencepost.client.errors import (
    BufferFull,
    ClientClosed,
    CommitOutcomeUnknown,
    RequestFailed,
    RequestTimeout,
    TransactionAborted,
    UnknownTopic,
)
from fencepost.client.shells.sync import Admin, Consumer, Producer
from fencepost.faults.phrases import Point, PointKind
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import TopicPartition, TransactionState
from tests.reading import records
from tests.topics import create_topic

PATIENCE_S = 60.0  # longer than anything takes on a busy machine; only a failing test waits so long

PARTITIONS = [TopicPartition("t", number) for number in range(4)]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        create_topic(running.address, "t", 4)
        yield running


def read(address: str) -> list[bytes]:
    return [record.value or b"" for record in records(address, PARTITIONS)]


def test_a_record_is_delivered_while_its_sender_is_away(broker: Broker) -> None:
    with Producer(broker.address, linger_ms=1) as producer, Consumer(broker.address) as consumer:
        outcome = producer.send("t", b"alone")
        consumer.assign(PARTITIONS)
        values: list[bytes] = []
        for _ in range(100):
            values += [value for batch in consumer.poll(200) for value in batch.values]
            if values:
                break
        assert values == [b"alone"]
        assert outcome.result(10_000).offset == 0


@pytest.mark.usefixtures("hasty_threads")
def test_a_future_shows_where_its_record_is(broker: Broker) -> None:
    with Producer(broker.address, linger_ms=60_000) as producer:
        stored = producer.send("t", b"a", partition=2)
        assert repr(stored) == "<SendFuture t-2: pending>"
        producer.flush()
        assert repr(stored) == "<SendFuture t-2: offset 0>"
        left = producer.send("t", b"b", partition=2)
    assert repr(left) == "<SendFuture t-2: offset 1>"
    with Producer(broker.address, linger_ms=60_000, transactional_id="shop") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        aborted = producer.send("t", b"c", partition=2)
        producer.abort_transaction()
    assert repr(aborted) == "<SendFuture t-2: failed>"


def test_a_keeper_that_closes_batches_under_the_senders_hands_loses_nothing(broker: Broker) -> None:
    count = 10_000
    with Producer(broker.address, linger_ms=0, batch_size=2_000, buffer_memory=40_000) as producer:
        outcomes = [producer.send("t", b"%d" % i, b"%d" % (i % 97)) for i in range(count)]
        producer.flush()
        places = [outcome.result() for outcome in outcomes]
    assert len(set(places)) == count
    stored = sorted(zip([(place.partition, place.offset) for place in places], range(count), strict=True))
    assert read(broker.address) == [b"%d" % i for _, i in stored]


def test_columns_arrive_in_order_and_have_outcomes(broker: Broker) -> None:
    values = [b"%05d" % i * 20 for i in range(5_000)]
    keys = [b"%d" % (i % 7) if i % 3 else None for i in range(5_000)]
    with Producer(broker.address, batch_size=10_000, buffer_memory=50_000) as producer:
        placed = producer.send_many("t", values, keys).result()
        unkeyed = producer.send_many("t", values).result()
        named = producer.send_many("t", [b"", None, b"x"], [b"k", b"k", None], partition=3).result()
        assert len(producer.send_many("t", [])) == 0
    assert [place.partition for place in named] == [3, 3, 3]
    assert len({*placed, *unkeyed, *named}) == 10_003
    stored = dict.fromkeys(range(4), b"")
    with Consumer(broker.address) as consumer:
        consumer.assign(PARTITIONS)
        found: dict[tuple[int, int], tuple[bytes | None, bytes | None]] = {}
        for _ in range(200):
            for batch in consumer.poll(500):
                for offset, key, value in zip(batch.offsets, batch.keys, batch.values, strict=True):
                    found[batch.partition.partition, offset] = (key, value)
            if len(found) == 10_003:
                break
    assert stored
    assert [found[place.partition, place.offset] for place in placed] == list(zip(keys, values, strict=True))
    assert [found[place.partition, place.offset][1] for place in unkeyed] == values


# --- faults -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("message", ["app sends {}", "broker sends {} reply to app"])
@pytest.mark.parametrize(
    "kind", ["Produce", "EndTxn", "InitProducerId", "TxnOffsetCommit", "FindCoordinator", "Metadata"]
)
def test_a_lost_message_changes_nothing_but_the_time(broker: Broker, kind: str, message: str) -> None:
    where = TopicPartition("t", 0)
    broker.faults.when(message.format(kind)).do("drop")
    with Producer(broker.address, client_id="app", transactional_id="pay") as producer:
        producer.init_transactions()
        for value in (b"1", b"2"):
            with producer.transaction():
                producer.send("t", value, partition=0)
                producer.send_offsets_to_transaction({where: int(value)}, "g")
    assert read(broker.address) == [b"1", b"2"]
    with Consumer(broker.address, group_id="g") as consumer:
        assert consumer.committed([where]) == {where: 2}


@pytest.mark.parametrize("message", ["* sends Produce", "broker sends Produce reply to *"])
def test_an_idempotent_producer_stores_each_record_once_and_in_order(broker: Broker, message: str) -> None:
    for number in (2, 5):
        broker.faults.when(message, nth=number).do("drop")
    with Producer(broker.address, batch_size=100, buffer_memory=10_000, linger_ms=0) as producer:
        outcomes = [producer.send("t", b"%03d" % i + bytes(60), partition=1) for i in range(30)]
        assert [outcome.result().offset for outcome in outcomes] == list(range(30))
    assert [value[:3] for value in read(broker.address)] == [b"%03d" % i for i in range(30)]


def test_a_commit_without_an_answer_is_unknown_and_the_next_producer_finds_out(broker: Broker) -> None:
    broker.faults.when("broker sends EndTxn reply to *").do("hold")
    with Producer(broker.address, transactional_id="pay") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"x").result()
        with pytest.raises(CommitOutcomeUnknown, match="Close this producer"):
            producer.commit_transaction(timeout_ms=300)
        with pytest.raises(CommitOutcomeUnknown):
            producer.abort_transaction()
    with Producer(broker.address, transactional_id="pay") as heir:
        heir.init_transactions()
    assert read(broker.address) == [b"x"]


def test_an_uncertain_commit_in_a_block_is_not_aborted(broker: Broker) -> None:
    points: list[Point] = []
    broker.faults.watch(points.append)
    broker.faults.when("broker sends EndTxn reply to *").do("hold")
    with Producer(broker.address, transactional_id="pay", max_block_ms=1_500) as producer:
        producer.init_transactions()
        with pytest.raises(CommitOutcomeUnknown), producer.transaction():
            producer.send("t", b"x").result()
    assert [point.what for point in points if point.kind is PointKind.SENDS].count("EndTxn") == 1


def test_a_call_that_timed_out_is_made_again_and_finds_its_answer(broker: Broker) -> None:
    held = broker.faults.when("broker sends InitProducerId reply to *").do("hold")
    with Producer(broker.address, transactional_id="pay", max_block_ms=1_000, linger_ms=1) as producer:
        with pytest.raises(RequestTimeout, match="Call again"):
            producer.init_transactions()
        held.wait_until_struck(PATIENCE_S)
        broker.kill()
        broker.start()
        with Admin(broker.address) as admin:  # the IO thread retries, though no call waits for the answer
            while admin.describe_transaction("pay").producer_epoch == 0:
                pass
        for _ in range(60):  # once, unless the machine is so busy that a second is too short
            try:
                producer.init_transactions()
                break
            except RequestTimeout:
                continue
        with producer.transaction():
            producer.send("t", b"x")
    assert read(broker.address) == [b"x"]


def test_a_block_that_raised_is_not_held_up_by_a_broker_that_is_gone(tmp_path: Path) -> None:
    with Broker(str(tmp_path)) as gone:
        create_topic(gone.address, "t", 1)
        producer = Producer(gone.address, transactional_id="pay")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"x").result()
    with pytest.raises(RequestTimeout):
        producer.close(timeout_ms=100)
    with pytest.raises(ClientClosed):
        producer.begin_transaction()


def test_a_commit_that_is_given_up_leaves_nothing_behind_for_the_next(broker: Broker) -> None:
    broker.faults.when("broker sends Produce reply to *").do("hold")
    with Producer(broker.address, transactional_id="pay", request_timeout_ms=400) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"no")
        with pytest.raises(TransactionAborted, match="before the commit was sent"):
            producer.commit_transaction(timeout_ms=100)
        producer.abort_transaction()
        with producer.transaction():
            producer.send("t", b"yes")
    assert read(broker.address) == [b"yes"]


def test_the_client_finds_a_broker_that_was_restarted(tmp_path: Path) -> None:
    with Broker(str(tmp_path)) as first:
        port = int(first.address.rpartition(":")[2])
        create_topic(first.address, "t", 4)
        producer = Producer(first.address, transactional_id="pay")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"before")
        producer.flush()
    with Broker(str(tmp_path), port=port) as second:
        with producer:
            producer.send("t", b"after")
            producer.commit_transaction()
        assert sorted(read(second.address)) == [b"after", b"before"]


def test_no_broker_is_told_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
    with Admin(address, default_api_timeout_ms=200) as admin:
        with pytest.raises(RequestTimeout, match="no broker answered"):
            admin.list_topics()
    with Producer(address, max_block_ms=200) as producer:
        with pytest.raises(RequestTimeout, match="max_block_ms"):
            producer.send("t", b"x")


def test_a_stranger_that_answers_nonsense_is_left(broker: Broker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def babble() -> None:
            for _ in range(3):
                link, _ = listener.accept()
                with link:
                    link.recv(1_000)
                    link.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        stranger = threading.Thread(target=babble, daemon=True)
        stranger.start()
        port = listener.getsockname()[1]
        with Admin(f"127.0.0.1:{port},{broker.address}", default_api_timeout_ms=20_000) as admin:
            assert any(topic.topic == "t" for topic in admin.list_topics())


# --- limits and refusals ------------------------------------------------------------------------------------


def test_a_full_buffer_is_an_error_or_a_wait(broker: Broker) -> None:
    held = broker.faults.when("broker sends Produce reply to *").do("hold")
    with Producer(
        broker.address, batch_size=1_000, buffer_memory=1_000, linger_ms=0, max_block_ms=1_000
    ) as producer:
        producer.send("t", bytes(900), partition=0)
        with pytest.raises(BufferFull, match="flush"):
            producer.send_nowait("t", bytes(900), partition=1)
        with pytest.raises(BufferFull):
            producer.send("t", bytes(900), partition=1)
        held.wait_until_struck(PATIENCE_S)
        held.end()


@pytest.mark.parametrize("partition", [None, 0])
@pytest.mark.parametrize("key", ["text", bytearray(b"k"), array("b", [1]), 7])
def test_a_key_that_is_no_bytes_is_refused_on_the_short_way_too(
    broker: Broker, key: object, partition: int | None
) -> None:
    with Producer(broker.address, linger_ms=60_000) as producer:
        producer.send("t", b"opens a batch", b"k", partition=partition)
        with pytest.raises(TypeError):
            producer.send("t", b"v", key, partition=partition)
        producer.flush()
    assert read(broker.address) == [b"opens a batch"]


@pytest.mark.parametrize("partition", ["0", 1.0, 4])
def test_a_partition_that_is_none_is_refused_at_every_send(broker: Broker, partition: Any) -> None:
    kind, words = (UnknownTopic, "no partition") if type(partition) is int else (TypeError, "whole number")
    with Producer(broker.address, linger_ms=60_000) as producer:
        for where in (3, 0, 1, 2):
            with pytest.raises(kind, match=words):  # before and after the first batches are open
                producer.send("t", b"x", partition=partition)
            with pytest.raises(kind, match=words):
                producer.send_many("t", [b"x"], partition=partition)
            producer.send("t", b"opens a batch", partition=where)
        producer.flush()
    assert read(broker.address) == [b"opens a batch"] * 4


def test_a_request_times_out_by_the_clock_it_was_given() -> None:
    """The clock is the test's: thirty seconds go by at once."""
    now = [0]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"

        def clock() -> int:
            now[0] += 1_000
            return now[0]

        with Admin(address, default_api_timeout_ms=30_000, clock=clock) as admin:
            with pytest.raises(RequestTimeout):
                admin.list_topics()
        assert now[0] >= 30_000


def test_admin_tells_of_topics_transactions_and_producers(broker: Broker) -> None:
    with Admin(broker.address) as admin, Producer(broker.address, transactional_id="pay") as producer:
        with pytest.raises(RequestFailed) as told:
            admin.create_topic("t")
        assert told.value.error is ErrorCode.TOPIC_ALREADY_EXISTS
        with pytest.raises(RequestFailed):
            admin.describe_topic("nowhere")
        with pytest.raises(RequestFailed):
            admin.describe_transaction("nobody")
        assert len(admin.describe_topic("t").leaders) == 4
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"x", partition=2)
        producer.flush()
        (listed,) = admin.list_transactions([TransactionState.ONGOING])
        assert listed.transactional_id == "pay"
        described = admin.describe_transaction("pay")
        assert described.partitions == (PARTITIONS[2],)
        (known,) = admin.describe_producers(PARTITIONS[2])
        assert (known.producer_id, known.open_since_offset) == (listed.producer_id, 0)
        assert admin.end_offsets([PARTITIONS[2]]) == {PARTITIONS[2]: 0}
        assert admin.end_offsets([PARTITIONS[2]], "read_uncommitted") == {PARTITIONS[2]: 1}
        assert admin.beginning_offsets([PARTITIONS[2]]) == {PARTITIONS[2]: 0}
        producer.abort_transaction()
        admin.create_topic("gone")
        admin.delete_topic("gone")
        assert "gone" not in {topic.topic for topic in admin.list_topics()}


def test_a_closed_client_refuses_its_calls(broker: Broker) -> None:
    admin, consumer = Admin(broker.address), Consumer(broker.address, group_id="g")
    consumer.assign(PARTITIONS)
    for client in (admin, consumer):
        client.close()
        client.close()  # does nothing
    for call in (
        admin.list_topics,
        lambda: consumer.poll(0),
        lambda: consumer.position(PARTITIONS[0]),
        lambda: consumer.subscribe(["t"]),
    ):
        with pytest.raises(ClientClosed, match="made on a closed client"):
            call()


def test_nothing_is_overdue_for_ever(broker: Broker) -> None:
    with Producer(broker.address) as producer:
        producer.send("t", b"a")
        assert producer.overdue(math.inf) == {}
