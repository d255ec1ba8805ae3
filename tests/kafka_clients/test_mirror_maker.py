"""Kafka's MirrorMaker 2 with exactly-once: a worker of Kafka Connect copies a topic to another broker, and
both are killed on the way.
"""

from __future__ import annotations

import subprocess
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import fencepost
from fencepost import Broker, BrokerProcess, TopicPartition
from tests.kafka_bridge.confluent import Confluent
from tests.kafka_bridge.conftest import IMPATIENT
from tests.kafka_bridge.libraries import PATIENCE_S, Access, consume, texts
from tests.kafka_clients import tools
from tests.topics import create_topic

MIRROR_MAKER: Final = "org.apache.kafka.connect.mirror.MirrorMaker"
TOPIC: Final = "lines"
COPY: Final = TopicPartition("A.lines", 0)
TASK: Final = "A-mm2-MirrorSourceConnector-0"  # its transactional id
POLL: Final = 50  # the records of a transaction
DIES_IN: Final = 10  # the number of that transaction
COUNT: Final = 1_000  # records before the kill, and as many after it
RETENTION_MS: Final = "123456789"
SETTINGS: Final = {
    "clusters": "A,B",
    "A->B.enabled": "true",
    "A->B.topics": TOPIC,
    "emit.heartbeats.enabled": "false",
    "B.exactly.once.source.support": "enabled",
    "dedicated.mode.enable.internal.rest": "true",
    "listeners": "http://127.0.0.1:0",
    "A.consumer.isolation.level": "read_committed",
    "A.consumer.max.poll.records": str(POLL),
    "refresh.topics.interval.seconds": "1",
    "sync.topic.configs.interval.seconds": "1",
    # So that a new process takes over from a killed one soon.
    "B.session.timeout.ms": "6000",
    "B.heartbeat.interval.ms": "1000",
    "B.scheduled.rebalance.max.delay.ms": "0",
    "replication.factor": "1",
    "offset-syncs.topic.replication.factor": "1",
    "checkpoints.topic.replication.factor": "1",
    "config.storage.replication.factor": "1",
    "offset.storage.replication.factor": "1",
    "status.storage.replication.factor": "1",
}


@contextmanager
def mirror_maker(source: str, target: str, directory: Path) -> Generator[None]:
    """The process, until it is killed."""
    file = directory / "mirror-maker.properties"
    settings = SETTINGS | {"A.bootstrap.servers": source, "B.bootstrap.servers": target}
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    process = subprocess.Popen(tools.java(MIRROR_MAKER, str(file)))
    try:
        yield
    finally:
        process.kill()
        process.wait()


def write(servers: str, values: Sequence[str], *, commits: bool = True) -> None:
    """One transaction."""
    with closing(Confluent().producer(Access(servers=servers), "writer")) as producer:
        producer.begin()
        for value in values:
            producer.send(TOPIC, value.encode())
        producer.flush()
        producer.commit() if commits else producer.abort()


def copied(servers: str, count: int) -> list[str]:
    """The first records of the copy."""
    with closing(Confluent().reader(Access(servers=servers), COPY)) as reader:
        return texts(consume(reader, count))


def test_each_record_is_copied_once_although_mirror_maker_and_its_target_die(tmp_path: Path) -> None:
    values = [f"{number}" for number in range(2 * COUNT)]
    with Broker(override=IMPATIENT) as source, BrokerProcess(tmp_path / "data", override=IMPATIENT) as target:
        create_topic(source.address, TOPIC, configs={"retention.ms": RETENTION_MS})
        write(source.address, values[:COUNT])
        write(source.address, ["never"], commits=False)
        decision = f"coordinator of {TASK} appends PREPARE_COMMIT"
        crash = target.faults.when(decision, nth=DIES_IN).do("crash broker")
        with mirror_maker(source.address, target.address, tmp_path):
            crash.wait_until_struck(PATIENCE_S)
        target.restart()
        write(source.address, values[COUNT:])
        with mirror_maker(source.address, target.address, tmp_path):
            assert copied(target.address, len(values)) == values
        with fencepost.Admin(target.address) as admin:
            configs = {each.name: each.value for each in admin.describe_topic_configs(COPY.topic)}
        assert configs["retention.ms"] == RETENTION_MS
