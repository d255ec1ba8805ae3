"""A cluster, and a seed that picks what happens next: messages in any order, moves, cuts and restarts.

What was committed is there once, and at the end everybody agrees.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from fencepost.broker.contract import Reassign, Reply
from fencepost.broker.sync_policy import SyncPolicy
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import Request
from fencepost.protocol.terms import TopicPartition, TransactionState
from tests.broker.cluster import CONTROLLER, Cluster
from tests.broker.requests import (
    ABORT,
    COMMIT,
    ORDERS,
    OTHERS,
    Identity,
    end_request,
    identity_of,
    init_request,
    produce_request,
    produced,
)
from tests.broker.story import offsets_log_of, transaction_log_of

PAY = transaction_log_of("pay")
MOVABLE = (PAY, ORDERS, OTHERS, offsets_log_of("readers"))
SEEDS = range(60)
TRANSACTIONS = 6
TRIES_MAX = 400


class Run:
    """One producer that never gives up, and a seed that decides what else happens."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        policy = self.random.choice(list(SyncPolicy))
        self.cluster = Cluster(policy=policy, leaders={PAY: 2, ORDERS: 3, OTHERS: 1})
        self.marks: Counter[str] = Counter()
        self.faults_left = 12

    def go_on(self) -> None:
        """A few things happen, in an order that only the seed knows."""
        cluster = self.cluster
        for _ in range(self.random.randrange(1, 12)):
            choice = self.random.random()
            ready = [pair for pair, link in cluster.links.items() if link and pair not in cluster.cut]
            if choice < 0.04 and self.faults_left:
                self._fault()
            elif choice < 0.05:
                cluster.cut.clear()
            elif choice < 0.4 and ready:
                cluster.carry(*self.random.choice(ready))
            elif choice < 0.9:
                node_id = self.random.choice(list(cluster.hosts))
                host = cluster.hosts[node_id]
                host.tick(cluster.now)
                host.work(cluster.now)
                cluster.collect(node_id)
                for key in sorted(host.unsynced):
                    if self.random.random() < 0.5:
                        host.synced(key, cluster.directory.journal(key).sync())
            else:
                cluster.now += self.random.randrange(40)

    def _fault(self) -> None:
        self.faults_left -= 1
        cluster = self.cluster
        node_id = self.random.choice(list(cluster.hosts))
        kind = self.random.choice(("move", "move", "cut", "restart"))
        self.marks[kind] += 1
        if kind == "move":
            to = self.random.randrange(1, 4)
            cluster.hosts[CONTROLLER].offer(Reassign(partition=self.random.choice(MOVABLE), node_id=to))
        elif kind == "cut":
            cluster.cut_off(node_id)
        else:
            cluster.kill(node_id)
            cluster.start(node_id)

    def try_once(self, node_id: int, request: Request) -> Reply | None:
        """Ask a node; None when it died, or nobody can wait that long."""
        cluster = self.cluster
        asked = cluster.offer(node_id, request)
        host = cluster.hosts[node_id]
        for _ in range(60):
            self.go_on()
            if asked in cluster.replies:
                return cluster.replies.pop(asked)
            if cluster.hosts[node_id] is not host:
                return None
        return None

    def somebody(self, key: TopicPartition) -> int:
        """Most often the leader, sometimes one who led it once."""
        is_lost = self.random.random() < 0.2
        return self.random.randrange(1, 4) if is_lost else self.cluster.leader(key)

    def owner(self) -> Identity:
        for _ in range(TRIES_MAX):
            reply = self.try_once(self.somebody(PAY), init_request())
            if reply is not None and reply.error is ErrorCode.NONE:
                return identity_of(reply)
        raise AssertionError("nobody is granted an identity")

    def write(self, me: Identity, key: TopicPartition, value: str) -> bool:
        """Send one batch until somebody takes it; False when the transaction cannot go on."""
        for _ in range(TRIES_MAX):
            reply = self.try_once(self.somebody(key), produce_request(me, {key: value}))
            if reply is None:
                continue
            error = produced(reply)[key].error
            if error is ErrorCode.NONE:
                return True
            if not error.remedy.name.startswith("RE") and error is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self.marks[error.name] += 1
                return False
        raise AssertionError(f"nobody takes {value}")

    def end(self, me: Identity, *, commits: bool) -> Identity | None:
        for _ in range(TRIES_MAX):
            reply = self.try_once(self.somebody(PAY), end_request(me, COMMIT if commits else ABORT))
            if reply is not None and reply.error is ErrorCode.NONE:
                return identity_of(reply)
            if reply is not None and not reply.error.remedy.name.startswith("RE"):
                self.marks[reply.error.name] += 1
                return None
        raise AssertionError("nobody ends the transaction")


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_committed_is_there_once_whatever_happens_to_the_nodes(seed: int) -> None:
    run = Run(seed)
    committed: list[str] = []
    me = run.owner()
    for number in range(TRANSACTIONS):
        value = f"v{number}"
        is_whole = run.write(me, ORDERS, value) and run.write(me, OTHERS, value)
        commits = is_whole and run.random.random() < 0.7
        heir = run.end(me, commits=commits)
        if commits and heir is not None:
            committed.append(value)
        me = heir or run.owner()
    cluster = run.cluster
    cluster.heal()
    cluster.wait(3_000)
    cluster.check_leaders()
    assert cluster.records()[-1].state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
    expected = " ".join(committed)
    assert (cluster.visible(), cluster.visible(OTHERS)) == (expected, expected)


def test_the_seeds_meet_what_they_are_for() -> None:
    marks: Counter[str] = Counter()
    for seed in range(10):
        run = Run(seed)
        me = run.owner()
        run.write(me, ORDERS, "a")
        run.end(me, commits=True)
        marks += run.marks
    assert set(marks) >= {"move", "cut", "restart"}
