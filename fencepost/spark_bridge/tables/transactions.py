"""Table `transactions`: one row per transaction and partition, by the markers and by its coordinator.

Rule: markers decide what readers see, so `state` comes from them alone. A transaction begins with the first
batch of its producer after the producer's last marker, and ends with the next one, whatever the epoch.
"""

# What the coordinator says is the newest record of the producer id in `__transaction_state`. It is about the
# last transaction of the producer only, so the rows of earlier ones have no values from it. Compaction of
# that topic removes earlier records anyway.
#
# Rows of one transaction in several partitions have the same producer id. Its epoch distinguishes them from
# those of other transactions only with an epoch per transaction (transaction.version 2, KIP-890): before
# that, a producer keeps its epoch for many transactions.

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import attrs

from fencepost.journal.layouts import LogLayout
from fencepost.journal.open_transactions import OpenTransaction
from fencepost.journal.storage import directory_name
from fencepost.protocol.batches import BatchHeader
from fencepost.protocol.terms import NO_OFFSET, NO_TIMESTAMP, TRANSACTION_STATE_TOPIC, TopicPartition
from fencepost.protocol.transaction_log import TransactionRecord
from fencepost.spark_bridge.log_offsets import find_log_offsets
from fencepost.spark_bridge.losses import Report
from fencepost.spark_bridge.options import ReadOptions
from fencepost.spark_bridge.partition_files import PartitionFiles, open_partition_files, with_listing
from fencepost.spark_bridge.planning import PlannedRange
from fencepost.spark_bridge.tables.batches import kind_of, read_stored_marker
from fencepost.spark_bridge.tables.coordinator import read_states
from fencepost.spark_bridge.tables.headers import HeaderScan
from fencepost.spark_bridge.tables.table import (
    Row,
    SourceTable,
    log_path,
    plan_partitions,
    time_or_none,
    whole_range,
)

COLUMNS: Final = {
    "topic": "string",
    "partition": "int",
    "producerId": "bigint",
    "transactionalId": "string",  # null if the coordinator does not know the producer id
    "producerEpoch": "int",  # of the data
    "markerEpoch": "int",  # the next one with KIP-890; null while it is open
    "state": "string",  # committed, aborted or open, by the markers
    "coordinatorState": "string",  # null if another transaction of the producer has followed
    "coordinatorPartitions": "array<string>",  # of the same record; empty when it is complete
    "hanging": "boolean",  # open, and no coordinator is going to end it
    "firstOffset": "bigint",
    "lastOffset": "bigint",  # the marker's; the last record's while it is open
    "records": "bigint",
    "bytes": "bigint",  # without the marker
    "startTimestamp": "timestamp",  # of the first record
    "endTimestamp": "timestamp",  # of the marker; null while it is open
    "durationMs": "bigint",
    "coordinatorStart": "timestamp",  # when the coordinator began it
    "timeoutMs": "int",  # after which the coordinator aborts it
    "file": "string",  # where it begins
}


@attrs.define(eq=False)
class _Transaction:
    """What is known of a transaction up to some offset."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    first_offset: int
    file: str
    started_ms: int = NO_TIMESTAMP
    last_offset: int = NO_OFFSET
    records: int = 0
    bytes: int = 0
    state: str = "open"
    marker: BatchHeader | None = None

    def add(self, header: BatchHeader) -> None:
        self.last_offset = header.last_offset
        self.records += header.record_count
        self.bytes += header.size

    def end(self, header: BatchHeader, state: str) -> _Transaction:
        self.last_offset, self.marker, self.state = header.last_offset, header, state
        return self


@attrs.frozen
class CoordinatorView:
    """The newest record of a transactional id about one producer id."""

    transactional_id: str
    record: TransactionRecord

    def of(self, transaction: _Transaction) -> TransactionRecord | None:
        """The record if it is about this transaction; None if another one of the producer has followed."""
        record, marker = self.record, transaction.marker
        if marker is None:  # it is the producer's last one here
            return record
        # Markers carry the epoch of the decision. While a producer keeps its epoch, the time distinguishes
        # them.
        is_decided = record.state.is_prepared or record.state.is_complete
        is_its_own = is_decided and record.producer_epoch == marker.producer_epoch
        return record if is_its_own and marker.max_timestamp >= record.start_ms else None

    def will_end(self, partition: TopicPartition) -> bool:
        """Whether the coordinator is going to write a marker to this partition."""
        return self.record.state.is_open and partition in self.record.partitions


Views = Mapping[int, CoordinatorView]


def read_table(
    layout: LogLayout, partitions: tuple[TopicPartition, ...], options: ReadOptions, wanted: frozenset[str]
) -> Iterator[Row]:
    """Yields a row per transaction of these partitions, by partition and last offset."""
    del wanted  # all of them cost the same
    views = coordinator_views(layout, options.report)
    for partition in partitions:
        for transaction in _transactions(layout, partition, options):
            yield _row(transaction, views.get(transaction.producer_id))


def _transactions(
    layout: LogLayout, partition: TopicPartition, options: ReadOptions
) -> Iterator[_Transaction]:
    def survey(log: PartitionFiles) -> tuple[PlannedRange, tuple[OpenTransaction, ...]]:
        offsets = find_log_offsets(log, report=options.report)
        return whole_range(log, offsets), offsets.open_transactions

    range_, opened = with_listing(layout, partition, survey)
    building: dict[int, _Transaction] = {}
    for batch in HeaderScan(layout, range_, report=options.report).stored():
        header = batch.header
        if not header.has_transaction:
            continue
        marker = read_stored_marker(batch, partition)
        if marker is not None:
            ended = building.pop(header.producer_id, None)
            if ended is not None:  # a repeated marker ends nothing
                yield ended.end(header, "committed" if kind_of(header, marker) == "commit" else "aborted")
        elif not header.is_control and (header.record_count or not layout.is_sparse):
            known = building.get(header.producer_id)
            if known is None:
                known = building[header.producer_id] = _Transaction(
                    partition,
                    header.producer_id,
                    header.producer_epoch,
                    header.base_offset,
                    log_path(layout, partition, range_.home, batch.base_offset),
                    header.max_timestamp if header.delete_horizon_ms is not None else header.base_timestamp,
                )
            known.add(header)
    # Of an open transaction whose records were all deleted, only a producer snapshot tells.
    where = directory_name(partition)
    for each in opened:
        if each.producer_id not in building:
            building[each.producer_id] = _Transaction(
                partition, each.producer_id, each.producer_epoch, each.first_offset, where
            )
    yield from building.values()


def _row(transaction: _Transaction, view: CoordinatorView | None) -> Row:
    marker, record = transaction.marker, None if view is None else view.of(transaction)
    started, ended = transaction.started_ms, NO_TIMESTAMP if marker is None else marker.max_timestamp
    is_open = marker is None
    return (
        transaction.partition.topic,
        transaction.partition.partition,
        transaction.producer_id,
        None if view is None else view.transactional_id,
        transaction.producer_epoch,
        None if marker is None else marker.producer_epoch,
        transaction.state,
        None if record is None else record.state.title,
        None if record is None else list(map(str, record.partitions)),
        is_open and (view is None or not view.will_end(transaction.partition)),
        transaction.first_offset,
        None if transaction.last_offset == NO_OFFSET else transaction.last_offset,
        transaction.records,
        transaction.bytes,
        time_or_none(started),
        time_or_none(ended),
        None if NO_TIMESTAMP in (started, ended) else ended - started,
        None if record is None else time_or_none(record.start_ms),
        None if record is None else record.timeout_ms,
        transaction.file,
    )


_known_views: dict[object, Views] = {}


def coordinator_views(layout: LogLayout, report: Report | None) -> Views:
    """The newest record about each producer id. A process reads them again only when the files have changed:
    each of its tasks needs them.
    """
    partitions = [each for each in layout.partitions() if each.topic == TRANSACTION_STATE_TOPIC]
    key = (
        layout.location,
        tuple(open_partition_files(layout, partition).segments for partition in partitions),
    )
    views = _known_views.get(key)
    if views is None:
        views = _read_views(layout, partitions, report)
        _known_views.clear()
        _known_views[key] = views
    return views


def _read_views(layout: LogLayout, partitions: list[TopicPartition], report: Report | None) -> Views:
    views: dict[int, CoordinatorView] = {}
    of_name: dict[str, set[int]] = {}
    for name, record, *_ in read_states(layout, partitions, report):
        if record is None:  # the id has expired; nothing is known of its producers any more
            for producer_id in of_name.pop(name, ()):
                views.pop(producer_id, None)
        else:
            views[record.producer_id] = CoordinatorView(name, record)
            of_name.setdefault(name, set()).add(record.producer_id)
    return views


TRANSACTIONS: Final = SourceTable(columns=COLUMNS, plan=plan_partitions, rows=read_table)
