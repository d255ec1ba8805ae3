"""The order service, under the faults of a sweep."""

from __future__ import annotations

from collections.abc import Callable

import fencepost
from examples.order_service import serve

ORDERS = 2


# A killed broker is down for longer than the service waits. Without `points`, the sweep tries all faults in a
# minute.
@fencepost.sweep(seed=2, points=6, clients=["invoicing", "invoicing-reader"], down_ms=1_500)
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
