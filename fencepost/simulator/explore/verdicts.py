"""What may never be in any explored world: the log says how each record was decided, the client what it was
told.

Rule: a record counts as its producer's next marker behind it says, found by reading the log; nothing here
asks the broker what it believes, but for the bounds that it shows to readers.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

import attrs

from fencepost.protocol.batches import BatchHeader, read_header, read_marker
from fencepost.protocol.records import read_columns
from fencepost.protocol.terms import TopicPartition, TransactionResult
from fencepost.simulator.explore.broker import Broker
from fencepost.simulator.explore.process import TOPIC, Attempt, Outcome

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


class Bounds(NamedTuple):
    """How far a leader lets readers see."""

    last_stable_offset: int
    high_watermark: int
    log_end_offset: int


class Shown(NamedTuple):
    """A log of the topic, and what its leader lets readers see of it, if there is one."""

    partition: TopicPartition
    batches: tuple[bytes, ...]
    bounds: Bounds | None


def shown_by(broker: Broker) -> tuple[Shown, ...]:
    """All that readers can learn: few states of the broker differ in it."""
    return tuple(
        Shown(key, broker.logs[key], _bounds_of(broker, key)) for key in sorted(broker.logs_of(TOPIC))
    )


def _bounds_of(broker: Broker, key: TopicPartition) -> Bounds | None:
    log = broker.node.logs.get(key)
    if log is None:
        return None
    state = log.partition
    return Bounds(state.last_stable_offset, state.high_watermark, state.log_end_offset)


@attrs.frozen(eq=False)
class Contents:
    """What the logs of the topic say: of each value how it was decided, None while it is not."""

    decided: dict[bytes, TransactionResult | None]
    finding: Finding | None
    is_open: bool
    """Whether some record is undecided."""


def contents_of(shown: tuple[Shown, ...]) -> Contents:
    """Reads every log of the topic, and compares the bounds for readers with what is there."""
    decided: dict[bytes, TransactionResult | None] = {}
    finding: Finding | None = None
    for key, log, bounds in shown:
        batches = [(read_header(batch), batch) for batch in log]
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
        finding = finding or (None if bounds is None else _judge_bounds(key, bounds, undecided))
    return Contents(decided, finding, None in decided.values())


def _decision(after: Iterable[tuple[BatchHeader, bytes]], header: BatchHeader) -> TransactionResult | None:
    for later, batch in after:
        if later.is_control and later.producer_id == header.producer_id:
            return read_marker(batch).result
    return None


def _judge_bounds(key: TopicPartition, bounds: Bounds, undecided: list[int]) -> Finding | None:
    """LSO <= HW <= LEO, and the LSO is where the first undecided record lies."""
    stable = min(undecided, default=bounds.log_end_offset)
    if bounds.last_stable_offset == stable <= bounds.high_watermark <= bounds.log_end_offset:
        return None
    told = ", ".join(map(str, bounds))
    return Finding(Violation.BOUNDS, f"{key}: LSO, HW and LEO are {told}; what is decided ends at {stable}")


def judge(contents: Contents, attempts: tuple[Attempt, ...]) -> Finding | None:
    """What one client could complain about."""
    for attempt in attempts:
        found = [contents.decided.get(value) for value in attempt.values]
        if attempt.wait is ABORT and COMMIT in found:
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
