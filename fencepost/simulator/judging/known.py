"""What breaks a rule in Apache Kafka too: listed by name, counted, and no violation.

Rule: an entry says exactly whose operations it excuses and why; whatever else breaks the rule is a finding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from fencepost.simulator.judging.anomalies import DUPLICATE, NONMONOTONIC_SEND, Anomaly, Rule


@attrs.frozen(kw_only=True)
class KnownBehaviour:
    """A rule that producers without transactions may see broken; `needs` is the mark without which it
    cannot be.
    """

    name: str
    rule: Rule
    why: str
    needs: str | None = None


KNOWN: Final = (
    KnownBehaviour(
        name="an unknown producer may start anywhere",
        rule=NONMONOTONIC_SEND,
        why="Since KIP-360 a partition takes any first sequence of a producer that it does not know. Batches "
        "in flight together while the partition gets its first leader can so enter out of order.",
    ),
    KnownBehaviour(
        name="one batch per producer survives a leader",
        rule=DUPLICATE,
        why="A snapshot keeps the last batch of each producer, so a new leader may not recognise an older "
        "one that is sent again. It answers OUT_OF_ORDER_SEQUENCE_NUMBER; an idempotent producer then sends "
        "the batch under a new identity, as Kafka's does (TransactionManager.canRetry). A transaction is "
        "aborted.",
        needs="leaders that loaded a log",
    ),
)


def known(anomaly: Anomaly, marks: Mapping[str, int]) -> KnownBehaviour | None:
    """The entry that explains an anomaly, if there is one."""
    if not anomaly.operations or any(operation.transactional for operation in anomaly.operations):
        return None
    for entry in KNOWN:
        if entry.rule is anomaly.rule and (entry.needs is None or marks.get(entry.needs)):
            return entry
    return None
