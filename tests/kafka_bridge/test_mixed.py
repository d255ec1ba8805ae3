"""One group with members of four libraries, whose input comes from producers of four libraries, while the
broker and a member are killed: every record is there exactly once.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from threading import Barrier
from typing import Any, Final

import fencepost
from fencepost import TopicPartition
from tests.cli.processes import PATIENCE_S
from tests.kafka_bridge import aio, confluent, kafka_python, ours
from tests.kafka_bridge.copier import SOURCE, TARGET
from tests.kafka_bridge.libraries import POLLS_MAX, Access, Library, consume, poll_until
from tests.kafka_bridge.ours import OurProducer
from tests.topics import create_topic

PARTITIONS: Final = 6
NAMES: Final = (confluent.NAME, aio.NAME, kafka_python.NAME, ours.NAME)
NO_DELAY: Final = {"group.initial.rebalance.delay.ms": 0}
ROUNDS: Final = 8  # transactions of a feeder; a broker is killed in the middle of the fourth
ABORTED: Final = (2, 5)


@contextmanager
def copier(name: str, address: str, *hold_after: str) -> Generator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.kafka_bridge.copier", name, address, *hold_after]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def hear(process: subprocess.Popen[str], *words: str) -> None:
    """Wait until a copier says these words, a line each."""
    assert process.stdout is not None, "its output is ours"
    assert [process.stdout.readline() for _ in words] == [f"{word}\n" for word in words]


def feed(name: str, producer: Any, meet: Callable[[], object]) -> list[str]:
    """Fill the source in transactions; returns what was committed."""
    committed: list[str] = []
    for number in range(ROUNDS):
        producer.begin()
        values = [f"{name} {number} {partition}" for partition in range(PARTITIONS)]
        for partition, value in enumerate(values):
            producer.send(SOURCE, value.encode(), partition=partition)
        producer.flush()
        if number == ROUNDS // 2:
            meet()  # the broker is killed between these two
            meet()
        if number in ABORTED:
            producer.abort()
        else:
            producer.commit()
            committed += values
    return committed


def copied(address: str, count: int) -> Counter[str]:
    """What is in the target, read until so many records are there."""
    found: Counter[str] = Counter()
    with fencepost.Consumer(address) as consumer:
        consumer.assign([TopicPartition(TARGET, number) for number in range(PARTITIONS)])
        for _ in range(POLLS_MAX):
            for batch in consumer.poll(500):
                found.update(bytes(record.value or b"").decode() for record in batch)
            if found.total() >= count:
                return found
    raise AssertionError(f"{found.total()} of {count} records are there")


def producer_of(name: str, named: Callable[[str], Library], access: Access) -> Any:
    """A transactional producer."""
    if name == ours.NAME:
        return OurProducer(access, "feeder")
    return named(name).producer(access, f"feeder-{name}")


def test_every_record_is_there_once(named: Callable[[str], Library], tmp_path: Path) -> None:
    with ExitStack() as stack, ThreadPoolExecutor() as threads:
        broker = stack.enter_context(fencepost.BrokerProcess(tmp_path, override=NO_DELAY))
        address = broker.address
        with fencepost.Admin(address) as admin:
            for topic in (SOURCE, TARGET):
                admin.create_topic(topic, PARTITIONS)
        barrier = Barrier(len(NAMES) + 1, timeout=PATIENCE_S)
        feeding: list[Future[list[str]]] = []
        for name in NAMES:
            producer = stack.enter_context(closing(producer_of(name, named, Access(servers=address))))
            feeding.append(threads.submit(feed, name, producer, barrier.wait))
        killed = stack.enter_context(copier(confluent.NAME, address, "0"))
        hear(killed, "ready", "held")  # in the middle of a transaction
        killed.kill()
        copiers = [stack.enter_context(copier(name, address)) for name in NAMES if name != confluent.NAME]
        for process in copiers:
            hear(process, "ready")
        barrier.wait()
        broker.kill()
        broker.restart()
        # Not before: on a busy machine librdkafka 2.16 may miss that the coordinator of its group is back.
        # Its TxnOffsetCommit then waits for a minute.
        copiers.append(stack.enter_context(copier(confluent.NAME, address)))
        barrier.wait()
        expected = Counter(value for each in feeding for value in each.result(PATIENCE_S))
        assert copied(address, expected.total()) == expected
        for process in copiers:
            process.terminate()
        assert [process.wait(PATIENCE_S) for process in copiers] == [0] * len(NAMES)
        assert copied(address, expected.total()) == expected


def test_members_of_three_libraries_rebalance_cooperatively(servers: str) -> None:
    """KIP-429: a partition that stays with its member is read on, and no record is read by two of them."""
    topic, group, sticky = "cooperative", "cooperative-group", "cooperative-sticky"
    access = Access(servers=servers)
    with ExitStack() as stack, fencepost.Producer(servers) as producer:
        create_topic(servers, topic, PARTITIONS)
        made: list[Any] = [
            confluent.ConfluentConsumer(access, isolation="read_committed", group=group, strategy=sticky),
            kafka_python.KafkaPythonConsumer(
                access, isolation="read_committed", group=group, strategy=sticky
            ),
            ours.OurConsumer(access, group=group, instance=None, strategy=sticky),
        ]
        members: list[Any] = []
        for member in made:
            members.append(stack.enter_context(closing(member)))
            member.subscribe(topic)
            share = PARTITIONS // len(members)
            poll_until(lambda share=share: all(len(each.assignment()) == share for each in members), *members)
            assert len(set[TopicPartition]().union(*(each.assignment() for each in members))) == PARTITIONS
        for number in range(PARTITIONS * 2):
            producer.send(topic, b"%d" % number, partition=number % PARTITIONS)
        producer.flush()
        read = [message.text for member in members for message in consume(member, 4)]
        assert sorted(map(int, read)) == list(range(PARTITIONS * 2))
