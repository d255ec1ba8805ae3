"""Kafka's own tools against our broker: what they print."""

from __future__ import annotations

from tests.kafka_clients import tools
from tests.kafka_clients.tools import run


def test_a_topic_is_created_described_changed_and_deleted(servers: str) -> None:
    topics = (tools.TOPICS, "--bootstrap-server", servers)
    created = run(
        *topics, "--create", "--topic", "made", "--partitions", "2", "--config", "retention.ms=5000"
    )
    assert created == "Created topic made.\n"
    run(*topics, "--alter", "--topic", "made", "--partitions", "3")
    first, *partitions = run(*topics, "--describe", "--topic", "made").splitlines()
    assert "PartitionCount: 3\tReplicationFactor: 1\tConfigs: retention.ms=5000" in first
    assert [line.split("\t")[2:5] for line in partitions] == [
        [f"Partition: {number}", "Leader: 1", "Replicas: 1"] for number in range(3)
    ]
    run(*topics, "--delete", "--topic", "made")
    assert "made" not in run(*topics, "--list").split()
