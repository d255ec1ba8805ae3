"""The transaction log against the markers in the partitions: does every part tell the same story?

Rule: what COMPLETE_* says is in each of its partitions, no marker says otherwise, and whatever is open
somewhere is known to its coordinator. A marker may be repeated (retries, failovers), never contradicted.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final, NamedTuple

import attrs

from fencepost.check.findings import Findings
from fencepost.check.producers import Ended, Track, opened
from fencepost.check.records import Cluster, Moment
from fencepost.check.scan import Placed, ScannedLog
from fencepost.protocol.terms import TopicPartition, TransactionResult, TransactionState

PREPARED: Final = {
    TransactionState.PREPARE_COMMIT: TransactionResult.COMMIT,
    TransactionState.PREPARE_ABORT: TransactionResult.ABORT,
}
COMPLETES: Final = {
    TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
    TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
}
COMPLETED: Final = frozenset(COMPLETES.values())
# From whom a coordinator still expects something: it ends what they have open.
UNENDED: Final = frozenset({TransactionState.ONGOING, *PREPARED})

SPLIT: Final = "the transaction is committed in some partitions and not in others"


class Decided(NamedTuple):
    """What a coordinator decided for one partition, and whether it then said that all markers were there."""

    result: TransactionResult
    is_complete: bool
    transactional_id: str
    file: str
    offset: int


@attrs.frozen(kw_only=True)
class Witness:
    """What is kept of a partition whose log has no fault, when its batches are let go."""

    partition: TopicPartition
    directory: str
    start_offset: int
    files: dict[int, str]
    """Log files by base offset, ascending."""
    last: Placed | None
    newest_producer: Placed | None
    """The first batch of the producer with the highest id."""
    ended: list[Ended]
    open_transactions: list[tuple[int, int]]
    """(first offset, producer id), oldest first."""

    def file_of(self, offset: int) -> str:
        """The log file that holds an offset."""
        return next(file for base, file in reversed(self.files.items()) if base <= offset)


def witness_of(partition: TopicPartition, log: ScannedLog, scanned: Track) -> Witness:
    """What other checks ask a partition."""
    last: Placed | None = None
    newest: Placed | None = None
    for placed in log.batches():
        last = placed
        if newest is None or placed.header.producer_id > newest.header.producer_id:
            newest = placed
    return Witness(
        partition=partition,
        directory=log.directory,
        start_offset=log.start_offset,
        files={segment.base_offset: segment.file for segment in log.segments},
        last=last,
        newest_producer=newest,
        ended=scanned.ended,
        open_transactions=opened(scanned.final),
    )


Identity = tuple[int, int]  # producer id, producer epoch
Decisions = dict[TopicPartition, dict[Identity, list[tuple[Decided, int]]]]
"""Each with its time (ms)."""


def check_histories(histories: dict[str, list[Moment]], findings: Findings) -> None:
    """Each transactional id by itself: no step that the coordinator cannot take."""
    for name, history in histories.items():
        for before, after in pairwise(history):
            _check_step(name, before, after, findings)
        first, last = history[0], history[-1]
        if first.record is not None and first.record.state in COMPLETED and first.offset == 0:
            _complain(findings, first, f"{name!r} is {first.record.state.title} and was never prepared")
        if last.record is not None and last.record.state in PREPARED:
            findings.note(
                last.file,
                f"{name!r} is {last.record.state.title}",
                offset=last.offset,
                means="decided and not finished: the next start writes the markers",
            )


def _complain(findings: Findings, at: Moment, what: str) -> None:
    findings.problem(
        at.file, what, offset=at.offset, means="a coordinator never does this: a decision was lost or undone"
    )


def _check_step(name: str, before: Moment, after: Moment, findings: Findings) -> None:
    if before.record is None or after.record is None:
        return
    was, now = before.record.state, after.record.state
    forward = COMPLETES.get(was)
    if (forward is not None and now is not forward) or (now in COMPLETED and forward is not now):
        _complain(findings, after, f"{name!r} is {now.title} after {was.title}")
    same_producer = before.record.producer_id == after.record.producer_id
    if same_producer and after.record.producer_epoch < before.record.producer_epoch:
        _complain(
            findings,
            after,
            f"{name!r} has producer epoch {after.record.producer_epoch} after {before.record.producer_epoch}",
        )


def check_markers(
    histories: dict[str, list[Moment]],
    witnesses: list[Witness],
    lost: set[TopicPartition],
    cluster: Cluster,
    findings: Findings,
) -> None:
    """Decisions and markers, side by side for each producer in each partition. `lost` are those without a
    directory: a transaction cannot have ended there.
    """
    decided = _decisions(histories)
    topics = cluster.named()
    # Records before a log's start are gone, and markers with them.
    said = {witness.partition: witness.ended for witness in witnesses if not witness.start_offset}
    said |= {partition: [] for partition in sorted(lost)}
    for partition, markers in said.items():
        by_producer: dict[Identity, list[Ended]] = {}
        for ended in markers:
            by_producer.setdefault((ended.producer_id, ended.producer_epoch), []).append(ended)
        topic = topics.get(partition.topic)
        since = -1 if topic is None else topic.created_ms
        here = decided.get(partition, {})
        for producer in dict.fromkeys([*here, *by_producer]):
            wanted = [entry for entry, update_ms in here.get(producer, []) if update_ms >= since]
            _match(partition, producer, wanted, by_producer.get(producer, []), findings)


def _decisions(histories: dict[str, list[Moment]]) -> Decisions:
    decided: Decisions = {}
    for name, history in histories.items():
        for index, moment in enumerate(history):
            record = moment.record
            if record is None or record.state not in PREPARED:
                continue
            after = history[index + 1].record if index + 1 < len(history) else None
            is_complete = after is not None and after.state in COMPLETED
            entry = Decided(PREPARED[record.state], is_complete, name, moment.file, moment.offset)
            for partition in record.partitions:
                here = decided.setdefault(partition, {})
                producer = (record.producer_id, record.producer_epoch)
                here.setdefault(producer, []).append((entry, record.update_ms))
    return decided


def _match(
    partition: TopicPartition, producer: Identity, decided: list[Decided], said: list[Ended], into: Findings
) -> None:
    """Each decision takes the next marker that says the same; what is left over must repeat one of them."""
    who = f"producer {producer[0]} epoch {producer[1]}"
    at = 0
    used: set[int] = set()
    missing: list[Decided] = []
    for decision in decided:
        found = next((n for n in range(at, len(said)) if said[n].result is decision.result), None)
        if found is None:
            missing.append(decision)
        else:
            used.add(found)
            at = found + 1
    for decision in missing:
        if decision.is_complete:
            into.problem(
                decision.file,
                f"{decision.transactional_id!r} completed {decision.result.name} of {who}, and its marker is "
                f"missing in {partition}",
                offset=decision.offset,
                means=SPLIT,
            )
    matched = {said[n].result for n in used}
    for n, marker in enumerate(said):
        if n not in used and marker.result not in matched:
            _tell_undecided(who, marker, missing, into)


def _tell_undecided(who: str, marker: Ended, missing: list[Decided], into: Findings) -> None:
    what = f"{marker.result.name} of {who}"
    against = [decision for decision in missing if decision.result is not marker.result]
    if against:
        into.problem(
            marker.file,
            f"{what}, and {against[0].transactional_id!r} decided {against[0].result.name}",
            offset=marker.offset,
            means=SPLIT,
        )
    elif marker.result is TransactionResult.COMMIT:
        into.problem(
            marker.file,
            f"{what}, and no coordinator decided so",
            offset=marker.offset,
            means="records are shown as committed that nobody committed",
        )
    else:
        into.note(
            marker.file,
            f"{what}, and no coordinator decided so",
            offset=marker.offset,
            means="an administrator aborted a hanging transaction, or its decision was lost",
        )


def check_open(histories: dict[str, list[Moment]], witnesses: list[Witness], findings: Findings) -> None:
    """Every transaction that a partition has open is one that its coordinator will end."""
    expected = {
        (partition, record.producer_id)
        for history in histories.values()
        if (record := history[-1].record) is not None and record.state in UNENDED
        for partition in record.partitions
    }
    for witness in witnesses:
        for first_offset, producer_id in witness.open_transactions:
            if (witness.partition, producer_id) not in expected:
                findings.problem(
                    witness.file_of(first_offset),
                    f"producer {producer_id} has a transaction open since here that no coordinator knows",
                    offset=first_offset,
                    means="it hangs: the last stable offset stays here; see `fencepost transactions abort`",
                )
