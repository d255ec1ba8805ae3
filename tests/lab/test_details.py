"""State changes: added up to the end of a run, they are what its nodes and readers really hold.

Rule: the real state is read here by other code than the lab's, field by field.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from fencepost.broker.partitions.partition import UNKNOWN_PRODUCER
from fencepost.broker.transactions.state import Transactions
from fencepost.bundled import bundled_scenarios
from fencepost.client.consumer import ConsumerMachine
from fencepost.lab.observer import RunObserver
from fencepost.protocol.terms import CLUSTER_METADATA_TOPIC, NO_OFFSET
from fencepost.simulation import read_scenario, simulate
from fencepost.simulator.fuzz.plan import PLANNERS
from fencepost.simulator.run import Run
from fencepost.simulator.run_result import RunResult
from fencepost.simulator.scenarios.model import Case, cases
from fencepost.simulator.scenarios.runner import record_case, run_case
from fencepost.simulator.world.events import NodeKilled, NodeStepped
from fencepost.simulator.world.history import Appended, Bounded, Coordinated
from fencepost.simulator.world.recording import Recorder

State = dict[str, Any]
DEATHS = frozenset({"fault: crash", "fault: power loss"})


@attrs.define
class Observed:
    """A watched run, and its observer."""

    run: Run = attrs.field(init=False)
    observer: RunObserver = attrs.field(init=False)

    def also(self, run: Run, recorder: Recorder) -> None:
        self.run, self.observer = run, RunObserver(run, recorder)
        self.observer.attach()


def observe(result: RunResult) -> Observed:
    """The run again, with an observer."""
    watch = Observed()
    result.record(watch.also)
    watch.observer.finish()
    return watch


def added_up(watch: Observed) -> State:
    """All changes of a run, one after the other, as the page adds them up."""
    state: State = {}
    for _, changes in sorted(watch.observer.details.changes.items()):
        for key, value in changes.items():
            if value is None:
                state.pop(key, None)
            else:
                state[key] = value
    return state


def real_state(run: Run) -> State:
    """What the nodes hold: of each log, its leader by the newest epoch."""
    state: State = {}
    epochs: dict[Any, int] = {}
    for node in run.world.nodes:
        if node.host is None:
            continue
        for where, log in node.host.node.logs.items():
            partition = log.partition
            if where.topic == CLUSTER_METADATA_TOPIC or epochs.get(where, -1) > partition.leader_epoch:
                continue
            epochs[where] = partition.leader_epoch
            for key in [key for key in state if key.startswith(f"producer/{where}/")]:
                del state[key]
            state[f"log/{where}"] = {
                "start": partition.log_start_offset,
                "end": partition.log_end_offset,
                "lso": partition.last_stable_offset,
                "hw": partition.high_watermark,
                "leader": node.participant,
                "leader_epoch": partition.leader_epoch,
            }
            for number in partition.producers.keys() | partition.verifying.keys():
                entry = partition.producers.get(number, UNKNOWN_PRODUCER)
                state[f"producer/{where}/{number}"] = {
                    "epoch": entry.producer_epoch,
                    "last_sequence": entry.last_sequence,
                    "batches": [[b.first_sequence, b.last_sequence] for b in entry.batches],
                    "open_since": None
                    if entry.current_txn_first_offset == NO_OFFSET
                    else entry.current_txn_first_offset,
                    "guard": "verifying" if number in partition.verifying else None,
                    "coordinator_epoch": entry.coordinator_epoch,
                }
            if isinstance(log.coordinator, Transactions):
                state |= real_transactions(node.participant, log.coordinator)
    return state


def real_transactions(node: str, coordinator: Transactions) -> State:
    return {
        f"txn/{name}": {
            "state": record.state.title,
            "producer": record.producer_id,
            "epoch": record.producer_epoch,
            "partitions": list(map(str, record.partitions)),
            "pending": sorted(
                map(
                    str,
                    coordinator.pending_markers.get(
                        name, record.partitions if record.state.is_prepared else ()
                    ),
                )
            ),
            "timeout_ms": record.timeout_ms,
            "node": node,
        }
        for name, record in coordinator.records.items()
    }


def of_nodes(state: State) -> State:
    """Without what nodes do not hold: participants, readers, and logs that nobody leads."""
    return {
        key: value
        for key, value in state.items()
        if key.split("/")[0] in ("log", "producer", "txn")
        and not (key.startswith("log/") and value["leader"] is None)
    }


def readers(run: Run) -> State:
    """The positions of the newest consumer of each process that is shown."""
    state: State = {}
    for each in run.cast:
        if each.role is not run.spec.final:
            machines = [p.machine for p in each.process.ports if isinstance(p.machine, ConsumerMachine)]
            for where, assigned in machines[-1].assigned.items() if machines else ():
                if assigned.position is not None:
                    state[f"reader/{each.process.participant}/{where}"] = assigned.position
    return state


def lives(run: Run) -> State:
    shown = [each.process for each in run.cast if each.role is not run.spec.final]
    clients = {f"participant/{each.participant}": each.is_over for each in shown}
    nodes = {f"participant/{node.participant}": node.host is None for node in run.world.nodes}
    return {**clients, **nodes}


def check_end(watch: Observed) -> None:
    """Whatever the changes add up to is what is there."""
    state = added_up(watch)
    assert of_nodes(state) == real_state(watch.run)
    assert {key: value for key, value in state.items() if key.startswith("reader/")} == readers(watch.run)
    for name, is_over in lives(watch.run).items():
        assert (state[name] in ("down", "ended")) == is_over


def every_case() -> list[Case]:
    return [case for name in bundled_scenarios() for case in cases(read_scenario(name))]


@pytest.mark.parametrize("case", every_case(), ids=lambda case: case.name)
def test_changes_add_up_to_the_state_of_the_nodes_after_a_scenario(case: Case) -> None:
    check_end(observe(run_case(case)))


@pytest.mark.thorough
@pytest.mark.parametrize("workload", PLANNERS)
def test_changes_add_up_to_the_state_of_the_nodes_after_random_faults(workload: str) -> None:
    killed = 0
    for seed in range(12):
        result = simulate(seed, workload=workload, transaction_version=seed % 3)
        watch = observe(result)
        check_end(watch)
        again = watch.run.result(record=result.record)
        assert (again.digest, again.events) == (result.digest, result.events), "observing changes nothing"
        killed += bool(DEATHS.intersection(result.marks))
    assert killed


def test_changes_add_up_at_every_step_of_a_node() -> None:
    """Not only at the end: whenever no append is waiting to be written, the state is the real one."""
    looks = 0
    for seed in range(5):
        watch = Observed()

        def look(step: NodeStepped, watch: Observed = watch) -> None:
            nonlocal looks
            if not watch.observer.unwritten.waiting and not step.outcome.appends:
                looks += 1
                assert of_nodes(watch.observer.details.state) == real_state(watch.run)

        def also(run: Run, recorder: Recorder, watch: Observed = watch, look: Any = look) -> None:
            watch.also(run, recorder)
            run.world.events.subscribe(NodeStepped, look)

        simulate(seed).record(also)
    assert looks > 200


def test_a_crash_takes_the_state_of_the_node() -> None:
    """From the kill on nobody leads and nobody coordinates, until it is there again."""
    case = next(cases(read_scenario("coordinator_crash_in_commit")))
    watcher, seen = Observed(), list[State]()

    def also(run: Run, recorder: Recorder) -> None:
        watcher.also(run, recorder)
        run.world.events.subscribe(NodeKilled, lambda _: seen.append(dict(watcher.observer.details.state)))

    record_case(case, also)
    assert seen
    for state in seen:
        assert not [key for key in state if key.startswith(("producer/", "txn/"))]
        logs = [value for key, value in state.items() if key.startswith("log/")]
        assert logs
        assert all(log["leader"] is None for log in logs)
    assert [key for key in watcher.observer.details.state if key.startswith("txn/")]


def test_changes_stand_at_the_steps_that_show_them() -> None:
    case = next(cases(read_scenario("late_end_txn")))
    watcher = Observed()
    events = record_case(case, watcher.also).history.events
    watcher.observer.finish()
    details = watcher.observer.details
    for place, event in enumerate(events):
        changes = details.changes.get(place, {})
        match event:
            case Coordinated(transactional_id=name, record=record):
                assert changes[f"txn/{name}"]["state"] == record.state.title
            case Appended(partition=where, header=header):
                assert changes[f"log/{where}"]["end"] == header.next_offset
                assert changes[f"producer/{where}/{header.producer_id}"]["epoch"] == header.producer_epoch
            case Bounded(partition=where):
                assert changes[f"log/{where}"]["lso"] == event.last_stable_offset
                assert changes[f"log/{where}"]["hw"] == event.high_watermark
            case _:
                pass
