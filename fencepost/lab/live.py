"""Follows a real broker: one task fetches its steps as long as somebody looks at a page, and the run grows.

Rule: the status is always a sentence: following, waiting for a broker that is gone, or refused and what to do
about it. A broker that comes back is followed again.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Any, Final

import attrs
import trio

from fencepost.client.errors import AuthenticationFailed, AuthorizationFailed, ClientError
from fencepost.client.security import SecuritySettings
from fencepost.client.shells.aio import AsyncAdmin
from fencepost.faults.phrases import BROKER
from fencepost.lab.document import RunFacts
from fencepost.lab.growing_run import Entry, GrowingRun, Mark, Observed
from fencepost.lab.hidden_clients import LAB_CLIENT
from fencepost.lab.wire_steps import UnreadableStep, unpack, unpack_changes
from fencepost.protocol.errors import FencepostError
from fencepost.protocol.messages import BrokerStatusReply, FollowReply

WAIT_MS: Final = 500
TRY_MS: Final = 1_500  # until a broker counts as gone
PAUSE_S: Final = 0.25  # between attempts
PAGE_OPEN_S: Final = 15.0  # after its last request, a page counts as closed
UPDATE_WAIT_S: Final = 0.4  # a request of a page waits that long for something new


class Stage(Enum):
    """How far following has come."""

    WAITING = "waiting"
    FOLLOWING = "following"
    REFUSED = "refused"


@attrs.frozen
class LiveStatus:
    """The stage in a sentence."""

    stage: Stage
    text: str


@attrs.define(eq=False)
class Live:
    """One broker, at `address`, that is followed for all pages of a lab."""

    address: str
    security: SecuritySettings = attrs.Factory(SecuritySettings)
    run: GrowingRun = attrs.field(init=False)
    status: LiveStatus = attrs.field(init=False)
    _run_id: str = ""
    _passed: int = 0
    _last_request_at: float = -math.inf
    _news: trio.Event = attrs.Factory(trio.Event)
    _page: trio.Event = attrs.Factory(trio.Event)

    def __attrs_post_init__(self) -> None:
        self.run = GrowingRun(f"broker {self.address}")
        self._say(Stage.WAITING, f"waiting for {self.address}")

    # --- what pages ask -------------------------------------------------------------------------------------

    async def answer(self, after: str) -> Entry:
        """What is new since the mark of a page, or soon will be; the whole document if it has none."""
        self._last_request_at = trio.current_time()
        self._page.set()
        mark, text = Mark.read(after), self.status.text
        if mark is not None and mark.version == self.run.version:
            with trio.move_on_after(UPDATE_WAIT_S):
                while mark.version == self.run.version and text == self.status.text:
                    await self._news.wait()
        growth = None if mark is None else self.run.growth(mark)
        now = self.run.mark if mark is None or growth is None else mark._replace(version=self.run.version)
        return {
            "status": {"stage": self.status.stage.value, "text": self.status.text, "broker": self.address},
            "mark": str(now),
            "steps": self.run.end,
            "document": self.run.full_document() if growth is None else None,
            "growth": growth,
        }

    # --- following ------------------------------------------------------------------------------------------

    async def follow(self) -> None:
        """Follow the broker until cancelled, while a page is looked at."""
        while True:
            if trio.current_time() - self._last_request_at > PAGE_OPEN_S:
                self._page = trio.Event()
                await self._page.wait()
            try:
                await self._connect()
            except (ClientError, UnreadableStep) as problem:
                self._failed(problem)
            await trio.sleep(PAUSE_S)

    async def _connect(self) -> None:
        """Follow through one client until it fails, or no page is open."""
        async with AsyncAdmin(
            self.address,
            client_id=LAB_CLIENT,
            request_timeout_ms=TRY_MS,
            default_api_timeout_ms=TRY_MS,
            **self.security,
        ) as admin:
            self.run.facts = _facts(await admin.broker_status())
            while trio.current_time() - self._last_request_at <= PAGE_OPEN_S:
                reply = await admin.follow(self._run_id, self._passed, wait_ms=WAIT_MS)
                if not reply.run:
                    text = f"{self.address} was started without --follow: stop it and start it again with "
                    self._say(Stage.REFUSED, f"{text}--follow")
                    return
                self._take(reply)

    def _take(self, reply: FollowReply) -> None:
        base = unpack_changes(reply.base)
        if reply.run != self._run_id:
            self._run_id = reply.run
            self.run.begin_process(base)
        elif reply.missed:
            self.run.miss(reply.missed, base)
        self.run.grow([Observed(*unpack(step.event), unpack_changes(step.changes)) for step in reply.steps])
        self._passed = reply.first + len(reply.steps)
        self._say(Stage.FOLLOWING, f"following {self.address}", is_news=bool(reply.steps))

    def _failed(self, problem: FencepostError) -> None:
        match problem:
            case AuthorizationFailed():
                text = (
                    f"{self.address} does not allow it: following needs ClusterAction on Cluster, or, "
                    "without ACLs, a client on the same machine"
                )
                self._say(Stage.REFUSED, text)
            case AuthenticationFailed():
                self._say(Stage.REFUSED, f"{self.address} refuses the login: {problem}")
            case UnreadableStep():
                self._say(Stage.REFUSED, f"{self.address} runs another version of Fencepost: {problem}")
            case _:
                text = f"waiting for {self.address}: no broker answers there"
                never = "" if self._run_id else "; start one with `fencepost serve DIRECTORY --follow`"
                self._say(Stage.WAITING, text + never)

    def _say(self, stage: Stage, text: str, *, is_news: bool = True) -> None:
        before = getattr(self, "status", None)
        self.status = LiveStatus(stage, text)
        if is_news or before != self.status:
            self._news.set()
            self._news = trio.Event()


def _facts(status: BrokerStatusReply) -> RunFacts:
    settings: dict[str, Any] = {
        "transaction_version": status.transaction_version,
        "partition_verification": status.partition_verification,
        "broken": list(status.broken),
        "without_fixes": list(status.fixes_off),
        "nodes": 1,
    }
    return RunFacts(
        source="broker",
        settings=settings,
        transaction_version=status.transaction_version,
        nodes=frozenset({BROKER}),
    )
