"""Requests of the stories as values, and what an answer holds; no state, no host."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from fencepost.broker.contract import Reply
from fencepost.protocol import messages as m
from fencepost.protocol.batches import read_marker, walk
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.records import build_data_batch, read_columns
from fencepost.protocol.terms import (
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TOPIC_ID,
    IsolationLevel,
    TopicPartition,
    TransactionResult,
)

NOON: Final = 1_764_000_000_000  # where every story begins, in ms since 1970; past for real clocks
COMMIT: Final = TransactionResult.COMMIT
ABORT: Final = TransactionResult.ABORT
COMMITTED: Final = IsolationLevel.READ_COMMITTED
UNCOMMITTED: Final = IsolationLevel.READ_UNCOMMITTED
ORDERS: Final = TopicPartition("orders", 0)
OTHERS: Final = TopicPartition("orders", 1)

Body = TypeVar("Body")


class Identity(NamedTuple):
    """What a producer calls itself."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


NOBODY: Final = Identity()


def batch(
    who: Identity, values: str, *, sequence: int = 0, transactional: bool = True, timestamp: int = NOON
) -> bytearray:
    """One batch with the words of `values`."""
    return build_data_batch(
        [value.encode() for value in values.split()],
        base_timestamp=timestamp,
        producer_id=who.producer_id,
        producer_epoch=who.producer_epoch,
        base_sequence=NO_SEQUENCE if who == NOBODY else sequence,
        transactional=transactional,
    )


def produce_request(
    who: Identity,
    values: Mapping[TopicPartition, str],
    *,
    sequence: int = 0,
    name: str | None = "pay",
    acks: int = -1,
) -> m.Produce:
    """A batch per partition, all from the same sequence on; in a transaction unless `name` is None."""
    batches = {
        key: batch(who, words, sequence=sequence, transactional=name is not None)
        for key, words in values.items()
    }
    return produce_batches(batches, name=name, acks=acks)


def produce_batches(
    batches: Mapping[TopicPartition, bytearray],
    *,
    name: str | None,
    acks: int = -1,
    topic_ids: Mapping[str, bytes] = MappingProxyType({}),
) -> m.Produce:
    """For the topics with these ids; for those that have their names now where `topic_ids` has none."""
    parts = (
        m.ProducePartition(
            topic=key.topic,
            topic_id=topic_ids.get(key.topic, NO_TOPIC_ID),
            partition=key.partition,
            records=records,
        )
        for key, records in batches.items()
    )
    return m.Produce(transactional_id=name, acks=acks, timeout_ms=1_000, partitions=tuple(parts))


def init_request(
    name: str | None = "pay", expected: Identity = NOBODY, *, timeout_ms: int = 60_000
) -> m.InitProducerId:
    return m.InitProducerId(
        transactional_id=name,
        transaction_timeout_ms=timeout_ms,
        producer_id=expected.producer_id,
        producer_epoch=expected.producer_epoch,
    )


def end_request(who: Identity, result: TransactionResult, name: str = "pay") -> m.EndTxn:
    return m.EndTxn(
        transactional_id=name, producer_id=who.producer_id, producer_epoch=who.producer_epoch, result=result
    )


def add_request(
    who: Identity, *keys: TopicPartition, name: str = "pay", verify_only: bool = False
) -> m.AddPartitionsToTxn:
    return m.AddPartitionsToTxn(
        transactional_id=name,
        producer_id=who.producer_id,
        producer_epoch=who.producer_epoch,
        verify_only=verify_only,
        partitions=keys,
    )


def add_offsets_request(who: Identity, group: str, *, name: str = "pay") -> m.AddOffsetsToTxn:
    return m.AddOffsetsToTxn(
        transactional_id=name, producer_id=who.producer_id, producer_epoch=who.producer_epoch, group_id=group
    )


def marker_request(
    who: Identity,
    result: TransactionResult,
    *keys: TopicPartition,
    coordinator_epoch: int = 0,
    transaction_version: int = 2,
) -> m.WriteTxnMarkers:
    marker = m.TransactionMarker(
        producer_id=who.producer_id,
        producer_epoch=who.producer_epoch,
        result=result,
        coordinator_epoch=coordinator_epoch,
        transaction_version=transaction_version,
        partitions=keys,
    )
    return m.WriteTxnMarkers(markers=(marker,))


def offset_to_commit(key: TopicPartition, offset: int, *, metadata: str = "") -> m.OffsetToCommit:
    return m.OffsetToCommit(
        topic=key.topic, partition=key.partition, offset=offset, leader_epoch=-1, metadata=metadata
    )


def offset_request(
    who: Identity, group: str, offsets: Mapping[TopicPartition, int], name: str = "pay"
) -> m.TxnOffsetCommit:
    """Offsets that count when the transaction commits."""
    return m.TxnOffsetCommit(
        transactional_id=name,
        group_id=group,
        producer_id=who.producer_id,
        producer_epoch=who.producer_epoch,
        generation_id=-1,
        member_id="",
        group_instance_id=None,
        offsets=tuple(offset_to_commit(key, offset) for key, offset in offsets.items()),
    )


def plain_offset_request(group: str, offsets: Mapping[TopicPartition, int]) -> m.OffsetCommit:
    """Offsets that count at once."""
    return m.OffsetCommit(
        group_id=group,
        generation_id=-1,
        member_id="",
        group_instance_id=None,
        offsets=tuple(offset_to_commit(key, offset) for key, offset in offsets.items()),
    )


def fetch_request(
    key: TopicPartition,
    isolation_level: IsolationLevel = COMMITTED,
    *,
    offset: int = 0,
    max_wait_ms: int = 0,
    max_bytes: int = 1 << 20,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> m.Fetch:
    part = m.FetchPartition(
        topic=key.topic,
        partition=key.partition,
        current_leader_epoch=leader_epoch,
        fetch_offset=offset,
        max_bytes=max_bytes,
    )
    return m.Fetch(
        max_wait_ms=max_wait_ms,
        min_bytes=1 if max_wait_ms else 0,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        partitions=(part,),
    )


# --- answers ---------------------------------------------------------------------------------------------


def body_of(reply: Reply | None, kind: type[Body]) -> Body:
    """The body of an answer that is no error."""
    assert reply is not None, "nothing was answered"
    assert reply.error is ErrorCode.NONE, reply
    assert isinstance(reply.body, kind), reply
    return reply.body


def identity_of(reply: Reply | None) -> Identity:
    """Who an InitProducerId or an EndTxn says that one is."""
    assert reply is not None, "nothing was answered"
    body = reply.body
    assert isinstance(body, m.InitProducerIdReply | m.EndTxnReply), reply
    return Identity(body.producer_id, body.producer_epoch)


def produced(reply: Reply | None) -> dict[TopicPartition, m.ProducedPartition]:
    parts = body_of(reply, m.ProduceReply).partitions
    return {TopicPartition(part.topic, part.partition): part for part in parts}


def fetched(reply: Reply | None) -> m.FetchedPartition:
    (part,) = body_of(reply, m.FetchReply).partitions
    return part


def next_offset(part: m.FetchedPartition) -> int:
    """Where a reader goes on."""
    *_, (_, last) = walk(part.records)
    return last.next_offset


def visible_values(part: m.FetchedPartition) -> list[str]:
    """What a consumer makes of an answer: no markers, and with an aborted list no aborted batches."""
    waiting = sorted(part.aborted or (), key=lambda aborted: aborted.first_offset)
    dropping: set[int] = set()
    values: list[str] = []
    for at, header in walk(part.records):
        while waiting and waiting[0].first_offset <= header.last_offset:
            dropping.add(waiting.pop(0).producer_id)
        if header.is_control:
            if read_marker(part.records, at).result is ABORT:
                dropping.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in dropping):
            columns = read_columns(part.records, header, at)
            values += ["" if value is None else bytes(value).decode() for value in columns.values]
    return values
