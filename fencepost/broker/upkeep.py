"""The upkeep of a host's logs: compaction and the deletion of old segments, in the background.

Rule: files change only in `finish`, which the shell calls while no sync is under way. What takes long is in
`Cleaning.work`, for a thread of the shell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from fencepost.broker.contract import CleanLog, ExpireLog, MoveLogStart
from fencepost.journal.cleaning import Cleaning, plan_cleaning
from fencepost.journal.journal import Journal
from fencepost.journal.storage import DamagedLog, StorageError
from fencepost.protocol.terms import TopicPartition

if TYPE_CHECKING:
    from fencepost.broker.host import Host


@attrs.define(eq=False)
class Upkeep:
    """What is to be done for the logs of one host."""

    host: Host
    cleanings: dict[TopicPartition, Cleaning] = attrs.Factory(dict[TopicPartition, Cleaning])  # oldest first
    # These have segments below their log start.
    outdated: set[TopicPartition] = attrs.Factory(set[TopicPartition])
    # Compacting these met damage or a bug, so they are not compacted until they are read again.
    uncleanable: set[TopicPartition] = attrs.Factory(set[TopicPartition])
    # How many more bytes the coordinators' logs may take, all together, before they are checked.
    bytes_left: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.bytes_left = self.host.node.settings.coordinator_logs_dirty_bytes_max

    @property
    def is_needed(self) -> bool:
        """Whether the shell has something to do here."""
        return bool(self.cleanings or self.outdated)

    # --- what is due

    def clean(self, order: CleanLog, now: int) -> None:
        """Plan a cleaning, unless one is under way."""
        key = order.partition
        journal = self.host.writable_journal(key)
        if journal is None or key in self.cleanings or key in self.uncleanable:
            return
        if journal.segments.active.size < order.active_bytes_max or self._rolls(journal):
            try:
                planned = plan_cleaning(journal, order.rules)
            except StorageError as problem:  # it only read: the log is served as before
                self.host.disk_failed(f"{key} was not compacted: {problem}")
                return
            if planned is not None:
                self.cleanings[key] = planned

    def expire(self, order: ExpireLog, now: int) -> None:
        """Move the log start past segments that are too old or exceed the size limit."""
        journal = self.host.writable_journal(order.partition)
        if journal is None:
            return
        start = journal.deletable_before(
            now=now,
            retention_ms=order.retention_ms,
            retention_bytes=order.retention_bytes,
            before=order.before,
        )
        if start > journal.log_start_offset:
            # The active segment, too: the log continues in a new one.
            if start == journal.log_end_offset and not self._rolls(journal):
                return
            self.host.move_log_start(MoveLogStart(partition=order.partition, offset=start), now)

    def _rolls(self, journal: Journal) -> bool:
        """Begin a new segment. Returns False if the disk failed."""
        try:
            self.host.roll(journal)
        except StorageError as problem:
            self.host.lose(journal.partition, problem)
            return False
        self.host.changed[journal.partition] = None
        return True

    # --- doing it

    def next_cleaning(self) -> Cleaning | None:
        """The cleaning to `work` on next."""
        return next(iter(self.cleanings.values()), None)

    def finish(self, cleaning: Cleaning | None = None, *, has_more: bool = False) -> None:
        """Let cleaned segments take their place, and delete what is below the log starts."""
        if cleaning is not None:
            self._finish_cleaning(cleaning, has_more=has_more)
        outdated, self.outdated = self.outdated, set()
        for key in sorted(outdated):
            journal = self.host.writable_journal(key)
            try:
                if journal is None:
                    continue
                if journal.remove_deleted():
                    self.host.changed[key] = None
                    self._cancel(key)  # it may be about to read a segment that is gone
                for removed in journal.take_removed_snapshots():
                    self.host.warn(removed)
            except StorageError as problem:
                self.host.lose(key, problem)

    def _finish_cleaning(self, cleaning: Cleaning, *, has_more: bool) -> None:
        key = cleaning.journal.partition
        if self.cleanings.get(key) is not cleaning:
            return  # the log was forgotten meanwhile; another cleaning may wait by now
        if not has_more:
            del self.cleanings[key]
        if self.host.writable_journal(key) is not cleaning.journal:
            self.forget(key)
            return
        try:
            cleaning.finish()
        except StorageError as problem:
            self.host.lose(key, problem)
        self.host.changed[key] = None

    def failed(self, cleaning: Cleaning, problem: Exception) -> None:
        """The work failed before it changed anything: the log is served as before. After damage or a bug, it
        is not tried again.
        """
        key = cleaning.journal.partition
        if self.cleanings.get(key) is cleaning:
            del self.cleanings[key]
        if not cleaning.is_cancelled:
            is_of_disk = isinstance(problem, StorageError)
            if not is_of_disk or isinstance(problem, DamagedLog):
                self.uncleanable.add(key)
            if is_of_disk:
                self.host.disk_failed(f"{key} was not compacted: {problem}")
            else:
                self.host.bug(f"no longer compacts {key}, and continues", problem)

    def forget(self, key: TopicPartition) -> None:
        """The log is no longer this host's, or is read again."""
        self.uncleanable.discard(key)
        self._cancel(key)

    def _cancel(self, key: TopicPartition) -> None:
        cleaning = self.cleanings.pop(key, None)
        if cleaning is not None:
            cleaning.is_cancelled = True

    def do_some(self) -> None:
        """Do one piece of the upkeep, for shells without threads."""
        cleaning, has_more = self.work_on_next()
        self.finish(cleaning, has_more=has_more)

    def work_on_next(self) -> tuple[Cleaning | None, bool]:
        """Do a piece of the next cleaning. Returns what to hand to `finish`."""
        cleaning, has_more = self.next_cleaning(), False
        if cleaning is not None:
            try:
                has_more = cleaning.work()
            except StorageError as problem:
                self.failed(cleaning, problem)
                cleaning = None
        return cleaning, has_more
