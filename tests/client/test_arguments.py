"""Every parameter of every public call refuses a wrong type and a wrong number, before anything is sent."""

from __future__ import annotations

import pydoc
import re
from collections.abc import Awaitable, Callable, Iterator
from inspect import Parameter, getmembers, isawaitable, isroutine, signature
from math import nan
from typing import Any, NamedTuple

import anyio
import pytest

from fencepost import (
    Admin,
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    ConsumerGroupMetadata,
    IsolationLevel,
    Producer,
    TopicPartition,
)
from fencepost.client.admin import AbortSpec

NOWHERE = "127.0.0.1:1"
HERE = TopicPartition("t", 0)
CLIENTS: list[type[Any]] = [Producer, Consumer, Admin, AsyncProducer, AsyncConsumer, AsyncAdmin]

# A right argument for each parameter that has no default. A new one needs a line here.
RIGHT: dict[str, Any] = {
    "after_ms": 1_000,
    "before": {HERE: 0},
    "bootstrap_servers": NOWHERE,
    "broker_id": 1,
    "configs": {"retention.ms": "1"},
    "fault": "broker sends EndTxn reply to * do drop",
    "fault_id": 1,
    "group_id": "g",
    "group_metadata": "g",
    "name": "t",
    "offset": 0,
    "offsets": {HERE: 0},
    "partition": HERE,
    "partitions": [HERE],
    "spec": AbortSpec(partition=HERE, producer_id=1, producer_epoch=0, coordinator_epoch=0),
    "timestamp_ms": 0,
    "topic": "t",
    "topics": ["t"],
    "total": 2,
    "transactional_id": "pay",
    "value": b"",
    "values": [b""],
    "batches": [],
}
SKIPPED = {Parameter.VAR_KEYWORD}


class Case(NamedTuple):
    """One parameter of one public call."""

    client: type[Any]
    call: str
    parameter: Parameter

    def __str__(self) -> str:
        return f"{self.client.__name__}.{self.call}({self.parameter.name})"

    def arguments(self, value: Any) -> tuple[list[Any], dict[str, Any]]:
        """Right arguments, and `value` for this parameter."""
        if self.parameter.kind is Parameter.VAR_POSITIONAL:
            return [value], {}
        needed = [each for each in parameters(self.client, self.call) if each.default is Parameter.empty]
        named = {each.name: RIGHT[each.name] for each in needed if each.kind is not Parameter.VAR_POSITIONAL}
        return [], named | {self.parameter.name: value}

    @property
    def has_number(self) -> bool:
        """Whether a number is right for it."""
        words = str(self.parameter.annotation)
        numbers = (
            "int",
            "float",
            "Milliseconds",
            "Offset",
            "Count",
            "NodeId",
            "PartitionNumber",
            "Timestamp",
        )
        return any(words == each or words == f"{each} | None" for each in numbers)


def parameters(client: type[Any], call: str) -> list[Parameter]:
    shape = signature(client if call == "__init__" else getattr(client, call))
    return [each for each in shape.parameters.values() if each.name != "self" and each.kind not in SKIPPED]


def every_parameter(*, of_constructors: bool) -> Iterator[Case]:
    for client in CLIENTS:
        calls = [name for name, _ in getmembers(client, isroutine) if not name.startswith("_")]
        for call in ["__init__"] if of_constructors else calls:
            for parameter in parameters(client, call):
                yield Case(client, call, parameter)


CALLS = list(every_parameter(of_constructors=False))
CONSTRUCTORS = list(every_parameter(of_constructors=True))


def is_silent(client: Any) -> bool:
    """Whether nothing was sent: no connection was opened, and none is wanted."""
    network = client._driver.network
    return not network.connections and not network.to_open


async def made(case: Case, value: Any) -> None:
    """Makes the call with `value`."""
    positional, named = case.arguments(value)
    if case.client in (Producer, Consumer, Admin):
        with case.client(NOWHERE) as client:
            try:
                getattr(client, case.call)(*positional, **named)
            finally:
                assert is_silent(client)
        return
    async with case.client(NOWHERE) as client:
        try:
            result: Awaitable[Any] | Any = getattr(client, case.call)(*positional, **named)
            if isawaitable(result):
                await result
        finally:
            assert is_silent(client)


@pytest.mark.parametrize("case", CALLS, ids=str)
def test_a_call_refuses_an_argument_of_a_wrong_type(case: Case) -> None:
    with pytest.raises(TypeError, match=rf"\b{case.parameter.name}\b.* must be .*, not <object"):
        anyio.run(made, case, object(), backend="trio")


@pytest.mark.parametrize("case", [case for case in CALLS if case.has_number], ids=str)
@pytest.mark.parametrize("value", [2**70, -5, nan])
def test_a_call_refuses_a_number_out_of_range(case: Case, value: float) -> None:
    if value == 2**70 and "Milliseconds" in str(case.parameter.annotation):
        value = -1  # waiting forever is possible
    with pytest.raises((ValueError, TypeError), match=rf"\b{case.parameter.name} must be .*, not {value}"):
        anyio.run(made, case, value, backend="trio")


@pytest.mark.parametrize("case", CONSTRUCTORS, ids=str)
def test_a_constructor_refuses_an_argument_of_a_wrong_type(case: Case) -> None:
    positional, named = case.arguments(object())
    with pytest.raises(TypeError, match=rf"^{case.parameter.name} must be .*, not <object"):
        case.client(*positional, **named)


@pytest.mark.parametrize("case", [case for case in CONSTRUCTORS if case.has_number], ids=str)
@pytest.mark.parametrize("value", [2**70, -5])
def test_a_constructor_refuses_a_number_out_of_range(case: Case, value: int) -> None:
    positional, named = case.arguments(value)
    with pytest.raises(ValueError, match=rf"^{case.parameter.name} must be .*, not {value}"):
        case.client(*positional, **named)


def test_there_are_parameters_to_refuse() -> None:
    assert len(CALLS) > 100
    assert len(CONSTRUCTORS) > 70
    assert len([case for case in CALLS if case.has_number]) >= 40


def untyped(kind: Any) -> Any:
    """The class without its types: a type checker would refuse what these stories do."""
    return kind


def call_of(client: type[Any], call: str, *positional: Any, **named: Any) -> Callable[[], Any]:
    return lambda: getattr(client(NOWHERE), call)(*positional, **named)


REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (untyped(Producer), TypeError, r"^Producer\(\): missing a required argument: 'bootstrap_servers'"),
    (lambda: untyped(Consumer)("a:1", "b"), TypeError, r"^Consumer\(\): too many positional arguments"),
    (untyped(AsyncProducer), TypeError, r"^AsyncProducer\(\): missing a required argument"),
    (call_of(Producer, "flush", 1, 2), TypeError, r"^flush\(\): too many positional arguments"),
    (call_of(Admin, "create_topic"), TypeError, r"^create_topic\(\): missing a required argument: 'name'"),
    (call_of(Producer, "send"), TypeError, r"^Producer.send\(\) missing 2 required"),
    (call_of(AsyncProducer, "send_nowait"), TypeError, r"^AsyncProducer.send_nowait\(\) missing 2 required"),
    (lambda: untyped(Producer)(NOWHERE, acks="all"), TypeError, "'acks': a producer is always idempotent"),
    (
        lambda: untyped(Consumer)(NOWHERE, enable_auto_commit=True),
        TypeError,
        "'enable_auto_commit': a consumer never commits on its own",
    ),
    (
        call_of(Admin, "create_topic", "t", replication_factor=3),
        TypeError,
        "'replication_factor': a broker is the only node",
    ),
    (
        lambda: untyped(Producer)({"bootstrap.servers": NOWHERE}),
        TypeError,
        r'one string, such as "localhost:9092,localhost:9093", with settings as keyword arguments',
    ),
    (lambda: untyped(Producer)([NOWHERE]), TypeError, "must be one string"),
    (lambda: Producer("localhost"), ValueError, "each address in bootstrap_servers must be host:port"),
    (
        call_of(Consumer, "poll", timeout=1),
        TypeError,
        r"poll\(\) has no parameter 'timeout': did you mean timeout_ms",
    ),
    (
        call_of(Consumer, "assign", [("t", 0)]),
        TypeError,
        r'a TopicPartition, such as TopicPartition\("orders", 0\)',
    ),
    (
        call_of(Consumer, "assign", "t"),
        TypeError,
        "partitions must be a list in which each item is a TopicPartition",
    ),
    (call_of(Consumer, "assign", HERE), TypeError, "partitions must be a list"),
    (
        call_of(Consumer, "assign", [TopicPartition("t", -1)]),
        ValueError,
        "partition must be a whole number from 0",
    ),
    (
        call_of(Consumer, "subscribe", "t"),
        TypeError,
        "topics must be a list in which each item is a string, not 't'",
    ),
    (call_of(Consumer, "seek", HERE, True), TypeError, "offset must be a whole number from 0 .*, not True"),
    (call_of(Consumer, "commit", {HERE: "1"}), TypeError, "each value of offsets must be .*, not '1'"),
    (call_of(Admin, "delete_topic", "\ud800"), ValueError, "name must be text that UTF-8 can encode"),
    (
        call_of(Admin, "list_transactions", ["Ongoing"]),
        TypeError,
        "each of states must be a TransactionState",
    ),
    (call_of(Admin, "abort_transaction", None), TypeError, "spec must be an AbortSpec, not None"),
    (
        call_of(
            Producer, "send_offsets_to_transaction", {HERE: 1}, untyped(ConsumerGroupMetadata)(group_id=5)
        ),
        TypeError,
        "group_metadata.group_id must be a string, not 5",
    ),
    (
        call_of(Producer, "send_many", "t", [b"", "x"]),
        TypeError,
        "each of values must be bytes or None, not 'x'",
    ),
    (
        call_of(Producer, "send_many", "t", [b""], ["x"]),
        TypeError,
        "each of keys must be bytes or None, not 'x'",
    ),
    (call_of(Producer, "send", "t", b"", headers={"a": b"1"}), TypeError, "headers must be a list of pairs"),
    (call_of(Producer, "send", "t", b"", headers=[("a", 1)]), TypeError, "each of headers must be a pair"),
    (
        call_of(Producer, "send", "t", b"", partition=-1),
        ValueError,
        "partition must be a whole number from 0",
    ),
    (
        call_of(Producer, "send", "t", b"", timestamp_ms=-1),
        ValueError,
        "timestamp_ms must be a whole number from 0",
    ),
]


@pytest.mark.parametrize(("call", "kind", "words"), REFUSED)
def test_a_refusal_says_what_is_possible(call: Callable[[], Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        call()


def test_right_arguments_of_several_kinds_are_accepted() -> None:
    with Consumer(NOWHERE, isolation_level=IsolationLevel.READ_COMMITTED, group_id="g") as consumer:
        consumer.assign(iter([HERE]))  # an iterator is read once
        assert consumer.assignment() == [HERE]
        consumer.assign({HERE: "a dictionary is its keys"})
        consumer.seek_to_end(HERE)
        assert consumer.poll(timeout_ms=0) == []


@pytest.mark.parametrize(
    ("client", "call", "result"),
    [(Producer, "send", "SendFuture"), (AsyncProducer, "send_nowait", "AsyncSendFuture")],
)
def test_help_shows_how_to_send(client: type[Any], call: str, result: str) -> None:
    text = pydoc.plain(pydoc.render_doc(client))
    # One line, or from Python 3.14 on one per parameter.
    (shown,) = re.findall(rf"^ \|  {call}\([^)]*\) -> (\S+)", text, re.MULTILINE)
    assert shown.endswith(f".{result}")
    assert f"{call} = " not in text
