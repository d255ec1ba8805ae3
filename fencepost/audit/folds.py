"""The folds that workers run over sorted rows: histories of transactional ids, and batches of producers.

Rule: pure functions from rows to rows. What is right or wrong is decided in `check` and in the log model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from typing import Any, Final

import attrs

from fencepost.audit.rows import Row, finding_rows
from fencepost.check.findings import Findings, Location
from fencepost.check.meanings import MISFILTERED
from fencepost.check.scan import ScannedBatch, ScannedLog, ScannedSegment, judge
from fencepost.check.txn_consistency import check_histories, report_disagreement
from fencepost.journal.segments import LOG, TRANSACTION_INDEX, parse_file_name
from fencepost.journal.storage import parse_directory_name
from fencepost.log_model.transactions import (
    Identity,
    LoggedDecision,
    LoggedState,
    decisions_of,
    disagreements,
)
from fencepost.protocol.batches import CONTROL_BIT, MAGIC_KAFKA, TRANSACTIONAL_BIT, BatchHeader, Marker
from fencepost.protocol.terms import (
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    TransactionResult,
    TransactionState,
)
from fencepost.protocol.transaction_log import TransactionRecord

DECISION_SCHEMA: Final = (
    "topic string, partition int, producerId bigint, producerEpoch int, result string, isComplete boolean, "
    "hasOwnIdentity boolean, decidedMs bigint, transactionalId string, file string, offset bigint"
)
BATCH_COLUMNS: Final = (
    "topic", "partition", "producerId", "baseOffset", "lastOffset", "producerEpoch", "baseSequence",
    "recordCount", "maxMs", "kind", "transactional", "state", "coordinatorEpoch", "file", "position",
)  # fmt: skip
_STATES: Final = {state.title: state for state in TransactionState}
_RESULTS: Final = {"commit": TransactionResult.COMMIT, "abort": TransactionResult.ABORT}
_CONTRADICTING: Final = {TransactionResult.COMMIT: "aborted", TransactionResult.ABORT: "committed"}
"""The state that no batch of a transaction with this result may have."""

Gaps = Mapping[TopicPartition, Sequence[tuple[int, int]]]
"""Offsets that compaction or a repair left empty, each from the first to before the last, ascending."""


@attrs.frozen(kw_only=True)
class Known:
    """What every worker knows of the whole directory. Small: it is sent with every task."""

    gaps: Gaps
    comparable: frozenset[TopicPartition]
    """The partitions whose markers are all there, so that decisions can be compared with them."""
    created_ms: Mapping[str, int]
    """When each topic was created: earlier decisions may be about a deleted topic of the same name."""
    is_sparse: bool
    """Whether offsets may be missing between two batches."""

    def log(self, partition: TopicPartition) -> ScannedLog:
        """An empty log to judge batches with; `check` treats it like the log of a broker that stopped
        cleanly.
        """
        covered = list(self.gaps.get(partition, ()))
        return ScannedLog(partition, was_closed=True, is_sparse=self.is_sparse, covered=covered)

    @property
    def has_every_decision(self) -> bool:
        """Whether nothing was removed from the transaction log."""
        return not any(partition.topic == TRANSACTION_STATE_TOPIC for partition in self.gaps)


# --- transactional ids --------------------------------------------------------------------------------------


def fold_histories(rows: Iterable[Row], known: Known) -> Iterator[dict[str, Any]]:
    """Yields findings. Rows of the table `coordinator` come by id and offset; times are in ms."""
    for name, history in _histories(rows):
        findings = Findings()
        partition = parse_directory_name(history[0].file.rpartition("/")[0])
        logs = [] if partition is None else [known.log(partition)]
        check_histories({name: history}, logs, findings)
        yield from finding_rows(findings)


def _histories(rows: Iterable[Row]) -> Iterator[tuple[str, list[LoggedState]]]:
    for name, group in groupby(rows, key=lambda row: row["transactionalId"]):
        yield name, [_logged(row) for row in group]


def _logged(row: Row) -> LoggedState:
    state = row["state"]
    record = None
    if state is not None:
        partitions = (parse_directory_name(name) for name in row["partitions"])
        record = TransactionRecord(
            row["producerId"],
            NO_PRODUCER_ID if row["previousProducerId"] is None else row["previousProducerId"],
            NO_PRODUCER_ID,
            row["producerEpoch"],
            row["timeoutMs"],
            _STATES[state],
            tuple(partition for partition in partitions if partition is not None),
            NO_TIMESTAMP if row["updateMs"] is None else row["updateMs"],
            NO_TIMESTAMP if row["startMs"] is None else row["startMs"],
            row["clientVersion"],
        )
    return LoggedState(record, row["file"], row["offset"], row["leaderEpoch"])


def fold_decisions(rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    decisions = (decisions_of({name: history}) for name, history in _histories(rows))
    for partition, by_identity in chain.from_iterable(each.items() for each in decisions):
        for decision in (each for decisions in by_identity.values() for each in decisions):
            yield {
                "topic": partition.topic,
                "partition": partition.partition,
                "producerId": decision.producer_id,
                "producerEpoch": decision.producer_epoch,
                "result": decision.result.name.lower(),
                "isComplete": decision.is_complete,
                "hasOwnIdentity": decision.has_own_identity,
                "decidedMs": decision.decided_ms,
                "transactionalId": decision.transactional_id,
                "file": decision.decided_by.file,
                "offset": decision.decided_by.offset,
            }


# --- producers ----------------------------------------------------------------------------------------------


def fold_producers(rows: Iterable[Row], known: Known) -> Iterator[dict[str, Any]]:
    """Yields findings. Rows are decisions (`result` is set) and batches, by partition and producer; the
    decisions first, then batches by offset.
    """
    for (topic, number), group in groupby(rows, key=lambda row: (row["topic"], row["partition"])):
        partition = TopicPartition(topic, number)
        for _, of_producer in groupby(group, key=lambda row: row["producerId"]):
            findings = Findings()
            yield from _fold_producer(of_producer, known.log(partition), findings, known)
            yield from finding_rows(findings)


def _fold_producer(
    rows: Iterable[Row], log: ScannedLog, findings: Findings, known: Known
) -> Iterator[dict[str, Any]]:
    decisions: dict[Identity, list[LoggedDecision]] = {}
    by_state: dict[str, ScannedBatch] = {}  # of each, the first batch since the last marker
    for row in rows:
        if row["result"] is not None:
            decisions.setdefault((row["producerId"], row["producerEpoch"]), []).append(_decision(row))
            continue
        batch = _scanned(row)
        if not log.segments or log.segments[-1].file != batch.file:
            base_offset, _ = parse_file_name(batch.file.rpartition("/")[2])
            log.segments.append(ScannedSegment(base_offset, batch.file, is_final=True, end_offset=0))
        judge(batch, log, findings)
        if batch.marker is None:
            by_state.setdefault(row["state"], batch)
        else:
            wrong = by_state.get(_CONTRADICTING[batch.marker.result])
            if wrong is not None:
                _report_index(batch, batch.marker, wrong, findings)
            by_state.clear()
        yield from finding_rows(findings)
    if log.partition in known.comparable:
        for disagreement in disagreements(
            decisions,
            log.model.all_markers(),
            since=known.created_ms.get(log.partition.topic, NO_TIMESTAMP),
            has_every_decision=known.has_every_decision,
            has_every_marker=not log.covered,
        ):
            report_disagreement(log.partition, log, disagreement, findings)


def _report_index(batch: ScannedBatch, marker: Marker, wrong: ScannedBatch, findings: Findings) -> None:
    header = batch.header
    findings.problem(
        Location(batch.file.removesuffix(LOG) + TRANSACTION_INDEX, header.base_offset),
        f"{marker.result.name} of producer {header.producer_id} epoch {header.producer_epoch}, but by the "
        f"index, its batch at offset {wrong.header.base_offset} is {_CONTRADICTING[marker.result]}",
        MISFILTERED,
    )


def _decision(row: Row) -> LoggedDecision:
    return LoggedDecision(
        row["transactionalId"],
        row["producerId"],
        row["producerEpoch"],
        _RESULTS[row["result"]],
        row["isComplete"],
        row["hasOwnIdentity"],
        LoggedState(None, row["file"], row["offset"], NO_LEADER_EPOCH),
        row["decidedMs"],
    )


def _scanned(row: Row) -> ScannedBatch:
    result = _RESULTS.get(row["kind"])
    attributes = TRANSACTIONAL_BIT * row["transactional"] | CONTROL_BIT * (row["kind"] != "data")
    timestamp = NO_TIMESTAMP if row["maxMs"] is None else row["maxMs"]
    header = BatchHeader(
        base_offset=row["baseOffset"],
        batch_length=0,  # not used here
        leader_epoch=NO_LEADER_EPOCH,
        magic=MAGIC_KAFKA,
        crc=0,
        attributes=attributes,
        last_offset_delta=row["lastOffset"] - row["baseOffset"],
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=row["producerId"],
        producer_epoch=NO_PRODUCER_EPOCH if row["producerEpoch"] is None else row["producerEpoch"],
        base_sequence=NO_SEQUENCE if row["baseSequence"] is None else row["baseSequence"],
        record_count=row["recordCount"],
    )
    marker = None if result is None else Marker(result, row["coordinatorEpoch"])
    return ScannedBatch(row["file"], row["position"], header, marker)
