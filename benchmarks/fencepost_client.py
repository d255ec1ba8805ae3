"""The loads on Fencepost's client, written as its users write them.

Rule: connections, topics and first responses are not timed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import islice
from uuid import uuid4

import trio
from anyio.from_thread import start_blocking_portal

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
from fencepost import Admin, AsyncProducer, Consumer, Producer, TopicPartition
from fencepost.client.consumer_records import ConsumedBatch
from fencepost.client.shells.sync import SendFuture

OUTCOMES_EVERY = 1_000  # records, as often as the peer polls for delivery reports


def _fresh_topic(address: str) -> str:
    topic = f"bench-{uuid4().hex}"
    with Admin(address) as admin:
        admin.create_topic(topic, PARTITIONS)
    return topic


def _stored(outcomes: list[SendFuture]) -> int:
    """Returns the number of records; raises the error of the first one that failed."""
    for outcome in outcomes:
        outcome.result()
    return len(outcomes)


@contextmanager
def _producing(address: str, scale: Scale) -> Generator[Work]:
    """Every record has a key, and its outcome is checked soon after it is known."""
    topic = _fresh_topic(address)
    with Producer(address) as producer:
        producer.send(topic, b"first").result()

        def work() -> int:
            send = producer.send
            records = scale.keyed_records()
            waiting: deque[list[SendFuture]] = deque()
            stored = 0
            while sent := [send(topic, value, key) for key, value in islice(records, OUTCOMES_EVERY)]:
                waiting.append(sent)
                while waiting and waiting[0][-1].done():
                    stored += _stored(waiting.popleft())
            producer.flush()
            return stored + sum(map(_stored, waiting))

        yield work


@contextmanager
def _sending_columns(address: str, scale: Scale) -> Generator[Work]:
    """Each call sends a thousand values with their keys."""
    topic = _fresh_topic(address)
    with Producer(address) as producer:
        producer.send(topic, b"first").result()

        def work() -> int:
            sent = [
                producer.send_many(topic, VALUES[:count], KEYS[:count]) for count in _counts(scale.records)
            ]
            producer.flush()
            return sum(len(futures.result()) for futures in sent)

        yield work


def _counts(records: int) -> list[int]:
    whole, rest = divmod(records, len(VALUES))
    return [len(VALUES)] * whole + [rest] * bool(rest)


@contextmanager
def _one_by_one(address: str, scale: Scale) -> Generator[Work]:
    """Each record is acknowledged before the next one is sent."""
    topic = _fresh_topic(address)
    with Producer(address, linger_ms=0) as producer:
        producer.send(topic, b"first").result()

        def work() -> list[float]:
            took: list[float] = []
            for _ in range(scale.operations(Load.LATENCY)):
                began = time.perf_counter()
                producer.send(topic, VALUES[0], KEYS[0]).result()
                took.append(time.perf_counter() - began)
            return took

        yield work


@contextmanager
def _committing_at_once(address: str, scale: Scale, *, producers: int) -> Generator[Work]:
    """Each producer commits transactions to one partition of its own, one at a time, in its own task."""
    with start_blocking_portal("trio") as portal, ExitStack() as stack:
        commits: list[tuple[AsyncProducer, str]] = []
        for _ in range(producers):
            made = AsyncProducer(address, transactional_id=f"bench-{uuid4().hex}")
            producer = stack.enter_context(portal.wrap_async_context_manager(made))
            portal.call(producer.init_transactions)
            commits.append((producer, _fresh_topic(address)))
        shares = [len(range(number, scale.transactions, producers)) for number in range(producers)]

        async def commit(producer: AsyncProducer, topic: str, count: int) -> None:
            for _ in range(count):
                producer.begin_transaction()
                for value in VALUES[:RECORDS_PER_TRANSACTION]:
                    await producer.send(topic, value, KEYS[0])
                await producer.commit_transaction()

        async def commit_all() -> int:
            async with trio.open_nursery() as nursery:
                for (producer, topic), count in zip(commits, shares, strict=True):
                    nursery.start_soon(commit, producer, topic, count)
            return sum(shares)

        for producer, topic in commits:
            portal.call(commit, producer, topic, 1)
        yield lambda: portal.call(commit_all)


@contextmanager
def _committing(address: str, scale: Scale) -> Generator[Work]:
    """One producer commits transactions to one partition, one at a time."""
    topic = _fresh_topic(address)
    with Producer(address, transactional_id=f"bench-{uuid4().hex}") as producer:
        producer.init_transactions()

        def transaction() -> None:
            producer.begin_transaction()
            for value in VALUES[:RECORDS_PER_TRANSACTION]:
                producer.send(topic, value, KEYS[0])
            producer.commit_transaction()

        def work() -> int:
            for _ in range(scale.transactions):
                transaction()
            return scale.transactions

        transaction()
        yield work


@contextmanager
def _fetching(address: str, scale: Scale, read: Callable[[ConsumedBatch], int]) -> Generator[Work]:
    with Consumer(address) as consumer:
        consumer.assign(
            TopicPartition(topic, number) for topic in scale.fetch_topics for number in range(PARTITIONS)
        )
        consumer.seek_to_beginning()
        taken: list[int] = []

        def work() -> int:
            count = 0
            while count < scale.records:
                batches = consumer.poll()
                assert batches, "a second went by without a record"
                for batch in batches:
                    count += len(batch)
                    taken.append(read(batch))
            return count

        yield work


def _bytes_of_records(batch: ConsumedBatch) -> int:
    return sum(len(record.value) for record in batch)


def _bytes_of_values(batch: ConsumedBatch) -> int:
    return sum(map(len, batch.values))


def prepared(load: Load, address: str, scale: Scale) -> AbstractContextManager[Work]:
    """Prepares the work of a load."""
    match load:
        case Load.PRODUCE:
            return _producing(address, scale)
        case Load.COMMITS:
            return _committing(address, scale)
        case Load.FETCH:
            return _fetching(address, scale, _bytes_of_records)
        case Load.FETCH_VALUES:
            return _fetching(address, scale, _bytes_of_values)
        case Load.SEND_MANY:
            return _sending_columns(address, scale)
        case Load.LATENCY:
            return _one_by_one(address, scale)
        case Load.COMMITS_OF_TEN | Load.COMMITS_OF_TEN_SYNCED:
            return _committing_at_once(address, scale, producers=COMMIT_LOADS[load])


def fill(address: str, scale: Scale) -> None:
    """Writes the records for the fetches, spread evenly over the topics."""
    topics = scale.fetch_topics
    with Admin(address) as admin:
        for topic in topics:
            admin.create_topic(topic, PARTITIONS)
    with Producer(address) as producer:
        for number, (key, value) in enumerate(scale.keyed_records()):
            producer.send(topics[number % len(topics)], value, key)
