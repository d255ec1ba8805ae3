"""Groups of the consumer protocol under random sequences of joins, departures, timeouts and growing topics,
and under every short sequence of heartbeats of two members.

Rule: a partition never has two owners, neither in the coordinator's books nor among the members; in the end
each partition has one; and the records of a group are the group. Each planted mistake breaks one of these.
"""

from __future__ import annotations

from collections import Counter
from copy import copy
from enum import Enum
from itertools import product
from random import Random
from typing import Final, cast

import attrs
import pytest

from fencepost.broker.check_tables import first_refusal
from fencepost.broker.contract import NOBODY, Received, Refused
from fencepost.broker.groups import consumer_heartbeat
from fencepost.broker.groups.assignors import ASSIGNORS
from fencepost.broker.groups.consumer_group import ConsumerGroup, apply_records, changes
from fencepost.broker.groups.consumer_heartbeat import Beat, ConsumerTurn
from fencepost.broker.groups.reconciliation import RECONCILIATION, ReconcileInput
from fencepost.broker.settings import NodeSettings
from fencepost.protocol.batches import read_header
from fencepost.protocol.consumer_group_log import (
    AWAY_EPOCH,
    JOINING_EPOCH,
    LEFT_EPOCH,
    AssignmentState,
    TopicIdPartition,
    by_topic_id,
)
from fencepost.protocol.messages import AssignedTopic, ConsumerGroupHeartbeat
from fencepost.protocol.offsets_log import GroupBatch, group_batch, read_group_batch
from fencepost.protocol.terms import GroupState
from tests.simulator.planting import Edit, Mutation, planted

SETTINGS: Final = NodeSettings(
    group_consumer_session_timeout_ms=1,
    group_consumer_heartbeat_interval_ms=1,
    group_consumer_assignment_interval_ms=0,
    group_consumer_max_size=5,
)
TOPICS: Final = ("a", "b", "c")
SEEDS: Final = 80
STEPS: Final = 40
ROUNDS: Final = 12  # of heartbeats, until a group that nobody disturbs must be settled


@attrs.frozen
class KnownTopic:
    """A topic and its partitions."""

    topic_id: bytes
    leaders: dict[int, None]


@attrs.define
class Cluster:
    """The topics that there are."""

    topics: dict[str, KnownTopic] = attrs.Factory(dict[str, KnownTopic])
    names: dict[bytes, str] = attrs.Factory(dict[bytes, str])
    newest_topic_number: int = 0

    def grow(self, name: str, count: int) -> None:
        found = self.topics.get(name)
        if found is None:
            self.newest_topic_number += 1
            found = self.topics[name] = KnownTopic(self.newest_topic_number.to_bytes(16, "big"), {})
            self.names[found.topic_id] = name
        found.leaders.update(dict.fromkeys(range(len(found.leaders) + count)))

    def delete(self, name: str) -> None:
        found = self.topics.pop(name, None)
        if found is not None:
            del self.names[found.topic_id]

    def partitions(self, names: frozenset[str]) -> set[TopicIdPartition]:
        topics = [topic for name, topic in self.topics.items() if name in names]
        return {TopicIdPartition(topic.topic_id, number) for topic in topics for number in topic.leaders}


@attrs.define
class Client:
    """A consumer: who it is, what it believes to own, and what it has been asked to revoke."""

    member_id: str
    topics: frozenset[str]
    instance_id: str | None
    epoch: int = JOINING_EPOCH
    owned: set[TopicIdPartition] = attrs.Factory(set[TopicIdPartition])
    wanted: set[TopicIdPartition] = attrs.Factory(set[TopicIdPartition])
    sent: ConsumerGroupHeartbeat | None = None

    def reset(self) -> None:
        """It was refused: it gives up everything before it joins again."""
        self.epoch, self.owned, self.wanted = JOINING_EPOCH, set(), set()


class World:
    """A coordinator with one group, and its clients."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.assignor = self.random.choice(sorted(ASSIGNORS))
        self.is_mixed = self.random.random() < 0.5  # members subscribe to different topics
        self.cluster = Cluster()
        self.books: dict[str, ConsumerGroup] = {}  # as a new coordinator reads them
        self.group: ConsumerGroup | None = None
        self.clients: list[Client] = []
        self.named = 0
        self.now = 1

    # --- the coordinator

    def turn(self) -> ConsumerTurn:
        group = self.group or ConsumerGroup(group_id="g")
        return ConsumerTurn(group, now=self.now, topics=self.cluster, settings=SETTINGS)

    def write(self, turn: ConsumerTurn) -> None:
        entries = changes(self.group, turn.group)
        if not entries:
            assert turn.group == self.group, "what is not written has not changed"
            return
        batch = group_batch(GroupBatch(consumers=entries), timestamp=self.now)
        apply_records(self.books, read_group_batch(batch, read_header(batch)).consumers)
        self.group = turn.group
        assert self.books["g"] == turn.group, "the records of a group are the group"
        held = [part for current in turn.group.assignments.values() for part in current.assigned]
        held += [part for current in turn.group.assignments.values() for part in current.revoking]
        assert len(held) == len(set(held)), "a partition has two owners in the books"

    def expire(self, client: Client) -> None:
        """The session of a member ends; it learns of that at its next heartbeat, and works no more."""
        client.owned = set()
        turn = self.turn()
        if client.member_id in turn.group.subscriptions:
            consumer_heartbeat.remove(turn, {client.member_id})
            self.write(turn)

    # --- clients

    def beat(self, client: Client, *, is_lost: bool = False, is_silent: bool = False) -> None:
        """One heartbeat; the answer may be lost. A silent one says nothing about what the client owns: it has
        not begun to revoke what it was asked to.
        """
        if not is_silent:
            client.owned &= client.wanted
        client.sent = self.heartbeat_of(client)
        if is_silent:
            client.sent = attrs.evolve(client.sent, topic_partitions=None)
        assert first_refusal(consumer_heartbeat.HEARTBEAT_CHECKS, client.sent) is None
        found = self.take(client.sent)
        if found is None:
            client.reset()
            return
        if is_lost:
            return
        client.epoch, client.wanted = found.after.epoch, set(found.after.assigned)
        # What it must revoke it still owns; what is new it owns from now on.
        client.owned |= client.wanted
        owned = [part for each in self.clients for part in each.owned]
        assert len(owned) == len(set(owned)), "two members believe that they own a partition"

    def repeat(self, client: Client) -> None:
        """The heartbeat before arrives once more, late, and nobody hears the answer."""
        if client.sent is not None:
            self.take(client.sent)

    def take(self, request: ConsumerGroupHeartbeat) -> Beat | None:
        """The coordinator takes a heartbeat; None when it refuses."""
        turn = self.turn()
        arrived = Received(request, to=NOBODY, client_id="client", client_host="/127.0.0.1")
        found = consumer_heartbeat.heartbeat(turn, request, request.member_id, arrived)
        if isinstance(found, Refused):
            return None
        self.write(turn)
        return found

    def heartbeat_of(self, client: Client) -> ConsumerGroupHeartbeat:
        joins = client.epoch == JOINING_EPOCH
        return ConsumerGroupHeartbeat(
            group_id="g",
            member_id=client.member_id,
            member_epoch=client.epoch,
            instance_id=client.instance_id,
            rack_id=None,
            rebalance_timeout_ms=1_000,
            subscribed_topic_names=tuple(client.topics),
            subscribed_topic_regex=None,
            server_assignor=self.assignor,
            topic_partitions=() if joins else assigned_topics(client.owned),
        )

    def leave(self, client: Client, epoch: int) -> None:
        turn = self.turn()
        request = ConsumerGroupHeartbeat(
            group_id="g", member_id=client.member_id, member_epoch=epoch, instance_id=client.instance_id,
            rack_id=None, rebalance_timeout_ms=-1, subscribed_topic_names=None, subscribed_topic_regex=None,
            server_assignor=None, topic_partitions=None,
        )  # fmt: skip
        client.owned = set()
        if consumer_heartbeat.leave(turn, request) is None:
            self.write(turn)

    # --- what may happen

    def step(self) -> None:
        random = self.random
        self.now += 1
        happens = random.random()
        if happens < 0.15 and len(self.clients) < SETTINGS.group_consumer_max_size:
            self.named += 1
            self.clients.append(Client(f"m{self.named}", self.subscription(), None))
        elif happens < 0.25:
            self.cluster.grow(random.choice(TOPICS), random.randint(1, 3))
        elif happens < 0.28:
            self.cluster.delete(random.choice(TOPICS))
        elif self.clients:
            self.step_of(random.choice(self.clients), random.random())

    def subscription(self) -> frozenset[str]:
        if not self.is_mixed:
            return frozenset(TOPICS)
        return frozenset(self.random.sample(TOPICS, self.random.randint(1, len(TOPICS))))

    def step_of(self, client: Client, happens: float) -> None:
        if happens < 0.07:
            self.expire(client)
        elif happens < 0.12:
            self.leave(client, LEFT_EPOCH)
            self.clients.remove(client)
        elif happens < 0.17:
            self.return_later(client)
        elif happens < 0.22:
            client.topics = self.subscription()
        else:
            self.beat(client, is_lost=happens < 0.32)

    def return_later(self, client: Client) -> None:
        """A static member goes away, and its successor joins under another member id."""
        if client.instance_id is None or client.epoch == JOINING_EPOCH:
            client.instance_id = client.instance_id or f"i{client.member_id}"
            return
        self.leave(client, AWAY_EPOCH)
        self.named += 1
        client.member_id = f"m{self.named}"
        client.reset()

    def settle(self) -> None:
        """Nothing happens any more but heartbeats, and the sessions of members without a client end."""
        for client in self.clients:
            if client.epoch == JOINING_EPOCH:  # also of one whose join was not answered: it may be refused
                self.expire(client)
        for ghost in self.turn().group.subscriptions.keys() - {client.member_id for client in self.clients}:
            self.expire(Client(ghost, frozenset(), None))
        for _ in range(ROUNDS):
            self.now += 1
            for client in self.clients:
                self.beat(client)
        if self.clients:
            self.check_settled(self.turn().group)

    def check_settled(self, group: ConsumerGroup) -> None:
        assert group.subscriptions.keys() == {client.member_id for client in self.clients}
        assert group.state is GroupState.STABLE
        wanted = frozenset[str]().union(*(client.topics for client in self.clients))
        assert {part for client in self.clients for part in client.owned} == self.cluster.partitions(wanted)
        for client in self.clients:
            assert client.owned <= self.cluster.partitions(client.topics)
        if self.assignor == "uniform" and len({client.topics for client in self.clients}) == 1:
            counts = [len(client.owned) for client in self.clients]
            assert max(counts) - min(counts) <= 1, "the members are not balanced"


def assigned_topics(owned: set[TopicIdPartition]) -> tuple[AssignedTopic, ...]:
    return tuple(
        AssignedTopic(topic_id=topic_id, partitions=numbers)
        for topic_id, numbers in by_topic_id(owned).items()
    )


def run(seed: int) -> World:
    world = World(seed)
    for _ in range(STEPS):
        world.step()
    world.settle()
    return world


def run_all() -> list[World]:
    return [run(seed) for seed in range(SEEDS)]


def test_a_partition_never_has_two_owners_and_in_the_end_each_has_one() -> None:
    worlds = run_all()
    # Vacuous runs would prove nothing.
    groups = [world.group for world in worlds if world.group is not None]
    assert sum(len(group.subscriptions) > 1 for group in groups) > SEEDS // 2
    assert max(group.epoch for group in groups) > STEPS // 3


# --- every order of heartbeats ------------------------------------------------------------------------------

DEPTH: Final = 5  # steps after the first join
_RECONCILIATION: Final = "broker.groups.reconciliation"


class Act(Enum):
    """What can come next for one of two clients."""

    BEAT = "beat"
    LOSE_ANSWER = "lose answer"
    SILENT = "silent"
    REPEAT = "repeat"
    EXPIRE = "expire"
    LEAVE = "leave"


def small_world(assignor: str) -> World:
    """A client that owns both partitions of a topic, and one that has not joined yet."""
    world = World(0)
    world.assignor = assignor
    world.cluster.grow("a", 2)
    world.clients = [Client(name, frozenset({"a"}), None) for name in ("m1", "m2")]
    world.beat(world.clients[0])
    return world


def after(world: World, at: int, act: Act) -> World:
    """The world after a step of one of its clients."""
    copied = copy_of(world)
    client = copied.clients[at]
    match act:
        case Act.BEAT | Act.LOSE_ANSWER:
            copied.beat(client, is_lost=act is Act.LOSE_ANSWER)
        case Act.SILENT if client.epoch != JOINING_EPOCH:
            copied.beat(client, is_silent=True)
        case Act.REPEAT if client.sent is not None and client.sent.member_epoch == client.epoch:
            copied.repeat(client)
        case Act.EXPIRE:
            copied.expire(client)
        case Act.LEAVE:
            copied.leave(client, LEFT_EPOCH)
            client.reset()
        case _:
            pass  # it cannot come now
    return copied


def copy_of(world: World) -> World:
    """A world that changes on its own; groups are values."""
    copied = copy(world)
    copied.books = dict(world.books)
    copied.clients = [
        attrs.evolve(client, owned=set(client.owned), wanted=set(client.wanted)) for client in world.clients
    ]
    return copied


def visit_all(depth: int) -> tuple[int, Counter[Act]]:
    """Visit each state within this many steps, breadth first, and settle those of the last level. Returns
    their number, and how many times each act led to a new one.
    """
    reached = Counter[Act]()
    count = 0
    for assignor in sorted(ASSIGNORS):
        level = [small_world(assignor)]
        seen = {repr((level[0].group, level[0].clients))}
        for _ in range(depth):
            following: list[World] = []
            for world in level:
                for at, act in product(range(len(world.clients)), Act):
                    found = after(world, at, act)
                    state = repr((found.group, found.clients))
                    if state not in seen:
                        seen.add(state)
                        following.append(found)
                        reached[act] += 1
            level = following
        for world in level:
            world.settle()
        count += len(seen)
    return count, reached


def test_no_order_of_heartbeats_gives_a_partition_two_owners() -> None:
    count, reached = visit_all(DEPTH)
    # A search without one of the acts would prove nothing about it.
    assert count > 2_000
    assert all(reached[act] for act in Act)


def test_silence_that_counts_as_a_revocation_is_found() -> None:
    """The heartbeats of the random worlds always say what their clients own."""
    silence = Mutation(
        "a member that says nothing has revoked",
        breaks="Its partitions go on to others while it still reads them.",
        edits=(
            Edit(
                f"{_RECONCILIATION}:Reconciliation.still_owns",
                {"self.reported is None or not": "self.reported is not None and not"},
            ),
        ),
    )
    with planted(silence):
        run_all()
        with pytest.raises(AssertionError, match="two members believe that they own a partition"):
            visit_all(DEPTH)


def test_a_late_heartbeat_of_the_epoch_before_counts_as_a_retry() -> None:
    """Why the search repeats heartbeats of the present epoch only. The coordinator takes one of the epoch
    before for the retry of a member that lost the answer (throwIfConsumerGroupMemberEpochIsInvalid). A late
    one does not name the partitions that the member got since, so these count as revoked.
    """
    world = small_world("range")
    first, second = world.clients
    world.beat(second)
    world.leave(first, LEFT_EPOCH)
    first.reset()
    world.beat(second)
    world.beat(first)
    world.repeat(second)
    with pytest.raises(AssertionError, match="two members believe that they own a partition"):
        world.settle()


CELLS: Final = [(state, found) for state, row in RECONCILIATION.items() for found in row]


@pytest.mark.parametrize(("state", "found"), CELLS, ids=str)
def test_every_cell_of_the_table_is_read(
    state: AssignmentState, found: ReconcileInput, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(cast(dict[ReconcileInput, AssignmentState], RECONCILIATION[state]), found)
    with pytest.raises(KeyError):
        run_all()


FAULTS: Final = (
    Mutation(
        "a partition counts as free while another member has it",
        breaks="Two members own it.",
        edits=(Edit(f"{_RECONCILIATION}:_towards_target", {"elsewhere = missing &": "elsewhere = set() &"}),),
    ),
    Mutation(
        "a member counts as one that has revoked at once",
        breaks="Its partitions go on to others while it still reads them.",
        edits=(
            Edit(f"{_RECONCILIATION}:Reconciliation.still_owns", {"return bool(revoked)": "return False"}),
        ),
    ),
    Mutation(
        "what is still to be revoked counts as free",
        breaks="Two members own it.",
        edits=(
            Edit(
                "broker.groups.consumer_group:ConsumerGroup.owned_by_others",
                {"owned.update(current.assigned, current.revoking)": "owned.update(current.assigned)"},
            ),
        ),
    ),
    Mutation(
        "a departure does not raise the group epoch",
        breaks="Nobody gets the partitions of a member that has left.",
        edits=(
            Edit(
                "broker.groups.consumer_heartbeat:remove",
                {"_raise_epoch(turn, is_due=True)": "_raise_epoch(turn, is_due=False)"},
            ),
        ),
    ),
    Mutation(
        "new partitions are not noticed",
        breaks="Nobody gets them.",
        edits=(
            Edit(
                "broker.groups.consumer_group:metadata_hash",
                {"len(topic.leaders).to_bytes": "min(len(topic.leaders), 1).to_bytes"},
            ),
        ),
    ),
    Mutation(
        "the last partition of what is left over is dealt to nobody",
        breaks="It is assigned to nobody.",
        edits=(
            Edit(
                "broker.groups.assignors:_uniform_alike",
                {"if part not in taken)": "if part not in taken and part.partition < 5)"},
            ),
        ),
    ),
    Mutation(
        "what a member must revoke is not written",
        breaks="A new coordinator gives it to others at once.",
        edits=(
            Edit(
                "protocol.consumer_group_log:consumer_value",
                {"_put_partition_epochs(out, record.revoking)": "_put_partition_epochs(out, {})"},
            ),
        ),
    ),
    Mutation(
        "the departure of a member is not written",
        breaks="A new coordinator believes that it still owns its partitions.",
        edits=(
            Edit(
                "broker.groups.consumer_group:changes",
                {"for kind in reversed(_WRITTEN):": "for kind in reversed(_WRITTEN[:-1]):"},
            ),
        ),
    ),
)  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_planted_mistakes_are_found(fault: Mutation) -> None:
    with planted(fault), pytest.raises(AssertionError):
        run_all()
