"""How long a broker with many partitions takes to create them, to start and to stop, and its memory.

The broker is a process of its own, on a real directory. The measurement creates topics of 10 partitions,
writes a record to each partition, opens idle connections, kills the broker, starts and stops it. The times
are seconds of the clock, and of the broker's CPU, which other work on the machine changes less.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import attrs

from benchmarks.brokers import cpu_seconds, resident_bytes, speaking
from fencepost import Admin, Producer

PARTITIONS_PER_TOPIC: Final = 10
RECORD: Final = b"x" * 100


@attrs.frozen
class Running:
    """A broker process that is ready."""

    process: subprocess.Popen[bytes]
    address: str
    start_s: float
    start_cpu_s: float | None

    def ended(self, number: signal.Signals) -> tuple[float, float | None]:
        """Send a signal, and wait for the end: its seconds of the clock and of the CPU."""
        before, began = cpu_seconds(self.process.pid), time.perf_counter()
        self.process.send_signal(number)
        _, status, usage = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        took = time.perf_counter() - began
        return took, None if before is None else usage.ru_utime + usage.ru_stime - before


@contextmanager
def started(data: Path) -> Generator[Running]:
    """A broker on `data/log` for the block, unless the block ends it."""
    began = time.perf_counter()
    command = ("fencepost", "serve", str(data / "log"), "--port", "0", "--with-parent")
    with speaking(*command, data=data) as (process, ready):
        address = f"{ready['host']}:{ready['port']}"
        yield Running(process, address, time.perf_counter() - began, cpu_seconds(process.pid))


def fill(address: str, topics: list[str]) -> float:
    """Create the topics, one request each, and write a record to each partition; the seconds to create."""
    began = time.perf_counter()
    with Admin(address) as admin:
        for topic in topics:
            admin.create_topic(topic, PARTITIONS_PER_TOPIC)
    took = time.perf_counter() - began
    with Producer(address) as producer:
        for topic in topics:
            for partition in range(PARTITIONS_PER_TOPIC):
                producer.send(topic, RECORD, partition=partition)
    return took


@contextmanager
def connected(address: str, count: int) -> Generator[None]:
    """Idle connections for the block."""
    host, _, port = address.rpartition(":")
    opened: list[socket.socket] = []
    try:
        opened.extend(socket.create_connection((host, int(port))) for _ in range(count))
        yield
    finally:
        for each in opened:
            each.close()


def measure(partitions: int, connections: int, data: Path) -> dict[str, Any]:
    """Times in seconds, `_cpu_s` those of the broker's process; memory in bytes."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    topics = [f"topic-{number}" for number in range(partitions // PARTITIONS_PER_TOPIC)]
    found: dict[str, Any] = {"partitions": partitions, "connections": connections}
    with started(data) as broker:
        empty = resident_bytes(broker.process.pid)
        found["create_s"] = fill(broker.address, topics)
        broker.ended(signal.SIGKILL)
    with started(data) as broker:
        found |= {"start_after_kill_s": broker.start_s, "start_after_kill_cpu_s": broker.start_cpu_s}
        full = resident_bytes(broker.process.pid)
        if empty is not None and full is not None:
            found["bytes_per_partition"] = (full - empty) // partitions
        with connected(broker.address, connections):
            found["stop_s"], found["stop_cpu_s"] = broker.ended(signal.SIGTERM)
    with started(data) as broker:
        found |= {"start_after_stop_s": broker.start_s, "start_after_stop_cpu_s": broker.start_cpu_s}
        with connected(broker.address, connections):
            found["stop_unchanged_s"], found["stop_unchanged_cpu_s"] = broker.ended(signal.SIGTERM)
    return {name: round(value, 2) if isinstance(value, float) else value for name, value in found.items()}
