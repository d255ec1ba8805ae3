"""What a recording of a broker shows: the clients by name, what they asked, what became of it."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import confluent_kafka
import pytest

from fencepost import Broker, Consumer, Producer
from fencepost.lab import broker_recording as recording
from fencepost.lab.broker_recording import Recording
from fencepost.simulator.draw.fates import follow
from fencepost.simulator.world.history import Appended, Bounded, Coordinated, Sent, Struck
from fencepost.testing.topic import create_topic


def pay(broker: Broker, *values: bytes) -> None:
    with Producer(broker.address, transactional_id="pay", client_id="shop") as producer:
        producer.init_transactions()
        for value in values:
            with producer.transaction():
                producer.send("orders", value, partition=0)


def test_a_transaction_is_drawn_from_request_to_marker() -> None:
    seen = Recording()
    with Broker(observer=seen) as broker:
        create_topic(broker, "orders", 1)
        pay(broker, b"A")
    history = seen.history("a test")
    assert history.participants == ("shop", "broker")
    labels = [event.label for event in history.events if isinstance(event, Sent)]
    assert labels[:4] == [
        "InitProducerId pay",
        "InitProducerId NONE 0/0",
        "Produce orders-0 A 0/0",
        "Produce NONE @0",
    ]
    assert labels[4] == "EndTxn COMMIT 0/0"
    states = [event.record.state.title for event in history.events if isinstance(event, Coordinated)]
    assert states == ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit"]
    assert [event.label for event in history.events if isinstance(event, Appended)] == ["A", ""]
    assert [event for event in history.events if isinstance(event, Bounded)][-1].last_stable_offset == 2
    assert all(message.arrived is not None for message in follow(history.events).values())


def test_the_table_and_the_drawing_name_it() -> None:
    seen = Recording()
    with Broker(observer=seen) as broker:
        create_topic(broker, "orders", 1)
        pay(broker, b"A", b"B")
    table = seen.table("orders are paid")
    assert table.startswith("orders are paid\n")
    assert "EndTxn COMMIT 0/0" in table
    short = seen.table(events_max=4)
    assert "events: the first" in short
    assert len(short.splitlines()) < len(table.splitlines())
    ET.fromstring(seen.svg())


def test_kafkas_clients_have_lanes_of_their_own() -> None:
    seen = Recording()
    with Broker(observer=seen) as broker:
        create_topic(broker, "orders", 1)
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": broker.address, "client.id": "the C client"}
        )
        producer.produce("orders", b"A")
        assert producer.flush(30) == 0
        pay(broker, b"B")
    assert seen.history().participants == ("the C client", "shop", "broker")
    assert "Produce orders-0 A" in seen.table()


def test_faults_kills_and_starts_are_drawn_where_they_happen() -> None:
    seen = Recording()
    with Broker(observer=seen) as broker:
        create_topic(broker, "orders", 1)
        broker.faults.add("when shop sends Produce do drop")
        broker.faults.add("when shop sends Produce #2 do hold until after 1 ms")
        broker.faults.add("when broker sends EndTxn reply to shop do crash broker until after 1 ms")
        pay(broker, b"A")
        broker.kill()
        broker.restart()
        broker.power_cut()
        broker.restart()
    events = seen.history().events
    struck = [event for event in events if isinstance(event, Struck)]
    assert [event.label for event in struck] == (
        ["drop", "hold", "release", "crash", "restart", "crash", "restart", "crash", "restart"]
    )
    messages = follow(events)
    dropped, held = messages[struck[0].number or 0], messages[struck[1].number or 0]
    assert dropped.because == "its connection breaks"
    assert held.event.label == dropped.event.label
    assert held.arrived is not None
    assert held.arrived > events.index(struck[2])


@pytest.mark.parametrize("action", ["crash broker", "cut power of broker"])
def test_no_reply_leaves_a_broker_that_is_down(action: str) -> None:
    """Nor is one drawn that was about to leave: it died with the broker."""
    seen = Recording()
    fault = f"when broker sends EndTxn reply to shop do {action} until after 50 ms"
    with Broker(sync="commit", observer=seen, faults=[fault]) as broker:
        create_topic(broker, "orders", 1)
        pay(broker, b"A")
    told = [
        event.label if isinstance(event, Struck) else event.source
        for event in seen.history().events
        if isinstance(event, Struck) or (isinstance(event, Sent) and event.label.startswith("EndTxn"))
    ]
    down = told.index("crash" if action == "crash broker" else "crash: power is cut")
    assert told[down - 1] == "shop"
    assert "broker" not in told[down : told.index("restart")]
    assert told[-1] == "broker", "the retry is answered"


def test_readers_and_fixtures_are_not_drawn() -> None:
    seen = Recording()
    with Broker(observer=seen) as broker:
        create_topic(broker, "orders", 1)
        with Consumer(broker.address, group_id="g") as consumer:
            consumer.subscribe(["orders"])
            consumer.poll(0)
    assert {event.source for event in seen.history().events if isinstance(event, Sent)} <= {
        "client",
        "broker",
    }


def test_a_long_recording_keeps_its_last_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "EVENTS_KEPT", 50)
    seen = Recording()
    with Broker(observer=seen) as broker:
        create_topic(broker, "orders", 1)
        pay(broker, *(b"%d" % number for number in range(50)))
    history = seen.history()
    assert len(history.events) <= 50
    assert f"{seen.left_out:,} earlier events are not kept" in seen.table()
    assert follow(history.events)
    ET.fromstring(seen.svg())
