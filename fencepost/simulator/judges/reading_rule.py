"""I11: what a fetch may hold, and which aborted transactions it must name.

Rule: judged by the answer as it leaves the node, against the judge's own record of the log; the broker's
index of aborted transactions is not asked.
"""

from __future__ import annotations

import struct
from typing import Final

from fencepost.protocol.batches import LENGTH_PREFIX_SIZE, Buffer
from fencepost.protocol.messages import FetchedPartition
from fencepost.simulator.judges.anomalies import Looks
from fencepost.simulator.judges.partition_record import PartitionRecord
from fencepost.simulator.judges.step_rules import READ_COMMITTED, SEEN_IS_SAFE
from fencepost.simulator.judges.violation import Violation

_START: Final = struct.Struct(">qi")  # base offset, batch length
_DELTA: Final = struct.Struct(">i")  # last offset delta
_DELTA_AT: Final = 23


def judge_fetched(part: FetchedPartition, record: PartitionRecord, marks: Looks) -> None:
    """One partition of an answer that has records."""
    begin, end = _span(part.records)
    if end > record.high_watermark:
        raise Violation(
            SEEN_IS_SAFE.name,
            f"{record.key}: a fetch goes up to {end}, the log is safe up to {record.high_watermark}",
        )
    if part.aborted is None:
        return
    marks[READ_COMMITTED.name] += 1
    if end > record.last_stable_offset:
        raise Violation(
            READ_COMMITTED.name,
            f"{record.key}: a fetch goes up to {end}, the LSO is {record.last_stable_offset}",
        )
    named = {(found.producer_id, found.first_offset): None for found in part.aborted}
    for producer_id, first, last in reversed(record.aborted):
        if last >= begin and first < end and (producer_id, first) not in named:
            raise Violation(
                READ_COMMITTED.name,
                f"{record.key}: a fetch of {begin} to {end} does not name the aborted transaction of "
                f"producer {producer_id} from {first} to {last}",
            )
    if named:
        real = {(aborted.producer_id, aborted.first_offset): None for aborted in record.aborted}
        for producer_id, first in named:
            if (producer_id, first) not in real:
                raise Violation(
                    READ_COMMITTED.name,
                    f"{record.key}: a fetch says that producer {producer_id} aborted from {first} on",
                )


def _span(records: Buffer) -> tuple[int, int]:
    """The first offset of a run of whole batches, and the offset behind it."""
    begin, length = _START.unpack_from(records)
    at, base, size = 0, begin, len(records)
    while True:
        behind = at + LENGTH_PREFIX_SIZE + length
        if behind >= size:
            (delta,) = _DELTA.unpack_from(records, at + _DELTA_AT)
            return begin, base + delta + 1
        at = behind
        base, length = _START.unpack_from(records, at)
