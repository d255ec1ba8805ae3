"""Records what happens at a running broker as a history, the same that the simulator draws: the space-time
table of a failed test, its drawing, and the steps that the lab follows (feed.py).

Rule: it only observes. It keeps the last events, at most EVENTS_KEPT, and says how many it left out.
"""

# A broker sees its side of the network only. A request is drawn when the broker takes it, as if it had just
# left its client, and a reply as if it arrived at once; a lost one ends in a cross. Lanes are named by
# client id, so a program in the C client and one in ours stand side by side.
#
# Everything is called in the broker's thread and read in the test's. Python runs one of the two at a time,
# and both touch the list of events by single operations only: append, slice, delete.

from __future__ import annotations

import time
from typing import Final

import attrs

from fencepost.broker.contract import Append, Durable, Input, Outcome, Received, Reply, ReplyTo
from fencepost.broker.faults import UNNAMED
from fencepost.broker.node import Node
from fencepost.faults.phrases import BROKER
from fencepost.lab.hidden_clients import HIDDEN_CLIENTS
from fencepost.protocol.frames import RequestFrame
from fencepost.protocol.messages import API_BY_REQUEST, Api, Follow
from fencepost.protocol.terms import INTERNAL_TOPICS, TopicPartition
from fencepost.simulator.draw.fates import shortened
from fencepost.simulator.world.history import (
    Appended,
    Arrived,
    Event,
    History,
    Lost,
    Sent,
    Struck,
    moved,
    written,
)
from fencepost.simulator.world.labels import UNTOLD, reply_label, request_label

EVENTS_KEPT: Final = 20_000  # about 10 MB
LABEL_MAX: Final = 60
NAME_MAX: Final = 60
ASKED_MAX: Final = 10_000  # requests without a reply, such as those of a client that has left
DROP: Final = "drop"  # the action of a fault
_UNTOLD: Final = UNTOLD | {Follow.__name__}


@attrs.define(eq=False)
class _Asked:
    """A request without a reply: its client, its number, and whether the broker has taken it."""

    client: str
    number: int
    api: Api
    is_taken: bool = False


@attrs.define(eq=False)
class BrokerEvents:
    """An observer of a broker that turns what it hears into events; `_add` gets each of them."""

    _began_ns: int = attrs.Factory(time.monotonic_ns)
    _numbers: int = 0
    _asked: dict[ReplyTo, _Asked] = attrs.Factory(dict[ReplyTo, "_Asked"])
    _bounds: dict[TopicPartition, tuple[int, int]] = attrs.Factory(dict[TopicPartition, tuple[int, int]])
    _node: Node | None = None
    _is_down: bool = False

    def started(self, node: Node) -> None:
        """A broker accepts connections."""
        if self._node is not None:
            self._add(Struck(self._now(), participant=BROKER, label="restart"))
        self._node = node
        self._is_down = False
        self._asked.clear()  # connections are counted anew

    def killed(self) -> None:
        """The broker is killed; if a fault does so, `struck` was called before."""
        if not self._is_down:
            self.struck("crash", None)

    def asked(self, to: ReplyTo, arrived: RequestFrame) -> None:
        client, request = lane_of(arrived.client_id), arrived.request
        if client in HIDDEN_CLIENTS or type(request).__name__ in _UNTOLD:
            return
        while len(self._asked) >= ASKED_MAX:
            del self._asked[next(iter(self._asked))]
        number = self._leaves(client, BROKER, request_label(request))
        self._asked[to] = _Asked(client, number, API_BY_REQUEST[type(request)])

    def _taken(self, asked: _Asked) -> None:
        if not asked.is_taken:
            asked.is_taken = True
            self._add(Arrived(self._now(), number=asked.number))

    def answered(self, answer: Reply, lost_because: str | None) -> None:
        """A reply leaves, or is lost. One that a crash has struck as it was about to leave is lost with the
        broker, and never left.
        """
        asked = self._asked.pop(answer.to, None)
        if asked is None or self._is_down:
            return
        self._taken(asked)  # if a fault answered in its place
        label = reply_label(asked.api, answer.error, answer.body)
        number = self._leaves(BROKER, asked.client, label, asked.number)
        if lost_because is None:
            self._add(Arrived(self._now(), number=number))
        else:
            self._add(Lost(self._now(), number=number, because=lost_because))

    def appended(self, append: Append) -> None:
        for event in written(self._now(), BROKER, append.partition, append.header, append.batch):
            if isinstance(event, Appended):
                event = attrs.evolve(event, label=shortened(event.label, LABEL_MAX))
            self._add(event)

    def struck(self, label: str, to: ReplyTo | None) -> None:
        """A fault struck, or ended."""
        asked = None if to is None else self._asked.get(to)
        number = None if asked is None or asked.is_taken else asked.number
        self._is_down = self._is_down or label.startswith("crash")
        self._add(Struck(self._now(), participant=BROKER, label=label, number=number))
        if number is not None and label == DROP:
            self._add(Lost(self._now(), number=number, because="its connection breaks"))

    def stepped(self, arrived: Input, outcome: Outcome) -> None:
        """The node took an input: a request, or the news that a log is durable, which alone moves what
        readers may see.
        """
        if isinstance(arrived, Received) and arrived.to in self._asked:
            self._taken(self._asked[arrived.to])
        elif isinstance(arrived, Durable) and arrived.partition.topic not in INTERNAL_TOPICS:
            self._bound(arrived.partition)

    def _bound(self, where: TopicPartition) -> None:
        log = None if self._node is None else self._node.logs.get(where)
        if log is not None:
            for event in moved(self._now(), BROKER, log.partition, self._bounds):
                self._add(event)

    def _leaves(self, source: str, target: str, label: str, answers: int | None = None) -> int:
        self._numbers += 1
        self._add(
            Sent(
                self._now(),
                number=self._numbers,
                source=source,
                target=target,
                label=shortened(label, LABEL_MAX),
                answers=answers,
            )
        )
        return self._numbers

    def _now(self) -> int:
        return time.monotonic_ns() - self._began_ns

    def _add(self, event: Event) -> None:
        """Something has happened."""
        raise NotImplementedError


@attrs.define(eq=False)
class Recording(BrokerEvents):
    """What happened at a broker, for `Broker(observer=...)`; it goes on when the broker is restarted.

    `left_out`: how many of the earliest events were dropped; the last 20,000 are kept.
    """

    left_out: int = 0
    _events: list[Event] = attrs.Factory(list[Event])

    def history(self, title: str = "what happened") -> History:
        """Everything that is kept. `title`: the heading of its table and drawing."""
        known: set[int] = set()
        events = tuple(
            each for event in self._events[:] if (each := with_known_messages(event, known)) is not None
        )
        clients = dict.fromkeys(
            lane
            for event in events
            if isinstance(event, Sent)
            for lane in (event.source, event.target)
            if lane != BROKER
        )
        return History(
            title=title,
            participants=(*clients, BROKER),
            events=events,
            end=self._now(),
            lesson=f"{self.left_out:,} earlier events are not kept." if self.left_out else "",
        )

    def table(self, title: str = "what happened", *, width: int = 120, events_max: int | None = None) -> str:
        """The space-time table, headed by `title`. `width`: of the terminal, in columns. `events_max`: show
        at most this many of the last events; None: all.
        """
        from fencepost.simulator.draw.text import space_time

        return space_time(self.history(title), width=width, events_max=events_max)

    def svg(self, title: str = "what happened") -> str:
        """The drawing as SVG, headed by `title`."""
        from fencepost.simulator.draw.svg import draw  # imported by the first test that fails

        return draw(self.history(title))

    def html(self, title: str = "what happened") -> str:
        """A page on which you step through it, headed by `title`."""
        from fencepost.lab.document import RunFacts, document
        from fencepost.lab.history_details import details_of
        from fencepost.lab.pages import file_page

        history = self.history(title)
        facts = RunFacts(source="broker", nodes=frozenset({BROKER}))
        return file_page([document(history, facts, details_of(history))])

    def _add(self, event: Event) -> None:
        self._events.append(event)
        if len(self._events) > EVENTS_KEPT:
            self.left_out += EVENTS_KEPT // 2
            del self._events[: EVENTS_KEPT // 2]


def lane_of(client_id: str) -> str:
    """The lane of a client. One whose id is the broker's own name gets a lane of its own."""
    name = shortened(client_id, NAME_MAX) or UNNAMED
    return f"{name} (a client)" if name == BROKER else name


def with_known_messages(event: Event, known: set[int]) -> Event | None:
    """The event, without references to messages that are not in `known`; None for the arrival or the loss of
    such a message. Adds the message that is sent.
    """
    match event:
        case Sent(number=number, answers=answers):
            known.add(number)
            return event if answers is None or answers in known else attrs.evolve(event, answers=None)
        case Arrived(number=number) | Lost(number=number):
            return event if number in known else None
        case Struck(number=int(number)) if number not in known:
            return attrs.evolve(event, number=None)
        case _:
            return event
