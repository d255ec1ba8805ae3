"""The loads on confluent-kafka, written as its users write them, with the settings that were fastest on its
mock cluster. Every broker gets the same.

Rule: differences in favour of the peer are kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from uuid import uuid4

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

from benchmarks.loads import (
    COMMIT_LOADS,
    KEYS,
    PARTITIONS,
    RECORDS_PER_TRANSACTION,
    VALUES,
    Load,
    Scale,
    Work,
)

WAIT_SECONDS_MAX = 30.0
CALLBACKS_EVERY = 1_000  # records; polling for delivery reports after each one costs a third of the speed
CONSUMED_AT_ONCE = 10_000
STALLED_SECONDS = 60.0  # a bound on a hang: a busy machine may take seconds for the first record

Settings = dict[str, str | int | float | bool]

PRODUCER: Settings = {
    "acks": "all",
    "linger.ms": 5,
    "queue.buffering.max.messages": 10_000_000,  # default 100,000: the producer would block
    "queue.buffering.max.kbytes": 1_048_576,
}
CONSUMER: Settings = {
    "group.id": "bench",
    "enable.auto.commit": False,
    "queued.max.messages.kbytes": 1_048_576,  # default 64 MiB
    "queued.min.messages": 1_000_000,  # default 100,000: it would prefetch less
    "fetch.wait.max.ms": 10,  # default 500: it would wait that long at the end of a partition
}


@contextmanager
def _producing(address: str, scale: Scale) -> Generator[Work]:
    """Every record has a key, and its delivery report is checked."""
    topic = f"bench-{uuid4().hex}"
    stored = failed = 0

    def delivered(error: KafkaError | None, message: Message) -> None:
        nonlocal stored, failed
        if error is None:
            stored += 1
        else:
            failed += 1

    producer = Producer({**PRODUCER, "bootstrap.servers": address})
    producer.produce(topic, b"first")
    producer.flush()

    def work() -> int:
        produce = producer.produce
        for number, (key, value) in enumerate(scale.keyed_records()):
            produce(topic, value, key, on_delivery=delivered)
            if number % CALLBACKS_EVERY == 0:
                producer.poll(0)
        producer.flush()
        assert not failed, f"{failed} records were not stored"
        return stored

    yield work


@contextmanager
def _one_by_one(address: str, scale: Scale) -> Generator[Work]:
    """Each record is acknowledged before the next one is sent."""
    topic = f"bench-{uuid4().hex}"
    producer = Producer({**PRODUCER, "bootstrap.servers": address, "linger.ms": 0})
    producer.produce(topic, b"first")
    producer.flush()

    def work() -> list[float]:
        took: list[float] = []
        for _ in range(scale.operations(Load.LATENCY)):
            began = time.perf_counter()
            producer.produce(topic, VALUES[0], KEYS[0])
            producer.flush()
            took.append(time.perf_counter() - began)
        return took

    yield work


@contextmanager
def _committing(address: str, scale: Scale, *, producers: int) -> Generator[Work]:
    """Each producer commits transactions to one partition of its own, one at a time, in its own thread."""
    commits = [_committer(address) for _ in range(producers)]
    shares = [len(range(number, scale.transactions, producers)) for number in range(producers)]

    def work() -> int:
        with ThreadPoolExecutor(producers) as threads:
            running = [threads.submit(commit, share) for commit, share in zip(commits, shares, strict=True)]
            return sum(each.result() for each in running)

    for commit in commits:
        commit(1)
    yield work


def _committer(address: str) -> Callable[[int], int]:
    """A producer, as a function that commits so many transactions and returns their number."""
    topic = f"bench-{uuid4().hex}"
    own = {"bootstrap.servers": address, "transactional.id": topic, "linger.ms": 0}
    producer = Producer({**PRODUCER, **own})
    producer.init_transactions(WAIT_SECONDS_MAX)

    def commit(count: int) -> int:
        for _ in range(count):
            producer.begin_transaction()
            for value in VALUES[:RECORDS_PER_TRANSACTION]:
                producer.produce(topic, value, KEYS[0])
            producer.commit_transaction()
        return count

    return commit


@contextmanager
def _fetching(address: str, scale: Scale) -> Generator[Work]:
    consumer = Consumer({**CONSUMER, "bootstrap.servers": address})
    partitions = [
        TopicPartition(topic, number, OFFSET_BEGINNING)
        for topic in scale.fetch_topics
        for number in range(PARTITIONS)
    ]
    taken: list[int] = []

    def work() -> int:
        # The consumer prefetches from the assignment on, so the assignment is timed.
        consumer.assign(partitions)
        count = 0
        while count < scale.records:
            # It waits for all that it is asked for, so no more than there is.
            wanted = min(CONSUMED_AT_ONCE, scale.records - count)
            messages = consumer.consume(wanted, timeout=STALLED_SECONDS)
            assert messages, f"no record arrived in {STALLED_SECONDS} s; there were {count}"
            taken.append(sum(len(message.value() or b"") for message in messages))
            count += len(messages)
        return count

    yield work
    consumer.close()


def prepared(load: Load, address: str, scale: Scale) -> AbstractContextManager[Work]:
    """Prepares the work of a load. The peer can only send and fetch records, not columns."""
    match load:
        case Load.PRODUCE | Load.SEND_MANY:
            return _producing(address, scale)
        case Load.LATENCY:
            return _one_by_one(address, scale)
        case Load.COMMITS | Load.COMMITS_OF_TEN | Load.COMMITS_OF_TEN_SYNCED:
            return _committing(address, scale, producers=COMMIT_LOADS[load])
        case Load.FETCH | Load.FETCH_VALUES:
            return _fetching(address, scale)


def fill(address: str, scale: Scale) -> None:
    """Writes the records for the fetches, spread evenly over the topics."""
    topics = scale.fetch_topics
    producer = Producer({**PRODUCER, "bootstrap.servers": address})
    for number, (key, value) in enumerate(scale.keyed_records()):
        producer.produce(topics[number % len(topics)], value, key)
    assert producer.flush(WAIT_SECONDS_MAX) == 0, "the broker took too long"
