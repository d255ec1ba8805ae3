"""Threads that sync logs while the broker continues: at most one sync of each log at a time.

Rule: a result is taken by the trio thread. Nothing but `Journal.sync` runs in these threads.
"""

# Each log is synced as soon as it waits and its last sync is over, so no log waits for the sync of
# another. Whatever is written to a log during its sync shares the next one (group commit).
#
# `trio.to_thread.run_sync` would do, at three times the CPU: it makes a task and a cancel scope for each
# sync, and wakes the trio thread once for each. Here one wake-up serves all syncs that have ended by then.

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from queue import SimpleQueue
from typing import Final, NamedTuple, Self

import trio

from fencepost.journal.journal import Journal
from fencepost.protocol.terms import TopicPartition

THREADS_MAX: Final = 8  # logs that are synced at the same time
NOT_SLOWER: Final[Mapping[int, float]] = {}
pause: Final = threading.Event.wait  # of a slow disk, for so many seconds or until its fault ends


class SyncEnded(NamedTuple):
    """A sync that has ended: the offset up to which the log is durable, or why it failed."""

    journal: Journal
    result: int | Exception
    took_ms: float


class _Slowdown(NamedTuple):
    """A fault that makes a sync longer by so many times its duration, unless the fault ends before."""

    times: float
    ended: threading.Event


class SyncThreads:
    """Threads for the syncs of logs. They start when they are needed, and end with the `with` block."""

    def __init__(self) -> None:
        self.syncing: set[TopicPartition] = set()
        self.is_paused = False
        self._waiting: SimpleQueue[tuple[Journal, list[_Slowdown]] | None] = SimpleQueue()
        self._faults_ended: dict[int, threading.Event] = {}  # of the faults that slow the disk down
        self._ended: deque[SyncEnded] = deque()
        self._threads: list[threading.Thread] = []
        self._idle = trio.lowlevel.ParkingLot()
        self._wake: Callable[[], None] = lambda: None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_problem: object) -> None:
        """Wait for the syncs that are under way: their files are closed after this."""
        self._wake = lambda: None
        for fault in list(self._faults_ended):
            self.end_pauses(fault)
        for _each in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()

    def wake_by(self, wake: Callable[[], None]) -> None:
        """Call `wake`, in any thread, whenever a sync has ended."""
        self._wake = wake

    def sync(self, journal: Journal, *, slower: Mapping[int, float] = NOT_SLOWER) -> None:
        """Sync a log that is not being synced. Faults, by their numbers, may make it longer by so many times
        its duration.
        """
        self.syncing.add(journal.partition)
        if len(self._threads) < min(len(self.syncing), THREADS_MAX):
            thread = threading.Thread(target=self._work, name="fencepost-sync", daemon=True)
            self._threads.append(thread)
            thread.start()
        ended = self._faults_ended
        slowdowns = [
            _Slowdown(times, ended.setdefault(fault, threading.Event())) for fault, times in slower.items()
        ]
        self._waiting.put((journal, slowdowns))

    def end_pauses(self, fault: int) -> None:
        """The syncs that have begun take no longer because of this fault."""
        if (ended := self._faults_ended.pop(fault, None)) is not None:
            ended.set()

    def take(self) -> list[SyncEnded]:
        """The syncs that have ended since the last call."""
        ended: list[SyncEnded] = []
        while self._ended:
            sync = self._ended.popleft()
            self.syncing.discard(sync.journal.partition)
            ended.append(sync)
        if not self.syncing:
            self._idle.unpark_all()
        return ended

    @asynccontextmanager
    async def paused(self) -> AsyncGenerator[None]:
        """Inside it no sync is under way, and the caller of `sync` must begin none (`is_paused`)."""
        self.is_paused = True
        try:
            while self.syncing:
                await self._idle.park()
            yield
        finally:
            self.is_paused = False
            self._wake()

    def _work(self) -> None:
        while (wanted := self._waiting.get()) is not None:
            (journal, slowdowns), began_ns = wanted, time.monotonic_ns()
            try:
                result: int | Exception = journal.sync()
                took_s = (time.monotonic_ns() - began_ns) / 1e9
                for slowdown in slowdowns:
                    pause(slowdown.ended, min(slowdown.times * took_s, threading.TIMEOUT_MAX))
            except Exception as problem:  # noqa: BLE001 - raised again in the trio thread unless it is the disk
                result = problem
            self._ended.append(SyncEnded(journal, result, (time.monotonic_ns() - began_ns) / 1e6))
            self._wake()
