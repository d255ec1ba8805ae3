"""What the logs of coordinators mean, found by reading all of them each time: transactional ids, and offsets
of groups.

Rule: as in `naive_log.py`: nothing is remembered between two questions.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from fencepost.protocol.batches import BatchHeader, Buffer
from fencepost.protocol.offsets_log import OffsetKey, OffsetRecord, read_offsets
from fencepost.protocol.terms import TransactionResult
from fencepost.protocol.transaction_log import TransactionRecord, read_transactions
from tests.broker.naive_log import Line, line_of

Batches = Iterable[tuple[BatchHeader, Buffer]]

# A batch stays what it is, so it need not be taken apart each time.
_transactions_in: Final = lru_cache(maxsize=4096)(read_transactions)
_offsets_in: Final = lru_cache(maxsize=4096)(read_offsets)

PLAIN: Final = None  # the producer of a commit outside any transaction


def transactional_ids(batches: Batches) -> dict[str, TransactionRecord]:
    """The newest record of each id, in order of names; without those whose newest is a tombstone."""
    newest: dict[str, TransactionRecord | None] = {}
    for header, batch in batches:
        newest.update(_transactions_in(bytes(batch), header))
    return {name: record for name, record in sorted(newest.items()) if record is not None}


class Write(NamedTuple):
    """One offset, or a tombstone (None), in the log of a group coordinator."""

    at: int
    key: OffsetKey
    record: OffsetRecord | None
    producer: int | None


class Offsets(NamedTuple):
    """What counts, and what waits for a marker."""

    committed: dict[OffsetKey, OffsetRecord]
    pending: set[OffsetKey]
    overtaken: set[OffsetKey]
    """Those of which an older write was decided later than the one that counts."""


def offsets(batches: Batches) -> Offsets:
    """Of each key the newest write counts that is decided; a tombstone takes all before it."""
    writes: list[Write] = []
    markers: list[Line] = []
    for header, batch in batches:
        if header.is_control:
            markers.append(line_of(header, batch))
            continue
        producer = header.producer_id if header.is_transactional else PLAIN
        for delta, (key, record) in enumerate(_offsets_in(bytes(batch), header)):
            writes.append(Write(header.base_offset + delta, key, record, producer))
    found = Offsets({}, set(), set())
    for key in sorted({write.key for write in writes}):
        _weigh(key, [write for write in writes if write.key == key], markers, found)
    return found


def _weigh(key: OffsetKey, writes: list[Write], markers: list[Line], found: Offsets) -> None:
    tombstones = [write.at for write in writes if write.record is None]
    living = [write for write in writes if write.at > max(tombstones, default=-1)]
    decisions = {write: _decision(write, markers) for write in living}
    counting = [write for write, decision in decisions.items() if decision.result is TransactionResult.COMMIT]
    if any(decision.result is None for decision in decisions.values()):
        found.pending.add(key)
    if counting and counting[-1].record is not None:
        found.committed[key] = counting[-1].record
        if any(decisions[write].at > counting[-1].at for write in counting[:-1]):
            found.overtaken.add(key)


class Decision(NamedTuple):
    """From where on in the log a write counts, or does not; no result while that is open."""

    at: int
    result: TransactionResult | None


def _decision(write: Write, markers: list[Line]) -> Decision:
    """A plain write counts at once, another as its producer's next marker says."""
    if write.producer is PLAIN:
        return Decision(write.at, TransactionResult.COMMIT)
    for marker in markers:
        if marker.producer == write.producer and marker.offset > write.at:
            return Decision(marker.offset, marker.result)
    return Decision(write.at, None)
