"""What a node is told and what it decides, as values: Input, Append, Effect, and the Outcome that holds them.

Rule: cores take these and return these; only a shell makes them happen, appends before effects.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Generic, NamedTuple, TypeVar

import attrs

from fencepost.journal.indexes import AbortedRange
from fencepost.journal.snapshots import ProducerSnapshot
from fencepost.protocol.batches import BatchHeader, Buffer
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.messages import ReplyBody, Request
from fencepost.protocol.terms import NEWEST_VERSION, IsolationLevel, TopicPartition
from fencepost.protocol.values import value


class ReplyTo(NamedTuple):
    """Who waits for an answer: a connection of this node and the correlation id it chose."""

    connection: int
    correlation_id: int


NODE: Final = -1
"""The connection of a message that this node sent to itself; its correlation id is the token of the Send."""

NOBODY: Final = ReplyTo(-2, 0)
"""Where the answer goes that nobody waits for: Produce with acks 0, and what a node asks on its own behalf.
"""


# --- Input: what reaches a node --------------------------------------------------------------------------


@value
class Received:
    """A request from a client or a node, in Kafka's version of it."""

    request: Request
    to: ReplyTo = attrs.field(kw_only=True)
    version: int = attrs.field(kw_only=True, default=NEWEST_VERSION)
    from_node: int | None = attrs.field(kw_only=True, default=None)  # None: from a client


@value(kw_only=True)
class Answered:
    """The answer to a Send; NETWORK_EXCEPTION when the connection went before it came."""

    token: int
    error: ErrorCode
    body: ReplyBody | None


@value(kw_only=True)
class BecomeLeader:
    """This node leads the partition from now on; its log, from the snapshot's offset on, is `batches`."""

    partition: TopicPartition
    leader_epoch: int
    log_start_offset: int = 0
    oldest_offset: int = 0  # where its oldest batch begins, which may be earlier
    batch_start: int = 0  # where the batch begins that holds the log start
    snapshot: tuple[int, tuple[ProducerSnapshot, ...]] | None = None
    is_restart: bool = False  # the node led it before its process died, and read the log again from the disk
    batches: Iterable[tuple[BatchHeader, Buffer]] = ()


@value(kw_only=True)
class ResignLeader:
    """This node no longer leads the partition."""

    partition: TopicPartition


@value(kw_only=True)
class Durable:
    """The partition's log is safe up to `offset` (exclusive), under the configured policy."""

    partition: TopicPartition
    offset: int


@value(kw_only=True)
class MoveLogStart:
    """Delete the records before an offset; LogStartMoved comes back. Ticket and index are the asker's."""

    partition: TopicPartition
    offset: int
    ticket: int
    index: int


@value
class LogStartMoved:
    """What became of a MoveLogStart; `batch_start` is where the batch begins that holds the new start."""

    order: MoveLogStart
    batch_start: int = attrs.field(kw_only=True)
    error: ErrorCode = attrs.field(kw_only=True)


@value(kw_only=True)
class StorageFailed:
    """An append or a sync of this partition's log failed; what was not durable is in doubt."""

    partition: TopicPartition


@value(kw_only=True)
class Disconnected:
    """Nobody waits on this connection any more."""

    connection: int


@value(kw_only=True)
class Started:
    """The node's own log of metadata is loaded: give its partitions new leader epochs."""

    node_id: int


@value(kw_only=True)
class Tick:
    """Time has passed: deadlines are looked at."""


@value(kw_only=True)
class Reassign:
    """To the controller's node: whoever watches over the cluster wants this partition led by that node."""

    partition: TopicPartition
    node_id: int


Input = (
    Received | Answered | BecomeLeader | ResignLeader | Durable | LogStartMoved | StorageFailed | Disconnected
    | Started | Tick | Reassign
)  # fmt: skip


# --- Append and Effect: what leaves a node ---------------------------------------------------------------


@value
class Append:
    """One batch for one partition's log, placed already; `aborted` goes to the index of aborted
    transactions.
    """

    partition: TopicPartition
    header: BatchHeader = attrs.field(kw_only=True)
    batch: Buffer = attrs.field(kw_only=True, repr=False)
    leader_epoch: int = attrs.field(kw_only=True)
    aborted: AbortedRange | None = attrs.field(kw_only=True, default=None)


@value
class Reply:
    """Answer a request: an error for all of it, or a body."""

    to: ReplyTo
    error: ErrorCode = attrs.field(kw_only=True, default=NO_ERROR)
    body: ReplyBody | None = attrs.field(kw_only=True, default=None)


@value(kw_only=True)
class FetchPlan:
    """What one partition of a Fetch may see; the shell reads the bytes below offset `before` from the
    journal.
    """

    partition: TopicPartition
    error: ErrorCode
    fetch_offset: int
    before: int
    max_bytes: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


@value
class ReplyFetched:
    """Answer a Fetch with what the journal holds for these plans."""

    to: ReplyTo
    plans: tuple[FetchPlan, ...] = attrs.field(kw_only=True)
    isolation_level: IsolationLevel = attrs.field(kw_only=True)
    max_bytes: int = attrs.field(kw_only=True)


@value(kw_only=True)
class OffsetPlan:
    """One partition of a ListOffsets: an offset that is known, or a timestamp to look up below offset
    `before`.
    """

    partition: TopicPartition
    error: ErrorCode
    offset: int
    timestamp: int
    before: int
    is_lookup: bool


@value
class ReplyListed:
    """Answer a ListOffsets with what the journal's time index says for these plans."""

    to: ReplyTo
    plans: tuple[OffsetPlan, ...] = attrs.field(kw_only=True)


@value(kw_only=True)
class Send:
    """Ask a node (perhaps this one); the answer comes back as Answered with the same token."""

    node_id: int
    request: Request
    token: int
    version: int = NEWEST_VERSION


@value(kw_only=True)
class Assign:
    """The controller says: this node leads the partition under this epoch. The shell brings the log along
    (Lead); what lies there of a partition that `is_new` is of an older topic.
    """

    partition: TopicPartition
    leader_id: int
    leader_epoch: int
    is_new: bool = False
    was_leader: bool = False  # under the epoch before, too


@value(kw_only=True)
class Remove:
    """The controller says: the partition is gone; its files can go too."""

    partition: TopicPartition


@value
class WakeMe:
    """A Tick is wanted at this time (milliseconds); an earlier one does no harm."""

    at_ms: int


@value
class Warn:
    """Nothing comes of an input that nobody waits for an answer to; `because` is for people."""

    because: str


Effect = Reply | ReplyFetched | ReplyListed | MoveLogStart | Send | Assign | Remove | WakeMe | Warn


@value
class Refused:
    """A decision that nothing happens: the error that the caller sees, and why, for people."""

    error: ErrorCode
    because: str = ""


Entry = TypeVar("Entry")


@attrs.frozen(kw_only=True)
class Decision(Generic[Entry]):
    """What a coordinator decided; nothing has changed yet.

    `entries` go into its log as one batch. `note` is what it remembers beside the log, until it dies.
    `effects` happen once all that the decision saw is durable.
    """

    entries: tuple[Entry, ...] = ()
    note: Any = None
    effects: tuple[Effect, ...] = ()


@attrs.define
class Outcome:
    """What one input led to; the shell performs appends in order, then effects in order."""

    appends: list[Append]
    effects: list[Effect]
