"""Kafka Connect in distributed mode with exactly-once: a source connector whose workers are killed or
suspended while transactions are open, and whose tasks are replaced. NumberSource.java is both.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

import attrs
import pytest

from fencepost import Admin, BrokerProcess, TopicPartition
from fencepost.broker.fault_handles import FaultHandle
from fencepost.protocol.terms import TransactionState
from tests.kafka_bridge.confluent import Confluent
from tests.kafka_bridge.conftest import IMPATIENT
from tests.kafka_bridge.java import JARS, JAVA_OPTIONS
from tests.kafka_bridge.libraries import PATIENCE_S, Access, consume, texts
from tests.topics import create_topic

CONNECTOR: Final = Path(__file__).parent / "NumberSource.java"
SERVICE: Final = "org.apache.kafka.connect.source.SourceConnector"
TOPIC: Final = "numbers"
PARTITIONS: Final = [TopicPartition(TOPIC, number) for number in range(3)]
FIRST_TASK: Final = "workers-numbers-0"  # their transactional ids
LAST_TASK: Final = "workers-numbers-2"
MORE: Final = 40  # numbers of each partition, and so the transactions that write them
QUICK: Final = IMPATIENT | {"group.min.session.timeout.ms": 500}
SETTINGS: Final = {
    "group.id": "workers",
    "exactly.once.source.support": "enabled",
    "plugin.discovery": "service_load",
    "listeners": "http://127.0.0.1:0",
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "config.storage.topic": "connect-configs",
    "offset.storage.topic": "connect-offsets",
    "status.storage.topic": "connect-status",
    "config.storage.replication.factor": "1",
    "offset.storage.replication.factor": "1",
    "offset.storage.partitions": "1",
    "status.storage.replication.factor": "1",
    # So that a worker takes over soon from one that is killed or suspended.
    "session.timeout.ms": "3000",
    "heartbeat.interval.ms": "300",
    "scheduled.rebalance.max.delay.ms": "0",
    # A worker starts only when no transaction of another one is open in the topic of its offsets.
    "producer.transaction.timeout.ms": "10000",
}


@attrs.frozen
class Worker:
    """A process of Kafka Connect."""

    process: subprocess.Popen[str]
    address: str

    def configure(self, *, tasks: int) -> None:
        """Create the connector, or change how many tasks it has."""
        settings = {"connector.class": "NumberSource", "tasks.max": tasks, "exactly.once.support": "required"}
        request = urllib.request.Request(
            f"{self.address}connectors/numbers/config",
            data=json.dumps(settings).encode(),
            headers={"Content-Type": "application/json"},
            method="PUT",
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S):
            pass


@contextmanager
def worker(classes: Path, servers: str) -> Generator[Worker]:
    """A worker, until it is killed."""
    settings = SETTINGS | {"bootstrap.servers": servers}
    jars = f"{classes}{os.pathsep}{JARS}/*"
    arguments = [f"{name}={value}" for name, value in settings.items()]
    program = ["java", *JAVA_OPTIONS, "-cp", jars, "NumberSource", *arguments]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Worker(process, process.stdout.readline().strip())
        finally:
            process.kill()


class Numbers:
    """What consumers with read_committed have read of each partition."""

    def __init__(self, servers: str, stack: ExitStack) -> None:
        access = Access(servers=servers)
        self._readers = [
            stack.enter_context(closing(Confluent().reader(access, part))) for part in PARTITIONS
        ]
        self._read: list[list[str]] = [[] for _ in PARTITIONS]

    def go_on(self) -> None:
        """Each partition gets further numbers, none of them missing and none twice."""
        for reader, read in zip(self._readers, self._read, strict=True):
            for _ in range(MORE):
                read += texts(consume(reader, 1))
            assert read == [f"{number}" for number in range(len(read))]


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled connector, where Kafka Connect finds it."""
    directory = tmp_path_factory.mktemp("classes")
    services = directory / "META-INF" / "services"
    services.mkdir(parents=True)
    (services / SERVICE).write_text("NumberSource\n")
    subprocess.run(["javac", "-cp", f"{JARS}/*", "-d", directory, CONNECTOR], check=True)
    return directory


@pytest.fixture
def broker(tmp_path: Path) -> Generator[BrokerProcess]:
    """A broker with the topic."""
    with BrokerProcess(tmp_path / "data", override=QUICK) as broker:
        create_topic(broker.address, TOPIC, len(PARTITIONS))
        yield broker


@pytest.fixture
def numbers(broker: BrokerProcess) -> Generator[Numbers]:
    """Its readers."""
    with ExitStack() as stack:
        yield Numbers(broker.address, stack)


def next_time(broker: BrokerProcess, point: str) -> FaultHandle:
    """A fault that changes nothing. Wait for it to know that the point was reached."""
    return broker.faults.when(point).do("pause broker", until="after 1 ms")


def test_each_number_is_written_once_although_a_worker_dies(
    classes: Path, broker: BrokerProcess, numbers: Numbers
) -> None:
    decision = f"coordinator of {FIRST_TASK} appends PREPARE_COMMIT"
    crash = broker.faults.when(decision, nth=10).do("crash broker")
    with worker(classes, broker.address) as killed:
        killed.configure(tasks=1)
        crash.wait_until_struck(PATIENCE_S)
    broker.restart()
    with worker(classes, broker.address):
        numbers.go_on()


def test_each_number_is_written_once_although_tasks_are_replaced(
    classes: Path, broker: BrokerProcess, numbers: Numbers
) -> None:
    with worker(classes, broker.address) as changed, Admin(broker.address) as admin:
        changed.configure(tasks=3)
        numbers.go_on()
        fencing = next_time(broker, f"coordinator of {LAST_TASK} appends EMPTY")
        changed.configure(tasks=2)
        fencing.wait_until_struck(PATIENCE_S)
        numbers.go_on()
        assert admin.describe_transaction(LAST_TASK).state is TransactionState.EMPTY, (
            "no task has this id any more"
        )


def test_each_number_is_written_once_although_a_worker_is_suspended(
    classes: Path, broker: BrokerProcess, numbers: Numbers
) -> None:
    with worker(classes, broker.address) as zombie:
        zombie.configure(tasks=2)
        numbers.go_on()
        pause = broker.faults.when(f"coordinator of {FIRST_TASK} appends ONGOING").do("pause broker")
        pause.wait_until_struck(PATIENCE_S)
        zombie.process.send_signal(signal.SIGSTOP)
        abort = next_time(broker, f"coordinator of {FIRST_TASK} appends PREPARE_ABORT")
        pause.end()
        with worker(classes, broker.address):
            abort.wait_until_struck(PATIENCE_S)
            commit = next_time(broker, f"coordinator of {FIRST_TASK} appends COMPLETE_COMMIT")
            commit.wait_until_struck(PATIENCE_S)
            zombie.process.send_signal(signal.SIGCONT)
            for _ in range(3):
                numbers.go_on()
