"""The API table: Kafka's keys, each class once, every field with an annotation that the codec can read."""

from __future__ import annotations

from typing import get_args

import attrs

from fencepost.protocol import messages
from fencepost.protocol.messages import API_BY_KEY, API_BY_REQUEST, APIS, OWN_APIS, ReplyBody, Request

# org.apache.kafka.common.protocol.ApiKeys
KAFKA_KEYS = {
    "Produce": 0,
    "Fetch": 1,
    "ListOffsets": 2,
    "Metadata": 3,
    "OffsetCommit": 8,
    "OffsetFetch": 9,
    "FindCoordinator": 10,
    "JoinGroup": 11,
    "Heartbeat": 12,
    "LeaveGroup": 13,
    "SyncGroup": 14,
    "DescribeGroups": 15,
    "ListGroups": 16,
    "SaslHandshake": 17,
    "ApiVersions": 18,
    "CreateTopics": 19,
    "DeleteTopics": 20,
    "DeleteRecords": 21,
    "InitProducerId": 22,
    "OffsetForLeaderEpoch": 23,
    "AddPartitionsToTxn": 24,
    "AddOffsetsToTxn": 25,
    "EndTxn": 26,
    "WriteTxnMarkers": 27,
    "TxnOffsetCommit": 28,
    "DescribeAcls": 29,
    "DescribeConfigs": 32,
    "SaslAuthenticate": 36,
    "CreatePartitions": 37,
    "DeleteGroups": 42,
    "ElectLeaders": 43,
    "AlterPartitionReassignments": 45,
    "ListPartitionReassignments": 46,
    "IncrementalAlterConfigs": 44,
    "OffsetDelete": 47,
    "DescribeProducers": 61,
    "BrokerRegistration": 62,
    "DescribeTransactions": 65,
    "ListTransactions": 66,
    "AllocateProducerIds": 67,
    "ConsumerGroupHeartbeat": 68,
    "ConsumerGroupDescribe": 69,
}
OWN_KEYS = 10_000  # Fencepost's own messages have keys from here on


def test_every_api_has_kafkas_key_and_a_reply_of_its_name() -> None:
    assert {api.name: api.key for api in APIS if api.key < OWN_KEYS} == KAFKA_KEYS
    assert min(api.key for api in OWN_APIS) > OWN_KEYS
    for api in (*APIS, *OWN_APIS):
        assert api.reply.__name__ == f"{api.name}Reply"
        assert 0 <= api.minimum <= api.maximum
        assert API_BY_KEY[api.key] is api
        assert API_BY_REQUEST[api.request] is api


def test_the_unions_name_every_message_of_the_table() -> None:
    assert set(get_args(Request)) == {api.request for api in (*APIS, *OWN_APIS)}
    assert set(get_args(ReplyBody)) == {api.reply for api in (*APIS, *OWN_APIS)}


def test_messages_are_values() -> None:
    classes = [kind for kind in vars(messages).values() if isinstance(kind, type) and attrs.has(kind)]
    assert len(classes) > 2 * len(APIS)
    for kind in classes:
        assert kind.__eq__ is not object.__eq__, f"{kind.__name__} is not equal by its fields"
        assert kind.__hash__ is not None, f"{kind.__name__} has no hash"
        assert "__slots__" in vars(kind), f"{kind.__name__} takes any field"
