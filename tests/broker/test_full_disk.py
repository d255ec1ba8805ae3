"""A full disk: the error names it, it costs the logs that it strikes, and `produce` says why it waits."""

from __future__ import annotations

import re
from collections.abc import Generator

import attrs
import pytest

from fencepost import Admin, Broker, BrokerFailed, ErrorCode, Producer, RequestTimeout, TopicPartition
from fencepost.broker import embedded
from fencepost.broker.broker_settings import BrokerSettings
from fencepost.journal.power import Machine
from fencepost.journal.simulated import APPEND, SimulatedStorage
from tests.broker.disks import keeps_nothing
from tests.broker.test_lifecycle import EVENTS, committed, make_topic
from tests.cli.processes import started
from tests.topics import create_topic

OTHERS = "others"


@attrs.define
class FullDisk:
    """A disk without room for the files whose paths begin like this."""

    path: str | None = None
    storage: SimulatedStorage = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.storage = SimulatedStorage(keeps_nothing, breaks=self.breaks)

    def breaks(self, operation: str, path: str) -> bool:
        return operation == APPEND and self.path is not None and path.startswith(self.path)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    made = FullDisk()

    def machine_of(_settings: BrokerSettings) -> Machine:
        return Machine(made.storage)

    monkeypatch.setattr(embedded, "machine_of", machine_of)
    return made


@pytest.fixture
def broker(disk: FullDisk) -> Generator[Broker]:
    with Broker() as running:
        make_topic(running)
        create_topic(running.address, OTHERS)
        yield running
        disk.path = None


def test_it_costs_one_log_and_not_the_broker(
    broker: Broker, disk: FullDisk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.path = f"{EVENTS}/"
    with Producer(broker.address) as producer:
        waiting = producer.send(EVENTS.topic, b"1")
        producer.send(OTHERS, b"goes on").result()
        overdue: dict[TopicPartition, ErrorCode] = {}
        while overdue != {EVENTS: ErrorCode.KAFKA_STORAGE_ERROR}:
            overdue = producer.overdue(0)
        with pytest.raises(RequestTimeout):
            waiting.result(timeout_ms=0)
        disk.path = None
        waiting.result()
        assert producer.overdue(0) == {}
    assert committed(broker) == [b"1"]
    assert any(f"{EVENTS}: cannot write {EVENTS}/" in message for message in caplog.messages)


def test_the_true_cause_is_named_if_it_ends_the_broker(disk: FullDisk) -> None:
    broker = Broker().start()
    disk.path = ""
    with Admin(broker.address, default_api_timeout_ms=100) as admin, pytest.raises(RequestTimeout):
        admin.create_topic(OTHERS)
    with pytest.raises(BrokerFailed, match="the log of the cluster's metadata failed: cannot write"):
        broker.stop()


def test_produce_says_why_it_waits(broker: Broker, disk: FullDisk) -> None:
    disk.path = f"{EVENTS}/"
    with started("produce", EVENTS.topic, "--bootstrap-server", broker.address) as producing:
        assert producing.stdin is not None
        assert producing.stderr is not None
        producing.stdin.write("1\n")
        producing.stdin.flush()
        producing.stdin.close()
        producing.stdin = None
        said = producing.stderr.readline()
        assert re.fullmatch(
            rf"fencepost: {EVENTS}: no acknowledgement for 2 s: .* \([A-Z_]+\)\. "
            r"Retrying; press Ctrl-C to give up\n",
            said,
        )
        broker.kill()
        disk.path = None
        broker.restart()
        said, _ = producing.communicate()
        assert (said.splitlines()[0], producing.returncode) == (f"1 record written to {EVENTS.topic}", 0)
