"""What may never be in any explored world: the log says how each record was decided, the client what it was
told.

Rule: a record counts as its producer's next marker behind it says, found by reading the log; nothing here
asks the broker what it believes, but for the bounds that it shows to readers.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import attrs

from fencepost.broker.partition import Partition
from fencepost.protocol.batches import BatchHeader, read_marker
from fencepost.protocol.records import read_columns
from fencepost.protocol.terms import TopicPartition, TransactionResult
from fencepost.simulator.exploring.broker import Broker
from fencepost.simulator.exploring.process import TOPIC, Attempt, Outcome

COMMIT, ABORT = TransactionResult.COMMIT, TransactionResult.ABORT


class Violation(Enum):
    """Names as Jepsen's where it has one."""

    G1A = "G1a"
    LOST_WRITE = "lost-write"
    TORN = "torn-transaction"
    DUPLICATE = "duplicate"
    BOUNDS = "bounds"
    HANGING = "hanging-transaction"


@attrs.frozen
class Finding:
    """A violation, and what of it can be seen."""

    violation: Violation
    because: str


@attrs.frozen
class Contents:
    """What the logs of the topic say: of each value how it was decided, None while it is not."""

    decided: dict[bytes, TransactionResult | None]
    finding: Finding | None
    is_open: bool
    """Whether some record is undecided."""


def contents_of(broker: Broker) -> Contents:
    """Reads every log of the topic, and compares the bounds for readers with what is there."""
    decided: dict[bytes, TransactionResult | None] = {}
    finding: Finding | None = None
    for key in sorted(broker.logs_of(TOPIC)):
        batches = broker.batches(key)
        undecided: list[int] = []
        for at, (header, batch) in enumerate(batches):
            if header.is_control:
                continue
            result = _decision(batches[at + 1 :], header)
            if result is None:
                undecided.append(header.base_offset)
            for value in read_columns(batch, header).values:
                assert value is not None, "every record of a script has a value"
                if value in decided:
                    finding = Finding(Violation.DUPLICATE, f"{_words(value)} is in the log twice")
                decided[bytes(value)] = result
        log = broker.node.logs.get(key)
        finding = finding or (None if log is None else _bounds(key, log.partition, undecided))
    return Contents(decided, finding, None in decided.values())


def _decision(after: Iterable[tuple[BatchHeader, bytes]], header: BatchHeader) -> TransactionResult | None:
    for later, batch in after:
        if later.is_control and later.producer_id == header.producer_id:
            return read_marker(batch).result
    return None


def _bounds(key: TopicPartition, state: Partition, undecided: list[int]) -> Finding | None:
    """LSO <= HW <= LEO, and the LSO is where the first undecided record lies."""
    stable = min(undecided, default=state.log_end_offset)
    if state.last_stable_offset == stable <= state.high_watermark <= state.log_end_offset:
        return None
    shown = f"{state.last_stable_offset}, {state.high_watermark}, {state.log_end_offset}"
    return Finding(Violation.BOUNDS, f"{key}: LSO, HW and LEO are {shown}; what is decided ends at {stable}")


def judge(contents: Contents, attempts: tuple[Attempt, ...]) -> Finding | None:
    """What one client could complain about."""
    for attempt in attempts:
        found = [contents.decided.get(value) for value in attempt.values]
        if attempt.wish is ABORT and COMMIT in found:
            value = attempt.values[found.index(COMMIT)]
            return Finding(Violation.G1A, f"{_words(value)} is visible, and its client aborts it")
        if COMMIT in found and ABORT in found:
            parts = ", ".join(
                f"{_words(value)} {'is undecided' if result is None else f'has {result.name}'}"
                for value, result in zip(attempt.values, found, strict=True)
            )
            return Finding(Violation.TORN, f"one transaction was decided in two ways: {parts}")
        if attempt.outcome is Outcome.COMMITTED:
            for value, result in zip(attempt.values, found, strict=True):
                if result is ABORT or value not in contents.decided:
                    end = "aborted" if result is ABORT else "not in the log"
                    because = f"{_words(value)} is {end}, and its client was told that it is committed"
                    return Finding(Violation.LOST_WRITE, because)
    return None


def _words(value: bytes) -> str:
    return value.decode()
