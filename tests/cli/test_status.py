"""`fencepost status` and `fencepost top` against a broker in this process."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import attrs
import pytest

from fencepost.broker.embedded import Broker
from fencepost.cli import top
from fencepost.cli.application import run
from fencepost.cli.status import NAMED_MAX, RECENT_MS, problems
from fencepost.cli.top import request_rates, topic_rates
from fencepost.client.shells.sync import Admin, Producer
from fencepost.protocol import messages as m
from fencepost.protocol.terms import TopicPartition
from tests.cli.test_transactions import OF_OLD, make_it_hang
from tests.cli.tool import Output, Tool


@pytest.fixture
def tool(capsys: Output) -> Iterator[Tool]:
    with Broker(**OF_OLD) as broker:
        yield Tool(broker.address, capsys)


@pytest.fixture
def calm(tool: Tool) -> m.BrokerStatusReply:
    """The status of a broker that is well."""
    with Admin(tool.address) as admin:
        admin.create_topic("orders", 2)
        return admin.broker_status()


def test_a_broker_that_is_well(tool: Tool) -> None:
    found = tool.json("status")
    assert (found["healthy"], found["problems"], found["node_id"]) == (True, [], 1)
    assert found["transaction_version"] == OF_OLD["transaction_version"]
    assert found["partition_verification"] is False
    assert tool("status").startswith("HEALTHY:")


def test_the_status_counts_the_topics_of_the_list(tool: Tool) -> None:
    """The log of the controller is not a topic, as for Kafka's tools."""
    with Producer(tool.address, transactional_id="pay") as producer:
        producer.init_transactions()  # creates __transaction_state
    listed = tool.rows("topic", "list")
    assert [topic["topic"] for topic in listed] == ["__transaction_state"]
    (found,) = tool.rows("status")
    counted = (found["topics"], found["partitions"])
    assert counted == (1, sum(topic["partitions"] for topic in listed))


def test_a_hanging_transaction_is_a_problem(tool: Tool) -> None:
    make_it_hang(tool.address)
    (found,) = tool.rows("status", code=1)
    assert (found["healthy"], found["hanging"]) == (False, ["orders-0"])
    late, hanging = found["problems"]  # its record is old
    assert late.startswith("late transactions in orders-0")
    assert "fencepost transactions find-hanging -t orders" in hanging
    assert (found["stable_lag_partition"], found["open_transactions"]) == ("orders-0", 1)


def test_every_kind_of_problem_is_told(calm: m.BrokerStatusReply) -> None:
    assert problems(calm) == []
    (topic,) = [each for each in calm.topics if each.topic == "orders"]
    lost = tuple(TopicPartition("orders", number) for number in range(NAMED_MAX + 2))
    disk = m.DiskProblem(at_ms=calm.now_ms - 1, text="orders-0: No space left on device")
    changes = {
        "partitions not served: orders-0, ": {"unserved": lost},
        "late transactions in orders-1": {"topics": (attrs.evolve(topic, late=(1,)),)},
        "hanging transactions in orders-0": {"topics": (attrs.evolve(topic, hanging=(0,)),)},
        "orders-0: No space left on device (see the broker's log)": {"disk_problems": (disk,)},
    }
    for words, change in changes.items():
        (problem,) = problems(attrs.evolve(calm, **change))
        assert problem.startswith(words)
    assert "and 2 more" in problems(attrs.evolve(calm, unserved=lost))[0]
    old = attrs.evolve(disk, at_ms=calm.now_ms - RECENT_MS)
    assert problems(attrs.evolve(calm, disk_problems=(old,))) == []


def test_top_shows_one_interval(tool: Tool, calm: m.BrokerStatusReply) -> None:
    with Producer(tool.address) as producer:
        producer.send("orders", b"x").result()
    (found,) = tool.rows("top", "--once", "--interval", "0.01")
    assert "orders" in {each["topic"] for each in found["topics"]}
    asked = {each["request"]: each for each in found["requests"]}["BrokerStatus"]
    assert asked["requests_per_second"] > 0
    assert asked["mean_ms"] > 0
    text = tool("top", "--once", "--interval", "0.01", "--limit", "1")
    assert "TOPIC" in text
    assert "LSO-LAG" in text
    assert "\x1b" not in text, "no terminal, no control characters"


@pytest.mark.parametrize(("columns", "lines"), [(200, 24), (80, 24), (50, 10), (80, 3), (120, 2), (40, 2)])
def test_top_keeps_its_headline_on_the_screen(
    tool: Tool, columns: int, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.setattr(top, "is_terminal", lambda: True)
    looks = iter([None, None])

    def sleep(_seconds: float) -> None:
        next(looks)

    monkeypatch.setattr(top, "time", SimpleNamespace(sleep=sleep))
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", str(lines))
    with Admin(tool.address) as admin:
        for number in range(30):
            admin.create_topic(f"t-{columns}-{number}")
    with pytest.raises(StopIteration):
        run(["top", "-b", tool.address])
    screens = capsys.readouterr().out.split(top.CLEAR)[1:]
    assert len(screens) == 2
    for screen in screens:
        rows = [-(-len(line) // columns) or 1 for line in screen.split("\n")]
        assert sum(rows) <= lines
        assert "node 1, up " in screen.partition("\n")[0]


def test_rates_are_differences(calm: m.BrokerStatusReply) -> None:
    (topic,) = [each for each in calm.topics if each.topic == "orders"]
    made = m.RequestStatus(api="Produce", count=10, errors=0, total_us=5_000)
    before = attrs.evolve(calm, topics=(topic,), requests=(made,))
    busy = attrs.evolve(topic, records_in=topic.records_in + 30, bytes_in=topic.bytes_in + 900)
    fresh = attrs.evolve(topic, topic="fresh", bytes_out=6)
    more = m.RequestStatus(api="Produce", count=14, errors=2, total_us=13_000)
    first = m.RequestStatus(api="Fetch", count=2, errors=0, total_us=0)
    now = attrs.evolve(before, now_ms=before.now_ms + 2_000, topics=(fresh, busy), requests=(first, more))
    rates = [
        (each.topic.topic, each.records_in, each.bytes_in, each.bytes_out)
        for each in topic_rates(before, now)
    ]
    assert rates == [("orders", 15.0, 450.0, 0.0), ("fresh", 0.0, 0.0, 3.0)]
    assert request_rates(before, now) == [("Produce", 2.0, 2.0, 1.0), ("Fetch", 1.0, 0.0, 0.0)]
    again = attrs.evolve(now, topics=(attrs.evolve(busy, records_in=0),), requests=(more,))
    assert topic_rates(now, again)[0].records_in == 0.0
    assert request_rates(now, again) == [("Produce", 0.0, None, 0.0)]


@pytest.mark.parametrize("words", [("--interval", "0"), ("--interval", "inf"), ("--limit", "0")])
def test_top_checks_its_numbers(tool: Tool, words: tuple[str, ...]) -> None:
    assert words[0] in tool("top", *words, code=2)
