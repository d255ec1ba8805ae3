"""Steps of a broker on their way to a follower: an event of a history, and what a picture says about it.

Rule: what is read is plain data of known types; anything else is an UnreadableStep. Texts are shortened
before they are written.
"""

# An event is an array in msgpack: the name of its class, its fields in their order, and what is about it.
# Only the fields that are not plain data have a form of their own: a partition is [topic, number], a header
# the numbers of its fields, a record of a transaction its fields with the state by its number, and the result
# of a marker its name.

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import attrs
import msgpack

from fencepost.lab.node_state import PARTITIONS_SHOWN, Changes
from fencepost.lab.rules import Reason
from fencepost.protocol.batches import BatchHeader
from fencepost.protocol.errors import FencepostError
from fencepost.protocol.terms import TopicPartition, TransactionResult, TransactionState
from fencepost.protocol.transaction_log import TransactionRecord
from fencepost.simulator.world.history import (
    Appended,
    Arrived,
    Bounded,
    Called,
    Coordinated,
    Event,
    Lost,
    Sent,
    Struck,
    Truncated,
)


class UnreadableStep(FencepostError):
    """A step that this version of Fencepost does not understand."""


@attrs.frozen(kw_only=True)
class About:
    """What a picture says about a message or a batch besides its event. `values`: of a batch. `error`: the
    first one that a reply names. `why`: the rule that decided it.
    """

    transactional_id: str | None = None
    producer_ids: tuple[int, ...] = ()
    error: str | None = None
    values: tuple[str, ...] | None = None
    why: Reason | None = None


NOTHING: Final = About()


def _record(record: TransactionRecord) -> list[Any]:
    shown = record.partitions[:PARTITIONS_SHOWN]
    fields = record._asdict() | {"state": record.state.value, "partitions": [list(each) for each in shown]}
    return list(fields.values())


def _record_of(fields: list[Any]) -> TransactionRecord:
    record = TransactionRecord(*fields)
    return record._replace(
        state=TransactionState(record.state),
        partitions=tuple(TopicPartition(*each) for each in record.partitions),
    )


def _header(header: BatchHeader) -> list[int]:
    return [getattr(header, name) for name in _HEADER]


_HEADER: Final = tuple(field.name for field in attrs.fields(BatchHeader) if field.init)

_WRITES: Final[dict[type[Any], Callable[[Any], Any]]] = {
    TopicPartition: list,
    BatchHeader: _header,
    TransactionRecord: _record,
    TransactionResult: lambda result: result.name,
}
_READS: Final[dict[str, Callable[[Any], Any]]] = {
    "partition": lambda given: TopicPartition(*given),
    "header": lambda given: BatchHeader(*given),
    "record": _record_of,
    "result": lambda given: None if given is None else TransactionResult[given],
}
_EVENTS: Final = (Sent, Arrived, Lost, Appended, Bounded, Truncated, Coordinated, Called, Struck)
_KINDS: Final[dict[str, type[Event]]] = {kind.__name__: kind for kind in _EVENTS}
_FIELDS: Final = {kind: tuple(field.name for field in attrs.fields(kind)) for kind in _KINDS.values()}
_REASON: Final = tuple(field.name for field in attrs.fields(Reason))
_ABOUT: Final = tuple(field.name for field in attrs.fields(About))


def pack(event: Event, about: About = NOTHING) -> bytes:
    """A step for a FollowedStep."""
    kind = type(event)
    values: list[Any] = [kind.__name__]
    for name in _FIELDS[kind]:
        value = getattr(event, name)
        write = _WRITES.get(cast("type[Any]", type(value)))
        values.append(value if write is None else write(value))
    values.append(None if about is NOTHING else _packed(about))
    return msgpack.packb(values)


def _packed(about: About) -> list[Any]:
    why = about.why
    reason = None if why is None else [getattr(why, name) for name in _REASON]
    return [about.transactional_id, about.producer_ids, about.error, about.values, reason]


def unpack(step: bytes) -> tuple[Event, About]:
    """The event of a step, and what is about it. Raises UnreadableStep."""
    try:
        name, *values, about = msgpack.unpackb(step)
        kind = _KINDS[name]
        fields = {
            field: _READS[field](value) if field in _READS else value
            for field, value in zip(_FIELDS[kind], values, strict=True)
        }
        return kind(**fields), NOTHING if about is None else _about(about)
    except Exception as problem:
        raise UnreadableStep(f"a step of the broker cannot be read: {problem}") from problem


def unpack_changes(changes: bytes) -> Changes:
    """The changes of a step, or the state at the first one. Raises UnreadableStep."""
    try:
        found: object = msgpack.unpackb(changes) if changes else {}
    except Exception as problem:
        raise UnreadableStep(f"a state of the broker cannot be read: {problem}") from problem
    if isinstance(found, dict) and all(type(key) is str for key in cast("dict[object, object]", found)):
        return cast("Changes", found)
    raise UnreadableStep("a state of the broker cannot be read: it is not a map of texts")


def _about(values: list[Any]) -> About:
    found = dict(zip(_ABOUT, values, strict=True))
    for name in ("producer_ids", "values"):
        found[name] = None if found[name] is None else tuple(found[name])
    if found["why"] is not None:
        found["why"] = Reason(**dict(zip(_REASON, found["why"], strict=True)))
    return About(**found)
