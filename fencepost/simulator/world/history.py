"""What happened in a world, as values: the only thing that pictures, marks and readers of a run go by.

Rule: built only when somebody watches; an event has the header of a batch, never its bytes.
Times are integer nanoseconds of the world's own clock, which no node or client can see.
"""

from __future__ import annotations

import attrs

from fencepost.protocol.batches import BatchHeader
from fencepost.protocol.terms import TopicPartition, TransactionResult
from fencepost.protocol.transaction_log import TransactionRecord


@attrs.frozen
class Sent:
    """A message left; `number` is its own, and `label` says what it is: "Produce t-0 a 5/0", "EndTxn NONE".

    `answers` is the number of the request to which it is the reply.
    """

    at: int
    number: int = attrs.field(kw_only=True)
    source: str = attrs.field(kw_only=True)
    target: str = attrs.field(kw_only=True)
    label: str = attrs.field(kw_only=True)
    answers: int | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class Arrived:
    """The message with this number reached its target."""

    at: int
    number: int


@attrs.frozen
class Lost:
    """The message with this number never arrives: its connection or its receiver is gone."""

    at: int
    number: int
    because: str = attrs.field(kw_only=True)


@attrs.frozen(kw_only=True)
class Appended:
    """A batch entered a partition's log: `result` for a control marker, `label` for what is in another batch,
    for people ("a b").
    """

    at: int
    node: str
    partition: TopicPartition
    header: BatchHeader
    result: TransactionResult | None
    label: str


@attrs.frozen(kw_only=True)
class Bounded:
    """What readers of a partition may see has moved at its leader, `node`."""

    at: int
    partition: TopicPartition
    last_stable_offset: int
    high_watermark: int
    node: str = ""


@attrs.frozen(kw_only=True)
class Truncated:
    """A partition's log came back from a restart without what was not durable: it ends at `next_offset`
    now.
    """

    at: int
    node: str
    partition: TopicPartition
    next_offset: int


@attrs.frozen(kw_only=True)
class Coordinated:
    """A transaction has entered a state at its coordinator."""

    at: int
    node: str
    transactional_id: str
    record: TransactionRecord


@attrs.frozen
class Called:
    """A client's process began something, or learned how it ended: "commit", "commit: ok", "fenced"."""

    at: int
    participant: str = attrs.field(kw_only=True)
    label: str = attrs.field(kw_only=True)


@attrs.frozen
class Struck:
    """A fault happened, or ended: "crash", "pause", "clock +3 s"; `lane` is who it hit, "" for the network.

    Its first word says what it does: "crash" and "pause" silence the lane until "restart" or "resume".
    `number` is the message that it holds, lets go or destroys.
    """

    at: int
    participant: str = attrs.field(kw_only=True)
    label: str = attrs.field(kw_only=True)
    number: int | None = attrs.field(default=None, kw_only=True)


Event = Sent | Arrived | Lost | Appended | Bounded | Truncated | Coordinated | Called | Struck


@attrs.frozen(kw_only=True)
class History:
    """A whole run. `lanes` are clients and nodes in the order of the drawing, `end` is its last
    time, `lesson` what it teaches, `broken` each rule that it broke, with its evidence.
    """

    title: str
    participants: tuple[str, ...]
    events: tuple[Event, ...] = attrs.field(repr=lambda events: f"<{len(events)} events>")
    end: int
    lesson: str = ""
    broken: tuple[str, ...] = ()
