"""Stories with a broker that loses an answer, or dies."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import fencepost
from tests.cli.processes import broker as broker_process
from tests.cli.processes import read_ready, started
from tests.kafka_bridge.conftest import IMPATIENT
from tests.kafka_bridge.libraries import PATIENCE_S, Access, Library
from tests.kafka_bridge.story import Story


def test_a_lost_acknowledgement_does_not_double_a_record(library: Library) -> None:
    broker = fencepost.Broker(node=IMPATIENT, faults=["when node 1 sends Produce reply #2 do drop"])
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
        broker_process(tmp_path, "--fault", fault) as (held, address),
        ExitStack() as successors,
        Story(library, Access(servers=address), "t") as story,
        ThreadPoolExecutor() as threads,
    ):
        producer = story.producer("p")
        producer.begin()
        for value, partition in ((b"a", 0), (b"b", 1), (b"c", 0)):
            producer.send(story.topic, value, partition=partition)
        producer.flush()
        committing = threads.submit(producer.commit)
        assert held.stdout is not None
        point = json.loads(held.stdout.readline())["point"]
        assert point == "coordinator of t.p appends PREPARE_COMMIT"
        held.kill()
        held.wait(PATIENCE_S)
        port = address.rpartition(":")[2]
        read_ready(successors.enter_context(started("serve", str(tmp_path), "--port", port)))
        committing.result(PATIENCE_S)
        assert story.texts(partition=0) == ["a", "c"]
        assert story.texts(partition=1) == ["b"]
