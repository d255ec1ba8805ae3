"""`fencepost group` and `topic delete-records` against a broker in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from fencepost.broker.embedded import Broker
from fencepost.cli.application import run
from fencepost.client.errors import RequestFailed
from fencepost.client.shells.sync import Admin, Consumer, Producer
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import TopicPartition
from tests.broker.story import FEW_LOGS
from tests.cli.tool import Output, Tool
from tests.client.members import assignment, become_member

HERE, THERE = TopicPartition("orders", 0), TopicPartition("orders", 1)


class GroupTool(Tool):
    """A topic of two partitions is there, and three records in the first."""

    def __init__(self, address: str, capture: Output) -> None:
        super().__init__(address, capture)
        with Admin(address) as admin, Producer(address) as producer:
            admin.create_topic("orders", 2)
            for _ in range(3):
                producer.send("orders", b"x", partition=0).result()

    def commit(self, offsets: dict[TopicPartition, int]) -> None:
        with Consumer(self.address, group_id="billing") as consumer:
            consumer.commit(offsets)


@pytest.fixture
def tool(capsys: Output) -> Iterator[GroupTool]:
    with Broker(override=FEW_LOGS) as broker:
        yield GroupTool(broker.address, capsys)


def test_a_group_is_listed_and_described_with_its_lag(tool: GroupTool) -> None:
    tool.commit({HERE: 1, THERE: 0})
    (listed,) = tool.rows("group", "list")
    assert listed == {
        "group": "billing",
        "coordinator_id": 1,
        "type": "Classic",
        "protocol_type": None,
        "state": "Empty",
    }
    assert tool.rows("group", "list", "--state", "Stable") == []
    assert tool.rows("group", "list", "--state", "Assigning", "--state", "Reconciling") == []
    described = tool.json("group", "describe", "billing")
    assert (described["state"], described["members"]) == ("Empty", [])
    assert [(row["current_offset"], row["log_end_offset"], row["lag"]) for row in described["offsets"]] == [
        (1, 3, 2),
        (0, 0, 0),
    ]
    assert described["total_lag"] == 2
    *block, columns, first, _, _, total = tool("group", "describe", "billing").splitlines()
    assert total.startswith("Total lag: 2. It counts markers")
    assert block[:2] == ["GROUP:         billing", "STATE:         Empty"]
    assert "The group has no members." in block
    assert columns.split() == ["TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID"]
    assert first.split() == ["orders", "0", "1", "3", "2", "-"]


def test_members_are_shown_with_what_they_read(tool: GroupTool) -> None:
    member_id = become_member(tool.address, "readers", assignment("orders", [0]), "orders")
    described = tool.json("group", "describe", "readers")
    (member,) = described["members"]
    assert member == {
        "consumer_id": member_id,
        "group_instance_id": "i",
        "host": "/127.0.0.1",
        "client_id": None,
        "partitions": ["orders-0"],
    }
    (row,) = described["offsets"]
    assert (row["current_offset"], row["lag"], row["consumer_id"]) == (None, None, member_id)
    words = tool("group", "describe", "readers").splitlines()
    assert words[1].split() == ["STATE:", "Stable"]
    assert words[6].split() == [member_id, "i", "/127.0.0.1", "-", "orders-0"]
    assert described["total_lag"] is None
    assert not any("Total lag" in line for line in words)
    assert "group describe" in tool("group", "delete", "readers", code=1)


def test_offsets_and_groups_are_deleted(tool: GroupTool) -> None:
    tool.commit({HERE: 1, THERE: 0})
    said = tool("group", "delete-offsets", "billing", "--topic", "orders", "--partition", "1")
    assert "orders-1" in said
    assert [row["partition"] for row in tool.json("group", "describe", "billing")["offsets"]] == [0]
    assert "orders-0, orders-1" in tool("group", "delete-offsets", "billing", "--topic", "orders")
    assert "Deleted" in tool("group", "delete", "billing")
    for command in ("describe", "delete"):
        assert "`fencepost group list`" in tool("group", command, "billing", code=1)


def test_records_are_deleted_before_an_offset(tool: GroupTool) -> None:
    def delete(before: str, code: int = 0) -> str:
        return tool("topic", "delete-records", "orders", "--partition", "0", "--before", before, code=code)

    assert "--before 4 is not between 0, where orders-0 starts, and 3, where it ends" in delete("4", code=1)
    assert delete("2") == "orders-0 now starts at offset 2.\n"
    assert tool.json("topic", "describe", "orders")["partitions"][0]["log_start_offset"] == 2
    assert delete("end") == "orders-0 now starts at offset 3.\n"
    delete("-1", code=2)
    delete("now", code=2)
    assert "is not an offset" in delete(str(2**63), code=2)
    assert "has no partition 7" in tool(
        "topic", "delete-records", "orders", "--partition", "7", "--before", "end", code=1
    )


def test_a_topic_takes_settings(tool: GroupTool) -> None:
    tool("topic", "create", "small", "--config", "max.message.bytes=100")
    with Producer(tool.address) as producer:
        outcome = producer.send("small", b"x" * 100)
        with pytest.raises(Exception, match="MESSAGE_TOO_LARGE"):
            outcome.result()
    assert "`fencepost help compaction`" in tool("topic", "create", "u", "--config", "flush.ms=1", code=1)
    assert "is not name=value" in tool("topic", "create", "u", "--config", "small", code=2)
    twice = ("--config", "max.message.bytes=1000", "--config", "max.message.bytes=2000")
    assert "--config sets max.message.bytes twice" in tool("topic", "create", "u", *twice, code=2)


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "create", "u", "--partitions", str(2**31)),
        ("transactions", "list", "--duration-filter", str(2**63)),
        ("transactions", "list", "--producer-id", "1", "--producer-id", str(2**63)),
        ("consume", "orders", "--from", str(2**63)),
    ],
)
def test_a_number_that_no_request_can_hold_is_wrong_usage(
    tool: GroupTool, arguments: tuple[str, ...]
) -> None:
    assert str(2**31) in tool(*arguments, code=2) or str(2**63) in tool(*arguments, code=2)


# --- reset-offsets ----------------------------------------------------------------------------------------

RESET = ("group", "reset-offsets", "billing", "--topic", "orders")


def resets(tool: GroupTool, *arguments: str) -> list[tuple[int, int | None, int]]:
    """Partition, committed and new offset of each partition."""
    rows = tool.rows(*arguments)
    return [(row["partition"], row["current_offset"], row["new_offset"]) for row in rows]


def committed(tool: GroupTool) -> dict[TopicPartition, int]:
    with Admin(tool.address) as admin:
        return admin.list_consumer_group_offsets("billing")


@pytest.mark.parametrize(
    ("goal", "first"),
    [
        (("--to-earliest",), 0),
        (("--to-latest",), 3),
        (("--to-offset", "2"), 2),
        (("--to-offset", "99"), 3),
        (("--to-offset=-5",), 0),
        (("--shift-by", "1"), 2),
        (("--shift-by=-1",), 0),
        (("--shift-by=-9",), 0),
        (("--to-datetime", "2000-01-01T00:00:00"), 0),
        (("--to-datetime", "1900-01-01"), 0),
        (("--by-duration", "999999d"), 0),
        (("--to-datetime", "2100-01-01T00:00:00.000+02:00"), 3),
        (("--by-duration", "1h30m"), 0),
        (("--by-duration", "PT1H30M"), 0),
        (("--by-duration", "P1DT1S"), 0),
        (("--by-duration", "0s"), 3),
    ],
)
def test_a_group_reads_from_where_the_goal_says(tool: GroupTool, goal: tuple[str, ...], first: int) -> None:
    tool.commit({HERE: 1})
    assert resets(tool, *RESET, "-p", "0", *goal) == [(0, 1, first)]
    assert committed(tool) == {HERE: 1}, "nothing is changed without --execute"
    assert resets(tool, *RESET, "-p", "0", *goal, "--execute") == [(0, 1, first)]
    assert committed(tool) == {HERE: first}


@pytest.mark.parametrize(
    ("goal", "offset", "said"),
    [
        (
            ("--to-offset", "-5"),
            0,
            "fencepost: offset -5 is before the start of orders-0; using offset 0 instead",
        ),
        (
            ("--to-offset", "99"),
            3,
            "fencepost: offset 99 is after the end of orders-0; using offset 3 instead",
        ),
        (
            ("--shift-by", "-7"),
            0,
            "fencepost: offset -6 is before the start of orders-0; using offset 0 instead",
        ),
    ],
)
def test_an_offset_outside_the_log_is_a_notice(
    tool: GroupTool, capsys: Output, goal: tuple[str, ...], offset: int, said: str
) -> None:
    """Kafka's tool takes the nearest offset, too, and warns."""
    tool.commit({HERE: 1})
    arguments = [*RESET, "-p", "0", *goal, "--bootstrap-server", tool.address, "--json"]
    assert run(arguments) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["new_offset"] == offset
    assert told.err.splitlines()[0] == said


def test_all_topics_are_those_that_the_group_has_offsets_for(tool: GroupTool) -> None:
    tool.commit({HERE: 1})
    goal = ("--to-latest", "--execute")
    assert resets(tool, "group", "reset-offsets", "billing", "--all-topics", *goal) == [(0, 1, 3)]
    assert resets(tool, *RESET, *goal) == [(0, 3, 3), (1, None, 0)]
    assert resets(tool, "group", "reset-offsets", "fresh", "-t", "orders", *goal) == [
        (0, None, 3),
        (1, None, 0),
    ]
    assert {row["group"] for row in tool.rows("group", "list")} == {"billing", "fresh"}


@pytest.mark.parametrize(
    ("written", "numbers"), [("orders:0", [0]), ("orders:1,0", [1, 0]), ("orders:1", [1]), ("orders", [0, 1])]
)
def test_partitions_may_be_written_as_for_kafkas_tool(
    tool: GroupTool, written: str, numbers: list[int]
) -> None:
    goal = ("group", "reset-offsets", "billing", "--topic", written, "--to-earliest", "--execute")
    assert resets(tool, *goal) == [(number, None, 0) for number in numbers]
    deleted = tool.json("group", "delete-offsets", "billing", "--topic", written)
    assert deleted == {"group": "billing", "topic": "orders", "partitions": numbers}
    assert committed(tool) == {}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--topic", "orders:"), "--topic orders: is not TOPIC or TOPIC:PARTITION,PARTITION"),
        (("--topic", ":0"), "--topic :0 is not TOPIC or TOPIC:PARTITION,PARTITION"),
        (("--topic", "orders:0,x"), "--topic orders:0,x is not TOPIC or TOPIC:PARTITION,PARTITION"),
        (("--topic", "orders:0:1"), "--topic orders:0:1 is not TOPIC or TOPIC:PARTITION,PARTITION"),
        (("--topic", "orders:-1"), "--topic orders:-1 is not TOPIC or TOPIC:PARTITION,PARTITION"),
        (("--topic", "orders:0", "-p", "1"), "--topic orders:0 names partitions, and so does --partition"),
    ],
)
@pytest.mark.parametrize("command", [("reset-offsets", "billing", "--to-latest"), ("delete-offsets", "b")])
def test_partitions_that_cannot_be_meant_are_refused(
    tool: GroupTool, command: tuple[str, ...], words: tuple[str, ...], said: str
) -> None:
    assert f"fencepost: {said}\n" in tool("group", *command, *words, code=2)


@pytest.mark.parametrize(
    "command",
    [
        ("consume", "orders:0"),
        ("produce", "orders:0"),
        ("transactions", "find-hanging", "-t", "orders:0"),
        ("transactions", "describe-producers", "-t", "orders:0", "-p", "0"),
        ("topic", "delete-records", "orders:0", "-p", "0", "--before", "end"),
    ],
)
def test_other_commands_say_where_the_partition_belongs(tool: GroupTool, command: tuple[str, ...]) -> None:
    said = tool(*command, code=2)
    assert said == (
        "fencepost: 'orders:0' is not the name of a topic\n"
        "  give the topic alone; commands that use single partitions have the option --partition\n"
    )


def test_a_group_that_does_not_exist_is_named(tool: GroupTool) -> None:
    """With --topic it is created, as by Kafka's tool; with --all-topics there is nothing to reset."""

    def heard(*words: str, code: int = 0) -> str:
        return tool.both("group", "reset-offsets", "billing", "--to-earliest", *words, code=code)[1]

    assert "group 'billing' does not exist\n" in heard("--all-topics", code=1)
    assert "group 'billing' does not exist; --execute creates it\n" in heard("-t", "orders")
    assert tool.rows("group", "list") == []
    assert "group 'billing' did not exist, and was created\n" in heard("-t", "orders", "--execute")
    assert heard("-t", "orders", "--execute") == ""
    tool("group", "delete-offsets", "billing", "-t", "orders")
    assert "group 'billing' has no committed offsets\n" in heard("--all-topics", code=1)


def test_a_group_with_members_is_not_reset(tool: GroupTool) -> None:
    become_member(tool.address, "billing", assignment("orders", [0]), "orders")
    said = tool(*RESET, "--to-earliest", "--execute", code=1)
    assert "group 'billing' has members (state Stable)" in said
    assert committed(tool) == {}
    with Admin(tool.address) as admin, pytest.raises(RequestFailed) as refused:
        admin.alter_consumer_group_offsets("billing", {HERE: 1})
    assert refused.value.error is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "needs exactly one target, but got none"),
        (("--to-earliest", "--to-offset", "0"), 2, "got --to-earliest and --to-offset"),
        (("--to-earliest", "--all-topics"), 2, "--topic or --all-topics"),
        (("--to-earliest", "--execute", "--dry-run"), 2, "contradict each other"),
        (("--to-datetime", "tomorrow"), 2, "'tomorrow' is not a time such as"),
        (("--by-duration", "P1M"), 2, "'P1M' is not a time such as"),
        (("--shift-by", "1"), 1, "no committed offset for orders-0"),
        (("--to-earliest", "-p", "7"), 1, "has no partition 7"),
    ],
)
def test_a_reset_that_cannot_be_meant_is_refused(
    tool: GroupTool, words: tuple[str, ...], code: int, said: str
) -> None:
    assert said in tool(*RESET, *words, code=code)
