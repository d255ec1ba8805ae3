"""What slows a broker down: partitions, the size of batches, open and aborted transactions,
transactional ids, connections. `python -m benchmarks --only growth`.

Batches and connections are measured on a broker process, all else on a broker without sockets, on a
directory: its cores do what grows. Each row ends after its count of operations or after a fixed time,
whichever comes first, so a row that does not scale shows a small rate and not a long wait.

Rule: one thing grows at a time. A row is compared with the first one of its table.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import attrs

from benchmarks.brokers import System, running
from benchmarks.loads import VALUES
from benchmarks.partitions import connected
from benchmarks.report import Grid
from benchmarks.restarts import Broker, identity
from fencepost import Admin, Producer
from fencepost.protocol import messages as m
from fencepost.protocol.records import build_data_batch
from fencepost.protocol.terms import NO_TOPIC_ID, CoordinatorType, IsolationLevel, TransactionResult

TOPIC: Final = "grown"
COMMITS: Final = 1_000  # of a row, unless the time is over before
RECORDS: Final = 100_000
FETCHES: Final = 5_000
SECONDS_MAX: Final = 20.0  # for making what a row is about, and again for measuring it
READ_BEHIND: Final = 20  # offsets, which every row of aborted transactions has
TIMEOUT_MS: Final = 900_000  # longer than a row takes: each request moves the clock by a millisecond


@attrs.frozen(kw_only=True)
class Grown:
    """A row: so much of `what` was there, and so many operations took so long."""

    what: str
    wanted: int
    made: int
    """Less than wanted if it could not be made in the time."""
    unit: str
    operations: int
    seconds: float

    @property
    def rate(self) -> float:
        """Operations per second."""
        return self.operations / self.seconds


def measured_growth(*, quick: bool, seconds_max: float = SECONDS_MAX) -> list[Grown]:
    """Every row, up to the first count of a table that cannot be made in the time. Quickly: two of each."""
    rows: list[Grown] = []
    for what, counts, unit, measure in TABLES:
        for count in counts[:2] if quick else counts:
            made, (operations, seconds) = measure(count, seconds_max)
            row = Grown(what=what, wanted=count, made=made, unit=unit, operations=operations, seconds=seconds)
            rows.append(row)
            if row.made < row.wanted:
                break  # with more there would be no more
    return rows


Timed = tuple[int, float]
"""The number of operations, and the seconds that they took."""


def _timed(work: Iterator[Any], most: int, seconds_max: float) -> Timed:
    """Does at most so many operations."""
    began = time.perf_counter()
    done = 0
    for _ in work:
        done += 1
        if done == most or time.perf_counter() - began > seconds_max:
            break
    return done, time.perf_counter() - began


# --- the cores alone ----------------------------------------------------------------------------------------


class Cores:
    """A broker without sockets, whose data is in a directory of its own."""

    def __init__(self, directory: Path, *, partitions: int = 1) -> None:
        self.broker = Broker(directory)
        self.broker.start()
        created = m.CreateTopic(topic=TOPIC, partition_count=partitions)
        self.broker.ask(m.CreateTopics(topics=(created,)))
        self.broker.ask(m.FindCoordinator(kind=CoordinatorType.TRANSACTION, key="anybody"))
        self.identities: dict[str, tuple[int, int]] = {}

    def produce(self, name: str, partition: int = 0) -> None:
        """A batch of one record, which opens the transaction of this id."""
        if name not in self.identities:
            self.identities[name] = identity(self.broker, name, timeout_ms=TIMEOUT_MS)
        producer_id, epoch = self.identities[name]
        records = build_data_batch(
            VALUES[:1],
            base_timestamp=self.broker.now,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=0,
            transactional=True,
        )
        part = m.ProducePartition(topic=TOPIC, topic_id=NO_TOPIC_ID, partition=partition, records=records)
        request = m.Produce(transactional_id=name, acks=-1, timeout_ms=1_000, partitions=(part,))
        (stored,) = self.broker.ask(request).partitions
        assert not stored.error, stored

    def end(self, name: str, result: TransactionResult = TransactionResult.COMMIT) -> None:
        """End the transaction of this id."""
        producer_id, epoch = self.identities[name]
        request = m.EndTxn(
            transactional_id=name, producer_id=producer_id, producer_epoch=epoch, result=result
        )
        ended = self.broker.ask(request)
        self.identities[name] = (ended.producer_id, ended.producer_epoch)

    def commits(self, names: Sequence[str], partitions: int = 1) -> Iterator[None]:
        """One transaction after the other, of each id and each partition in turn, forever."""
        for number, name in enumerate(cycle(names)):
            self.produce(name, number % partitions)
            self.end(name)
            yield

    def opened(self, count: int) -> Iterator[None]:
        """Transactions that stay open."""
        for number in range(count):
            self.produce(f"open-{number}")
            yield

    def aborted(self, count: int) -> Iterator[None]:
        """Transactions that are aborted, of a hundred ids in turn."""
        for number in range(count):
            name = f"aborting-{number % 100}"
            self.produce(name)
            self.end(name, TransactionResult.ABORT)
            yield

    def owned(self, count: int) -> Iterator[None]:
        """Transactional ids with an owner and a committed transaction."""
        for number in range(count):
            self.produce(f"id-{number}")
            self.end(f"id-{number}")
            yield

    def fetches(self) -> Iterator[None]:
        """Reads of the last committed records at read_committed, with the list of aborted transactions."""
        log_end = self.broker.host.node.logs[m.TopicPartition(TOPIC, 0)].partition.log_end_offset
        part = m.FetchPartition(
            topic=TOPIC,
            partition=0,
            fetch_offset=max(0, log_end - READ_BEHIND),
            max_bytes=1 << 20,
            current_leader_epoch=-1,
        )
        request = m.Fetch(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            isolation_level=IsolationLevel.READ_COMMITTED,
            partitions=(part,),
        )
        while True:
            self.broker.ask(request)
            yield


def _with_cores(
    grow: Callable[[Cores, int], Iterator[None]],
    work: Callable[[Cores], Iterator[None]],
    operations: int = COMMITS,
) -> Callable[[int, float], tuple[int, Timed]]:
    def measure(count: int, seconds_max: float) -> tuple[int, Timed]:
        with TemporaryDirectory(prefix="fencepost-growth-") as directory:
            cores = Cores(Path(directory))
            made, _ = _timed(grow(cores, count), count, seconds_max)
            return made, _timed(work(cores), operations, seconds_max)

    return measure


def _with_partitions(count: int, seconds_max: float) -> tuple[int, Timed]:
    with TemporaryDirectory(prefix="fencepost-growth-") as directory:
        cores = Cores(Path(directory), partitions=count)
        # The first batch of a partition creates its files. That is the cost of a topic, not of a commit.
        made, _ = _timed(cores.commits(["one"], count), count, seconds_max)
        return made, _timed(cores.commits(["one"], count), COMMITS, seconds_max)


# --- a broker process ---------------------------------------------------------------------------------------


def _with_batches_of(count: int, seconds_max: float) -> tuple[int, Timed]:
    """Records per second in batches of `count` records."""
    with TemporaryDirectory(prefix="fencepost-growth-") as data, running(System.OURS, Path(data)) as broker:
        with Admin(broker.address) as admin:
            admin.create_topic(TOPIC, 1)
        values = [VALUES[number % len(VALUES)] for number in range(count)]
        with Producer(broker.address, linger_ms=0, batch_size=count * 200) as producer:
            producer.send(TOPIC, VALUES[0], partition=0).result()

            def batches() -> Iterator[None]:
                while True:
                    producer.send_many(TOPIC, values, partition=0)
                    producer.flush()
                    yield

            done, seconds = _timed(batches(), max(1, RECORDS // count), seconds_max)
            return count, (done * count, seconds)


def _with_connections(count: int, seconds_max: float) -> tuple[int, Timed]:
    """Commits per second beside idle connections."""
    with TemporaryDirectory(prefix="fencepost-growth-") as data, running(System.OURS, Path(data)) as broker:
        with Admin(broker.address) as admin:
            admin.create_topic(TOPIC, 1)
        with connected(broker.address, count), Producer(broker.address, transactional_id="one") as producer:
            producer.init_transactions()

            def commits() -> Iterator[None]:
                while True:
                    producer.begin_transaction()
                    producer.send(TOPIC, VALUES[0])
                    producer.commit_transaction()
                    yield

            return count, _timed(commits(), COMMITS, seconds_max)


Measure = Callable[[int, float], tuple[int, Timed]]

TABLES: Final[Sequence[tuple[str, Sequence[int], str, Measure]]] = (
    ("partitions", (1, 10, 100, 1_000), "commits/s", _with_partitions),
    ("records in a batch", (1, 10, 100, 1_000, 10_000), "records/s", _with_batches_of),
    (
        "open transactions",
        (10, 100, 1_000, 10_000, 100_000, 1_000_000),
        "commits/s",
        _with_cores(Cores.opened, lambda cores: cores.commits(["one"])),
    ),
    (
        "aborted transactions",
        (10, 100, 1_000, 10_000, 100_000, 1_000_000),
        "fetches/s",
        _with_cores(Cores.aborted, Cores.fetches, FETCHES),
    ),
    (
        "transactional ids",
        (10, 100, 1_000, 10_000, 100_000),
        "commits/s",
        _with_cores(Cores.owned, lambda cores: cores.commits(["id-0"])),
    ),
    ("connections", (1, 10, 100, 1_000), "commits/s", _with_connections),
)
"""What grows, the counts, the unit, and how a row is measured."""


def growth_grids(rows: Sequence[Grown]) -> list[Grid]:
    """A table for each thing that grows."""
    grids: list[Grid] = []
    for what, _, unit, _ in TABLES:
        of_it = [row for row in rows if row.what == what]
        first = of_it[0].rate
        cells = [[_count(row), f"{row.rate:,.0f}", f"{row.rate / first:.2f}×"] for row in of_it]
        grids.append(Grid(f"With more {what}", columns=(what, unit, "relative to the first"), rows=cells))
    return grids


def _count(row: Grown) -> str:
    return f"{row.made:,}" if row.made == row.wanted else f"{row.made:,} (of {row.wanted:,}, in the time)"


def growth_as_json(rows: Sequence[Grown]) -> list[dict[str, Any]]:
    """The rows for programs."""
    return [{**attrs.asdict(row), "rate": row.rate} for row in rows]


def growth_conditions(rows: Sequence[Grown], *, seconds_max: float = SECONDS_MAX) -> str:
    """The conditions of the measurement, in one sentence."""
    return (
        f"{len(rows)} rows, one run each · at most {seconds_max:.0f} s to prepare each and "
        f"{seconds_max:.0f} s to measure it · {os.cpu_count()} CPUs, {sys.platform}, "
        f"Python {platform.python_version()}"
    )
