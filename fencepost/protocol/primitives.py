"""Kafka's primitive types, as its internal topics lay them out: varints, strings, arrays, tagged fields.

Rule: every length is checked against the remaining bytes before it is used (Kafka's protocol
guide, "Protocol Primitive Types"; KIP-482 for the compact ones).
"""

#     STRING           i16 length, UTF-8                              null: length -1
#     COMPACT_STRING   unsigned varint of length + 1, UTF-8           null: 0
#     ARRAY            i32 count, entries                             null: count -1
#     COMPACT_ARRAY    unsigned varint of count + 1, entries          null: 0
#     tagged fields    count, then tag, size, bytes of each           at the end of a flexible structure
#     varint           seven bits a byte, zig-zag: 0 -1 1 -2 2 ... are written as 0 1 2 3 4 ...
#
# The compact forms and the tags came with flexible versions (KIP-482): a reader skips tags that it does not
# know, so a field can be added without a new version.

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, Final, NoReturn

from fencepost.protocol.errors import ProtocolViolation

UUID_SIZE: Final = 16

INT16 = struct.Struct(">h")
INT32 = struct.Struct(">i")
INT64 = struct.Struct(">q")
# 32 and 64 bits at 7 bits a byte.
_VARINT_SIZE_MAX: Final = 5
_VARLONG_SIZE_MAX: Final = 10
_SHIFT_MAX: Final = 7 * (_VARLONG_SIZE_MAX - 1)


def put_unsigned_varint(out: bytearray, value: int) -> None:
    """Seven bits a byte, least significant first."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


@lru_cache(maxsize=1024)  # lengths and deltas: few different values
def varint(value: int) -> bytes:
    """Zig-zag: small negatives stay short (ByteUtils.writeVarint, writeVarlong)."""
    out = bytearray()
    put_unsigned_varint(out, value << 1 if value >= 0 else ~value << 1 | 1)
    return bytes(out)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A zig-zag varint and the position after it; ProtocolViolation when it is longer than five bytes, where
    Kafka's readers stop (ByteUtils.readVarint).
    """
    # Nearly every varint of a record is one byte or two.
    size = len(data)
    if at < size and (first := data[at]) < 0x80:
        return (first >> 1) ^ -(first & 1), at + 1
    if at + 1 < size and (second := data[at + 1]) < 0x80:
        value = data[at] & 0x7F | second << 7
        return (value >> 1) ^ -(value & 1), at + 2
    return _read_zig_zag(data, at, _VARINT_SIZE_MAX)


def read_varlong(data: bytes, at: int) -> tuple[int, int]:
    """The same for a number of 64 bits, in ten bytes at most (ByteUtils.readVarlong)."""
    return _read_zig_zag(data, at, _VARLONG_SIZE_MAX)


def _read_zig_zag(data: bytes, at: int, size_max: int) -> tuple[int, int]:
    # The slice ends the loop: this many bytes without an end are damage, not a large number.
    value = shift = 0
    for byte in data[at : at + size_max]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + shift // 7
    raise ProtocolViolation(f"a varint does not end within {size_max} bytes or the record")


def put_string(out: bytearray, text: str) -> None:
    """STRING: int16 length, UTF-8."""
    encoded = text.encode()
    out += INT16.pack(len(encoded))
    out += encoded


def put_compact_string(out: bytearray, text: str) -> None:
    """COMPACT_STRING: unsigned varint of the length plus one, UTF-8."""
    encoded = text.encode()
    put_unsigned_varint(out, len(encoded) + 1)
    out += encoded


def put_compact_nullable_string(out: bytearray, text: str | None) -> None:
    """COMPACT_NULLABLE_STRING: a COMPACT_STRING, or the length 0."""
    if text is None:
        put_unsigned_varint(out, 0)
    else:
        put_compact_string(out, text)


def put_compact_int32s(out: bytearray, values: tuple[int, ...]) -> None:
    """COMPACT_ARRAY of int32: unsigned varint of the count plus one, then the values."""
    put_unsigned_varint(out, len(values) + 1)
    out += struct.pack(f">{len(values)}i", *values)


def put_tagged_fields(out: bytearray, fields: list[tuple[int, bytes]]) -> None:
    """Tagged fields (KIP-482): the count, then tag, size and bytes of each, in ascending order of tags."""
    put_unsigned_varint(out, len(fields))
    for tag, content in fields:
        put_unsigned_varint(out, tag)
        put_unsigned_varint(out, len(content))
        out += content


class Fields:
    """Reads fields in order; ProtocolViolation at the first one that does not fit."""

    __slots__ = ("at", "data", "name")

    def __init__(self, data: bytes, *, name: str) -> None:
        self.data = data
        self.at = 0
        self.name = name

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        end = self.at + size
        # Slices never fail: without this check, a record that is cut off would give short fields.
        if size < 0 or end > len(self.data):
            self.fail(f"{size} bytes are announced, but {len(self.data) - self.at} are left")
        piece = self.data[self.at : end]
        self.at = end
        return piece

    def fail(self, because: str) -> NoReturn:
        raise ProtocolViolation(f"{self.name}: {because}")

    def fixed(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Several fields of fixed size at once."""
        try:
            values = layout.unpack_from(self.data, self.at)
        except struct.error:
            self.fail(f"{layout.size} bytes are announced, but {len(self.data) - self.at} are left")
        self.at += layout.size
        return values

    def int16(self) -> int:
        return INT16.unpack(self.take(2))[0]

    def int32(self) -> int:
        return INT32.unpack(self.take(4))[0]

    def int64(self) -> int:
        return INT64.unpack(self.take(8))[0]

    def uuid(self) -> bytes:
        return self.take(UUID_SIZE)

    def unsigned_varint(self) -> int:
        at = self.at
        if at < len(self.data) and (byte := self.data[at]) < 0x80:  # nearly every one
            self.at = at + 1
            return byte
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > _SHIFT_MAX:
                self.fail("a varint is longer than ten bytes")

    def string(self) -> str:
        return self._text(self.int16())

    def nullable_string(self) -> str | None:
        size = self.int16()
        return None if size < 0 else self._text(size)

    def compact_string(self) -> str:
        return self._text(self.unsigned_varint() - 1)

    def compact_nullable_string(self) -> str | None:
        size = self.unsigned_varint()
        return self._text(size - 1) if size else None

    def array_length(self) -> int:
        """The length of an ARRAY, -1 for null. An entry takes at least one byte, which bounds it."""
        return self._count(self.int32())

    def compact_array_length(self) -> int:
        """The length of a COMPACT_ARRAY, -1 for null."""
        return self._count(self.unsigned_varint() - 1)

    def int32s(self, count: int) -> tuple[int, ...]:
        """`count` numbers of 32 bits; null counts as none."""
        return struct.unpack(f">{max(count, 0)}i", self.take(4 * max(count, 0)))

    def tagged_int(self, tags: dict[int, bytes], tag: int, kind: struct.Struct, *, default: int) -> int:
        """The integer in a tagged field, or the default when the tag is absent."""
        content = tags.get(tag)
        if content is None:
            return default
        if len(content) != kind.size:
            self.fail(f"tag {tag} holds {len(content)} bytes, not {kind.size}")
        return kind.unpack(content)[0]

    def tagged_fields(self) -> dict[int, bytes]:
        """Tagged fields (KIP-482) by tag; the caller ignores unknown tags."""
        fields: dict[int, bytes] = {}
        count = self.unsigned_varint()
        if not count:  # as in nearly every record
            return fields
        previous = -1
        for _ in range(self._count(count)):
            tag = self.unsigned_varint()
            # KIP-482 demands the order. It also rules out a tag that occurs twice.
            if tag <= previous:
                self.fail("tagged fields are not in ascending order")
            fields[tag] = self.take(self.unsigned_varint())
            previous = tag
        return fields

    def finish(self) -> None:
        """ProtocolViolation when bytes are left."""
        if self.at != len(self.data):
            self.fail(f"{len(self.data) - self.at} bytes too many")

    def _text(self, size: int) -> str:
        try:
            return str(self.take(size), "utf-8")
        except UnicodeDecodeError as problem:
            self.fail(f"a string that is not UTF-8 ({problem.reason})")

    def _count(self, count: int) -> int:
        # A count of two billion in a record of ten bytes must fail here, before a list is made for it.
        if not -1 <= count <= len(self.data) - self.at:
            self.fail(f"an array announces {count} entries in {len(self.data) - self.at} bytes")
        return count
