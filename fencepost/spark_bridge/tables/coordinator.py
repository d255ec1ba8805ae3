"""Table `coordinator`: one row per record of `__transaction_state`, what transaction coordinators wrote."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import attrs

from fencepost.journal.layouts import LogLayout
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.terms import NO_PRODUCER_ID, TRANSACTION_STATE_TOPIC, IsolationLevel, TopicPartition
from fencepost.protocol.transaction_log import TransactionRecord, read_transactions
from fencepost.spark_bridge.log_offsets import find_log_offsets
from fencepost.spark_bridge.losses import Report
from fencepost.spark_bridge.options import ReadOptions
from fencepost.spark_bridge.partition_files import CorruptLog, with_listing
from fencepost.spark_bridge.scanning import LocatedBatch, RangeScan
from fencepost.spark_bridge.tables.table import (
    Row,
    SourceTable,
    log_path,
    plan_partitions,
    time_or_none,
    whole_range,
)

COLUMNS: Final = {
    "transactionalId": "string",
    "state": "string",  # null in a tombstone, like all that follow up to partition
    "producerId": "bigint",
    "producerEpoch": "int",
    "previousProducerId": "bigint",
    "partitions": "array<string>",
    "timeoutMs": "int",
    "clientVersion": "int",  # the transaction version of the producer (KIP-890)
    "startTimestamp": "timestamp",
    "updateTimestamp": "timestamp",
    "partition": "int",  # of __transaction_state
    "offset": "bigint",
    "leaderEpoch": "int",
    "file": "string",
}


class WrittenState(NamedTuple):
    """A record of the transaction log where it stands; None is a tombstone."""

    transactional_id: str
    record: TransactionRecord | None
    partition: TopicPartition
    stored: LocatedBatch
    file: str


def plan_coordinator(layout: LogLayout, options: ReadOptions) -> list[tuple[TopicPartition, ...]]:
    """Returns tasks for all partitions of `__transaction_state`; none if there is no such topic."""
    present = any(partition.topic == TRANSACTION_STATE_TOPIC for partition in layout.partitions())
    chosen = (TRANSACTION_STATE_TOPIC,) if present else ()
    return plan_partitions(layout, attrs.evolve(options, subscribe=chosen, assign=None))


def read_coordinator(
    layout: LogLayout, partitions: tuple[TopicPartition, ...], options: ReadOptions, wanted: frozenset[str]
) -> Iterator[Row]:
    """Yields a row per record, by partition and offset."""
    del wanted  # all of them cost the same
    for name, record, partition, stored, file in read_states(layout, partitions, options.report):
        yield (
            name,
            *_state(record),
            partition.partition,
            stored.header.base_offset,
            stored.header.leader_epoch,
            file,
        )


def _state(record: TransactionRecord | None) -> Row:
    if record is None:
        return (None,) * 9
    previous = record.previous_producer_id
    return (
        record.state.title,
        record.producer_id,
        record.producer_epoch,
        None if previous == NO_PRODUCER_ID else previous,
        list(map(str, record.partitions)),
        record.timeout_ms,
        record.client_version,
        time_or_none(record.start_ms),
        time_or_none(record.update_ms),
    )


def read_states(
    layout: LogLayout, partitions: Iterable[TopicPartition], report: Report | None
) -> Iterator[WrittenState]:
    """Yields every record of these partitions of the transaction log; CorruptLog if one cannot be read."""
    for partition in partitions:
        range_ = with_listing(
            layout, partition, lambda log: whole_range(log, find_log_offsets(log, report=report))
        )
        scan = RangeScan(layout, range_, isolation_level=IsolationLevel.READ_UNCOMMITTED, report=report)
        for stored in scan.stored():
            if stored.header.is_control:
                continue
            file = log_path(layout, partition, range_.home, stored.base_offset)
            try:
                for name, record in read_transactions(stored.data, stored.header):
                    yield WrittenState(name, record, partition, stored, file)
            except ProtocolViolation as problem:
                raise CorruptLog(
                    f"the batch at offset {stored.header.base_offset} of {partition}: {problem}"
                ) from problem


COORDINATOR: Final = SourceTable(columns=COLUMNS, plan=plan_coordinator, rows=read_coordinator)
