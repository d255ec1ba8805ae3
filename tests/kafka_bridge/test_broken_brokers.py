"""Stories with a broker that loses an answer, or dies."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fencepost
from tests.kafka_bridge.conftest import IMPATIENT
from tests.kafka_bridge.libraries import PATIENCE_S, Access, Library
from tests.kafka_bridge.story import Story


def test_a_lost_acknowledgement_does_not_double_a_record(library: Library) -> None:
    broker = fencepost.Broker(override=IMPATIENT, faults=["when node 1 sends Produce reply #2 do drop"])
    with broker, Story(library, Access(servers=broker.address), "t") as story:
        producer = story.producer()
        for value in (b"a", b"b", b"c"):
            producer.send(story.topic, value)
            producer.flush()
        assert [fault.struck for fault in broker.faults.list()] == [1]
        assert story.texts() == ["a", "b", "c"]


def test_a_commit_outlives_a_broker_that_dies_after_its_decision(library: Library, tmp_path: Path) -> None:
    fault = "when coordinator of t.p appends PREPARE_COMMIT do pause node 1"
    with (
        fencepost.BrokerProcess(tmp_path, faults=[fault]) as broker,
        Story(library, Access(servers=broker.address), "t") as story,
        ThreadPoolExecutor() as threads,
    ):
        producer = story.producer("p")
        producer.begin()
        for value, partition in ((b"a", 0), (b"b", 1), (b"c", 0)):
            producer.send(story.topic, value, partition=partition)
        producer.flush()
        committing = threads.submit(producer.commit)
        broker.faults.list()[0].wait_until_struck(PATIENCE_S)
        broker.kill()
        broker.restart()
        committing.result(PATIENCE_S)
        assert story.texts(partition=0) == ["a", "c"]
        assert story.texts(partition=1) == ["b"]
