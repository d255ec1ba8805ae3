"""The proxy: clients of both protocols go through it, each fault strikes, and one that cannot is noticed."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, cast

import confluent_kafka
import pytest
import trio
import trio.testing

from fencepost import Broker, BrokerProcess, FaultNeverStruck, Producer, Proxy
from fencepost.protocol.errors import FencepostError
from fencepost.testing.proxy import NetworkFault, ProxyNotRunning, accepted
from tests.broker.test_lifecycle import EVENTS, committed, make_topic

PATIENCE_S = 300.0
HALF_KILOBYTE = b"x" * 512


@pytest.fixture
def broker() -> Generator[Broker]:
    with Broker() as made:
        make_topic(made)
        yield made


def send_with_kafka(address: str, value: bytes) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": address})
    producer.produce(EVENTS.topic, value)
    assert producer.flush(PATIENCE_S) == 0


def send_with_ours(address: str, value: bytes) -> None:
    with Producer(address) as producer:
        producer.send(EVENTS.topic, value).result()


@pytest.mark.parametrize("send", [send_with_ours, send_with_kafka])
def test_clients_go_through_it_and_not_past_it(broker: Broker, send: Callable[[str, bytes], None]) -> None:
    with Proxy(broker) as proxy:
        assert proxy.address != broker.address == broker.bootstrap_servers
        send(proxy.address, HALF_KILOBYTE)
        assert proxy.passed["to_broker"] > len(HALF_KILOBYTE)
    assert (proxy.connections > 0, broker.advertised_listener) == (True, None)
    broker.restart()
    assert committed(broker) == [HALF_KILOBYTE]


def test_it_comes_before_a_broker_process_too(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path, override={"transaction.state.log.num.partitions": 1})
    with Proxy(process) as proxy, process:
        make_topic(process)
        passed = proxy.passed["to_broker"]
        send_with_kafka(process.address, HALF_KILOBYTE)  # the broker sends it to the proxy
        assert proxy.passed["to_broker"] > passed + len(HALF_KILOBYTE)


@pytest.mark.parametrize("kind", [Broker, BrokerProcess])
def test_a_start_that_fails_leaves_nothing_behind(
    tmp_path: Path, kind: type[Broker] | type[BrokerProcess]
) -> None:
    """Neither the thread nor the port of the proxy, nor its address in what the broker tells clients."""
    with kind(tmp_path, advertised_listener="localhost:9") as broker:
        meta = tmp_path / "meta.json"
        whole = meta.read_bytes()
        meta.write_bytes(b"{")  # so the restart fails
        proxy = Proxy(broker)
        with pytest.raises(FencepostError, match=r"meta\.json"):
            proxy.start()
        assert [each.name for each in threading.enumerate() if each.name == "fencepost proxy"] == []
        with pytest.raises(ProxyNotRunning):
            _ = proxy.address
        assert broker.advertised_listener == "localhost:9"
        meta.write_bytes(whole)
        broker.start()


def test_a_thread_that_fails_before_it_is_ready_is_not_awaited(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket.socket, "dup", failing)
    proxy = Proxy(broker)
    with pytest.raises(OSError, match="Too many open files"):
        proxy.start()
    assert (broker.advertised_listener, proxy.connections) == (None, 0)
    with pytest.raises(ProxyNotRunning):
        _ = proxy.address


def test_a_cut_resets_every_connection_and_clients_come_back(broker: Broker) -> None:
    with Proxy(broker) as proxy, Producer(proxy.address) as producer:
        producer.send(EVENTS.topic, b"1").result()
        before = proxy.connections
        assert proxy.cut() > 0
        producer.send(EVENTS.topic, b"2").result()
        assert proxy.connections > before
        assert committed(broker) == [b"1", b"2"]


@pytest.mark.trio
async def test_a_listener_without_descriptors_accepts_when_there_are_some() -> None:
    lacking = [errno.EMFILE, errno.ENFILE, errno.ECONNABORTED]

    class Listener:
        """It fails a few times, as on a machine without descriptors."""

        async def accept(self) -> str:
            if lacking:
                raise OSError(lacking.pop(), "as planned")
            return "a connection"

    assert await accepted(cast("Any", Listener())) == "a connection"
    assert lacking == []


def test_refused_clients_connect_later(broker: Broker) -> None:
    with Proxy(broker) as proxy, ThreadPoolExecutor(1) as other:
        with proxy.refuse() as refused:
            sending = other.submit(send_with_ours, proxy.address, b"1")
            refused.wait_until_struck(PATIENCE_S)
            assert not sending.done()
        sending.result(PATIENCE_S)


@pytest.mark.parametrize("direction", ["to_broker", "to_clients"])
def test_what_is_stalled_in_one_direction_arrives_later(
    broker: Broker, direction: Literal["to_broker", "to_clients"]
) -> None:
    with Proxy(broker) as proxy, Producer(proxy.address) as producer:
        producer.send(EVENTS.topic, b"1").result()
        with proxy.stall(direction) as stalled:
            sent = producer.send(EVENTS.topic, b"2")
            stalled.wait_until_struck(PATIENCE_S)
            assert not sent.done()
        sent.result()
        assert proxy.connections
    broker.restart()
    assert committed(broker) == [b"1", b"2"]


def test_delayed_and_throttled_bytes_arrive_in_order(broker: Broker) -> None:
    with Proxy(broker) as proxy:
        slow = proxy.throttle(1_000_000)
        with proxy.delay(2, "to_clients") as delayed, Producer(proxy.address, linger_ms=0) as producer:
            sent = [producer.send(EVENTS.topic, b"%d" % number) for number in range(20)]
            producer.send(EVENTS.topic, bytes(100_000)).result()
            assert [each.result().offset for each in sent] == list(range(20))
        assert (delayed.struck > 0, slow.struck > 0) == (True, True)
        passed_by_then = slow.struck
        slow.end()
        send_with_ours(proxy.address, b"fast")
        assert slow.struck == passed_by_then


def test_a_client_may_connect_before_the_first_start_of_the_broker() -> None:
    broker = Broker()
    with Proxy(broker) as proxy:
        host, port = proxy.address.split(":")
        with (
            suppress(ConnectionResetError),  # it may come as early as the connection
            socket.create_connection((host, int(port)), PATIENCE_S) as client,
        ):
            assert client.recv(1) == b"", "as if the broker refused the connection"
        with broker:
            make_topic(broker)
            send_with_ours(proxy.address, b"1")
            assert committed(broker) == [b"1"]


@pytest.mark.trio
@pytest.mark.parametrize("rate", [5, 1_000])
async def test_a_throttled_connection_passes_no_more_than_its_rate(
    rate: int, autojump_clock: trio.testing.MockClock
) -> None:
    proxy = Proxy("127.0.0.1:1")
    fault = NetworkFault("throttle", proxy, frozenset({"to_broker"}), bytes_per_second=rate)
    proxy._faults.append(fault)
    put, take = trio.open_memory_channel[tuple[float, bytes]](1)
    target, arrived = trio.testing.memory_stream_one_way_pair()
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(proxy._deliver, cast("Any", None), take, cast("Any", target), "to_broker")
        await put.send((began, bytes(4 * rate)))
        await put.aclose()
    assert trio.current_time() - began == pytest.approx(4), "seconds of the simulated clock"
    assert len(await arrived.receive_some()) == 4 * rate


# --- what cannot be missed


@contextmanager
def noticed(says: str) -> Generator[None]:
    with pytest.raises(FaultNeverStruck, match=says):
        yield


def test_a_proxy_that_was_bypassed_is_noticed(broker: Broker) -> None:
    with noticed("no client has connected to the proxy"), Proxy(broker):
        pass
    broker.restart()
    # A proxy that the broker does not know of is left after the first answer.
    with noticed(r"stall\(to_broker\) struck nothing, after \d+ connections"), Proxy(broker.address) as proxy:
        with Producer(proxy.address) as producer:
            producer.send(EVENTS.topic, b"1").result()
            proxy.cut()
            proxy.stall("to_broker")
            producer.send(EVENTS.topic, b"2").result()
    with noticed(r"cut\(\) struck nothing"), Proxy(broker.address) as proxy:
        proxy.cut()


def test_an_error_of_the_test_is_not_hidden(broker: Broker) -> None:
    def fail() -> None:
        with Proxy(broker):
            print(1 // 0)

    with pytest.raises(ZeroDivisionError):
        fail()


def test_a_fault_that_is_waited_for_in_vain_says_what_passed(broker: Broker) -> None:
    with noticed("never|nothing"), Proxy(broker) as proxy:
        send_with_ours(proxy.address, b"1")
        with noticed(r"refuse\(\) struck nothing, after \d+ connections, \d+ bytes to the broker"):
            proxy.refuse().wait_until_struck(0)


@pytest.mark.parametrize(
    ("method", "arguments", "error", "says"),
    [
        ("delay", [0], ValueError, "ms=0 is not above 0"),
        ("throttle", [-1], ValueError, "bytes_per_second=-1 is not above 0"),
        ("stall", ["sideways"], ValueError, "'sideways' is not one of"),
        ("start", [], ProxyNotRunning, "started before"),
    ],
)
def test_wrong_uses(
    broker: Broker, method: str, arguments: list[Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says), Proxy(broker) as proxy:
        getattr(proxy, method)(*arguments)
    for not_running in (lambda: Proxy(broker).address, Proxy(broker).cut):
        with pytest.raises(ProxyNotRunning, match="is not running"):
            not_running()
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        Proxy("nowhere")


def test_no_thread_is_left_behind(broker: Broker) -> None:
    with Proxy(broker) as proxy, Producer(proxy.address) as producer:
        producer.send(EVENTS.topic, b"1").result()
        proxy.close()  # and once more at the end of the block
        producer.close(timeout_ms=0)
    assert "fencepost proxy" not in [thread.name for thread in threading.enumerate()]
