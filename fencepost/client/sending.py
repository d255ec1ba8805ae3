"""The hot path of `send`, which both shells share: a record into its batch, an outcome back, and nothing else.

Rule: no lock, no call and no object per record but its outcome. It is made for one sending thread; a keeper thread that
closes a batch in the middle of it is noticed afterwards.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar
from zlib import crc32

from fencepost.client.accumulator import Accumulator
from fencepost.client.batch import RECORD_OVERHEAD, Batch, Headers
from fencepost.client.serializers import Serializer

OutcomeT = TypeVar("OutcomeT")


class Sending(Generic[OutcomeT]):
    """What a producer of either shell is made of, as far as records are concerned."""

    def __init__(
        self,
        accumulator: Accumulator,
        outcome: type[OutcomeT],
        *,
        key_serializer: Serializer | None,
        value_serializer: Serializer | None,
    ) -> None:
        self._hot = accumulator.hot
        self._outcome: Any = outcome  # called with one tuple, as tuples are
        self._key_serializer, self._value_serializer = key_serializer, value_serializer
        self._serializes = key_serializer is not None or value_serializer is not None

    def put(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> OutcomeT:
        """Takes one record for the partition that CRC-32 of its key names, or without a key one batch per partition in turn.

        Without `timestamp_ms` it bears the time at which its batch was opened. What becomes of it is its outcome.
        """
        if self._serializes:
            key, value = self._serialize(key, value)
        route = self._hot.get(topic)
        if (
            route is None
            or partition is not None
            or timestamp_ms is not None
            or headers is not None
            or type(value) is not bytes
        ):
            return self._put_slowly(topic, value, key, partition, timestamp_ms, headers)
        open_batches = route.open
        if key is None:
            batch = open_batches[route.sticky]
            room = batch.room - len(value) - RECORD_OVERHEAD
            if room < 0:
                return self._put_slowly(topic, value, key, partition, timestamp_ms, headers)
            if batch.keys is not None:
                batch.keys.append(None)
        else:
            batch = open_batches[crc32(key) % len(open_batches)]
            room = batch.room - len(value) - len(key) - RECORD_OVERHEAD
            keys = batch.keys
            if room < 0 or keys is None:
                return self._put_slowly(topic, value, key, partition, timestamp_ms, headers)
            keys.append(key)
        batch.room = room
        values = batch.values
        index = len(values)
        values.append(value)
        if batch.is_closed:
            return self._put_again(batch, index, topic, value, key)
        return self._outcome((self, batch, index))

    def _put_again(self, batch: Batch, index: int, topic: str, value: bytes, key: bytes | None) -> OutcomeT:
        """The keeper closed the batch while a record went in: it counts if it came before the mark was set."""
        if self._is_in(batch, index):
            return self._outcome((self, batch, index))
        return self._put_slowly(topic, value, key, None, None, None)

    def _serialize(self, key: Any, value: Any) -> tuple[Any, Any]:
        return (
            key if self._key_serializer is None else self._key_serializer(key),
            value if self._value_serializer is None else self._value_serializer(value),
        )

    def _is_in(self, batch: Batch, index: int) -> bool:
        """Whether a closed batch holds the record at `index`; a shell with threads looks under its lock."""
        return index < batch.record_count

    def _put_slowly(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Headers | None,
    ) -> OutcomeT:
        """What the hot path leaves to the shell: a batch to open, a topic to find, columns that are rare."""
        raise NotImplementedError
