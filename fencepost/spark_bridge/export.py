"""Copies committed records to Parquet files, each exactly once, however often the export runs or is killed.

Rule: an export counts when the manifest names it. The manifest is replaced after the files are complete.
"""

# Theory of operation
#
#     OUT/manifest.json            the offsets up to which records were exported, the exports that count, the
#                                  ids of the topics, and the offsets whose loss was accepted
#     OUT/export=000001/*.parquet  the records of the first export: key, value, topic, partition, offset ...
#     OUT/_writing/                the export that runs; Spark does not read names that begin with `_`
#
#     read the manifest ─▶ write OUT/_writing ─▶ sync ─▶ rename to OUT/export=N ─▶ replace the manifest
#
# The first manifest, of no exports, is written before any record: a target without one is somebody else's,
# and nothing is written there. With one, only `_writing` and the next `export=N` can be leftovers of a killed
# export.
#
# An offset means something only in the log that it was read from. A topic that was deleted and created again
# has another id and begins at offset 0, so continuing at the old offset would lose records silently.
#
# Killed before the rename, the files are invisible. Killed after it, the directory is complete, and the
# manifest does not name it: the next export removes it and reads its records again. So a reader of OUT sees
# each record at most once at any time, and exactly once after an export that succeeded. Offsets end at the
# last stable offset, below which nothing changes any more.

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from fencepost.journal.layouts import LogLayout
from fencepost.protocol.errors import FencepostError
from fencepost.protocol.terms import INTERNAL_TOPICS, TopicPartition
from fencepost.spark_bridge.log_offsets import find_log_offsets
from fencepost.spark_bridge.parallel import for_each_log
from fencepost.spark_bridge.stream_offsets import Offsets, by_topic
from fencepost.spark_bridge.topic_ids import find_topic_ids

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANIFEST: Final = "manifest.json"
WRITING: Final = "_writing"
VERSION: Final = 2


class UnusableExport(FencepostError):
    """The export cannot be continued: the target is of another cluster, in use, or not an export, or the logs
    are not those that were exported.
    """


class RecordsDeleted(UnusableExport):
    """Records were deleted before they were exported."""


@attrs.frozen(kw_only=True)
class Gap:
    """Offsets `start` to `end`, exclusive, that were deleted before they were exported."""

    partition: TopicPartition
    start: int
    end: int


@attrs.frozen(kw_only=True)
class ExportManifest:
    """What was exported."""

    cluster_id: str
    offsets: Offsets
    """The next offset to export, by partition."""
    exports: tuple[str, ...] = ()
    """Names of directories, in order."""
    topic_ids: Mapping[str, str] = {}
    """The ids of the exported topics; only those that are known."""
    gaps: tuple[Gap, ...] = ()
    """The losses that were accepted, in order."""

    @property
    def next_name(self) -> str:
        """The directory of the next export."""
        return f"export={len(self.exports) + 1:06d}"


@attrs.frozen
class Exported:
    """The result of an export: its directory, "" if there was nothing new; its rows; the offsets read."""

    name: str
    rows: int
    start: Offsets
    end: Offsets
    gaps: tuple[Gap, ...] = ()
    """What was deleted before this export."""


def export(
    start_spark: Callable[[], SparkSession],
    layout: LogLayout,
    paths: Sequence[str],
    target: Path,
    topics: Sequence[str] = (),
    *,
    accepts_loss: bool = False,
) -> Exported:
    """Appends the records that are committed and not exported yet to a directory of Parquet files.

    `topics`: if empty, all but internal ones. `start_spark` is called when there is something to
    write. With `accepts_loss`, the export continues at the log start if records were deleted before they were
    exported, and the manifest records the gap. Raises UnusableExport; RecordsDeleted without `accepts_loss`.
    """
    selected = _select(layout, topics)
    with locked(target):
        _refuse_strangers(target)
        manifest = read_manifest(target) or ExportManifest(cluster_id=layout.cluster_id, offsets={})
        if manifest.cluster_id != layout.cluster_id:
            raise UnusableExport(
                f"{target} has records of cluster {manifest.cluster_id}, and {layout.location} is of cluster "
                f"{layout.cluster_id}: export to another directory"
            )
        topic_ids = find_topic_ids(layout, selected)
        _refuse_other_logs(manifest, selected, topic_ids, topics, target)
        start, end, gaps = _ranges(layout, manifest, selected, target)
        if gaps and not accepts_loss:
            raise RecordsDeleted(_deleted(gaps))
        _remove_unfinished(target, manifest)
        kept = {topic: topic_ids[topic] for topic, _ in end if topic in topic_ids}
        after = attrs.evolve(
            manifest,
            offsets={**manifest.offsets, **end},
            topic_ids={**manifest.topic_ids, **kept},
            gaps=(*manifest.gaps, *gaps),
        )
        if start == end:
            if after != manifest:
                write_manifest(target, after)
            return Exported("", 0, start, end, gaps)
        spark = start_spark()  # it may fail, and nothing is written yet
        if not manifest.exports:
            write_manifest(target, manifest)
        name = manifest.next_name
        try:
            rows = _write(spark, paths, target / WRITING, start, end)
            _sync(target / WRITING)
        except Exception:
            shutil.rmtree(target / WRITING, ignore_errors=True)
            raise
        os.rename(target / WRITING, target / name)
        write_manifest(target, attrs.evolve(after, exports=(*manifest.exports, name)))
        return Exported(name, rows, start, end, gaps)


def _select(layout: LogLayout, topics: Sequence[str]) -> list[TopicPartition]:
    """The partitions to export."""
    existing = layout.partitions()
    selectable = {partition.topic for partition in existing}
    missing = set(topics) - selectable
    if missing:
        others = ", ".join(sorted(selectable - INTERNAL_TOPICS)) or "none"
        raise UnusableExport(
            f"{layout.location} has no topic {', '.join(sorted(missing))}: its topics are {others}"
        )
    return [each for each in existing if _is_selected(each.topic, topics)]


def _is_selected(topic: str, topics: Sequence[str]) -> bool:
    return topic in topics if topics else topic not in INTERNAL_TOPICS


def _refuse_other_logs(
    manifest: ExportManifest,
    selected: Sequence[TopicPartition],
    topic_ids: Mapping[str, str],
    topics: Sequence[str],
    target: Path,
) -> None:
    """Raises UnusableExport if a log that was exported is gone, or is another one of the same name."""
    for partition in sorted(manifest.offsets.keys() - set(selected)):
        if _is_selected(partition.topic, topics):
            raise UnusableExport(
                f"{partition} was exported to {target} and does not exist any more: "
                "export into another directory"
            )
    for topic in sorted({partition.topic for partition in selected}):
        before, now = manifest.topic_ids.get(topic), topic_ids.get(topic)
        if before is not None and now is not None and before != now:
            raise UnusableExport(
                f"topic {topic} was deleted and created again after it was exported to {target}: "
                "export into another directory"
            )


def _ranges(
    layout: LogLayout, manifest: ExportManifest, selected: Sequence[TopicPartition], target: Path
) -> tuple[Offsets, Offsets, tuple[Gap, ...]]:
    """Where each partition continues, where it ends now, and what was deleted before that."""
    start: dict[TopicPartition, int] = {}
    end: dict[TopicPartition, int] = {}
    gaps: list[Gap] = []
    for partition, bounds in for_each_log(layout, selected, find_log_offsets).items():
        # With an open transaction whose beginning was deleted, the last stable offset is below the log start.
        end[partition] = max(bounds.log_start_offset, bounds.last_stable_offset)
        exported = manifest.offsets.get(partition, bounds.log_start_offset)
        if exported > end[partition]:
            raise UnusableExport(
                f"{partition} was exported to {target} up to offset {exported}, and can be read up to offset "
                f"{end[partition]} only, so its records are not those that were exported: "
                "export into another directory"
            )
        start[partition] = max(exported, bounds.log_start_offset)
        if exported < bounds.log_start_offset:
            gaps.append(Gap(partition=partition, start=exported, end=bounds.log_start_offset))
    return start, end, tuple(gaps)


def _deleted(gaps: Sequence[Gap]) -> str:
    listed = ", ".join(f"{gap.partition} offsets {gap.start} to {gap.end - 1}" for gap in gaps)
    return f"records were deleted before they were exported: {listed}"


def _write(spark: SparkSession, paths: Sequence[str], target: Path, start: Offsets, end: Offsets) -> int:
    """Writes the records of the ranges; returns their number."""
    changed = [partition for partition in start if start[partition] < end[partition]]
    numbers: dict[str, list[int]] = {}
    for topic, number in changed:
        numbers.setdefault(topic, []).append(number)
    reader = spark.read.format("fencepost").option("includeHeaders", "true")
    reader = reader.option("assign", json.dumps(numbers))
    reader = reader.option("startingOffsets", json.dumps(by_topic({each: start[each] for each in changed})))
    reader = reader.option("endingOffsets", json.dumps(by_topic({each: end[each] for each in changed})))
    reader.load(list(paths)).write.mode("overwrite").parquet(str(target))
    return spark.read.parquet(str(target)).count()


def _refuse_strangers(target: Path) -> None:
    """Protects other people's files from a mistyped path: without a manifest, the target must be empty."""
    names = {path.name for path in target.iterdir()}
    strangers = sorted(names - {f"_{MANIFEST}"})
    if strangers and MANIFEST not in names:
        raise UnusableExport(
            f"{target} has other files ({strangers[0]}) and no {MANIFEST}: "
            "export into an empty or a new directory"
        )


def _remove_unfinished(target: Path, manifest: ExportManifest) -> None:
    """Removes what a killed export left behind. UnusableExport if a file has its name."""
    for path in (target / WRITING, target / manifest.next_name):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif os.path.lexists(path):
            raise UnusableExport(
                f"{path} is not a directory, and the next export needs its name: move it elsewhere"
            )


def read_manifest(target: Path) -> ExportManifest | None:
    """The manifest of an export, None before the first one; UnusableExport if it is malformed."""
    try:
        content: dict[str, Any] = json.loads((target / MANIFEST).read_bytes())
        if content["version"] != VERSION:
            raise ValueError(f"version {content['version']} is unknown")
        return ExportManifest(
            cluster_id=content["cluster_id"],
            offsets={
                TopicPartition(topic, int(number)): int(offset)
                for topic, by_number in content["offsets"].items()
                for number, offset in by_number.items()
            },
            exports=tuple(content["exports"]),
            topic_ids={str(topic): str(topic_id) for topic, topic_id in content["topic_ids"].items()},
            gaps=tuple(
                Gap(
                    partition=TopicPartition(gap["topic"], int(gap["partition"])),
                    start=int(gap["start"]),
                    end=int(gap["end"]),
                )
                for gap in content["gaps"]
            ),
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise UnusableExport(f"{target / MANIFEST} is malformed: {problem}") from problem


def write_manifest(target: Path, manifest: ExportManifest) -> None:
    """Replaces the manifest durably: a reader sees the old one or the new one."""
    content = {
        "version": VERSION,
        "cluster_id": manifest.cluster_id,
        "offsets": by_topic(manifest.offsets),
        "exports": manifest.exports,
        "topic_ids": dict(sorted(manifest.topic_ids.items())),
        "gaps": [
            {
                "topic": gap.partition.topic,
                "partition": gap.partition.partition,
                "start": gap.start,
                "end": gap.end,
            }
            for gap in manifest.gaps
        ],
    }
    new = target / f"_{MANIFEST}"
    new.write_text(json.dumps(content, indent=1) + "\n")
    _sync_path(new)
    os.replace(new, target / MANIFEST)
    _sync_path(target)


def _sync(directory: Path) -> None:
    for path in (*directory.rglob("*"), directory):
        _sync_path(path)


def _sync_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(target: Path) -> Generator[None]:
    """Creates the directory, and keeps a second export of this machine out. The lock is on the directory
    itself: it leaves no file behind, and the lock of a killed export is gone with it. A new directory to
    which a failed export has written nothing is removed.
    """
    is_new = not target.exists()
    if not is_new and not target.is_dir():
        raise UnusableExport(f"{target} is not a directory: export into an empty or a new directory")
    target.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(descriptor, target)
        try:
            yield
        except Exception:
            if is_new:
                with suppress(OSError):  # it is not empty
                    target.rmdir()
            raise
    finally:
        os.close(descriptor)


def _lock(descriptor: int, target: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as busy:
        raise UnusableExport(
            f"{target} is in use by another export or a broker: wait for its end, or give another directory"
        ) from busy
    if not target.exists() or not os.path.samestat(os.fstat(descriptor), target.stat()):
        raise UnusableExport(f"another export to {target} has just failed and removed it: export again")
