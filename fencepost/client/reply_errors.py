"""Errors inside a reply: those of its parts, a topic, a partition, a transactional id, a group.

Rule: the first error is the reply's; a reply without one in any of its parts has none.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.messages import ReplyBody, WriteTxnMarkersReply


def worst_error(body: ReplyBody) -> tuple[ErrorCode, str]:
    """The first error inside a reply whose parts have errors of their own, and the broker's words for it."""
    for part in _parts(body):
        error = getattr(part, "error", NO_ERROR)
        if error is not NO_ERROR:
            return error, getattr(part, "because", "") or f"{error.meaning} ({_name_of(part)})"
    return NO_ERROR, ""


def _parts(body: ReplyBody) -> Iterator[object]:
    if isinstance(body, WriteTxnMarkersReply):
        for marker in body.markers:
            yield from marker.partitions
    for name in _fields_of_parts(type(body)):
        yield from getattr(body, name)


@cache
def _fields_of_parts(kind: type[ReplyBody]) -> tuple[str, ...]:
    names = ("partitions", "topics", "offsets", "transactions", "groups")
    return tuple(name for name in names if hasattr(kind, name))


def _name_of(part: object) -> str:
    """What a part of a reply is about: a transactional id, a group, a topic, or one partition of it."""
    for name in ("transactional_id", "group_id", "topic"):
        if hasattr(part, name):
            number = getattr(part, "partition", None)
            return getattr(part, name) if number is None else f"{getattr(part, name)}-{number}"
    raise AssertionError(f"{part} has an error and no name")
