"""What producers say to a broker, right or wrong, with the answer that the naive model expects of each.

Rule: an expectation is made from the logs before the question is asked; beside them it knows what no log
tells: the questions that leaders asked since they lead, and ids that are busy for good.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import attrs

from fencepost.broker.contract import Reply, ReplyTo
from fencepost.broker.settings import NodeSettings
from fencepost.broker.sync_policy import SyncPolicy
from fencepost.journal.journal import JournalSettings
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import TopicPartition, TransactionResult
from fencepost.protocol.transaction_log import TransactionRecord
from tests.broker import naive_answers
from tests.broker.broker_model import bounds, ids
from tests.broker.chronicle import Chronicle
from tests.broker.naive_answers import Answer, Batch, Question, next_sequence
from tests.broker.naive_log import UNKNOWN, Known
from tests.broker.requests import (
    NOBODY,
    Identity,
    batch,
    body_of,
    end_request,
    identity_of,
    init_request,
    marker_request,
    offset_request,
    plain_offset_request,
    produce_batches,
    produced,
)
from tests.broker.story import offsets_log_of

ORDERS, OTHERS = TopicPartition("orders", 0), TopicPartition("orders", 1)
GUEST: Final = TopicPartition("guests", 0)  # of a topic that comes and goes
KEYS: Final = (ORDERS, OTHERS, GUEST)
GROUPS: Final = ("readers", "writers")
NEW_PRODUCE, NEW_OFFSETS, NEW_END = 12, 5, 5  # the versions of those who leave adding to leaders
ABORTABLE_KNOWN_FROM: Final = {m.Produce: 11, m.TxnOffsetCommit: 4}
STRANGER: Final = "stranger"  # a transactional id that nobody owns


@attrs.define(eq=False)
class Producer:
    """One who sends; `identities` are all that it was ever granted, the last is who it is."""

    name: str | None
    identities: list[Identity] = attrs.Factory(list[Identity])


class Conversation:
    """A broker, those who talk to it, and what came up."""

    def __init__(
        self, settings: NodeSettings, policy: SyncPolicy, journal: JournalSettings, came_up: Counter[str]
    ) -> None:
        topics = {ORDERS.topic: 2, GUEST.topic: 1}
        self.story = Chronicle(settings=settings, policy=policy, journal=journal, topics=topics)
        self.producers = [*(Producer(name) for name in ("a", "b", "c")), Producer(None), Producer(None)]
        self.questions: dict[tuple[TopicPartition, int], Question] = {}
        self.busy: set[str] = set()  # ids of which a record was refused by a log that is too old for it
        self.came_up = came_up
        self.values = 0

    def note(self, what: str, *, happened: object = True) -> None:
        if happened:
            self.came_up[what] += 1

    # --- what is known

    @property
    def settings(self) -> NodeSettings:
        return self.story.settings

    @property
    def stores_new(self) -> bool:
        """Whether the log of the cluster has records for transactions of new clients."""
        return self.settings.transaction_version.number > 0

    def exists(self, key: TopicPartition) -> bool:
        return key in self.story.kept

    def is_written(self, key: TopicPartition) -> bool:
        return self.exists(key) and bool(self.story.kept[key].lines)

    def known(self, key: TopicPartition, producer_id: int) -> Known:
        return self.story.meaning(key).known.get(producer_id, UNKNOWN) if self.exists(key) else UNKNOWN

    def record(self, name: str | None) -> TransactionRecord | None:
        return ids(self.story).get(name or "")

    def identity(self, number: int, back: int = 0) -> Identity:
        """Who a producer is, or was some identities ago; a new one becomes somebody first."""
        producer = self.producers[number]
        for _ in range(3):
            if not producer.identities:
                self.begin(number)
        known = producer.identities
        return known[-1 - back % len(known)] if known else Identity(987_654, 0)

    def owner(self, producer_id: int) -> str | None:
        """The transactional id under which somebody was granted this producer id."""
        found = [p.name for p in self.producers for who in p.identities if who.producer_id == producer_id]
        return found[0] if found else None

    def forget_topic(self, topic: str) -> None:
        """It is gone, and what its leader had asked with it."""
        self.questions = {key: asked for key, asked in self.questions.items() if key[0].topic != topic}
        self.story.forget_topic(topic)

    # --- identities and ends

    def begin(self, number: int, expected: Identity = NOBODY, *, timeout_ms: int = 60_000) -> ErrorCode:
        producer = self.producers[number]
        if producer.name is None and expected != NOBODY:
            raised = producer.identities[-1].producer_epoch + 1  # by itself, as idempotent producers do
            producer.identities.append(producer.identities[-1]._replace(producer_epoch=raised))
            return ErrorCode.NONE
        self.story.move_on()
        reply = self.story.ask(init_request(producer.name, expected, timeout_ms=timeout_ms))
        if isinstance(reply.body, m.InitProducerIdReply):
            granted = Identity(reply.body.producer_id, reply.body.producer_epoch)
            retried = producer.identities and granted == producer.identities[-1]
            assert retried or granted not in producer.identities, "an identity is granted once"
            producer.identities.append(granted)
        self.note("an expectation was refused", happened=reply.error is ErrorCode.PRODUCER_FENCED)
        return reply.error

    def end(self, number: int, who: Identity, result: TransactionResult, version: int) -> ErrorCode:
        producer = self.producers[number]
        assert producer.name is not None
        self.story.move_on()
        before = self.record(producer.name)
        reply = self.story.ask_in(version, end_request(who, result, producer.name))
        self.hear(number, reply)
        if reply.error is ErrorCode.UNSUPPORTED_VERSION:
            assert version >= NEW_END
            assert not self.stores_new
            self.busy.add(producer.name)
        is_zombie = before is not None and who.producer_epoch < before.producer_epoch
        self.note(
            "a zombie's end was refused", happened=is_zombie and reply.error is ErrorCode.PRODUCER_FENCED
        )
        return reply.error

    def hear(self, number: int, reply: Reply) -> None:
        """The answer to an end may tell a producer who it is from now on."""
        if isinstance(reply.body, m.EndTxnReply) and identity_of(reply) != NOBODY:
            self.producers[number].identities.append(identity_of(reply))

    def offer_last_words(self, number: int, result: TransactionResult, *, speaks_new: bool) -> list[ReplyTo]:
        """A last batch and the end of a transaction, the one right behind the other; nothing happens yet."""
        who, name = self.identity(number), self.producers[number].name
        assert name is not None
        batches: dict[TopicPartition, bytearray] = {}
        for key in (ORDERS, OTHERS):
            known = self.known(key, who.producer_id)
            first = next_sequence(known, who.producer_epoch)
            sent = Batch(who=who, first=first, count=2, is_transactional=True, adds=speaks_new)
            batches[key] = self._bytes(sent, self.story.now)
            if self._asks(key, sent) and known.epoch <= who.producer_epoch:
                self._ask(key, sent)
        old: dict[type[m.Request], int] = {m.Produce: NEW_PRODUCE - 1, m.EndTxn: NEW_END - 1}
        self.story.versions = {} if speaks_new else old
        requests: list[m.Request] = [produce_batches(batches, name=name), end_request(who, result, name)]
        asked = [self.story.offer(request) for request in requests]
        self.story.versions = {}
        return asked

    # --- batches

    def send(
        self, batches: Mapping[TopicPartition, Batch], name: str | None, version: int, timestamp: int
    ) -> dict[TopicPartition, Answer]:
        """One Produce, answered as expected; a batch is in the log when it is new there, and then only."""
        self.story.move_on()
        for key in batches:
            if key in self.story.kept:
                self._note_batch(key, batches[key])
        expected = self._expected(batches, name, version)
        ends = {key: self.story.kept[key].end for key in batches if self.exists(key)}
        request = produce_batches(
            {key: self._bytes(sent, timestamp) for key, sent in batches.items()}, name=name
        )
        answers: dict[TopicPartition, Answer] = {
            key: part.error or part.base_offset
            for key, part in produced(self.story.ask_in(version, request)).items()
        }
        self.story.catch_up()
        assert spelled(answers) == spelled(expected), (spelled(answers), spelled(expected))
        for key, end in ends.items():
            new = [line for line in self.story.kept[key].lines if line.offset >= end and line.is_data]
            is_new = expected[key] == end and not isinstance(expected[key], ErrorCode)
            assert [line.offset for line in new] == ([end] if is_new else []), f"what was appended to {key}"
        for key, answer in answers.items():
            self._note_answer(key, batches[key], answer, ends.get(key, -1))
        return answers

    def _bytes(self, sent: Batch, timestamp: int) -> bytearray:
        words = [f"v{self.values + number}" for number in range(sent.count)]
        self.values += sent.count
        return batch(
            sent.who,
            " ".join(words),
            sequence=sent.first,
            transactional=sent.is_transactional,
            timestamp=timestamp,
        )

    def _expected(
        self, batches: Mapping[TopicPartition, Batch], name: str | None, version: int
    ) -> dict[TopicPartition, Answer]:
        if name is None and any(sent.is_transactional for sent in batches.values()):
            return dict.fromkeys(batches, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        expected: dict[TopicPartition, Answer] = {}
        to_ask: dict[TopicPartition, Batch] = {}
        for key, sent in batches.items():
            if not self.exists(key):
                expected[key] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif self._asks(key, sent) and sent.who.producer_epoch < self._epoch(key, sent):
                expected[key] = ErrorCode.INVALID_PRODUCER_EPOCH
            elif self._asks(key, sent):
                to_ask[key] = sent
            else:
                expected[key] = self._of_leader(key, sent)
        for key, error in self._of_coordinator(to_ask, name, version).items():
            self.note("a verification was refused", happened=error is ErrorCode.TRANSACTION_ABORTABLE)
            expected[key] = error or self._of_leader(key, to_ask[key])
        return expected

    def _asks(self, key: TopicPartition, sent: Batch) -> bool:
        asks = sent.adds or self.settings.partition_verification
        known = self.known(key, sent.who.producer_id)
        return asks and sent.is_transactional and naive_answers.needs_coordinator(known, sent.who)

    def _epoch(self, key: TopicPartition, sent: Batch) -> int:
        return self.known(key, sent.who.producer_id).epoch

    def _question(self, key: TopicPartition, producer_id: int) -> Question | None:
        found, kept = self.questions.get((key, producer_id)), self.story.kept[key]
        stands = found is not None and found.stands(kept.lines, producer_id, kept.history.scans)
        return found if stands else None

    def _ask(self, key: TopicPartition, sent: Batch) -> None:
        producer_id = sent.who.producer_id
        known, end = self._question(key, producer_id), self.story.kept[key].end
        self.questions[key, producer_id] = naive_answers.asked(known, sent, now=self.story.now, end=end)

    def _of_leader(self, key: TopicPartition, sent: Batch) -> Answer:
        producer_id, end = sent.who.producer_id, self.story.kept[key].end
        known, question = self.known(key, producer_id), self._question(key, producer_id)
        return naive_answers.of_produce(known, question, sent, end=end)

    def _of_coordinator(
        self, batches: Mapping[TopicPartition, Batch], name: str | None, version: int
    ) -> dict[TopicPartition, ErrorCode]:
        """The leader keeps the question; what the coordinator says comes in words for producers."""
        for key, sent in batches.items():
            self._ask(key, sent)
        if not batches:
            return {}
        (who,) = {sent.who for sent in batches.values()}
        adds = version >= NEW_PRODUCE
        said = self._said_by_coordinator(name or "", who, batches, adds=adds)
        words = {ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH}
        if not adds:
            words[ErrorCode.CONCURRENT_TRANSACTIONS] = ErrorCode.NOT_ENOUGH_REPLICAS
        if version < ABORTABLE_KNOWN_FROM[m.Produce]:
            words[ErrorCode.TRANSACTION_ABORTABLE] = ErrorCode.INVALID_TXN_STATE
        return {key: words.get(error, error) for key, error in said.items()}

    def _said_by_coordinator(
        self, name: str, who: Identity, keys: Iterable[TopicPartition], *, adds: bool
    ) -> dict[TopicPartition, ErrorCode]:
        record, is_busy = self.record(name), name in self.busy
        said = {
            key: naive_answers.of_coordinator(
                record, who, key, adds=adds, can_add=self.stores_new, is_busy=is_busy
            )
            for key in keys
        }
        if ErrorCode.UNSUPPORTED_VERSION in said.values():
            self.busy.add(name)  # a record was on its way, as far as the coordinator knows
            self.note("a log was too old for a client")
            return dict.fromkeys(said, ErrorCode.UNSUPPORTED_VERSION)
        return said

    def _note_batch(self, key: TopicPartition, sent: Batch) -> None:
        known, restarted_at = self.known(key, sent.who.producer_id), self.story.kept[key].history.restarted_at
        found = [
            line
            for line in known.cached
            if (line.epoch, line.first, line.last) == (sent.who.producer_epoch, sent.first, sent.last)
        ]
        self.note("a repetition across a restart", happened=found and found[0].offset < restarted_at)

    def _note_answer(self, key: TopicPartition, sent: Batch, answer: Answer, end: int) -> None:
        if isinstance(answer, ErrorCode):
            self.note(f"Produce: {answer.name}")
            return
        self.note("a repetition was recognised" if answer < end else "a batch was appended")
        if answer == end and sent.who != NOBODY:
            known = self.known(key, sent.who.producer_id)
            self.note("a batch across the end of sequences", happened=sent.last < sent.first)
            self.note(
                "a sequence began again",
                happened=len(known.cached) > 1 and known.cached[-2].last == 2**31 - 1,
            )

    # --- offsets

    def commit_offsets(
        self, who: Identity, name: str, group: str, offsets: Mapping[TopicPartition, int], version: int
    ) -> ErrorCode:
        self.story.move_on()
        key, adds = offsets_log_of(group), version >= NEW_OFFSETS
        known, error = self.known(key, who.producer_id), ErrorCode.NONE
        asks = self.settings.partition_verification or adds
        if who.producer_epoch < known.epoch:
            error = ErrorCode.INVALID_PRODUCER_EPOCH
        elif asks and naive_answers.needs_coordinator(known, who):
            error = self._said_by_coordinator(name, who, [key], adds=adds)[key]
            words = {ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH}
            if version < ABORTABLE_KNOWN_FROM[m.TxnOffsetCommit]:
                words[ErrorCode.TRANSACTION_ABORTABLE] = ErrorCode.INVALID_TXN_STATE
            error = words.get(error, error)
        expected = {of: error if self.exists(of) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for of in offsets}
        reply = self.story.ask_in(version, offset_request(who, group, offsets, name))
        assert errors_of(body_of(reply, m.TxnOffsetCommitReply).partitions) == expected, (reply, expected)
        self.note(f"TxnOffsetCommit: {error.name}")
        return error

    def commit_plain_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        self.story.move_on()
        expected = {
            key: ErrorCode.NONE if self.exists(key) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            for key in offsets
        }
        reply = self.story.ask(plain_offset_request(group, offsets))
        assert errors_of(body_of(reply, m.OffsetCommitReply).partitions) == expected, (reply, expected)

    # --- administrators

    def mark(
        self,
        who: Identity,
        result: TransactionResult,
        keys: tuple[TopicPartition, ...],
        coordinator_epoch: int,
        version: int,
    ) -> None:
        """A marker past the coordinator."""
        self.story.move_on()
        expected = {
            key: naive_answers.of_marker(
                self.known(key, who.producer_id), who.producer_epoch, coordinator_epoch, version=version
            )
            if self.exists(key)
            else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            for key in keys
        }
        request = marker_request(
            who, result, *keys, coordinator_epoch=coordinator_epoch, transaction_version=version
        )
        (marker,) = body_of(self.story.ask(request), m.WriteTxnMarkersReply).markers
        assert errors_of(marker.partitions) == expected, (marker, expected)
        for error in expected.values():
            self.note(f"a marker by hand: {error.name}")

    def delete_records(self, key: TopicPartition, offset: int) -> None:
        self.story.move_on()
        start, stable, durable = bounds(self.story, key)
        expected = naive_answers.of_delete(start, durable, offset)
        part = m.DeleteRecordsPartition(topic=key.topic, partition=key.partition, offset=offset)
        request = m.DeleteRecords(timeout_ms=1_000, partitions=(part,))
        (found,) = body_of(self.story.ask(request), m.DeleteRecordsReply).partitions
        assert spelled({key: found.error or found.low_watermark}) == spelled({key: expected})
        if not isinstance(expected, ErrorCode) and expected > start:
            self.story.kept[key].log_start = expected
            self.note("the log start moved into an open transaction", happened=stable < expected)
            self.note(
                "the stable end lay below the log start", happened=bounds(self.story, key)[1] < expected
            )


def spelled(answers: Mapping[TopicPartition, Answer]) -> dict[TopicPartition, str]:
    """An offset is no error, though both are numbers."""
    return {
        key: answer.name if isinstance(answer, ErrorCode) else f"at {answer}"
        for key, answer in answers.items()
    }


def errors_of(parts: Iterable[m.PartitionError]) -> dict[TopicPartition, ErrorCode]:
    return {TopicPartition(part.topic, part.partition): part.error for part in parts}
