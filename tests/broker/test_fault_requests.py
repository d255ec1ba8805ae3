"""Faults that are added, ended and listed by requests: what they do, and who may send them."""

from __future__ import annotations

import fencepost
from tests.broker.test_faults import PATIENCE_S, only, producer, served


def test_a_paused_broker_is_resumed_by_a_request() -> None:
    with served("when t-0 appends data do pause broker") as broker, producer(broker) as app:
        sent = app.send("t", b"a")
        only(broker).wait_until_struck(PATIENCE_S)
        with fencepost.Admin(broker.address) as admin:
            admin.end_fault(1)
        sent.result(PATIENCE_S * 1000)
