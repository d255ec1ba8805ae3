"""The feed of a broker that can be followed: its last steps, bounded in number and in bytes.

Rule: a follower costs the broker nothing when it is slow or dead. The feed keeps the same steps whether or
not anybody reads them; it drops the oldest ones, and counts them.
"""

# Theory of operation
#
# An observer of the broker writes steps to the feed; requests (Follow) read them. Both happen in the broker's
# thread, and neither waits for the other:
#
#     broker --- observer --- add ---> [ base | 40 41 42 ... 97 ] --- after(40) ---> 41 42 ...
#                                        ^
#                                        what the steps up to 39 have changed
#
# A step may change the state that a page shows: a map from a key to its new value, or to None where it is
# gone. When the oldest step goes, its changes go into `base`: it is always the state just before the oldest
# step that is kept. So a follower may begin at any time, and one that was too slow continues with the state
# that it missed. The feed does not look inside the values.
#
# The feed lives as long as its process, through all crashes that faults cause in it. A new process has a new
# feed, which followers notice by `run`.

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final, Protocol

import attrs
import msgpack

from fencepost.broker.limits import FOLLOWED_AT_ONCE, FOLLOWED_BYTES, FOLLOWED_STEPS
from fencepost.broker.observer import Observer
from fencepost.protocol.messages import Follow, FollowedStep, FollowReply

STEP_BYTES: Final = 200  # of memory, besides what is in it
BASE_KEYS_MAX: Final = 10_000  # producers, partitions and transactions that a page could show
BASE_BYTES_MAX: Final = 1 << 19
FEED_BYTES: Final = 2 * FOLLOWED_BYTES.value  # with the base, and what an observer keeps to notice a change

Changes = Mapping[str, Any]
"""Values by key, as msgpack holds them; None: gone."""


def _size(step: FollowedStep) -> int:
    return STEP_BYTES + len(step.event) + len(step.changes)


@attrs.define(eq=False)
class FeedBuffer:
    """The last steps of one process. `run`: its name, which no other process has. `end`: how many steps there
    have been; `first`: how many of them were left out.
    """

    run: str
    steps_max: int = FOLLOWED_STEPS.value
    bytes_max: int = FOLLOWED_BYTES.value
    end: int = 0
    size: int = 0
    _steps: deque[FollowedStep] = attrs.Factory(deque[FollowedStep])
    _base: dict[str, Any] = attrs.Factory(dict[str, Any])

    @property
    def first(self) -> int:
        return self.end - len(self._steps)

    def add(self, event: bytes, changes: Changes) -> None:
        """Keep a step: what happened, and what it changed."""
        step = FollowedStep(event=event, changes=msgpack.packb(changes) if changes else b"")
        self._steps.append(step)
        self.end += 1
        self.size += _size(step)
        while self._steps and (len(self._steps) > self.steps_max or self.size > self.bytes_max):
            self._leave_out(self._steps.popleft())

    def _leave_out(self, step: FollowedStep) -> None:
        self.size -= _size(step)
        if step.changes:
            for key, value in msgpack.unpackb(step.changes).items():
                self._base.pop(key, None)  # what changed last comes last
                if value is not None:
                    self._base[key] = value
            while len(self._base) > BASE_KEYS_MAX:
                del self._base[next(iter(self._base))]

    def after(self, asked: Follow) -> FollowReply:
        """The steps that a follower has not passed yet, as many as it asks for."""
        is_new = asked.run != self.run or not 0 <= asked.after <= self.end
        passed = 0 if is_new else asked.after
        first = max(passed, self.first)
        steps: list[FollowedStep] = []
        room = min(asked.bytes_max, FOLLOWED_AT_ONCE.value)
        for step in islice(self._steps, first - self.first, None):
            room -= _size(step)
            if room < 0 and steps:
                break
            steps.append(step)
        needs_base = first > passed or (is_new and bool(self._base))
        return FollowReply(
            run=self.run,
            first=first,
            missed=first - passed,
            base=self._packed_base() if needs_base else b"",
            steps=tuple(steps),
        )

    def _packed_base(self) -> bytes:
        """The base; if it is too large for a reply, without the keys that changed longest ago."""
        items = list(self._base.items())
        packed = msgpack.packb(dict(items))
        while len(packed) > BASE_BYTES_MAX:
            items = items[(len(items) + 1) // 2 :]  # in the end none: one value alone may be too large
            packed = msgpack.packb(dict(items))
        return packed


OFF: Final = FollowReply(run="", first=0, missed=0, base=b"", steps=())
"""The reply of a broker without a feed."""


class Feed(Observer, Protocol):
    """An observer of a broker that writes what it hears to a buffer."""

    @property
    def buffer(self) -> FeedBuffer: ...
