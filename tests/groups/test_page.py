"""The loops of docs/groups.md do what the page says: after an abort they read their input again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fencepost
from tests.topics import create_topic

PAGE = (Path(__file__).parents[2] / "docs" / "groups.md").read_text(encoding="utf-8")
LOOPS = re.findall(
    r"^```python\n((?:(?!^```).)*send_offsets_to_transaction.*?)^```$", PAGE, re.DOTALL | re.MULTILINE
)
"""The blocking loop and the async one."""
FOREVER = re.compile(r"^( *)while True:$", re.MULTILINE)
ENDS = r"\1batches = []\n\1while batches or not fault.struck:"
"""A loop that would not read its input again ends, too."""
ADDRESS, ID = '"localhost:9092"', 'transactional_id="copier-1"'


@pytest.mark.parametrize("loop", LOOPS, ids=["blocking", "async"])
@pytest.mark.parametrize("request_name", ["Produce", "TxnOffsetCommit", "EndTxn"])
def test_the_loops_of_the_page_repeat_an_aborted_transaction(request_name: str, loop: str) -> None:
    inputs = [b"1", b"2", b"3"]
    with fencepost.Broker(override={"group.initial.rebalance.delay.ms": 0}) as broker:
        create_topic(broker.address, "orders")
        create_topic(broker.address, "out")
        with fencepost.Producer(broker.address) as orders:
            orders.send_many("orders", inputs)
        fault = broker.faults.when(f"copier sends {request_name}").do("answer TRANSACTION_ABORTABLE")
        assert (len(FOREVER.findall(loop)), loop.count(ADDRESS), loop.count(ID)) == (1, 2, 1)
        here = loop.replace(ADDRESS, repr(broker.address)).replace(ID, f'{ID}, client_id="copier"')
        exec(FOREVER.sub(ENDS, here), {"fault": fault})
        fencepost.assert_committed("out", inputs, broker=broker)
        fencepost.assert_no_open_transactions(broker)
