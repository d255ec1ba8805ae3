"""What an observer of a running broker hears: requests, replies, appends, steps, faults, starts and ends.

Rule: an observer looks and changes nothing. A broker without one asks once per turn whether it has one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import attrs

from fencepost.broker.contract import Append, Input, Outcome, Reply, ReplyTo
from fencepost.broker.node import Node
from fencepost.protocol.frames import RequestFrame

UNAWAITED: Final = "nobody waits for it"  # why a reply is lost whose caller has given up


class Observer(Protocol):
    """Called in the broker's thread, at once; it must not keep what it is given."""

    def started(self, node: Node) -> None:
        """A broker accepts connections: for the first time, or again after it ended."""
        ...

    def killed(self) -> None:
        """The broker is killed, by a fault or otherwise; `started` follows if it starts again."""
        ...

    def asked(self, to: ReplyTo, arrived: RequestFrame) -> None:
        """A request has arrived, and work on it has not begun."""
        ...

    def answered(self, answer: Reply, lost_because: str | None) -> None:
        """A reply leaves, or is lost for this reason."""
        ...

    def appended(self, append: Append) -> None:
        """A batch was written to its log."""
        ...

    def struck(self, label: str, to: ReplyTo | None) -> None:
        """A fault struck, or ended: "crash", "drop", "pause", "resume". `to` names the message that it
        struck, or the request of that reply.
        """
        ...

    def stepped(self, arrived: Input, outcome: Outcome) -> None:
        """The node took an input and decided."""
        ...


@attrs.frozen
class ToldObserver:
    """An observer that hears everything through `tell`, which says who is told, and how."""

    tell: Callable[[Callable[[Observer], None]], None]

    def started(self, node: Node) -> None:
        self.tell(lambda each: each.started(node))

    def killed(self) -> None:
        self.tell(lambda each: each.killed())

    def asked(self, to: ReplyTo, arrived: RequestFrame) -> None:
        self.tell(lambda each: each.asked(to, arrived))

    def answered(self, answer: Reply, lost_because: str | None) -> None:
        self.tell(lambda each: each.answered(answer, lost_because))

    def appended(self, append: Append) -> None:
        self.tell(lambda each: each.appended(append))

    def struck(self, label: str, to: ReplyTo | None) -> None:
        self.tell(lambda each: each.struck(label, to))

    def stepped(self, arrived: Input, outcome: Outcome) -> None:
        self.tell(lambda each: each.stepped(arrived, outcome))


def both(first: Observer, second: Observer) -> Observer:
    """Two observers, one after the other."""

    def tell(hear: Callable[[Observer], None]) -> None:
        hear(first)
        hear(second)

    return ToldObserver(tell)
