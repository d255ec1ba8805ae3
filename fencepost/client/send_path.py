"""The hot path of `send`, shared by both shells: it puts a record into its batch and returns a future.

Rule: no lock, no call and no object per record except its future. One thread at a time appends
(append_lock.py); the IO thread may close a batch during an append, and the append notices it afterwards.
"""

# Why it looks like this. A record costs less than a microsecond here, so a method call, a keyword argument or
# an object with an __init__ is a measurable part of it. So `put` is one long function over local names, a
# future is a tuple (client, batch, index), and everything that is rare (a new batch, an unknown topic,
# headers, a timestamp, a wrong type) leaves through one door, `_put_slowly`.
#
# `send_many` is the same idea for columns: `fill` finds the longest run of records that fits into the open
# batch and extends the batch's lists by slices, so the loop over records runs in C.

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar

from fencepost.client.accumulator import Accumulator, Route
from fencepost.client.append_lock import AppendLock
from fencepost.client.batch import (
    CONTENTS,
    NO_BATCH,
    RECORD_OVERHEAD,
    Headers,
    OnDelivery,
    ProducerBatch,
    ProducerRecord,
)
from fencepost.client.send_future import BatchRun
from fencepost.client.serializers import Serializer

OutcomeT = TypeVar("OutcomeT")

_BYTES = frozenset({bytes})
NO_INDEX: Final = -1


class PartitionColumns(NamedTuple):
    """The part of the columns for one partition, in order; partition None is the sticky one."""

    partition: int | None
    values: Sequence[Any]
    keys: Sequence[Any] | None
    indexes: Sequence[int]
    is_plain: bool
    """Whether no value and no key is None."""
    on_delivery: OnDelivery | None = None
    is_by_key: bool = False
    """Whether the partition follows from the keys. The program has not chosen it, and it may be gone."""

    def record(self, topic: str, index: int) -> ProducerRecord:
        """One of the records, for the slow path."""
        key = None if self.keys is None else self.keys[index]
        partition = None if self.is_by_key else self.partition
        return ProducerRecord(topic, self.values[index], key, partition, on_delivery=self.on_delivery)


class SendPath(Generic[OutcomeT]):
    """The part of a producer that takes records, for both shells."""

    def __init__(
        self,
        accumulator: Accumulator,
        outcome: type[OutcomeT],
        *,
        append_lock: AppendLock,
        key_serializer: Serializer | None,
        value_serializer: Serializer | None,
    ) -> None:
        self._hot = accumulator.hot
        self._append_lock = append_lock
        self._outcome: Any = outcome  # called with one tuple, as tuples are
        self._key_serializer, self._value_serializer = key_serializer, value_serializer
        self._serializes = key_serializer is not None or value_serializer is not None

    # Use the last four as keywords only; with a bare * CPython 3.11 would not inline the call (7 %).
    def put(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> OutcomeT:
        """Appends one record to the batch of its partition and returns its future.

        `partition`: by default that of the key. Records without a key fill a batch of one partition, then one
        of the next (KIP-480).
        `timestamp_ms`: since 1970, by default the time at which its batch was opened. `headers`: pairs of a
        name and bytes or None. `on_delivery`: called once, before flush() returns at the latest, with the
        record's error (or None) and its RecordMetadata; it should be quick. BufferFull, RecordTooLarge or
        UnknownTopic when the record is not accepted.
        """
        if self._serializes:
            key, value = self._serialize(key, value)
        try:
            route = self._hot[topic]
        except (KeyError, TypeError):  # TypeError: not a string, and not hashable
            route = None  # an error after the handler does not show this one as its context
        if (
            route is None or type(value) is not bytes or (key is not None and type(key) is not bytes)
            or timestamp_ms is not None or headers is not None or on_delivery is not None
            or (partition is not None and (type(partition) is not int or partition < 0))
        ):  # fmt: skip
            return self._put_slowly(
                ProducerRecord(topic, value, key, partition, timestamp_ms, headers, on_delivery)
            )
        where = partition
        if where is None:
            where = route.sticky if key is None else route.partition_of[key]
        lock, outcome = self._append_lock, self._outcome
        try:
            batch = route.open[where]
            del lock.is_free  # see append_lock.py
        except (IndexError, AttributeError):  # there is no such partition; another thread appends
            return self._put_slowly(ProducerRecord(topic, value, key, partition))
        try:
            room = batch.room - len(value) - RECORD_OVERHEAD - (0 if key is None else len(key))
            if room >= 0:
                batch.room = room
                batch.keys.append(key)
                index = len(batch.values)
                batch.values.append(value)
            else:
                batch, index = NO_BATCH, NO_INDEX
        except BaseException:  # Ctrl-C
            batch.drop_half_record()
            raise
        finally:
            lock.is_free = True
        if batch.is_closed:
            return self._put_again(batch, index, ProducerRecord(topic, value, key, partition))
        return outcome((self, batch, index))

    def _put_run(self, topic: str, part: PartitionColumns, start: int) -> BatchRun:
        """Appends records of `part` from `start` on to one batch, as many as fit, at least one."""
        route = self._hot.get(topic)
        where = part.partition
        if route is not None and (where is None or (type(where) is int and 0 <= where < len(route.open))):
            batch, run = route.open[route.sticky if where is None else where], None
            lock = self._append_lock
            try:
                del lock.is_free  # see append_lock.py
            except AttributeError:
                pass  # the slow path waits for the lock
            else:
                try:
                    run = fill(batch, part, start)
                finally:
                    lock.is_free = True
            if run is not None:
                if batch.is_closed:  # by the IO thread: records before its mark count
                    run = run._replace(length=max(0, min(run.length, self._count_of(batch) - run.first)))
                if run.length:
                    return run
        outcome: Any = self._put_slowly(part.record(topic, start))
        return BatchRun(outcome[1], outcome[2], 1)

    def _columns(
        self, values: Sequence[Any], keys: Sequence[Any] | None
    ) -> tuple[Sequence[Any], Sequence[Any] | None, bool]:
        """The serialized columns, and whether they hold no None; checked before the first record is appended:
        ValueError if their lengths differ, TypeError if they hold anything but bytes and None.
        """
        if keys is not None and len(keys) != len(values):
            raise ValueError(
                f"send_many() needs one key per value, but got {len(keys)} keys and {len(values)} values"
            )
        if self._value_serializer is not None:
            values = list(map(self._value_serializer, values))
        if self._key_serializer is not None and keys is not None:
            keys = list(map(self._key_serializer, keys))
        is_plain = True
        for name, column in (("value", values), ("key", keys)):
            kinds = set(map(type, column or ()))
            if not kinds <= CONTENTS:
                wrong = next(each for each in column or () if type(each) not in CONTENTS)
                raise TypeError(
                    f"each of {name}s must be bytes or None, not {wrong!r}: set {name}_serializer"
                )
            is_plain = is_plain and kinds <= _BYTES
        return values, keys, is_plain

    def _put_again(self, batch: ProducerBatch, index: int, record: ProducerRecord) -> OutcomeT:
        """The future of a record: put again unless it got in before the IO thread closed the batch."""
        if index != NO_INDEX and index < self._count_of(batch):
            return self._outcome((self, batch, index))
        return self._put_slowly(record)

    def _serialize(self, key: Any, value: Any) -> tuple[Any, Any]:
        return (
            key if self._key_serializer is None else self._key_serializer(key),
            value if self._value_serializer is None else self._value_serializer(value),
        )

    def _count_of(self, batch: ProducerBatch) -> int:
        """The number of records in a closed batch; a shell with threads reads it under its lock."""
        return batch.record_count

    def _put_slowly(self, record: ProducerRecord) -> OutcomeT:
        """All that the hot path does not do: open a batch, look up a topic, append headers and timestamps."""
        raise NotImplementedError


# --- columns ------------------------------------------------------------------------------------------------


def split_by_partition(
    route: Route,
    values: Sequence[Any],
    keys: Sequence[Any] | None,
    partition: int | None,
    *,
    is_plain: bool,
    on_delivery: OnDelivery | None,
) -> Iterator[PartitionColumns]:
    """Splits columns by the partitions of the keys; keeps the order within each partition."""
    if keys is None or partition is not None:
        yield PartitionColumns(partition, values, keys, range(len(values)), is_plain, on_delivery)
        return
    indexes: defaultdict[int | None, list[int]] = defaultdict(list)
    for index, where in enumerate(map(route.partition_of.__getitem__, keys)):
        indexes[where].append(index)
    for where, chosen in indexes.items():
        columns = _picked(values, chosen), _picked(keys, chosen)
        yield PartitionColumns(where, *columns, chosen, is_plain, on_delivery, is_by_key=True)


def _picked(column: Sequence[Any], indexes: Sequence[int]) -> Sequence[Any]:
    """The items at some indexes. `itemgetter` loops in C, and with one index returns the item itself."""
    return itemgetter(*indexes)(column) if len(indexes) > 1 else (column[indexes[0]],)


def fill(batch: ProducerBatch, part: PartitionColumns, start: int) -> BatchRun | None:
    """Appends as many records from `start` on as fit into an open batch; None if not even one fits."""
    values, keys = part.values, part.keys
    if batch.room <= 0:
        return None
    count, size = _stretch(batch.room, part, start)
    if not count:
        return None
    chunk = values[start : start + count]
    first = len(batch.values)
    batch.room -= size
    try:
        if part.on_delivery is not None:
            batch.call_back(range(first, first + count), part.on_delivery)
        batch.keys.extend([None] * count if keys is None else keys[start : start + count])
        batch.values.extend(chunk)
    except BaseException:  # Ctrl-C
        batch.drop_half_record()
        raise
    return BatchRun(batch, first, count)


def _stretch(room: int, part: PartitionColumns, start: int) -> tuple[int, int]:
    """How many records from `start` on fit into `room` bytes, and their size; 0: one needs `_put_slowly`."""
    values, keys, is_plain = part.values, part.keys, part.is_plain
    smallest = RECORD_OVERHEAD + (len(values[start]) if type(values[start]) is bytes else 0)
    count = min(len(values) - start, max(1, room // smallest))
    while count:
        chunk = values[start : start + count]
        if not (is_plain or _BYTES.issuperset(map(type, chunk))):
            return 0, 0
        size = RECORD_OVERHEAD * count + sum(map(len, chunk))
        if keys is not None:
            chunk_keys = keys[start : start + count]
            size += sum(map(len, chunk_keys if is_plain else filter(None, chunk_keys)))
        if size <= room:
            return count, size
        count = min(count - 1, count * room // size)
    return 0, 0
