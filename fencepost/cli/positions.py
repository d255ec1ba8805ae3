"""Where `fencepost consume` starts and stops: offsets, times, the last N records, the ends.

Rule: an offset that no partition has is an error, and one that some partitions do not have is a notice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

from fencepost.check.findings import counted
from fencepost.cli.errors import ADVICE, CommandFailed, WrongUsage, complain
from fencepost.cli.options import is_offset
from fencepost.cli.times import now_ms, parse_duration, parse_time
from fencepost.client.consumer_records import Record
from fencepost.client.errors import ClientError, RequestTimeout
from fencepost.client.shells.sync import Admin
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import EARLIEST_TIMESTAMP, NO_OFFSET, TopicPartition

Offsets = dict[TopicPartition, int]
STOP_ADVICE: Final = (
    "give an offset, a time such as 2026-11-22T13:00 (UTC) or @1795352400000, -15m for 15 minutes ago, or "
    "latest for the current end"
)
START_ADVICE: Final = (
    "give earliest, latest, an offset, -10 for the last ten records, a time such as 2026-11-22T13:00 (UTC) "
    "or @1795352400000, or -15m for 15 minutes ago"
)


class Kind(Enum):
    """What a position names."""

    EARLIEST = auto()
    LATEST = auto()
    OFFSET = auto()
    LAST = auto()
    TIME = auto()


ENDS: Final = {
    "earliest": Kind.EARLIEST,
    "beginning": Kind.EARLIEST,
    "latest": Kind.LATEST,
    "end": Kind.LATEST,
}


class Position(NamedTuple):
    """A position as the user gave it; `number` is an offset, a count, or milliseconds since 1970."""

    text: str
    kind: Kind
    number: int = 0


class OffsetRange(NamedTuple):
    """The offsets that a topic has, by partition."""

    starts: Offsets
    stable_ends: Offsets
    """Where this reader stops: the last stable offset for read_committed."""
    ends: Offsets


def parse_position(option: str, text: str, *, then: str = START_ADVICE) -> Position:
    """The position that the text names; CommandFailed with this next step if it names none."""
    if text in ENDS:
        return Position(text, ENDS[text])
    if is_offset(text):
        return Position(text, Kind.OFFSET, int(text))
    if text.startswith("-") and is_offset(text[1:]):
        return Position(text, Kind.LAST, int(text[1:]))
    if text.startswith("@") and is_offset(text[1:]):
        return Position(text, Kind.TIME, int(text[1:]))
    try:
        if text.startswith("-"):
            since = now_ms() - round(parse_duration(text[1:]) * 1_000)
        else:
            since = parse_time(text)
    except (ValueError, OverflowError):
        raise WrongUsage(f"{option} {text or repr(text)} is not a position", then=then) from None
    return Position(text, Kind.TIME, max(0, since))  # all records are later than 1970


Refusals = dict[TopicPartition, ErrorCode]
"""Why the leaders of these partitions refuse to be read."""


def range_of(
    admin: Admin, partitions: Sequence[TopicPartition], isolation: str
) -> tuple[OffsetRange, Refusals]:
    """The offsets of the partitions now, without those whose leader refuses: their log may be damaged."""
    starts, refusals = split_refusals(admin.list_offsets(partitions, EARLIEST_TIMESTAMP))
    stable_ends = admin.end_offsets(starts, isolation_level=isolation)
    return OffsetRange(starts, stable_ends, admin.end_offsets(starts, "read_uncommitted")), refusals


def split_refusals(listed: Mapping[TopicPartition, int | ClientError]) -> tuple[Offsets, Refusals]:
    """The offsets and the refusals; raises any other error."""
    offsets: Offsets = {}
    refusals: Refusals = {}
    for part, found in listed.items():
        if isinstance(found, int):
            offsets[part] = found
        elif isinstance(found, RequestTimeout) and found.error is not ErrorCode.NONE:
            refusals[part] = found.error
        else:
            raise found
    return offsets, refusals


def unreadable(refusals: Refusals) -> CommandFailed:
    """The partitions that were left out, and the advice for the first."""
    reasons = [f"{part}: {error.meaning} ({error.name})" for part, error in refusals.items()]
    first = next(iter(refusals.values()))
    return CommandFailed(f"cannot read {'; '.join(reasons)}", then=ADVICE.get(first, "check the broker"))


def start_offsets(admin: Admin, where: Position, has: OffsetRange) -> Offsets:
    """The offset to start from in each partition; those that do not have the offset are left out."""
    match where.kind:
        case Kind.EARLIEST | Kind.LAST:
            return dict(has.starts)
        case Kind.LATEST:
            return dict(has.stable_ends)
        case Kind.TIME:
            return _from_time(admin, where.number, has)
        case Kind.OFFSET:
            return _starts_at_offset(where.number, has)


def _from_time(admin: Admin, timestamp_ms: int, has: OffsetRange) -> Offsets:
    """In each partition, the offset of the first record with this timestamp or a later one, or the end."""
    found = admin.offsets_for_times(has.starts, timestamp_ms)
    return {part: has.ends[part] if offset == NO_OFFSET else offset for part, offset in found.items()}


def _starts_at_offset(offset: int, has: OffsetRange) -> Offsets:
    outside = {part: end for part, end in has.ends.items() if offset > end}
    if len(outside) == len(has.ends):
        raise CommandFailed(
            f"no partition has offset {offset}: {_listed(outside, 'ends at')}",
            then="`fencepost topic describe` shows where the logs start and end",
        )
    if outside:
        complain(f"partitions that end before offset {offset} are not read: {_listed(outside, 'ends at')}")
    later = {part: start for part, start in has.starts.items() if offset < start}
    if later and offset > 0:
        complain(f"offset {offset} was deleted; reading from the log start: {_listed(later, 'starts at')}")
    return {part: max(offset, start) for part, start in has.starts.items() if part not in outside}


def _listed(offsets: Mapping[TopicPartition, int], verb: str, most: int = 3) -> str:
    told = [f"{part} {verb} {offset}" for part, offset in list(offsets.items())[:most]]
    more = f" and {len(offsets) - most} more" if len(offsets) > most else ""
    return ", ".join(told) + more


def end_offsets_of(admin: Admin, where: Position, has: OffsetRange) -> Offsets:
    """The offset to stop before in each partition; never after its end."""
    match where.kind:
        case Kind.LATEST:
            return dict(has.stable_ends)
        case Kind.OFFSET:
            if all(where.number > end for end in has.ends.values()):
                complain(f"no partition has offset {where.number} yet; stopping at the end")
            return {part: min(where.number, end) for part, end in has.stable_ends.items()}
        case Kind.TIME:
            found = _from_time(admin, where.number, has)
            return {part: min(offset, has.stable_ends[part]) for part, offset in found.items()}
        case Kind.EARLIEST | Kind.LAST:
            raise WrongUsage(f"--until {where.text} is not a position to stop at", then=STOP_ADVICE)


Read = Callable[[Offsets, Offsets], Iterator[Record]]
"""Reads records from and up to these offsets."""


def starts_of_last(count: int, has: OffsetRange, ends: Offsets, read: Read) -> Offsets:
    """The offset to start from in each partition to get its last `count` records.

    Markers and aborted records have offsets, too, so it doubles how far back it reads until there are enough.
    """
    starts: Offsets = {}
    for part, end in ends.items():
        distance, found = count, deque[int](maxlen=count)
        while True:
            start = max(has.starts[part], end - distance)
            found.clear()
            found.extend(record.offset for record in read({part: start}, {part: end}))
            if len(found) == count or start == has.starts[part]:
                break
            distance *= 2
        starts[part] = found[0] if found else end
    return starts


def hidden_offsets(has: OffsetRange) -> str:
    """The offsets that open transactions hide, in words; empty if there are none."""
    behind = {part: end - has.stable_ends[part] for part, end in has.ends.items()}
    told = [f"{counted(count, 'offset')} of {part}" for part, count in behind.items() if count]
    return ", ".join(told)
