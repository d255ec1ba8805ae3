"""The loop of docs/groups.md does what the page says: after an abort it reads its input again."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import fencepost

PAGE = (Path(__file__).parents[2] / "docs" / "groups.md").read_text(encoding="utf-8")
[LOOP] = re.findall(r"^```python\n(# `consumer` as above.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
FOREVER = "while True:"
ENDS = "while batches or not fault.struck:"
"""A loop that would not read its input again ends, too."""


@pytest.mark.parametrize("request_name", ["Produce", "TxnOffsetCommit", "EndTxn"])
def test_the_loop_of_the_page_repeats_an_aborted_transaction(request_name: str) -> None:
    inputs = [b"1", b"2", b"3"]
    with fencepost.Broker(override={"group.initial.rebalance.delay.ms": 0}) as broker:
        with fencepost.Admin(broker.address) as admin:
            admin.create_topic("orders")
            admin.create_topic("out")
        with fencepost.Producer(broker.address) as orders:
            orders.send_many("orders", inputs)
        fault = broker.faults.when(f"copier sends {request_name}").do("answer TRANSACTION_ABORTABLE")
        with (
            fencepost.Consumer(broker.address, group_id="copiers") as consumer,
            fencepost.Producer(broker.address, transactional_id="copier", client_id="copier") as producer,
        ):
            consumer.subscribe(["orders"])
            producer.init_transactions()
            names: dict[str, Any] = {
                "consumer": consumer,
                "producer": producer,
                "transform": bytes,
                "TransactionAborted": fencepost.TransactionAborted,
                "fault": fault,
                "batches": [],
            }
            assert LOOP.count(FOREVER) == 1
            exec(LOOP.replace(FOREVER, ENDS), names)
        fencepost.assert_committed("out", inputs, broker=broker)
        fencepost.assert_no_open_transactions(broker)
