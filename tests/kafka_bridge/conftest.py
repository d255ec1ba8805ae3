"""A library, a broker, and a story between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Final

import pytest

import fencepost
from tests.kafka_bridge.aio import Aio, LoopThread
from tests.kafka_bridge.confluent import Confluent
from tests.kafka_bridge.java import NAMES, Java
from tests.kafka_bridge.kafka_python import KafkaPython
from tests.kafka_bridge.kafka_socket import KafkaSocket, connected
from tests.kafka_bridge.libraries import Access, Library
from tests.kafka_bridge.story import Story

LIBRARIES = ("confluent-kafka", "aiokafka", "kafka-python")
IMPATIENT: Final = {
    "group.initial.rebalance.delay.ms": 0,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 50,
}


@pytest.fixture(scope="session")
def servers() -> Iterator[str]:
    """A broker for all stories that leave it running."""
    with fencepost.Broker(override=IMPATIENT) as broker:
        yield broker.address


@pytest.fixture(scope="session")
def named() -> Iterator[Callable[[str], Library]]:
    """Libraries by name."""
    loop, javas = LoopThread(), [Java(name) for name in NAMES]
    libraries: list[Library] = [Confluent(), Aio(loop), KafkaPython(), *javas]
    yield {library.name: library for library in libraries}.__getitem__
    for java in javas:
        java.close()
    loop.close()


@pytest.fixture
def wire(broker: fencepost.Broker) -> Iterator[KafkaSocket]:
    """A connection to the broker of a test module."""
    with closing(connected(broker.address)) as wire:
        yield wire


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tell each story once with each library."""
    if "library" in metafunc.fixturenames:
        chosen = NAMES if metafunc.config.getoption("java") else LIBRARIES
        metafunc.parametrize("library", chosen, indirect=True)


@pytest.fixture
def library(request: pytest.FixtureRequest, named: Callable[[str], Library]) -> Iterator[Library]:
    """The library that a story is told with. Nothing that it starts outlives the story."""
    chosen = named(request.param)
    yield chosen
    assert chosen.left() == []


def own_topic(request: pytest.FixtureRequest) -> str:
    """The name of a topic that only this test uses, with this library."""
    name: str = request.node.name.removeprefix("test_")
    return name.translate(str.maketrans("[]", "..")).strip(".")[-200:]


@pytest.fixture
def story(library: Library, servers: str, request: pytest.FixtureRequest) -> Iterator[Story]:
    """A story with a topic and a group of its own."""
    with Story(library, Access(servers=servers), own_topic(request)) as told:
        yield told
