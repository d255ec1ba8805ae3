"""What a Kafka request holds, counted before any of it is decoded.

Rule: no length in a request is believed before it is compared with the bytes that are there, and with the
limits of a request.
"""

# A Produce of 100 MiB can name 33 million topics without a partition, and would become gigabytes of objects.
# And kio reserves memory for as many entries as an array announces: 20 bytes that announce two
# billion topics would end the process. So each request is walked over before kio reads it. The limits are
# those of our own frames (protocol/frames.py): entries of one array, entries of all arrays, and bytes that
# are not records.
#
# A walk is compiled once for each class of kio, from the types of its fields:
#
#     neighbours of a fixed size   one step over all of them: i16 i32 uuid is a step of 22 bytes
#     string, bytes, records       a length, then a step over so many bytes; those of records are noted
#     array                        a number, counted before its entries are walked over one by one
#     tagged fields                a number, counted, then for each a tag, a size and a step (KIP-482)
#
# So a request costs a step per string and per entry, and no object is made before its size is known.

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from types import NoneType
from typing import Any, Final, get_args, get_origin

from fencepost.protocol.codec import STRING_LENGTH_MAX
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.frames import REQUEST_ARRAY_LENGTH_MAX, REQUEST_ARRAYS_MAX, REQUEST_HEADER_MAX
from fencepost.protocol.terms import INT32_MAX

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_VARINT_BITS: Final = 35  # five bytes of seven bits hold every length of 32 bits
_NULL: Final = -1
_SIZES: Final = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "float64": 8,
    "uuid": 16,
}
"""The bytes of each kind of field that has a fixed size."""


def read_unsigned_varint(frame: memoryview, at: int) -> tuple[int, int]:
    """The number at a position, and the position after it."""
    number = shift = 0
    while at < len(frame) and shift < _VARINT_BITS:
        byte = frame[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
    raise ProtocolViolation("a Kafka request has a length that cannot be read")


class _CountedWalk:
    """Where a walk over a request is, and what it has met."""

    __slots__ = ("at", "entries", "frame", "record_bytes")

    def __init__(self, frame: memoryview, at: int) -> None:
        self.frame = frame
        self.at = at
        self.entries = 0
        self.record_bytes = 0

    def skip(self, size: int) -> None:
        self.at += size
        if self.at > len(self.frame):
            raise ProtocolViolation("a Kafka request ends in the middle of a field")

    def count(self, entries: int) -> None:
        # An entry has at least one byte.
        if entries > min(len(self.frame) - self.at, REQUEST_ARRAY_LENGTH_MAX):
            raise ProtocolViolation(
                f"an array of {entries} entries in a Kafka request of {len(self.frame)} bytes; "
                f"the limit is {REQUEST_ARRAY_LENGTH_MAX}"
            )
        self.entries += entries
        if self.entries > REQUEST_ARRAYS_MAX:
            raise ProtocolViolation(f"a Kafka request of more than {REQUEST_ARRAYS_MAX} entries")

    def varint(self) -> int:
        number, self.at = read_unsigned_varint(self.frame, self.at)
        return number

    def fixed(self, form: struct.Struct) -> int:
        at = self.at
        self.skip(form.size)
        return form.unpack_from(self.frame, at)[0]


_Step = Callable[[_CountedWalk], None]


def check_counts(schema: Any, frame: memoryview, at: int) -> None:
    """ProtocolViolation for a request, an instance of `schema` from `at` on, that holds too much."""
    walk = _CountedWalk(frame, at)
    try:
        _steps(schema)(walk)
    except struct.error as problem:
        raise ProtocolViolation("a Kafka request ends in the middle of a length") from problem
    header_size = walk.at - walk.record_bytes
    if header_size > REQUEST_HEADER_MAX:
        raise ProtocolViolation(
            f"a Kafka request of {header_size} bytes, records not counted; the limit is {REQUEST_HEADER_MAX}"
        )


def skip_tagged_fields(frame: memoryview, at: int) -> int:
    """The position after tagged fields."""
    walk = _CountedWalk(frame, at)
    _tagged_fields(walk)
    return walk.at


@cache
def _steps(schema: Any) -> _Step:
    """A walk over one struct, neighbours of a fixed size in one step."""
    steps: list[_Step] = []
    size = 0
    for field in fields(schema):
        if "tag" in field.metadata:
            continue  # with the other tagged fields, by its size
        step = _step(field.type, field.metadata.get("kafka_type", ""), is_flexible=schema.__flexible__)
        if isinstance(step, int):
            size += step
            continue
        if size:
            steps.append(_skipping(size))
            size = 0
        steps.append(step)
    if size:
        steps.append(_skipping(size))
    if schema.__flexible__:
        steps.append(_tagged_fields)
    return _all_of(tuple(steps))


def _all_of(steps: tuple[_Step, ...]) -> _Step:
    def run(walk: _CountedWalk) -> None:
        for step in steps:
            step(walk)

    return run


def _step(kind: Any, kafka_type: str, *, is_flexible: bool) -> _Step | int:
    """The step over one field, or its size."""
    arguments = get_args(kind)
    is_nullable = NoneType in arguments
    if is_nullable:
        (kind,) = (each for each in arguments if each is not NoneType)
    if get_origin(kind) is tuple:
        # kio notes the type of the entries at the array itself.
        entry = _step(get_args(kind)[0], kafka_type, is_flexible=is_flexible)
        return _array(entry, is_flexible=is_flexible, is_nullable=is_nullable)
    if hasattr(kind, "__dataclass_fields__"):
        return _nullable(_steps(kind)) if is_nullable else _steps(kind)
    if kafka_type in _SIZES:
        return _SIZES[kafka_type]
    return _text(kafka_type, is_flexible=is_flexible)


def _skipping(size: int) -> _Step:
    return lambda walk: walk.skip(size)


def _text(kafka_type: str, *, is_flexible: bool) -> _Step:
    """A string, bytes or records."""
    size_max = STRING_LENGTH_MAX if kafka_type == "string" else INT32_MAX
    form, is_records = _INT16 if kafka_type == "string" else _INT32, kafka_type == "records"

    def run(walk: _CountedWalk) -> None:
        # A compact length is one more than the size, so that 0 can be null (KIP-482).
        size = walk.varint() - 1 if is_flexible else walk.fixed(form)
        if size > size_max:  # only a compact string can be: Kafka's generated readers refuse it, too
            raise ProtocolViolation(f"a string of {size} bytes in a Kafka request; the limit is {size_max}")
        if size > 0:
            walk.skip(size)
            if is_records:
                walk.record_bytes += size

    return run


def _array(entry: _Step | int, *, is_flexible: bool, is_nullable: bool) -> _Step:
    fewest = _NULL if is_nullable else 0

    def run(walk: _CountedWalk) -> None:
        count = walk.varint() - 1 if is_flexible else walk.fixed(_INT32)
        if count < fewest:  # kio reads null where Kafka's schema does not allow it
            raise ProtocolViolation(f"an array of {count} entries in a Kafka request")
        if count <= 0:
            return
        walk.count(count)
        if isinstance(entry, int):
            walk.skip(count * entry)
            return
        for _ in range(count):
            entry(walk)

    return run


def _nullable(step: _Step) -> _Step:
    """A struct after a byte that says whether it is there (KIP-893)."""

    def run(walk: _CountedWalk) -> None:
        at = walk.at
        walk.skip(1)
        if walk.frame[at] < 0x80:
            step(walk)

    return run


def _tagged_fields(walk: _CountedWalk) -> None:
    count = walk.varint()
    if count:
        walk.count(count)
        for _ in range(count):
            walk.varint()
            walk.skip(walk.varint())
