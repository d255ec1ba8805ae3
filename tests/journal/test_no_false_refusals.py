"""Kills, losses of power, compaction and deletion in any order: no start refuses the log that they leave, or
a producer snapshot of it.
"""

from __future__ import annotations

import random

import pytest

from fencepost.broker.partitions import partition as leader
from fencepost.broker.partitions.partition import UNKNOWN_PRODUCER, Partition
from fencepost.journal import recovery
from fencepost.journal.cleaning import CleaningRules, plan_cleaning
from fencepost.journal.data_directory import DataDirectory
from fencepost.journal.journal import JournalSettings
from fencepost.journal.manifest import DescribedFile, Manifest, ManifestState, SyncedSegment, described_files
from fencepost.journal.open_transactions import OpenTransaction
from fencepost.journal.simulated import SimulatedStorage
from fencepost.journal.storage import ReplacedFile
from fencepost.protocol.batches import build_marker, place, read_header
from fencepost.protocol.records import build_data_batch
from fencepost.protocol.terms import INT64_MAX, NO_OFFSET, TransactionResult
from tests.journal.logs import ORDERS

SEEDS = 60
STEPS = 120
IDEMPOTENT, TRANSACTIONAL = (1, 2), (3, 4, 5)
# What a leader and its machine do, with weights.
WEIGHTS = {
    "write": 30, "end_transaction": 8, "manifest": 6, "sync": 4, "roll": 2, "snapshot": 2, "expire": 2,
    "clean": 5, "delete": 2, "stop": 2, "kill": 2, "lose_power": 1,
}  # fmt: skip


class Leader:
    """The leader of one log, whose machine may stop at any moment."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.storage = SimulatedStorage(lambda most: self.random.randint(0, most))
        self.settings = JournalSettings(segment_bytes=self.random.choice([300, 800, 2_000]))
        self.now = 1_000
        self.start()

    def start(self) -> None:
        self.directory = DataDirectory.open(self.storage, settings=self.settings)
        self.journal = self.directory.journal(ORDERS)
        self.state = Partition(ORDERS, log_end_offset=self.journal.segments.oldest_offset)
        if (found := self.journal.newest_snapshot(self.journal.log_end_offset)) is not None:
            leader.restore(self.state, found[1], at_offset=found[0])
            self.state.log_end_offset = found[0]
        assert found is not None or not self.journal.segments.oldest_offset, "producers were forgotten"
        assert self.journal.take_removed_snapshots() == []
        for header, batch in self.journal.segments.batches(self.state.log_end_offset):
            leader.apply(self.state, header, batch)
        self.leader_epoch = self.journal.leader_epoch + 1
        self.journal.lead(self.leader_epoch)

    def _append(self, batch: bytearray) -> None:
        place(batch, base_offset=self.journal.log_end_offset, leader_epoch=self.leader_epoch)
        header = read_header(batch)
        aborted = leader.apply(self.state, header, batch)
        self.journal.append(batch, header, leader_epoch=self.leader_epoch, aborted=aborted)
        if self.journal.is_full:
            self.roll()

    # --- what it does

    def write(self) -> None:
        self.now += self.random.randint(0, 50)
        producer_id = self.random.choice([*IDEMPOTENT, *TRANSACTIONAL])
        known = self.state.producers.get(producer_id, UNKNOWN_PRODUCER)
        is_renewed = known.current_txn_first_offset == NO_OFFSET and self.random.random() < 0.2
        epoch = max(0, known.producer_epoch) + is_renewed
        count = self.random.randint(1, 4)
        batch = build_data_batch(
            [bytes(self.random.randint(0, 60)) for _ in range(count)],
            keys=[self.random.choice([b"a", b"b", b"c"]) for _ in range(count)],
            base_timestamp=self.now,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=known.last_sequence + 1 if epoch == known.producer_epoch else 0,
            transactional=producer_id in TRANSACTIONAL,
        )
        self._append(batch)

    def end_transaction(self) -> None:
        producer_id = self.random.choice(TRANSACTIONAL)
        known = self.state.producers.get(producer_id, UNKNOWN_PRODUCER)
        marker = build_marker(
            self.random.choice([*TransactionResult]),
            producer_id=producer_id,
            producer_epoch=max(0, known.producer_epoch) + self.random.randint(0, 1),
            coordinator_epoch=0,
            timestamp=self.now,
        )
        self._append(marker)

    def _published(self) -> ManifestState:
        open_here, end = self.state.open_transactions, self.journal.log_end_offset
        producers = self.state.producers
        return ManifestState(
            last_stable_offset=next(iter(open_here), end),
            high_watermark=end,
            open_transactions=tuple(
                OpenTransaction(first, each, producers[each].producer_epoch)
                for first, each in open_here.items()
            ),
        )

    def manifest(self) -> None:
        self.journal.write_manifest(self._published())

    def sync(self) -> None:
        self.journal.sync()

    def roll(self) -> None:
        self.journal.roll(leader.snapshot(self.state))

    def snapshot(self) -> None:
        self.journal.write_snapshot(leader.snapshot(self.state))

    def expire(self) -> None:
        leader.forget_expired(self.state, before_ms=self.now - 200)

    def clean(self) -> None:
        rules = CleaningRules(
            now=self.now,
            before=self._published().last_stable_offset,
            producers=frozenset(self.state.producers),
            min_cleanable_dirty_ratio=0,
            min_compaction_lag_ms=0,
            max_compaction_lag_ms=INT64_MAX,
            delete_retention_ms=self.random.choice([0, 200]),
            is_deleted=self.random.random() < 0.5,
        )
        cleaning = plan_cleaning(self.journal, rules)
        while cleaning is not None and cleaning.work():
            if self.random.random() < 0.1:
                return  # it is abandoned
            cleaning.finish()

    def delete(self) -> None:
        self.journal.sync()
        start, end = self.journal.log_start_offset, self.journal.log_end_offset
        self.journal.move_log_start(self.random.randint(start, end))
        if self.random.random() < 0.7:
            self.journal.remove_deleted()

    # --- how it ends

    def stop(self) -> None:
        led = {ORDERS: (self._published(), leader.snapshot(self.state))}
        self.directory.close(led if self.random.random() < 0.7 else {})
        if self.random.random() < 0.5:
            self.storage.lose_power()
        self.start()

    def kill(self) -> None:
        self.storage.kill()
        self.start()

    def lose_power(self) -> None:
        self.storage.lose_power()
        self.start()


def live(*seeds: int) -> None:
    for seed in seeds:
        one = Leader(seed)
        for step in one.random.choices([*WEIGHTS], [*WEIGHTS.values()], k=STEPS):
            getattr(one, step)()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_start_refuses_its_own_log(seed: int) -> None:
    live(seed)


def test_a_rule_that_forgot_compaction_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_written(
        manifest: Manifest | None, clean_mark: SyncedSegment | None, *, directory: str, boot_id: str
    ) -> dict[int, DescribedFile]:
        found = described_files(manifest, clean_mark, directory=directory, boot_id=boot_id)
        return {base: known._replace(is_full=False) for base, known in found.items()}

    monkeypatch.setattr(recovery, "described_files", as_written)
    with pytest.raises(ReplacedFile):
        live(*range(SEEDS))
