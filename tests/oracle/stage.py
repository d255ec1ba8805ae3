"""Where a conversation is played: what a player needs of a cluster, however that is made.

Rule: the player knows no clock and no socket; a stage knows no conversation.
"""

from __future__ import annotations

from typing import Protocol

from fencepost.broker.contract import Reply
from fencepost.protocol.messages import Request
from fencepost.protocol.terms import TopicPartition


class NoAnswer(Exception):
    """Nobody answered: the broker is gone, or does not do what it was asked to; the message says which."""


class Stage(Protocol):
    """A cluster that starts empty, with its internal topics."""

    @property
    def now_ms(self) -> int: ...

    @property
    def is_kafka(self) -> bool:
        """Whether it is asked in Kafka's bytes, records included."""
        ...

    def ask(self, request: Request, *, version: int, about: TopicPartition | None = None) -> Reply | None:
        """Put a request to the coordinators' node, or to the leader of the partition that it is `about`.

        None for a Produce with acks 0; NoAnswer when there is none in any sensible time.
        """
        ...

    def begin(self, request: Request, *, version: int, about: TopicPartition | None = None) -> int:
        """Put a request and go on without its answer, whose number is returned."""
        ...

    def finish(self, number: int) -> Reply:
        """The answer, as soon as it is there."""
        ...

    def create_topic(self, topic: str, partitions: int, *, held: bool) -> bytes:
        """Its id."""
        ...

    @property
    def is_settled(self) -> bool:
        """Nothing is in PREPARE, as far as can be while leaders are held."""
        ...

    def let_pass(self, duration_ms: int, *, until_settled: bool = False) -> None:
        """Time goes by; whatever is due happens."""
        ...

    def skip_to_epoch(self, transactional_id: str, epoch: int) -> None:
        """As if InitProducerId had raised the epoch of an id to this one, by one at a time."""
        ...

    def hold(self) -> None: ...

    def release(self) -> None: ...

    def kill_and_restart(self) -> None: ...
