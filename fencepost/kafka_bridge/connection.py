"""One connection of a Kafka client: its frames on one side, requests of the node on the other.

Rule: one request is in progress at a time, and responses leave in the order of the requests, as in Kafka
(Selector mutes a connection until its response is sent).
"""

# Theory of operation
#
#     frame -> header -> kio's request -> Exchange -> requests of the node
#                                            ^  |
#                       answers of the node -+  +-> fields -> kio's response -> frame
#
# Most requests become one request of the node, with the same fields in our classes. FindCoordinator and
# OffsetFetch may name several keys, and become one request for each; the response waits for all of them, and
# for what they call for: a Metadata that names a missing topic is followed up by a CreateTopics.
#
# The requests for the node have correlation ids of their own, counted from 0 on each connection. That of the
# client stays here.
#
# A request that cannot be decoded closes the connection, as in Kafka. One exception: a client asks for the
# versions in the newest version that it knows, and must get an answer that it can read (KIP-511).

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final

import attrs

from fencepost.kafka_bridge.apis import SERVED
from fencepost.kafka_bridge.exchange import Answer, Context, Exchange, exchange_in
from fencepost.kafka_bridge.fetch_session import FetchSession
from fencepost.kafka_bridge.records import KafkaEncoding
from fencepost.kafka_bridge.wire import (
    API_VERSIONS_KEY,
    RequestHeader,
    decode_request,
    encode_response,
    framed,
    read_header,
)
from fencepost.protocol.batches import Buffer
from fencepost.protocol.errors import ErrorCode, ProtocolViolation
from fencepost.protocol.frames import REQUEST_HEADER_MAX, FrameReader, ReplyFrame, RequestFrame
from fencepost.protocol.messages import Request, SaslAuthenticate, SaslAuthenticateReply, is_answered
from fencepost.protocol.terms import NEWEST_VERSION
from fencepost.protocol.wire_protocol import Asked, NodeTopics, Operations, SessionRoom

PRODUCE_KEY: Final = 0
COPIES_PER_HEADER: Final = 25  # memory.py counts a header this many times; records are copied once
_PREFIX = struct.Struct(">Ih")  # length, API key


class KafkaFrameReader(FrameReader):
    """Kafka's frames: a length, and a request whose header has no length of its own."""

    def announced(self) -> tuple[int, int] | None:
        """As in its parent; None before the first 6 bytes are there."""
        start = self.peek(_PREFIX.size)
        if len(start) < _PREFIX.size:
            return None
        length, api_key = _PREFIX.unpack(start)
        self.check_length(length)
        if api_key == PRODUCE_KEY:
            return 4 + length, length // COPIES_PER_HEADER
        # Only a Produce carries records. All else becomes objects, which take more memory than its bytes.
        if length > REQUEST_HEADER_MAX:
            raise ProtocolViolation(
                f"a Kafka request of {length} bytes without records; the limit is {REQUEST_HEADER_MAX}"
            )
        return 4 + length, length


@attrs.define
class _InProgress:
    """The request that the client waits for. `places` are those of its answers, by correlation id."""

    header: RequestHeader
    exchange: Exchange
    places: dict[int, int]
    answers: dict[int, Answer] = attrs.Factory(dict[int, Answer])  # that have come, by place
    is_followed_up: bool = False
    has_failed: bool = False
    """No response could be made from the answers."""


class KafkaProtocol:
    """One connection of a Kafka client."""

    is_serial = True

    def __init__(self, topics: NodeTopics, sessions: SessionRoom, operations: Operations) -> None:
        self.frames: FrameReader = KafkaFrameReader()
        self._context = Context(topics, FetchSession(sessions), operations)
        self._token: int | None = None  # the correlation id of a token of the login
        self._next = 0
        self._current: _InProgress | None = None

    def ask(self, frame: memoryview) -> Asked:
        if self._context.raw_login.due:
            return self._ask_with_token(bytes(frame))
        header = read_header(frame)
        api = SERVED.get(header.api_key)
        if api is None or not api.first <= header.version <= api.last:
            return _unsupported(header)
        translated = api.translate(decode_request(frame, header), header.version)
        exchange = exchange_in(self._context, translated)
        if not exchange.requests:
            # A login is checked with the requests for the node, and there are none.
            return Asked(pieces=_encoded(header, exchange, ()), needs_login=True)
        requests = self._numbered(exchange.requests, header)
        # The node answers acks 0, too. If it failed, the server closes the connection, as Kafka does: such a
        # producer gets no response.
        if is_answered(exchange.requests[0]):
            places = {request.correlation_id: place for place, request in enumerate(requests)}
            self._current = _InProgress(header, exchange, places)
        return Asked(requests)

    def _ask_with_token(self, token: bytes) -> Asked:
        self._context.raw_login.due -= 1
        self._token = number = self._next
        self._next += 1
        request = SaslAuthenticate(auth_bytes=token)
        return Asked((RequestFrame(request, correlation_id=number, version=NEWEST_VERSION, client_id=""),))

    def fetch_encoding(self) -> KafkaEncoding:
        return KafkaEncoding()

    def close(self) -> None:
        self._context.fetch_session.end()

    def reply(self, reply: ReplyFrame) -> Asked:
        if reply.correlation_id == self._token:
            # A login that failed gets no answer: the connection is closed.
            answered = reply.body
            return Asked(
                pieces=framed(answered.auth_bytes) if isinstance(answered, SaslAuthenticateReply) else None
            )
        current = self._current
        if current is None or reply.correlation_id not in current.places:
            return Asked()  # to a Produce with acks 0
        answer = Answer(reply.error, reply.body)
        current.answers[current.places[reply.correlation_id]] = answer
        if len(current.answers) < len(current.places):
            return Asked()
        answers = [current.answers[place] for place in range(len(current.places))]
        # Once: what answers the follow-up calls for nothing more.
        if not current.is_followed_up:
            current.is_followed_up = True
            follow_up = current.exchange.follow_up(answers)
            if follow_up:
                more = self._numbered(follow_up, current.header)
                current.places |= {
                    each.correlation_id: place for place, each in enumerate(more, len(answers))
                }
                return Asked(more)
        # The server calls again with an error when the response was too large or could not be made. All that
        # was asked has failed then, whatever was answered.
        if current.has_failed:
            answers = [answer] * len(answers)  # the error that the caller gives instead
        # Before the attempt, since the exception leaves from here.
        current.has_failed = True
        pieces = _encoded(current.header, current.exchange, answers)
        self._current = None
        return Asked(pieces=pieces)

    def _numbered(self, requests: Iterable[Request], header: RequestHeader) -> tuple[RequestFrame, ...]:
        numbered = tuple(
            RequestFrame(request, correlation_id=number, version=header.version, client_id=header.client_id)
            for number, request in enumerate(requests, start=self._next)
        )
        self._next += len(numbered)
        return numbered


def _unsupported(header: RequestHeader) -> Asked:
    if header.api_key != API_VERSIONS_KEY:
        what = f"Kafka API {header.api_key} version {header.version}"
        raise ProtocolViolation(f"{what} is not served: ask ApiVersions for the range")
    served = SERVED[API_VERSIONS_KEY]
    values = {
        "error_code": ErrorCode.UNSUPPORTED_VERSION,
        "api_keys": [{"api_key": API_VERSIONS_KEY, "min_version": served.first, "max_version": served.last}],
    }
    # Version 0, which every client can read, with the range in which to ask again (KIP-511). A client may ask
    # for versions before it logs in, so this needs no login.
    return Asked(pieces=encode_response(API_VERSIONS_KEY, 0, header.correlation_id, values))


def _encoded(header: RequestHeader, exchange: Exchange, answers: Sequence[Answer]) -> list[Buffer]:
    values = exchange.respond(answers)
    return encode_response(header.api_key, header.version, header.correlation_id, values)
