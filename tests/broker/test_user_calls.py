"""An error of a user's observer is the user's: the broker goes on, and whoever stops it gets the error."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fencepost import Broker, ObserverFailed, Producer, Recording
from fencepost.faults.phrases import Point
from fencepost.testing.topic import create_topic
from tests.broker.test_faults import stored


class Mistaken(Exception):
    """A bug of the user."""


def serve(broker: Broker) -> None:
    """What clients get from the broker, whatever its observer does."""
    create_topic(broker, "t", 1)
    with Producer(broker.address) as producer:
        producer.send("t", b"a").result()
    assert stored(broker) == [b"a"]


def fail(_point: Point) -> None:
    raise Mistaken("in the watcher")


def fail_as_pytest(_point: Point) -> None:
    pytest.fail("in the watcher")


@pytest.mark.parametrize("hear", [fail, fail_as_pytest])
def test_an_error_of_a_watcher_costs_no_client_anything(hear: Callable[[Point], None]) -> None:
    broker = Broker().start()
    broker.faults.watch(hear)
    serve(broker)
    with pytest.raises(
        ObserverFailed, match=r"the function that watches .* raised .*: in the watcher"
    ) as found:
        broker.stop()
    assert isinstance(found.value.__cause__, Mistaken | pytest.fail.Exception)
    broker.stop()  # it was told once


@pytest.mark.parametrize("call", ["started", "asked", "answered", "appended", "stepped"], ids=str)
def test_an_error_of_an_observer_costs_no_client_anything(call: str) -> None:
    def raise_it(*_: object) -> None:
        raise Mistaken(call)

    recording = type("Faulty", (Recording,), {"__slots__": (), call: raise_it})()
    with pytest.raises(ObserverFailed, match=f"the observer raised Mistaken: {call}"):
        with Broker(observer=recording) as broker:
            serve(broker)


def test_the_error_of_a_test_comes_before_that_of_its_observer() -> None:
    def test() -> None:
        with Broker() as broker:
            broker.faults.watch(fail)
            serve(broker)
            raise Mistaken("in the test")

    with pytest.raises(Mistaken, match="in the test") as found:
        test()
    (note,) = found.value.__notes__
    assert "in the watcher" in note


def test_a_watcher_that_has_failed_may_be_removed() -> None:
    broker = Broker().start()
    end = broker.faults.watch(fail)
    serve(broker)
    end()
    with pytest.raises(ObserverFailed):
        broker.stop()
