"""Kafka's own tools, as processes."""

from __future__ import annotations

import subprocess

from tests.cli.processes import PATIENCE_S
from tests.kafka_bridge.java import JARS, JAVA_OPTIONS

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
ACLS = "org.apache.kafka.tools.AclCommand"
CONFIGS = "kafka.admin.ConfigCommand"
ELECTION = "org.apache.kafka.tools.LeaderElectionCommand"
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
DUMP_LOG = "org.apache.kafka.tools.DumpLogSegments"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
API_VERSIONS = "org.apache.kafka.tools.BrokerApiVersionsCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
ALL_GROUPS = "org.apache.kafka.tools.GroupsCommand"
PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER_PERFORMANCE = "org.apache.kafka.tools.ConsumerPerformance"
COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"
VERIFIABLE_PRODUCER = "org.apache.kafka.tools.VerifiableProducer"
VERIFIABLE_CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"


def java(*arguments: str) -> list[str]:
    """The command line of a Java process with Kafka's jars."""
    return ["java", *JAVA_OPTIONS, "-cp", f"{JARS}/*", *arguments]


def process(tool: str, *arguments: str, stdin: str = "", status: int = 0) -> subprocess.CompletedProcess[str]:
    """A tool that has run to its end, with this exit status."""
    ran = subprocess.run(
        java(tool, *arguments), input=stdin, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert ran.returncode == status, ran.stdout + ran.stderr
    return ran


def run(tool: str, *arguments: str, stdin: str = "") -> str:
    """What a tool prints."""
    return process(tool, *arguments, stdin=stdin).stdout
