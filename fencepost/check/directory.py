"""`fencepost check`: a whole data directory, each partition by itself and then all of them against each
other.

    scan           every batch of every log: framing, checksum, order          ──▶ faults that end a log
    producers      the log model, fed with each batch: epochs and sequences
    derived files  indexes, snapshots, manifest, checkpoint against the model
    records        what internal topics say: metadata, transactions, offsets
    txn_consistency   decisions against markers, open transactions against coordinators

It reads and never writes. Metadata comes first, since it says what the others should be, then the
coordinators' logs, then data. A log with a fault of its own is left out of every comparison: one fault is
reported once.
"""

from __future__ import annotations

import json
from typing import Any, Final

from fencepost.check.derived_files import (
    INDEX_SUFFIXES,
    check_checkpoint,
    check_indexes,
    check_manifest,
    check_snapshots,
    manifest_of,
    snapshot_offsets,
)
from fencepost.check.findings import Findings
from fencepost.check.producers import follow_producers
from fencepost.check.records import Internals
from fencepost.check.scan import ScannedLog, offset_of, scan_log
from fencepost.check.txn_consistency import Witness, check_histories, check_markers, check_open, witness_of
from fencepost.journal.data_directory import check_data_directory, partitions_in
from fencepost.journal.storage import TEMPORARY_SUFFIX, StorageReader
from fencepost.protocol.terms import CLUSTER_METADATA_TOPIC, INTERNAL_TOPICS, TopicPartition

CLEAN_FILE: Final = "clean-shutdown.json"


def check_directory(storage: StorageReader) -> Findings:
    """Everything that is wrong with a data directory; NotADataDirectory when it is none."""
    check_data_directory(storage)
    findings = Findings()
    internals = Internals(findings)
    closed = _closed(storage)
    witnesses: list[Witness] = []
    for partition in sorted(partitions_in(storage), key=_reading_order):
        log = scan_log(
            storage,
            str(partition),
            was_closed=str(partition) in closed,
            contents=internals.contents(partition),
            findings=findings,
        )
        if log.is_whole:
            witnesses.append(_witness(storage, partition, log, findings))
    _check_against_metadata(witnesses, internals, findings)
    _check_transactions(storage, witnesses, internals, findings)
    findings.transactional_ids = len(internals.histories)
    return findings


def _reading_order(partition: TopicPartition) -> tuple[bool, bool, TopicPartition]:
    return (partition.topic != CLUSTER_METADATA_TOPIC, partition.topic not in INTERNAL_TOPICS, partition)


def _closed(storage: StorageReader) -> frozenset[str]:
    """The partitions that were closed in order; none after a broker died."""
    data = storage.read_file(CLEAN_FILE)
    if data is None:
        return frozenset()
    try:
        content: Any = json.loads(data)
        return frozenset(str(name) for name in content["partitions"])
    except (ValueError, KeyError, TypeError):  # it only spares work at a start: then nothing counts as closed
        return frozenset()


def _witness(
    storage: StorageReader, partition: TopicPartition, log: ScannedLog, findings: Findings
) -> Witness:
    """Compare the files beside a log with it."""
    _check_strays(storage, log, findings)
    manifest = manifest_of(storage, log, findings)
    offsets = set(snapshot_offsets(storage, log.directory))
    if manifest is not None:
        offsets.add(manifest["high_watermark"])
    scanned = follow_producers(log, offsets, findings)
    check_indexes(storage, log, scanned, findings)
    check_snapshots(storage, log, scanned, findings)
    if manifest is not None:
        check_manifest(log, manifest, scanned, findings)
    check_checkpoint(storage, log, findings)
    return witness_of(partition, log, scanned)


def _check_strays(storage: StorageReader, log: ScannedLog, findings: Findings) -> None:
    """Files that the next start sweeps up: half-written ones, and indexes whose log is not there."""
    bases = {segment.base_offset for segment in log.segments}
    for name in storage.files(log.directory):
        based = [offset for suffix in INDEX_SUFFIXES if (offset := offset_of(name, suffix)) is not None]
        if name.endswith(TEMPORARY_SUFFIX):
            findings.note(
                f"{log.directory}/{name}", "a file that was never finished", means="the next start removes it"
            )
        elif based and based[0] not in bases:
            findings.tell(
                log.was_closed,
                f"{log.directory}/{name}",
                "an index without its log",
                means="a segment is missing, or was removed when a broker died",
            )


def _check_against_metadata(witnesses: list[Witness], internals: Internals, findings: Findings) -> None:
    """Topics, leader epochs and producer ids are the metadata's to give."""
    cluster = internals.cluster
    if not cluster.is_known:
        return
    topics = cluster.named()
    for witness in witnesses:
        partition, directory = witness.partition, witness.directory
        if partition.topic != CLUSTER_METADATA_TOPIC:
            topic = topics.get(partition.topic)
            if topic is None or partition.partition not in topic.leader_epochs:
                findings.note(
                    directory,
                    "the metadata has no such partition",
                    means="left over from a deleted topic; creating a topic of that name removes it",
                )
                continue
            _check_leader_epoch(witness, topic.leader_epochs[partition.partition], findings)
        _check_producer_ids(witness, cluster.next_producer_id, findings)


def _check_leader_epoch(witness: Witness, known: int, findings: Findings) -> None:
    last = witness.last
    if last is not None and last.header.leader_epoch > known:
        findings.problem(
            last.file,
            f"written under leader epoch {last.header.leader_epoch}, the metadata knows {known}",
            offset=last.header.base_offset,
            means="the end of the metadata log was lost: a later leader may reuse an epoch",
        )


def _check_producer_ids(witness: Witness, next_producer_id: int, findings: Findings) -> None:
    newest = witness.newest_producer
    if newest is not None and newest.header.producer_id >= next_producer_id:
        findings.problem(
            newest.file,
            f"producer {newest.header.producer_id}, and ids below {next_producer_id} were handed out",
            offset=newest.header.base_offset,
            means="the end of the metadata log was lost: the id may be allocated twice",
        )


def _check_transactions(
    storage: StorageReader, witnesses: list[Witness], internals: Internals, findings: Findings
) -> None:
    """Only a coordinator's log that is all there can speak for it."""
    check_histories(internals.histories, findings)
    whole = {witness.partition for witness in witnesses}
    damaged = [
        partition
        for partition in partitions_in(storage)
        if partition.topic in INTERNAL_TOPICS and partition not in whole
    ]
    if damaged:
        findings.note(
            str(damaged[0]),
            "transactions were not compared with markers",
            means="this log has a problem itself, so its decisions are not compared with other logs",
        )
        return
    lost = internals.cluster.partitions() - set(partitions_in(storage))
    check_markers(internals.histories, witnesses, lost, internals.cluster, findings)
    check_open(internals.histories, witnesses, findings)
