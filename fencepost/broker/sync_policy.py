"""When an append counts as durable, so that replies about it may leave: `--sync`."""

from __future__ import annotations

from enum import Enum
from typing import Final

from fencepost.broker.contract import Append
from fencepost.protocol.terms import CLUSTER_METADATA_TOPIC, TRANSACTION_STATE_TOPIC


class SyncPolicy(Enum):
    """The point at which an append counts as durable: `--sync`."""

    NONE = "none"  # the write: survives kills of the process, not the loss of power; Kafka's default
    COMMIT = "commit"  # the sync, for everything transactional: data, offsets, markers, decisions
    ALL = "all"  # the sync, for every batch


# Under `commit`, decisions and granted identities must survive as surely as the data that they are about.
_COORDINATION: Final = frozenset({TRANSACTION_STATE_TOPIC, CLUSTER_METADATA_TOPIC})


def needs_sync(policy: SyncPolicy, append: Append) -> bool:
    """Whether this batch counts as durable only after a sync."""
    return policy is SyncPolicy.ALL or (
        policy is SyncPolicy.COMMIT
        and (append.header.is_transactional or append.partition.topic in _COORDINATION)
    )
