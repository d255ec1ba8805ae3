"""The brokers that are measured, each in its own process: Fencepost and Apache Kafka on a fresh directory,
and librdkafka's mock cluster. Also the CPU and memory of a process.

Rule: no broker outlives the benchmark. A broker has started once it has answered a request.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs

from benchmarks import apache_kafka
from benchmarks.loads import PARTITIONS
from fencepost.protocol.frames import FrameReader, decode_reply, encode_request
from fencepost.protocol.messages import API_BY_REQUEST, Metadata

END_SECONDS_MAX = 30.0
ANSWER_SECONDS_MAX = 30.0


class System(Enum):
    """A client and its broker. The value is the name in the table."""

    OURS = "fencepost"
    CONFLUENT = "confluent-kafka"  # on librdkafka's mock cluster
    CONFLUENT_ON_FENCEPOST = "confluent-kafka on fencepost"
    CONFLUENT_ON_KAFKA = "confluent-kafka on Apache Kafka"

    @property
    def is_installed(self) -> bool:
        if self is System.OURS:
            return True
        return find_spec("confluent_kafka") is not None and (
            self is not System.CONFLUENT_ON_KAFKA or apache_kafka.is_installed()
        )


def environment(data: Path) -> dict[str, str]:
    """The environment of all processes: like an installed package they cache bytecode, but under `data`."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(data / "bytecode")}


@attrs.frozen(kw_only=True)
class RunningBroker:
    """A running broker, and the time and memory of its start."""

    address: str
    process_id: int
    start_seconds: float
    ready_seconds: float | None
    idle_bytes: int | None


def running(system: System, data: Path, *, sync: str = "none") -> AbstractContextManager[RunningBroker]:
    """Runs a fresh broker for the block; those that have files keep them under `data`. `sync` is ours."""
    match system:
        case System.OURS | System.CONFLUENT_ON_FENCEPOST:
            return _fencepost(data, sync)
        case System.CONFLUENT:
            return _mock_cluster(data)
        case System.CONFLUENT_ON_KAFKA:
            return _apache_kafka(data)


def seconds_to_import_trio(data: Path) -> float:
    """Seconds of a process that only imports trio: a lower bound for the start of a trio program."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import trio"], env=environment(data), check=True)
    return time.perf_counter() - begun


@contextmanager
def _fencepost(data: Path, sync: str) -> Generator[RunningBroker]:
    with TemporaryDirectory(dir=data) as directory:
        begun = time.perf_counter()
        settings = ("--sync", sync, "--override", f"num.partitions={PARTITIONS}")
        command = ("fencepost", "serve", directory, "--port", "0", "--with-parent", *settings)
        with speaking(*command, data=data) as (process, ready):
            ready_seconds = time.perf_counter() - begun
            _ask_for_metadata(ready["host"], ready["port"])
            yield _started(f"{ready['host']}:{ready['port']}", process, begun, ready_seconds)


@contextmanager
def _mock_cluster(data: Path) -> Generator[RunningBroker]:
    begun = time.perf_counter()
    with speaking("benchmarks.mock_cluster", data=data) as (process, ready):
        yield _started(ready["address"], process, begun)


@contextmanager
def _apache_kafka(data: Path) -> Generator[RunningBroker]:
    with TemporaryDirectory(dir=data) as directory:
        apache_kafka.format_directory(Path(directory))
        begun = time.perf_counter()
        with apache_kafka.running(Path(directory)) as (process, address):
            yield _started(address, process, begun)


def _started(
    address: str, process: subprocess.Popen[bytes], begun: float, ready_seconds: float | None = None
) -> RunningBroker:
    return RunningBroker(
        ready_seconds=ready_seconds,
        address=address,
        process_id=process.pid,
        start_seconds=time.perf_counter() - begun,
        idle_bytes=resident_bytes(process.pid),
    )


@contextmanager
def speaking(*module: str, data: Path) -> Generator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    """Runs `python -m module ...`: it prints a JSON line when it is ready and ends when its stdin closes."""
    with subprocess.Popen(
        [sys.executable, "-m", *module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(data)
    ) as process:
        assert process.stdin is not None, "its input is ours"
        assert process.stdout is not None, "its output is ours"
        try:
            ready = next((line for line in process.stdout if line.startswith(b"{")), None)
            if ready is None:
                raise RuntimeError(f"{' '.join(module)} ended before it was ready")
            yield process, json.loads(ready)
            process.stdin.close()
            process.wait(END_SECONDS_MAX)
        finally:
            process.kill()  # no effect if it has ended


def _ask_for_metadata(host: str, port: int) -> None:
    """Sends one request without a client and reads the response."""
    request = Metadata(topics=None)
    frames = FrameReader()
    with socket.create_connection((host, port), timeout=ANSWER_SECONDS_MAX) as connection:
        connection.sendall(b"".join(encode_request(request, correlation_id=0)))
        while chunk := connection.recv(65_536):
            for frame in frames.feed(chunk):
                decode_reply(frame, API_BY_REQUEST[Metadata])
                return
    raise ConnectionError(f"{host}:{port} closed the connection instead of answering")


def cpu_seconds(process_id: int) -> float | None:
    """CPU seconds of all threads so far, by POSIX clock_getcpuclockid; None on macOS, which lacks it."""
    clock_of = getattr(ctypes.CDLL(None), "clock_getcpuclockid", None)
    if clock_of is None:
        return None
    clock = ctypes.c_int()
    if clock_of(process_id, ctypes.byref(clock)):
        return None
    return time.clock_gettime(clock.value)


def resident_bytes(process_id: int, *, peak: bool = False) -> int | None:
    """The memory of a process now, or its peak since the start, by Linux's /proc; None elsewhere."""
    status = Path("/proc", str(process_id), "status")
    if not status.exists():
        return None
    wanted = "VmHWM:" if peak else "VmRSS:"
    kibibytes = next(line.split()[1] for line in status.read_text().splitlines() if line.startswith(wanted))
    return int(kibibytes) * 1024
