"""Faults at their points: each waits, strikes, and is undone when its time has come.

Theory of operation. A fault is a value: `when` it strikes, what it does (`do`), and `until` when that
lasts.

    ProtocolEvents --"node 1 sends EndTxn reply"--> Strike --> one of _DEEDS --> Undo --until--> undone
                                                       at once, or as the next thing of the world

A deed happens at the very moment of its point where that is possible: a node can crash or pause between
two of its own acts, and a message can be held while it is sent. Any other deed waits until the current
act is over, because code that runs must not be pulled away from under itself: no real cluster does that.
Each deed publishes FaultStruck before its effect and FaultEnded before that is undone, so that a picture
shows the cause above what follows.

Invariant: after `heal` no effect of a fault is left, whether its `until` came or not. A fault whose point
never came did not strike, and a scenario that waits for it fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import attrs

from fencepost.broker.host import SyncPolicy
from fencepost.faults.phrases import ENDS_ITSELF, LASTS_MS, Action, ActionKind, Fault, Point, PointKind
from fencepost.journal.simulated import APPEND, SYNC
from fencepost.simulator.faults.protocol_events import SAME, Listener, ProtocolEvent, ProtocolEvents
from fencepost.simulator.world.clock import NS_PER_MS
from fencepost.simulator.world.events import DiskFailed, FaultEnded, FaultStruck
from fencepost.simulator.world.network import Message
from fencepost.simulator.world.nodes import SimulatedNode, disk_of
from fencepost.simulator.world.processes import ClientProcess
from fencepost.simulator.world.world import World

Act = Callable[[], None]
_AT_LEISURE: Final = Point(kind=PointKind.LATER, time_ms=LASTS_MS)
# What a node can bear in the middle of its own work, and what touches nobody's work.
_OF_ITSELF: Final = frozenset({ActionKind.CRASH, ActionKind.CUT_POWER, ActionKind.PAUSE})
_HARMLESS: Final = frozenset(
    {ActionKind.HOLD, ActionKind.DELAY, ActionKind.FAIL_APPENDS, ActionKind.FAIL_SYNCS}
)


def _nothing() -> None:
    """Nothing is left to undo."""


def _at_once() -> bool:
    """It struck when it was done."""
    return True


class Undo(NamedTuple):
    """How an effect is undone, and whether it met anything yet."""

    act: Act = _nothing
    has_struck: Callable[[], bool] = _at_once


@attrs.define(eq=False)
class Strike:
    """One fault of a run: how often its point came, how often what it did is over, and whether its end never
    came.
    """

    fault: Fault
    fired: int = 0
    ended: int = 0
    never_ended: bool = False
    undos: list[Act] = attrs.Factory(list[Act])
    done: list[Undo] = attrs.Factory(list[Undo])

    @property
    def struck(self) -> int:
        """How often it did something."""
        return sum(each.has_struck() for each in self.done)

    @property
    def is_over(self) -> bool:
        """Whether its point came as often as it should, and nothing of it is left."""
        return self.fired == self.fault.times and self.ended == self.fired


@attrs.define(eq=False)
class FaultInjector:
    """All faults of a run. `call` starts a process by name, `replace` another one in the place of a dead
    one.
    """

    world: World
    protocol_events: ProtocolEvents
    call: Callable[[str], None]
    replace: Callable[[str], None]
    strikes: list[Strike] = attrs.Factory(list[Strike])
    waiting: list[Listener] = attrs.Factory(list[Listener])

    def plan(self, faults: tuple[Fault, ...]) -> None:
        """From now on each fault waits for its point."""
        for fault in faults:
            strike = Strike(fault)
            self.strikes.append(strike)
            (when,) = fault.when
            if when.is_time:
                at = self.world.now + when.time_ms * NS_PER_MS
                self.world.at(at, self._at_time, strike)
            else:
                hear = _bound(self._reached, strike)
                self.waiting.append(self.protocol_events.listen(when, hear, times=fault.times))

    @property
    def is_over(self) -> bool:
        return all(strike.is_over for strike in self.strikes)

    def heal(self) -> None:
        """No fault strikes any more, and every effect is undone."""
        for listener in self.waiting:
            listener.is_over = True
        for strike in self.strikes:
            while strike.undos:
                strike.never_ended = strike.never_ended or not (strike.fault.until or _AT_LEISURE).is_time
                strike.undos[0]()

    # --- striking -------------------------------------------------------------------------------------------

    def _at_time(self, strike: Strike) -> None:
        self._strike(strike, ProtocolEvent(PointKind.AT, "", is_between=True))

    def _reached(self, strike: Strike, event: ProtocolEvent) -> None:
        kind = strike.fault.do.kind
        is_own = kind in _OF_ITSELF and self.node(strike.fault.do.who) is event.node
        if event.is_between or is_own or kind in _HARMLESS:
            self._strike(strike, event)
        else:
            self.world.next(lambda _: self._strike(strike, event))

    def _strike(self, strike: Strike, event: ProtocolEvent) -> None:
        fault = strike.fault
        strike.fired += 1
        done = _DEEDS[fault.do.kind](self, fault.do, event)
        if done is not None:
            strike.done.append(done)
        if done is None or fault.do.kind in ENDS_ITSELF:
            strike.ended += 1
            return
        self._end_later(strike, done.act)

    def _end_later(self, strike: Strike, undo: Act) -> None:
        """When its end comes, or when all is healed."""

        def end(_: object = None) -> None:
            if end in strike.undos:
                strike.undos.remove(end)
                strike.ended += 1
                undo()

        strike.undos.append(end)
        until = strike.fault.until or _AT_LEISURE
        if until.is_time:
            self.world.at(self.world.now + until.time_ms * NS_PER_MS, end)
        else:
            self.protocol_events.listen(until, lambda _: self.world.next(end))

    def node(self, name: str) -> SimulatedNode | None:
        participant = self.protocol_events.participant(name)
        return next((node for node in self.world.nodes if node.participant == participant), None)

    def somebody(self, name: str) -> SimulatedNode | ClientProcess | None:
        """Who bears this name now: a node, or the newest process of that name that is alive."""
        alive = (process for process in reversed(self.world.processes) if not process.is_over)
        return self.node(name) or next(
            (process for process in alive if process.participant.partition(SAME)[0] == name), None
        )

    def watch(self, participant: str, label: str, message: Message | None = None) -> None:
        """A fault is about to strike."""
        self.world.events.publish(FaultStruck(participant, label, message))

    def unwatch(self, participant: str, label: str, message: Message | None = None) -> None:
        """What a fault did is about to be undone."""
        self.world.events.publish(FaultEnded(participant, label, message))


def _bound(act: Callable[[Strike, ProtocolEvent], None], strike: Strike) -> Callable[[ProtocolEvent], None]:
    return lambda event: act(strike, event)


# --- what is done to messages -------------------------------------------------------------------------------


def _hold(injector: FaultInjector, action: Action, event: ProtocolEvent) -> Undo | None:
    """The message waits where it arrives, and all that comes behind it on its connection."""
    assert event.carried is not None, "only what is anchored at a message holds one"
    channel, message = event.carried
    network = injector.world.network
    if any(message is held for held in network.held):
        return None
    network.hold_message(message)
    injector.watch("", str(action), message)

    def release() -> None:
        injector.unwatch("", "release", message)
        network.release_message(channel, message)

    return Undo(release)


def _delay(injector: FaultInjector, action: Action, event: ProtocolEvent) -> Undo | None:
    """The same; and whoever sent it takes it for lost, and asks again elsewhere."""
    done = _hold(injector, action, event)
    if done is not None and event.carried is not None:
        connection = event.carried[0].connection

        def take_for_lost(_: object) -> None:
            if connection.is_open:
                connection.caller.lost(connection)
                injector.world.network.give_up(connection)

        injector.world.next(take_for_lost)
    return done


def _drop(injector: FaultInjector, action: Action, event: ProtocolEvent) -> Undo | None:
    """The connection breaks, with this message and all else that is on its way."""
    assert event.carried is not None, "only what is anchored at a message loses one"
    channel, message = event.carried
    if channel.is_dead:
        return None
    injector.watch("", str(action), message)
    injector.world.network.reset(channel.connection)
    return Undo()


# --- what is done to nodes and processes --------------------------------------------------------------------


def _crash(injector: FaultInjector, action: Action, _: ProtocolEvent) -> Undo | None:
    node = injector.node(action.who)
    assert node is not None, "who crashes is a node"
    if node.host is None:
        return None
    return _kill_node(injector, node, power_is_lost=action.kind is ActionKind.CUT_POWER)


def _kill_node(injector: FaultInjector, node: SimulatedNode, *, power_is_lost: bool) -> Undo:
    injector.watch(node.participant, "crash: power is cut" if power_is_lost else "crash")
    node.kill(power_is_lost=power_is_lost)

    def restart() -> None:
        if node.host is None:
            injector.unwatch(node.participant, "restart")
            node.start()

    return Undo(restart)


def _kill(injector: FaultInjector, action: Action, _: ProtocolEvent) -> Undo | None:
    process = injector.somebody(action.who)
    if not isinstance(process, ClientProcess):
        return None
    injector.watch(process.participant, "crash: killed")
    process.kill()
    return Undo(lambda: injector.replace(action.who))


def _pause(injector: FaultInjector, action: Action, _: ProtocolEvent) -> Undo | None:
    somebody = injector.somebody(action.who)
    is_down = isinstance(somebody, SimulatedNode) and somebody.host is None
    if somebody is None or somebody.is_paused or is_down:
        return None
    injector.watch(somebody.participant, "pause")
    somebody.pause()

    def resume() -> None:
        if somebody.is_paused:
            injector.unwatch(somebody.participant, "resume")
            somebody.resume()

    return Undo(resume)


def _start(injector: FaultInjector, action: Action, _: ProtocolEvent) -> Undo | None:
    injector.call(action.who)
    return Undo()


def _clock(injector: FaultInjector, action: Action, _: ProtocolEvent) -> Undo | None:
    somebody = injector.somebody(action.who)
    if somebody is None or action.amount == 0:
        return None
    somebody.clock.offset_ns += action.amount * NS_PER_MS
    injector.watch(somebody.participant, str(action))
    somebody.look_at_clock()
    return Undo()


def _slow(injector: FaultInjector, action: Action, _: ProtocolEvent) -> Undo | None:
    participant, speeds = injector.protocol_events.participant(action.who), injector.world.speeds
    is_disk = action.kind is ActionKind.SLOW_DISK
    slow = disk_of(participant) if is_disk else participant
    if slow in speeds or (is_disk and injector.world.settings.policy is SyncPolicy.NONE):
        return None
    speeds[slow] = action.amount
    injector.watch(participant, str(action))

    def as_quick_as_ever() -> None:
        speeds.pop(slow, None)
        injector.unwatch(participant, "quick again")

    return Undo(as_quick_as_ever)


# --- what is done to partitions and between lanes -----------------------------------------------------------


def _move(injector: FaultInjector, action: Action, _: ProtocolEvent) -> Undo | None:
    target = injector.node(action.whom)
    assert target is not None, "a partition is moved to a node"
    where = injector.protocol_events.partition(action.who)
    leader = injector.protocol_events.leaders.get(where)
    if leader is None or leader is target or injector.world.nodes[0].host is None:
        return None  # nobody moves what nobody leads, or what is there, or without a controller
    injector.watch(target.participant, str(action))
    injector.world.move(where, target.settings.node_id)
    return Undo()


def _part(injector: FaultInjector, action: Action, _: ProtocolEvent) -> Undo | None:
    one, other = (
        injector.protocol_events.participant(action.who),
        injector.protocol_events.participant(action.whom),
    )
    both = action.kind is ActionKind.PARTITION
    return _block(injector, str(action), ((one, other), (other, one)) if both else ((one, other),))


def _isolate(injector: FaultInjector, action: Action, _: ProtocolEvent) -> Undo | None:
    participant = injector.protocol_events.participant(action.who)
    participants = [
        each.participant
        for each in (*injector.world.nodes, *injector.world.processes)
        if each.participant != participant
    ]
    pairs = tuple(pair for other in participants for pair in ((participant, other), (other, participant)))
    return _block(injector, str(action), pairs)


def _block(injector: FaultInjector, what: str, pairs: tuple[tuple[str, str], ...]) -> Undo | None:
    network = injector.world.network
    fresh = tuple(pair for pair in pairs if pair[0] != pair[1] and pair not in network.blocked)
    if not fresh:
        return None
    network.blocked.update(fresh)
    injector.watch(fresh[0][0], what)

    def heal() -> None:
        injector.unwatch(fresh[0][0], f"healed: {what}")
        network.unblock(fresh)

    return Undo(heal)


def _break_disk(injector: FaultInjector, action: Action, _: ProtocolEvent) -> Undo | None:
    where = injector.protocol_events.partition(action.who)
    broken = (APPEND if action.kind is ActionKind.FAIL_APPENDS else SYNC, str(where))
    world = injector.world
    if broken in world.broken_disks:
        return None
    failures: list[DiskFailed] = []

    def hear(failed: DiskFailed) -> None:
        if (failed.operation, failed.directory) == broken:
            failures.append(failed)

    def mend() -> None:
        world.broken_disks.discard(broken)
        world.events.unsubscribe(DiskFailed, hear)

    world.broken_disks.add(broken)
    world.events.subscribe(DiskFailed, hear)
    injector.watch(injector.protocol_events.participant(f"leader of {where}"), str(action))
    return Undo(mend, lambda: bool(failures))


_DEEDS: Final[dict[ActionKind, Callable[[FaultInjector, Action, ProtocolEvent], Undo | None]]] = {
    ActionKind.HOLD: _hold,
    ActionKind.DELAY: _delay,
    ActionKind.DROP: _drop,
    ActionKind.CRASH: _crash,
    ActionKind.CUT_POWER: _crash,
    ActionKind.KILL: _kill,
    ActionKind.PAUSE: _pause,
    ActionKind.START: _start,
    ActionKind.MOVE: _move,
    ActionKind.PARTITION: _part,
    ActionKind.BLOCK: _part,
    ActionKind.ISOLATE: _isolate,
    ActionKind.CLOCK: _clock,
    ActionKind.SLOW: _slow,
    ActionKind.SLOW_DISK: _slow,
    ActionKind.FAIL_APPENDS: _break_disk,
    ActionKind.FAIL_SYNCS: _break_disk,
}
