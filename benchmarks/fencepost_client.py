"""The loads on Fencepost's client, written as its users write them.

Rule: connections, topics and first responses are not timed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from uuid import uuid4

from benchmarks.loads import KEYS, PARTITIONS, RECORDS_PER_TRANSACTION, VALUES, Load, Scale, Work
from fencepost import Admin, Consumer, Producer, TopicPartition
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
        case Load.COMMITS_OF_TEN:
            raise ValueError("only one client is measured on several brokers, and it is not ours")


def fill(address: str, scale: Scale) -> None:
    """Writes the records for the fetches, spread evenly over the topics."""
    topics = scale.fetch_topics
    with Admin(address) as admin:
        for topic in topics:
            admin.create_topic(topic, PARTITIONS)
    with Producer(address) as producer:
        for number, (key, value) in enumerate(scale.keyed_records()):
            producer.send(topics[number % len(topics)], value, key)
