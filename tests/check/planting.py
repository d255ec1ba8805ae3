"""Ways to plant a fault in a copy of a good directory."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

import attrs

from fencepost.check.findings import Severity
from fencepost.protocol.batches import build_marker, read_header
from fencepost.protocol.metadata_log import TopicCreated, cluster_batch, read_cluster_records
from fencepost.protocol.offsets_log import GroupBatch, group_batch, read_offsets
from fencepost.protocol.terms import TransactionResult
from fencepost.protocol.transaction_log import read_transactions, transaction_batch
from tests.check.directories import METADATA_LOG, Directory, altered, closed

ABORT, COMMIT = int(TransactionResult.ABORT), int(TransactionResult.COMMIT)
SECOND: Final = "orders-0/00000000000000000006"  # the segment with the commit of `pay`
THIRD: Final = "orders-0/00000000000000000014"  # its abort, and the commit of `other`
PREPARED, COMPLETED, OTHER_PREPARED = 5, 6, 12  # records of their log: `pay` commits, and so does `other`
PLAIN, OPEN = 4, 7  # batches of orders-1: the first of a plain producer, and of a transaction left open


@attrs.frozen
class Fault:
    """What is damaged, and the finding that must be there: a part of its file's name, and of its words."""

    name: str
    plant: Callable[[Directory], object]
    file: str
    says: str
    severity: Severity = Severity.PROBLEM


def drop(at: Directory, path: str, *numbers: int) -> None:
    """Takes batches away; those behind them move up."""
    at.put_batches(path, [batch for number, batch in enumerate(at.batches(path)) if number not in numbers])


def mark(at: Directory, path: str, number: int, **said: int) -> None:
    """Puts another marker in the place of a batch: its own but for what is said here."""
    batches = at.batches(path)
    header = read_header(batches[number])
    marker = build_marker(
        TransactionResult(said.get("result", COMMIT)),
        producer_id=said.get("producer_id", header.producer_id),
        producer_epoch=said.get("producer_epoch", header.producer_epoch),
        coordinator_epoch=said.get("coordinator_epoch", 0),
        timestamp=header.max_timestamp,
    )
    batches[number] = bytes(marker)
    at.put_batches(path, batches)


def restate(at: Directory, path: str, number: int, **changes: Any) -> None:
    """Changes what a record of the transaction log says."""
    batches = at.batches(path)
    header = read_header(batches[number])
    ((name, record),) = read_transactions(batches[number], header)
    assert record is not None
    changed = transaction_batch(name, record._replace(**changes), timestamp=header.max_timestamp)
    batches[number] = bytes(changed)
    at.put_batches(path, batches)


def commit_anew(at: Directory, path: str, number: int, offset: int) -> None:
    """Changes the offset that a group committed."""
    batches = at.batches(path)
    header = read_header(batches[number])
    entries = [
        (key, record and attrs.evolve(record, offset=offset))
        for key, record in read_offsets(batches[number], header)
    ]
    batches[number] = bytes(
        group_batch(
            GroupBatch(tuple(entries)),
            timestamp=header.max_timestamp,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            transactional=header.is_transactional,
        )
    )
    at.put_batches(path, batches)


def forget(at: Directory, kind: str) -> None:
    """Takes the records of one kind out of the cluster's metadata."""
    batches: list[bytes] = []
    for batch in at.batches(METADATA_LOG):
        header = read_header(batch)
        kept = [record for record in read_cluster_records(batch, header) if type(record).__name__ != kind]
        if kept:
            batches.append(bytes(cluster_batch(kept, timestamp=header.max_timestamp)))
    at.put_batches(METADATA_LOG, batches)


def unknown_state(records: bytes) -> bytes:
    """State 99 in the place of 0, which follows the timeout."""
    timeout = (60_000).to_bytes(4, "big")
    return records.replace(timeout + b"\0", timeout + b"\x63")


def rename_topic(at: Directory, old: str, new: str) -> None:
    """The metadata speaks of a topic by another name of the same length."""
    at.put(METADATA_LOG, b"")
    good = closed()
    batches: list[bytes] = []
    for batch in good.batches(METADATA_LOG):
        header = read_header(batch)
        records = [
            attrs.evolve(record, topic=new)
            if isinstance(record, TopicCreated) and record.topic == old
            else record
            for record in read_cluster_records(batch, header)
        ]
        batches.append(bytes(cluster_batch(records, timestamp=header.max_timestamp)))
    at.put_batches(METADATA_LOG, batches)
    at.vouch_for(METADATA_LOG)


def all_under(at: Directory, path: str, leader_epoch: int) -> None:
    """A log that was written under another leader epoch."""
    batches = [altered(batch, sealed=False, leader_epoch=leader_epoch) for batch in at.batches(path)]
    at.put(path, b"".join(batches))


def patch(layout: struct.Struct, entry: int, field: int, value: int) -> Callable[[bytes], bytes]:
    """Another value in one field of one entry of an index."""

    def change(data: bytes) -> bytes:
        entries = [list(fields) for fields in layout.iter_unpack(data)]
        entries[entry][field] = value
        return b"".join(layout.pack(*fields) for fields in entries)

    return change


def rewrite(path: str, change: Callable[[bytes], bytes]) -> Callable[[Directory], None]:
    """Changes the bytes of a file."""
    return lambda at: at.put(path, change(at.get(path)))


def adjust(path: str, **values: Any) -> Callable[[Directory], None]:
    """Other values in a JSON file."""
    return lambda at: at.change_json(path, lambda content: content.update(values))


def adjust_segment(path: str, number: int, **values: Any) -> Callable[[Directory], None]:
    """Other values for one segment of a JSON file."""
    return lambda at: at.change_json(path, lambda content: content["segments"][number].update(values))


def remember(number: int, **values: int) -> Callable[[Directory], None]:
    """Another memory of one producer in the snapshot of orders-1 that the next start takes."""

    def plant(at: Directory) -> None:
        path = at.last_snapshot("orders-1")
        at.change_snapshot(
            path, lambda all_of: [p._replace(**values) if n == number else p for n, p in enumerate(all_of)]
        )

    return plant
