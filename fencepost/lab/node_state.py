"""The state of nodes as the lab shows it: logs, producers, transactions, and what of it a step changed.

    log/t-0         {"start", "end", "lso", "hw", "leader", "leader_epoch"}
    producer/t-0/7  {"epoch", "last_sequence", "batches": [[first, last], ...], "open_since", "guard",
                     "coordinator_epoch"}; `batches` are the sequences of the cached ones
    txn/app         {"state", "producer", "epoch", "partitions", "pending", "timeout_ms", "node"}

Of several nodes that believe that they lead a partition, the one with the newest leader epoch counts: the
journal refuses all others.

Rule: it only reads. What has not changed is recognised by identity, so a look after every step stays cheap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import attrs

from fencepost.broker.contract import Answered, BecomeLeader, Input, Outcome, Received, Started, Tick
from fencepost.broker.leader_log import LeaderLog
from fencepost.broker.node import Node
from fencepost.broker.partitions.partition import UNKNOWN_PRODUCER, ProducerEntry, Verification
from fencepost.broker.transactions.state import Transactions
from fencepost.protocol.messages import Produce, WriteTxnMarkers
from fencepost.protocol.terms import CLUSTER_METADATA_TOPIC, NO_OFFSET, TopicPartition
from fencepost.protocol.transaction_log import TransactionRecord

Json = Any
Changes = dict[str, Json]
"""New values by key; None for a key that is gone."""

PARTITIONS_SHOWN: Final = 100  # of one transaction
_UNSHOWN: Final = frozenset({CLUSTER_METADATA_TOPIC})


@attrs.define(eq=False)
class LedLog:
    """One log at one node, as it was when it was looked at. `state` has its keys."""

    leader_epoch: int = -1
    bounds: tuple[int, ...] = ()
    producers: dict[int, tuple[ProducerEntry, Verification | None]] = attrs.Factory(
        dict[int, tuple[ProducerEntry, Verification | None]]
    )
    transactions: dict[str, tuple[TransactionRecord, frozenset[TopicPartition] | None]] = attrs.Factory(
        dict[str, tuple[TransactionRecord, frozenset[TopicPartition] | None]]
    )
    state: Changes = attrs.Factory(dict[str, Any])

    def look(self, name: str, log: LeaderLog) -> bool:
        """Read what has changed; return whether anything has."""
        changes = dict(self._changes(name, log))
        self.leader_epoch = log.partition.leader_epoch
        for key, value in changes.items():
            if value is None:
                self.state.pop(key, None)
            else:
                self.state[key] = value
        return bool(changes)

    def _changes(self, name: str, log: LeaderLog) -> Iterator[tuple[str, Json]]:
        state = log.partition
        bounds = (
            state.log_start_offset,
            state.log_end_offset,
            state.last_stable_offset,
            state.high_watermark,
            state.leader_epoch,
        )
        if bounds != self.bounds:
            self.bounds = bounds
            named = dict(zip(("start", "end", "lso", "hw", "leader_epoch"), bounds, strict=True))
            yield f"log/{state.key}", {**named, "leader": name}
        yield from self._producers(log)
        if isinstance(log.coordinator, Transactions):
            yield from self._transactions(name, log.coordinator)

    def _producers(self, log: LeaderLog) -> Iterator[tuple[str, Json]]:
        known, state = self.producers, log.partition
        for number in {**state.producers, **state.verifying}:
            seen = (state.producers.get(number, UNKNOWN_PRODUCER), state.verifying.get(number))
            before = known.get(number)
            if before is None or before[0] is not seen[0] or before[1] is not seen[1]:
                known[number] = seen
                yield f"producer/{state.key}/{number}", _producer(*seen)
        if len(known) > len(state.producers):
            for number in known.keys() - state.producers.keys() - state.verifying.keys():
                del known[number]
                yield f"producer/{state.key}/{number}", None

    def _transactions(self, name: str, coordinator: Transactions) -> Iterator[tuple[str, Json]]:
        known = self.transactions
        for transactional_id, record in coordinator.records.items():
            waiting = coordinator.pending_markers.get(transactional_id)
            before = known.get(transactional_id)
            if before is None or before[0] is not record or before[1] != waiting:
                known[transactional_id] = (record, None if waiting is None else frozenset(waiting))
                yield f"txn/{transactional_id}", transaction_state(name, *known[transactional_id])
        if len(known) > len(coordinator.records):
            for transactional_id in known.keys() - coordinator.records.keys():
                del known[transactional_id]
                yield f"txn/{transactional_id}", None


def _producer(entry: ProducerEntry, verification: Verification | None) -> Json:
    since = entry.current_txn_first_offset
    return {
        "epoch": entry.producer_epoch,
        "last_sequence": entry.last_sequence,
        "batches": [[batch.first_sequence, batch.last_sequence] for batch in entry.batches],
        "open_since": None if since == NO_OFFSET else since,
        "guard": None if verification is None else "verifying",
        "coordinator_epoch": entry.coordinator_epoch,
    }


def transaction_state(
    name: str, record: TransactionRecord, waiting: frozenset[TopicPartition] | None = None
) -> Json:
    """The value of a `txn/` key: a transaction at its coordinator, the node `name`. `waiting`: the partitions
    whose markers are missing; None where that is not known.
    """
    # Until the decision is durable no marker is sent, so all of them are missing.
    missing = record.partitions if waiting is None and record.state.is_prepared else (waiting or ())
    return {
        "state": record.state.title,
        "producer": record.producer_id,
        "epoch": record.producer_epoch,
        "partitions": _named(record.partitions),
        "pending": _named(sorted(missing)),
        "timeout_ms": record.timeout_ms,
        "node": name,
    }


def _named(partitions: Sequence[TopicPartition]) -> list[str]:
    """The first partitions, and how many more there are: a transaction may have thousands."""
    more = len(partitions) - PARTITIONS_SHOWN
    names = [str(where) for where in partitions[:PARTITIONS_SHOWN]]
    return [*names, f"and {more:,} more"] if more > 0 else names


@attrs.define(eq=False)
class ClusterState:
    nodes: dict[str, dict[TopicPartition, LedLog]] = attrs.Factory(dict[str, dict[TopicPartition, LedLog]])
    shown: dict[TopicPartition, Changes] = attrs.Factory(dict[TopicPartition, dict[str, Any]])

    def stepped(
        self, name: str, node: Node, touched: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Changes]:
        """What a node's step changed, by log. `touched`: look only at these logs (`touched_by`); None: at
        every one.
        """
        known = self.nodes.setdefault(name, {})
        wanted = {*known, *node.logs} if touched is None else touched
        moved: list[TopicPartition] = []
        for where in wanted:
            log = node.logs.get(where)
            if where.topic in _UNSHOWN:
                continue
            if log is None:
                if known.pop(where, None) is not None:
                    moved.append(where)
                continue
            led = known.get(where)
            if led is None:
                led = known[where] = LedLog()
            is_new = led.leader_epoch != log.partition.leader_epoch
            if led.look(name, log) or is_new:
                moved.append(where)
        return {where: changes for where in moved if (changes := self._shown(where))}

    def stopped(self, name: str) -> dict[TopicPartition, Changes]:
        """What is gone with a node: everything that it led, unless another node leads it, too."""
        lost = self.nodes.pop(name, {})
        return {where: changes for where in lost if (changes := self._shown(where))}

    def _shown(self, where: TopicPartition) -> Changes:
        """What changed of a log at its newest leader."""
        leaders = [led[where] for led in self.nodes.values() if where in led]
        newest = max(leaders, key=lambda led: led.leader_epoch, default=None)
        before, after = self.shown.get(where, {}), {} if newest is None else dict(newest.state)
        self.shown[where] = after
        changes = {key: value for key, value in after.items() if before.get(key) is not value}
        changes.update(dict.fromkeys(before.keys() - after.keys()))
        return changes


@attrs.define(eq=False)
class UnwrittenChanges:
    """Changes of logs that wait until the appends of their step are written: a node changes its state before
    that. `waiting`: by node and log, with how many appends are missing.
    """

    waiting: dict[tuple[str, TopicPartition], tuple[Changes, int]] = attrs.Factory(
        dict[tuple[str, TopicPartition], tuple[dict[str, Any], int]]
    )

    def decided(self, name: str, where: TopicPartition, changes: Changes, outcome: Outcome) -> Changes:
        """A step of a node changed a log; returns what can be shown at once. A host writes all appends of a
        step before the next one, so what still waits will never be written.
        """
        before, _ = self.waiting.pop((name, where), ({}, 0))
        appends = sum(append.partition == where for append in outcome.appends)
        if not appends:
            return before | changes
        self.waiting[name, where] = (before | changes, appends)
        return {}

    def written(self, name: str, where: TopicPartition) -> Changes:
        """A node has written an append; returns what can be shown now that its step has no other."""
        changes, appends = self.waiting.pop((name, where), ({}, 1))
        if appends == 1:
            return changes
        self.waiting[name, where] = (changes, appends - 1)
        return {}

    def forget(self, name: str) -> None:
        """The node died before it wrote the rest."""
        for at in [at for at in self.waiting if at[0] == name]:
            del self.waiting[at]


def touched_by(arrived: Input, outcome: Outcome) -> set[TopicPartition] | None:
    """The logs whose state a step may have changed; None: any of them. For a node with many logs."""
    if isinstance(arrived, Tick | Started | Answered | BecomeLeader):
        return None
    found = {append.partition for append in outcome.appends}
    where: object = getattr(arrived, "partition", None)
    if isinstance(where, TopicPartition):
        if where.topic == CLUSTER_METADATA_TOPIC:  # what becomes durable there may delete any topic
            return None
        found.add(where)
    if isinstance(arrived, Received):
        request = arrived.request
        if isinstance(request, Produce):
            found.update(TopicPartition(part.topic, part.partition) for part in request.partitions)
        elif isinstance(request, WriteTxnMarkers):
            found.update(where for marker in request.markers for where in marker.partitions)
    return found
