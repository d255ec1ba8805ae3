"""The order service of order_service.py, with a common bug: it repeats what failed.

Every record goes through a transaction, the tests pass, and it runs well for months. Then a broker dies
between a commit and its answer. The transaction is committed; `send_invoice` mistakes the missing answer
for a failure, and sends the same invoice again.
"""

from __future__ import annotations

import logging

from examples.order_service import PATIENCE_MS, invoice
from fencepost import ClientError, Consumer, ConsumerGroupMetadata, Producer, Record, TopicPartition

LOG = logging.getLogger(__name__)


def serve(broker: str, orders: str, invoices: str, *, last: int) -> None:
    """Invoice the orders up to offset `last`."""
    source = TopicPartition(orders, 0)
    with Consumer(broker, group_id="invoicing", client_id="invoicing-reader") as consumer:
        consumer.assign([source])
        while consumer.position(source) < last:
            for batch in consumer.poll():
                for order in batch:
                    send_invoice(broker, invoices, order, consumer.group_metadata())


def send_invoice(broker: str, invoices: str, order: Record, group: ConsumerGroupMetadata) -> None:
    """Send the invoice for one order, and retry until that succeeds."""
    offsets = {TopicPartition(order.topic, order.partition): order.offset + 1}
    while True:
        try:
            with Producer(
                broker, transactional_id="invoicing", client_id="invoicing", max_block_ms=PATIENCE_MS
            ) as producer:
                producer.init_transactions()
                with producer.transaction():
                    producer.send(invoices, invoice(order.value), key=order.key)
                    producer.send_offsets_to_transaction(offsets, group)
                return
        except ClientError as problem:
            LOG.info("trying again: %s", problem)  # the bug: the commit may have happened
