"""`fencepost group list|describe|delete|delete-offsets`: consumer groups, with the columns of Kafka's tool.

Rule: LAG is the log end offset minus the committed offset, as kafka-consumer-groups.sh counts it; it includes
markers and aborted records. Only the delete commands change anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Final, Literal, NamedTuple

from cyclopts import Parameter

from fencepost.cli.errors import ADVICE, CommandFailed
from fencepost.cli.likely_names import NameKind, likely_name, suggesting
from fencepost.cli.options import (
    LOCAL,
    AsJson,
    ClusterOptions,
    InPartitions,
    InTopic,
    partitions_of,
    topic_and_partitions,
)
from fencepost.cli.output import Columns, print_done, print_entry, print_json, print_rows, row_of
from fencepost.cli.positions import split_refusals, unreadable
from fencepost.client.admin import GroupDescription, GroupListing, MemberDescription
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import LATEST_TIMESTAMP, GroupState, TopicPartition

GroupName = Annotated[str, Parameter(help="The group.")]
StateName = Literal[
    "Empty", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "Stable"
]
STATES: Final = {state.title: state for state in GroupState}

LISTED: Columns[GroupListing] = (
    ("group", "GROUP", lambda group: group.group_id),
    ("coordinator_id", "COORDINATOR", lambda group: group.coordinator_id),
    ("type", "TYPE", lambda group: group.group_type.title),
    ("protocol_type", "PROTOCOL-TYPE", lambda group: group.protocol_type or None),
    ("state", "STATE", lambda group: group.state.title),
)


DESCRIBED: Columns[GroupDescription] = (
    ("group", "GROUP", lambda group: group.group_id),
    ("state", "STATE", lambda group: group.state.title),
    ("protocol_type", "PROTOCOL-TYPE", lambda group: group.protocol_type or None),
    ("protocol", "PROTOCOL", lambda group: group.protocol or None),
)
MEMBERS: Columns[MemberDescription] = (
    ("consumer_id", "CONSUMER-ID", lambda member: member.member_id),
    ("group_instance_id", "GROUP-INSTANCE-ID", lambda member: member.group_instance_id),
    ("host", "HOST", lambda member: member.host),
    ("client_id", "CLIENT-ID", lambda member: member.client_id or None),
    ("partitions", "PARTITIONS", lambda member: [str(where) for where in member.partitions]),
)


class OffsetLine(NamedTuple):
    """One partition of a group; a value is None when it is unknown or the topic was deleted."""

    partition: TopicPartition
    current: int | None
    end: int | None
    consumer_id: str | None

    @property
    def lag(self) -> int | None:
        """The group's lag; 0 if the log was cut below its offset."""
        return None if self.current is None or self.end is None else max(self.end - self.current, 0)


OFFSETS: Columns[OffsetLine] = (
    ("topic", "TOPIC", lambda line: line.partition.topic),
    ("partition", "PARTITION", lambda line: line.partition.partition),
    ("current_offset", "CURRENT-OFFSET", lambda line: line.current),
    ("log_end_offset", "LOG-END-OFFSET", lambda line: line.end),
    ("lag", "LAG", lambda line: line.lag),
    ("consumer_id", "CONSUMER-ID", lambda line: line.consumer_id),
)


def list_groups(
    *, state: tuple[StateName, ...] = (), cluster: ClusterOptions = LOCAL, as_json: AsJson = False
) -> None:
    """List consumer groups, including groups that only have committed offsets.

    Parameters
    ----------
    state
        Only groups in this state. Repeatable.
    """
    with cluster.connect() as admin:
        listed = sorted(
            admin.list_consumer_groups(STATES[name] for name in state), key=lambda entry: entry.group_id
        )
    print_rows(LISTED, listed, as_json=as_json)


def describe_group(name: GroupName, /, *, cluster: ClusterOptions = LOCAL, as_json: AsJson = False) -> None:
    """Show the state and members of a group, and the committed offset and lag of each partition."""
    with cluster.connect() as admin:
        found = admin.describe_consumer_group(name)
        if found.state is GroupState.DEAD:
            raise CommandFailed(
                f"group {name!r} does not exist{likely_name(admin, NameKind.GROUPS, name)}",
                then=ADVICE[ErrorCode.GROUP_ID_NOT_FOUND],
            )
        offsets = admin.list_consumer_group_offsets(name)
        topics = {topic.topic for topic in admin.list_topics()}
        read = sorted({*offsets, *(where for member in found.members for where in member.partitions)})
        exist = [where for where in read if where.topic in topics]
        ends, refusals = split_refusals(admin.list_offsets(exist, LATEST_TIMESTAMP, "read_uncommitted"))
    owners = {where: member.member_id for member in found.members for where in member.partitions}
    lines = [OffsetLine(where, offsets.get(where), ends.get(where), owners.get(where)) for where in read]
    _print_group(found, lines, as_json=as_json)
    if refusals:
        raise unreadable(refusals)


def _print_group(found: GroupDescription, lines: Sequence[OffsetLine], *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                **row_of(DESCRIBED, found),
                "members": [row_of(MEMBERS, member) for member in found.members],
                "offsets": [row_of(OFFSETS, line) for line in lines],
                "total_lag": total_lag(lines),
            }
        )
        return
    print_entry(DESCRIBED, found, as_json=False)
    print()
    if found.members:
        print_rows(MEMBERS, found.members, as_json=False)
    else:
        print("The group has no members.")
    if lines:
        print()
        print_rows(OFFSETS, lines, as_json=False)
        if (total := total_lag(lines)) is not None:
            print(f"\nTotal lag: {total:,}. It counts markers and aborted records, too.")


def total_lag(lines: Iterable[OffsetLine]) -> int | None:
    """The lag in all partitions for which the group has an offset; None if there are none."""
    known = [line.lag for line in lines if line.lag is not None]
    return sum(known) if known else None


def delete_group(name: GroupName, /, *, cluster: ClusterOptions = LOCAL, as_json: AsJson = False) -> None:
    """Delete a group that has no members, and all its offsets."""
    with cluster.connect() as admin, suggesting(admin, NameKind.GROUPS, name):
        admin.delete_consumer_group(name)
    print_done(f"Deleted group {name}.", {"group": name}, as_json=as_json)


def delete_offsets(
    name: GroupName,
    /,
    *,
    topic: InTopic,
    partition: InPartitions = (),
    cluster: ClusterOptions = LOCAL,
    as_json: AsJson = False,
) -> None:
    """Delete the committed offsets of a group for a topic that no member of the group subscribes to.

    Parameters
    ----------
    topic
        The topic, or some of its partitions, such as orders:0,1.
    partition
        Only this partition of the topic. Repeatable.
    """
    topic, partition = topic_and_partitions(topic, partition)
    with cluster.connect() as admin:
        parts = partitions_of(admin, topic, partition)
        with suggesting(admin, NameKind.GROUPS, name):
            admin.delete_consumer_group_offsets(name, parts)
    print_done(
        f"Deleted the offsets of group {name} for {', '.join(map(str, parts))}.",
        {"group": name, "topic": topic, "partitions": [where.partition for where in parts]},
        as_json=as_json,
    )
