"""One request of a Kafka client as the requests of the node that answer it, and the way back.

Rule: an exchange is a value. It asks, and turns the answers into the fields of one response.
"""

# Theory of operation
#
#     kio request, version ─▶ translation ─▶ Exchange
#                                              requests ──▶ node ──▶ answers ─┬─▶ follow_up ──▶ node ─┐
#                             Values ◀──────── respond ◀──────────────────────┴───────────────────────┘
#                               └─▶ bytes (wire.py)
#
# A translation is a function of a request and its version. It has no state, so it can be tested without a
# connection. What it needs to know of the connection (ids of topics, the fetch session, rights, a login)
# comes as a Context; then it returns a function of that.
#
# `Values` have the fields of all versions, and the writer takes those that a version has. So a version shows
# in a translation only where a field changed its meaning or its place, or is missing in requests: a
# `getattr` with a default reads a field that older versions lack.
#
# Kafka's messages nest partitions in topics, and Fencepost's list them: `nested` goes one way, a
# comprehension the other. The node may refuse a request as a whole, and most of Kafka's responses have an
# error for each part but none for all of it: `of_each` then gives that error to each part.
#
# Translations are wrapped by changing `respond` alone: ById (topic_ids.py) puts ids back in the place of
# names, AuthorizedOperations (operations.py) adds rights, data.fetch leaves out what has no news. `in_time`
# may leave out the requests.
#
# `throttle_time` is always 0: there are no quotas.

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import attrs

from fencepost.kafka_bridge.fetch_session import FetchSession
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.messages import Request
from fencepost.protocol.scram import PLAIN, SCRAM_SHA_256
from fencepost.protocol.values import value
from fencepost.protocol.wire_protocol import NodeTopics, Operations

# The default in Kafka's schemas (KIP-430): no set of operations has this bit alone.
NOT_ASKED: Final = -(2**31)
"""The authorized operations in a response that does not list them (operations.py)."""

Values = Mapping[str, Any]
"""The fields of a response, of all its versions (wire.py)."""


class Answer(NamedTuple):
    """The node's answer to one request: an error for all of it, or a body."""

    error: ErrorCode
    body: Any


Respond = Callable[[Sequence[Answer]], Values]


@value
class Exchange:
    """Requests for the node, and how their answers become a response. The answers may call for more requests,
    the `follow_up`, whose answers come last among those that become the response.
    """

    requests: tuple[Request, ...]
    respond: Respond
    follow_up: Callable[[Sequence[Answer]], tuple[Request, ...]] = lambda _: ()


# In a login after SaslHandshake version 0, the messages of the mechanism are frames without headers. So a
# frame is a token only while one is due. A failed login gets no answer, and the connection is closed
# (SaslServerAuthenticator).
TOKENS: Final[Mapping[str, int]] = {PLAIN: 1, SCRAM_SHA_256: 2}  # SCRAM: client-first, client-final


@attrs.define
class RawLogin:
    """How many tokens the client has yet to send on this connection."""

    due: int = 0

    def begin(self, mechanism: str) -> None:
        self.due = TOKENS.get(mechanism, 0)  # the handshake refuses any other


@attrs.frozen
class Context:
    """What a connection knows besides its request: topics, its fetch session, what its client may do, and a
    login in progress.
    """

    topics: NodeTopics
    fetch_session: FetchSession
    operations: Operations = lambda kind, name: NOT_ASKED
    raw_login: RawLogin = attrs.Factory(RawLogin)


def explained(error: ErrorCode, because: str = "") -> dict[str, Any]:
    """The two fields of an error in responses that also have it in words."""
    words = None if error is NO_ERROR else because or error.meaning
    return {"error_code": error, "error_message": words}


Translated = Exchange | Callable[[Context], Exchange]
"""A translation that needs the context takes it."""


Translate = Callable[[Any, int], Translated]
"""The exchange for a request in a version."""


def exchange_in(context: Context, translated: Translated) -> Exchange:
    """The exchange of a translation, which gets the context if it needs it."""
    return translated if isinstance(translated, Exchange) else translated(context)


def in_time(translate: Translate) -> Translate:
    """The translation of a request to Kafka's controller, which does nothing if it is given no time."""

    def translate_in_time(request: Any, version: int) -> Translated:
        translated = translate(request, version)
        if request.timeout > timedelta(0):
            return translated

        def timed_out(context: Context) -> Exchange:
            exchange = exchange_in(context, translated)
            late = Answer(ErrorCode.REQUEST_TIMED_OUT, None)
            return known(exchange.respond([late] * len(exchange.requests)))

        return timed_out

    return translate_in_time


def one(request: Request, respond: Callable[[Answer], Values]) -> Exchange:
    """An exchange of a single request."""
    return Exchange((request,), lambda answers: respond(answers[0]))


def known(values: Values) -> Exchange:
    """A response that needs no node."""
    return Exchange((), lambda _: values)


class OfTopic(Protocol):
    """Anything that names a topic."""

    @property
    def topic(self) -> str: ...


PartT = TypeVar("PartT", bound=OfTopic)
AskedT = TypeVar("AskedT")
ResultT = TypeVar("ResultT")


def nested(
    parts: Iterable[PartT],
    values: Callable[[PartT], Any],
    *,
    name: str = "name",
    partitions: str = "partitions",
) -> list[Values]:
    """The values of each part under its topic, in the order in which they came: Kafka's messages nest what
    ours list. `name` and `partitions` are Kafka's names of the two fields of a topic.
    """
    topics: defaultdict[str, list[Any]] = defaultdict(list)
    for part in parts:
        topics[part.topic].append(values(part))
    return [{name: topic, partitions: its} for topic, its in topics.items()]


def of_each(
    answer: Answer, field: str, asked: Iterable[AskedT], refused: Callable[[AskedT, ErrorCode], ResultT]
) -> Sequence[ResultT]:
    """The node's result for each part of a request: the `field` of its answer. If it refused the whole
    request, `refused` makes a result for each part that was asked for.
    """
    if answer.body is not None:
        return getattr(answer.body, field)
    return [refused(each, answer.error) for each in asked]
