"""Messages to msgpack arrays and back, derived from the annotations of their classes: no message has code of
its own.

Rule: everything read is checked in full (type, range, length), so the cores never meet a value of the wrong
shape. Records never enter msgpack: the array holds their length, and the bytes follow the header of the
frame.
"""

# A pair of functions (encode, decode) is built for each annotation at its first use: `tuple[Int32, ...]`
# becomes a loop over the pair for Int32. A field's width is part of its annotation (`Int16`), since msgpack
# integers have none, and Kafka's protocol does: an epoch that does not fit 16 bits must fail here and not in
# a struct.pack inside the broker.
#
# The pair of a class is written out as Python source, as attrs writes its methods. A loop over the fields
# spends half of its time between them. For `class Heartbeat: group_id: str; generation_id: Int32` that is
#
#     def encode(value, payload):
#         return [value.group_id, value.generation_id]
#
#     def decode(items, payload):
#         if type(items) is not list or len(items) != 2: refuse(items)
#         group_id, generation_id, = items
#         if type(group_id) is not str or len(group_id) > 8191: decode_group_id(group_id, payload)
#         if type(generation_id) is not int or not -2147483648 <= generation_id <= 2147483647: ...
#         made = new(kind_)
#         made.group_id = group_id
#         made.generation_id = generation_id
#         return made
#
# The fields are assigned, because calling the class puts its keyword arguments into a dict first, which costs
# more than all of this. A message has no validators, and its decoder sets every field.
#
# A condition is true for every value that `decode_<field>` would refuse. That function says what is wrong.

from __future__ import annotations

import types
from collections.abc import Callable
from enum import Enum, IntEnum
from functools import cache
from typing import Annotated, Any, Final, NoReturn, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import attrs

from fencepost.protocol.batches import Buffer
from fencepost.protocol.errors import ProtocolViolation

STRING_LENGTH_MAX: Final = 32_767  # Kafka's STRING type has an int16 length
_CERTAINLY_SHORT: Final = STRING_LENGTH_MAX // 4  # characters: UTF-8 has at most four bytes for each
# Subscriptions and assignments of groups; records have no such limit, they are not in msgpack.
BYTES_LENGTH_MAX: Final = 1 << 20
ARRAY_LENGTH_MAX: Final = 1_000_000
_SHOWN_LENGTH_MAX: Final = 40

Int8 = Annotated[int, 8]
Int16 = Annotated[int, 16]
Int32 = Annotated[int, 32]
Int64 = Annotated[int, 64]
Records = Annotated[Buffer, "records"]
"""Whole record batches, one after the other, as in the log."""

T = TypeVar("T")
Encode = Callable[[Any, list[Buffer]], Any]
Decode = Callable[[Any, "Payload"], Any]


class Kept(tuple[T, ...]):  # noqa: SLOT001 a subclass of tuple cannot have slots
    """A tuple that is encoded once and sent many times. Its items hold no records."""

    encoded: list[Any] | None = None


class Payload:
    """The raw bytes after a frame's header, taken piece by piece in the order of the lengths in the body."""

    __slots__ = ("at", "data")

    def __init__(self, data: Buffer = b"") -> None:
        self.data = memoryview(data)
        self.at = 0

    def take(self, length: int) -> memoryview:
        """The next `length` bytes, as a view."""
        end = self.at + length
        if end > len(self.data):
            raise ProtocolViolation(
                f"the frame refers to {end} bytes of records but carries {len(self.data)}"
            )
        # A view: batches go on to the disk without a copy. It keeps the whole frame alive as long.
        piece = self.data[self.at : end]
        self.at = end
        return piece

    def finish(self) -> None:
        """ProtocolViolation when bytes are left that no field refers to."""
        if self.at != len(self.data):
            raise ProtocolViolation(f"{len(self.data) - self.at} bytes follow the last records of the frame")


def encode(message: object, payload: list[Buffer]) -> Any:
    """The attrs value in a form for msgpack; appends its record batches to `payload` in order."""
    return _codec(type(message))[0](message, payload)


def decode(kind: type[T], value: Any, payload: Payload) -> T:
    """The value of class `kind` from its msgpack form; else ProtocolViolation."""
    return _codec(kind)[1](value, payload)


@cache
def _codec(kind: Any) -> tuple[Encode, Decode]:
    """The (encode, decode) pair of an annotation."""
    origin = get_origin(kind)
    if origin is Annotated:
        mark = get_args(kind)[1]
        return _RECORDS if mark == "records" else _integer(mark)
    if origin in (Union, types.UnionType):
        return _optional(next(a for a in get_args(kind) if a is not types.NoneType))
    if origin is tuple:
        return _array(get_args(kind)[0])
    if attrs.has(kind) or issubclass(kind, tuple):
        return _structure(kind)
    if issubclass(kind, Enum):
        return _enum(kind)
    return _SCALARS[kind]


def _same(value: Any, _payload: list[Buffer]) -> Any:
    return value


def _decode_str(value: Any, _payload: Payload) -> str:
    if type(value) is not str or _encoded_length(value) > STRING_LENGTH_MAX:
        raise ProtocolViolation(
            f"expected a string of at most {STRING_LENGTH_MAX} bytes, got {_short(value)}"
        )
    return value


def _encoded_length(text: str) -> int:
    """The length in UTF-8 bytes, which Kafka's STRING counts."""
    # ASCII is known from a flag of the str, so that almost no text is encoded just to find its length.
    return len(text) if text.isascii() else len(text.encode())


def _decode_bytes(value: Any, _payload: Payload) -> bytes:
    if type(value) is not bytes or len(value) > BYTES_LENGTH_MAX:
        raise ProtocolViolation(f"expected at most {BYTES_LENGTH_MAX} bytes, got {_short(value)}")
    return value


def _decode_bool(value: Any, _payload: Payload) -> bool:
    if type(value) is not bool:
        raise ProtocolViolation(f"expected true or false, got {_short(value)}")
    return value


def _encode_records(value: Buffer, payload: list[Buffer]) -> int:
    payload.append(value)
    return len(value)


def _decode_records(value: Any, payload: Payload) -> memoryview:
    if type(value) is not int or value < 0:
        raise ProtocolViolation(f"expected a length in bytes, got {_short(value)}")
    return payload.take(value)


_RECORDS: tuple[Encode, Decode] = (_encode_records, _decode_records)
_SCALARS: dict[Any, tuple[Encode, Decode]] = {
    str: (_same, _decode_str),
    bytes: (_same, _decode_bytes),
    bool: (_same, _decode_bool),
}


def _integer(bits: int) -> tuple[Encode, Decode]:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def decode_integer(value: Any, _payload: Payload) -> int:
        # Not isinstance, in all of these checks: a bool is an int, and True must not pass for epoch 1.
        if type(value) is not int or not low <= value <= high:
            raise ProtocolViolation(f"expected an integer of {bits} bits, got {_short(value)}")
        return value

    return _same, decode_integer


def _enum(kind: type[Enum]) -> tuple[Encode, Decode]:
    cast_to_int = issubclass(kind, IntEnum)
    members = {member.value: member for member in kind}

    def encode_enum(value: Any, _payload: list[Buffer]) -> Any:
        return int(value) if cast_to_int else value.value

    def decode_enum(value: Any, _payload: Payload) -> Any:
        if type(value) is not int or value not in members:
            raise ProtocolViolation(f"expected a {kind.__name__}, got {_short(value)}")
        return members[value]

    return encode_enum, decode_enum


def _optional(inner: Any) -> tuple[Encode, Decode]:
    encode_inner, decode_inner = _codec(inner)

    def encode_optional(value: Any, payload: list[Buffer]) -> Any:
        return None if value is None else encode_inner(value, payload)

    def decode_optional(value: Any, payload: Payload) -> Any:
        return None if value is None else decode_inner(value, payload)

    return encode_optional, decode_optional


def _array(inner: Any) -> tuple[Encode, Decode]:
    encode_inner, decode_inner = _codec(inner)

    def encode_array(value: Any, payload: list[Buffer]) -> Any:
        if type(value) is Kept:
            kept = cast("Kept[Any]", value)
            if kept.encoded is None:
                kept.encoded = [encode_inner(item, payload) for item in kept]
            return kept.encoded
        return [encode_inner(item, payload) for item in value]

    def decode_array(value: Any, payload: Payload) -> Any:
        if type(value) is not list:
            raise ProtocolViolation(f"expected an array, got {_short(value)}")
        # A list inside, since tuple() of a generator is slower, and arrays are in every message.
        return tuple([decode_inner(item, payload) for item in cast("list[Any]", value)])

    return encode_array, decode_array


def _structure(kind: Any) -> tuple[Encode, Decode]:
    hints = get_type_hints(kind, include_extras=True)

    def refuse(items: Any) -> NoReturn:
        # Fields have no names on the wire. Another count is another version, whose fields cannot be told
        # apart.
        raise ProtocolViolation(f"{kind.__name__} has {len(hints)} fields, got {_short(items)}")

    known: dict[str, Any] = {"kind_": kind, "new": object.__new__, "refuse": refuse}
    taken = {*known, "items", "made", "payload"} & hints.keys()
    assert not taken, f"{kind.__name__} has fields of names that are used here: {taken}"
    encoded, decoding = list[str](), list[str]()
    for name, hint in hints.items():
        known[f"encode_{name}"], known[f"decode_{name}"] = encode_field, _ = _codec(hint)
        is_plain = encode_field is _same
        encoded.append(f"value.{name}" if is_plain else f"encode_{name}(value.{name}, payload)")
        doubt, decoded = _doubt(hint, name), f"decode_{name}({name}, payload)"
        decoding.append(f"if {doubt}: {decoded}" if doubt else f"{name} = {decoded}")
    names = "".join(f"{name}, " for name in hints)
    if issubclass(kind, tuple):
        made = [f"return kind_({names})"]
    else:
        made = ["made = new(kind_)", *(f"made.{name} = {name}" for name in hints), "return made"]
    lines = [
        "def encode(value, payload):",
        f"    return [{', '.join(encoded)}]",
        "def decode(items, payload):",
        f"    if type(items) is not list or len(items) != {len(hints)}: refuse(items)",
        *([f"    {names}= items"] if names else []),
        *(f"    {line}" for line in decoding),
        *(f"    {line}" for line in made),
    ]
    exec("\n".join(lines), known)  # names and numbers of our own classes, nothing from outside
    return known["encode"], known["decode"]


def _doubt(hint: Any, name: str) -> str | None:
    """A condition that is true if the decoder might refuse the value `name`; None if it must always look."""
    if hint is str:
        return f"type({name}) is not str or len({name}) > {_CERTAINLY_SHORT}"
    if hint is bool:
        return f"type({name}) is not bool"
    if get_origin(hint) is Annotated and type(bits := get_args(hint)[1]) is int:
        high = (1 << (bits - 1)) - 1
        return f"type({name}) is not int or not {-high - 1} <= {name} <= {high}"
    return None


def _short(value: Any) -> str:
    """A short description of a value for an error: the repr of nested arrays could be long and deep."""
    match value:
        case list():
            return f"an array of {len(cast('list[Any]', value))}"
        case str() | bytes() if len(value) > _SHOWN_LENGTH_MAX:
            return f"{value[:_SHOWN_LENGTH_MAX]!r}... ({len(value)} long)"
        case _:
            return repr(value)
