"""Checks of an explored world: the logs against what clients were told.

Rule: a record is committed or aborted as its producer's next marker in the log says. The broker's memory is
not consulted, except for the bounds that it shows to readers.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import attrs

from fencepost.log_model.partitions import PartitionModel
from fencepost.protocol.batches import BatchHeader, read_header, read_marker
from fencepost.protocol.records import read_columns
from fencepost.protocol.terms import TopicPartition, TransactionResult
from fencepost.simulator.explore.broker import ExploredBroker
from fencepost.simulator.explore.process import ExploredTransaction, TransactionOutcome

COMMIT, ABORT = TransactionResult.COMMIT, TransactionResult.ABORT


class AnomalyKind(Enum):
    """Anomalies, by Jepsen's names where there is one."""

    G1A = "G1a"
    LOST_WRITE = "lost-write"
    TORN = "torn-transaction"
    DUPLICATE = "duplicate"
    BOUNDS = "bounds"
    HANGING = "hanging-transaction"


@attrs.frozen
class ExploredAnomaly:
    violation: AnomalyKind
    because: str


class ReaderBounds(NamedTuple):
    """The offsets that bound readers."""

    last_stable_offset: int
    high_watermark: int
    log_end_offset: int


class VisibleLog(NamedTuple):
    """A log of the topic, and the bounds for its readers if it has a leader."""

    partition: TopicPartition
    batches: tuple[bytes, ...]
    bounds: ReaderBounds | None


def shown_by(broker: ExploredBroker) -> tuple[VisibleLog, ...]:
    """All that readers can see; few states of the broker differ in it."""
    shown: list[VisibleLog] = []
    for key in sorted(broker.written_partitions()):
        log, bounds = broker.node.logs.get(key), None
        if log is not None:
            state = log.partition
            bounds = ReaderBounds(state.last_stable_offset, state.high_watermark, state.log_end_offset)
        shown.append(VisibleLog(key, broker.logs[key], bounds))
    return tuple(shown)


@attrs.frozen(eq=False)
class DecidedRecords:
    """What the logs say: how each value was decided, None while it is not."""

    decided: dict[bytes, TransactionResult | None]
    finding: ExploredAnomaly | None
    is_open: bool
    """Whether a record is undecided."""


def contents_of(shown: tuple[VisibleLog, ...]) -> DecidedRecords:
    """Read every log of the topic, and compare the bounds for readers with it."""
    decided: dict[bytes, TransactionResult | None] = {}
    finding: ExploredAnomaly | None = None
    for key, log, bounds in shown:
        model = PartitionModel()
        data: list[tuple[BatchHeader, bytes]] = []
        for batch in log:
            header = read_header(batch)
            model.apply(header, read_marker(batch) if header.is_control else None)
            if not header.is_control:
                data.append((header, batch))
        for header, batch in data:
            result = model.result_of(header.producer_id, header.base_offset)
            for value in read_columns(batch, header).values:
                assert value is not None, "every record of a script has a value"
                if value in decided:
                    finding = ExploredAnomaly(AnomalyKind.DUPLICATE, f"{_words(value)} is in the log twice")
                decided[bytes(value)] = result
        finding = finding or (None if bounds is None else _judge_bounds(key, bounds, model))
    return DecidedRecords(decided, finding, None in decided.values())


def _judge_bounds(key: TopicPartition, bounds: ReaderBounds, model: PartitionModel) -> ExploredAnomaly | None:
    """LSO <= HW <= LEO, and the LSO is the offset of the first undecided record."""
    stable = next(iter(model.open.values()), bounds.log_end_offset)  # oldest first
    if bounds.last_stable_offset == stable <= bounds.high_watermark <= bounds.log_end_offset:
        return None
    told = ", ".join(map(str, bounds))
    return ExploredAnomaly(
        AnomalyKind.BOUNDS, f"{key}: LSO, HW and LEO are {told}; the first undecided record is at {stable}"
    )


def judge(contents: DecidedRecords, attempts: tuple[ExploredTransaction, ...]) -> ExploredAnomaly | None:
    """The anomaly that one client can observe, if there is one."""
    for attempt in attempts:
        found = [contents.decided.get(value) for value in attempt.values]
        # Nobody but the client can commit, whatever it was told.
        if attempt.requested is ABORT and COMMIT in found:
            value = attempt.values[found.index(COMMIT)]
            return ExploredAnomaly(
                AnomalyKind.G1A, f"{_words(value)} is committed, but its client requested an abort"
            )
        if COMMIT in found and ABORT in found:
            parts = ", ".join(
                f"{_words(value)} {'is undecided' if result is None else f'has {result.name}'}"
                for value, result in zip(attempt.values, found, strict=True)
            )
            return ExploredAnomaly(
                AnomalyKind.TORN, f"one transaction was both committed and aborted: {parts}"
            )
        if attempt.outcome is TransactionOutcome.COMMITTED:
            for value, result in zip(attempt.values, found, strict=True):
                if result is ABORT or value not in contents.decided:
                    end = "aborted" if result is ABORT else "not in the log"
                    because = f"{_words(value)} is {end}, but its client was told that it is committed"
                    return ExploredAnomaly(AnomalyKind.LOST_WRITE, because)
    return None


def _words(value: bytes) -> str:
    return value.decode()
