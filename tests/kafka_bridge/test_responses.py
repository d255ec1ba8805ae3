"""Every response in every served version, as a second library reads it: kafka-python's protocol package.

Rule: what it reads, it writes again as the same bytes, so it has read all of them.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from enum import Enum
from functools import cache
from random import Random
from types import NoneType
from typing import Any, Final, get_args, get_origin, get_type_hints

import attrs
import kafka.protocol
import pytest
from kio.index import load_request_schema, load_response_schema

from fencepost.kafka_bridge.apis import SERVED
from fencepost.kafka_bridge.exchange import Answer, Context, Exchange, exchange_in
from fencepost.kafka_bridge.fetch_session import FetchSession
from fencepost.kafka_bridge.wire import API_VERSIONS_KEY, encode_response
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.messages import API_BY_REQUEST, ApiVersions
from fencepost.protocol.wire_protocol import SessionRoom
from tests.kafka_bridge.samples import ITEMS_MAX, NoTopics, sample

TRIES: Final = 2
LENGTH_SIZE: Final = 4
CORRELATION_ID: Final = 7
INIT_PRODUCER_ID = 22
CONSUMER_GROUPS: Final = (68, 69)  # neither kafka-python nor aiokafka has them
CORRELATION_ID_SIZE: Final = 4
TEXTS: Final = ("", "orders", "größe")


class Topics(NoTopics):
    """Some ids have names, and some names ids."""

    def topic_name(self, topic_id: bytes) -> str | None:
        return f"topic-{topic_id[0]}" if topic_id[0] % 4 else None

    def topic_id(self, topic: str) -> bytes | None:
        return (topic or "x").encode()[:1] * 16 if topic != "orders" else None


@attrs.frozen
class Replies:
    """Draws replies of the node that answer a request: they name its topics."""

    topics: Sequence[str]
    random: Random

    def value(self, kind: Any, name: str = "") -> Any:
        """A value for the annotation of a field."""
        random, arguments = self.random, get_args(kind)
        if NoneType in arguments:
            return None if random.random() < 0.2 else self.value(arguments[0], name)
        if get_origin(kind) is tuple:
            return self._several(arguments[0], name)
        if hasattr(kind, "__metadata__"):
            (bits,) = kind.__metadata__
            return b"" if bits == "records" else random.getrandbits(31 if name.endswith("_ms") else bits - 1)
        if _is_structure(kind):
            return kind(**{field: self.value(hint, field) for field, hint in _fields(kind).items()})
        if issubclass(kind, Enum):
            members: list[Enum] = list(kind)
            return random.choice(members)
        if kind is bytes:
            return random.randbytes(16 if name == "topic_id" else 5)
        if kind is bool:
            return random.random() < 0.5
        return random.choice(self.topics if name == "topic" else TEXTS)

    def _several(self, kind: Any, name: str) -> tuple[Any, ...]:
        names_topics = _is_structure(kind) and "topic" in _fields(kind)
        count = 0 if names_topics and not self.topics else self.random.randrange(ITEMS_MAX)
        return tuple(self.value(kind, name) for _ in range(count))


def _is_structure(kind: Any) -> bool:
    return attrs.has(kind) or hasattr(kind, "_fields")


def _fields(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def topics_in(request: Any) -> list[str]:
    parts = getattr(request, "topics", None) or getattr(request, "partitions", None)
    named = [getattr(part, "topic", part) for part in parts or getattr(request, "offsets", None) or ()]
    return [name for name in named if isinstance(name, str)]


def answers_to(exchange: Exchange, random: Random) -> Sequence[Answer]:
    is_always_answered = type(exchange.requests[0]) is ApiVersions if exchange.requests else False
    if random.random() < 0.3 and not is_always_answered:
        error = random.choice([each for each in ErrorCode if each is not NO_ERROR])
        return [Answer(error, None) for _ in exchange.requests]
    answers = [answer_to(request, random) for request in exchange.requests]
    return answers + [answer_to(request, random) for request in exchange.follow_up(answers)]


def answer_to(request: Any, random: Random) -> Answer:
    reply = Replies(topics_in(request), random).value(API_BY_REQUEST[type(request)].reply)
    return Answer(NO_ERROR, reply)


@cache
def response_classes() -> dict[int, Any]:
    """kafka-python's response classes by API key."""
    for module in pkgutil.walk_packages(kafka.protocol.__path__, "kafka.protocol."):
        if ".old" not in module.name and "generate" not in module.name:
            importlib.import_module(module.name)
    found: dict[int, Any] = {}
    base = importlib.import_module("kafka.protocol.api_message").ApiMessage
    pending: list[Any] = [base]
    while pending:
        kind = pending.pop()
        pending += kind.__subclasses__()
        if kind is not base and kind.__name__.endswith("Response"):
            found[kind.API_KEY] = kind
    return found


def test_each_api_is_served_in_all_versions_of_kafka_but_these() -> None:
    """kio has Kafka's schemas, with versions that Kafka does not advertise yet (latestVersionUnstable)."""
    served = {api.key: (api.first, api.last) for api in SERVED.values()}
    kafka = {key: versions_of(key) for key in served}
    assert {key: (served[key], kafka[key]) for key in served if served[key] != kafka[key]} == {
        INIT_PRODUCER_ID: ((0, 5), (0, 6))  # version 6 is not advertised
    }


def versions_of(key: int) -> tuple[int, int]:
    schemas = importlib.import_module(
        load_request_schema(key, SERVED[key].last).__module__.rpartition(".v")[0]
    )
    versions = [int(module.name[1:]) for module in pkgutil.iter_modules(schemas.__path__)]
    return min(versions), max(versions)


@pytest.mark.parametrize("key", SERVED, ids=str)
def test_another_library_reads_every_response(key: int) -> None:
    theirs = response_classes().get(key)
    api = SERVED[key]
    read = 0
    for version in range(api.first, api.last + 1):
        has_tags = load_response_schema(key, version).__flexible__ and key != API_VERSIONS_KEY
        size = CORRELATION_ID_SIZE + has_tags
        for seed in range(TRIES):
            random = Random(f"{key} {version} {seed}")
            request = sample(load_request_schema(key, version), random)
            translated = api.translate(request, version)
            exchange = exchange_in(Context(Topics(), FetchSession(SessionRoom(10))), translated)
            values = exchange.respond(answers_to(exchange, random))
            data = b"".join(encode_response(key, version, CORRELATION_ID, values))[LENGTH_SIZE:]
            if theirs is not None and version <= theirs.max_version:
                message = theirs.decode(data, version=version, header=True)
                assert message.header.correlation_id == CORRELATION_ID
                assert message.encode(header=False) == data[size:], (version, seed)
                read += 1
    assert read or key in CONSUMER_GROUPS, f"kafka-python does not know API {key}"
