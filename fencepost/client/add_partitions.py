"""Adding partitions and groups to a transaction at the coordinator, as producers did before KIP-890 part 2.

Rule: no batch of a partition and no offsets of a group are sent before the coordinator has added it to the
transaction. One such request is in flight at a time, for all partitions that are new by then
(TransactionManager.addPartitionsToTransactionHandler).
"""

# If a batch arrived before its partition was added, the coordinator would not know the partition, would write
# no marker there, and the transaction would hang in the log: its LSO would never advance. Since KIP-890 part
# 2 the leader adds the partition itself at the first Produce, so newer producers do not need this module.

from __future__ import annotations

from collections.abc import Iterable

import attrs

from fencepost.client.metadata import CoordinatorOf
from fencepost.client.retries import CallNumber, PendingCalls
from fencepost.protocol import messages as m
from fencepost.protocol.terms import CoordinatorType, TopicPartition


@attrs.define(eq=False)
class TransactionContents:
    """The partitions and groups that the coordinator has added to a producer's open transaction."""

    calls: PendingCalls
    name: str
    partitions: set[TopicPartition] = attrs.field(factory=set)
    groups: set[str] = attrs.field(factory=set)
    call: CallNumber | None = None
    """The number of the request without a reply."""
    _asked: tuple[TopicPartition, ...] = ()
    _asked_group: str | None = None

    def forget(self) -> None:
        """A new, empty transaction begins."""
        self.partitions.clear()
        self.groups.clear()

    def ask(
        self, identity: tuple[int, int], partitions: Iterable[TopicPartition], groups: Iterable[str]
    ) -> bool:
        """Requests what is not added yet, partitions first; False if unneeded, or while one is in flight."""
        if self.call is not None:
            return False
        producer_id, producer_epoch = identity
        new = tuple(sorted(partition for partition in partitions if partition not in self.partitions))
        group = next((group for group in groups if group not in self.groups), None)
        self._asked, self._asked_group = new, None if new else group
        if new:
            request = m.AddPartitionsToTxn(
                transactional_id=self.name,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                verify_only=False,
                partitions=tuple(new),
            )
        elif group is not None:
            request = m.AddOffsetsToTxn(
                transactional_id=self.name,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                group_id=group,
            )
        else:
            return False
        self.call = self.calls.submit(request, CoordinatorOf(CoordinatorType.TRANSACTION, self.name))
        return True

    def answered(self, *, is_in: bool) -> None:
        """The coordinator has added what was requested, or rejected it."""
        if is_in:
            self.partitions.update(self._asked)
            self.groups.update(() if self._asked_group is None else (self._asked_group,))
        self.call, self._asked, self._asked_group = None, (), None

    def give_up(self, *, also_in_flight: bool) -> None:
        """The transaction ends: nothing is retried. `also_in_flight`: nor is a request in flight awaited."""
        if self.call is not None and self.calls.cancel(self.call, also_in_flight=also_in_flight):
            self.answered(is_in=False)
