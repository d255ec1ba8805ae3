"""The group's table: no state without an answer, and every cell seen through the real node."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from fencepost.broker.groups.tables import MEMBERSHIP, Cell, GroupInput
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import (
    DeleteGroups,
    DeleteGroupsReply,
    OffsetCommitReply,
    OffsetDelete,
    TxnOffsetCommitReply,
)
from fencepost.protocol.terms import GroupState
from tests.broker.group_story import GROUP, REBALANCE_MS, GroupStory, join_request, protocols, sync_request
from tests.broker.requests import ORDERS, body_of, offset_request, plain_offset_request

EMPTY, STABLE, DEAD = GroupState.EMPTY, GroupState.STABLE, GroupState.DEAD
PREPARING, COMPLETING = GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE
IN = GroupInput

# What cannot happen. In a group without members "not a member" is the answer before any table is asked.
IMPOSSIBLE: dict[GroupInput, set[GroupState]] = {
    IN.CREATE: set(GroupState) - {DEAD},
    IN.JOIN: {DEAD},
    IN.REJOIN: {EMPTY},
    IN.LEADER_REJOIN: {EMPTY, DEAD},
    IN.CHANGED_REJOIN: {EMPTY, DEAD},
    IN.SYNC: {EMPTY},
    IN.LEADER_SYNC: {EMPTY, DEAD},
    IN.HEARTBEAT: {EMPTY},
    IN.COMMIT: {EMPTY},
    IN.TXN_COMMIT: {EMPTY},
    IN.DELETE_FOREIGN_OFFSETS: {DEAD},
    IN.STATIC_RETURN: {EMPTY, DEAD},
    IN.GONE: {EMPTY, DEAD},
    IN.JOINED: {EMPTY, COMPLETING, STABLE, DEAD},
    IN.ABANDONED: {EMPTY, COMPLETING, STABLE, DEAD},
    IN.SYNC_TIMEOUT: {EMPTY, PREPARING, DEAD},
}
CELLS = [(state, given) for state, row in MEMBERSHIP.items() for given in row]
SLOW_MS = 50 * REBALANCE_MS  # nothing ends by itself while a cell is looked at


@attrs.frozen
class Scene:
    """A group of a leader, a follower and a static member, in some state."""

    story: GroupStory
    leader: str
    follower: str
    static: str

    @property
    def generation(self) -> int:
        return self.story.generation


def scene_for(state: GroupState, given: GroupInput) -> Scene:
    """A group in this state, of the kind that the input is about."""
    if state is EMPTY and given is IN.DELETE_OFFSETS:  # the group knows that its members were consumers
        scene = scene_in(STABLE)
        all_leave(scene)
        return scene
    return scene_in(state, "connect" if given is IN.DELETE_FOREIGN_OFFSETS else "consumer")


def scene_in(state: GroupState, kind: str = "consumer") -> Scene:
    story = GroupStory()
    if state is DEAD:
        return Scene(story, "one", "two", "three")
    leader, follower = story.new_id(), story.new_id()
    if state is EMPTY:
        assert story.leave(leader) is story.leave(follower) is ErrorCode.NONE
        return Scene(story, leader, follower, "three")
    slow = join_request(rebalance_ms=SLOW_MS, kind=kind)
    story.joined(story.starts(attrs.evolve(slow, member_id=leader)))
    story.starts(attrs.evolve(slow, member_id=follower))
    back = story.starts(attrs.evolve(slow, group_instance_id="i1"))
    story.starts(attrs.evolve(slow, member_id=leader))
    found = Scene(story, leader, follower, story.joined(back).member_id)
    if state in (STABLE, PREPARING):
        for member_id, instance in ((found.static, "i1"), (follower, None), (leader, None)):
            sync = sync_request(story.generation, member_id, instance=instance)
            story.starts(attrs.evolve(sync, protocol_type=None))
    if state is PREPARING:
        story.starts(attrs.evolve(slow, member_id=follower, protocols=protocols("range", "sticky")))
    story.replies.clear()
    assert story.state is state
    return found


def joins(scene: Scene, member_id: str, *, changed: bool = False, instance: str | None = None) -> ErrorCode:
    supports = protocols("range", "cooperative") if changed else protocols("range")
    known = scene.story.group.member(member_id)
    if known is not None and not changed:
        supports = known.protocols
    request = join_request(member_id, instance=instance, supports=supports, rebalance_ms=SLOW_MS)
    to = scene.story.starts(request)
    return ErrorCode.NONE if scene.story.waits(to) else scene.story.replies[to].error


def syncs(scene: Scene, member_id: str) -> ErrorCode:
    to = scene.story.starts(sync_request(scene.generation, member_id))
    return ErrorCode.NONE if scene.story.waits(to) else scene.story.replies[to].error


def commits(scene: Scene, member_id: str, generation: int) -> ErrorCode:
    request = attrs.evolve(
        plain_offset_request(GROUP, {ORDERS: 1}), member_id=member_id, generation_id=generation
    )
    return body_of(scene.story.ask(request), OffsetCommitReply).partitions[0].error


def commits_in_transaction(scene: Scene, member_id: str, generation: int) -> ErrorCode:
    request = offset_request(scene.story.identity(), GROUP, {ORDERS: 1})
    request = attrs.evolve(request, member_id=member_id, generation_id=generation)
    return body_of(scene.story.ask(request), TxnOffsetCommitReply).partitions[0].error


def leaves(scene: Scene) -> ErrorCode:
    return scene.story.leave(scene.static, instance="i1")


def deletes(scene: Scene) -> ErrorCode:
    return body_of(scene.story.ask(DeleteGroups(groups=(GROUP,))), DeleteGroupsReply).groups[0].error


def deletes_offsets(scene: Scene) -> ErrorCode:
    return scene.story.ask(OffsetDelete(group_id=GROUP, partitions=())).error


def all_join(scene: Scene) -> ErrorCode:
    for member_id, instance in ((scene.leader, None), (scene.static, "i1")):
        assert joins(scene, member_id, instance=instance) is ErrorCode.NONE
    return ErrorCode.NONE


def all_leave(scene: Scene) -> ErrorCode:
    for member_id in (scene.leader, scene.follower):
        assert scene.story.leave(member_id) is ErrorCode.NONE
    return leaves(scene)


def some_do_not_sync(scene: Scene) -> ErrorCode:
    """Some have joined and take no part: in a stable group others than the leader, else the leader."""
    if scene.story.state is COMPLETING:
        syncs(scene, scene.follower)
    if scene.story.state is STABLE:
        joins(scene, scene.leader)
        joins(scene, scene.follower)
        joins(scene, scene.static, instance="i1")
        syncs(scene, scene.leader)
        assert scene.story.state is STABLE
    for _ in range(SLOW_MS // REBALANCE_MS):
        for member in scene.story.group.members:
            scene.story.beat(scene.generation, member.member_id, instance=member.instance_id)
        scene.story.wait(REBALANCE_MS)
    return ErrorCode.NONE


DOES: dict[GroupInput, Callable[[Scene], ErrorCode]] = {
    IN.CREATE: lambda scene: joins(scene, ""),
    IN.JOIN: lambda scene: joins(scene, "", instance="i2"),
    IN.REJOIN: lambda scene: joins(scene, scene.follower),
    IN.LEADER_REJOIN: lambda scene: joins(scene, scene.leader),
    IN.CHANGED_REJOIN: lambda scene: joins(scene, scene.follower, changed=True),
    IN.STATIC_RETURN: lambda scene: joins(scene, "", instance="i1"),
    IN.SYNC: lambda scene: syncs(scene, scene.follower),
    IN.LEADER_SYNC: lambda scene: syncs(scene, scene.leader),
    IN.HEARTBEAT: lambda scene: scene.story.beat(scene.generation, scene.follower),
    IN.COMMIT: lambda scene: commits(scene, scene.follower, scene.generation),
    IN.SIMPLE_COMMIT: lambda scene: commits(scene, "", -1),
    IN.TXN_COMMIT: lambda scene: commits_in_transaction(scene, scene.follower, scene.generation),
    IN.SIMPLE_TXN_COMMIT: lambda scene: commits_in_transaction(scene, "", -1),
    IN.GONE: leaves,
    IN.JOINED: all_join,
    IN.ABANDONED: all_leave,
    IN.SYNC_TIMEOUT: some_do_not_sync,
    IN.DELETE: deletes,
    IN.DELETE_OFFSETS: deletes_offsets,
    IN.DELETE_FOREIGN_OFFSETS: deletes_offsets,
}


def error_of(cell: Cell, given: GroupInput) -> ErrorCode:
    if isinstance(cell, ErrorCode):
        return cell
    return ErrorCode.MEMBER_ID_REQUIRED if given is IN.CREATE else ErrorCode.NONE


def test_every_state_has_an_answer_to_every_input() -> None:
    assert set(MEMBERSHIP) == set(GroupState) - {GroupState.ASSIGNING, GroupState.RECONCILING}
    for state in MEMBERSHIP:
        possible = {given for given in GroupInput if state not in IMPOSSIBLE.get(given, set())}
        assert set(MEMBERSHIP[state]) == possible


@pytest.mark.parametrize(("state", "given"), CELLS, ids=lambda each: each.name)
def test_each_cell_is_what_a_group_does(state: GroupState, given: GroupInput) -> None:
    scene = scene_for(state, given)
    cell = MEMBERSHIP[state][given]
    assert DOES[given](scene) is error_of(cell, given)
    # An empty group waits for no other members here: the one who joins makes the first generation at once.
    is_alone = given is IN.JOIN and state is EMPTY
    expected = COMPLETING if is_alone else state if isinstance(cell, ErrorCode) else cell
    assert scene.story.state is expected
    scene.story.check_recovery()
