"""The bulk path of `send_many`: whole stretches of columns into
a batch at once, counted and checked by C loops.

Rule: what a stretch cannot take goes the long way record by
record, so that `send_many` accepts what `send` accepts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from zlib import crc32

from fencepost.client.accumulator import Route
from fencepost.client.batch import RECORD_OVERHEAD, Batch
from fencepost.client.send_future import Run

_BYTES = frozenset({bytes})
_KEYS = frozenset({bytes, type(None)})


class Share(NamedTuple):
    """The part of the columns that goes to one partition (None: the one whose turn it is), in order."""

    partition: int | None
    values: Sequence[Any]
    keys: Sequence[Any] | None
    places: Sequence[int]


def shares(
    route: Route, values: Sequence[Any], keys: Sequence[Any] | None, partition: int | None
) -> Iterator[Share]:
    """Who gets what, by CRC-32 of the keys; order is kept within each partition."""
    if keys is None or partition is not None:
        yield Share(partition, values, keys, range(len(values)))
        return
    places: dict[int | None, list[int]] = {}
    count = len(route.open)
    for place, key in enumerate(keys):
        places.setdefault(None if key is None else crc32(key) % count, []).append(place)
    for where, chosen in places.items():
        yield Share(where, [values[i] for i in chosen], [keys[i] for i in chosen], chosen)


def fill(batch: Batch, share: Share, start: int) -> Run | None:
    """Puts as many records from `start` on as there is room for into an open batch; None for not even one."""
    values, keys = share.values, share.keys
    if batch.room <= 0 or (keys is not None and batch.keys is None):
        return None
    count = _stretch(batch.room, values, keys, start)
    if not count:
        return None
    chunk = values[start : start + count]
    first = len(batch.values)
    batch.room -= _size(chunk, None if keys is None else keys[start : start + count])
    if batch.keys is not None:
        batch.keys.extend([None] * count if keys is None else keys[start : start + count])
    batch.values.extend(chunk)
    return Run(batch, first, count)


def _stretch(room: int, values: Sequence[Any], keys: Sequence[Any] | None, start: int) -> int:
    """How many records from `start` on fit into `room` bytes; 0 when one of them needs the long way."""
    smallest = RECORD_OVERHEAD + (len(values[start]) if type(values[start]) is bytes else 0)
    count = min(len(values) - start, max(1, room // smallest))
    while count:
        chunk = values[start : start + count]
        chunk_keys = None if keys is None else keys[start : start + count]
        if not _BYTES.issuperset(map(type, chunk)) or not _KEYS.issuperset(map(type, chunk_keys or ())):
            return 0
        size = _size(chunk, chunk_keys)
        if size <= room:
            return count
        count = min(count - 1, count * room // size)
    return 0


def _size(values: Sequence[bytes], keys: Sequence[bytes | None] | None) -> int:
    size = RECORD_OVERHEAD * len(values) + sum(map(len, values))
    return size if keys is None else size + sum(map(len, filter(None, keys)))
