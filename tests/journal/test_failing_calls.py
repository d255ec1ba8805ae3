"""Each call to the operating system fails once, or from then on: nothing acknowledged is lost, no log counts
as damaged, and the next start reads what was written.
"""

from __future__ import annotations

import builtins
import errno
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import attrs
import pytest

from fencepost.check.directory import check_logs
from fencepost.check.findings import Severity
from fencepost.journal import disk
from fencepost.journal.cleaning import CleaningRules, plan_cleaning
from fencepost.journal.data_directory import DataDirectory
from fencepost.journal.disk import DiskStorage
from fencepost.journal.journal import Journal, JournalSettings
from fencepost.journal.manifest import ManifestState
from fencepost.journal.simulated import APPEND, SYNC, SimulatedStorage
from fencepost.journal.storage import DamagedLog, Storage, StorageError
from fencepost.protocol.batches import place
from fencepost.protocol.records import build_data_batch, read_columns
from fencepost.protocol.terms import INT64_MAX, NO_TOPIC_ID, TopicPartition
from tests.journal.logs import ORDERS

OTHERS: Final = TopicPartition("orders", 1)
SETTINGS: Final = JournalSettings(segment_bytes=300)
RULES: Final = CleaningRules(
    now=5_000,
    before=1 << 40,
    producers=frozenset(),
    min_cleanable_dirty_ratio=0.0,
    min_compaction_lag_ms=0,
    max_compaction_lag_ms=INT64_MAX,
    delete_retention_ms=1_000,
    is_deleted=True,
)
CALLS: Final = (
    "open", "write", "pread", "ftruncate", "truncate", "fdatasync", "fsync", "stat", "fstat", "close",
    "rename", "replace", "unlink", "scandir", "makedirs", "rmdir", "pwrite",
)  # fmt: skip


TAKES_SPACE: Final = ("open", "write", "fdatasync", "fsync", "rename", "replace", "makedirs", "pwrite")


@attrs.define
class Faults:
    """The calls to the operating system of disk.py. The one with number `at` fails, or all from there on."""

    at: int
    error: int
    lasts: bool
    count: int = 0
    is_on: bool = True
    failed: list[str] = attrs.Factory(list[str])

    def meet(self, name: str) -> None:
        if not self.is_on or (self.lasts and name not in TAKES_SPACE):
            return
        number, self.count = self.count, self.count + 1
        if number == self.at or (self.lasts and number > self.at):
            self.failed.append(name)
            raise OSError(self.error, os.strerror(self.error))

    def wrapped(self, name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*arguments: Any, **options: Any) -> Any:
            if name == "close":  # a descriptor is free even after an error
                real(*arguments)
                return self.meet(name)
            if name != "open" or not self.lasts or arguments[1] & os.O_CREAT:
                self.meet(name)
            return None if name.endswith("sync") else real(*arguments, **options)

        return call

    def opened(self, path: str, mode: str = "r", **options: Any) -> Any:
        file = builtins.open(path, mode, **options)  # noqa: SIM115 - the caller closes it
        return _File(self, file) if "b" in mode and mode != "rb" else file


class _File:
    """A file that `replace` writes."""

    def __init__(self, faults: Faults, file: Any) -> None:
        self.faults, self.file = faults, file

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def flush(self) -> None:
        self.faults.meet("write")
        self.file.flush()


@contextmanager
def failing(at: int, error: int, *, lasts: bool) -> Generator[Faults]:
    faults = Faults(at, error, lasts)
    with pytest.MonkeyPatch.context() as patched:
        calls = {name: faults.wrapped(name) for name in CALLS}
        rest = {name: getattr(os, name) for name in dir(os) if name not in calls}
        patched.setattr(disk, "os", SimpleNamespace(**rest, **calls))
        patched.setattr(disk, "open", faults.opened, raising=False)
        yield faults


@attrs.define
class Broker:
    """What a broker does with two logs, and what it has acknowledged."""

    storage: Callable[[], Storage]
    data: DataDirectory | None = None
    written: dict[TopicPartition, list[bytes]] = attrs.Factory(lambda: {ORDERS: [], OTHERS: []})
    """All values, in order; the last ones may be in doubt."""
    sure: dict[TopicPartition, set[bytes]] = attrs.Factory(lambda: {ORDERS: set(), OTHERS: set()})
    durable: dict[TopicPartition, set[bytes]] = attrs.Factory(lambda: {ORDERS: set(), OTHERS: set()})
    log_start: int = 0
    deletes: bool = False
    is_deleted: bool = False

    def journal(self, key: TopicPartition) -> Journal:
        """The log, read again after a failure, as the next leader does."""
        if self.data is None:
            self.data = DataDirectory.open(self.storage(), settings=SETTINGS)
        journal = self.data.journal(key)
        if journal.failed is not None:
            self.data.give_up(key)
            journal = self.data.journal(key)
        return journal

    def write(self, key: TopicPartition) -> None:
        value = b"%04d" % sum(map(len, self.written.values()))
        journal = self.journal(key)
        batch = build_data_batch([value * 20], keys=[b"key"], base_timestamp=1_000)
        header = place(batch, base_offset=journal.log_end_offset, leader_epoch=max(0, journal.leader_epoch))
        self.written[key].append(value)
        journal.append(batch, header, leader_epoch=header.leader_epoch)
        self.sure[key].add(value)
        if journal.is_full:
            journal.roll([])

    def publish(self, key: TopicPartition) -> None:
        journal = self.journal(key)
        end = journal.log_end_offset
        journal.write_manifest(ManifestState(last_stable_offset=end, high_watermark=end))

    def sync(self, key: TopicPartition) -> None:
        sure = {*self.sure[key]}
        assert self.journal(key).sync() == self.journal(key).log_end_offset
        self.durable[key] |= sure

    def clean(self) -> None:
        journal = self.journal(ORDERS)
        journal.first_dirty_offset = 0
        cleaning = plan_cleaning(journal, RULES)
        while cleaning is not None and cleaning.work():
            cleaning.finish()

    def shorten(self) -> None:
        journal = self.journal(OTHERS)
        start = journal.segments.full[-1].end_offset if journal.segments.full else 0
        journal.move_log_start(start)
        self.log_start = start
        journal.remove_deleted()

    def delete(self) -> None:
        self.journal(OTHERS)
        assert self.data is not None
        self.deletes = True
        self.data.delete(OTHERS, NO_TOPIC_ID)
        self.data.finish_deleting()
        self.is_deleted = True

    def stop(self) -> None:
        data, self.data = self.data, None
        if data is not None:
            data.close()

    def kill(self) -> None:
        data, self.data = self.data, None
        if data is not None:
            data.abandon()

    def life(self) -> Iterator[Callable[[], None]]:
        """Its steps."""
        for key in (ORDERS, OTHERS):
            for _ in range(5):
                yield partial(self.write, key)
            yield partial(self.sync, key)
            yield partial(self.publish, key)
        yield from (self.clean, self.shorten, self.stop)
        yield partial(self.write, ORDERS)
        yield self.kill
        for key in (ORDERS, OTHERS):
            yield partial(self.write, key)
            yield partial(self.publish, key)
        yield partial(self.sync, ORDERS)
        yield self.shorten
        yield self.delete

    def live(self, *, steps_after: int) -> None:
        """Do all steps, or so many after the first failure; no log may be taken for damaged."""
        left: int | None = None
        for step in self.life():
            try:
                step()
            except DamagedLog:
                raise
            except StorageError:
                left = steps_after + 1 if left is None else left
            left = None if left is None else left - 1
            if left == 0:
                return

    def judge(self, safe: dict[TopicPartition, set[bytes]]) -> None:
        """Start without faults: the values that are safe are there, and `fencepost check` finds nothing."""
        self.kill()
        keys = (ORDERS,) if self.deletes else (ORDERS, OTHERS)
        for key in keys:
            journal = self.journal(key)
            log_start = self.log_start if key == OTHERS else 0
            assert journal.log_start_offset >= min(log_start, journal.log_end_offset)
            found = [
                bytes(value or b"")[:4]
                for header, batch in journal.segments.batches(journal.log_start_offset)
                for value in read_columns(batch, header).values
            ]
            assert found == [value for value in self.written[key] if value in found]
            if key == ORDERS:  # compaction leaves the last value of the key
                assert max(safe[key], default=b"") <= max(found, default=b"")
            else:
                assert len(found) + journal.log_start_offset >= len(safe[key])
        assert self.data is not None
        assert not (self.is_deleted and OTHERS in self.data.partitions())
        self.kill()
        told = [each for each in check_logs(self.storage()).found if each.severity is Severity.PROBLEM]
        names = tuple(f"{key}/" for key in keys)
        assert [(each.file, each.what) for each in told if each.file.startswith(names)] == []


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.thorough)])
@pytest.mark.parametrize(("error", "lasts"), [(errno.EIO, False), (errno.ENOSPC, True)])
def test_any_call_to_the_operating_system_may_fail(
    tmp_path: Path, error: int, step: int, *, lasts: bool
) -> None:
    """Once, or from then on, until the broker is killed."""
    for at in count(step=step):
        broker = Broker(partial(DiskStorage, tmp_path / str(at)))
        with failing(at, error, lasts=lasts) as faults:
            broker.live(steps_after=0 if lasts else 1_000)
            faults.is_on = False
            broker.judge(broker.sure)
        if not faults.failed:
            assert at > 150
            return


def _same(disk: SimulatedStorage) -> Storage:
    return disk


class FailingOnce(SimulatedStorage):
    """A disk that fails at one operation of a kind, and keeps nothing that was not synced."""

    def __init__(self, kind: str, at: int) -> None:
        self.count = 0

        def breaks(operation: str, _path: str) -> bool:
            self.count += operation == kind
            return operation == kind and self.count == at

        super().__init__(lambda _most: 0, breaks=breaks)


@pytest.mark.parametrize("steps_after", [0, 1, 2, 3, 6, 1_000])
@pytest.mark.parametrize("operation", [SYNC, APPEND])
def test_a_disk_that_fails_once_and_then_loses_its_power_keeps_what_was_synced(
    operation: str, steps_after: int
) -> None:
    """A sync that succeeds after one that failed proves nothing about what came before."""
    for at in count(1):
        disk = FailingOnce(operation, at)
        broker = Broker(partial(_same, disk))
        broker.live(steps_after=steps_after)
        broker.kill()
        has_failed = disk.count >= at
        disk.count = at
        disk.lose_power()
        broker.judge(broker.durable)
        if not has_failed:
            assert at > 20
            return
