"""Planted bugs that the known anomalies of older transaction versions must not hide, each with the brokers in
which it is planted.

Rule: as in mutations.py. Of the bugs there, only those are here whose effects resemble a known anomaly.
"""

from __future__ import annotations

from typing import Final

import attrs

from tests.simulator.mutations import MUTATIONS
from tests.simulator.planting import Edit, Mutation


@attrs.frozen(kw_only=True)
class OldMutation:
    """A mistake in brokers of `transaction_version`, with or without partition verification, and the rule
    that it breaks there. The search begins at the first seed that showed it when it was recorded.
    """

    mutation: Mutation
    transaction_version: int
    partition_verification: bool
    seed: int
    rule: str


_ANY_PARTITION: Final = Mutation(
    "the coordinator says that every partition is in the transaction",
    breaks="A leader that verifies is told yes, so a late record reopens the transaction (KAFKA-14402).",
    edits=(
        Edit(
            "broker.transactions.add_partitions:_verified", {"partition, error(key)": "partition, NO_ERROR"}
        ),
    ),
)
_SHARED: Final = {mutation.name: mutation for mutation in MUTATIONS}


def _kip_98(name: str, seed: int, rule: str) -> OldMutation:
    """In brokers as they first shipped with KIP-98 (version 0, no verification)."""
    return OldMutation(
        mutation=_SHARED[name], transaction_version=0, partition_verification=False, seed=seed, rule=rule
    )


def _verified(mutation: Mutation, seed: int, rule: str) -> OldMutation:
    """In brokers that have no epoch per transaction, and verify partitions."""
    return OldMutation(
        mutation=mutation, transaction_version=1, partition_verification=True, seed=seed, rule=rule
    )


OLD_MUTATIONS: Final = (
    _kip_98("EndTxn ignores the epoch", 3, "I6 durable decision"),
    _kip_98("a partition does not compare epochs", 3, "I4 hanging"),
    _kip_98("a new owner leaves the old transaction open", 3, "I6 durable decision"),
    _kip_98("a new coordinator aborts decided commits", 24, "I12 recovery"),
    _kip_98("COMPLETE before all markers are written", 84, "I6 durable decision"),
    _kip_98("a timeout keeps the epoch", 34, "I4 hanging"),
    _kip_98("offsets of an aborted transaction take effect", 4, "I9 offsets with marker"),
    _verified(_ANY_PARTITION, 233, "I4 hanging"),
    _verified(_SHARED["a batch is appended after its marker"], 11, "I4 hanging"),
    _verified(_SHARED["an identity is granted twice"], 1, "I7 unique identity"),
    _verified(_SHARED["markers are sent before PREPARE is durable"], 0, "I6 durable decision"),
)
