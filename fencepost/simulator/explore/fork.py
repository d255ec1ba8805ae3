"""What a search over a node's possible futures needs: a copy to go on from, and a key to know a state again.

Rule: two nodes with equal keys act alike, but for the numbers of tickets, tokens and guards that they will
choose: those count by their order alone, so that worlds that differ in nothing else are one world.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import attrs

from fencepost.broker.cluster.controller import METADATA_PARTITION, Controller
from fencepost.broker.contract import Outcome
from fencepost.broker.groups.state import Groups
from fencepost.broker.node import Node
from fencepost.broker.purgatory import Asked, AskedToAdd, AskedToAddOffsets, Collect, Coordinator, Inner, Log
from fencepost.broker.transactions.state import Transactions
from fencepost.protocol.terms import CONSUMER_OFFSETS_TOPIC, TopicPartition, coordinator_partition

Ranks = dict[int, int]


def copy_of(node: Node) -> Node:
    """A node that goes on from here on its own; what never changes is shared."""
    logs = {key: _copy_of_log(log) for key, log in node.logs.items()}
    metadata = logs.get(METADATA_PARTITION)
    above = None if metadata is None else metadata.coordinator
    return attrs.evolve(
        node,
        logs=logs,
        # A node that leads the metadata log looks at the cluster through the coordinator on top of it.
        cluster=above if isinstance(above, Controller) else node.cluster.copy(),
        following=attrs.evolve(node.following),
        news=list(node.news),
        producer_ids=attrs.evolve(node.producer_ids),
        gatherings={
            ticket: attrs.evolve(gathering, parts=list(gathering.parts))
            for ticket, gathering in node.gatherings.items()
        },
        asked=dict(node.asked),
        fetches=dict(node.fetches),
        readers={key: set(tickets) for key, tickets in node.readers.items()},
        marker_retries=dict(node.marker_retries),
        reelections=dict(node.reelections),
        scans_at_ms=dict(node.scans_at_ms),
        movable=set(node.movable),
        outcome=Outcome([], []),
    )


def _copy_of_log(log: Log) -> Log:
    above = None if log.coordinator is None else log.coordinator.copy()
    return Log(log.partition.copy(), above, deque(log.waiting))


def key_of(node: Node) -> tuple[Any, ...]:
    """All that decides how the node will act, as a value that can be hashed."""
    tickets = {ticket: rank for rank, ticket in enumerate(sorted(node.gatherings))}
    guards = _ranks_of_guards(node)
    ids = node.producer_ids
    return (
        tuple((key, _key_of_log(node.logs[key], tickets, guards.get(key, {}))) for key in sorted(node.logs)),
        node.cluster.key_of_state() if METADATA_PARTITION not in node.logs else (),
        node.following.key(),
        tuple(node.news),
        (ids.next_id, ids.end, ids.next_block, ids.is_asked),
        tuple(
            (gathering.to, gathering.kind.__name__, tuple(gathering.parts), gathering.producer_ids)
            for _, gathering in sorted(node.gatherings.items())
        ),
        tuple(
            _key_of_asked(node, why, tickets, guards) for _, why in sorted(node.asked.items(), key=_number)
        ),
        tuple(parked for _, parked in sorted(node.fetches.items(), key=_number)),
        tuple(sorted(node.marker_retries.items())),
        tuple(sorted(node.reelections.items())),
        tuple(node.scans_at_ms.items()),
        tuple(sorted(node.movable)),
        node.wakes_at_ms,
    )


def _number(item: tuple[int, object]) -> int:
    return item[0]


def _key_of_log(log: Log, tickets: Ranks, guards: Ranks) -> tuple[Any, ...]:
    state = log.partition
    return (
        state.key_of_state(),
        tuple((number, producer.batches[:-1]) for number, producer in sorted(state.producers.items())),
        state.leader_epoch,
        state.high_watermark,
        tuple(state.unreplicated_txns),
        tuple(
            (producer, found._replace(guard=guards[found.guard]))
            for producer, found in sorted(state.verifying.items())
        ),
        _key_of_coordinator(log.coordinator),
        tuple(
            (offset, tuple(_key_of_effect(e, tickets) for e in effects)) for offset, effects in log.waiting
        ),
    )


def _key_of_coordinator(above: Coordinator | None) -> tuple[Any, ...]:
    match above:
        case Transactions():
            return (
                above.coordinator_epoch,
                above.key_of_state(),
                tuple(sorted(above.last_epochs.items())),
                tuple(sorted(above.other_ids.items())),
                tuple(sorted(above.pending.items())),
                tuple(
                    (name, tuple(sorted(pending_markers)))
                    for name, pending_markers in sorted(above.pending_markers.items())
                ),
            )
        case Groups():
            return (above.key_of_state(), above.key_of_notes())
        case Controller():
            return above.key_of_state()
        case None:
            return ()


def _key_of_effect(effect: Inner, tickets: Ranks) -> Inner:
    return attrs.evolve(effect, ticket=tickets[effect.ticket]) if isinstance(effect, Collect) else effect


# --- guards ----------------------------------------------------------------------------------------------


def _ranks_of_guards(node: Node) -> dict[TopicPartition, Ranks]:
    """The guards that somebody still holds, by partition, in the order in which they were given."""
    held: dict[TopicPartition, set[int]] = {}
    for key, log in node.logs.items():
        if log.partition.verifying:
            held[key] = {entry.guard for entry in log.partition.verifying.values()}
    for why in node.asked.values():
        for key, guard in _guards_in(node, why):
            if key in node.logs:
                held.setdefault(key, set()).add(guard)
    return {key: {guard: rank for rank, guard in enumerate(sorted(held[key]))} for key in held}


def _guards_in(node: Node, why: Asked) -> list[tuple[TopicPartition, int]]:
    match why:
        case AskedToAdd():
            return [(incoming.key, guard) for incoming, guard in why.batches]
        case AskedToAddOffsets():
            return [(_offsets_log(node, why.request.group_id), why.guard)]
        case _:
            return []


def _offsets_log(node: Node, group_id: str) -> TopicPartition:
    count = node.settings.offsets_topic_num_partitions
    return TopicPartition(CONSUMER_OFFSETS_TOPIC, coordinator_partition(group_id, count))


def _key_of_asked(node: Node, why: Asked, tickets: Ranks, guards: dict[TopicPartition, Ranks]) -> Any:
    """Guards of a partition that this node lost have nothing left to be compared with."""
    match why:
        case AskedToAdd():
            batches = (
                (
                    attrs.evolve(incoming, ticket=tickets[incoming.ticket]),
                    guards.get(incoming.key, {}).get(guard, 0),
                )
                for incoming, guard in why.batches
            )
            return ("AskedToAdd", why.spoken, tuple(batches))
        case AskedToAddOffsets():
            ranks = guards.get(_offsets_log(node, why.request.group_id), {})
            return ("AskedToAddOffsets", attrs.evolve(why, guard=ranks.get(why.guard, 0)))
        case _:
            return (type(why).__name__, why)
