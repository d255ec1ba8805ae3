"""A journal against a plain list: whatever is appended, rolled, synced, killed or cut from power, both tell
the same.

The model knows no segments and no indexes; it looks at every batch every time. Planted faults show that it
would notice.
"""

import random
from contextlib import nullcontext
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fencepost.journal.data_directory import DataDirectory
from fencepost.journal.indexes import AbortedRange
from fencepost.journal.journal import Journal, JournalSettings
from fencepost.journal.manifest import MANIFEST_FILE, ManifestState, decode_manifest
from fencepost.journal.simulated import SimulatedStorage
from fencepost.journal.storage import DamagedLog
from fencepost.protocol.batches import BatchHeader, read_header, walk
from fencepost.protocol.records import build_data_batch
from tests.journal.logs import DIRECTORY, ORDERS, Writer, first_since

SMALL = JournalSettings(segment_bytes=3_000, segment_ms=1_000)
PRODUCERS = st.integers(1, 4)
TIMESTAMPS = st.integers(0, 1_500)
PLACES = st.integers(0, 200)


class Stored(NamedTuple):
    """One batch of the model."""

    header: BatchHeader
    data: bytes
    timestamps: list[int]  # of its records
    commits: bool | None  # what a marker says


class JournalAgainstList(RuleBasedStateMachine):
    """The list is `stored`; everything is compared after every step that can change it."""

    storage_type = SimulatedStorage

    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed: int) -> None:
        chance = random.Random(seed)
        self.storage = self.storage_type(lambda most: chance.randint(0, most))
        self.stored: list[Stored] = []
        self.durable = 0
        self.manifested = 0
        self._open()

    def _open(self) -> None:
        self.data = DataDirectory.open(self.storage, settings=SMALL)
        self.journal: Journal = self.data.journal(ORDERS)
        self.writer = Writer(self.journal)

    # --- what a leader does

    def _store(self, header: BatchHeader, timestamps: list[int], *, commits: bool | None = None) -> None:
        data = self.journal.segments.read(header.base_offset, max_bytes=1, before=self.journal.log_end_offset)
        self.stored.append(Stored(read_header(data), data, timestamps, commits))
        if self.journal.is_full:
            self.writer.roll()
        elif self.journal.snapshot_due:
            self.journal.write_snapshot(self.writer.producers())

    @rule(
        deltas=st.lists(st.integers(0, 50), min_size=1, max_size=4),
        timestamp=TIMESTAMPS,
        size=st.integers(0, 900),
    )
    def append_plain(self, deltas: list[int], timestamp: int, size: int) -> None:
        batch = build_data_batch(
            [b"v" * size] * len(deltas), base_timestamp=timestamp, timestamp_deltas=deltas
        )
        self._store(self.writer.append(batch), [timestamp + delta for delta in deltas])

    @rule(producer_id=PRODUCERS, records=st.integers(1, 3), timestamp=TIMESTAMPS, size=st.integers(0, 900))
    def append_transactional(self, producer_id: int, records: int, timestamp: int, size: int) -> None:
        header = self.writer.data(producer_id, records, timestamp=timestamp, size=size)
        self._store(header, [timestamp] * records)

    @rule(producer_id=PRODUCERS, timestamp=TIMESTAMPS, commits=st.booleans())
    def end_transaction(self, producer_id: int, timestamp: int, *, commits: bool) -> None:
        end = self.writer.commit if commits else self.writer.abort
        self._store(end(producer_id, timestamp=timestamp), [timestamp], commits=commits)

    @rule()
    def roll(self) -> None:
        self.writer.roll()

    @rule()
    def snapshot(self) -> None:
        self.journal.write_snapshot(self.writer.producers())

    @rule()
    def sync(self) -> None:
        self.durable = self.journal.sync()
        assert self.durable == self.journal.log_end_offset

    @rule(back=st.integers(0, 3))
    def manifest(self, back: int) -> None:
        end = max(self.journal.log_start_offset, self.journal.log_end_offset - back)
        self.journal.write_manifest(ManifestState(last_stable_offset=0, high_watermark=end))
        self.manifested = end

    # --- how it ends

    @rule()
    def close_and_open(self) -> None:
        end = self.journal.log_end_offset
        state = ManifestState(last_stable_offset=0, high_watermark=end)
        self.data.close({ORDERS: (state, self.writer.producers())})
        self.durable = self.manifested = end
        self._open()

    @rule()
    def kill_and_open(self) -> None:
        self.storage.kill()
        self._open()
        assert self.journal.dropped is None

    @rule()
    def lose_power_and_open(self) -> None:
        self.storage.lose_power()
        self._open()
        end = self.journal.log_end_offset
        assert end >= self.durable, "what a sync promised is gone"
        self.stored = [stored for stored in self.stored if stored.header.next_offset <= end]
        self.manifested = 0

    # --- what a reader sees

    def end(self) -> int:
        return self.stored[-1].header.next_offset if self.stored else 0

    def read(self, offset: int, *, max_bytes: int, before: int) -> bytes:
        return self.journal.segments.read(offset, max_bytes=max_bytes, before=before)

    def aborted_between(self, fetch_offset: int, *, upper: int) -> list[AbortedRange]:
        return self.journal.segments.aborted_between(fetch_offset, upper=upper)

    @invariant()
    def holds_what_was_stored(self) -> None:
        if hasattr(self, "journal"):
            assert self.journal.log_end_offset == self.end()
            assert [batch.tobytes() for _, batch in self.journal.segments.batches(0)] == [
                stored.data for stored in self.stored
            ]

    @rule(offset=PLACES, max_bytes=st.integers(1, 5_000), distance=st.integers(-2, 30))
    def reads(self, offset: int, max_bytes: int, distance: int) -> None:
        before = offset + distance
        offset = min(offset, self.end())
        data = self.read(offset, max_bytes=max_bytes, before=before)
        expected = [stored.data for stored in self.stored if offset <= stored.header.last_offset < before]
        got = [data[at : at + header.size] for at, header in walk(data)]
        assert got == expected[: len(got)]
        assert bool(got) == bool(expected)
        assert len(data) <= max_bytes or len(got) == 1
        if got:
            following = walk_end(data)
            assert following <= self.journal.segments.fetch_upper_bound(offset, len(data)) <= self.end()

    @rule(fetch_offset=PLACES, length=st.integers(1, 100))
    def looks_up_aborted(self, fetch_offset: int, length: int) -> None:
        upper = fetch_offset + length
        fetch_offset = min(fetch_offset, self.end())
        found = self.aborted_between(fetch_offset, upper=upper)
        assert [(a.producer_id, a.first_offset, a.last_offset) for a in found] == [
            (producer_id, first, last)
            for producer_id, first, last in self._aborted()
            if last >= fetch_offset and first < upper
        ]

    def _aborted(self) -> list[tuple[int, int, int]]:
        """(producer id, first offset, marker's offset), from every batch."""
        aborted: list[tuple[int, int, int]] = []
        begun: dict[int, int] = {}
        for header, _, _, commits in self.stored:
            if commits is None and header.is_transactional:
                begun.setdefault(header.producer_id, header.base_offset)
            elif commits is not None and header.producer_id in begun:
                first = begun.pop(header.producer_id)
                if not commits:
                    aborted.append((header.producer_id, first, header.base_offset))
        return aborted

    @rule(timestamp=TIMESTAMPS)
    def looks_up_a_timestamp(self, timestamp: int) -> None:
        records = (
            (at, stored.header.base_offset + delta, stored.header.leader_epoch)
            for stored in self.stored
            for delta, at in enumerate(stored.timestamps)
        )
        expected = next((record for record in records if record[0] >= timestamp), None)
        assert first_since(self.journal, timestamp) == expected

    @precondition(lambda self: self.manifested)
    @rule()
    def reads_the_manifest(self) -> None:
        content = self.storage.read_file(f"{DIRECTORY}/{MANIFEST_FILE}") or b""
        manifest = decode_manifest(content, directory=DIRECTORY)
        assert manifest.high_watermark == self.manifested <= manifest.log_end_offset <= self.end()
        assert sum(segment.bytes for segment in manifest.segments) == sum(
            len(stored.data) for stored in self.stored if stored.header.next_offset <= manifest.log_end_offset
        )


def walk_end(data: bytes) -> int:
    return list(walk(data))[-1][1].next_offset


MANY = settings(max_examples=150, stateful_step_count=40)
TestJournalAgainstList = JournalAgainstList.TestCase
TestJournalAgainstList.settings = MANY


class LooksIntoItsOwnSegmentOnly(JournalAgainstList):
    """The leak of aborted records across segments."""

    def aborted_between(self, fetch_offset: int, *, upper: int) -> list[AbortedRange]:
        later = [base for base in self._bases() if base > fetch_offset]
        found = super().aborted_between(fetch_offset, upper=upper)
        return [aborted for aborted in found if not later or aborted.last_offset < later[0]]

    def _bases(self) -> list[int]:
        return sorted(int(name[:20]) for name in self.storage.files(DIRECTORY) if name.endswith(".log"))


class ReadsTooFar(JournalAgainstList):
    """Batches at or above the bound."""

    def read(self, offset: int, *, max_bytes: int, before: int) -> bytes:
        return super().read(offset, max_bytes=max_bytes, before=before + 1)


class _ForgetfulStorage(SimulatedStorage):
    def sync_directory(self, directory: str) -> None:
        """Says it is done, and is not."""


class SyncsNoNames(JournalAgainstList):
    """A journal that syncs its files and forgets the directory that names them."""

    storage_type = _ForgetfulStorage


@pytest.mark.parametrize("fault", [LooksIntoItsOwnSegmentOnly, ReadsTooFar, SyncsNoNames])
def test_the_model_notices(fault: type[JournalAgainstList]) -> None:
    """A run that hypothesis may find as well: it is clean without the fault and ends with it."""
    for machine_type in (JournalAgainstList, fault):
        machine = machine_type()
        noticed = pytest.raises((AssertionError, DamagedLog)) if machine_type is fault else nullcontext()
        with noticed:
            _a_run(machine)


def _a_run(machine: JournalAgainstList) -> None:
    machine.start(seed=2)
    machine.append_plain(deltas=[0], timestamp=0, size=10)
    machine.append_transactional(1, records=2, timestamp=0, size=10)
    machine.roll()
    machine.append_plain(deltas=[0], timestamp=0, size=10)
    machine.end_transaction(1, timestamp=0, commits=False)
    machine.holds_what_was_stored()
    machine.looks_up_aborted(fetch_offset=0, length=10)
    machine.reads(offset=0, max_bytes=5_000, distance=1)
    machine.reads(offset=0, max_bytes=5_000, distance=0)
    machine.sync()
    machine.lose_power_and_open()
    machine.holds_what_was_stored()
