"""What a broker says about itself: late, hanging and lost partitions are counted, and nothing else is."""

from __future__ import annotations

import pytest

from fencepost.broker.clocks import now_ms
from fencepost.broker.counters import DISK_PROBLEMS_KEPT
from fencepost.broker.metrics_port import MetricsPort
from fencepost.broker.node import Node
from fencepost.broker.server import Server
from fencepost.broker.status import partition_statuses, unserved
from fencepost.broker.transactions.state import Transactions
from fencepost.broker.troubles import Trouble, TroubleKind
from fencepost.protocol import messages as m
from fencepost.protocol.terms import TRANSACTION_STATE_TOPIC, TopicPartition
from tests.broker.requests import ORDERS, batch, body_of, produce_batches
from tests.broker.test_metrics import Samples, parsed, value
from tests.broker.wire import Wire, serving

pytestmark = pytest.mark.trio
DAY_MS = 24 * 3_600_000


async def transacting(wire: Wire) -> None:
    """A transaction is open in orders-0."""
    await wire.prepare()
    me = await wire.identity("pay")
    records = batch(me, "a", timestamp=now_ms())
    await wire.ask(produce_batches({ORDERS: records}, name="pay"))


async def status_of(wire: Wire) -> m.BrokerStatusReply:
    return body_of(await wire.ask(m.BrokerStatus()), m.BrokerStatusReply)


def orders(status: m.BrokerStatusReply) -> m.TopicStatus:
    (found,) = [topic for topic in status.topics if topic.topic == ORDERS.topic]
    return found


async def samples(server: Server) -> Samples:
    server.is_ready = True
    return parsed((await MetricsPort(server, server.listener).answer("GET", "/metrics")).body.decode())


def forget_coordinators(node: Node) -> None:
    """As if the log of the coordinators had lost its records."""
    for log in node.coordinator_logs(Transactions):
        log.coordinator.records.clear()


async def test_an_open_transaction_holds_the_last_stable_offset_back() -> None:
    async with serving() as (server, wires):
        wire = await wires.open()
        await transacting(wire)
        found = await status_of(wire)
        assert found.started_ms == server.monitor.counters.started_ms <= found.now_ms
        topic = orders(found)
        assert (topic.open_transactions, topic.late, topic.hanging) == (1, (), ())
        assert (topic.stable_lag, topic.stable_lag_partition) == (1, ORDERS.partition)
        assert topic.records_in == 1
        assert topic.bytes_in == topic.size_bytes > 0
        assert {each.state: each.count for each in found.transactions} == {"Ongoing": 1}
        assert {each.api for each in found.requests} >= {"Produce", "InitProducerId", "CreateTopics"}
        assert (found.connections, found.unserved, found.disk_problems) == (1, (), ())
        assert found.directory == "memory"


async def test_a_transaction_that_no_coordinator_knows_hangs() -> None:
    async with serving() as (server, wires):
        wire = await wires.open()
        await transacting(wire)
        assert value(await samples(server), "fencepost_hanging_transactions") == 0
        forget_coordinators(server.host.node)
        assert orders(await status_of(wire)).hanging == (ORDERS.partition,)
        assert value(await samples(server), "fencepost_hanging_transactions") == 1


async def test_without_its_coordinator_nobody_knows_what_hangs() -> None:
    async with serving() as (server, wires):
        wire = await wires.open()
        await transacting(wire)
        forget_coordinators(server.host.node)
        lost = TopicPartition(TRANSACTION_STATE_TOPIC, 0)
        server.host.node.logs.pop(lost)
        found = await status_of(wire)
        assert (orders(found).hanging, found.unserved) == ((), (lost,))
        assert value(await samples(server), "kafka_log_LogManager_OfflineLogCount") == 1
        assert unserved(server.host.node) == [lost]


async def test_a_late_transaction_is_seen() -> None:
    async with serving() as (server, wires):
        await transacting(await wires.open())
        node = server.host.node
        late = {key for key, each in partition_statuses(node, now_ms() + DAY_MS).items() if each.is_late}
        assert late == {ORDERS}
        assert not any(each.is_late for each in partition_statuses(node, now_ms()).values())


async def test_the_last_disk_problems_are_kept() -> None:
    async with serving() as (server, wires):
        count = DISK_PROBLEMS_KEPT + 3
        troubles = [
            Trouble.of(f"orders-0: No space left on device {number}", TroubleKind.DISK)
            for number in range(count)
        ]
        server.host.troubles += [*troubles, Trouble.of("a note", TroubleKind.NOTE), troubles[-1]]
        server.turn()
        found = await status_of(await wires.open())
        assert [each.text for each in found.disk_problems] == [
            f"orders-0: No space left on device {number}" for number in range(3, count)
        ]
        assert value(await samples(server), "fencepost_disk_problems_total") == count + 1
