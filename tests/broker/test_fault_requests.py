"""Faults that are added, listed, ended and removed by requests: from every shell, and by whom."""

from __future__ import annotations

import pytest

import fencepost
from fencepost import AsyncAdmin, Broker, RequestFailed
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from tests.broker.test_faults import PATIENCE_S, only, producer, served
from tests.broker.wire import serving

LOST = "when shop sends CreateTopics do drop"


def test_a_blocking_admin_controls_faults() -> None:
    with Broker() as broker, fencepost.Admin(broker.address) as admin:
        fault_id = admin.add_fault(LOST)
        with fencepost.Admin(broker.address, client_id="shop") as shop:
            shop.create_topic("t")
        (listed,) = admin.list_faults()
        assert (listed.fault_id, listed.fault, listed.struck, listed.missing) == (fault_id, LOST, 1, "")
        admin.end_fault(fault_id)
        admin.remove_fault(fault_id)
        assert admin.list_faults() == []
        for call in (admin.end_fault, admin.remove_fault):
            with pytest.raises(RequestFailed, match="there is no fault 1"):
                call(fault_id)
        with pytest.raises(RequestFailed, match='did you mean "EndTxn"') as found:
            admin.add_fault("when shop sends EndTx do drop")
        assert found.value.error is ErrorCode.INVALID_REQUEST


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.anyio
async def test_an_async_admin_controls_faults() -> None:
    with Broker() as broker:
        async with AsyncAdmin(broker.address) as admin, AsyncAdmin(broker.address, client_id="shop") as shop:
            fault_id = await admin.add_fault(LOST)
            await shop.create_topic("t")
            (listed,) = await admin.list_faults()
            assert listed.struck == 1
            await admin.end_fault(fault_id)
            await admin.remove_fault(fault_id)
            assert await admin.list_faults() == []


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
