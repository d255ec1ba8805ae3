"""Kafka's responses as bytes: a writer for each class of kio, made from its fields once.

Rule: the bytes are those that kio writes for the same values, in every version.
"""

# A response is described as a mapping with the fields of all versions (wire.py). kio's own writer needs an
# instance of a class, checks the type of each number, and writes each field by itself; that cost more than
# all else that the broker does for a small request. Here the mapping itself is written, and neighbours of a
# fixed size in one step, as counts.py skips them. A field that the mapping lacks gets its default; a field
# without a default must be there. Records are not copied: they go to the socket from where they were read.

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import timedelta
from functools import cache
from itertools import groupby
from types import NoneType
from typing import Any, Final, NamedTuple, get_args, get_origin

from fencepost.protocol.batches import Buffer
from fencepost.protocol.primitives import INT16, INT32, UUID_SIZE, put_tagged_fields, put_unsigned_varint


class ResponseBytes(bytearray):
    """A response without its records, and the places where they belong."""

    def __init__(self) -> None:
        self.records: list[tuple[int, Buffer]] = []

    def pieces(self) -> list[Buffer]:
        """All of it, in order."""
        if not self.records:
            return [self]
        view, start = memoryview(self), 0
        every: list[Buffer] = []
        for at, records in self.records:
            every += [view[start:at], records]
            start = at
        return [*every, view[start:]]


Write = Callable[[ResponseBytes, Any], None]
"""Appends a value to the bytes. Times and durations are milliseconds."""

_FORMATS: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "error_code": "h",
    "uint16": "H",
    "int32": "i",
    "timedelta_i32": "i",
    "int64": "q",
    "timedelta_i64": "q",
    "datetime_i64": "q",
    "float64": "d",
}
"""Of the kinds of field that are one number."""

_NULL: Final = -1
_NULL_UUID: Final = bytes(UUID_SIZE)
_NULL_STRUCT: Final = b"\xff"  # KIP-893
_STRUCT_FOLLOWS: Final = b"\1"


class _Part(NamedTuple):
    """A field of a class."""

    name: str
    kafka_type: str
    default: Any  # MISSING if it has none
    tag: int | None
    is_number: bool
    write: Write

    def value_in(self, values: Any) -> Any:
        return values[self.name] if self.default is MISSING else values.get(self.name, self.default)


@cache
def writer(schema: Any) -> Write:
    """Writes a class of kio from a mapping of its fields."""
    parts = [_part(field, is_flexible=schema.__flexible__) for field in fields(schema)]
    steps: list[Write] = []
    for is_number, group in groupby(
        (part for part in parts if part.tag is None), lambda part: part.is_number
    ):
        neighbours = list(group)
        steps += [_numbers(neighbours)] if is_number else map(_one, neighbours)
    if schema.__flexible__:
        steps.append(_tagged([(part.tag, part) for part in parts if part.tag is not None]))

    def write(out: ResponseBytes, values: Any) -> None:
        for step in steps:
            step(out, values)

    return write


def _part(field: Field[Any], *, is_flexible: bool) -> _Part:
    kafka_type, default = field.metadata.get("kafka_type", ""), field.default
    is_number = kafka_type in _FORMATS and get_origin(_not_null(field.type)) is not tuple
    if isinstance(default, timedelta):
        default = default // timedelta(milliseconds=1)
    elif is_dataclass(default):
        default = {}  # each of its fields has its own
    elif default is None and is_number:
        # kio says None for a number that is not set, such as a time; Kafka's schemas say -1.
        default = _NULL
    write = _writer(field.type, kafka_type, is_flexible=is_flexible)
    return _Part(field.name, kafka_type, default, field.metadata.get("tag"), is_number, write)


def _not_null(kind: Any) -> Any:
    """A type without its None."""
    arguments = get_args(kind)
    return next(each for each in arguments if each is not NoneType) if NoneType in arguments else kind


def _numbers(parts: list[_Part]) -> Write:
    pack = struct.Struct(">" + "".join(_FORMATS[part.kafka_type] for part in parts)).pack
    wanted = [(part.name, part.default) for part in parts]

    def write(out: ResponseBytes, values: Any) -> None:
        get = values.get
        out += pack(*[get(name, default) for name, default in wanted])  # MISSING is not a number

    return write


def _one(part: _Part) -> Write:
    write_value, value_in = part.write, part.value_in
    return lambda out, values: write_value(out, value_in(values))


def _tagged(parts: list[tuple[int, _Part]]) -> Write:
    """The tagged fields that differ from their defaults (KIP-482)."""
    if not parts:
        return lambda out, _: out.append(0)
    every = [(tag, part, _written(part.write, part.default)) for tag, part in sorted(parts)]

    def write(out: ResponseBytes, values: Any) -> None:
        contents = ((tag, _written(part.write, part.value_in(values)), usual) for tag, part, usual in every)
        put_tagged_fields(out, [(tag, content) for tag, content, usual in contents if content != usual])

    return write


def _written(write: Write, value: Any) -> bytes:
    out = ResponseBytes()
    write(out, value)
    return bytes(out)


def _writer(kind: Any, kafka_type: str, *, is_flexible: bool) -> Write:
    """The writer of a single value."""
    if (inner := _not_null(kind)) is not kind:
        write, null = _nullable(inner, kafka_type, is_flexible=is_flexible)
        return lambda out, value: out.extend(null) if value is None else write(out, value)
    if get_origin(kind) is tuple:
        entry = _writer(get_args(kind)[0], kafka_type, is_flexible=is_flexible)
        return _array(entry, _length(INT32, is_flexible=is_flexible))
    if hasattr(kind, "__dataclass_fields__"):
        return writer(kind)
    if kafka_type == "uuid":
        return lambda out, value: out.extend(value.bytes)
    if kafka_type in _FORMATS:
        pack = struct.Struct(">" + _FORMATS[kafka_type]).pack
        return lambda out, value: out.extend(pack(value))
    if kafka_type == "string":
        return _string(_length(INT16, is_flexible=is_flexible))
    if kafka_type == "records":
        return _records(_length(INT32, is_flexible=is_flexible))
    return _bytes(_length(INT32, is_flexible=is_flexible))


def _nullable(kind: Any, kafka_type: str, *, is_flexible: bool) -> tuple[Write, bytes]:
    """The writer of a value that is not null, and the bytes of null."""
    write = _writer(kind, kafka_type, is_flexible=is_flexible)
    if hasattr(kind, "__dataclass_fields__"):
        return _following(write), _NULL_STRUCT
    if kafka_type == "uuid":
        # Kafka has no null for ids: all zeros (Uuid.ZERO_UUID) stand for it.
        return write, _NULL_UUID
    form = INT16 if kafka_type == "string" and get_origin(kind) is not tuple else INT32
    return write, _written(_length(form, is_flexible=is_flexible), _NULL)


def _length(form: struct.Struct, *, is_flexible: bool) -> Write:
    """A length, or -1 for null."""
    if is_flexible:
        return lambda out, length: put_unsigned_varint(out, length + 1)
    return lambda out, length: out.extend(form.pack(length))


def _string(put_length: Write) -> Write:
    def write(out: ResponseBytes, text: str) -> None:
        data = text.encode()
        put_length(out, len(data))
        out += data

    return write


def _bytes(put_length: Write) -> Write:
    def write(out: ResponseBytes, data: Buffer) -> None:
        put_length(out, len(data))
        out += data

    return write


def _records(put_length: Write) -> Write:
    def write(out: ResponseBytes, records: Buffer) -> None:
        put_length(out, len(records))
        out.records.append((len(out), records))

    return write


def _array(write_entry: Write, put_length: Write) -> Write:
    def write(out: ResponseBytes, entries: Sequence[Any]) -> None:
        put_length(out, len(entries))
        for entry in entries:
            write_entry(out, entry)

    return write


def _following(write_struct: Write) -> Write:
    """A struct that could be null."""

    def write(out: ResponseBytes, values: Any) -> None:
        out.extend(_STRUCT_FOLLOWS)
        write_struct(out, values)

    return write
