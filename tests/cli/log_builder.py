"""Builds small data directories batch by batch, as a broker would have left them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fencepost.protocol.batches import build_marker, place, read_header
from fencepost.protocol.metadata_log import TopicCreated, cluster_batch
from fencepost.protocol.offsets_log import GroupBatch, OffsetKey, OffsetRecord, group_batch
from fencepost.protocol.records import build_data_batch
from fencepost.protocol.terms import TopicPartition, TransactionResult, TransactionState
from fencepost.protocol.transaction_log import TransactionRecord, transaction_batch

NOW = 1_700_000_000_000
ORDERS = TopicPartition("orders", 0)
PRODUCER_ID = 7
LOG = "00000000000000000000.log"


def write_partition(
    data: Path, name: str, batches: Sequence[bytearray], *, leader_epochs: Sequence[int] = ()
) -> Path:
    """Writes batches one after the other into the first segment of a partition; its file."""
    file = data / name / LOG
    file.parent.mkdir(parents=True, exist_ok=True)
    offset = 0
    with file.open("wb") as log:
        for index, batch in enumerate(batches):
            place(batch, base_offset=offset, leader_epoch=leader_epochs[index] if leader_epochs else 1)
            log.write(batch)
            offset = read_header(batch).next_offset
    return file


def data_batch(values: list[bytes | None], *, epoch: int) -> bytearray:
    """Records of the producer, in a transaction."""
    return build_data_batch(
        values,
        keys=[b"k"] * len(values),
        base_timestamp=NOW,
        producer_id=PRODUCER_ID,
        producer_epoch=epoch,
        base_sequence=0,
        transactional=True,
    )


def marker(result: TransactionResult, *, epoch: int) -> bytearray:
    """A marker of the producer."""
    return build_marker(
        result, producer_id=PRODUCER_ID, producer_epoch=epoch, coordinator_epoch=1, timestamp=NOW
    )


def state(of: TransactionState, *, epoch: int, partitions: tuple[TopicPartition, ...] = ()) -> bytearray:
    """A record of the transaction log about the id 'pay'."""
    record = TransactionRecord(
        producer_id=PRODUCER_ID,
        previous_producer_id=-1,
        next_producer_id=-1,
        producer_epoch=epoch,
        timeout_ms=60_000,
        state=of,
        partitions=partitions,
        update_ms=NOW,
        start_ms=NOW,
        client_version=2,
    )
    return transaction_batch("pay", record, timestamp=NOW)


def build_story(data: Path) -> Path:
    """One transaction that the coordinator committed, and its marker."""
    ended = marker(TransactionResult.COMMIT, epoch=1)
    write_partition(data, "orders-0", [data_batch([b"apple", None], epoch=0), ended])
    write_partition(
        data,
        "__transaction_state-1",
        [
            state(TransactionState.EMPTY, epoch=0),
            state(TransactionState.ONGOING, epoch=0, partitions=(ORDERS,)),
            state(TransactionState.PREPARE_COMMIT, epoch=1, partitions=(ORDERS,)),
            state(TransactionState.COMPLETE_COMMIT, epoch=1),
        ],
        leader_epochs=(1, 1, 1, 2),
    )
    committed = OffsetRecord(5, leader_epoch=0, metadata="", commit_ms=NOW)
    offsets = group_batch(GroupBatch(((OffsetKey("group", "orders", 0), committed),)), timestamp=NOW)
    write_partition(data, "__consumer_offsets-3", [offsets])
    write_partition(
        data,
        "__cluster_metadata-0",
        [cluster_batch([TopicCreated("orders", topic_id=b"i" * 16, created_ms=NOW)], timestamp=NOW)],
    )
    return data
