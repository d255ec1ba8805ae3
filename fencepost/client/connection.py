"""One connection to one node without its socket: requests to
bytes, bytes to answers, and how long an answer may take.

Rule: every request that went out comes back exactly once, as an
answer, as NETWORK_EXCEPTION or as REQUEST_TIMED_OUT.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from fencepost.client.effects import Send
from fencepost.protocol.batches import Buffer
from fencepost.protocol.errors import ErrorCode, ProtocolViolation
from fencepost.protocol.frames import FrameReader, decode_reply_of, encode_request
from fencepost.protocol.messages import API_BY_REQUEST, Api, ReplyBody
from fencepost.protocol.terms import INT32_MAX


class Answer(NamedTuple):
    """What came of the request that was sent under `token`."""

    token: int
    error: ErrorCode
    body: ReplyBody | None


class _Expected(NamedTuple):
    token: int
    api: Api
    deadline: int


class Connection:
    """Correlation ids, requests in flight and bytes still to write, of one connection."""

    __slots__ = ("_client_id", "_in_flight", "_in_order", "_next", "_reader", "_timeout_ms", "outbox")

    def __init__(self, *, client_id: str, request_timeout_ms: int) -> None:
        self._client_id = client_id
        self._timeout_ms = request_timeout_ms
        self._next = 0
        self._reader = FrameReader()
        self._in_flight: dict[int, _Expected] = {}
        self._in_order = True  # whether deadlines follow each other as the requests do
        self.outbox: deque[Buffer] = deque()
        """What the shell writes, in order; it takes off what it wrote."""

    @property
    def deadline(self) -> int | None:
        """When the first request in flight times out."""
        if not self._in_order:
            return min((expected.deadline for expected in self._in_flight.values()), default=None)
        # With one timeout for all, which is the usual case, the oldest request times out first.
        for expected in self._in_flight.values():
            return expected.deadline
        return None

    def send(self, effect: Send, now: int) -> None:
        """Puts a request into the outbox and expects its answer."""
        correlation_id = self._next
        self._next = (correlation_id + 1) & INT32_MAX
        timeout_ms = self._timeout_ms
        if effect.timeout_ms is not None:
            timeout_ms, self._in_order = effect.timeout_ms, False
        expected = _Expected(effect.token, API_BY_REQUEST[type(effect.request)], now + timeout_ms)
        self._in_flight[correlation_id] = expected
        pieces = encode_request(
            effect.request, correlation_id=correlation_id, client_id=self._client_id, version=effect.version
        )
        self.outbox.extend(filter(len, pieces))  # an empty piece would never leave: sending it moves nothing

    def receive(self, chunk: Buffer) -> Iterator[Answer]:
        """The answers that `chunk` completes, one by one; ProtocolViolation at one that nobody asked for."""
        for frame in self._reader.feed(chunk):
            yield self._answer(frame)

    def _answer(self, frame: memoryview) -> Answer:
        reply = decode_reply_of(frame, self._api_of)
        expected = self._in_flight.pop(reply.correlation_id)
        return Answer(expected.token, reply.error, reply.body)

    def _api_of(self, correlation_id: int) -> Api:
        expected = self._in_flight.get(correlation_id)
        if expected is None:
            raise ProtocolViolation(f"a reply to request {correlation_id}, which is not in flight")
        return expected.api

    def lost(self, now: int) -> list[Answer]:
        """What becomes of everything in flight when the connection ends: nobody knows whether it was done."""
        answers = [
            Answer(
                expected.token,
                ErrorCode.REQUEST_TIMED_OUT if expected.deadline <= now else ErrorCode.NETWORK_EXCEPTION,
                None,
            )
            for expected in self._in_flight.values()
        ]
        self._in_flight.clear()
        self.outbox.clear()
        return answers
