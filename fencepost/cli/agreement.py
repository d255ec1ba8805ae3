"""Do the transaction log and the markers of a data directory agree? Read without a broker, living or dead.

The comparison is the log model's (fencepost/log_model/transactions.py). A log that no longer begins at offset
0 is left out, since markers before its start are gone. `fencepost check` goes further: it also compares
files.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from fencepost.cli.log_files import partition_batches, partition_directories, topic_batches
from fencepost.log_model.partitions import PartitionModel
from fencepost.log_model.transactions import (
    COMPLETED,
    DECISIONS,
    Histories,
    LoggedState,
    decisions_of,
    disagreements,
)
from fencepost.protocol.batches import read_marker
from fencepost.protocol.terms import TRANSACTION_STATE_TOPIC, TransactionState
from fencepost.protocol.transaction_log import read_transactions


def read_histories(data: Path) -> Histories:
    """Read `__transaction_state` of a data directory: the records of each transactional id, in order."""
    histories: dict[str, list[LoggedState]] = {}
    for _partition, batch in topic_batches(data, TRANSACTION_STATE_TOPIC):
        header = batch.header
        for name, record in read_transactions(batch.data, header):
            state = LoggedState(record, str(batch.file), header.base_offset, header.leader_epoch)
            histories.setdefault(name, []).append(state)
    return histories


def count_states(histories: Histories, *states: TransactionState) -> int:
    """How many records have one of these states."""
    logged = (state for history in histories.values() for state in history)
    return sum(state.record is not None and state.record.state in states for state in logged)


def count_finished_after_restart(histories: Histories) -> int:
    """Decisions prepared by one leader and completed by a later one, since the first one died in between."""
    return sum(
        before.record is not None
        and before.record.state in DECISIONS
        and after.record is not None
        and after.record.state in COMPLETED
        and after.leader_epoch > before.leader_epoch
        for history in histories.values()
        for before, after in pairwise(history)
    )


def contradictions(data: Path) -> list[str]:
    """Each disagreement between the transaction log and the markers as a sentence."""
    decided = decisions_of(read_histories(data))
    found: list[str] = []
    for partition, directory in partition_directories(data):
        model = PartitionModel()
        begins_at = 0
        for number, batch in enumerate(partition_batches(directory)):
            if number == 0:
                begins_at = batch.header.base_offset
            model.apply(batch.header, read_marker(batch.data) if batch.header.is_control else None)
        if begins_at == 0:
            here = disagreements(decided.get(partition, {}), model.all_markers())
            found += [f"{partition}: {disagreement}" for disagreement in here]
    return found
