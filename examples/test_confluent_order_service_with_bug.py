"""The service on confluent-kafka with its bug, under the faults of a sweep."""

from __future__ import annotations

from collections.abc import Callable

import fencepost
from examples.confluent_order_service_with_bug import serve

ORDERS = 2


# The sweep covers only requests to the transaction coordinator, because confluent-kafka 2.16 can hang after a
# fault in another request (docs/testing.md). A killed broker is down for longer than the service waits.
COORDINATOR = ["InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn", "PREPARE_COMMIT"]


@fencepost.sweep(seed=5, points=3, clients=["invoicing"], only=COORDINATOR, down_ms=1_500)
def test_each_order_has_one_invoice(
    fencepost_broker: fencepost.Broker, fencepost_topic_factory: Callable[[str], str]
) -> None:
    orders, invoices = fencepost_topic_factory("orders"), fencepost_topic_factory("invoices")
    with fencepost.Producer(fencepost_broker.address, client_id="shop") as shop:
        for number in range(ORDERS):
            shop.send(orders, b"order %d" % number, key=b"%d" % number).result()

    serve(fencepost_broker.address, orders, invoices, last=ORDERS)

    fencepost.assert_exactly_once(orders, invoices, by="key", broker=fencepost_broker)
    fencepost.assert_no_open_transactions(fencepost_broker)
