"""Whether a log tells one story: what the transaction log decided is what the markers in the partitions say.

Rule: a finished transaction has its marker in each of its partitions, and no marker lacks its decision.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import attrs

from fencepost.cli.log_files import partition_batches, partition_directories, topic_batches
from fencepost.protocol.batches import read_marker
from fencepost.protocol.terms import (
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    TransactionResult,
    TransactionState,
)
from fencepost.protocol.transaction_log import TransactionRecord, read_transactions

PREPARED = {
    TransactionState.PREPARE_COMMIT: TransactionResult.COMMIT,
    TransactionState.PREPARE_ABORT: TransactionResult.ABORT,
}
COMPLETED = {
    TransactionState.COMPLETE_COMMIT: TransactionResult.COMMIT,
    TransactionState.COMPLETE_ABORT: TransactionResult.ABORT,
}


class Moment(NamedTuple):
    """One record of the transaction log and the leader epoch it was written under; None is a tombstone."""

    leader_epoch: int
    record: TransactionRecord | None


class Decision(NamedTuple):
    """What a marker says, or must say: in Kafka's newest generation each transaction has its own epoch."""

    producer_id: int
    producer_epoch: int
    result: TransactionResult
    partition: TopicPartition


@attrs.frozen
class Histories:
    """The transaction log by transactional id, in order."""

    of: dict[str, list[Moment]]

    def count(self, *states: TransactionState) -> int:
        """How many records say one of these states."""
        moments = (moment for history in self.of.values() for moment in history)
        return sum(moment.record is not None and moment.record.state in states for moment in moments)

    @property
    def finished_after_restart(self) -> int:
        """Decisions prepared by one leader and completed by a later one: it died in between."""
        return sum(
            before.record is not None
            and before.record.state in PREPARED
            and after.record is not None
            and after.record.state in COMPLETED
            and after.leader_epoch > before.leader_epoch
            for history in self.of.values()
            for before, after in pairwise(history)
        )


def read_histories(data: Path) -> Histories:
    """Reads `__transaction_state` of a data directory, living or dead."""
    histories: defaultdict[str, list[Moment]] = defaultdict(list)
    for _partition, batch in topic_batches(data, TRANSACTION_STATE_TOPIC):
        for name, record in read_transactions(batch.data, batch.header):
            histories[name].append(Moment(batch.header.leader_epoch, record))
    return Histories(dict(histories))


def disagreements(data: Path) -> list[str]:
    """Each contradiction between transaction log and markers as a sentence; none when they tell one story."""
    written = read_markers(data)
    histories = read_histories(data).of
    present = {partition for partition, _ in partition_directories(data)}
    decided = set(
        decisions((moment.record for history in histories.values() for moment in history), PREPARED)
    )
    complaints: list[str] = []
    for name, history in histories.items():
        finished = finished_decisions([moment.record for moment in history])
        complaints += [
            f"{name!r} completed {tell(decision)}, and the marker is missing"
            for decision in finished
            if decision.partition in present and decision not in written
        ]
    complaints += [
        f"nobody decided {tell(decision)}, and a marker says so" for decision in sorted(written - decided)
    ]
    return complaints


def finished_decisions(history: list[TransactionRecord | None]) -> list[Decision]:
    """What stands in PREPARE records that a COMPLETE record follows."""
    pairs = pairwise(history)
    return decisions(
        (before for before, after in pairs if after is not None and after.state in COMPLETED), PREPARED
    )


def decisions(
    records: Iterable[TransactionRecord | None], results: dict[TransactionState, TransactionResult]
) -> list[Decision]:
    """The markers that records in these states ask for."""
    return [
        Decision(record.producer_id, record.producer_epoch, results[record.state], partition)
        for record in records
        if record is not None and record.state in results
        for partition in record.partitions
    ]


def read_markers(data: Path) -> set[Decision]:
    """Every marker in every partition."""
    return {
        Decision(
            batch.header.producer_id, batch.header.producer_epoch, read_marker(batch.data).result, partition
        )
        for partition, directory in partition_directories(data)
        for batch in partition_batches(directory)
        if batch.header.is_control
    }


def tell(decision: Decision) -> str:
    """As people say it."""
    who = f"producer {decision.producer_id} epoch {decision.producer_epoch}"
    return f"{decision.result.name} of {who} in {decision.partition}"
