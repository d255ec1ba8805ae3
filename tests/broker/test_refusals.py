"""What no client may do to a broker: each refusal, and the node that a restart finds afterwards."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from fencepost.broker.contract import Answered, Received, ReplyTo
from fencepost.protocol.batches import CONTROL_BIT, CRC_START
from fencepost.protocol.checksum import crc32c
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import (
    AddPartitionsToTxnReply,
    Heartbeat,
    Produce,
    ProduceReply,
    TxnOffsetCommit,
    TxnOffsetCommitReply,
    WriteTxnMarkersReply,
)
from fencepost.protocol.terms import (
    CONSUMER_OFFSETS_TOPIC,
    METADATA_PARTITION,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from tests.broker.refusals import CarefulStory
from tests.broker.requests import (
    ABORT,
    COMMIT,
    NOBODY,
    ORDERS,
    OTHERS,
    Identity,
    add_offsets_request,
    add_request,
    batch,
    body_of,
    marker_request,
    offset_request,
    plain_offset_request,
    produce_batches,
    produce_request,
)
from tests.broker.story import offsets_log_of

INTERNAL = [
    TopicPartition(TRANSACTION_STATE_TOPIC, 0),
    TopicPartition(CONSUMER_OFFSETS_TOPIC, 0),
    METADATA_PARTITION,
]
MISSING = TopicPartition("missing", 0)


def resealed(records: bytearray) -> bytearray:
    """With the checksum that its changed bytes have."""
    struct.pack_into(">I", records, 17, crc32c(memoryview(records)[CRC_START:]))
    return records


def patched(position: int, form: str, value: int, **options: bool) -> Callable[[Identity], bytearray]:
    def build(who: Identity) -> bytearray:
        records = batch(who, "a b", **options)
        struct.pack_into(form, records, position, value)
        return resealed(records)

    return build


def corrupt(who: Identity) -> bytearray:
    records = batch(who, "a b")
    records[-1] ^= 1
    return records


def two_batches(who: Identity) -> bytearray:
    return batch(who, "a") + batch(who, "b", sequence=1)


def of_nobody(who: Identity) -> bytearray:
    return resealed(bytearray(batch(NOBODY, "a", transactional=True)))


BAD_BATCHES: list[tuple[Callable[[Identity], bytearray], ErrorCode]] = [
    (patched(23, ">i", 2_000_000_000), ErrorCode.INVALID_RECORD),  # last offset delta beyond the records
    (patched(23, ">i", 0), ErrorCode.INVALID_RECORD),
    (patched(57, ">i", 0), ErrorCode.INVALID_RECORD),  # no records
    (patched(53, ">i", -1), ErrorCode.INVALID_RECORD),  # no sequence
    (patched(53, ">i", -5), ErrorCode.INVALID_RECORD),
    (patched(16, ">b", 1), ErrorCode.INVALID_RECORD),  # a magic byte of old
    (patched(16, ">b", 3), ErrorCode.CORRUPT_MESSAGE),  # and of nobody
    (patched(8, ">i", 10), ErrorCode.CORRUPT_MESSAGE),  # a length that leaves no room for a header
    (patched(8, ">i", 5_000), ErrorCode.INVALID_RECORD),  # a length beyond the batch
    (patched(21, ">h", CONTROL_BIT | 0x10), ErrorCode.INVALID_RECORD),
    (lambda who: batch(who, "x" * 1_100_000), ErrorCode.MESSAGE_TOO_LARGE),
    (corrupt, ErrorCode.CORRUPT_MESSAGE),
    (two_batches, ErrorCode.INVALID_RECORD),
    (lambda _: bytearray(), ErrorCode.INVALID_RECORD),
    (lambda _: bytearray(b"nonsense"), ErrorCode.INVALID_RECORD),
]


@pytest.mark.parametrize(("build", "error"), BAD_BATCHES)
def test_a_batch_that_breaks_a_rule_of_its_form_does_not_get_in(
    build: Callable[[Identity], bytearray], error: ErrorCode
) -> None:
    story = CarefulStory()
    me = story.identity()
    story.produce(me, "first", key=ORDERS)
    reply = story.ask(produce_batches({OTHERS: build(me)}, name="pay"))
    assert body_of(reply, ProduceReply).partitions[0].error is error
    assert story.partition(OTHERS).log_end_offset == 0
    story.ended(me, COMMIT)
    story.restart()
    assert story.visible() == "first"


def test_a_transactional_batch_of_nobody_is_in_no_transaction() -> None:
    """Kafka asks about producers only (ReplicaManager.handleProduceAppend), and tracks none here."""
    story = CarefulStory()
    me = story.identity()
    reply = story.ask(produce_batches({ORDERS: of_nobody(me)}, name="pay"))
    assert body_of(reply, ProduceReply).partitions[0].error is ErrorCode.NONE
    assert (story.transaction().partitions, story.partition().producers) == ((), {})
    assert story.visible() == "a"
    story.restart()
    assert story.visible() == "a"


@pytest.mark.parametrize("key", INTERNAL)
@pytest.mark.parametrize("name", [None, "pay"])
def test_nobody_writes_into_the_logs_of_the_broker_itself(key: TopicPartition, name: str | None) -> None:
    story = CarefulStory()
    me = story.identity()
    end = story.partition(key).log_end_offset
    reply = story.ask(produce_request(me if name else NOBODY, {key: "x"}, name=name))
    assert body_of(reply, ProduceReply).partitions[0].error is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert story.partition(key).log_end_offset == end
    story.restart()
    assert story.identity() == Identity(me.producer_id, me.producer_epoch + 1)


@pytest.mark.parametrize("key", [INTERNAL[0], INTERNAL[2]])
def test_no_marker_gets_into_a_log_that_has_no_transactions(key: TopicPartition) -> None:
    story = CarefulStory()
    me = story.identity()
    end = story.partition(key).log_end_offset
    reply = body_of(story.ask(marker_request(me, COMMIT, key)), WriteTxnMarkersReply)
    assert reply.markers[0].partitions[0].error is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert story.partition(key).log_end_offset == end
    story.restart()
    assert story.identity() == Identity(me.producer_id, me.producer_epoch + 1)


@pytest.mark.parametrize("key", [MISSING, TopicPartition("orders", 2), INTERNAL[0], INTERNAL[2]])
def test_what_is_no_topic_of_clients_is_not_added_to_a_transaction(key: TopicPartition) -> None:
    """The others of the same request are not attempted then (KafkaApis.handleAddPartitionsToTxnRequest)."""
    story = CarefulStory()
    me = story.identity()
    reply = body_of(story.ask(add_request(me, ORDERS, key)), AddPartitionsToTxnReply)
    is_internal = key in INTERNAL
    assert [part.error for part in reply.partitions] == [
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED if is_internal else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert story.transaction().partitions == ()
    story.produce(me, "a")
    story.ended(me, COMMIT)
    story.restart()
    assert story.visible() == "a"


@pytest.mark.parametrize("what", ["data", "offsets"])
def test_what_a_marker_overtakes_while_the_coordinator_is_asked_does_not_get_in(what: str) -> None:
    """KAFKA-14884: the coordinator has said yes, and before the append the transaction ends."""
    story = CarefulStory(versions={Produce: 11, TxnOffsetCommit: 4})
    me = story.identity()
    key = ORDERS if what == "data" else offsets_log_of("readers")
    added = add_request(me, ORDERS) if what == "data" else add_offsets_request(me, "readers")
    assert story.ask(added).error is ErrorCode.NONE
    request = (
        produce_request(me, {ORDERS: "late"})
        if what == "data"
        else offset_request(me, "readers", {ORDERS: 5})
    )
    to = story.offer(request)
    while not any(isinstance(arrived, Answered) for arrived in story.host.inbox):
        assert story.work()
    marker = Received(marker_request(me, ABORT, key, transaction_version=0), to=ReplyTo(9, 1))
    story.host.inbox.appendleft(marker)
    story.run()
    body = story.replies[to].body
    assert isinstance(body, ProduceReply | TxnOffsetCommitReply)
    (part,) = body.partitions
    assert part.error is ErrorCode.INVALID_TXN_STATE
    assert len(story.log(key)) == 1
    assert story.partition(key).last_stable_offset == 1


@pytest.mark.parametrize("what", ["data", "offsets"])
def test_a_former_owner_is_refused_before_the_coordinator_is_asked(what: str) -> None:
    """Recorded of Kafka 4.3.1: and no question of his is left behind."""
    story = CarefulStory()
    old = story.identity()
    story.produce(old, "a")
    story.commit_offset(old, "readers", 1)
    story.identity()
    if what == "data":
        assert story.produce(old, "b", sequence=1).error is ErrorCode.INVALID_PRODUCER_EPOCH
    else:
        assert story.commit_offset(old, "readers", 2) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert story.partition(ORDERS).verifying == {}
    assert story.partition(offsets_log_of("readers")).verifying == {}


def test_offsets_of_two_groups_may_be_sent_at_once() -> None:
    """Both ask the coordinator before either is appended; the second finds the transaction open."""
    story = CarefulStory()
    me = story.identity()
    groups = [f"g{number}" for number in range(5) if offsets_log_of(f"g{number}") == offsets_log_of("g0")]
    assert len(groups) > 1
    asked = [story.offer(offset_request(me, group, {ORDERS: 5})) for group in groups]
    story.settle()
    for to in asked:
        reply = body_of(story.replies[to], TxnOffsetCommitReply)
        assert [part.error for part in reply.partitions] == [ErrorCode.NONE]
    story.ended(me, COMMIT)
    assert [story.offset(group).offset for group in groups] == [5] * len(groups)


def test_a_refused_member_leaves_a_group_that_was_just_loaded_as_it_is() -> None:
    """After a restart an empty group is only in the log; a stranger's request leaves it there."""
    story = CarefulStory()
    story.ask(plain_offset_request("readers", {ORDERS: 5}))
    story.restart()
    heartbeat = Heartbeat(group_id="readers", generation_id=0, member_id="one", group_instance_id=None)
    assert story.ask(heartbeat).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert story.refused == 1
