"""The canary: an ordinary client that writes transactions and reads them back, and says what it was told.

`python -m tests.attack.canary_process TASK` writes JSON lines to stdout, until a line or the end of stdin.
Every fourth transaction is aborted. Each waits for its answers in turn and then for its own records.
"""

from __future__ import annotations

import json
import sys
from itertools import count
from threading import Event, Thread
from time import monotonic
from typing import Any

import attrs

from fencepost import (
    ClientError,
    CommitOutcomeUnknown,
    Consumer,
    Producer,
    RequestTimeout,
    TopicPartition,
    TransactionAborted,
)
from tests.attack.ledger import PARTITIONS, RECORDS, value_of

TOPIC = "canary"
TRANSACTIONAL_ID = "canary"
ABORT_EVERY = 4
PAUSE_MS = 30  # between two transactions: a client beside others, not a load
POLL_MS = 100
LAST_POLLS = 100


@attrs.frozen(kw_only=True)
class Task:
    """Where the broker is, which transaction comes first, and where each partition is read on."""

    address: str
    first: int
    positions: dict[int, int]
    client_settings: dict[str, Any] = attrs.Factory(dict[str, Any])
    isolation_level: str = "read_committed"
    aborts: bool = True

    def to_json(self) -> str:
        """As a command-line argument."""
        return json.dumps(attrs.asdict(self))

    @staticmethod
    def from_json(text: str) -> Task:
        """The argument."""
        fields = json.loads(text)
        positions = {int(partition): offset for partition, offset in fields.pop("positions").items()}
        return Task(positions=positions, **fields)


def say(**facts: Any) -> None:
    """One line to the parent."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def read(consumer: Consumer, timeout_ms: int) -> set[str]:
    """What one poll brings; the parent gets it with the new positions."""
    batches = consumer.poll(timeout_ms)
    told = [
        (batch.partition.partition, batch.next_offset, [value.decode() for value in batch.values])
        for batch in batches
    ]
    if told:
        say(read=told)
    return {value for _, _, values in told for value in values}


class Stopwatch:
    """How long each answer took, in milliseconds."""

    def __init__(self) -> None:
        self.laps: list[float] = []
        self._began = monotonic()

    def lap(self) -> None:
        """An answer is there; the next one is waited for from now on."""
        now = monotonic()
        self.laps.append(round((now - self._began) * 1_000, 3))
        self._began = now


def write(producer: Producer, number: int, *, aborts: bool) -> list[float] | None:
    """One transaction; how long its answers took, or None if it has no records to wait for."""
    producer.begin_transaction()
    say(began=number)
    watch = Stopwatch()
    for partition, index in RECORDS:
        producer.send(TOPIC, value_of(number, index).encode(), partition=partition)
    producer.flush()
    watch.lap()
    if aborts and number % ABORT_EVERY == 0:
        producer.abort_transaction()
        watch.lap()
        say(aborted=number, ms=watch.laps)
        return None
    try:
        producer.commit_transaction()
    except TransactionAborted as problem:
        producer.abort_transaction()
        say(aborted=number, because=str(problem), ms=watch.laps)
        return None
    watch.lap()
    say(committed=number, ms=watch.laps)
    return watch.laps


def wait_for(consumer: Consumer, number: int, stopping: Event) -> None:
    """Reads until the records of a committed transaction are there; not forever once it has to stop."""
    watch = Stopwatch()
    missing = {value_of(number, index) for _, index in RECORDS}
    polls_left = LAST_POLLS
    while missing and polls_left:
        missing -= read(consumer, POLL_MS)
        polls_left -= stopping.is_set()
    watch.lap()
    say(ms=watch.laps)


def work(task: Task, consumer: Consumer, first: int, stopping: Event) -> int:
    """Transactions of one producer, until it cannot go on; the number of the next one."""
    with Producer(
        task.address, transactional_id=TRANSACTIONAL_ID, transaction_timeout_ms=10_000, **task.client_settings
    ) as producer:
        initialised = False
        while not initialised and not stopping.is_set():
            try:
                producer.init_transactions()
                initialised = True
            except RequestTimeout as problem:
                say(trouble=str(problem))
        for number in count(first):
            if stopping.is_set():
                return number
            try:
                if write(producer, number, aborts=task.aborts) is not None:
                    wait_for(consumer, number, stopping)
            except CommitOutcomeUnknown as problem:
                say(unknown=number, because=str(problem))
                return number + 1
            read(consumer, PAUSE_MS)
    raise AssertionError("count() has no end")


def run(task: Task) -> None:
    """Producers one after the other, and one reader, until a line or the end of stdin."""
    stopping = Event()

    def listen() -> None:
        sys.stdin.readline()
        stopping.set()

    Thread(target=listen, daemon=True).start()
    with Consumer(task.address, isolation_level=task.isolation_level, **task.client_settings) as consumer:
        places = {partition: TopicPartition(TOPIC, partition) for partition in PARTITIONS}
        consumer.assign(list(places.values()))
        for partition, offset in task.positions.items():
            consumer.seek(places[partition], offset)
        number = task.first
        while not stopping.is_set():
            number = work(task, consumer, number, stopping)


def main() -> None:
    """The process: exit code 1, and why, when an ordinary client would have to be restarted by a person."""
    try:
        run(Task.from_json(sys.argv[1]))
    except ClientError as problem:
        say(failed=f"{type(problem).__name__}: {problem}")
        sys.exit(1)


if __name__ == "__main__":
    main()
