"""Clients whose topic is deleted and created again: a batch enters only the topic for which it was sent."""

from __future__ import annotations

import attrs

from fencepost import Admin, Broker, Consumer, Producer
from fencepost.client.metadata import ClusterMetadata
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import TopicPartition
from fencepost.testing.topic import create_topic
from tests.client.conversation import HERE, ProducerTalk, idempotent

OLD, NEW = bytes(15) + b"\1", bytes(15) + b"\2"
THERE = TopicPartition("t", 1)
AGAIN_MS = 1_000  # more than the backoff before the next attempt


def started() -> ProducerTalk:
    """An idempotent producer whose first batch is stored in the old topic."""
    talk = idempotent()
    talk.topic_ids["t"] = OLD
    talk.send(b"0")
    talk.grant()
    talk.store(base_offset=0)
    return talk


def recreated(talk: ProducerTalk) -> None:
    """The old topic is deleted, and the new one gets its name; the client does not know yet."""
    talk.topic_ids["t"] = NEW
    talk.leader_epoch += 1


def asks_for_metadata(talk: ProducerTalk) -> None:
    talk.machine.cluster.forget_leader(THERE)
    talk.after(AGAIN_MS)


def sent(talk: ProducerTalk) -> list[tuple[bytes, int]]:
    """The topic and the first sequence of each batch that is on the wire."""
    ids = [part.topic_id for produce in talk.waiting(m.Produce) for part in produce.partitions]
    return list(zip(ids, talk.sequences(), strict=True))


def test_a_batch_that_the_old_topic_did_not_take_is_sent_to_the_new_one() -> None:
    """In order, and with the sequences that they have: the new topic knows none of this producer."""
    talk = started()
    for value in (b"a", b"b", b"c"):
        talk.send(value)
    assert sent(talk) == [(OLD, 1), (OLD, 2), (OLD, 3)]
    recreated(talk)
    for _ in range(3):
        talk.store(error=ErrorCode.UNKNOWN_TOPIC_ID)
    talk.after(AGAIN_MS)
    for sequence in (1, 2, 3):
        assert sent(talk) == [(NEW, sequence)]
        talk.store()
        talk.after(AGAIN_MS)
    assert [done.failure for done in talk.done] == [None] * 4


def test_a_batch_whose_reply_was_lost_is_sent_to_the_new_topic() -> None:
    talk = started()
    talk.send(b"a")
    recreated(talk)
    talk.lose(m.Produce)
    talk.after(AGAIN_MS)
    assert sent(talk) == [(NEW, 1)]


def test_a_later_batch_does_not_overtake_one_that_is_on_its_way_to_the_old_topic() -> None:
    """The new topic would take it, and then refuse the earlier one: out of order."""
    talk = started()
    talk.send(b"a")
    recreated(talk)
    asks_for_metadata(talk)
    talk.send(b"b")
    assert sent(talk) == [(OLD, 1)]
    talk.store(error=ErrorCode.UNKNOWN_TOPIC_ID)
    talk.after(AGAIN_MS)
    assert sent(talk) == [(NEW, 1), (NEW, 2)]


def test_another_partition_does_not_wait() -> None:
    talk = started()
    talk.send(b"a")
    recreated(talk)
    asks_for_metadata(talk)
    talk.send(b"b", partition=THERE.partition)
    ids = [part.topic_id for produce in talk.waiting(m.Produce) for part in produce.partitions]
    assert ids == [OLD, NEW], "each partition has an order of its own"


def told(topic_id: bytes, leader_epoch: int) -> m.MetadataReply:
    led = m.PartitionMetadata(partition=0, leader_id=1, leader_epoch=leader_epoch)
    topic = m.TopicMetadata(
        topic="t", error=ErrorCode.NONE, is_internal=False, partitions=(led,), topic_id=topic_id
    )
    nodes = tuple(m.NodeAddress(node_id=number, host="h", port=number) for number in (1, 2))
    return m.MetadataReply(cluster_id="c", controller_id=2, nodes=nodes, topics=(topic,))


def test_a_node_that_does_not_know_the_new_topic_yet_is_not_believed() -> None:
    """Leader epochs of a topic that is created again are above those of the old one."""
    cluster = ClusterMetadata(bootstrap=(("h", 1),))
    for reply in (told(OLD, 0), told(NEW, 1), told(OLD, 0)):
        cluster.learn(reply, from_node=1)
    assert cluster.topic_ids == {"t": NEW}
    gone = attrs.evolve(
        told(OLD, 0).topics[0], error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, partitions=(), topic_id=bytes(16)
    )
    cluster.learn(attrs.evolve(told(OLD, 0), topics=(gone,)), from_node=1)
    cluster.learn(told(NEW, 1), from_node=1)
    assert (cluster.topic_ids, cluster.leader(HERE)) == ({"t": NEW}, 1)


def test_a_consumer_reads_the_new_topic_from_its_beginning() -> None:
    """A Fetch needs no topic id: by its leader epoch, the position is not one in the new topic (KIP-320)."""
    here = TopicPartition("t", 0)
    with Broker() as broker, Consumer(broker.address, auto_offset_reset="earliest") as consumer:
        consumer.assign([here])
        for words in (["a", "b", "c"], ["d", "e", "f", "g"]):
            create_topic(broker, "t", 1)
            with Producer(broker.address) as producer:
                producer.send_many("t", [word.encode() for word in words])
            read: list[str] = []
            while len(read) < len(words):
                read += [bytes(r.value or b"").decode() for batch in consumer.poll() for r in batch]
            assert read == words
            with Admin(broker.address) as admin:
                admin.delete_topic("t")
