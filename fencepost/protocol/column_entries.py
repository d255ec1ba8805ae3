"""The entries of a column of a batch, one by one or a piece at a time: as many objects as a piece has.

Rule: nothing here makes an object of a whole column. One byte of msgpack can be an object of a hundred.
"""

# Whoever opens a batch from its bytes has walked over all of it in C first (`records.column_places`), and
# knows where the first entry of each column is. An unpacker copies the bytes that it gets, so opening a batch
# takes at most twice its decompressed size, besides a piece.

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, repeat
from typing import Any, Final

import msgpack

from fencepost.protocol.batches import Buffer
from fencepost.protocol.errors import ProtocolViolation

NIL: Final = 0xC0  # msgpack's first bytes
SHORT_ARRAY: Final = 0x90
ARRAY_LENGTH_SIZES: Final = {0xDC: 2, 0xDD: 4}  # of longer arrays
BYTES_LENGTH_SIZES: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4}

PIECE_MAX: Final = 1 << 16  # entries
_NUMBER_SIZE_MAX: Final = 9  # bytes of a number in msgpack
_ARRAY_32: Final = b"\xdd"
_ONLY_INT: Final = frozenset({int})
_BYTES_OR_NULL: Final = frozenset({bytes, type(None)})
_NOT_NUMBERS: Final = "the deltas of a batch are not numbers"
_NOT_BYTES: Final = "the keys and values of a batch hold something of another type"


def array_length(payload: Buffer, at: int) -> int:
    """The length of the msgpack array that begins at byte `at`; -1 for anything else."""
    first = payload[at]
    if first & 0xF0 == SHORT_ARRAY:
        return first & 0x0F
    size = ARRAY_LENGTH_SIZES.get(first, 0)
    return int.from_bytes(payload[at + 1 : at + 1 + size], "big") if size else -1


def unpacker_of(*pieces: Buffer) -> msgpack.Unpacker:
    """An unpacker that has these bytes, and makes neither arrays nor maps."""
    size = sum(map(len, pieces))
    unpacker = msgpack.Unpacker(max_buffer_size=size + 1, max_array_len=0, max_map_len=0, max_ext_len=0)
    for piece in pieces:
        unpacker.feed(piece)
    return unpacker


def entry_at(payload: memoryview, place: int, number: int) -> int:
    """Where an entry of a column is; `place` is that of its first one."""
    if not number:
        return place
    # As many entries are skipped in one call as an array of them has.
    start = _ARRAY_32 + number.to_bytes(4, "big")
    unpacker = unpacker_of(start, payload[place:])
    unpacker.skip()
    return place + unpacker.tell() - len(start)


def number_pieces(payload: memoryview, place: int, count: int) -> Iterator[list[int]]:
    """The next `count` numbers of a column, from byte `place` on."""
    return _pieces(payload[place : place + _NUMBER_SIZE_MAX * count], count, _ONLY_INT, _NOT_NUMBERS)


def byte_string_pieces(payload: memoryview, place: int | None, count: int) -> Iterator[list[bytes | None]]:
    """The next `count` byte strings of a column; null for each if the column is nil."""
    if place is None:
        return ([None] * size for size in piece_sizes(count))
    return _pieces(payload[place:], count, _BYTES_OR_NULL, _NOT_BYTES)


def piece_sizes(count: int) -> Iterator[int]:
    """How many entries each piece of so many has."""
    return (min(PIECE_MAX, count - first) for first in range(0, count, PIECE_MAX))


def _pieces(payload: memoryview, count: int, kinds: frozenset[type], problem: str) -> Iterator[list[Any]]:
    unpacker = unpacker_of(payload)
    for size in piece_sizes(count):
        try:
            piece = list(islice(unpacker, size))
        except (ValueError, msgpack.UnpackException) as error:
            raise ProtocolViolation(f"{problem}: {error}") from None
        if len(piece) != size or not kinds.issuperset(map(type, piece)):
            raise ProtocolViolation(problem)
        yield piece


def byte_strings(payload: memoryview, at: int | None) -> Iterator[memoryview | None]:
    """The entries of a column from byte `at` on, which are not copied; null forever if the column is nil."""
    if at is None:
        yield from repeat(None)
    while at is not None and at < len(payload):
        found, at = byte_string(payload, at)
        yield found


def byte_string(payload: memoryview, at: int) -> tuple[memoryview | None, int]:
    """The entry at byte `at`, and the place after it."""
    if payload[at] == NIL:
        return None, at + 1
    size = BYTES_LENGTH_SIZES.get(payload[at])
    if size is None:
        raise ProtocolViolation(_NOT_BYTES)
    start = at + 1 + size
    end = start + int.from_bytes(payload[at + 1 : start], "big")
    return payload[start:end], end


def packed_entries(payload: memoryview, place: int, numbers: Iterable[int]) -> bytearray:
    """The entries with these numbers, ascending, as msgpack has them, whatever they are."""
    unpacker, out, passed = unpacker_of(payload[place:]), bytearray(), 0
    for number in numbers:
        for _ in range(passed, number):
            unpacker.skip()
        start = place + unpacker.tell()
        unpacker.skip()
        out += payload[start : place + unpacker.tell()]
        passed = number + 1
    return out
