"""Producers of both generations against real brokers of each, over sockets and through lost answers."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import pytest

from fencepost.broker.embedded import Broker
from fencepost.client.errors import ProducerFailed, ProducerFenced, TransactionAborted
from fencepost.client.shells import aio
from fencepost.client.shells.sync import Consumer, Producer
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import TopicPartition
from tests.broker.story import FEW_LOGS
from tests.reading import records
from tests.topics import create_topic

PARTITIONS = [TopicPartition("t", number) for number in range(2)]
HERE = PARTITIONS[0]


def broker_of(version: int) -> Broker:
    return Broker(transaction_version=version, override=FEW_LOGS)


def make_topic(address: str) -> None:
    create_topic(address, "t", len(PARTITIONS))


@pytest.fixture(params=[0, 1, 2], ids=lambda version: f"transaction.version-{version}")
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with broker_of(request.param) as running:
        make_topic(running.address)
        yield running


@pytest.fixture
def address(broker: Broker) -> str:
    return broker.address


def committed(address: str) -> list[bytes]:
    """The values that a reader of committed data sees."""
    return sorted(record.value or b"" for record in records(address, PARTITIONS))


def test_a_producer_of_old_commits_and_aborts_on_every_cluster(address: str) -> None:
    with (
        Producer(address, transactional_id="pay", transaction_version=0) as producer,
        Consumer(address, group_id="g") as consumer,
    ):
        producer.init_transactions()
        for number in range(3):
            with producer.transaction():
                for part in range(len(PARTITIONS)):
                    producer.send("t", b"yes-%d-%d" % (number, part), partition=part)
                producer.send_offsets_to_transaction({HERE: number}, "g")
            producer.begin_transaction()
            producer.send("t", b"no", partition=0)
            producer.flush()
            producer.send_offsets_to_transaction({HERE: 99}, "g")
            producer.abort_transaction()
        assert consumer.committed([HERE]) == {HERE: 2}
    assert committed(address) == [b"yes-%d-%d" % (n, part) for n in range(3) for part in range(2)]


def test_whoever_comes_later_fences_a_producer_of_old(address: str) -> None:
    with (
        Producer(address, transactional_id="pay", transaction_version=0) as zombie,
        Producer(address, transactional_id="pay", transaction_version=0) as heir,
    ):
        zombie.init_transactions()
        zombie.begin_transaction()
        zombie.send("t", b"no")
        zombie.flush()
        heir.init_transactions()
        with heir.transaction():
            heir.send("t", b"yes")
        with pytest.raises(ProducerFenced):
            zombie.commit_transaction()
    assert committed(address) == [b"yes"]


@pytest.mark.parametrize("message", ["app sends {}", "broker sends {} reply to app"])
@pytest.mark.parametrize(
    "kind", ["AddPartitionsToTxn", "AddOffsetsToTxn", "Produce", "TxnOffsetCommit", "EndTxn"]
)
def test_a_lost_message_is_said_again(broker: Broker, kind: str, message: str) -> None:
    broker.faults.when(message.format(kind), nth=2).do("drop")
    with (
        Producer(broker.address, client_id="app", transactional_id="pay", transaction_version=0) as producer,
        Consumer(broker.address, group_id="g") as consumer,
    ):
        producer.init_transactions()
        for number in range(3):
            with producer.transaction():
                producer.send("t", b"%d" % number, partition=0)
                producer.send_offsets_to_transaction({HERE: number}, "g")
        assert consumer.committed([HERE]) == {HERE: 2}
    assert committed(broker.address) == [b"0", b"1", b"2"]


def test_who_lost_a_batch_goes_on_under_the_next_epoch(broker: Broker, address: str) -> None:
    """Its answer never comes: nobody knows whether its sequence is taken."""
    held = broker.faults.when("broker sends Produce reply to *", nth=2).do("hold")
    with Producer(
        address, transactional_id="pay", transaction_version=0, delivery_timeout_ms=1_500
    ) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("t", b"first", partition=0)
        producer.begin_transaction()
        producer.send("t", b"lost", partition=0)
        with pytest.raises(TransactionAborted):
            producer.commit_transaction()
        held.end()  # the next replies wait for this one
        producer.abort_transaction()
        with producer.transaction():
            producer.send("t", b"last", partition=0)
    assert committed(address) == [b"first", b"last"]


def test_a_producer_of_today_is_told_that_the_cluster_is_too_old() -> None:
    with broker_of(0) as running:
        make_topic(running.address)
        with Producer(running.address, transactional_id="pay") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            outcome = producer.send("t", b"x")
            with pytest.raises(ProducerFailed) as caught:
                outcome.result()
            assert caught.value.error is ErrorCode.UNSUPPORTED_VERSION


def test_an_asynchronous_producer_of_old(address: str) -> None:
    async def pay() -> None:
        async with aio.AsyncProducer(address, transactional_id="pay", transaction_version=0) as producer:
            await producer.init_transactions()
            async with producer.transaction():
                await producer.send("t", b"yes")

    anyio.run(pay)
    assert committed(address) == [b"yes"]
