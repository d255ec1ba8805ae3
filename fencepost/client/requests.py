"""What the machines of all clients have in common: their requests, effects and wake-up times. An admin needs
no more; a consumer and a producer add their state.

Rule: each request has a number, a deadline and exactly one CallAnswered.
"""

from __future__ import annotations

import attrs

from fencepost.client.effects import CallAnswered, Effect, WakeAt
from fencepost.client.metadata import ClusterMetadata, bootstrap_addresses
from fencepost.client.retries import FinishedCall, PendingCalls
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.fork import Ignored, Shared
from fencepost.protocol.messages import MetadataReply, ReplyBody


@attrs.define(eq=False)
class RequestMachine:
    """The requests of one client. Every input returns the effects that it causes, in order."""

    bootstrap: Shared[str]
    calls: PendingCalls = attrs.field(init=False)
    _out: list[Effect] = attrs.field(factory=list, init=False)
    _woken_at: Ignored[int | None] = attrs.field(default=None, init=False)
    """The last time passed on as WakeAt."""

    def __attrs_post_init__(self) -> None:
        self.calls = PendingCalls(ClusterMetadata(tuple(bootstrap_addresses(self.bootstrap))))

    @property
    def cluster(self) -> ClusterMetadata:
        """What it knows of the cluster."""
        return self.calls.cluster

    @property
    def has_work(self) -> bool:
        """Whether something is unfinished, which a thread must continue while no call runs."""
        return False

    @property
    def io_tick_ms(self) -> int | None:
        """After how long (ms) a thread first runs unfinished work while no call runs (shells/sync_driver.py).
        None: no thread, because everything happens inside calls.
        """
        return None

    def on_reply(self, token: int, error: ErrorCode, body: ReplyBody | None, now: int) -> list[Effect]:
        """The reply to a SendRequest; NETWORK_EXCEPTION or REQUEST_TIMED_OUT when none will come."""
        answer = self.calls.answered(token, error, body, now)
        if answer is None:
            self._once_answered(token, error, body, now)
        else:
            for finished in answer:
                self._finished(finished, now)
            if isinstance(body, MetadataReply):
                self._metadata_arrived(now)
        return self._step(now)

    def wake(self, now: int) -> list[Effect]:
        """Time went by."""
        return self._step(now)

    def abandon(self, now: int) -> None:
        """Forgets what is unfinished, without a word to the brokers: another process continues it."""

    def _finished(self, finished: FinishedCall, now: int) -> None:
        self._out.append(CallAnswered(finished.call.number, reply=finished.body, failure=finished.failure))

    def _metadata_arrived(self, now: int) -> None:
        """`cluster` may know something new; topics that are not used at `now` are dropped."""
        used = self.calls.topics
        self.cluster.drop([topic for topic in self.cluster.wanted if topic not in used])

    def _once_answered(self, token: int, error: ErrorCode, body: ReplyBody | None, now: int) -> None:
        raise AssertionError(f"nothing is sent once, and yet {token} is answered at {now}: {error} {body}")

    def _step(self, now: int) -> list[Effect]:
        for finished in self.calls.expired(now):
            self._finished(finished, now)
        self._out += self.calls.due(now)
        at = self._wake_at(now)
        if at != self._woken_at:
            self._woken_at = at
            if at is not None:
                self._out.append(WakeAt(at))
        effects, self._out = self._out, []
        return effects

    def _wake_at(self, now: int) -> int | None:
        return self.calls.wake_at(now)
