"""Options of Kafka's clients and tools that Fencepost does not have, and what it does instead.

Rule: every error for an unknown option, of a client or of a command, reads this one table.
"""

from __future__ import annotations

from typing import Final

_IDEMPOTENT: Final = "a producer is always idempotent, with acks=all"
_NO_AUTO_COMMIT: Final = "a consumer never commits on its own: call commit()"

INSTEAD: Final = {
    "acks": _IDEMPOTENT,
    "auto_commit_interval_ms": _NO_AUTO_COMMIT,
    "enable_auto_commit": _NO_AUTO_COMMIT,
    "enable_idempotence": _IDEMPOTENT,
    "replication_factor": "a broker is the only node, so a partition has one replica",
    "retries": "a producer retries until delivery_timeout_ms",
}
"""By their names as keyword arguments; each text ends the sentence of an error."""


def instead_of(name: str) -> str | None:
    """What Fencepost does instead of an option, such as "acks" or "replication-factor"; None if unknown."""
    return INSTEAD.get(name.replace("-", "_"))
