"""An answer of several parts: how the parts become one body.

Rule: the parts stand in the order of the question, and each keeps its own error.
"""

from __future__ import annotations

import attrs

from fencepost.broker.waiting import Gathering, Part
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import (
    DeletedRecords,
    DeleteRecords,
    DeleteRecordsReply,
    PartitionError,
    Produce,
    ProducedPartition,
    ProduceReply,
    WriteTxnMarkersReply,
    WrittenMarker,
)
from fencepost.protocol.terms import NO_OFFSET


def gathered(gathering: Gathering) -> ProduceReply | DeleteRecordsReply | WriteTxnMarkersReply:
    """The body of the answer, once every part is there."""
    if gathering.kind is Produce:
        produced = tuple(part for part in gathering.parts if isinstance(part, ProducedPartition))
        return ProduceReply(partitions=produced)
    if gathering.kind is DeleteRecords:
        deleted = tuple(part for part in gathering.parts if isinstance(part, DeletedRecords))
        return DeleteRecordsReply(partitions=deleted)
    return _written(gathering)


def failed(part: Part, error: ErrorCode) -> Part:
    """The same part, refused: what it said is in doubt."""
    if isinstance(part, ProducedPartition):
        return attrs.evolve(part, error=error, base_offset=NO_OFFSET)
    return attrs.evolve(part, error=error)


def _written(gathering: Gathering) -> WriteTxnMarkersReply:
    """Parts back under their markers; a producer id may occur in several markers of one request."""
    markers: dict[int, list[PartitionError]] = {}
    for producer_id, part in zip(gathering.producer_ids, gathering.parts, strict=True):
        assert isinstance(part, PartitionError), "markers are answered per partition"
        markers.setdefault(producer_id, []).append(part)
    return WriteTxnMarkersReply(
        markers=tuple(WrittenMarker(producer_id=p, partitions=tuple(parts)) for p, parts in markers.items())
    )
