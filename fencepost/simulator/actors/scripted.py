"""The clients of a scenario: a producer that follows its script, a consumer that reads until the run ends.

Rule: a line of a script that cannot be carried out is skipped, as an application would skip it. After a
transaction that must be aborted the script continues with the next `begin`; after a producer that failed for
good, with the next `init`.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from fencepost.client.settings import ConsumerSettings, ProducerSettings
from fencepost.faults.phrases import Point, ScriptLine, Verb
from fencepost.simulator.actors.clients import (
    BATCH_BYTES,
    REQUEST_TIMEOUT_MS,
    Actor,
    AttemptedTransaction,
    Sender,
    can_go_on,
    polls_of,
)
from fencepost.simulator.faults.protocol_events import ProtocolEvent, ProtocolEvents
from fencepost.simulator.judges.operations import PositionSet
from fencepost.simulator.scenarios.model import ConsumerPart, ProducerPart
from fencepost.simulator.world.events import CallBegan, RecordsRead
from fencepost.simulator.world.processes import Script

INIT_AGAIN_MS = 20  # before an init that failed for now is tried again


@attrs.define(eq=False)
class ProducerPlayer(Actor):
    """A producer with its script, in the newest transaction version that the cluster supports."""

    protocol_events: ProtocolEvents
    transaction_version: int
    part: ProducerPart
    sender: Sender | None = None
    transaction: AttemptedTransaction | None = None
    reached: set[Point] = attrs.Factory(set[Point])

    def script(self) -> Script[None]:
        """Every line of the script, in order."""
        verbs: dict[Verb, Callable[[ScriptLine], Script[None]]] = {
            Verb.INIT: self._init,
            Verb.BEGIN: self._begin,
            Verb.SEND: self._send,
            Verb.SEND_OFFSETS: self._send_offsets,
            Verb.COMMIT: self._commit,
            Verb.ABORT: self._abort,
            Verb.FLUSH: lambda _: self.flush(),
            Verb.PAUSE: self._pause,
            Verb.WAIT: self._wait,
        }
        for line in self.part.script:
            if line.verb is Verb.WAIT and line.point is not None:
                # From the beginning: a point may be reached before the script reaches the line that waits for
                # it.
                self._look_out_for(line.point)
        for line in self.part.script:
            self.world.events.publish(CallBegan(self.process.participant, str(line)))
            yield from verbs[line.verb](line)
        yield from self.flush()

    # --- lines ----------------------------------------------------------------------------------------------

    def _made(self) -> Sender:
        part = self.part
        settings = ProducerSettings(
            transactional_id=part.transactional_id,
            transaction_timeout_ms=part.transaction_timeout_ms,
            transaction_version=self.transaction_version,
            linger_ms=0,
            batch_size=BATCH_BYTES,
            request_timeout_ms=part.request_timeout_ms,
            delivery_timeout_ms=part.delivery_timeout_ms,
            max_in_flight_requests_per_connection=part.max_in_flight,
        )
        return self.new_sender(settings)

    def _usable(self) -> Sender | None:
        """The producer, or None if there is none or it has failed for good; without transactions it needs no
        init."""
        if self.sender is None and self.part.transactional_id is None:
            self.sender = self._made()
        return None if self.sender is None or self.sender.machine.is_over else self.sender

    def _init(self, _: ScriptLine) -> Script[None]:
        self.transaction = None
        while True:
            self.sender = self._made()
            failure = yield from self.sender.init()
            if failure is None or self.sender.machine.is_over:
                return
            yield INIT_AGAIN_MS

    def _begin(self, _: ScriptLine) -> Script[None]:
        sender = self._usable()
        if sender is not None:
            self.transaction = sender.begin()
        # No wait, but every line of a script is a generator.
        yield from ()

    def _send(self, line: ScriptLine) -> Script[None]:
        sender, transaction = self._usable(), self.transaction
        assert line.partition is not None, "a line that sends has a partition"
        if sender is None or (transaction is None and self.part.transactional_id is not None):
            return
        if transaction is None:
            transaction = self.single_write()
        yield from sender.send(transaction, line.partition, line.value.encode())

    def _send_offsets(self, line: ScriptLine) -> Script[None]:
        sender = self._usable()
        assert line.partition is not None, "a line that commits an offset has a partition"
        if sender is not None and sender.machine.failure is None and self.transaction is not None:
            sender.send_offsets({line.partition: line.offset}, line.group)
        yield from ()

    def _commit(self, _: ScriptLine) -> Script[None]:
        sender, transaction = self._usable(), self.transaction
        if sender is None or transaction is None:
            return
        # A transaction that has failed already cannot be committed, and Kafka's producer would raise; an
        # application aborts it.
        failure = sender.machine.failure
        if failure is None:
            failure = yield from sender.commit(transaction)
        if failure is not None and can_go_on(failure):
            yield from sender.abort(transaction)
        self.transaction = None

    def _abort(self, _: ScriptLine) -> Script[None]:
        sender, transaction = self._usable(), self.transaction
        if sender is not None and transaction is not None:
            yield from sender.abort(transaction)
            self.transaction = None

    def _pause(self, line: ScriptLine) -> Script[None]:
        yield line.time_ms

    # --- waiting for others ---------------------------------------------------------------------------------

    def _look_out_for(self, point: Point) -> None:
        def reached(_: ProtocolEvent) -> None:
            self.reached.add(point)
            # Not at once: a node may be in the middle of the act that reached the point.
            self.world.next(lambda _: self.process.advance())

        self.protocol_events.listen(point, reached)

    def _wait(self, line: ScriptLine) -> Script[None]:
        point = line.point
        assert point is not None, "a line that waits has a point"
        yield lambda: point in self.reached


@attrs.define(eq=False)
class ConsumerPlayer(Actor):
    """A consumer that reads, an operation per poll, until the run is over."""

    part: ConsumerPart

    def script(self) -> Script[None]:
        """Reads until the run is over."""
        part, world = self.part, self.world
        settings = ConsumerSettings(
            group_id=part.group, isolation_level=part.isolation_level, request_timeout_ms=REQUEST_TIMEOUT_MS
        )
        consumer = self.new_receiver(settings)
        consumer.assign(part.reads)
        self.assigned = consumer.machine.assigned
        placed = tuple(PositionSet(where) for where in part.reads)
        while True:
            invoked_at = world.now
            batches = yield from consumer.poll()
            if not batches:
                continue
            self.has_read(
                (*placed, *polls_of(batches)), invoked_at=invoked_at, isolation_level=part.isolation_level
            )
            placed = ()
            for batch in batches:
                values = tuple(value.decode() for value in batch.values)
                world.events.publish(RecordsRead(self.process.participant, str(batch.partition), values))
