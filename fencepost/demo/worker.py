"""The worker: consumes, transforms and produces, in transactions that include its input offsets.

Rule: it may be killed at any point, so it keeps only state that it can read back: input positions from its
group, totals from the topic that it writes.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import attrs

from fencepost.client.errors import CommitOutcomeUnknown, ProducerFailed, ProducerFenced, TransactionAborted
from fencepost.client.shells.sync import Admin, Consumer, Producer
from fencepost.demo.plan import (
    DELAYS,
    FENCED,
    FLIGHTS,
    GROUP,
    PARTITION_COUNT,
    PRODUCER_FAILED,
    TOTALS,
    TRANSACTIONAL_ID,
    WorkerPoint,
    WorkerTask,
    is_aborted_on_purpose,
    say,
    wait_for_word,
)
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import TopicPartition

if TYPE_CHECKING:
    from fencepost.client.consumer_records import ConsumedBatch


Totals = dict[str, dict[str, int]]


class Output(NamedTuple):
    """The output of one transaction: columns for `delays`, and the changed totals by carrier."""

    keys: list[bytes]
    values: list[bytes]
    totals: Totals


def transform(values: Iterable[bytes], totals: Mapping[str, Mapping[str, int]]) -> Output:
    """Returns one record per flight, keyed by destination, and new totals for its carriers."""
    keys: list[bytes] = []
    records: list[bytes] = []
    changed: Totals = {}
    for value in values:
        flight = json.loads(value)
        carrier = flight["carrier"]
        if carrier not in changed:
            changed[carrier] = dict(
                totals.get(carrier) or {"flights": 0, "cancelled": 0, "diverted": 0, "minutes": 0}
            )
        delay, status = judge(flight["departed_late"], flight["arrived_late"])
        total = changed[carrier]
        total["flights"] += 1
        if delay is None:
            total[status] += 1
        else:
            total["minutes"] += delay
        keys.append(flight["to"].encode())
        record = {
            "id": flight["id"],
            "carrier": carrier,
            "to": flight["to"],
            "status": status,
            "delay": delay,
        }
        records.append(json.dumps(record, separators=(",", ":")).encode())
    return Output(keys, records, changed)


def judge(departed_late: int | None, arrived_late: int | None) -> tuple[int | None, str]:
    """Returns (delay on arrival or None, status): no departure means cancelled, no arrival means diverted."""
    if departed_late is None:
        return None, "cancelled"
    if arrived_late is None:
        return None, "diverted"
    return arrived_late, "late" if arrived_late > 0 else "on time"


POLL_MS = 500


@attrs.frozen
class InputChunk:
    """The input of one transaction: values, and for each partition the offset after the last value."""

    values: list[bytes]
    offsets: dict[TopicPartition, int] = attrs.field(kw_only=True)


class InputReader:
    """Reads up to fixed end offsets; the rest of a batch is kept for the next chunk."""

    def __init__(self, consumer: Consumer, ends: dict[TopicPartition, int]) -> None:
        self._consumer = consumer
        self._ends = ends
        self._waiting: deque[tuple[ConsumedBatch, int]] = deque()

    def take(self, count: int) -> InputChunk:
        """Returns the next `count` records, fewer at the end, none after it."""
        values: list[bytes] = []
        offsets: dict[TopicPartition, int] = {}
        while len(values) < count and self._more():
            batch, start = self._waiting.popleft()
            stop = min(len(batch), start + count - len(values))
            values += batch.values[start:stop]
            if stop < len(batch):
                offsets[batch.partition] = batch.offsets[stop]
                self._waiting.appendleft((batch, stop))
            else:
                offsets[batch.partition] = batch.next_offset
        return InputChunk(values, offsets=offsets)

    def _more(self) -> bool:
        while not self._waiting:
            if all(self._consumer.position(partition) >= end for partition, end in self._ends.items()):
                return False
            self._waiting.extend((batch, 0) for batch in self._consumer.poll(POLL_MS))
        return True


def partitions_of(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(PARTITION_COUNT)]


class Worker:
    """One run of a worker process."""

    def __init__(self, task: WorkerTask, *, producer: Producer, intake: InputReader, totals: Totals) -> None:
        self._task = task
        self._producer = producer
        self._intake = intake
        self._totals = totals
        self._pauses = deque(task.pauses)
        self._rounds = count(1)
        self._round = 0
        self._last_round: int | None = None

    def work(self) -> None:
        """Runs rounds until the end of the input."""
        while (portion := self._intake.take(self._task.records_per_transaction)).values:
            output = transform(portion.values, self._totals)
            attempt = 0
            while not self._round_commits(portion, output, attempt):
                attempt += 1
            self._totals.update(output.totals)
            if self._last_round is not None and self._round >= self._last_round:
                return

    def _round_commits(self, portion: InputChunk, output: Output, attempt: int) -> bool:
        """Runs one transaction; False if it was aborted and must be retried."""
        self._round = next(self._rounds)
        self._reach(WorkerPoint.READ)
        self._producer.begin_transaction()
        self._reach(WorkerPoint.BEGUN)
        try:
            self._write(output)
            self._reach(WorkerPoint.PRODUCED)
            self._producer.send_offsets_to_transaction(portion.offsets, GROUP)
            self._reach(WorkerPoint.OFFSETS)
            ends = tuple(portion.offsets.values())
            on_purpose = is_aborted_on_purpose(
                self._task.seed, ends, share=self._task.abort_share, attempt=attempt
            )
            if on_purpose:
                self._producer.flush()  # the records must be in the log, for read_committed to skip them
            else:
                self._producer.commit_transaction()
        except TransactionAborted:
            on_purpose = False
        else:
            if not on_purpose:
                say("committed", round=self._round, flights=len(portion.values))
                self._reach(WorkerPoint.COMMITTED)
                return True
        self._producer.abort_transaction()
        say("aborted", round=self._round, on_purpose=on_purpose)
        return False

    def _write(self, output: Output) -> None:
        half = len(output.values) // 2
        for index, (key, value) in enumerate(zip(output.keys, output.values, strict=True)):
            if index == half and self._pauses_at(WorkerPoint.HALF):
                self._producer.flush()
                self._reach(WorkerPoint.HALF)
            self._producer.send(DELAYS, value, key)
        for carrier, total in output.totals.items():
            self._producer.send(TOTALS, json.dumps(total).encode(), carrier.encode())
        if self._pauses_at(WorkerPoint.PRODUCED) or self._pauses_at(WorkerPoint.OFFSETS):
            self._producer.flush()  # the transaction must be open at the coordinator when the kill happens

    def _pauses_at(self, point: WorkerPoint) -> bool:
        """Whether the next pause is here; if a round was aborted, its pause moves to the next round."""
        if not self._pauses:
            return False
        due, where = self._pauses[0]
        return self._round >= due and point is where

    def _reach(self, point: WorkerPoint) -> None:
        """Waits if the plan has a pause here: to be killed or frozen, or for a word to continue."""
        if self._pauses_at(point):
            self._pauses.popleft()
            say("at", round=self._round, point=point.name)
            match wait_for_word().split():
                case ["go", rounds]:
                    self._last_round = self._round + int(rounds)
                    self._pauses.clear()
                case _:
                    pass


def read_totals(bootstrap: str, *, isolation_level: str, client_id: str = "") -> Totals:
    """Reads the running totals from the log: the last record of each carrier."""
    totals: Totals = {}
    with (
        Consumer(bootstrap, isolation_level=isolation_level, client_id=client_id) as consumer,
        Admin(bootstrap, client_id=client_id) as admin,
    ):
        ends = admin.end_offsets(partitions_of(TOTALS), isolation_level=isolation_level)
        consumer.assign(list(ends))
        consumer.seek_to_beginning()
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            for batch in consumer.poll(POLL_MS):
                for key, value in zip(batch.keys, batch.values, strict=True):
                    totals[key.decode()] = json.loads(value)
    return totals


def run(task: WorkerTask) -> None:
    """Fences the previous worker, reads its progress, and continues."""
    with (
        Producer(task.bootstrap, transactional_id=TRANSACTIONAL_ID, client_id=task.client_id) as producer,
        Consumer(
            task.bootstrap, group_id=GROUP, isolation_level=task.isolation_level, client_id=task.client_id
        ) as consumer,
        Admin(task.bootstrap, client_id=task.client_id) as admin,
    ):
        producer.init_transactions()  # first, because after it the previous worker cannot commit
        partitions = partitions_of(FLIGHTS)
        consumer.assign(partitions)
        for partition, offset in consumer.committed(partitions).items():
            consumer.seek(partition, offset or 0)
        totals = read_totals(task.bootstrap, isolation_level=task.isolation_level, client_id=task.client_id)
        ends = admin.end_offsets(partitions, isolation_level=task.isolation_level)
        say("ready", carriers=len(totals))
        Worker(task, producer=producer, intake=InputReader(consumer, ends), totals=totals).work()
    say("finished")


def main() -> None:
    """The process: `python -m fencepost.demo.worker TASK`."""
    try:
        run(WorkerTask.from_json(sys.argv[1]))
    except ProducerFenced as problem:
        say("fenced", because=str(problem))
        sys.exit(FENCED)
    except (CommitOutcomeUnknown, ProducerFailed) as problem:
        # If the retry of a commit was fenced, its outcome is unknown, but the fencing is certain. Without
        # fencing, the other worker may have ended this one's transaction.
        is_fenced = problem.error is ErrorCode.PRODUCER_FENCED
        say("fenced" if is_fenced else "failed", because=str(problem))
        sys.exit(FENCED if is_fenced else PRODUCER_FAILED)


if __name__ == "__main__":
    main()
