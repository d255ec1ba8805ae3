"""The transaction log against the markers in the partitions, and against what the partitions have open.

Three comparisons: each transactional id's history by itself (no step that a coordinator cannot take), every
decision against the markers of its partitions, and every open transaction against what its coordinator will
end. The comparison itself is the log model's; here it gets files, severities and consequences.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import attrs

from fencepost.check.findings import Findings
from fencepost.check.producers import ScannedState
from fencepost.check.records import KnownCluster
from fencepost.check.scan import ScannedBatch, ScannedLog
from fencepost.log_model.partitions import PartitionModel
from fencepost.log_model.transactions import (
    COMPLETED,
    DECISIONS,
    FOLLOWERS,
    Disagreement,
    Histories,
    LoggedState,
    decisions_of,
    disagreements,
    lowest_epoch_after,
)
from fencepost.protocol.terms import TopicPartition, TransactionResult, TransactionState

# A coordinator ends what is open in these states, sooner or later.
UNENDED: Final = frozenset({TransactionState.ONGOING, *DECISIONS})

SPLIT: Final = "the transaction is committed in some partitions and not in others"


@attrs.frozen(kw_only=True)
class Witness:
    """What is kept of a partition whose log has no fault, when its batches are let go."""

    partition: TopicPartition
    directory: str
    start_offset: int
    files: dict[int, str]
    """Log files by base offset, ascending."""
    last: ScannedBatch | None
    newest_producer: ScannedBatch | None
    """The first batch of the producer with the highest id."""
    model: PartitionModel

    def file_of(self, offset: int) -> str:
        """The log file that holds an offset."""
        return next(file for base, file in reversed(self.files.items()) if base <= offset)


def witness_of(partition: TopicPartition, log: ScannedLog, scanned: ScannedState) -> Witness:
    """What other checks ask a partition."""
    last: ScannedBatch | None = None
    newest: ScannedBatch | None = None
    for batch in log.batches():
        last = batch
        if newest is None or batch.header.producer_id > newest.header.producer_id:
            newest = batch
    return Witness(
        partition=partition,
        directory=log.directory,
        start_offset=log.start_offset,
        files={segment.base_offset: segment.file for segment in log.segments},
        last=last,
        newest_producer=newest,
        model=scanned.model,
    )


# --- one transactional id -----------------------------------------------------------------------------------


def check_histories(histories: Histories, findings: Findings) -> None:
    """Each transactional id by itself: no step that a coordinator cannot take."""
    for name, history in histories.items():
        for before, after in pairwise(history):
            _check_step(name, before, after, findings)
        first, last = history[0], history[-1]
        if first.record is not None and first.record.state in COMPLETED and first.offset == 0:
            _complain(findings, first, f"{name!r} is {first.record.state.title} and was never prepared")
        if last.record is not None and last.record.state in DECISIONS:
            findings.note(
                last.file,
                f"{name!r} is {last.record.state.title}",
                offset=last.offset,
                means="the transaction is decided but not finished: the next start writes the markers",
            )


def _complain(findings: Findings, at: LoggedState, what: str) -> None:
    findings.problem(
        at.file, what, offset=at.offset, means="a coordinator never does this: a decision was lost or undone"
    )


def _check_step(name: str, before: LoggedState, after: LoggedState, findings: Findings) -> None:
    if before.record is None or after.record is None:
        return
    was, now = before.record, after.record
    if now.state not in FOLLOWERS[was.state]:
        _complain(findings, after, f"{name!r} is {now.state.title} after {was.state.title}")
    if now.producer_id == was.producer_id and now.producer_epoch < lowest_epoch_after(was, now):
        _complain(
            findings, after, f"{name!r} has producer epoch {now.producer_epoch} after {was.producer_epoch}"
        )


# --- decisions and markers ----------------------------------------------------------------------------------


def check_markers(
    histories: Histories,
    witnesses: list[Witness],
    lost: set[TopicPartition],
    cluster: KnownCluster,
    findings: Findings,
) -> None:
    """Decisions and markers, side by side in each partition. `lost` are the partitions without a directory:
    no transaction can have ended there.
    """
    decided, topics = decisions_of(histories), cluster.named()
    # Markers before a log's start are gone, and nothing can be said of what they decided.
    witnessed: dict[TopicPartition, Witness | None] = {
        witness.partition: witness for witness in witnesses if not witness.start_offset
    }
    for partition, witness in (witnessed | dict.fromkeys(sorted(lost))).items():
        topic = topics.get(partition.topic)
        # Decisions from before the topic was created are about a deleted topic of the same name.
        since = -1 if topic is None else topic.created_ms
        here = {
            identity: [decision for decision in decisions if decision.decided_ms >= since]
            for identity, decisions in decided.get(partition, {}).items()
        }
        markers = () if witness is None else witness.model.all_markers()
        for disagreement in disagreements(here, markers):
            _tell(partition, witness, disagreement, findings)


def _tell(
    partition: TopicPartition, witness: Witness | None, disagreement: Disagreement, findings: Findings
) -> None:
    decision, marker = disagreement
    if marker is None:
        assert decision is not None, "one of the two is there"
        at = decision.decided_by
        findings.problem(at.file, f"{disagreement} in {partition}", offset=at.offset, means=SPLIT)
        return
    assert witness is not None, "only a log holds markers"
    is_commit = marker.result is TransactionResult.COMMIT
    if decision is not None:
        means = SPLIT
    elif is_commit:
        means = "records are shown as committed that nobody committed"
    else:
        means = "an administrator aborted a hanging transaction, or its decision was lost"
    findings.tell(
        decision is not None or is_commit,
        witness.file_of(marker.offset),
        str(disagreement),
        offset=marker.offset,
        means=means,
    )


def check_open(histories: Histories, witnesses: list[Witness], findings: Findings) -> None:
    """Every transaction that a partition has open is one that its coordinator will end."""
    expected = {
        (partition, record.producer_id)
        for history in histories.values()
        if (record := history[-1].record) is not None and record.state in UNENDED
        for partition in record.partitions
    }
    for witness in witnesses:
        for producer_id, first_offset in witness.model.open.items():
            if (witness.partition, producer_id) not in expected:
                findings.problem(
                    witness.file_of(first_offset),
                    f"producer {producer_id} has a transaction open since here that no coordinator knows",
                    offset=first_offset,
                    means="it hangs: the last stable offset stays here; see `fencepost transactions abort`",
                )
