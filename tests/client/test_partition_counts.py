"""A topic whose number of partitions changes: records go to partitions that exist, and each has one outcome.

The number grows with CreatePartitions. It shrinks only if the topic is deleted and created again.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from fencepost import Admin, AsyncAdmin, AsyncProducer, Broker, Producer
from fencepost.client.append_lock import AppendLock
from fencepost.client.batch import ProducerRecord, RecordMetadata
from fencepost.client.effects import SendRequest, TransactionCall
from fencepost.client.errors import ClientError, DeliveryFailed, TransactionAborted, UnknownTopic
from fencepost.client.metadata import METADATA_BACKOFF_MS
from fencepost.client.producer_states import ProducerState
from fencepost.client.send_future import PendingRecord
from fencepost.client.send_path import SendPath, split_by_partition
from fencepost.faults.phrases import Point, PointKind
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from tests.client.conversation import ProducerTalk, idempotent, transactional
from tests.topics import create_topic

KEYS = [b"0", b"1", b"2", b"3"]


def numbered(key: bytes, count: int) -> int:
    """A partitioner for keys that are numbers."""
    return int(key) % count


def of_four_partitions(talk: ProducerTalk) -> ProducerTalk:
    """The topic has four partitions; the producer knows them and has its identity."""
    hear_of_partitions(talk, 4)
    if talk.machine.settings.transactional_id is not None:
        talk.machine.begin()
    assert talk.machine.route("t", talk.now) is not None
    talk.hear(talk.machine.wake(talk.now))
    if talk.waiting(m.InitProducerId):
        talk.grant()
    return talk


def hear_of_partitions(talk: ProducerTalk, count: int) -> None:
    """The next metadata names so many partitions."""
    talk.partitions = count
    talk.machine.cluster.is_stale = True
    talk.after(METADATA_BACKOFF_MS)


def append(talk: ProducerTalk, key: bytes | None = None, partition: int | None = None) -> None:
    """One record, which lingers if the producer does."""
    place = talk.machine.append(ProducerRecord("t", b"v", key, partition), now=talk.now, wall_ms=0)
    assert place is not None
    talk.hear(talk.machine.wake(talk.now))


def partitions_on_the_wire(talk: ProducerTalk) -> set[int]:
    return {partition for partition, _ in talk.batches()}


def failed(talk: ProducerTalk) -> dict[int, type[ClientError]]:
    """The error of each partition with a failed batch."""
    return {done.partition: done.failure.kind for done in talk.done if done.failure}


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_keys_and_records_without_a_key_go_to_partitions_that_exist(count: int) -> None:
    talk = of_four_partitions(idempotent(partitioner=numbered, linger_ms=0))
    hear_of_partitions(talk, count)
    for key in KEYS:
        append(talk, key)
        assert partitions_on_the_wire(talk) == {numbered(key, count)}
        talk.store()
    found: list[set[int]] = []
    for _ in range(2 * count):
        append(talk)
        found.append(partitions_on_the_wire(talk))
        talk.store()
    assert set().union(*found) == set(range(count))
    missing, since = ProducerRecord("t", b"v", None, count), talk.machine.cluster.asked
    assert talk.machine.append(missing, now=talk.now, wall_ms=0, since=since) is None, "it may have grown"
    talk.after(METADATA_BACKOFF_MS)
    assert talk.machine.append(missing, now=talk.now, wall_ms=0) is None, "it may have grown since"
    for _ in range(2):  # each of those who waited
        with pytest.raises(UnknownTopic, match=f"there is no partition {count}"):
            talk.machine.append(missing, now=talk.now, wall_ms=0, since=since)


def test_metadata_that_was_requested_before_a_partition_was_wanted_does_not_deny_it() -> None:
    talk = of_four_partitions(idempotent(linger_ms=0))
    wanted = ProducerRecord("t", b"v", None, 4)
    talk.machine.cluster.is_stale = True
    talk.now += METADATA_BACKOFF_MS
    (older,) = talk.machine.wake(talk.now)[:1]
    assert isinstance(older, SendRequest)
    since = talk.machine.cluster.asked
    assert talk.machine.append(wanted, now=talk.now, wall_ms=0, since=since) is None
    talk.sent.append(older)
    talk.reply(older, talk.metadata(m.Metadata(topics=("t",))))
    assert talk.machine.append(wanted, now=talk.now, wall_ms=0, since=since) is None
    talk.partitions = 5
    talk.after(METADATA_BACKOFF_MS)
    append(talk, partition=4)
    assert partitions_on_the_wire(talk) == {4}


def test_a_partition_that_was_just_created_takes_records_at_once() -> None:
    with Broker() as broker, Admin(broker.address) as admin, Producer(broker.address) as producer:
        admin.create_topic("t", partitions=1)
        producer.send("t", b"0").result()
        admin.create_partitions("t", 2)
        assert producer.send("t", b"1", partition=1).result().partition == 1
        admin.create_partitions("t", 3)
        producer.send_many("t", [b"2"], partition=2)
        with pytest.raises(UnknownTopic, match=r"topic 't' has 3 partitions \(0 to 2\); .* no partition 3"):
            producer.send("t", b"3", partition=3)


def test_an_async_producer_sends_to_a_new_partition_at_once() -> None:
    async def story(address: str) -> int:
        async with AsyncAdmin(address) as admin, AsyncProducer(address) as producer:
            await admin.create_topic("t", partitions=1)
            await (await producer.send("t", b"0"))
            await admin.create_partitions("t", 2)
            return (await (await producer.send("t", b"1", partition=1))).partition

    with Broker() as broker:
        assert trio.run(story, broker.address) == 1


def test_tasks_that_wait_for_one_missing_partition_fail_together() -> None:
    async def send(producer: AsyncProducer) -> None:
        with pytest.raises(UnknownTopic, match="there is no partition 1"):
            await producer.send("t", b"1", partition=1)

    async def story(address: str) -> None:
        async with AsyncProducer(address) as producer:
            await (await producer.send("t", b"0"))
            async with trio.open_nursery() as tasks:
                for _ in range(20):
                    tasks.start_soon(send, producer)

    points: list[Point] = []
    with Broker() as broker:
        create_topic(broker.address, "t", partitions=1)
        broker.faults.watch(points.append)
        trio.run(story, broker.address)
    assert [point.what for point in points if point.kind is PointKind.SENDS].count("Metadata") <= 4


def test_records_for_a_partition_that_is_gone_fail_at_once_and_others_are_stored() -> None:
    talk = of_four_partitions(
        idempotent(partitioner=numbered, linger_ms=100_000, max_in_flight_requests_per_connection=1)
    )
    append(talk, b"0")
    talk.hear(talk.machine.flush(talk.now))  # in flight, so that the others wait
    for key in KEYS:
        append(talk, key)
    append(talk, partition=2)
    hear_of_partitions(talk, 2)
    assert failed(talk) == {2: DeliveryFailed, 3: DeliveryFailed}
    failure = next(done.failure for done in talk.done if done.partition == 3)
    assert failure is not None
    assert str(failure.exception()) == (
        "t-3: topic 't' now has 2 partitions (0 to 1), and this one is gone "
        "(UNKNOWN_TOPIC_OR_PARTITION). Send the record again, to a partition that exists"
    )
    talk.hear(talk.machine.flush(talk.now))
    talk.store()
    assert partitions_on_the_wire(talk) == {0, 1}
    talk.store()
    assert sorted(done.partition for done in talk.done if done.failure is None) == [0, 0, 1]
    assert talk.machine.accumulator.used == 0
    assert not talk.machine.accumulator.batches
    assert talk.machine.state is ProducerState.READY, "no sequence is missing"


@pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
def test_a_batch_in_flight_is_judged_by_its_answer(error: ErrorCode) -> None:
    """It may have been stored before the topic was deleted."""
    talk = of_four_partitions(idempotent(partitioner=numbered, linger_ms=0))
    append(talk, b"3")
    hear_of_partitions(talk, 1)
    assert not talk.done
    talk.store(error=error)
    talk.after(METADATA_BACKOFF_MS)
    assert failed(talk) == ({} if error is ErrorCode.NONE else {3: DeliveryFailed})
    assert len(talk.done) == 1
    if error is not ErrorCode.NONE:
        talk.grant(epoch=1)  # it had a sequence
    append(talk, b"3")
    assert partitions_on_the_wire(talk) == {0}


def test_a_batch_that_waits_for_its_retry_fails_too() -> None:
    talk = of_four_partitions(idempotent(partitioner=numbered, linger_ms=0))
    append(talk, b"3")
    talk.partitions = 1
    talk.store(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    talk.after(METADATA_BACKOFF_MS)
    assert failed(talk) == {3: DeliveryFailed}


def test_a_partition_that_comes_back_takes_records_again() -> None:
    talk = of_four_partitions(idempotent(partitioner=numbered, linger_ms=0))
    append(talk, b"3")
    talk.partitions = 1
    talk.store(error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    talk.after(METADATA_BACKOFF_MS)
    talk.grant(epoch=1)
    hear_of_partitions(talk, 4)
    append(talk, b"3")
    ((where, header),) = talk.batches()
    assert (where, header.producer_epoch, header.base_sequence) == (3, 1, 0)


def test_a_transaction_that_loses_a_partition_is_aborted_and_the_next_one_commits() -> None:
    talk = of_four_partitions(transactional(partitioner=numbered, linger_ms=100_000))
    append(talk, b"0")
    append(talk, b"3")
    hear_of_partitions(talk, 1)
    assert failed(talk) == {0: TransactionAborted, 3: DeliveryFailed}
    talk.abort()
    talk.machine.begin()
    append(talk, b"3")
    talk.commit()
    assert partitions_on_the_wire(talk) == {0}
    talk.store()
    talk.end(epoch=1)
    assert talk.resolved[TransactionCall.COMMIT] is None


# --- in the middle of a call --------------------------------------------------------------------------------


class Sender(SendPath[PendingRecord["Sender"]]):
    """The hot paths of `send` and `send_many`, to the machine of a conversation."""

    def __init__(self, talk: ProducerTalk) -> None:
        super().__init__(
            talk.machine.accumulator,
            PendingRecord,
            append_lock=AppendLock(),
            key_serializer=None,
            value_serializer=None,
        )
        self._talk = talk

    def _put_slowly(self, record: ProducerRecord) -> PendingRecord[Sender]:
        talk = self._talk
        place = talk.machine.append(record, now=talk.now, wall_ms=0)
        assert place is not None
        return PendingRecord((self, *place))

    def put_columns(self, keys: list[bytes], *, between: Callable[[], None]) -> list[int]:
        """`send_many`, with something that happens after its first record; the partition of each key."""
        found: dict[int, int] = {}
        route = self._hot["t"]
        for part in split_by_partition(route, keys, keys, None, is_plain=True, on_delivery=None):
            start = 0
            while start < len(part.values):
                run = self._put_run("t", part, start)
                found |= dict.fromkeys(part.indexes[start : start + run.length], run.batch.partition)
                start += run.length
                if len(found) == 1:
                    between()
        return [found[place] for place in range(len(keys))]


def test_a_record_whose_partition_goes_while_it_is_looked_up_goes_to_another() -> None:
    """What the IO thread does between two look-ups of the hot path."""
    happens: list[Callable[[], None]] = []

    def interrupted(key: bytes, count: int) -> int:
        found = numbered(key, count)
        while happens:
            happens.pop()()
        return found

    talk = of_four_partitions(idempotent(partitioner=interrupted, linger_ms=100_000))
    sender = Sender(talk)
    lost = sender.put("t", b"early", partition=3)
    happens.append(lambda: hear_of_partitions(talk, 1))
    late = sender.put("t", b"late", b"3")
    assert (lost.done(), late.done()) == (True, False)
    with pytest.raises(DeliveryFailed):
        lost.outcome()
    talk.hear(talk.machine.flush(talk.now))
    talk.store()
    assert late.outcome() == RecordMetadata("t", 0, 100)


def test_columns_whose_partitions_go_while_they_are_sent_go_to_others() -> None:
    talk = of_four_partitions(idempotent(partitioner=numbered, linger_ms=100_000))
    found = Sender(talk).put_columns([*KEYS, *KEYS], between=lambda: hear_of_partitions(talk, 2))
    assert found == [0, 1, 0, 1, 0, 1, 0, 1]
