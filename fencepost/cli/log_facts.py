"""What a file of the log says, as facts: one JSON object per batch, record, marker, state, index entry.

Rule: a fact has a "kind"; `log_words.py` has a sentence for each, `fencepost dump --json` prints them bare.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs

from fencepost.cli.errors import CommandFailed
from fencepost.cli.log_files import Batch, Torn, partition_of, read_batches
from fencepost.cli.printing import Json, text_of
from fencepost.journal.indexes import AbortedRange, OffsetIndex, TimeIndex, TransactionIndex
from fencepost.journal.manifest import MANIFEST_FILE
from fencepost.journal.segments import INDEX, LOG, SNAPSHOT, TIME_INDEX, TRANSACTION_INDEX, parse_file_name
from fencepost.journal.snapshots import decode_snapshot
from fencepost.protocol.batches import MAGIC_COLUMNS, read_marker
from fencepost.protocol.compression import Compression
from fencepost.protocol.errors import FencepostError
from fencepost.protocol.metadata_log import read_cluster_records
from fencepost.protocol.offsets_log import GroupRecord, read_groups, read_offsets
from fencepost.protocol.records import read_columns
from fencepost.protocol.terms import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTION_STATE_TOPIC,
)
from fencepost.protocol.transaction_log import TransactionRecord, read_transactions

Fact = dict[str, Json]


def facts_of_file(path: Path, *, records: bool = False) -> Iterator[Fact]:
    """Every fact in one file, whatever kind it is; a file that cannot be read is a fact of kind "damage".
    CommandFailed when its name is none that a log's file has.
    """
    where: Fact = {"log": str(partition_of(path.parent.resolve()) or ""), "file": path.name}
    base_offset, kind = parse_file_name(path.name)
    reader = READERS.get(kind or path.name)
    if reader is None:
        raise CommandFailed(
            f"{path} is no file of a log",
            then="name a data directory, one partition in it, or one file: .log, .index, .timeindex, "
            ".txnindex, .snapshot, manifest.json",
        )
    try:
        for fact in facts_of_log(path, records=records) if kind == LOG else reader(path, base_offset):
            yield {"kind": fact.pop("kind"), **where, **fact}
    except (FencepostError, ValueError) as problem:  # bytes that are no JSON may be no UTF-8 either
        yield {"kind": "damage", **where, "because": str(problem)}


def facts_of_log(path: Path, *, records: bool = False) -> Iterator[Fact]:
    """The batches of a `.log` file, each followed by what an internal topic says in it, or by its records."""
    partition = partition_of(path.parent.resolve())
    tell = INTERNAL.get(partition.topic if partition else "")
    for batch in read_batches(path):
        if isinstance(batch, Torn):
            yield {"kind": "damage", "position": batch.position, "size": batch.size, "because": batch.because}
            continue
        yield facts_of_batch(batch)
        if not batch.is_intact or batch.header.is_control:
            continue
        if tell is not None:
            yield from tell(batch)
        elif records:
            yield from facts_of_records(batch)


def facts_of_batch(batch: Batch) -> Fact:
    """A batch from outside; a control batch is told as the marker it holds."""
    header = batch.header
    place: Fact = {"offset": header.base_offset, "position": batch.position, "size": header.size}
    producer: Fact = {"producer_id": header.producer_id, "producer_epoch": header.producer_epoch}
    if header.is_control and batch.is_intact:
        marker = read_marker(batch.data)
        result: Fact = {"result": marker.result.name, "coordinator_epoch": marker.coordinator_epoch}
        return {"kind": "marker", **place, **producer, **result, "timestamp": header.max_timestamp}
    fact: Fact = {"kind": "batch", **place, "last_offset": header.last_offset, "records": header.record_count}
    if header.producer_id != NO_PRODUCER_ID:
        fact |= producer
    if header.base_sequence != NO_SEQUENCE:
        fact |= {"first_sequence": header.base_sequence, "last_sequence": header.last_sequence}
    return fact | {
        "transactional": header.is_transactional,
        "layout": "columns" if header.magic == MAGIC_COLUMNS else "kafka",
        "compression": compression_name(header.compression),
        "leader_epoch": header.leader_epoch,
        "timestamp": header.max_timestamp,
        "intact": batch.is_intact,
    }


def compression_name(bits: int) -> str:
    """`zstd`, or the number when it is none that Kafka knows."""
    return Compression(bits).name.lower() if bits in set(Compression) else str(bits)


def facts_of_records(batch: Batch) -> Iterator[Fact]:
    """The records of a data batch."""
    columns, header = read_columns(batch.data, batch.header), batch.header
    for index, value in enumerate(columns.values):
        offset = index if columns.offset_deltas is None else columns.offset_deltas[index]
        later = 0 if columns.timestamp_deltas is None else columns.timestamp_deltas[index]
        headers = (columns.headers[index] if columns.headers is not None else None) or []
        yield {
            "kind": "record",
            "offset": header.base_offset + offset,
            "timestamp": header.base_timestamp + later,
            "key": text_of(None if columns.keys is None else columns.keys[index]),
            "value": text_of(value),
            "headers": {name: text_of(content) for name, content in headers},
        }


def facts_of_transactions(batch: Batch) -> Iterator[Fact]:
    """What `__transaction_state` says: where each transactional id stands."""
    for name, record in read_transactions(batch.data, batch.header):
        fact: Fact = {"kind": "transaction", "offset": batch.header.base_offset, "transactional_id": name}
        yield fact | ({"state": "Dead"} if record is None else facts_of_state(record))


def facts_of_state(record: TransactionRecord) -> Fact:
    """One record of the transaction log."""
    return {
        "state": record.state.title,
        "producer_id": record.producer_id,
        "producer_epoch": record.producer_epoch,
        "partitions": [str(partition) for partition in record.partitions],
        "timeout_ms": record.timeout_ms,
        "started": record.start_ms,
        "updated": record.update_ms,
    }


def facts_of_offsets(batch: Batch) -> Iterator[Fact]:
    """What `__consumer_offsets` says: how far each group is, pending when a transaction carries it; and who
    is in it.
    """
    for group_id, group in read_groups(batch.data, batch.header):
        fact: Fact = {"kind": "group", "offset": batch.header.base_offset, "group": group_id}
        yield fact | ({"generation": None} if group is None else facts_of_group(group))
    for key, record in read_offsets(batch.data, batch.header):
        yield {
            "kind": "offset",
            "offset": batch.header.base_offset,
            "group": key.group_id,
            "of": f"{key.topic}-{key.partition}",
            "committed": None if record is None else record.offset,
            "transactional": batch.header.is_transactional,
        }


def facts_of_group(record: GroupRecord) -> Fact:
    """One generation of a group."""
    return {
        "generation": record.generation_id,
        "protocol": record.protocol_name,
        "leader": record.leader,
        "members": [member.member_id for member in record.members],
    }


def facts_of_cluster(batch: Batch) -> Iterator[Fact]:
    """What `__cluster_metadata` says: topics, leaders, blocks of producer ids."""
    for record in read_cluster_records(batch.data, batch.header):
        fields = {
            name: value.hex() if isinstance(value, bytes) else value
            for name, value in attrs.asdict(record).items()
        }
        yield {"kind": "cluster", "offset": batch.header.base_offset, "what": type(record).__name__, **fields}


def facts_of_offset_index(path: Path, base_offset: int) -> Iterator[Fact]:
    """Entries of a `.index` file."""
    index = OffsetIndex(path.read_bytes())
    for offset, position in zip(index.offsets, index.positions, strict=True):
        yield {"kind": "index", "offset": base_offset + offset, "position": position}


def facts_of_time_index(path: Path, base_offset: int) -> Iterator[Fact]:
    """Entries of a `.timeindex` file."""
    index = TimeIndex(path.read_bytes())
    for timestamp, offset in zip(index.timestamps, index.offsets, strict=True):
        yield {"kind": "timeindex", "timestamp": timestamp, "offset": base_offset + offset}


def facts_of_aborted(path: Path, _base_offset: int) -> Iterator[Fact]:
    """Entries of a `.txnindex` file: aborted transactions whose marker lies in that segment."""
    index = TransactionIndex(path.read_bytes())
    aborted: AbortedRange
    for entry in range(len(index)):
        aborted = index[entry]
        yield {"kind": "aborted", **aborted._asdict()}


def facts_of_snapshot(path: Path, base_offset: int) -> Iterator[Fact]:
    """The producers of a `.snapshot` file."""
    for producer in decode_snapshot(path.read_bytes()):
        yield {"kind": "producer", "at": base_offset, **producer._asdict()}


def facts_of_manifest(path: Path, _base_offset: int) -> Iterator[Fact]:
    """A manifest as it is."""
    yield {"kind": "manifest", "content": json.loads(path.read_text())}


INTERNAL: dict[str, Callable[[Batch], Iterator[Fact]]] = {
    TRANSACTION_STATE_TOPIC: facts_of_transactions,
    CONSUMER_OFFSETS_TOPIC: facts_of_offsets,
    CLUSTER_METADATA_TOPIC: facts_of_cluster,
}

READERS: dict[str, Callable[[Path, int], Iterator[Fact]]] = {
    LOG: lambda path, _base_offset: facts_of_log(path),
    INDEX: facts_of_offset_index,
    TIME_INDEX: facts_of_time_index,
    TRANSACTION_INDEX: facts_of_aborted,
    SNAPSHOT: facts_of_snapshot,
    MANIFEST_FILE: facts_of_manifest,
}
