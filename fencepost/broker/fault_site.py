"""Where faults act on a server: between the appends of the host, on its syncs, its clock and its end.

Rule: the injector decides what strikes (fault_injector.py); here are the places at which it is asked, and the
tasks and requests by which faults come and go. A server without faults runs none of this.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import trio

from fencepost.broker.clocks import monotonic_ms, now_ms
from fencepost.broker.contract import Append, Reply, ReplyTo
from fencepost.broker.fault_injector import BrokerFaultInjector
from fencepost.broker.fault_requests import FAULT_REQUESTS
from fencepost.broker.faults import Abilities
from fencepost.broker.notices import BROKER
from fencepost.broker.sync_policy import SyncPolicy
from fencepost.protocol.messages import Request

if TYPE_CHECKING:
    from fencepost.broker.broker_settings import BrokerSettings
    from fencepost.broker.server import Server


class FaultSite:
    """One server as its faults see it: the `Site` of fault_injector.py. `is_held`: it neither works nor
    sends.
    """

    def __init__(self, server: Server, injector: BrokerFaultInjector) -> None:
        self.injector = injector
        self.host = server.host
        self.is_held = False
        self.turn = server.turn
        self.send_answers = server.send_answers
        self.kill = server.kill
        self.end_pauses = server.disk_tasks.end_pauses
        self._wake_clock = server.wake_clock
        self._observer = server.observer
        self._deadline = trio.lowlevel.ParkingLot()

    @property
    def goes_by_steps(self) -> bool:
        """Whether a fault may strike between two actions of the host."""
        return self.injector.is_active

    def now(self) -> int:
        """The time of records and deadlines on this broker's clock, which a fault may have moved."""
        return now_ms() + self.injector.clock_ms

    def work_by_steps(self, now: int) -> None:
        """Like `Host.work_until_idle`, but faults see each append."""
        host, injector = self.host, self.injector
        while not (host.is_idle or self.is_held):
            ahead = host.to_do[0] if host.to_do else None
            if ahead is None and host.answers and not host.requests_waiting:
                self.send_answers()
            elif not isinstance(ahead, Append):
                host.work(now)
            elif injector.allows(ahead):
                host.work(now)
                injector.written(ahead)
        self.send_answers()

    def control(self, request: Request, to: ReplyTo) -> None:
        """Answer a request about faults: past the node, which may be paused."""
        self.injector.send(Reply(to, FAULT_REQUESTS[type(request)](self.injector, request)))

    def struck(self, label: str, to: ReplyTo | None = None) -> None:
        """A fault struck, or ended."""
        BROKER.info("injected fault: %s", label)
        if self._observer is not None:
            self._observer.struck(label, to)

    def wake(self) -> None:
        """Look at all deadlines again: one has come, or the clock has jumped."""
        self._deadline.unpark_all()
        self._wake_clock()

    async def keep_faults(self) -> None:
        """Let faults strike, and end, at their times."""
        while True:
            due_ms = self.injector.next_due_ms
            if due_ms is not None and due_ms <= monotonic_ms():
                self.injector.due()
                self.turn()
                continue
            seconds = math.inf if due_ms is None else (due_ms - monotonic_ms()) / 1000
            with trio.move_on_after(seconds):
                await self._deadline.park()


def injector_of(settings: BrokerSettings) -> BrokerFaultInjector:
    """The faults that the settings ask for. Raises BadPhrase if this broker cannot play one of them."""
    abilities = Abilities(
        node_id=settings.node.node_id,
        syncs=settings.sync is not SyncPolicy.NONE,
        has_disk=settings.directory is not None,
    )
    injector = BrokerFaultInjector(monotonic_ms, abilities)
    for text in settings.faults:
        injector.add(text)
    return injector
