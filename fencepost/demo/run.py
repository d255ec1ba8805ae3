"""The demonstration from start to end: broker, flights, workers and kills, Spark, result.

Rule: it leaves no process behind, and files only with --directory.
"""

from __future__ import annotations

import signal
import tempfile
from contextlib import nullcontext
from pathlib import Path

import attrs
import trio

from fencepost.cli.agreement import contradictions, count_finished_after_restart, count_states, read_histories
from fencepost.cli.errors import FAILED, OK, WRONG_USAGE, CommandFailed, Stopped
from fencepost.cli.output import print_json
from fencepost.demo.dataset import flights_file
from fencepost.demo.pipeline import Pipeline, WorkerCounts
from fencepost.demo.plan import Disruption, DisruptionPlan, TooManyKills, draw_plan
from fencepost.demo.processes import BrokerProcess, ChildProcess, ChildProcesses, children
from fencepost.demo.report import DemoResult, StoryLog
from fencepost.demo.verify import OutputCheck
from fencepost.protocol.terms import TransactionState
from fencepost.spark_bridge.session import require_spark


@attrs.frozen(kw_only=True)
class DemoRun:
    """The parameters of a run."""

    plan: DisruptionPlan
    data: Path
    source: Path
    broken: str | None
    story: StoryLog


def run_demo(
    *, flights: int, kills: int, seed: int, directory: Path | None, broken: str | None, as_json: bool
) -> int:
    """Runs the demonstration and prints its result; returns exit code 1 unless the result is ok."""
    try:
        plan = draw_plan(seed=seed, flights=flights, kills=kills)
    except TooManyKills as problem:
        raise CommandFailed(
            str(problem), then="ask for fewer kills or more flights", code=WRONG_USAGE
        ) from problem
    if directory is not None and directory.exists() and any(directory.iterdir()):
        raise CommandFailed(
            f"{directory} is not empty",
            then="give a new or empty directory with --directory",
            code=WRONG_USAGE,
        )
    require_spark()
    story = StoryLog()
    with (
        tempfile.TemporaryDirectory(prefix="fencepost-demo-")
        if directory is None
        else nullcontext(directory) as place
    ):
        data = Path(place, "data")
        source = flights_file()
        demo = DemoRun(plan=plan, data=data, source=source, broken=broken, story=story)
        report = trio.run(perform_unless_stopped, demo, Path(place))
        if directory is not None:
            story.tell(f"the log is in {data}; read it with `fencepost dump {data}`")
    story.console.print(report.to_table())
    story.console.print(report.sentence(), style="green" if report.ok else "red", markup=False)
    if as_json:
        print_json(report.to_json())
    return OK if report.ok else FAILED


async def perform_unless_stopped(demo: DemoRun, place: Path) -> DemoResult:
    """Runs until the end, SIGINT or SIGTERM; after a signal it raises Stopped once every process is gone."""
    caught: list[int] = []
    reports: list[DemoResult] = []

    async def watch(scope: trio.CancelScope, *, task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for number in signals:
                caught.append(number)
                scope.cancel()

    async with trio.open_nursery() as nursery:
        await nursery.start(watch, nursery.cancel_scope)
        reports.append(await perform(demo, place))
        nursery.cancel_scope.cancel()
    if caught:
        raise Stopped(caught[0])
    return reports[0]


async def perform(demo: DemoRun, place: Path) -> DemoResult:
    """Runs all parts in order and returns the result."""
    async with children(place / "processes") as processes:
        reader = await start_reader(demo, processes)  # Spark starts slowly, so it starts first
        broker, counts = await run_pipeline(demo, processes, reader)
        demo.story.tell("all processes stopped; the check reads only the files")
        histories = read_histories(demo.data)
        contradicting = contradictions(demo.data)
        for contradiction in contradicting[:5]:
            demo.story.tell(contradiction)
        verdict, loaded = await verify(demo, reader)
    return DemoResult(
        seed=demo.plan.seed,
        broken=demo.broken,
        flights=demo.plan.flights,
        flights_loaded=loaded,
        delays_committed=verdict.delays_committed,
        duplicates=verdict.duplicates,
        lost=verdict.lost,
        wrong=verdict.wrong,
        totals_match=verdict.totals_match,
        uncommitted_visible=verdict.uncommitted_visible,
        worker_kills=counts.worker_kills,
        worker_kills_in_transaction=counts.worker_kills_in_transaction,
        broker_kills=broker.kills,
        broker_kills_between_prepare_and_complete=count_finished_after_restart(histories),
        zombies=counts.frozen,
        zombies_fenced=counts.fenced,
        committed_transactions=count_states(histories, TransactionState.COMPLETE_COMMIT),
        aborted_transactions=count_states(histories, TransactionState.COMPLETE_ABORT),
        aborted_on_purpose=counts.aborted_on_purpose,
        lost_replies=broker.lost_replies,
        log_contradictions=len(contradicting),
        seconds=round(demo.story.seconds, 1),
        planned_worker_kills=demo.plan.count(Disruption.KILL_WORKER),
        planned_broker_kills=demo.plan.count(Disruption.KILL_BROKER, Disruption.KILL_BROKER_AT_PREPARE),
    )


async def run_pipeline(
    demo: DemoRun, processes: ChildProcesses, reader: ChildProcess
) -> tuple[BrokerProcess, WorkerCounts]:
    """Runs broker, loader and workers; all have ended when it returns."""
    broker = BrokerProcess(
        processes,
        data=demo.data,
        broken=broker_fault(demo.broken),
        lose_every=demo.plan.lose_every,
        story=demo.story,
    )
    broker.holds.extend(
        event.round for event in demo.plan.events if event.kind is Disruption.KILL_BROKER_AT_PREPARE
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        await load(demo, processes, broker)
        await reader.tell("warm up")
        with demo.story.progress("flights become delays", total=demo.plan.flights) as progress:
            pipeline = Pipeline(
                demo.plan,
                broker=broker,
                children=processes,
                story=demo.story,
                progress=progress,
                read_uncommitted=demo.broken == "isolation",
            )
            await pipeline.run()
        await broker.stop()
        nursery.cancel_scope.cancel()
    return broker, pipeline.counts


def broker_fault(broken: str | None) -> str | None:
    """The protection to turn off in the broker, or None: isolation is turned off in the readers."""
    return None if broken == "isolation" else broken


async def load(demo: DemoRun, processes: ChildProcesses, broker: BrokerProcess) -> None:
    """Fills the topic `flights`."""
    flights = demo.plan.flights
    with demo.story.progress("loading flights", total=flights) as progress:
        loader = await processes.start(
            "loader", "fencepost.demo.dataset", broker.bootstrap, str(demo.source), str(flights)
        )
        while (said := await loader.hear()) is not None:
            if said["event"] == "sent":
                progress.reach(said["flights"])
        if await loader.wait():
            raise loader.failure()


async def start_reader(demo: DemoRun, processes: ChildProcesses) -> ChildProcess:
    """Starts the Spark process, which waits for a word before it reads."""
    isolation_level = "read_uncommitted" if demo.broken == "isolation" else "read_committed"
    arguments = (str(demo.data), str(demo.source), str(demo.plan.flights), isolation_level)
    return await processes.start("Spark", "fencepost.demo.verify", *arguments)


async def verify(demo: DemoRun, reader: ChildProcess) -> tuple[OutputCheck, int]:
    """Returns what Spark finds in the files, and the number of flights in the input topic."""
    loaded, verdict = 0, None
    with demo.story.progress("Spark reads the log", total=None):
        await reader.tell("read")
        while (said := await reader.hear()) is not None:
            if said.pop("event") == "verdict":
                loaded = said.pop("flights_loaded")
                verdict = OutputCheck(**said)
        await reader.wait()
    if verdict is None:
        raise reader.failure()
    return verdict, loaded
