"""The lookups of one ListOffsets by timestamp: batches are opened until a record is found.

Rule: a lookup never outlasts a round of the broker by more than one batch. It continues where it ended.
"""

# The header of a batch says how new its newest record is, and the index and the journal go by that. A
# compaction may have removed that record, and for compressed records there is only the producer's word. So
# any number of batches may be opened in vain, and each of them may decompress to many times its size.

from __future__ import annotations

from typing import NamedTuple

import attrs

from fencepost.broker.contract import OffsetPlan
from fencepost.journal.journal import Journal
from fencepost.protocol.batch_work import work_of
from fencepost.protocol.record_times import first_record_since
from fencepost.protocol.records import payload_of
from fencepost.protocol.terms import MAX_TIMESTAMP, NO_LEADER_EPOCH, NO_OFFSET, NO_TIMESTAMP


class FoundRecord(NamedTuple):
    """A record by its timestamp (ms), offset and leader epoch."""

    timestamp: int
    offset: int
    leader_epoch: int


NO_RECORD = FoundRecord(NO_TIMESTAMP, NO_OFFSET, NO_LEADER_EPOCH)


class RoundIsOver(Exception):
    """This round allows no more work."""


@attrs.define(eq=False)
class TimeLookups:
    """How far one request has come. A partition is known by its place in the request, since a request may
    name it several times.
    """

    work_left: int = 0
    """In this round."""
    _found: dict[int, FoundRecord] = attrs.Factory(dict[int, FoundRecord])
    _next_offsets: dict[int, int] = attrs.Factory(dict[int, int])

    def look_up(self, place: int, plan: OffsetPlan, log: Journal) -> FoundRecord:
        """The first record at or after the plan's timestamp, or NO_RECORD. RoundIsOver if it is not found
        yet, ProtocolViolation or StorageError when the log cannot be read.
        """
        found = self._found.get(place)
        if found is None:
            found = self._found[place] = self._search(place, plan, log)
        return found

    def _search(self, place: int, plan: OffsetPlan, log: Journal) -> FoundRecord:
        is_newest = plan.timestamp == MAX_TIMESTAMP
        timestamp = log.segments.max_timestamp if is_newest else plan.timestamp
        start = 0 if is_newest else log.log_start_offset  # deleted records can be the newest, too
        from_offset = max(start, self._next_offsets.get(place, 0))
        for header, batch in log.segments.batches_since(timestamp, from_offset=from_offset):
            if header.base_offset >= plan.before:
                break
            if self.work_left <= 0:
                self._next_offsets[place] = header.base_offset
                raise RoundIsOver
            self.work_left -= work_of(header.record_count, header.size)
            payload = payload_of(batch, header)
            self.work_left -= work_of(0, len(payload))
            found = first_record_since(payload, header, timestamp, from_offset=from_offset)
            if found is not None and found.offset < plan.before:
                return FoundRecord(*found, header.leader_epoch)
        return NO_RECORD
