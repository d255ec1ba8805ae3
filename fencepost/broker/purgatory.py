"""What a node keeps in addition to its logs: partial replies, parked fetches, requests in flight.

Rule: all of these are notes. A restart forgets them, and the clients retry. These are values only: `node.py`
and the handlers park them and take them out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import attrs

from fencepost.broker.contract import ReplyTo
from fencepost.broker.leader_log import Part, Ticket
from fencepost.broker.partitions.partition import VerificationGuard
from fencepost.broker.transactions.tables import ClientVersion
from fencepost.protocol import messages as m
from fencepost.protocol.batch_work import REQUEST_WORK_MAX
from fencepost.protocol.batches import BatchHeader, Buffer
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.fork import Ignored, Rank, Scope
from fencepost.protocol.terms import NO_OFFSET, IdentityEnum, TopicPartition
from fencepost.protocol.values import value

# Numbers from one counter of the node. Only their order within a kind matters (protocol/fork.py).
Token = Annotated[int, Rank("token")]
FetchTicket = Annotated[int, Rank("fetch")]


@attrs.define(eq=False)
class PartialReply:
    """A reply that consists of several partitions' parts; `producer_ids` assigns each part to a marker."""

    to: ReplyTo
    kind: type[m.ProduceReply | m.WriteTxnMarkersReply | m.DeleteRecordsReply]
    parts: list[Any]  # None until the part is ready, then a Part of the reply's kind
    missing: Ignored[int]
    producer_ids: tuple[int, ...] = ()
    work_left: Ignored[int] = REQUEST_WORK_MAX  # of opening a Produce's compressed batches


def completed(partial: PartialReply) -> m.ProduceReply | m.DeleteRecordsReply | m.WriteTxnMarkersReply:
    """The body of the complete reply."""
    if issubclass(partial.kind, m.WriteTxnMarkersReply):
        return _written(partial)
    return partial.kind(tuple(partial.parts))


def failed(part: Part, error: ErrorCode) -> Part:
    """The same part with an error, because its append may not survive."""
    if isinstance(part, m.ProducedPartition):
        return attrs.evolve(part, error=error, base_offset=NO_OFFSET, log_start_offset=NO_OFFSET)
    return attrs.evolve(part, error=error)


def _written(partial: PartialReply) -> m.WriteTxnMarkersReply:
    """Group the parts by producer id: a request may have several markers of one id."""
    markers: dict[int, list[m.PartitionError]] = {}
    for producer_id, part in zip(partial.producer_ids, partial.parts, strict=True):
        markers.setdefault(producer_id, []).append(part)
    written = [m.WrittenMarker(p, tuple(parts)) for p, parts in markers.items()]
    return m.WriteTxnMarkersReply(tuple(written))


@value(kw_only=True)
class ParkedFetch:
    """A Fetch that found too few bytes and waits until `until_ms` (Kafka: DelayedFetch in the purgatory)."""

    to: ReplyTo
    request: m.Fetch
    parts: Ignored[Mapping[TopicPartition, m.FetchPartition]]  # of the request
    until_ms: int


@attrs.define(eq=False)
class ProducerIds:
    """The rest of the current block of producer ids, and the next block if it was granted already."""

    next_id: int = 0
    end: int = 0
    next_block: tuple[int, int] | None = None
    # A restart forgets the rest of the block, so ids have gaps (KIP-730).
    is_asked: bool = False

    @property
    def is_empty(self) -> bool:
        return self.next_id >= self.end

    def begin_next_block(self) -> None:
        """Continue with the prefetched block when the current one is used up."""
        if self.is_empty and self.next_block is not None:
            (self.next_id, self.end), self.next_block = self.next_block, None


class Scan(IdentityEnum):
    """A periodic search for expired state."""

    TRANSACTIONAL_IDS = "transactional ids"
    PRODUCER_IDS = "producer ids"
    OFFSETS = "offsets"
    LOGS = "logs"
    DIRTY_LOGS = "dirty logs"


@attrs.define(eq=False)
class Following:
    """A node's position in the controller's log: `offset` is the next one to fetch. Records before
    `broker_epoch`, the offset of its own registration, were addressed to an earlier incarnation.
    """

    broker_epoch: int = NO_OFFSET
    offset: int = 0
    due_ms: int | None = None  # when to retry after a failure


# --- requests in flight: what the reply is for -----------------------------------------------------------


@value
class Incoming:
    """One batch of a Produce on its way into a log."""

    ticket: Ticket
    index: int
    key: Scope[TopicPartition]
    header: BatchHeader
    records: Buffer = attrs.field(repr=False)
    acks: int


@value
class InFlightAddPartitions:
    """Batches that wait until the coordinator has added their partitions to the transaction, or, for an
    older client, has verified that they were added.
    """

    batches: tuple[tuple[Incoming, VerificationGuard], ...]
    """Each with the guard that it must present."""
    client_version: ClientVersion = attrs.field(kw_only=True)


@value(kw_only=True)
class InFlightAddOffsets:
    """A TxnOffsetCommit that waits until the group's offsets partition is in the transaction."""

    request: m.TxnOffsetCommit
    to: ReplyTo
    key: Scope[TopicPartition]
    """The group's partition of `__consumer_offsets`."""
    verification_guard: VerificationGuard
    client_version: ClientVersion


@value
class InFlightMarkers:
    """WriteTxnMarkers to one node, for one transaction."""

    log_key: TopicPartition
    transactional_id: str
    partitions: frozenset[TopicPartition]


@value(kw_only=True)
class InFlightTopicCreation:
    """A FindCoordinator that waits for its internal topic to be created."""

    request: m.FindCoordinator
    to: ReplyTo


@value(kw_only=True)
class InFlightLookup:
    """Metadata to the controller, for partitions of a decided transaction that this node does not know."""

    log_key: TopicPartition
    transactional_id: str
    partitions: frozenset[TopicPartition]


@value
class InFlightOffsetsTopic:
    """CreateTopics of `__consumer_offsets` to the controller, for a marker that waits for it."""


@value
class InFlightIdBlock:
    """AllocateProducerIds to the controller."""


@value
class InFlightRegistration:
    """BrokerRegistration to the controller."""


@value
class InFlightMetadataFetch:
    """A Fetch of the metadata log."""


@value
class InFlightElection:
    """ElectLeaders to the controller, for partitions that this node gave up."""

    partitions: tuple[TopicPartition, ...]


InFlight = (
    InFlightAddPartitions | InFlightAddOffsets | InFlightMarkers | InFlightTopicCreation | InFlightIdBlock
    | InFlightLookup | InFlightOffsetsTopic | InFlightRegistration | InFlightMetadataFetch | InFlightElection
)  # fmt: skip
