"""`python -m tests.sweep`: kills, losses of power and damaged bytes in numbers that are too many for a test.

Rule: no machinery of its own. It runs the demonstration, the attack, the fuzzer and the flips of every byte,
each at length, adds up what they say, and prints one JSON object as the last line.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import attrs
import trio
from cyclopts import App, Parameter

from fencepost.spark_bridge.session import session
from tests.attack import kills
from tests.attack.playing import Run, play
from tests.attack.scene import Scene
from tests.broker import test_every_byte
from tests.cli.processes import COMMAND
from tests.groups import outages
from tests.spark import test_stream_in_spark as streams

FLIGHTS_PER_KILL = 50
SEEDS_AT_ONCE = 500  # between two lines of progress
BITS = range(8)

Part = Literal["demo", "kills", "groups", "power", "bytes", "streams"]
PARTS: tuple[Part, ...] = ("demo", "kills", "groups", "power", "bytes", "streams")

app = App(name="tests.sweep", help_format="plaintext")


@attrs.define
class Sweep:
    """What the parts add up to. It fails when there are `faults`."""

    seed: int
    facts: dict[str, Any] = attrs.Factory(dict[str, Any])
    faults: list[str] = attrs.Factory(list[str])
    began: float = attrs.Factory(time.monotonic)

    def tell(self, text: str) -> None:
        """A line of progress."""
        print(f"{time.monotonic() - self.began:7.1f} s  {text}", flush=True)

    def demo(self, count: int) -> None:
        """Kills of a pipeline's broker and workers at points of their progress; Spark reads the result."""
        for policy in kills.POLICIES:
            size = ("--flights", str(FLIGHTS_PER_KILL * count), "--kills", str(count))
            said = self._command("demo", *size, "--seed", str(self.seed), "--sync", policy)
            done = said["broker_kills"] + said["worker_kills"]
            keys = ("broker_kills", "worker_kills", "zombies", "lost", "duplicates", "wrong", "ok")
            self.facts[f"demo, sync {policy}"] = {key: said[key] for key in keys}
            self.facts["kills"] = self.facts.get("kills", 0) + done
            self.tell(f"demo, sync {policy}: {done} kills, {said['lost']} lost, {said['duplicates']} twice")
            self.faults += [f"demo, sync {policy}: {said}"] * (not said["ok"])

    def kills(self, count: int) -> None:
        """Kills of a broker and a transactional client at any moment; its records are read by two readers."""

        async def act(scene: Scene) -> None:
            await kills.kills(scene, count)

        for few in kills.ATTACKS:
            attack = attrs.evolve(few, act=act)
            with TemporaryDirectory(prefix="fencepost-sweep-") as directory:
                run = Run(seed=self.seed, is_quick=True, judges_time=False, directory=Path(directory))
                (row,) = trio.run(play, [attack], run)
            self.facts[attack.name] = {**row.figures, "transactions": row.transactions}
            self.facts["kills"] = self.facts.get("kills", 0) + count
            self.tell(f"{attack.name}: {row.figures}, {row.transactions} transactions, {row.verdict}")
            self.faults += [f"{attack.name}: {fault}" for fault in row.faults]

    def groups(self, count: int) -> None:
        """Kills, frozen processes and faults under a consumer group that copies in transactions."""
        with TemporaryDirectory(prefix="fencepost-sweep-") as name:
            outcome = outages.run(Path(name), Random(self.seed), count)
        self.facts["group"] = attrs.asdict(outcome)
        self.tell(f"group: {outcome.outages}, {outcome.lost} lost, {outcome.twice} twice")
        is_wrong = bool(outcome.lost or outcome.twice or outcome.wrong)
        self.faults += [f"group: {outcome}"] * is_wrong

    def power(self, seeds: int) -> None:
        """Simulated clusters whose nodes lose power; the first seed is a multiple of the number of them."""
        total: Counter[str] = Counter()
        first = self.seed * seeds
        for start in range(first, first + seeds, SEEDS_AT_ONCE):
            count = min(SEEDS_AT_ONCE, first + seeds - start)
            place = ("--first-seed", str(start), "--seeds", str(count), "--keep-going")
            said = self._command("fuzz", "--workload", "power", *place)
            total.update({key: said[key] for key in ("seeds", "violations", "transactions")})
            total["seeds in which power was lost"] += said["reached"].get("fault: power loss", 0)
            self.tell(f"power: {total['seeds']:,} seeds, {total['violations']} violations")
            self.faults += [f"power: seed {found['seed']}: {found['rule']}" for found in said["found"]]
        self.facts["power"] = dict(total)

    def bytes(self) -> None:
        """Each bit of each byte of a small directory flipped, and each file removed."""
        flipped: Counter[str] = Counter()
        for bit in BITS:
            flipped += self._judged(test_every_byte.flips(lambda bit=bit: bit), f"bit {bit} of ")
            self.tell(f"bytes: {bit + 1} bits of each, {dict(flipped)}")
        removed = self._judged(test_every_byte.removals(), "removed: ")
        self.tell(f"files removed: {dict(removed)}")
        self.facts["bits flipped"] = {"wrong": 0, **flipped}
        self.facts["files removed"] = {"wrong": 0, "silent": 0, **removed}

    def streams(self, of_processes: int, of_jobs: int) -> None:
        """Kills of a streaming job that writes Parquet: of Spark's Python processes, and of the whole job."""
        for what, outlive, count in (
            ("processes of a stream", streams.outlive_kills_of_processes, of_processes),
            ("a whole streaming job", streams.outlive_kills_of_the_job, of_jobs),
        ):
            with TemporaryDirectory(prefix="fencepost-sweep-") as name, session("sweep") as spark:
                live = streams.LiveLog(Path(name) / "data")
                job = streams.Job(live, Path(name))
                outlive(spark, live, job, Random(self.seed), kills=count)
                written, expected = job.written(spark), live.visible()
                live.close()
            lost, twice = len(set(expected) - set(written)), len(written) - len(set(written))
            self.facts[f"kills of {what}"] = {
                "kills": count,
                "rows": len(expected),
                "lost": lost,
                "twice": twice,
            }
            self.tell(f"kills of {what}: {count}, {len(expected):,} rows, {lost} lost, {twice} twice")
            self.faults += [f"kills of {what}: the rows differ"] * (written != expected)

    def _judged(self, cases: Iterator[tuple[str, str]], what: str) -> Counter[str]:
        counts: Counter[str] = Counter()
        for place, found in cases:
            counts[found] += 1
            self.faults += [f"{what}{place}: {found}"] * (found in ("wrong", "silent"))
        return counts

    def _command(self, *arguments: str) -> dict[str, Any]:
        """What a command says at its end; its exit code is judged by what it says."""
        done = subprocess.run([*COMMAND, *arguments, "--json"], capture_output=True, text=True)
        try:
            said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        except (IndexError, ValueError):
            raise SystemExit(f"fencepost {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}") from None
        return said


@app.default
def sweep(
    *,
    seed: int = 1,
    demo_kills: int = 60,
    random_kills: int = 45,
    group_outages: int = 90,
    seeds: int = 10_000,
    stream_kills: int = 20,
    only: Annotated[tuple[Part, ...], Parameter(negative="")] = PARTS,
) -> int:
    """Run everything at length: at least 300 kills, 10,000 seeds with power loss, every bit of a directory.

    Parameters
    ----------
    seed
        Seed for all random decisions.
    demo_kills
        Kills of the demonstration under each sync policy.
    random_kills
        Kills of a broker and its client at any moment, under each sync policy.
    group_outages
        Kills, frozen processes and faults under a consumer group.
    seeds
        Simulated clusters that lose power.
    stream_kills
        Kills of a streaming job on Spark, a tenth of them of the whole job.
    only
        Parts to run. Repeatable.
    """
    done = Sweep(seed)
    parts: dict[Part, Callable[[], None]] = {
        "demo": lambda: done.demo(demo_kills),
        "kills": lambda: done.kills(random_kills),
        "groups": lambda: done.groups(group_outages),
        "power": lambda: done.power(seeds),
        "bytes": done.bytes,
        "streams": lambda: done.streams(stream_kills - stream_kills // 10, stream_kills // 10),
    }
    for part in only:
        parts[part]()
    print(*done.faults, sep="\n", end="\n" if done.faults else "")
    seconds = round(time.monotonic() - done.began, 1)
    print(json.dumps({"ok": not done.faults, "seed": seed, **done.facts, "seconds": seconds}))
    return int(bool(done.faults))


if __name__ == "__main__":
    sys.exit(app())
