"""Faults of a real server, anchored at points of the protocol: lose the n-th reply, or hold everything at
the n-th decision.

Rule: a rule counts what it matches and says when it fired; a server without rules runs none of this.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import attrs

from fencepost.broker.contract import Append
from fencepost.protocol.messages import API_BY_REQUEST, Request
from fencepost.protocol.terms import TRANSACTION_STATE_TOPIC, TransactionState
from fencepost.protocol.transaction_log import read_transactions

API_NAMES: Final = {api.name: api.request for api in API_BY_REQUEST.values()}


class Point(Enum):
    """A record of the transaction log that a rule can wait for."""

    ONGOING = "ongoing"
    PREPARE = "prepare"
    COMPLETE = "complete"

    def matches(self, state: TransactionState) -> bool:
        return state.name.startswith(self.name)


@attrs.define
class HoldAt:
    """After the n-th such record is in the log, the node does nothing more until it is killed."""

    point: Point
    count: int = attrs.field(validator=attrs.validators.gt(0))
    seen: int = 0

    @classmethod
    def parse(cls, text: str) -> HoldAt:
        """From `prepare:3`; ValueError says what is possible."""
        name, _, count = text.partition(":")
        names = [point.value for point in Point]
        if name not in names or not count.isdecimal() or int(count) < 1:
            raise ValueError(f"{text!r} is not POINT:N with one of {', '.join(names)} and N from 1")
        return cls(Point(name), int(count))

    def fires(self, append: Append) -> TransactionState | None:
        """The state that was written, when this append is the one to stop after."""
        if append.partition.topic != TRANSACTION_STATE_TOPIC:
            return None
        for _, record in read_transactions(append.batch, append.header):
            if record is not None and self.point.matches(record.state):
                self.seen += 1
                if self.seen == self.count:
                    return record.state
        return None


@attrs.define
class LoseReply:
    """The reply to every n-th request of a kind is lost, with its connection; the request has had its
    effect.
    """

    request: type[Request]
    every: int = attrs.field(validator=attrs.validators.gt(0))
    seen: int = 0
    fired: int = 0

    @classmethod
    def parse(cls, text: str) -> LoseReply:
        """From `Produce:50`; ValueError says what is possible."""
        name, _, every = text.partition(":")
        if name not in API_NAMES or not every.isdecimal() or int(every) < 1:
            raise ValueError(
                f"{text!r} is not REQUEST:N with one of {', '.join(sorted(API_NAMES))} and N from 1"
            )
        return cls(API_NAMES[name], int(every))

    def fires(self, request: Request) -> bool:
        """Whether this request's reply is to be lost."""
        if type(request) is not self.request:
            return False
        self.seen += 1
        if self.seen % self.every:
            return False
        self.fired += 1
        return True
