"""The contract between a node and its host: Input goes in; Append and Effect come out, in an Outcome.

Rule: cores take and return these values; only a host performs them, appends before effects.
"""

# Live and in recovery, a node takes the same inputs and returns the same values, so a recorded run can be
# replayed, drawn and judged from these classes alone. None of them refers to a socket, a file or a clock.

# Theory of operation. A node cannot wait for anything, so each effect with a result comes back as an input:
#
#     from the node                  from its host, later
#     Append                         Durable, or StorageFailed; ResignLeader if another node leads by now
#     Send(token)                    Answered(token), perhaps only to say that the connection broke
#     Assign                         BecomeLeader, or StorageFailed
#     MoveLogStart, ExpireLog        LogStartMoved; none if an ExpireLog finds nothing to delete
#     MeasureFetch(ticket)           FetchMeasured(ticket)
#     WakeMe(at_ms)                  Tick
#     Reply, ReplyFetched, ...       -
#     Remove                         RemoveFailed, or none
#     Configure, CleanLog            -
#
# Received, Disconnected, Started and Reassign come from outside. A node takes one input at a time, so nothing
# happens between the reading of its state and the decision.

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Generic, NamedTuple, TypeVar

import attrs

from fencepost.journal.cleaning import CleaningRules
from fencepost.journal.indexes import AbortedRange, ProducerSnapshot
from fencepost.protocol.batches import BatchHeader, Buffer
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.messages import Fetch, ListOffsets, ReplyBody, Request
from fencepost.protocol.terms import NEWEST_VERSION, NO_OFFSET, NO_TOPIC_ID, TopicPartition
from fencepost.protocol.values import value


class ReplyTo(NamedTuple):
    """The receiver of a reply: a connection of this node, and the correlation id of the request.

    A tuple, since hosts and judges look it up often.
    """

    connection: int
    correlation_id: int


NODE: Final = -1
"""The connection of a message that this node sent to itself; its correlation id is the token of the Send."""

NOBODY: Final = ReplyTo(-2, 0)
"""The receiver of a reply that is discarded, because a fault has delivered its request a second time."""


# --- Input: to a node ------------------------------------------------------------------------------------


@value
class Received:
    """A request from a client or a node; `version` is Kafka's version of this request. `client_id` is the
    name of the client, and `client_host` its address.
    """

    request: Request
    to: ReplyTo
    version: int = NEWEST_VERSION
    client_id: str = ""
    client_host: str = ""
    from_node: int | None = None  # None: from a client


@value
class Answered:
    """The reply to a Send, or NETWORK_EXCEPTION if the connection broke before it arrived."""

    token: int
    error: ErrorCode
    body: ReplyBody | None


@value(kw_only=True)
class BecomeLeader:
    """This node leads the partition from now on. `batches` is its log from the snapshot's offset on."""

    partition: TopicPartition
    leader_epoch: int
    log_start_offset: int = 0
    oldest_offset: int = 0  # base offset of the oldest batch; DeleteRecords may set the log start after it
    batch_start: int = 0  # base offset of the batch that contains the log start
    snapshot: tuple[int, tuple[ProducerSnapshot, ...]] | None = None
    is_restart: bool = False  # the same node led it before its process ended, and has read the log again
    batches: Iterable[tuple[BatchHeader, Buffer]] = ()


@value(kw_only=True)
class ResignLeader:
    """This node no longer leads the partition."""

    partition: TopicPartition


@value
class Durable:
    """The partition's log is durable up to `offset` (exclusive), as the sync policy defines it."""

    partition: TopicPartition
    offset: int


@value
class LogStartMoved:
    """The result of a MoveLogStart; `batch_start` is the base offset of the batch with the new log start."""

    order: MoveLogStart
    batch_start: int = attrs.field(kw_only=True)
    error: ErrorCode = attrs.field(kw_only=True)


@value
class FetchMeasured:
    """The result of a MeasureFetch: the bytes that the Fetch with this ticket can read of each partition."""

    ticket: int
    sizes: tuple[tuple[TopicPartition, int], ...]


@value(kw_only=True)
class StorageFailed:
    """An append or a sync of this log failed; batches that were not durable may or may not survive. If the
    log `needs_operator`, because it is damaged or cannot be accessed, reading it again would not help.
    """

    partition: TopicPartition
    needs_operator: bool = False


@value(kw_only=True)
class RemoveFailed:
    """The files of this deleted partition are still there. The next start tries again to delete them."""

    partition: TopicPartition


@value(kw_only=True)
class Disconnected:
    """The connection is closed; its parked requests can be discarded."""

    connection: int


@value(kw_only=True)
class Started:
    """The host has started: register with the controller, which gives the partitions new leader epochs."""

    node_id: int


@value(kw_only=True)
class Tick:
    """Time has passed: handle the deadlines that are due."""


@value(kw_only=True)
class Reassign:
    """To the controller's node: make another node lead this partition (Kafka's reassignment tool)."""

    partition: TopicPartition
    node_id: int


Input = (
    Received | Answered | BecomeLeader | ResignLeader | Durable | LogStartMoved | FetchMeasured
    | StorageFailed | RemoveFailed | Disconnected | Started | Tick | Reassign
)  # fmt: skip


# --- Append and Effect: from a node ----------------------------------------------------------------------


@value
class Append:
    """One batch for one log, with its base offset set; `aborted` is for the index of aborted transactions."""

    partition: TopicPartition
    header: BatchHeader
    batch: Buffer = attrs.field(repr=False)
    leader_epoch: int
    aborted: AbortedRange | None = None


@value
class Reply:
    """Answer a request: an error for all of it, or a body."""

    to: ReplyTo
    body: ReplyBody | None = None
    error: ErrorCode = attrs.field(kw_only=True, default=NO_ERROR)


@value(kw_only=True)
class FetchPlan:
    """The range of one partition that a Fetch may see: the host reads the bytes before offset `before`."""

    partition: TopicPartition
    error: ErrorCode = NO_ERROR  # with an error all offsets of the reply are -1, as in Kafka
    fetch_offset: int
    before: int = NO_OFFSET
    max_bytes: int
    high_watermark: int = NO_OFFSET
    last_stable_offset: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET


@value
class ReplyFetched:
    """Answer a Fetch with the bytes of these plans."""

    to: ReplyTo
    plans: tuple[FetchPlan, ...] = attrs.field(kw_only=True)
    request: Fetch = attrs.field(kw_only=True)
    max_bytes: int = attrs.field(kw_only=True)


@value(kw_only=True)
class MeasureFetch:
    """Report with this ticket how many bytes each plan can read; `enough` for one that can be answered."""

    ticket: int
    plans: tuple[FetchPlan, ...]
    enough: int


@value(kw_only=True)
class OffsetPlan:
    """One partition of a ListOffsets: an offset and its leader epoch. With `is_lookup` the host asks the
    log: for the epoch of a known offset, or for the first record at or after the timestamp, if that is before
    offset `before`.
    """

    partition: TopicPartition
    error: ErrorCode
    offset: int
    leader_epoch: int
    timestamp: int
    before: int
    is_lookup: bool


@value
class ReplyListed:
    """Answer a ListOffsets; the time index of the journal resolves the lookups."""

    request: ListOffsets
    to: ReplyTo
    plans: tuple[OffsetPlan, ...] = attrs.field(kw_only=True)


@value(kw_only=True)
class EpochPlan:
    """One partition of an OffsetForLeaderEpoch: a known end, or an epoch to look up in the log."""

    partition: TopicPartition
    error: ErrorCode
    leader_epoch: int
    end_offset: int
    is_lookup: bool = False


@value
class ReplyEpochEnds:
    """Answer an OffsetForLeaderEpoch; the journal resolves the lookups."""

    to: ReplyTo
    plans: tuple[EpochPlan, ...] = attrs.field(kw_only=True)


@value(kw_only=True)
class MoveLogStart:
    """Delete the records before an offset. LogStartMoved reports back with this ticket and index; an order of
    retention has no ticket.
    """

    partition: TopicPartition
    offset: int
    ticket: int | None = None
    index: int = 0


@value(kw_only=True)
class ExpireLog:
    """Delete the oldest segments below offset `before` that are beyond a retention limit; -1: no limit."""

    partition: TopicPartition
    before: int
    retention_ms: int
    retention_bytes: int


@value(kw_only=True)
class CleanLog:
    """Compact the log, if enough of it is dirty; first begin a new segment if the active one has
    `active_bytes_max` bytes or more.
    """

    partition: TopicPartition
    active_bytes_max: int
    rules: CleaningRules = attrs.field(repr=False)


@value
class Send:
    """Send a request to a node, perhaps this one. The reply arrives as Answered with the same token."""

    node_id: int
    request: Request
    token: int
    version: int = NEWEST_VERSION


@value(kw_only=True)
class Assign:
    """The controller made this node the leader under this epoch. The host loads the log and answers with
    BecomeLeader. If `is_new`, files that are already there belong to an older topic of this name. `topic_id`
    is NO_TOPIC_ID for the cluster's metadata.
    """

    partition: TopicPartition
    leader_id: int
    leader_epoch: int
    topic_id: bytes = NO_TOPIC_ID
    is_new: bool = False
    was_leader: bool = False  # under the previous epoch, too


@value(kw_only=True)
class Remove:
    """The controller deleted the partition: delete its files."""

    partition: TopicPartition
    topic_id: bytes


@value(kw_only=True)
class Configure:
    """Settings of the partition's topic changed: its log follows them from now on."""

    partition: TopicPartition


MetadataChange = Assign | Remove | Configure
"""A change in the metadata log on which the leader of a partition acts, once it is durable."""


@value
class WakeMe:
    """Send a Tick at this time (milliseconds). An earlier Tick does no harm."""

    at_ms: int


@value
class Warn:
    """A message for the operator, about an input whose sender expects no reply."""

    because: str


Effect = (
    Reply | ReplyFetched | MeasureFetch | ReplyListed | ReplyEpochEnds | MoveLogStart | ExpireLog | CleanLog
    | Send | Assign | Remove | Configure | WakeMe | Warn
)  # fmt: skip


@value
class Refused:
    """A refused request: the error for the caller, and the reason in words. `source` is the KIP or Kafka's
    class that says so, `table` the table that was read.
    """

    error: ErrorCode
    because: str = ""
    source: str = attrs.field(kw_only=True, default="")
    table: str = attrs.field(kw_only=True, default="")


class Ruling(NamedTuple):
    """A rule by which a request, or its part for one partition, was refused. A duplicate is refused with
    NO_ERROR: its reply is that of the first attempt.
    """

    to: ReplyTo
    refused: Refused
    table: str
    """The table with the rule; "" for a rule that stands in no table."""
    partition: TopicPartition | None = None


Entry = TypeVar("Entry")


@value
class Decision(Generic[Entry]):
    """A coordinator's decision; nothing has changed yet.

    `entries` go into its log as one batch. `effects` wait until the log is durable, including everything that
    the decision was based on. `note` is remembered until the process ends.
    """

    entries: tuple[Entry, ...] = ()
    effects: tuple[Effect, ...] = ()
    note: Any = None


@attrs.define
class Outcome:
    """The result of one step; the host performs the appends in order, then the effects in order. `rulings`
    say why requests were refused, for observers.
    """

    appends: list[Append]
    effects: list[Effect]
    rulings: list[Ruling]
