"""Kafka's own tools against our broker: what they print, and what they do."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import fencepost
from fencepost import TopicPartition
from fencepost.protocol.errors import ErrorCode
from tests.cli.test_transactions import OF_OLD, make_it_hang
from tests.kafka_bridge.confluent import Confluent
from tests.kafka_bridge.libraries import Access, Reported, poll_until
from tests.kafka_bridge.test_acls import ACLS
from tests.kafka_clients import tools
from tests.topics import create_topic


class Tools:
    """The tools, and the broker that they are for."""

    def __init__(self, servers: str) -> None:
        self.servers = servers

    def __call__(self, tool: str, *arguments: str, stdin: str = "") -> str:
        """What a tool prints."""
        return tools.run(tool, "--bootstrap-server", self.servers, *arguments, stdin=stdin)

    def refusal(self, tool: str, *arguments: str) -> str:
        """What a tool prints that fails."""
        return tools.process(tool, "--bootstrap-server", self.servers, *arguments, status=1).stdout

    def rows(self, tool: str, *arguments: str) -> list[dict[str, str]]:
        """The rows of the table that it prints, by the titles of the columns."""
        lines = [line.split() for line in self(tool, *arguments).splitlines() if line.strip()]
        titles, *rows = (line for line in lines if len(line) > 1 and line[0] != "Consumer")
        return [dict(zip(titles, row, strict=False)) for row in rows]

    def events(self, tool: str, *arguments: str) -> list[dict[str, Any]]:
        """The lines of JSON that it prints."""
        return [json.loads(line) for line in self(tool, *arguments).splitlines()]

    def create(self, topic: str, partitions: int = 1) -> None:
        """A topic."""
        create_topic(self.servers, topic, partitions)

    def write(self, topic: str, *lines: str) -> None:
        """Records, written by kafka-console-producer."""
        self(tools.CONSOLE_PRODUCER, "--topic", topic, stdin="".join(f"{line}\n" for line in lines))

    def read(self, topic: str, count: int, *options: str) -> list[str]:
        """What kafka-console-consumer prints."""
        reading = ("--topic", topic, "--from-beginning", "--max-messages", str(count))
        return self(tools.CONSOLE_CONSUMER, *reading, *options).splitlines()


@pytest.fixture(scope="module")
def kafka(servers: str) -> Tools:
    return Tools(servers)


def test_a_topic_is_created_described_changed_and_deleted(kafka: Tools) -> None:
    creating = ("--topic", "made", "--partitions", "2", "--config", "retention.ms=5000")
    assert kafka(tools.TOPICS, "--create", *creating) == "Created topic made.\n"
    kafka(tools.TOPICS, "--alter", "--topic", "made", "--partitions", "3")
    first, *partitions = kafka(tools.TOPICS, "--describe", "--topic", "made").splitlines()
    assert "PartitionCount: 3\tReplicationFactor: 1\tConfigs: retention.ms=5000" in first
    assert [line.split("\t")[2:5] for line in partitions] == [
        [f"Partition: {number}", "Leader: 1", "Replicas: 1"] for number in range(3)
    ]
    kafka(tools.TOPICS, "--delete", "--topic", "made")
    assert "made" not in kafka(tools.TOPICS, "--list").split()


def test_replicas_are_assigned_and_logs_measured(kafka: Tools) -> None:
    kafka(tools.TOPICS, "--create", "--topic", "placed", "--replica-assignment", "1,1")
    kafka(tools.TOPICS, "--alter", "--topic", "placed", "--partitions", "3", "--replica-assignment", "1,1,1")
    kafka.write("placed", "a")
    *_, described = kafka(tools.LOG_DIRS, "--describe", "--topic-list", "placed").splitlines()
    ((directory,),) = (broker["logDirs"] for broker in json.loads(described)["brokers"])
    assert directory["logDir"] == "memory"
    sizes = {part["partition"]: part["size"] for part in directory["partitions"]}
    assert sorted(sizes) == ["placed-0", "placed-1", "placed-2"]
    assert sorted(sizes.values())[:2] == [0, 0]


def test_the_console_writes_and_reads(kafka: Tools) -> None:
    kafka.create("console")
    shape = ("parse.key=true", "parse.headers=true", "key.separator=:")
    properties = (part for each in shape for part in ("--reader-property", each))
    written = "h:1\tk:v\nh:2,i:3\tl:w\n"
    kafka(tools.CONSOLE_PRODUCER, "--topic", "console", *properties, stdin=written)
    shown = ("print.key", "print.headers", "print.offset")
    options = (part for each in shown for part in ("--formatter-property", f"{each}=true"))
    assert kafka.read("console", 2, "--isolation-level", "read_committed", *options) == [
        "Offset:0\th:1\tk\tv",
        "Offset:1\th:2,i:3\tl\tw",
    ]


def test_a_group_is_described_reset_and_deleted(kafka: Tools) -> None:
    kafka.create("grouped")
    kafka.write("grouped", "a", "b", "c")
    assert kafka.read("grouped", 2, "--group", "readers") == ["a", "b"]
    assert "readers" in kafka(tools.GROUPS, "--list").split()
    of_group = ("--group", "readers")
    (row,) = kafka.rows(tools.GROUPS, "--describe", *of_group)
    assert (row["CURRENT-OFFSET"], row["LOG-END-OFFSET"], row["LAG"]) == ("2", "3", "1")
    resetting = ("--reset-offsets", "--topic", "grouped", "--to-earliest", "--execute")
    (row,) = kafka.rows(tools.GROUPS, *of_group, *resetting)
    assert (row["TOPIC"], row["NEW-OFFSET"]) == ("grouped", "0")
    assert kafka.read("grouped", 3, *of_group) == ["a", "b", "c"]
    kafka(tools.GROUPS, "--delete-offsets", *of_group, "--topic", "grouped")
    assert "CURRENT-OFFSET" not in kafka(tools.GROUPS, "--describe", *of_group)
    assert "successful" in kafka(tools.GROUPS, "--delete", *of_group)
    assert "readers" not in kafka(tools.GROUPS, "--list").split()


def test_the_members_of_a_group_are_described(kafka: Tools) -> None:
    kafka.create("joined", 2)
    both = {TopicPartition("joined", 0), TopicPartition("joined", 1)}
    with closing(Confluent().consumer(Access(servers=kafka.servers), "joined", group="members")) as member:
        poll_until(lambda: member.assignment() == both, member)
        of_group = ("--describe", "--group", "members")
        (row,) = kafka.rows(tools.GROUPS, *of_group, "--members", "--verbose")
        assert (row["HOST"], row["CLIENT-ID"], row["#PARTITIONS"]) == ("/127.0.0.1", "rdkafka", "2")
        state = kafka(tools.GROUPS, *of_group, "--state")
        assert re.search(r"\brange +Stable +1\b", state), state


def test_settings_are_changed_and_described(kafka: Tools) -> None:
    kafka.create("set")
    topic = ("--entity-type", "topics", "--entity-name", "set")
    kafka(tools.CONFIGS, *topic, "--alter", "--add-config", "retention.ms=5,cleanup.policy=[compact,delete]")
    described = kafka(tools.CONFIGS, *topic, "--describe")
    assert "retention.ms=5 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=5}" in described
    assert "cleanup.policy=compact,delete " in described
    kafka(tools.CONFIGS, *topic, "--alter", "--delete-config", "retention.ms")
    assert "retention.ms" not in kafka(tools.CONFIGS, *topic, "--describe")
    of_broker = kafka(tools.CONFIGS, "--entity-type", "brokers", "--entity-name", "1", "--describe", "--all")
    assert "  group.initial.rebalance.delay.ms=0 " in of_broker


def test_acls_are_listed_and_changed_in_their_file_only() -> None:
    with fencepost.Broker(acls=ACLS) as broker:
        kafka = Tools(broker.bootstrap_servers)
        listed = kafka(tools.ACLS, "--list", "--topic", "orders", "--principal", "User:alice")
        assert "resourceType=TOPIC, name=orders, patternType=LITERAL" in listed
        assert "(principal=User:alice, host=*, operation=READ, permissionType=ALLOW)" in listed
        assert kafka(tools.ACLS, "--list").count("(principal=") == ACLS.count("[[acl]]")
        alice = ("--topic", "orders", "--allow-principal", "User:alice")
        told = kafka.refusal(tools.ACLS, "--add", *alice, "--operation", "Write")
        assert "The node does not support CREATE_ACLS" in told
        told = kafka.refusal(tools.ACLS, "--remove", "--force", *alice, "--operation", "Read")
        assert "The node does not support DELETE_ACLS" in told


def test_a_broker_without_acls_says_so(kafka: Tools) -> None:
    assert f"SecurityDisabledException: {ErrorCode.SECURITY_DISABLED.meaning}" in kafka.refusal(
        tools.ACLS, "--list"
    )


def test_leaders_are_in_their_places_already(kafka: Tools, tmp_path: Path) -> None:
    kafka.create("led", 2)
    assignment = tmp_path / "assignment.json"
    partitions = [{"topic": "led", "partition": number, "replicas": [1]} for number in range(2)]
    assignment.write_text(json.dumps({"version": 1, "partitions": partitions}))
    assert kafka(tools.REASSIGN, "--list") == "No partition reassignments found.\n"
    moving = ("--reassignment-json-file", str(assignment))
    assert "Successfully started" in kafka(tools.REASSIGN, "--execute", *moving)
    verified = kafka(tools.REASSIGN, "--verify", *moving)
    assert all(f"Reassignment of partition led-{number} is completed" in verified for number in range(2))
    assert "reassignments are active" in kafka(tools.REASSIGN, "--cancel", *moving)
    preferred = ("--election-type", "preferred")
    assert kafka(tools.ELECTION, *preferred, "--all-topic-partitions") == ""
    assert "already elected" in kafka(tools.ELECTION, *preferred, "--topic", "led", "--partition", "1")
    told = kafka.refusal(tools.ELECTION, *preferred, "--topic", "absent", "--partition", "0")
    assert "UnknownTopicOrPartitionException" in told


def test_offsets_are_shown(kafka: Tools) -> None:
    kafka.create("long", 2)
    kafka.write("long", *map(str, range(5)))
    shown = {
        time: [line.split(":") for line in kafka(tools.OFFSETS, "--topic", "long", "--time", time).split()]
        for time in ("earliest", "latest")
    }
    assert shown["earliest"] == [["long", "0", "0"], ["long", "1", "0"]]
    assert sum(int(offset) for _, _, offset in shown["latest"]) == 5


def test_verifiable_clients_agree(kafka: Tools) -> None:
    kafka.create("verified")
    produced = kafka.events(tools.VERIFIABLE_PRODUCER, "--topic", "verified", "--max-messages", "1000")
    assert [each["offset"] for each in produced if each["name"] == "producer_send_success"] == list(
        range(1_000)
    )
    assert (produced[-1]["sent"], produced[-1]["acked"]) == (1_000, 1_000)
    reading = (
        "--topic",
        "verified",
        "--group-id",
        "v",
        "--reset-policy",
        "earliest",
        "--max-messages",
        "1000",
    )
    consumed = kafka.events(tools.VERIFIABLE_CONSUMER, *reading)
    assert sum(each["count"] for each in consumed if each["name"] == "records_consumed") == 1_000
    committed = [each for each in consumed if each["name"] == "offsets_committed"]
    assert all(each["success"] for each in committed)
    assert committed[-1]["offsets"] == [{"topic": "verified", "partition": 0, "offset": 1_000}]


def test_records_are_deleted(kafka: Tools, tmp_path: Path) -> None:
    kafka.create("cut")
    kafka.write("cut", "a", "b", "c")
    file = tmp_path / "offsets.json"
    file.write_text(json.dumps({"version": 1, "partitions": [{"topic": "cut", "partition": 0, "offset": 2}]}))
    deleted = kafka(tools.DELETE_RECORDS, "--offset-json-file", str(file))
    assert "partition: cut-0\tlow_watermark: 2" in deleted
    assert kafka.read("cut", 1) == ["c"]


def test_the_cluster_is_described(kafka: Tools) -> None:
    shown = tools.run(tools.CLUSTER, "cluster-id", "--bootstrap-server", kafka.servers)
    assert shown == "Cluster ID: fencepost\n"
    assert "EndTxn(26): 0 to 5 [usable: 5]" in kafka(tools.API_VERSIONS)
    features = kafka(tools.FEATURES, "describe").split("Feature: ")
    (transactions,) = (each for each in features if each.startswith("transaction.version"))
    assert "FinalizedVersionLevel: 2" in transactions


def test_performance_is_measured_with_transactions_that_are_copied(kafka: Tools) -> None:
    for topic in ("measured", "copied"):
        kafka.create(topic)
    writing = ("--topic", "measured", "--num-records", "2000", "--record-size", "10", "--throughput", "-1")
    assert kafka(tools.PRODUCER_PERFORMANCE, *writing).startswith("2000 records sent")
    copying = ("--broker-list", kafka.servers, "--input-topic", "measured", "--output-topic", "copied")
    sizes = ("--transaction-size", "100", "--max-messages", "2000", "--input-partition", "0")
    names = ("--transactional-id", "copier", "--consumer-group", "copiers", "--enable-random-aborts")
    assert '"remaining":0' in tools.run(tools.COPIER, *copying, *sizes, *names)
    transactional = ("--transactional-id", "measure", "--transaction-duration-ms", "20")
    kafka(tools.PRODUCER_PERFORMANCE, *writing, *transactional)
    committed = ("--command-property", "isolation.level=read_committed")
    for topic, count in (("copied", 2000), ("measured", 4000)):
        reading = ("--topic", topic, "--num-records", str(count), "--timeout", "60000", *committed)
        _, measured = kafka(tools.CONSUMER_PERFORMANCE, *reading).splitlines()
        assert measured.split(", ")[4] == str(count)
    (group,) = (row for row in kafka.rows(tools.ALL_GROUPS, "--list") if row["GROUP"] == "copiers")
    assert group["TYPE"] == "Classic"


def _listed_transaction(kafka: Tools, transactional_id: str) -> dict[str, str]:
    (row,) = (
        row for row in kafka.rows(tools.TRANSACTIONS, "list") if row["TransactionalId"] == transactional_id
    )
    return row


def test_transactions_are_listed_described_and_terminated(kafka: Tools) -> None:
    kafka.create("paid")
    with closing(Confluent().producer(Access(servers=kafka.servers), "till")) as producer:
        producer.begin()
        producer.send("paid", b"x")
        producer.flush()
        row = _listed_transaction(kafka, "till")
        assert (row["Coordinator"], row["TransactionState"]) == ("1", "Ongoing")
        (row,) = kafka.rows(tools.TRANSACTIONS, "describe", "--transactional-id", "till")
        assert (row["TransactionTimeoutMs"], row["TopicPartitions"]) == ("60000", "paid-0")
        kafka(tools.TRANSACTIONS, "forceTerminateTransaction", "--transactionalId", "till")
        with pytest.raises(Reported):
            producer.commit()
    assert _listed_transaction(kafka, "till")["TransactionState"] == "Empty"


def test_a_hanging_transaction_is_found_and_aborted() -> None:
    with fencepost.Broker(**OF_OLD) as broker:
        kafka = Tools(broker.bootstrap_servers)
        producer = make_it_hang(broker.address)
        at = ("--topic", "orders", "--partition", "0")
        (row,) = kafka.rows(tools.TRANSACTIONS, "find-hanging", "--broker-id", "1")
        assert (row["Topic"], row["Partition"], row["StartOffset"]) == ("orders", "0", "2")
        assert row["ProducerId"] == str(producer.producer_id)
        (row,) = kafka.rows(tools.TRANSACTIONS, "describe-producers", *at)
        assert row["CurrentTransactionStartOffset"] == "2"
        kafka(tools.TRANSACTIONS, "abort", *at, "--start-offset", "2")
        assert kafka.rows(tools.TRANSACTIONS, "find-hanging", "--broker-id", "1") == []
        kafka.write("orders", "after")
        assert kafka.read("orders", 2, "--isolation-level", "read_committed") == ["a", "after"]
