"""The model of the metadata against the controller: both follow the same records, each in its own way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fencepost.broker.cluster.controller import Controller, apply, snapshot_of
from fencepost.log_model.metadata import ClusterModel
from fencepost.protocol.metadata_log import (
    BrokerRegistered,
    ClusterRecord,
    LeaderChanged,
    PartitionCreated,
    ProducerIdsAllocated,
    TopicConfigured,
    TopicCreated,
    TopicRemoved,
    new_topic_id,
)

NAMES = st.sampled_from(["a", "b"])
NUMBERS = st.integers(0, 3)


def follow(data: st.DataObject, state: Controller, number: int) -> tuple[ClusterRecord, ...]:
    """The records of one step of a controller."""
    name = data.draw(NAMES)
    topic = state.topics.get(name)
    steps = ["nodes", "producer ids", "snapshot"]
    steps += ["create"] if topic is None else ["settings", "leaders", "grow", "delete"]
    match data.draw(st.sampled_from(steps)):
        case "nodes":
            return (BrokerRegistered(data.draw(NUMBERS), broker_epoch=number, host=f"h{number}", port=9092),)
        case "producer ids":
            return (ProducerIdsAllocated(1, next_producer_id=state.next_producer_id + 1_000),)
        case "create":
            topic_id = new_topic_id(name, number=state.newest_topic_number + 1, created_ms=number)
            created = TopicCreated(name, topic_id=topic_id, created_ms=number)
            return created, *(_partition(topic_id, each, number) for each in range(1 + data.draw(NUMBERS)))
        case "settings":
            value = data.draw(st.sampled_from([None, "1", "2"]))
            return (TopicConfigured(name, name=data.draw(st.sampled_from("xy")), value=value),)
        case "leaders" if topic is not None:
            partition = data.draw(st.sampled_from(sorted(topic.leaders)))
            epoch = topic.leaders[partition].leader_epoch + 1
            leader_id = data.draw(NUMBERS)
            return (
                LeaderChanged(topic.topic_id, partition=partition, leader_id=leader_id, leader_epoch=epoch),
            )
        case "grow" if topic is not None:
            return (_partition(topic.topic_id, len(topic.leaders), number),)
        case "delete" if topic is not None:
            return (TopicRemoved(topic.topic_id),)
        case _:
            return snapshot_of(state, offset=number, node_id=1)


def _partition(topic_id: bytes, partition: int, leader_epoch: int) -> PartitionCreated:
    return PartitionCreated(topic_id, partition=partition, leader_id=1, leader_epoch=leader_epoch)


@given(st.data(), st.integers(1, 30))
def test_a_snapshot_of_the_controller_says_what_the_model_says(data: st.DataObject, steps: int) -> None:
    state, model = Controller(), ClusterModel()
    for number in range(1, steps + 1):
        records = follow(data, state, number)
        apply(state, records)
        assert [model.take(record) for record in records] == [True] * len(records)
        snapshot = ClusterModel()
        for record in snapshot_of(state, offset=number, node_id=1):
            snapshot.take(record)
        assert snapshot.facts() == model.facts()
