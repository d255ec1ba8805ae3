"""What a node keeps beside its logs: effects that wait for them, answers in parts, parked fetches, producer
ids.

Rule: all of it are notes; a restart forgets them, and whoever waited asks again.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Annotated, Any

import attrs

from fencepost.broker.cluster.controller import Controller
from fencepost.broker.contract import Effect, Reply, ReplyTo
from fencepost.broker.groups.state import Groups
from fencepost.broker.partitions.partition import Partition, VerificationGuard
from fencepost.broker.transactions.state import Transactions
from fencepost.broker.transactions.tables import ClientVersion
from fencepost.protocol.batches import BatchHeader, Buffer
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import (
    DeletedRecords,
    DeleteRecordsReply,
    Fetch,
    FindCoordinator,
    PartitionError,
    ProducedPartition,
    ProduceReply,
    TxnOffsetCommit,
    WriteTxnMarkersReply,
    WrittenMarker,
)
from fencepost.protocol.states import Rank, Scope
from fencepost.protocol.terms import NO_OFFSET, TopicPartition
from fencepost.protocol.values import value

Coordinator = Transactions | Groups | Controller

# What one counter of the node numbers, each ranked among its own.
Ticket = Annotated[int, Rank("ticket")]
Token = Annotated[int, Rank("token")]
FetchTicket = Annotated[int, Rank("fetch")]


Part = ProducedPartition | PartitionError | DeletedRecords
"""What one partition says in an answer of several."""


@value
class Collect:
    """Effect inside the node: one partition's part of an answer that spans several is ready."""

    ticket: Ticket
    index: int = attrs.field(kw_only=True)
    result: Part = attrs.field(kw_only=True)


@value
class AfterAll:
    """Effect inside the node: an answer that tells of several logs waits for one after the other."""

    keys: tuple[TopicPartition, ...]
    reply: Reply


Inner = Effect | Collect | AfterAll


@attrs.define(eq=False)
class LeaderLog:
    """A partition that this node leads, the coordinator on top, and the effects that wait for it to be
    durable.
    """

    partition: Partition
    coordinator: Coordinator | None = None
    waiting: deque[tuple[int, tuple[Inner, ...]]] = attrs.Factory(deque[tuple[int, tuple[Inner, ...]]])


@attrs.define(eq=False)
class Gathering:
    """An answer that is put together from several partitions; `producer_ids` names the marker that each
    part belongs to.
    """

    to: ReplyTo
    kind: type[ProduceReply | WriteTxnMarkersReply | DeleteRecordsReply]
    parts: list[Any]  # a Part of the kind that the answer has, or None until it is there
    producer_ids: tuple[int, ...] = ()


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


@value(kw_only=True)
class ParkedFetch:
    """A Fetch that found nothing and waits for data until its time is up."""

    to: ReplyTo
    request: Fetch
    until_ms: int


@attrs.define(eq=False)
class ProducerIds:
    """The rest of the block that the controller granted, and the block after it once that is here."""

    next_id: int = 0
    end: int = 0
    next_block: tuple[int, int] | None = None
    is_asked: bool = False

    @property
    def is_empty(self) -> bool:
        return self.next_id >= self.end

    def begin_next_block(self) -> None:
        """Go on with the block that was asked for in time, once this one is used up."""
        if self.is_empty and self.next_block is not None:
            (self.next_id, self.end), self.next_block = self.next_block, None


class Scan(Enum):
    """What is looked for again and again, at fixed intervals."""

    __hash__ = object.__hash__  # each is itself alone; Enum's own hashes the name, in Python

    TRANSACTIONAL_IDS = "transactional ids"
    PRODUCER_IDS = "producer ids"
    OFFSETS = "offsets"


@attrs.define(eq=False)
class Following:
    """How far a node has come in the controller's log: `offset` is the next one that it asks for. What lies
    before `broker_epoch`, where its own registration is, was said to an earlier incarnation of it.
    """

    broker_epoch: int = NO_OFFSET
    offset: int = 0
    due_ms: int | None = None  # when it asks again after a failure


# --- what was asked of a node, and what the answer is for ----------------------------------------------


@value(kw_only=True)
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
    """These batches wait for the coordinator to take their partitions into the transaction, or, for a client
    that did that itself, to say that they are in it.
    """

    batches: tuple[tuple[Incoming, VerificationGuard], ...]
    """Each with the guard that it must present."""
    client_version: ClientVersion = attrs.field(kw_only=True)


@value(kw_only=True)
class InFlightAddOffsets:
    """This commit waits for the coordinator to take the group's offsets partition into the transaction."""

    request: TxnOffsetCommit
    to: ReplyTo
    key: Scope[TopicPartition]
    """The log that the offsets go to."""
    verification_guard: VerificationGuard
    client_version: ClientVersion


@value(kw_only=True)
class InFlightMarkers:
    """A leader was asked to write this transaction's markers."""

    log_key: TopicPartition
    transactional_id: str
    producer_epoch: int
    partitions: frozenset[TopicPartition]


@value(kw_only=True)
class InFlightTopicCreation:
    """Somebody looks for a coordinator whose internal topic is being made."""

    request: FindCoordinator
    to: ReplyTo


@value
class InFlightIdBlock:
    """The controller was asked for a block of producer ids."""


@value
class InFlightRegistration:
    """The controller was told where this node is."""


@value
class InFlightMetadataFetch:
    """The controller was asked for what its log holds behind what this node knows."""


@value
class InFlightElection:
    """The controller was asked for new leader epochs of partitions whose logs this node lost."""

    partitions: tuple[TopicPartition, ...]


InFlight = (
    InFlightAddPartitions | InFlightAddOffsets | InFlightMarkers | InFlightTopicCreation | InFlightIdBlock
    | InFlightRegistration | InFlightMetadataFetch | InFlightElection
)  # fmt: skip
