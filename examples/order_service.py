"""An order service: it turns each order into one invoice, whatever breaks.

An invoice and the offset of its order are one transaction. Rule: after any failure, start over from the
committed offsets. What is in memory proves nothing: a commit whose answer is missing may have happened.
"""

from __future__ import annotations

import logging

from fencepost import ClientError, Consumer, Producer, TopicPartition

LOG = logging.getLogger(__name__)
PATIENCE_MS = 1_000


def invoice(order: bytes) -> bytes:
    """The text of an invoice."""
    return b"invoice for " + order


def serve(broker: str, orders: str, invoices: str, *, last: int) -> None:
    """Invoice the orders up to offset `last`."""
    while True:
        try:
            return work(broker, orders, invoices, last)
        except ClientError as problem:
            LOG.info("starting over: %s", problem)


def work(broker: str, orders: str, invoices: str, last: int) -> None:
    """Invoice one order after the other, and raise the first error."""
    source = TopicPartition(orders, 0)
    with (
        Producer(
            broker, transactional_id="invoicing", client_id="invoicing", max_block_ms=PATIENCE_MS
        ) as producer,
        Consumer(broker, group_id="invoicing", client_id="invoicing-reader") as consumer,
    ):
        # First, because it ends what an earlier attempt left undecided; only then are its offsets known.
        producer.init_transactions()
        consumer.assign([source])
        while consumer.position(source) < last:
            for batch in consumer.poll():
                for order in batch:
                    with producer.transaction():
                        producer.send(invoices, invoice(order.value), key=order.key)
                        offsets = {source: order.offset + 1}
                        producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
