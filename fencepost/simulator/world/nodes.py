"""A node in a world: a host that can be killed between any two things that it does, over journals that
outlive it.

Rule: the node's own code never learns that it is simulated. It sees inputs, its own clock, and journals.
"""

# Theory of operation
#
#     network ── asked, answered, lost ──▶ offer ─┐
#     clock   ── _tick ──────────────────▶ tick   ├─▶ host ─▶ work ─▶ _flush ─▶ network, timers, syncs
#     disk    ── _sync, _clean ──────────▶ synced ┘
#
# This is to the host (broker/host.py) what broker/server.py is in a real process: it offers inputs, lets the
# host work until it is idle, and carries out what the host wants from outside. Work takes no virtual time;
# messages, syncs and timers do.
#
# A node dies by losing its host: what was in its memory is gone, what its journals have written stays. Each
# act of a host, a write or an effect, is a point at which it can die, so the broker's code needs no hooks.
# That is the slow way (`_work_watched`); if no fault and no recorder looks at single acts, the host works
# until it is idle.
#
# Acts in the queue outlive the host that planned them. Each carries its host, and does nothing for a later
# one.
#
# Journals are shared by all nodes, as there is one log for each partition. A leader that was replaced may
# not know it yet; the journal refuses its writes, and its death gives up only the logs that it still leads.

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final

import attrs

from fencepost.broker.contract import Answered, Append, Disconnected, Input, Outcome, Received, ReplyTo
from fencepost.broker.host import MANIFEST_INTERVAL_MS, Host, MetadataLost
from fencepost.broker.node import Node
from fencepost.broker.settings import NodeSettings
from fencepost.broker.sync_policy import SyncPolicy
from fencepost.journal.journal import Journal
from fencepost.journal.storage import StorageError
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import API_BY_REQUEST, FetchReply, ListOffsetsReply
from fencepost.protocol.terms import TopicPartition
from fencepost.simulator.world.events import (
    ActBegins,
    ActDone,
    DamageNoticed,
    FetchReplied,
    Life,
    LifeChanged,
    NodeKilled,
    NodeStepped,
    OffsetsListed,
)
from fencepost.simulator.world.journals import ClusterJournals
from fencepost.simulator.world.network import CLOSE, Close, ReplyMessage, RequestMessage, SimulatedConnection
from fencepost.simulator.world.participants import NS_PER_MS, Participant

KILLED_IN_CLEANING: Final = "killed in a cleaning"


class DeathPlace(Enum):
    """Between which acts of a node its drawn death comes."""

    ANYWHERE = "anywhere"  # between any two acts
    BEFORE_A_WRITE = "before a write"  # the write is decided, and is in no log
    AFTER_A_WRITE = "after a write"  # the write is in a log that is not synced
    IN_A_CLEANING = "in a cleaning"  # between two steps of a compaction


@attrs.define(eq=False)
class CountedDeath:
    """The death of a node after `left` more acts or writes: then `strike` is called, which kills the node."""

    place: DeathPlace
    left: int
    strike: Callable[[], object]

    def counts(self, act: object) -> bool:
        counted = type(act) is Append and self.place is not DeathPlace.IN_A_CLEANING
        return self.left > 0 and (self.place is DeathPlace.ANYWHERE or counted)

    def is_due(self, host: Host) -> bool:
        if self.left:
            return False
        if self.place is DeathPlace.BEFORE_A_WRITE:
            return bool(host.to_do) and type(host.to_do[0]) is Append
        if self.place is DeathPlace.IN_A_CLEANING:
            return False
        # Only while there is work left, so that the death interrupts something.
        return self.place is DeathPlace.AFTER_A_WRITE or not host.is_idle

    def is_due_in_cleaning(self) -> bool:
        """Counts a step of a cleaning; whether the node dies before it."""
        is_due = self.place is DeathPlace.IN_A_CLEANING and not self.left
        self.left -= self.place is DeathPlace.IN_A_CLEANING
        return is_due


@attrs.define(eq=False)
class SimulatedNode(Participant):
    """One node: up with a host, or down without one."""

    settings: NodeSettings
    journals: ClusterJournals
    policy: SyncPolicy
    carries_own: bool = attrs.field(kw_only=True)
    disk: str = attrs.field(init=False)
    heard: Mapping[type, tuple[Callable[[Any], None], ...]] = attrs.field(init=False)
    host: Host | None = None
    sends_at_once: bool = False  # what an act sends leaves before the next act: faults strike in between
    death: CountedDeath | None = None
    # The connections of its callers by number, and its own connections to other nodes by node id.
    callers: dict[int, SimulatedConnection] = attrs.Factory(dict[int, SimulatedConnection])
    peers: dict[int, SimulatedConnection] = attrs.Factory(dict[int, SimulatedConnection])
    syncing: set[TopicPartition] = attrs.Factory(set[TopicPartition])
    tick_at: int | None = None
    ticks_for_ms: int | None = None  # the time of its own clock at which it wants to wake
    is_manifest_due: bool = False
    is_cleaning: bool = False

    def __attrs_post_init__(self) -> None:
        self.disk = disk_of(self.participant)
        self.heard = self.world.events.heard

    @property
    def owner(self) -> Participant:
        return self

    # --- life and death -------------------------------------------------------------------------------------

    def start(self) -> None:
        """A new host over what the logs hold."""
        self.death = self.tick_at = self.ticks_for_ms = None
        self.is_manifest_due = False
        self.is_cleaning = False
        self.host = Host(Node(self.settings), self.journals, policy=self.policy)
        # Otherwise a node's requests to itself take the network as all others do, and may be late or lost.
        self.host.carries_own = self.carries_own
        self.host.watch = self._stepped
        try:
            self.host.start(self.clock.ms(self.world.now))
        except StorageError:  # the log of the metadata is damaged: as a server, it says so and ends
            self._end_without_metadata()
            return
        self.work()
        self.world.events.publish(LifeChanged(self.participant, Life.RESTARTS))

    def _stepped(self, arrived: Input, outcome: Outcome) -> None:
        # The most frequent event by far, so it is dispatched here, without a call in between.
        step = NodeStepped(self, arrived, outcome)
        for hear in self.heard.get(NodeStepped, ()):
            hear(step)

    def kill(self, *, power_is_lost: bool = False) -> None:
        """The process ends at once; with `power_is_lost`, what it had not synced is lost, too."""
        host = self.host
        if host is None:
            return
        self.host = None
        self.is_paused = False
        self.backlog.clear()
        self.syncing.clear()
        self.death = None
        # Now: the logs are still open, and what the host knew is compared with what the next leader reads.
        self.world.events.publish(NodeKilled(self, host, power_is_lost))
        for key in find_led(host):
            self.journals.give_up(key, power_is_lost=power_is_lost)
        if power_is_lost:
            self.journals.lose_deletions()
        for connection in list(self.callers.values()):
            self.world.network.reset(connection, server_is_gone=True)
        self.callers.clear()
        for connection in self.peers.values():
            # What it had sent to other nodes still arrives: so a marker of a dead coordinator comes late.
            self.world.network.give_up(connection)
        self.peers.clear()
        self.world.events.publish(LifeChanged(self.participant, Life.CRASHES))

    def _end_without_metadata(self) -> None:
        self.world.events.publish(DamageNoticed())
        self.kill()

    def catch_up(self) -> None:
        super().catch_up()
        self.work()

    # --- as a server ----------------------------------------------------------------------------------------

    def asked(self, connection: SimulatedConnection, message: RequestMessage | Close) -> None:
        host = self.host
        if host is None:
            self.world.network.reset(connection, server_is_gone=True)
            return
        if message is CLOSE:
            self.disconnected(connection)
            return
        assert isinstance(message, RequestMessage), "a message that arrives is a request or a Close"
        # Kept for the reply: the host knows connections by their numbers alone.
        self.callers[connection.number] = connection
        caller = connection.caller
        host.offer(
            Received(
                message.request,
                to=ReplyTo(connection.number, message.token),
                version=message.version,
                from_node=caller.settings.node_id if isinstance(caller, SimulatedNode) else None,
            )
        )
        self.work()

    def disconnected(self, connection: SimulatedConnection) -> None:
        if self.callers.pop(connection.number, None) is not None and self.host is not None:
            self.host.offer(Disconnected(connection=connection.number))
            self.work()

    # --- as a caller ----------------------------------------------------------------------------------------

    def answered(self, connection: SimulatedConnection, reply: ReplyMessage) -> None:
        if self.host is not None:
            self.host.offer(Answered(token=reply.token, error=reply.error, body=reply.body))
            self.work()

    def lost(self, connection: SimulatedConnection) -> None:
        """A connection to another node broke: its unanswered requests fail."""
        for node_id, peer in list(self.peers.items()):
            if peer is connection:
                del self.peers[node_id]
        if self.host is not None:
            for token in connection.in_flight:
                self.host.offer(Answered(token=token, error=ErrorCode.NETWORK_EXCEPTION, body=None))
            self.work()

    # --- working --------------------------------------------------------------------------------------------

    def work(self) -> None:
        """Do everything that can be done now, unless the node dies first."""
        host = self.host
        if host is None or self.is_paused:
            return
        now = self.clock.ms(self.world.now)
        heard = self.heard
        # Looked up once, and not at each act: in most worlds nothing subscribes to single acts.
        is_watched = self.death is not None or self.sends_at_once or ActDone in heard or ActBegins in heard
        try:
            self._work_watched(host, now) if is_watched else host.work_until_idle(now)
        except MetadataLost:
            self._end_without_metadata()
        if self.host is host:
            self._flush(host)

    def _work_watched(self, host: Host, now: int) -> None:
        """Do one thing at a time; the node may be killed between any two."""
        leaves_at_once = self.sends_at_once or self.death is not None
        heard, publish = self.heard, self.world.events.publish
        while self.host is host and not self.is_paused:
            death = self.death
            if death is not None and death.is_due(host):
                # What it sent before its death has left.
                self._flush(host)
                death.strike()
                return
            act = host.to_do[0] if host.to_do else None
            if act is None and not host.inbox:
                return
            if death is not None and death.counts(act):
                death.left -= 1
            if act is not None and ActBegins in heard:
                publish(ActBegins(self, act))
            if self.host is host and not self.is_paused:
                host.work(now)
                if leaves_at_once:
                    self._flush(host)
                if act is not None and ActDone in heard:
                    publish(ActDone(self, act))

    def _flush(self, host: Host) -> None:
        """Carry out what the host wants from outside: replies, requests to nodes, syncs, and a wake-up."""
        network = self.world.network
        if host.answers:
            replies, host.answers = host.answers, []
            for reply in replies:
                if type(reply.body) is FetchReply:
                    self.world.events.publish(FetchReplied(self, reply.body))
                elif type(reply.body) is ListOffsetsReply:
                    self.world.events.publish(OffsetsListed(self, reply.to, reply.body))
                connection = self.callers.get(reply.to.connection)
                if connection is not None:
                    network.reply(connection, ReplyMessage(reply.to.correlation_id, reply.error, reply.body))
        if host.outbox:
            sends, host.outbox = host.outbox, []
            for send in sends:
                # Between nodes of one release, the newest version.
                version = API_BY_REQUEST[type(send.request)].maximum
                network.ask(self._peer(send.node_id), RequestMessage(send.token, send.request, version))
        if not host.unsynced <= self.syncing:
            # Sorted, because each sync draws a latency, and the order of a set differs from process to
            # process.
            for key in sorted(host.unsynced - self.syncing):
                self.syncing.add(key)
                journal = host.held[key].journal  # a newer leader may have given it up: `_sync` checks
                at = self.world.now + self.world.sync_latency(self.disk)
                self.world.at(at, self._sync, (host, journal, journal.log_end_offset))
        if host.upkeep.is_needed and not self.is_cleaning:
            self.is_cleaning = True
            self.world.at(self.world.now + self.world.sync_latency(self.disk), self._clean, host)
        if host.wakes_at_ms is not None and host.wakes_at_ms != self.ticks_for_ms:
            self._wake_at(host, host.wakes_at_ms)
        if self.world.writes_manifests and host.changed and not self.is_manifest_due:
            self.is_manifest_due = True
            self.world.at(self.world.now + MANIFEST_INTERVAL_MS * NS_PER_MS, self._write_manifests, host)

    def _write_manifests(self, host: Host) -> None:
        if self.host is host:
            self.is_manifest_due = False
            try:
                host.write_manifests()
            except MetadataLost:
                self._end_without_metadata()
            self.work()

    def _peer(self, node_id: int) -> SimulatedConnection:
        peer = self.peers.get(node_id)
        if peer is None:
            peer = self.peers[node_id] = self.world.network.connect(self, self.world.node(node_id))
        return peer

    def _sync(self, what: tuple[Host, Journal, int]) -> None:
        host, journal, end = what
        if self.host is not host:
            return
        key = journal.partition
        self.syncing.discard(key)
        # Meanwhile another node took the log over, or it was deleted, or its disk failed.
        if not host.directory.holds(journal) or key not in host.unsynced:
            return
        try:
            # A sync promises what was written when it began, not what came meanwhile.
            offset = min(journal.sync(), end)
        except StorageError as problem:
            try:
                host.lose(key, problem)
            except MetadataLost:
                self._end_without_metadata()
        else:
            host.synced(key, offset)
        self.work()

    def _clean(self, host: Host) -> None:
        """A piece of the upkeep of logs; the node may die before it, after it, or while the cleaned segment
        exists next to the old ones.
        """
        self.is_cleaning = False
        if self.host is host and not self._dies_in_cleaning(host):
            cleaning, has_more = host.upkeep.work_on_next()
            if not self._dies_in_cleaning(host):
                host.upkeep.finish(cleaning, has_more=has_more)
                self.work()

    def _dies_in_cleaning(self, host: Host) -> bool:
        death = self.death
        if death is None or not host.upkeep.cleanings or not death.is_due_in_cleaning():
            return False
        self.world.marks[KILLED_IN_CLEANING] += 1
        death.strike()
        return True

    def _wake_at(self, host: Host, shown_ms: int) -> None:
        # An earlier wake-up replaces a later one; the act of the latter stays in the queue, and `_tick`
        # ignores it.
        self.ticks_for_ms = shown_ms
        at = max(self.clock.when(shown_ms), self.world.now)
        if self.tick_at is None or at < self.tick_at:
            self.tick_at = at
            self.world.at(at, self._tick, (host, at))

    def _tick(self, what: tuple[Host, int]) -> None:
        host, at = what
        if self.host is host and at == self.tick_at:
            self.tick_at = None
            self.look_at_clock()

    def look_at_clock(self) -> None:
        """Time passed, or the clock jumped."""
        self.ticks_for_ms = None
        if self.host is not None:
            self.host.tick(self.clock.ms(self.world.now))
            self.work()


def disk_of(participant: str) -> str:
    """The name of a node's disk, as `World.speeds` has it."""
    return f"disk of {participant}"


def find_led(host: Host) -> list[TopicPartition]:
    """The partitions that this host leads by the newest epoch: their logs die with its process. It opens the
    logs that no node has open, which recovers them.
    """
    return [key for key, log in host.node.logs.items() if _is_newest(host, key, log.partition.leader_epoch)]


def _is_newest(host: Host, key: TopicPartition, leader_epoch: int) -> bool:
    try:
        return host.directory.journal(key).leader_epoch <= leader_epoch
    except StorageError:  # another node gave it up, and it is damaged, or its disk refuses to recover it
        return False
