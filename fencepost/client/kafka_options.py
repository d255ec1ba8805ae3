"""Options of Kafka's clients and tools that Fencepost does not have, and what it does instead.

Rule: every error for an unknown option, of a client or of a command, reads this one table.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Instead(NamedTuple):
    """What Fencepost does instead of an option, as the end of a sentence; empty where nobody expects it."""

    in_client: str
    in_command: str


_IDEMPOTENT: Final = "a producer is always idempotent, with acks=all"
_NO_AUTO_COMMIT: Final = "a consumer never commits on its own: call commit()"
_COMMITS: Final = "`consume --group` commits the offsets of what it has printed"
_ONE_REPLICA: Final = "a broker is the only node, so a partition has one replica"

INSTEAD: Final = {
    "acks": Instead(_IDEMPOTENT, _IDEMPOTENT),
    "auto_commit_interval_ms": Instead(_NO_AUTO_COMMIT, _COMMITS),
    "broker_list": Instead("", "--bootstrap-server names the broker"),
    "enable_auto_commit": Instead(_NO_AUTO_COMMIT, _COMMITS),
    "enable_idempotence": Instead(_IDEMPOTENT, _IDEMPOTENT),
    "from_beginning": Instead("", "`consume` starts at the beginning unless --from says otherwise"),
    "max_messages": Instead("", "`consume --max` limits the number of records"),
    "replication_factor": Instead(_ONE_REPLICA, _ONE_REPLICA),
    "retries": Instead("a producer retries until delivery_timeout_ms", ""),
}
"""By their names as keyword arguments."""

NOTHING: Final = Instead("", "")


def instead_of(name: str) -> Instead:
    """What Fencepost does instead of an option, such as "acks" or "replication-factor"."""
    return INSTEAD.get(name.replace("-", "_"), NOTHING)
