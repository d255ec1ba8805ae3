"""An answer of several parts: how the parts become one body.

Rule: the parts stand in the order of the question, and each keeps its own error.
"""

from __future__ import annotations

import attrs

from fencepost.broker.purgatory import Gathering, Part
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import (
    DeleteRecordsReply,
    PartitionError,
    ProducedPartition,
    ProduceReply,
    WriteTxnMarkersReply,
    WrittenMarker,
)
from fencepost.protocol.terms import NO_OFFSET


def gathered(gathering: Gathering) -> ProduceReply | DeleteRecordsReply | WriteTxnMarkersReply:
    """The body of the answer, once every part is there."""
    if issubclass(gathering.kind, WriteTxnMarkersReply):
        return _written(gathering)
    return gathering.kind(partitions=tuple(gathering.parts))


def failed(part: Part, error: ErrorCode) -> Part:
    """The same part, refused: what it said is in doubt."""
    if isinstance(part, ProducedPartition):
        return attrs.evolve(part, error=error, base_offset=NO_OFFSET)
    return attrs.evolve(part, error=error)


def _written(gathering: Gathering) -> WriteTxnMarkersReply:
    """Parts back under their markers; a producer id may occur in several markers of one request."""
    markers: dict[int, list[PartitionError]] = {}
    for producer_id, part in zip(gathering.producer_ids, gathering.parts, strict=True):
        markers.setdefault(producer_id, []).append(part)
    return WriteTxnMarkersReply(
        markers=tuple(WrittenMarker(producer_id=p, partitions=tuple(parts)) for p, parts in markers.items())
    )
