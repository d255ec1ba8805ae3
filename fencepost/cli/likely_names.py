"""Which topic, group or transactional id of a broker a name that it does not have was probably meant to be.

Rule: the broker is asked for its names only after it has refused one.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING

from fencepost.cli.errors import ADVICE, REQUEST_NAME, CommandFailed
from fencepost.client.errors import ClientError
from fencepost.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from fencepost.client.shells.sync import Admin


class NameKind(Enum):
    """The kinds of names. Values: the error for an unknown one."""

    TOPICS = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    GROUPS = ErrorCode.GROUP_ID_NOT_FOUND
    TRANSACTIONAL_IDS = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def _names_in(admin: Admin, names: NameKind) -> list[str]:
    match names:
        case NameKind.TOPICS:
            return [topic.topic for topic in admin.list_topics()]
        case NameKind.GROUPS:
            return [group.group_id for group in admin.list_consumer_groups()]
        case NameKind.TRANSACTIONAL_IDS:
            return [entry.transactional_id for entry in admin.list_transactions()]


@contextmanager
def suggesting(admin: Admin, names: NameKind, given: str, *, then: str | None = None) -> Generator[None]:
    """Inside, the error for an unknown name suggests a likely one. `then`: the next step, if not that of
    ADVICE.
    """
    try:
        yield
    except ClientError as problem:
        if problem.error is not names.value:
            raise
        what = REQUEST_NAME.sub("", problem.because)
        then = ADVICE[names.value] if then is None else then
        raise CommandFailed(f"{what}{likely_name(admin, names, given)}", then=then) from problem


def likely_name(admin: Admin, names: NameKind, given: str) -> str:
    """ "; did you mean ...?" with the likely names of the broker; empty without any."""
    from fencepost.protocol.suggestions import suggestion  # only these errors need it

    try:
        known = _names_in(admin, names)
    except ClientError:  # listing has rights of its own; report the error about the name
        return ""
    return suggestion(given, [name for name in known if name != given])
