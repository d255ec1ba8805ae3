"""Requests that are retried until they are answered: leader and coordinator look-ups, backoff, deadlines.

Rule: one place decides what an error of a whole request means. Produce and Fetch, whose partitions have
errors of their own, pass through `once` and are returned untouched.
"""

# Theory of operation
# -------------------
#
# A caller submits a request with a target: any node, the controller, the leader of a partition, a
# coordinator, or one broker. A call then alternates between two places until it ends:
#
#                  submit()                     due(): retry_at has passed and the node is known
#         caller -----------> [ _waiting ] --------------------------------> [ _in_flight ] ---> SendRequest
#                                  ^                                                 |
#                                  |  RETRY: attempts + 1, backoff                   |
#                                  |  REFRESH: the same, and the leader or           | answered()
#                                  |  coordinator is forgotten                       |
#                                  +-------------------------------------------------+---> FinishedCall
#
# * The backoff doubles from 10 ms (1 ms after CONCURRENT_TRANSACTIONS) to a second, without jitter: a run of
#   the simulator must repeat exactly.
# * A call for a coordinator that is not known submits a FindCoordinator and waits in `_waiting`. The lookup
#   is shared: if it fails for good, it ends every call that waits for that coordinator.
# * Metadata is one call that never ends while a wanted topic is undecided. At most one is in flight, and
#   two are some time apart (`ClusterMetadata.back_off`).
# * A deadline ends a call in either place. Calls of a transaction have none: their callers time out, but the
#   request continues, and the same call of the application finds its reply.
#
# `indefinite` is a call's memory of lost replies. Once an attempt may have been carried out, a later
# rejection does not prove that the request had no effect; `ProducerMachine` reports such a commit as
# CommitOutcomeUnknown.
#
# Tokens and numbers come from one counter, so that a reply can be matched to a call (`_in_flight`) or to a
# request that was sent once (`_sent_once`). The reply to a cancelled call matches neither, and is dropped.

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Annotated, Final, Literal, NamedTuple, cast

import attrs

from fencepost.client.effects import SendRequest
from fencepost.client.errors import (
    Failure,
    RequestFailed,
    RequestTimeout,
    refused,
    unknown_broker,
    unknown_partition,
    unknown_topic,
)
from fencepost.client.metadata import ClusterMetadata, CoordinatorOf
from fencepost.client.reply_errors import explanation, remedy_of, worst_error
from fencepost.client.settings import RETRY_BACKOFF_MAX_MS, backoff_ms
from fencepost.protocol import messages as m
from fencepost.protocol.errors import NO_ERROR, ErrorCode, Remedy
from fencepost.protocol.fork import Due, Ignored, Ordered, Pace, Rank, Shared
from fencepost.protocol.messages import ReplyBody, Request
from fencepost.protocol.terms import NEWEST_VERSION, TopicPartition
from fencepost.protocol.values import value

Anywhere = Literal["any node", "controller"]
ANY_NODE: Final[Anywhere] = "any node"
CONTROLLER: Final[Anywhere] = "controller"


@value
class BrokerAt:
    """One broker by its id, for requests about the broker's own state."""

    broker_id: int


_UNANSWERED: Final = (ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT)
_SILENCE: Final = "no reply arrived"
_NO_REMEDY: Final = Remedy.NONE
# The kind of resource that such an error is about, and the field of requests that has its name.
_RESOURCES: Final = {
    ErrorCode.GROUP_AUTHORIZATION_FAILED: ("group", "group_id"),
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ("transactional id", "transactional_id"),
}

Target = Anywhere | TopicPartition | CoordinatorOf | BrokerAt
"""Which node must answer: any, the controller, the leader of a partition, a coordinator, or one broker."""


CallNumber = Annotated[int, Rank("call")]
"""The number of a call, or the token of a request that it sent; both come from one counter."""


@attrs.define(eq=False)
class PendingCall:
    """One request until it is answered. `indefinite`: an earlier attempt may have had its effect."""

    number: CallNumber
    request: Request = attrs.field(kw_only=True)
    target: Target = attrs.field(kw_only=True)
    deadline: int | None = attrs.field(default=None, kw_only=True)
    timeout_ms: int | None = attrs.field(default=None, kw_only=True)
    attempts: Pace[int] = attrs.field(default=0, kw_only=True)
    retry_at: Due = attrs.field(default=0, kw_only=True)
    node: int | None = attrs.field(default=None, kw_only=True)
    last_node: Ignored[int | None] = attrs.field(default=None, kw_only=True)
    """The node of the present or the last attempt."""
    indefinite: bool = attrs.field(default=False, kw_only=True)
    last_error: Ignored[ErrorCode] = attrs.field(default=NO_ERROR, kw_only=True)
    because: Ignored[str] = attrs.field(default="", kw_only=True)
    """The sentence about the last error, if there is a better one than that of its code."""
    looks_up: CoordinatorOf | None = attrs.field(default=None, kw_only=True)
    """Of a FindCoordinator that was sent for other calls."""

    def in_words(self, error: ErrorCode) -> str:
        """The request, and which group or transactional id it names if this error is about one."""
        what = type(self.request).__name__
        if error not in _RESOURCES:
            return what
        kind, field = _RESOURCES[error]
        name = getattr(self.request, field, None) if self.looks_up is None else self.looks_up.name
        return what if name is None else f"{what} of {kind} {name!r}"


class FinishedCall(NamedTuple):
    """A call with its reply or its failure. A rejected JoinGroup has both (KIP-394)."""

    call: PendingCall
    body: ReplyBody | None
    failure: Failure | None
    remedy: Remedy


@attrs.define(eq=False)
class PendingCalls:
    """The calls of one client and its metadata; also requests metadata and looks up coordinators."""

    cluster: ClusterMetadata
    versions: Shared[Mapping[type[Request], int]] = attrs.field(factory=dict[type[Request], int])
    """The requests that are sent in an older version than the newest."""
    _next: Ignored[int] = 0
    _waiting: Ordered[dict[CallNumber, PendingCall]] = attrs.field(factory=dict)
    """Calls that are not in flight, by number."""
    _in_flight: Ordered[dict[CallNumber, PendingCall]] = attrs.field(factory=dict)
    """Calls in flight, by the token of their last request."""
    _sent_once: Ordered[dict[CallNumber, int]] = attrs.field(factory=dict)
    """The nodes of requests sent once, by their tokens."""
    _metadata_call: CallNumber | None = None
    _expires_at: Ignored[float] = inf
    """No call has an earlier deadline, so `expired`, which every input calls, need not look before."""
    _out: list[SendRequest] = attrs.field(factory=list)

    def submit(
        self, request: Request, target: Target, deadline: int | None = None, *, timeout_ms: int | None = None
    ) -> int:
        """Retries the request until it is answered, fails for good, or `deadline` has passed; returns the
        number of the call. `timeout_ms` limits each attempt, if it differs from the client's request timeout.
        """
        number = self._number()
        if deadline is not None and deadline < self._expires_at:
            self._expires_at = deadline
        self._waiting[number] = PendingCall(
            number, request=request, target=target, deadline=deadline, timeout_ms=timeout_ms
        )
        return number

    def once(self, node_id: int, request: Request) -> int:
        """Sends a request without retries; returns its token."""
        token = self._number()
        self._sent_once[token] = node_id
        self._send(node_id, request, token)
        return token

    def unanswered(self, node_id: int) -> int:
        """The number of requests sent with `once` that a node has not answered, even if no one needs the
        reply any more.
        """
        return list(self._sent_once.values()).count(node_id)

    def _send(self, node_id: int, request: Request, token: int, timeout_ms: int | None = None) -> None:
        version = self.versions.get(type(request), NEWEST_VERSION)
        self._out.append(
            SendRequest(node_id, request=request, token=token, version=version, timeout_ms=timeout_ms)
        )

    def cancel(self, number: int, *, also_in_flight: bool = True) -> bool:
        """Cancels a call that waits for its next attempt, or any: a later reply is dropped. False if it was
        not cancelled, or has ended.
        """
        token = next((token for token, call in self._in_flight.items() if call.number == number), None)
        if token is None:
            return self._waiting.pop(number, None) is not None
        if also_in_flight:
            del self._in_flight[token]
        return also_in_flight

    @property
    def topics(self) -> set[str]:
        """The topics whose leaders have a call to answer."""
        targets = [call.target for call in self._pending]
        return {target.topic for target in targets if isinstance(target, TopicPartition)}

    @property
    def _pending(self) -> list[PendingCall]:
        return [*self._waiting.values(), *self._in_flight.values()]

    def _number(self) -> int:
        self._next += 1
        return self._next

    # --- inputs ---------------------------------------------------------------------------------------------

    def answered(
        self, token: int, error: ErrorCode, body: ReplyBody | None, now: int
    ) -> list[FinishedCall] | None:
        """Applies the reply to `token`; returns the calls that it ends, none after a retry or a
        cancellation. None for the reply to a request that was sent once: its sender knows the token.
        """
        sent_to = self._sent_once.pop(token, None)
        call = self._in_flight.pop(token, None)
        if error in _UNANSWERED:
            self.cluster.rotation += 1
            self.cluster.is_stale = True
        if sent_to is not None:
            return None
        if call is None:
            return []
        node, call.node = call.node, None
        if call.number == self._metadata_call:
            if isinstance(body, m.MetadataReply) and node is not None:
                self.cluster.learn(body, from_node=node)
            self._metadata_answered(call, error, now)
            return []
        worst, because = error, explanation(call.request, error)
        if worst is NO_ERROR and body is not None:
            worst, because = worst_error(body)
        if worst is not NO_ERROR:
            return self._rejected(call, worst, because, body, now)
        if call.looks_up is not None:
            self.cluster.learn_coordinator(call.looks_up, cast("m.FindCoordinatorReply", body))
            return []
        return [FinishedCall(call, body, None, _NO_REMEDY)]

    def _metadata_answered(self, call: PendingCall, error: ErrorCode, now: int) -> None:
        """Retries Metadata until each wanted topic is known or impossible; each reply is used at once."""
        if error is NO_ERROR and not self.cluster.is_stale:
            self._metadata_call = None
            return
        call.attempts += 1
        call.retry_at = now + backoff_ms(call.attempts)
        self._waiting[call.number] = call

    def _rejected(
        self, call: PendingCall, error: ErrorCode, because: str, body: ReplyBody | None, now: int
    ) -> list[FinishedCall]:
        call.attempts += 1
        call.indefinite = call.indefinite or not error.definite
        call.last_error, call.because = error, because
        call.retry_at = now + backoff_ms(call.attempts, error)
        if call.looks_up is not None and not self._waiting_for(call.looks_up):
            return []  # every call that needed it has timed out or was cancelled
        remedy = remedy_of(type(call.request), error)
        match remedy:
            case Remedy.RETRY:
                self._waiting[call.number] = call
                return []
            case Remedy.REFRESH:
                self._doubt(call.target)
                self._waiting[call.number] = call
                return []
            case _:
                failure = refused(RequestFailed, error, call.in_words(error), because)
                # The rejection of a JoinGroup contains the member id to use (KIP-394); no other has more to
                # say.
                joined = body if isinstance(body, m.JoinGroupReply) else None
                return [FinishedCall(ended, joined, failure, remedy) for ended in self._ended_with(call)]

    def _ended_with(self, call: PendingCall) -> list[PendingCall]:
        """The call, or for a FindCoordinator all calls that waited for its coordinator."""
        if call.looks_up is None:
            return [call]
        ended = self._waiting_for(call.looks_up)
        for waiting in ended:
            del self._waiting[waiting.number]
        return ended

    def _waiting_for(self, coordinator: CoordinatorOf) -> list[PendingCall]:
        return [call for call in self._waiting.values() if call.target == coordinator]

    def _lookup_of(self, coordinator: CoordinatorOf) -> PendingCall | None:
        return next((call for call in self._pending if call.looks_up == coordinator), None)

    def _doubt(self, target: Target) -> None:
        if isinstance(target, TopicPartition):
            self.cluster.forget_leader(target)
        elif isinstance(target, CoordinatorOf):
            self.cluster.coordinators.pop(target, None)
        elif target == CONTROLLER or isinstance(target, BrokerAt):
            self.cluster.is_stale = True

    def expired(self, now: int) -> list[FinishedCall]:
        """Ends the calls whose deadline has passed, in flight or not."""
        ended: list[FinishedCall] = []
        if now < self._expires_at:
            return ended
        self._expires_at = inf
        for call in self._pending:
            if call.deadline is None:
                continue
            if call.deadline > now:
                self._expires_at = min(self._expires_at, call.deadline)
                continue
            self.cancel(call.number)
            call.indefinite = call.indefinite or call.node is not None
            what = type(call.request).__name__
            if isinstance(call.target, TopicPartition):
                what = f"{what} of {call.target}"
            because = f"{what} did not finish in time: {self._why(call)}"
            # The client itself makes the codes for a missing reply; no broker sent them.
            said = NO_ERROR if call.last_error in _UNANSWERED else call.last_error
            failure = Failure(RequestTimeout, because=because, error=said)
            ended.append(FinishedCall(call, None, failure, Remedy.RAISE))
        return ended

    def refusals(self, now: int) -> dict[int, ErrorCode]:
        """Why the last attempt of each pending call failed, or the lookup of its coordinator. Not of a call
        whose present attempt has waited for a second: a JoinGroup waits for the other members.
        """
        return {
            call.number: self._last_error(call)
            for call in self._pending
            if call.node is None or now - call.retry_at < RETRY_BACKOFF_MAX_MS
        }

    def why_pending(self) -> str:
        """Why the oldest call that has no reply yet has none."""
        pending = self._pending
        return self._why(min(pending, key=lambda call: call.number)) if pending else _SILENCE

    def _why(self, call: PendingCall) -> str:
        said = self._last_error(call)
        if not self.cluster.nodes and said in (NO_ERROR, *_UNANSWERED):
            return f"no broker answered at {self.cluster.bootstrap_in_words()}"
        is_known = call.last_node in self.cluster.nodes
        if is_known and call.last_node in self.cluster.unreachable and said in (NO_ERROR, *_UNANSWERED):
            return f"{self.cluster.node_in_words(call.last_node)} did not answer"
        if call.node is None and not call.attempts and (missing := self._missing(call.target)):
            return missing
        return _SILENCE if said is NO_ERROR else f"{call.because or said.meaning} ({said.name})"

    def _last_error(self, call: PendingCall) -> ErrorCode:
        """That of the call, or before its first attempt that of the lookup of its coordinator."""
        if call.last_error is NO_ERROR and isinstance(call.target, CoordinatorOf):
            lookup = self._lookup_of(call.target)
            return NO_ERROR if lookup is None else lookup.last_error
        return call.last_error

    def _missing(self, target: Target) -> str | None:
        """Why no node is known that can answer, as far as metadata says."""
        denied = self.denied(target)
        if denied is not None:
            return denied.because
        return f"partition {target} has no leader" if isinstance(target, TopicPartition) else None

    def denied(self, target: Target) -> Failure | None:
        """The failure of a partition or a broker that does not exist, as far as metadata says."""
        if isinstance(target, BrokerAt):
            nodes = self.cluster.nodes
            return (
                unknown_broker(target.broker_id, nodes) if nodes and target.broker_id not in nodes else None
            )
        if not isinstance(target, TopicPartition):
            return None
        error = self.cluster.topic_errors.get(target.topic)
        if error is not None:
            return unknown_topic(target.topic, error)
        count = self.cluster.partition_counts.get(target.topic)
        return None if count is None or target.partition < count else unknown_partition(target, count)

    # --- output ---------------------------------------------------------------------------------------------

    def due(self, now: int) -> list[SendRequest]:
        """The requests to send now: calls after their backoff with a known target, and lookups for the
        others.
        """
        for call in list(self._waiting.values()):
            if call.retry_at <= now:
                node = self._locate(call.target)
                if node is not None:
                    self._start(call, node)
        if self.cluster.is_stale and now >= self.cluster.ask_at and self._lacks_metadata():
            self.cluster.back_off(now)
            self._metadata_call = self.submit(m.Metadata(topics=tuple(self.cluster.wanted)), ANY_NODE)
            self._start(self._waiting[self._metadata_call], self.cluster.any_node())
        sends, self._out = self._out, []
        return sends

    def _lacks_metadata(self) -> bool:
        """Whether stale metadata is needed and no request for it is pending."""
        return self._metadata_call is None and (
            bool(self.cluster.wanted)
            or any(
                call.target == CONTROLLER or isinstance(call.target, BrokerAt)
                for call in self._waiting.values()
            )
        )

    def _start(self, call: PendingCall, node: int) -> None:
        del self._waiting[call.number]
        if call.number == self._metadata_call:
            call.request = self.cluster.ask()  # perhaps for more topics than at the last attempt
        elif isinstance(call.request, m.ListOffsets):
            call.request = self.cluster.with_leader_epochs(call.request)
        call.node = call.last_node = node
        token = self._number()
        self._in_flight[token] = call
        self._send(node, call.request, token, call.timeout_ms)

    def _locate(self, target: Target) -> int | None:
        if isinstance(target, TopicPartition):
            return self.cluster.leader(target)
        if isinstance(target, CoordinatorOf):
            return self._coordinator(target)
        if target == CONTROLLER:
            if self.cluster.controller_id is None:
                self.cluster.is_stale = True
            return self.cluster.controller_id
        if isinstance(target, BrokerAt):
            known = target.broker_id in self.cluster.nodes
            self.cluster.is_stale = self.cluster.is_stale or not known
            return target.broker_id if known else None
        return self.cluster.any_node()

    def _coordinator(self, coordinator: CoordinatorOf) -> int | None:
        found = self.cluster.coordinators.get(coordinator)
        if found is None and self._lookup_of(coordinator) is None:
            request = m.FindCoordinator(kind=coordinator.kind, key=coordinator.name)
            lookup = self._waiting[self.submit(request, ANY_NODE)]
            lookup.looks_up = coordinator
            self._start(lookup, self.cluster.any_node())
        return found

    def wake_at(self, now: int) -> int | None:
        """When `due` or `expired` next has something to do; for a call in flight, at its deadline, if any."""
        at = self.cluster.ask_at if self.cluster.is_stale and self._lacks_metadata() else None
        for call in self._waiting.values():
            if call.retry_at > now and (at is None or call.retry_at < at):
                at = call.retry_at
            if call.deadline is not None and (at is None or call.deadline < at):
                at = call.deadline
        for call in self._in_flight.values():
            if call.deadline is not None and (at is None or call.deadline < at):
                at = call.deadline
        return at
