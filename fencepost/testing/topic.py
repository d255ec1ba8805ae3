"""The topic of a test: its name, and the broker that has it."""

from __future__ import annotations

import re
from typing import Final

from fencepost.client.shells.sync import Admin
from fencepost.testing.assertions import HasAddress

FIXTURE_CLIENT: Final = "fencepost-fixtures"
"""The client id under which fixtures work; what it asks is in no picture."""

NAME_MAX: Final = 200  # Kafka's limit is 249; a suffix must fit, too


class Topic(str):
    """The name of a topic, to be used wherever a name is; assertions read it from its `broker`."""

    __slots__ = ("broker", "partitions")

    broker: HasAddress
    partitions: int


def create_topic(broker: HasAddress, name: str, partitions: int) -> Topic:
    """Creates a topic for a test. What a topic's name may not have becomes a dash."""
    topic = Topic(re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:NAME_MAX].strip("-"))
    topic.broker, topic.partitions = broker, partitions
    with Admin(broker.address, client_id=FIXTURE_CLIENT) as admin:
        admin.create_topic(str(topic), partitions)
    return topic
