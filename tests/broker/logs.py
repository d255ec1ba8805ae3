"""A led partition alone: batches and markers go in by the rules of its core, and the log is a list."""

from __future__ import annotations

import attrs

from fencepost.broker.contract import Refused
from fencepost.broker.partitions import checks, partition
from fencepost.broker.partitions.checks import Duplicate
from fencepost.broker.partitions.partition import Partition
from fencepost.broker.settings import NodeSettings
from fencepost.journal.indexes import AbortedRange
from fencepost.protocol.batches import BatchHeader, build_marker, place, read_header
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import TransactionMarker
from fencepost.protocol.records import build_data_batch
from fencepost.protocol.terms import TransactionResult
from tests.broker.requests import NOON, ORDERS

SETTINGS = NodeSettings()

Answer = int | ErrorCode
"""The base offset that a batch has, or why it was refused."""


@attrs.define
class Led:
    """A partition and the log under it."""

    partition: Partition = attrs.Factory(lambda: Partition(ORDERS))
    log: list[tuple[BatchHeader, bytearray]] = attrs.Factory(list[tuple[BatchHeader, bytearray]])
    aborted: list[AbortedRange] = attrs.Factory(list[AbortedRange])

    def ask(self, producer_id: int, *, epoch: int = 0, sequence: int = 0, starts_at_zero: bool = True) -> int:
        """The coordinator is being asked; the guard to show when it has said yes."""
        return partition.start_verification(
            self.partition,
            producer_id,
            producer_epoch=epoch,
            sequence=sequence,
            starts_at_zero=starts_at_zero,
            now=NOON,
        )

    def data(
        self,
        producer_id: int,
        count: int = 1,
        *,
        sequence: int = 0,
        epoch: int = 0,
        transactional: bool = False,
        guard: int | None = None,
    ) -> Answer:
        """A client's batch. In a transaction that is not open here, the coordinator is asked and says yes."""
        batch = build_data_batch(
            [b"x"] * count,
            base_timestamp=NOON,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        if guard is None and transactional and not self.partition.is_open(producer_id, epoch):
            guard = self.ask(producer_id, epoch=epoch, sequence=sequence)
        header, rows = read_header(batch), SETTINGS.batch_checks
        match checks.judge(self.partition, header, verification_guard=guard or 0, checks=rows):
            case Refused() as refused:
                return refused.error
            case Duplicate() as duplicate:
                return duplicate.base_offset
            case None:
                return self._append(batch)

    def plain(self, count: int = 1) -> Answer:
        """A batch of nobody in particular."""
        return self.data(-1, count, sequence=-1, epoch=-1)

    def marker(
        self,
        producer_id: int,
        result: TransactionResult,
        *,
        epoch: int = 0,
        coordinator_epoch: int = 0,
        version: int = 0,
    ) -> Answer:
        """A coordinator's marker; version 2 carries the next epoch."""
        marker = TransactionMarker(
            producer_id=producer_id,
            producer_epoch=epoch,
            result=result,
            coordinator_epoch=coordinator_epoch,
            transaction_version=version,
            partitions=(),
        )
        refused = checks.judge_marker(self.partition, marker, checks=SETTINGS.marker_checks)
        if refused is not None:
            return refused.error
        return self._append(
            build_marker(
                result,
                producer_id=producer_id,
                producer_epoch=epoch,
                coordinator_epoch=coordinator_epoch,
                timestamp=NOON,
            )
        )

    def _append(self, batch: bytearray) -> int:
        offset = self.partition.log_end_offset
        place(batch, base_offset=offset, leader_epoch=0)
        header = read_header(batch)
        aborted = partition.apply(self.partition, header, batch)
        if aborted is not None:
            self.aborted.append(aborted)
        self.log.append((header, batch))
        return offset

    def release(self, offset: int | None = None) -> None:
        """The log is durable up to `offset`, or to its end."""
        end = self.partition.log_end_offset
        partition.advance_high_watermark(self.partition, end if offset is None else offset)

    @property
    def last_stable_offset(self) -> int:
        return self.partition.last_stable_offset

    def recovered(self) -> Partition:
        """What a new leader makes of the log."""
        state = Partition(ORDERS)
        for header, batch in self.log:
            partition.apply(state, header, batch)
        partition.advance_high_watermark(state, state.log_end_offset)
        return state
