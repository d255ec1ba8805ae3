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
from fencepost.broker.partitions.partition import Guard, Partition
from fencepost.broker.transactions.state import Transactions
from fencepost.broker.transactions.tables import ClientVersion
from fencepost.protocol.batches import BatchHeader, Buffer
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
class Behind:
    """Effect inside the node: an answer that tells of several logs waits for one after the other."""

    keys: tuple[TopicPartition, ...]
    reply: Reply


Inner = Effect | Collect | Behind


@attrs.define(eq=False)
class Log:
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
class AskedToAdd:
    """These batches wait for the coordinator to take their partitions into the transaction, or, for a client
    that did that itself, to say that they are in it.
    """

    batches: tuple[tuple[Incoming, Guard], ...]
    """Each with the guard that it has to show."""
    spoken: ClientVersion = attrs.field(kw_only=True)


@value(kw_only=True)
class AskedToAddOffsets:
    """This commit waits for the coordinator to take the group's offsets partition into the transaction."""

    request: TxnOffsetCommit
    to: ReplyTo
    key: Scope[TopicPartition]
    """The log that the offsets go to."""
    guard: Guard
    spoken: ClientVersion


@value(kw_only=True)
class AskedMarkers:
    """A leader was asked to write this transaction's markers."""

    log_key: TopicPartition
    transactional_id: str
    producer_epoch: int
    partitions: frozenset[TopicPartition]


@value(kw_only=True)
class AskedForTopic:
    """Somebody looks for a coordinator whose internal topic is being made."""

    request: FindCoordinator
    to: ReplyTo


@value
class AskedForProducerIds:
    """The controller was asked for a block of producer ids."""


@value
class AskedToRegister:
    """The controller was told where this node is."""


@value
class AskedForNews:
    """The controller was asked for what its log holds behind what this node knows."""


@value
class AskedToElect:
    """The controller was asked for new leader epochs of partitions whose logs this node lost."""

    partitions: tuple[TopicPartition, ...]


Asked = (
    AskedToAdd | AskedToAddOffsets | AskedMarkers | AskedForTopic | AskedForProducerIds
    | AskedToRegister | AskedForNews | AskedToElect
)  # fmt: skip
