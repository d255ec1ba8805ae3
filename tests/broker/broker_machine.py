"""Random conversations of several producers with a broker, right and wrong, beside the naive model.

Rule: each request says what it expects of its own answer; after each one everything else is compared, too.
What has to come up now and then is noted, so that a machine which has stopped saying anything is found out.
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar, Final

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fencepost.broker.sync_policy import SyncPolicy
from fencepost.broker.transactions.tables import TRANSACTION_VERSIONS
from fencepost.journal.journal import JournalSettings
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import DeleteTopics, DeleteTopicsReply
from fencepost.protocol.terms import INT32_MAX, INT64_MAX, TopicPartition, TransactionResult, TransactionState
from tests.broker import naive_answers
from tests.broker.broker_model import (
    bounds,
    check,
    check_recovery,
    group_offsets,
    ids,
    nobody_is_forgotten,
    read,
    read_all,
)
from tests.broker.chronicle import Chronicle
from tests.broker.conversation import GROUPS, GUEST, KEYS, ORDERS, OTHERS, STRANGER, Conversation
from tests.broker.naive_answers import PREPARED, Batch
from tests.broker.naive_log import NONE
from tests.broker.requests import NOBODY, NOON, Identity, add_offsets_request, add_request, body_of
from tests.broker.story import SETTINGS, offsets_log_of

EXPIRATION_MS: Final = 40_000  # less than a transaction may take
# The naive model keeps every record, so nothing is compacted; tests/journal and test_compacting.py do that.
UNCOMPACTED: Final = attrs.evolve(SETTINGS, log_cleaner_min_compaction_lag_ms=INT64_MAX)
HURRIED: Final = attrs.evolve(
    UNCOMPACTED,
    transactional_id_expiration_ms=2 * EXPIRATION_MS,
    transaction_remove_expired_transaction_cleanup_interval_ms=30_000,
    producer_id_expiration_ms=EXPIRATION_MS,
    producer_id_expiration_check_interval_ms=10_000,
)
JOURNALS: Final = (
    JournalSettings(),
    JournalSettings(segment_bytes=1),
    JournalSettings(segment_bytes=300),
    JournalSettings(segment_ms=1_000),
)
BROKERS: Final = (
    (2, True),
    (2, True),
    (2, False),
    (1, True),
    (0, True),
    (0, False),
)  # generation, verification

TRANSACTIONAL: Final = st.integers(0, 2)
ANYBODY: Final = st.sampled_from([0, 0, 1, 1, 2, 3, 4])
BACK: Final = st.sampled_from([0, 0, 0, 0, 1, 2])  # identities ago
SHIFT: Final = st.sampled_from([0, 0, 0, 0, -1, 1])  # of the epoch
LOSSES: Final = st.sampled_from(["alone", "alone", "with the broker", "and the producer begins anew"])
TIMES: Final = st.sampled_from([1, 1, 2, 3, 6])
SELDOM: Final = st.sampled_from([False] * 4 + [True])
MOSTLY: Final = st.sampled_from([True] * 7 + [False])
COUNTS: Final = st.integers(1, 3)
ONE_KEY: Final = st.sampled_from([ORDERS, ORDERS, OTHERS, GUEST])
SOME_KEYS: Final = st.sampled_from([(ORDERS,), (ORDERS,), (OTHERS,), (GUEST,), (ORDERS, OTHERS), KEYS])
SEQUENCES: Final = st.sampled_from([0, 1, 2, 5, INT32_MAX - 1, INT32_MAX])
RESULTS: Final = st.sampled_from(TransactionResult)
VERSIONS: Final = st.sampled_from([0, 0, 1, 2])  # of requests: of old, with the last error that it knows; new
PRODUCE_VERSIONS: Final = (10, 11, 12)
OFFSET_VERSIONS: Final = (3, 4, 5)
PAUSES: Final = st.sampled_from([250, 1_500, 25_000, 61_000, EXPIRATION_MS, 3 * EXPIRATION_MS])


class BrokerAndModel(RuleBasedStateMachine):
    """The broker under test, in one of its generations, beside its account."""

    came_up: ClassVar[Counter[str]] = Counter()

    @initialize(
        broker=st.sampled_from(BROKERS),
        policy=st.sampled_from([SyncPolicy.NONE, SyncPolicy.ALL]),
        journal=st.sampled_from(JOURNALS),
        speaks_new=st.booleans(),
    )
    def begin(
        self, broker: tuple[int, bool], policy: SyncPolicy, journal: JournalSettings, speaks_new: bool
    ) -> None:
        generation, verification = broker
        settings = attrs.evolve(
            HURRIED, transaction_version=TRANSACTION_VERSIONS[generation], partition_verification=verification
        )
        self.talk = Conversation(settings, policy, journal, self.came_up)
        self.speaks_new = speaks_new and self.talk.stores_new

    @property
    def story(self) -> Chronicle:
        return self.talk.story

    # --- as it should be

    def join(self, number: int, who: Identity, keys: tuple[TopicPartition, ...]) -> None:
        """A client of old adds partitions to its transaction before it writes to them."""
        name = self.talk.producers[number].name
        if name is not None and not self.speaks_new:
            self.story.ask_in(3, add_request(who, *keys, name=name))

    @rule(number=ANYBODY, keys=SOME_KEYS, times=TIMES, count=COUNTS, high=SELDOM, joins=MOSTLY)
    def a_producer_goes_on(
        self, number: int, keys: tuple[TopicPartition, ...], times: int, count: int, high: bool, joins: bool
    ) -> None:
        """The next batches of a producer that lost none; one that is new begins anywhere, if it may."""
        who, name = self.talk.identity(number), self.talk.producers[number].name
        if joins:
            self.join(number, who, keys)
        for _ in range(times):
            batches: dict[TopicPartition, Batch] = {}
            for key in keys:
                known = self.talk.known(key, who.producer_id)
                is_new = known.epoch == NONE
                first = naive_answers.next_sequence(known, who.producer_epoch)
                first = INT32_MAX - 1 if high and is_new and not self.speaks_new else first
                batches[key] = self.batch(who, first, count, is_transactional=name is not None)
            self.talk.send(batches, name, 12 if self.speaks_new else 11, self.story.now)

    @rule(
        number=TRANSACTIONAL,
        keys=SOME_KEYS,
        times=TIMES,
        moves=st.sampled_from(
            ["records", "offsets", "offsets that are overtaken", "plain records", "late records"]
        ),
        result=RESULTS,
    )
    def a_whole_transaction(
        self, number: int, keys: tuple[TopicPartition, ...], times: int, moves: str, result: TransactionResult
    ) -> None:
        self.a_producer_goes_on(number=number, keys=keys, times=times, count=1, high=False, joins=True)
        if moves == "plain records":
            self.a_plain_batch(number, keys[0])
        if moves.startswith("offsets"):
            self.a_producer_sends_offsets(number=number, group=GROUPS[0], keys=keys, offset=times, joins=True)
        if moves == "offsets that are overtaken":
            self.a_consumer_commits(group=GROUPS[0], keys=keys, offset=times + 1)
        self.a_producer_ends(number=number, result=result)
        if moves == "late records":
            self.a_batch_comes_again(key=keys[0], back=1, times=1)
            self.a_producer_goes_on(number=number, keys=keys, times=1, count=1, high=False, joins=True)

    def a_plain_batch(self, number: int, key: TopicPartition) -> None:
        """The next of a producer, but not in its transaction."""
        who = self.talk.identity(number)
        first = naive_answers.next_sequence(self.talk.known(key, who.producer_id), who.producer_epoch)
        self.talk.send({key: self.batch(who, first, 1, is_transactional=False)}, None, 11, self.story.now)

    @rule(number=TRANSACTIONAL, keys=SOME_KEYS, joins=SELDOM, result=RESULTS)
    def a_client_of_another_time_takes_over(
        self, number: int, keys: tuple[TopicPartition, ...], joins: bool, result: TransactionResult
    ) -> None:
        """For one transaction its owner speaks as the cluster's other clients do not."""
        self.speaks_new = not self.speaks_new
        self.a_producer_sends_offsets(number=number, group=GROUPS[1], keys=keys, offset=7, joins=joins)
        self.a_producer_goes_on(number=number, keys=keys, times=1, count=2, high=False, joins=joins)
        self.a_producer_ends(number=number, result=result)
        self.speaks_new = not self.speaks_new

    def batch(
        self, who: Identity, first: int, count: int, *, is_transactional: bool, version: int | None = None
    ) -> Batch:
        adds = self.speaks_new if version is None else version >= 12
        return Batch(who=who, first=first, count=count, is_transactional=is_transactional, adds=adds)

    @rule(
        number=TRANSACTIONAL,
        group=st.sampled_from(GROUPS),
        keys=SOME_KEYS,
        offset=st.integers(0, 9),
        joins=MOSTLY,
    )
    def a_producer_sends_offsets(
        self, number: int, group: str, keys: tuple[TopicPartition, ...], offset: int, joins: bool
    ) -> None:
        who, name = self.talk.identity(number), self.talk.producers[number].name
        assert name is not None
        if joins and not self.speaks_new:
            add = add_offsets_request(who, group, name=name)
            self.story.ask(add)
        version = 5 if self.speaks_new else 4
        self.talk.commit_offsets(who, name, group, dict.fromkeys(keys, offset), version)

    @rule(group=st.sampled_from(GROUPS), keys=SOME_KEYS, offset=st.integers(0, 9))
    def a_consumer_commits(self, group: str, keys: tuple[TopicPartition, ...], offset: int) -> None:
        self.talk.commit_plain_offsets(group, dict.fromkeys(keys, offset))

    @rule(number=TRANSACTIONAL, result=RESULTS)
    def a_producer_ends(self, number: int, result: TransactionResult) -> None:
        self.talk.end(number, self.talk.identity(number), result, 5 if self.speaks_new else 4)
        self.look_at_ids()
        self.story.catch_up()
        overtaken = [found for found in group_offsets(self.story) if found.overtaken]
        self.talk.note("a newer offset outlived the decision of an older one", happened=overtaken)

    def look_at_ids(self) -> None:
        stuck = [record for record in ids(self.story).values() if record.state in PREPARED]
        self.talk.note("a transaction was stuck in PREPARE", happened=stuck)

    # --- as it should not be

    @rule(
        number=ANYBODY,
        back=BACK,
        shift=SHIFT,
        key=ONE_KEY,
        first=SEQUENCES,
        count=COUNTS,
        is_transactional=st.booleans(),
        name=st.sampled_from(["own", "own", "own", "a", "b", STRANGER, None, None]),
        version=VERSIONS,
        timestamp=st.sampled_from([None, NOON]),
    )
    def anything(
        self,
        number: int,
        back: int,
        shift: int,
        key: TopicPartition,
        first: int,
        count: int,
        is_transactional: bool,
        name: str | None,
        version: int,
        timestamp: int | None,
    ) -> None:
        found = self.talk.identity(number, back)
        who = found._replace(producer_epoch=max(0, found.producer_epoch + shift))
        name = self.talk.producers[number].name if name == "own" else name
        spoken = PRODUCE_VERSIONS[version]
        sent = self.batch(who, first, count, is_transactional=is_transactional, version=spoken)
        self.talk.send({key: sent}, name, spoken, self.story.now if timestamp is None else timestamp)

    @rule(number=ANYBODY, key=ONE_KEY, times=st.integers(4, 7), count=COUNTS, high=SELDOM, what=LOSSES)
    def answers_get_lost(
        self, number: int, key: TopicPartition, times: int, count: int, high: bool, what: str
    ) -> None:
        """A producer sends several batches, hears nothing, and sends them all again."""
        if not self.talk.exists(key):
            return
        who, name = self.talk.identity(number), self.talk.producers[number].name
        self.a_producer_goes_on(number=number, keys=(key,), times=times, count=count, high=high, joins=True)
        own = [line for line in self.story.kept[key].lines if (line.producer, line.epoch) == who]
        if what == "with the broker":
            self.a_restart(in_order=high)
        if what == "and the producer begins anew":  # what is on its way is a zombie's then
            self.talk.begin(number, who)
            self.a_producer_goes_on(
                number=number, keys=(key,), times=times, count=count, high=False, joins=True
            )
        for line in [line for line in own if line.is_data][-times:]:
            sent = self.batch(who, line.first, line.records, is_transactional=name is not None)
            self.talk.send({key: sent}, name, 12 if sent.adds else 11, self.story.now)

    @rule(key=ONE_KEY, back=st.integers(1, 7), times=st.integers(1, 2))
    def a_batch_comes_again(self, key: TopicPartition, back: int, times: int) -> None:
        """One of the last of a producer, to where it lies already."""
        if not self.talk.exists(key):
            return
        for _ in range(times):
            lines = [line for line in self.story.kept[key].lines if line.is_data and line.producer != NONE]
            own = [line for line in lines if line.producer == lines[-1].producer]
            if len(own) >= back:
                line = own[-back]
                who = Identity(line.producer, line.epoch)
                sent = self.batch(who, line.first, line.records, is_transactional=line.is_transactional)
                name = self.talk.owner(line.producer)
                self.talk.send({key: sent}, name, 12 if sent.adds else 11, self.story.now)

    @rule(key=ONE_KEY, count=COUNTS)
    def nobody_in_particular_writes(self, key: TopicPartition, count: int) -> None:
        sent = self.batch(NOBODY, NONE, count, is_transactional=False)
        self.talk.send({key: sent}, None, 12, self.story.now)

    @rule(
        number=TRANSACTIONAL,
        back=BACK,
        shift=SHIFT,
        group=st.sampled_from(GROUPS),
        keys=SOME_KEYS,
        offset=st.integers(0, 9),
        name=st.sampled_from(["own", "own", "b", STRANGER]),
        version=VERSIONS,
    )
    def any_offsets(
        self,
        number: int,
        back: int,
        shift: int,
        group: str,
        keys: tuple[TopicPartition, ...],
        offset: int,
        name: str,
        version: int,
    ) -> None:
        found = self.talk.identity(number, back)
        who = found._replace(producer_epoch=max(0, found.producer_epoch + shift))
        name = self.talk.producers[number].name or "" if name == "own" else name
        offsets = dict.fromkeys(keys, offset)
        self.talk.commit_offsets(who, name, group, offsets, OFFSET_VERSIONS[version])

    @rule(number=TRANSACTIONAL, back=BACK, shift=SHIFT, result=RESULTS, version=st.sampled_from([4, 5]))
    def any_end(self, number: int, back: int, shift: int, result: TransactionResult, version: int) -> None:
        found = self.talk.identity(number, back)
        who = found._replace(producer_epoch=max(0, found.producer_epoch + shift))
        self.talk.end(number, who, result, version)

    @rule(number=TRANSACTIONAL, back=BACK, shift=SHIFT, keys=SOME_KEYS)
    def any_addition(self, number: int, back: int, shift: int, keys: tuple[TopicPartition, ...]) -> None:
        found, name = self.talk.identity(number, back), self.talk.producers[number].name
        who = found._replace(producer_epoch=max(0, found.producer_epoch + shift))
        self.story.move_on()
        self.story.ask_in(3, add_request(who, *keys, name=name or ""))

    @rule(
        number=ANYBODY,
        expects=st.sampled_from([None, None, 0, 1, 2]),
        timeout_ms=st.sampled_from([1_000, 60_000]),
        times=st.sampled_from([0, 3]),
    )
    def somebody_begins_again(self, number: int, expects: int | None, timeout_ms: int, times: int) -> None:
        expected = NOBODY if expects is None else self.talk.identity(number, expects)
        self.talk.begin(number, expected, timeout_ms=timeout_ms)
        self.look_at_ids()
        if times:
            keys = (ORDERS,)
            self.a_producer_goes_on(number=number, keys=keys, times=times, count=1, high=False, joins=True)

    @rule(number=ANYBODY, key=ONE_KEY, count=COUNTS)
    def epochs_begin_alike(self, number: int, key: TopicPartition, count: int) -> None:
        """The first batch of an epoch looks like that of the epoch before it, and is another."""
        for _ in range(2):
            self.talk.begin(number, self.talk.identity(number))
            self.a_producer_goes_on(number=number, keys=(key,), times=1, count=count, high=False, joins=True)

    # --- what happens to a broker

    @rule(
        number=TRANSACTIONAL,
        shift=st.sampled_from([0, 0, 1, -1]),
        result=RESULTS,
        keys=st.sampled_from([(ORDERS,), (OTHERS, GUEST), (offsets_log_of(GROUPS[0]),)]),
        coordinator_epoch=st.sampled_from([0, 1, 2, 50]),
        version=st.sampled_from([0, 2]),
    )
    def a_marker_by_hand(
        self,
        number: int,
        shift: int,
        result: TransactionResult,
        keys: tuple[TopicPartition, ...],
        coordinator_epoch: int,
        version: int,
    ) -> None:
        found = self.talk.identity(number)
        who = found._replace(producer_epoch=max(0, found.producer_epoch + shift))
        self.talk.mark(who, result, keys, coordinator_epoch, version)
        if coordinator_epoch > 0:
            self.talk.mark(who, result, keys, coordinator_epoch - 1, version)
        if who.producer_epoch > 0:
            older = who._replace(producer_epoch=who.producer_epoch - 1)
            self.talk.mark(older, result, keys, coordinator_epoch, version)

    @rule(key=ONE_KEY, part=st.integers(-1, 5), writer=st.sampled_from([None, 0, 1, 2]))
    def records_are_deleted(self, key: TopicPartition, part: int, writer: int | None) -> None:
        """Also under the one who has just written them."""
        if writer is not None:
            self.a_producer_goes_on(number=writer, keys=(key,), times=3, count=2, high=False, joins=True)
        if self.talk.exists(key):
            start, _, durable = bounds(self.story, key)
            oldest = min(self.story.segments(key), default=0)
            self.talk.delete_records(key, part if part < 0 else start + part * (durable - start) // 4)
            gone = min(self.story.segments(key), default=0) > oldest
            self.talk.note("segments were gone after records were deleted", happened=gone)

    @precondition(lambda self: self.talk.is_written(GUEST) or not self.talk.exists(GUEST))
    @rule(writer=st.sampled_from([None, 0, 1]))
    def a_topic_comes_and_goes(self, writer: int | None) -> None:
        if writer is not None:
            self.a_producer_goes_on(number=writer, keys=(GUEST,), times=1, count=1, high=False, joins=True)
            self.talk.commit_plain_offsets(GROUPS[writer], {GUEST: writer})
        self.story.move_on()
        if not self.talk.exists(GUEST):
            self.story.create(GUEST.topic)
            return
        is_in_use = self.story.meaning(GUEST).known and any(
            GUEST in record.partitions for record in ids(self.story).values()
        )
        (answer,) = body_of(self.story.ask(DeleteTopics(topics=(GUEST.topic,))), DeleteTopicsReply).topics
        assert answer.error is ErrorCode.NONE
        self.talk.forget_topic(GUEST.topic)
        self.story.catch_up()
        left = [key for found in group_offsets(self.story) for key in (*found.committed, *found.pending)]
        assert GUEST.topic not in {key.topic for key in left}, "offsets outlived their topic"
        self.talk.note("a topic went that a transaction was in", happened=is_in_use)

    @rule(pause=PAUSES)
    def time_passes(self, pause: int) -> None:
        known = {(key, producer) for key in self.story.keys for producer in self.story.meaning(key).known}
        before = ids(self.story)
        self.story.wait(pause)
        self.story.catch_up()
        still = {(key, producer) for key in self.story.keys for producer in self.story.meaning(key).known}
        after = ids(self.story)
        self.talk.note("a producer expired", happened=known - still)
        self.talk.note("an id expired", happened=before.keys() - after.keys())
        ended = [
            name
            for name, record in after.items()
            if before[name].state is TransactionState.ONGOING
            and record.state is TransactionState.COMPLETE_ABORT
        ]
        self.talk.note("a transaction timed out", happened=ended)

    @rule(in_order=st.booleans())
    def a_restart(self, in_order: bool) -> None:
        """The memory of what is led is the same afterwards, as far as logs tell."""
        story = self.story
        check_recovery(story)
        before = {key: story.host.node.state_of(key) for key in story.keys if nobody_is_forgotten(story, key)}
        is_open = any(story.partition(key).open_transactions for key in story.keys)
        if in_order:
            story.stop()
        self.restart()
        for key, state in before.items():
            if key in story.loaded:
                assert story.loaded[key] == state, f"{key} is another after a restart"
        self.talk.note("a restart in the middle of a transaction", happened=is_open)
        self.talk.note("a stop in the middle of a transaction", happened=is_open and in_order)

    def restart(self) -> None:
        self.story.restart()
        self.talk.questions.clear()
        self.talk.busy.clear()
        self.story.check_journals()

    @rule(number=TRANSACTIONAL, result=RESULTS, turns=st.integers(0, 30))
    def a_kill_in_the_middle(self, number: int, result: TransactionResult, turns: int) -> None:
        """Whoever asked does not hear; what was written is what counts."""
        self.join(number, self.talk.identity(number), (ORDERS, OTHERS))
        self.talk.offer_last_words(number, result, speaks_new=self.speaks_new)
        for _ in range(turns):
            self.story.work()
        self.talk.note("a kill in the middle of work", happened=not self.story.host.is_idle)
        self.restart()

    @precondition(lambda self: self.story.policy is SyncPolicy.ALL)
    @rule(number=TRANSACTIONAL, result=RESULTS)
    def a_slow_disk(self, number: int, result: TransactionResult) -> None:
        """What is written and not durable is in nobody's sight, and nobody is told that it is there."""
        story = self.story
        self.join(number, self.talk.identity(number), (ORDERS, OTHERS))
        story.move_on()
        durable = {key: story.kept[key].end for key in story.keys}
        asked = self.talk.offer_last_words(number, result, speaks_new=self.speaks_new)
        while story.host.unsynced or not story.host.is_idle:
            story.run()
            check(story, durable)
            ahead = [key for key in story.keys if story.kept[key].end > durable[key]]
            self.talk.note("the stable end waited for the disk", happened=ahead)
            for key in sorted(story.host.unsynced):
                durable[key] = story.kept[key].end
            story.sync()
        story.settle()
        for to in asked:
            self.talk.hear(number, story.replies.pop(to))

    # --- readers

    @rule(key=ONE_KEY, part=st.integers(-1, 8), max_bytes=st.sampled_from([1, 200, 1 << 20]))
    def somebody_reads(self, key: TopicPartition, part: int, max_bytes: int) -> None:
        if self.talk.exists(key):
            start, _, durable = bounds(self.story, key)
            read(self.story, key, start + part * (durable - start) // 7, max_bytes)
            read_all(self.story, key, max_bytes)

    # --- what always holds

    @invariant()
    def broker_and_model_agree(self) -> None:
        self.story.catch_up()
        check(self.story)
        for key in self.story.keys:
            bases = list(self.story.segments(key))
            for found in self.story.meaning(key).aborted:
                across = any(found.first_offset < base <= found.last_offset for base in bases)
                self.talk.note("an aborted transaction across segments", happened=across)

    def teardown(self) -> None:
        if hasattr(self, "talk"):
            check_recovery(self.story)
            self.story.check_journals()
