"""Each command against a broker in this process: what it prints in words and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from fencepost.broker.embedded import Broker
from fencepost.client.shells.sync import Producer
from tests.cli.tool import DataTool, Output


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with Broker() as broker:
        yield broker.address


@pytest.fixture
def tool(address: str, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> DataTool:
    return DataTool(address, capsys, monkeypatch)


def test_topics(tool: DataTool) -> None:
    assert "3 partitions" in tool("topic", "create", "maps", "--partitions", "3")
    assert "TOPIC_ALREADY_EXISTS" in tool("topic", "create", "maps", code=1)
    assert {"topic": "maps", "partitions": 3, "internal": False} in tool.rows("topic", "list")
    described = tool.json("topic", "describe", "maps")
    assert [entry["partition"] for entry in described["partitions"]] == [0, 1, 2]
    assert described["partitions"][0]["high_watermark"] == 0
    assert {"name": "retention.ms", "value": "604800000", "source": "default"} in described["configs"]
    assert "LAST-STABLE-OFFSET" in tool("topic", "describe", "maps")
    assert "1 setting" in tool("topic", "alter", "maps", "--config", "retention.ms=5")
    altered = tool.json("topic", "describe", "maps")["configs"]
    assert {"name": "retention.ms", "value": "5", "source": "topic"} in altered
    wrong = tool("topic", "alter", "maps", "--delete-config", "retention.msec", "-c", "segment.ms=5", code=1)
    assert "a topic has no setting retention.msec" in wrong
    assert tool.json("topic", "describe", "maps")["configs"] == altered
    tool("topic", "alter", "maps", "--delete-config", "retention.ms")
    assert tool.json("topic", "describe", "maps")["configs"] == described["configs"]
    assert "5 partitions" in tool("topic", "alter", "maps", "--partitions", "5")
    assert len(tool.json("topic", "describe", "maps")["partitions"]) == 5
    assert "INVALID_PARTITIONS" in tool("topic", "alter", "maps", "--partitions", "5", code=1)
    assert "needs --config" in tool("topic", "alter", "maps", code=2)
    tool("topic", "delete", "maps")
    assert "fencepost topic list" in tool("topic", "describe", "maps", code=1)


def test_records_of_a_compacted_topic_are_not_deleted(tool: DataTool) -> None:
    tool("topic", "create", "latest", "-c", "cleanup.policy=compact")
    refused = tool("topic", "delete-records", "latest", "-p", "0", "--before", "end", code=1)
    assert "topic latest is compacted" in refused
    assert "cleanup.policy=compact,delete" in refused


def test_a_topic_with_an_impossible_name(tool: DataTool) -> None:
    assert "249" in tool("topic", "create", "not/a/topic", code=1)


def test_errors_speak_to_a_person(tool: DataTool) -> None:
    assert "consume needs TOPIC" in tool("consume", code=2)
    assert "topic create needs NAME" in tool("topic", "create", code=2)
    assert "topic delete-records needs --partition and --before" in tool(
        "topic", "delete-records", "maps", code=2
    )
    assert "needs --before" in tool("topic", "delete-records", "maps", "--partition=0", code=2)
    many = tool("topic", "create", "wide", "-p", "10001", code=1)
    assert "10001 partitions; the limit is 10000 (POLICY_VIOLATION)\n  `fencepost help trust` lists" in many
    missing = "fencepost: topic 'nope' does not exist (UNKNOWN_TOPIC_OR_PARTITION)\n  "
    assert tool("topic", "delete", "nope", code=1) == f"{missing}`fencepost topic list` shows the topics\n"
    for told in (tool("consume", "nope", code=1), tool.produce("nope", "a\n", code=1)):
        assert told.startswith(f"{missing}`fencepost topic create` creates a topic"), told


def test_an_unknown_topic_is_an_error_also_without_lines_to_write(tool: DataTool) -> None:
    for topic in ("nope", "not/a/topic"):
        assert topic in tool.produce(topic, "", code=1)


def test_records_from_an_offset_and_up_to_a_number(tool: DataTool) -> None:
    tool("topic", "create", "letters")
    tool.produce("letters", "a\nb\nc\nd\n")
    assert tool("consume", "letters", "--from", "1", "--max", "2").splitlines() == ["b", "c"]
    assert tool("consume", "letters", "--from", "latest") == ""
    assert tool("consume", "letters", "--places", "--max", "1") == "0:0\ta\n"


def test_lines_in_transactions(tool: DataTool) -> None:
    tool("topic", "create", "payments", "--partitions", "2")
    options = ("--transactional-id", "till", "--records-per-transaction", "2", "--json")
    written = json.loads(tool.produce("payments", "a\nb\nc\nd\ne\n", *options))
    assert (written["records"], written["transactions"]) == (5, 3)
    assert sorted(tool("consume", "payments").split()) == list("abcde")
    described = tool.json("transactions", "describe", "till")
    assert described["state"] == "CompleteCommit"
    assert described["transactional_id"] in [
        entry["transactional_id"] for entry in tool.rows("transactions", "list")
    ]
    assert "CompleteCommit" in tool("transactions", "list")
    assert "till" in tool("transactions", "describe", "till")
    assert "transactions list" in tool("transactions", "describe", "nobody", code=1)


def test_isolation_decides_what_is_seen_of_an_open_transaction(tool: DataTool, address: str) -> None:
    tool("topic", "create", "drafts")
    with Producer(address, transactional_id="author") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("drafts", b"secret")
        producer.flush()
        assert tool("consume", "drafts") == ""
        assert tool("consume", "drafts", "--isolation", "read_uncommitted") == "secret\n"
        [entry] = tool.json("topic", "describe", "drafts")["partitions"]
        assert (entry["last_stable_offset"], entry["high_watermark"], entry["open_transactions"]) == (0, 1, 1)
        assert tool.json("transactions", "describe", "author")["partitions"] == ["drafts-0"]
        producer.abort_transaction()
    assert tool("consume", "drafts") == ""
