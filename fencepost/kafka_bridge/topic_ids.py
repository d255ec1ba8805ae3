"""Requests with topic ids (KIP-516), turned into requests with topic names.

Rule: an id that no topic has gets UNKNOWN_TOPIC_ID, and the rest of the request is carried out.
"""

# Ids become names before a request is authorized and carried out. A topic that is deleted and made again in
# between would get the request, as in Kafka. Only a Produce takes its ids along, and the node compares them.

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final
from uuid import UUID

import attrs

from fencepost.kafka_bridge.exchange import Answer, Context, Exchange, Translated, Values
from fencepost.protocol.terms import NO_TOPIC_ID
from fencepost.protocol.wire_protocol import NodeTopics

NO_TOPIC: Final = ""
"""The name of no topic: an empty one is not allowed."""


# kio's classes are frozen, and copying a large request to change one field would cost as much as reading it.
class Replaced:
    """A request, or a part of one, of which some fields have other values."""

    def __init__(self, original: Any, **values: Any) -> None:
        self.__dict__.update(values)
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def uuid_of(topic_id: bytes | None) -> UUID | None:
    """An id in a response; None is Kafka's zero."""
    return None if topic_id is None or topic_id == NO_TOPIC_ID else UUID(bytes=topic_id)


def id_of(topic_id: UUID | None) -> bytes:
    """An id in a request; zeros for Kafka's zero, and for requests that only name their topics."""
    return NO_TOPIC_ID if topic_id is None else topic_id.bytes


def name_of(topics: NodeTopics, topic_id: UUID | None) -> str | None:
    """The name for an id in a request."""
    return None if topic_id is None else topics.topic_name(topic_id.bytes)


@attrs.frozen(kw_only=True)
class ById:
    """How a translation by names serves requests by ids: `first` is the first such version, `entries` and
    `answers` are the lists of topics in request and response, `name` is the name of a topic in the latter.
    """

    first: int
    entries: str
    answers: str
    name: str = "name"
    refused: Callable[[Any], Values]
    is_unanswered: Callable[[Any], bool] = lambda request: False
    """Whether the response is not sent. Then the node must learn of ids that no topic has."""

    def __call__(self, translate: Callable[[Any, int], Exchange]) -> Callable[[Any, int], Translated]:
        def translate_any(request: Any, version: int) -> Translated:
            if version < self.first:
                return translate(request, version)
            return lambda context: self._translated(translate, request, version, context)

        return translate_any

    def _translated(
        self, translate: Callable[[Any, int], Exchange], request: Any, version: int, context: Context
    ) -> Exchange:
        ids: dict[str, UUID] = {}
        named: list[Replaced] = []
        unknown: list[Any] = []
        for entry in getattr(request, self.entries):
            name = name_of(context.topics, entry.topic_id)
            # A response could name it as unknown, but none is sent. With an invalid name the node refuses it,
            # and the server closes the connection, as Kafka does for acks 0.
            if name is None and self.is_unanswered(request):
                named.append(Replaced(entry, name=NO_TOPIC, topic=NO_TOPIC))
            elif name is None:
                unknown.append(entry)
            else:
                ids[name] = entry.topic_id
                named.append(Replaced(entry, name=name, topic=name))
        exchange = translate(Replaced(request, **{self.entries: named}), version)
        refused = [{"topic_id": entry.topic_id, **self.refused(entry)} for entry in unknown]

        def respond(answers: Sequence[Answer]) -> Values:
            values = exchange.respond(answers)
            known = [{**topic, "topic_id": ids[topic[self.name]]} for topic in values[self.answers]]
            return {**values, self.answers: [*known, *refused]}

        return attrs.evolve(exchange, respond=respond)
