"""`fencepost group list|describe|delete|delete-offsets`: consumer groups, with the columns of Kafka's tool.

Rule: LAG is the log end offset minus the committed offset, as kafka-consumer-groups.sh counts it; it includes
markers and aborted records. Only the delete commands change anything.
"""

from __future__ import annotations

from typing import Final, Literal

from fencepost.cli.errors import ADVICE, CommandFailed
from fencepost.cli.options import ANSWER_MS, DEFAULT, AsJson, Bootstrap, reach
from fencepost.cli.output import Json, counted, print_json, print_table
from fencepost.cli.transactions import Row, partition_of, print_rows
from fencepost.client.admin import GroupDescription
from fencepost.client.shells.sync import Admin
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import GroupState, TopicPartition

StateName = Literal["Empty", "PreparingRebalance", "CompletingRebalance", "Stable"]
STATES: Final = {state.title: state for state in GroupState}

LISTED: Final = {
    "group": "GROUP",
    "coordinator": "COORDINATOR",
    "protocol_type": "PROTOCOL-TYPE",
    "state": "STATE",
}
OFFSETS: Final = {
    "topic": "TOPIC",
    "partition": "PARTITION",
    "current_offset": "CURRENT-OFFSET",
    "log_end_offset": "LOG-END-OFFSET",
    "lag": "LAG",
    "consumer_id": "CONSUMER-ID",
}


def list_groups(
    *, state: tuple[StateName, ...] = (), bootstrap: Bootstrap = DEFAULT, as_json: AsJson = False
) -> None:
    """List consumer groups, including groups that only have committed offsets.

    Parameters
    ----------
    state
        Only groups in this state. Repeatable.
    """
    with Admin(reach(bootstrap), default_api_timeout_ms=ANSWER_MS) as admin:
        listed = sorted(
            admin.list_consumer_groups(STATES[name] for name in state), key=lambda entry: entry.group_id
        )
    rows: list[Row] = [
        {
            "group": entry.group_id,
            "coordinator": entry.coordinator_id,
            "protocol_type": entry.protocol_type or None,
            "state": entry.state.title,
        }
        for entry in listed
    ]
    print_rows(LISTED, rows, as_json=as_json)


def describe_group(name: str, /, *, bootstrap: Bootstrap = DEFAULT, as_json: AsJson = False) -> None:
    """Show the state and members of a group, and the committed offset and lag of each partition.

    Parameters
    ----------
    name
        The group.
    """
    with Admin(reach(bootstrap), default_api_timeout_ms=ANSWER_MS) as admin:
        found = admin.describe_consumer_group(name)
        if found.state is GroupState.DEAD:
            raise CommandFailed(f"group {name} does not exist", then=ADVICE[ErrorCode.GROUP_ID_NOT_FOUND])
        offsets = admin.list_consumer_group_offsets(name)
        topics = {topic.topic for topic in admin.list_topics()}
        read = sorted({*offsets, *(where for member in found.members for where in member.partitions)})
        ends = admin.end_offsets([where for where in read if where.topic in topics], "read_uncommitted")
    rows = [_offset_row(where, found, offsets.get(where), ends.get(where)) for where in read]
    if as_json:
        print_json({**_facts(found), "offsets": rows})
    else:
        members = counted(len(found.members), "member") if found.members else "no members"
        print(f"{name} is {found.state.title} and has {members}.")
        if found.members:
            print_table(
                ("CONSUMER-ID", "GROUP-INSTANCE-ID", "#PARTITIONS"),
                [(each.member_id, each.group_instance_id, len(each.partitions)) for each in found.members],
            )
        if rows:
            print_rows(OFFSETS, rows, as_json=False)


def _facts(found: GroupDescription) -> dict[str, Json]:
    return {
        "group": found.group_id,
        "state": found.state.title,
        "protocol_type": found.protocol_type or None,
        "protocol": found.protocol or None,
        "members": [
            {
                "consumer_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "partitions": [str(where) for where in member.partitions],
            }
            for member in found.members
        ],
    }


def _offset_row(where: TopicPartition, found: GroupDescription, current: int | None, end: int | None) -> Row:
    """One partition; a value is None when it is unknown or the topic was deleted."""
    owner = next((member.member_id for member in found.members if where in member.partitions), None)
    return {
        "topic": where.topic,
        "partition": where.partition,
        "current_offset": current,
        "log_end_offset": end,
        "lag": None if current is None or end is None else max(end - current, 0),
        "consumer_id": owner,
    }


def delete_group(name: str, /, *, bootstrap: Bootstrap = DEFAULT) -> None:
    """Delete a group that has no members, and all its offsets.

    Parameters
    ----------
    name
        The group.
    """
    with Admin(reach(bootstrap), default_api_timeout_ms=ANSWER_MS) as admin:
        admin.delete_consumer_group(name)
    print(f"Deleted group {name}.")


def delete_offsets(
    name: str, /, *, topic: str, partition: tuple[int, ...] = (), bootstrap: Bootstrap = DEFAULT
) -> None:
    """Delete the committed offsets of a group for a topic that no member of the group subscribes to.

    Parameters
    ----------
    name
        The group.
    topic
        The topic.
    partition
        Only this partition of the topic. Repeatable.
    """
    with Admin(reach(bootstrap), default_api_timeout_ms=ANSWER_MS) as admin:
        numbers = partition or range(len(admin.describe_topic(topic).leaders))
        parts = [partition_of(admin, topic, number) for number in numbers]
        admin.delete_consumer_group_offsets(name, parts)
    print(f"Deleted the offsets of group {name} for {', '.join(map(str, parts))}.")
