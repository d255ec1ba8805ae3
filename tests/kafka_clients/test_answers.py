"""Requests with one unusual value each, in every version that is served: Apache Kafka's answers and ours.

Rule: both brokers get the same requests in the same order. What may differ is in docs/fidelity.md, and here
in CHOSEN and DIFFERENT.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import product
from types import NoneType
from typing import Any, Final, cast, get_args, get_origin
from uuid import UUID

import attrs
import pytest
from kio.index import load_request_schema
from kio.schema.index import api_key_map

import fencepost
from fencepost.kafka_bridge.apis import SERVED, ServedApi
from fencepost.protocol.batches import build_batch
from fencepost.protocol.errors import NO_ERROR
from fencepost.protocol.kafka_records import encode_record
from tests.kafka_bridge.confluent import ADMIN, KAFKA
from tests.kafka_bridge.kafka_socket import KafkaSocket, connected
from tests.kafka_bridge.libraries import PATIENCE_S
from tests.kafka_bridge.samples import bytes_of
from tests.kafka_bridge.test_odd_requests import ask, topic_id
from tests.kafka_clients import apache_kafka
from tests.kafka_clients.apache_kafka import SETTINGS

INIT_PRODUCER_ID: Final = 22
# What ApiVersions says is in clients.md. EndTxn and WriteTxnMarkers change what later requests find. kio does
# not read a DescribeTransactions of a transaction that has not started.
LEFT_OUT: Final = frozenset({"api_versions", "end_txn", "write_txn_markers", "describe_transactions"})
APIS: Final = {
    name: SERVED[key] for key, name in sorted(api_key_map.items()) if key in SERVED and name not in LEFT_OUT
}
REQUESTS: Final = (*APIS, "create_topics with assignments", "create_partitions with assignments")
"""Names of valid requests; the first word is that of the API."""
ALIKE: Final = (
    "auto.create.topics.enable",
    "offsets.topic.num.partitions",
    "transaction.state.log.num.partitions",
)
"""The settings that both brokers have, since answers show them."""
TOPIC, OTHER, ABSENT, GROUP, TRANSACTIONAL_ID = "orders", "pay", "absent", "readers", "till"
SENT_MS: Final = time.time_ns() // 1_000_000  # of records that retention keeps
CLOSED: Final = "the broker closes the connection"

CHOSEN: Final = frozenset(
    {
        "aborted_transactions",  # null or empty where there is none
        "broker_id",
        "cluster_id",
        "controller_id",
        "documentation",
        "error_message",
        "host",
        "isr_nodes",
        "leader_id",
        "log_dir",
        "member_id",
        "node_id",
        "port",
        "producer_id",
        "records",
        "replica_nodes",
        "session_id",
        "throttle_time",
        "total_bytes",  # -1 if the broker does not know it
        "usable_bytes",
    }
)
"""The fields of replies that a broker chooses."""
NAMES: Final = frozenset({"name", "topic", "topic_id"})
SET_OTHERWISE: Final = frozenset({"min.insync.replicas", "segment.index.bytes"})
"""Settings of topics: Kafka itself sets the first one for its cluster (KIP-966), and SETTINGS the other."""

WAITING: Final = frozenset({"timeout", "max_wait"})
"""The fields of requests that say how long to wait. They get no positive numbers: whether that long suffices
depends on the machine.
"""


def _is_negative(number: int) -> bool:
    return number < 0


def _is_one_of(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value in values


DIFFERENT: Final[Mapping[tuple[str, str], Callable[[Any], bool]]] = {
    ("produce", "acks"): _is_one_of(0),  # no answer is wanted
    ("produce", "records"): _is_one_of(None),  # Kafka never answers
    ("fetch", "max_bytes"): _is_negative,
    ("fetch", "partition_max_bytes"): _is_negative,
    ("fetch", "replica_id"): lambda number: number >= 0,  # followers, of which there are none here
    ("fetch", "current_leader_epoch"): lambda epoch: epoch < -1,
    ("fetch", "session_id"): _is_one_of(-(2**31), 2**31 - 1),
    ("fetch", "last_fetched_epoch"): lambda epoch: epoch > 0,
    ("metadata", "name"): _is_one_of(None),
    ("describe_log_dirs", "topics"): _is_one_of(None),  # the records of a transaction have other sizes
    ("join_group", "member_id"): _is_one_of(""),  # joins, and the next one waits
    ("offset_for_leader_epoch", "leader_epoch"): lambda epoch: epoch < -1,
    ("add_partitions_to_txn", "transactions"): _is_one_of(()),  # Kafka never answers
    ("alter_configs", "resources"): lambda entries: len(entries) > 1,  # Kafka never answers
    ("create_partitions", "count"): _is_one_of(2**31 - 1),
    ("incremental_alter_configs", "config_operation"): lambda number: number not in range(4),
    ("describe_topic_partitions", "partition_index"): _is_one_of(2**31 - 1),  # Kafka adds to it
}
"""By API and field: the values to which the answers differ."""


def _edges(bits: int) -> tuple[int, ...]:
    return (-(2 ** (bits - 1)), -2, -1, 0, 1, 2 ** (bits - 1) - 1)


UNUSUAL: Final[Mapping[str, Any]] = {
    "string": ("", " ", ABSENT, "a/b", "ü"),
    "bool": (False, True),
    "int8": _edges(8),
    "int16": _edges(16),
    "int32": _edges(32),
    "int64": _edges(64),
    "timedelta_i32": _edges(32),
    "timedelta_i64": _edges(64),
    "uuid": (UUID(int=0), UUID(int=7)),
    "bytes": (b"", b"\0"),
    "records": (b"", b"x" * 80),
}


@attrs.define
class Peer:
    """A broker, the id that it has chosen for the topic, and the valid requests to it."""

    address: str
    wire: KafkaSocket
    topic_id: UUID | None
    requests: Mapping[str, Mapping[str, Any]]


def valid_requests(
    topic_id: UUID | None, producer_id: int, producer_epoch: int
) -> Mapping[str, Mapping[str, Any]]:
    """Valid requests of each API, with the fields of all its versions."""
    topic = {"name": TOPIC, "topic": TOPIC, "topic_id": topic_id}
    owner = {
        "transactional_id": TRANSACTIONAL_ID,
        "producer_id": producer_id,
        "producer_epoch": producer_epoch,
    }
    batch = bytes(build_batch(encode_record(None, b"value", None, 0, 0), base_timestamp=SENT_MS))
    committed = {
        "partition_index": 0,
        "committed_offset": 5,
        "committed_leader_epoch": -1,
        "committed_metadata": "m",
    }
    retention = {"name": "retention.ms", "value": "100000", "config_operation": 0}
    resource = {"resource_type": 2, "resource_name": OTHER, "configs": [retention]}
    partitions = [{"name": TOPIC, "partitions": [0]}]
    member = {"group_id": GROUP, "generation_id": 1, "member_id": "m", "group_instance_id": None}
    offsets = {"group_id": GROUP, "member_id": None, "member_epoch": -1}
    fetched = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": 0,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 1_000,
    }
    new_topic = {
        "name": "new",
        "num_partitions": 1,
        "replication_factor": 1,
        "assignments": [],
        "configs": [retention],
    }
    assigned = [{"partition_index": 0, "broker_ids": [1]}]
    places = {"num_partitions": -1, "replication_factor": -1, "assignments": assigned}
    return {
        "produce": {
            "transactional_id": None,
            "acks": -1,
            "timeout": 5_000,
            "topic_data": [{**topic, "partition_data": [{"index": 0, "records": batch}]}],
        },
        "fetch": {
            "replica_id": -1,
            "max_wait": 0,
            "min_bytes": 0,
            "max_bytes": 1_000,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [{**topic, "partitions": [fetched]}],
            "forgotten_topics_data": [{**topic, "partitions": [1]}],
            "rack_id": "",
        },
        "list_offsets": {
            "replica_id": -1,
            "isolation_level": 0,
            "timeout": 1_000,
            "topics": [
                {**topic, "partitions": [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}]}
            ],
        },
        "metadata": {
            "topics": [{"name": TOPIC, "topic_id": None}],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": True,
            "include_cluster_authorized_operations": False,
        },
        "offset_commit": {
            "group_id": GROUP,
            "generation_id_or_member_epoch": -1,
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "retention_time": -1,
            "topics": [{**topic, "partitions": [committed]}],
        },
        "offset_fetch": {
            "group_id": GROUP,
            "topics": [{**topic, "partition_indexes": [0]}],
            "require_stable": True,
            "groups": [{**offsets, "topics": [{**topic, "partition_indexes": [0]}]}],
        },
        "find_coordinator": {"key_type": 0, "key": GROUP, "coordinator_keys": [GROUP]},
        "join_group": {
            **member,
            "session_timeout": 6_000,
            "rebalance_timeout": 6_000,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"m"}],
            "reason": "r",
        },
        "heartbeat": member,
        "leave_group": {**member, "members": [{"member_id": "m", "group_instance_id": None, "reason": "r"}]},
        "sync_group": {
            **member,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [{"member_id": "m", "assignment": b"a"}],
        },
        "describe_groups": {"groups": [GROUP], "include_authorized_operations": True},
        "list_groups": {"states_filter": ["Empty"], "types_filter": ["classic"]},
        "sasl_handshake": {"mechanism": "PLAIN"},
        "create_topics": {"topics": [new_topic], "timeout": 5_000, "validate_only": True},
        "create_topics with assignments": {
            "topics": [{**new_topic, **places}],
            "timeout": 5_000,
            "validate_only": True,
        },
        "delete_topics": {
            "topic_names": [ABSENT],
            "topics": [{"name": ABSENT, "topic_id": None}],
            "timeout": 5_000,
        },
        "delete_records": {
            "topics": [{**topic, "partitions": [{"partition_index": 0, "offset": 0}]}],
            "timeout": 5_000,
        },
        "init_producer_id": {
            "transactional_id": "another",
            "transaction_timeout": 1_000,
            "producer_id": -1,
            "producer_epoch": -1,
        },
        "offset_for_leader_epoch": {
            "replica_id": -1,
            "topics": [
                {**topic, "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]}
            ],
        },
        "add_partitions_to_txn": {
            **{f"v3_and_below_{name}": value for name, value in owner.items()},
            "v3_and_below_topics": partitions,
            "transactions": [{**owner, "verify_only": True, "topics": partitions}],
        },
        "add_offsets_to_txn": {**owner, "group_id": GROUP},
        "txn_offset_commit": {
            **owner,
            "group_id": GROUP,
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{**topic, "partitions": [committed]}],
        },
        "describe_acls": {
            "resource_type_filter": 1,
            "resource_name_filter": None,
            "pattern_type_filter": 1,
            "principal_filter": None,
            "host_filter": None,
            "operation": 1,
            "permission_type": 1,
        },
        "describe_configs": {
            "resources": [
                {"resource_type": 2, "resource_name": TOPIC, "configuration_keys": ["retention.ms"]}
            ],
            "include_synonyms": True,
            "include_documentation": False,
        },
        "alter_configs": {"resources": [resource], "validate_only": True},
        "describe_log_dirs": {"topics": [{"topic": TOPIC, "partitions": [0]}]},
        "sasl_authenticate": {"auth_bytes": b"\0a\0b"},
        "create_partitions": {
            "topics": [{"name": TOPIC, "count": 5, "assignments": None}],
            "timeout": 5_000,
            "validate_only": True,
        },
        "create_partitions with assignments": {
            "topics": [{"name": TOPIC, "count": 3, "assignments": [{"broker_ids": [1]}]}],
            "timeout": 5_000,
            "validate_only": True,
        },
        "delete_groups": {"groups_names": [ABSENT]},
        "incremental_alter_configs": {"resources": [resource], "validate_only": True},
        "elect_leaders": {
            "election_type": 0,
            "topic_partitions": [{"topic": TOPIC, "partitions": [0, 2]}],
            "timeout": 5_000,
        },
        "alter_partition_reassignments": {
            "timeout": 5_000,
            "allow_replication_factor_change": True,
            "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "replicas": [1]}]}],
        },
        "list_partition_reassignments": {
            "timeout": 5_000,
            "topics": [{"name": TOPIC, "partition_indexes": [0]}],
        },
        "offset_delete": {
            "group_id": ABSENT,
            "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0}]}],
        },
        "describe_cluster": {
            "include_cluster_authorized_operations": True,
            "endpoint_type": 1,
            "include_fenced_brokers": False,
        },
        "describe_producers": {"topics": [{"name": TOPIC, "partition_indexes": [1]}]},
        "list_transactions": {
            "state_filters": ["Dead"],
            "producer_id_filters": [77],
            "duration_filter": -1,
            "transactional_id_pattern": "x",
        },
        "consumer_group_heartbeat": {
            "group_id": "beating",
            "member_id": "m",
            "member_epoch": 5,
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout": 5_000,
            "subscribed_topic_names": [TOPIC],
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "topic_partitions": [],
        },
        "consumer_group_describe": {"group_ids": [ABSENT], "include_authorized_operations": True},
        "describe_topic_partitions": {
            "topics": [{"name": TOPIC}],
            "response_partition_limit": 5,
            "cursor": {"topic_name": TOPIC, "partition_index": 0},
        },
    }


# --- unusual values ----------------------------------------------------------------------------------------

Place = tuple[str | int, ...]
"""Where a field is: names of fields, and indexes in lists."""


def unusual(schema: Any, values: Mapping[str, Any], above: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Each field of a request with each value that it gets in turn."""
    for field in fields(schema):
        if field.name not in values:
            continue
        place, value, kind = (*above, field.name), values[field.name], field.type
        if NoneType in get_args(kind):
            yield place, None
            (kind,) = (each for each in get_args(kind) if each is not NoneType)
        if get_origin(kind) is tuple:
            yield from _unusual_lists(place, value or (), get_args(kind)[0], field)
        elif is_dataclass(kind):
            yield from unusual(kind, value, place)
        else:
            given = UNUSUAL[field.metadata["kafka_type"]]
            yield from ((place, each) for each in given if field.name not in WAITING or each < 1)


def _unusual_lists(place: Place, values: Any, entry: Any, field: Any) -> Iterator[tuple[Place, Any]]:
    yield place, ()
    yield place, (*values, *values)
    if not is_dataclass(entry):
        yield from ((place, (*values, each)) for each in UNUSUAL[field.metadata["kafka_type"]])
    elif values:
        yield from unusual(entry, values[0], (*place, 0))


def changed(values: Any, place: Place, value: Any) -> Any:
    """The values with another one in this place."""
    result = at = copy.deepcopy(values)
    for step in place[:-1]:
        at = at[step]
    at[place[-1]] = value
    return result


# --- two brokers -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[Peer, Peer]]:
    """Apache Kafka and Fencepost, which have the same topics, groups and transactional ids."""
    override = {name: SETTINGS[name] for name in ALIKE}
    with (
        apache_kafka.running(tmp_path_factory.mktemp("kafka"), brokers=1) as kafka,
        fencepost.Broker(override=override) as ours,
    ):
        peers = prepared(kafka.address), prepared(ours.address)
        yield peers
        for peer in peers:
            peer.wire.close()


def prepared(address: str) -> Peer:
    """A broker to which the requests are valid."""
    servers = {"bootstrap.servers": address, "log_level": 0}
    topics = [ADMIN.NewTopic(name, 2, 1) for name in (TOPIC, OTHER)]
    admin = ADMIN.AdminClient(servers)
    for created in admin.create_topics(topics).values():
        created.result(PATIENCE_S)
    plain = KAFKA.Producer(servers)
    for topic, partition in product((TOPIC, OTHER), (0, 1)):
        plain.produce(topic, b"value", partition=partition, timestamp=SENT_MS)
    assert plain.flush(PATIENCE_S) == 0, "each partition has a leader now"
    KAFKA.Producer({**servers, "transactional.id": TRANSACTIONAL_ID}).init_transactions(PATIENCE_S)
    consumer = KAFKA.Consumer({**servers, "group.id": GROUP})
    consumer.commit(offsets=[KAFKA.TopicPartition(TOPIC, 0, 1)], asynchronous=False)
    consumer.close()
    wire = connected(address)
    identity = ask(
        wire,
        INIT_PRODUCER_ID,
        4,
        transactional_id=TRANSACTIONAL_ID,
        transaction_timeout=60_000,
        producer_id=-1,
        producer_epoch=-1,
    )
    assert identity.error_code == NO_ERROR
    chosen = topic_id(wire)
    requests = valid_requests(chosen, identity.producer_id, identity.producer_epoch)
    return Peer(address, wire, chosen, requests)


def answer(peer: Peer, name: str, version: int, place: Place, value: Any) -> Any:
    """What a broker answers to a request with this value, without what it chooses."""
    values, api_key = changed(peer.requests[name], place, value), served(name).key
    try:
        request = bytes_of(load_request_schema(api_key, version), values)
        reply = peer.wire.ask_bytes(api_key, version, request)
    except (EOFError, ConnectionError):
        peer.wire.close()
        peer.wire = connected(peer.address)
        return CLOSED
    return comparable(reply, peer)


def comparable(value: Any, peer: Peer) -> Any:
    """A part of a reply. In which order the entries of a list are, how often one is there, and how many
    entries a topic has does not count.
    """
    if is_dataclass(value):
        names = (field.name for field in fields(value) if field.name not in CHOSEN)
        return tuple((name, comparable(getattr(value, name), peer)) for name in names)
    if isinstance(value, tuple):
        return frozenset(each for entry in cast("tuple[Any, ...]", value) for each in _parts(entry, peer))
    if isinstance(value, UUID) and value not in UNUSUAL["uuid"]:
        return TOPIC if value == peer.topic_id else "the id of another topic"
    return value


def _parts(entry: Any, peer: Peer) -> Iterator[Any]:
    """An entry of a list with each of its own entries in turn; a topic without partitions is no part."""
    if getattr(entry, "name", None) in SET_OTHERWISE:
        return
    lists = [field.name for field in fields(entry) if _is_list(entry, field)] if is_dataclass(entry) else []
    if len(lists) != 1:
        yield comparable(entry, peer)
        return
    (name,) = lists
    rest = {field.name: getattr(entry, field.name) for field in fields(entry)}
    parts = [part for each in rest.pop(name) for part in _parts(each, peer)]
    alone = tuple((key, comparable(value, peer)) for key, value in rest.items() if key not in CHOSEN)
    yield from ((alone, part) for part in parts)
    if not parts and not rest.keys() <= NAMES:
        yield alone


def _is_list(entry: Any, field: Any) -> bool:
    return field.name not in CHOSEN and isinstance(getattr(entry, field.name), tuple)


def served(name: str) -> ServedApi:
    """The API of a request."""
    return APIS[name.partition(" ")[0]]


@pytest.mark.parametrize("name", REQUESTS)
def test_both_answer_alike(peers: tuple[Peer, Peer], name: str) -> None:
    different: list[str] = []
    api = served(name)
    for version in range(api.first, api.last + 1):
        schema = load_request_schema(api.key, version)
        changes = (unusual(schema, peer.requests[name]) for peer in peers)
        for each in zip(*changes, strict=True):  # they differ in ids of topics
            place, value = each[0]
            if DIFFERENT.get((name.partition(" ")[0], str(place[-1])), _is_one_of())(value):
                continue
            told = [answer(peer, name, version, *change) for peer, change in zip(peers, each, strict=True)]
            if told[0] != told[1]:
                different.append(f"version {version}, {place} = {value}:\n  {told[0]}\n  {told[1]}")
    assert not different, "\n".join(different)
