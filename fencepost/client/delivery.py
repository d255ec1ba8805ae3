"""Batches on the wire: which batch may be sent to which node, and what each reply means for its batches.

Rule: this module keeps the order and the identity of a partition's batches; `ProducerMachine` decides what a
failed batch means for the producer.
"""

# Theory of operation
# -------------------
#
# A leader accepts a batch of a producer only if its sequence follows the last one that it stored (KIP-98). It
# recognises a retry because it remembers the last five batches of each producer, and then returns the offset
# that the batch already has. Three rules follow for the client.
#
# 1. Five in flight. At most `max_in_flight_requests_per_connection` (5) batches of a partition are in the
#    window that begins with the oldest batch without a reply. With six, the leader could have forgotten the
#    first one before its retry arrives, and would answer DUPLICATE_SEQUENCE_NUMBER without an offset, or
#    OUT_OF_ORDER_SEQUENCE_NUMBER (ProducerStateEntry.NUM_BATCHES_TO_RETAIN). The window counts numbered
#    batches, acknowledged or not, because the leader remembers those too:
#
#         unacked:   [7]  8* 9* [10] [11]        * acknowledged, and already removed from the list
#                     ^................^         window = 5, so 12 has to wait for 7
#
# 2. Order of retries. While a batch waits for its retry, only the batch with the lowest sequence is sent. A
#    later one would be rejected as out of order anyway. OUT_OF_ORDER_SEQUENCE_NUMBER for a batch that is not
#    the first one is therefore not a failure: an earlier batch is being retried (Sender.canRetry).
#
# 3. Missing sequences. After a batch has failed for good (`is_broken`), the leader may or may not have it, so
#    no later sequence of the same identity can be accepted for sure. A transactional producer aborts. An
#    idempotent producer asks for a new identity, and `PartitionQueue.adopt` takes it only when no batch of
#    the old one can still arrive (KIP-360).
#
# A topic may be deleted and created again under its name. A request names the topic that the client means by
# its id (KIP-516), so a batch that arrives late for the old topic is refused (UNKNOWN_TOPIC_ID) and cannot
# enter the new one, which knows none of the old sequences. As in Kafka's client, a batch without an
# acknowledgement is then sent to the new topic (Sender.topicIdsForBatches), with the sequence that it has. A
# leader takes any sequence from a producer that it does not know, except in a transaction of version 2, which
# then aborts (`_begins_late` in broker/partitions/checks.py). So here, too, the order counts: the queue
# switches to the new topic when no batch is in flight to the old one (`PartitionQueue.switch_to`), and then
# sends the batch with the lowest sequence first (rule 2). As in Kafka, it does not wait like this when only
# the leader changes.
#
# One request carries at most one batch per partition, so a reply has one result per partition and a batch
# needs no further key. Produce requests pass through `PendingCalls.once`: they are not retried as requests,
# because each batch is retried on its own, perhaps at another leader and together with other batches.

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final, NamedTuple

import attrs

from fencepost.client.accumulator import Accumulator
from fencepost.client.batch import PartitionQueue, ProducerBatch
from fencepost.client.effects import BatchDone
from fencepost.client.errors import Failure
from fencepost.client.reply_errors import remedy_of
from fencepost.client.retries import CallNumber, PendingCalls
from fencepost.client.settings import ProducerSettings, backoff_ms
from fencepost.protocol import messages as m
from fencepost.protocol.errors import NO_ERROR, ErrorCode, Remedy
from fencepost.protocol.fork import Shared
from fencepost.protocol.messages import ReplyBody
from fencepost.protocol.terms import NO_OFFSET, NO_PRODUCER_ID, TopicPartition

# The limit for the batches of one request; Kafka's, max.request.size, is 1 MiB.
REQUEST_SIZE_MAX: Final = 4 * 1024 * 1024

# An earlier batch is missing from the log, or the leader has forgotten the producer (before KIP-360).
SEQUENCE_ERRORS: Final = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})

ACKS_ALL: Final = -1


class Refusal(NamedTuple):
    """A batch that failed for good, with its error."""

    batch: ProducerBatch
    error: ErrorCode
    remedy: Remedy


@attrs.define(eq=False)
class Delivery:
    """Sends batches, and applies the replies."""

    settings: Shared[ProducerSettings]
    accumulator: Accumulator
    calls: PendingCalls
    _requests: dict[CallNumber, tuple[int, ...]] = attrs.field(factory=dict)
    """The numbers of the batches of each request, by its token."""
    done: list[BatchDone] = attrs.field(factory=list)

    # --- out ------------------------------------------------------------------------------------------------

    def drain(
        self, now: int, producer_id: int, producer_epoch: int, only: Container[TopicPartition] | None = None
    ) -> bool:
        """Sends batches that are due, of `only` these partitions if given; True if it sent one."""
        if producer_id == NO_PRODUCER_ID:
            return False
        cluster = self.calls.cluster
        by_node: dict[int, list[PartitionQueue]] = {}
        for queue in self.accumulator.active.values():
            queue.adopt(producer_id, producer_epoch)
            if only is not None and queue.partition not in only:
                continue
            if queue.next_to_send(now) is not None:
                leader = cluster.leader(queue.partition)
                if leader is not None and queue.switch_to(cluster.topic_ids[queue.partition.topic]):
                    by_node.setdefault(leader, []).append(queue)
        sent = False
        for node, queues in by_node.items():
            for _ in range(self.settings.max_in_flight_requests_per_connection - self.calls.unanswered(node)):
                batches = self._take(queues, now)
                if not batches:
                    break
                self._send(node, batches)
                sent = True
        return sent

    def _take(self, queues: Iterable[PartitionQueue], now: int) -> list[ProducerBatch]:
        """The next batch of each queue, as many as fit into one request."""
        taken: list[ProducerBatch] = []
        size = 0
        for queue in queues:
            batch = queue.next_to_send(now)
            if batch is None or (taken and size + batch.size > REQUEST_SIZE_MAX):
                continue
            if batch.data is None and queue.window >= self.settings.max_in_flight_requests_per_connection:
                continue  # rule 1 above, even at a new leader
            if batch.data is None:
                queue.number_next()
                batch.build(
                    producer_id=queue.producer_id,
                    producer_epoch=queue.producer_epoch,
                    transactional=self.settings.transactional_id is not None,
                    compression=self.settings.compression_type,
                )
            batch.in_flight = batch.was_sent = True
            taken.append(batch)
            size += batch.size
        return taken

    def _send(self, node: int, batches: list[ProducerBatch]) -> None:
        topic_ids = self.calls.cluster.topic_ids
        request = m.Produce(
            self.settings.transactional_id,
            ACKS_ALL,
            self.settings.request_timeout_ms,
            tuple(
                [
                    m.ProducePartition(
                        batch.topic, topic_ids[batch.topic], batch.partition, batch.data or b""
                    )
                    for batch in batches
                ]
            ),
        )
        token = self.calls.once(node, request)
        self._requests[token] = tuple([batch.number for batch in batches])

    # --- in -------------------------------------------------------------------------------------------------

    def answered(self, token: int, error: ErrorCode, body: ReplyBody | None, now: int) -> list[Refusal]:
        """Applies the reply to a request: its batches are stored, retried, or returned as refusals."""
        parts = body.partitions if isinstance(body, m.ProduceReply) else ()
        results = {(part.topic, part.partition): part for part in parts}
        refusals: list[Refusal] = []
        for number in self._requests.pop(token):
            batch = self.accumulator.batches.get(number)
            if batch is None:
                continue  # it expired in flight
            batch.in_flight = False
            result = results.get(batch.where)
            if body is not None:
                error = ErrorCode.UNKNOWN_SERVER_ERROR if result is None else result.error
            refusal = self._judge(batch, error, NO_OFFSET if result is None else result.base_offset, now)
            if refusal is not None:
                refusals.append(refusal)
        return refusals

    def _judge(self, batch: ProducerBatch, error: ErrorCode, base_offset: int, now: int) -> Refusal | None:
        queue = self.accumulator.queue(batch.where)
        remedy = remedy_of(m.Produce, error)
        if error in SEQUENCE_ERRORS:
            if batch is not next(b for b in queue.unacked if not b.is_refused):
                remedy = Remedy.RETRY  # an earlier batch is retried first (Sender.canRetry)
            elif self.settings.transactional_id is None:
                batch.is_refused = True  # certainly not stored: may be resent under a new identity
        match remedy:
            case Remedy.NONE:
                stored = error is NO_ERROR
                self.finish(batch, None, base_offset if stored else NO_OFFSET)
                return None
            case Remedy.RETRY | Remedy.REFRESH:
                if remedy is Remedy.REFRESH:
                    self.calls.cluster.forget_leader(queue.partition)
                batch.attempts += 1
                batch.last_error = error
                batch.retry_at = now + backoff_ms(batch.attempts, error)
                return None
            case _:
                return Refusal(batch, error, remedy)

    # --- outcomes -------------------------------------------------------------------------------------------

    def finish(self, batch: ProducerBatch, failure: Failure | None, base_offset: int = NO_OFFSET) -> None:
        """Gives all records of a batch their outcome."""
        if failure is not None and batch.was_sent:
            self.accumulator.queue(batch.where).is_broken = True
        # `is_done` is set last, because another thread may read the batch at any time.
        batch.base_offset = base_offset
        batch.failure = failure
        self.accumulator.finish(batch)
        self.done.append(BatchDone(batch))

    def fail(self, failure: Failure, *, also_in_flight: bool) -> None:
        for batch in list(self.accumulator.batches.values()):
            if also_in_flight or not batch.in_flight:
                self.finish(batch, failure)
