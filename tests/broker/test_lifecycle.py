"""An embedded broker that is stopped, killed, cut off from power and started again, on one port.

Rule: a test says what survives and what does not; the same body runs in memory and on a directory.
"""

from __future__ import annotations

import errno
import gc
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import pytest

import fencepost
from fencepost import Admin, Broker, BrokerProcess, Consumer, Producer, TopicPartition
from fencepost.broker import embedded
from fencepost.broker.broker_settings import BrokerSettings
from fencepost.broker.embedded import BrokerFailed
from fencepost.broker.lifecycle import machine_of
from fencepost.broker.listeners import BoundSockets, CannotListen
from fencepost.broker.sync_policy import SyncPolicy
from fencepost.journal.power import Machine, ProcessFile
from tests.topics import create_topic

EVENTS = TopicPartition("events", 0)
PATIENCE_S = 300.0
POLL_MS = 20
POLLS_MAX = 3_000


@pytest.fixture(params=["memory", "directory"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return None if request.param == "memory" else tmp_path / "data"


def make_topic(broker: Broker | BrokerProcess) -> None:
    create_topic(broker.address, EVENTS.topic)


def commit(producer: Producer, value: bytes) -> None:
    with producer.transaction():
        producer.send(EVENTS.topic, value)


def write(broker: Broker | BrokerProcess, *values: bytes) -> None:
    """One transaction for each value, by a new producer."""
    with Producer(broker.address, transactional_id="writer") as producer:
        producer.init_transactions()
        for value in values:
            commit(producer, value)


def committed(broker: Broker | BrokerProcess) -> list[bytes]:
    """All committed values, once every decided transaction has its marker."""
    values: list[bytes] = []
    with (
        Consumer(broker.address, isolation_level="read_uncommitted") as ahead,
        Consumer(broker.address) as consumer,
    ):
        for each in (ahead, consumer):
            each.assign([EVENTS])
        ahead.seek_to_end()
        for _ in range(POLLS_MAX):
            if consumer.position(EVENTS) >= ahead.position(EVENTS):
                return values
            # Not for long: a marker moves the position, and ends no poll.
            values += [record.value or b"" for batch in consumer.poll(POLL_MS) for record in batch]
    raise AssertionError(f"read {values}, and then nothing more up to the end")


def topics(broker: Broker | BrokerProcess) -> list[str]:
    with Admin(broker.address) as admin:
        return [topic.topic for topic in admin.list_topics() if not topic.is_internal]


# --- start, stop, restart


def test_a_stopped_broker_starts_again_with_its_port_and_its_data(directory: Path | None) -> None:
    broker = Broker(directory)
    broker.stop()  # never started: nothing to stop
    with pytest.raises(BrokerFailed, match="no port yet"):
        print(broker.address)
    with broker:
        port = broker.port
        assert (broker.address, broker.bootstrap_servers) == (f"127.0.0.1:{port}",) * 2
        make_topic(broker)
        write(broker, b"1")
        with pytest.raises(BrokerFailed, match="is running"):
            broker.start()
    assert (broker.is_running, broker.port) == (False, port)
    broker.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    with broker:
        assert (broker.is_running, broker.port) == (True, port)
        write(broker, b"2")
        assert committed(broker) == [b"1", b"2"]
        assert broker.restart() is broker
        assert (broker.port, committed(broker)) == (port, [b"1", b"2"])


def test_nobody_takes_the_port_of_a_broker_that_is_down() -> None:
    with Broker() as broker:
        broker.kill()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", broker.port))
        with socket.socket() as thief, pytest.raises(OSError, match="in use"):
            thief.bind(("127.0.0.1", broker.port))
        broker.restart()
        socket.create_connection(("127.0.0.1", broker.port)).close()


def test_a_broker_that_starts_again_and_again_forgets_its_old_sockets() -> None:
    def ports() -> list[BoundSockets]:
        gc.collect()
        return [each for each in gc.get_objects() if type(each) is BoundSockets]

    broker, before = Broker(), len(ports())
    for _ in range(3):
        broker.start()
        broker.stop()
    assert len(ports()) <= before


# --- kill


def test_a_kill_resets_connections_and_keeps_what_was_written(directory: Path | None) -> None:
    with Broker(directory) as broker:
        make_topic(broker)
        write(broker, b"1")
        with socket.create_connection(("127.0.0.1", broker.port)) as link:
            write(broker, b"2")  # the link was accepted before this one
            broker.kill()
            with pytest.raises(ConnectionResetError):
                link.recv(1)
        with pytest.raises(BrokerFailed, match="is down"):
            broker.kill()
        broker.restart()
        assert committed(broker) == [b"1", b"2"]


def test_a_kill_leaves_no_mark_of_a_clean_shutdown(tmp_path: Path) -> None:
    mark = tmp_path / "clean-shutdown.json"
    with Broker(tmp_path) as broker:
        make_topic(broker)
        broker.kill()
        assert not mark.exists()
        broker.start()
    assert mark.exists()


def test_a_client_goes_on_after_a_kill(directory: Path | None) -> None:
    with Broker(directory) as broker:
        make_topic(broker)
        with Producer(broker.address, transactional_id="writer") as producer:
            producer.init_transactions()
            commit(producer, b"1")
            producer.begin_transaction()
            producer.send(EVENTS.topic, b"2")
            producer.flush()
            broker.kill()
            restart = threading.Timer(0, broker.restart)
            restart.start()
            producer.commit_transaction()
            restart.join()
        assert committed(broker) == [b"1", b"2"]


# --- power


@pytest.mark.parametrize("sync", ["commit", "all"])
def test_a_power_cut_keeps_what_was_acknowledged_after_a_sync(
    directory: Path | None, sync: Literal["commit", "all"]
) -> None:
    with Broker(directory, sync=sync) as broker:
        make_topic(broker)
        for number in range(3):
            write(broker, b"%d" % number)
            broker.power_cut()
            broker.restart()
            assert committed(broker) == [b"%d" % before for before in range(number + 1)]


def test_commit_may_lose_what_is_in_no_transaction_and_all_may_not(directory: Path | None) -> None:
    kept: dict[str, list[bytes]] = {}
    syncs: tuple[Literal["commit", "all"], ...] = ("commit", "all")
    for sync in syncs:
        with Broker(None if directory is None else directory / sync, sync=sync) as broker:
            make_topic(broker)
            with Producer(broker.address) as producer:
                producer.send(EVENTS.topic, b"plain").result()
            broker.power_cut()
            broker.restart()
            kept[sync] = committed(broker)
    assert kept == {"commit": [], "all": [b"plain"]}


def test_a_power_cut_without_syncs_loses_what_was_acknowledged(directory: Path | None) -> None:
    with Broker(directory) as broker:
        make_topic(broker)
        write(broker, b"kept")
        broker.restart()  # a clean stop syncs
        write(broker, b"lost")
        broker.kill()
        broker.power_cut()  # also of a broker that is down already
        broker.restart()
        assert committed(broker) == [b"kept"]
        write(broker, b"next")
        assert committed(broker) == [b"kept", b"next"]


def test_a_power_cut_before_the_first_sync_loses_the_topics_too(directory: Path | None) -> None:
    with Broker(directory) as broker:
        make_topic(broker)
        broker.power_cut()
        broker.restart()
        assert topics(broker) == []


def test_a_fault_cuts_the_power_before_a_decision_is_synced(directory: Path | None) -> None:
    with Broker(directory, sync="commit") as broker:
        make_topic(broker)
        decision = broker.faults.when("coordinator of writer appends PREPARE_COMMIT", nth=2)
        fault = decision.do("cut power of broker", until="after 20 ms")
        write(broker, b"1", b"2", b"3")
        assert fault.struck == 1
        assert committed(broker) == [b"1", b"2", b"3"]


def test_a_broker_that_waits_for_the_end_of_a_crash_can_be_killed_and_stopped() -> None:
    for end in (Broker.kill, Broker.stop, Broker.power_cut):
        with Broker() as broker:
            fault = broker.faults.add("when at 0 ms do crash broker until after 2 min")
            fault.wait_until_struck()
            assert broker.is_running
            end(broker)
            assert not broker.is_running
            broker.start()


# The tests above must notice what they are there for.


@pytest.mark.usefixtures("hasty_threads")
def test_faults_may_be_asked_for_while_the_broker_goes_down_and_up() -> None:
    added: list[int] = []

    def ask() -> None:
        for _ in range(50):
            fault = broker.faults.add("when nobody sends EndTxn do drop")
            assert fault in broker.faults.list()
            added.append(fault.fault_id)
            fault.remove()

    broker = Broker().start()
    broker.kill()
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(ask) for _ in range(4)]
        for _ in range(5):
            broker.restart()
            broker.kill()
        for each in asked:
            each.result(60)
    assert len(set(added)) == 200


def test_a_power_cut_that_loses_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose_nothing(_machine: Machine) -> int:
        return 0

    monkeypatch.setattr(Machine, "lose_power", lose_nothing)
    with pytest.raises(AssertionError, match="lost"):
        test_a_power_cut_without_syncs_loses_what_was_acknowledged(None)


def test_an_acknowledgement_before_the_sync_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def sync_nothing(_file: ProcessFile) -> None:
        return

    monkeypatch.setattr(ProcessFile, "sync", sync_nothing)
    with pytest.raises((AssertionError, fencepost.UnknownTopic)):
        test_a_power_cut_keeps_what_was_acknowledged_after_a_sync(None, "all")


# --- arguments


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"port": 99_999}, ValueError, "port 99999 is not between 0"),
        ({"port": -1}, ValueError, "port -1 is not between 0"),
        ({"port": "9092"}, TypeError, "port must be a number from 0 to 65535, not '9092'"),
        ({"sync": "foo"}, ValueError, "sync='foo' is not one of 'none', 'commit', 'all'"),
        ({"sync": None}, ValueError, "sync=None is not one of"),
        ({"protocol": "amqp"}, ValueError, "protocol='amqp' is not one of"),
        ({"directory": 5}, TypeError, "not int"),
        ({"directory": __file__}, ValueError, r"test_lifecycle\.py is a file"),
        ({"directory": ""}, ValueError, "directory is empty"),
        ({"metrics_port": 99_999}, ValueError, "metrics_port 99999 is not between 0"),
        ({"metrics_port": "x"}, TypeError, "metrics_port must be a number from 0 to 65535, not 'x'"),
        ({"users": {"a b": "x"}}, ValueError, "users: 'a b' is not a valid user name"),
        ({"users": {"": "x"}}, ValueError, "users: '' is not a valid user name"),
        ({"users": {"alice": ""}}, ValueError, "the password of alice is empty"),
        ({"users": {"alice": b"x"}}, TypeError, "the password of alice must be a string, not bytes"),
        ({"users": ["alice"]}, TypeError, "users must be a mapping from names, not list"),
        ({"override": 5}, TypeError, "override must be a mapping from names, not int"),
        ({"tls_cert": "both.pem"}, ValueError, "TLS needs both a certificate and its private key"),
        ({"tls_key": "key.pem"}, ValueError, "TLS needs both a certificate and its private key"),
        ({"tls_client_ca": "ca.pem"}, ValueError, "a client CA needs them, too"),
        ({"advertised_listener": "nowhere"}, ValueError, "'nowhere' is not HOST:PORT"),
        ({"transaction_version": 3}, ValueError, r"transaction_version must be one of \[0, 1, 2\], not 3"),
        ({"partition_verification": "no"}, TypeError, "partition_verification must be True or False, not"),
        ({"without_fixes": [""]}, ValueError, "unknown fix ''; the fixes are group_fencing, "),
        ({"without_fixes": ["fencing"]}, ValueError, "unknown fix fencing; the fixes are group_fencing, "),
        ({"without_fixes": "fences_once"}, TypeError, r"must be a list of names, such as \['fences_once'\]"),
        ({"broken": ["fence"]}, ValueError, "unknown protection fence; the protections are dedup, fencing"),
    ],
)
def test_wrong_arguments_are_refused_at_the_call(
    arguments: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says) as caught:
        Broker(**arguments)
    assert caught.value.__cause__ is None


def test_a_start_that_failed_leaves_nothing_behind(tmp_path: Path) -> None:
    with Broker() as other:
        broker = Broker(tmp_path / "data", port=other.port)
        with pytest.raises(CannotListen, match=r"stop what listens there, or choose another port \(0 is a"):
            broker.start()
        assert not (tmp_path / "data").exists()
    with broker:  # the port is free now
        assert topics(broker) == []


def test_a_port_that_this_user_may_not_have_needs_another_port_or_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(CannotListen, match="Permission denied; choose a port above 1023, or run the broker"):
        Broker(port=80).start()


def test_a_directory_stays_the_same_when_the_program_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere" / "data").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with Broker("data") as broker:
        monkeypatch.chdir("elsewhere")
        make_topic(broker)
        write(broker, b"a")
    assert [*Path("data").iterdir()] == []
    with Broker(tmp_path / "data") as again:
        assert committed(again) == [b"a"]


def test_a_start_that_takes_too_long_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(tmp_path / "data")
    with monkeypatch.context() as patch:
        patch.setattr(embedded, "START_SECONDS_MAX", 0.0)
        with pytest.raises(BrokerFailed, match="was not ready after 0 s"):
            broker.start()
    assert not broker.is_running
    assert "fencepost broker" not in [thread.name for thread in threading.enumerate()]
    with broker:  # neither port nor directory is taken
        assert topics(broker) == []


def interrupted_once(work: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which Ctrl-C interrupts the first time."""
    interruptions = [KeyboardInterrupt()]

    def interrupted(*given: Any) -> Any:
        if interruptions:
            raise interruptions.pop()
        return work(*given)

    return interrupted


def test_an_interrupted_start_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Event, "wait", interrupted_once(threading.Event.wait))
        with pytest.raises(KeyboardInterrupt):
            broker.start()
    assert not broker.is_running
    assert "fencepost broker" not in [thread.name for thread in threading.enumerate()]
    with broker:
        assert topics(broker) == []


def test_an_interrupted_stop_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker().start()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "join", interrupted_once(threading.Thread.join))
        with pytest.raises(KeyboardInterrupt):
            broker.stop()
    broker.stop()
    assert not broker.is_running
    with broker:
        assert topics(broker) == []


def test_settings_under_their_names_in_kafka() -> None:
    override = {"num.partitions": 3, "auto.create.topics.enable": False, "max.connections": "7"}
    broker = fencepost.Broker(override=override)
    assert broker.settings.node.num_partitions == 3
    assert broker.settings.node.auto_create_topics_enable is False
    assert broker.settings.connections.max_connections == 7


def test_the_generation_of_kafka_that_a_broker_behaves_like() -> None:
    broker = fencepost.Broker(
        transaction_version=0, partition_verification=False, without_fixes=["fences_once"], broken=["dedup"]
    )
    node = broker.settings.node
    assert (node.transaction_version.number, node.partition_verification) == (0, False)
    assert (node.fixes.off, node.broken) == (("fences_once",), {"dedup"})


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ({"num.partition": 3}, 'a broker has no setting num.partition; did you mean "num.partitions"'),
        ({"num.partitions": "many"}, "num.partitions=many: it must be an integer"),
        ({"node.id": 2}, "node.id cannot be set: the broker is always node 1"),
        ({"group.min.session.timeout.ms": 1_800_001}, "is too long for group.max.session.timeout.ms"),
    ],
)
def test_settings_that_cannot_be(override: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        fencepost.Broker(override=override)


def test_a_forked_process_takes_nothing_from_the_brokers_of_its_parent(tmp_path: Path) -> None:
    """Also embedded brokers and broker processes with a proxy; while the child lives, they start again."""
    command = [sys.executable, "-m", "tests.broker.forked", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("sync", SyncPolicy)
def test_manifests_are_on_their_way_to_the_disk_only_for_a_broker_that_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: SyncPolicy
) -> None:
    allocated: list[int] = []

    def allocate(_file: int, _position: int, size: int) -> None:
        allocated.append(size)

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    storage = machine_of(BrokerSettings(directory=str(tmp_path), sync=sync)).process()
    storage.replace("manifest", b"content", durable=False)
    assert allocated == ([7] if sync is SyncPolicy.NONE else [])
