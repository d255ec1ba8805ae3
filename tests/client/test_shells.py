"""The blocking and the async clients have the same methods, and these the signatures of their scripts."""

from __future__ import annotations

from inspect import getdoc, getmembers, isroutine, signature
from typing import get_type_hints

import pytest

from fencepost import Admin, AsyncAdmin, AsyncConsumer, AsyncProducer, ConsumedBatch, Consumer, Producer
from fencepost.client.consumer_calls import ConsumerCalls

PAIRS = [(Producer, AsyncProducer), (Consumer, AsyncConsumer), (Admin, AsyncAdmin)]


@pytest.mark.parametrize(("blocking", "other"), PAIRS, ids=lambda client: client.__name__)
def test_both_shells_have_the_same_methods(blocking: type[object], other: type[object]) -> None:
    shapes, of_other = (
        {
            name: (list(signature(member).parameters), bool(getdoc(member)))
            for name, member in getmembers(client, isroutine)
            if not name.startswith("_")
        }
        for client in (blocking, other)
    )
    shapes = {name: shape for name, shape in shapes.items() if name != "send"}
    assert shapes == {name: shape for name, shape in of_other.items() if name != "send"}
    assert all(has_doc for _, has_doc in shapes.values())


def test_help_shows_what_a_method_returns_and_not_its_script() -> None:
    assert Consumer.poll.__doc__ == ConsumerCalls.poll.__doc__
    assert Consumer.poll.__name__ == "poll"
    assert (
        str(signature(Consumer.poll)) == "(self, timeout_ms: 'Milliseconds' = 1000) -> 'list[ConsumedBatch]'"
    )
    assert str(signature(Consumer.assignment)) == "(self) -> 'list[TopicPartition]'"
    assert get_type_hints(Consumer.poll) == {"timeout_ms": float, "return": list[ConsumedBatch]}
    assert get_type_hints(AsyncConsumer.poll) == get_type_hints(Consumer.poll)


@pytest.mark.parametrize("client", [client for pair in PAIRS for client in pair])
def test_a_method_belongs_to_its_client_and_its_types_can_be_looked_up(client: type[object]) -> None:
    for name, method in vars(client).items():
        if isroutine(method) and not name.startswith("_") and name not in ("send", "send_nowait"):
            assert method.__qualname__ == f"{client.__name__}.{name}"
        if isroutine(method) and hasattr(method, "__signature__"):
            assert "return" in get_type_hints(method), name
