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
# compare the batch that a decision leads to with message.max.bytes of the internal topic, as Kafka's do, and
# the metadata of members before they join: it is only in memory, so no batch bounds it.
# `Journal.append` is the last check: it refuses a batch that no check before it refused.
#
# A deletion must not fail because there is much to delete. So tombstones are written in several batches
# (`groups.offsets.forget_group`).

from __future__ import annotations

from functools import cache
from typing import Any, Final, NamedTuple, get_origin, get_type_hints

from fencepost.broker.contract import Refused
from fencepost.broker.groups.state import OFFSET_METADATA_LENGTH_MAX
from fencepost.broker.memory import CONNECTIONS_MAX, FETCHES_MAX, FRAME_MS
from fencepost.broker.patterns import PATTERN_STEPS_MAX
from fencepost.broker.settings import ConnectionSettings, NodeSettings
from fencepost.journal.segments import BATCH_SIZE_MAX
from fencepost.protocol.codec import BYTES_LENGTH_MAX, STRING_LENGTH_MAX
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.frames import (
    CLIENT_ID_LENGTH_MAX,
    FRAME_SIZE_MAX,
    REQUEST_ARRAY_LENGTH_MAX,
    REQUEST_HEADER_MAX,
)
from fencepost.protocol.terms import ID_LENGTH_MAX, TOPIC_NAME_LENGTH_MAX


class Limit(NamedTuple):
    """One limit. `error` is None where the connection is closed, or where only a bug can exceed it."""

    what: str
    value: int
    unit: str
    error: ErrorCode | None
    source: str
    """Kafka's setting or class, or why it is this number."""


GROUP_ID: Final = Limit(
    "group id", ID_LENGTH_MAX, "characters", ErrorCode.INVALID_GROUP_ID, "as long as the name of a topic"
)
TRANSACTIONAL_ID: Final = Limit(
    "transactional id", ID_LENGTH_MAX, "characters", ErrorCode.INVALID_REQUEST,
    "as long as the name of a topic",
)  # fmt: skip
INSTANCE_ID: Final = Limit(
    "group instance id", ID_LENGTH_MAX, "characters", ErrorCode.INVALID_REQUEST,
    "JoinGroupRequest.MAX_GROUP_INSTANCE_ID_LENGTH",
)  # fmt: skip
CLUSTER_PARTITIONS: Final = Limit(
    "partitions of a cluster", 20_000, "partitions", ErrorCode.POLICY_VIOLATION,
    "each takes a directory, memory and startup time",
)  # fmt: skip
REQUEST_PARTITIONS: Final = Limit(
    "partitions that one request creates", 10_000, "partitions", ErrorCode.POLICY_VIOLATION,
    "ReplicationControlManager.MAX_PARTITIONS_PER_BATCH",
)  # fmt: skip
CONFIG_VALUE: Final = Limit(
    "value of a setting of a topic", 32_767, "characters", ErrorCode.INVALID_CONFIG,
    "ConfigurationControlManager.validateAlterConfig; Kafka's records hold no longer text",
)  # fmt: skip
CLUSTER_CONFIGS: Final = Limit(
    "settings of all topics, each with its name and that of its topic", 8 << 20, "characters",
    ErrorCode.POLICY_VIOLATION, "a snapshot of the metadata is one batch",
)  # fmt: skip
ENTRIES: Final = Limit(
    "entries of a list in a request", CLUSTER_PARTITIONS.value, "entries", ErrorCode.INVALID_REQUEST,
    "a cluster has no more partitions than that",
)  # fmt: skip
GROUP_MEMBERS: Final = Limit(
    "metadata of the members of a group", 8 << 20, "bytes", ErrorCode.GROUP_MAX_SIZE_REACHED,
    "1 KiB per member, plus its metadata for each protocol; Kafka's group.max.size counts members",
)  # fmt: skip

_FOLLOWING: Final = "`serve --follow` only; the oldest are dropped and counted"
FOLLOWED_STEPS: Final = Limit("steps kept for followers", 20_000, "steps", None, _FOLLOWING)
FOLLOWED_BYTES: Final = Limit("memory of the steps kept for followers", 16 << 20, "bytes", None, _FOLLOWING)
FOLLOWED_AT_ONCE: Final = Limit(
    "steps in one reply to a follower", 1 << 19, "bytes", None, "the follower asks for the next ones"
)
FOLLOWERS: Final = Limit(
    "followers of a broker that wait for its next steps", 16, "connections", ErrorCode.POLICY_VIOLATION,
    "each has one request waiting; all pages of a lab share one follower",
)  # fmt: skip
FOLLOW_WAIT: Final = Limit(
    "time that a follower waits for a step", 1_000, "ms", None, "a longer wait is shortened to this"
)

_OF_FIELDS: Final = {
    "group_id": GROUP_ID,
    "transactional_id": TRANSACTIONAL_ID,
    "group_instance_id": INSTANCE_ID,
    "instance_id": INSTANCE_ID,
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
            return exceeded(limit, len(value))
    return None


def exceeded(limit: Limit, count: int) -> Refused:
    assert limit.error is not None, "the limits that a request can exceed have an error"
    return Refused(limit.error, f"{limit.what}: {count} {limit.unit}; the limit is {limit.value}")


_SETTINGS: Final = NodeSettings()
_CLIENTS: Final = ConnectionSettings()

LIMITS: Final = (
    Limit("connections", CONNECTIONS_MAX, "connections", None, "max.connections, or half of the descriptors"),
    Limit(
        "time without a byte in either direction", _CLIENTS.connections_max_idle_ms, "ms", None,
        "connections.max.idle.ms",
    ),
    Limit("time for a frame to arrive", FRAME_MS, "ms", None, "and 1 s more for each 64 KiB that arrives"),
    Limit(
        "all unanswered requests", _CLIENTS.queued_max_request_bytes, "bytes", None,
        "queued.max.request.bytes; others wait",
    ),
    Limit(
        "all replies that clients have not read", _CLIENTS.queued_max_response_bytes, "bytes", None,
        "queued.max.response.bytes (not in Kafka); a Fetch waits",
    ),
    Limit("fetches in progress on a connection", FETCHES_MAX, "fetches", None, "others wait"),
    Limit("a request", FRAME_SIZE_MAX, "bytes", None, "socket.request.max.bytes"),
    Limit(
        "a request without its records", REQUEST_HEADER_MAX, "bytes", None,
        "decoded, it takes up to 70 times as many bytes of memory",
    ),
    Limit(
        "an array of a request",
        REQUEST_ARRAY_LENGTH_MAX,
        "entries",
        None,
        f"more than {ENTRIES.value:,} get an error, more than {REQUEST_ARRAY_LENGTH_MAX:,} close the "
        "connection",
    ),
    Limit("client id", CLIENT_ID_LENGTH_MAX, "characters", None, "as long as the longest file name"),
    Limit("any other string", STRING_LENGTH_MAX, "bytes", None, "the type STRING of Kafka's protocol"),
    Limit(
        "subscription, or assignment of a member", BYTES_LENGTH_MAX, "bytes", None,
        "the limit of a request without its records",
    ),
    GROUP_MEMBERS,
    Limit(
        "regular expression", PATTERN_STEPS_MAX, "instructions × characters of names",
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        "at most about a second; all expressions of a group share this limit",
    ),
    ENTRIES,
    GROUP_ID,
    TRANSACTIONAL_ID,
    INSTANCE_ID,
    Limit(
        "name of a topic", TOPIC_NAME_LENGTH_MAX, "characters", ErrorCode.INVALID_TOPIC_EXCEPTION,
        "Topic.validate",
    ),
    REQUEST_PARTITIONS,
    CLUSTER_PARTITIONS,
    CONFIG_VALUE,
    CLUSTER_CONFIGS,
    Limit(
        "metadata of a committed offset", OFFSET_METADATA_LENGTH_MAX, "characters",
        ErrorCode.OFFSET_METADATA_TOO_LARGE, "offset.metadata.max.bytes",
    ),
    Limit(
        "batch of a producer", _SETTINGS.message_max_bytes, "bytes", ErrorCode.MESSAGE_TOO_LARGE,
        "message.max.bytes; max.message.bytes of its topic",
    ),
    Limit(
        "timestamp of a batch ahead of the broker's clock", _SETTINGS.log_message_timestamp_after_max_ms,
        "ms", ErrorCode.INVALID_TIMESTAMP, "log.message.timestamp.after.max.ms",
    ),
    Limit(
        "batch of an internal topic: offsets, a group, a transaction", _SETTINGS.message_max_bytes, "bytes",
        ErrorCode.UNKNOWN_SERVER_ERROR, "message.max.bytes; CoordinatorRuntime, TransactionStateManager",
    ),
    FOLLOWED_STEPS,
    FOLLOWED_BYTES,
    FOLLOWED_AT_ONCE,
    FOLLOWERS,
    FOLLOW_WAIT,
    Limit("a reply", FRAME_SIZE_MAX, "bytes", ErrorCode.INVALID_REQUEST, "the limit of a request"),
    Limit("a batch in any log", BATCH_SIZE_MAX, "bytes", None, "the largest batch that recovery reads"),
)  # fmt: skip
"""Every limit, from the frame to the log; docs/trust.md shows them."""
