"""The demonstration from start to end: broker, flights, workers and kills, Spark, result.

Rule: it leaves no process running. A kill counts as inside a transaction only if the coordinator has an open
transaction after it.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Sequence
from typing import Any

import trio

from fencepost.check.directory import check_directory
from fencepost.check.findings import Finding, Severity, counted
from fencepost.cli.interruptions import Stopped
from fencepost.client.shells.sync import Admin
from fencepost.demo.histories import count_finished_after_restart, count_states, read_histories
from fencepost.demo.plan import (
    FENCED,
    PRODUCER_FAILED,
    TRANSACTIONAL_ID,
    Disruption,
    PlannedDisruption,
    WorkerPoint,
    WorkerTask,
)
from fencepost.demo.processes import ChildProcess, ChildProcesses, Demo, DemoBroker, children
from fencepost.demo.report import ProgressBar, StoryLog
from fencepost.demo.stream import MICRO_BATCHES, NO_PAUSE
from fencepost.journal.disk import DiskStorage
from fencepost.protocol.errors import FencepostError
from fencepost.protocol.terms import TransactionState


async def perform_unless_stopped(demo: Demo) -> None:
    """Runs until the end, SIGINT or SIGTERM; after a signal it raises Stopped once every process is gone."""
    caught: list[int] = []

    async def watch(scope: trio.CancelScope) -> None:
        async for number in signals:
            caught.append(number)
            scope.cancel()

    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, nursery.cancel_scope)
            await perform(demo)
            nursery.cancel_scope.cancel()
    if caught:
        raise Stopped(caught[0])


async def perform(demo: Demo) -> None:
    """Runs all parts in order and fills the result."""
    result = demo.result
    async with children(demo.data.parent / "processes") as processes:
        reader = await start_reader(demo, processes)  # Spark starts slowly, so it starts first
        await run_pipeline(demo, processes, reader)
        demo.story.tell("all processes stopped; the check reads only the files")
        histories = read_histories(demo.data)
        result.broker_kills_between_prepare_and_complete = count_finished_after_restart(histories)
        result.committed_transactions = count_states(histories, TransactionState.COMPLETE_COMMIT)
        result.aborted_transactions = count_states(histories, TransactionState.COMPLETE_ABORT)
        found = check_directory(DiskStorage(demo.data, read_only=True)).found
        result.log_problems = tell_problems(found, demo.story)
        await verify(demo, reader)
    result.seconds = round(demo.story.seconds, 1)


def tell_problems(found: Sequence[Finding], story: StoryLog) -> int:
    """Print the first problems of a check, and say that there are more; returns how many there are."""
    problems = [finding for finding in found if finding.severity is Severity.PROBLEM]
    for problem in problems[:PROBLEMS_SHOWN]:
        story.tell(f"{problem.file}: {problem.what}")
    more = len(problems) - PROBLEMS_SHOWN
    if more > 0:
        story.tell(
            f"and {counted(more, 'more problem')}: after a run with --directory DIR, "
            "`fencepost check DIR/data` lists all of them"
        )
    return len(problems)


async def run_pipeline(demo: Demo, processes: ChildProcesses, reader: ChildProcess) -> None:
    """Runs broker, loader and workers; all have ended when it returns."""
    broker = DemoBroker(processes, demo)
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        async with trio.open_nursery() as streams:
            begun, loaded = trio.Event(), trio.Event()
            if demo.result.has_stream:
                streams.start_soon(run_stream, demo, processes, begun, loaded)
            await load(demo, processes, broker, begun)
            loaded.set()
            await reader.tell("warm up")
            with demo.story.progress("flights become delays", total=demo.plan.flights) as progress:
                await Pipeline(demo, broker=broker, children=processes, progress=progress).run()
        await broker.stop()
        nursery.cancel_scope.cancel()


async def load(demo: Demo, processes: ChildProcesses, broker: DemoBroker, begun: trio.Event) -> None:
    """Fills the topic `flights`; `begun` is set when it exists and has records."""
    flights = demo.plan.flights
    with demo.story.progress("loading flights", total=flights) as progress:
        loader = await processes.start(
            "loader", "fencepost.demo.dataset", broker.bootstrap, str(demo.source), str(flights)
        )
        while (said := await loader.hear()) is not None:
            if said["event"] == "sent":
                progress.reach(said["flights"])
                begun.set()
        if await loader.wait():
            raise loader.failure()


async def run_stream(demo: Demo, processes: ChildProcesses, begun: trio.Event, loaded: trio.Event) -> None:
    """Runs the streaming aggregation: one process is killed inside a micro-batch, if processes are killed at
    all, and another one continues from its checkpoint until all flights are read.
    """
    result = demo.result
    await begun.wait()
    if result.planned_stream_kills:
        stream = await start_stream(demo, processes, pause_at=1 + demo.plan.seed % 2)
        said = await stream.hear()
        if said is None:
            await stream.wait()
            raise stream.failure()
        await stream.end()
        result.stream_kills += 1
        demo.story.tell(f"stream killed: inside micro-batch {said['batch']}, which is in no checkpoint")
    stream = await start_stream(demo, processes, pause_at=NO_PAUSE)
    await loaded.wait()
    await stream.tell("finish")
    while (said := await stream.hear()) is not None:
        result.stream_batches = said["batches"]
    if await stream.wait():
        raise stream.failure()
    demo.story.tell(f"stream has read all flights in {result.stream_batches} micro-batches")


async def start_stream(demo: Demo, processes: ChildProcesses, *, pause_at: int) -> ChildProcess:
    """Starts a process of the stream on the one checkpoint."""
    offsets = max(1, demo.plan.flights // MICRO_BATCHES)
    arguments = (str(demo.data), str(demo.stream), str(offsets), str(pause_at))
    return await processes.start("stream", "fencepost.demo.stream", *arguments)


async def start_reader(demo: Demo, processes: ChildProcesses) -> ChildProcess:
    """Starts the Spark process, which waits for a word before it reads."""
    arguments = [str(demo.data), str(demo.source), str(demo.plan.flights), demo.result.isolation_level]
    if demo.result.has_stream:
        arguments.append(str(demo.stream))
    return await processes.start("Spark", "fencepost.demo.verify", *arguments)


async def verify(demo: Demo, reader: ChildProcess) -> None:
    """Adds to the result what Spark finds in the files."""
    verdict: dict[str, Any] = {}
    with demo.story.progress("Spark reads the log", total=None):
        await reader.tell("read")
        while (said := await reader.hear()) is not None:
            if said.pop("event") == "verdict":
                verdict = said
        await reader.wait()
    if not verdict:
        raise reader.failure()
    for name, value in verdict.items():
        setattr(demo.result, name, value)


PROBLEMS_SHOWN = 5
REPLACEMENT_ROUNDS = 2  # the replacement of a frozen worker commits this many before the worker is thawed
ZOMBIE_ROUNDS = 3  # a thawed worker stops after this many, in case it is not fenced
UNPLANNED_ENDS_MAX = 20
SILENCE_S = 30.0  # a worker without output for this long hangs


class PipelineFailed(FencepostError):
    """The worker failed too many times."""


class Pipeline:
    """One run over all flights."""

    def __init__(
        self, demo: Demo, *, broker: DemoBroker, children: ChildProcesses, progress: ProgressBar
    ) -> None:
        self._plan, self._result, self._story = demo.plan, demo.result, demo.story
        self._broker = broker
        self._children = children
        self._progress = progress
        self._events = deque(
            event for event in demo.plan.events if event.kind is not Disruption.KILL_BROKER_AT_PREPARE
        )
        self._flights = 0
        self._rounds = 0  # of all workers before the current one
        self._commits = 0
        self._workers = 0
        self._sleepers: list[tuple[int, trio.Event]] = []  # (number of commits at which to thaw it, event)

    async def run(self) -> None:
        """Runs until a worker has processed all flights and every frozen worker has ended."""
        async with trio.open_nursery() as nursery:
            while not await self._life(nursery):
                if self._result.unplanned_ends > UNPLANNED_ENDS_MAX:
                    raise PipelineFailed(f"the worker failed {self._result.unplanned_ends} times")
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
                case "fenced" | "failed":
                    because = said["because"]
                case _:
                    pass
        code = await worker.wait()
        if code not in (FENCED, PRODUCER_FAILED, -signal.SIGKILL):
            because = str(worker.failure())
        self._result.unplanned_ends += 1
        self._story.tell(f"worker failed, a replacement takes over: {because}")
        self._rounds = self._broker.rounds
        return False

    async def _start_worker(self) -> ChildProcess:
        self._workers += 1
        pauses = tuple((event.round - self._rounds, event.point) for event in self._events)
        task = WorkerTask(
            bootstrap=self._broker.bootstrap,
            seed=self._plan.seed,
            records_per_transaction=self._plan.records_per_transaction,
            abort_share=self._plan.abort_share,
            isolation_level=self._result.isolation_level,
            pauses=pauses,
            client_id=f"worker {'AB'[self._workers % 2]}",  # a zombie and its replacement: two lanes
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
            self._result.aborted_on_purpose += said["on_purpose"]
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
            is_open = await trio.to_thread.run_sync(transaction_is_open, self._broker.bootstrap)
            self._result.worker_kills += 1
            self._result.worker_kills_in_transaction += is_open
            state = "transaction open" if is_open else "no open transaction"
            self._story.tell(f"worker killed: {point.value} ({state})")
        else:
            worker.send(signal.SIGSTOP)
            self._result.zombies += 1
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
            self._result.zombies_fenced += 1
            self._story.tell("frozen worker woke up, continued, and was fenced")
        else:
            self._story.tell(f"frozen worker woke up and was NOT fenced: {', '.join(last_words)}")


def transaction_is_open(bootstrap: str) -> bool:
    """Whether the coordinator has an open transaction of the worker."""
    with Admin(bootstrap, client_id="demo") as admin:
        return admin.describe_transaction(TRANSACTIONAL_ID).state is TransactionState.ONGOING
