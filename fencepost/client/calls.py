"""The calls of a producer, a consumer and an admin, each written once as a script that every driver can run.

Rule: a script never blocks. It touches the machine, passes effects to its driver, and yields a `Wait`, or a
`Callback` of the program.
"""

# Theory of operation
# -------------------
#
# The machines (`producer`, `consumer`, `requests`) turn inputs into effects and never wait. Their callers do
# wait: until a commit is answered, until the buffer has room, until a record arrives. This module decides
# what a call waits for, for how long, and what happens when the wait ends early. Each call is a generator, a
# script:
#
#         script                         driver                                   where
#         ------                         ------                                   -----
#         perform(effects)         -->   bytes into sockets
#         yield Wait(until, ...)   -->   rounds of a selector                     shells/sync_driver.py
#                                        a parked task                            shells/aio_driver.py
#                                        a process in virtual time                simulator/world/processes.py
#         (continues)              <--   `until()` is true, or `deadline` passed
#         yield Callback(...)      -->   runs a rebalance listener of the program
#         return value             -->   the result of the public method
#
# So the simulator runs the code that users run, and the sync and async clients cannot drift apart: their
# public methods are these scripts, each with its signature and its docstring (`shells/clients.py`).
#
# A driver keeps three promises:
#
# * A script runs alone: between two of its `yield`s, nothing else changes the machine, except that the hot
#   path of another thread may add records to open batches (accumulator.py). The blocking driver holds a lock
#   and releases it only while a script waits.
# * A script resumes when `until()` is true or when the deadline has passed. It checks which of the two it
#   was.
# * An exception that hits the waiting caller (Ctrl-C, a cancelled task) is thrown into the script at its
#   `yield`. Otherwise a call could end silently: a commit whose EndTxn was sent and not answered must end as
#   CommitOutcomeUnknown, because "cancelled" reads like "not committed", and the program would do the work a
#   second time.
#
# Timeouts follow Kafka's names: `max_block_ms` (max.block.ms) limits send, init, commit and abort;
# `default_api_timeout_ms` limits requests of consumers and admins. After RequestTimeout the request is still
# pending, and the same call continues to wait for it, as in KafkaProducer.

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import inf
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from fencepost.client.accumulator import Place, Route
from fencepost.client.arguments import Milliseconds
from fencepost.client.batch import ProducerBatch, ProducerRecord
from fencepost.client.consumer import ConsumerMachine
from fencepost.client.consumer_records import ConsumedBatch, Record
from fencepost.client.effects import CallAnswered, Effect, TransactionCall
from fencepost.client.errors import (
    AuthenticationFailed,
    BufferFull,
    ClientError,
    CommitOutcomeUnknown,
    Failure,
    RequestTimeout,
    UnknownTopic,
    WrongState,
    unknown_topic,
)
from fencepost.client.group_member import RebalanceListener
from fencepost.client.group_offsets import (
    CommittableOffset,
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    committed_offsets,
)
from fencepost.client.metadata import CoordinatorOf, MetadataNumber
from fencepost.client.network import ROOM
from fencepost.client.producer import ProducerMachine
from fencepost.client.requests import RequestMachine
from fencepost.client.retries import Target
from fencepost.client.settings import ABORT_GRACE_MS, CLOSE_TIMEOUT_MS, UNKNOWN_TOPIC_PATIENCE_MS
from fencepost.protocol import messages as m
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.messages import Request
from fencepost.protocol.terms import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, CoordinatorType, TopicPartition

ResultT = TypeVar("ResultT")

# The `news` of a Wait names what can make its condition true, so that a driver wakes only those tasks.
ANYTHING: Final = "anything"


class Wait(NamedTuple):
    """Resume when `until()` is true, or at `deadline` (ms of the driver's clock), whichever is first."""

    until: Callable[[], bool]
    news: Hashable = ANYTHING
    deadline: float = inf
    is_shielded: bool = False
    """Whether a cancelled caller waits nevertheless."""


class Callback(NamedTuple):
    """Call a function of the program, without a lock, because it may use the client. It may be async."""

    function: Callable[[list[TopicPartition]], Awaitable[None] | None]
    partitions: list[TopicPartition]


CallScript = Generator[Wait | Callback, None, ResultT]


class CallDriver(Protocol):
    """What runs scripts: it has the clock, the connections, and the results of the machine."""

    @property
    def now(self) -> int:
        """Milliseconds of the monotonic clock for timeouts."""
        ...

    @property
    def wall_ms(self) -> int:
        """Milliseconds since 1970, for the timestamps of records."""
        ...

    @property
    def cancelled(self) -> tuple[type[BaseException], ...]:
        """The exceptions of a cancelled task. A cancel scope swallows them, and with them a lost outcome."""
        ...

    @property
    def resolved(self) -> dict[TransactionCall, Failure | None]: ...

    @property
    def answers(self) -> dict[int, CallAnswered]: ...

    def perform(self, effects: list[Effect]) -> None: ...

    def check_running(self) -> None:
        """Raises WrongState or ClientClosed outside the life of the client."""
        ...


class TopicNotLoaded(UnknownTopic):
    """The metadata of the topic is requested, but has not arrived."""


class ProducerCalls:
    """The calls of a producer. Every script may raise ClientError."""

    __slots__ = ("_driver", "_has_waiting_caller", "_machine", "_max_block_ms", "_turn", "_unfinished")

    def __init__(
        self, machine: ProducerMachine, driver: CallDriver, turn: AbstractContextManager[object] | None = None
    ) -> None:
        self._machine = machine
        # The hot path of `send` appends without the lock of the driver.
        self._turn: AbstractContextManager[object] = turn or nullcontext()
        self._driver = driver
        self._max_block_ms = machine.settings.max_block_ms
        # The call whose caller stopped waiting while its request continues.
        self._unfinished: TransactionCall | None = None
        self._has_waiting_caller = False  # one that waits for the coordinator

    # --- records --------------------------------------------------------------------------------------------

    def append(self, record: ProducerRecord, timeout_ms: float | None = None) -> CallScript[Place]:
        """Appends one record; waits while its topic is unknown or the buffer is full."""
        since = self._machine.cluster.asked
        return self._until_ready(record.topic, lambda now: self._append(record, now, since), timeout_ms)

    def _append(self, record: ProducerRecord, now: int, since: MetadataNumber | None = None) -> Place | None:
        with self._turn:
            return self._machine.append(record, now=now, wall_ms=self._driver.wall_ms, since=since)

    def append_nowait(self, record: ProducerRecord) -> Place:
        """Appends one record without waiting: BufferFull, or TopicNotLoaded while its topic or its partition
        is not known.
        """
        now = self._driver.now
        try:
            place = self._append(record, now)
        finally:
            self._driver.perform(self._machine.wake(now))
        if place is None:
            what = "" if record.partition is None else f"partition {record.partition} of "
            raise TopicNotLoaded(f"{what}topic {record.topic!r} is not known yet: send() waits for metadata")
        return place

    def route(self, topic: str, timeout_ms: float | None = None) -> CallScript[Route]:
        """The route of a topic; waits until the topic is known."""
        return self._until_ready(topic, lambda now: self._machine.route(topic, now), timeout_ms)

    def _until_ready(
        self, topic: str, attempt: Callable[[int], ResultT | None], timeout_ms: float | None = None
    ) -> CallScript[ResultT]:
        """Repeats `attempt` until it succeeds. BufferFull or RequestTimeout at the deadline; UnknownTopic if
        the topic is still unknown after UNKNOWN_TOPIC_PATIENCE_MS.
        """
        driver, machine = self._driver, self._machine
        deadline: float | None = None
        patience_ends = inf
        while True:
            full: BufferFull | None = None
            now, used = driver.now, machine.accumulator.used
            try:
                found = attempt(now)
            except BufferFull as problem:
                found, full = None, problem
            driver.perform(machine.wake(now))
            if found is not None:
                return found
            if deadline is None:
                timeout_ms = self._max_block_ms if timeout_ms is None else timeout_ms
                deadline = now + timeout_ms
                # A topic may be about to be created, so its error is raised only if it lasts. Without a limit
                # the caller waits until the topic exists.
                patience_ends = inf if timeout_ms == inf else now + UNKNOWN_TOPIC_PATIENCE_MS
            error = machine.cluster.topic_errors.get(topic)
            if error is not None and now >= patience_ends:
                raise unknown_topic(topic, error).exception()
            if now >= deadline:
                raise full or RequestTimeout(
                    f"the metadata of topic {topic!r} did not arrive within max_block_ms ({timeout_ms} ms): "
                    f"{machine.calls.why_pending()}"
                )
            limit = deadline if error is None else min(patience_ends, deadline)
            yield self._ready(topic, limit) if full is None else self._room(used, limit)

    def _room(self, used: int, deadline: float) -> Wait:
        """Waits until less than `used` bytes are in use; the next attempt finds out if that is enough."""
        machine = self._machine
        return Wait(lambda: machine.is_over or machine.accumulator.used < used, ROOM, deadline)

    def _ready(self, topic: str, deadline: float) -> Wait:
        machine = self._machine
        cluster = machine.cluster
        error, answered = cluster.topic_errors.get(topic), cluster.answered

        def is_settled() -> bool:
            return (
                (topic in cluster.partition_counts and cluster.answered > answered)
                or topic not in cluster.wanted  # dropped after a long wait: the next attempt wants it again
                or cluster.topic_errors.get(topic) is not error
                or machine.is_over
                or machine.failure is not None
            )

        return Wait(is_settled, ANYTHING, deadline)

    def flush(self, timeout_ms: Milliseconds | None = None) -> CallScript[None]:
        """Sends all records without lingering, and waits until each is stored or has failed.

        A failed record keeps its own error, which flush() does not raise. `timeout_ms`: the limit, after
        which RequestTimeout is raised; None for no limit.
        """
        self._driver.check_running()
        self._driver.perform(self._machine.flush(self._driver.now))
        yield from self.wait_for(list(self._machine.accumulator.batches.values()), timeout_ms)

    def overdue(self, after_ms: Milliseconds) -> dict[TopicPartition, ErrorCode]:
        """The partitions with a record that has waited longer than `after_ms` for its acknowledgement. The
        error says why the oldest one is retried; NONE: no broker has answered. The producer keeps trying.
        """
        overdue: dict[TopicPartition, ErrorCode] = {}
        for batch in self._machine.accumulator.overdue(self._driver.now - after_ms):
            overdue.setdefault(batch.where, batch.last_error)
        return overdue

    def wait_for(
        self, batches: Sequence[ProducerBatch], timeout_ms: Milliseconds | None = None
    ) -> CallScript[None]:
        """Waits until `batches` are done; RequestTimeout after `timeout_ms` (None: no limit)."""
        deadline = inf if timeout_ms is None else self._driver.now + timeout_ms
        for batch in batches:
            if not batch.is_done:
                yield Wait(lambda batch=batch: batch.is_done, batch, deadline)
                if not batch.is_done:
                    raise RequestTimeout(
                        f"the records for {batch.where} were not acknowledged within {timeout_ms} ms"
                    )

    # --- transactions ---------------------------------------------------------------------------------------

    def init_transactions(self, timeout_ms: Milliseconds | None = None) -> CallScript[None]:
        """Registers the transactional id; call it once, before the first transaction.

        It fences the former producer with this id and ends the transaction that it left open. RequestTimeout
        after `timeout_ms` (None for `max_block_ms`): call it again to keep waiting. ProducerFenced or
        ProducerFailed end the producer.
        """
        return self._operate(self._machine.init_transactions, TransactionCall.INIT_TRANSACTIONS, timeout_ms)

    def begin_transaction(self) -> None:
        """Begins a transaction: the records sent from now on belong to it. Sends nothing.

        WrongState before init_transactions() and while another transaction is open.
        """
        self._machine.begin()
        # An abort whose caller had timed out has ended: a further abort belongs to this transaction.
        self._unfinished = None

    def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, CommittableOffset], group_metadata: ConsumerGroupMetadata | str
    ) -> None:
        """Adds a group's offsets to the transaction: they take effect when it commits. Does not wait.

        `offsets`: by partition, the offset of the next record to read, or an OffsetAndMetadata.
        `group_metadata`: what `consumer.group_metadata()` returns. If another member has taken over the
        partitions since, the commit fails with TransactionAborted (KIP-447). A group name alone gives no such
        protection. A rejection is raised by commit_transaction().
        """
        driver = self._driver
        driver.check_running()
        driver.perform(self._machine.send_offsets(offsets, group_metadata, driver.now))

    def commit_transaction(self, timeout_ms: Milliseconds | None = None) -> CallScript[None]:
        """Commits: flushes all records of the transaction and makes them visible to read_committed readers.

        `timeout_ms`: the limit, None for `max_block_ms`. TransactionAborted when the transaction failed and
        must be aborted. CommitOutcomeUnknown when the commit was sent and no reply arrived in time, or the
        caller was interrupted; this error replaces the cancellation of a task, so that no caller can miss it.
        KeyboardInterrupt is raised unchanged, and its cause is CommitOutcomeUnknown, or TransactionAborted if
        the commit was not sent yet; if the transaction was committed, a note says so.
        """
        # AuthenticationFailed, too: a new connection may be refused while EndTxn was sent and has no reply.
        ends_the_wait = (*self._driver.cancelled, AuthenticationFailed)
        try:
            yield from self._operate(self._machine.commit, TransactionCall.COMMIT, timeout_ms)
        except ends_the_wait as cancellation:
            failure = self._give_up_commit()
            if failure is None:
                return  # the reply arrived at the same moment: committed
            if failure.kind is CommitOutcomeUnknown:
                # A scope such as move_on_after swallows a cancellation, and would hide the unknown outcome.
                raise failure.exception() from cancellation
            raise
        except (ClientError, GeneratorExit):
            raise  # the call has its result; or the simulated process was killed
        except BaseException as interruption:  # Ctrl-C stays one, with the outcome of the commit
            failure = self._give_up_commit()
            if failure is None:
                interruption.add_note("Before this interruption, the transaction was committed")
                raise
            raise interruption from failure.exception()

    def abort_transaction(self, timeout_ms: Milliseconds | None = None) -> CallScript[None]:
        """Aborts the transaction: read_committed readers never see its records. Unsent records are dropped.

        RequestTimeout after `timeout_ms` (None for `max_block_ms`): call it again to keep waiting.
        """
        return self._operate(self._machine.abort, TransactionCall.ABORT, timeout_ms)

    def _operate(
        self, start: Callable[[int], list[Effect]], operation: TransactionCall, timeout_ms: float | None
    ) -> CallScript[None]:
        driver = self._driver
        resolved = driver.resolved
        if self._has_waiting_caller:
            raise WrongState(
                f"{operation.value}() is not allowed while another thread or task waits for "
                "init_transactions(), commit_transaction() or abort_transaction(): call these from only "
                "one thread or task"
            )
        if self._unfinished is not operation:  # after a timeout the same call waits for the same request
            resolved.pop(operation, None)
            driver.perform(start(driver.now))
        self._unfinished = operation
        timeout_ms = self._max_block_ms if timeout_ms is None else timeout_ms
        self._has_waiting_caller = True
        try:
            yield Wait(lambda: operation in resolved, operation, driver.now + timeout_ms)
        finally:
            self._has_waiting_caller = False
        if operation not in resolved:
            if operation is not TransactionCall.COMMIT:
                why = self._machine.calls.why_pending()
                raise RequestTimeout(f"{operation.value}() did not finish within {timeout_ms} ms: {why}")
            driver.perform(self._machine.give_up_commit(driver.now))
        self._unfinished = None
        failure = resolved.pop(operation)
        if failure is not None:
            raise failure.exception()

    def _give_up_commit(self) -> Failure | None:
        self._unfinished = None
        self._driver.perform(self._machine.give_up_commit(self._driver.now))
        return self._driver.resolved.pop(TransactionCall.COMMIT, None)

    # --- blocks ---------------------------------------------------------------------------------------------

    def commit_block(self) -> CallScript[None]:
        """The end of a `with producer.transaction()` block: commits, or aborts if that fails."""
        try:
            yield from self.commit_transaction()
        except GeneratorExit:
            raise
        except BaseException as problem:
            yield from self.abort_after(problem)
            raise

    def abort_after(self, problem: BaseException) -> CallScript[None]:
        """Aborts after `problem`, which the caller still gets. An unknown commit is never aborted."""
        if not self._machine.may_abort:
            return
        # After Ctrl-C or a cancellation the user should not wait a minute for a broker that is down. The
        # coordinator aborts the transaction anyway, after transaction_timeout_ms.
        timeout_ms = None if isinstance(problem, Exception) else ABORT_GRACE_MS
        try:
            yield from _shielded(self.abort_transaction(timeout_ms))
        except ClientError as second:
            problem.add_note(f"abort_transaction() failed too: {second}")

    def close(self, timeout_ms: float = CLOSE_TIMEOUT_MS) -> CallScript[None]:
        """Aborts an open transaction or sends the remaining records; the others get ClientClosed."""
        try:
            if self._machine.may_abort and not self._has_waiting_caller:
                yield from self.abort_transaction(timeout_ms)
            elif not self._machine.is_over:
                yield from self.flush(timeout_ms)
        finally:
            self._driver.perform(self._machine.close(self._driver.now))

    def close_after(self, problem: BaseException | None) -> CallScript[None]:
        """The end of a `with` block of the producer; after an exception it waits five seconds at most."""
        if problem is None:
            yield from self.close()
            return
        try:
            yield from _shielded(self.close(ABORT_GRACE_MS))
        except ClientError as second:
            problem.add_note(f"close() failed too: {second}")


def _shielded(script: CallScript[ResultT]) -> CallScript[ResultT]:
    """The same script with waits that a cancellation does not interrupt. A second Ctrl-C interrupts them."""
    try:
        wait = next(script)
        while True:
            try:
                yield wait._replace(is_shielded=True) if isinstance(wait, Wait) else wait
            except BaseException as problem:  # noqa: BLE001 - the script decides, as under `yield from`
                wait = script.throw(problem)
            else:
                wait = next(script)
    except StopIteration as end:
        return end.value


class RequestCalls:
    """The calls of a client that only sends requests: an admin."""

    __slots__ = ("_api_timeout_ms", "_driver", "_machine")

    def __init__(self, machine: RequestMachine, driver: CallDriver, *, api_timeout_ms: int) -> None:
        self._machine = machine
        self._driver = driver
        self._api_timeout_ms = api_timeout_ms

    def ask(self, request: Request, target: Target) -> CallScript[Any]:
        """The reply. RequestFailed when the request was refused, RequestTimeout after `api_timeout_ms`."""
        machine, answers = self._machine, self._driver.answers
        number = machine.calls.submit(request, target, self._driver.now + self._api_timeout_ms)
        try:
            self._wake()
            yield Wait(lambda: number in answers, ("answer", number))
        finally:
            machine.calls.cancel(number)  # an interrupted caller does not need the reply
            answer = answers.pop(number, None)
        assert answer is not None, "every request is answered, if only by its deadline"
        if answer.failure is not None:
            raise answer.failure.exception()
        return answer.reply

    def _wake(self) -> None:
        self._driver.perform(self._machine.wake(self._driver.now))


class ConsumerCalls(RequestCalls):
    """The calls of a consumer."""

    __slots__ = ("_consumer", "_is_calling_back", "_is_iterating", "_listener")

    def __init__(self, machine: ConsumerMachine, driver: CallDriver) -> None:
        super().__init__(machine, driver, api_timeout_ms=machine.settings.default_api_timeout_ms)
        self._consumer = machine
        self._listener = RebalanceListener()
        self._is_calling_back = False
        self._is_iterating = False  # or has left a loop over records

    # --- which partitions -----------------------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads these partitions, from the committed offset of the group or as `auto_offset_reset` says.

        Partitions that were assigned before keep their positions. WrongState while topics are subscribed.
        """
        self._consumer.assign(partitions)

    def subscribe(self, topics: Iterable[str], listener: RebalanceListener | None = None) -> None:
        """Joins the group and reads this consumer's share of the topics; the next poll() starts the join.

        `topics`: their names; a later call replaces them. `listener`: its methods run inside poll() when
        partitions are assigned or revoked. WrongState without a `group_id`, or while partitions are assigned
        by assign().

        If a topic does not exist, the logger `fencepost.client` gets one warning, and the topic is read as
        soon as it exists. If its name is invalid, or ACLs forbid reading it, poll() raises UnknownTopic or
        AuthorizationFailed once.
        """
        self.check_not_calling_back("subscribe")
        self._driver.check_running()
        self._driver.perform(self._consumer.subscribe(topics, self._driver.now))
        self._listener = listener or RebalanceListener()

    def unsubscribe(self) -> CallScript[None]:
        """Leaves the group, which then assigns the partitions to other members.

        A static member (`group_instance_id`) keeps its partitions until its session times out (KIP-345). Does
        nothing without a subscription.
        """
        consumer = self._consumer
        self.check_not_calling_back("unsubscribe")
        self._driver.perform(consumer.unsubscribe(self._driver.now))
        try:
            yield from self._call_back()
        finally:
            # LEAVE_TIMEOUT_MS at most: the session of the member times out anyway.
            yield Wait(lambda: consumer.has_left, ANYTHING, is_shielded=True)

    def assignment(self) -> list[TopicPartition]:
        """The partitions that this consumer reads now."""
        return list(self._consumer.readings)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """The membership under which the polled records may be committed, for
        `send_offsets_to_transaction`.
        """
        return self._consumer.group_metadata()

    def _call_back(self) -> CallScript[bool]:
        """Runs the callback that is due; False if none is. poll() raises what the callback raises."""
        call = self._consumer.rebalance_call
        if call is None:
            return False
        self._is_calling_back = True
        try:
            yield Callback(getattr(self._listener, call.event.value), list(call.partitions))
        finally:
            self._is_calling_back = False
            self._driver.perform(self._consumer.returned(self._driver.now))
        return True

    def check_not_calling_back(self, call: str) -> None:
        """Raises WrongState while a callback of a rebalance runs."""
        if self._is_calling_back:
            raise WrongState(
                f"{call}() is not allowed while a rebalance callback runs: call it after the callback"
            )

    # --- records --------------------------------------------------------------------------------------------

    def poll(self, timeout_ms: Milliseconds = 1_000) -> CallScript[list[ConsumedBatch]]:
        """Returns the batches that are fetched, or arrive within `timeout_ms`; an empty list if there are
        none.

        It requests the next batches before it returns. A subscribed consumer joins its group here and runs
        the callbacks of its listener; it must poll at least every `max_poll_interval_ms`. Raises
        OffsetOutOfRange, CorruptRecords, UnknownTopic or RequestFailed when a partition cannot be read, and
        WrongState when nothing is subscribed or assigned.
        """
        self.check_not_calling_back("poll")
        consumer, driver = self._consumer, self._driver
        driver.check_running()
        consumer.check_has_partitions()
        deadline = driver.now + timeout_ms
        # A program that waits here counts as polling, however long its timeout is.
        patience_ms = inf if consumer.member is None else consumer.settings.max_poll_interval_ms // 2
        if self._is_iterating:
            self._end_iteration()
        while True:
            driver.perform(consumer.poll(driver.now))
            if (yield from self._call_back()):
                continue
            limit = min(deadline, driver.now + patience_ms)
            yield Wait(lambda: consumer.has_news or consumer.needs_poll, ANYTHING, limit)
            if consumer.has_news or driver.now >= deadline:
                break
        batches = consumer.take()
        self._wake()
        return batches

    def one_by_one(self, batches: Sequence[ConsumedBatch]) -> Iterator[Record]:
        """The records of polled batches. Only a record that this iterator has returned counts as seen, so
        commit() does not cover the later ones. The next poll() returns the remaining records again; a loop
        that continues after that poll(), or after a seek, skips them.
        """
        self._is_iterating, consumer = True, self._consumer
        seen = {batch.partition: batch.base_offset for batch in reversed(batches)}
        for batch in reversed(batches):
            reading = consumer.readings[batch.partition]
            reading.iterated, reading.iterated_epoch = batch.base_offset, batch.leader_epoch
        for batch in batches:
            where = batch.partition
            reading = consumer.readings.get(where)
            if reading is not None and reading.iterated == seen[where]:
                reading.iterated_epoch = batch.leader_epoch
            for record in [*batch, None]:
                reading = consumer.readings.get(where)
                if reading is None or reading.iterated != seen[where]:
                    break  # the program has called seek() or poll(), or no longer reads the partition
                reading.iterated = seen[where] = batch.next_offset if record is None else record.offset + 1
                if record is not None:
                    yield record
        for where, offset in seen.items():
            reading = consumer.readings.get(where)
            if reading is not None and reading.iterated == offset:
                reading.iterated = None

    def _end_iteration(self) -> None:
        """Seeks back to the records that an iteration has not returned. poll() does this, not the end of the
        iterator: that may come in any thread, and even in the middle of another step, when the iterator is
        garbage-collected.
        """
        for where, reading in self._consumer.readings.items():
            if reading.iterated is not None:
                self._consumer.seek(where, reading.committable)
        self._is_iterating = False

    def pause(self, *partitions: TopicPartition) -> None:
        """Stops reading assigned partitions: poll() returns nothing from them until resume().

        The consumer stays in its group, and positions stay. A rebalance that takes a partition away forgets
        that it was paused. WrongState if one is not assigned.
        """
        self._consumer.pause(partitions, is_paused=True)

    def resume(self, *partitions: TopicPartition) -> None:
        """Reads paused partitions again; the others are not changed. WrongState if one is not assigned."""
        self._consumer.pause(partitions, is_paused=False)
        self._wake()

    def paused(self) -> list[TopicPartition]:
        """The assigned partitions that are paused."""
        return [where for where, reading in self._consumer.readings.items() if reading.is_paused]

    def position(self, partition: TopicPartition) -> CallScript[int]:
        """The offset of the next record that poll() returns. RequestTimeout if it cannot be found in
        time; errors as for poll().
        """
        reading = self._consumer.reading(partition)
        deadline = self._driver.now + self._api_timeout_ms
        self._wake()
        if reading.problem is not None:  # a reply that has arrived may end it
            yield Wait(lambda: False, ANYTHING, self._driver.now)
        yield Wait(lambda: reading.seen is not None or reading.problem is not None, ANYTHING, deadline)
        if reading.seen is not None:  # a problem is raised by poll(), after the records before it
            return reading.seen
        if reading.problem is not None:
            raise reading.problem.exception()
        raise RequestTimeout(f"the position of {partition} was not found within {self._api_timeout_ms} ms")

    def fetch_errors(self) -> dict[TopicPartition, ErrorCode]:
        """The assigned partitions whose last fetch failed, each with its error. The consumer retries them."""
        readings = self._consumer.readings
        return {where: each.error for where, each in readings.items() if each.error is not NO_ERROR}

    def seek(self, partition: TopicPartition, offset: CommittableOffset) -> None:
        """Sets the position of an assigned partition: the next record is the one at `offset`.

        With an OffsetAndMetadata whose leader epoch is known, the consumer first checks that the log still
        has the records before the offset, as for a committed one.
        """
        self._consumer.seek(partition, offset)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Sets the position to the log start, for all assigned partitions if none is given."""
        self._seek_to(partitions, EARLIEST_TIMESTAMP)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Sets the position to the end: the last stable offset, or with read_uncommitted the high watermark.

        Applies to all assigned partitions if none is given.
        """
        self._seek_to(partitions, LATEST_TIMESTAMP)

    def _seek_to(self, partitions: Iterable[TopicPartition], timestamp: int) -> None:
        for partition in list(partitions) or list(self._consumer.readings):
            self._consumer.seek_to(partition, timestamp)

    # --- offsets --------------------------------------------------------------------------------------------

    def committed(self, partitions: Iterable[TopicPartition]) -> CallScript[dict[TopicPartition, int | None]]:
        """The committed offset of the group for each partition, or None.

        It waits for open transactions that commit offsets of these partitions (KIP-447), whatever the
        isolation level.
        """
        found = yield from self.committed_metadata(partitions)
        return {where: None if each is None else each.offset for where, each in found.items()}

    def committed_metadata(
        self, partitions: Iterable[TopicPartition]
    ) -> CallScript[dict[TopicPartition, OffsetAndMetadata | None]]:
        """Like committed(), with the metadata and the leader epoch that were committed with each offset."""
        wanted = list(partitions)
        reply: m.OffsetFetchReply = yield from self.ask(self._consumer.committed_request(wanted), self._group)
        return committed_offsets(reply, wanted)

    def commit(self, offsets: Mapping[TopicPartition, CommittableOffset] | None = None) -> CallScript[None]:
        """Commits offsets outside any transaction; without `offsets`, the positions of all assigned
        partitions, with their leader epochs.

        `offsets`: by partition, the offset of the next record to read, or an OffsetAndMetadata. CommitFailed
        when other members may already read the partitions; RebalanceInProgress when the group is between two
        generations. WrongState when the consumer has no group.
        """
        group = self._group  # looked up first: without one, nothing to commit is an error, too
        chosen = self._consumer.committable if offsets is None else offsets
        if chosen:
            yield from self.ask(self._consumer.commit_request(chosen), group)

    @property
    def _group(self) -> CoordinatorOf:
        return CoordinatorOf(CoordinatorType.GROUP, self._consumer.group_id)

    def close(self) -> CallScript[None]:
        """Leaves the group."""
        if not self._consumer.has_left:
            yield from self.unsubscribe()
