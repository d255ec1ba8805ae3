"""Random logs that are compacted and shortened: whatever a kill or a loss of power leaves of their files, the
state that is rebuilt from them is the state of the leader.

Each write of the storage is a place where a process may end. At many of them, and for many subsets of the
snapshots, a new leader reads the files.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import attrs
import pytest

from fencepost.broker.host import manifest_of
from fencepost.broker.led_logs import order_to_lead
from fencepost.broker.node import Node
from fencepost.broker.partitions import partition
from fencepost.broker.partitions.partition import Partition, ProducerEntry
from fencepost.broker.settings import NodeSettings
from fencepost.journal.cleaning import Cleaning, CleaningRules, plan_cleaning
from fencepost.journal.journal import Journal, JournalSettings
from fencepost.journal.manifest import SyncedSegment
from fencepost.journal.memory import MemoryStorage
from fencepost.journal.open_transactions import OpenTransactions
from fencepost.journal.segments import LOG, SNAPSHOT
from fencepost.journal.simulated import SimulatedStorage
from fencepost.journal.snapshots import Snapshots
from fencepost.protocol.batches import Buffer, build_marker, place
from fencepost.protocol.records import build_data_batch
from fencepost.protocol.terms import INT64_MAX, NO_OFFSET, TransactionResult, sequence_after
from tests.journal.logs import DIRECTORY, ORDERS, copy_of

SETTINGS: Final = NodeSettings()
STEPS: Final = 100
YOUNG_MS: Final = (50, 300, 2_000)
"""How long the producers that wrote last are remembered."""


@attrs.define(eq=False)
class Watched:
    """Told before and after each write that replaces, renames or removes a file."""

    run: Run | None = None

    def look(self) -> None:
        if self.run is not None and self.run.chance.random() < 0.1:
            self.run.compare_rebuilt()


class Disk(SimulatedStorage):
    """A storage whose writes are watched."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(lambda most: chance.randint(0, most))
        self.watched = Watched()

    def rename(self, path: str, new_path: str) -> None:
        self.watched.look()
        super().rename(path, new_path)
        self.watched.look()

    def replace(self, path: str, data: Buffer, *, durable: bool) -> None:
        self.watched.look()
        super().replace(path, data, durable=durable)
        self.watched.look()

    def remove(self, path: str) -> None:
        self.watched.look()
        super().remove(path)
        self.watched.look()


def led_by_a_new_leader(journal: Journal, leader_epoch: int, *, is_restart: bool = True) -> Partition:
    """What a leader makes of a log."""
    found = journal.newest_snapshot(journal.log_end_offset)
    order = order_to_lead(journal, leader_epoch, found, is_restart=is_restart)
    return Node(SETTINGS).rebuild(order).partition


class Run:
    """A leader, its log, and what happens to both."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.deletes = seed % 2 == 1
        self.disk = Disk(chance)
        self.settings = JournalSettings(
            segment_bytes=chance.choice((300, 600, 1_500)), segment_ms=chance.choice((50, 10**6))
        )
        self.now, self.leader_epoch = 10_000, 0
        self.newest_id = 5
        self.forgotten: set[int] = set()
        self.seen: Counter[str] = Counter()
        self.journal = self._opened(None)
        self.live = led_by_a_new_leader(self.journal, 0)
        self.cleaning: Cleaning | None = None

    def _opened(self, mark: SyncedSegment | None) -> Journal:
        journal = Journal(self.disk, ORDERS, settings=self.settings, clean_mark=mark)
        journal.lead(self.leader_epoch)
        self.disk.watched.run = self
        return journal

    def play(self, steps: int) -> None:
        acts = {
            self.data: 20, self.plain: 4, self.marker: 8, self.forget: 1.5, self.clean: 6, self.delete: 3,
            self.sync: 2, self.roll: 1, self.kill: 1, self.lose_power: 1, self.stop: 1,
            self.compare_rebuilt: 1,
        }  # fmt: skip
        for act in self.chance.choices(list(acts), list(acts.values()), k=steps):
            act()
        self.compare_rebuilt()

    # --- what a leader does -------------------------------------------------------------------------------

    def _append(self, batch: bytearray) -> None:
        header = place(batch, base_offset=self.live.log_end_offset, leader_epoch=self.leader_epoch)
        aborted = partition.apply(self.live, header, batch)
        partition.advance_high_watermark(self.live, self.live.log_end_offset)
        self.disk.watched.run = None  # the leader is ahead of the log
        self.journal.append(batch, header, leader_epoch=self.leader_epoch, aborted=aborted)
        self.disk.watched.run = self
        # Sometimes the snapshot comes later: a step of the node had more appends.
        if (self.journal.is_full or self.journal.snapshot_due) and self.chance.random() < 0.95:
            self.roll()

    def roll(self) -> None:
        """See Host.roll."""
        journal, producers = self.journal, partition.snapshot(self.live)
        has_rolled = journal.snapshot_due and not journal.is_full
        journal.write_snapshot(producers) if has_rolled else journal.roll(producers)

    def _records(self) -> tuple[list[bytes | None], list[bytes]]:
        chance = self.chance
        count, keys = chance.randint(1, 3), chance.choice((3, 30))
        self.now += chance.randint(0, 20)
        values = [None if chance.random() < 0.1 else b"v" * chance.choice((1, 20, 200)) for _ in range(count)]
        return values, [b"%d" % chance.randint(0, keys) for _ in range(count)]

    def _anybody(self) -> int:
        """A producer id; every third one has no transactions."""
        self.newest_id += self.chance.random() < 0.1
        return self.chance.randint(self.newest_id - 5, self.newest_id)

    def data(self) -> None:
        chance, producer_id = self.chance, self._anybody()
        known = self.live.producers.get(producer_id, ProducerEntry(producer_epoch=0))
        is_open = known.current_txn_first_offset != NO_OFFSET
        is_next = chance.random() < 0.1 and not is_open
        follows = known.batches and not is_next
        values, keys = self._records()
        batch = build_data_batch(
            values,
            keys=keys,
            base_timestamp=self.now - chance.choice((0, 0, 0, 500)),
            producer_id=producer_id,
            producer_epoch=known.producer_epoch + is_next,
            base_sequence=sequence_after(known.last_sequence, 1) if follows else 0,
            transactional=is_open or producer_id % 3 > 0,
        )
        self._append(batch)

    def plain(self) -> None:
        values, keys = self._records()
        self._append(build_data_batch(values, keys=keys, base_timestamp=self.now))

    def marker(self) -> None:
        """Mostly of an open transaction; of version 2 with the next epoch."""
        chance, opened = self.chance, list(self.live.open_transactions.values())
        producer_id = chance.choice(opened) if opened and chance.random() < 0.9 else self._anybody()
        known = self.live.producers.get(producer_id, ProducerEntry(producer_epoch=0))
        self.now += chance.randint(0, 20)
        batch = build_marker(
            chance.choice(list(TransactionResult)),
            producer_id=producer_id,
            producer_epoch=known.producer_epoch + chance.randint(0, 1),
            coordinator_epoch=chance.randint(0, 3),
            timestamp=self.now,
        )
        self._append(batch)

    def forget(self) -> None:
        before = set(self.live.producers)
        partition.forget_expired(self.live, before_ms=self.now - self.chance.choice(YOUNG_MS))
        self.forgotten |= before - set(self.live.producers)

    # --- what makes a log shorter -------------------------------------------------------------------------

    def clean(self) -> None:
        """A piece of a cleaning, or all of it."""
        chance = self.chance
        if self.cleaning is None:
            self.journal.first_dirty_offset = self.journal.segments.oldest_offset
            rules = CleaningRules(
                now=self.now,
                before=self.live.last_stable_offset,
                producers=frozenset(self.live.producers),
                min_cleanable_dirty_ratio=0,
                min_compaction_lag_ms=0,
                max_compaction_lag_ms=INT64_MAX,
                delete_retention_ms=chance.choice((0, 0, 100)),
                is_deleted=self.deletes,
            )
            self.cleaning = plan_cleaning(self.journal, rules)
        is_whole = chance.random() < 0.3
        while self.cleaning is not None:
            if self.cleaning.work():
                self.cleaning.finish()
                self.seen["cleaned"] += 1
            else:
                self.cleaning = None
            if not is_whole:
                return

    def delete(self) -> None:
        if not self.deletes:
            return
        start, end = self.journal.log_start_offset, self.live.high_watermark
        offset = self.chance.randint(start, max(start, end - self.chance.randint(0, 60)))
        if self.chance.random() < 0.5:
            offset = self.journal.deletable_before(
                now=self.now, retention_ms=-1, retention_bytes=self.chance.choice((500, 3_000)), before=end
            )
        batch_start = self.journal.move_log_start(offset)
        partition.move_log_start(self.live, offset, batch_start=batch_start)
        if self.journal.remove_deleted():
            self.seen["deleted"] += 1
            self.cleaning = None

    # --- how a leader ends --------------------------------------------------------------------------------

    def sync(self) -> None:
        self.journal.sync()
        if self.chance.random() < 0.5:
            self.journal.write_manifest(manifest_of(self.live))

    def kill(self) -> None:
        self.disk.kill()
        self._begin_again(None)

    def lose_power(self) -> None:
        """Everything in the log was synced; of snapshots, indexes and manifest, anything may be left."""
        self.journal.sync()
        self.disk.lose_power()
        self._begin_again(None)

    def stop(self) -> None:
        self.disk.watched.run = None
        self.journal.close(manifest_of(self.live), partition.snapshot(self.live))
        self.disk.kill()
        self._begin_again(self.chance.choice((self.journal.next_clean_mark, None)))

    def _begin_again(self, mark: SyncedSegment | None) -> None:
        self.disk.watched.run = None
        self.leader_epoch += 1
        self.cleaning = None
        self.journal = self._opened(mark)
        assert self.journal.dropped is None
        before = self.live
        is_restart = self.chance.random() < 0.7
        self.live = led_by_a_new_leader(self.journal, self.leader_epoch, is_restart=is_restart)
        self._compare(before, self.live)
        assert self.live.log_start_offset == before.log_start_offset
        assert self.journal.take_removed_snapshots() == []

    # --- what has to be the same --------------------------------------------------------------------------

    def compare_rebuilt(self) -> None:
        """Leaders that find the files as they are now, without some of the snapshots."""
        disk = copy_of(self.disk)
        for lost in self._subsets(self._snapshots_that_may_go(disk)):
            left = copy_of(disk)
            for name in lost:
                left.remove(f"{DIRECTORY}/{name}")
            journal = Journal(left, ORDERS, settings=self.settings)
            rebuilt = led_by_a_new_leader(journal, self.leader_epoch + 1)
            assert journal.take_removed_snapshots() == []
            self._compare(self.live, rebuilt)
            self.seen["compared"] += 1

    def _snapshots_that_may_go(self, disk: MemoryStorage) -> list[str]:
        """All but the one that stands for deleted segments, which was synced."""
        files = disk.files(DIRECTORY)
        start = self.journal.log_start_offset
        bases = {name[:20] for name in files if name.endswith(LOG) and int(name[:20]) <= start}
        names = [name for name in files if name.endswith(SNAPSHOT)]
        needed = max((name for name in names if name[:20] in bases), default="")
        return [name for name in names if name != needed]

    def _subsets(self, names: Sequence[str]) -> list[Sequence[str]]:
        some = [name for name in names if self.chance.random() < 0.5]
        return [(), names, some]

    def _compare(self, live: Partition, rebuilt: Partition) -> None:
        assert rebuilt.log_end_offset == live.log_end_offset
        assert rebuilt.open_transactions == live.open_transactions
        for producer_id, known in live.producers.items():
            found = rebuilt.producers.get(producer_id)
            assert found is not None, producer_id
            # An older snapshot may remember what was forgotten since, and compaction have removed it.
            assert producer_id in self.forgotten or _last_of(found) == _last_of(known), producer_id
        assert rebuilt.producers.keys() - live.producers.keys() <= self.forgotten


def _last_of(producer: ProducerEntry) -> ProducerEntry:
    return producer._replace(batches=producer.batches[-1:])


@pytest.mark.parametrize("seed", range(4))
def test_a_rebuilt_leader_knows_what_the_live_one_knows(seed: int) -> None:
    run = Run(seed)
    run.play(STEPS)
    assert run.seen["compared"] > 50
    assert run.seen["cleaned"] > 3
    assert run.seen["deleted"] > 0 or not run.deletes


def play_many(*, first: int) -> None:
    """Seeds from the first on that is known to notice, since any change of the draws moves it."""
    for seed in range(first, first + 60, 2):
        Run(seed).play(240)


def open_nowhere(_journal: Journal, _offset: int) -> OpenTransactions:
    return OpenTransactions()


def sync_nothing(_snapshots: Snapshots, _offset: int) -> None:
    """Says it is done, and is not."""


@pytest.mark.parametrize(
    ("place", "name", "planted", "first"),
    [(Journal, "open_at", open_nowhere, 11), (Snapshots, "sync", sync_nothing, 7)],
)
def test_a_leader_that_is_rebuilt_wrongly_is_noticed(
    place: type, name: str, planted: Callable[..., object], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, name, planted)
    with pytest.raises(AssertionError):
        play_many(first=first)
