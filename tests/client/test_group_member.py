"""Consumers that share a group, from the first subscribe() on, against a real coordinator in virtual time."""

from __future__ import annotations

import attrs
import pytest

from fencepost.client.assignors import ASSIGNORS
from fencepost.client.consumer import ConsumerMachine
from fencepost.client.consumer_problems import RETRY_WARNING_MS
from fencepost.client.effects import SendRequest
from fencepost.client.errors import WrongState
from fencepost.client.member_states import MEMBER_STATES, MemberInput, MemberState
from fencepost.client.settings import ConsumerSettings
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.fork import fingerprint, fork
from fencepost.protocol.messages import (
    DeleteTopics,
    DeleteTopicsReply,
    FindCoordinator,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    SyncGroup,
    TxnOffsetCommitReply,
)
from fencepost.protocol.terms import GroupState, TopicPartition
from tests.broker.group_story import join_request, protocols
from tests.broker.requests import body_of, offset_request
from tests.broker.story import SETTINGS
from tests.client.group_world import HEARTBEAT_MS, MAX_POLL_MS, SESSION_MS, Application, GroupWorld

SOON_MS = 3 * HEARTBEAT_MS  # every member has heard by then that the group rebalances


def shared(strategy: str = "range", count: int = 2) -> tuple[GroupWorld, list[Application]]:
    """So many members of one group that reads t, settled."""
    world = GroupWorld()
    apps: list[Application] = []
    for name in "abc"[:count]:
        apps.append(world.app(name, "t", strategy=strategy))
        world.wait(SOON_MS)
    for app in apps:
        app.heard()
    world.check_stable(*apps)
    return world, apps


def test_one_member_reads_everything() -> None:
    world = GroupWorld()
    a = world.app("a", "t")
    world.wait(1_000)
    assert (a.assigned, a.heard()) == ("t0 t1 t2 t3", ["assigned t0 t1 t2 t3"])
    world.check_stable(a)
    world.produce("t3", "x", "y")
    world.wait(1_000)
    assert a.read == ["x", "y"]


def test_members_that_come_together_share() -> None:
    world = GroupWorld(settings=attrs.evolve(SETTINGS, group_initial_rebalance_delay_ms=3_000))
    a, b = world.app("a", "t", "u"), world.app("b", "t")
    world.wait(10_000)
    assert (a.heard(), b.heard()) == (["assigned t0 t1 u0 u1"], ["assigned t2 t3"])
    world.check_stable(a, b)


def test_a_topic_of_the_subscription_that_does_not_exist_is_warned_of_once() -> None:
    world = GroupWorld()
    a, b = world.app("a", "t", "late"), world.app("b", "t", "late")
    world.wait(60_000)
    for app in (a, b):
        (warned,) = app.warned
        assert warned.startswith(
            "group 'readers' is subscribed to a topic that it cannot read yet: topic 'late' "
        )
        assert "UNKNOWN_TOPIC_OR_PARTITION" in warned, warned
        assert warned.endswith("create this one with Admin.create_topic()")
    assert (a.assigned, b.assigned) == ("t0 t1", "t2 t3"), "the others are read"
    world.story.create("late", 2)
    world.wait(SOON_MS)
    assert (a.assigned, b.assigned) == ("late0 t0 t1", "late1 t2 t3")
    world.check_stable(a, b)


def test_a_topic_of_the_subscription_that_is_deleted_is_warned_of_again() -> None:
    world = GroupWorld()
    a = world.app("a", "t", "late")
    world.wait(SOON_MS)
    for _ in range(2):
        world.story.create("late")
        world.wait(SOON_MS)
        assert a.assigned == "late0 t0 t1 t2 t3"
        a.warned.clear()
        deleted = body_of(world.story.ask(DeleteTopics(topics=("late",))), DeleteTopicsReply)
        assert deleted.topics[0].error is ErrorCode.NONE
        world.wait(60_000)
        assert len(a.warned) == 1, a.warned


def test_a_topic_that_is_created_within_a_second_is_not_warned_of() -> None:
    world = GroupWorld()
    a = world.app("a", "late")
    world.wait(500)
    world.story.create("late")
    world.wait(60_000)
    assert (a.assigned, a.warned) == ("late0", [])


def test_a_topic_that_no_cluster_can_have_is_raised_by_poll() -> None:
    """As in Kafka; and once, because the other topics of the subscription can be read."""
    world = GroupWorld()
    a = world.app("a", "t", "bad name")
    world.wait(SOON_MS)
    assert "UnknownTopic" in a.heard()
    a.is_polling = True
    world.wait(60_000)
    assert a.assigned == "t0 t1 t2 t3"
    assert (a.warned, "UnknownTopic" in a.heard()) == ([], False)
    a.subscribe("t", "worse name")
    world.wait(SOON_MS)
    assert "UnknownTopic" in a.heard(), "the new one"


def test_a_topic_whose_error_becomes_one_that_stays_is_raised_after_the_warning() -> None:
    world = GroupWorld()
    a = world.app("a", "t", "late")
    world.wait(SOON_MS)
    assert len(a.warned) == 1
    assert "AuthorizationFailed" not in a.heard()
    # Until the next metadata: the node of this world has no ACLs.
    a.machine.cluster.topic_errors["late"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    world.wait(1)
    assert "AuthorizationFailed" in a.heard()


def test_an_eager_member_gives_up_everything_before_it_joins_again() -> None:
    world, (a, _) = shared(count=2)
    c = world.app("c", "t")
    world.wait(SOON_MS)
    assert a.heard() == ["revoked t0 t1", "assigned t0 t1"]
    assert c.heard() == ["assigned t3"]


def test_a_cooperative_member_gives_up_only_what_moves() -> None:
    world, (a,) = shared("cooperative-sticky", count=1)
    world.produce("t0", "before")
    b = world.app("b", "t", strategy="cooperative-sticky")
    generation = a.generation
    world.wait(SOON_MS)
    # Two generations: t2 and t3 are nobody's in the first, and b's in the second (KIP-429).
    assert a.heard() == ["revoked t2 t3", "assigned", "assigned"]
    assert b.heard() == ["assigned", "assigned t2 t3"]
    assert a.generation == generation + 2
    world.check_stable(a, b)
    assert a.read == ["before"]
    assert a.machine.positions[TopicPartition("t", 0)] == 1, "what it keeps goes on where it was"


def test_a_heartbeat_refused_during_a_callback_does_not_cancel_the_rebalance() -> None:
    world, (a,) = shared("cooperative-sticky", count=1)

    def refuse_a_heartbeat(told: str) -> None:
        if told.startswith("revoked"):
            world.story.now += HEARTBEAT_MS
            sent = [each for each in a.machine.wake(world.now) if isinstance(each, SendRequest)]
            (beat,) = [each for each in sent if isinstance(each.request, Heartbeat)]
            a.perform(a.machine.on_reply(beat.token, ErrorCode.INVALID_GROUP_ID, None, world.now))
            a.is_polling = False

    a.in_callback = refuse_a_heartbeat
    b = world.app("b", "t", strategy="cooperative-sticky")
    world.wait(SOON_MS)
    a.poll()
    assert a.heard() == ["revoked t2 t3", "assigned", "RequestFailed"]
    a.is_polling = True
    world.wait(SOON_MS)
    assert b.assigned == "t2 t3"
    world.check_stable(a, b)


def test_a_member_that_is_expelled_while_it_revokes_has_lost_the_rest() -> None:
    """Others may have read what it kept: it may not go on where it was."""
    world = GroupWorld()
    a = world.app("a", "t", "u", strategy="cooperative-sticky")
    world.wait(SOON_MS)
    world.produce("t0", "x")
    world.settle()
    a.heard()

    def take_too_long(told: str) -> None:
        if told.startswith("revoked"):
            world.story.now += MAX_POLL_MS
            a.perform(a.machine.wake(world.now))

    a.in_callback = take_too_long
    a.subscribe("t")
    world.wait(SOON_MS)
    assert a.heard() == ["revoked u0 u1", "lost t0 t1 t2 t3", "assigned t0 t1 t2 t3"]
    assert a.read == ["x", "x"], "nothing was committed"
    world.check_stable(a)


def test_a_member_that_leaves_makes_room() -> None:
    world, (a, b) = shared()
    a.leave()
    assert a.heard() == ["revoked t0 t1"]
    assert a.machine.has_left
    world.wait(SOON_MS)
    assert b.heard() == ["revoked t2 t3", "assigned t0 t1 t2 t3"]
    world.check_stable(b)


def test_a_member_that_dies_is_expelled_after_its_session() -> None:
    world, (a, b) = shared("cooperative-sticky")
    world.kill(a)
    world.wait(SESSION_MS - HEARTBEAT_MS)
    assert b.heard() == []
    world.wait(SOON_MS)
    assert b.heard() == ["assigned t0 t1"]
    world.check_stable(b)


def test_heartbeats_keep_a_member_that_works_on_a_batch() -> None:
    world, (a, b) = shared()
    a.is_polling = False
    beats = a.sent["Heartbeat"]
    world.wait(2 * SESSION_MS)
    assert a.sent["Heartbeat"] - beats == 2 * SESSION_MS / HEARTBEAT_MS
    assert b.heard() == []
    world.check_stable(a, b)


@pytest.mark.parametrize("strategy", ASSIGNORS)
def test_a_member_that_polls_too_late_leaves_the_group(strategy: str) -> None:
    world, (a, b) = shared(strategy)
    a.is_polling = False
    world.wait(MAX_POLL_MS + SOON_MS)
    assert b.assigned == "t0 t1 t2 t3"
    assert a.commit({"t0": 1}) == "CommitFailed"
    assert a.heard() == []
    a.is_polling = True
    world.wait(SOON_MS)
    assert a.heard()[0] == "lost t0 t1"
    world.check_stable(a, b)


def test_a_member_that_leaves_twice_takes_both_replies() -> None:
    """It polls too late, joins again and leaves, while its first LeaveGroup is still being retried."""
    world, (a, b) = shared()
    world.refuses[LeaveGroup] = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    a.is_polling = False
    world.wait(MAX_POLL_MS)
    a.is_polling = True
    world.wait(1)
    a.leave()
    assert not a.machine.has_left
    world.wait(MAX_POLL_MS)
    assert (a.machine.has_left, a.answers) == (True, {}), "an answer that nobody takes stays in memory"
    world.check_stable(b)


def test_a_frozen_member_learns_that_it_was_replaced() -> None:
    """The zombie of KIP-447: it read t0, froze for longer than its session, and commits what it read."""
    world, (a, b) = shared()
    before = a.machine.group_metadata()
    a.is_frozen = True
    world.wait(SESSION_MS + SOON_MS)
    assert b.assigned == "t0 t1 t2 t3"
    a.is_frozen, a.is_polling = False, False
    assert a.commit({"t0": 1}) == "CommitFailed"
    assert a.machine.group_metadata() == before, "a transaction that uses it is refused, too"
    a.is_polling = True
    world.wait(SOON_MS)
    assert a.heard()[0] == "lost t0 t1"
    world.check_stable(a, b)


@pytest.mark.parametrize("fencing", [True, False])
def test_offsets_in_a_transaction_are_refused_for_a_member_that_was_replaced(*, fencing: bool) -> None:
    world, (a, b) = shared()
    old = a.machine.group_metadata()
    world.kill(a)
    world.wait(SESSION_MS + SOON_MS)
    who = world.story.identity("pay")
    group = old if fencing else attrs.evolve(old, member_id="", generation_id=-1)
    request = attrs.evolve(
        offset_request(who, "readers", {TopicPartition("t", 0): 5}, "pay"),
        member_id=group.member_id,
        generation_id=group.generation_id,
    )
    (part,) = body_of(world.story.ask(request), TxnOffsetCommitReply).partitions
    assert part.error is (ErrorCode.UNKNOWN_MEMBER_ID if fencing else ErrorCode.NONE)
    world.check_stable(b)


def test_commits_are_those_of_a_member() -> None:
    _, (a, _) = shared()
    assert a.commit({"t0": 3}) == "NONE"
    assert a.machine.commit_request({}).member_id == a.machine.group_metadata().member_id


def test_a_commit_between_two_generations_waits_for_the_next_poll() -> None:
    world, (a, b) = shared(count=2)
    b.is_polling = False  # it does not join again, so the group waits for it
    world.app("c", "t")
    world.wait(SOON_MS)
    assert a.state is MemberState.JOINING
    assert a.commit({"t0": 1}) == "RebalanceInProgress"
    assert b.commit({"t2": 1}) == "NONE", "the old generation holds until all have joined"


def test_what_was_read_can_be_committed_while_partitions_are_revoked() -> None:
    world, (a,) = shared(count=1)
    world.produce("t3", "x")
    world.wait(10)
    said: list[str] = []

    def commit_in_time(told: str) -> None:
        if told.startswith("revoked"):
            said.append(a.commit({"t3": 1}))

    a.in_callback = commit_in_time
    b = world.app("b", "t")
    world.wait(SOON_MS)
    assert said == ["NONE"]
    assert (a.read, b.read) == (["x"], [])
    assert b.machine.positions[TopicPartition("t", 3)] == 1


def test_a_static_member_restarts_without_a_rebalance() -> None:
    world = GroupWorld()
    a = world.app("a", "t", group_instance_id="1")
    world.wait(SOON_MS)
    b = world.app("b", "t", group_instance_id="2")
    world.wait(SOON_MS)
    generation = world.story.generation
    for app in (a, b):  # the leader, and one that is not
        app.heard()
        assigned = app.assigned
        app.leave()
        assert app.heard() == [f"revoked {assigned}"]
        heir = world.app(f"{app.name} again", "t", group_instance_id=app.machine.settings.group_instance_id)
        world.wait(SESSION_MS + SOON_MS)
        assert heir.heard() == [f"assigned {assigned}"]
    assert world.story.generation == generation
    # The leader is another member id now, and still the one that watches for new partitions.
    world.check_stable(*world.apps[2:])


@pytest.mark.parametrize("is_leader", [True, False])
def test_a_static_member_that_restarts_before_it_gives_partitions_up(*, is_leader: bool) -> None:
    """Its next process gets the smaller share without a rebalance, and the rest would stay with nobody."""
    world = GroupWorld()
    others = [] if is_leader else [world.app("leader", "u", strategy="cooperative-sticky")]
    world.wait(SOON_MS)
    a = world.app("a", "t", strategy="cooperative-sticky", group_instance_id="1")
    world.wait(SOON_MS)
    a.is_polling = False
    b = world.app("b", "t", strategy="cooperative-sticky")
    world.wait(HEARTBEAT_MS)
    a.poll()
    world.wait(HEARTBEAT_MS)
    assert (a.state, a.assigned, b.assigned) == (MemberState.SYNCED, "t0 t1 t2 t3", "")
    world.kill(a)
    heir = world.app("heir", "t", strategy="cooperative-sticky", group_instance_id="1")
    world.wait(HEARTBEAT_MS)
    assert (heir.assigned, b.assigned) == ("t0 t1", "")
    world.wait(MAX_POLL_MS + SOON_MS)
    assert b.assigned, "the leader has begun another rebalance"
    world.check_stable(heir, b, *others)


def test_two_processes_with_one_instance_id() -> None:
    world = GroupWorld()
    a = world.app("a", "t", group_instance_id="1")
    world.wait(SOON_MS)
    heir = world.app("heir", "t", group_instance_id="1")
    world.wait(SOON_MS)
    assert a.heard() == ["assigned t0 t1 t2 t3", "FencedInstanceId"]
    assert a.commit({"t0": 1}) == "FencedInstanceId"
    a.is_polling = True
    world.wait(SOON_MS)
    assert a.heard() == ["FencedInstanceId"], "each poll says so, and joins nothing"
    a.leave()
    assert a.heard() == ["lost t0 t1 t2 t3"]
    world.check_stable(heir)


def test_a_commit_that_learns_of_the_other_process_ends_the_polls_too() -> None:
    world = GroupWorld()
    a = world.app("a", "t", group_instance_id="1", heartbeat_interval_ms=SESSION_MS - 1)
    world.wait(SOON_MS)
    heir = world.app("heir", "t", group_instance_id="1")
    world.wait(SOON_MS)
    assert a.heard() == ["assigned t0 t1 t2 t3"]
    assert a.commit({"t0": 1}) == "FencedInstanceId"
    world.wait(SOON_MS)
    assert a.heard() == ["FencedInstanceId"]
    world.check_stable(heir)


@pytest.mark.parametrize("kind", [FindCoordinator, JoinGroup, SyncGroup, Heartbeat])
def test_a_group_whose_coordinator_refuses_its_requests_is_warned_of_once(kind: type) -> None:
    world = GroupWorld()
    a = world.app("a", "t")
    if kind is Heartbeat:
        world.wait(SOON_MS)
    world.refuses[kind] = ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.wait(RETRY_WARNING_MS - HEARTBEAT_MS)
    assert a.warned == []
    world.wait(10 * RETRY_WARNING_MS)
    (warned,) = a.warned
    assert warned == (
        "cannot take part in group 'readers': no coordinator is currently available "
        "(COORDINATOR_NOT_AVAILABLE); the consumer keeps trying"
    )
    world.refuses.clear()
    world.wait(SESSION_MS)
    world.check_stable(a)


def test_a_group_that_waits_for_a_member_is_not_warned_of() -> None:
    """Not even if the first attempt went to a node that is no coordinator."""
    world, (a, b) = shared()
    b.is_polling = False
    world.refuses[JoinGroup] = ErrorCode.NOT_COORDINATOR
    a.subscribe("t", "u")
    world.wait(HEARTBEAT_MS)
    world.refuses.clear()
    world.wait(MAX_POLL_MS - SOON_MS)
    assert (a.state, a.warned) == (MemberState.JOINING, [])


def test_the_coordinator_restarts_and_the_group_goes_on() -> None:
    world, (a, b) = shared()
    generation = world.story.generation
    world.crash()
    world.wait(SESSION_MS + SOON_MS)
    assert world.story.generation == generation
    assert (a.heard(), b.heard()) == ([], [])
    assert a.commit({"t0": 1}) == "NONE"
    world.check_stable(a, b)


def test_a_crash_in_the_middle_of_a_rebalance() -> None:
    world, (a, b) = shared()
    c = world.app("c", "t")
    a.is_polling = False
    world.wait(SOON_MS)
    assert world.story.state is GroupState.PREPARING_REBALANCE
    world.crash()
    a.is_polling = True
    world.wait(SESSION_MS + SOON_MS)
    world.check_stable(a, b, c)


def test_a_topic_that_is_made_later_is_shared_out() -> None:
    world = GroupWorld()
    a, b = world.app("a", "later", "t"), world.app("b", "later", "t")
    world.wait(SOON_MS)
    assert "later" not in a.assigned
    world.story.create("later", 2)
    world.wait(SOON_MS)
    assert {a.assigned, b.assigned} == {"later0 t0 t1", "later1 t2 t3"}
    world.check_stable(a, b)


def test_a_leader_looks_for_new_partitions_as_often_as_it_is_told() -> None:
    world = GroupWorld()
    a = world.app("a", "t", metadata_max_age_ms=5_000)
    world.wait(SOON_MS)
    asked = a.sent["Metadata"]
    world.wait(20_000)
    assert a.sent["Metadata"] - asked == 4


def test_a_subscription_can_change() -> None:
    world, (a, b) = shared("cooperative-sticky")
    a.subscribe("u")
    world.wait(SOON_MS)
    assert a.heard() == ["revoked t0 t1", "assigned u0 u1"]
    assert b.assigned == "t0 t1 t2 t3"
    a.subscribe("t", "u")
    world.wait(2 * SOON_MS)
    assert (a.assigned, b.assigned) == ("t3 u0 u1", "t0 t1 t2")
    world.check_stable(a, b)


def test_members_agree_on_an_assignor_that_all_have() -> None:
    world = GroupWorld()
    a = world.app("a", "t", partition_assignment_strategy=("range", "cooperative-sticky"))
    world.wait(SOON_MS)
    b = world.app("b", "t", strategy="cooperative-sticky")
    world.wait(2 * SOON_MS)
    assert world.story.group.protocol_name == "cooperative-sticky"
    world.check_stable(a, b)
    c = world.app("c", "t", strategy="range")
    world.wait(SOON_MS)
    assert c.heard() == ["RequestFailed"], "INCONSISTENT_GROUP_PROTOCOL"


def test_a_leader_that_cannot_read_a_subscription_says_so() -> None:
    world, (a,) = shared(count=1)
    stranger = join_request(instance="x", supports=protocols("range", said=b"\x00"))
    world.story.starts(stranger)
    world.wait(SOON_MS)
    assert a.heard() == ["revoked t0 t1 t2 t3", "RequestFailed"]


def test_what_subscribe_refuses() -> None:
    machine = ConsumerMachine("h:1", ConsumerSettings(group_id="g"))
    for nothing in ([], [""]):
        with pytest.raises(ValueError, match="topics must be at least one topic name"):
            machine.subscribe(nothing, 0)
    with pytest.raises(WrongState, match="has no group_id"):
        ConsumerMachine("h:1", ConsumerSettings()).subscribe(["t"], 0)
    machine.assign([TopicPartition("t", 0)])
    with pytest.raises(WrongState, match="partitions are assigned"):
        machine.subscribe(["t"], 0)
    machine.assign([])
    machine.subscribe(["t"], 0)
    with pytest.raises(WrongState, match="unsubscribe"):
        machine.assign([])


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"group_instance_id": "1"}, "needs a group_id"),
        ({"group_id": "g", "session_timeout_ms": 3_000}, "must be below session_timeout_ms"),
        ({"partition_assignment_strategy": ["sticky"]}, "must name range or cooperative-sticky, not"),
        ({"partition_assignment_strategy": []}, "must name range or cooperative-sticky, not"),
    ],
)
def test_settings_that_make_no_member(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        ConsumerSettings(**settings)  # pyright: ignore[reportArgumentType] the cases differ in their types


def test_every_state_can_be_left() -> None:
    for state, cells in MEMBER_STATES.items():
        if state is not MemberState.LEFT:
            assert cells[MemberInput.LEAVE] in (MemberState.LEAVING, MemberState.LEFT), state
            assert cells[MemberInput.POLL] is not None, state


def test_a_copy_goes_its_own_way() -> None:
    _, (a, _) = shared()
    twin = fork(a.machine)
    assert fingerprint(twin) == fingerprint(a.machine)
    twin.unsubscribe(a.world.now)
    assert fingerprint(twin) != fingerprint(a.machine)
    assert a.assigned == "t0 t1"
