"""What the driver finds out about a directory before the audit: its cluster, and whether its logs were
captured at one moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from fencepost.check.findings import Findings, Location
from fencepost.check.records import Internals
from fencepost.check.scan import scan_log
from fencepost.check.sealed_files import promised_end
from fencepost.journal.layouts import KafkaLayout, LogLayout
from fencepost.protocol.kraft_log import KraftCluster
from fencepost.protocol.terms import (
    CLUSTER_METADATA_TOPIC,
    METADATA_PARTITION,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from fencepost.spark_bridge.log_offsets import LogOffsets, find_log_offsets
from fencepost.spark_bridge.losses import leave_out
from fencepost.spark_bridge.parallel import for_each_log, parallel_map
from fencepost.spark_bridge.partition_files import DamagedIndex, PartitionFiles, with_listing

MOVING = (
    "the broker is running or was killed, or the files were copied while it ran: logs "
    "may end at different moments, "
    "so decisions were not compared with markers"
)
STOPPED = "readers with read_committed stop here"
INCOMPLETE = "logs of transaction coordinators are missing, so decisions were not compared with markers"


class LogStart(NamedTuple):
    """Where a partition begins, and whether it has any file."""

    partition: TopicPartition
    offset: int
    has_files: bool


class LogBounds(NamedTuple):
    """Where a partition begins and ends."""

    start: LogStart
    offsets: LogOffsets


def bounds_of(layout: LogLayout, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, LogBounds]:
    """The bounds of what exists; the table `losses` has what is lost."""
    return for_each_log(layout, partitions, _bounds)


def _bounds(log: PartitionFiles) -> LogBounds:
    offsets = find_log_offsets(log, report=leave_out)
    return LogBounds(LogStart(log.partition, offsets.log_start_offset, bool(log.segments)), offsets)


def find_damaged_indexes(layout: LogLayout, partitions: Sequence[TopicPartition], findings: Findings) -> None:
    """Finds the partitions with a transaction index that cannot be read, and the first one of each."""
    for damaged in parallel_map(partial(_damaged_index, layout), partitions):
        if damaged is not None:
            means = f"{STOPPED}; {damaged.advice}"
            findings.problem(Location(damaged.file), f"the transaction index {damaged.what}", means)


def _damaged_index(layout: LogLayout, partition: TopicPartition) -> DamagedIndex | None:
    try:
        with_listing(layout, partition, lambda log: list(map(log.transaction_index, log.segments)))
    except DamagedIndex as damaged:
        return damaged
    return None


def known_cluster(layout: LogLayout) -> KraftCluster:
    """What the log of the cluster's metadata says; unknown if there is none, or if it is damaged: what was
    read before the damage may have changed since.
    """
    findings = Findings()  # the metadata is for `check` to judge
    internals = Internals(findings, is_kafka=isinstance(layout, KafkaLayout))
    if METADATA_PARTITION in layout.partitions():
        storage = layout.storages[layout.home(METADATA_PARTITION)]
        end = promised_end(storage, str(METADATA_PARTITION), None)
        log = scan_log(
            storage,
            METADATA_PARTITION,
            was_closed=False,
            may_be_torn=True,
            contents=internals.contents(METADATA_PARTITION),
            findings=findings,
            is_sparse=layout.is_sparse,
            promised=end.offset,
            lost_power=not layout.is_sparse and end.lost_power,
        )
        if not log.is_whole:
            return KraftCluster()
    return internals.cluster


def why_not_comparable(layout: LogLayout, cluster: KraftCluster, *, is_in_use: bool) -> str:
    """Why decisions cannot be compared with markers; empty if they can."""
    if is_in_use:
        return MOVING
    if not isinstance(layout, KafkaLayout):
        return ""  # a broker of one process: what it wrote first is never lost without what it wrote later
    if not all(directory.was_closed for directory in layout.directories):
        return MOVING
    wanted = {each for each in cluster.partitions() if each.topic == TRANSACTION_STATE_TOPIC}
    present = {each for directory in layout.directories for each in directory.partitions}
    return "" if cluster.is_known and wanted <= present else INCOMPLETE


def comparable_partitions(starts: Iterable[LogStart], cluster: KraftCluster) -> frozenset[TopicPartition]:
    """The partitions that have every marker: those that begin at offset 0, or to which nothing was written.

    One that the metadata does not know belongs to a topic that was deleted, or to another cluster.
    """
    known = cluster.partitions()
    return frozenset(
        start.partition
        for start in starts
        if not start.offset and (start.partition in known if cluster.is_known else start.has_files)
    )


def unknown_topics(layout: LogLayout, cluster: KraftCluster) -> set[str]:
    """The topics with a directory that no broker serves, because the metadata does not know them. In a copy
    of Kafka's directories, they may be newer than the metadata.
    """
    if not cluster.is_known or isinstance(layout, KafkaLayout):
        return set()
    return {each.topic for each in layout.partitions()} - {*cluster.named, CLUSTER_METADATA_TOPIC}


def creation_times(cluster: KraftCluster) -> Mapping[str, int]:
    """When each topic was created, in ms."""
    return {name: topic.created_ms for name, topic in cluster.named.items()}
