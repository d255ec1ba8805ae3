"""Spark's own Kafka source and sink against our broker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from fencepost import TopicPartition
from tests.kafka_bridge.confluent import Confluent
from tests.kafka_bridge.libraries import Access, Producer, consume, texts
from tests.topics import create_topic

JOB: Final = "tests.kafka_clients.spark_copy"
COPIES: Final = TopicPartition("copies", 0)
NEVER_MS: Final = 900_000  # the longest transaction timeout: Spark takes its time


class Job:
    """The process of the job."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self) -> list[list[object]]:
        """Copy what is new, and return what a batch query reads."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(file=self._process.stdin, flush=True)
        read: list[list[object]] = json.loads(self._process.stdout.readline())
        return read


def begin(producer: Producer, partition: int, values: Sequence[str]) -> None:
    """Write in a new transaction, which stays open."""
    producer.begin()
    for value in values:
        producer.send("orders", value.encode(), partition=partition)
    producer.flush()


def test_what_is_committed_is_read_and_copied_once(servers: str, tmp_path: Path) -> None:
    create_topic(servers, "orders", 2)
    create_topic(servers, COPIES.topic)
    access, library = Access(servers=servers), Confluent()
    values = [f"{number}" for number in range(20)]
    command = [sys.executable, "-m", JOB, servers, str(tmp_path)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
        closing(library.producer(access, "writer")) as writer,
        closing(library.producer(access, "slow writer", timeout_ms=NEVER_MS)) as slow,
        closing(library.reader(access, COPIES)) as copies,
    ):
        job = Job(process)
        begin(writer, 0, values[:10])
        writer.commit()
        begin(writer, 0, ["never"])
        writer.abort()
        begin(slow, 1, ["slow"])
        begin(writer, 1, values[10:])
        writer.commit()
        first = [[0, offset, value] for offset, value in enumerate(values[:10])]
        assert job.run() == first, "partition 1 ends at an open transaction"
        assert texts(consume(copies, 10)) == values[:10]
        slow.commit()
        behind = enumerate(["slow", *values[10:]])
        assert job.run() == [*first, *([1, offset, value] for offset, value in behind)]
        assert texts(consume(copies, 11)) == ["slow", *values[10:]]
