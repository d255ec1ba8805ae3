"""One partition that a consumer reads: its positions, what was fetched, and what is pending.

Rule: a position advances only over records that were returned to the application or must never be returned.
"""

# A partition has two offsets, because the consumer fetches ahead of the reader:
#
#         log        | 0 1 2 3 4 5 6 7 8 9 ...
#                          ^       ^
#                  position       fetch_offset       `fetched` holds 2 to 5, not yet returned by poll()
#
# `ConsumerMachine.take` returns what is in `fetched` and moves `position`; `commit` without arguments commits
# `position`. So a commit never covers records that the application has not seen.
#
# A program that takes polled records one by one has seen less than poll() has returned, and the fetch ahead
# may move `position` meanwhile, over aborted records. Until its loop ends, `iterated` is what it has seen.
#
# Stale replies. A seek, a reset or a new assignment may overtake a fetch or a lookup that is in flight. The
# state has the token of its fetch and the number of its lookup; `forget` clears both, and a reply that
# matches neither is dropped. Nothing has to be cancelled on the wire.

from __future__ import annotations

import attrs

from fencepost.client.consumer_records import Selection
from fencepost.client.errors import Failure
from fencepost.client.group_offsets import OffsetAndMetadata
from fencepost.client.retries import CallNumber
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.fork import Due, Ignored, Pace
from fencepost.protocol.terms import NO_LEADER_EPOCH, TopicPartition


@attrs.define(eq=False)
class TopicPartitionState:
    """One assigned partition (Kafka: SubscriptionState.TopicPartitionState)."""

    partition: TopicPartition
    position: int | None = attrs.field(default=None, kw_only=True)
    """The offset of the next record for the application; None until it is known."""
    leader_epoch: int = attrs.field(default=NO_LEADER_EPOCH, kw_only=True)
    """That of the record before `position`; -1 if it is not known, and then nothing can be checked."""
    valid_in_epoch: int = attrs.field(default=NO_LEADER_EPOCH, kw_only=True)
    """The leader epoch of the leader whose log had the records before `position`."""
    iterated: int | None = attrs.field(default=None, kw_only=True)
    """While a program takes polled records one by one: the offset after the last one that it has."""
    iterated_epoch: int = attrs.field(default=NO_LEADER_EPOCH, kw_only=True)
    """The leader epoch of the batch with that record."""
    fetch_offset: int = attrs.field(default=0, kw_only=True)
    """Where the next fetch starts: at `position`, or after the records in `fetched`."""
    fetched: list[Selection] = attrs.field(factory=list, kw_only=True)
    in_flight: CallNumber | None = attrs.field(default=None, kw_only=True)
    """The token of the fetch in flight, or of the check of the position in its place."""
    validation_epoch: int = attrs.field(default=NO_LEADER_EPOCH, kw_only=True)
    """The leader epoch of the leader that was asked to check the position."""
    is_at_end: bool = attrs.field(default=False, kw_only=True)
    """Whether the last fetch returned nothing."""
    lookup: CallNumber | None = attrs.field(default=None, kw_only=True)
    """The number of the call that will return the position."""
    attempts: Pace[int] = attrs.field(default=0, kw_only=True)
    retry_at: Due = attrs.field(default=0, kw_only=True)
    error: Ignored[ErrorCode] = attrs.field(default=NO_ERROR, kw_only=True)
    """That of the last fetch."""
    problem: Failure | None = attrs.field(default=None, kw_only=True)
    is_paused: bool = attrs.field(default=False, kw_only=True)
    """Nothing is fetched, and what was fetched waits."""

    @property
    def seen(self) -> int | None:
        """The offset up to which the application has seen the partition: what commit() covers."""
        return self.position if self.iterated is None else self.iterated

    @property
    def committable(self) -> OffsetAndMetadata:
        """What was seen, with its leader epoch; only once there is a position."""
        assert self.seen is not None, "a position that is not known cannot be committed"
        epoch = self.leader_epoch if self.iterated is None else self.iterated_epoch
        return OffsetAndMetadata(self.seen, leader_epoch=None if epoch == NO_LEADER_EPOCH else epoch)

    @property
    def has_result(self) -> bool:
        """Whether poll() would return or raise something."""
        return not self.is_paused and bool(self.fetched or self.problem)

    def begin_at(self, offset: int, leader_epoch: int, valid_in_epoch: int = NO_LEADER_EPOCH) -> None:
        """Continues at `offset`; drops fetched records and pending replies."""
        self.forget()
        self.position = self.fetch_offset = offset
        self.leader_epoch, self.valid_in_epoch = leader_epoch, valid_in_epoch

    def move_after(self, selection: Selection) -> None:
        """The position moves over fetched batches."""
        self.position = selection.next_offset
        if selection.leader_epoch != NO_LEADER_EPOCH:
            self.leader_epoch = selection.leader_epoch

    def forget(self) -> None:
        """Makes the position unknown; pending replies no longer match."""
        self.position = self.in_flight = self.lookup = self.problem = None
        self.leader_epoch = self.valid_in_epoch = NO_LEADER_EPOCH
        self.is_at_end = False
        self.fetched.clear()
