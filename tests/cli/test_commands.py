"""Each command against a broker in this process: what it prints in words and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fencepost.broker.embedded import Broker
from fencepost.cli.application import run

Output = pytest.CaptureFixture[str]


class Shell:
    """Runs commands against one broker."""

    def __init__(self, address: str, capture: Output, directory: Path) -> None:
        self._at = ["--bootstrap-server", address]
        self._capture = capture
        self._file = directory / "lines"

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """The standard output of a command that ends with this code."""
        assert run([*arguments, *self._at]) == code
        said = self._capture.readouterr()
        return said.err if code else said.out

    def json(self, *arguments: str) -> Any:
        """The answer as JSON."""
        return json.loads(self(*arguments, "--json"))

    def rows(self, *arguments: str) -> list[Any]:
        """The answer as JSON, one object per line."""
        return [json.loads(line) for line in self(*arguments, "--json").splitlines()]

    def produce(self, topic: str, *lines: str, options: tuple[str, ...] = (), code: int = 0) -> str:
        """Writes lines."""
        self._file.write_text("".join(f"{line}\n" for line in lines))
        return self("produce", topic, str(self._file), *options, code=code)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with Broker() as broker:
        yield broker.address


@pytest.fixture
def shell(address: str, capsys: Output, tmp_path: Path) -> Shell:
    return Shell(address, capsys, tmp_path)


def test_topics(shell: Shell) -> None:
    assert "3 partitions" in shell("topic", "create", "maps", "--partitions", "3")
    assert "TOPIC_ALREADY_EXISTS" in shell("topic", "create", "maps", code=1)
    assert {"topic": "maps", "partitions": 3, "internal": False} in shell.rows("topic", "list")
    described = shell.json("topic", "describe", "maps")
    assert [entry["partition"] for entry in described["partitions"]] == [0, 1, 2]
    assert described["partitions"][0]["high_watermark"] == 0
    assert {"name": "retention.ms", "value": "604800000", "source": "default"} in described["configs"]
    assert "LAST-STABLE-OFFSET" in shell("topic", "describe", "maps")
    assert "1 setting" in shell("topic", "alter", "maps", "--config", "retention.ms=5")
    altered = shell.json("topic", "describe", "maps")["configs"]
    assert {"name": "retention.ms", "value": "5", "source": "topic"} in altered
    shell("topic", "alter", "maps", "--delete-config", "retention.ms")
    assert shell.json("topic", "describe", "maps")["configs"] == described["configs"]
    assert "5 partitions" in shell("topic", "alter", "maps", "--partitions", "5")
    assert len(shell.json("topic", "describe", "maps")["partitions"]) == 5
    assert "INVALID_PARTITIONS" in shell("topic", "alter", "maps", "--partitions", "5", code=1)
    assert "needs --config" in shell("topic", "alter", "maps", code=2)
    shell("topic", "delete", "maps")
    assert "fencepost topic list" in shell("topic", "describe", "maps", code=1)


def test_a_topic_with_an_impossible_name(shell: Shell) -> None:
    assert "249" in shell("topic", "create", "not/a/topic", code=1)


def test_errors_speak_to_a_person(shell: Shell) -> None:
    assert "consume needs TOPIC" in shell("consume", code=2)
    assert "topic create needs NAME" in shell("topic", "create", code=2)
    assert "topic delete-records needs --partition and --before" in shell(
        "topic", "delete-records", "maps", code=2
    )
    assert "needs --before" in shell("topic", "delete-records", "maps", "--partition=0", code=2)
    assert shell("consume", "nope", code=1).startswith("fencepost: topic 'nope' does not exist")


def test_an_unknown_topic_is_an_error_also_without_lines_to_write(shell: Shell) -> None:
    for topic in ("nope", "not/a/topic"):
        assert topic in shell.produce(topic, code=1)


def test_records_from_an_offset_and_up_to_a_number(shell: Shell) -> None:
    shell("topic", "create", "letters")
    shell.produce("letters", "a", "b", "c", "d")
    assert shell("consume", "letters", "--from", "1", "--max", "2").splitlines() == ["b", "c"]
    assert shell("consume", "letters", "--from", "latest") == ""
    assert shell("consume", "letters", "--places", "--max", "1") == "0:0\ta\n"
    assert "is not a position" in shell("consume", "letters", "--from", "monday", code=2)
    assert "has no partition 7" in shell("consume", "letters", "--partition", "7", code=1)


def test_records_as_json(shell: Shell) -> None:
    shell("topic", "create", "words")
    shell.produce("words", "key\tvalue", "alone", options=("--compression", "zstd"))
    lines = [json.loads(line) for line in shell("consume", "words", "--json").splitlines()]
    assert [(line["offset"], line["key"], line["value"]) for line in lines] == [
        (0, "key", "value"),
        (1, None, "alone"),
    ]


def test_lines_in_transactions(shell: Shell) -> None:
    shell("topic", "create", "payments", "--partitions", "2")
    options = ("--transactional-id", "till", "--records-per-transaction", "2", "--json")
    written = json.loads(shell.produce("payments", *"abcde", options=options))
    assert (written["records"], written["transactions"]) == (5, 3)
    assert sorted(shell("consume", "payments").split()) == list("abcde")
    described = shell.json("transactions", "describe", "till")
    assert described["state"] == "CompleteCommit"
    assert described["transactional_id"] in [
        entry["transactional_id"] for entry in shell.rows("transactions", "list")
    ]
    assert "CompleteCommit" in shell("transactions", "list")
    assert "till" in shell("transactions", "describe", "till")
    assert "transactions list" in shell("transactions", "describe", "nobody", code=1)


def test_isolation_decides_what_is_seen_of_an_open_transaction(shell: Shell, address: str) -> None:
    from fencepost.client.shells.sync import Producer

    shell("topic", "create", "drafts")
    with Producer(address, transactional_id="author") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("drafts", b"secret")
        producer.flush()
        assert shell("consume", "drafts") == ""
        assert shell("consume", "drafts", "--isolation", "read_uncommitted") == "secret\n"
        [entry] = shell.json("topic", "describe", "drafts")["partitions"]
        assert (entry["last_stable_offset"], entry["high_watermark"], entry["open_transactions"]) == (0, 1, 1)
        assert shell.json("transactions", "describe", "author")["partitions"] == ["drafts-0"]
        producer.abort_transaction()
    assert shell("consume", "drafts") == ""
