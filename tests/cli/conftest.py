"""What the tests of several commands begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost.broker.embedded import Broker
from fencepost.cli.application import run
from fencepost.client.shells.sync import Producer


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data directory that a broker left: a topic with three transactions of one record."""
    directory = tmp_path / "data"
    with Broker(str(directory)) as broker, Producer(broker.address, transactional_id="till") as producer:
        run(["topic", "create", "payments", "--bootstrap-server", broker.address])
        producer.init_transactions()
        for value in (b"one", b"two", b"three"):
            with producer.transaction():
                producer.send("payments", value)
    return directory
