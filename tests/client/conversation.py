"""A conversation with a producer or consumer core by values alone: what it sent waits here until the test
answers it.

Rule: no thread, no socket, no clock; time is a number that the test moves.
"""

from __future__ import annotations

from typing import Any, TypeVar

from fencepost.client.batch import ProducerBatch, ProducerRecord
from fencepost.client.consumer import ConsumerMachine
from fencepost.client.effects import (
    BatchDone,
    Effect,
    Resolve,
    SendRequest,
    TransactionCall,
    WakeAt,
    WarnProgram,
)
from fencepost.client.errors import Failure
from fencepost.client.producer import ProducerMachine
from fencepost.client.settings import ProducerSettings
from fencepost.protocol import messages as m
from fencepost.protocol.batches import BatchHeader
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import ReplyBody
from fencepost.protocol.terms import TopicPartition
from tests.batches import read_batch

RequestT = TypeVar("RequestT")

NODE = 1
PRODUCER_ID = 7


class Talk:
    """What one machine said and was told."""

    def __init__(self, machine: ProducerMachine | ConsumerMachine, *, partitions: int = 2) -> None:
        self.machine = machine
        self.partitions = partitions
        self.now = 1_000
        self.sent: list[SendRequest] = []
        self.done: list[ProducerBatch] = []
        self.resolved: dict[TransactionCall, Failure | None] = {}
        self.warned: list[str] = []
        self.wake_at: int | None = None
        self.topic_ids: dict[str, bytes] = {}
        self.leader_epoch = 0

    def hear(self, effects: list[Effect]) -> None:
        """Takes what a machine wants; questions about the cluster are answered at once."""
        for effect in effects:
            match effect:
                case SendRequest():
                    self.sent.append(effect)
                case WakeAt():
                    self.wake_at = effect.at
                case BatchDone():
                    self.done.append(effect.batch)
                case Resolve():
                    self.resolved[effect.operation] = effect.failure
                case WarnProgram():
                    self.warned.append(effect.because)
                case _:
                    raise AssertionError(effect)
        self._answer_about_the_cluster()

    def _answer_about_the_cluster(self) -> None:
        asked = [send for send in self.sent if isinstance(send.request, m.Metadata | m.FindCoordinator)]
        for send in asked:
            if send not in self.sent:
                continue  # answered meanwhile, by what the answer before it caused
            if isinstance(send.request, m.Metadata):
                self.reply(send, self.metadata(send.request))
            else:
                self.reply(send, m.FindCoordinatorReply(node_id=NODE, host="h", port=1))

    def metadata(self, request: m.Metadata) -> m.MetadataReply:
        """One node leads every partition of every topic that is asked for."""
        parts = tuple(
            m.PartitionMetadata(partition=i, leader_id=NODE, leader_epoch=self.leader_epoch)
            for i in range(self.partitions)
        )
        return m.MetadataReply(
            cluster_id="c",
            controller_id=NODE,
            nodes=(m.NodeAddress(node_id=NODE, host="h", port=1),),
            topics=tuple(
                m.TopicMetadata(
                    topic=name,
                    error=ErrorCode.NONE,
                    is_internal=False,
                    partitions=parts,
                    topic_id=self.topic_ids.get(name, bytes(range(16))),
                )
                for name in request.topics or ()
            ),
        )

    def waiting(self, kind: type[RequestT]) -> list[RequestT]:
        """The requests of a kind that have no answer yet."""
        return [send.request for send in self.sent if isinstance(send.request, kind)]

    def first(self, kind: type) -> SendRequest:
        """The oldest unanswered request of a kind."""
        return next(send for send in self.sent if isinstance(send.request, kind))

    def reply(self, send: SendRequest, body: ReplyBody | None, error: ErrorCode = ErrorCode.NONE) -> None:
        """Answers a request."""
        self.sent.remove(send)
        self.hear(self.machine.on_reply(send.token, error, body, self.now))

    def refuse(self, kind: type, error: ErrorCode) -> None:
        """Answers the oldest request of a kind by an error for all of it."""
        self.reply(self.first(kind), None, error)

    def lose(self, kind: type) -> None:
        """Loses the answer to the oldest request of a kind, and the connection with it."""
        self.refuse(kind, ErrorCode.NETWORK_EXCEPTION)

    def after(self, ms: int) -> None:
        """Time goes by, and the machine is woken as often as it asked for."""
        end = self.now + ms
        for _ in range(1_000):
            if self.wake_at is None or self.wake_at > end:
                break
            self.now, self.wake_at = max(self.now, self.wake_at), None
            self.hear(self.machine.wake(self.now))
        else:
            raise AssertionError(f"woken without end at {self.now}")
        self.now = end
        self.hear(self.machine.wake(self.now))


class ProducerTalk(Talk):
    """A conversation with a producer."""

    machine: ProducerMachine

    def __init__(self, settings: ProducerSettings, *, partitions: int = 2) -> None:
        machine = ProducerMachine("h:1", settings)
        super().__init__(machine, partitions=partitions)
        self.machine = machine
        machine.cluster.want("t")

    def initialize(self, *, epoch: int = 0) -> None:
        """init_transactions(), granted."""
        self.hear(self.machine.init_transactions(self.now))
        self.grant(epoch=epoch)

    def grant(self, *, producer_id: int = PRODUCER_ID, epoch: int = 0) -> None:
        """An InitProducerId is answered."""
        self.reply(
            self.first(m.InitProducerId), m.InitProducerIdReply(producer_id=producer_id, producer_epoch=epoch)
        )

    def send(self, value: bytes, *, partition: int = 0, key: bytes | None = None) -> None:
        """One record, and a flush, so that each is a batch of its own."""
        self.hear(self.machine.wake(self.now))
        place = self.machine.append(ProducerRecord("t", value, key, partition), now=self.now, wall_ms=5_000)
        assert place is not None
        self.hear(self.machine.flush(self.now))

    def commit(self) -> None:
        self.hear(self.machine.commit(self.now))

    def abort(self) -> None:
        self.hear(self.machine.abort(self.now))

    def store(self, *, base_offset: int = 100, error: ErrorCode = ErrorCode.NONE) -> None:
        """Answers the oldest Produce, alike for each of its partitions."""
        send = self.first(m.Produce)
        assert isinstance(send.request, m.Produce)
        parts = tuple(
            m.ProducedPartition(
                topic=part.topic,
                partition=part.partition,
                error=error,
                base_offset=base_offset if error is ErrorCode.NONE else -1,
                log_start_offset=0,
            )
            for part in send.request.partitions
        )
        self.reply(send, m.ProduceReply(partitions=parts))

    def end(self, *, epoch: int) -> None:
        """Answers EndTxn with the identity of the next transaction."""
        self.reply(self.first(m.EndTxn), m.EndTxnReply(producer_id=PRODUCER_ID, producer_epoch=epoch))

    def batches(self) -> list[tuple[int, BatchHeader]]:
        """(partition, header) of each batch that is on the wire, oldest first."""
        return [
            (part.partition, read_batch(part.records))
            for produce in self.waiting(m.Produce)
            for part in produce.partitions
        ]

    def sequences(self, partition: int = 0) -> list[int]:
        """First sequences of the batches on the wire for a partition."""
        return [header.base_sequence for where, header in self.batches() if where == partition]


def transactional(**settings: Any) -> ProducerTalk:
    """A producer with a transactional id that has initialized."""
    talk = ProducerTalk(ProducerSettings(transactional_id="pay", **settings))
    talk.initialize()
    return talk


def idempotent(**settings: Any) -> ProducerTalk:
    """A producer without a transactional id; its first record asks for a producer id."""
    return ProducerTalk(ProducerSettings(**settings))


HERE = TopicPartition("t", 0)
