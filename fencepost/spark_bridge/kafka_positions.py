"""Finds where the keys and values of Kafka's records (magic 2) lie, without making an object of any.

A loop over each batch hops from record to record. numpy then reads the fields of all records of many batches
at once, and Arrow copies the bytes between the positions that were found.

Rule: what is unusual is left to `read_columns`, which reads it or refuses it: a record of 8 KiB or more,
records with headers, a batch that compaction thinned, and whatever is malformed.
"""

# The positions at which keys and values begin and end ascend. So they are the offsets of an Arrow array over
# the bytes of the batches, and every second of its items is wanted:
#
#     payload   | length, deltas, length | key | length | value | headers, length, deltas, length | key | ...
#     items                              |  0  |   1    |   2   |                3                |  4  |
#
# Items 0, 4, 8 ... are the keys, and 2, 6, 10 ... the values. Arrow's `take` copies them.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import attrs
import numpy as np
import pyarrow as pa

from fencepost.protocol.batches import MAGIC_KAFKA, BatchHeader
from fencepost.protocol.records import payload_of
from fencepost.protocol.terms import INT64_MAX

RECORDS_MIN: Final = 512  # for fewer, the calls of numpy cost more than the decoder
RUN_MAX: Final = 256  # records of one length that are passed in one step

_VARINT_BYTES_MAX: Final = 5  # of a number that is read here
_TIMESTAMP_MAX: Final = INT64_MAX >> 1  # a number of that few bytes can be added to it without overflow
_NULL: Final = -1

_Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
_Octets: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"


@attrs.frozen
class Spans:
    """Where the records of a batch lie in its bytes: each begins where the one before it ends."""

    batch: memoryview
    header: BatchHeader
    payload: bytes
    """The records, decompressed."""
    edges: list[int]
    """Where each record begins in the payload, and the end of the last one."""


@attrs.frozen
class Positioned:
    """The records of several batches, as `Columns` has those of one; none has headers."""

    keys: pa.Array[Any]
    values: pa.Array[Any]
    timestamp_deltas: _Numbers
    headers: None = None


def find_spans(batch: memoryview, header: BatchHeader) -> Spans | None:
    """Returns where the records of a batch lie; None if `read_columns` has to read it."""
    is_dense = header.last_offset_delta == header.record_count - 1
    if header.magic != MAGIC_KAFKA or not is_dense or abs(header.base_timestamp) > _TIMESTAMP_MAX:
        return None
    payload = bytes(payload_of(batch, header))
    try:
        edges = _edges(payload, header.record_count)
    except IndexError:  # it is cut off
        return None
    return Spans(batch, header, payload, edges) if edges and edges[-1] == len(payload) else None


def _edges(payload: bytes, count: int) -> list[int] | None:
    """Where each record begins, and where the last one ends; None if a length is negative or 8 KiB."""
    edges = [0]
    stride = 0
    while len(edges) <= count:
        at, previous = edges[-1], stride
        size = payload[at]
        is_long = size > 0x7F
        if is_long:
            more = payload[at + 1]
            if more > 0x7F:
                return None
            size += (more << 7) - 0x80
        if size & 1:
            return None
        stride = 1 + is_long + (size >> 1)
        if stride == previous:
            # Records often have one length. As long as the length repeats at equal distances, so do the
            # records.
            end = at + min(RUN_MAX, count + 1 - len(edges)) * stride
            run = _repeated(payload[at:end:stride])
            if is_long:
                run = min(run, _repeated(payload[at + 1 : end : stride]))
            edges.extend(range(at + stride, at + (run + 1) * stride, stride))
        else:
            edges.append(at + stride)
    return edges


def _repeated(items: bytes) -> int:
    """How many times the first byte is repeated at the start."""
    return len(items) - len(items.lstrip(items[:1]))


def read_spans(several: Sequence[Spans]) -> Positioned | None:
    """Returns the records of these batches, in order; None if `read_columns` has to read the batches."""
    counts = np.array([spans.header.record_count for spans in several])
    if counts.sum() < RECORDS_MIN:
        return None
    sizes = np.array([len(spans.payload) for spans in several])
    edges = [np.array(spans.edges) for spans in several]
    # Positions in the payloads of all batches, one after the other.
    moved = np.repeat(np.cumsum(sizes) - sizes, counts)
    starts = np.concatenate([each[:-1] for each in edges]) + moved
    ends = np.concatenate([each[1:] for each in edges]) + moved
    offset_deltas = np.arange(len(starts)) - np.repeat(np.cumsum(counts) - counts, counts)
    payload = np.frombuffer(b"".join([spans.payload for spans in several]), np.uint8)
    try:
        return _read(payload, starts, ends, offset_deltas)
    except IndexError:  # a length points beyond the last byte
        return None


def _read(payload: _Octets, starts: _Numbers, ends: _Numbers, offset_deltas: _Numbers) -> Positioned | None:
    """Reads the records between `starts` and `ends`; None if they are unusual or have other offset deltas."""
    # The length has one byte or two, and the attributes one.
    times, at = _numbers(payload, starts + 2 + (payload[starts] > 0x7F))
    offsets, at = _numbers(payload, at)
    key_lengths, key_starts = _numbers(payload, at)
    key_ends = key_starts + np.maximum(key_lengths, 0)
    value_lengths, value_starts = _numbers(payload, key_ends)
    value_ends = value_starts + np.maximum(value_lengths, 0)
    is_usual = (
        min(key_lengths.min(), value_lengths.min()) >= _NULL
        and np.array_equal(offsets, offset_deltas)
        and np.array_equal(value_ends + 1, ends)
        and not payload[value_ends].any()  # the number of headers
    )
    if not is_usual:
        return None
    edges = np.empty((len(starts), 4), np.int32)
    edges[:, 0], edges[:, 1], edges[:, 2], edges[:, 3] = key_starts, key_ends, value_starts, value_ends
    buffers = [None, pa.py_buffer(edges.data), pa.py_buffer(payload.data)]
    items: pa.Array[Any] = pa.Array.from_buffers(pa.binary(), edges.size - 1, buffers)
    return Positioned(_taken(items, 0, key_lengths), _taken(items, 2, value_lengths), times)


def _numbers(payload: _Octets, at: _Numbers) -> tuple[_Numbers, _Numbers]:
    """Decodes the zig-zag varint at each position; returns the numbers and the positions after them.

    Raises IndexError if one has too many bytes or is cut off.
    """
    encoded = payload[at].astype(np.int64)
    after = at + 1
    longer = np.flatnonzero(encoded > 0x7F)
    shift = 0
    while len(longer):
        shift += 7
        if shift == 7 * _VARINT_BYTES_MAX:
            raise IndexError
        more = payload[after[longer]].astype(np.int64)
        encoded[longer] += (more - 1) << shift
        after[longer] += 1
        longer = longer[more > 0x7F]
    return (encoded >> 1) ^ -(encoded & 1), after


def _taken(items: pa.Array[Any], first: int, lengths: _Numbers) -> pa.Array[Any]:
    """Every fourth item; null where the length says so."""
    indices = pa.array(np.arange(first, 4 * len(lengths), 4), pa.int64(), mask=lengths == _NULL)
    return items.take(indices)
