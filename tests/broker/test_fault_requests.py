"""Faults that are added, ended and listed by requests: what they do, and who may send them."""

from __future__ import annotations

import pytest

import fencepost
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from tests.broker.test_faults import PATIENCE_S, only, producer, served
from tests.broker.wire import serving


def test_a_paused_broker_is_resumed_by_a_request() -> None:
    with served("when t-0 appends data do pause broker") as broker, producer(broker) as app:
        sent = app.send("t", b"a")
        only(broker).wait_until_struck(PATIENCE_S)
        with fencepost.Admin(broker.address) as admin:
            admin.end_fault(1)
        sent.result(PATIENCE_S * 1000)


@pytest.mark.trio
async def test_without_acls_only_this_machine_may_ask_for_faults() -> None:
    async with serving() as (server, wires):
        near, far = await wires.open(), await wires.open()
        assert (await near.ask(m.ListFaults())).error is ErrorCode.NONE
        await far.ask(m.Metadata(topics=()))
        server.connections.opened[2].client_host = "/192.168.7.7"
        for request in (
            m.ListFaults(),
            m.AddFaults(faults=("when at 1 s do crash broker",)),
            m.RemoveFaults(fault_ids=(), keeps=False),
        ):
            assert (await far.ask(request)).error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert server.faults.describe() == []
