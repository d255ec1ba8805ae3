"""The topics of a test."""

from __future__ import annotations

import re
from typing import Final

from fencepost.client.shells.sync import Admin
from fencepost.lab.hidden_clients import FIXTURE_CLIENT
from fencepost.testing.assertions import HasAddress

NAME_MAX: Final = 249  # Kafka's limit


def create_topic(broker: HasAddress, name: str, partitions: int = 1) -> str:
    """Creates a topic for a test, and returns its name: what a topic's name may not have becomes a dash."""
    topic = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:NAME_MAX].strip("-")
    with Admin(broker.address, client_id=FIXTURE_CLIENT) as admin:
        admin.create_topic(topic, partitions)
    return topic
