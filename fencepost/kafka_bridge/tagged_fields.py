"""Requests that kio's own reader refuses: those with tagged fields that this broker does not know, which are
skipped, and with a duration that Python cannot hold.

Rule: a request means the same with and without unknown tagged fields, at every level of it (KIP-482).
"""

# A flexible struct ends with tagged fields: their number, then tag, size and bytes of each. A newer client
# adds tags that an older broker has never heard of, and the size lets the broker step over them. kio's reader
# is fast and raises KeyError on them, so the few requests that have some are read here: struct by struct in
# Python, while kio reads the fields that are not structs.
#
# A duration in an int64 of milliseconds (the retention time of OffsetCommit 2 to 4) becomes a timedelta, of
# which the longest has 2.7 million years. kio raises ValueError on longer ones; here they are cut.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, fields
from datetime import timedelta
from functools import cache
from types import NoneType
from typing import Any, Final, get_args, get_origin

from kio._kio_native import get_field_reader
from kio.serial.readers import read_compact_array_length, read_int8, read_int64, read_legacy_array_length

from fencepost.kafka_bridge.counts import read_unsigned_varint

Read = Callable[[memoryview, int], tuple[Any, int]]
"""Reads a value at a position; returns it and its size in bytes."""

_NULL_STRUCT: Final = -1  # KIP-893


@cache
def tolerant_reader(schema: Any) -> Read:
    """The reader of a class of kio that skips unknown tagged fields."""
    every = [(field, field.metadata.get("tag")) for field in fields(schema)]
    plain = tuple((field.name, _field_reader(schema, field)) for field, tag in every if tag is None)
    tagged = {tag: (field.name, _field_reader(schema, field)) for field, tag in every if tag is not None}

    def read(frame: memoryview, start: int) -> tuple[Any, int]:
        values: dict[str, Any] = {}
        at = start
        for name, read_field in plain:
            values[name], size = read_field(frame, at)
            at += size
        if schema.__flexible__:
            at = _tagged_fields(frame, at, tagged, values)
        return schema(**values), at - start

    return read


def _tagged_fields(
    frame: memoryview, at: int, known: dict[int, tuple[str, Read]], values: dict[str, Any]
) -> int:
    count, at = read_unsigned_varint(frame, at)
    for _ in range(count):
        tag, at = read_unsigned_varint(frame, at)
        size, at = read_unsigned_varint(frame, at)
        if tag in known:
            name, read_field = known[tag]
            values[name], _ = read_field(frame, at)
        # The size that was sent says where the next field begins: a newer client's may be longer than ours.
        at += size
    return at


def _field_reader(schema: Any, field: Field[Any]) -> Read:
    kind: Any = field.type
    arguments = get_args(kind)
    is_nullable = NoneType in arguments
    if is_nullable:
        (kind,) = (each for each in arguments if each is not NoneType)
    if get_origin(kind) is tuple and hasattr(get_args(kind)[0], "__dataclass_fields__"):
        return _array_reader(tolerant_reader(get_args(kind)[0]), is_compact=schema.__flexible__)
    if field.metadata.get("kafka_type") == "timedelta_i64":
        return _read_duration
    if not hasattr(kind, "__dataclass_fields__"):
        is_tagged = "tag" in field.metadata
        return get_field_reader(schema, field, is_request_header=False, is_tagged_field=is_tagged)
    return _nullable_reader(tolerant_reader(kind)) if is_nullable else tolerant_reader(kind)


def _read_duration(frame: memoryview, at: int) -> tuple[timedelta, int]:
    milliseconds, size = read_int64(frame, at)
    lowest, highest = (each // timedelta(milliseconds=1) for each in (timedelta.min, timedelta.max))
    return timedelta(milliseconds=max(lowest, min(milliseconds, highest))), size


def _array_reader(read_item: Read, *, is_compact: bool) -> Read:
    read_length: Read = read_compact_array_length if is_compact else read_legacy_array_length

    def read(frame: memoryview, start: int) -> tuple[Any, int]:
        length, size = read_length(frame, start)
        if length is None or length < 0:
            return None, size
        at = start + size
        items: list[Any] = []
        for _ in range(length):  # a length that the frame does not hold ends at its last byte
            item, size = read_item(frame, at)
            items.append(item)
            at += size
        return tuple(items), at - start

    return read


def _nullable_reader(read_struct: Read) -> Read:
    def read(frame: memoryview, start: int) -> tuple[Any, int]:
        marker, marker_size = read_int8(frame, start)
        if marker == _NULL_STRUCT:
            return None, marker_size
        value, size = read_struct(frame, start + marker_size)
        return value, marker_size + size

    return read
