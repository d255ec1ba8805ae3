"""Limits: how much a request may name, and how large the batches that it leads to may become.

Rule: a limit is checked before anything is decided or built, and a refusal changes nothing. Kafka's names,
numbers and errors, where Kafka has them.
"""

# Theory of operation
#
# Without limits a small request makes the broker write a large batch: a long group id is repeated beside
# each offset of an OffsetCommit, and 2 KB of CreateTopics name two million partitions. What recovery cannot
# read back must never be written, so the limits form a chain, each far below the next one:
#
#     names, entries, partitions  <  a batch of an internal topic  <  a frame  <  a batch that recovery reads
#        this file                   message.max.bytes                frames.py   BATCH_SIZE_MAX
#
# Three places check them. `refused` looks at each request of a client before its handler does. Coordinators
# compare the batch that a decision leads to with message.max.bytes of the internal topic, as Kafka's do.
# `Journal.append` refuses what must not have come so far, whoever decided it.
#
# Deleting must not fail because much is there to delete. So tombstones are written in several batches
# (`groups.offsets.forget_group`).

from __future__ import annotations

from functools import cache
from typing import Any, Final, NamedTuple, get_origin, get_type_hints

from fencepost.broker.contract import Refused
from fencepost.protocol.errors import ErrorCode


class Limit(NamedTuple):
    """One limit. `error` is None where the connection is closed, or where only a bug leads beyond it."""

    what: str
    value: int
    unit: str
    error: ErrorCode | None
    source: str
    """Kafka's setting or class, or why it is this number."""


GROUP_ID: Final = Limit(
    "group id", 249, "characters", ErrorCode.INVALID_GROUP_ID, "as long as the name of a topic"
)
TRANSACTIONAL_ID: Final = Limit(
    "transactional id", 249, "characters", ErrorCode.INVALID_REQUEST, "as long as the name of a topic"
)
INSTANCE_ID: Final = Limit(
    "group instance id",
    249,
    "characters",
    ErrorCode.INVALID_REQUEST,
    "JoinGroupRequest.MAX_GROUP_INSTANCE_ID_LENGTH",
)
CLUSTER_PARTITIONS: Final = Limit(
    "partitions of a cluster",
    20_000,
    "partitions",
    ErrorCode.POLICY_VIOLATION,
    "each takes a directory and open files",
)
REQUEST_PARTITIONS: Final = Limit(
    "partitions that one CreateTopics creates",
    10_000,
    "partitions",
    ErrorCode.POLICY_VIOLATION,
    "ReplicationControlManager.MAX_PARTITIONS_PER_BATCH",
)
ENTRIES: Final = Limit(
    "entries of a list in a request",
    CLUSTER_PARTITIONS.value,
    "entries",
    ErrorCode.INVALID_REQUEST,
    "no request needs to name more partitions than there are",
)

_OF_FIELDS: Final = {
    "group_id": GROUP_ID,
    "transactional_id": TRANSACTIONAL_ID,
    "group_instance_id": INSTANCE_ID,
}


@cache
def _limited_fields(kind: type[Any]) -> tuple[tuple[str, Limit], ...]:
    """The fields of a request that have a limit, by their names and annotations."""
    hints = get_type_hints(kind)
    found = {name: _OF_FIELDS[name] for name in hints if name in _OF_FIELDS}
    lists = {name: ENTRIES for name, hint in hints.items() if _is_list(hint)}
    return tuple((found | lists).items())


def _is_list(hint: Any) -> bool:
    kinds = getattr(hint, "__args__", ()) if get_origin(hint) is not tuple else (hint,)
    return any(get_origin(kind) is tuple for kind in kinds)


def refused(request: object) -> Refused | None:
    """Why a client's request is refused before anything looks at it, or None."""
    for name, limit in _limited_fields(type(request)):
        value = getattr(request, name)
        if value is not None and len(value) > limit.value:
            assert limit.error is not None, "the limits of fields are answered"
            return Refused(
                limit.error, f"{limit.what}: {len(value)} {limit.unit}, {limit.value} are possible"
            )
    return None
