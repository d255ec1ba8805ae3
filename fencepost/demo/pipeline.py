"""Runs the worker through all its lives, and strikes where the plan says.

Rule: a blow counts as inside a transaction when the coordinator says afterwards that one is open.
"""

from __future__ import annotations

import signal
from collections import deque
from typing import Any

import attrs
import trio

from fencepost.client.shells.sync import Admin
from fencepost.demo.messages import COMMIT_UNKNOWN, FENCED, TRANSACTIONAL_ID, Task
from fencepost.demo.plan import PlannedStrike, Strike, StrikePlan, WorkerPoint
from fencepost.demo.processes import BrokerProcess, ChildProcess, ChildProcesses
from fencepost.demo.report import ProgressBar, StoryLog
from fencepost.protocol.errors import FencepostError
from fencepost.protocol.terms import TransactionState

HEIR_ROUNDS = 2  # that the heir of a frozen worker commits before that one wakes up
ZOMBIE_ROUNDS = 3  # that a frozen worker may go on for after it woke up, should nobody fence it
UNPLANNED_ENDS_MAX = 20
SILENCE_S = 30.0  # without a word from the worker mean that it hangs


class PipelineFailed(FencepostError):
    """The worker cannot finish, no matter how often it is restarted."""


@attrs.define
class WorkerCounts:
    """What happened, counted as it happened."""

    worker_kills: int = 0
    worker_kills_in_transaction: int = 0
    frozen: int = 0
    fenced: int = 0
    aborted_on_purpose: int = 0
    unplanned_ends: int = 0


class Pipeline:
    """One run of the worker over all flights."""

    def __init__(
        self,
        plan: StrikePlan,
        *,
        keeper: BrokerProcess,
        children: ChildProcesses,
        stage: StoryLog,
        act: ProgressBar,
        read_uncommitted: bool,
    ) -> None:
        self.tally = WorkerCounts()
        self._plan = plan
        self._keeper = keeper
        self._children = children
        self._stage = stage
        self._act = act
        self._read_uncommitted = read_uncommitted
        self._events = deque(
            event for event in plan.events if event.strike is not Strike.KILL_BROKER_AT_PREPARE
        )
        self._flights = 0
        self._rounds = 0  # begun by all workers before the present one
        self._commits = 0
        self._sleepers: list[tuple[int, trio.Event]] = []  # (commits at which one wakes up, its alarm)

    async def run(self) -> None:
        """Until a worker says that all flights are done, and every frozen one has had its end."""
        async with trio.open_nursery() as nursery:
            while not await self._life(nursery):
                if self.tally.unplanned_ends > UNPLANNED_ENDS_MAX:
                    raise PipelineFailed(f"the worker failed {self.tally.unplanned_ends} times")
            self._wake_sleepers(everyone=True)

    async def _life(self, nursery: trio.Nursery) -> bool:
        """One worker from start to end; True when it was the last."""
        worker = await self._start_worker()
        because = "silent"
        while (said := await self._hear(worker)) is not None:
            match said["event"]:
                case "committed" | "aborted":
                    self._count(said)
                case "at":
                    point = WorkerPoint[said["point"]]
                    self._keeper.rounds = self._rounds + said["round"]
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
        self.tally.unplanned_ends += 1
        self._stage.tell(f"worker failed, a replacement takes over: {because}")
        self._rounds = self._keeper.rounds
        return False

    async def _start_worker(self) -> ChildProcess:
        pauses = tuple((event.round - self._rounds, event.point) for event in self._events)
        task = Task(
            bootstrap=self._keeper.bootstrap,
            seed=self._plan.seed,
            records_per_transaction=self._plan.records_per_transaction,
            abort_share=self._plan.abort_share,
            read_uncommitted=self._read_uncommitted,
            pauses=pauses,
        )
        return await self._children.start("worker", "fencepost.demo.worker", task.to_json())

    async def _hear(self, worker: ChildProcess) -> dict[str, Any] | None:
        """Its next word; a worker that is silent for too long is ended."""
        with trio.move_on_after(SILENCE_S):
            return await worker.hear()
        self._stage.tell(f"worker silent for {SILENCE_S:.0f} s")
        await worker.end()
        return None

    def _count(self, said: dict[str, Any]) -> None:
        self._keeper.rounds = self._rounds + said["round"]
        if said["event"] == "aborted":
            self.tally.aborted_on_purpose += said["on_purpose"]
            return
        self._flights += said["flights"]
        self._act.reach(min(self._flights, self._plan.flights))
        self._commits += 1
        self._wake_sleepers()

    def _wake_sleepers(self, *, everyone: bool = False) -> None:
        for due, alarm in self._sleepers:
            if everyone or self._commits >= due:
                alarm.set()

    async def _strike(
        self, worker: ChildProcess, event: PlannedStrike, point: WorkerPoint, nursery: trio.Nursery
    ) -> bool:
        """Does what the plan says; True when the worker lives on."""
        if event.strike is Strike.KILL_BROKER:
            await self._keeper.kill(f"worker at: {point.value}")
            await worker.tell("on")
            return True
        self._rounds = self._keeper.rounds
        if event.strike is Strike.KILL_WORKER:
            await worker.end()
            is_open = await self._transaction_is_open()
            self.tally.worker_kills += 1
            self.tally.worker_kills_in_transaction += is_open
            state = "transaction open" if is_open else "no open transaction"
            self._stage.tell(f"worker killed: {point.value} ({state})")
        else:
            worker.send(signal.SIGSTOP)
            self.tally.frozen += 1
            self._stage.tell(f"worker frozen: {point.value}; a replacement takes over")
            alarm = trio.Event()
            self._sleepers.append((self._commits + HEIR_ROUNDS, alarm))
            nursery.start_soon(self._wake_up, worker, alarm)
        return False

    async def _wake_up(self, zombie: ChildProcess, alarm: trio.Event) -> None:
        """Lets a frozen worker go on, as if nothing had happened, and sees what becomes of it."""
        await alarm.wait()
        zombie.send(signal.SIGCONT)
        await zombie.tell(f"go {ZOMBIE_ROUNDS}")
        last_words: list[str] = []
        while (said := await self._hear(zombie)) is not None:
            last_words.append(str(said.get("because", said["event"])))
        if await zombie.wait() == FENCED:
            self.tally.fenced += 1
            self._stage.tell("frozen worker woke up, continued, and was fenced")
        else:
            self._stage.tell(f"frozen worker woke up and was NOT fenced: {', '.join(last_words)}")

    async def _transaction_is_open(self) -> bool:
        return await trio.to_thread.run_sync(transaction_is_open, self._keeper.bootstrap)


def transaction_is_open(bootstrap: str) -> bool:
    """What the coordinator says about the worker's transactional id."""
    with Admin(bootstrap) as admin:
        return admin.describe_transaction(TRANSACTIONAL_ID).state is TransactionState.ONGOING
