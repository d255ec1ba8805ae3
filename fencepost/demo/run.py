"""The demonstration from start to end: broker, flights, worker and blows, Spark, verdict.

Rule: leaves no process behind, and no file unless it was told where to keep them.
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
from fencepost.demo.plan import Strike, StrikePlan, TooManyKills, draw_plan
from fencepost.demo.processes import BrokerProcess, ChildProcess, ChildProcesses, children
from fencepost.demo.report import DemoResult, StoryLog
from fencepost.demo.verify import OutputCheck
from fencepost.protocol.terms import TransactionState
from fencepost.spark_bridge.session import require_spark


@attrs.frozen(kw_only=True)
class DemoRun:
    """What was asked for, and where it takes place."""

    plan: StrikePlan
    data: Path
    source: Path
    broken: str | None
    stage: StoryLog


def run_demo(
    *, flights: int, kills: int, seed: int, directory: Path | None, broken: str | None, as_json: bool
) -> int:
    """Runs it, prints the table; the exit code is 1 when the output is not exactly right."""
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
    stage = StoryLog()
    with (
        tempfile.TemporaryDirectory(prefix="fencepost-demo-")
        if directory is None
        else nullcontext(directory) as place
    ):
        data = Path(place, "data")
        source = flights_file()
        the = DemoRun(plan=plan, data=data, source=source, broken=broken, stage=stage)
        report = trio.run(perform_unless_stopped, the, Path(place))
        if directory is not None:
            stage.tell(f"the log is in {data}; read it with `fencepost dump {data}`")
    stage.console.print(report.to_table())
    stage.console.print(report.sentence(), style="green" if report.ok else "red", markup=False)
    if as_json:
        print_json(report.to_json())
    return OK if report.ok else FAILED


async def perform_unless_stopped(the: DemoRun, place: Path) -> DemoResult:
    """The same, ended in good order by Ctrl-C and SIGTERM: Stopped after every process is gone."""
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
        reports.append(await perform(the, place))
        nursery.cancel_scope.cancel()
    if caught:
        raise Stopped(caught[0])
    return reports[0]


async def perform(the: DemoRun, place: Path) -> DemoResult:
    """All parts in order."""
    async with children(place / "processes") as family:
        reader = await start_reader(the, family)  # Spark takes its time: it starts beside the pipeline
        keeper, tally = await run_pipeline(the, family, reader)
        the.stage.tell("all processes stopped; the check reads only the files")
        histories = read_histories(the.data)
        contradicting = contradictions(the.data)
        for contradiction in contradicting[:5]:
            the.stage.tell(contradiction)
        verdict, loaded = await verify(the, reader)
    return DemoResult(
        seed=the.plan.seed,
        broken=the.broken,
        flights=the.plan.flights,
        flights_loaded=loaded,
        delays_committed=verdict.delays_committed,
        duplicates=verdict.duplicates,
        lost=verdict.lost,
        wrong=verdict.wrong,
        totals_match=verdict.totals_match,
        uncommitted_visible=verdict.uncommitted_visible,
        worker_kills=tally.worker_kills,
        worker_kills_in_transaction=tally.worker_kills_in_transaction,
        broker_kills=keeper.kills,
        broker_kills_between_prepare_and_complete=count_finished_after_restart(histories),
        zombies=tally.frozen,
        zombies_fenced=tally.fenced,
        committed_transactions=count_states(histories, TransactionState.COMPLETE_COMMIT),
        aborted_transactions=count_states(histories, TransactionState.COMPLETE_ABORT),
        aborted_on_purpose=tally.aborted_on_purpose,
        lost_replies=keeper.lost_replies,
        log_contradictions=len(contradicting),
        seconds=round(the.stage.seconds, 1),
        planned_worker_kills=the.plan.count(Strike.KILL_WORKER),
        planned_broker_kills=the.plan.count(Strike.KILL_BROKER, Strike.KILL_BROKER_AT_PREPARE),
    )


async def run_pipeline(
    the: DemoRun, family: ChildProcesses, reader: ChildProcess
) -> tuple[BrokerProcess, WorkerCounts]:
    """Broker, loader, worker; all of them stopped at the end."""
    keeper = BrokerProcess(
        family,
        data=the.data,
        broken=broker_fault(the.broken),
        lose_every=the.plan.lose_every,
        stage=the.stage,
    )
    keeper.holds.extend(
        event.round for event in the.plan.events if event.strike is Strike.KILL_BROKER_AT_PREPARE
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(keeper.run)
        await load(the, family, keeper)
        await reader.tell("warm up")
        with the.stage.act("flights become delays", total=the.plan.flights) as act:
            pipeline = Pipeline(
                the.plan,
                keeper=keeper,
                children=family,
                stage=the.stage,
                act=act,
                read_uncommitted=the.broken == "isolation",
            )
            await pipeline.run()
        await keeper.stop()
        nursery.cancel_scope.cancel()
    return keeper, pipeline.tally


def broker_fault(broken: str | None) -> str | None:
    """The protection to turn off in the broker; isolation is the reader's."""
    return None if broken == "isolation" else broken


async def load(the: DemoRun, family: ChildProcesses, keeper: BrokerProcess) -> None:
    """Fills the topic `flights`."""
    flights = the.plan.flights
    with the.stage.act("loading flights", total=flights) as act:
        loader = await family.start(
            "loader", "fencepost.demo.dataset", keeper.bootstrap, str(the.source), str(flights)
        )
        while (said := await loader.hear()) is not None:
            if said["event"] == "sent":
                act.reach(said["flights"])
        if await loader.wait():
            raise loader.failure()


async def start_reader(the: DemoRun, family: ChildProcesses) -> ChildProcess:
    """Spark, which waits for the word to read."""
    isolation_level = "read_uncommitted" if the.broken == "isolation" else "read_committed"
    arguments = (str(the.data), str(the.source), str(the.plan.flights), isolation_level)
    return await family.start("Spark", "fencepost.demo.verify", *arguments)


async def verify(the: DemoRun, reader: ChildProcess) -> tuple[OutputCheck, int]:
    """What Spark finds in the files, and how many flights were in the input topic."""
    loaded, verdict = 0, None
    with the.stage.act("Spark reads the log", total=None):
        await reader.tell("read")
        while (said := await reader.hear()) is not None:
            if said.pop("event") == "verdict":
                loaded = said.pop("flights_loaded")
                verdict = OutputCheck(**said)
        await reader.wait()
    if verdict is None:
        raise reader.failure()
    return verdict, loaded
