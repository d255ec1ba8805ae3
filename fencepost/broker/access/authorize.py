"""Which part of a request is carried out for a principal, and what the reply must say about the rest.

Rule: values in, values out: (rules, principal, request) -> the allowed part, the refusals, a change to the
reply. It knows nothing of the node's state, so a reply does not reveal whether a resource exists.
"""

#     request --- authorize ---> allowed part ---> node ---> reply --- Amendment.apply ---> reply
#                     |                                                     ^
#                     +---> refused entries, filters -----------------------+
#
# The node never sees a refused entry. So its handlers need no checks of their own, and a broker without ACLs
# runs the same code as before.

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

import attrs

from fencepost.broker.access.acls import CLUSTER_NAME, Acls, Operation, Resource
from fencepost.broker.access.table import ERRORS, RIGHTS, Filter, Need, Right
from fencepost.protocol import messages as m
from fencepost.protocol import refusals
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.messages import API_BY_REQUEST, ReplyBody, Request


class Denial(NamedTuple):
    """The first right that was missing, for the log."""

    operation: Operation
    resource: Resource
    name: str

    def __str__(self) -> str:
        return f"{self.operation.value} on {self.resource.value} {self.name!r}"


@attrs.frozen(kw_only=True)
class Amendment:
    """What to change in the reply: entries to add for refused ones, entries to leave out."""

    principal: str
    acls: Acls
    field: str = ""
    refused: tuple[Any, ...] = ()
    filters: tuple[Filter, ...] = ()

    def apply(self, body: ReplyBody) -> ReplyBody:
        """The reply as the principal may see it."""
        changed: dict[str, Any] = {}
        for hidden in self.filters:
            entries = getattr(body, hidden.entries)
            if hidden.inner:
                seen = [
                    attrs.evolve(entry, **{hidden.inner: self._seen(getattr(entry, hidden.inner), hidden)})
                    for entry in entries
                ]
            else:
                seen = self._seen(entries, hidden)
            changed[hidden.entries] = tuple(seen)
        if self.refused:
            changed[self.field] = (*changed.get(self.field, getattr(body, self.field)), *self.refused)
        return attrs.evolve(body, **changed)

    def _seen(self, entries: tuple[Any, ...], hidden: Filter) -> tuple[Any, ...]:
        allowed, names_of = _Asker(self.acls, self.principal), hidden.names
        if names_of is not None:
            error = ERRORS[hidden.rights[0].resource]
            return tuple(
                entry
                if all(allowed(hidden.rights, name) for name in names_of(entry))
                else attrs.evolve(entry, error=error, members=())
                for entry in entries
            )
        return tuple(entry for entry in entries if allowed(hidden.rights, _named(entry)))


@attrs.frozen(kw_only=True)
class Verdict:
    """The allowed part of a request. Without one, `error` or `body` is the reply."""

    request: Request | None = None
    error: ErrorCode = NO_ERROR
    body: ReplyBody | None = None
    amendment: Amendment | None = None
    denial: Denial | None = None


def authorize(acls: Acls, principal: str, request: Request, version: int) -> Verdict:
    """Decide which part of the request is carried out."""
    row, allowed = RIGHTS[type(request)], _Asker(acls, principal)
    of_entries: Need | None = None
    for need in row.needs:
        if not need.when.holds(request, version):
            continue
        # Later: a refusal of the whole request comes first, whatever the order of the needs.
        if need.entries:
            of_entries = need
        elif not allowed(need.rights, name := _name_of(request, need.rights[0].resource)):
            return Verdict(error=ERRORS[need.rights[0].resource], denial=_denial(need, name))
    filters = tuple(hidden for hidden in row.filters if hidden.when.holds(request, version))
    if of_entries is None:
        amendment = Amendment(principal=principal, acls=acls, filters=filters) if filters else None
        return Verdict(request=request, amendment=amendment)
    entries = getattr(request, of_entries.entries)
    kept: list[Any] = []
    denied: list[Any] = []
    for entry in entries:
        (kept if allowed(of_entries.rights, _named(entry)) else denied).append(entry)
    if not denied and not filters:
        return Verdict(request=request)
    if denied and type(request) not in REFUSALS:  # the reply has no entries that could say so
        denial = _denial(of_entries, _named(denied[0]))
        return Verdict(error=ERRORS[of_entries.rights[0].resource], denial=denial)
    amendment = Amendment(
        principal=principal,
        acls=acls,
        field=REPLY_FIELDS[type(request)],
        refused=_refused(request, of_entries, allowed),
        filters=filters,
    )
    denial = _denial(of_entries, _named(denied[0])) if denied else None
    is_nothing_left = not kept and bool(entries) and type(request) not in SAYS_MORE
    if is_nothing_left or (row.all_or_none and denial is not None):
        reply = API_BY_REQUEST[type(request)].reply
        return Verdict(body=reply(**{amendment.field: amendment.refused}), denial=denial)
    rest = attrs.evolve(request, **{of_entries.entries: tuple(kept)})
    return Verdict(request=rest, amendment=amendment, denial=denial)


class _Asker:
    """Asks each right once: a request may name one topic 20,000 times."""

    def __init__(self, acls: Acls, principal: str) -> None:
        self._acls = acls
        self._principal = principal
        self._known: dict[tuple[tuple[Right, ...], str], bool] = {}

    def __call__(self, rights: tuple[Right, ...], name: str) -> bool:
        found = self._known.get((rights, name))
        if found is None:
            found = self._known[rights, name] = any(self._has(right, name) for right in rights)
        return found

    def _has(self, right: Right, name: str) -> bool:
        if right.any_name:
            return self._acls.allows_any(self._principal, right.operation, right.resource)
        if right.every_name:
            return self._acls.allows_all(self._principal, right.operation, right.resource)
        name = CLUSTER_NAME if right.resource is Resource.CLUSTER else name
        return self._acls.allows(self._principal, right.operation, right.resource, name)


def _denial(need: Need, name: str) -> Denial:
    right = need.rights[0]
    return Denial(right.operation, right.resource, name)


def _name_of(request: Any, resource: Resource) -> str:
    """The resource that a need names when the need concerns the whole request."""
    match resource:
        case Resource.GROUP:
            return request.key if isinstance(request, m.FindCoordinator) else request.group_id
        case Resource.TRANSACTIONAL_ID:
            return request.key if isinstance(request, m.FindCoordinator) else request.transactional_id
        case Resource.CLUSTER | Resource.TOPIC:
            return CLUSTER_NAME


def _named(entry: object) -> str:
    """The resource that an entry of a request or a reply names."""
    return entry if isinstance(entry, str) else getattr(entry, _name_field(type(entry)))


@cache
def _name_field(kind: type[Any]) -> str:
    fields = {"topic", "group_id", "transactional_id"}
    return next(name for name in _field_names(kind) if name in fields)


def _field_names(kind: type[Any]) -> list[str]:
    return list(getattr(kind, "_fields", None) or [each.name for each in attrs.fields(kind)])


# --- the entries of a reply for what was refused ------------------------------------------------------------

Refuse = Callable[[Any, ErrorCode], Any]
"""(entry of the request, error) -> entry of the reply."""


def _refused(request: Request, need: Need, allowed: _Asker) -> tuple[Any, ...]:
    """The reply's entries for refused ones; for all, if one refused entry makes the whole request fail."""
    error = ERRORS[need.rights[0].resource]
    refuse, all_or_none = REFUSALS[type(request)], RIGHTS[type(request)].all_or_none
    return tuple(
        refuse(entry, ErrorCode.OPERATION_NOT_ATTEMPTED if is_allowed else error)
        for entry in getattr(request, need.entries)
        if not (is_allowed := allowed(need.rights, _named(entry))) or all_or_none
    )


def _topic(entry: Any, error: ErrorCode) -> m.TopicError:
    return m.TopicError(topic=_named(entry), error=error)


REFUSALS: Final[dict[type[Any], Refuse]] = {
    m.Produce: refusals.not_produced,
    m.Fetch: refusals.not_fetched,
    m.ListOffsets: refusals.offset_not_listed,
    m.OffsetForLeaderEpoch: refusals.no_epoch_end,
    m.Metadata: lambda topic, error: m.TopicMetadata(topic=topic, error=error),
    m.OffsetCommit: refusals.refused_partition,
    m.OffsetFetch: refusals.offset_not_fetched,
    m.DescribeGroups: refusals.group_not_described,
    m.ConsumerGroupDescribe: refusals.consumer_group_not_described,
    m.DeleteGroups: refusals.group_not_deleted,
    m.OffsetDelete: refusals.refused_partition,
    m.CreateTopics: _topic,
    m.DeleteTopics: _topic,
    m.DescribeConfigs: lambda topic, error: m.TopicConfigs(topic=topic, error=error),
    m.IncrementalAlterConfigs: _topic,
    m.CreatePartitions: _topic,
    m.DeleteRecords: refusals.records_not_deleted,
    m.AddPartitionsToTxn: refusals.refused_partition,
    m.TxnOffsetCommit: refusals.refused_partition,
    m.DescribeProducers: refusals.producers_not_described,
    m.DescribeTransactions: refusals.transaction_not_described,
}  # fmt: skip
"""How a refused entry is answered, for each request with a need of entries."""


SAYS_MORE: Final = frozenset({m.Metadata, m.DescribeConfigs, m.OffsetDelete})
"""The node answers these even if every entry is refused, since the reply says more than its entries: nodes,
settings of a node, whether offsets of the group can be deleted at all. The reply to any other request is made
without the node.
"""


def _field_of_entries(request: type[Any]) -> str:
    """The list of the reply that answers the entries of the request, one by one."""
    reply = API_BY_REQUEST[request].reply
    names = ("partitions", "offsets", "groups", "transactions", "topics")
    return next(name for name in names if name in _field_names(reply))


REPLY_FIELDS: Final = {request: _field_of_entries(request) for request in REFUSALS}


def refusal(request: Request, error: ErrorCode) -> ReplyBody | None:
    """The reply with this error for each entry of a request; None if only all of it can be refused."""
    kind = type(request)
    named = [need.entries for need in RIGHTS[kind].needs if need.entries]
    if kind not in REFUSALS or _field_names(reply := API_BY_REQUEST[kind].reply) != [REPLY_FIELDS[kind]]:
        return None
    entries = getattr(request, named[0])
    return (
        reply(**{REPLY_FIELDS[kind]: tuple(REFUSALS[kind](entry, error) for entry in entries)})
        if entries
        else None
    )
