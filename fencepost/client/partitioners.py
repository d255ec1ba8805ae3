"""Which partition the key of a record belongs to.

Rule: the default is that of Kafka's Java client, for every key. So records with the same key are in one
partition, whether Java's client or this one has written them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final
from zlib import crc32

from murmurhash2 import murmurhash2

from fencepost.protocol.terms import INT32_MAX

Partitioner = Callable[[bytes, int], int]
"""From a key and the number of partitions to a partition. It must depend on nothing else."""

_SEED: Final = 0x9747B28C  # Utils.murmur2

# How many keys of a topic are remembered with their partitions. Looking up a key costs a quarter of hashing
# it; replacing a remembered key would cost more than the hash, so the first ones stay.
KEYS_REMEMBERED: Final = 10_000


def murmur2(key: bytes, partition_count: int) -> int:
    """Java's: toPositive(murmur2(key)) % partitions (BuiltInPartitioner.partitionForKey)."""
    return (murmurhash2(key, _SEED) & INT32_MAX) % partition_count


def consistent(key: bytes, partition_count: int) -> int:
    """CRC-32 of the key, like librdkafka's default `consistent_random`."""
    return crc32(key) % partition_count


PARTITIONERS: Final[dict[str, Partitioner]] = {"murmur2": murmur2, "consistent": consistent}
"""By their names in librdkafka."""


def partitioner_named(chosen: str | Partitioner) -> Partitioner:
    """The partitioner with this name, or a function of the program; ValueError for any other."""
    if callable(chosen):
        return partial(_partition_from, chosen)
    if chosen not in PARTITIONERS:
        raise ValueError(
            f"partitioner must be {' or '.join(PARTITIONERS)}, or a function of a key and the number of "
            f"partitions, not {chosen!r}"
        )
    return PARTITIONERS[chosen]


def _partition_from(function: Partitioner, key: bytes, partition_count: int) -> int:
    found = function(key, partition_count)
    if type(found) is not int or not 0 <= found < partition_count:
        raise ValueError(
            f"the partitioner returned {found!r} for key {key!r}: it must return a partition, "
            f"0 to {partition_count - 1}"
        )
    return found


class KeyPartitions(dict[bytes | None, Any]):
    """The partitions of one topic's keys, each found when it is first looked up; a null key has none."""

    def __init__(self, partitioner: Partitioner, partition_count: int) -> None:
        super().__init__()
        self._partitioner = partitioner
        self._count = partition_count

    def __missing__(self, key: bytes | None) -> Any:
        found = None if key is None else self._partitioner(key, self._count)
        if len(self) < KEYS_REMEMBERED:
            self[key] = found
        return found
