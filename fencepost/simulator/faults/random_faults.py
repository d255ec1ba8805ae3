"""Random faults: draws what strikes next, whom, and for how long. The injector does the rest."""

# Theory of operation. About every `pause` nanoseconds chance draws a kind of fault, then its victim and its
# amounts, and hands an action to the one engine (injector.py), which strikes, publishes and undoes it:
#
#     time has come --> kind --> _DRAWS[kind]: an action --> injector.strike --> a duration --> end_after
#                                    |
#                                    +--> a trap: a message, or the n-th act of a node --> the same, then
#
# Three kinds strike at a moment that has no point in the words of scenarios, and so they set a trap: a
# MessageTrap waits for the next message of a type, a CountedDeath (world/nodes.py) for the n-th act of a
# node. Protocol events could name most of these moments, but they look at every message and every append,
# which would slow down each seed of a search.
#
# Invariant: every number comes from `world.choices`, and none is drawn for a fault without a victim. One
# more draw, or another order, makes another run of every recorded list of choices. A trap that nothing
# walked into did not strike, and `heal` removes it.

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Final

import attrs

from fencepost.broker.sync_policy import SyncPolicy
from fencepost.faults.phrases import Action, ActionKind
from fencepost.protocol import messages
from fencepost.protocol.messages import ReplyBody, Request
from fencepost.protocol.terms import METADATA_PARTITION, TRANSACTION_STATE_TOPIC
from fencepost.simulator.faults.damage import damageable
from fencepost.simulator.faults.injector import FaultInjector, Strike
from fencepost.simulator.world.events import MessageSent
from fencepost.simulator.world.network import Channel, ReplyMessage, RequestMessage, SimulatedConnection
from fencepost.simulator.world.nodes import CountedDeath, DeathPlace, SimulatedNode, find_led
from fencepost.simulator.world.participants import NS_PER_MS
from fencepost.simulator.world.processes import ClientProcess
from fencepost.simulator.world.world import World

FAULT: Final = "fault: "  # begins the mark of each kind of fault
DURATIONS_MS: Final = (1, 5, 20, 50, 120, 300, 700, 1_700)  # the longest outlasts a request timeout
LATE_MS: Final = (120, 150, 200, 300, 700, 1_700)  # long enough for the caller to retry before
LATE_MARKERS_MS: Final = (20, 50, 10, 120)  # another coordinator needs some time to lead and to send
SLOWNESS: Final = (5, 20, 100)
SLOWEST: Final = 400  # times the usual latency, whose worst case is 250: all others overtake this participant
SLOWEST_PAUSES: Final = 8  # the pauses within which a participant may become the slowest
JUMPS_MS: Final = (50, 400, 3_000, -20, -300, 70_000)  # the longest outlasts a transaction timeout
FAVOUR_PERMILLE: Final = 500  # how often a favoured process is the victim
ACTS_BEFORE_DEATH: Final = 12
WRITES_BEFORE_DEATH: Final = 4
# The replies that hurt most when they get lost: something was done, and the caller retries.
REPLIES: Final = (
    *(messages.EndTxnReply, messages.ProduceReply, messages.InitProducerIdReply),
    *(messages.TxnOffsetCommitReply, messages.WriteTxnMarkersReply),
)
# The requests that do most harm if they arrive after their caller has moved on (KAFKA-17754, KIP-890).
REQUESTS: Final = (
    *(messages.EndTxn, messages.EndTxn, messages.EndTxn, messages.Produce, messages.Produce),
    *(messages.WriteTxnMarkers, messages.TxnOffsetCommit),
    *(messages.AddPartitionsToTxn, messages.InitProducerId),
)
# The replies that grant identities, in worlds where identities are used up.
IDENTITY_REPLIES: Final = (messages.InitProducerIdReply, messages.EndTxnReply)
# More replies that may be lost, and requests that may be late, in worlds with members of groups.
GROUP_REPLIES: Final = (messages.JoinGroupReply, messages.SyncGroupReply, messages.HeartbeatReply)
GROUP_REQUESTS: Final = (
    *(messages.JoinGroup, messages.SyncGroup, messages.Heartbeat),
    *(messages.LeaveGroup, messages.TxnOffsetCommit),
)


class FaultKind(Enum):
    """What can go wrong at random. The names are those of plans, of scenarios and of the coverage table."""

    DROP = "drop"  # one connection breaks, with everything that is on its way
    LOST_REPLY = "lost reply"  # the same, as soon as a certain reply is on its way
    LATE_REQUEST = "late request"  # its caller gives it up, and then it arrives
    HOLD = "hold"  # one direction of a connection stops, and continues later
    PARTITION = "partition"  # between two participants, one way or both ways
    ISOLATION = "isolation"  # a node from all others
    PAUSE = "pause"  # a node or a process stands still and does not notice it
    CRASH = "crash"  # a node dies between two of its acts, and starts again
    POWER_LOSS = "power loss"  # the same, and what it had not synced may be gone or torn
    FAILOVER = "failover"  # a node dies, and others lead what it led
    MOVE = "move"  # a partition gets another leader while its old one lives
    CLOCK_JUMP = "clock jump"
    SLOW = "slow"  # what a participant sends, or a disk syncs, is late for a while
    DISK = "disk failure"  # appends or syncs of one partition fail for a while
    KILL = "kill"  # a client process dies, and another one takes its place
    LATE_MARKER = "late marker"  # it arrives after another coordinator has sent the same
    FLIPPED_BIT = "flipped bit"  # of what a disk had kept
    LOST_SECTOR = "lost sector"
    MISDIRECTED_READ = "misdirected read"  # one read gets the bytes of another place
    LOST_FILE = "lost file"
    LOST_DIRECTORY = "lost directory"  # a partition's


DAMAGES: Final = {
    FaultKind.FLIPPED_BIT: ActionKind.FLIP_BIT,
    FaultKind.LOST_SECTOR: ActionKind.LOSE_SECTOR,
    FaultKind.MISDIRECTED_READ: ActionKind.MISDIRECT,
    FaultKind.LOST_FILE: ActionKind.LOSE_FILE,
    FaultKind.LOST_DIRECTORY: ActionKind.LOSE_DIRECTORY,
}
"""What disks do to bytes that they promised to keep; only worlds of the workloads `damage` and `topics` have
these."""
# A crash loses what was decided and not written, a loss of power also what was written and not synced. So
# each comes most often where there is something of that kind.
DEATHS: Final = {
    FaultKind.CRASH: (DeathPlace.ANYWHERE, DeathPlace.BEFORE_A_WRITE),
    FaultKind.POWER_LOSS: (DeathPlace.ANYWHERE, DeathPlace.AFTER_A_WRITE, DeathPlace.AFTER_A_WRITE),
}


DEATHS_IN_CLEANINGS: Final = {
    kind: (*places, DeathPlace.IN_A_CLEANING, DeathPlace.IN_A_CLEANING) for kind, places in DEATHS.items()
}
"""In worlds with compacted topics."""


@attrs.frozen(kw_only=True)
class StruckFault:
    """One fault of a run that chance drew, at a time in nanoseconds."""

    at: int
    kind: FaultKind
    what: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.what}"


@attrs.frozen(kw_only=True)
class RandomFaultPlan:
    """Faults that chance draws while the run lasts: `strikes` of them, of these `kinds`, about every `pause`
    ns.

    `slow_participants` is how often one participant becomes the slowest, and lets all others overtake it:
    the priority changes of PCT (Burckhardt et al., 2010).
    """

    kinds: tuple[FaultKind, ...] = ()
    strikes: int = 0
    pause: int = NS_PER_MS
    slow_participants: int = 0
    requests: tuple[type[Request], ...] = REQUESTS  # those that may be late
    replies: tuple[type[ReplyBody], ...] = REPLIES  # those that may be lost
    deaths: Mapping[FaultKind, tuple[DeathPlace, ...]] = DEATHS


@attrs.define(eq=False)
class RandomFaults:
    """Draws the faults of a plan. It `is_over` one pause after the last strike. A fault of a process strikes
    one of `favoured` every other time, if one is alive.
    """

    plan: RandomFaultPlan
    injector: FaultInjector
    favoured: Callable[[], list[ClientProcess]] = list[ClientProcess]
    strikes_left: int = 0
    is_over: bool = True
    struck: list[StruckFault] = attrs.Factory(list[StruckFault])
    traps: list[MessageTrap] = attrs.Factory(list["MessageTrap"])

    @property
    def world(self) -> World:
        return self.injector.world

    def start(self) -> None:
        """Draw from now on."""
        plan, world = self.plan, self.world
        self.strikes_left = plan.strikes
        if plan.kinds and plan.strikes:
            self.is_over = False
            self._plan_next()
        for _ in range(plan.slow_participants):
            at = world.now + plan.pause * world.choices.below(2 * SLOWEST_PAUSES) // 2
            world.at(at, self._slow_one)

    def heal(self) -> None:
        """Stop drawing, undo every effect, and remove every trap."""
        self.strikes_left, self.is_over = 0, True
        for trap in self.traps:
            trap.remove()
        self.injector.heal()  # a node that is about to die may still die here; that is undone here too
        for node in self.world.nodes:
            node.death = None

    def strike(
        self,
        kind: FaultKind,
        action: Action,
        *,
        channel: Channel | None = None,
        what: str = "",
        lasts_ms: int | None = None,
    ) -> Strike:
        """Let the injector strike now, and record that if it had an effect."""
        strike = self.injector.strike(action, channel=channel, lasts_ms=lasts_ms)
        if strike.effects:
            self.world.marks[FAULT + kind.value] += 1
            self.struck.append(StruckFault(at=self.world.now, kind=kind, what=what or str(action)))
        return strike

    def _plan_next(self) -> None:
        world = self.world
        # An eighth of the pause up to two pauses: about one on average.
        world.at(world.now + self.plan.pause * (1 + world.choices.below(16)) // 8, self._draw)

    def _draw(self, _: object) -> None:
        if self.strikes_left == 0:
            self.is_over = True
            return
        self.strikes_left -= 1
        choices = self.world.choices
        strike = _DRAWS[choices.one_of(self.plan.kinds)](self)
        if strike is not None:
            # Also for a fault that is over at once: recorded choices contain a duration after each strike.
            self.injector.end_after(strike, choices.one_of(DURATIONS_MS))
        self._plan_next()

    def _slow_one(self, _: object) -> None:
        world = self.world
        if self.strikes_left:
            everyone = [each.participant for each in (*world.nodes, *world.processes)]
            # This is a priority of the schedule, not a fault: it overrides a fault that slows the same one.
            world.speeds[world.choices.one_of(everyone)] = SLOWEST


# --- traps --------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class MessageTrap:
    """Waits for the first message that carries `awaited`, and calls `strike` with its connection right after
    it was sent.
    """

    world: World
    awaited: type[Request] | type[ReplyBody]
    strike: Callable[[SimulatedConnection], object]
    is_over: bool = False

    def __attrs_post_init__(self) -> None:
        self.world.events.subscribe(MessageSent, self._sent)

    def remove(self) -> None:
        """Stop waiting."""
        self.is_over = True
        self.world.events.unsubscribe(MessageSent, self._sent)

    def _sent(self, sent: MessageSent) -> None:
        match sent.message:
            case ReplyMessage(body=content) | RequestMessage(request=content):
                if isinstance(content, self.awaited):
                    self.world.events.unsubscribe(MessageSent, self._sent)
                    self.world.next(self._spring, sent.channel.connection)
            case _:
                pass

    def _spring(self, connection: SimulatedConnection) -> None:
        if connection.is_open and not self.is_over:
            self.strike(connection)


def _lose_reply(faults: RandomFaults) -> None:
    awaited = faults.world.choices.one_of(faults.plan.replies)

    def strike(connection: SimulatedConnection) -> None:
        what = f"{awaited.__name__} to {connection.caller.participant}"
        action = Action(kind=ActionKind.DROP)
        faults.strike(FaultKind.LOST_REPLY, action, channel=connection.to_caller, what=what)

    faults.traps.append(MessageTrap(faults.world, awaited, strike))


def _delay_request(faults: RandomFaults) -> None:
    choices = faults.world.choices
    awaited = choices.one_of(faults.plan.requests)

    def strike(connection: SimulatedConnection) -> None:
        _delay(faults, FaultKind.LATE_REQUEST, connection, awaited, lasts_ms=choices.one_of(LATE_MS))

    faults.traps.append(MessageTrap(faults.world, awaited, strike))


def _delay(
    faults: RandomFaults,
    kind: FaultKind,
    connection: SimulatedConnection,
    awaited: type[Request],
    *,
    lasts_ms: int,
) -> None:
    """A request that is just being sent is late."""
    what = f"{awaited.__name__} of {connection.caller.participant}"
    action = Action(kind=ActionKind.DELAY)
    faults.strike(kind, action, channel=connection.to_server, what=what, lasts_ms=lasts_ms)


def _crash(faults: RandomFaults, *, kind: FaultKind) -> None:
    """The node dies some acts later, so that most deaths interrupt its work."""
    choices = faults.world.choices
    able = [node for node in _up(faults.world) if node.death is None]
    if not able:
        return
    node = choices.one_of(able)
    place = choices.one_of(faults.plan.deaths[kind])
    left = choices.below(ACTS_BEFORE_DEATH if place is DeathPlace.ANYWHERE else WRITES_BEFORE_DEATH)
    action = Action(
        kind=ActionKind.CUT_POWER if kind is FaultKind.POWER_LOSS else ActionKind.CRASH, who=node.participant
    )
    node.death = CountedDeath(
        place, left, lambda: faults.strike(kind, action, lasts_ms=choices.one_of(DURATIONS_MS))
    )


def _delay_marker(faults: RandomFaults) -> None:
    """The markers that a coordinator sends are late. Before they arrive, others lead what it led, and send
    the same markers again.
    """
    choices = faults.world.choices
    if len(faults.world.nodes) == 1:
        return

    def strike(connection: SimulatedConnection) -> None:
        coordinator = connection.caller
        assert isinstance(coordinator, SimulatedNode), "only a coordinator sends markers"
        lasts_ms = choices.one_of(LATE_MARKERS_MS)
        _delay(faults, FaultKind.LATE_MARKER, connection, messages.WriteTxnMarkers, lasts_ms=lasts_ms)
        led = () if coordinator.host is None else find_led(coordinator.host)
        others = [node.participant for node in faults.world.nodes if node is not coordinator]
        for key in led:
            if key.topic == TRANSACTION_STATE_TOPIC:
                action = Action(kind=ActionKind.MOVE, who=str(key), whom=choices.one_of(others))
                faults.injector.strike(action)

    faults.traps.append(MessageTrap(faults.world, messages.WriteTxnMarkers, strike))


# --- the network --------------------------------------------------------------------------------------------


def _connection(faults: RandomFaults) -> SimulatedConnection | None:
    connections = list(faults.world.network.connections.values())
    return faults.world.choices.one_of(connections) if connections else None


def _drop(faults: RandomFaults) -> Strike | None:
    connection = _connection(faults)
    if connection is None:
        return None
    what = f"{connection.caller.participant} and {connection.server.participant}"
    action = Action(kind=ActionKind.DROP)
    return faults.strike(FaultKind.DROP, action, channel=connection.to_server, what=what)


def _hold(faults: RandomFaults) -> Strike | None:
    connection = _connection(faults)
    if connection is None:
        return None
    channel = faults.world.choices.one_of((connection.to_caller, connection.to_server))
    what = f"{channel.source} to {channel.target}"
    return faults.strike(FaultKind.HOLD, Action(kind=ActionKind.HOLD), channel=channel, what=what)


def _partition(faults: RandomFaults) -> Strike | None:
    choices, participants = faults.world.choices, faults.world.participants()
    one, other = choices.one_of(participants), choices.one_of(participants)
    kind = ActionKind.PARTITION if choices.below(2) else ActionKind.BLOCK
    if one == other:
        return None
    return faults.strike(FaultKind.PARTITION, Action(kind=kind, who=one, whom=other))


def _isolate(faults: RandomFaults) -> Strike | None:
    node = faults.world.choices.one_of(faults.world.nodes)
    return faults.strike(FaultKind.ISOLATION, Action(kind=ActionKind.ISOLATE, who=node.participant))


# --- nodes and processes ------------------------------------------------------------------------------------


def _up(world: World) -> list[SimulatedNode]:
    return [node for node in world.nodes if node.host is not None and not node.is_paused]


def _strike_one(
    faults: RandomFaults, kind: FaultKind, action: ActionKind, able: Sequence[SimulatedNode | ClientProcess]
) -> Strike | None:
    """Strike one of these: every other time a favoured process, if there is one."""
    if not able:
        return None
    choices, names = faults.world.choices, {process.participant for process in faults.favoured()}
    # Exactly-once is at stake where processors are struck while they copy.
    favoured = [each for each in able if each.participant in names]
    victim = choices.one_of(favoured if favoured and choices.happens(FAVOUR_PERMILLE) else able)
    return faults.strike(kind, Action(kind=action, who=victim.participant))


def _pause(faults: RandomFaults) -> Strike | None:
    processes = [process for process in faults.world.living() if not process.is_paused]
    return _strike_one(faults, FaultKind.PAUSE, ActionKind.PAUSE, [*_up(faults.world), *processes])


def _kill(faults: RandomFaults) -> Strike | None:
    return _strike_one(faults, FaultKind.KILL, ActionKind.KILL, faults.world.living())


def _fail_over(faults: RandomFaults) -> Strike | None:
    world = faults.world
    # The first node is the controller, which has to move what the victim led.
    able = [node for node in _up(world) if node is not world.nodes[0]]
    if not able or world.nodes[0].host is None:
        return None
    node = world.choices.one_of(able)
    assert node.host is not None, "a node that is up has a host"
    led = find_led(node.host)
    strike = faults.strike(FaultKind.FAILOVER, Action(kind=ActionKind.CRASH, who=node.participant))
    for partition in led:
        # By the injector, and not as a fault of its own: the moves belong to the failover, which is counted
        # once.
        heir = world.choices.one_of(world.nodes).participant
        faults.injector.strike(Action(kind=ActionKind.MOVE, who=str(partition), whom=heir))
    return strike


def _move(faults: RandomFaults) -> Strike | None:
    world = faults.world
    able = [key for node in _up(world) if node.host is not None for key in find_led(node.host)]
    # Only the controller can lead its log.
    able = [key for key in able if key != METADATA_PARTITION]
    if not able or world.nodes[0].host is None or len(world.nodes) == 1:
        return None
    partition, heir = world.choices.one_of(able), world.choices.one_of(world.nodes)
    action = Action(kind=ActionKind.MOVE, who=str(partition), whom=heir.participant)
    return faults.strike(FaultKind.MOVE, action)


def _jump(faults: RandomFaults) -> Strike | None:
    world = faults.world
    who = world.choices.one_of(world.participants())
    action = Action(kind=ActionKind.CLOCK, who=who, amount=world.choices.one_of(JUMPS_MS))
    return faults.strike(FaultKind.CLOCK_JUMP, action)


def _slow(faults: RandomFaults) -> Strike | None:
    world = faults.world
    nodes = () if world.settings.policy is SyncPolicy.NONE else world.nodes
    able = [(ActionKind.SLOW, who, who) for who in world.participants()]
    able += [(ActionKind.SLOW_DISK, node.participant, node.disk) for node in nodes]
    kind, who, slow = world.choices.one_of(able)
    if slow in world.speeds:
        return None
    action = Action(kind=kind, who=who, amount=world.choices.one_of(SLOWNESS))
    return faults.strike(FaultKind.SLOW, action)


def _break_disk(faults: RandomFaults) -> Strike | None:
    world = faults.world
    # A failure of the metadata log ends the process, and deaths are faults of another kind.
    able = sorted(key for key in world.journals.disks if key != METADATA_PARTITION)
    if not able:
        return None
    kind = world.choices.one_of((ActionKind.FAIL_SYNCS, ActionKind.FAIL_APPENDS))
    strike = faults.strike(FaultKind.DISK, Action(kind=kind, who=str(world.choices.one_of(able))))
    return strike if strike.effects else None  # it is broken already


def _damage(faults: RandomFaults, *, kind: FaultKind) -> Strike | None:
    """Damage one of the logs that can be damaged, each at most once: a second fault could hide the first
    (damage.py).
    """
    world = faults.world
    able = damageable(world.journals)
    if kind is FaultKind.LOST_DIRECTORY:
        # Preferably where that of a deleted topic takes its place: few topics are created again and damaged.
        able = [where for where in able if where in world.journals.former] or able
    if not able:
        return None
    victim = world.choices.one_of(able)
    strike = faults.strike(kind, Action(kind=DAMAGES[kind], who=str(victim)))
    return strike if strike.effects else None


_DRAWS: Final[dict[FaultKind, Callable[[RandomFaults], Strike | None]]] = {
    FaultKind.DROP: _drop,
    FaultKind.LOST_REPLY: _lose_reply,
    FaultKind.LATE_REQUEST: _delay_request,
    FaultKind.LATE_MARKER: _delay_marker,
    FaultKind.HOLD: _hold,
    FaultKind.PARTITION: _partition,
    FaultKind.ISOLATION: _isolate,
    FaultKind.PAUSE: _pause,
    FaultKind.CRASH: partial(_crash, kind=FaultKind.CRASH),
    FaultKind.POWER_LOSS: partial(_crash, kind=FaultKind.POWER_LOSS),
    FaultKind.FAILOVER: _fail_over,
    FaultKind.MOVE: _move,
    FaultKind.CLOCK_JUMP: _jump,
    FaultKind.SLOW: _slow,
    FaultKind.DISK: _break_disk,
    FaultKind.KILL: _kill,
    **{kind: partial(_damage, kind=kind) for kind in DAMAGES},
}
