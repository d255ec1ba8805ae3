"""Two processes of the application share a topic; one is killed in a transaction, and one is added.

Rule: nothing here knows what the processes do. What counts is what they wrote, which Spark reads afterwards.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final

import attrs

from fencepost import Admin, Broker, Consumer, Producer, TopicPartition
from fencepost.spark_bridge.session import session

PARTITIONS: Final = 4
RECORDS: Final = 4_000
BATCH: Final = 100
ROUND: Final = BATCH * PARTITIONS
PATIENCE_TURNS: Final = 300
PATIENCE_S: Final = 60.0  # a bound on a hang
GROUP: Final = "copiers"

IMPATIENT: Final = {
    "group.min.session.timeout.ms": 500,
    "group.initial.rebalance.delay.ms": 100,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
}


@attrs.frozen(kw_only=True)
class Told:
    """What the processes said, by name; how many partitions each member had at the end; and how many records
    are in `out`, those of aborted transactions included.
    """

    lines: dict[str, list[dict[str, Any]]]
    shares: list[int]
    uncommitted: int


class Copier:
    """A process of the application."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []
        self._unheard = SimpleQueue[dict[str, Any]]()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None, "its output is ours"
        for line in self.process.stdout:
            self._unheard.put(json.loads(line))

    def hear(self, word: str, silence_s: float) -> Any:
        """Listens until it says this word, and returns what it says with it; None if it is silent for so
        long.
        """
        with suppress(Empty):
            while True:
                self.lines.append(self._unheard.get(timeout=silence_s))
                if word in self.lines[-1]:
                    return self.lines[-1][word]
        return None

    def end(self) -> None:
        """Asks it to go, and hears the rest of what it has to say."""
        self.process.terminate()
        assert self.process.wait(PATIENCE_S) == 0, self.lines
        self._listener.join()
        while not self._unheard.empty():
            self.lines.append(self._unheard.get())


@contextmanager
def copier(address: str, name: str, hold_after: int | None = None) -> Generator[Copier]:
    command = [sys.executable, "-m", "tests.groups.copier", address, name]
    if hold_after is not None:
        command.append(str(hold_after))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Copier(process)
        finally:
            process.kill()


def produce(address: str, numbers: range) -> None:
    with Producer(address) as producer:
        for first in numbers[::BATCH]:
            batch = [b"%d" % number for number in range(first, first + BATCH)]
            producer.send_many("in", batch, partition=first // BATCH % PARTITIONS)
            producer.flush()  # a batch of its own


def produce_until(address: str, answer: Callable[[], int | None]) -> tuple[int, int]:
    """Produces a batch to each partition, again and again, until there is an answer: a process that is slow,
    or out of the group for a moment, finds too little at once. Leaves some numbers for later. How many
    numbers these were, and the answer.
    """
    for first in range(0, RECORDS - ROUND, ROUND):
        produce(address, range(first, first + ROUND))
        if (found := answer()) is not None:
            return first + ROUND, found
    raise AssertionError(f"no answer after {RECORDS - ROUND} numbers")


def wait_for_output(
    address: str, count: int, share: Callable[[], bool], isolation_level: str = "read_committed"
) -> int:
    """Reads until so many squares are there, and `share` is true; how many there are."""
    with Consumer(address, isolation_level=isolation_level) as consumer:
        consumer.assign([TopicPartition("out", number) for number in range(PARTITIONS)])
        seen = 0
        for _ in range(PATIENCE_TURNS):
            if seen >= count and share():
                return seen
            seen += sum(map(len, consumer.poll(100)))
    raise AssertionError(f"{seen} of {count} squares are there")


def run(directory: Path) -> Told:
    """The story, in a broker that keeps its logs in `directory`."""
    with (
        Broker(str(directory), override=IMPATIENT) as broker,
        Admin(broker.address) as admin,
        ExitStack() as stack,
    ):
        for topic in ("in", "out"):
            admin.create_topic(topic, PARTITIONS)

        def shares() -> list[int]:
            return sorted(len(member.partitions) for member in admin.describe_consumer_group(GROUP).members)

        a = stack.enter_context(copier(broker.address, "a", hold_after=3))
        b = stack.enter_context(copier(broker.address, "b"))
        wait_for_output(broker.address, 0, lambda: shares() == [2, 2])
        produced, held = produce_until(broker.address, lambda: a.hear("held", silence_s=1))
        a.process.kill()  # in the middle of a transaction: its output is in the logs, and must never count
        c = stack.enter_context(copier(broker.address, "c"))
        produce(broker.address, range(produced, RECORDS))
        wait_for_output(broker.address, RECORDS, lambda: shares() == [2, 2])
        shared = shares()
        uncommitted = wait_for_output(broker.address, RECORDS + held, lambda: True, "read_uncommitted")
        for process in (b, c):
            process.end()
        lines = {"a": a.lines, "b": b.lines, "c": c.lines}
        return Told(lines=lines, shares=shared, uncommitted=uncommitted)


@attrs.frozen(kw_only=True)
class Found:
    """What Spark finds in `out`, in records."""

    committed: int
    distinct: int
    wrong: int


def read_by_spark(directory: Path) -> Found:
    """Reads the broker's files, without the broker."""
    with session("groups", master="local[2]") as spark:
        out: Any = spark.read.format("fencepost").option("subscribe", "out").load(str(directory))
        columns = out.select("key", "value").toArrow().to_pydict()
    pairs = zip(columns["key"], columns["value"], strict=True)
    squares = [(int(key), int(value)) for key, value in pairs]
    return Found(
        committed=len(squares),
        distinct=len(set(squares)),
        wrong=sum(value != key**2 for key, value in squares),
    )
