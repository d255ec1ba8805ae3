"""What a broker logs, and under which level and fields; an embedded one is silent until logging is set up."""

import logging
import socket
import threading
from collections.abc import Iterator

import pytest

import fencepost
from fencepost.broker.contract import BecomeLeader, Outcome
from fencepost.broker.node import Node
from fencepost.broker.notices import LOGGERS, NOTICE_INTERVAL_MS, Notices
from fencepost.broker.settings import NodeSettings
from fencepost.broker.troubles import Trouble, TroubleKind
from fencepost.client.admin import AbortSpec
from tests.broker.wire import PATIENCE_S

POLLS_MAX = 300


class Heard(logging.Handler):
    """The entries of the log, as they come."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[logging.LogRecord] = []
        self.came = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self.came:
            self.entries.append(record)
            self.came.notify_all()

    def matching(self, text: str) -> list[logging.LogRecord]:
        return [entry for entry in self.entries if text in entry.getMessage()]

    def wait_for(self, text: str) -> logging.LogRecord:
        """The first entry with this text."""
        with self.came:
            assert self.came.wait_for(lambda: self.matching(text), PATIENCE_S), [
                each.getMessage() for each in self.entries
            ]
        return self.matching(text)[0]


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture(autouse=True)
def listening(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    log = logging.getLogger("fencepost")
    monkeypatch.setattr(log, "handlers", [*log.handlers, heard])
    before = log.level
    log.setLevel(logging.DEBUG)
    yield
    log.setLevel(before)  # which also forgets what loggers have found to be enabled


def seen(entry: logging.LogRecord) -> tuple[str, str]:
    return (entry.name, entry.levelname)


def test_a_zombie_and_its_heir_are_logged_with_their_id(heard: Heard) -> None:
    with fencepost.Broker() as broker, fencepost.Admin(broker.address) as admin:
        admin.create_topic("orders")
        with (
            fencepost.Producer(broker.address, transactional_id="till") as zombie,
            fencepost.Producer(broker.address, transactional_id="till", client_id="heir") as heir,
        ):
            zombie.init_transactions()
            zombie.begin_transaction()
            zombie.send("orders", b"x")
            zombie.flush()
            heir.init_transactions()
            with pytest.raises(fencepost.ProducerFenced):
                zombie.commit_transaction()
    replaced = heard.wait_for("a new producer has its transactional id and fences it")
    assert seen(replaced) == ("fencepost.transactions", "INFO")
    assert (replaced.__dict__["transactional_id"], replaced.__dict__["client_id"]) == ("till", "heir")
    refused = heard.wait_for("refused EndTxn of 'till' from 127.0.0.1:")
    assert seen(refused) == ("fencepost.transactions", "WARNING")
    assert refused.__dict__["transactional_id"] == "till"
    assert refused.__dict__["peer"] in refused.getMessage()


def test_decisions_are_logged(heard: Heard) -> None:
    often = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 10}
    with (
        fencepost.Broker(override=often) as broker,
        fencepost.Admin(broker.address) as admin,
        fencepost.Producer(broker.address, transactional_id="till", transaction_timeout_ms=500) as producer,
    ):
        admin.create_topic("orders")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"x")
        producer.commit_transaction()
        committed = heard.wait_for("is committed by its producer")
        producer.begin_transaction()
        producer.send("orders", b"y")
        producer.flush()
        producer.abort_transaction()
        aborted = heard.wait_for("is aborted by its producer")
        producer.begin_transaction()
        producer.send("orders", b"z")
        producer.flush()
        late = heard.wait_for("timed out after 500 ms")
    assert [seen(each) for each in (committed, aborted, late)] == [
        ("fencepost.transactions", level) for level in ("DEBUG", "INFO", "WARNING")
    ]
    assert late.__dict__["transactional_id"] == "till"
    assert not heard.matching("an administrator")


def test_a_marker_of_an_administrator_is_logged(heard: Heard) -> None:
    where = fencepost.TopicPartition("orders", 0)
    with fencepost.Broker() as broker, fencepost.Admin(broker.address) as admin:
        admin.create_topic("orders")
        with fencepost.Producer(broker.address, transactional_id="till") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("orders", b"x")
            producer.flush()
            (found,) = admin.describe_producers(where)
            spec = AbortSpec(
                partition=where,
                producer_id=found.producer_id,
                producer_epoch=found.producer_epoch,
                coordinator_epoch=max(found.coordinator_epoch, 0),
            )
            admin.abort_transaction(spec)
    said = heard.wait_for(
        f"an administrator ends the transaction of producer {found.producer_id} in orders-0"
    )
    assert seen(said) == ("fencepost.transactions", "WARNING")


def test_start_and_stop_are_logged(heard: Heard) -> None:
    with fencepost.Broker():
        assert heard.wait_for("node 1 is ready on 127.0.0.1:").levelname == "INFO"
    assert [entry.getMessage() for entry in heard.entries][-2:] == ["stopping", "stopped"]


def test_decided_transactions_that_a_start_finds_are_logged(heard: Heard) -> None:
    key = fencepost.TopicPartition("__transaction_state", 7)
    node = Node(NodeSettings())
    node.markers_due = {(key, "till"): 0, (key._replace(partition=8), "other"): 0}
    led = BecomeLeader(partition=key, leader_epoch=1)
    Notices(lambda: 0).step(BecomeLeader, led, Outcome([], [], []), node)
    assert heard.matching("__transaction_state-7: the coordinator finishes 1 transaction that was decided")


def test_troubles_have_the_level_of_their_kind(heard: Heard) -> None:
    notices = Notices(lambda: 0)
    for kind in TroubleKind:
        notices.trouble(Trouble.of(f"a trouble of kind {kind.value}", kind))
    assert [(entry.levelname, entry.getMessage()) for entry in heard.entries] == [
        ("WARNING", "a trouble of kind note"),
        ("ERROR", "a trouble of kind disk"),
        ("ERROR", "a trouble of kind bug"),
    ]


def test_a_level_that_is_off_is_not_counted(heard: Heard) -> None:
    now = 0
    notices = Notices(lambda: now)
    log = logging.getLogger("fencepost")
    log.setLevel(logging.ERROR)
    notices.log("cause", "unheard")
    log.setLevel(logging.WARNING)
    notices.log("cause", "heard")
    now = NOTICE_INTERVAL_MS
    assert [entry.getMessage() for entry in heard.entries] == ["heard"]


def provoke(address: str) -> None:
    """Let the broker close a connection, about which it has something to say."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as wire:
        wire.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while wire.recv(1024):
            pass


def only_own_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program that does not configure logging: pytest and its plugins have handlers."""
    for logger in (logging.getLogger(), logging.getLogger("fencepost")):
        own = [handler for handler in logger.handlers if type(handler) is logging.NullHandler]
        monkeypatch.setattr(logger, "handlers", own)


@pytest.mark.parametrize("is_planted", [False, True], ids=["as it is", "without its NullHandlers"])
def test_an_embedded_broker_is_silent_by_default(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *, is_planted: bool
) -> None:
    only_own_handlers(monkeypatch)
    if is_planted:
        for logger in LOGGERS:
            monkeypatch.setattr(logger, "handlers", [])
    with fencepost.Broker() as broker:
        provoke(broker.address)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert ("violated the protocol" in captured.err) == is_planted
    assert is_planted or captured.err == ""


def test_the_warnings_of_a_client_are_printed_beside_an_embedded_broker(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    only_own_handlers(monkeypatch)
    with fencepost.Broker() as broker, fencepost.Consumer(broker.address, group_id="g") as consumer:
        consumer.subscribe(["typo"])
        for _ in range(POLLS_MAX):
            assert consumer.poll(100) == []
            if "typo" in capfd.readouterr().err:
                return
    raise AssertionError("nothing was printed")
