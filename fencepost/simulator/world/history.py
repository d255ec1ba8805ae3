"""What happened in a world, as values: the only thing that pictures, marks and readers of a run go by.

Rule: built only when somebody watches; an event has the header of a batch, never its bytes.
Times are integer nanoseconds of the world's own clock, which no node or client can see.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs

from fencepost.protocol.batches import BatchHeader, Buffer, read_marker
from fencepost.protocol.terms import (
    CLUSTER_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    TransactionResult,
)
from fencepost.protocol.transaction_log import TransactionRecord, read_transactions
from fencepost.simulator.world.labels import batch_label

if TYPE_CHECKING:
    from fencepost.broker.partitions.partition import Partition


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
    """A fault happened, or ended: "crash", "pause", "clock +3 s"; `participant` is the one that it hit, ""
    the network.

    Its first word says what it does: "crash" and "pause" silence the participant until "restart" or
    "resume". `number` is the message that it holds, lets go or destroys.
    """

    at: int
    participant: str = attrs.field(kw_only=True)
    label: str = attrs.field(kw_only=True)
    number: int | None = attrs.field(default=None, kw_only=True)


Event = Sent | Arrived | Lost | Appended | Bounded | Truncated | Coordinated | Called | Struck


@attrs.frozen(kw_only=True)
class History:
    """A whole run. `participants` are clients and nodes in the order of their lanes in a drawing, `end` is
    its last time, `lesson` what it teaches, `broken` each rule that it broke, with its evidence.
    """

    title: str
    participants: tuple[str, ...]
    events: tuple[Event, ...] = attrs.field(repr=lambda events: f"<{len(events)} events>")
    end: int
    lesson: str = ""
    broken: tuple[str, ...] = ()


# --- how a log becomes events -------------------------------------------------------------------------------


def written(
    at: int, node: str, partition: TopicPartition, header: BatchHeader, batch: Buffer
) -> Iterator[Appended | Coordinated]:
    """What shows that a node wrote a batch: the states of transactions that are in it, or the batch itself.
    Metadata of the cluster is not shown.
    """
    if partition.topic == TRANSACTION_STATE_TOPIC:
        for name, record in read_transactions(batch, header):
            if record is not None:
                yield Coordinated(at=at, node=node, transactional_id=name, record=record)
    elif partition.topic != CLUSTER_METADATA_TOPIC:
        yield Appended(
            at=at,
            node=node,
            partition=partition,
            header=header,
            result=read_marker(batch).result if header.is_control else None,
            label=batch_label(partition, header, batch),
        )


def moved(
    at: int, node: str, partition: Partition, known: dict[TopicPartition, tuple[int, int]]
) -> Iterator[Bounded]:
    """What shows that the bounds of a partition are no longer those that are `known`, which are changed."""
    bounds = partition.last_stable_offset, partition.high_watermark
    if known.get(partition.key, (0, 0)) != bounds:
        known[partition.key] = bounds
        yield Bounded(
            at=at, partition=partition.key, last_stable_offset=bounds[0], high_watermark=bounds[1], node=node
        )
