"""Rounds: in each one every system gets a fresh broker, and each load runs on all of them in turn.

Rule: who goes first changes with every round, so that what the machine does meanwhile meets both.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import attrs

from benchmarks.loads import Load, Sample, Scale, Standing
from benchmarks.one_run import FILL
from benchmarks.processes import resident_bytes
from benchmarks.systems import RunningBroker, System, environment, running, seconds_to_import_trio

RUN_SECONDS_MAX = 300.0
FETCHES = {Load.FETCH, Load.FETCH_VALUES}

Tell = Callable[[str], None]


@attrs.frozen(kw_only=True)
class Round:
    """What one round gave, by system."""

    samples: Mapping[Load, Mapping[System, Sample]]
    standing: Mapping[System, Standing]
    import_trio_seconds: float


def measure(
    systems: Sequence[System], loads: Sequence[Load], scale: Scale, *, rounds: int, data: Path, tell: Tell
) -> list[Round]:
    """Runs every round. `tell` hears what is being done; logs lie under `data` while their broker runs."""
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
        samples: dict[Load, dict[System, Sample]] = {}
        if FETCHES.intersection(loads):
            for system, broker in brokers.items():
                tell(f"records to fetch, {system.value}")
                _run(system, FILL, broker, scale, data)
        for load in loads:
            for system, broker in brokers.items():
                tell(f"{load.value}, {system.value}")
                sample = Sample(**json.loads(_run(system, load.value, broker, scale, data)))
                samples.setdefault(load, {})[system] = sample
        standing = {system: _standing(broker) for system, broker in brokers.items()}
    return Round(samples=samples, standing=standing, import_trio_seconds=import_trio_seconds)


def _run(system: System, load: str, broker: RunningBroker, scale: Scale, data: Path) -> str:
    """What one load in a process of its own printed."""
    sizes = (str(scale.records), str(scale.transactions))
    command = [sys.executable, "-m", "benchmarks.one_run"]
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
        idle_bytes=broker.idle_bytes,
        peak_bytes=resident_bytes(broker.process_id, peak=True),
    )
