"""The calls of a producer: sending, flushing, and the ends of a transaction.

Rule: as in `calls`; and a call that stops waiting for a commit says whether it may have been committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import inf
from typing import Final, TypeVar

from fencepost.client.accumulator import AppendedRecord, Route
from fencepost.client.arguments import Milliseconds
from fencepost.client.batch import ProducerBatch, ProducerRecord
from fencepost.client.calls import ANYTHING, CallDriver, CallScript, Wait
from fencepost.client.effects import Effect, TransactionCall
from fencepost.client.errors import (
    AuthenticationFailed,
    AuthorizationFailed,
    BufferFull,
    ClientError,
    CommitOutcomeUnknown,
    Failure,
    ProducerFailed,
    ProducerFenced,
    RequestTimeout,
    UnknownTopic,
    WrongState,
    unknown_topic,
)
from fencepost.client.group_offsets import CommittableOffset, ConsumerGroupMetadata
from fencepost.client.metadata import MetadataNumber
from fencepost.client.network import ROOM
from fencepost.client.producer import ProducerMachine
from fencepost.client.producer_states import ProducerState
from fencepost.client.settings import ABORT_GRACE_MS, CLOSE_TIMEOUT_MS, UNKNOWN_GRACE_MS
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import TopicPartition

ResultT = TypeVar("ResultT")

_ENDS_PRODUCER: Final = (ProducerFenced, ProducerFailed, AuthorizationFailed, AuthenticationFailed)


class TopicNotLoaded(UnknownTopic):
    """The metadata of the topic is requested, but has not arrived."""


class ProducerCalls:
    """The calls of a producer. Every script may raise ClientError."""

    __slots__ = ("_append_lock", "_driver", "_has_waiting_caller", "_machine", "_max_block_ms", "_unfinished")

    def __init__(
        self,
        machine: ProducerMachine,
        driver: CallDriver,
        append_lock: AbstractContextManager[object] | None = None,
    ) -> None:
        self._machine = machine
        # The hot path of `send` appends without the lock of the driver.
        self._append_lock: AbstractContextManager[object] = append_lock or nullcontext()
        self._driver = driver
        self._max_block_ms = machine.settings.max_block_ms
        # The call whose caller stopped waiting while its request continues.
        self._unfinished: TransactionCall | None = None
        self._has_waiting_caller = False  # one that waits for the coordinator

    # --- records --------------------------------------------------------------------------------------------

    def append(self, record: ProducerRecord, timeout_ms: float | None = None) -> CallScript[AppendedRecord]:
        """Appends one record; waits while its topic is unknown or the buffer is full."""
        since = self._machine.cluster.asked
        return self._until_ready(record.topic, lambda now: self._append(record, now, since), timeout_ms)

    def _append(
        self, record: ProducerRecord, now: int, since: MetadataNumber | None = None
    ) -> AppendedRecord | None:
        with self._append_lock:
            return self._machine.append(record, now=now, wall_ms=self._driver.wall_ms, since=since)

    def append_nowait(self, record: ProducerRecord) -> AppendedRecord:
        """Appends one record without waiting: BufferFull, or TopicNotLoaded while its topic or its partition
        is not known.
        """
        now, appended = self._driver.now, None
        try:
            appended = self._append(record, now)
        finally:
            if appended is None or not appended[1]:  # another record of a batch needs nothing more
                self._driver.perform(self._machine.wake(now))
        if appended is None:
            what = "" if record.partition is None else f"partition {record.partition} of "
            raise TopicNotLoaded(f"{what}topic {record.topic!r} is not known yet: send() waits for metadata")
        return appended

    def route(self, topic: str, timeout_ms: float | None = None) -> CallScript[Route]:
        """The route of a topic; waits until the topic is known."""
        return self._until_ready(topic, lambda now: self._machine.route(topic, now), timeout_ms)

    def _until_ready(
        self, topic: str, attempt: Callable[[int], ResultT | None], timeout_ms: float | None
    ) -> CallScript[ResultT]:
        """Repeats `attempt` until it succeeds. BufferFull or RequestTimeout at the deadline; UnknownTopic if
        the topic is still unknown after UNKNOWN_GRACE_MS.
        """
        driver, machine = self._driver, self._machine
        deadline: float | None = None
        grace_ends = inf
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
                grace_ends = inf if timeout_ms == inf else now + UNKNOWN_GRACE_MS
            error = machine.cluster.topic_errors.get(topic)
            if error is not None and now >= grace_ends:
                raise unknown_topic(topic, error).exception()
            if now >= deadline:
                raise full or RequestTimeout(
                    f"the metadata of topic {topic!r} did not arrive within max_block_ms ({timeout_ms} ms): "
                    f"{machine.calls.why_pending()}"
                )
            limit = deadline if error is None else min(grace_ends, deadline)
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
        if self._machine.state is ProducerState.READY:
            raise WrongState(
                "the transaction was ended inside its transaction() block, which commits it at its end: "
                "leave out the call of commit_transaction() or, to abort, raise an exception"
            )
        try:
            yield from self.commit_transaction()
        except GeneratorExit:
            raise
        except BaseException as problem:
            yield from self.abort_after(problem)
            raise

    def abort_after(self, problem: BaseException) -> CallScript[None]:
        """Aborts after `problem`, which the caller raises. Never aborts after a commit with unknown outcome.

        Raises another error of the client than `problem` if the abort shows that the producer is fenced or
        has failed.
        """
        if not self._machine.may_abort:
            return
        # After Ctrl-C or a cancellation the user should not wait a minute for a broker that is down. The
        # coordinator aborts the transaction anyway, after transaction_timeout_ms.
        timeout_ms = None if isinstance(problem, Exception) else ABORT_GRACE_MS
        try:
            yield from _shielded(self.abort_transaction(timeout_ms))
        except ClientError as second:
            _report(second, "abort_transaction()", problem)

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
            _report(second, "close()", problem)


def _report(second: ClientError, call: str, problem: BaseException) -> None:
    """A failure after `problem` becomes a note on it. But one that ends the producer replaces an error of the
    client: after TransactionAborted, a fenced producer would repeat its transaction.
    """
    if isinstance(problem, ClientError) and isinstance(second, _ENDS_PRODUCER):
        raise second from problem
    problem.add_note(f"{call} failed too: {second}")


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
