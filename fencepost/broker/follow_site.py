"""Followers of a broker: their requests wait here for the next steps of the feed.

Rule: the server answers them itself, past the node and past all faults, so that a paused broker can be looked
at. They see the records of every topic: with ACLs they need ClusterAction, and without, the client must be on
the same machine.
"""

# Theory of operation
#
# A request waits until there are steps that its follower has not seen, and then until the next tick: under
# load a follower is answered once every PACE_MS, with many steps at once. A fault that pauses or kills the
# broker does not wait for the tick: followers first get all steps before it (`hurry`).
#
# A follower that does not ask costs nothing, and one that takes no replies holds one reply at most: each
# connection has one request here. There are FOLLOWERS_MAX at a time.

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import trio

from fencepost.broker.clocks import monotonic_ms
from fencepost.broker.contract import Reply, ReplyTo
from fencepost.broker.feed import OFF, FeedBuffer
from fencepost.broker.limits import FOLLOW_WAIT, FOLLOWERS
from fencepost.broker.notices import BROKER
from fencepost.broker.observer import Observer, both
from fencepost.broker.user_calls import UserCalls
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import Follow

if TYPE_CHECKING:
    from fencepost.broker.broker_settings import BrokerSettings
    from fencepost.broker.server import Server

PACE_MS: Final = 20


@attrs.frozen
class _Waiting:
    to: ReplyTo
    asked: Follow
    until_ms: int


class FollowSite:
    """The followers of one server."""

    def __init__(self, server: Server, buffer: FeedBuffer | None) -> None:
        self._buffer = buffer
        self._send = server.reply_past_node
        self._is_open = server.connections.is_open
        self._waiting: dict[int, _Waiting] = {}  # by connection
        self._arrival = trio.lowlevel.ParkingLot()

    def take_up(self, asked: Follow, to: ReplyTo) -> None:
        """Answer a follower, now or when there is more to see."""
        if self._buffer is None:
            self._send(Reply(to, OFF))
        elif to.connection in self._waiting:
            self._send(Reply(to, error=ErrorCode.INVALID_REQUEST))
        elif len(self._waiting) >= FOLLOWERS.value:
            self._send(Reply(to, error=ErrorCode.POLICY_VIOLATION))
        else:
            wait_ms = min(max(0, asked.wait_ms), FOLLOW_WAIT.value)
            self._waiting[to.connection] = _Waiting(to, asked, monotonic_ms() + wait_ms)
            self._arrival.unpark_all()

    def hurry(self) -> None:
        """Answer all who have not seen the last step yet."""
        if self._waiting:
            self._answer(monotonic_ms())

    def _answer(self, now: int) -> None:
        assert self._buffer is not None, "nobody waits without a feed"
        for number, waiting in list(self._waiting.items()):
            asked = waiting.asked
            is_due = waiting.until_ms <= now or not self._is_open(number)
            if is_due or asked.run != self._buffer.run or asked.after != self._buffer.end:
                del self._waiting[number]
                if self._is_open(number):
                    self._send(Reply(waiting.to, self._buffer.after(asked)))

    async def keep_followed(self) -> None:
        """Answer those who wait, tick by tick."""
        while True:
            if not self._waiting:
                await self._arrival.park()
            await trio.sleep(PACE_MS / 1000)
            self.hurry()


def observer_of(settings: BrokerSettings) -> Observer | None:
    """The observer of a server: its owner's, its feed, or both. An error in the feed ends the
    feed and is logged; what the owner's observer raises is the owner's (user_calls.py).
    """
    if settings.feed is None:
        return settings.observer
    feed = UserCalls(report=_feed_failed).observing(settings.feed)
    return feed if settings.observer is None else both(settings.observer, feed)


def _feed_failed(what: str, problem: BaseException) -> None:
    BROKER.error("a bug in the feed of this broker; followers see no more steps", exc_info=problem)
