"""The two tasks of a server that wait for its disk: one makes logs durable, one keeps them small.

Rule: only threads wait for a disk. Results return to the trio thread, and the host runs only there.
"""

# Logs are synced in threads (sync_threads.py), each on its own. Every transaction whose record was written
# before a sync of its log begins shares its cost (group commit). Meanwhile the node takes further requests;
# their records wait for the next sync. A log may be deleted or given up during its sync; `directory.holds`
# then discards the result, since it is not about the log that has this name now.
#
# Compaction works in a thread, too, and changes files between two syncs.

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import trio

from fencepost.broker.counters import Counters
from fencepost.broker.fault_injector import BrokerFaultInjector
from fencepost.broker.host import Host
from fencepost.broker.sync_threads import NOT_SLOWER, SyncEnded, SyncThreads
from fencepost.journal.storage import StorageError


class DiskTasks:
    """The syncs and the compaction of one server. `turn` lets it continue after either."""

    def __init__(
        self, host: Host, faults: BrokerFaultInjector, counters: Counters, *, turn: Callable[[], None]
    ) -> None:
        self._host, self._faults, self._counters, self._turn = host, faults, counters, turn
        self._syncs = SyncThreads()
        self._unsynced = trio.lowlevel.ParkingLot()
        self._uncleaned = trio.lowlevel.ParkingLot()

    def wake(self) -> None:
        """Start what a turn has left to do."""
        if not self._host.unsynced <= self._syncs.syncing:
            self._unsynced.unpark_all()
        if self._host.upkeep.is_needed:
            self._uncleaned.unpark_all()

    def end_pauses(self, fault: int) -> None:
        """A fault that slowed the disk down has ended: no sync that has begun waits for it any longer."""
        self._syncs.end_pauses(fault)

    async def sync(self) -> None:
        """Sync the logs that wait, and let the host continue as each sync ends."""
        token = trio.lowlevel.current_trio_token()
        with self._syncs as syncs:
            syncs.wake_by(partial(token.run_sync_soon, self._unsynced.unpark_all, idempotent=True))
            while True:
                ended = syncs.take()
                for sync in ended:
                    self._synced(sync)
                if ended:
                    self._turn()
                if not syncs.is_paused and self._begin_syncs():
                    self._turn()
                else:
                    await self._unsynced.park()

    def _begin_syncs(self) -> bool:
        """Sync the logs that wait and are not being synced. Returns whether a fault made one fail instead."""
        host, faults, has_failed = self._host, self._faults, False
        for key in sorted(host.unsynced - self._syncs.syncing):
            try:
                if faults.is_active:
                    faults.check_sync(key)
            except StorageError as problem:
                host.lose(key, problem)
                has_failed = True
            else:
                slower = faults.slower_syncs() if faults.is_active else NOT_SLOWER
                self._syncs.sync(host.directory.journal(key), slower=slower)
        return has_failed

    def _synced(self, sync: SyncEnded) -> None:
        """Report the result of a sync, unless the log was deleted or given up in the meantime."""
        journal, result, took_ms = sync
        match result:
            case int():
                self._counters.syncs.add(took_ms)
                if self._host.directory.holds(journal):
                    self._host.synced(journal.partition, result)
            case StorageError():
                if self._host.directory.holds(journal):
                    self._host.lose(journal.partition, result)
            case _:
                raise result

    async def keep_clean(self) -> None:
        """Compact logs and delete old segments, one after the other, while everything else continues."""
        upkeep = self._host.upkeep
        while True:
            if not upkeep.is_needed:
                await self._uncleaned.park()
            cleaning, has_more = upkeep.next_cleaning(), False
            if cleaning is not None:
                try:
                    # A stop does not wait for the thread: it ends soon, and has changed nothing yet.
                    has_more = await trio.to_thread.run_sync(cleaning.work, abandon_on_cancel=True)
                except trio.Cancelled:
                    cleaning.is_cancelled = True
                    raise
                except Exception as problem:  # noqa: BLE001 - a bug costs one compaction, not the broker
                    upkeep.failed(cleaning, problem)
                    cleaning = None
            async with self._syncs.paused():
                upkeep.finish(cleaning, has_more=has_more)
            cleaning = None  # it holds the keys of the log
            self._turn()
