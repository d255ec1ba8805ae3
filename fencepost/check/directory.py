"""`fencepost check`: a whole data directory, each partition by itself and then all of them against each
other.

    scan           every batch of every log: framing, checksum, order          ──▶ faults that end a log
                   and once more by producers: epochs and sequences
    derived files  indexes, snapshots, manifest, checkpoint against the model
    records        what internal topics say: metadata, transactions, offsets
    txn_consistency   decisions against markers, open transactions against coordinators

It reads and never writes. Metadata comes first, since it says what the others should be, then the
coordinators' logs, then data. A log with a fault of its own is left out of every comparison: one fault is
reported once. So is a log that the metadata does not know. A directory with the log of another partition is
not read.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from fencepost.check.derived_files import check_derived_files
from fencepost.check.findings import Findings, Location
from fencepost.check.kafka_directory import check_kafka_directory
from fencepost.check.records import Internals, reading_order
from fencepost.check.scan import ScannedLog, scan_log, sizes_of
from fencepost.check.sealed_files import (
    CLEAN_FILE,
    MANIFEST,
    Object,
    is_of_this_boot,
    object_or_empty,
    promised_end,
    sealed_object,
)
from fencepost.check.txn_consistency import check_histories, check_markers, check_open
from fencepost.journal.data_directory import partitions_in
from fencepost.journal.layouts import KafkaLayout, open_layout
from fencepost.journal.manifest import why_foreign
from fencepost.journal.storage import (
    NoAccess,
    StorageReader,
    directory_name,
    foreign_advice,
    parse_directory_name,
)
from fencepost.protocol.checksum import crc32c
from fencepost.protocol.kraft_log import KraftCluster
from fencepost.protocol.terms import CLUSTER_METADATA_TOPIC, INTERNAL_TOPICS, NO_TOPIC_ID, TopicPartition

CATALOGUE: Final = "catalogue.txt"
ASIDE: Final = "~"  # in the name of a directory that a broker or a repair set aside, and of no partition's
UNSERVED: Final = (
    "no broker serves it: it was copied here, a deletion was cut short, or the metadata lost it; move it out "
    "of the data directory"
)
ADOPTED: Final = "or restore the topic with `fencepost repair DIR --write --adopt TOPIC`"
SET_ASIDE: Final = "no broker reads them; remove the directory when it is no longer needed"


def check_directory(storage: StorageReader) -> Findings:
    """Everything that is wrong with a data directory, or with a log directory of Apache Kafka;
    NotADataDirectory when it is neither.
    """
    layout = open_layout([storage])
    if isinstance(layout, KafkaLayout):
        return check_kafka_directory(layout.directories[0])
    return check_logs(storage)


def check_logs(storage: StorageReader) -> Findings:
    """The same for a directory whose `meta.json` may be missing or damaged."""
    findings = Findings()
    internals = Internals(findings)
    closed = _closed(storage, findings)
    kept_power = bool(closed) and _has_kept_power(storage)  # after a kill, any small file may be torn
    whole: list[ScannedLog] = []
    cluster, topic_ids = internals.cluster, dict[str, bytes]()
    known: set[TopicPartition] | None = None  # unless all of the metadata can be read
    for partition in sorted(partitions_in(storage), key=reading_order):
        with findings.reading(directory_name(partition)):
            if _is_foreign(storage, partition, topic_ids.get(partition.topic, NO_TOPIC_ID), findings):
                continue  # its batches say nothing about this partition
            is_metadata = partition.topic == CLUSTER_METADATA_TOPIC
            is_known = known is None or partition in known
            mark = closed.get(str(partition))
            end = promised_end(storage, str(partition), mark)
            log = scan_log(
                storage, partition, was_closed=mark is not None,
                may_be_torn=mark is None or not kept_power, findings=findings,
                contents=(internals if is_known else Internals(findings)).contents(partition),
                promised=end.offset, lost_power=end.lost_power,
            )  # fmt: skip
            if is_metadata and log.is_whole and cluster.is_known:
                topic_ids, known = cluster.topic_ids(), cluster.partitions()
            if not is_known:
                means = UNSERVED if partition.topic in topic_ids else f"{UNSERVED}, {ADOPTED}"
                findings.note(Location(log.directory), "the metadata has no such partition", means)
            if log.is_whole:
                check_derived_files(storage, log, mark, findings)
            if log.is_whole and is_known:
                whole.append(log)
            for segment in log.segments:
                segment.batches.clear()  # the other checks need only the state after them
    _note_set_aside(storage, findings)
    _check_catalogue(storage, closed, cluster, findings)
    _check_against_metadata(storage, whole, cluster, findings)
    _check_offsets(whole, internals, findings)
    _check_transactions(storage, whole, internals, findings)
    findings.transactional_ids = len(internals.histories)
    return findings


def _is_foreign(
    storage: StorageReader, partition: TopicPartition, topic_id: bytes, findings: Findings
) -> bool:
    why = why_foreign(storage, str(partition), topic_id)
    if why:
        means = f"the broker refuses it. {foreign_advice(storage.location)}"
        findings.problem(Location(str(partition)), why, means)
        findings.partitions += 1
    return bool(why)


def _note_set_aside(storage: StorageReader, findings: Findings) -> None:
    for name in storage.directories():
        if ASIDE in name:
            findings.note(Location(name), "files that were set aside", SET_ASIDE)


def _has_kept_power(storage: StorageReader) -> bool:
    """Whether a broker has served this directory since the machine started: its start has mended what the
    last loss of power tore.
    """
    return any(
        is_of_this_boot(storage, object_or_empty(storage, f"{directory}/{MANIFEST}"))
        for directory in storage.directories()
    )


def _closed(storage: StorageReader, findings: Findings) -> dict[str, Object]:
    """The directories of partitions that were closed cleanly, with their last segments; none after a broker
    died.
    """
    data = storage.read_file(CLEAN_FILE)
    if data is None:
        return {}
    try:
        content = sealed_object(data, CLEAN_FILE)
    except ValueError as problem:  # then nothing counts as closed
        findings.problem(Location(CLEAN_FILE), str(problem), "the next start reads the end of every log")
        return {}
    return {name: entry for name, entry in content.items() if isinstance(entry, dict)}


def vanished_logs(storage: StorageReader) -> list[str]:
    """The directories without a log that the catalogue lists: as written in this boot of the machine, or as
    synced.
    """
    words, _ = _catalogue(storage)
    listed = [name for name, word in words.items() if word and word in ("synced", storage.boot_id)]
    return sorted(name for name in listed if not _has_log(storage, name))


def _catalogue(storage: StorageReader) -> tuple[dict[str, str], list[int]]:
    """The last word about each log, and the numbers of the damaged lines; a torn last line does not count as
    damaged.
    """
    words: dict[str, str] = {}
    damaged: list[int] = []
    lines = (storage.read_file(CATALOGUE) or b"").decode("ascii", "replace").split("\n")
    for number, line in enumerate(lines, 1):
        text, _, checksum = line.rpartition(" ")
        name, _, word = text.partition(" ")
        if checksum == str(crc32c(f"{CATALOGUE} {text}".encode())):
            words[name] = word
        elif line and number < len(lines):
            damaged.append(number)
    return words, damaged


def _check_catalogue(
    storage: StorageReader, closed: Collection[str], cluster: KraftCluster, findings: Findings
) -> None:
    words, damaged = _catalogue(storage)
    for number in damaged:
        what = f"the checksum of line {number} does not match its text"
        findings.note(Location(CATALOGUE), what, "the loss of the log that it listed would not be noticed")
    is_missing = storage.read_file(CATALOGUE) is None and partitions_in(storage)
    if is_missing:
        findings.note(
            Location(CATALOGUE), "it is missing", "the loss of a log that it listed may not be noticed"
        )
    unlisted = [name for name in sorted(closed) if words.get(name, "removed") == "removed"]
    if unlisted and not damaged and not is_missing:
        what = f"it does not list {unlisted[0]}, which was closed cleanly"
        findings.note(Location(CATALOGUE), what, "the loss of a log that it listed may not be noticed")
    known = cluster.partitions()
    for name in vanished_logs(storage):
        partition = parse_directory_name(name)
        if partition is None:
            continue
        if not cluster.is_known or partition.topic == CLUSTER_METADATA_TOPIC or partition in known:
            what = f"its files are gone, but {CATALOGUE} lists it"
            findings.problem(Location(name), what, "its records are lost, and the broker does not lead it")


def _has_log(storage: StorageReader, directory: str) -> bool:
    try:
        return bool(sizes_of(storage, directory))
    except NoAccess:
        return True  # what cannot be read is not gone


def _check_against_metadata(
    storage: StorageReader, logs: list[ScannedLog], cluster: KraftCluster, findings: Findings
) -> None:
    """Leader epochs and producer ids are the metadata's to give."""
    if not cluster.is_known:
        directory = f"{CLUSTER_METADATA_TOPIC}-0"
        if logs and not _has_log(storage, directory):
            what = "the log of the cluster's metadata is gone"
            findings.problem(Location(directory), what, "no topic is known: see `fencepost repair`")
        return
    for log in logs:
        partition, last, newest = log.partition, log.last, log.newest_producer
        if partition.topic != CLUSTER_METADATA_TOPIC:
            known = cluster.partition(partition)
            if known is None:
                continue  # the metadata is damaged
            if last is not None and last.header.leader_epoch > known.leader_epoch:
                findings.problem(
                    last.location,
                    f"written under leader epoch {last.header.leader_epoch}, but the metadata knows only "
                    f"{known.leader_epoch}",
                    "the end of the metadata log was lost: a later leader may reuse an epoch",
                )
        given = cluster.next_producer_id
        if newest is not None and newest.header.producer_id >= given:
            findings.problem(
                newest.location,
                f"written by producer {newest.header.producer_id}, but only ids below {given} were "
                "handed out",
                "the end of the metadata log was lost: the id may be allocated twice",
            )


def _check_offsets(logs: list[ScannedLog], internals: Internals, findings: Findings) -> None:
    """Groups that have committed beyond the end of a log, or will if a transaction commits: a note, because a
    client may commit any offset. Those of a deleted topic are forgotten.
    """
    topic_ids = internals.cluster.topic_ids()
    furthest: dict[TopicPartition, tuple[int, str]] = {}
    for model in internals.offsets.values():
        pending = [(each, "has offset {} in an open transaction") for each in model.pending.values()]
        for offsets, verb in [(model.committed, "has committed offset {}"), *pending]:
            for key, written in offsets.items():
                if written.topic_id in (NO_TOPIC_ID, topic_ids.get(key.topic)):
                    where = TopicPartition(key.topic, key.partition)
                    said = (written.offset, f"group {key.group_id!r} {verb.format(written.offset)}")
                    furthest[where] = max(furthest.get(where, said), said)
    for log in logs:
        offset, who = furthest.get(log.partition, (0, ""))
        if offset > log.end_offset:
            findings.note(
                Location(log.directory),
                f"{who}, but the log ends at {log.end_offset}",
                "the end of the log was lost, or the group committed what it had not read",
            )


def _check_transactions(
    storage: StorageReader, logs: list[ScannedLog], internals: Internals, findings: Findings
) -> None:
    """Compare transactions with markers; only a complete log of its coordinator can speak for a
    transaction.
    """
    check_histories(internals.histories, logs, findings)
    present, whole = partitions_in(storage), {log.partition for log in logs}
    damaged = [each for each in present if each.topic in INTERNAL_TOPICS and each not in whole]
    if damaged:
        findings.note(
            Location(str(damaged[0])),
            "transactions were not compared with markers",
            "this log is left out, so its decisions are not compared with other logs",
        )
        return
    lost = internals.cluster.partitions() - set(present)
    check_markers(internals.histories, logs, lost, internals.cluster, findings)
    check_open(internals.histories, logs, findings)
