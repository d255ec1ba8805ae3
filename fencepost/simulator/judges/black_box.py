"""The black-box judge: a history of client operations against Jepsen's rules for Kafka, with ours for
transactions.

Rule: linear in what was written and read, and quick on small histories, since it judges every run of a
search.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fencepost.protocol.terms import IsolationLevel, TopicPartition
from fencepost.simulator.judges.anomalies import Anomaly, Verdict
from fencepost.simulator.judges.cycle_rules import judge_mixed, judge_writes
from fencepost.simulator.judges.log_order import observe
from fencepost.simulator.judges.missing_rules import judge_missing
from fencepost.simulator.judges.operations import ClientOperation
from fencepost.simulator.judges.order_rules import judge_polls, judge_sends
from fencepost.simulator.judges.record_rules import judge_places, judge_reads


def check(operations: Sequence[ClientOperation], *, finally_read: Collection[TopicPartition] = ()) -> Verdict:
    """Judges a whole history, in the order in which its operations ended; ValueError for values that are
    not unique.

    `finally_read` are the partitions that were read to their end when everything else was over: only of
    those can it be said that a record will never be seen.
    """
    seen = observe(operations)
    anomalies: list[Anomaly] = []
    for log in seen.logs.values():
        anomalies += judge_places(seen, log)
        for isolation_level in IsolationLevel:
            anomalies += judge_reads(seen, log, isolation_level)
        anomalies += judge_polls(seen, log)
        anomalies += judge_sends(seen, log)
    anomalies += judge_missing(seen, frozenset(finally_read))
    anomalies += judge_mixed(seen)
    anomalies += judge_writes(seen)
    return Verdict(tuple(anomalies), sometimes=seen.sometimes)
