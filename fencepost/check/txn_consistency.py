"""The transaction log against the markers in the partitions, and against what the partitions have open.

Three comparisons: each transactional id's history by itself (no step that a coordinator cannot take), every
decision against the markers of its partitions, and every open transaction against what its coordinator will
end. The comparison itself is the log model's; here it gets files, severities and consequences.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from fencepost.check.findings import Findings, Location
from fencepost.check.scan import ScannedLog
from fencepost.log_model.transactions import (
    FOLLOWERS,
    Disagreement,
    Histories,
    LoggedState,
    decisions_of,
    disagreements,
    lowest_epoch_after,
)
from fencepost.protocol.kraft_log import KraftCluster
from fencepost.protocol.terms import NO_TIMESTAMP, TRANSACTION_STATE_TOPIC, TopicPartition, TransactionResult

IMPOSSIBLE: Final = "a coordinator never does this: a decision was lost or undone"
HANGS: Final = "it hangs: the last stable offset stays here; see `fencepost transactions abort`"
SPLIT: Final = "the transaction is committed in some partitions and not in others"
TO_FINISH: Final = "the transaction is decided but not finished: the next start writes the markers"
UNDECIDED: Final = "its aborted records in this partition are lost, or readers still wait for its end"


def check_histories(histories: Histories, logs: list[ScannedLog], findings: Findings) -> None:
    """Each transactional id by itself: no step that a coordinator cannot take."""
    whole = {log.directory: log for log in logs}
    for name, history in histories.items():
        first, last = history[0], history[-1]
        log = whole.get(last.file.rpartition("/")[0])
        for before, after in pairwise(history):
            is_direct = log is None or not log.has_gap(before.offset, after.offset)
            _check_step(name, before, after, findings, is_direct=is_direct)
        if first.record is not None and first.record.state.is_complete and first.offset == 0:
            what = f"{name!r} is {first.record.state.title} and was never prepared"
            findings.problem(Location(first.file, first.offset), what, IMPOSSIBLE)
        if last.record is not None and last.record.state.is_prepared:
            findings.note(
                Location(last.file, last.offset), f"{name!r} is {last.record.state.title}", TO_FINISH
            )


def _check_step(
    name: str, before: LoggedState, after: LoggedState, findings: Findings, *, is_direct: bool
) -> None:
    """`is_direct`: no record between the two was removed by compaction, or lost before a repair."""
    was, now, location = before.record, after.record, Location(after.file, after.offset)
    if was is None or now is None:
        return
    if is_direct and now.state not in FOLLOWERS[was.state]:
        findings.problem(location, f"{name!r} is {now.state.title} after {was.state.title}", IMPOSSIBLE)
    if now.producer_id == was.producer_id and now.producer_epoch < lowest_epoch_after(was, now):
        what = f"{name!r} has producer epoch {now.producer_epoch} after {was.producer_epoch}"
        findings.problem(location, what, IMPOSSIBLE)


def check_markers(
    histories: Histories,
    logs: list[ScannedLog],
    lost: set[TopicPartition],
    cluster: KraftCluster,
    findings: Findings,
) -> None:
    """Compare decisions with markers in each partition. `lost` are the partitions without a directory:
    no transaction can have ended there.
    """
    decided = decisions_of(histories)
    has_every_decision = not any(
        log.covered for log in logs if log.partition.topic == TRANSACTION_STATE_TOPIC
    )
    # Markers before a log's start are gone, and nothing can be said of what they decided.
    compared: dict[TopicPartition, ScannedLog | None] = {
        log.partition: log for log in logs if not log.start_offset
    }
    for partition, log in (compared | dict.fromkeys(sorted(lost))).items():
        topic = cluster.named.get(partition.topic)
        for disagreement in disagreements(
            decided.get(partition, {}),
            () if log is None else log.model.all_markers(),
            since=NO_TIMESTAMP if topic is None else topic.created_ms,
            has_every_decision=has_every_decision,
            has_every_marker=log is None or not log.covered,
        ):
            report_disagreement(partition, log, disagreement, findings)


def report_disagreement(
    partition: TopicPartition, log: ScannedLog | None, disagreement: Disagreement, findings: Findings
) -> None:
    """What a disagreement in one partition means."""
    decision, marker = disagreement
    if marker is None:
        assert decision is not None, "one of the two is there"
        at = decision.decided_by
        means = SPLIT if decision.result is TransactionResult.COMMIT else UNDECIDED
        findings.problem(Location(at.file, at.offset), f"{disagreement} in {partition}", means)
        return
    assert log is not None, "only a log holds markers"
    is_commit = marker.result is TransactionResult.COMMIT
    if decision is not None:
        means = SPLIT
    elif is_commit:
        means = "readers get records as committed, although no coordinator committed them"
    else:
        means = "an administrator aborted a hanging transaction, or its decision was lost"
    findings.report(decision is not None or is_commit, log.location(marker.offset), str(disagreement), means)


def check_open(histories: Histories, logs: list[ScannedLog], findings: Findings) -> None:
    """Every transaction that a partition has open is one that its coordinator will end."""
    expected = {
        (partition, record.producer_id)
        for history in histories.values()
        if (record := history[-1].record) is not None and record.state.is_open
        for partition in record.partitions
    }
    for log in logs:
        for producer_id, first_offset in log.model.open.items():
            if (log.partition, producer_id) not in expected:
                findings.problem(
                    log.location(first_offset),
                    f"producer {producer_id} has a transaction open since this offset, and no coordinator "
                    "knows it",
                    HANGS,
                )
