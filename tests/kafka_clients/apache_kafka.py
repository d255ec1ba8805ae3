"""A cluster of Apache Kafka on loopback: one or two brokers, the first of which is the controller, too."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import attrs

from tests.kafka_bridge.confluent import ADMIN
from tests.kafka_clients import tools

START_S: Final = 120.0  # a bound on a hang
CLUSTER_ID: Final = "aWxsLWZlbmNlcG9zdC1pZA"
USER, PASSWORD = "alice", "secret"
LOGIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
SETTINGS: Final = {
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.login.plain.sasl.jaas.config": (f'{LOGIN_MODULE} required user_{USER}="{PASSWORD}";'),
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
    # So that the files say soon what the brokers know.
    "replica.high.watermark.checkpoint.interval.ms": "50",
    "log.flush.start.offset.checkpoint.interval.ms": "50",
    "log.cleaner.backoff.ms": "50",
    "log.index.size.max.bytes": "100000",
    # So that the metadata begins with a snapshot.
    "metadata.log.max.record.bytes.between.snapshots": "2000",
}


@attrs.frozen
class Cluster:
    """The processes of its brokers."""

    address: str
    login_address: str
    """Where users log in to the first broker."""
    directories: Sequence[Path]
    processes: Sequence[subprocess.Popen[bytes]]

    def stop(self) -> None:
        """Stop the brokers in order, the controller last."""
        for process in reversed(self.processes):
            process.terminate()
            process.wait(START_S)


@contextmanager
def running(home: Path, *, brokers: int = 2, more: Mapping[str, str] | None = None) -> Generator[Cluster]:
    """Runs a new cluster for the block, with `more` settings than SETTINGS."""
    nodes = range(1, brokers + 1)
    *ports, controller, login = _free_ports(brokers + 2)
    files = [home / f"server{node}.properties" for node in nodes]
    for node, port, file in zip(nodes, ports, files, strict=True):
        settings = {**_settings(home, node, port, controller, login), **(more or {})}
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        tools.process("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(file))
    address = f"127.0.0.1:{ports[0]}"
    with ExitStack() as stack:
        processes = [stack.enter_context(subprocess.Popen(_command(file))) for file in files]
        try:
            admin = ADMIN.AdminClient({"bootstrap.servers": address, "log_level": 0})
            while len(admin.list_topics(timeout=START_S).brokers) < brokers:
                for process in processes:
                    assert process.poll() is None, "a broker has died"
            directories = [home / f"data{node}" for node in nodes]
            yield Cluster(address, f"127.0.0.1:{login}", directories, processes)
        finally:
            for process in processes:
                process.kill()


def _settings(home: Path, node: int, port: int, controller_port: int, login_port: int) -> Mapping[str, str]:
    listener, controller = f"PLAINTEXT://127.0.0.1:{port}", f"127.0.0.1:{controller_port}"
    for_clients = f"{listener},LOGIN://127.0.0.1:{login_port}"
    is_controller = node == 1
    return SETTINGS | {
        "node.id": str(node),
        "process.roles": "broker,controller" if is_controller else "broker",
        "controller.quorum.voters": f"1@{controller}",
        "listeners": f"{for_clients},CONTROLLER://{controller}" if is_controller else listener,
        "advertised.listeners": for_clients if is_controller else listener,
        "log.dirs": str(home / f"data{node}"),
    }


def _command(settings: Path) -> list[str]:
    return tools.java("kafka.Kafka", str(settings))


def _free_ports(count: int) -> list[int]:
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [server.getsockname()[1] for server in servers]
    finally:
        for server in servers:
            server.close()
