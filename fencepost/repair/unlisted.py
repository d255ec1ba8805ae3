"""Whether the last segments of a log, which its manifest does not list, were written here all the same.

Rule: a manifest is not believed over records that verify by themselves. A broker lists a segment before its
file exists. So either the segment was put there, or the manifest was: an older copy, or that of a copy of the
data directory in which a broker went on. Cluster, topic and the boot of the machine are the same in both.

    offsets, epochs   own segments continue the log, and nothing in them is damaged
    indexes           a broker creates them with the log file; a log file that was copied alone has none
    snapshot          where a segment begins, it says when each producer wrote its last batch; the batches
                      before, which are this log's, say the same

Without a snapshot, the first two decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from fencepost.check.index_files import INDEX_SUFFIXES
from fencepost.check.scan import LOG_SUFFIX
from fencepost.check.snapshot_files import read_producers
from fencepost.journal.manifest import KnownSnapshots
from fencepost.journal.storage import StorageReader
from fencepost.log_model.partitions import PartitionModel
from fencepost.repair.salvage import IntactBatch, SalvagedLog, is_compacted


def are_own(storage: StorageReader, log: SalvagedLog, unlisted: Sequence[int]) -> bool:
    """Whether the segments with these base offsets, the last ones of the log, were written here. The epochs
    of the log are corrected: a segment with a wrong one is altered.
    """
    begun = [segment for segment in log.segments if segment.base_offset in unlisted]
    before = [segment for segment in log.segments if segment.base_offset < unlisted[0]]
    if len(begun) < len(unlisted) or not before or not all(segment.is_intact for segment in begun):
        return False
    if any(one.end_offset != other.base_offset for one, other in pairwise([before[-1], *begun])):
        return False
    names = storage.files(str(log.partition))
    files = [segment.file.rpartition("/")[2].removesuffix(LOG_SUFFIX) for segment in begun]
    have_indexes = all(f"{file}{suffix}" in names for file in files for suffix in INDEX_SUFFIXES)
    return have_indexes and all(_agrees(storage, log, base) for base in unlisted)


def _agrees(storage: StorageReader, log: SalvagedLog, offset: int) -> bool:
    """Whether the snapshot at an offset does not contradict the batches before it."""
    says = read_producers(storage, str(log.partition), offset, KnownSnapshots({}))
    # A snapshot remembers what compaction has removed, and what was in segments that are lost.
    if says is None or is_compacted(log) or (log.segments[0].base_offset and not log.producers):
        return True
    model = PartitionModel()
    model.begin_with(log.producers)
    for piece in log.pieces():
        if isinstance(piece, IntactBatch) and piece.header.base_offset < offset:
            model.apply(piece.header, piece.batch.marker)
    times = {producer_id: known.timestamp for producer_id, known in model.producers.items()}
    return all(times.get(producer_id) == known.timestamp for producer_id, known in says.items())
