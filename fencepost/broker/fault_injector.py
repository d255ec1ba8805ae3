"""Performs the faults of a real broker: on messages that arrive or leave, on appends, on the broker itself.

Rule: it acts only through what the server offers (`Site`), and only in the server's thread. It outlives a
server that crashes, so that counts continue after a restart.
"""

# Theory of operation
#
#     frame      -> Server._begin           --- keeps_request? --> host
#     host       -> Server.send_answers     --- keeps_reply? ----> socket
#     host.to_do -> FaultSite.work_by_steps --- allows? -> write -> written
#     deadlines  -> FaultSite.keep_faults   --- due
#
# A message that is kept is lost, waits here, or was handled here; any other continues.
#
# A fault acts in the middle of the event at its point. An action on a message decides its fate. A lasting
# action leaves a `Lasting`, whose `undo` is called at its `until`, by `end`, or when the fault is removed.
#
# A held message keeps all later ones of its connection and direction waiting (message_lines.py). A fault that
# strikes a waiting message acts when that message's turn comes; only a hold acts at once. A request that is
# held when its client leaves is carried out nevertheless, as if it had been on its way: that is how late
# requests of zombies come about. A reply to a client that has left is discarded.
#
# A crash ends the server (`Site.kill`), and its owner starts the next one. What waited inside it is lost with
# it; a broken disk and a clock that has jumped stay as they are, as on a real machine.

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar, Final, Protocol

import attrs

from fencepost.broker.access.authorize import refusal
from fencepost.broker.contract import NOBODY, Append, Received, Reply, ReplyTo
from fencepost.broker.faults import (
    UNNAMED,
    Abilities,
    FaultPlan,
    PlannedFault,
    Waiting,
    append_points,
    every_error,
    instead_of,
    partition_named,
    partitions_of,
    playable,
)
from fencepost.broker.host import Host
from fencepost.broker.message_lines import Carried, InLine, Link, MessageLines, PendingStrike
from fencepost.broker.transactions.state import Transactions
from fencepost.faults.phrases import BROKER, Action, ActionKind, Point, PointKind
from fencepost.journal.storage import StorageError
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import API_BY_REQUEST, DescribedFault
from fencepost.protocol.terms import TopicPartition


class Site(Protocol):
    """What a server offers to faults."""

    host: Host
    is_held: bool

    def turn(self) -> None: ...

    def send_answers(self) -> None: ...

    def kill(self, *, loses_power: bool, restarts_after_ms: int | None) -> None: ...

    def wake(self) -> None:
        """Look at all deadlines again."""
        ...

    def end_pauses(self, fault: int) -> None:
        """The syncs that have begun take no longer because of the fault with this number."""
        ...

    def struck(self, label: str, to: ReplyTo | None = None) -> None:
        """A fault struck, or ended: a picture shows the label."""
        ...


@attrs.define(eq=False)
class Lasting:
    """An effect that is not undone yet. Unless it `survives`, it ends with its server."""

    planned: PlannedFault
    undo: Callable[[], object]
    survives: bool = False
    due_ms: int | None = None
    waiting: Waiting | None = None


_CRASHES: Final = frozenset({ActionKind.CRASH, ActionKind.CUT_POWER})
_HOLDS: Final = frozenset({ActionKind.HOLD, ActionKind.LATE, ActionKind.DELAY})
_BREAKS: Final = frozenset({ActionKind.DROP, ActionKind.CLOSE})
"""After these, nothing more of the connection arrives."""
_LABELS: Final = {
    ActionKind.CRASH: ("crash", ""),
    ActionKind.CUT_POWER: ("crash: power is cut", ""),
    ActionKind.PAUSE: ("pause", "resume"),
    ActionKind.HOLD: ("hold", "release"),
    ActionKind.DELAY: ("delay", "release"),
}
"""What pictures show as such an action strikes, and as it ends."""


def _no_report(planned: PlannedFault, point: Point) -> None:
    """The default: report nothing."""


@attrs.define(eq=False)
class BrokerFaultInjector:
    """The faults of one broker. `is_active` is False while no one needs to hear of any point.

    `clock` gives milliseconds that never go back. `report` is called after each strike.
    """

    clock: Callable[[], int]
    abilities: Abilities = attrs.Factory(Abilities)
    report: Callable[[PlannedFault, Point], None] = _no_report
    plan: FaultPlan = attrs.Factory(FaultPlan)
    is_active: bool = False
    clock_ms: int = 0
    """How far the broker's clock has jumped."""
    slow_syncs: dict[int, PlannedFault] = attrs.Factory(dict[int, PlannedFault])
    broken: dict[tuple[ActionKind, TopicPartition], PlannedFault] = attrs.Factory(
        dict[tuple[ActionKind, TopicPartition], PlannedFault]
    )
    lasting: list[Lasting] = attrs.Factory(list[Lasting])
    timers: list[tuple[int, PlannedFault]] = attrs.Factory(list[tuple[int, PlannedFault]])
    lines: MessageLines = attrs.Factory(MessageLines)
    passing: set[ReplyTo] = attrs.Factory(set[ReplyTo])
    injected: ReplyTo | None = None
    """The reply that leaves now was made by a fault."""
    owners: dict[int, str] = attrs.Factory(dict[int, str])
    _told_before: Append | None = None
    _site: Site | None = None

    # --- the plan, in the server's thread -------------------------------------------------------------------

    def add(self, text: str) -> PlannedFault:
        """Let this fault wait for its point. Raises BadPhrase if this broker cannot play it."""
        planned = self.plan.add(playable(text, self.abilities))
        if self._site is not None:
            self._set_timer(planned)
        self.refresh()
        return planned

    def _set_timer(self, planned: PlannedFault) -> None:
        """A time counts from the moment when a running broker was asked for the fault, or from its start."""
        when = planned.line.when
        if when.kind is PointKind.AT:
            self.timers.append((self.clock() + when.time_ms, planned))

    def remove(self, number: int) -> None:
        """End this fault and forget it. NoSuchFault if there is none."""
        planned = self.plan.named(number)
        planned.is_removed = True
        self.end(number)
        del self.plan.faults[number]
        self.refresh()

    def end(self, number: int) -> None:
        """Undo now whatever this fault did that is not undone yet. NoSuchFault if there is none."""
        planned = self.plan.named(number)
        for lasting in [each for each in self.lasting if each.planned is planned]:
            self._end(lasting)
        if self._site is not None:
            self._site.turn()

    def watch(self, hear: Callable[[Point], None]) -> None:
        """Call `hear` with each point from now on."""
        self.plan.watchers.append(hear)
        self.refresh()

    def unwatch(self, hear: Callable[[Point], None]) -> None:
        self.plan.watchers.remove(hear)
        self.refresh()

    def describe(self) -> list[DescribedFault]:
        """All faults, oldest first."""
        return [
            DescribedFault(
                fault_id=planned.number,
                fault=str(planned.line),
                struck=planned.struck,
                reached=planned.reached,
                is_lasting=planned.lasting > 0,
                missing=self._missing(planned),
                absent=tuple(map(str, self.absent(planned))),
            )
            for planned in self.plan.faults.values()
        ]

    def _missing(self, planned: PlannedFault) -> str:
        """Why a fault has not struck; a partition that does not exist is most often a typing error."""
        missing = self.plan.missing(planned)
        absent = [
            f"partition {each} does not exist yet{self.instead_of(each)}" for each in self.absent(planned)
        ]
        return f"{missing} ({', '.join(absent)})" if missing and absent else missing

    def absent(self, planned: PlannedFault) -> list[TopicPartition]:
        """The named partitions that do not exist now; a client may still create them."""
        if self._site is None:
            return []
        node = self._site.host.node
        return [
            each
            for each in partitions_of(planned.line)
            if each not in node.logs and node.cluster.leader(each) is None
        ]

    def instead_of(self, absent: TopicPartition) -> str:
        """What one of these was probably meant to be, as the end of a sentence, or empty."""
        if self._site is None:
            return ""
        topics = self._site.host.node.cluster.topics
        return instead_of(absent, {name: len(topic.leaders) for name, topic in topics.items()})

    def refresh(self) -> None:
        """Find out again whether points are needed, and when the next deadline is."""
        was_active, self.is_active = self.is_active, not self.plan.is_over
        if self.is_active and not was_active:
            self._find_owners()
        if self._site is not None:
            self._site.wake()

    def _find_owners(self) -> None:
        """Learn the transactional ids of producer ids that were given while no fault waited."""
        logs = () if self._site is None else self._site.host.node.logs.values()
        for log in logs:
            if isinstance(log.coordinator, Transactions):
                for name, record in log.coordinator.records.items():
                    self.owners[record.producer_id] = name

    # --- the server -----------------------------------------------------------------------------------------

    def attach(self, site: Site) -> None:
        """This server is the broker from now on."""
        self._site = site
        timed = [planned for _, planned in self.timers]
        for planned in self.plan.faults.values():
            if planned.may_strike and planned not in timed:
                self._set_timer(planned)
        self.refresh()
        if self.is_active:
            self._find_owners()

    def detach(self) -> None:
        """The server has ended, and what waited inside it is lost."""
        for lasting in [each for each in self.lasting if not each.survives]:
            self._forget(lasting)
        for place in self.lines.drop_all():
            self._forget_strike(place)
        self.passing.clear()
        self._told_before = self._site = None

    @property
    def next_due_ms(self) -> int | None:
        """The next deadline, on `clock`."""
        due = [at_ms for at_ms, _ in self.timers]
        due += [lasting.due_ms for lasting in self.lasting if lasting.due_ms is not None]
        return min(due, default=None)

    def due(self) -> None:
        """Perform what is due now."""
        now = self.clock()
        for at_ms, planned in [timer for timer in self.timers if timer[0] <= now]:
            self.timers.remove((at_ms, planned))
            if planned.may_strike:
                planned.reached += 1
                self._strike(planned, planned.line.when, None)
        for lasting in [each for each in self.lasting if each.due_ms is not None and each.due_ms <= now]:
            self._end(lasting)

    # --- messages -------------------------------------------------------------------------------------------

    def keeps_request(self, connection: Link, arrived: Received) -> bool:
        """A request has arrived. Returns whether to keep it from the node for now."""
        what, client = API_BY_REQUEST[type(arrived.request)].name, arrived.client_id or UNNAMED
        carried = Carried(connection, arrived)
        sent = Point(kind=PointKind.SENDS, who=client, what=what, whom=BROKER)
        return self._stops(carried, sent) or self._queues(carried) or self._is_kept_on_receipt(carried)

    def _is_kept_on_receipt(self, carried: Carried) -> bool:
        arrived = carried.message
        assert isinstance(arrived, Received), "a broker receives requests"
        what, client = API_BY_REQUEST[type(arrived.request)].name, arrived.client_id or UNNAMED
        received = Point(kind=PointKind.RECEIVES, who=BROKER, what=what, whom=client)
        return self._stops(carried._replace(is_received=True), received)

    def keeps_reply(self, connection: Link, answer: Reply) -> bool:
        """A reply is about to leave. Returns whether to hold it back for now."""
        asked = connection.in_progress.get(answer.to.correlation_id)
        if asked is None or answer.to in self.passing:
            return False
        client, carried = asked.client_id or UNNAMED, Carried(connection, answer)
        points = [
            Point(kind=PointKind.SENDS_REPLY, who=BROKER, what=API_BY_REQUEST[asked.kind].name, whom=client)
        ]
        points += [
            Point(kind=PointKind.ANSWERS, who=BROKER, what=error.name, whom=client)
            for error in every_error(answer.error, answer.body)
        ]
        return self._stops(carried, *points) or self._queues(carried)

    def delays(self, connection: Link) -> bool:
        """Whether requests of this connection wait for one that is held or late."""
        return self.lines.has(connection, are_requests=True)

    def _queues(self, carried: Carried) -> bool:
        """Put a message at the end of its line, if its connection is held."""
        is_behind = self.lines.waits(carried)
        if is_behind:
            self.lines.place(carried)
        return is_behind

    def _stops(self, carried: Carried, *points: Point) -> bool:
        """Report the points of a message. Returns whether a fault decides its fate; the first one does."""
        is_stopped = False
        for point in points:
            for planned in self.plan.reach(point):
                if not (is_stopped and planned.line.do.kind in self._ON_MESSAGES):
                    is_stopped = self._strike(planned, point, carried) or is_stopped
        return is_stopped

    def send(self, answer: Reply) -> None:
        """Let a reply leave, past all faults."""
        assert self._site is not None, "a reply belongs to a server"
        self.passing.add(answer.to)
        self._site.host.answers.append(answer)
        self._site.send_answers()
        self.passing.discard(answer.to)

    def _release(self, place: InLine) -> None:
        """A message is released: its line continues, in its order, up to the next held one."""
        place.is_held = False
        key = place.carried.line
        if self.lines.start(key):
            try:
                while (first := self.lines.first(key)) is not None:
                    if not self._waits_on(first):
                        self.lines.leave(key)
                    if first.strike is not None and first.strike.planned.line.do.kind in _BREAKS:
                        for lost in self.lines.drop(key):
                            self._forget_strike(lost)
            finally:
                self.lines.stop(key)

    def _waits_on(self, first: InLine) -> bool:
        """The turn of a message has come: let it go on, or let its fault act. Whether it is held again."""
        assert self._site is not None, "a line belongs to a server"
        carried, strike = first.carried, first.strike
        if strike is not None:
            self._forget_strike(first)
            if not strike.planned.is_removed:
                self._act(strike.planned, strike.point, carried)
                return False
            first.strike = None
        if isinstance(carried.message, Reply):
            self.send(carried.message)
        elif carried.is_received or not self._is_kept_on_receipt(carried):
            self._site.host.offer(carried.message)
        return first.is_held

    def _forget_strike(self, place: InLine) -> None:
        if place.strike is not None:
            place.strike.planned.waiting -= 1

    # --- appends and disks ----------------------------------------------------------------------------------

    def allows(self, append: Append) -> bool:
        """An append is next. Returns whether it may be written now; False also if it has failed."""
        site = self._site
        assert site is not None, "an append belongs to a server"
        if append is not self._told_before:
            self._told_before = append
            self._tell_append(append, is_before=True)
            if site.is_held:
                return False
        if (planned := self.broken.get((ActionKind.FAIL_APPENDS, append.partition))) is not None:
            site.host.to_do.popleft()
            self._has_struck(planned, planned.line.when)
            problem = StorageError("the disk refused to append, by an injected fault")
            site.host.lose(append.partition, problem)
            return False
        return True

    def written(self, append: Append) -> None:
        """An append was written; no effect of it has happened."""
        self._told_before = None
        self._tell_append(append, is_before=False)

    def _tell_append(self, append: Append, *, is_before: bool) -> None:
        for kind, who, what, whom in append_points(append, self.owners):
            point = Point(kind=kind, who=who, what=what, whom=whom, is_before=is_before)
            for planned in self.plan.reach(point):
                self._strike(planned, point, None)

    def check_sync(self, partition: TopicPartition) -> None:
        """Raise StorageError if a fault fails the sync of this log."""
        if (planned := self.broken.get((ActionKind.FAIL_SYNCS, partition))) is not None:
            self._has_struck(planned, planned.line.when)
            raise StorageError("the disk refused to sync, by an injected fault")

    def slower_syncs(self) -> dict[int, float]:
        """By how many times its duration each fault makes a sync longer, by the numbers of the faults."""
        for planned in self.slow_syncs.values():
            self._has_struck(planned, planned.line.when)
        return {number: planned.line.do.amount - 1 for number, planned in self.slow_syncs.items()}

    # --- striking and undoing -------------------------------------------------------------------------------

    def _strike(self, planned: PlannedFault, point: Point, carried: Carried | None) -> bool:
        """Perform the action of a fault. Whether it has decided the fate of the message."""
        do = planned.line.do
        if do.kind in self._ON_MESSAGES:
            assert carried is not None, "`playable` lets these actions strike messages only"
            if self.lines.waits(carried) and do.kind not in _HOLDS:
                self.lines.place(carried).strike = PendingStrike(planned, point)
                planned.waiting += 1
            else:
                self._act(planned, point, carried)
            self.refresh()
            return True
        if self._ON_BROKER[do.kind](self, planned, do):
            self._has_struck(planned, point)
        self.refresh()
        return do.kind in _CRASHES

    def _act(self, planned: PlannedFault, point: Point, carried: Carried) -> None:
        self._has_struck(planned, point, carried.message)
        self._ON_MESSAGES[planned.line.do.kind](self, planned, carried)

    def _has_struck(
        self, planned: PlannedFault, point: Point, message: Received | Reply | None = None
    ) -> None:
        planned.struck += 1
        self.report(planned, point)
        if self._site is not None:
            do = planned.line.do
            label, _ = _LABELS.get(do.kind, (str(do), ""))
            self._site.struck(label, None if message is None else message.to)

    def _lasts(
        self,
        planned: PlannedFault,
        undo: Callable[[], object],
        *,
        survives: bool = False,
        ms: int | None = None,
    ) -> None:
        """The effect lasts until the fault's `until`, or for `ms`, or until it is ended."""
        lasting = Lasting(planned, undo, survives)
        until = planned.line.until
        if until is not None and until.kind is PointKind.LATER:
            ms = until.time_ms
        elif until is not None:
            lasting.waiting = Waiting(until, partial(self._end, lasting))
            self.plan.ends.append(lasting.waiting)
        lasting.due_ms = None if ms is None else self.clock() + ms
        planned.lasting += 1
        self.lasting.append(lasting)

    def _forget(self, lasting: Lasting) -> None:
        self.lasting.remove(lasting)
        lasting.planned.lasting -= 1
        if lasting.waiting in self.plan.ends:
            self.plan.ends.remove(lasting.waiting)

    def _end(self, lasting: Lasting) -> None:
        if lasting in self.lasting:
            self._forget(lasting)
            if self._site is not None:
                do = lasting.planned.line.do
                _, label = _LABELS.get(do.kind, ("", f"end of {do}"))
                self._site.struck(label)
            lasting.undo()
            self.refresh()

    # --- actions on messages --------------------------------------------------------------------------------

    def _drop(self, planned: PlannedFault, carried: Carried) -> None:
        carried.connection.close()

    def _close(self, planned: PlannedFault, carried: Carried) -> None:
        self._let_on(carried)
        carried.connection.close()

    def _hold(self, planned: PlannedFault, carried: Carried) -> None:
        place = self.lines.place(carried)
        place.is_held = True
        ms = planned.line.do.amount if planned.line.do.kind is ActionKind.LATE else None
        self._lasts(planned, partial(self._release, place), ms=ms)

    def _delay(self, planned: PlannedFault, carried: Carried) -> None:
        self._hold(planned, carried)
        carried.connection.close()

    def _twice(self, planned: PlannedFault, carried: Carried) -> None:
        self._let_on(carried)
        again = carried.message
        assert isinstance(again, Received), "only a request is delivered twice"
        self._let_on(Carried(carried.connection, attrs.evolve(again, to=NOBODY)))

    def _answer(self, planned: PlannedFault, carried: Carried) -> None:
        asked = carried.message
        assert isinstance(asked, Received), "only a request is answered"
        error = ErrorCode[planned.line.do.what]
        body = refusal(asked.request, error)
        self.injected = asked.to
        self.send(Reply(asked.to, body) if body is not None else Reply(asked.to, error=error))
        self.injected = None

    def _let_on(self, carried: Carried) -> None:
        assert self._site is not None, "a message belongs to a server"
        if isinstance(carried.message, Reply):
            self.send(carried.message)
        else:
            self._site.host.offer(carried.message)

    # --- actions on the broker ------------------------------------------------------------------------------

    def _crash(self, planned: PlannedFault, do: Action) -> bool:
        # Counted first: a process does not return from its end.
        self._has_struck(planned, planned.line.when)
        until = planned.line.until
        if self._site is not None:
            restarts_after_ms = None if until is None else until.time_ms
            self._site.kill(loses_power=do.kind is ActionKind.CUT_POWER, restarts_after_ms=restarts_after_ms)
        return False

    def _pause(self, planned: PlannedFault, do: Action) -> bool:
        site = self._site
        if site is None or site.is_held:
            return False
        site.is_held = True
        self._lasts(planned, self._resume)
        return True

    def _resume(self) -> None:
        if self._site is not None:
            self._site.is_held = False

    def _jump(self, planned: PlannedFault, do: Action) -> bool:
        self.clock_ms += do.amount
        return True

    def _slow_disk(self, planned: PlannedFault, do: Action) -> bool:
        """It strikes with the first sync that it slows down."""
        if planned.number not in self.slow_syncs:
            self.slow_syncs[planned.number] = planned
            self._lasts(planned, partial(self._speed_disk_up, planned), survives=True)
        return False

    def _speed_disk_up(self, planned: PlannedFault) -> None:
        del self.slow_syncs[planned.number]
        if self._site is not None:
            self._site.end_pauses(planned.number)

    def _break_disk(self, planned: PlannedFault, do: Action) -> bool:
        """It strikes with the first operation that fails."""
        key = (do.kind, partition_named(do.who))
        if key not in self.broken:
            self.broken[key] = planned
            self._lasts(planned, partial(self.broken.pop, key), survives=True)
        return False

    _ON_MESSAGES: ClassVar[dict[ActionKind, Callable[[BrokerFaultInjector, PlannedFault, Carried], None]]] = {
        ActionKind.DROP: _drop,
        ActionKind.CLOSE: _close,
        ActionKind.HOLD: _hold,
        ActionKind.LATE: _hold,
        ActionKind.DELAY: _delay,
        ActionKind.TWICE: _twice,
        ActionKind.ANSWER: _answer,
    }
    _ON_BROKER: ClassVar[dict[ActionKind, Callable[[BrokerFaultInjector, PlannedFault, Action], bool]]] = {
        ActionKind.CRASH: _crash,
        ActionKind.CUT_POWER: _crash,
        ActionKind.PAUSE: _pause,
        ActionKind.CLOCK: _jump,
        ActionKind.SLOW_DISK: _slow_disk,
        ActionKind.FAIL_APPENDS: _break_disk,
        ActionKind.FAIL_SYNCS: _break_disk,
    }
