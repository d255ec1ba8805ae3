"""Stories with a broker that loses an answer."""

from __future__ import annotations

import json

import attrs
import pytest

import fencepost
from tests.kafka_bridge.conftest import IMPATIENT
from tests.kafka_bridge.libraries import Access, Library
from tests.kafka_bridge.story import Story


def test_a_lost_acknowledgement_does_not_double_a_record(
    library: Library, capfd: pytest.CaptureFixture[str]
) -> None:
    fault = "when node 1 sends Produce reply #2 do drop"
    broker = fencepost.Broker(node=IMPATIENT)
    broker.settings = attrs.evolve(broker.settings, faults=(fault,))
    with broker, Story(library, Access(servers=broker.address), "t") as story:
        producer = story.producer()
        for value in (b"a", b"b", b"c"):
            producer.send(story.topic, value)
            producer.flush()
        assert json.loads(capfd.readouterr().out) == {"lost_reply": "ProduceReply"}
        assert story.texts() == ["a", "b", "c"]
