"""What administrators do to topics, records and consumer groups, asked of a broker on a real socket."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from fencepost.broker.embedded import Broker
from fencepost.client.admin import MemberDescription
from fencepost.client.errors import RequestFailed
from fencepost.client.shells.sync import Admin, Consumer, Producer
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import HIGH_WATERMARK, GroupState, TopicPartition
from tests.broker.story import FEW_LOGS
from tests.client.members import assignment, become_member, leave, subscription

HERE, THERE = TopicPartition("t", 0), TopicPartition("t", 1)
NOWHERE = TopicPartition("nowhere", 0)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(override=FEW_LOGS) as running:
        yield running


@pytest.fixture
def admin(broker: Broker) -> Iterator[Admin]:
    with Admin(broker.address) as asking:
        asking.create_topic("t", 2)
        yield asking


def refused(error: ErrorCode, act: Callable[[], object]) -> None:
    with pytest.raises(RequestFailed) as problem:
        act()
    assert problem.value.error is error


def write(address: str, count: int) -> None:
    """Records 0, 1, ... into HERE, each a batch of its own."""
    with Producer(address) as producer:
        for number in range(count):
            producer.send("t", b"%d" % number, partition=0).result()


def commit(address: str, group_id: str, offsets: dict[TopicPartition, int]) -> None:
    with Consumer(address, group_id=group_id) as consumer:
        consumer.commit(offsets)


def test_an_error_of_a_whole_reply_names_the_group(admin: Admin) -> None:
    with pytest.raises(RequestFailed, match=r"group 'ghost' does not exist \(GROUP_ID_NOT_FOUND\)"):
        admin.delete_consumer_group_offsets("ghost", [HERE])


# --- topics and records ----------------------------------------------------------------------------------


def test_a_topic_with_a_limit_of_its_own(broker: Broker, admin: Admin) -> None:
    admin.create_topic("small", configs={"max.message.bytes": "100"})
    with Producer(broker.address) as producer:
        assert producer.send("small", b"x").result().offset == 0
        outcome = producer.send("small", b"x" * 100)
        with pytest.raises(Exception, match="MESSAGE_TOO_LARGE"):
            outcome.result()
    refused(ErrorCode.INVALID_CONFIG, lambda: admin.create_topic("u", configs={"flush.ms": "1"}))


def test_records_are_deleted_up_to_an_offset(broker: Broker, admin: Admin) -> None:
    write(broker.address, 5)
    assert admin.delete_records({HERE: 2}) == {HERE: 2}
    assert admin.delete_records({HERE: 1}) == {HERE: 2}, "a start never goes back"
    with Consumer(broker.address) as consumer:
        consumer.assign([HERE])
        (batch, *_) = consumer.poll()
        assert (batch.offsets[0], batch.values[0]) == (2, b"2")
    assert admin.delete_records({HERE: HIGH_WATERMARK, THERE: HIGH_WATERMARK}) == {HERE: 5, THERE: 0}
    assert admin.beginning_offsets([HERE]) == admin.end_offsets([HERE]) == {HERE: 5}


def test_records_that_cannot_be_deleted(broker: Broker, admin: Admin) -> None:
    refused(ErrorCode.OFFSET_OUT_OF_RANGE, lambda: admin.delete_records({HERE: 1}))
    commit(broker.address, "g", {HERE: 0})
    offsets = TopicPartition("__consumer_offsets", 0)
    refused(ErrorCode.INVALID_TOPIC_EXCEPTION, lambda: admin.delete_records({offsets: 0}))


# --- groups ----------------------------------------------------------------------------------------------


def test_a_group_that_only_commits(broker: Broker, admin: Admin) -> None:
    assert admin.list_consumer_groups() == []
    assert admin.list_consumer_group_offsets("billing") == {}
    commit(broker.address, "billing", {HERE: 3, THERE: 4})
    (listed,) = admin.list_consumer_groups()
    assert (listed.group_id, listed.protocol_type, listed.state) == ("billing", "", GroupState.EMPTY)
    assert [listed.coordinator_id] == admin.list_brokers()
    assert admin.list_consumer_groups([GroupState.STABLE]) == []
    assert admin.describe_consumer_group("billing").members == ()
    assert admin.list_consumer_group_offsets("billing", require_stable=True) == {HERE: 3, THERE: 4}
    admin.delete_consumer_group_offsets("billing", [THERE])
    assert admin.list_consumer_group_offsets("billing") == {HERE: 3}
    admin.delete_consumer_group("billing")
    assert admin.describe_consumer_group("billing").state is GroupState.DEAD
    refused(ErrorCode.GROUP_ID_NOT_FOUND, lambda: admin.delete_consumer_group("billing"))
    refused(ErrorCode.GROUP_ID_NOT_FOUND, lambda: admin.delete_consumer_group_offsets("billing", [HERE]))


def test_an_offset_that_a_transaction_moves_is_not_stable_yet(broker: Broker, admin: Admin) -> None:
    with Producer(broker.address, transactional_id="pay") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_offsets_to_transaction({HERE: 7}, "billing")
        producer.send("t", b"x").result()
        assert admin.list_consumer_group_offsets("billing") == {}
        producer.commit_transaction()
    assert admin.list_consumer_group_offsets("billing", require_stable=True) == {HERE: 7}


def test_members_are_shown_and_protect_what_they_read(broker: Broker, admin: Admin) -> None:
    member_id = become_member(broker.address, "readers", assignment("t", [1, 0]), "t")
    found = admin.describe_consumer_group("readers")
    assert (found.state, found.protocol_type, found.protocol) == (GroupState.STABLE, "consumer", "range")
    assert found.members == (
        MemberDescription(
            member_id=member_id,
            group_instance_id="i",
            client_id="",
            host="/127.0.0.1",
            partitions=(HERE, THERE),
        ),
    )
    refused(ErrorCode.NON_EMPTY_GROUP, lambda: admin.delete_consumer_group("readers"))
    refused(
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, lambda: admin.delete_consumer_group_offsets("readers", [HERE])
    )
    refused(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        lambda: admin.delete_consumer_group_offsets("readers", [NOWHERE]),
    )
    leave(broker.address, "readers", member_id)
    admin.delete_consumer_group("readers")


@pytest.mark.parametrize(
    ("kind", "assigned"),
    [
        ("connect", assignment("t", [0])),
        ("consumer", b""),
        ("consumer", b"\0"),
        ("consumer", subscription("t")[:-5]),
        ("consumer", assignment("t", [0, 1])[:-6]),
    ],
)
def test_an_assignment_that_is_not_a_consumer_s_says_nothing(
    broker: Broker, admin: Admin, kind: str, assigned: bytes
) -> None:
    become_member(broker.address, "readers", assigned, "t", kind=kind)
    (member,) = admin.describe_consumer_group("readers").members
    assert member.partitions == ()
