"""Apache Kafka on loopback: one process in KRaft mode that is broker and controller.

Rule: it runs as its own scripts start it, with Kafka's defaults, apart from what one broker without replicas
needs.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
from base64 import urlsafe_b64encode
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.loads import PARTITIONS

JARS_VARIABLE: Final = "KAFKA_JARS"  # the directory with Kafka's jars and those that they need
START_SECONDS_MAX: Final = 120.0
# KAFKA_HEAP_OPTS of kafka-server-start.sh and KAFKA_JVM_PERFORMANCE_OPTS of kafka-run-class.sh.
JVM_OPTIONS: Final = (
    "-Xms1G",
    "-Xmx1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
PROPERTIES: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={logs}
num.partitions={partitions}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


def is_installed() -> bool:
    """Whether there is Java, and the environment names a directory with jars."""
    return shutil.which("java") is not None and bool(os.environ.get(JARS_VARIABLE))


def format_directory(directory: Path) -> None:
    """Prepares a directory for a broker on two free ports."""
    port, controller = _free_ports()
    settings = directory / "server.properties"
    settings.write_text(
        PROPERTIES.format(port=port, controller=controller, logs=directory / "logs", partitions=PARTITIONS)
    )
    cluster_id = urlsafe_b64encode(b"\0" + secrets.token_bytes(15)).rstrip(b"=").decode()
    command = _java("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(settings))
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


@contextmanager
def running(directory: Path) -> Generator[tuple[subprocess.Popen[bytes], str]]:
    """Runs the broker of a prepared directory for the block; yields its process and address."""
    from confluent_kafka.admin import AdminClient

    settings = directory / "server.properties"
    lines = dict(line.split("=", 1) for line in settings.read_text().splitlines())
    address = lines["listeners"].split(",")[0].removeprefix("PLAINTEXT://")
    with subprocess.Popen(
        _java(*JVM_OPTIONS, "kafka.Kafka", str(settings)), stdout=subprocess.DEVNULL
    ) as process:
        try:
            AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=START_SECONDS_MAX)
            yield process, address
        finally:
            process.kill()  # its directory goes with it


def _java(*arguments: str) -> list[str]:
    jars = Path(os.environ[JARS_VARIABLE], "*")
    return ["java", "-cp", str(jars), *arguments]


def _free_ports() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]
