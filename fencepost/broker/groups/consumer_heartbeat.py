"""ConsumerGroupHeartbeat: members join, report, leave and expire (GroupMetadataManager).

Rule: a decision changes no state. It makes the next value of the group; the handlers write what changed.
"""

# The order of a heartbeat: is the request valid, is there room, who is this, what did it subscribe to; then
# the group epoch, the target assignment, and this member's next step to it. Each part looks only at what the
# parts before it left.

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

import attrs

from fencepost.broker.check_tables import Check
from fencepost.broker.contract import Received, Refused
from fencepost.broker.groups.assignors import ASSIGNORS, AssignmentInput
from fencepost.broker.groups.consumer_group import (
    ConsumerGroup,
    SubscribableTopics,
    evolved,
    metadata_hash,
    renamed,
    topic_ids,
    with_assignment,
    with_subscription,
    without_members,
    without_unused_regexes,
)
from fencepost.broker.groups.reconciliation import Reconciliation, reconciled
from fencepost.broker.limits import GROUP_MEMBERS
from fencepost.broker.patterns import BadPattern, whole_match
from fencepost.broker.settings import NodeSettings
from fencepost.protocol.consumer_group_log import (
    AWAY_EPOCH,
    JOINING_EPOCH,
    LEFT_EPOCH,
    CurrentAssignment,
    GroupEpoch,
    ResolvedRegex,
    Subscription,
    TargetEpoch,
    TopicIdPartition,
)
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.messages import ConsumerGroupHeartbeat
from fencepost.protocol.terms import is_blank

NO_REBALANCE_TIMEOUT: Final = -1  # the member has not changed it
REGEX_REFRESH_MS: Final = 10_000  # REGEX_BATCH_REFRESH_MIN_INTERVAL_MS


@attrs.define
class ConsumerTurn:
    """A decision under construction: the next value of the group."""

    group: ConsumerGroup
    now: int = attrs.field(kw_only=True)
    topics: SubscribableTopics = attrs.field(kw_only=True)
    settings: NodeSettings = attrs.field(kw_only=True)


# --- which requests are valid in any state ---------------------------------------------------------------


def _joins(request: ConsumerGroupHeartbeat) -> bool:
    return request.member_epoch == JOINING_EPOCH


_INVALID: Final = ErrorCode.INVALID_REQUEST


def _check(
    name: str, error: ErrorCode, is_wrong: Callable[[ConsumerGroupHeartbeat], bool]
) -> Check[ConsumerGroupHeartbeat]:
    source = "KIP-848, GroupCoordinatorService.throwIfConsumerGroupHeartbeatRequestIsInvalid"
    return Check(name, error, is_wrong, source)


HEARTBEAT_CHECKS: Final[tuple[Check[ConsumerGroupHeartbeat], ...]] = (
    _check("has no member id", _INVALID, lambda r: is_blank(r.member_id) and not _joins(r)),
    _check("has no group id", _INVALID, lambda r: is_blank(r.group_id)),
    _check("has an empty instance id", _INVALID, lambda r: is_blank(r.instance_id)),
    _check("has an empty rack id", _INVALID, lambda r: is_blank(r.rack_id)),
    _check(
        "joins without a rebalance timeout",
        _INVALID,
        lambda r: _joins(r) and r.rebalance_timeout_ms == NO_REBALANCE_TIMEOUT,
    ),
    _check(
        "joins, and its list of owned partitions is missing or not empty",
        _INVALID,
        lambda r: _joins(r) and r.topic_partitions != (),
    ),
    _check(
        "joins without a subscription",
        _INVALID,
        lambda r: _joins(r) and r.subscribed_topic_names is None and r.subscribed_topic_regex is None,
    ),
    _check(
        "leaves temporarily and is not static",
        _INVALID,
        lambda r: r.member_epoch == AWAY_EPOCH and r.instance_id is None,
    ),
    _check("has an epoch below -2", _INVALID, lambda r: r.member_epoch < AWAY_EPOCH),
    _check(
        "names an assignor that the broker does not have",
        ErrorCode.UNSUPPORTED_ASSIGNOR,
        lambda r: r.server_assignor is not None and r.server_assignor not in ASSIGNORS,
    ),
)  # fmt: skip


# --- heartbeats ------------------------------------------------------------------------------------------


class Beat(NamedTuple):
    """What a heartbeat found and left: the member's assignment before and after it."""

    before: CurrentAssignment
    after: CurrentAssignment


def heartbeat(
    turn: ConsumerTurn, request: ConsumerGroupHeartbeat, member_id: str, arrived: Received
) -> Beat | Refused:
    """Join the group or stay in it. `member_id` is the request's, or a new one."""
    is_new = member_id not in turn.group.subscriptions
    if is_new and len(turn.group.subscriptions) >= turn.settings.group_consumer_max_size:
        return Refused(ErrorCode.GROUP_MAX_SIZE_REACHED)
    size = turn.group.membership.size
    before = _enter(turn, request, member_id)
    if isinstance(before, Refused):
        return before
    try:
        has_new_subscription = _subscribe(turn, request, member_id, arrived)
    except BadPattern as problem:
        return Refused(ErrorCode.INVALID_REGULAR_EXPRESSION, str(problem))
    # A group above the limit (its topics may have grown) goes on, and only must not grow further.
    if has_new_subscription and max(size, GROUP_MEMBERS.value) < turn.group.membership.size:
        return Refused(ErrorCode.GROUP_MAX_SIZE_REACHED)
    _refresh_regexes(turn)
    _raise_epoch(turn, is_due=has_new_subscription)
    _assign(turn)
    reported = None
    if request.topic_partitions is not None:
        reported = frozenset(
            TopicIdPartition(topic.topic_id, partition)
            for topic in request.topic_partitions
            for partition in topic.partitions
        )
    after = reconciled(
        Reconciliation(
            group=turn.group,
            member_id=member_id,
            current=before,
            reported=reported,
            topics=turn.topics,
            has_new_subscription=has_new_subscription,
        )
    )
    turn.group = with_assignment(turn.group, member_id, after)
    return Beat(before, after)


def _enter(
    turn: ConsumerTurn, request: ConsumerGroupHeartbeat, member_id: str
) -> CurrentAssignment | Refused:
    """What the member owned until now, if this is the member and its epoch is right."""
    if request.instance_id is not None:
        return _enter_static(turn, request, member_id, request.instance_id)
    if member_id not in turn.group.subscriptions and not _joins(request):
        return Refused(ErrorCode.UNKNOWN_MEMBER_ID)
    return _checked(turn.group.current(member_id), request)


def _enter_static(
    turn: ConsumerTurn, request: ConsumerGroupHeartbeat, member_id: str, instance_id: str
) -> CurrentAssignment | Refused:
    group = turn.group
    owner_id = group.static_member(instance_id)
    if not _joins(request):
        problem = static_problem(group, member_id, instance_id)
        return problem or _checked(group.current(member_id), request)
    if owner_id is None:
        return group.current(member_id)
    if group.current(owner_id).epoch != AWAY_EPOCH:
        return Refused(ErrorCode.UNRELEASED_INSTANCE_ID)
    # The heir gets what its predecessor owned, as a member that has just joined.
    inherited = attrs.evolve(group.current(owner_id), epoch=JOINING_EPOCH, previous_epoch=JOINING_EPOCH)
    turn.group = renamed(group, owner_id, member_id, inherited)
    return inherited


def static_problem(group: ConsumerGroup, member_id: str, instance_id: str) -> Refused | None:
    """Why this member is not the owner of its instance id, or None."""
    owner_id = group.static_member(instance_id)
    if owner_id is None:
        return Refused(ErrorCode.UNKNOWN_MEMBER_ID)
    return None if owner_id == member_id else Refused(ErrorCode.FENCED_INSTANCE_ID)


def _checked(current: CurrentAssignment, request: ConsumerGroupHeartbeat) -> CurrentAssignment | Refused:
    """The member's assignment, if its epoch is right (throwIfConsumerGroupMemberEpochIsInvalid)."""
    epoch = request.member_epoch
    if epoch in (JOINING_EPOCH, current.epoch):
        return current
    # If the member owns only what it was assigned, the reply with the new epoch was lost.
    if epoch < current.epoch and epoch == current.previous_epoch and request.topic_partitions is not None:
        reported = {(t.topic_id, partition) for t in request.topic_partitions for partition in t.partitions}
        if reported <= current.assigned.keys():
            return current
    return Refused(ErrorCode.FENCED_MEMBER_EPOCH)


def _subscription(
    known: Subscription | None, request: ConsumerGroupHeartbeat, arrived: Received
) -> Subscription:
    """The member's subscription: what the request does not say stays as it was."""
    known = known or _NO_SUBSCRIPTION
    names, timeout_ms = request.subscribed_topic_names, request.rebalance_timeout_ms
    regex = request.subscribed_topic_regex
    return Subscription(
        instance_id=known.instance_id if request.instance_id is None else request.instance_id,
        rack_id=known.rack_id if request.rack_id is None else request.rack_id,
        client_id=arrived.client_id,
        client_host=arrived.client_host,
        topics=known.topics if names is None else tuple(sorted(set(names))),
        regex=known.regex if regex is None else regex,
        rebalance_timeout_ms=known.rebalance_timeout_ms if timeout_ms == NO_REBALANCE_TIMEOUT else timeout_ms,
        assignor=known.assignor if request.server_assignor is None else request.server_assignor,
    )


_NO_SUBSCRIPTION: Final = Subscription(
    instance_id=None, rack_id=None, client_id="", client_host="", topics=(), regex="",
    rebalance_timeout_ms=NO_REBALANCE_TIMEOUT, assignor=None,
)  # fmt: skip


def _subscribe(
    turn: ConsumerTurn, request: ConsumerGroupHeartbeat, member_id: str, arrived: Received
) -> bool:
    """Take over the member's subscription. Returns whether it names other topics than before."""
    known = turn.group.subscriptions.get(member_id)
    wanted = _subscription(known, request, arrived)
    known = known or _NO_SUBSCRIPTION
    group = with_subscription(turn.group, member_id, wanted)
    if wanted.regex and wanted.regex not in group.regexes:
        found = _resolved(turn, wanted.regex, len(group.regexes) + 1)
        group = evolved(group, regexes=group.regexes | {wanted.regex: found})
    turn.group = without_unused_regexes(group) if wanted.regex != known.regex else group
    return (wanted.topics, wanted.regex) != (known.topics, known.regex)


def _resolved(turn: ConsumerTurn, regex: str, regex_count: int) -> ResolvedRegex:
    """The topics whose whole names match. Raises BadPattern. A refresh matches all expressions of the group
    in one step, so they share the limit that a single expression would have.
    """
    names = turn.topics.topics
    matches = whole_match(regex, characters=regex_count * sum(map(len, names)))
    topics = tuple(sorted(name for name in names if matches(name)))
    return ResolvedRegex(topics=topics, version=turn.topics.newest_topic_number, resolved_ms=turn.now)


def _refresh_regexes(turn: ConsumerTurn) -> None:
    """Look at all topics again, if there are new ones and the last look was some time ago. Topics that are
    gone may stay among those of an expression: assignors skip what does not exist.
    """
    newest = turn.topics.newest_topic_number
    old = {regex: each for regex, each in turn.group.regexes.items() if each.version != newest}
    if old and turn.now >= min(each.resolved_ms for each in old.values()) + REGEX_REFRESH_MS:
        again = {regex: _resolved_again(turn, regex, each) for regex, each in old.items()}
        turn.group = evolved(turn.group, regexes=turn.group.regexes | again)


def _resolved_again(turn: ConsumerTurn, regex: str, known: ResolvedRegex) -> ResolvedRegex:
    """The topics that match now. If there are too many to look at, those that matched before."""
    try:
        return _resolved(turn, regex, len(turn.group.regexes))
    except BadPattern:
        return attrs.evolve(known, version=turn.topics.newest_topic_number, resolved_ms=turn.now)


def _raise_epoch(turn: ConsumerTurn, *, is_due: bool) -> None:
    """Raise the group epoch if a subscription or a subscribed topic has changed."""
    digest = metadata_hash(turn.group, turn.topics)
    if is_due or digest != turn.group.group_epoch.metadata_hash:
        epoch = GroupEpoch(turn.group.epoch + 1, metadata_hash=digest)
        turn.group = attrs.evolve(turn.group, group_epoch=epoch)


def _assign(turn: ConsumerTurn) -> None:
    """Compute the target assignment for a new group epoch, at most once in an interval (KIP-1263)."""
    group = turn.group
    computed_ms = group.target_epoch.computed_ms
    # A clock that was set back leaves `computed_ms` in the future; this must not stop assignments.
    is_too_early = computed_ms <= turn.now < computed_ms + turn.settings.group_consumer_assignment_interval_ms
    if group.epoch == group.target_epoch.epoch or is_too_early:
        return
    known = turn.topics.topics
    wanted = {
        name: frozenset(topic_ids(group.membership.topics_of(each), turn.topics))
        for name, each in group.subscriptions.items()
    }
    counts = {topic.topic_id: len(topic.leaders) for name in group.subscribed if (topic := known.get(name))}
    given = AssignmentInput(
        topics=wanted,
        targets={name: group.target(name) for name in wanted},
        counts=counts,
        instances={
            name: each.instance_id
            for name, each in group.subscriptions.items()
            if each.instance_id is not None
        },
    )
    turn.group = attrs.evolve(
        group,
        targets=ASSIGNORS[assignor_of(group)](given),
        target_epoch=TargetEpoch(group.epoch, computed_ms=turn.now),
    )


def assignor_of(group: ConsumerGroup) -> str:
    """The assignor that most members prefer (computePreferredServerAssignor); of several, the default."""
    votes = Counter(each.assignor for each in group.subscriptions.values())
    return max(ASSIGNORS, key=votes.__getitem__)


# --- departures ------------------------------------------------------------------------------------------


def leave(turn: ConsumerTurn, request: ConsumerGroupHeartbeat) -> Refused | None:
    """Leave the group, for good or, as a static member, for a while (consumerGroupLeave)."""
    member_id = request.member_id
    if request.instance_id is not None:
        if problem := static_problem(turn.group, member_id, request.instance_id):
            return problem
    elif member_id not in turn.group.subscriptions:
        return Refused(ErrorCode.UNKNOWN_MEMBER_ID)
    if request.member_epoch == LEFT_EPOCH:
        remove(turn, {member_id})
        return None
    # It will return and continue: no other member gets its partitions until its session ends.
    current = turn.group.current(member_id)
    away = attrs.evolve(current, epoch=AWAY_EPOCH, assigned=dict.fromkeys(current.assigned, 0), revoking={})
    turn.group = with_assignment(turn.group, member_id, away)
    return None


def remove(turn: ConsumerTurn, member_ids: set[str]) -> None:
    """Remove members; at another member's next heartbeat, their partitions are reassigned."""
    if member_ids:
        turn.group = without_members(turn.group, member_ids)
        _raise_epoch(turn, is_due=True)


# --- commits ---------------------------------------------------------------------------------------------


def check_identity(group: ConsumerGroup, member_id: str, member_epoch: int) -> ErrorCode:
    """Why this member's offsets are refused as a whole, or NONE; enough for a fetch (validateOffsetFetch)."""
    if member_id not in group.subscriptions:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return NO_ERROR if member_epoch == group.current(member_id).epoch else ErrorCode.STALE_MEMBER_EPOCH


def check_commit(
    group: ConsumerGroup, member_id: str, member_epoch: int, partition: TopicIdPartition | None
) -> ErrorCode:
    """Why an offset of this partition is refused, or NONE (ConsumerGroup.validateOffsetCommit).

    An older epoch is accepted for partitions that the member has had since then (KIP-1251).
    """
    if member_epoch < 0 and not group.subscriptions:
        return NO_ERROR
    error = check_identity(group, member_id, member_epoch)
    if error is not ErrorCode.STALE_MEMBER_EPOCH:
        return error
    current = group.current(member_id)
    since = None
    if partition is not None:
        since = current.assigned.get(partition, current.revoking.get(partition))
    return NO_ERROR if since is not None and since <= member_epoch < current.epoch else error
