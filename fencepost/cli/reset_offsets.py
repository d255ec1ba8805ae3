"""`fencepost group reset-offsets`: change the offsets of a group, as kafka-consumer-groups.sh does.

Rule: without --execute nothing is committed. Only a group without members can be reset: members would
continue from their own positions, and overwrite the new offsets.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, NamedTuple

from cyclopts import Parameter, Token

from fencepost.cli.errors import ADVICE, CommandFailed, WrongUsage, complain
from fencepost.cli.likely_names import NameKind, likely_name
from fencepost.cli.options import (
    LOCAL,
    AsJson,
    ClusterOptions,
    Flag,
    InPartitions,
    Int64,
    InTopic,
    partitions_of,
    topic_and_partitions,
)
from fencepost.cli.output import Columns, print_rows
from fencepost.cli.times import now_ms, parse_duration, parse_time
from fencepost.client.shells.sync import Admin
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import NO_OFFSET, GroupState, TopicPartition

ISO_DURATION: Final = re.compile(r"P(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?")
NO_MEMBERS: Final = frozenset({GroupState.EMPTY, GroupState.DEAD})  # Dead: it does not exist yet


def _duration_ms(_: type, tokens: Sequence[Token]) -> int:
    text = tokens[0].value
    if text != "P" and ISO_DURATION.fullmatch(text):  # Kafka's tool takes PT1H30M
        text = text[1:].replace("T", "").lower()
    return round(parse_duration(text) * 1_000)


def _moment_ms(_: type, tokens: Sequence[Token]) -> int:
    text = tokens[0].value
    try:
        return parse_time(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time such as 2026-11-23T16:00:00 or 2026-11-23T16:00Z") from None


Moment = Annotated[int | None, Parameter(converter=_moment_ms, metavar="TIME")]
Duration = Annotated[int | None, Parameter(converter=_duration_ms, allow_leading_hyphen=True, metavar="TIME")]


class Goal(NamedTuple):
    """The target of the reset: the option, and its value."""

    option: str
    value: int


class Reset(NamedTuple):
    """One partition of a group."""

    partition: TopicPartition
    current: int | None
    new: int
    is_committed: bool


RESETS: Columns[Reset] = (
    ("topic", "TOPIC", lambda reset: reset.partition.topic),
    ("partition", "PARTITION", lambda reset: reset.partition.partition),
    ("current_offset", "CURRENT-OFFSET", lambda reset: reset.current),
    ("new_offset", "NEW-OFFSET", lambda reset: reset.new),
    ("committed", "COMMITTED", lambda reset: reset.is_committed),
)


def reset_offsets(
    name: str,
    /,
    *,
    topic: InTopic | None = None,
    partition: InPartitions = (),
    all_topics: Flag = False,
    to_earliest: Flag = False,
    to_latest: Flag = False,
    to_offset: Int64 | None = None,
    to_datetime: Moment = None,
    by_duration: Duration = None,
    shift_by: Int64 | None = None,
    execute: Flag = False,
    dry_run: Flag = False,
    cluster: ClusterOptions = LOCAL,
    as_json: AsJson = False,
) -> None:
    """Let a group without members read from other offsets.

    Parameters
    ----------
    name
        The group. It is created if it does not exist.
    topic
        The topic, or some of its partitions, such as orders:0,1.
    partition
        Only this partition of the topic. Repeatable.
    all_topics
        All partitions for which the group has committed offsets.
    to_earliest
        The start of each log.
    to_latest
        The end of each log.
    to_offset
        This offset.
    to_datetime
        The first record with this timestamp or a later one, such as 2026-11-23T16:00:00; in UTC unless it
        has a time zone.
    by_duration
        The first record that is at most this old, such as 1h30m, or PT1H30M as in Kafka.
    shift_by
        This many offsets after the committed one; before it if negative.
    execute
        Commit the new offsets.
    dry_run
        Only print the new offsets. This is the default.
    """
    if execute and dry_run:
        raise WrongUsage("--execute and --dry-run contradict each other", then="leave out one of them")
    goal = _goal(
        {
            "--to-earliest": 0 if to_earliest else None,
            "--to-latest": 0 if to_latest else None,
            "--to-offset": to_offset,
            "--to-datetime": to_datetime,
            "--by-duration": by_duration,
            "--shift-by": shift_by,
        }
    )
    if (topic is None) != all_topics or (partition and topic is None):
        raise WrongUsage(
            "reset-offsets needs --topic or --all-topics, and --partition needs --topic",
            then="for example: fencepost group reset-offsets billing --topic orders --to-earliest",
        )
    if topic is not None:
        topic, partition = topic_and_partitions(topic, partition)
    with cluster.connect() as admin:
        exists = _check_members(admin, name)
        meant = "" if exists else likely_name(admin, NameKind.GROUPS, name)
        current = admin.list_consumer_group_offsets(name)
        if all_topics and not current:
            problem = "has no committed offsets" if exists else f"does not exist{meant}"
            raise CommandFailed(
                f"group {name!r} {problem}",
                then=f"{ADVICE[ErrorCode.GROUP_ID_NOT_FOUND]}; --topic creates offsets for a group",
            )
        parts = sorted(current) if topic is None else partitions_of(admin, topic, partition)
        new = _new_offsets(admin, goal, parts, current)
        if execute and new:
            admin.alter_consumer_group_offsets(name, new)
    resets = [Reset(where, current.get(where), offset, execute) for where, offset in new.items()]
    print_rows(RESETS, resets, as_json=as_json)
    if not exists:
        created = "did not exist, and was created" if execute else "does not exist; --execute creates it"
        complain(f"group {name!r} {created}{meant}", then=ADVICE[ErrorCode.GROUP_ID_NOT_FOUND])
    if not execute:
        print("Nothing was changed. --execute commits the new offsets.", file=sys.stderr)


def _goal(options: Mapping[str, int | None]) -> Goal:
    given = [Goal(option, value) for option, value in options.items() if value is not None]
    if len(given) != 1:
        what = "none" if not given else " and ".join(goal.option for goal in given)
        raise WrongUsage(
            f"reset-offsets needs exactly one target, but got {what}",
            then=f"give one of {', '.join(options)}",
        )
    return given[0]


def _check_members(admin: Admin, name: str) -> bool:
    """CommandFailed if the group has members. Returns whether it exists."""
    state = admin.describe_consumer_group(name).state
    if state not in NO_MEMBERS:
        raise CommandFailed(
            f"group {name!r} has members (state {state.title}), which would overwrite the new offsets",
            then=ADVICE[ErrorCode.NON_EMPTY_GROUP],
        )
    return state is not GroupState.DEAD


def _new_offsets(
    admin: Admin, goal: Goal, parts: Sequence[TopicPartition], current: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """The offset of each partition: what the goal says, within the log."""
    starts, ends = admin.beginning_offsets(parts), admin.end_offsets(parts, "read_uncommitted")
    wanted: Mapping[TopicPartition, int]
    match goal.option:
        case "--to-earliest":
            wanted = starts
        case "--to-latest":
            wanted = ends
        case "--to-offset":
            wanted = dict.fromkeys(parts, goal.value)
        case "--shift-by":
            wanted = {where: _committed(current, where) + goal.value for where in parts}
        case _:
            since_ms = goal.value
            if goal.option == "--by-duration":
                since_ms = now_ms() - goal.value
            found = admin.offsets_for_times(parts, max(0, since_ms))
            wanted = {where: ends[where] if at == NO_OFFSET else at for where, at in found.items()}
    return {where: _within(wanted[where], starts[where], ends[where], where) for where in parts}


def _within(wanted: int, start: int, end: int, where: TopicPartition) -> int:
    """The offset, or the nearest one inside the log, with a notice: as in Kafka's tool (OffsetsUtils)."""
    nearest = min(max(wanted, start), end)
    if nearest != wanted:
        what = "is before the start" if wanted < start else "is after the end"
        complain(f"offset {wanted} {what} of {where}; using offset {nearest} instead")
    return nearest


def _committed(current: Mapping[TopicPartition, int], where: TopicPartition) -> int:
    if where not in current:
        raise CommandFailed(
            f"--shift-by: the group has no committed offset for {where}",
            then="for this partition, run the command with --partition and --to-earliest, --to-latest or "
            "--to-offset",
        )
    return current[where]
