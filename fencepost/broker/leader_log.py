"""A log that a node leads: its partition, the coordinator on top, and the effects that wait for it.

Rule: the effects are notes. A restart forgets them, and the clients retry.
"""

from __future__ import annotations

from collections import deque
from typing import Annotated, Generic, TypeVar

import attrs

from fencepost.broker.cluster.controller import Controller
from fencepost.broker.contract import Effect, Reply
from fencepost.broker.groups.state import Groups
from fencepost.broker.partitions.partition import Partition
from fencepost.broker.transactions.state import Transactions
from fencepost.protocol import messages as m
from fencepost.protocol.fork import Rank
from fencepost.protocol.terms import TopicPartition
from fencepost.protocol.values import value

Above_co = TypeVar("Above_co", bound=Transactions | Groups | Controller | None, covariant=True)

Ticket = Annotated[int, Rank("ticket")]
"""Identifies a reply of several parts. Only the order of tickets matters (protocol/fork.py)."""

Part = m.ProducedPartition | m.PartitionError | m.DeletedRecords
"""One partition's part of a reply about several."""


@value
class Collect:
    """Effect inside the node: one partition's part of a reply that spans several is ready."""

    ticket: Ticket
    index: int
    result: Part


@value
class AfterAll:
    """Effect inside the node: send the reply when all of these logs are durable as far as it needs."""

    keys: tuple[TopicPartition, ...]
    reply: Reply


Inner = Effect | Collect | AfterAll


@attrs.define(eq=False)
class CoordinatorLog(Generic[Above_co]):
    """A partition that this node leads, the coordinator on top, and the effects that wait for durability."""

    partition: Partition
    coordinator: Above_co
    waiting: deque[tuple[int, tuple[Inner, ...]]] = attrs.Factory(deque[tuple[int, tuple[Inner, ...]]])


Coordinator = Transactions | Groups | Controller | None
LeaderLog = CoordinatorLog[Coordinator]
TransactionLog = CoordinatorLog[Transactions]
GroupLog = CoordinatorLog[Groups]
