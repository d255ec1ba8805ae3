"""The results with which the parts of a request are refused: an error, and values that say nothing.

Rule: each is a function of the error, and of what is refused: anything that names a partition, or a name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import NO_LEADER_EPOCH, NO_OFFSET, NO_TIMESTAMP

Result = TypeVar("Result")
Refusing = Callable[[Any, ErrorCode], Result]


def _refusing(kind: Callable[..., Result], **rest: Any) -> Refusing[Result]:
    """Makes results of this kind. `rest` are the fields besides the partition and the error."""
    return lambda part, error: kind(topic=part.topic, partition=part.partition, error=error, **rest)


def _refusing_name(kind: Callable[..., Result], field: str) -> Callable[[str, ErrorCode], Result]:
    """Makes results of this kind, which has the name in this field."""
    return lambda name, error: kind(**{field: name}, error=error)


refused_partition: Final = _refusing(m.PartitionError)
not_produced: Final = _refusing(m.ProducedPartition, base_offset=NO_OFFSET, log_start_offset=NO_OFFSET)
not_fetched: Final = _refusing(
    m.FetchedPartition,
    high_watermark=NO_OFFSET,
    last_stable_offset=NO_OFFSET,
    log_start_offset=NO_OFFSET,
    aborted=(),
    records=b"",
)
offset_not_listed: Final = _refusing(m.ListedOffset, timestamp=NO_TIMESTAMP, offset=NO_OFFSET)
no_epoch_end: Final = _refusing(m.EpochEndOffset, leader_epoch=NO_LEADER_EPOCH, end_offset=NO_OFFSET)
offset_not_fetched: Final = _refusing(
    m.FetchedOffset, offset=NO_OFFSET, leader_epoch=NO_LEADER_EPOCH, metadata=""
)
records_not_deleted: Final = _refusing(m.DeletedRecords, low_watermark=NO_OFFSET)
producers_not_described: Final = _refusing(m.DescribedProducers, producers=())
refused_topic: Final = _refusing_name(m.TopicError, "topic")
group_not_deleted: Final = _refusing_name(m.GroupError, "group_id")
group_not_described: Final = _refusing_name(m.DescribedGroup, "group_id")
consumer_group_not_described: Final = _refusing_name(m.DescribedConsumerGroup, "group_id")
transaction_not_described: Final = _refusing_name(m.TransactionDescription, "transactional_id")
