"""What a step changed in the broker and in a client, as events of a history.

Rule: found by comparing the state before with the state after; the cores are not asked to watch themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fencepost.broker.transactions.state import Transactions
from fencepost.protocol.batches import read_header, read_marker
from fencepost.protocol.terms import TopicPartition, TransactionResult
from fencepost.protocol.transaction_log import TransactionRecord
from fencepost.simulator.explore.broker import Broker
from fencepost.simulator.explore.process import TOPIC, Outcome, Process
from fencepost.simulator.world.history import Appended, Bounded, Coordinated, Event
from fencepost.simulator.world.labels import values_of

BROKER_LANE: Final = "broker"


def of_broker(before: Broker, after: Broker, at: int) -> Iterator[Event]:
    """Batches in the topic's logs, bounds for readers that moved, and states of transactions."""
    for key in sorted(after.logs_of(TOPIC)):
        for batch in _entered(key, before, after):
            yield _appended(key, batch, at)
        if _bounds(before, key) != _bounds(after, key):
            last_stable_offset, high_watermark = _bounds(after, key)
            yield Bounded(
                at=at, partition=key, last_stable_offset=last_stable_offset, high_watermark=high_watermark
            )
    known = _records(before)
    for name, record in sorted(_records(after).items(), key=lambda item: item[0]):
        if known.get(name) != record:
            yield Coordinated.of(name, record, at=at, node=BROKER_LANE)


def markers(before: Broker, after: Broker) -> Iterator[TransactionResult]:
    """The ends that were written into the topic's logs."""
    for key in after.logs_of(TOPIC):
        for batch in _entered(key, before, after):
            if read_header(batch).is_control:
                yield read_marker(batch).result


def _entered(key: TopicPartition, before: Broker, after: Broker) -> tuple[bytes, ...]:
    return after.logs[key][len(before.logs.get(key, ())) :]


def _appended(key: TopicPartition, batch: bytes, at: int) -> Appended:
    header = read_header(batch)
    label = "" if header.is_control else values_of(batch)
    return Appended.of(key, header, batch, at=at, node=BROKER_LANE, label=label)


def _bounds(broker: Broker, key: TopicPartition) -> tuple[int, int]:
    log = broker.node.logs.get(key)
    return (0, 0) if log is None else (log.partition.last_stable_offset, log.partition.high_watermark)


def _records(broker: Broker) -> dict[str, TransactionRecord]:
    coordinators = (log.coordinator for log in broker.node.logs.values())
    return {
        name: record
        for above in coordinators
        if isinstance(above, Transactions)
        for name, record in above.records.items()
    }


def of_process(before: Process, after: Process) -> list[str]:
    """What the script began, decided and learned: "begin", "commit", "commit: ok"."""
    words: list[str] = []
    for number, attempt in enumerate(after.attempts):
        known = before.attempts[number] if number < len(before.attempts) else None
        if known is None:
            words.append("begin")
        if attempt.wait is not None and (known is None or known.wait is not attempt.wait):
            words.append(attempt.wait.name.lower())
        if attempt.outcome is not Outcome.OPEN and (known is None or known.outcome is not attempt.outcome):
            assert attempt.wait is not None, "only what was ended has an outcome"
            told = "unknown" if attempt.outcome is Outcome.UNKNOWN else "ok"
            words.append(f"{attempt.wait.name.lower()}: {told}")
    if after.machine.is_over and not before.machine.is_over:
        failure = after.machine.failure
        words.append("over" if failure is None else f"over: {failure.kind.__name__}")
    return words
