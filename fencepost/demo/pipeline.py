"""Runs workers one after another, and kills or freezes them where the plan says.

Rule: a kill counts as inside a transaction only if the coordinator has an open transaction after it.
"""

from __future__ import annotations

import signal
from collections import deque
from typing import Any

import attrs
import trio

from fencepost.client.shells.sync import Admin
from fencepost.demo.messages import COMMIT_UNKNOWN, FENCED, TRANSACTIONAL_ID, WorkerTask
from fencepost.demo.plan import Disruption, DisruptionPlan, PlannedDisruption, WorkerPoint
from fencepost.demo.processes import BrokerProcess, ChildProcess, ChildProcesses
from fencepost.demo.report import ProgressBar, StoryLog
from fencepost.protocol.errors import FencepostError
from fencepost.protocol.terms import TransactionState

REPLACEMENT_ROUNDS = 2  # the replacement of a frozen worker commits this many before the worker is thawed
ZOMBIE_ROUNDS = 3  # a thawed worker stops after this many, in case that it is not fenced
UNPLANNED_ENDS_MAX = 20
SILENCE_S = 30.0  # a worker without output for this long hangs


class PipelineFailed(FencepostError):
    """The worker failed too many times."""


@attrs.define
class WorkerCounts:
    """Counters of what happened to workers."""

    worker_kills: int = 0
    worker_kills_in_transaction: int = 0
    frozen: int = 0
    fenced: int = 0
    aborted_on_purpose: int = 0
    unplanned_ends: int = 0


class Pipeline:
    """One run over all flights."""

    def __init__(
        self,
        plan: DisruptionPlan,
        *,
        broker: BrokerProcess,
        children: ChildProcesses,
        story: StoryLog,
        progress: ProgressBar,
        read_uncommitted: bool,
    ) -> None:
        self.counts = WorkerCounts()
        self._plan = plan
        self._broker = broker
        self._children = children
        self._story = story
        self._progress = progress
        self._read_uncommitted = read_uncommitted
        self._events = deque(
            event for event in plan.events if event.kind is not Disruption.KILL_BROKER_AT_PREPARE
        )
        self._flights = 0
        self._rounds = 0  # of all workers before the current one
        self._commits = 0
        self._sleepers: list[tuple[int, trio.Event]] = []  # (number of commits at which to thaw it, event)

    async def run(self) -> None:
        """Runs until a worker has processed all flights and every frozen worker has ended."""
        async with trio.open_nursery() as nursery:
            while not await self._life(nursery):
                if self.counts.unplanned_ends > UNPLANNED_ENDS_MAX:
                    raise PipelineFailed(f"the worker failed {self.counts.unplanned_ends} times")
            self._wake_sleepers(everyone=True)

    async def _life(self, nursery: trio.Nursery) -> bool:
        """Runs one worker to its end; True if it processed the last flights."""
        worker = await self._start_worker()
        because = "silent"
        while (said := await self._hear(worker)) is not None:
            match said["event"]:
                case "committed" | "aborted":
                    self._count(said)
                case "at":
                    point = WorkerPoint[said["point"]]
                    self._broker.rounds = self._rounds + said["round"]
                    if not await self._strike(worker, self._events.popleft(), point, nursery):
                        return False
                case "finished":
                    await worker.wait()
                    return True
                case "fenced" | "unknown":
                    because = said["because"]
                case _:
                    pass
        code = await worker.wait()
        if code not in (FENCED, COMMIT_UNKNOWN, -signal.SIGKILL):
            because = str(worker.failure())
        self.counts.unplanned_ends += 1
        self._story.tell(f"worker failed, a replacement takes over: {because}")
        self._rounds = self._broker.rounds
        return False

    async def _start_worker(self) -> ChildProcess:
        pauses = tuple((event.round - self._rounds, event.point) for event in self._events)
        task = WorkerTask(
            bootstrap=self._broker.bootstrap,
            seed=self._plan.seed,
            records_per_transaction=self._plan.records_per_transaction,
            abort_share=self._plan.abort_share,
            read_uncommitted=self._read_uncommitted,
            pauses=pauses,
        )
        return await self._children.start("worker", "fencepost.demo.worker", task.to_json())

    async def _hear(self, worker: ChildProcess) -> dict[str, Any] | None:
        """Returns the next message of a worker; kills a worker that hangs."""
        with trio.move_on_after(SILENCE_S):
            return await worker.hear()
        self._story.tell(f"worker silent for {SILENCE_S:.0f} s")
        await worker.end()
        return None

    def _count(self, said: dict[str, Any]) -> None:
        self._broker.rounds = self._rounds + said["round"]
        if said["event"] == "aborted":
            self.counts.aborted_on_purpose += said["on_purpose"]
            return
        self._flights += said["flights"]
        self._progress.reach(min(self._flights, self._plan.flights))
        self._commits += 1
        self._wake_sleepers()

    def _wake_sleepers(self, *, everyone: bool = False) -> None:
        for due, alarm in self._sleepers:
            if everyone or self._commits >= due:
                alarm.set()

    async def _strike(
        self, worker: ChildProcess, event: PlannedDisruption, point: WorkerPoint, nursery: trio.Nursery
    ) -> bool:
        """Carries out a planned disruption; True if the worker continues."""
        if event.kind is Disruption.KILL_BROKER:
            await self._broker.kill(f"worker at: {point.value}")
            await worker.tell("on")
            return True
        self._rounds = self._broker.rounds
        if event.kind is Disruption.KILL_WORKER:
            await worker.end()
            is_open = await self._transaction_is_open()
            self.counts.worker_kills += 1
            self.counts.worker_kills_in_transaction += is_open
            state = "transaction open" if is_open else "no open transaction"
            self._story.tell(f"worker killed: {point.value} ({state})")
        else:
            worker.send(signal.SIGSTOP)
            self.counts.frozen += 1
            self._story.tell(f"worker frozen: {point.value}; a replacement takes over")
            alarm = trio.Event()
            self._sleepers.append((self._commits + REPLACEMENT_ROUNDS, alarm))
            nursery.start_soon(self._wake_up, worker, alarm)
        return False

    async def _wake_up(self, zombie: ChildProcess, alarm: trio.Event) -> None:
        """Thaws a frozen worker and counts whether it is fenced."""
        await alarm.wait()
        zombie.send(signal.SIGCONT)
        await zombie.tell(f"go {ZOMBIE_ROUNDS}")
        last_words: list[str] = []
        while (said := await self._hear(zombie)) is not None:
            last_words.append(str(said.get("because", said["event"])))
        if await zombie.wait() == FENCED:
            self.counts.fenced += 1
            self._story.tell("frozen worker woke up, continued, and was fenced")
        else:
            self._story.tell(f"frozen worker woke up and was NOT fenced: {', '.join(last_words)}")

    async def _transaction_is_open(self) -> bool:
        return await trio.to_thread.run_sync(transaction_is_open, self._broker.bootstrap)


def transaction_is_open(bootstrap: str) -> bool:
    """Whether the coordinator has an open transaction of the worker."""
    with Admin(bootstrap) as admin:
        return admin.describe_transaction(TRANSACTIONAL_ID).state is TransactionState.ONGOING
