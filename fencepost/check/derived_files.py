"""The files next to a log, compared with the log: its indexes, producer snapshots, manifest and checkpoint.

All of these files are derived: a broker can build each of them again from the log, and readers trust them
because reading the log would take too long. index_files.py, snapshot_files.py and promises.py say how exact
each must be.
"""

from __future__ import annotations

from fencepost.check.findings import Findings, Location
from fencepost.check.index_files import INDEX_SUFFIXES, IndexFiles
from fencepost.check.promises import Promises
from fencepost.check.scan import ScannedLog, offset_of, sizes_of
from fencepost.check.sealed_files import Object
from fencepost.check.snapshot_files import SnapshotFiles
from fencepost.journal.storage import CLEANED_SUFFIX, TEMPORARY_SUFFIX, StorageReader


def check_derived_files(
    storage: StorageReader, log: ScannedLog, closed: Object | None, findings: Findings
) -> None:
    """Compare all of them with a log that has no fault itself, and judge the log's producers on the way.
    `closed` is what clean-shutdown.json says of the last segment.
    """
    check_strays(storage, log, findings)
    promises = Promises(storage, log, closed, findings)
    manifest = promises.manifest
    snapshots = SnapshotFiles(storage, log, promises.known_snapshots, findings)
    snapshots.follow_producers(also_at=() if manifest is None else (manifest["high_watermark"],))
    IndexFiles(
        storage,
        log,
        knows_beginning=snapshots.knows_beginning,
        synced_segments=promises.synced_segments,
        kept_power=promises.kept_power,
        findings=findings,
    ).check()
    snapshots.check_beginning()
    snapshots.check()
    promises.check(knows_beginning=snapshots.knows_beginning)


def check_strays(storage: StorageReader, log: ScannedLog, findings: Findings) -> None:
    """Files that the next start removes: half-written ones, and indexes whose log is missing."""
    bases = sizes_of(storage, log.directory)
    for name in storage.files(log.directory):
        location = Location(f"{log.directory}/{name}")
        based = [offset for suffix in INDEX_SUFFIXES if (offset := offset_of(name, suffix)) is not None]
        if name.endswith((TEMPORARY_SUFFIX, CLEANED_SUFFIX)):
            findings.note(location, "a file that was never finished", "the next start removes it")
        elif based and based[0] not in bases:
            means = "a segment is missing, or was removed when a broker died"
            findings.report(log.was_closed, location, "an index without its log", means)
