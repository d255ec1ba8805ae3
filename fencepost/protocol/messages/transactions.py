"""What begins, extends, ends and describes transactions.

Rule: a message says what Kafka's message of that name says; what only other clusters need is left out.
"""

from __future__ import annotations

from fencepost.protocol.codec import Int8, Int16, Int32, Int64
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages.common import PartitionError, PartitionName
from fencepost.protocol.terms import TransactionResult, TransactionState
from fencepost.protocol.values import value


@value(kw_only=True)
class InitProducerId:
    """A producer id and epoch; fences the former owner of the id. -1, -1: no expectation (KIP-360)."""

    transactional_id: str | None
    transaction_timeout_ms: Int32
    producer_id: Int64
    producer_epoch: Int16


@value(kw_only=True)
class InitProducerIdReply:
    producer_id: Int64
    producer_epoch: Int16


@value(kw_only=True)
class AddPartitionsToTxn:
    """Add partitions to the transaction, or with `verify_only` ask whether they are in it (KIP-890)."""

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    verify_only: bool
    partitions: tuple[PartitionName, ...]


@value(kw_only=True)
class AddPartitionsToTxnReply:
    partitions: tuple[PartitionError, ...]


@value(kw_only=True)
class AddOffsetsToTxn:
    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    group_id: str


@value(kw_only=True)
class AddOffsetsToTxnReply:
    pass


@value(kw_only=True)
class EndTxn:
    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    result: TransactionResult


@value(kw_only=True)
class EndTxnReply:
    """The identity for the next transaction, an epoch each (KIP-890 part 2); -1 for clients from before."""

    producer_id: Int64
    producer_epoch: Int16


@value(kw_only=True)
class TransactionMarker:
    producer_id: Int64
    producer_epoch: Int16
    result: TransactionResult
    coordinator_epoch: Int32
    transaction_version: Int8
    partitions: tuple[PartitionName, ...]


@value(kw_only=True)
class WriteTxnMarkers:
    """From the coordinator to partition leaders: append these markers."""

    markers: tuple[TransactionMarker, ...]


@value(kw_only=True)
class WrittenMarker:
    producer_id: Int64
    partitions: tuple[PartitionError, ...]


@value(kw_only=True)
class WriteTxnMarkersReply:
    markers: tuple[WrittenMarker, ...]


@value(kw_only=True)
class DescribeProducers:
    partitions: tuple[PartitionName, ...]


@value(kw_only=True)
class ProducerDescription:
    """-1 stands for none everywhere; `open_since_offset` is the first offset of its open transaction here."""

    producer_id: Int64
    producer_epoch: Int16
    last_sequence: Int32
    last_timestamp: Int64
    coordinator_epoch: Int32
    open_since_offset: Int64


@value(kw_only=True)
class DescribedProducers:
    topic: str
    partition: Int32
    error: ErrorCode
    producers: tuple[ProducerDescription, ...]


@value(kw_only=True)
class DescribeProducersReply:
    partitions: tuple[DescribedProducers, ...]


@value(kw_only=True)
class DescribeTransactions:
    transactional_ids: tuple[str, ...]


@value(kw_only=True)
class TransactionDescription:
    """`start_ms` is -1 unless started; during PREPARE `partitions` are those whose marker is missing."""

    transactional_id: str
    error: ErrorCode
    state: TransactionState
    timeout_ms: Int32
    start_ms: Int64
    producer_id: Int64
    producer_epoch: Int16
    partitions: tuple[PartitionName, ...]


@value(kw_only=True)
class DescribeTransactionsReply:
    transactions: tuple[TransactionDescription, ...]


@value(kw_only=True)
class ListTransactions:
    """Empty filters let everything through; `duration_ms` -1 does too (KIP-664, KIP-994).

    `states` are as Kafka's tools print them; one that nobody knows lets nothing through, and is named.
    """

    states: tuple[str, ...]
    producer_ids: tuple[Int64, ...]
    duration_ms: Int64


@value(kw_only=True)
class ListedTransaction:
    transactional_id: str
    producer_id: Int64
    state: TransactionState


@value(kw_only=True)
class ListTransactionsReply:
    unknown_states: tuple[str, ...]
    transactions: tuple[ListedTransaction, ...]
