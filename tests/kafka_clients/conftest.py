"""A broker for Kafka's own tools."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import fencepost
from tests.kafka_bridge.conftest import IMPATIENT


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    """The address of a broker."""
    with fencepost.Broker(override=IMPATIENT) as broker:
        yield broker.bootstrap_servers
