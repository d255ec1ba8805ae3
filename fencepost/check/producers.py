"""The producers of one partition, judged batch by batch: epochs never fall, sequences never skip.

The log model says what each batch leaves behind; this module compares every batch with what the model says
before it. It keeps the producers as they were at each offset that a snapshot or the manifest speaks of.
"""

from __future__ import annotations

from typing import Final

import attrs

from fencepost.check.findings import Findings
from fencepost.check.scan import ScannedBatch, ScannedLog
from fencepost.log_model.partitions import ModelProducer, PartitionModel
from fencepost.protocol.terms import NO_OFFSET, NO_PRODUCER_ID, NO_SEQUENCE

# producer.id.expiration.ms: a partition forgets a producer that is silent for so long, and an unknown
# producer may start at any sequence.
PRODUCER_ID_EXPIRATION_MS: Final = 86_400_000

FENCED: Final = "a producer that had been fenced could write"


@attrs.frozen(kw_only=True)
class ScannedState:
    """What a full scan of a partition says: at its end, and at each offset that was asked for."""

    model: PartitionModel
    producers_at: dict[int, dict[int, ModelProducer]]
    """No entry for an offset inside a batch."""

    def stable_at(self, high_watermark: int) -> int | None:
        """The last stable offset at a high watermark; None when it is inside a batch."""
        producers = self.producers_at.get(high_watermark)
        if producers is None:
            return None
        opened = [known.first_offset for known in producers.values() if known.first_offset != NO_OFFSET]
        return min(opened, default=high_watermark)


def follow_producers(log: ScannedLog, offsets: set[int], findings: Findings) -> ScannedState:
    """Judge every batch of a log, and remember the producers at these offsets."""
    model = PartitionModel()
    at: dict[int, dict[int, ModelProducer]] = {}
    for batch in log.batches():
        if batch.header.base_offset in offsets:
            at[batch.header.base_offset] = dict(model.producers)
        known = model.producers.get(batch.header.producer_id)
        if known is not None:
            _judge(batch, known, model, findings)
        model.apply(batch.header, batch.marker)
    if log.end_offset in offsets:
        at[log.end_offset] = dict(model.producers)
    return ScannedState(model=model, producers_at=at)


def _judge(batch: ScannedBatch, known: ModelProducer, model: PartitionModel, findings: Findings) -> None:
    if batch.marker is not None:
        _judge_marker(batch, known, findings)
    elif batch.header.producer_id != NO_PRODUCER_ID and not batch.header.is_control:
        _judge_data(batch, known, model, findings)


def _complain(findings: Findings, batch: ScannedBatch, what: str, means: str) -> None:
    findings.problem(batch.file, f"{_writer(batch)}: {what}", offset=batch.header.base_offset, means=means)


def _writer(batch: ScannedBatch) -> str:
    return f"producer {batch.header.producer_id} epoch {batch.header.producer_epoch}"


def _judge_data(batch: ScannedBatch, known: ModelProducer, model: PartitionModel, findings: Findings) -> None:
    header = batch.header
    if header.producer_epoch < known.producer_epoch:
        _complain(findings, batch, f"a batch after epoch {known.producer_epoch} was here", FENCED)
    elif header.base_sequence != NO_SEQUENCE:
        _judge_sequence(batch, known, model, findings)
    if not header.is_transactional and known.first_offset != NO_OFFSET:
        _complain(
            findings,
            batch,
            f"a plain batch inside its transaction, open since offset {known.first_offset}",
            "readers of committed records cannot tell what it belongs to",
        )


def _judge_sequence(
    batch: ScannedBatch, known: ModelProducer, model: PartitionModel, findings: Findings
) -> None:
    header = batch.header
    expected = model.expected_sequence(header.producer_id, header.producer_epoch)
    if header.base_sequence == expected:
        return
    what = f"sequence {header.base_sequence} where {expected} was expected"
    if header.max_timestamp - known.timestamp > PRODUCER_ID_EXPIRATION_MS:
        findings.note(
            batch.file,
            f"{_writer(batch)}: {what}",
            offset=header.base_offset,
            means="it was idle for so long that the partition may have removed its state",
        )
    else:
        _complain(findings, batch, what, "records of this producer were lost, doubled or reordered")


def _judge_marker(batch: ScannedBatch, known: ModelProducer, findings: Findings) -> None:
    assert batch.marker is not None, "the caller looked"
    if batch.header.producer_epoch < known.producer_epoch:
        _complain(findings, batch, f"a marker after epoch {known.producer_epoch} was here", FENCED)
    if batch.marker.coordinator_epoch < known.coordinator_epoch:
        _complain(
            findings,
            batch,
            f"a marker of coordinator epoch {batch.marker.coordinator_epoch} after one of "
            f"{known.coordinator_epoch}",
            "a coordinator that had been replaced could write",
        )
