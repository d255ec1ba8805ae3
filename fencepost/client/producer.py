"""The producer: an idempotent or transactional sender as a
machine over values (KIP-98, KIP-360, KIP-890 part 2).

Rule: no clock, no socket, no waiting. Calls, answers and time go in; sends, outcomes and a time to be woken
come out. A commit that was sent and not answered is never called failed: it is CommitOutcomeUnknown.
"""

from __future__ import annotations

from collections.abc import Mapping

from fencepost.client.accumulator import Place, Route
from fencepost.client.batch import Headers, check_record
from fencepost.client.effects import Effect, Operation
from fencepost.client.errors import ClientClosed, Failure, TransactionAborted, UnknownTopic, refused
from fencepost.client.group_offsets import ConsumerGroupMetadata
from fencepost.client.metadata import Cluster
from fencepost.client.producer_inside import ProducerInside
from fencepost.client.producer_states import LAST_STATES, ProducerInput, ProducerState
from fencepost.protocol.errors import ErrorCode, Remedy
from fencepost.protocol.messages import ReplyBody
from fencepost.protocol.terms import TopicPartition

_S, _I = ProducerState, ProducerInput


class ProducerMachine(ProducerInside):
    """One producer. Inputs return the effects that they cause, in order; illegal calls change nothing."""

    __slots__ = ()

    @property
    def cluster(self) -> Cluster:
        """What it knows of the cluster."""
        return self.calls.cluster

    @property
    def may_abort(self) -> bool:
        """Whether a transaction is open that abort() would end."""
        return self.state in (_S.IN_TRANSACTION, _S.ABORTABLE_ERROR, _S.ABORTING_TRANSACTION)

    @property
    def is_over(self) -> bool:
        """Whether only close() is left."""
        return self.state in LAST_STATES

    @property
    def has_work(self) -> bool:
        """Whether a record has no outcome yet, or an answer is awaited."""
        return bool(self.accumulator.batches) or self.is_waiting

    @property
    def io_tick_ms(self) -> int:
        """Records linger while no call runs, so a thread looks as often as they may be due."""
        return max(1, self.settings.linger_ms)

    # --- calls of the user ----------------------------------------------------------------------------------

    def init_transactions(self, now: int) -> list[Effect]:
        """Takes over the transactional id: fences its former owner and ends what that left open."""
        self._call(_I.INIT)
        self.operation = Operation.INIT_TRANSACTIONS
        self._ask_identity()
        return self._step(now)

    def begin(self) -> None:
        """Opens a transaction; nothing is sent for it."""
        self._call(_I.BEGIN)
        self._added = False
        if self._joining is not None:
            self._joining.forget()

    def partition_count(self, topic: str) -> int | None:
        """How many partitions a topic has; None until metadata tells. UnknownTopic when it cannot exist."""
        cluster = self.calls.cluster
        cluster.want(topic)
        error = cluster.topic_errors.get(topic)
        if error is not None and error.remedy is Remedy.RAISE:
            raise refused(UnknownTopic, error, f"topic {topic!r}").exception()
        return cluster.partition_counts.get(topic)

    def route(self, topic: str) -> Route | None:
        """Where records of a topic go, None until metadata tells; begins sending if the state allows it."""
        self._call(_I.SEND)
        count = self.partition_count(topic)
        if count is None:
            return None
        if self.state is _S.INITIALIZING and self._init_call is None:
            self._ask_identity()
        return self.accumulator.route(topic, count)

    def append(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        now: int,
        wall_ms: int,
    ) -> Place | None:
        """Takes one record; call `wake` after it. None while the topic is new; BufferFull without room."""
        check_record(topic, value, key, timestamp_ms, headers)
        route = self.route(topic)
        if route is None:
            return None
        if partition is not None and not 0 <= partition < len(route.open):
            raise UnknownTopic(
                f"topic {topic!r} has {len(route.open)} partitions, so no partition {partition}"
            )
        where = route.partition_for(key) if partition is None else partition
        return self.accumulator.add(
            route,
            where,
            value=value,
            key=key,
            timestamp_ms=timestamp_ms,
            headers=headers,
            now=now,
            wall_ms=wall_ms,
        )

    def flush(self, now: int) -> list[Effect]:
        """Sends every record without lingering; the outcomes tell when each is done."""
        self.accumulator.close_all()
        return self._step(now)

    def send_offsets(
        self, offsets: Mapping[TopicPartition, int], group: ConsumerGroupMetadata | str, now: int
    ) -> list[Effect]:
        """Commits a group's offsets with this transaction; sent at once, and commit waits for the answer.
        A group's name alone commits them as a client that is not a member: nothing fences it.
        """
        self._call(_I.SEND_OFFSETS)
        member = ConsumerGroupMetadata(group_id=group) if isinstance(group, str) else group
        if offsets:
            self._offsets.setdefault(member, {}).update(offsets)
        return self._step(now)

    def commit(self, now: int) -> list[Effect]:
        """Ends the transaction once everything in it is stored; Resolve(COMMIT) says how it went."""
        self._call(_I.COMMIT)
        self.operation = Operation.COMMIT
        self.accumulator.close_all()
        return self._step(now)

    def abort(self, now: int) -> list[Effect]:
        """Ends the transaction; records that were not sent yet never are. Resolve(ABORT) says how it went."""
        self._call(_I.ABORT)
        self.operation = Operation.ABORT
        return self._step(now)

    def give_up_commit(self, now: int) -> list[Effect]:
        """The caller of commit waits no longer. Unless it was never sent, nobody knows what became of it."""
        if self.state is not _S.COMMITTING_TRANSACTION:
            return []
        if self._end_call is None:
            self._fail(Failure(TransactionAborted, because="the commit was given up before it was sent"))
        else:
            self._lose_commit("it was given up while its answer was awaited")
        return self._step(now)

    def close(self, now: int) -> list[Effect]:
        """The end: what has no outcome yet gets none."""
        self._drop_calls()
        self._enter(_S.CLOSED)
        self.delivery.fail(
            Failure(ClientClosed, because="the producer was closed first"), also_in_flight=True
        )
        return self._step(now)

    # --- what happens ---------------------------------------------------------------------------------------

    def on_reply(self, token: int, error: ErrorCode, body: ReplyBody | None, now: int) -> list[Effect]:
        """The answer to a Send, or NETWORK_EXCEPTION or REQUEST_TIMED_OUT when none will come."""
        answer = self.calls.answered(token, error, body, now)
        if isinstance(answer, list):
            for finished in answer:
                self._finished(finished)
        else:
            for refusal in self.delivery.answered(answer, now):
                self._refused(refusal)
        return self._step(now)

    def wake(self, now: int) -> list[Effect]:
        """Time went by."""
        return self._step(now)
