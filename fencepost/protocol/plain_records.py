"""Checks Kafka's records (magic 2) without making an object of any: each batch of a Kafka client comes here.

Rule: `are_plain` judges only what is usual. `read_deltas` reads or refuses the rest, at several times the
cost.
"""

# Records often have equal lengths. Then their fields lie at equal distances, and a slice with that distance
# holds one byte of each of them:
#
#     payload     | 46 0 0 0 | 10 key-1 | 1a first-value | 0 | 46 0 0 2 | 10 key-2 | 1a other-value | 0 | ...
#                   ^    |                                     ^    |
#     lengths       46   |    all equal                        46   |
#     offset deltas      0    those of the varints 0, 1, 2 ...      2
#
# Headers of equal lengths are part of a run. A record costs half a microsecond by itself, and each of its
# headers a tenth of that; in a run, it costs a fifteenth. After an attempt that finds no run, twice as many
# records of one length must follow each other before the next attempt. An attempt looks four times as far as
# the last run went. So records whose lengths vary cost a tenth more than without attempts.

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Final, NamedTuple

from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.kafka_records import NULL_LENGTH
from fencepost.protocol.primitives import read_varint, read_varlong, varint

PLAIN_TIME_DELTA_MAX: Final = 1 << 34  # ms: a varint of five bytes

_NOT_PLAIN: Final = -1
_NULL: Final = -1
# By the first byte of a length: how far it is to what follows these bytes; 0 for lengths of 64 and more.
_NAME_STEPS: Final = [0 if first & 0x81 else 1 + (first >> 1) for first in range(0x100)]
_CONTENT_STEPS: Final = [1 if first == NULL_LENGTH else step for first, step in enumerate(_NAME_STEPS)]
_SIZE_MAX: Final = 0x3FFF  # doubled by zig-zag: the largest varint of two bytes
_RUN_MIN: Final = 8  # records; for fewer, one after the other costs less
_RUN_MAX: Final = 1024
_RUN_FIRST: Final = 64  # as long runs follow each other, each may be four times as long as the last

# The bytes of offset deltas as varints, by delta. All bytes of a varint but its last are above 0x7F.
_ONLY_BYTES: Final = bytes(range(0, 0x80, 2))
_FIRST_BYTES: Final = bytes(range(0x80, 0x100, 2)) * 0x80
_LAST_OF_TWO: Final = b"".join(bytes([high]) * 0x40 for high in range(0x80))
_SECOND_OF_THREE: Final = b"".join(bytes([high]) * 0x40 for high in range(0x80, 0x100))


def are_plain(payload: bytes, record_count: int, start: int = 0) -> bool:
    """Whether `payload` is, from byte `start` on, `record_count` records that can be read, with offset deltas
    0, 1, 2 ..., lengths below 8 KiB, and timestamp deltas of five bytes at most. After False, `read_deltas`
    must decide.
    """
    number = stride = repeats = 0
    at, repeats_wanted, run_max = start, 1, _RUN_FIRST
    try:
        while number < record_count:
            end = _record_end(payload, at, number)
            if end == _NOT_PLAIN:
                return False
            number += 1
            if end - at != stride:
                stride, repeats = end - at, 0
            else:
                repeats += 1
                if repeats >= repeats_wanted:
                    most = min(run_max, record_count - number)
                    run = _run_after(payload, at, end, number=number, most=most)
                    number += run
                    end += run * stride
                    repeats, repeats_wanted = 0, 1 if run else 2 * repeats_wanted
                    run_max = min(4 * run, _RUN_MAX) or _RUN_FIRST
            at = end
    except (IndexError, ProtocolViolation):  # they are cut off, or have malformed headers
        return False
    return at == len(payload)


def _record_end(payload: bytes, at: int, number: int) -> int:
    """The position after the plain record at byte `at` with this offset delta, or _NOT_PLAIN.

    The cost of every step is paid for each record that a Kafka client produces. So varints are read in place,
    and the second byte of a length is not checked: a length that goes on after it is 8 KiB or more, and
    misses the end of its record. Zig-zag doubles lengths, so ends are compared doubled: no odd size fits.
    """
    size = payload[at]
    at += 1
    if size > 0x7F:
        size += (payload[at] << 7) - 0x80
        at += 1
    twice_end = at + at + size
    at = time_at = at + 1
    while payload[at] > 0x7F:
        at += 1
    is_long = size > _SIZE_MAX or at > time_at + 4
    if number < 0x40:
        is_next = payload[at + 1] == number << 1
        at += 2
    elif number < 0x2000:
        is_next = payload[at + 1] == number << 1 & 0x7F | 0x80 and payload[at + 2] == number >> 6
        at += 3
    else:
        is_next = payload.startswith(varint(number), at + 1)
        at += 1 + len(varint(number))
    length = payload[at]
    at += 1
    if length > 0x7F:
        length += (payload[at] << 7) - 0x80
        at += 1
    is_negative = length & 1 and length != NULL_LENGTH
    at += length >> 1
    length = payload[at]
    at += 1
    if length > 0x7F:
        length += (payload[at] << 7) - 0x80
        at += 1
    if is_long or not is_next or is_negative or (length & 1 and length != NULL_LENGTH):
        return _NOT_PLAIN
    at += length >> 1
    at = _after_headers(payload, at) if payload[at] else at + 1  # most have none
    return at if at + at == twice_end else _NOT_PLAIN


def _after_headers(payload: bytes, at: int) -> int:
    """The position after the headers whose number stands at byte `at`. IndexError if they are cut off, and
    ProtocolViolation if they are malformed.

    A header takes two bytes or more, so a megabyte holds half a million, and each step is paid for each.
    """
    count, at = read_varint(payload, at)
    if count < 0:
        raise ProtocolViolation(f"a record announces {count} headers")
    for _ in repeat(None, count):
        step = _NAME_STEPS[payload[at]]
        at = at + step if step else _after_long(payload, at, least=0)
        step = _CONTENT_STEPS[payload[at]]
        at = at + step if step else _after_long(payload, at, least=_NULL)
    return at


def _after_long(payload: bytes, at: int, *, least: int) -> int:
    """The position after bytes whose length, at byte `at`, takes more than a byte, or is negative."""
    size, at = read_varint(payload, at)
    if size < least:
        raise ProtocolViolation(f"{size} bytes are announced")
    return at + max(size, 0)


# --- records that are not plain -----------------------------------------------------------------------------


class Deltas(NamedTuple):
    """The deltas of records, against the header of their batch."""

    offsets: list[int]
    timestamps: list[int]


def read_deltas(payload: bytes, record_count: int) -> Deltas:
    """The deltas of the `record_count` records that fill `payload` (uncompressed) exactly; ProtocolViolation
    unless all of them can be read. Nothing else of a record is kept.
    """
    offsets, timestamps, at = list[int](), list[int](), 0
    try:
        for _ in range(record_count):
            size, at = read_varint(payload, at)
            end = at + size
            timestamp, at = read_varlong(payload, at + 1)  # the attributes have no meaning
            offset, at = read_varint(payload, at)
            for _ in range(2):  # key and value
                step = _CONTENT_STEPS[payload[at]]
                at = at + step if step else _after_long(payload, at, least=_NULL)
            at = _after_headers(payload, at)
            if at != end:
                raise ProtocolViolation("the length of a record differs from its content")
            offsets.append(offset)
            timestamps.append(timestamp)
    except IndexError:
        raise ProtocolViolation(f"{record_count} records do not fit into {len(payload)} bytes") from None
    if at != len(payload):
        raise ProtocolViolation(f"{len(payload)} bytes are not filled by {record_count} records")
    return Deltas(offsets, timestamps)


# --- runs of records of equal lengths -----------------------------------------------------------------------


def _run_after(payload: bytes, model: int, at: int, *, number: int, most: int) -> int:
    """How many records from byte `at` on are plain and have the lengths of the plain record before it, which
    begins at `model`; 0 if they are few. `number` is the next offset delta.
    """
    stride, delta_size = at - model, len(varint(number - 1))
    most = min(most, _deltas_end(delta_size, number) - number, (len(payload) - at) // stride)
    time_at = model + 2 + (payload[model] > 0x7F)
    delta_at = time_at + 1
    while payload[delta_at - 1] > 0x7F:
        delta_at += 1
    for same_at in _lengths_at(payload, model, delta_at + delta_size):
        if most < _RUN_MIN:
            return 0
        column = payload[same_at + stride : at + most * stride : stride]
        most -= len(column.lstrip(payload[same_at : same_at + 1]))
    end = at + most * stride
    columns = [payload[each + stride : end : stride] for each in range(time_at, delta_at + delta_size)]
    is_run = (
        most >= _RUN_MIN
        and columns[-delta_size:] == _deltas(delta_size, number, number + most)
        and columns[-delta_size - 1].isascii()
        and all(min(column) > 0x7F for column in columns[: -delta_size - 1])
    )
    return most if is_run else 0


def _lengths_at(payload: bytes, model: int, key_at: int) -> Iterator[int]:
    """Where the bytes that count something in a plain record are: its length, then the lengths of its key,
    which is at `key_at`, and of its value, the number of its headers, and the lengths of their names and
    contents.
    """
    yield from range(model, read_varint(payload, model)[1])
    at, left, is_counted = key_at, 2, False
    while left:
        length, end = read_varint(payload, at)
        yield from range(at, end)
        at = end + max(length, 0)
        left -= 1
        if not left and not is_counted:
            is_counted = True
            count, end = read_varint(payload, at)
            yield from range(at, end)
            at, left = end, 2 * count


def _deltas_end(size: int, number: int) -> int:
    """The last delta, exclusive, to which `_deltas` can go from `number` on with varints of `size` bytes."""
    match size:
        case 1:
            return 0x40
        case 2:
            return 0x2000
        case 3:  # up to where the last byte changes
            return (number | 0x1FFF) + 1
        case _:
            return number


def _deltas(size: int, first: int, end: int) -> list[bytes]:
    """The varints of the offset deltas from `first` to before `end`: all first bytes, all second bytes ..."""
    low = slice(first & 0x1FFF, (first & 0x1FFF) + end - first)
    match size:
        case 1:
            return [_ONLY_BYTES[low]]
        case 2:
            return [_FIRST_BYTES[low], _LAST_OF_TWO[low]]
        case _:
            return [_FIRST_BYTES[low], _SECOND_OF_THREE[low], bytes([first >> 13]) * (end - first)]
