"""The producer: an idempotent or transactional sender as a machine over values (KIP-98, KIP-360, KIP-890).

Rule: an input records what happened; only `_step` sends requests.
"""

# Theory of operation
# -------------------
#
# Calls, replies and the time go in; requests, results and the next wake-up time come out. The machine never
# waits, reads a clock or touches a socket. It has three parts:
#
#       append()                on_reply(), wake()            commit(), abort()
#          |                          |                             |
#          v                          v                             v
#     Accumulator  -- batches -->  Delivery  -- Produce -->  PendingCalls  -- EndTxn, InitProducerId, ... -->
#     open batches,                sequences,                retries, metadata,
#     memory, linger               order per partition       coordinators
#
# The state is a row of a table in `producer_states`: a call or an event moves it to the state in its cell, or
# the error in the cell refuses the call. begin(), append() and abandon() send nothing. Every other input ends
# in `_step`, which does everything that is possible now, in this order:
#
#     1. expire batches past their delivery timeout
#     2. close batches that have lingered
#     3. send batches, then offsets
#     4. send EndTxn once every batch and offset of the transaction has a reply
#     5. collect the requests that are due
#
# Two invariants carry exactly-once:
#
# * A batch keeps its producer id, epoch and sequence through every retry (`Delivery`). Only a batch that the
#   broker has certainly rejected is renumbered. Otherwise a retry could be stored twice.
# * EndTxn is sent when every batch and every offset of the transaction has a reply. If an attempt to commit
#   may have been carried out (its reply was lost, or was an error that is not `definite`), a rejection of the
#   retry proves nothing: the first attempt may have committed, and a new owner of the id may have fenced us
#   since. The outcome is then CommitOutcomeUnknown, never a failure.
#
# An error moves the machine by its remedy (the table of protocol/errors.py): RETRY and REFRESH stay inside
# `PendingCalls`; ABORT makes the transaction abortable and keeps the producer; FATAL, for example a fenced
# epoch, ends the producer (KIP-588, KIP-1050). Kafka splits this class into KafkaProducer, Sender and
# TransactionManager.

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from fencepost.client.accumulator import Accumulator, AppendedRecord, Route
from fencepost.client.add_partitions import TransactionContents
from fencepost.client.batch import ProducerBatch, ProducerRecord, check_record
from fencepost.client.delivery import Delivery, Refusal
from fencepost.client.effects import Effect, Resolve, TransactionCall
from fencepost.client.errors import (
    AUTHORIZATION_ERRORS,
    BELONGS_TO_PARENT,
    AuthorizationFailed,
    ClientClosed,
    ClientError,
    CommitOutcomeUnknown,
    DeliveryFailed,
    DeliveryTimeout,
    Failure,
    ProducerFailed,
    ProducerFenced,
    TransactionAborted,
    WrongState,
    partitions_in_words,
    refused,
    unknown_partition,
    unknown_topic,
)
from fencepost.client.group_offsets import CommittableOffset, ConsumerGroupMetadata
from fencepost.client.metadata import CoordinatorOf, MetadataNumber
from fencepost.client.producer_states import (
    IDEMPOTENT,
    LAST_STATES,
    SENDING,
    TRANSACTIONAL,
    ProducerInput,
    ProducerState,
    ProducerTable,
    refusal,
)
from fencepost.client.requests import RequestMachine
from fencepost.client.retries import ANY_NODE, CallNumber, FinishedCall
from fencepost.client.settings import METADATA_MAX_IDLE_MS, ProducerProtocol, ProducerSettings
from fencepost.client.transaction_offsets import TransactionOffsets
from fencepost.protocol import messages as m
from fencepost.protocol.errors import NO_ERROR, ErrorCode, Remedy
from fencepost.protocol.fork import Ignored, Shared
from fencepost.protocol.messages import ReplyBody
from fencepost.protocol.terms import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    CoordinatorType,
    TopicPartition,
    TransactionResult,
)

_S, _I = ProducerState, ProducerInput
_SEND: Final = _I.SEND  # enum members are looked up in Python until 3.12, and this one at every record
_FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
_RESULTS = {
    _S.COMMITTING_TRANSACTION: TransactionResult.COMMIT,
    _S.ABORTING_TRANSACTION: TransactionResult.ABORT,
}
_ABORTED: Final = Failure(
    TransactionAborted, because="the transaction was aborted before this record was stored"
)


@attrs.define(eq=False)
class ProducerMachine(RequestMachine):
    """One producer. Illegal calls change nothing."""

    settings: Shared[ProducerSettings]
    state: ProducerState = _S.UNINITIALIZED
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    failure: Failure | None = None
    """Why the transaction must be aborted, or why the producer has ended."""
    operation: TransactionCall | None = None
    """The call that waits for a result."""
    accumulator: Accumulator = attrs.field(init=False)
    delivery: Delivery = attrs.field(init=False)
    _table: Shared[ProducerTable] = attrs.field(init=False)
    _protocol: Shared[ProducerProtocol] = attrs.field(init=False)
    _contents: TransactionContents | None = None
    """Only with the protocol before KIP-890."""
    _init_call: CallNumber | None = None
    _end_call: CallNumber | None = None
    _offsets: TransactionOffsets = attrs.field(init=False)
    _used_at: Ignored[dict[str, int]] = attrs.field(factory=dict)
    """When a batch was last opened for a topic, or its metadata awaited."""
    _added: bool = False
    """Something of this transaction was sent, so it needs an EndTxn."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        settings = self.settings
        self._table = IDEMPOTENT if settings.transactional_id is None else TRANSACTIONAL
        self._protocol = settings.protocol
        self.calls.versions = self._protocol.versions
        self.accumulator = Accumulator(settings)
        self.delivery = Delivery(settings, self.accumulator, self.calls)
        self._offsets = TransactionOffsets(self.calls, settings.transactional_id)
        if settings.transactional_id is not None and self._protocol.adds_partitions_first:
            self._contents = TransactionContents(self.calls, settings.transactional_id)

    @property
    def awaits_coordinator(self) -> bool:
        """Whether a request other than Produce is pending."""
        adding = None if self._contents is None else self._contents.call
        return self._offsets.has_work or (self._init_call or self._end_call or adding) is not None

    @property
    def may_abort(self) -> bool:
        """Whether a transaction is open that abort() would end."""
        return self.state in (_S.IN_TRANSACTION, _S.ABORTABLE_ERROR, _S.ABORTING_TRANSACTION)

    @property
    def is_over(self) -> bool:
        """Whether only close() is possible."""
        return self.state in LAST_STATES

    @property
    def has_work(self) -> bool:
        """Whether a record or a request has no outcome yet."""
        return bool(self.accumulator.batches) or self.awaits_coordinator

    @property
    def io_tick_ms(self) -> int:
        """The linger time: a record may be due for sending while no call runs."""
        return max(1, self.settings.linger_ms)

    # --- calls of the user ----------------------------------------------------------------------------------

    def init_transactions(self, now: int) -> list[Effect]:
        """Registers the transactional id: fences its former owner and ends its transaction."""
        self._call(_I.INIT)
        self.operation = TransactionCall.INIT_TRANSACTIONS
        self._ask_identity()
        return self._step(now)

    def begin(self) -> None:
        """Begins a transaction; sends nothing."""
        self._call(_I.BEGIN)
        self._added = False
        if self._contents is not None:
            self._contents.forget()

    def partition_count(self, topic: str) -> int | None:
        """The number of partitions of a topic, None until it is known. UnknownTopic for an invalid name."""
        cluster = self.calls.cluster
        cluster.want(topic)
        error = cluster.topic_errors.get(topic)
        if error is not None and (error.remedy is Remedy.RAISE or error in AUTHORIZATION_ERRORS):
            raise unknown_topic(topic, error).exception()
        return cluster.partition_counts.get(topic)

    def route(self, topic: str, now: int) -> Route | None:
        """The route of a topic, None until its metadata arrives; WrongState if sending is not allowed."""
        self._call(_I.SEND)
        self._used_at[topic] = now
        count = self.partition_count(topic)
        if count is None:
            return None
        if self.state is _S.INITIALIZING and self._init_call is None:
            self._ask_identity()
        return self.accumulator.route(topic, count)

    def append(
        self, record: ProducerRecord, *, now: int, wall_ms: int, since: MetadataNumber | None = None
    ) -> AppendedRecord | None:
        """Appends one record; `wake` sends it. None while the topic is unknown, or until metadata that was
        requested after `since` (None: after now) shows whether it has the partition; BufferFull without room.
        """
        check_record(record)
        topic, partition = record.topic, record.partition
        route = self.route(topic, now)
        if route is None:
            return None
        if partition is not None and not 0 <= partition < len(route.open):
            if not self.cluster.is_newer_than(self.cluster.asked if since is None else since):
                return None
            raise unknown_partition(TopicPartition(topic, partition), len(route.open)).exception()
        where = route.partition_for(record.key) if partition is None else partition
        return self.accumulator.add(route, where, record, now=now, wall_ms=wall_ms)

    def flush(self, now: int) -> list[Effect]:
        """Sends all records without lingering."""
        self.accumulator.close_all()
        return self._step(now)

    def send_offsets(
        self,
        offsets: Mapping[TopicPartition, CommittableOffset],
        group: ConsumerGroupMetadata | str,
        now: int,
    ) -> list[Effect]:
        """Adds a group's offsets to this transaction; they are sent at once, and commit waits for the reply.
        A group name alone commits them as a client that is not a member, which is never fenced.
        """
        self._call(_I.SEND_OFFSETS)
        member = ConsumerGroupMetadata(group_id=group) if isinstance(group, str) else group
        self._offsets.add(member, offsets)
        return self._step(now)

    def commit(self, now: int) -> list[Effect]:
        """Commits once all records and offsets are stored; Resolve(COMMIT) holds the result."""
        self._call(_I.COMMIT)
        self.operation = TransactionCall.COMMIT
        self.accumulator.close_all()
        return self._step(now)

    def abort(self, now: int) -> list[Effect]:
        """Aborts; records that were not sent are dropped. Resolve(ABORT) holds the result."""
        self._call(_I.ABORT)
        self.operation = TransactionCall.ABORT
        return self._step(now)

    def give_up_commit(self, now: int) -> list[Effect]:
        """The caller of commit stopped waiting: the outcome is unknown, unless EndTxn was never sent."""
        if self.state is not _S.COMMITTING_TRANSACTION:
            return []
        if self._end_call is None:
            because = "commit_transaction() timed out or was interrupted before the commit was sent"
            self._fail(Failure(TransactionAborted, because=f"{because}: {self._why_not_sent()}"))
        else:
            self._leave_commit_unknown(
                "commit_transaction() timed out or was interrupted before the reply arrived"
            )
        return self._step(now)

    def _why_not_sent(self) -> str:
        """What the commit waits for: the oldest batch with an error, or a request that has no reply."""
        for batch in self.accumulator.batches.values():
            error = batch.last_error or self.cluster.topic_errors.get(batch.topic)
            if error:
                return f"{batch.where}: {error.meaning} ({error.name})"
        return self.calls.why_pending()

    def close(self, now: int) -> list[Effect]:
        """Closes the producer; records without an outcome get ClientClosed. So does a commit that another
        thread or task waits for, unless it was sent: then its outcome is unknown.
        """
        if self.operation is TransactionCall.COMMIT:
            if self._end_call is None:
                because = "the producer was closed before the commit was sent"
                self._resolve(Failure(ClientClosed, because=because))
            else:
                self._leave_commit_unknown("the producer was closed before the reply arrived")
        self._drop_calls()
        self._enter(_S.CLOSED)
        self.delivery.fail(
            Failure(ClientClosed, because="the producer was closed before this record was stored"),
            also_in_flight=True,
        )
        return self._step(now)

    def abandon(self, now: int) -> None:
        self.failure = BELONGS_TO_PARENT
        self._drop_calls()
        self._enter(_S.CLOSED)
        self.delivery.fail(self.failure, also_in_flight=True)

    # --- what happens ---------------------------------------------------------------------------------------

    def _finished(self, finished: FinishedCall, now: int) -> None:
        number = finished.call.number
        if number == self._init_call:
            self._init_call = None
            self._initialized(finished)
        elif number == self._end_call:
            self._end_call = None
            self._ended(finished)
        elif self._offsets.answered(number):
            self._take_add_reply(finished, "the consumer offsets were rejected")
        elif self._contents is not None and number == self._contents.call:
            self._contents.answered(is_in=finished.failure is None)
            self._take_add_reply(finished, "a partition or group was not added to the transaction")

    def _metadata_arrived(self, now: int) -> None:
        self._drop_idle_topics(now - METADATA_MAX_IDLE_MS)
        counts = self.cluster.partition_counts
        self.accumulator.fit_routes(counts)
        for batch in self.accumulator.batches_without_partition():
            if batch.is_done:
                continue  # failed with its transaction, by an earlier batch
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            because = (
                f"{batch.where}: topic {batch.topic!r} now has {partitions_in_words(counts[batch.topic])}, "
                f"and this one is gone ({error.name})"
            )
            self._fail_batch(batch, Failure(DeliveryFailed, because=because, error=error))

    def _drop_idle_topics(self, used_before: int) -> None:
        waiting = {where.topic for where in self.accumulator.active}
        idle = [t for t, at in self._used_at.items() if at <= used_before and t not in waiting]
        self.cluster.drop(idle)
        for topic in idle:
            del self._used_at[topic]

    def _once_answered(self, token: int, error: ErrorCode, body: ReplyBody | None, now: int) -> None:
        for rejected in self.delivery.answered(token, error, body, now):
            self._take_rejection(rejected)

    # --- machinery ------------------------------------------------------------------------------------------

    def _call(self, call: ProducerInput) -> None:
        """A call of the user: moves, or raises the error of the table."""
        cell = self._table[self.state][call]
        if isinstance(cell, ProducerState):
            self._enter(cell)
            return
        if self.failure is not None:
            raise self.failure.exception()
        if self.state is _S.CLOSED:
            raise ClientClosed(f"{call.value}() was called on a closed producer")
        if self._table is IDEMPOTENT:
            raise WrongState(
                f"{call.value}() needs a producer with a transactional_id; this producer has none"
            )
        raise WrongState(refusal(call, self.state), cell)

    def _move(self, event: ProducerInput) -> None:
        """An event: an absent cell is a bug of this module."""
        cell = self._table[self.state].get(event)
        assert isinstance(cell, ProducerState), f"{event} cannot happen while {self.state}"
        self._enter(cell)

    def _enter(self, state: ProducerState) -> None:
        if state is not self.state:
            self.state = state
            self.accumulator.allow(isinstance(self._table[state].get(_SEND), ProducerState))

    def _step(self, now: int) -> list[Effect]:
        """Does everything that is possible now, and returns the effects."""
        accumulator = self.accumulator
        if accumulator.batches:
            self._expire(now)
        accumulator.close_lingered(now)
        if self.state in SENDING:
            if accumulator.active or self._offsets.pending:
                self._drain(now)
                if accumulator.close_lingered(now):  # some had waited for the batches just sent
                    self._drain(now)
            if self._offsets.pending:
                groups = None if self._contents is None else self._contents.groups
                self._added |= self._offsets.submit((self.producer_id, self.producer_epoch), groups)
        elif self.state in (ProducerState.ABORTABLE_ERROR, ProducerState.ABORTING_TRANSACTION):
            # Requests in flight are awaited, because their batches may be stored. Retries and unsent batches
            # are dropped.
            self.delivery.fail(self.failure or _ABORTED, also_in_flight=False)
            self._give_up_adding(also_in_flight=self._protocol.renews_identity)
        self._end_if_done()
        done = self.delivery.done
        if done:
            self._out[:0] = done
            done.clear()
        return super()._step(now)

    def _drain(self, now: int) -> None:
        identity = (self.producer_id, self.producer_epoch)
        added = None
        if self._contents is not None:
            added = self._contents.partitions
            waiting = (queue.partition for queue in self.accumulator.active.values() if queue.ready)
            groups = (group.group_id for group in self._offsets.pending)
            self._added |= self._contents.ask(identity, waiting, groups)
        self._added |= self.delivery.drain(now, *identity, added)

    def _wake_at(self, now: int) -> int | None:
        at, of_calls = self.accumulator.wake_at(now), self.calls.wake_at(now)
        return of_calls if at is None or (of_calls is not None and of_calls < at) else at

    def _resolve(self, failure: Failure | None = None) -> None:
        if self.operation is not None:
            self._out.append(Resolve(self.operation, failure=failure))
            self.operation = None

    # --- identity -------------------------------------------------------------------------------------------

    def _ask_identity(self) -> None:
        """Requests the first or the next identity. A transactional producer sends its current one, by which
        the coordinator tells it from a new instance (KIP-360).
        """
        if self._init_call is not None:
            return
        name = self.settings.transactional_id
        request = m.InitProducerId(
            transactional_id=name,
            transaction_timeout_ms=self.settings.transaction_timeout_ms,
            producer_id=NO_PRODUCER_ID if name is None else self.producer_id,
            producer_epoch=NO_PRODUCER_EPOCH if name is None else self.producer_epoch,
        )
        target = ANY_NODE if name is None else CoordinatorOf(CoordinatorType.TRANSACTION, name)
        self._init_call = self.calls.submit(request, target)

    def _adopt(self, granted: m.InitProducerIdReply | m.EndTxnReply) -> None:
        self.producer_id, self.producer_epoch = granted.producer_id, granted.producer_epoch

    def _initialized(self, finished: FinishedCall) -> None:
        if isinstance(finished.body, m.InitProducerIdReply):
            self._adopt(finished.body)
            self.failure = None
            self._move(_I.INITIALIZED)
            self._resolve()
        elif finished.remedy is Remedy.ABORT and self.settings.transactional_id is not None:
            self._move(_I.FAILED)
            self._resolve(finished.failure)
        else:
            self._fatal(_fatal_failure(finished))

    # --- the end of a transaction ---------------------------------------------------------------------------

    def _end_if_done(self) -> None:
        """Sends EndTxn once all batches and offsets are answered; an empty transaction needs none."""
        if self.state not in _RESULTS or self.accumulator.batches or self.awaits_coordinator:
            return
        name = self.settings.transactional_id
        if not self._added or name is None:
            self._end_transaction()
            return
        request = m.EndTxn(name, self.producer_id, self.producer_epoch, _RESULTS[self.state])
        self._end_call = self.calls.submit(request, CoordinatorOf(CoordinatorType.TRANSACTION, name))

    def _ended(self, finished: FinishedCall) -> None:
        """A rejected retry may leave the outcome unknown: see the second invariant above."""
        committing = self.state is _S.COMMITTING_TRANSACTION
        error = finished.failure.error if finished.failure else NO_ERROR
        if isinstance(finished.body, m.EndTxnReply):
            self._go_on_as(finished.body)
        elif committing and finished.call.indefinite:
            self._leave_commit_unknown(
                "an earlier attempt may have succeeded, and the coordinator answered "
                f"{error.name} to the retry",
                error,
            )
        elif committing and finished.remedy is Remedy.ABORT:
            self._fail(refused(TransactionAborted, error, "the coordinator rejected the commit"))
        else:
            self._fatal(_fatal_failure(finished))

    def _go_on_as(self, reply: m.EndTxnReply) -> None:
        """The identity of the next transaction. Before KIP-890 it stays, unless a sequence is missing
        (KIP-360).
        """
        if self._protocol.renews_identity:
            self._adopt(reply)
        elif self.accumulator.lacks_sequence(self.producer_id, self.producer_epoch):
            self._ask_identity()
            return
        self._end_transaction()

    def _end_transaction(self) -> None:
        self.failure = None
        self._move(_I.ENDED)
        self._resolve()

    def _leave_commit_unknown(self, why: str, error: ErrorCode = NO_ERROR) -> None:
        self._drop_calls()
        because = f"it is unknown whether the transaction committed: {why}"
        self.failure = Failure(CommitOutcomeUnknown, because=because, error=error)
        self._move(_I.COMMIT_UNKNOWN)
        self._resolve(self.failure)

    def _take_add_reply(self, finished: FinishedCall, because: str) -> None:
        if finished.failure is None:
            return
        if finished.remedy is Remedy.FATAL:
            self._fatal(_fatal_failure(finished))
        else:
            self._fail(refused(TransactionAborted, finished.failure.error, because))

    # --- failures -------------------------------------------------------------------------------------------

    def _expire(self, now: int) -> None:
        for batch in self.accumulator.expired(now):
            if batch.is_done:
                continue  # failed with its transaction, by an earlier batch
            timeout_ms = self.settings.delivery_timeout_ms
            because = f"{batch.where}: no acknowledgement within delivery_timeout_ms ({timeout_ms} ms)"
            last = batch.last_error
            if last is not NO_ERROR:
                because = f"{because}: {last.meaning} ({last.name})"
            self._fail_batch(batch, Failure(DeliveryTimeout, because=because, error=last))

    def _take_rejection(self, rejection: Refusal) -> None:
        batch, error, remedy = rejection
        if remedy is Remedy.FATAL:
            kind = _fatal_kind(error)
            self._fatal(refused(kind, error, f"produce to {batch.where}"))
        elif batch.is_done:
            return  # failed with its transaction, by another batch of this reply
        elif batch.is_refused:
            self._renew(batch)
        else:
            self._fail_batch(batch, refused(DeliveryFailed, error, f"produce to {batch.where}"))

    def _fail_batch(self, batch: ProducerBatch, failure: Failure) -> None:
        """A batch fails: its transaction must be aborted; without one, its sequence may be missing."""
        self.delivery.finish(batch, failure)
        if self.settings.transactional_id is not None:
            because = f"a batch failed ({failure.because})"
            self._fail(Failure(TransactionAborted, because=because, error=failure.error))
        elif batch.was_sent:
            self._renew(batch)

    def _renew(self, batch: ProducerBatch) -> None:
        """Requests a new identity; this partition waits for it, others continue with the old one."""
        self.accumulator.queue(batch.where).is_broken = True
        self._move(_I.RENEW)
        if self.state is _S.INITIALIZING:
            self._ask_identity()

    def _fail(self, failure: Failure) -> None:
        """Makes the transaction abortable; unsent batches fail."""
        if self.state in LAST_STATES:
            return
        self.failure = self.failure or failure
        self._move(_I.FAILED)
        self.delivery.fail(self.failure, also_in_flight=False)
        if self.operation is TransactionCall.COMMIT:
            self._resolve(self.failure)

    def _fatal(self, failure: Failure) -> None:
        """Ends the producer."""
        if self.state in LAST_STATES:
            return
        self.failure = failure
        self._drop_calls()
        self._move(_I.FATAL)
        self.delivery.fail(failure, also_in_flight=True)
        self._resolve(failure)

    def _give_up_adding(self, *, also_in_flight: bool) -> None:
        """Drops pending offsets. A request in flight is awaited, unless a bumped epoch makes it harmless."""
        self._offsets.give_up(also_in_flight=also_in_flight)
        if self._contents is not None:
            self._contents.give_up(also_in_flight=also_in_flight)

    def _drop_calls(self) -> None:
        self._give_up_adding(also_in_flight=True)
        for number in (self._init_call, self._end_call):
            if number is not None:
                self.calls.cancel(number)
        self._init_call = self._end_call = None


def _fatal_failure(finished: FinishedCall) -> Failure:
    assert finished.failure is not None, "only a failed call is fatal"
    error = finished.failure.error
    return attrs.evolve(finished.failure, kind=_fatal_kind(error))


def _fatal_kind(error: ErrorCode) -> type[ClientError]:
    """What to raise for an error that ends the producer."""
    if error in AUTHORIZATION_ERRORS:
        return AuthorizationFailed
    return ProducerFenced if error in _FENCED else ProducerFailed
