"""What is public, and how each part of it is explained: the facts for the API reference and its test.

Rule: what a program can reach by public names is public: classes, methods, functions, parameters, attributes
and errors. A name that begins with an underscore is not.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cache
from importlib import import_module
from inspect import Parameter, cleandoc, getmembers, getsource, isclass, isroutine, signature, unwrap
from textwrap import dedent
from typing import Any, Final, get_overloads

import attrs

import fencepost
from fencepost import simulation
from fencepost.broker.observer import Observer

MORE: Final = {
    "SendFuture": "fencepost.client.shells.sync",
    "SendFutures": "fencepost.client.shells.sync",
    "AsyncSendFuture": "fencepost.client.shells.aio",
    "AsyncSendFutures": "fencepost.client.shells.aio",
    "StoredRecords": "fencepost.client.send_future",
    "TopicDescription": "fencepost.client.admin",
    "TransactionListing": "fencepost.client.admin",
    "TransactionDescription": "fencepost.protocol.messages",
    "ProducerDescription": "fencepost.protocol.messages",
    "GroupListing": "fencepost.client.admin",
    "GroupDescription": "fencepost.client.admin",
    "MemberDescription": "fencepost.client.admin",
    "DescribedConfig": "fencepost.protocol.messages",
    "ConfigSynonym": "fencepost.protocol.messages",
    "DescribedFault": "fencepost.protocol.messages",
    "FollowReply": "fencepost.protocol.messages",
    "FollowedStep": "fencepost.protocol.messages",
    "BrokerStatusReply": "fencepost.protocol.messages",
    "TopicStatus": "fencepost.protocol.messages",
    "PartitionSize": "fencepost.protocol.messages",
    "StateCount": "fencepost.protocol.messages",
    "RequestStatus": "fencepost.protocol.messages",
    "DiskProblem": "fencepost.protocol.messages",
    "GroupState": "fencepost.protocol.terms",
    "GroupType": "fencepost.protocol.terms",
    "ConfigSource": "fencepost.protocol.terms",
    "ConfigType": "fencepost.protocol.terms",
    "SecuritySettings": "fencepost.client.security",
    "Faults": "fencepost.broker.fault_handles",
    "FaultPoint": "fencepost.broker.fault_handles",
    "FaultHandle": "fencepost.broker.fault_handles",
    "NoSuchFault": "fencepost.broker.faults",
    "NetworkFault": "fencepost.testing.proxy",
    "ProxyNotRunning": "fencepost.testing.proxy",
    "SweepFault": "fencepost.testing.sweep",
    "SweepRun": "fencepost.testing.sweep",
    "RunVerdict": "fencepost.testing.sweep",
    "When": "fencepost.simulator.scenarios.builder",
    "Violation": "fencepost.simulator.judges.rules",
    "KnownAnomaly": "fencepost.simulator.judges.known_anomalies",
}
"""Types of values that a program gets from calls, or passes to them, without importing them from `fencepost`,
with their modules.
"""

TYPES: Final = {
    "Milliseconds": "A number of milliseconds from 0; `math.inf` means no limit.",
    "Timestamp": "Milliseconds since 1970, a whole number from 0.",
    "TimestampOrEnd": "Milliseconds since 1970, -1 for the end, or -2 for the log start.",
    "Offset": "A whole number from 0.",
    "OffsetOrEnd": "An offset, or -1 for the end or for none.",
    "Count": "A whole number from 1.",
    "NodeId": "A whole number from 0: the id of a broker.",
    "PartitionNumber": "A whole number from 0.",
    "LeaderEpoch": "A whole number from 0.",
    "FaultId": "A whole number from 0.",
    "BootstrapServers": 'A string "host:port,host:port".',
    "Int8": "A whole number of 8 bits.",
    "Int16": "A whole number of 16 bits.",
    "Int32": "A whole number of 32 bits.",
    "Int64": "A whole number of 64 bits.",
    "Serializer": "A function from an object of the program to the bytes of a key or value, or None.",
    "Deserializer": "A function from the bytes of a key or value, or None, to an object of the program.",
    "Partitioner": "A function of the bytes of a key and the number of partitions; returns a partition.",
    "Headers": "A sequence of pairs of a name and bytes or None.",
    "Header": "A pair of a name and bytes or None.",
    "OnDelivery": "A function of an error or None, and a RecordMetadata; what it returns is ignored.",
    "Clock": "A function without parameters that returns milliseconds.",
    "CommittableOffset": "The offset of the next record to read, or an OffsetAndMetadata.",
    "OutcomeT": "A SendFuture of a blocking producer, an AsyncSendFuture of an async one.",
    "ProducerBatch": "A batch of records of a producer, for internal use by producers.",
    "BatchRun": "Records that follow each other in a ProducerBatch.",
    "Columns": "The columns of a batch as stored: values, keys, headers, and differences of offsets.",
    "Observer": "An object that a broker calls at each of its steps; a Recording is one.",
    "Feed": "An object that keeps the last steps of a broker for its followers; a StepFeed is one.",
    "HasAddress": "A broker, or another object with an `address`.",
    "Identity": '"key", "value", or a function of a record that returns what can be a key of a dictionary.',
    "Records": "The name of a topic, a TopicPartition, or an iterable of records, batches or plain values.",
    "Direction": '"to_broker" or "to_clients".',
    "Point": "A point of the protocol that a broker reached; `str` writes it as scenarios do.",
    "TestT": "A test: a function.",
    "Source": "The name of a bundled scenario, the path of a file, a Scenario or a Builder.",
    "WorldArguments": "The keyword arguments of `simulate`, without `seed`.",
    "ExploreConfig": "The arguments of `explore`.",
    "Coverage": "How often runs exercised each cell of the coordinator's tables, and each rare state.",
    "Shown": "RunResult | ScenarioResult | FuzzResult | Explored: a result whose run a page can show.",
    "PathWatch": "What watches an explored trace while its History is made.",
    "RunObserver": "A function that watches a run beside its recorder.",
}
"""What stands for a type in signatures and has no entry of its own."""

WORDS: Final = {
    "topic": "the name of a topic.",
    "partition": "a TopicPartition, or its number where the topic is given.",
    "partitions": 'each a TopicPartition, such as TopicPartition("orders", 0).',
    "offset": "the number of a record in its partition, from 0.",
    "value": "for the value serializer; without one, bytes, or None for a tombstone.",
    "key": "for the key serializer; without one, bytes or None.",
    "timestamp_ms": "milliseconds since 1970; by default the time at which the record's batch was opened.",
    "headers": "pairs of a name and bytes or None.",
    "on_delivery": "called once with the record's error or None, and its RecordMetadata; keep it quick.",
    "group_id": "the name of a consumer group.",
    "group_instance_id": "the name that a static member keeps through restarts (KIP-345); None for others.",
    "member_id": "the id that the coordinator gave the member.",
    "client_id": "the name of a client in logs and descriptions.",
    "protocol_type": '"consumer" if the members of the group read partitions.',
    "transactional_id": "the name that a producer keeps through restarts.",
    "producer_id": "the number that the coordinator gave the producer; -1 is none.",
    "producer_epoch": "it grows with each producer that takes the id over; -1 is none.",
    "coordinator_epoch": "the leader epoch of the coordinator that wrote last; -1 is none.",
    "transaction_version": "2 for KIP-890, 0 and 1 for the protocol before it.",
    "fault_id": "the number that the broker gave the fault.",
    "node_id": "the id of a broker.",
    "direction": '"to_broker" or "to_clients"; None: both.',
    "keys": "keys of the table, as in scenarios/README.md.",
}
"""Parameters that mean the same everywhere. The pages show these sentences below each signature that has one
of them, unless its docstring explains the parameter.
"""

GIVEN: Final = frozenset({
    "SendFuture", "SendFutures", "AsyncSendFuture", "AsyncSendFutures", "StoredRecords", "ConsumedBatch",
    "Faults", "FaultPoint", "FaultHandle", "NetworkFault", "Builder", "When", "SecuritySettings",
})  # fmt: skip
"""Classes whose objects only calls make, so the constructor is not shown."""

OPAQUE: Final = frozenset({"History", "Scenario"})
"""Values that a program passes on; their fields are those of drawings, and of the files in scenarios/."""


def entries() -> dict[str, Any]:
    """Everything that has an entry in the reference, by name."""
    return {
        **{name: getattr(fencepost, name) for name in fencepost.__all__},
        **{name: getattr(simulation, name) for name in simulation.__all__},
        **{name: getattr(import_module(home), name) for name, home in MORE.items()},
    }


def text_of(documented: Any) -> str:
    """The docstring of a class, function or property; nothing if it only inherits one."""
    own = vars(documented).get("__doc__") if isclass(documented) else documented.__doc__
    return cleandoc(own or "")


# --- functions ----------------------------------------------------------------------------------------------


def shapes(function: Callable[..., Any]) -> list[list[Parameter]]:
    """The public parameters of a function or class, once for each of its overloads."""
    private = _private_fields(function)
    return [
        [each for each in signature(shape).parameters.values() if each.name not in private]
        for shape in get_overloads(unwrap(function)) or [function]
    ]


def _private_fields(function: Any) -> set[str]:
    fields = attrs.fields(function) if isclass(function) and attrs.has(function) else ()
    return {"self", *(field.alias for field in fields if field.name.startswith("_"))}


def unexplained(function: Callable[..., Any], text: str) -> list[str]:
    """The parameters that neither this text nor the shared words explain."""
    names = dict.fromkeys(each.name for shape in shapes(function) for each in shape)
    return [name for name in names if f"`{name}`" not in text and name not in WORDS]


def shared_words(function: Callable[..., Any], text: str) -> dict[str, str]:
    """The shared words for the parameters that this text does not explain."""
    names = dict.fromkeys(each.name for shape in shapes(function) for each in shape)
    return {name: WORDS[name] for name in names if f"`{name}`" not in text and name in WORDS}


# --- classes ------------------------------------------------------------------------------------------------


def is_constructed(kind: type[Any]) -> bool:
    """Whether the entry of a class shows its constructor."""
    return not issubclass(kind, (Enum, Exception)) and kind.__name__ not in OPAQUE | GIVEN


def class_text(kind: type[Any]) -> str:
    """The docstring of a class, and what its constructor adds to that."""
    constructor = getattr(kind, "__init__", None)
    is_written = getattr(constructor, "__module__", None) is not None and not attrs.has(kind)
    added = text_of(constructor) if is_written and is_constructed(kind) else ""
    return "\n\n".join(filter(None, (text_of(kind), added)))


def _is_written_here(thing: Any) -> bool:
    module = getattr(thing, "__module__", None)
    return module is not None and module.partition(".")[0] not in sys.stdlib_module_names


def members(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class; without those that a broker calls on a Recording."""
    if kind.__name__ in OPAQUE:
        return
    for name, member in getmembers(kind):
        is_ours = isinstance(member, property) or (isroutine(member) and _is_written_here(member))
        is_heard = kind in (fencepost.Recording, fencepost.StepFeed) and name in vars(Observer)
        if is_ours and not is_heard and not name.startswith("_") and name not in vars(Exception):
            yield name, member


def attributes(kind: type[Any]) -> dict[str, str]:
    """The public fields of a class and of its objects, with the text below each; all members of an Enum.
    Those of a parent are left to its entry, if it has one.
    """
    public_bases = entries().values()
    found: dict[str, str] = {}
    if kind.__name__ not in OPAQUE:
        for each in reversed(kind.__mro__):
            has_own_entry = each is not kind and each in public_bases
            if _is_written_here(each) and not has_own_entry:
                found.update(_fields(each))
    return {name: text for name, text in found.items() if not name.startswith("_")}


@cache  # Python reads a whole file to find the source of a class
def _fields(kind: type[Any]) -> dict[str, str]:
    [definition] = ast.parse(dedent(getsource(kind))).body
    assert isinstance(definition, ast.ClassDef), "the source of a class is its definition"
    found = dict(_assigned(definition.body, "", plain=issubclass(kind, Enum)))
    for each in definition.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            found.update(_assigned(each.body, "self.", plain=True))
    return found


def _assigned(block: list[ast.stmt], prefix: str, *, plain: bool) -> Iterator[tuple[str, str]]:
    """The names that statements assign, with or without (`plain`) a type, each with the text below it."""
    for statement, below in zip(block, [*block[1:], None], strict=True):
        targets: list[ast.expr] = [statement.target] if isinstance(statement, ast.AnnAssign) else []
        if plain and isinstance(statement, ast.Assign):
            targets = statement.targets
        text = below.value if isinstance(below, ast.Expr) else None
        shown = cleandoc(str(text.value)) if isinstance(text, ast.Constant) else ""
        for name in map(ast.unparse, targets):
            if name.startswith(prefix) and name.removeprefix(prefix).isidentifier():
                yield name.removeprefix(prefix), shown


# --- what is missing ----------------------------------------------------------------------------------------


def gaps(name: str, entry: Any) -> list[str]:
    """What has no explanation in one entry, each by its full name."""
    if not isclass(entry):
        return _gaps_of(name, entry)
    text, fields = class_text(entry), attributes(entry)
    found = [] if text_of(entry) else [name]
    if is_constructed(entry):
        made = unexplained(entry, text)
        found += [f"{name}({each})" for each in made if each not in fields]
    for field, below in fields.items():
        is_said = below or field in WORDS or f"`{field}`" in text
        if not is_said and not (issubclass(entry, Enum) and _speaks(entry[field])):
            found.append(f"{name}.{field}")
    for each, member in members(entry):
        found += _gaps_of(f"{name}.{each}", member)
    return found


def _gaps_of(name: str, member: Any) -> list[str]:
    text = text_of(member)
    names = [] if isinstance(member, property) else unexplained(member, text)
    return [*([] if text else [name]), *(f"{name}({each})" for each in names)]


def _speaks(member: Enum) -> bool:
    """Whether a member of an Enum has its text as its value or its meaning."""
    return isinstance(member.value, str) or hasattr(member, "meaning")
