"""`fencepost check` on a log directory of Apache Kafka: the same scan of every batch, by the rules of Kafka's
files.

    a gap in the offsets        compaction removed the batches; the cleaner fills nothing
    .index, .timeindex          each entry is true; which batches have one depends on the broker's settings
    .txnindex                   what a full scan makes; missing where no aborted transaction ended. After a
                                cleaning it may know transactions of which no record is left
    .snapshot                   what a full scan up to its offset says; producers may be missing that were
                                silent for producer.id.expiration.ms by the clock
    checkpoints of offsets      no offset is beyond the end of a log; which proves something only after a
                                clean stop, since they are written at other moments than logs
    leader-epoch-checkpoint     the leader epoch of every batch

What one log says of another is compared only after a clean stop: the files of a running broker, and a copy
of them, are of different moments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fencepost.check.findings import Findings, Location
from fencepost.check.kafka_files import check_kafka_files
from fencepost.check.records import Internals, reading_order
from fencepost.check.scan import ScannedLog, scan_log
from fencepost.check.txn_consistency import check_histories, check_markers, check_open
from fencepost.journal.kafka_directory import (
    CLEAN_SHUTDOWN_FILE,
    HIGH_WATERMARKS_FILE,
    LOG_STARTS_FILE,
    MISPLACED,
    KafkaDirectory,
    misplacement,
    read_checkpoint,
    read_topic_id,
)
from fencepost.journal.storage import directory_name
from fencepost.protocol.kraft_log import KraftCluster
from fencepost.protocol.terms import TRANSACTION_STATE_TOPIC, TopicPartition

RECOVERY_POINTS_FILE: Final = "recovery-point-offset-checkpoint"
LOST: Final = "the end of the log was lost, or the files are of different moments"
RUNNING: Final = (
    "the broker is running or was killed, or the files were copied while it ran: its logs may end at "
    "different moments, so transactions were not compared with markers"
)


def check_kafka_directory(directory: KafkaDirectory) -> Findings:
    """Everything that is wrong with a log directory of Apache Kafka."""
    findings = Findings()
    internals = Internals(findings, is_kafka=True)
    whole: list[ScannedLog] = []
    was_closed = directory.was_closed
    for partition in sorted(directory.partitions, key=reading_order):
        with findings.reading(directory_name(partition)):
            log = scan_log(
                directory.storage,
                partition,
                was_closed=was_closed,
                may_be_torn=not was_closed,
                contents=internals.contents(partition),
                findings=findings,
                is_sparse=True,
            )
            if log.is_whole:
                check_kafka_files(directory.storage, log, findings)
                whole.append(log)
            for segment in log.segments:
                segment.batches.clear()  # the other checks need only the state after them
            _check_place(directory, partition, internals.cluster, findings)
    _check_checkpoints(directory, whole, findings)
    findings.transactional_ids = len(internals.histories)
    if not was_closed:
        findings.note(Location(CLEAN_SHUTDOWN_FILE), "this file is missing", RUNNING)
    elif _has_every_coordinator(whole, internals):
        check_histories(internals.histories, whole, findings)
        check_markers(internals.histories, whole, set(), internals.cluster, findings)
        check_open(internals.histories, whole, findings)
    return findings


def _has_every_coordinator(logs: Sequence[ScannedLog], internals: Internals) -> bool:
    """Whether every coordinator's log is here and whole: with several brokers, or several log directories,
    others have the rest of them.
    """
    wanted = {
        partition
        for partition in internals.cluster.partitions()
        if partition.topic == TRANSACTION_STATE_TOPIC
    }
    here = {log.partition for log in logs if log.partition.topic == TRANSACTION_STATE_TOPIC}
    # A partition of its own directory is made for each when the topic is created.
    return internals.cluster.is_known and wanted == here


def _check_place(
    directory: KafkaDirectory, partition: TopicPartition, cluster: KraftCluster, findings: Findings
) -> None:
    """The directory was not renamed, nor copied under another name. The metadata was read first."""
    known = cluster.topic_ids().get(partition.topic)
    if known is not None:
        found = read_topic_id(directory.storage, partition)
        what = misplacement(partition, found, known=known, numbers=cluster.topics[known].partitions)
        if what:
            location = Location(directory_name(partition))
            findings.report(directory.was_closed, location, what, f"{MISPLACED}: Spark refuses to read it")


def _check_checkpoints(directory: KafkaDirectory, logs: Sequence[ScannedLog], findings: Findings) -> None:
    """No offset that the broker wrote down may be beyond the end of its log."""
    ends = {log.partition: log.end_offset for log in logs}
    for name in (HIGH_WATERMARKS_FILE, LOG_STARTS_FILE, RECOVERY_POINTS_FILE):
        for partition, offset in (read_checkpoint(directory.storage, name) or {}).items():
            end = ends.get(partition)
            if end is not None and offset > end:
                what = f"it says {offset} of {partition}, whose log ends at {end}"
                findings.report(directory.was_closed, Location(name), what, LOST)
