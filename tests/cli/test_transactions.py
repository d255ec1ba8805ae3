"""A transaction that hangs, as before KIP-890: found, described and aborted over a real socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from fencepost.broker.embedded import Broker
from fencepost.cli.transactions import Opened, oldest_of_each
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import AddPartitionsToTxn, EndTxn, Produce, ProducerDescription, Request
from fencepost.protocol.terms import TopicPartition
from tests.broker.requests import (
    COMMIT,
    ORDERS,
    Identity,
    add_request,
    batch,
    end_request,
    produce_batches,
    produced,
)
from tests.broker.story import FEW_LOGS
from tests.broker.wire import Wire, connecting
from tests.cli.tool import Output, Tool

# What let transactions hang: shared epochs, and nobody asked the coordinator about a late batch.
OF_OLD: Final[dict[str, Any]] = {
    "transaction_version": 0,
    "partition_verification": False,
    "override": FEW_LOGS,
}
OLD_VERSIONS: Final[dict[type[Request], int]] = {AddPartitionsToTxn: 3, Produce: 11, EndTxn: 4}
LONG_AGO: Final = 1_700_000_000_000  # ms since 1970: more than any transaction may last


class TransactionTool(Tool):
    """`fencepost transactions` and `topic`."""

    def stable_end(self) -> int:
        """The last stable offset of orders-0."""
        return self.json("topic", "describe", "orders")["partitions"][0]["last_stable_offset"]


@pytest.fixture
def tool(capsys: Output) -> Iterator[TransactionTool]:
    with Broker(**OF_OLD) as broker:
        yield TransactionTool(broker.address, capsys)


def make_it_hang(address: str) -> Identity:
    """A transaction of two batches commits after the first; the second one was late and comes then."""
    host, _, port = address.rpartition(":")

    async def story() -> Identity:
        async with connecting((host, int(port))) as wires:
            wire = await wires.open()
            wire.versions = OLD_VERSIONS
            await wire.prepare()
            me = await wire.identity()
            await wire.ask_until_done(add_request(me, ORDERS))
            await write(wire, me, "a", 0)
            await wire.ask_until_done(end_request(me, COMMIT))
            await write(wire, me, "late", 1)
            return me

    return trio.run(story)


async def write(wire: Wire, me: Identity, value: str, sequence: int) -> None:
    """A batch that is accepted."""
    records = batch(me, value, sequence=sequence, timestamp=LONG_AGO)
    reply = await wire.ask_until_done(produce_batches({ORDERS: records}, name="pay"))
    assert produced(reply)[ORDERS].error is ErrorCode.NONE


AT_ORDERS: Final = ("--topic", "orders", "--partition", "0")


def test_a_hanging_transaction_is_found_described_and_aborted(tool: TransactionTool) -> None:
    me = make_it_hang(tool.address)
    assert tool.stable_end() == 2, "the late batch at offset 2 belongs to no transaction that will ever end"

    (found,) = tool.rows("transactions", "find-hanging", "--topic", "orders", code=1)
    assert found.pop("duration_ms") > 15 * 60_000
    assert found == {
        "topic": "orders",
        "partition": 0,
        "producer_id": me.producer_id,
        "producer_epoch": me.producer_epoch,
        "coordinator_epoch": found["coordinator_epoch"],
        "start_offset": 2,
        "last_timestamp_ms": LONG_AGO,
    }
    assert [
        found["start_offset"]
        for found in tool.rows("transactions", "find-hanging", "--broker-id", "1", code=1)
    ] == [2]

    (producer,) = tool.rows("transactions", "describe-producers", *AT_ORDERS, "--broker-id", "1")
    assert producer == {
        "producer_id": me.producer_id,
        "producer_epoch": me.producer_epoch,
        "latest_coordinator_epoch": found["coordinator_epoch"],
        "last_sequence": 1,
        "last_timestamp_ms": LONG_AGO,
        "current_transaction_start_offset": 2,
    }
    described = tool.json("transactions", "describe", "pay")
    assert (described["state"], described["partitions"]) == ("CompleteCommit", [])

    (late,) = tool.rows("transactions", "late", "--broker-id", "1", code=1)
    assert (late["topic"], late["start_offset"]) == ("orders", 2)
    age = str(late["duration_ms"] // 60_000)
    assert tool.rows("transactions", "late", "--max-transaction-timeout", age) == []

    assert "Wrote an ABORT marker" in tool("transactions", "abort", *AT_ORDERS, "--start-offset", "2")
    assert tool.stable_end() == 4, "everything is decided, and the marker at offset 3 is the end"
    assert tool.rows("transactions", "find-hanging", "--topic", "orders") == []
    assert tool.rows("transactions", "late") == []
    assert tool("consume", "orders") == "a\n"


def test_a_transaction_that_its_coordinator_knows_does_not_hang(tool: TransactionTool) -> None:
    from fencepost.client.shells.sync import Producer

    tool("topic", "create", "orders")
    with Producer(tool.address, transactional_id="alive", transaction_version=0) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"x")
        producer.flush()
        (open_one,) = tool.rows("transactions", "describe-producers", *AT_ORDERS)
        assert open_one["current_transaction_start_offset"] == 0
        patience = ("--max-transaction-timeout", "0")
        assert tool.rows("transactions", "find-hanging", "--topic", "orders", *patience) == []
        described = tool.json("transactions", "describe", "alive")
        assert described["duration_ms"] >= 0
        assert described["start_ms"] > LONG_AGO
        assert described["coordinator_id"] == 1
        words = tool("transactions", "describe", "--transactional-id", "alive").splitlines()
        assert [line.partition(":")[0] for line in words[-3:]] == [
            "CurrentTransactionStartTime",
            "TransactionDuration",
            "TopicPartitions",
        ]
        assert words[-1].split()[-1] == "orders-0"
        producer.abort_transaction()


def test_filters_of_list(tool: TransactionTool) -> None:
    me = make_it_hang(tool.address)

    def listed(*filters: str) -> list[str]:
        return [entry["transactional_id"] for entry in tool.rows("transactions", "list", *filters)]

    assert tool("transactions", "list").split()[:4] == [
        "TransactionalId",
        "Coordinator",
        "ProducerId",
        "TransactionState",
    ]
    assert listed("--state", "CompleteCommit", "--state", "Ongoing") == ["pay"]
    assert listed("--state", "Ongoing") == []
    assert listed("--producer-id", str(me.producer_id)) == ["pay"]
    assert listed("--producer-id", "999999") == []
    assert listed("--duration-filter", "3600000") == []
    assert listed("--duration-filter=-1") == ["pay"]
    assert listed("--transactional-id-pattern", "p.y|till") == ["pay"]
    assert listed("--transactional-id-pattern", "a") == [], "the whole id has to match"
    assert listed("--transactional-id-pattern", "") == ["pay"]
    assert "(pay" in tool("transactions", "list", "--transactional-id-pattern", "(pay", code=2)
    assert "Sleeping" in tool("transactions", "list", "--state", "Sleeping", code=2)


def test_a_live_transaction_is_terminated_with_its_producer_fenced(tool: TransactionTool) -> None:
    from fencepost.client.errors import ProducerFenced
    from fencepost.client.shells.sync import Producer

    tool("topic", "create", "orders")
    with Producer(tool.address, transactional_id="stuck", transaction_version=0) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"x").result()
        assert "Fenced" in tool("transactions", "forceTerminateTransaction", "--transactionalId", "stuck")
        assert tool.json("transactions", "describe", "stuck")["state"] in ("Empty", "CompleteAbort")
        with pytest.raises(ProducerFenced):
            producer.commit_transaction()
    assert tool("consume", "orders") == ""
    assert "transactions list" in tool("transactions", "forceTerminateTransaction", "nobody", code=1)
    assert tool.rows("transactions", "list")[0]["transactional_id"] == "stuck"


def test_lines_are_written_in_transactions_that_the_cluster_understands(
    tool: TransactionTool, tmp_path: Path
) -> None:
    tool("topic", "create", "orders")
    lines = tmp_path / "lines"
    lines.write_text("one\ntwo\n")
    options = ("--transactional-id", "till", "--records-per-transaction", "1")
    assert "in 2 transactions" in tool("produce", "orders", str(lines), *options)
    assert tool("consume", "orders") == "one\ntwo\n"


def test_only_the_oldest_transaction_of_a_partition_makes_it_late() -> None:
    def opened(partition: int, producer_id: int, since: int) -> Opened:
        producer = ProducerDescription(
            producer_id=producer_id,
            producer_epoch=0,
            last_sequence=0,
            last_timestamp=0,
            coordinator_epoch=0,
            open_since_offset=since,
        )
        return Opened(TopicPartition("t", partition), producer)

    found = oldest_of_each([opened(0, 1, 9), opened(0, 2, 3), opened(1, 1, 5), opened(0, 3, 4)])
    assert [(each.partition.partition, each.producer.producer_id) for each in found] == [(0, 2), (1, 1)]


def by_producer(producer_id: int, producer_epoch: int, coordinator_epoch: int) -> tuple[str, ...]:
    """The other way to say which transaction is meant."""
    return (
        *AT_ORDERS,
        f"--producer-id={producer_id}",
        f"--producer-epoch={producer_epoch}",
        f"--coordinator-epoch={coordinator_epoch}",
    )


def test_abort_by_producer_is_fenced_by_newer_epochs(tool: TransactionTool) -> None:
    me = make_it_hang(tool.address)
    (found,) = tool.rows("transactions", "find-hanging", "--topic", "orders", code=1)
    coordinator = found["coordinator_epoch"]
    older = by_producer(me.producer_id, me.producer_epoch - 1, coordinator)
    assert "INVALID_PRODUCER_EPOCH" in tool("transactions", "abort", *older, code=1)
    replaced = by_producer(me.producer_id, me.producer_epoch, coordinator - 1)
    assert "TRANSACTION_COORDINATOR_FENCED" in tool("transactions", "abort", *replaced, code=1)
    assert tool.stable_end() == 2, "what was refused changed nothing"
    told = tool.json("transactions", "abort", *by_producer(me.producer_id, me.producer_epoch, coordinator))
    assert (told["topic"], told["partition"]) == ("orders", 0)
    assert tool.stable_end() == 4


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("find-hanging",), 2, "--topic or --broker-id"),
        (("find-hanging", "--broker-id", "1", "--partition", "0"), 2, "--partition needs --topic"),
        (
            ("find-hanging", "--broker-id", "7"),
            1,
            "broker 7 does not exist\n  the brokers of the cluster are: 1",
        ),
        (("late", "--broker-id", "7"), 1, "broker 7 does not exist\n  the brokers of the cluster are: 1"),
        (("find-hanging", "--topic", "orders", "--partition", "9"), 1, "its partitions are 0 to 1"),
        (("find-hanging", "--topic", "nowhere"), 1, "UNKNOWN_TOPIC_OR_PARTITION"),
        (("abort", *AT_ORDERS), 2, "either --start-offset"),
        (("abort", *AT_ORDERS, "--start-offset", "2", "--producer-id", "1"), 2, "either --start-offset"),
        (
            ("abort", *AT_ORDERS, "--start-offset", "1"),
            1,
            "no open transaction in orders-0 starts at offset 1",
        ),
        (("describe-producers", "--topic", "orders", "--partition", "2"), 1, "has no partition 2"),
        (("describe-producers", *AT_ORDERS, "--broker-id", "7"), 1, "give --broker-id 1 (the leader)"),
    ],
)
def test_questions_that_make_no_sense(
    tool: TransactionTool, arguments: tuple[str, ...], code: int, said: str
) -> None:
    make_it_hang(tool.address)
    assert said in tool("transactions", *arguments, code=code)
