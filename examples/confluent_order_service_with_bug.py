"""The order service of confluent_order_service.py, with a common bug: it repeats what failed.
`send_invoice` mistakes the missing answer to a commit for a failure, and sends the same invoice again.
"""

# The stubs say that each part of a message may be None:
# pyright: reportOptionalOperand=false, reportArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import logging

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from examples.confluent_order_service import PATIENCE_S, invoice, new_consumer, new_producer

LOG = logging.getLogger(__name__)


def serve(broker: str, orders: str, invoices: str, *, last: int) -> None:
    """Invoice the orders up to offset `last`."""
    consumer = new_consumer(broker)
    consumer.assign([TopicPartition(orders, 0, 0)])
    next_offset = 0
    while next_offset < last:
        order = consumer.poll(PATIENCE_S)
        if order is not None and not order.error():
            send_invoice(broker, invoices, order, consumer)
            next_offset = order.offset() + 1
    consumer.close()


def send_invoice(broker: str, invoices: str, order: Message, consumer: Consumer) -> None:
    """Send the invoice for one order, and retry until that succeeds."""
    offsets = [TopicPartition(order.topic(), order.partition(), order.offset() + 1)]
    while True:
        try:
            producer = new_producer(broker)
            producer.begin_transaction()
            producer.produce(invoices, invoice(order.value()), order.key())
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), PATIENCE_S)
            producer.commit_transaction(PATIENCE_S)
            return
        except KafkaException as problem:
            LOG.info("trying again: %s", problem)  # the bug: the commit may have happened
