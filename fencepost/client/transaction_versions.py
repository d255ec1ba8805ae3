"""What a producer says in each protocol generation: its request versions, and whether it asks before it
writes.

Rule: one frozen value, chosen once from the settings, answers every such question; nobody asks for a version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from fencepost.protocol import messages as m
from fencepost.protocol.messages import Request


@attrs.frozen(kw_only=True)
class Dialect:
    """How a producer speaks."""

    versions: Mapping[type[Request], int]
    """Of the requests that it sends in an older version than the newest."""
    asks_to_add: bool
    """It has the coordinator add partitions and groups before it writes to them (KIP-98)."""
    renews_identity: bool
    """EndTxn's reply says who it is in the next transaction (KIP-890 part 2)."""


DIALECTS: Final = {
    0: Dialect(
        versions={m.Produce: 11, m.AddPartitionsToTxn: 3, m.EndTxn: 4, m.TxnOffsetCommit: 4},
        asks_to_add=True,
        renews_identity=False,
    ),
    2: Dialect(versions={}, asks_to_add=False, renews_identity=True),
}
"""By `transaction.version`."""


def newest_dialect(transaction_version: int) -> int:
    """The newest generation that a client speaks with a cluster of this `transaction.version`: 1 changed the
    log alone, its clients speak as those of 0 do.
    """
    return max(version for version in DIALECTS if version <= transaction_version)
