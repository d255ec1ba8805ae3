"""The members of a classic group: what they know of themselves, and that nobody looks at all of them."""

from __future__ import annotations

from typing import Final

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.broker.contract import ReplyTo
from fencepost.broker.groups.members import Member, Members
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.fork import fingerprint
from tests.broker.group_story import GROUP, join_request, protocols, sync_request
from tests.broker.requests import ORDERS, body_of, plain_offset_request
from tests.broker.story import SETTINGS, Story
from tests.python_calls import instructions_of

# --- what follows from the members


def member(member_id: str, names: list[str], instance: bool, joins: bool, due_ms: int | None) -> Member:
    return Member(
        member_id=member_id,
        instance_id=f"instance of {member_id}" if instance else None,
        client_id="client",
        client_host="host",
        rebalance_timeout_ms=1,
        session_timeout_ms=1,
        protocols=protocols(*names, said=b"x" * len(names)),
        joining=ReplyTo(1, 2) if joins else None,
        due_ms=due_ms,
    )


NAMES: Final = ("range", "sticky", "own")
MEMBERS: Final = st.builds(
    member,
    st.sampled_from("abcde"),
    st.lists(st.sampled_from(NAMES), max_size=4),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, 1, 2, 3]),
)
CHANGES: Final = st.lists(st.one_of(MEMBERS, st.frozensets(st.sampled_from("abcde"))))


@given(changes=CHANGES)
def test_what_is_counted_is_what_a_walk_over_the_members_finds(
    changes: list[Member | frozenset[str]],
) -> None:
    members, walked = Members(), dict[str, Member]()
    for change in changes:
        if isinstance(change, frozenset):
            members = members.without(change)
            walked = {member_id: each for member_id, each in walked.items() if member_id not in change}
        else:
            members = members.with_member(change)
            walked[change.member_id] = change
    check(members, list(walked.values()))
    again = Members.of(walked.values())
    check(again, list(walked.values()))
    assert (again, hash(again), fingerprint(again)) == (members, hash(members), fingerprint(members))


def check(members: Members, walked: list[Member]) -> None:
    assert (list(members), len(members)) == (walked, len(walked))
    assert members.size == sum(each.size for each in walked)
    assert members.joined == sum(each.joining is not None for each in walked)
    assert members.due_ms == min((each.due_ms for each in walked if each.due_ms is not None), default=None)
    for name in NAMES:
        supported = [name in {protocol.name for protocol in each.protocols} for each in walked]
        assert not walked or members.all_support(name) == all(supported)
    for member_id in "abcde":
        found = next((each for each in walked if each.member_id == member_id), None)
        assert members.get(member_id) is found
        assert members.static(f"instance of {member_id}") is (found if found and found.instance_id else None)


def test_members_in_another_order_are_others() -> None:
    one, two = (member(member_id, ["range"], False, False, None) for member_id in "ab")
    assert Members.of([one, two]) != Members.of([two, one])
    assert fingerprint(Members.of([one, two])) != fingerprint(Members.of([two, one]))


# --- large groups


@pytest.mark.parametrize("kind", [m.JoinGroup, m.SyncGroup, m.Heartbeat, m.OffsetCommit])
def test_a_request_of_a_member_looks_at_no_other(kind: type[m.Request]) -> None:
    counts = (30, 300)
    few, many = (work_beside(count, kind) for count in counts)
    assert many - few < counts[1] - counts[0], "less than one instruction for each other member"


def work_beside(others: int, kind: type[m.Request]) -> int:
    """The instructions of a request of the last member of a group with so many others."""
    story = Story(settings=attrs.evolve(SETTINGS, group_initial_rebalance_delay_ms=3_000))
    assert body_of(story.ask(plain_offset_request("others", {ORDERS: 1})), m.OffsetCommitReply)
    instances = [*(f"i{number}" for number in range(others)), "mine"]
    requests = [join_request(instance=instance, rebalance_ms=60_000) for instance in instances]
    joining = [story.offer(request) for request in requests[:-1]]
    story.settle()
    joining.append(story.offer(requests[-1]))
    if kind is m.JoinGroup:
        return instructions_of(story.run)
    story.wait(6_000)
    *ids, mine = [body_of(story.replies.pop(to), m.JoinGroupReply).member_id for to in joining]
    syncing = [story.offer(sync_request(1, each, instance=f"i{number}")) for number, each in enumerate(ids)]
    story.settle()
    request = request_of(mine, kind)
    if kind is not m.SyncGroup:
        story.ask(sync_request(1, mine, instance="mine"))
    to = story.offer(request)
    work = instructions_of(story.run)
    assert story.replies.pop(to).error is ErrorCode.NONE
    assert {story.replies.pop(each).error for each in syncing} == {ErrorCode.NONE}
    return work


def request_of(member_id: str, kind: type[m.Request]) -> m.Request:
    if kind is m.SyncGroup:
        return sync_request(1, member_id, instance="mine")
    if kind is m.Heartbeat:
        return m.Heartbeat(group_id=GROUP, generation_id=1, member_id=member_id, group_instance_id="mine")
    commit = plain_offset_request(GROUP, {ORDERS: 1})
    return attrs.evolve(commit, generation_id=1, member_id=member_id, group_instance_id="mine")
