"""What the coordinators' logs say, as far as a repair needs it: transactional ids, groups and offsets."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from fencepost.check.findings import Findings
from fencepost.check.records import Internals
from fencepost.check.scan import ScannedBatch
from fencepost.journal.storage import StorageReader
from fencepost.log_model.transactions import Histories
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.offsets_log import read_group_batch
from fencepost.protocol.terms import CONSUMER_OFFSETS_TOPIC, TopicPartition
from fencepost.repair.plan import LogPlan
from fencepost.repair.salvage import IntactBatch, SalvagedLog, content_of


@attrs.define(eq=False)
class CoordinatorRecords:
    """The intact records of the internal topics, read log by log."""

    internals: Internals = attrs.Factory(lambda: Internals(Findings()))
    groups: dict[TopicPartition, set[str]] = attrs.Factory(dict[TopicPartition, set[str]])
    """The groups in each partition of `__consumer_offsets`."""
    committed: dict[TopicPartition, int] = attrs.Factory(dict[TopicPartition, int])
    """The highest offset that a group committed in each partition."""

    @property
    def histories(self) -> Histories:
        """All states of each transactional id, in the order of the log."""
        return self.internals.histories

    def read(self, storage: StorageReader, log: SalvagedLog) -> None:
        """Read the records of an internal topic."""
        contents = self.internals.contents(log.partition)
        for piece in log.pieces():
            if not isinstance(piece, IntactBatch) or piece.header.is_control:
                continue
            data = content_of(storage, piece)
            try:
                contents(piece.batch, data)
                if log.partition.topic == CONSUMER_OFFSETS_TOPIC:
                    self._learn_offsets(log.partition, piece.batch, data)
            except ProtocolViolation:  # it was written this way: `check` reports it
                continue

    def _learn_offsets(self, home: TopicPartition, batch: ScannedBatch, data: bytes) -> None:
        groups = self.groups.setdefault(home, set())
        found = read_group_batch(data, batch.header)
        groups.update(name for name, _ in found.groups)
        groups.update(key.group_id for key, _ in found.consumers)
        for key, record in found.offsets:
            groups.add(key.group_id)
            partition = TopicPartition(key.topic, key.partition)
            if record is None:  # even after the deletion of its topic
                self.committed.pop(partition, None)
            else:
                self.committed[partition] = max(record.offset, self.committed.get(partition, 0))

    def names(self, topic: str) -> dict[int, set[str]]:
        """The transactional ids or groups in each partition of a coordinator's topic."""
        if topic == CONSUMER_OFFSETS_TOPIC:
            return {key.partition: names for key, names in self.groups.items()}
        names: dict[int, set[str]] = {}
        for name, history in self.histories.items():
            number = int(history[-1].file.rpartition("/")[0].rpartition("-")[2])
            names.setdefault(number, set()).add(name)
        return names

    def stale_ids(self, logs: Mapping[TopicPartition, LogPlan]) -> dict[str, TopicPartition]:
        """The transactional ids whose last state may be lost, and the partition of each."""
        lost = {str(key): plan.log.lost() for key, plan in logs.items()}
        homes = {str(key): key for key in logs}
        stale: dict[str, TopicPartition] = {}
        for name, history in self.histories.items():
            last = history[-1]
            directory = last.file.rpartition("/")[0]
            ranges = lost[directory]
            if ranges and last.record is not None and last.offset < ranges[-1].start:
                stale[name] = homes[directory]
        return stale
