"""Problems of a consumer that may pass, and when they are reported to its program.

Rule: a program that only polls learns of each problem that lasts: by one warning, or because poll() raises
it.
"""

# A consumer retries, and poll() returns nothing meanwhile. So each step looks for what is wrong, and
# remembers since when:
#
#     a partition or the group is refused, again and again    after 3 s    a warning
#     a subscribed topic has no metadata                      after 1 s    a warning
#     its name is invalid, or ACLs forbid reading it          at once      poll() raises it once
#     an assigned partition does not exist                    after 1 s    poll() raises it each time
#
# A problem that has passed is forgotten, and reported again if it returns.

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from typing import Final

import attrs

from fencepost.client.effects import WarnProgram
from fencepost.client.errors import AUTHORIZATION_ERRORS, UnknownTopic, unknown_partition, unknown_topic
from fencepost.client.group_member import GroupMember
from fencepost.client.retries import PendingCalls
from fencepost.client.settings import UNKNOWN_GRACE_MS
from fencepost.client.topic_partition_state import TopicPartitionState
from fencepost.protocol.errors import NO_ERROR, ErrorCode, Remedy
from fencepost.protocol.terms import TopicPartition

# How long an error that may pass lasts before the program is warned. A log whose disk failed has a leader
# again sooner than that.
RETRY_WARNING_MS: Final = 3_000
# No reply is not a refusal; for a missing topic, poll() raises an error.
_NOT_A_REFUSAL: Final = frozenset(
    {NO_ERROR, ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
)

PartitionStates = Mapping[TopicPartition, TopicPartitionState]


@attrs.define(eq=False)
class ConsumerProblems:
    """What is wrong now, and what was reported of it."""

    _calls: PendingCalls
    _since: dict[tuple[str, str], float] = attrs.field(factory=dict)
    """Since when (ms) a problem lasts, by its kind and its object; infinite once it was reported."""
    _before: dict[tuple[str, str], float] = attrs.field(factory=dict)
    """The same at the last step."""

    def notice(self, states: PartitionStates, member: GroupMember | None, now: int) -> list[WarnProgram]:
        """Looks for problems: returns the warnings that are due, and sets the errors that poll() raises."""
        self._before, self._since = self._since, {}
        self._notice_missing(states, now)
        warnings = [*self._unreadable_topics(member, now), *self._refused(states, member, now)]
        return [WarnProgram(warning) for warning in warnings]

    def _lasts(self, kind: str, what: object, now: int, *, for_ms: int) -> bool:
        """Whether a problem has lasted this long and was not reported. A problem that a step does not ask
        about has passed.
        """
        key = (kind, str(what))
        since = self._since[key] = self._before.get(key, now)
        return now - since >= for_ms

    def _notice_missing(self, states: PartitionStates, now: int) -> None:
        """What is missing may be about to be created: UnknownTopic is raised only if it stays missing."""
        cluster = self._calls.cluster
        for (topic, number), state in states.items():
            error, count = cluster.topic_errors.get(topic), cluster.partition_counts.get(topic)
            if error is None and (count is None or number < count):
                if state.problem is not None and state.problem.kind is UnknownTopic:
                    state.problem = None  # it was created meanwhile
                continue
            if error is None:  # a topic's error is asked for again anyway
                cluster.is_stale = True
            lasts = self._lasts("missing", state.partition, now, for_ms=UNKNOWN_GRACE_MS)
            if state.problem is None and (lasts or error in AUTHORIZATION_ERRORS):
                if error is not None:
                    state.problem = unknown_topic(topic, error)
                elif count is not None:
                    state.problem = unknown_partition(state.partition, count)

    def _unreadable_topics(self, member: GroupMember | None, now: int) -> Iterator[str]:
        """The group assigns nothing of a topic without metadata, so no partition reports it. As in Kafka, the
        program reads the other topics.
        """
        if member is None:
            return
        for topic in member.topics:
            error = self._calls.cluster.topic_errors.get(topic)
            if error is None:
                continue
            may_pass = error.remedy in (Remedy.RETRY, Remedy.REFRESH)
            what = f"{topic}: {error.name}"  # another error is another problem: poll() may raise it
            if not self._lasts("unreadable", what, now, for_ms=UNKNOWN_GRACE_MS if may_pass else 0):
                continue
            failure = unknown_topic(topic, error)
            if may_pass:
                yield (
                    f"group {member.group_id!r} is subscribed to a topic that it cannot read yet: "
                    f"{failure.exception()}"
                )
            elif member.failure is None:
                member.failure = failure
            else:
                continue  # poll() raises another error first
            self._since["unreadable", what] = inf

    def _refused(self, states: PartitionStates, member: GroupMember | None, now: int) -> Iterator[str]:
        """Partitions, or a group, whose broker keeps answering with an error that may pass."""
        due: dict[tuple[str, ErrorCode], list[str]] = {}
        for verb, what, error in self._errors(states, member, now):
            if error not in _NOT_A_REFUSAL and self._lasts("refused", what, now, for_ms=RETRY_WARNING_MS):
                due.setdefault((verb, error), []).append(str(what))
                self._since["refused", str(what)] = inf
        for (verb, error), names in due.items():
            because = f"cannot {verb} {', '.join(names)}: {error.meaning} ({error.name})"
            yield f"{because}; the consumer keeps trying"

    def _errors(
        self, states: PartitionStates, member: GroupMember | None, now: int
    ) -> Iterator[tuple[str, TopicPartition | str, ErrorCode]]:
        """What the consumer is doing, with which partition or group, and the last error, NONE without one."""
        number = None if member is None else member.pending_call
        is_looking = number is not None or any(state.lookup is not None for state in states.values())
        of_calls = self._calls.refusals(now) if is_looking else {}
        for where, state in states.items():
            error = state.error if state.lookup is None else of_calls.get(state.lookup, NO_ERROR)
            yield "read", where, error
        if member is not None and number is not None:
            yield "take part in", f"group {member.group_id!r}", of_calls.get(number, NO_ERROR)
