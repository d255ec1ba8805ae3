"""The members of a classic group as one frozen value.

Rule: a question about one member, or about how many there are of a kind, looks at no other member. A change
copies dictionaries, which takes microseconds even for thousands of members.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, TypeVar

import attrs

from fencepost.broker.contract import ReplyTo
from fencepost.protocol.fork import Ordered
from fencepost.protocol.messages import GroupProtocol

MEMBER_BYTES: Final = 1_024  # of memory, for a member or for an id that was granted, besides protocols
PROTOCOL_BYTES: Final = 128  # besides name and metadata
CHARACTER_BYTES_MAX: Final = 4

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


@attrs.frozen(kw_only=True)
class Member:
    """One member. `joining` and `syncing` are its unanswered requests; at `due_ms` its session ends."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[GroupProtocol, ...]
    assignment: bytes = attrs.field(default=b"", repr=False)
    is_new: bool = False
    """Its first join is not answered yet, so it cannot send heartbeats; a longer timeout applies."""
    joining: ReplyTo | None = None
    syncing: ReplyTo | None = None
    due_ms: int | None = None

    @property
    def is_kept(self) -> bool:
        """Whether it waits for the coordinator, so that its silence means nothing (hasSatisfiedHeartbeat)."""
        return not self.is_new and (self.joining is not None or self.syncing is not None)

    @property
    def size(self) -> int:
        """The bytes of memory that it takes, apart from its assignment."""
        return MEMBER_BYTES + protocols_size(self.protocols)

    def metadata(self, protocol_name: str | None) -> bytes:
        """Its metadata for this protocol, such as its subscription."""
        return next((each.metadata for each in self.protocols if each.name == protocol_name), b"")


def protocols_size(protocols: tuple[GroupProtocol, ...]) -> int:
    """The bytes of memory that a member's protocols take."""
    return sum(
        PROTOCOL_BYTES + CHARACTER_BYTES_MAX * len(protocol.name) + len(protocol.metadata)
        for protocol in protocols
    )


def in_order(items: dict[str, ValueT]) -> tuple[tuple[str, ValueT], ...]:
    """What is compared instead of a dictionary whose order counts."""
    return tuple(items.items())


def without_ids(items: dict[str, ValueT], ids: Collection[str]) -> dict[str, ValueT]:
    """The dictionary without these ids."""
    if items.keys().isdisjoint(ids):
        return items
    kept = items.copy()
    for each in ids:
        kept.pop(each, None)
    return kept


@attrs.frozen(kw_only=True)
class Members:
    """Members in the order in which they came. All but `by_id` follows from it."""

    by_id: Ordered[dict[str, Member]] = attrs.field(factory=dict[str, Member], eq=in_order)
    ids_of_instances: dict[str, str] = attrs.field(factory=dict[str, str], eq=False, repr=False)
    supporters: dict[str, int] = attrs.field(factory=dict[str, int], eq=False, repr=False)
    """How many members support each protocol (ClassicGroup.supportedProtocols)."""
    deadlines: dict[int, int] = attrs.field(factory=dict[int, int], eq=False, repr=False)
    """How many sessions end at each time."""
    size: int = attrs.field(default=0, eq=False)
    """The bytes of memory that they take."""
    joined: int = attrs.field(default=0, eq=False)
    """How many have joined the next generation."""
    due_ms: int | None = attrs.field(default=None, eq=False)
    """When the first session ends."""

    @classmethod
    def of(cls, members: Iterable[Member]) -> Members:
        return NO_MEMBERS._changed((), tuple(members))

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[Member]:
        return iter(self.by_id.values())

    def get(self, member_id: str) -> Member | None:
        return self.by_id.get(member_id)

    def static(self, instance_id: str) -> Member | None:
        """The member that has this instance id."""
        member_id = self.ids_of_instances.get(instance_id)
        return None if member_id is None else self.by_id[member_id]

    def all_support(self, protocol_name: str) -> bool:
        return self.supporters.get(protocol_name) == len(self.by_id)

    def with_member(self, member: Member) -> Members:
        """These members and this one, which takes the place of its former value if there is one."""
        former = self.by_id.get(member.member_id)
        return self._changed(() if former is None else (former,), (member,))

    def without(self, member_ids: Iterable[str]) -> Members:
        gone = tuple(self.by_id[member_id] for member_id in member_ids if member_id in self.by_id)
        return self._changed(gone, ()) if gone else self

    def _changed(self, gone: Sequence[Member], come: Sequence[Member]) -> Members:
        """These members without some values and with others; one that comes back keeps its place."""
        values = {member.member_id: member for member in come}
        left = [member.member_id for member in gone if member.member_id not in values]
        deadlines = _recounted(self.deadlines, _deadlines(gone), _deadlines(come))
        return Members(
            by_id={**without_ids(self.by_id, left), **values},
            ids_of_instances=_renamed(self.ids_of_instances, _instances(gone), _instances(come)),
            supporters=_recounted(self.supporters, _protocols(gone), _protocols(come)),
            deadlines=deadlines,
            size=self.size + sum(each.size for each in come) - sum(each.size for each in gone),
            joined=self.joined + _joined(come) - _joined(gone),
            due_ms=self.due_ms if deadlines is self.deadlines else min(deadlines, default=None),
        )


NO_MEMBERS: Final = Members()


def _deadlines(members: Sequence[Member]) -> list[int]:
    return [member.due_ms for member in members if member.due_ms is not None]


def _protocols(members: Sequence[Member]) -> list[str]:
    return [name for member in members for name in {protocol.name: None for protocol in member.protocols}]


def _instances(members: Sequence[Member]) -> dict[str, str]:
    return {each.instance_id: each.member_id for each in members if each.instance_id is not None}


def _joined(members: Sequence[Member]) -> int:
    return sum(member.joining is not None for member in members)


def _recounted(counts: dict[KeyT, int], gone: Sequence[KeyT], come: Sequence[KeyT]) -> dict[KeyT, int]:
    """How often each key is there, after some have gone and others have come."""
    if gone == come:
        return counts
    changed = counts.copy()
    for key in gone:
        changed[key] -= 1
        if not changed[key]:
            del changed[key]
    for key in come:
        changed[key] = changed.get(key, 0) + 1
    return changed


def _renamed(ids: dict[str, str], gone: dict[str, str], come: dict[str, str]) -> dict[str, str]:
    return ids if gone == come else {**without_ids(ids, gone), **come}
