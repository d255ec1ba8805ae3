"""The one stream of events of a world: what happened, as typed values, dispatched to those who subscribed.

Theory of operation. A world has one `EventStream`. The network, the nodes, the processes and the fault
injector publish; the recorder, the judges, the protocol events and tests subscribe to exactly the types that
they need. Everything that wants to know what a run does is such a subscriber:

    network ──┐                         ┌── Recorder ──────── History ── pictures, tables
    nodes ────┤                         ├── Invariants ────── Violation
    processes ┼──▶ EventStream ──────▶──┤
    faults ───┘   (dispatch by type)    ├── ProtocolEvents ── points ── FaultInjector
                                        └── LateMessages, tests ...

Three rules make it cheap and safe:

* A publisher asks `Type in stream.heard` before it builds an event. A type without subscribers costs one
  dictionary lookup, so a run without a recorder is as fast as one without a stream.
* Subscribers of one type are called in the order of their subscription, at once, in the middle of what
  happens. A judge raises Violation there, before anything of the step is written or sent.
* A subscriber may look at everything and changes nothing. The exceptions are the faults: they hold a message
  in `MessageArriving`, or kill a node around an act (`ActBegins`, `ActDone`), which is what they are for.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from fencepost.protocol.values import value

if TYPE_CHECKING:
    from fencepost.broker.contract import Append, Effect, Input, Outcome, ReplyTo
    from fencepost.broker.host import Host
    from fencepost.client.effects import Resolve
    from fencepost.client.group_member import GroupMember
    from fencepost.protocol.batches import BatchHeader
    from fencepost.protocol.messages import FetchReply, ListOffsetsReply
    from fencepost.protocol.offsets_log import OffsetKey
    from fencepost.protocol.terms import TopicPartition
    from fencepost.simulator.world.network import Channel, Message, ReplyMessage
    from fencepost.simulator.world.nodes import SimulatedNode
    from fencepost.simulator.world.processes import ClientProcess

Kind = TypeVar("Kind")


# --- messages -----------------------------------------------------------------------------------------------


@value
class MessageSent:
    """A message left its sender."""

    channel: Channel
    message: Message


@value
class MessageArriving:
    """A message reached its target and was not taken yet; `Network.hold` keeps it from that."""

    channel: Channel
    message: Message


@value
class MessageTaken:
    """The target takes a message."""

    channel: Channel
    message: Message


@value
class MessageLost:
    """A message will never be taken."""

    channel: Channel
    message: Message
    because: str


@value
class ReplyDiscarded:
    """A node replied on a connection that its caller has closed."""

    channel: Channel
    message: ReplyMessage


# --- nodes --------------------------------------------------------------------------------------------------


@value
class NodeStepped:
    """A node took an input and decided; nothing of the outcome is written or sent yet."""

    node: SimulatedNode
    arrived: Input
    outcome: Outcome


@value
class LogWritten:
    """The world itself wrote a batch into a log while no node was up (`World.age_identities`)."""

    partition: TopicPartition
    header: BatchHeader
    batch: bytearray


@value
class LogDeleted:
    """A log was deleted with its topic, or set aside."""

    partition: TopicPartition


@value
class ActBegins:
    """A node is about to write one append or to perform one effect."""

    node: SimulatedNode
    act: Append | Effect


@value
class ActDone:
    """A node wrote one append or performed one effect."""

    node: SimulatedNode
    act: Append | Effect


@value
class FetchReplied:
    node: SimulatedNode
    reply: FetchReply


@value
class OffsetsListed:
    """A node replies to a ListOffsets with what it looked up."""

    node: SimulatedNode
    to: ReplyTo
    reply: ListOffsetsReply


@value
class NodeKilled:
    """A node was killed; `host` is what it was, and its logs are still open."""

    node: SimulatedNode
    host: Host
    power_is_lost: bool


@value
class DamageNoticed:
    """A node or a client found out that a disk is damaged, in a way that no other event reports."""


@value
class DiskFailed:
    """An operation ("append", "sync") failed on the disk of this partition's directory."""

    operation: str
    directory: str


# --- participants: nodes and client processes ---------------------------------------------------------------


class Life(Enum):
    """What can happen to a participant as a whole."""

    STARTS = "starts"
    ENDS = "ends"
    CRASHES = "crashes"
    RESTARTS = "restarts"
    PAUSES = "pauses"
    RESUMES = "resumes"
    DIES = "dies"


@value
class LifeChanged:
    """A participant started, ended, crashed ..."""

    participant: str
    change: Life


@value
class CallEnded:
    """A client's call has ended: init, commit, abort or flush."""

    process: ClientProcess
    resolved: Resolve


@value
class OffsetsAcknowledged:
    """A client's commit succeeded, so these offsets are now those of their group, or soon will be. The
    identity is that of the transaction.
    """

    participant: str
    producer_id: int
    producer_epoch: int
    offsets: tuple[tuple[OffsetKey, int], ...]


@value
class PartitionsAdded:
    process: ClientProcess
    member: GroupMember
    partitions: tuple[TopicPartition, ...]


@value
class CallBegan:
    """A scripted client begins a line of its script; `label` is that line."""

    participant: str
    label: str


@value
class RecordsRead:
    """A scripted consumer read these values of a partition."""

    participant: str
    partition: str
    values: tuple[str, ...]


@value
class FaultStruck:
    """A fault struck; published before its effect. `participant` is "" for the network, `message` is what the
    fault holds or loses.
    """

    participant: str
    label: str
    message: Message | None = None


@value
class FaultEnded:
    """The effect of a fault is undone; published before that happens."""

    participant: str
    label: str
    message: Message | None = None


# --- the stream ---------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class EventStream:
    """Subscribers by the type of event. `heard` holds only types that have a subscriber."""

    heard: dict[type, tuple[Callable[[Any], None], ...]] = attrs.Factory(
        dict[type, tuple[Callable[[Any], None], ...]]
    )

    def subscribe(self, kind: type[Kind], hear: Callable[[Kind], None]) -> None:
        """From now on `hear` is called with each event of this type, after those who subscribed before."""
        # A new tuple each time: a subscriber may come or go while an event is being published.
        self.heard[kind] = (*self.heard.get(kind, ()), hear)

    def unsubscribe(self, kind: type[Kind], hear: Callable[[Kind], None]) -> None:
        """From now on `hear` is no longer called."""
        left = tuple(each for each in self.heard.get(kind, ()) if each != hear)
        if left:
            self.heard[kind] = left
        else:
            self.heard.pop(kind, None)

    def publish(self, event: object) -> None:
        """Call everyone who subscribed to events of this type."""
        for hear in self.heard.get(type(event), ()):
            hear(event)
