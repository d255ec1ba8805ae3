"""The order service of order_service.py on confluent-kafka: each order gets one invoice, whatever breaks.

An invoice and the offset of its order are one transaction. Rule: after any failure, start over from the
committed offsets. What is in memory proves nothing: a commit whose answer is missing may have happened.
"""

# The stubs say that each part of a message may be None:
# pyright: reportOptionalOperand=false, reportArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import logging

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

LOG = logging.getLogger(__name__)
PATIENCE_S = 1.0


def invoice(order: bytes) -> bytes:
    """The text of an invoice."""
    return b"invoice for " + order


def new_producer(broker: str) -> Producer:
    """A producer that has ended what an earlier attempt left undecided."""
    producer = Producer(
        {"bootstrap.servers": broker, "transactional.id": "invoicing", "client.id": "invoicing"}
    )
    producer.init_transactions(PATIENCE_S)
    return producer


def new_consumer(broker: str) -> Consumer:
    """A consumer of committed orders."""
    return Consumer(
        {
            "bootstrap.servers": broker,
            "client.id": "invoicing-reader",
            "group.id": "invoicing",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )


def serve(broker: str, orders: str, invoices: str, *, last: int) -> None:
    """Invoice the orders up to offset `last`."""
    while True:
        try:
            return work(broker, orders, invoices, last)
        except KafkaException as problem:
            LOG.info("starting over: %s", problem)


def work(broker: str, orders: str, invoices: str, last: int) -> None:
    """Invoice one order after the other, and raise the first error."""
    # The producer first: the committed offsets are known only after its init_transactions().
    producer, consumer = new_producer(broker), new_consumer(broker)
    try:
        [committed] = consumer.committed([TopicPartition(orders, 0)], PATIENCE_S)
        next_offset = max(committed.offset, 0)
        consumer.assign([TopicPartition(orders, 0, next_offset)])
        while next_offset < last:
            order = consumer.poll(PATIENCE_S)
            if order is None:
                continue
            if order.error():
                raise KafkaException(order.error())
            next_offset = order.offset() + 1
            producer.begin_transaction()
            producer.produce(invoices, invoice(order.value()), order.key())
            producer.send_offsets_to_transaction(
                [TopicPartition(orders, 0, next_offset)], consumer.consumer_group_metadata(), PATIENCE_S
            )
            producer.commit_transaction(PATIENCE_S)
    finally:
        consumer.close()
