"""Three processes of the application share a topic, while they and the broker are killed, frozen or struck
by faults.

Rule: what happens next depends on chance and on how much was copied, never on the time. What counts is what
the processes wrote.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import IO, Final

import attrs

from fencepost import Admin, BrokerProcess, Consumer, Record, TopicPartition
from tests.groups.story import BATCH, IMPATIENT, PARTITIONS, PATIENCE_TURNS, produce
from tests.reading import records

NAMES: Final = ("a", "b", "c")
BATCHES_PER_OUTAGE: Final = 4
BATCHES_BETWEEN_MAX: Final = 6
FROZEN_OUTAGES_MAX: Final = 3  # a process is frozen while so many others happen
KINDS: Final = {"faults": 4, "kills of a process": 2, "frozen processes": 2, "kills of the broker": 1}
REQUESTS: Final = (
    "InitProducerId",
    "Produce",
    "TxnOffsetCommit",
    "EndTxn",
    "JoinGroup",
    "SyncGroup",
    "Heartbeat",
    "FindCoordinator",
    "OffsetFetch",
    "Metadata",
)
STRIKES: Final = (
    "when * sends {request} do drop",
    "when broker sends {request} reply to * do drop",
    "when * sends {request} do close the connection",
    "when * sends {request} do deliver twice",
    "when * sends {request} do delay until after {ms} ms",
    "when broker sends {request} reply to * do hold until after {ms} ms",
    "when * sends {request} do pause broker until after {ms} ms",
    "when * sends {request} do clock of broker +{s} s",
    "when * sends {request} do clock of broker -{s} s",
    "when before {part} appends COMMIT marker do fail appends of {part} until after {ms} ms",
    "when before {part} appends data do fail appends of {part} until after {ms} ms",
)
_OUT: Final = [TopicPartition("out", number) for number in range(PARTITIONS)]


@attrs.frozen(kw_only=True)
class Outcome:
    """What happened; how many numbers were in `in`, and how many of them have no square in `out`, several, or
    a wrong one.
    """

    outages: dict[str, int]
    numbers: int
    lost: int
    twice: int
    wrong: int


def run(directory: Path, chance: Random, count: int) -> Outcome:
    """So many outages, each after some progress."""
    numbers = count * BATCHES_PER_OUTAGE * BATCH
    with (
        BrokerProcess(directory / "data", override=IMPATIENT) as broker,
        Admin(broker.address) as admin,
        open(directory / "errors", "ab") as errors,
        Consumer(broker.address) as reader,
    ):
        for topic in ("in", "out"):
            admin.create_topic(topic, PARTITIONS)
        produce(broker.address, range(numbers))
        reader.assign(_OUT)
        with Processes(broker.address, errors).running() as processes:
            outages = Outages(broker, processes, chance)
            progress = Progress(reader, processes)
            for _ in range(count):
                progress.advance(chance.randint(1, BATCHES_BETWEEN_MAX) * BATCH, numbers)
                outages.begin_one()
            processes.thaw()
            progress.advance(numbers, numbers)
        broker.faults.clear()
        return judged(records(broker.address, _OUT), numbers, dict(outages.counts))


def judged(found: Iterable[Record], numbers: int, outages: dict[str, int]) -> Outcome:
    """Counts what is missing, there twice, or wrong."""
    squares = [(int(record.key or b""), int(record.value or b"")) for record in found]
    times = Counter(number for number, _ in squares)
    return Outcome(
        outages=outages,
        numbers=numbers,
        lost=sum(number not in times for number in range(numbers)),
        twice=sum(count > 1 for count in times.values()),
        wrong=sum(square != number**2 for number, square in squares),
    )


@attrs.define
class Processes:
    """The application. A process that ends is started again, as a supervisor would; at most one is frozen."""

    address: str
    errors: IO[bytes]
    by_name: dict[str, subprocess.Popen[bytes]] = attrs.Factory(dict[str, "subprocess.Popen[bytes]"])
    frozen: str = ""

    @contextmanager
    def running(self) -> Generator[Processes]:
        try:
            for name in NAMES:
                self._start(name)
            yield self
        finally:
            for name in self.by_name:
                self.kill(name)

    def _start(self, name: str) -> None:
        command = [sys.executable, "-m", "tests.groups.copier", self.address, name]
        self.by_name[name] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=self.errors)

    def supervise(self) -> None:
        """Starts what has ended, after an error that the application cannot handle, or by a kill."""
        for name, process in self.by_name.items():
            if process.poll() is not None:
                self._start(name)

    def kill(self, name: str) -> None:
        self.by_name[name].kill()
        self.by_name[name].wait()
        self.frozen = "" if name == self.frozen else self.frozen

    def freeze(self, name: str) -> None:
        self.thaw()
        self.by_name[name].send_signal(signal.SIGSTOP)
        self.frozen = name

    def thaw(self) -> None:
        """Lets the frozen process go on: it knows nothing of what happened meanwhile."""
        if self.frozen:
            self.by_name[self.frozen].send_signal(signal.SIGCONT)
        self.frozen = ""


@attrs.define
class Progress:
    """The numbers whose squares a read_committed reader has seen."""

    reader: Consumer
    processes: Processes
    seen: set[bytes | None] = attrs.Factory(set[bytes | None])

    def advance(self, more: int, last: int) -> None:
        """Waits until so many more are there, or the last one. Raises AssertionError if nothing moves."""
        wanted, quiet = min(len(self.seen) + more, last), 0
        while len(self.seen) < wanted:
            batches = self.reader.poll(100)
            self.seen.update(record.key for batch in batches for record in batch)
            quiet = 0 if batches else quiet + 1
            assert quiet < PATIENCE_TURNS, f"only {len(self.seen)} of {last} squares are there"
            self.processes.supervise()


@attrs.define
class Outages:
    """Begins one outage after the other. `counts`: how many of each kind."""

    broker: BrokerProcess
    processes: Processes
    chance: Random
    counts: Counter[str] = attrs.Factory(Counter[str])
    frozen_for: int = 0
    _next: list[str] = attrs.Factory(list[str])

    def begin_one(self) -> None:
        """The next one. Of each nine, all kinds are there."""
        if not self._next:
            self._next = self.chance.sample(list(KINDS), counts=KINDS.values(), k=sum(KINDS.values()))
        kind = self._next.pop()
        self.counts[kind] += 1
        match kind:
            case "faults":
                self._strike()
            case "kills of a process":
                self.processes.kill(self.chance.choice(NAMES))
            case "frozen processes":
                self.processes.freeze(self.chance.choice(NAMES))
                self.frozen_for = self.chance.randint(1, FROZEN_OUTAGES_MAX)
            case _:  # "kills of the broker"
                self.broker.kill()
                self.broker.start()
        if kind != "frozen processes":
            self.frozen_for -= 1
        if self.frozen_for == 0:
            self.processes.thaw()

    def _strike(self) -> None:
        blanks = {
            "request": self.chance.choice(REQUESTS),
            "part": self.chance.choice(_OUT),
            "ms": self.chance.randint(50, 3_000),
            "s": self.chance.randint(1, 4),
        }
        self.broker.faults.add(self.chance.choice(STRIKES).format(**blanks))
