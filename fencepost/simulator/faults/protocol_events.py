"""Tells what happens in a world in the words of protocol points, to whoever waits for one.

Rule: it looks and never touches. A message is told of before it is taken, an append before or after it is
written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, cast

import attrs

from fencepost.broker.contract import Append, BecomeLeader, Effect, Input, Outcome
from fencepost.broker.host import Host
from fencepost.client.effects import Operation, Resolve
from fencepost.client.errors import (
    ClientError,
    CommitOutcomeUnknown,
    Failure,
    ProducerFenced,
    TransactionAborted,
)
from fencepost.faults.phrases import Point, PointKind, partition_named
from fencepost.protocol.batches import read_marker
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import API_BY_REQUEST, FetchReply
from fencepost.protocol.terms import (
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    coordinator_partition,
)
from fencepost.protocol.transaction_log import read_transactions
from fencepost.simulator.world.network import Answer, Channel, Message, Question
from fencepost.simulator.world.nodes import Moment, SimulatedNode
from fencepost.simulator.world.processes import Process
from fencepost.simulator.world.world import World


class Happening(NamedTuple):
    """One moment in the words of points. `node` is whoever is in the middle of something, `carried` the
    message that it is about; `is_between` says that nobody is in the middle of anything.
    """

    kind: PointKind
    who: str
    what: str = ""
    whom: str = ""
    is_before: bool = False
    is_between: bool = False
    node: SimulatedNode | None = None
    carried: tuple[Channel, Message] | None = None


@attrs.define(eq=False)
class Listener:
    """Somebody who waits for a point: `hear` is called at the `point.number`-th time, and `times` - 1 times
    after.
    """

    point: Point
    hear: Callable[[Happening], None]
    times: int = 1
    seen: int = 0
    is_over: bool = False


_CALLS: Final = {
    Operation.INIT_TRANSACTIONS: "init",
    Operation.COMMIT: "commit",
    Operation.ABORT: "abort",
    Operation.FLUSH: "flush",
}
_OUTCOMES: Final[dict[type[ClientError], str]] = {
    CommitOutcomeUnknown: "unknown",
    ProducerFenced: "fenced",
    TransactionAborted: "aborted",
}
SAME: Final = "~"  # between a name and the number of those who took its place


def outcome_of(failure: Failure | None) -> str:
    """How a call ended, in the word of points."""
    return "ok" if failure is None else _OUTCOMES.get(failure.kind, "failed")


@attrs.define(eq=False)
class Anchors:
    """Everybody who waits for something in a world, and what must be known to understand it."""

    world: World
    coordinators: int
    listeners: dict[PointKind, list[Listener]] = attrs.Factory(dict[PointKind, list[Listener]])
    leaders: dict[TopicPartition, SimulatedNode] = attrs.Factory(dict[TopicPartition, SimulatedNode])
    owners: dict[int, str] = attrs.Factory(dict[int, str])  # transactional ids by producer id
    held: list[Message] = attrs.Factory(list[Message])
    looks_ahead: bool = False  # somebody waits for a moment before an append

    def attach(self) -> None:
        """From now on."""
        self.world.network.observers.append(self)
        self.world.network.on_unheard.append(self._answered)
        self.world.network.holds = self.arriving
        self.world.on_performing.append(self.performs)
        self.world.on_resolved.append(self.resolves)
        self.world.judges.append(self)

    # --- waiting --------------------------------------------------------------------------------------------

    def listen(self, point: Point, hear: Callable[[Happening], None], *, times: int = 1) -> Listener:
        """Call `hear` when this point is reached, counting from now on."""
        self.looks_ahead |= point.is_before
        listener = Listener(point, hear, times)
        self.listeners.setdefault(point.kind, []).append(listener)
        return listener

    def tell(self, happening: Happening) -> None:
        """Something happened: whoever waits for it hears of it."""
        waiting = self.listeners.get(happening.kind)
        if waiting is None:
            return
        for listener in list(waiting):
            if not listener.is_over and self._matches(listener.point, happening):
                listener.seen += 1
                if listener.seen >= listener.point.number:
                    listener.is_over = listener.seen >= listener.point.number + listener.times - 1
                    listener.hear(happening)

    def _matches(self, point: Point, happening: Happening) -> bool:
        return (
            point.is_before is happening.is_before
            and point.means(happening.what)
            and self._is(point.who, happening.who)
            and (not point.whom or self._is(point.whom, happening.whom))
        )

    def _is(self, named: str, lane: str) -> bool:
        """Whether a name in a scenario means who is at work here, or a predecessor of his."""
        return named in (lane, lane.partition(SAME)[0]) or self.lane(named) == lane

    def lane(self, name: str) -> str:
        """The node that a name like "coordinator of app" stands for now; any other name for itself."""
        node = self.leader_named(name)
        return name if node is None else node.lane

    def leader_named(self, name: str) -> SimulatedNode | None:
        """Who leads, or was the last to lead, what this name is about; None for other names."""
        return self.leaders.get(self.partition(name)) if " of " in name else None

    def partition(self, name: str) -> TopicPartition:
        """The partition that "coordinator of app", "leader of t-0" or "t-0" is about."""
        kind, of, subject = name.partition(" of ")
        if of and kind == "coordinator":
            return TopicPartition(TRANSACTION_STATE_TOPIC, coordinator_partition(subject, self.coordinators))
        return partition_named(subject if of else name)

    # --- messages -------------------------------------------------------------------------------------------

    def sent(self, channel: Channel, message: Message) -> None:
        self._tell_of_message(channel, message, PointKind.SENDS, PointKind.SENDS_REPLY, is_between=False)
        if isinstance(message, Answer):
            self._answered(channel, message)

    def _answered(self, channel: Channel, answer: Answer) -> None:
        """A node gave an answer, whether anybody still waits for it or not."""
        if PointKind.ANSWERS in self.listeners:
            for name in errors_in(answer):
                self.tell(Happening(PointKind.ANSWERS, channel.source, name, channel.target))

    def arriving(self, channel: Channel, message: Message) -> bool:
        """A message is there and not taken yet: whether it must wait, because a fault holds it."""
        if any(message is held for held in self.held):
            return True
        self._tell_of_message(channel, message, PointKind.RECEIVES, PointKind.RECEIVES_REPLY, is_between=True)
        if isinstance(message, Answer) and PointKind.GETS in self.listeners:
            for name in errors_in(message):
                self.tell(Happening(PointKind.GETS, channel.target, name, channel.source, is_between=True))
        return False

    def arrived(self, channel: Channel, message: Message) -> None:
        """Told of before, by `arriving`."""

    def lost(self, channel: Channel, message: Message, because: str) -> None:
        """Nobody waits for what does not happen."""

    def _tell_of_message(
        self, channel: Channel, message: Message, question: PointKind, answer: PointKind, *, is_between: bool
    ) -> None:
        kind = answer if isinstance(message, Answer) else question
        if kind not in self.listeners:
            return
        api = api_of(channel, message)
        if api is not None:
            who, whom = channel.source, channel.target
            if is_between:
                who, whom = whom, who
            self.tell(Happening(kind, who, api, whom, is_between=is_between, carried=(channel, message)))

    # --- logs -----------------------------------------------------------------------------------------------

    def performs(self, node: SimulatedNode, act: Append | Effect, moment: Moment) -> None:
        if isinstance(act, Append) and (moment is Moment.AFTER or self.looks_ahead):
            for happening in self._append_told(act):
                self.tell(happening._replace(is_before=moment is Moment.BEFORE, node=node))

    def _append_told(self, append: Append) -> Iterator[Happening]:
        where = append.partition
        if where.topic == TRANSACTION_STATE_TOPIC:
            for name, record in read_transactions(append.batch, append.header):
                if record is not None:
                    self.owners[record.producer_id] = name
                    yield Happening(PointKind.DECIDES, f"coordinator of {name}", record.state.name)
            return
        owner = self.owners.get(append.header.producer_id, "")
        if append.header.is_control:
            result = read_marker(append.batch).result
            yield Happening(PointKind.MARKS, str(where), result.name, owner)
        elif append.header.is_transactional or where.topic != CONSUMER_OFFSETS_TOPIC:
            yield Happening(PointKind.STORES, str(where), whom=owner)

    # --- calls and leaders ----------------------------------------------------------------------------------

    def resolves(self, process: Process, what: Resolve) -> None:
        self.tell(
            Happening(PointKind.ENDS_CALL, process.lane, _CALLS[what.operation], outcome_of(what.failure))
        )

    def took(self, node: SimulatedNode, arrived: Input, outcome: Outcome) -> None:
        if isinstance(arrived, BecomeLeader):
            self.leaders[arrived.partition] = node

    def died(self, node: SimulatedNode, host: Host, *, power_is_lost: bool) -> None:
        """Told of by whoever killed it."""

    def fetched(self, node: SimulatedNode, reply: FetchReply) -> None:
        """What readers get they say themselves."""


def api_of(channel: Channel, message: Message) -> str | None:
    """The name of the request that a message is, or answers; None for what is neither, or nobody awaits."""
    if isinstance(message, Question):
        return API_BY_REQUEST[type(message.request)].name
    if isinstance(message, Answer):
        api = channel.connection.api_of(message.token)
        return None if api is None else api.name
    return None


def errors_in(answer: Answer) -> list[str]:
    """The names of all errors that an answer carries, for all of it or for a partition, once each."""
    found = [answer.error, *_errors_of(answer.body)]
    return list(dict.fromkeys(code.name for code in found if code is not ErrorCode.NONE))


def _errors_of(body: object) -> Iterator[ErrorCode]:
    """Every error in a reply's body, however deep: bodies are values of a few levels."""
    if isinstance(body, ErrorCode):
        yield body
    elif isinstance(body, tuple):
        for part in cast("tuple[object, ...]", body):
            yield from _errors_of(part)
    else:
        kind: type[object] = type(body)
        if attrs.has(kind):
            for field in attrs.fields(kind):
                yield from _errors_of(getattr(body, field.name))
