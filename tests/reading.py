"""What a reader gets from a broker: every record from the beginning of its partitions to their ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fencepost import Admin, Consumer, Record, TopicPartition
from fencepost.protocol.terms import IsolationLevel


def records(
    address: str,
    partitions: Sequence[TopicPartition],
    isolation_level: str | IsolationLevel = "read_committed",
    **settings: Any,
) -> list[Record]:
    """They are in order of partition and offset. `settings`: of the consumer."""
    found: list[Record] = []
    with Admin(address) as admin, Consumer(address, isolation_level=isolation_level, **settings) as consumer:
        ends = admin.end_offsets(partitions, isolation_level)
        consumer.assign(partitions)
        while any(consumer.position(where) < end for where, end in ends.items()):
            found += [record for batch in consumer.poll() for record in batch]
    return sorted(found, key=lambda record: (record.partition, record.offset))
