"""`fencepost fault` against a broker in this process; what it prints is in the snapshots."""

from __future__ import annotations

from pathlib import Path

from fencepost.broker.embedded import Broker
from fencepost.cli.application import run
from fencepost.client.shells.sync import Admin
from fencepost.faults.phrases import FAULTS_HELP
from tests.cli.tool import Output, Tool


def test_a_fault_is_added_strikes_and_is_removed(capsys: Output) -> None:
    with Broker() as broker:
        tool = Tool(broker.address, capsys)
        assert tool.json("fault", "add", "when shop sends CreateTopics do drop")["fault_id"] == 1
        with Admin(broker.address, client_id="shop") as admin:
            admin.create_topic("orders")
        assert tool("fault", "wait", "1") == "Fault 1 struck: when shop sends CreateTopics do drop\n"
        (listed,) = tool.rows("fault", "list")
        assert (listed["struck"], listed["reached"]) == (1, 1)
        assert tool("fault", "remove", "1") == "Removed fault 1.\n"
        assert tool.rows("fault", "list") == []
        assert "the broker has no faults" in tool("fault", "end", code=1)


def test_all_faults_are_added_or_none(capsys: Output) -> None:
    with Broker() as broker:
        tool = Tool(broker.address, capsys)
        refused = tool(
            "fault", "add", "when shop sends Produce do drop", "when shop sends Produce do drpo", code=2
        )
        assert 'did you mean "drop"?' in refused
        example = FAULTS_HELP.split('"')[1]
        assert f'"{example}"' in refused
        assert tool("fault", "add", example) == f"Added fault 2: {example}\n"
        tool("fault", "remove")
        assert tool.rows("fault", "list") == []


def test_a_fault_can_name_a_command(capsys: Output, tmp_path: Path) -> None:
    source = tmp_path / "lines"
    source.write_text("apple\n")
    with Broker() as broker:
        tool = Tool(broker.address, capsys)
        names = {
            "fencepost-admin sends CreateTopics": ("topic", "create", "t"),
            "fencepost-produce sends Produce": ("produce", "t", str(source)),
            "till sends Produce": ("produce", "t", str(source), "--client-id", "till"),
            "fencepost-consume sends Fetch": ("consume", "t"),
            "till sends Fetch": ("consume", "t", "--client-id", "till"),
        }
        for point, command in names.items():
            fault = broker.faults.add(f"when {point} do delay 1 ms")
            tool(*command)
            fault.wait_until_struck()


def test_a_partition_that_does_not_exist_is_named(capsys: Output) -> None:
    """It is no error, because a client may still create the topic."""
    with Broker() as broker, Admin(broker.address) as admin:
        tool = Tool(broker.address, capsys)
        admin.create_topic("orders")
        assert run(["fault", "add", "when ordres-0 appends data do crash broker", "-b", broker.address]) == 0
        assert capsys.readouterr().err == (
            "fencepost: fault 1 names partition ordres-0, which does not exist yet; "
            'did you mean "orders-0"?\n'
            "  `fencepost topic list` shows the topics\n"
        )
        fault = "when orders-0 appends data do fail appends of orders-1"
        assert tool.json("fault", "add", fault)["absent"] == ["orders-1"]
        fault = "when * appends data do pause broker until __cluster_metadata-0 appends data"
        assert tool.json("fault", "add", fault)["absent"] == []
        listed = [row["absent"] for row in tool.rows("fault", "list")]
        assert listed == [["ordres-0"], ["orders-1"], []]
        told = "fault 2 names partition orders-1, which does not exist yet; topic orders has 1 partition\n"
        assert told in tool.both("fault", "list")[1]
        (waited,) = tool.rows("fault", "wait", "1", "--timeout", "0", code=1)
        assert waited["missing"].endswith('(partition ordres-0 does not exist yet; did you mean "orders-0"?)')
        tool("fault", "remove")


def test_what_does_not_strike_fails_and_names_what_resembles_it(capsys: Output) -> None:
    with Broker() as broker:
        tool = Tool(broker.address, capsys)
        tool("fault", "add", "when shopp sends CreateTopics do drop")
        with Admin(broker.address, client_id="shop") as admin:
            admin.create_topic("orders")
        (waited,) = tool.rows("fault", "wait", "1", "--timeout", "0", code=1)
        assert '"shop sends CreateTopics to broker" (once)' in waited["missing"]
        told = tool.both("fault", "wait", "1", "--timeout", "0", code=1)[0]
        assert told.startswith(
            'Gave up on fault 1 after 0 s: the fault "when shopp sends CreateTopics do drop"'
        )
        for number in ("7", "0"):
            assert f"there is no fault {number}\n" in tool("fault", "wait", number, code=1)
        assert tool("fault", "remove", "1", "1") == "Removed fault 1.\n"


def test_what_resembles_nothing_names_nothing() -> None:
    with Broker(faults=["when shop sends EndTxn do drop"]) as broker:
        (fault,) = broker.faults.list()  # the start has reached the point "__cluster_metadata-0 appends data"
        missing = fault.missing_after(0)
        assert missing.endswith(
            "its point was reached 0 times. No similar point was reached: the application may not be "
            "connected to this broker, or may not have done this yet"
        )
        broker.faults.clear()


def test_what_lasts_no_longer_has_nothing_to_undo(capsys: Output) -> None:
    with Broker() as broker:
        tool = Tool(broker.address, capsys)
        tool(
            "fault",
            "add",
            "when shop sends CreateTopics do drop",
            "when shop sends CreateTopics do pause broker until shop sends EndTxn",
        )
        assert tool("fault", "end", "1") == "Fault 1 had nothing to undo.\n"
        tool("fault", "remove")
