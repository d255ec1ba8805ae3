"""Several nodes: who leads what, how everybody hears of it, and transactions that span them."""

from __future__ import annotations

import pytest

from fencepost.broker.sync_policy import SyncPolicy
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import Metadata, MetadataReply
from fencepost.protocol.terms import TopicPartition, TransactionResult, TransactionState
from tests.broker.cluster import Cluster
from tests.broker.requests import ABORT, COMMIT, ORDERS, OTHERS, body_of, identity_of
from tests.broker.story import offsets_log_of, transaction_log_of

PAY = transaction_log_of("pay")
SPREAD = {PAY: 2, ORDERS: 3, OTHERS: 1, offsets_log_of("readers"): 3}


def test_nodes_register_and_share_what_there_is() -> None:
    cluster = Cluster()
    cluster.create("more", 7)
    cluster.check_leaders()
    answers = [body_of(cluster.ask(node_id, Metadata(topics=None)), MetadataReply) for node_id in (1, 2, 3)]
    assert answers[0] == answers[1] == answers[2]
    assert [(node.node_id, node.host, node.port) for node in answers[0].nodes] == [
        (1, "node", 1), (2, "node", 2), (3, "node", 3),
    ]  # fmt: skip
    leaders = [cluster.leader(TopicPartition("more", number)) for number in range(7)]
    assert {leaders.count(node_id) for node_id in (1, 2, 3)} == {2, 3}
    for name in ("a", "b", "c"):
        cluster.create(name)
    assert {cluster.leader(TopicPartition(name, 0)) for name in ("a", "b", "c")} == {1, 2, 3}


@pytest.mark.parametrize("policy", SyncPolicy)
@pytest.mark.parametrize("result", [COMMIT, ABORT])
def test_a_transaction_spans_nodes(policy: SyncPolicy, result: TransactionResult) -> None:
    cluster = Cluster(policy=policy, leaders=SPREAD)
    me = cluster.identity()
    assert cluster.produce(me, "a").error is ErrorCode.NONE
    assert cluster.produce(me, "b", key=OTHERS).error is ErrorCode.NONE
    assert cluster.visible() == cluster.visible(OTHERS) == ""
    heir = identity_of(cluster.end(me, result))
    cluster.wait(100)
    expected = {COMMIT: ("a", "b"), ABORT: ("", "")}[result]
    assert (cluster.visible(), cluster.visible(OTHERS)) == expected
    assert cluster.records()[-1].state in {TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}
    assert heir == me._replace(producer_epoch=me.producer_epoch + 1)
