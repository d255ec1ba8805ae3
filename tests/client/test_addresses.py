"""Host names that stand for several addresses, for none, or that take long to resolve."""

from __future__ import annotations

import errno
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count
from typing import Any

import anyio
import pytest
import trio
import trio.testing

from fencepost import Admin, AsyncAdmin, Broker, Consumer, Producer, RequestTimeout, TopicPartition
from fencepost.client.metadata import ClusterMetadata
from fencepost.client.network import AddressInfo
from tests.topics import create_topic

PATIENCE_S = 60.0  # longer than anything takes on a busy machine; only a failing test waits so long
NAME = "several.example"
HERE = TopicPartition("t", 0)
SHELLS = ["blocking", "trio", "asyncio"]


class Names:
    """A resolver for one name, whose addresses differ in their ports."""

    def __init__(self) -> None:
        self.ports: list[int] = []
        """In the order of preference."""
        self.later: list[int] | None = None
        """The ports from the second time on."""
        self.times = 0
        self.interruption: KeyboardInterrupt | None = None
        self.is_asked, self.is_free = threading.Event(), threading.Event()
        self.is_free.set()
        self.ran_out = False
        """Whether it answered although it was not free."""
        self._resolve = socket.getaddrinfo

    def getaddrinfo(self, host: Any, port: Any, *how: Any, **more: Any) -> list[AddressInfo]:
        if host not in (NAME, NAME.encode()):
            return [*self._resolve(host, port, *how, **more)]
        self.is_asked.set()
        self.ran_out = not self.is_free.wait(PATIENCE_S)
        if self.interruption is not None:
            interruption, self.interruption = self.interruption, None
            raise interruption
        self.times += 1
        ports = self.ports if self.later is None or self.times == 1 else self.later
        return [
            (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", each))
            for each in ports
        ]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    known = Names()
    monkeypatch.setattr(socket, "getaddrinfo", known.getaddrinfo)
    return known


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        create_topic(running.address, "t")
        yield running


@pytest.fixture
def refusing() -> Iterator[int]:
    """A port that nobody else gets, and where nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.fixture
def silent() -> Iterator[int]:
    """A port where the kernel accepts connections, and nobody answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def curt() -> Iterator[int]:
    """A port where every connection is accepted and closed at once."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            while True:
                try:
                    listener.accept()[0].close()
                except OSError:
                    return

        thread = threading.Thread(target=hang_up)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE_S)


def topics(shell: str, address: str, **limits: Any) -> list[str]:
    """The topics that a client of its own is told."""
    if shell == "blocking":
        with Admin(address, **limits) as admin:
            return [each.topic for each in admin.list_topics()]

    async def ask() -> list[str]:
        with anyio.fail_after(PATIENCE_S):
            async with AsyncAdmin(address, **limits) as admin:
                return [each.topic for each in await admin.list_topics()]

    return anyio.run(ask, backend=shell)


@pytest.mark.parametrize("shell", SHELLS)
def test_an_address_that_refuses_does_not_cost_a_request(
    shell: str, names: Names, broker: Broker, refusing: int
) -> None:
    names.ports = [refusing, refusing, broker.port]
    assert topics(shell, f"{NAME}:9092") == ["t"]
    assert names.times == 1, "the first request was sent to the third address"


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("first", ["silent", "curt"])
def test_the_next_connection_goes_to_the_next_address(
    shell: str, first: str, names: Names, broker: Broker, request: pytest.FixtureRequest
) -> None:
    names.ports = [request.getfixturevalue(first), broker.port]
    assert topics(shell, f"{NAME}:9092", request_timeout_ms=500) == ["t"]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_name_is_resolved_again_when_no_address_answered(
    shell: str, names: Names, broker: Broker, refusing: int
) -> None:
    names.later, names.ports = [broker.port], [refusing, refusing]
    assert topics(shell, f"{NAME}:9092") == ["t"]
    assert names.times == 2


@pytest.mark.parametrize("shell", SHELLS)
def test_the_error_says_why_no_address_could_be_connected_to(shell: str, refusing: int) -> None:
    address = f"127.0.0.1:{refusing},no-host.invalid:9092"
    with pytest.raises(RequestTimeout) as caught:
        topics(shell, address, default_api_timeout_ms=500)
    found = re.search(
        r"no broker answered at 127.0.0.1:\d+ \((.*)\), no-host.invalid:9092 \((.*)\)\.", str(caught.value)
    )
    assert found is not None, caught.value
    with pytest.raises(socket.gaierror) as unknown:
        socket.getaddrinfo("no-host.invalid", 9092)
    assert found.groups() == (os.strerror(errno.ECONNREFUSED), unknown.value.strerror)


def init_transactions(address: str, max_block_ms: int = 60_000, **more: Any) -> None:
    with Producer(address, max_block_ms=max_block_ms, transactional_id="x", **more) as producer:
        producer.init_transactions()


@pytest.mark.parametrize(
    "ask",
    [
        *(partial(topics, shell, default_api_timeout_ms=500) for shell in SHELLS),
        partial(init_transactions, max_block_ms=500),
    ],
    ids=[*SHELLS, "producer"],
)
def test_a_client_that_finds_no_broker_logs_it_once(
    ask: Callable[[str], object], refusing: int, caplog: pytest.LogCaptureFixture
) -> None:
    address = f"127.0.0.1:{refusing}"
    with pytest.raises(RequestTimeout):
        ask(address)
    (message,) = caplog.messages
    assert message == (
        f"no broker answered at {address} (Connection refused); the client keeps trying: check the address, "
        "and that a broker runs there"
    )


@pytest.fixture
def full() -> Iterator[int]:
    """A port whose queue of connections is full: the kernel swallows every attempt to connect."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        port = listener.getsockname()[1]
        stack.enter_context(socket.create_connection(("127.0.0.1", port)))  # takes the only place
        yield port


def list_topics_with_trio(address: str, clock: Callable[[], int]) -> None:
    async def ask() -> None:
        async with AsyncAdmin(address, clock=lambda: int(1_000 * trio.current_time())) as admin:
            await admin.list_topics()

    trio.run(ask, clock=trio.testing.MockClock(autojump_threshold=0.01))


@pytest.mark.parametrize(
    "ask",
    [partial(topics, "blocking"), init_transactions, list_topics_with_trio],
    ids=["blocking", "producer", "trio"],
)
@pytest.mark.parametrize("server", ["full", "silent"])
def test_a_client_whose_broker_is_silent_logs_it_once(
    ask: Callable[..., object], server: str, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    address = f"127.0.0.1:{request.getfixturevalue(server)}"
    ticks = count(0, 1_000)  # ms for each look at the clock
    with pytest.raises(RequestTimeout):
        ask(address, clock=lambda: next(ticks))
    (message,) = caplog.messages
    reason = {
        "full": "it does not accept connections",
        "silent": "it accepts connections, but has not answered as a Fencepost broker",
    }
    assert message == (
        f"no broker answered at {address} ({reason[server]}) within 3 s; the client keeps trying: check "
        "the address, and that a broker runs there"
    )


@pytest.mark.parametrize(
    ("server", "reason"), [("refusing", "Connection refused"), ("full", "it does not accept connections")]
)
def test_a_client_that_cannot_reach_an_advertised_address_says_so(
    server: str, reason: str, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    address = f"127.0.0.1:{request.getfixturevalue(server)}"
    ticks = count(0, 100)  # ms for each look at the clock
    with (
        Broker(advertised_listener=address) as broker,
        Admin(broker.address, default_api_timeout_ms=6_000, clock=lambda: next(ticks)) as admin,
    ):
        assert admin.list_topics() == [], "the bootstrap address answers"
        with pytest.raises(RequestTimeout, match=rf"broker 1 at {address} \({reason}\) did not answer"):
            admin.create_topic("t")
    (message,) = caplog.messages
    assert message == (
        f"broker 1 at {address} ({reason}) has not answered within 3 s; the client keeps trying: this "
        "address is the broker's advertised listener: check that clients can reach it"
    )


@pytest.fixture
def other_server() -> Iterator[int]:
    """The port of a server that answers everything in a language of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):  # the test is over
                while True:
                    connection, _ = listening.accept()
                    with connection:
                        connection.recv(1)
                        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


@pytest.mark.parametrize("shell", SHELLS)
def test_the_error_says_that_another_server_is_there(shell: str, other_server: int) -> None:
    with pytest.raises(RequestTimeout, match=r"\(it accepts connections, but has not answered as a Fence"):
        topics(shell, f"127.0.0.1:{other_server}", default_api_timeout_ms=500)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_error_says_that_a_silent_server_is_there(shell: str) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(RequestTimeout, match=r"\(it accepts connections, but has not answered as a Fence"),
    ):
        topics(shell, f"127.0.0.1:{silent.getsockname()[1]}", default_api_timeout_ms=500)


NO_NAMES = ["two..dots", "x" * 64, ".".join(["x" * 60] * 5), "nul\0"]


@pytest.mark.parametrize("name", [*NO_NAMES, "", "[]", "http://localhost"])
def test_a_name_that_no_host_can_have_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="each address in bootstrap_servers must be host:port"):
        Admin(f"127.0.0.1:9092,{name}:9092")


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("security_protocol", ["PLAINTEXT", "SSL"])
@pytest.mark.parametrize("name", [*NO_NAMES, ""])
def test_a_node_with_a_name_that_no_host_can_have_does_not_answer(
    shell: str, security_protocol: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def address(_cluster: ClusterMetadata, _node_id: int) -> tuple[str, int]:
        return name, 9092

    monkeypatch.setattr(ClusterMetadata, "address", address)
    with pytest.raises(RequestTimeout, match="no broker answered at"):
        topics(shell, "127.0.0.1:9092", security_protocol=security_protocol, default_api_timeout_ms=200)


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_asks_the_resolver_for_a_name_with_unusual_letters(shell: str) -> None:
    with pytest.raises(RequestTimeout, match=r"no broker answered at ☃\.invalid:9"):
        topics(shell, "☃.invalid:9", default_api_timeout_ms=100)


def test_a_slow_name_server_stops_only_the_call_that_needs_it(names: Names, broker: Broker) -> None:
    names.ports = [broker.port]
    names.is_free.clear()
    with Consumer(f"{NAME}:9092") as consumer:
        consumer.assign([HERE])
        waits = threading.Thread(target=consumer.position, args=[HERE])
        waits.start()
        assert names.is_asked.wait(PATIENCE_S)
        consumer.pause(HERE)  # needs the lock of the client
        assert consumer.poll(0) == []  # needs its sockets
        names.is_free.set()
        waits.join(PATIENCE_S)
        assert not names.ran_out
        assert consumer.position(HERE) == 0


def test_ctrl_c_while_a_name_is_resolved_leaves_a_client_that_works(names: Names, broker: Broker) -> None:
    names.ports = [broker.port]
    names.interruption = KeyboardInterrupt()
    with Admin(f"{NAME}:9092") as admin:
        with pytest.raises(KeyboardInterrupt):
            admin.list_topics()
        assert [each.topic for each in admin.list_topics()] == ["t"]
