"""One request of a Kafka client as the requests of the node that answer it, and the way back.

Rule: an exchange is a value. It asks, and turns the answers into the fields of one response.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import attrs

from fencepost.kafka_bridge.fetch_session import FetchSession
from fencepost.kafka_bridge.raw_login import RawLogin
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import Request
from fencepost.protocol.wire_protocol import TopicIds

NOT_ASKED: Final = -(2**31)
"""The authorized operations in a response that does not list them; no response does here."""

Values = Mapping[str, Any]
"""The fields of a response, of all its versions (wire.py)."""


class Answer(NamedTuple):
    """The node's answer to one request: an error for all of it, or a body."""

    error: ErrorCode
    body: Any


Respond = Callable[[Sequence[Answer]], Values]


@attrs.frozen
class Exchange:
    """Requests for the node, and how their answers become a response. Requests `beside` them follow when
    the answers are known; nobody waits for theirs.
    """

    requests: tuple[Request, ...]
    respond: Respond
    beside: Callable[[Sequence[Answer]], tuple[Request, ...]] = lambda _: ()


@attrs.frozen
class Context:
    """What a connection knows beside its request: topics, its fetch session, and a login in progress."""

    topics: TopicIds
    fetch_session: FetchSession
    raw_login: RawLogin = attrs.Factory(RawLogin)


Translated = Exchange | Callable[[Context], Exchange]
"""A translation that needs the context takes it."""


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


Part = TypeVar("Part", bound=OfTopic)


def by_topic(parts: Iterable[Part]) -> dict[str, list[Part]]:
    """Parts in the order in which they came, under their topics: Kafka's messages nest what ours list."""
    topics: defaultdict[str, list[Part]] = defaultdict(list)
    for part in parts:
        topics[part.topic].append(part)
    return topics
