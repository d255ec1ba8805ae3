"""Rounds of loads: in each round every system gets a fresh broker, and each load runs on all of them in turn.

Every load runs in a process of its own, which prints the sample as one JSON line:
`python -m benchmarks.load_rounds SYSTEM LOAD ADDRESS BROKER_PROCESS_ID RECORDS TRANSACTIONS`. LOAD `fill`
writes the records for the fetches and prints nothing.

Rule: the order of the systems alternates, so other work on the machine affects both.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from statistics import median

import attrs

from benchmarks.brokers import (
    RunningBroker,
    System,
    cpu_seconds,
    environment,
    resident_bytes,
    running,
    seconds_to_import_trio,
)
from benchmarks.loads import Load, Sample, Scale, Standing, Work

RUN_SECONDS_MAX = 300.0
FETCHES = {Load.FETCH, Load.FETCH_VALUES}

Tell = Callable[[str], None]


@attrs.frozen(kw_only=True)
class Round:
    """The samples of one round, by system."""

    samples: Mapping[Load, Mapping[System, Sample]]
    standing: Mapping[System, Standing]
    import_trio_seconds: float


def measure(
    systems: Sequence[System], loads: Sequence[Load], scale: Scale, *, rounds: int, data: Path, tell: Tell
) -> list[Round]:
    """Runs every round. `tell` is called with each step; brokers keep their logs under `data`."""
    tell("first starts, not measured")
    for system in systems:
        with running(system, data):
            pass
    return [
        _measure_once(
            systems[:: 1 if number % 2 == 0 else -1],
            loads,
            scale,
            data=data,
            tell=lambda what, number=number: tell(f"round {number + 1} of {rounds}: {what}"),
        )
        for number in range(rounds)
    ]


def _measure_once(
    systems: Sequence[System], loads: Sequence[Load], scale: Scale, *, data: Path, tell: Tell
) -> Round:
    with ExitStack() as stack:
        tell("brokers")
        import_trio_seconds = seconds_to_import_trio(data)
        brokers = {system: stack.enter_context(running(system, data)) for system in systems}
        synced = dict(brokers)
        if Load.COMMITS_OF_TEN_SYNCED in loads and System.OURS in systems:
            synced[System.OURS] = stack.enter_context(running(System.OURS, data, sync="commit"))
        samples: dict[Load, dict[System, Sample]] = {}
        if FETCHES.intersection(loads):
            for system, broker in brokers.items():
                tell(f"records to fetch, {system.value}")
                _run(system, FILL, broker, scale, data)
        for load in loads:
            for system, broker in (synced if load is Load.COMMITS_OF_TEN_SYNCED else brokers).items():
                tell(f"{load.value}, {system.value}")
                sample = Sample(**json.loads(_run(system, load.value, broker, scale, data)))
                samples.setdefault(load, {})[system] = sample
        standing = {system: _standing(broker) for system, broker in brokers.items()}
    return Round(samples=samples, standing=standing, import_trio_seconds=import_trio_seconds)


def _run(system: System, load: str, broker: RunningBroker, scale: Scale, data: Path) -> str:
    """Runs one load in a process of its own and returns its output."""
    sizes = (str(scale.records), str(scale.transactions))
    command = [sys.executable, "-m", "benchmarks.load_rounds"]
    ended = subprocess.run(
        [*command, system.value, load, broker.address, str(broker.process_id), *sizes],
        stdout=subprocess.PIPE,
        env=environment(data),
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=True,
    )
    return ended.stdout


def _standing(broker: RunningBroker) -> Standing:
    return Standing(
        start_seconds=broker.start_seconds,
        ready_seconds=broker.ready_seconds,
        idle_bytes=broker.idle_bytes,
        peak_bytes=resident_bytes(broker.process_id, peak=True),
    )


# A process imports only the client that it uses, because the memory of the process is measured.
OUR_CLIENT, CONFLUENT_CLIENT = "benchmarks.fencepost_client", "benchmarks.confluent_client"
FILL = "fill"


def main(system: str, load: str, address: str, broker: str, records: str, transactions: str) -> None:
    """Runs one load and prints its sample."""
    client = import_module(OUR_CLIENT if System(system) is System.OURS else CONFLUENT_CLIENT)
    scale = Scale(records=int(records), transactions=int(transactions))
    if load == FILL:
        client.fill(address, scale)
        return
    with client.prepared(Load(load), address, scale) as work:
        sample = timed(work, scale.operations(Load(load)), broker_process_id=int(broker))
        print(json.dumps(attrs.asdict(sample)), flush=True)


def timed(work: Work, operations: int, *, broker_process_id: int) -> Sample:
    """Does the work and measures it; AssertionError if it was not completed."""
    gc.collect()
    broker_before, client_before = cpu_seconds(broker_process_id), time.process_time()
    begun = time.perf_counter()
    done = work()
    seconds = time.perf_counter() - begun
    client_cpu = time.process_time() - client_before
    broker_after = cpu_seconds(broker_process_id)
    each = done if isinstance(done, list) else []
    count = len(each) if isinstance(done, list) else done
    assert count == operations, f"{count} of {operations} operations were done"
    return Sample(
        operations=operations,
        seconds=seconds,
        client_cpu_seconds=client_cpu,
        broker_cpu_seconds=None
        if broker_before is None or broker_after is None
        else broker_after - broker_before,
        client_bytes=resident_bytes(os.getpid(), peak=True),
        median_seconds=median(each) if each else None,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
