"""Random conversations of members with their group: what always holds, whatever they say and whenever."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fencepost.broker.contract import Received, ReplyTo, Tick
from fencepost.broker.dispatch import step
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.fork import fingerprint, fork
from fencepost.protocol.messages import Heartbeat, JoinGroup, JoinGroupReply, SyncGroup
from fencepost.protocol.terms import GroupState
from tests.broker.group_story import (
    GROUP,
    REBALANCE_MS,
    SESSION_MS,
    GroupStory,
    join_request,
    protocols,
    sync_request,
)
from tests.broker.story import offsets_log_of

STABLE = GroupState.STABLE
members = st.integers(0, 5)
offsets_of_generation = st.sampled_from([0, 0, 0, 0, -1, 1])
wishes = st.sampled_from([("range",), ("range",), ("range", "sticky"), ("sticky", "range"), ("other",)])
timeouts = st.sampled_from([REBALANCE_MS, REBALANCE_MS, 2 * SESSION_MS])
instances = st.sampled_from([None, None, None, "i1", "i2"])
pauses = st.sampled_from([1, 50, REBALANCE_MS // 2, REBALANCE_MS, SESSION_MS // 2, SESSION_MS])


class Conversation(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.story = GroupStory()
        self.ids = ["stranger"]
        self.instances: dict[str, str | None] = {}
        self.generations = [0]

    def who(self, number: int) -> str:
        return self.ids[-1 - number % len(self.ids)]

    def hear(self) -> None:
        """Everybody remembers the id that they were given."""
        for reply in self.story.replies.values():
            if isinstance(reply.body, JoinGroupReply) and reply.body.member_id not in ("", *self.ids):
                self.ids.append(reply.body.member_id)
        self.story.replies.clear()

    @rule(instance=instances, wish=wishes, timeout=timeouts)
    def a_newcomer_joins(self, instance: str | None, wish: tuple[str, ...], timeout: int) -> None:
        self.story.starts(join_request(instance=instance, supports=protocols(*wish), rebalance_ms=timeout))
        self.hear()

    @rule(number=members, instance=instances, wish=wishes, timeout=timeouts)
    def a_member_joins(self, number: int, instance: str | None, wish: tuple[str, ...], timeout: int) -> None:
        member_id = self.who(number)
        known = self.story.group.member(member_id)
        instance = instance if known is None else known.instance_id
        supports = protocols(*wish)
        self.story.starts(join_request(member_id, instance=instance, supports=supports, rebalance_ms=timeout))
        self.hear()

    @rule(number=members, off=offsets_of_generation)
    def a_member_syncs(self, number: int, off: int) -> None:
        parts = {member_id: f"part of {member_id}" for member_id in self.ids}
        self.story.starts(sync_request(self.story.generation + off, self.who(number), parts))
        self.hear()

    @rule(number=members, off=offsets_of_generation)
    def a_member_beats(self, number: int, off: int) -> None:
        self.story.beat(self.story.generation + off, self.who(number))

    @rule(number=members)
    def a_member_leaves(self, number: int) -> None:
        self.story.leave(self.who(number))
        self.hear()

    @rule(pause=pauses)
    def time_passes(self, pause: int) -> None:
        self.story.wait(pause)
        self.hear()

    @rule()
    def all_come_to_terms(self) -> None:
        """Whoever is in, or has an id, joins until nobody is waited for, and takes a part."""
        known = [member.member_id for member in self.story.group.members]
        for _ in range(2):
            for member_id in dict.fromkeys([*known, *self.ids]):
                found = self.story.group.member(member_id)
                if found is not None or member_id in self.story.group.pending:
                    instance = None if found is None else found.instance_id
                    supports = protocols("range", "sticky") if found is None else found.protocols
                    self.story.starts(join_request(member_id, instance=instance, supports=supports))
        self.story.wait(REBALANCE_MS // 2)
        for member in self.story.group.members:
            generation, instance = self.story.generation, member.instance_id
            self.story.starts(sync_request(generation, member.member_id, {}, instance=instance))
        self.hear()

    @rule()
    def the_coordinator_dies(self) -> None:
        before = self.story.group
        record = (self.story.group_records() or [None])[-1]
        self.story.restart()
        after = self.story.group
        assert record is None or after.generation_id == record.generation_id
        if before.state is STABLE:
            assert (after.state, after.leader) == (STABLE, before.leader)
        self.generations = [after.generation_id]

    # --- what always holds

    @invariant()
    def generations_go_up(self) -> None:
        if self.story.state is not GroupState.DEAD:
            self.generations.append(self.story.generation)
        assert self.generations == sorted(self.generations)

    @invariant()
    def a_group_is_what_its_state_says(self) -> None:
        group = self.story.group
        ids = [member.member_id for member in group.members]
        names = [member.instance_id for member in group.members if member.instance_id is not None]
        assert len(set(ids)) == len(ids)
        assert len(set(names)) == len(names)
        assert (group.leader in ids) == bool(ids)
        assert group.pending.keys().isdisjoint(ids)
        is_preparing = group.state is GroupState.PREPARING_REBALANCE
        is_nobodys = group.state in (GroupState.EMPTY, GroupState.DEAD)
        assert is_preparing or bool(ids) != is_nobodys
        assert is_preparing == (group.join_due_ms is not None)
        assert all(member.joining is None for member in group.members) or is_preparing
        is_completing = group.state is GroupState.COMPLETING_REBALANCE
        assert all(member.syncing is None for member in group.members) or is_completing
        assert (group.sync_due_ms is None) == (not group.unsynced)

    @invariant()
    def whoever_waits_waits_for_a_deadline(self) -> None:
        group = self.story.group
        due_ms = group.next_due_ms
        assert due_ms is not None or not list(group.waiting())
        assert due_ms is None or due_ms > self.story.now
        watched = [member for member in group.members if member.due_ms is None]
        assert all(member.is_kept for member in watched), "nobody would miss this member"

    @invariant()
    def the_log_tells_all_that_it_should(self) -> None:
        self.story.check_recovery()
        if self.story.state is STABLE:
            record = self.story.group_records()[-1]
            assert record is not None
            assert record.generation_id == self.story.generation
            known = {member.member_id for member in self.story.group.members}
            assert known <= {member.member_id for member in record.members}

    @precondition(lambda self: offsets_log_of(GROUP) in self.story.host.node.logs)
    @rule(number=members)
    def a_copy_goes_its_own_way(self, number: int) -> None:
        node = self.story.host.node
        key = fingerprint(node)
        twin = fork(node)
        assert fingerprint(twin) == key
        later, who, to = self.story.now + SESSION_MS, self.who(number), ReplyTo(9, 9)
        beat = Heartbeat(
            group_id=GROUP, generation_id=self.story.generation, member_id=who, group_instance_id=None
        )
        requests: list[Heartbeat | JoinGroup | SyncGroup] = [
            beat, join_request(who), join_request(), sync_request(self.story.generation, who),
        ]  # fmt: skip
        for request in requests:
            step(twin, Received(request, to=to), self.story.now)
        step(twin, Tick(), later)
        assert fingerprint(node) == key
        hash(fingerprint(twin))

    def teardown(self) -> None:
        """In the end everybody is answered, and a group that nobody speaks to is empty."""
        for _ in range(12):
            self.story.wait(SESSION_MS)
        group = self.story.group
        assert list(group.waiting()) == []
        assert group.state in (GroupState.EMPTY, GroupState.DEAD) or any(
            member.is_new for member in group.members
        ), group


TestConversations = Conversation.TestCase
TestConversations.settings = settings(max_examples=30, stateful_step_count=30)


def test_members_of_the_conversation_can_come_to_terms() -> None:
    """What the rules ask for makes stable groups of several members, or they would say little."""
    story = GroupStory()
    ids = story.members(3)
    assert [story.beat(story.generation, each) for each in ids] == [ErrorCode.NONE] * 3
