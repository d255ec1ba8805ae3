"""The files of the data directory itself: its id, the catalogue of logs, and the mark of a clean stop.

Rule: one that is damaged is written again from what is certain, or set aside; no record depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping

from fencepost.check.directory import vanished_logs
from fencepost.check.scan import sizes_of
from fencepost.journal.catalogue import CATALOGUE_FILE, damaged_lines, why_incomplete
from fencepost.journal.data_directory import (
    DEFAULT_CLUSTER_ID,
    META_FILE,
    META_VERSION,
    check_data_directory,
    partitions_in,
)
from fencepost.journal.indexes import CorruptIndex
from fencepost.journal.layouts import is_kafka
from fencepost.journal.manifest import CLEAN_FILE, SyncedSegment, decode_clean_mark, encode_json
from fencepost.journal.storage import NotADataDirectory, StorageReader, parse_directory_name
from fencepost.protocol.terms import METADATA_PARTITION, TopicPartition
from fencepost.repair.plan import Plan


def refuse_kafka(storage: StorageReader) -> None:
    """NotADataDirectory for a log directory of Apache Kafka. Both have `__cluster_metadata`, so it could be
    taken for a data directory that lost its META_FILE.
    """
    if is_kafka(storage):
        raise NotADataDirectory(
            f"{storage.location} is a log directory of Apache Kafka, whose broker recovers it at a start; "
            "nothing was changed. `fencepost check` finds what is wrong with it"
        )


def check_directory_files(storage: StorageReader, plan: Plan) -> dict[str, SyncedSegment]:
    """Plan what is done to these files. Returns what the mark of a clean stop says of each log's last
    segment; NotADataDirectory when the directory is none.
    """
    refuse_kafka(storage)
    _check_meta(storage, plan)
    _check_catalogue(storage, plan)
    try:
        mark = storage.read_file(CLEAN_FILE)
        return {} if mark is None else decode_clean_mark(mark)
    except CorruptIndex as problem:
        distrust_clean_mark(plan, str(problem), saved="it is set aside")
        return {}


def distrust_clean_mark(plan: Plan, because: str, *, saved: str) -> None:
    """Set the mark of a clean stop aside."""
    plan.files[CLEAN_FILE] = None
    plan.report_derived(CLEAN_FILE, because, stake="nothing: the next start reads more", saved=saved)


def _check_meta(storage: StorageReader, plan: Plan) -> None:
    try:
        check_data_directory(storage)
    except NotADataDirectory as problem:
        if METADATA_PARTITION not in partitions_in(storage):
            raise
        content = {"format": META_VERSION, "cluster_id": DEFAULT_CLUSTER_ID}
        plan.files[META_FILE] = encode_json(content, place=META_FILE)
        plan.report_derived(
            META_FILE,
            "it is missing" if storage.read_file(META_FILE) is None else str(problem),
            stake="the cluster id; no records",
            saved=f"it is written again, with the cluster id {DEFAULT_CLUSTER_ID!r}",
        )


def _check_catalogue(storage: StorageReader, plan: Plan) -> None:
    """Without damaged lines, the next start lists the logs whose files it finds."""
    found = storage.read_file(CATALOGUE_FILE)
    because = why_incomplete(found)
    if not because or not partitions_in(storage):
        return
    lines = b"" if found is None else found
    damaged = damaged_lines(lines)
    kept = [line for number, line in enumerate(lines.split(b"\n"), 1) if number not in damaged]
    plan.files[CATALOGUE_FILE] = b"\n".join(kept)
    plan.report_derived(
        CATALOGUE_FILE,
        because,
        stake="no records; but if a log that it listed is gone, too, that loss may not be noticed",
        saved="the next start adds the logs whose files exist",
    )


def vanished_partitions(storage: StorageReader, closed: Mapping[str, SyncedSegment]) -> set[TopicPartition]:
    """Those without a log that the catalogue or the mark of a clean stop lists. The next start refuses them
    as well: it takes the mark as a second catalogue.
    """
    names = [name for name in closed if not sizes_of(storage, name)]
    parsed = map(parse_directory_name, {*vanished_logs(storage), *names})
    return {partition for partition in parsed if partition is not None}
