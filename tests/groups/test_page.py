"""The loop of docs/groups.md does what the page says: after an abort it reads its input again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fencepost
from tests.topics import create_topic

PAGE = (Path(__file__).parents[2] / "docs" / "groups.md").read_text(encoding="utf-8")
[LOOP] = re.findall(
    r"^```python\n(from fencepost import Consumer, Producer, .*?)^```$", PAGE, re.DOTALL | re.MULTILINE
)
FOREVER = "while True:"
ENDS = "while batches or not fault.struck:"
"""A loop that would not read its input again ends, too."""
ADDRESS, ID = '"localhost:9092"', 'transactional_id="copier-1"'


@pytest.mark.parametrize("request_name", ["Produce", "TxnOffsetCommit", "EndTxn"])
def test_the_loop_of_the_page_repeats_an_aborted_transaction(request_name: str) -> None:
    inputs = [b"1", b"2", b"3"]
    with fencepost.Broker(override={"group.initial.rebalance.delay.ms": 0}) as broker:
        create_topic(broker.address, "orders")
        create_topic(broker.address, "out")
        with fencepost.Producer(broker.address) as orders:
            orders.send_many("orders", inputs)
        fault = broker.faults.when(f"copier sends {request_name}").do("answer TRANSACTION_ABORTABLE")
        assert (LOOP.count(FOREVER), LOOP.count(ADDRESS), LOOP.count(ID)) == (1, 2, 1)
        here = LOOP.replace(ADDRESS, repr(broker.address)).replace(ID, f'{ID}, client_id="copier"')
        exec(here.replace(FOREVER, ENDS), {"fault": fault, "batches": []})
        fencepost.assert_committed("out", inputs, broker=broker)
        fencepost.assert_no_open_transactions(broker)
