"""What an observer of a running broker hears: requests, replies, appends, steps, faults, starts and ends.

Rule: an observer looks and changes nothing. A broker without one asks once per turn whether it has one.
"""

from __future__ import annotations

from typing import Protocol

import attrs

from fencepost.broker.contract import Append, Input, Outcome, Reply, ReplyTo
from fencepost.broker.node import Node
from fencepost.protocol.frames import RequestFrame


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
class BothObservers:
    """Two observers, one after the other."""

    first: Observer
    second: Observer

    def started(self, node: Node) -> None:
        self.first.started(node)
        self.second.started(node)

    def killed(self) -> None:
        self.first.killed()
        self.second.killed()

    def asked(self, to: ReplyTo, arrived: RequestFrame) -> None:
        self.first.asked(to, arrived)
        self.second.asked(to, arrived)

    def answered(self, answer: Reply, lost_because: str | None) -> None:
        self.first.answered(answer, lost_because)
        self.second.answered(answer, lost_because)

    def appended(self, append: Append) -> None:
        self.first.appended(append)
        self.second.appended(append)

    def struck(self, label: str, to: ReplyTo | None) -> None:
        self.first.struck(label, to)
        self.second.struck(label, to)

    def stepped(self, arrived: Input, outcome: Outcome) -> None:
        self.first.stepped(arrived, outcome)
        self.second.stepped(arrived, outcome)
