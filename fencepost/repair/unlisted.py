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
    begun = [segment for segment in log.segments if segment.base_offset >= unlisted[0]]
    before = [segment for segment in log.segments if segment.base_offset < unlisted[0]]
    if len(begun) < len(unlisted) or not before or not all(segment.is_intact for segment in begun):
        return False
    if any(one.end_offset != other.base_offset for one, other in pairwise([before[-1], *begun])):
        return False
    names = storage.files(str(log.partition))
    files = [segment.file.rpartition("/")[2].removesuffix(LOG_SUFFIX) for segment in begun]
    have_indexes = all(f"{file}{suffix}" in names for file in files for suffix in INDEX_SUFFIXES)
    return have_indexes and _agrees(storage, log, unlisted[0])


def _agrees(storage: StorageReader, log: SalvagedLog, first: int) -> bool:
    """Whether no snapshot where a segment begins, from this one on, contradicts the batches before it."""
    # A snapshot remembers what compaction has removed, and what was in segments that are lost.
    if is_compacted(log) or (log.segments[0].base_offset and not log.producers):
        return True
    model = PartitionModel()
    model.begin_with(log.producers)
    for segment in log.segments:
        if segment.base_offset >= first:
            says = read_producers(storage, str(log.partition), segment.base_offset, KnownSnapshots({})) or {}
            wrote = {
                number: model.producers[number].timestamp for number in says if number in model.producers
            }
            if wrote != {number: known.timestamp for number, known in says.items()}:
                return False
        for piece in segment.pieces:
            if isinstance(piece, IntactBatch):
                model.apply(piece.header, piece.batch.marker)
    return True
