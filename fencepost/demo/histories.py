"""What the transaction log of a run says: how many transactions ended how, and which after a restart."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from fencepost.cli.log_files import StoredBatch, partition_directories, read_batches, segment_files
from fencepost.log_model.transactions import Histories, LoggedState
from fencepost.protocol.terms import TRANSACTION_STATE_TOPIC, TransactionState
from fencepost.protocol.transaction_log import read_transactions


def read_histories(data: Path) -> Histories:
    """Read `__transaction_state` of a data directory: the records of each transactional id, in order."""
    histories: dict[str, list[LoggedState]] = {}
    for partition, directory in partition_directories(data):
        if partition.topic != TRANSACTION_STATE_TOPIC:
            continue
        for batch in (batch for file in segment_files(directory) for batch in read_batches(file)):
            if isinstance(batch, StoredBatch) and batch.is_intact:
                for name, record in read_transactions(batch.data, batch.header):
                    place = batch.header.base_offset, batch.header.leader_epoch
                    histories.setdefault(name, []).append(LoggedState(record, str(batch.file), *place))
    return histories


def count_states(histories: Histories, *states: TransactionState) -> int:
    """How many records have one of these states."""
    logged = (state for history in histories.values() for state in history)
    return sum(state.record is not None and state.record.state in states for state in logged)


def count_finished_after_restart(histories: Histories) -> int:
    """How many decisions one leader prepared and a later leader completed."""
    return sum(
        before.record is not None
        and before.record.state.is_prepared
        and after.record is not None
        and after.record.state.is_complete
        and after.leader_epoch > before.leader_epoch
        for history in histories.values()
        for before, after in pairwise(history)
    )
