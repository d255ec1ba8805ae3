"""Offsets of consumer groups that a producer commits with its transaction (KIP-98, KIP-447).

Rule: one TxnOffsetCommit per group at a time, so that earlier offsets cannot overtake later ones.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

import attrs

from fencepost.client.group_offsets import CommittableOffset, ConsumerGroupMetadata, offsets_to_commit
from fencepost.client.metadata import CoordinatorOf
from fencepost.client.retries import CallNumber, PendingCalls
from fencepost.protocol import messages as m
from fencepost.protocol.fork import Ordered
from fencepost.protocol.terms import CoordinatorType, TopicPartition


@attrs.define(eq=False)
class TransactionOffsets:
    """The offsets of the open transaction that are not stored yet."""

    calls: PendingCalls
    name: str | None
    """The transactional id; a producer without one takes no offsets."""
    pending: Ordered[dict[ConsumerGroupMetadata, dict[TopicPartition, CommittableOffset]]] = attrs.field(
        factory=dict
    )
    """Offsets that are not sent yet."""
    _in_flight: dict[CallNumber, str] = attrs.field(factory=dict)
    """The groups of the requests without a reply."""

    @property
    def has_work(self) -> bool:
        """Whether an offset is not sent yet, or has no reply."""
        return bool(self.pending or self._in_flight)

    def add(self, group: ConsumerGroupMetadata, offsets: Mapping[TopicPartition, CommittableOffset]) -> None:
        """Adds offsets; of two for a partition, the later one counts."""
        if offsets:
            self.pending.setdefault(group, {}).update(offsets)

    def submit(self, identity: tuple[int, int], only: Container[str] | None) -> bool:
        """Sends what may be sent, of `only` these groups if given; True if it sent something."""
        producer_id, producer_epoch = identity
        is_sent = False
        for group in list(self.pending):
            group_id = group.group_id
            if (only is not None and group_id not in only) or group_id in self._in_flight.values():
                continue
            assert self.name is not None, "only a transactional producer takes offsets"
            request = m.TxnOffsetCommit(
                transactional_id=self.name,
                group_id=group_id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                generation_id=group.generation_id,
                member_id=group.member_id,
                group_instance_id=group.group_instance_id,
                offsets=offsets_to_commit(self.pending.pop(group)),
            )
            number = self.calls.submit(request, CoordinatorOf(CoordinatorType.GROUP, group_id))
            self._in_flight[number] = group_id
            is_sent = True
        return is_sent

    def answered(self, number: CallNumber) -> bool:
        """A call has ended; False if it is not one of these."""
        return self._in_flight.pop(number, None) is not None

    def give_up(self, *, also_in_flight: bool) -> None:
        """The transaction ends: nothing is retried. `also_in_flight`: nor is a request in flight awaited."""
        self.pending.clear()
        for number in list(self._in_flight):
            if self.calls.cancel(number, also_in_flight=also_in_flight):
                del self._in_flight[number]
