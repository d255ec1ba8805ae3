"""A story whose logs are kept as they were written, with what else happened to the memory of their leaders:
all that the naive model goes by.

Rule: what is kept comes from the journals' bytes and from the steps that the host was seen to take.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import attrs

from fencepost.broker.contract import BecomeLeader, Input, Outcome, Reply, Tick
from fencepost.broker.settings import NodeSettings
from fencepost.broker.sync_policy import SyncPolicy
from fencepost.journal.journal import JournalSettings
from fencepost.journal.storage import directory_name
from fencepost.protocol.batches import BatchHeader
from fencepost.protocol.messages import Request
from fencepost.protocol.terms import METADATA_PARTITION, TopicPartition
from tests.broker import naive_log
from tests.broker.naive_coordinators import Batches
from tests.broker.naive_log import NO_HISTORY, Forgotten, History, Known, Line
from tests.broker.story import Memory, Story

Said = TypeVar("Said")


class Stop(NamedTuple):
    """The leader stopped in order when the log ended at `end`, after so many scans."""

    end: int
    scans: int


@attrs.define(eq=False)
class Kept:
    """One partition since it was made: each batch that was ever written, also where segments are gone."""

    batches: list[tuple[BatchHeader, bytes]] = attrs.Factory(list[tuple[BatchHeader, bytes]])
    lines: list[Line] = attrs.Factory(list[Line])
    history: History = NO_HISTORY
    stopped: Stop | None = None
    log_start: int = 0
    durable: int = 0  # what is written since waits for its sync

    @property
    def end(self) -> int:
        return self.lines[-1].end if self.lines else 0

    def add(self, header: BatchHeader, batch: bytes) -> None:
        assert header.base_offset == self.end, "batches lie end to end"
        self.batches.append((header, batch))
        self.lines.append(naive_log.line_of(header, batch))

    def scanned(self, before_ms: int, end: int) -> None:
        scan, scans = Forgotten(before_ms, end), self.history.scans
        is_later = (
            bool(scans) and scans[-1].end == end and (self.stopped is None or self.stopped.scans < len(scans))
        )
        self.history = attrs.evolve(self.history, scans=(*(scans[:-1] if is_later else scans), scan))

    def led(self, snapshot_at: int | None, end: int, *, is_restart: bool) -> None:
        """A leader has read the log from the snapshot on: scans since then have forgotten nothing."""
        scans = self.history.scans
        if self.stopped is not None and self.stopped.end == snapshot_at:
            scans = scans[: self.stopped.scans]
        else:
            scans = tuple(scan for scan in scans if snapshot_at is not None and scan.end < snapshot_at)
            self.stopped = None
        self.durable = end
        self.history = History(end if is_restart else self.history.restarted_at, scans)

    def tells_of_everybody(self) -> bool:
        """Whether the log alone tells of everybody, and nothing of him, that its leader knows."""
        alone = naive_log.producers(self.lines)
        return naive_log.snapshot(alone) == naive_log.snapshot(naive_log.producers(self.lines, self.history))


class Meaning(NamedTuple):
    """What one log says, read in full."""

    length: int
    history: History
    known: dict[int, Known]
    transactions: list[naive_log.Transaction]
    aborted: list[naive_log.AbortedRange]


class Chronicle(Story):
    """A broker that is told stories, and the account of them."""

    def __init__(
        self, *, settings: NodeSettings, policy: SyncPolicy, journal: JournalSettings, topics: dict[str, int]
    ) -> None:
        self.kept: dict[TopicPartition, Kept] = {}
        self.meanings: dict[TopicPartition, Meaning] = {}
        self.read: dict[tuple[TopicPartition, Any], tuple[int, Any]] = {}
        self.next_scan_ms: int | None = None
        super().__init__(policy=policy, settings=settings, journal=journal, topics=topics)
        self.catch_up()

    # --- what is seen

    def start(self) -> None:
        self.next_scan_ms = None
        self.loaded: dict[TopicPartition, Any] = {}
        super().start()

    def saw(self, arrived: Input, outcome: Outcome) -> None:
        match arrived:
            case BecomeLeader():
                if self.next_scan_ms is None:
                    self.next_scan_ms = self._next_scan()
                kept = self.kept.setdefault(arrived.partition, Kept())
                end = self.partition(arrived.partition).high_watermark  # where what was read ended
                snapshot_at = None if arrived.snapshot is None else arrived.snapshot[0]
                kept.led(snapshot_at, end, is_restart=arrived.is_restart)
                kept.scanned(self._expired_before(), end)
                if kept.tells_of_everybody():
                    self.loaded[arrived.partition] = self.host.node.state_of(arrived.partition)
            case Tick() if self.next_scan_ms is not None and self.next_scan_ms <= self.now:
                self.next_scan_ms = self._next_scan()
                for key in self.host.node.logs:
                    self.kept[key].scanned(self._expired_before(), self.partition(key).log_end_offset)
            case _:
                pass

    def _next_scan(self) -> int:
        interval = self.settings.producer_id_expiration_check_interval_ms
        return (self.now // interval + 1) * interval

    def _expired_before(self) -> int:
        return self.now - self.settings.producer_id_expiration_ms

    @property
    def keys(self) -> list[TopicPartition]:
        """The logs that the model tells of: all but that of the cluster."""
        return sorted(key for key in self.host.node.logs if key != METADATA_PARTITION)

    def catch_up(self) -> None:
        """Keep what was written since the last time."""
        for key in self.keys:
            kept, journal = self.kept[key], self.host.directory.journal(key)
            if journal.log_end_offset > kept.end:
                for header, batch in journal.segments.batches(kept.end):
                    kept.add(header, bytes(batch))

    def meaning(self, key: TopicPartition) -> Meaning:
        kept, known = self.kept[key], self.meanings.get(key)
        if known is None or (known.length, known.history) != (len(kept.lines), kept.history):
            known = self.meanings[key] = Meaning(
                len(kept.lines),
                kept.history,
                naive_log.producers(kept.lines, kept.history),
                naive_log.transactions(kept.lines),
                naive_log.aborted_ranges(kept.lines),
            )
        return known

    def said(self, key: TopicPartition, read: Callable[[Batches], Said]) -> Said:
        """What a whole log says, read anew when there is more of it."""
        length, known = len(self.kept[key].batches), self.read.get((key, read))
        if known is None or known[0] != length:
            known = self.read[key, read] = (length, read(self.kept[key].batches))
        return known[1]

    def sync(self) -> None:
        """Until the disk is done, what it has not is in nobody's sight."""
        self.catch_up()
        for key in sorted(self.host.unsynced & self.kept.keys() - {METADATA_PARTITION}):
            kept, state = self.kept[key], self.partition(key)
            stable = naive_log.stable_offset(kept.lines, kept.durable, kept.log_start)
            assert (state.high_watermark, state.last_stable_offset) == (kept.durable, stable), key
            kept.durable = kept.end
        super().sync()

    def forget_topic(self, topic: str) -> None:
        """It is deleted: another of the name is another log."""
        for key in [key for key in self.kept if key.topic == topic]:
            del self.kept[key]
            self.meanings.pop(key, None)

    # --- what lies on disk

    @property
    def disk(self) -> Memory:
        assert isinstance(self.storage, Memory)
        return self.storage

    def segments(self, key: TopicPartition) -> dict[int, int]:
        """The base offset of each segment, and its bytes."""
        files = self.disk.files(directory_name(key))
        return {int(name.removesuffix(".log")): size for name, size in files.items() if name.endswith(".log")}

    def index_files(self, key: TopicPartition) -> dict[int, bytes]:
        """The bytes of each segment's `.txnindex`, by its base offset."""
        directory = directory_name(key)
        names = [name for name in self.disk.files(directory) if name.endswith(".txnindex")]
        return {
            int(name.removesuffix(".txnindex")): self.disk.read_file(f"{directory}/{name}") or b""
            for name in names
        }

    # --- asking and dying

    def move_on(self) -> None:
        """The clock moves, and what is due happens before anybody asks for more."""
        self.now += 1
        self.settle()
        self.catch_up()

    def ask(self, request: Request) -> Reply:
        """Serve a request to its end, before any time passes."""
        to = self.offer(request)
        self.settle()
        return self.replies.pop(to)

    def ask_in(self, version: int, request: Request) -> Reply:
        """As a client that speaks this version."""
        self.versions = {type(request): version}
        try:
            return self.ask(request)
        finally:
            self.versions = {}

    def peek(self, request: Request) -> Reply:
        """Ask for what is so right now, and change nothing."""
        to = self.offer(request)
        self.run()
        return self.replies.pop(to)

    def stop(self) -> None:
        """The process ends in order."""
        for key in self.keys:
            kept = self.kept[key]
            kept.stopped = Stop(kept.end, len(kept.history.scans))
        self.host.stop()

    def check_journals(self) -> None:
        """What the journals hold is what was written, from the oldest segment on."""
        self.catch_up()
        for key in self.keys:
            journal = self.host.directory.journal(key)
            found = [
                (header, bytes(batch))
                for header, batch in journal.segments.batches(journal.segments.oldest_offset)
            ]
            first = [header.base_offset for header, _ in self.kept[key].batches]
            assert journal.segments.oldest_offset in (*first, self.kept[key].end)
            assert found == [
                b for b in self.kept[key].batches if b[0].base_offset >= journal.segments.oldest_offset
            ]
