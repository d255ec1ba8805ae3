"""One connection and a network of them, by bytes and values alone: ids, order, time limits, and strangers."""

from __future__ import annotations

import pytest

from fencepost.client.effects import SendRequest
from fencepost.client.network import NO_REPLY_WARNING_MS, ClientConnection, NetworkClient, RequestResult
from fencepost.client.requests import RequestMachine
from fencepost.client.retries import ANY_NODE, BrokerAt
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode, ProtocolViolation
from fencepost.protocol.frames import ReplyFrame, decode_request, encode_reply
from fencepost.protocol.messages import ReplyBody
from fencepost.protocol.terms import INT32_MAX, CoordinatorType

ASK = m.FindCoordinator(kind=CoordinatorType.GROUP, key="g")
INFO = (2, 1, 6, "", ("127.0.0.1", 1))
FOUND = m.FindCoordinatorReply(node_id=1, host="h", port=9)


def connection() -> ClientConnection:
    return ClientConnection(client_id="me", request_timeout_ms=100)


def written(link: ClientConnection) -> bytes:
    """Takes what the shell would write."""
    data = b"".join(bytes(piece) for piece in link.outbox)
    link.outbox.clear()
    return data


def reply(correlation_id: int, body: ReplyBody | None = FOUND, error: ErrorCode = ErrorCode.NONE) -> bytes:
    return b"".join(
        bytes(piece) for piece in encode_reply(ReplyFrame(correlation_id, error=error, body=body))
    )


def test_answers_find_their_requests_in_any_order_and_in_any_pieces() -> None:
    link = connection()
    for token in (50, 60, 70):
        link.send(SendRequest(1, request=ASK, token=token), 0)
    data = written(link)
    assert decode_request(memoryview(data)[4 : len(data) // 3]).client_id == "me"
    stream = reply(2) + reply(0) + reply(1, None, ErrorCode.NOT_COORDINATOR)
    answers = [answer for i in range(len(stream)) for answer in link.receive(stream[i : i + 1])]
    assert answers == [
        RequestResult(70, ErrorCode.NONE, FOUND),
        RequestResult(50, ErrorCode.NONE, FOUND),
        RequestResult(60, ErrorCode.NOT_COORDINATOR, None),
    ]
    assert link.deadline is None


STRANGE = [
    reply(7),  # nobody asked
    reply(0, m.EndTxnReply(producer_id=1, producer_epoch=0)),  # an answer to something else
    b"HTTP/1.1 400 Bad Request\r\n",
    b"\x00\x00\x00\x08\x00\x00\x00\x04abcd",
]


@pytest.mark.parametrize("data", STRANGE)
def test_what_answers_nothing_that_was_asked_ends_the_connection(data: bytes) -> None:
    link = connection()
    link.send(SendRequest(1, request=ASK, token=50), 0)
    with pytest.raises(ProtocolViolation):
        list(link.receive(data))
    assert link.lost(1) == [RequestResult(50, ErrorCode.NETWORK_EXCEPTION, None)], (
        "the request comes back once"
    )
    assert link.lost(2) == []


def test_good_answers_before_a_bad_one_count() -> None:
    link = connection()
    link.send(SendRequest(1, request=ASK, token=50), 0)
    got: list[RequestResult] = []
    with pytest.raises(ProtocolViolation):
        got.extend(link.receive(reply(0) + reply(9)))
    link.send(SendRequest(1, request=ASK, token=51), 0)
    answers = link.receive(reply(1) + reply(9))
    assert next(answers).token == 51


def test_the_oldest_request_sets_the_time_limit() -> None:
    link = connection()
    link.send(SendRequest(1, request=ASK, token=1), 10)
    link.send(SendRequest(1, request=ASK, token=2), 50)
    assert link.deadline == 110
    assert link.lost(110) == [
        RequestResult(1, ErrorCode.REQUEST_TIMED_OUT, None),
        RequestResult(2, ErrorCode.NETWORK_EXCEPTION, None),
    ]


def test_correlation_ids_wrap() -> None:
    link = connection()
    link._next = INT32_MAX  # pyright: ignore[reportPrivateUsage] - two thousand million requests take too long
    for token in (1, 2):
        link.send(SendRequest(1, request=ASK, token=token), 0)
    assert [answer.token for answer in link.receive(reply(INT32_MAX) + reply(0))] == [1, 2]


# --- a network ----------------------------------------------------------------------------------------------


class Wire:
    """The network of an asking client; plays its driver."""

    def __init__(self, bootstrap: str = "a:1,b:2") -> None:
        self.machine = RequestMachine(bootstrap)
        self.warned: list[str] = []
        self.network = NetworkClient(
            self.machine, client_id="", request_timeout_ms=100, warn=self.warned.append
        )
        self.number = self.machine.calls.submit(ASK, ANY_NODE, 10_000)
        self.network.perform(self.machine.wake(0), 0)

    @property
    def answers(self) -> list[object]:
        return [e.reply for e in self.network.answers.values() if e.number == self.number]


def test_a_network_asks_the_next_node_when_one_is_gone() -> None:
    wire = Wire()
    (first,) = wire.network.to_open
    assert wire.network.open(first) == ("a", 1)
    wire.network.lost(first, 5)
    assert wire.network.wake_at is not None
    assert wire.network.wake(wire.network.wake_at) == []
    (second,) = wire.network.to_open
    assert wire.network.open(second) == ("b", 2)
    assert wire.network.received(second, reply(0), 50) is None
    assert wire.answers == [FOUND]


def test_a_node_that_does_not_answer_in_time_is_disconnected_and_asked_again() -> None:
    wire = Wire("a:1")
    (node,) = wire.network.to_open
    wire.network.to_open.clear()
    assert wire.network.wake(99) == []
    assert wire.network.wake(100) == [node]
    wire.network.wake(1_000)
    assert wire.network.to_open == [node]
    wire.network.received(node, reply(0), 1_000)
    assert wire.answers == [FOUND]


def test_a_stranger_is_disconnected_with_a_reason() -> None:
    wire = Wire()
    node = wire.network.to_open.pop()
    reason = wire.network.received(node, b"HTTP/1.1 400 Bad Request\r\n\r\n", 1)
    assert reason is not None
    assert "bytes" in reason
    assert node not in wire.network.connections
    assert wire.network.received(node, reply(0), 1) is not None, "what comes after its end is not heard"


def test_what_was_not_tried_is_kept_until_the_node_answers_or_moves() -> None:
    wire = Wire("a:1")
    (node,) = wire.network.to_open
    wire.network.untried(node, ("a", 1)).append(INFO)
    wire.network.lost(node, 5)
    assert wire.network.untried(node, ("a", 1)) == [INFO]
    assert wire.network.untried(node, ("b", 1)) == [], "the node has moved to another host"
    wire.network.untried(node, ("b", 1)).append(INFO)
    wire.network.wake(1_000)
    wire.network.received(node, reply(0), 1_000)
    assert wire.answers == [FOUND]
    assert wire.network.untried(node, ("b", 1)) == []


@pytest.mark.parametrize("accepts", [False, True])
def test_only_an_address_that_cannot_be_reached_is_doubted(accepts: bool) -> None:
    """A broker may answer late: a JoinGroup waits for the other members, and a Fetch for records."""
    wire = Wire("a:1")
    wire.network.received(wire.network.to_open.pop(), reply(0), 1)
    wire.machine.cluster.nodes[1] = ("h", 9)
    wire.machine.calls.submit(ASK, BrokerAt(1), timeout_ms=60_000)
    wire.network.perform(wire.machine.wake(2), 2)
    assert wire.network.to_open == [1]
    if accepts:
        wire.network.accepted(1)
    wire.network.wake(2 + NO_REPLY_WARNING_MS)
    assert len(wire.warned) == (0 if accepts else 1)


def test_a_broker_that_refuses_the_client_is_not_silent() -> None:
    wire = Wire("a:1")
    wire.network.received(wire.network.to_open.pop(), reply(0, None, ErrorCode.SASL_AUTHENTICATION_FAILED), 1)
    assert wire.network.failure is not None
    for now in range(0, 3 * NO_REPLY_WARNING_MS, 100):
        wire.network.wake(now)
    assert wire.warned == []
