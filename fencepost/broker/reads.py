"""Replies that a host reads from its logs: Fetch, ListOffsets and OffsetForLeaderEpoch.

Rule: a server opens batches for one round at a time, so that other requests wait no longer, and reads only
what its memory for replies has room for. A request for which there is neither waits, and is planned again.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import attrs

from fencepost.broker.contract import (
    NODE,
    FetchMeasured,
    MeasureFetch,
    Received,
    Reply,
    ReplyEpochEnds,
    ReplyFetched,
    ReplyListed,
    ReplyTo,
)
from fencepost.broker.memory import FETCH_OWN_BYTES, MemoryPool, fetch_share
from fencepost.broker.partitions import fetch
from fencepost.broker.partitions.time_lookups import RoundIsOver, TimeLookups
from fencepost.protocol import messages as m
from fencepost.protocol.batch_work import ROUND_WORK_MAX
from fencepost.protocol.wire_protocol import FetchEncoding

if TYPE_CHECKING:
    from fencepost.broker.host import Host


def always_open(connection: int) -> bool:
    """For tests and simulations, in which no connection is closed without the host knowing."""
    return True


def as_stored(connection: int) -> None:
    """The readers of tests and simulations, and other nodes, read what is stored."""


@attrs.define(eq=False)
class Reads:
    """What one host reads for its replies. A server sets the limits; simulations need none."""

    host: Host
    pool: MemoryPool | None = None
    unsent_bytes: int = 0  # taken from that pool, for records in the host's `answers`
    is_open: Callable[[int], bool] = always_open
    encoding_for: Callable[[int], FetchEncoding | None] = as_stored  # by connection
    work_left: int | None = None  # of opening batches in this round
    put_off: deque[Received] = attrs.Factory(deque[Received])  # requests for the next rounds
    # How far the lookups of the ListOffsets requests among them have come.
    time_lookups: dict[ReplyTo, TimeLookups] = attrs.Factory(dict[ReplyTo, TimeLookups])

    # --- rounds

    def begin_round(self) -> None:
        """There is time for opening batches again."""
        self.work_left = ROUND_WORK_MAX

    def offer_put_off(self) -> bool:
        """Offer the next request that was put off, if this round has time. False if none is offered."""
        while self.put_off and not self._is_round_over:
            again = self.put_off.popleft()
            if self.is_open(again.to.connection):
                self.host.offer(again)
                return True
            self.time_lookups.pop(again.to, None)
        return False

    @property
    def _is_round_over(self) -> bool:
        return self.work_left is not None and self.work_left <= 0

    def _worked(self, work: int) -> None:
        if self.work_left is not None:
            self.work_left -= work

    # --- replies

    def fetch(self, act: ReplyFetched, now: int) -> None:
        """Read the records for a Fetch, unless it has to wait for its round or its room."""
        if act.to.connection != NODE and not self.is_open(act.to.connection):
            return  # its connection is gone
        encoding = self.encoding_for(act.to.connection)
        if encoding is not None and self._is_round_over:
            self.put_off.append(_again(act))
            return
        host, pool = self.host, self.pool
        size_max = act.max_bytes if pool is None else min(act.max_bytes, fetch_share(pool))
        body = fetch.complete_fetch(
            act, host.led_journal, host.disk_failed, max_bytes=size_max, encoding=encoding
        )
        self._worked(0 if encoding is None else encoding.work)
        if pool is not None:
            # A first batch may exceed the limits (KIP-74), so the size is known only now.
            size = sum(len(part.records) for part in body.partitions)
            if size > FETCH_OWN_BYTES and size > pool.free:
                pool.wait(size, act.to.connection, partial(host.offer, _again(act)))
                return
            pool.take(size)
            self.unsent_bytes += size
        host.answer(Reply(act.to, body), now)

    def sent(self) -> None:
        """The records that were read are with the connections now, which hold the room for them."""
        assert self.pool is not None, "nothing is counted without a pool"
        size, self.unsent_bytes = self.unsent_bytes, 0
        self.pool.give(size)

    def measure(self, act: MeasureFetch) -> None:
        """Tell the node how much a Fetch that waits could read."""
        self.host.inbox.append(FetchMeasured(act.ticket, fetch.sizes_of(act, self.host.led_journal)))

    def list_offsets(self, act: ReplyListed, now: int) -> None:
        """Look the offsets up; one by its time may take several rounds."""
        host, lookups = self.host, self.time_lookups.pop(act.to, None) or TimeLookups()
        work_left = lookups.work_left = sys.maxsize if self.work_left is None else self.work_left
        try:
            body = fetch.complete_list(act, host.led_journal, host.disk_failed, lookups)
        except RoundIsOver:
            # As for a Fetch, it is planned again.
            self.time_lookups[act.to] = lookups
            self.put_off.append(Received(act.request, to=act.to))
        else:
            host.answer(Reply(act.to, body), now)
        self._worked(work_left - lookups.work_left)

    def epoch_ends(self, act: ReplyEpochEnds, now: int) -> None:
        """Look up where leader epochs end."""
        host = self.host
        ends = tuple(fetch.epoch_end(plan, host.led_journal, host.disk_failed) for plan in act.plans)
        host.answer(Reply(act.to, m.OffsetForLeaderEpochReply(partitions=ends)), now)


def _again(act: ReplyFetched) -> Received:
    """A Fetch that could not be read now, as a request that is answered at once: it has waited for its bytes.
    The ACLs reduced it when it arrived, and all versions of Fetch mean the same.
    """
    return Received(attrs.evolve(act.request, min_bytes=0), to=act.to)
