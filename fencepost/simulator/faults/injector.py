"""The fault engine: performs the action of a fault, publishes that, and undoes it when the fault ends."""

# Theory of operation. A scenario gives faults as values: `when` a fault strikes, what it does (`do`), and
# `until` when that lasts. Chance (random_faults.py) gives single actions. Both go through the same steps:
#
#     plan(faults) --> a point of the protocol is reached --+
#                                                           +--> strike --> one of _EFFECTS --> Effect
#     RandomFaults --> strike(action) now ------------------+                 |
#                                                                             v
#                      FaultEnded, undo <-- its end: a time, a point, heal <-- FaultStruck, do
#
# A function of _EFFECTS changes nothing: it finds what the action names and returns an `Effect`, or None if
# there is nothing to strike (the node is down already). The engine performs the effect and undoes it.
#
# An action strikes at the very moment of its point where that is possible: a node can crash or pause between
# two of its own acts, and a message can be held while it is sent. Any other action waits until the current
# act is over, because in a real cluster, no object disappears under the code that is using it.
#
# FaultStruck comes before the effect and FaultEnded before its undoing, so that a picture shows the cause
# above what follows. An end that is a time is planned before the effect too: the order in which a run takes
# its choices is part of every recorded run.
#
# Invariant: after `heal` no effect of a fault is left, whether its `until` came or not. A fault whose point
# never came did not strike, and a scenario that waits for it fails.

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import attrs

from fencepost.broker.access.authorize import refusal
from fencepost.broker.sync_policy import SyncPolicy
from fencepost.faults.phrases import DAMAGES, LASTS_MS, Action, ActionKind, Fault, Point, PointKind
from fencepost.journal.simulated import APPEND, SYNC
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.terms import TopicPartition
from fencepost.simulator.faults.damage import damage_of
from fencepost.simulator.faults.protocol_events import SAME, Listener, ProtocolEvent, ProtocolEvents
from fencepost.simulator.world.events import DiskFailed, FaultEnded, FaultStruck
from fencepost.simulator.world.network import (
    Channel,
    Message,
    ReplyMessage,
    RequestMessage,
    SimulatedConnection,
)
from fencepost.simulator.world.nodes import SimulatedNode, disk_of
from fencepost.simulator.world.participants import NS_PER_MS
from fencepost.simulator.world.processes import ClientProcess
from fencepost.simulator.world.world import World

Act = Callable[[], None]
_DEFAULT_END: Final = Point(kind=PointKind.LATER, time_ms=LASTS_MS)
_AT_THIS_TIME: Final = ProtocolEvent(PointKind.AT, "", is_between=True)
# _ON_ITSELF: a node can do these to itself in the middle of its work. _AT_ONCE: these interrupt no work.
_ON_ITSELF: Final = frozenset({ActionKind.CRASH, ActionKind.CUT_POWER, ActionKind.PAUSE})
_AT_ONCE: Final = frozenset(
    {
        ActionKind.HOLD,
        ActionKind.LATE,
        ActionKind.DELAY,
        ActionKind.ANSWER,
        ActionKind.FAIL_APPENDS,
        ActionKind.FAIL_SYNCS,
    }
)


def _always() -> bool:
    return True


class Effect(NamedTuple):
    """What an action does at this moment. Without `undo` it is over at once.

    A picture shows `label` at the `participant` when the effect begins and `end_label` when it is undone; ""
    is the network, and an effect without a label is not published. `is_left` is False if something else undid
    the effect already, `has_struck` is False until the effect has changed something.
    """

    participant: str
    label: str
    do: Act
    undo: Act | None = None
    end_label: str = ""
    message: Message | None = None
    is_left: Callable[[], bool] = _always
    has_struck: Callable[[], bool] = _always


@attrs.define(eq=False)
class Strike:
    """One fault of a run: how often its point was reached, its effects, how many of them are over, and
    whether only `heal` ended one.
    """

    fault: Fault
    fired: int = 0
    ended: int = 0
    never_ended: bool = False
    effects: list[Effect] = attrs.Factory(list[Effect])

    @property
    def struck(self) -> int:
        """How often it changed something."""
        return sum(effect.has_struck() for effect in self.effects)

    @property
    def is_over(self) -> bool:
        """Whether its point was reached as often as it should be, and nothing of it is left."""
        return self.fired == self.fault.times and self.ended == self.fired


@attrs.define(eq=False)
class FaultInjector:
    """Performs all faults of a run. `call` starts a process by its name, `replace` starts another process in
    the place of a dead one. `lasting` are the effects that are not undone yet, oldest first.
    """

    world: World
    protocol_events: ProtocolEvents
    call: Callable[[str], None]
    replace: Callable[[str], None]
    strikes: list[Strike] = attrs.Factory(list[Strike])
    waiting: list[Listener] = attrs.Factory(list[Listener])
    lasting: list[tuple[Strike, Effect]] = attrs.Factory(list[tuple[Strike, Effect]])

    def plan(self, faults: tuple[Fault, ...]) -> None:
        """Let each fault wait for its point from now on."""
        for fault in faults:
            is_late = fault.do.kind is ActionKind.LATE
            end = attrs.evolve(_DEFAULT_END, time_ms=fault.do.amount) if is_late else _DEFAULT_END
            strike = Strike(attrs.evolve(fault, until=fault.until or end))
            self.strikes.append(strike)
            (when,) = fault.when
            if when.is_time:
                at = self.world.now + when.time_ms * NS_PER_MS
                self.world.at(at, partial(self._strike, strike), _AT_THIS_TIME)
            else:
                hear = partial(self._reached, strike)
                self.waiting.append(self.protocol_events.listen(when, hear, times=fault.times))

    def strike(
        self, action: Action, *, channel: Channel | None = None, lasts_ms: int | None = None
    ) -> Strike:
        """Strike now. Without `lasts_ms` the effect lasts until `end_after` sets its end, or until `heal`.
        `channel` is what a hold, a delay or a drop strikes.
        """
        now = Point(kind=PointKind.AT, time_ms=self.world.now // NS_PER_MS)
        until = None if lasts_ms is None else Point(kind=PointKind.LATER, time_ms=lasts_ms)
        strike = Strike(Fault(when=(now,), do=action, until=until))
        carried = None if channel is None else (channel, None)
        self._strike(strike, _AT_THIS_TIME._replace(carried=carried))
        return strike

    def end_after(self, strike: Strike, lasts_ms: int) -> None:
        """Undo the effects of this strike after that time."""
        self.world.at(self.world.now + lasts_ms * NS_PER_MS, self._end_of, strike)

    @property
    def is_over(self) -> bool:
        """Whether every planned fault struck and ended."""
        return all(strike.is_over for strike in self.strikes)

    def heal(self) -> None:
        """Cancel all planned faults and undo every effect."""
        for listener in self.waiting:
            listener.is_over = True
        while self.lasting:
            # In the order in which they began.
            oldest = self.lasting[0]
            strike, until = oldest[0], oldest[0].fault.until
            strike.never_ended = strike.never_ended or (until is not None and not until.is_time)
            self._end(oldest)

    # --- striking and undoing -------------------------------------------------------------------------------

    def _reached(self, strike: Strike, event: ProtocolEvent) -> None:
        kind = strike.fault.do.kind
        is_own = kind in _ON_ITSELF and self.node(strike.fault.do.who) is event.node
        if event.is_between or is_own or kind in _AT_ONCE:
            self._strike(strike, event)
        else:
            # After the act that reached the point, and before anything else.
            self.world.next(partial(self._strike, strike), event)

    def _strike(self, strike: Strike, event: ProtocolEvent) -> None:
        strike.fired += 1
        action, until = strike.fault.do, strike.fault.until
        effect = _EFFECTS[action.kind](self, action, event)
        if effect is None:
            strike.ended += 1
            return
        strike.effects.append(effect)
        lasting = (strike, effect)
        if effect.label:
            self.world.events.publish(FaultStruck(effect.participant, effect.label, effect.message))
        if effect.undo is None:
            strike.ended += 1
            effect.do()
            return
        self.lasting.append(lasting)
        if until is not None and until.is_time:
            self.world.at(self.world.now + until.time_ms * NS_PER_MS, self._end, lasting)
        effect.do()
        if until is not None and not until.is_time:
            self.protocol_events.listen(until, lambda _: self.world.next(self._end, lasting))

    def _end_of(self, strike: Strike) -> None:
        for lasting in [each for each in self.lasting if each[0] is strike]:
            self._end(lasting)

    def _end(self, ending: tuple[Strike, Effect]) -> None:
        if not any(each is ending for each in self.lasting):
            return  # it has ended already, by its time or by heal
        self.lasting[:] = [each for each in self.lasting if each is not ending]
        strike, effect = ending
        strike.ended += 1
        if effect.undo is not None and effect.is_left():
            if effect.end_label:
                self.world.events.publish(FaultEnded(effect.participant, effect.end_label, effect.message))
            effect.undo()

    # --- names ----------------------------------------------------------------------------------------------

    def node(self, name: str) -> SimulatedNode | None:
        """The node that a name stands for now."""
        participant = self.protocol_events.participant(name)
        return next((node for node in self.world.nodes if node.participant == participant), None)

    def bearer(self, name: str) -> SimulatedNode | ClientProcess | None:
        """The node of this name, or the newest process of this name that is alive."""
        node = self.node(name)
        if node is not None:
            return node
        named = (
            each
            for each in reversed(self.world.living())
            if name in (each.participant, each.participant.partition(SAME)[0])
        )
        return next(named, None)

    def leader_of(self, where: TopicPartition) -> str:
        """The participant that led a partition last; "" if none did."""
        leader = self.protocol_events.leaders.get(where)
        return "" if leader is None else leader.participant


# --- effects on messages ------------------------------------------------------------------------------------


def _hold(injector: FaultInjector, action: Action, event: ProtocolEvent) -> Effect | None:
    """The message is held before the receiver processes it, and so is all that follows on its connection.
    Without a message, the whole channel is held.
    """
    assert event.carried is not None, "a hold strikes a message or a channel"
    channel, message = event.carried
    network = injector.world.network
    if message is not None and network.is_held(message):
        return None
    return Effect(
        "",
        _label(action, channel, message),
        lambda: network.hold(channel, message),
        lambda: network.release(channel, message),
        "release",
        message,
    )


def _delay(injector: FaultInjector, action: Action, event: ProtocolEvent) -> Effect | None:
    """A hold; the sender gives the message up and retries it on another connection."""
    held = _hold(injector, action, event)
    if held is None or event.carried is None:
        return None
    connection = event.carried[0].connection

    def do() -> None:
        held.do()
        if event.is_between:
            _take_for_lost(injector, connection)
        else:
            injector.world.next(partial(_take_for_lost, injector), connection)

    return held._replace(do=do)


def _take_for_lost(injector: FaultInjector, connection: SimulatedConnection) -> None:
    """The sender believes that the connection broke; what it has sent may still arrive."""
    if connection.is_open:
        connection.caller.lost(connection)
        # After the caller, which looks up its lost requests on the connection: give_up forgets them.
        injector.world.network.give_up(connection)


def _close(injector: FaultInjector, action: Action, event: ProtocolEvent) -> Effect | None:
    """The request arrives, and its sender never gets the reply."""
    channel, message = _request_of(event)
    if not channel.connection.is_open:
        return None
    do = partial(_take_for_lost, injector, channel.connection)
    return Effect("", _label(action, channel, message), do, message=message)


def _twice(injector: FaultInjector, action: Action, event: ProtocolEvent) -> Effect | None:
    """The request is sent again, under its token: its sender takes the first reply only."""
    channel, message = _request_of(event)
    if channel.is_dead:
        return None
    # A message of its own: pictures and faults tell messages apart by their identity.
    equal = RequestMessage(message.token, message.request, message.version)
    again = partial(injector.world.network.send, channel, equal)
    return Effect("", _label(action, channel, message), again, message=message)


def _answer(injector: FaultInjector, action: Action, event: ProtocolEvent) -> Effect | None:
    """The request is removed as it arrives, and its sender gets the error."""
    channel, message = _request_of(event)
    network, error = injector.world.network, ErrorCode[action.what]
    body = refusal(message.request, error)
    reply = ReplyMessage(message.token, error if body is None else NO_ERROR, body)

    def do() -> None:
        network.hold(channel, message)
        # A message cannot be removed in the middle of its arrival, only once it is held.
        injector.world.next(refuse, None)

    def refuse(_: None) -> None:
        network.take_away(channel, message)
        network.reply(channel.connection, reply)

    if network.is_held(message):
        return None
    return Effect("", _label(action, channel, message), do, message=message)


def _request_of(event: ProtocolEvent) -> tuple[Channel, RequestMessage]:
    assert event.carried is not None, "validation lets this strike requests only"
    channel, message = event.carried
    assert isinstance(message, RequestMessage), "validation lets this strike requests only"
    return channel, message


def _drop(injector: FaultInjector, action: Action, event: ProtocolEvent) -> Effect | None:
    """The connection breaks; every message on it is lost."""
    assert event.carried is not None, "a drop strikes a message or a channel"
    channel, message = event.carried
    if channel.is_dead:
        return None
    network = injector.world.network
    return Effect(
        "", _label(action, channel, message), lambda: network.reset(channel.connection), message=message
    )


def _label(action: Action, channel: Channel, message: Message | None) -> str:
    return str(action) if message is not None else f"{action}: {channel.source} to {channel.target}"


# --- effects on nodes and processes -------------------------------------------------------------------------


def _crash(injector: FaultInjector, action: Action, _: ProtocolEvent) -> Effect | None:
    node = injector.node(action.who)
    assert node is not None, "only a node crashes"
    if node.host is None:
        return None
    is_power_cut = action.kind is ActionKind.CUT_POWER
    return Effect(
        node.participant,
        "crash: power is cut" if is_power_cut else "crash",
        lambda: node.kill(power_is_lost=is_power_cut),
        node.start,
        "restart",
        is_left=lambda: node.host is None,
    )


def _kill(injector: FaultInjector, action: Action, _: ProtocolEvent) -> Effect | None:
    process = injector.bearer(action.who)
    if not isinstance(process, ClientProcess):
        return None
    return Effect(
        process.participant, "crash: killed", process.kill, lambda: injector.replace(process.participant)
    )


def _pause(injector: FaultInjector, action: Action, _: ProtocolEvent) -> Effect | None:
    bearer = injector.bearer(action.who)
    is_down = isinstance(bearer, SimulatedNode) and bearer.host is None
    if bearer is None or bearer.is_paused or is_down:
        return None
    return Effect(
        bearer.participant, "pause", bearer.pause, bearer.resume, "resume", is_left=lambda: bearer.is_paused
    )


def _start(injector: FaultInjector, action: Action, _: ProtocolEvent) -> Effect | None:
    """The process publishes its own start."""
    return Effect(action.who, "", lambda: injector.call(action.who))


def _jump(injector: FaultInjector, action: Action, _: ProtocolEvent) -> Effect | None:
    bearer = injector.bearer(action.who)
    if bearer is None or action.amount == 0:
        return None

    def do() -> None:
        bearer.clock.offset_ns += action.amount * NS_PER_MS
        # Its timers were planned by the clock as it was.
        bearer.look_at_clock()

    return Effect(bearer.participant, str(action), do)


def _slow(injector: FaultInjector, action: Action, _: ProtocolEvent) -> Effect | None:
    participant, speeds = injector.protocol_events.participant(action.who), injector.world.speeds
    is_disk = action.kind is ActionKind.SLOW_DISK
    # One slowness at a time: two would be undone by the end of the first.
    slow = disk_of(participant) if is_disk else participant
    if slow in speeds or (is_disk and injector.world.settings.policy is SyncPolicy.NONE):
        return None
    return Effect(
        participant,
        str(action),
        lambda: speeds.update({slow: action.amount}),
        lambda: speeds.__delitem__(slow),
        "quick again",
        is_left=lambda: slow in speeds,
    )


# --- effects on partitions, and between participants --------------------------------------------------------


def _move(injector: FaultInjector, action: Action, _: ProtocolEvent) -> Effect | None:
    world, target = injector.world, injector.node(action.whom)
    assert target is not None, "a partition is moved to a node"
    where = injector.protocol_events.partition(action.who)
    is_there = injector.protocol_events.leaders.get(where) is target
    if where not in world.journals.disks or is_there or world.nodes[0].host is None:
        return None  # it does not exist, it is there already, or no controller is up to move it
    return Effect(target.participant, str(action), lambda: world.move(where, target.settings.node_id))


def _partition(injector: FaultInjector, action: Action, _: ProtocolEvent) -> Effect | None:
    one, other = map(injector.protocol_events.participant, (action.who, action.whom))
    both = action.kind is ActionKind.PARTITION
    return _block(injector, action, ((one, other), (other, one)) if both else ((one, other),))


def _isolate(injector: FaultInjector, action: Action, _: ProtocolEvent) -> Effect | None:
    participant = injector.protocol_events.participant(action.who)
    # Those of this moment: a process that starts later is not cut off.
    others = injector.world.participants()
    pairs = tuple(pair for other in others for pair in ((participant, other), (other, participant)))
    return _block(injector, action, pairs)


def _block(injector: FaultInjector, action: Action, pairs: tuple[tuple[str, str], ...]) -> Effect | None:
    network = injector.world.network
    fresh = tuple(pair for pair in pairs if pair[0] != pair[1] and pair not in network.blocked)
    if not fresh:
        return None
    return Effect(
        fresh[0][0],
        str(action),
        lambda: network.blocked.update(fresh),
        lambda: network.unblock(fresh),
        f"healed: {action}",
    )


def _break_disk(injector: FaultInjector, action: Action, _: ProtocolEvent) -> Effect | None:
    """The effect has struck once an operation has failed."""
    world, where = injector.world, injector.protocol_events.partition(action.who)
    # A second failure of the same kind would be ended by the end of the first.
    broken = (APPEND if action.kind is ActionKind.FAIL_APPENDS else SYNC, str(where))
    if broken in world.broken_disks:
        return None
    failures: list[DiskFailed] = []

    def hear(failed: DiskFailed) -> None:
        if (failed.operation, failed.directory) == broken:
            failures.append(failed)

    def do() -> None:
        world.broken_disks.add(broken)
        world.events.subscribe(DiskFailed, hear)

    def undo() -> None:
        world.broken_disks.discard(broken)
        world.events.unsubscribe(DiskFailed, hear)

    leader = injector.leader_of(where)
    return Effect(leader, str(action), do, undo, f"over: {action}", has_struck=lambda: bool(failures))


def _damage(injector: FaultInjector, action: Action, _: ProtocolEvent) -> Effect | None:
    """Damage stays: no end of a fault brings lost bytes back."""
    world, where = injector.world, injector.protocol_events.partition(action.who)
    damage = damage_of(world.journals, where, action)
    if damage is None:
        return None

    def do() -> None:
        world.journals.damaged[where] = damage.what
        damage.do()

    label = f"{action}: {damage.what}" if damage.what else str(action)
    return Effect(injector.leader_of(where), label, do)


_EFFECTS: Final[dict[ActionKind, Callable[[FaultInjector, Action, ProtocolEvent], Effect | None]]] = {
    ActionKind.HOLD: _hold,
    ActionKind.LATE: _hold,
    ActionKind.DELAY: _delay,
    ActionKind.DROP: _drop,
    ActionKind.CLOSE: _close,
    ActionKind.TWICE: _twice,
    ActionKind.ANSWER: _answer,
    ActionKind.CRASH: _crash,
    ActionKind.CUT_POWER: _crash,
    ActionKind.KILL: _kill,
    ActionKind.PAUSE: _pause,
    ActionKind.START: _start,
    ActionKind.MOVE: _move,
    ActionKind.PARTITION: _partition,
    ActionKind.BLOCK: _partition,
    ActionKind.ISOLATE: _isolate,
    ActionKind.CLOCK: _jump,
    ActionKind.SLOW: _slow,
    ActionKind.SLOW_DISK: _slow,
    ActionKind.FAIL_APPENDS: _break_disk,
    ActionKind.FAIL_SYNCS: _break_disk,
    **dict.fromkeys(DAMAGES, _damage),
}
