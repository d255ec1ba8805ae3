"""`fencepost produce` and `consume` against a broker: round trips, positions, groups, interruptions."""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from fencepost.broker.embedded import Broker
from fencepost.cli import consume, positions, produce, times
from fencepost.cli.errors import CommandFailed
from fencepost.cli.positions import Kind, parse_position
from fencepost.client.errors import CommitOutcomeUnknown
from fencepost.client.shells.sync import Admin, Consumer, Producer
from fencepost.protocol.terms import TopicPartition
from tests.broker.story import FEW_LOGS
from tests.cli.processes import PATIENCE_S, started
from tests.cli.tool import DataTool, Output
from tests.topics import create_topic

LONG_AGO = 1_700_000_000_000
TOPICS = count(1)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with Broker(override=FEW_LOGS) as broker:
        yield broker.address


@pytest.fixture
def tool(address: str, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> DataTool:
    return DataTool(address, capsys, monkeypatch)


@pytest.fixture
def topic(address: str) -> str:
    """A topic of two partitions for this test."""
    name = f"topic-{next(TOPICS)}"
    create_topic(address, name, 2)
    return name


def send(address: str, topic: str, count: int, partition: int = 0, timestamp_ms: int | None = None) -> None:
    with Producer(address) as producer:
        for number in range(count):
            later = None if timestamp_ms is None else timestamp_ms + 1_000 * number
            producer.send(topic, b"%d" % number, partition=partition, timestamp_ms=later)


def test_a_partition_whose_log_is_damaged_does_not_hide_the_others(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Broker(tmp_path) as broker:
        create_topic(broker.address, "t", 2)
        for partition in (0, 1):
            send(broker.address, "t", 3, partition)
    (log,) = (tmp_path / "t-1").glob("*.log")
    data = bytearray(log.read_bytes())
    data[-10] ^= 1
    log.write_bytes(data)
    monkeypatch.setattr("fencepost.cli.options.ANSWER_MS", 300)
    with Broker(tmp_path) as broker:
        tool = DataTool(broker.address, capsys, monkeypatch)
        out, err = tool.both("consume", "t", code=1)
        assert out.split() == ["0", "1", "2"]
        reason = "cannot read t-1: the broker's disk failed, or the log is damaged (KAFKA_STORAGE_ERROR)"
        assert err.count(reason) == 2
        assert "reading the other partitions" in err
        assert "`fencepost check DIR`" in err
        out, err = tool.both("topic", "describe", "t", code=1)
        lines = [line.split() for line in out.splitlines()]
        assert ["0", "1", "1", "0", "3", "3", "0"] in lines
        assert ["1", "1", "1", "-", "-", "-", "-"] in lines
        assert "max.message.bytes" in out
        assert err.count(reason) == 1
        (described,) = tool.rows("topic", "describe", "t", code=1)
        assert [part["high_watermark"] for part in described["partitions"]] == [3, None]
        tool("group", "reset-offsets", "g", "-t", "t", "-p", "0", "--to-latest", "--execute")
        with Consumer(broker.address, group_id="g") as consumer:
            consumer.commit({TopicPartition("t", 1): 1})
        out, err = tool.both("group", "describe", "g", code=1)
        assert [line.split() for line in out.splitlines() if line.startswith("t ")] == [
            ["t", "0", "3", "3", "0", "-"],
            ["t", "1", "1", "-", "-", "-"],
        ]
        assert err.count(reason) == 1
        out, err = tool.both("transactions", "find-hanging", "-t", "t", code=1)
        assert (out, err.count(reason)) == ("No hanging transactions in the other partitions.\n", 1)
        for options in (("--partition", "1"), ("--group", "g")):
            out, err = tool.both("consume", "t", *options, code=1)
            assert (out, err.count(reason)) == ("", 1)


ODD: list[dict[str, Any]] = [
    {"key": None, "value": "no key", "headers": []},
    {"key": "", "value": "", "headers": []},
    {"key": "tombstone", "value": None, "headers": [["h", "1"], ["h", "2"], ["n", None]]},
    {"key": {"base64": "/w=="}, "value": {"base64": "AP8="}, "headers": [["b", {"base64": "/w=="}]]},
    {"key": "a,b", "value": 'two\nlines and a "quote"\r', "headers": [["ü", "漢"]]},
]


@pytest.mark.parametrize("format_", ["jsonl", "csv"])
def test_what_consume_writes_produce_reads(tool: DataTool, topic: str, format_: str) -> None:
    tool("topic", "create", f"{topic}-copy", "-p", "2")
    lines = [json.dumps({"partition": n % 2, "timestamp_ms": LONG_AGO + n, **r}) for n, r in enumerate(ODD)]
    assert f"{len(ODD)} records" in tool.produce(topic, "\n".join(lines), "-f", "jsonl")
    options = ("--base64",) if format_ == "csv" else ()
    tool.produce(f"{topic}-copy", tool("consume", topic, "-f", format_, *options), "-f", format_, *options)

    def content(of: str) -> list[dict[str, Any]]:
        return [{**row, "topic": ""} for row in tool.rows("consume", of)]

    assert content(f"{topic}-copy") == content(topic)
    found = sorted(content(topic), key=lambda row: row["timestamp_ms"])
    assert [{name: row[name] for name in ("key", "value", "headers")} for row in found] == ODD


def test_lines_keep_nulls_and_tombstones(tool: DataTool, topic: str) -> None:
    tool.produce(topic, "k\t\\N\nk\t\n\\N\n\n", "-p", "0")
    assert [(row["key"], row["value"]) for row in tool.rows("consume", topic)] == [
        ("k", None), ("k", ""), (None, None), (None, "")
    ]  # fmt: skip
    assert tool("consume", topic) == "k\t\\N\nk\t\n\\N\n\n"
    assert tool("consume", topic, "--null", "NULL", "-K", "|") == "k|NULL\nk|\nNULL\n\n"
    assert tool("consume", topic, "--null", "NULL", "-K", "") == "kNULL\nk\nNULL\n\n"


def test_what_is_the_same_for_every_record(tool: DataTool, topic: str) -> None:
    tool.produce(topic, "own\tv\nv\n", "-k", "k", "-H", "a=1", "-H", "a=2=3", "-p", "1", "-z", "zstd")
    rows = tool.rows("consume", topic)
    assert [(row["key"], row["partition"], row["headers"]) for row in rows] == [
        ("own", 1, [["a", "1"], ["a", "2=3"]]),
        ("k", 1, [["a", "1"], ["a", "2=3"]]),
    ]
    tool.produce(topic, '{"value": "v", "partition": 1}', "-f", "jsonl", "--repartition", "-k", "k")
    assert "name=value" in tool.produce(topic, "v\n", "-H", "a", code=2)


class Terminal(io.BytesIO):
    """What is typed at a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("format_", "said"), [("text", "one record per line"), ("raw", "one record in all")])
def test_it_says_at_a_terminal_what_it_reads(
    tool: DataTool, topic: str, monkeypatch: pytest.MonkeyPatch, format_: str, said: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(Terminal(b"a\n")))
    _, err = tool.both("produce", topic, "-f", format_)
    assert err == f"Reading from the terminal: {said}. Ctrl-D ends the input.\n"
    tool.give("b\n")
    assert tool.both("produce", topic)[1] == ""


def test_files_are_read_in_order_or_whole(tool: DataTool, topic: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1\n2\n")
    (tmp_path / "b").write_bytes(b"3\n")
    files = (str(tmp_path / "a"), str(tmp_path / "b"))
    tool("produce", topic, *files, "-p", "0")
    tool("produce", topic, *files, "-p", "0", "--format", "raw")
    tool.produce(topic, b"\xff\n", "-p", "0", "-f", "raw")
    assert tool.values(topic) == ["1", "2", "3", "1\n2\n", "3\n", {"base64": "/wo="}]


def test_documents_of_csv(tool: DataTool, topic: str) -> None:
    tool.produce(topic, 'id,text\n7,"x,1"\n', "-f", "csv", "--key-column", "id")
    (row,) = tool.rows("consume", topic)
    assert (row["key"], json.loads(row["value"])) == ("7", {"id": "7", "text": "x,1"})


def test_a_mistake_names_its_line_and_what_was_written_before(tool: DataTool, topic: str) -> None:
    text = '{"value": "1"}\n{"value": "2"}\nnonsense\n'
    tool.give(text)
    out, err = tool.both("produce", topic, "-f", "jsonl", "-p", "0", code=1)
    assert "standard input line 3: not JSON" in err
    assert out == f"Failed after writing 2 records to {topic}\n  partition 0: offsets 0 to 1\n"
    assert tool.values(topic) == ["1", "2"]


@pytest.mark.parametrize("options", [(), ("--transactional-id", "till")])
def test_a_record_that_is_too_large_is_answered_by_the_setting(
    tool: DataTool, topic: str, options: tuple[str, ...]
) -> None:
    tool("topic", "alter", topic, "--config", "max.message.bytes=100")
    said = tool.produce(topic, "x" * 200, *options, code=1)
    assert "`fencepost topic alter` raises it" in said


def test_a_mistake_in_a_transaction_aborts_it(tool: DataTool, topic: str) -> None:
    text = '{"value": "1"}\n{"value": "2"}\n{"value": "3"}\nnonsense\n'
    tool.give(text)
    options = ("-f", "jsonl", "-p", "0", "--transactional-id", topic, "--records-per-transaction", "2")
    out, _ = tool.both("produce", topic, *options, "--json", code=1)
    told = json.loads(out)
    assert (told["records"], told["transactions"]) == (2, 1)
    assert (told["last_transaction"], told["ended"]) == ("aborted", "failed")
    assert tool.values(topic) == ["1", "2"]


@pytest.mark.parametrize(
    ("problem", "code"), [(CommitOutcomeUnknown("no answer"), 1), (KeyboardInterrupt(), 130)]
)
def test_a_commit_without_an_answer_is_reported_as_unknown(
    tool: DataTool, topic: str, monkeypatch: pytest.MonkeyPatch, problem: BaseException, code: int
) -> None:
    @contextmanager
    def transaction(_self: Producer) -> Generator[None]:
        yield
        raise problem

    monkeypatch.setattr(Producer, "transaction", transaction)
    monkeypatch.setattr(produce, "_send", sends_nothing)
    tool.give("1\n")
    out, _ = tool.both("produce", topic, "--transactional-id", topic, "--json", code=code)
    told = json.loads(out)
    assert (told["records"], told["last_transaction"]) == (0, "unknown")


def sends_nothing(*_: object) -> None:
    """In place of sending."""


def test_ctrl_c_commits_what_a_group_has_printed(
    tool: DataTool, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next member prints it again: one poll can return a hundred thousand records."""
    tool.produce(topic, "a\nb\nc\n", "-p", "0")

    def print_two(fact: dict[str, Any]) -> None:
        if fact["offset"] == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(consume, "print_json", print_two)
        with pytest.raises(KeyboardInterrupt):
            tool("consume", topic, "-g", topic, "--json")
    (described,) = [row for row in tool.json("group", "describe", topic)["offsets"] if row["partition"] == 0]
    assert described["current_offset"] == 2


@pytest.mark.parametrize("id_", ["", "till"])
def test_ctrl_c_reports_what_was_written(address: str, topic: str, id_: str) -> None:
    options = ("--transactional-id", id_, "--records-per-transaction", "2") if id_ else ()
    with started("produce", topic, "-p", "0", *options, "-b", address) as process, Admin(address) as admin:
        assert process.stdin is not None
        process.stdin.write("a\nb\nc\n")
        process.stdin.flush()
        where, third = TopicPartition(topic, 0), 4 if id_ else 3  # a marker comes before it
        while admin.end_offsets([where], "read_uncommitted")[where] < third:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    if id_:
        assert out.startswith(f"Interrupted after writing 2 records to {topic} in 1 transaction")
        assert "outcome of the open transaction: aborted" in out
    else:
        assert out.startswith(f"Interrupted after writing 3 records to {topic}\n")


def test_a_partition_that_the_topic_does_not_have_names_repartition(tool: DataTool, topic: str) -> None:
    assert "--repartition" in tool.produce(topic, "value,partition\nx,7\n", "-f", "csv", code=1)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_records_without_an_answer_are_reported_as_unknown(how: signal.Signals) -> None:
    held = "when broker sends Produce reply to * do hold"
    with Broker(override=FEW_LOGS, faults=[held]) as broker, Admin(broker.address) as admin:
        admin.create_topic("t", 1)
        with started("produce", "t", "-b", broker.address) as process:
            assert process.stdin is not None
            process.stdin.write("a\nb\nc\n")
            process.stdin.close()
            where = TopicPartition("t", 0)
            while admin.end_offsets([where], "read_uncommitted")[where] < 3:
                assert process.poll() is None
            process.send_signal(how)
            process.stdin = None
            out, _ = process.communicate(timeout=PATIENCE_S)
    assert out == (
        "Interrupted after writing 0 records to t\n"
        "  outcome unknown: 3 records that the broker has not acknowledged; "
        "`fencepost consume t` shows what was written\n"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("-f", "jsonl", "--separator", ","), "--separator does not apply to --format jsonl"),
        (("-f", "raw", "--base64"), "--base64 does not apply to --format raw"),
        (("--key-column", "id"), "--key-column does not apply to --format text"),
        (("-f", "csv", "--separator", "ab"), "must be one character"),
        (("-f", "xml"), "xml"),
    ],
)
def test_options_of_another_format_are_refused(
    tool: DataTool, topic: str, options: tuple[str, ...], said: str
) -> None:
    assert said in tool.produce(topic, "x\n", *options, code=2)


# --- where consume starts and stops -------------------------------------------------------------------------


def test_an_offset_that_some_partitions_do_not_have_is_a_notice(
    tool: DataTool, topic: str, address: str
) -> None:
    send(address, topic, 4)
    send(address, topic, 2, partition=1)
    out, err = tool.both("consume", topic, "--from", "3", "--places")
    assert out == "0:3\t3\n"
    assert f"partitions that end before offset 3 are not read: {topic}-1 ends at 2" in err
    assert f"no partition has offset 99: {topic}-0 ends at 4" in tool(
        "consume", topic, "--from", "99", code=1
    )
    assert "no partition has" in tool("consume", topic, "--from", "99", "--follow", code=1)
    tool("topic", "delete-records", topic, "-p", "0", "--before", "3")
    out, err = tool.both("consume", topic, "-o", "1", "-p", "0")
    assert out == "3\n"
    assert f"offset 1 was deleted; reading from the log start: {topic}-0 starts at 3" in err
    assert tool.both("consume", topic, "-o", "0", "-p", "0") == ("3\n", "")


def test_the_last_records_are_counted_without_markers(tool: DataTool, topic: str) -> None:
    tool.produce(
        topic, "1\n2\n3\n4\n5\n", "-p", "0", "--transactional-id", topic, "--records-per-transaction", "1"
    )
    assert tool.values(topic, "--from", "-2") == ["4", "5"]
    assert tool.values(topic, "--from", "-99") == ["1", "2", "3", "4", "5"]
    assert tool.values(topic, "-o", "-2", "-n", "1") == ["4"]
    assert tool.values(topic, "--from", "-2", "--until", "6") == ["2", "3"]


def test_records_of_a_time(tool: DataTool, topic: str, address: str) -> None:
    send(address, topic, 5, timestamp_ms=LONG_AGO)  # 2023-11-14T22:13:20Z
    assert tool.values(topic, "--from", "2023-11-14T22:13:22") == ["2", "3", "4"]
    assert tool.values(topic, "--from", "2023-11-14T23:13:22+01:00") == ["2", "3", "4"]
    assert tool.values(topic, "--from", f"@{LONG_AGO + 3_000}") == ["3", "4"]
    assert tool.values(topic, "--until", f"@{LONG_AGO + 2_000}") == ["0", "1"]
    assert tool.values(topic, "--from", "1", "--until", "3") == ["1", "2"]
    assert tool.values(topic, "--from", "-1h") == []
    assert tool.values(topic, "--from", "-2", "--until", "-1h") == ["3", "4"]
    out, err = tool.both("consume", topic, "--until", "99")
    assert out.split() == list("01234")
    assert "no partition has offset 99 yet" in err


@pytest.mark.parametrize(
    ("text", "kind", "number"),
    [
        ("earliest", Kind.EARLIEST, 0),
        ("beginning", Kind.EARLIEST, 0),
        ("end", Kind.LATEST, 0),
        ("latest", Kind.LATEST, 0),
        ("7", Kind.OFFSET, 7),
        ("-10", Kind.LAST, 10),
        ("@5", Kind.TIME, 5),
        ("-2m", Kind.TIME, 1_000_000 - 120_000),
        ("-1m30s", Kind.TIME, 1_000_000 - 90_000),
        ("1970-01-01", Kind.TIME, 0),
        ("1970-01-01 00:00:01Z", Kind.TIME, 1_000),
        ("1900-01-01", Kind.TIME, 0),
        ("-999999999d", Kind.TIME, 0),
    ],
)
def test_positions(text: str, kind: Kind, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times.time, "time_ns", lambda: 1_000_000 * 1_000_000)
    found = parse_position("--from", text)
    assert (found.kind, found.number) == (kind, number)


@pytest.mark.parametrize("text", ["", "now", "-", "-2y", "@x", "2026-13-01", "1.5", str(2**63)])
def test_what_is_no_position(text: str) -> None:
    with pytest.raises(CommandFailed, match="is not a position"):
        parse_position("--from", text)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--until", "-5"), "--until -5 is not a position to stop at"),
        (("--until", "earliest"), "give an offset, a time such as 2026-11-22T13:00 (UTC)"),
        (("--until", "monday"), "give an offset, a time such as 2026-11-22T13:00 (UTC)"),
        (("--until", "5", "--follow"), "leave out one"),
        (("--group", "g", "-p", "0"), "--partition has no effect"),
        (("--group", "g", "--from", "5"), "starts at committed offsets"),
        (("--format", "xml"), "not text, jsonl, csv or a format string"),
        (("--format", "%x"), "%x is not one of"),
        (("--format", "csv", "--json"), "ask for different formats"),
        (("--format", "csv", "--places"), "--places does not apply"),
        (("--json", "--null", "x"), "--null does not apply"),
        (("--format", "csv", "--separator", "ab"), "must be one character"),
        (("--format", "csv", "--separator", "\n"), "neither a quote nor a line break"),
    ],
)
def test_options_that_contradict_each_other(
    tool: DataTool, topic: str, options: tuple[str, ...], said: str
) -> None:
    assert said in tool("consume", topic, *options, code=2)


def test_what_waits_behind_an_open_transaction_is_said(tool: DataTool, topic: str, address: str) -> None:
    send(address, topic, 1)
    with Producer(address, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"open", partition=0).result()
        producer.send(topic, b"open", partition=0).result()
        out, err = tool.both("consume", topic)
        assert out == "0\n"
        assert f"an open transaction hides 2 offsets of {topic}-0 from read_committed" in err
        assert tool.both("consume", topic, "-n", "1") == ("0\n", ""), "it stopped for another reason"
        assert tool.both("consume", topic, "--isolation", "read_uncommitted") == ("0\nopen\nopen\n", "")
        producer.abort_transaction()
    assert tool.both("consume", topic) == ("0\n", "")


def test_a_group_goes_on_where_it_stopped(tool: DataTool, topic: str) -> None:
    tool.produce(topic, "1\n2\n3\n", "-p", "0", "--transactional-id", topic)
    group = ("--group", topic)
    assert tool.values(topic, *group, "-n", "2") == ["1", "2"]
    assert tool.values(topic, *group) == ["3"]
    assert tool.values(topic, *group) == []
    tool.produce(topic, "4\n", "-p", "1")
    assert tool.values(topic, *group) == ["4"]
    assert {row["lag"] for row in tool.json("group", "describe", topic)["offsets"]} == {0}
    assert tool.values(topic, "--group", f"{topic}-new", "--from", "latest") == []


def test_a_group_never_goes_back(tool: DataTool, topic: str, address: str) -> None:
    send(address, topic, 4)
    assert tool.values(topic, "--group", topic) == ["0", "1", "2", "3"]
    assert tool.values(topic, "--group", topic, "--until", "2") == []
    assert tool.values(topic, "--group", topic) == []


def test_formats_of_a_record(tool: DataTool, topic: str) -> None:
    tool.produce(
        topic, json.dumps({"key": "k", "value": "v", "timestamp_ms": LONG_AGO, "partition": 1}), "-f", "jsonl"
    )
    assert tool("consume", topic, "-f", r"%p:%o %k=%s\n") == "1:0 k=v\n"
    assert tool("consume", topic, "--base64") == "aw==\tdg==\n"
    header, row = tool("consume", topic, "-f", "csv").splitlines()
    assert header == "topic,partition,offset,timestamp_ms,key,value,headers"
    assert row == f"{topic},1,0,{LONG_AGO},k,v,"
    tool.produce(topic, b"\xff\n", "-p", "1")
    assert f"{topic}-1 offset 1: the value is not UTF-8" in tool("consume", topic, "-f", "csv", code=1)


@pytest.mark.parametrize("options", [(), ("--group", "readers"), ("--until", "latest")])
def test_a_log_that_got_shorter_meanwhile_is_an_error(
    capsys: Output, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    """The power fails after the command has asked for the end."""
    with Broker(override=FEW_LOGS) as broker:
        tool = DataTool(broker.address, capsys, monkeypatch)
        create_topic(broker.address, "t", 1)
        broker.restart()  # a clean stop syncs the topic
        send(broker.address, "t", 5)
        ask = consume.range_of

        def ask_and_lose_power(*arguments: Any) -> tuple[positions.OffsetRange, positions.Refusals]:
            found = ask(*arguments)
            broker.power_cut()
            broker.start()
            return found

        monkeypatch.setattr(consume, "range_of", ask_and_lose_power)
        told = tool("consume", "t", *options, code=1)
        assert "t-0 ended at offset 5 when this command began, and ends at 0 now" in told
