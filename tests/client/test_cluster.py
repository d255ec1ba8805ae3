"""What a client believes of the cluster: the newest leader that it heard of, whoever tells of older ones."""

from __future__ import annotations

import attrs

from fencepost.client.metadata import ClusterMetadata
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.fork import fingerprint, fork
from fencepost.protocol.messages import MetadataReply, NodeAddress, PartitionMetadata, TopicMetadata
from fencepost.protocol.terms import TopicPartition

HERE = TopicPartition("t", 0)


def told(leader_id: int, leader_epoch: int) -> MetadataReply:
    """What a node of three says of one partition."""
    led = PartitionMetadata(partition=0, leader_id=leader_id, leader_epoch=leader_epoch)
    return MetadataReply(
        cluster_id="c",
        controller_id=1,
        nodes=tuple(NodeAddress(node_id=number, host="h", port=number) for number in (1, 2, 3)),
        topics=(TopicMetadata(topic="t", error=ErrorCode.NONE, is_internal=False, partitions=(led,)),),
    )


def cluster(*replies: MetadataReply) -> ClusterMetadata:
    """A client's view after these."""
    view = ClusterMetadata(bootstrap=(("h", 1),))
    for reply in replies:
        view.learn(reply, from_node=3)
    return view


def test_who_was_cut_off_is_not_believed() -> None:
    view = cluster(told(1, 1), told(2, 0))
    assert view.leader(HERE) == 1
    assert not view.is_stale, "the better answer is there already"


def test_without_a_better_answer_another_node_is_asked() -> None:
    view = cluster(told(1, 1))
    view.forget_leader(HERE)
    asked = view.any_node()
    view.learn(told(2, 0), from_node=2)
    assert view.leader(HERE) is None
    assert view.is_stale
    assert view.any_node() != asked


def test_the_same_leader_is_believed_again() -> None:
    view = cluster(told(1, 1))
    view.forget_leader(HERE)
    view.learn(told(1, 1), from_node=3)
    assert view.leader(HERE) == 1


def test_a_copy_remembers_epochs() -> None:
    view = fork(cluster(told(1, 1)))
    view.learn(told(2, 0), from_node=2)
    assert view.leader(HERE) == 1
    assert fingerprint(view) != fingerprint(cluster(told(1, 0)))


def test_a_topic_that_is_gone_leaves_no_leader_and_others_keep_theirs() -> None:
    led = tuple(PartitionMetadata(partition=number, leader_id=1, leader_epoch=1) for number in range(3))
    other = TopicMetadata(topic="u", error=ErrorCode.NONE, is_internal=False, partitions=led)
    view = cluster(told(1, 1), attrs.evolve(told(1, 1), topics=(other,)))
    gone = attrs.evolve(other, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, partitions=())
    view.learn(attrs.evolve(told(1, 1), topics=(gone,)), from_node=3)
    assert view.leaders == {HERE: 1}
