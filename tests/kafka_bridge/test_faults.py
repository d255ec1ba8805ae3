"""Faults strike Kafka's clients, named by their client.id."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing

import confluent_kafka
import pytest

import fencepost
from fencepost import Broker
from fencepost.testing.topic import create_topic
from tests.broker.test_faults import PATIENCE_S, only, stored
from tests.kafka_bridge.conftest import IMPATIENT


@pytest.fixture
def broker() -> Generator[Broker]:
    with Broker(override=IMPATIENT) as broker:
        create_topic(broker, "t", 1)
        yield broker


def kafka_producer(broker: Broker, client_id: str) -> confluent_kafka.Producer:
    settings = {
        "bootstrap.servers": broker.address,
        "client.id": client_id,
        "transactional.id": f"{client_id}-1",
        "socket.timeout.ms": 10_000,
        "log_level": 0,
    }
    return confluent_kafka.Producer(settings)


def commit(app: confluent_kafka.Producer, value: bytes) -> None:
    app.begin_transaction()
    app.produce("t", value, partition=0)
    app.commit_transaction(PATIENCE_S)


@pytest.mark.parametrize(
    "fault",
    [
        "when shop sends EndTxn do drop",
        "when broker sends EndTxn reply to shop do drop",
        "when broker sends EndTxn reply to shop do close the connection",
        "when shop sends EndTxn do delay 30 ms",
        "when broker sends EndTxn reply to shop do delay 30 ms",
        "when shop sends EndTxn do answer COORDINATOR_NOT_AVAILABLE",
        "when shop sends Produce do answer NOT_LEADER_OR_FOLLOWER",
        "when broker receives Produce from shop do deliver twice",
        "when broker sends InitProducerId reply to * do drop",
        "when broker sends FindCoordinator reply to shop do drop",
        "when coordinator of shop-1 appends PREPARE_COMMIT do crash broker until after 50 ms",
        "when t-0 appends COMMIT marker for shop-1 do pause broker until after 50 ms",
    ],
)
def test_a_kafka_client_survives_a_fault(broker: Broker, fault: str) -> None:
    added = broker.faults.add(fault)
    shop, other = kafka_producer(broker, "shop"), kafka_producer(broker, "other")
    for app in (shop, other):
        app.init_transactions(PATIENCE_S)
    commit(shop, b"a")
    commit(other, b"b")
    assert added.struck == 1
    assert stored(broker) == [b"a", b"b"]


def test_a_kafka_client_is_fenced_by_an_answer(broker: Broker) -> None:
    broker.faults.when("shop sends EndTxn").do("answer PRODUCER_FENCED")
    shop = kafka_producer(broker, "shop")
    shop.init_transactions(PATIENCE_S)
    with pytest.raises(confluent_kafka.KafkaException) as found:
        commit(shop, b"a")
    error = found.value.args[0]
    assert error.code() == confluent_kafka.KafkaError._FENCED
    assert error.fatal()
    assert only(broker).struck == 1
    with fencepost.Admin(broker.address) as admin:
        assert admin.describe_transaction("shop-1").state is fencepost.TransactionState.ONGOING


def test_a_fault_at_a_reply_waits_for_a_producer_that_wants_one(broker: Broker) -> None:
    """With acks 0 there is no reply at which it could strike."""
    fault = broker.faults.when("broker sends Produce reply to shop").do("delay 1 ms")
    for acks, reached in ((0, 0), (1, 1)):
        settings = {"bootstrap.servers": broker.address, "client.id": "shop", "acks": acks}
        shop = confluent_kafka.Producer(settings)
        shop.produce("t", b"a", partition=0)
        assert shop.flush(PATIENCE_S) == 0
        asked = confluent_kafka.Consumer({"bootstrap.servers": broker.address, "group.id": "g"})
        with closing(asked):
            part = confluent_kafka.TopicPartition("t", 0)
            while asked.get_watermark_offsets(part, PATIENCE_S)[1] < reached + 1:
                pass  # without a reply, the flush does not wait for the broker
        assert (fault.reached, fault.struck) == (reached, reached)
