"""Each assertion passes what is right, and says what is wrong and where."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import pytest

import fencepost
from fencepost import Admin, Broker, Producer, Record, RequestTimeout, TopicPartition
from fencepost.client.admin import TransactionListing
from fencepost.testing import assertions
from fencepost.testing.assertions import LINES_MAX
from fencepost.testing.topic import create_topic


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker with two topics."""
    with Broker() as running:
        create_topic(running, "orders", 2)
        create_topic(running, "invoices", 1)
        yield running


def shop(broker: Broker, epoch_of: str = "shop") -> Producer:
    producer = Producer(broker.address, transactional_id=epoch_of)
    producer.init_transactions()
    return producer


def commit(producer: Producer, topic: str, *values: bytes) -> None:
    with producer.transaction():
        for value in values:
            producer.send(topic, value, key=value.lower(), partition=0)


def abort(producer: Producer, topic: str, *values: bytes) -> None:
    producer.begin_transaction()
    for value in values:
        producer.send(topic, value, key=value.lower(), partition=0)
    producer.flush()
    producer.abort_transaction()


def capital_key(record: Record) -> bytes:
    return record.key.upper()


# --- assert_exactly_once ------------------------------------------------------------------------------------


def test_a_power_cut_is_named_as_a_cause() -> None:
    """Records outside of a transaction are synced by `sync="all"` only."""
    with Broker(sync="commit") as broker:
        create_topic(broker, "orders", 1)
        with Producer(broker.address) as producer:
            producer.send("orders", b"A").result()
        broker.power_cut()
        broker.start()
        assert broker.has_lost_data
        with pytest.raises(AssertionError, match="give the broker sync='all'"):
            fencepost.assert_exactly_once([b"A"], "orders", broker=broker)
    with Broker(sync="commit") as broker:
        create_topic(broker, "orders", 1)
        with pytest.raises(AssertionError) as found:
            fencepost.assert_exactly_once([b"A"], "orders", broker=broker)
        assert "power" not in str(found.value)


def test_what_is_there_once_passes(broker: Broker) -> None:
    with shop(broker) as producer:
        commit(producer, "orders", b"A", b"B")
        commit(producer, "invoices", b"B", b"A")
        abort(producer, "invoices", b"A")
    fencepost.assert_exactly_once("orders", "invoices", broker=broker)
    fencepost.assert_exactly_once("orders", "invoices", by="key", broker=broker.address)
    fencepost.assert_exactly_once(
        TopicPartition("orders", 0), "invoices", by=("value", capital_key), broker=broker
    )


def test_a_lost_record_is_named_with_where_it_should_have_come_from(broker: Broker) -> None:
    with shop(broker) as producer:
        commit(producer, "orders", b"A", b"B")
        commit(producer, "invoices", b"A")
    with pytest.raises(AssertionError) as raised:
        fencepost.assert_exactly_once("orders", "invoices", broker=broker)
    assert str(raised.value) == (
        "invoices does not have each of orders exactly once: 1 lost\n"
        "  lost         B: expected from orders-0 offset 1 (producer 0 epoch 0); never written"
    )


def test_a_lost_record_that_was_aborted_says_so(broker: Broker) -> None:
    with shop(broker) as producer:
        abort(producer, "invoices", b"A")
    with pytest.raises(
        AssertionError, match=r"lost +A: .*aborted at invoices-0 offset 0 \(producer 0 epoch 0\)"
    ):
        fencepost.assert_exactly_once([b"A"], "invoices", broker=broker)


def test_a_duplicate_says_where_each_copy_stands_and_who_wrote_it(broker: Broker) -> None:
    with shop(broker) as first, shop(broker, "another") as second:
        commit(first, "invoices", b"A")
        commit(second, "invoices", b"A")
    with pytest.raises(AssertionError) as raised:
        fencepost.assert_exactly_once([b"A"], "invoices", broker=broker)
    assert str(raised.value).splitlines()[1:] == [
        "  duplicated   A: invoices-0 offset 0 (producer 0 epoch 0); invoices-0 offset 2 (producer 1 epoch 0)"
    ]


def test_an_output_without_an_input_is_unexpected() -> None:
    with pytest.raises(AssertionError, match="1 unexpected\n  unexpected   B: record 2 of those given"):
        fencepost.assert_exactly_once([b"A"], [b"A", b"B"])


def test_equal_inputs_need_as_many_outputs() -> None:
    fencepost.assert_exactly_once(["a", "a"], ["a", "a"])
    with pytest.raises(AssertionError, match="1 lost"):
        fencepost.assert_exactly_once(["a", "a"], ["a"])


def test_a_message_fits_a_screen() -> None:
    with pytest.raises(AssertionError) as raised:
        fencepost.assert_exactly_once([b"x" * 1_000 + b"%d" % number for number in range(500)], [])
    lines = str(raised.value).splitlines()
    assert lines[0].endswith("500 lost")
    assert lines[-1] == f"  ... and {500 - LINES_MAX} more"
    assert len(lines) == LINES_MAX + 2
    assert max(map(len, lines)) < 170


def test_a_topic_of_a_test_has_a_name_that_topics_may_have(broker: Broker) -> None:
    assert create_topic(broker, "test_of[a/b]", 3) == "test_of-a-b"


def test_a_topic_without_a_broker_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="'orders' has to be read from a broker: give the broker as broker="):
        fencepost.assert_exactly_once("orders", [])


def test_an_identity_that_is_not_hashable_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="not hashable"):
        fencepost.assert_exactly_once([[b"a list"]], [])


@pytest.mark.parametrize("inputs", [[b"a"], []])
def test_an_unknown_identity_is_a_value_error(inputs: list[bytes]) -> None:
    with pytest.raises(ValueError, match="by is 'name'"):
        fencepost.assert_exactly_once(inputs, [], by="name")  # type: ignore[arg-type] - the point of the test


def test_records_without_an_identity_are_not_counted_as_equal(broker: Broker) -> None:
    with shop(broker) as producer:
        commit(producer, "orders", b"A", b"B")
        producer.begin_transaction()
        producer.send_many("invoices", [b"x", b"y"])
        producer.commit_transaction()
    with pytest.raises(ValueError, match=r"by='key' gives None for invoices-0 offset 0 .*be told apart"):
        fencepost.assert_exactly_once("orders", "invoices", by="key", broker=broker)
    with pytest.raises(ValueError, match="by gives None for orders-0 offset 0"):
        fencepost.assert_exactly_once("orders", "invoices", by=lambda record: None, broker=broker)


def test_nothing_at_all_is_no_proof(broker: Broker) -> None:
    used_up = iter([b"A"])
    assert list(used_up) == [b"A"]
    with pytest.raises(AssertionError, match="inputs has no record, so nothing was tested"):
        fencepost.assert_exactly_once(used_up, "invoices", broker=broker)
    with pytest.raises(AssertionError, match="orders has no committed record, so nothing was tested"):
        fencepost.assert_exactly_once("orders", "invoices", broker=broker)
    fencepost.assert_exactly_once([], "invoices", broker=broker)


# --- the others ---------------------------------------------------------------------------------------------


def test_committed_records_are_the_expected_ones(broker: Broker) -> None:
    with shop(broker) as producer:
        commit(producer, "orders", b"A", b"B")
        abort(producer, "orders", b"C")
    fencepost.assert_committed("orders", [b"B", b"A"], broker=broker)
    with pytest.raises(
        AssertionError, match=r"(?s)1 lost, 1 unexpected.*lost +C: .*aborted at.*unexpected +B: "
    ):
        fencepost.assert_committed("orders", [b"A", b"C"], broker=broker)


def test_a_decided_topic_is_read_without_any_patience(broker: Broker) -> None:
    with shop(broker) as producer:
        commit(producer, "orders", b"A", b"B")
    fencepost.assert_committed("orders", [b"B", b"A"], broker=broker, timeout=0)


def test_a_stopped_broker_is_not_awaited_for_a_minute(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[int] = []

    def admin(address: str, *, client_id: str, default_api_timeout_ms: int) -> Admin:
        waits.append(default_api_timeout_ms)
        return Admin(address, client_id=client_id, default_api_timeout_ms=100)

    monkeypatch.setattr(assertions, "Admin", admin)
    address = broker.address
    broker.stop()
    with pytest.raises(RequestTimeout, match=r"no broker answered at 127\.0\.0\.1"):
        fencepost.assert_committed("orders", [], broker=address)
    with pytest.raises(RequestTimeout, match=r"no broker answered at 127\.0\.0\.1"):
        fencepost.assert_no_open_transactions(address)
    assert waits == [10_000, 10_000]


def test_one_value_is_not_taken_for_its_letters(broker: Broker) -> None:
    for given in ("abc", b"abc"):
        with pytest.raises(TypeError, match=r"expected=.* is one value .*: give \[b?'abc'\]"):
            fencepost.assert_committed("orders", given, broker=broker)
    with pytest.raises(TypeError, match=r"inputs=b'abc' is one value"):
        fencepost.assert_exactly_once(b"abc", "orders", broker=broker)
    with pytest.raises(TypeError, match=r"outputs=b'abc' is one value"):
        fencepost.assert_exactly_once("orders", b"abc", broker=broker)


def test_a_partition_that_does_not_exist_is_named_at_once(broker: Broker) -> None:
    with pytest.raises(fencepost.UnknownTopic, match=r"2 partitions \(0 to 1\); there is no partition 2"):
        fencepost.assert_committed(TopicPartition("orders", 2), [], broker=broker)


def test_expected_texts_and_written_bytes_do_not_look_the_same(broker: Broker) -> None:
    with shop(broker) as producer:
        commit(producer, "orders", b"1", b"2")
    with pytest.raises(AssertionError) as found:
        fencepost.assert_committed("orders", ["1", b"3"], broker=broker)
    assert str(found.value).splitlines()[1:] == [
        "  lost         '1': expected from record 1 of those given; never written",
        "  lost         3: expected from record 2 of those given; never written",
        "  unexpected   b'1': orders-0 offset 0 (producer 0 epoch 0)",
        "  unexpected   2: orders-0 offset 1 (producer 0 epoch 0)",
    ]


def test_an_open_transaction_fails_both_kinds(broker: Broker) -> None:
    fencepost.assert_no_open_transactions(broker)
    with shop(broker) as producer:
        producer.begin_transaction()
        producer.send("orders", b"A", partition=0).result()
        where = (
            r"shop: Ongoing, producer 0 epoch 0, in orders-0\n.* orders-0: since offset 0, producer 0 epoch 0"
        )
        with pytest.raises(AssertionError, match=where):
            fencepost.assert_no_open_transactions(broker, timeout=0)
        with pytest.raises(AssertionError, match=f"it is not decided yet what is committed.*\n.*{where}"):
            fencepost.assert_committed("orders", [], broker=broker, timeout=0)
        producer.abort_transaction()
    fencepost.assert_no_open_transactions(broker)


@pytest.mark.parametrize("is_expired", [False, True])
def test_a_transaction_that_ends_after_it_was_listed_is_not_open(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, *, is_expired: bool
) -> None:
    with shop(broker) as producer, fencepost.Admin(broker.address) as admin:
        producer.begin_transaction()
        producer.send("orders", b"A", partition=0).result()
        listed = admin.list_transactions()
        producer.commit_transaction()
    fencepost.assert_no_open_transactions(broker)
    if is_expired:
        listed = [attrs.evolve(each, transactional_id="expired") for each in listed]

    def earlier(*_: object, **__: object) -> list[TransactionListing]:
        return [*listed]

    monkeypatch.setattr(fencepost.Admin, "list_transactions", earlier)
    fencepost.assert_no_open_transactions(broker, timeout=0)
