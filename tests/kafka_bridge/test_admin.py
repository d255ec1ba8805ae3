"""Kafka's administrators, most of them on a real socket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace as NameSpace
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest

import fencepost
from fencepost.broker.log_config import SETTABLE
from fencepost.broker.node import Node
from fencepost.broker.settings import NodeSettings
from fencepost.kafka_bridge import configs, data, describe
from fencepost.kafka_bridge.exchange import Answer, Context, Exchange
from fencepost.kafka_bridge.fetch_session import FetchSession
from fencepost.kafka_bridge.wire import encode_response
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import ConfigOperation
from fencepost.protocol.wire_protocol import SessionRoom
from tests.journal.test_manifest import calls_of
from tests.kafka_bridge.kafka_python import KAFKA
from tests.kafka_bridge.test_topic_ids import in_context

TOPIC = "orders"
kafka: Any = confluent_kafka.admin  # its stubs leave most types open
Code: Any = confluent_kafka.KafkaError


@pytest.fixture
def broker() -> Iterator[fencepost.Broker]:
    with fencepost.Broker() as running:
        yield running


@pytest.fixture
def admin(broker: fencepost.Broker) -> Any:
    made = kafka.AdminClient({"bootstrap.servers": broker.address})
    done(made.create_topics([kafka.NewTopic(TOPIC, 2, 1, config={"retention.ms": "1000"})]))
    return made


def done(futures: dict[Any, Any]) -> Any:
    """The one result of a call."""
    (future,) = futures.values()
    return future.result(10)


def refused(futures: dict[Any, Any]) -> tuple[int, str]:
    with pytest.raises(confluent_kafka.KafkaException) as problem:
        done(futures)
    error = problem.value.args[0]
    return error.code(), error.str()


def configs_of(admin: Any, name: str, kind: str = "TOPIC") -> dict[str, Any]:
    return done(admin.describe_configs([kafka.ConfigResource(kafka.ConfigResource.Type[kind], name)]))


def test_settings_are_described_with_their_sources(admin: Any, broker: fencepost.Broker) -> None:
    of_topic = configs_of(admin, TOPIC)
    assert (of_topic["retention.ms"].value, of_topic["retention.ms"].source) == ("1000", 1)
    assert (of_topic["cleanup.policy"].value, of_topic["cleanup.policy"].source) == ("delete", 5)
    assert list(of_topic["retention.ms"].synonyms) == ["retention.ms"]
    of_broker = configs_of(admin, "1", "BROKER")
    assert of_broker["message.max.bytes"].value == "1048588"
    assert of_broker["message.max.bytes"].is_read_only
    listeners, advertised = of_broker["listeners"], of_broker["advertised.listeners"]
    assert (listeners.value, listeners.source) == (f"PLAINTEXT://{broker.address}", 4)
    assert (advertised.value, advertised.source) == (None, 5)


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [("TOPIC", "absent", Code.UNKNOWN_TOPIC_OR_PART), ("TOPIC", "a/b", Code.TOPIC_EXCEPTION)],
)
def test_what_has_no_settings_is_refused(admin: Any, kind: str, name: str, error: int) -> None:
    resource = kafka.ConfigResource(kafka.ConfigResource.Type[kind], name)
    assert refused(admin.describe_configs([resource]))[0] == error


def test_a_group_has_no_settings(admin: Any) -> None:
    resource = kafka.ConfigResource(kafka.ConfigResource.Type.GROUP, "readers")
    assert done(admin.describe_configs([resource])) == {}


def alter(admin: Any, name: str, change: str, operation: str, value: str | None, kind: str = "TOPIC") -> Any:
    how = kafka.AlterConfigOpType[operation]
    entry = kafka.ConfigEntry(change, value, incremental_operation=how)
    resource = kafka.ConfigResource(kafka.ConfigResource.Type[kind], name, incremental_configs=[entry])
    return admin.incremental_alter_configs([resource])


def test_settings_are_changed(admin: Any) -> None:
    done(alter(admin, TOPIC, "retention.ms", "SET", "5"))
    done(alter(admin, TOPIC, "cleanup.policy", "APPEND", "compact"))
    found = configs_of(admin, TOPIC)
    assert (found["retention.ms"].value, found["cleanup.policy"].value) == ("5", "delete,compact")
    done(alter(admin, TOPIC, "retention.ms", "DELETE", None))
    assert configs_of(admin, TOPIC)["retention.ms"].value == "604800000"
    assert refused(alter(admin, TOPIC, "retention.ms", "SET", "x"))[0] == Code.INVALID_CONFIG
    assert refused(alter(admin, "1", "message.max.bytes", "SET", "9", "BROKER"))[0] == Code.INVALID_REQUEST
    told = (Code.INVALID_REQUEST, "only topics and brokers have settings, not resources of the type GROUP")
    assert refused(alter(admin, "readers", "consumer.session.timeout.ms", "SET", "9", "GROUP")) == told


def test_settings_are_replaced(admin: Any) -> None:
    """By AlterConfigs, which older tools and kafkajs use."""
    resource = kafka.ConfigResource(kafka.ConfigResource.Type.TOPIC, TOPIC)
    resource.set_config("segment.ms", "5")
    with pytest.warns(DeprecationWarning, match="alter_configs"):
        done(admin.alter_configs([resource]))
    found = configs_of(admin, TOPIC)
    assert (found["segment.ms"].value, found["retention.ms"].value) == ("5", "604800000")


def test_a_topic_gets_more_partitions(admin: Any) -> None:
    grow = admin.create_partitions
    done(grow([kafka.NewPartitions(TOPIC, 5)], validate_only=True))
    assert len(admin.list_topics(TOPIC, 10).topics[TOPIC].partitions) == 2
    done(grow([kafka.NewPartitions(TOPIC, 5)]))
    assert len(admin.list_topics(TOPIC, 10).topics[TOPIC].partitions) == 5
    assert refused(grow([kafka.NewPartitions(TOPIC, 5)]))[0] == Code.INVALID_PARTITIONS
    assert refused(grow([kafka.NewPartitions("absent", 5)]))[0] == Code.UNKNOWN_TOPIC_OR_PART
    assert refused(grow([kafka.NewPartitions(TOPIC, 6, [[2]])]))[0] == Code.INVALID_REPLICA_ASSIGNMENT
    assert refused(grow([kafka.NewPartitions(TOPIC, 7, [[1]])]))[0] == Code.INVALID_REPLICA_ASSIGNMENT
    done(grow([kafka.NewPartitions(TOPIC, 7, [[1], [1]])]))
    assert len(admin.list_topics(TOPIC, 10).topics[TOPIC].partitions) == 7


def test_the_partitions_of_a_topic_are_assigned(admin: Any) -> None:
    new = kafka.NewTopic("assigned", 2, replica_assignment=[[1], [1]])
    done(admin.create_topics([new]))
    found = admin.list_topics("assigned", 10).topics["assigned"].partitions
    assert {number: each.replicas for number, each in found.items()} == {0: [1], 1: [1]}


def test_a_topic_can_be_tried(admin: Any) -> None:
    done(admin.create_topics([kafka.NewTopic("tried", 1, 1)], validate_only=True))
    assert "tried" not in admin.list_topics(timeout=10).topics
    again = admin.create_topics([kafka.NewTopic(TOPIC, 1, 1)], validate_only=True)
    assert refused(again)[0] == Code.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize("enable", [True, False])
def test_a_topic_that_a_producer_names_is_created_if_the_broker_allows_it(enable: bool) -> None:
    settings = {"auto.create.topics.enable": enable, "num.partitions": 3}
    with fencepost.Broker(override=settings) as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.address})
        admin = kafka.AdminClient({"bootstrap.servers": broker.address})
        producer.list_topics("named", 10)
        done(admin.create_topics([kafka.NewTopic("given", -1, 1)]))
        found = admin.list_topics(timeout=10).topics
        assert {name: len(topic.partitions) for name, topic in found.items()} == (
            {"named": 3, "given": 3} if enable else {"given": 3}
        )


@pytest.mark.parametrize("may_create", [True, False])
def test_only_who_may_create_topics_creates_one_by_its_name(may_create: bool) -> None:
    allow = '["Describe", "Create"]' if may_create else '["Describe"]'
    acls = f'[[acl]]\nprincipal = "User:*"\ntopic_prefix = "n"\nallow = {allow}\n'
    with fencepost.Broker(acls=acls) as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.address})
        _, named, misnamed = (producer.list_topics(name, 10).topics[name] for name in ("new", "new", "n w"))
        assert misnamed.error.code() == Code.TOPIC_EXCEPTION
        found = None if named.error is None else named.error.code()
        assert found == (None if may_create else Code.TOPIC_AUTHORIZATION_FAILED)


@pytest.mark.parametrize("is_only_checked", [True, False])
@pytest.mark.parametrize("may_see", [True, False])
def test_who_creates_a_topic_is_shown_what_it_has_become(
    may_see: bool, is_only_checked: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """KIP-525; the settings only with the right to see them. That it is missing is no attempt to see them."""
    allow = ["Create", "Describe", "DescribeConfigs"] if may_see else ["Create"]
    acls = f'[[acl]]\nprincipal = "User:*"\ntopic = "new"\nallow = {allow}\n'
    wanted = {"new": {"num_partitions": 3, "replication_factor": 1, "configs": {"retention.ms": "1000"}}}
    with fencepost.Broker(acls=acls) as broker:
        creator: Any = KAFKA.KafkaAdminClient(bootstrap_servers=broker.address)
        with closing(creator):
            (topic,) = creator.create_topics(wanted, validate_only=is_only_checked)["topics"]
    shown = (topic["num_partitions"], topic["replication_factor"], topic["topic_config_error_code"])
    if may_see:
        retention = topic["configs"]["retention.ms"]
        assert (shown, retention["value"]) == ((3, 1, 0), "1000")
        assert retention["config_source"] == "DYNAMIC_TOPIC_CONFIG"
    else:
        assert (shown, "configs" in topic) == ((-1, -1, Code.TOPIC_AUTHORIZATION_FAILED), False)
    assert "may not" not in caplog.text


def test_the_cluster_is_described(admin: Any) -> None:
    cluster = admin.describe_cluster().result(10)
    assert cluster.cluster_id == "fencepost"
    assert [node.id for node in cluster.nodes] == [cluster.controller.id]


@pytest.mark.parametrize(("endpoint", "error"), [(2, 114), (3, 115)])
def test_only_brokers_are_described(endpoint: int, error: int) -> None:
    found = in_context(describe.describe_cluster(NameSpace(endpoint_type=endpoint), 1)).respond(())
    assert found["error_code"] == error
    assert encode_response(60, 1, 1, found)
    assert encode_response(60, 2, 1, found)


# --- pages of partitions -----------------------------------------------------------------------------------


def page(topics: dict[str, int], names: list[str], limit: int, cursor: tuple[str, int] | None) -> Any:
    """What a client gets that asks for these names, of a cluster with these topics."""
    asked = NameSpace(
        topics=[NameSpace(name=name) for name in names],
        response_partition_limit=limit,
        cursor=None if cursor is None else NameSpace(topic_name=cursor[0], partition_index=cursor[1]),
    )
    exchange = in_context(describe.describe_topic_partitions(asked, 0))
    if not exchange.requests:
        return exchange.respond(())
    (request,) = exchange.requests
    assert isinstance(request, m.Metadata)
    wanted = topics if request.topics is None else request.topics
    found = [
        m.TopicMetadata(
            topic=name,
            error=ErrorCode.NONE if name in topics else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            is_internal=False,
            partitions=tuple(
                m.PartitionMetadata(partition=number, leader_id=1, leader_epoch=0)
                for number in range(topics.get(name, 0))
            ),
        )
        for name in wanted
    ]
    body = m.MetadataReply(cluster_id="", controller_id=1, nodes=(), topics=tuple(found))
    return exchange.respond((Answer(ErrorCode.NONE, body),))


@pytest.mark.parametrize(
    ("names", "limit", "cursor", "shown", "following"),
    [
        (["t", "v"], 2_000, None, "t0 t1 t2 v0", None),
        ([], 2_000, None, "t0 t1 t2 v0", None),
        (["t"], 2, None, "t0 t1", ("t", 2)),
        (["t", "v"], 3, ("t", 1), "t1 t2 v0", None),
        (["t", "v"], 3, None, "t0 t1 t2", ("v", 0)),
        (["t"], 0, None, "t0", ("t", 1)),
        (["t"], -1, None, "t0", ("t", 1)),
        (["t"], 10, ("t", 77), "t", None),
        ([], 10, ("a", 0), "t0 t1 t2 v0", None),
        (["t"], 10, ("u", 0), "t INVALID_REQUEST", None),
        (["t"], 10, ("t", -1), "t INVALID_REQUEST", None),
        (["t", "v"], 10, ("u", 0), "t INVALID_REQUEST v INVALID_REQUEST", None),
        (["nope", "u"], 10, None, "nope UNKNOWN_TOPIC_OR_PARTITION u UNKNOWN_TOPIC_OR_PARTITION", None),
    ],
)
def test_partitions_are_described_page_by_page(
    names: list[str], limit: int, cursor: tuple[str, int] | None, shown: str, following: Any
) -> None:
    """The pages are those of Apache Kafka 4.3.1."""
    found = page({"t": 3, "v": 1}, names, limit, cursor)
    words = [
        word
        for topic in found["topics"]
        for word in (
            [f"{topic['name']}{each['partition_index']}" for each in topic["partitions"]]
            or [topic["name"], *([topic["error_code"].name] if topic["error_code"] else [])]
        )
    ]
    assert " ".join(words) == shown
    after = found["next_cursor"]
    assert (None if after is None else (after["topic_name"], after["partition_index"])) == following
    assert encode_response(75, 0, 1, found)


def test_the_end_of_a_leader_epoch_is_found() -> None:
    part = NameSpace(partition=1, current_leader_epoch=-1, leader_epoch=4)
    asked = NameSpace(topics=[NameSpace(topic=TOPIC, partitions=[part])])
    exchange = data.offset_for_leader_epoch(asked, 4)
    wanted = m.LeaderEpochPartition(topic=TOPIC, partition=1, leader_epoch=4)
    assert exchange.requests == (m.OffsetForLeaderEpoch(partitions=(wanted,)),)
    end = m.EpochEndOffset(topic=TOPIC, partition=1, error=ErrorCode.NONE, leader_epoch=3, end_offset=70)
    body = m.OffsetForLeaderEpochReply(partitions=(end,))
    for answer, offset in ((Answer(ErrorCode.NONE, body), 70), (Answer(ErrorCode.INVALID_REQUEST, None), -1)):
        found: Any = exchange.respond((answer,))
        assert found["topics"][0]["partitions"][0]["end_offset"] == offset
        assert all(encode_response(23, version, 1, found) for version in (2, 3, 4))


def test_the_settings_of_many_topics_are_replaced_without_a_look_at_each_setting_of_each() -> None:
    """One request may name 20,000 topics, and other clients wait for it."""
    node = Node(NodeSettings())

    def exchange_of(count: int) -> Exchange:
        wanted = NameSpace(name="retention.ms", value="1")
        resources = [
            NameSpace(resource_type=2, resource_name=f"topic-{number}", configs=[wanted])
            for number in range(count)
        ]
        asked = NameSpace(resources=resources, validate_only=True)
        translated: Any = configs.alter_configs(asked, 2)
        return translated(Context(node, FetchSession(SessionRoom(10))))

    (request,) = exchange_of(2).requests
    assert isinstance(request, m.IncrementalAlterConfigs)
    for topic in request.topics:
        assert [each.name for each in topic.changes if each.operation is ConfigOperation.SET] == [
            "retention.ms"
        ]
        assert {each.name for each in topic.changes} == {*SETTABLE}
        assert len(topic.changes) == len(SETTABLE)
    more = calls_of(lambda: exchange_of(101)) - calls_of(lambda: exchange_of(1))
    assert more < 100 * len(SETTABLE)
