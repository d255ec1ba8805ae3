"""Mistakes to plant in compaction that its tests have to find: one for each of Kafka's rules."""

from __future__ import annotations

from typing import Final

from tests.simulator.planting import one_edit

_TAKE: Final = "        new.take_place(self._open_files)\n"
_REMOVE: Final = "        for segment in old[1:]:\n            segment.remove()\n"

MUTATIONS: Final = (
    one_edit(
        "aborted records count as the latest",
        "journal.compaction:Survey.update",
        "if is_dirty and fits and not _is_aborted(header, self._aborted):",
        "if is_dirty and fits:",
        breaks="An aborted record removes the committed value of its key.",
    ),
    one_edit(
        "aborted records stay",
        "journal.compaction:Cleaner._kept",
        "None if _is_aborted(header, self._aborted) else",
        "",
        breaks="Once its marker is gone, an aborted record reads as a committed one.",
    ),
    one_edit(
        "what cannot be read counts as replaced",
        "journal.compaction:Survey._note_keys",
        "self._unread.append(header.base_offset)",
        "pass",
        breaks="Records go of which no one knows whether they are the latest.",
    ),
    one_edit(
        "what does not fit into memory counts as replaced",
        "journal.compaction:Survey.update",
        "elif is_dirty:",
        "elif is_dirty and fits:",
        breaks="A batch with more keys than there is room for is lost.",
    ),
    one_edit(
        "a long key is known by its beginning",
        "journal.compaction:_shortened",
        "blake2b(key, digest_size=_DIGEST_SIZE).digest()",
        "key[:_DIGEST_SIZE]",
        breaks="A record removes the value of another key.",
    ),
    one_edit(
        "a marker goes with the records of its transaction",
        "journal.compaction:Cleaner._kept_marker",
        "if has_batches or header",
        "if header",
        breaks="The records of its transaction are open again, or belong to the next one.",
    ),
    one_edit(
        "a marker has no horizon",
        "journal.compaction:Cleaner._kept_marker",
        "batch if self._now < horizon else None",
        "None",
        breaks="A slow reader of the log never learns how a transaction ended.",
    ),
    one_edit(
        "a tombstone has no horizon",
        "journal.compaction:Cleaner._thinned",
        "horizon is not None and horizon <= self._now",
        "True",
        breaks="A reader that has the older value keeps it forever.",
    ),
    one_edit(
        "a horizon moves with each cleaning",
        "journal.compaction:Cleaner._thinned",
        "if has_tombstone and horizon is None else None",
        "if has_tombstone else None",
        breaks="Tombstones are never removed.",
    ),
    one_edit(
        "tombstones go before older values",
        "journal.compaction:Cleaner._thinned",
        "latest.get(_shortened(key), offset) <= offset",
        "(latest.get(_shortened(key), offset) <= offset or offset == 0)",
        breaks="A deleted key comes back.",
    ),
    one_edit(
        "a producer loses its last sequence",
        "journal.compaction:Survey.kept_batches",
        "undecided.union(self._last_batches.values())",
        "undecided",
        breaks="After a restart a duplicate is taken for a new batch, or a new batch for a gap.",
    ),
    one_edit(
        "a producer loses its last epoch",
        "journal.compaction:Survey.kept_markers",
        "self._last_markers.values()",
        "()",
        breaks="After a restart a fenced producer may write again.",
    ),
    one_edit(
        "the beginning of a transaction goes before its marker",
        "journal.compaction:Survey.kept_batches",
        "undecided.union(self._last_batches.values())",
        "self._last_batches.values()",
        breaks="The index of aborted transactions names a beginning that is not in the log.",
    ),
    one_edit(
        "a gap is not covered",
        "journal.compaction:Cleaner.clean",
        "if gap is not None and (kept is not None or is_full):",
        "if gap is not None and is_full:",
        breaks="A compacted log cannot be told from one that has lost batches.",
    ),
    one_edit(
        "timestamps follow the horizon",
        "protocol.thinning:thinned",
        "shift_ms=header.base_timestamp - base",
        "shift_ms=0",
        breaks="Records seem to come from the future.",
    ),
    one_edit(
        "the places of records move up",
        "protocol.thinning:_kept_columns",
        "list(kept if deltas is None else _selected(deltas, kept))",
        "list(range(len(kept)))",
        breaks="A record has another offset than before.",
    ),
)

OF_FILES: Final = (
    one_edit(
        "compaction goes beyond the last stable offset",
        "journal.cleaning:_cleanable",
        "segment.end_offset > rules.before or is_young",
        "is_young",
        breaks="Records are removed for a value whose transaction aborts later.",
    ),
    one_edit(
        "young records are cleaned",
        "journal.cleaning:_cleanable",
        "segment.end_offset > rules.before or is_young",
        "segment.end_offset > rules.before",
        breaks="A reader misses records that min.compaction.lag.ms should have kept for it.",
    ),
    one_edit(
        "a marker goes although the snapshot has its transaction open",
        "journal.compaction:Cleaner.clean",
        "self._with_batches.update(transaction.producer_id for transaction in opened)",
        "pass",
        breaks="A transaction whose beginning retention deleted is open forever.",
    ),
    one_edit(
        "a cleaning removes the snapshots that retention needs",
        "journal.cleaning:Cleaning._forget_snapshots",
        "if self._rules.is_deleted:",
        "if False:",
        breaks="The log start moves, and the files of everything before it stay.",
    ),
    one_edit(
        "the cleaned segment is not synced",
        "journal.cleaning:Cleaning._write",
        "cleaned.sync(indexes=True)",
        "pass",
        breaks="After a power failure, neither the old records nor the cleaned ones are left.",
    ),
    one_edit(
        "old segments go first",
        "journal.journal:Journal.replace_segments",
        _TAKE + _REMOVE,
        _REMOVE + _TAKE,
        breaks="A crash in between leaves a gap.",
    ),
    one_edit(
        "recovery takes replaced segments for damage",
        "journal.recovery:Recovery._replay",
        "if self._why is None and base < expected:",
        "if False:",
        breaks="A log whose cleaning was interrupted is not served any more.",
    ),
)
