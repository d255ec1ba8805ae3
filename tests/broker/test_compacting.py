"""Compacted logs under a broker: coordinators' logs stay small, state survives, and readers see the right
things."""

from __future__ import annotations

import random
import threading

import attrs
import pytest

from fencepost import Admin, Broker, Producer
from fencepost.broker.contract import MoveLogStart
from fencepost.broker.partitions.batch_form import header_of
from fencepost.broker.settings import NodeSettings
from fencepost.broker.sync_policy import SyncPolicy
from fencepost.check.directory import check_directory
from fencepost.check.findings import Severity
from fencepost.journal.cleaning import Cleaning
from fencepost.journal.journal import Journal, JournalSettings
from fencepost.journal.open_transactions import OpenTransactions
from fencepost.journal.simulated import SimulatedStorage
from fencepost.journal.storage import StorageError
from fencepost.protocol import messages as m
from fencepost.protocol.batches import BatchHeader
from fencepost.protocol.compression import Compression
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.kafka_records import KafkaRecord, build_kafka_batch
from fencepost.protocol.records import build_data_batch, read_columns
from fencepost.protocol.terms import TopicPartition
from fencepost.protocol.thinning import thinned
from tests.broker.requests import (
    ABORT,
    COMMIT,
    ORDERS,
    OTHERS,
    body_of,
    identity_of,
    init_request,
    plain_offset_request,
    produce_batches,
    produced,
    visible_values,
)
from tests.broker.story import CLEANED, SCAN_MS, Story, offsets_log_of, transaction_log_of

SMALL = JournalSettings(segment_bytes=2_000)
KEYED = TopicPartition("keyed", 0)


def compacted(settings: NodeSettings = CLEANED, **configs: str) -> Story:
    """A story with a compacted topic."""
    story = Story(settings=settings, journal=SMALL)
    chosen = {"cleanup.policy": "compact"} | {
        name.replace("_", "."): value for name, value in configs.items()
    }
    wanted = m.CreateTopic(
        topic="keyed",
        partition_count=1,
        configs=tuple(m.TopicConfig(name=name, value=value) for name, value in chosen.items()),
    )
    (answer,) = body_of(story.ask(m.CreateTopics(topics=(wanted,))), m.CreateTopicsReply).topics
    assert answer.error is ErrorCode.NONE, answer
    return story


def put(story: Story, key: str, value: str | None, *, size: int = 300) -> ErrorCode:
    """A record with a key; a value fills `size` bytes."""
    content = None if value is None else value.ljust(size).encode()
    batch = build_data_batch([content], keys=[key.encode()], base_timestamp=story.now)
    return produced(story.ask(produce_batches({KEYED: batch}, name=None)))[KEYED].error


def size_of(story: Story, key: TopicPartition) -> int:
    return sum(entry.header.size for entry in story.log(key))


def transactions(story: Story, count: int, name: str = "pay") -> None:
    me = story.identity(name)
    for number in range(count):
        story.produce(me, "x", name=name)
        story.commit_offset(me, "readers", number, name)
        me = story.ended(me, ABORT if number % 5 == 4 else COMMIT, name)


def test_a_producer_cannot_set_the_delete_horizon_of_its_batch() -> None:
    """With one in the past, the first compaction would remove the tombstone: a reader that knows the older
    value would never learn that it was deleted. (Apache Kafka 4.3.1 accepts the bit, and does so.)
    """
    story = compacted()
    batch = build_data_batch([None], keys=[b"k"], base_timestamp=story.now)
    header = header_of(batch, knows_zstd=True)
    assert isinstance(header, BatchHeader)
    claimed = thinned(batch, header, (0,), delete_horizon_ms=1)
    answer = produced(story.ask(produce_batches({KEYED: claimed}, name=None)))[KEYED]
    assert answer.error is ErrorCode.INVALID_RECORD
    assert len(story.log(KEYED)) == 0


def test_the_log_of_a_coordinator_stays_small_and_is_read_back() -> None:
    story = Story(settings=CLEANED, journal=SMALL)
    transactions(story, 20)
    size = size_of(story, transaction_log_of("pay"))
    transactions(story, 60)
    assert size_of(story, transaction_log_of("pay")) <= size + 2_000
    assert size <= 3 * 2_000
    story.check_recovery()
    before = story.transaction()
    offset = story.offset("readers").offset
    for _ in range(2):
        story.restart()
        assert story.transaction() == before
        assert story.offset("readers").offset == offset
    transactions(story, 20)
    story.check_recovery()


def test_the_log_of_offsets_stays_small_under_short_transactions() -> None:
    """Each leaves a marker: these go, too, once they are older than delete.retention.ms."""
    settings = attrs.evolve(CLEANED, log_cleaner_delete_retention_ms=100)
    story = Story(settings=settings, journal=SMALL)
    sizes: list[int] = []
    for _ in range(4):
        transactions(story, 60)
        sizes.append(size_of(story, offsets_log_of("readers")))
    assert max(sizes) <= 8 * 2_000, "240 transactions write 80,000 bytes"
    story.check_recovery()
    story.restart()
    assert story.offset("readers").offset == 58, "the last one of each round was aborted"


def test_a_check_finds_no_fault_in_a_segment_whose_newest_batch_was_emptied() -> None:
    """It stays because it holds a producer's last sequence, and its time is that of no record any more."""
    story = compacted(min_cleanable_dirty_ratio="0.1")
    writer = identity_of(story.ask(init_request(None)))
    for number in range(6):
        put(story, f"k{number}", "v")
    batch = build_data_batch(
        [b"v" * 300],
        keys=[b"k"],
        base_timestamp=story.now,
        producer_id=writer.producer_id,
        producer_epoch=writer.producer_epoch,
        base_sequence=0,
    )
    story.ask(produce_batches({KEYED: batch}, name=None))
    for _ in range(20):
        put(story, "k", "v")
    story.settle()
    assert any(entry.header.producer_id == writer.producer_id for entry in story.log(KEYED))
    story.host.stop()
    problems = [each for each in check_directory(story.storage).found if each.severity is Severity.PROBLEM]
    assert problems == []


def test_offsets_of_a_thinned_batch_keep_their_places() -> None:
    story = Story(settings=CLEANED, journal=SMALL)
    both = {ORDERS: 1, OTHERS: 1}
    for number in range(60):
        story.ask(plain_offset_request("readers", both if not number else {ORDERS: number}))
    first = next(entry for entry in story.log(offsets_log_of("readers")) if entry.header.record_count)
    assert (first.header.record_count, first.header.last_offset_delta) == (1, 1)
    story.check_recovery()


def test_each_policy_and_a_loss_of_power_at_any_time_keep_the_coordinators_state() -> None:
    """The writes of a cleaning are among those that the power takes."""
    cleaned = 0
    for seed in range(20):
        chance = random.Random(seed)
        disk = SimulatedStorage(lambda most: chance.randint(0, most))  # noqa: B023 read before it changes
        policy = SyncPolicy.COMMIT if seed % 2 else SyncPolicy.ALL
        journal = JournalSettings(segment_bytes=1_000)
        story = Story(policy=policy, settings=CLEANED, storage=disk, journal=journal)
        committed = -1
        me = story.identity()
        for number in range(chance.randint(5, 40)):
            story.commit_offset(me, "readers", number)
            me = story.ended(me, COMMIT)
            committed = number
        cleaned += any(entry.header.is_covering for entry in story.log(transaction_log_of("pay")))
        disk.lose_power()
        story.start()
        story.wait(60_000 + 10 * SCAN_MS)
        assert story.offset("readers").offset == committed
        story.check_recovery()
        story.host.write_manifests()
        problems = [each for each in check_directory(disk).found if each.severity is Severity.PROBLEM]
        assert problems == []
    assert cleaned > 5


# --- a topic of its own -------------------------------------------------------------------------------------


def seen(story: Story) -> dict[str, str | None]:
    """What the log says of each key, from its start."""
    found: dict[str, str | None] = {}
    for entry in story.log(KEYED):
        if not entry.header.is_control:
            columns = read_columns(entry.batch, entry.header)
            for key, value in zip(columns.keys or (), columns.values, strict=True):
                found[(key or b"").decode()] = None if value is None else value.decode().strip()
    return found


def test_a_compacted_topic_keeps_the_last_value_of_each_key() -> None:
    story = compacted()
    for number in range(100):
        assert put(story, f"key {number % 5}", f"{number}") is ErrorCode.NONE
    story.wait(SCAN_MS)
    assert seen(story) == {f"key {number % 5}": f"{number}" for number in range(95, 100)}
    assert size_of(story, KEYED) < 6_000
    before = size_of(story, KEYED)
    story.restart()
    assert size_of(story, KEYED) <= before
    assert seen(story) == {f"key {number % 5}": f"{number}" for number in range(95, 100)}
    story.check_recovery()


def test_a_tombstone_is_there_until_its_time_and_then_gone() -> None:
    story = compacted(delete_retention_ms="30000")
    put(story, "gone", "1")
    put(story, "gone", None)
    fill = [f"{number}" for number in range(20)]
    for value in fill:
        put(story, "other", value)
    story.wait(SCAN_MS)
    assert seen(story) == {"gone": None, "other": "19"}
    story.wait(30_000)
    for value in fill:
        put(story, "other", value)
    story.wait(SCAN_MS)
    assert seen(story) == {"other": "19"}


@pytest.mark.parametrize("magic", ["columns", "kafka"])
def test_a_tombstone_of_any_time_is_compacted(magic: str) -> None:
    """A delete horizon is the new base of the timestamps, and the delta of this one does not fit."""
    story = compacted(delete_retention_ms="30000")
    if magic == "columns":
        batch = build_data_batch([None], keys=[b"gone"], timestamp_deltas=[-(2**63)], base_timestamp=0)
    else:
        record = KafkaRecord(b"gone", None, timestamp_delta=-(2**63))
        batch = build_kafka_batch([record], timestamp=0)
    assert produced(story.ask(produce_batches({KEYED: batch}, name=None)))[KEYED].error is ErrorCode.NONE
    for number in range(20):
        put(story, "other", str(number))
    story.wait(SCAN_MS)
    assert seen(story) == {"gone": None, "other": "19"}


def test_a_bug_in_a_compaction_costs_the_compaction_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    is_tried = threading.Event()

    def work(_cleaning: Cleaning) -> bool:
        is_tried.set()
        raise ZeroDivisionError

    monkeypatch.setattr(Cleaning, "work", work)
    often = {"log.cleaner.backoff.ms": 100}
    with (
        Broker(override=often) as broker,
        Admin(broker.address) as admin,
        Producer(broker.address) as producer,
    ):
        admin.create_topic("keyed", configs={"cleanup.policy": "compact", "segment.ms": "100"})
        for number in range(20):
            producer.send("keyed", bytes(300), b"%d" % (number % 5)).result()
        assert is_tried.wait(60)
        producer.send("keyed", b"after", b"0").result()
        assert admin.end_offsets([KEYED]) == {KEYED: 21}


def test_a_compacted_topic_takes_no_record_without_a_key() -> None:
    """Recorded from Apache Kafka 4.3.1."""
    story = compacted()
    for keys, compression in ((None, 0), ([b"a", None], 0), ([b"a", None], 1)):
        batch = build_data_batch(
            [b"1", b"2"], keys=keys, base_timestamp=story.now, compression=Compression(compression)
        )
        answer = produced(story.ask(produce_batches({KEYED: batch}, name=None)))[KEYED]
        assert answer.error is ErrorCode.INVALID_RECORD
    assert story.log(KEYED) == []


def test_a_log_to_which_nothing_is_written_is_compacted_once_its_time_has_come() -> None:
    story = compacted(min_compaction_lag_ms="20000")
    for number in range(20):
        put(story, "key", f"{number}")
    assert len(story.log(KEYED)) == 20
    story.wait(40_000)
    assert len(story.log(KEYED)) < 10


def planned(story: Story) -> Cleaning:
    """Write until a cleaning is due, which then waits for its thread."""
    for _ in range(100):
        batch = build_data_batch([b"x" * 300], keys=[b"key"], base_timestamp=story.now)
        story.offer(produce_batches({KEYED: batch}, name=None))
        story.now += SCAN_MS
        story.run()
        cleaning = story.host.upkeep.next_cleaning()
        if cleaning is not None:
            return cleaning
    raise AssertionError("no cleaning is ever due")


def test_a_cleaning_of_a_log_that_was_read_again_does_not_cancel_the_next_one() -> None:
    """Its thread comes back when the log is led again, and another cleaning waits."""
    story = compacted()
    abandoned = planned(story)
    abandoned.work()
    story.host.lose(KEYED, StorageError("the disk failed"))
    story.wait(2 * story.host.node.settings.reelection_backoff_ms)
    waiting = planned(story)
    story.host.upkeep.finish(abandoned)
    assert story.host.upkeep.next_cleaning() is waiting
    assert not waiting.is_cancelled
    story.settle()
    assert seen(story).keys() == {"key"}
    story.check_recovery()


def test_a_cleaning_of_segments_that_retention_deleted_is_given_up_without_an_alarm() -> None:
    story = compacted()
    cleaning = planned(story)
    host = story.host
    journal = host.held[KEYED].journal
    host.move_log_start(MoveLogStart(partition=KEYED, offset=journal.log_end_offset), story.now)
    host.upkeep.finish()
    assert journal.segments.oldest_offset > 0, "segments are deleted"
    with pytest.raises(StorageError) as problem:
        cleaning.work()
    host.upkeep.failed(cleaning, problem.value)
    assert host.troubles == []
    assert host.upkeep.next_cleaning() is None
    story.settle()
    story.check_recovery()


# --- retention ----------------------------------------------------------------------------------------------


def fill(story: Story, count: int) -> None:
    for number in range(count):
        batch = build_data_batch([b"%0500d" % number], base_timestamp=story.now)
        story.ask(produce_batches({ORDERS: batch}, name=None))


HURRIED = attrs.evolve(CLEANED, log_retention_check_interval_ms=SCAN_MS)


def test_segments_that_are_too_old_are_deleted_the_active_one_too() -> None:
    settings = attrs.evolve(HURRIED, log_retention_ms=60_000)
    story = Story(settings=settings, journal=SMALL)
    fill(story, 9)
    story.wait(30_000)
    fill(story, 2)
    story.wait(30_000 + 2 * SCAN_MS)
    start = story.partition().log_start_offset
    assert 0 < start < 9
    assert len(story.log()) == 11 - start
    assert story.fetch(offset=0).error is ErrorCode.OFFSET_OUT_OF_RANGE
    story.wait(60_000)
    assert story.partition().log_start_offset == 11
    assert story.log() == []
    story.restart()
    assert story.partition().log_start_offset == 11
    fill(story, 1)
    assert story.partition().log_end_offset == 12
    story.check_recovery()


def test_segments_beyond_a_size_are_deleted() -> None:
    settings = attrs.evolve(HURRIED, log_retention_bytes=5_000)
    story = Story(settings=settings, journal=SMALL)
    fill(story, 40)
    story.wait(2 * SCAN_MS)
    assert 5_000 <= size_of(story, ORDERS) < 5_000 + 2 * 2_000
    assert story.partition().log_start_offset > 20


def test_retention_does_not_wait_for_an_open_transaction() -> None:
    """As in Apache Kafka: what it deletes, no read_committed reader has seen."""
    story = Story(settings=attrs.evolve(HURRIED, log_retention_ms=60_000), journal=SMALL)
    slow = story.identity(timeout_ms=600_000)
    story.produce(slow, "begin")
    fill(story, 3)
    assert story.visible() == ""
    story.wait(60_000 + 2 * SCAN_MS)
    partition = story.partition()
    assert (partition.log_start_offset, partition.log_end_offset) == (4, 4)
    story.restart()
    assert story.produce(slow, "end", sequence=1).error is ErrorCode.NONE
    story.ended(slow, COMMIT)
    assert visible_values(story.fetch(offset=4)) == ["end"]
    story.check_recovery()


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_old_segments_leave_the_disk_and_a_check_finds_no_fault(policy: str) -> None:
    """The snapshot at the start names producers whose batches are gone; in a compacted log, others
    name batches that compaction removed since.
    """
    story = compacted(HURRIED, cleanup_policy=policy, retention_bytes="5000")
    writer = identity_of(story.ask(init_request(None)))
    for number in range(120):
        batch = build_data_batch(
            [b"v" * 100, b""],
            keys=[b"always" if number % 3 else b"%d" % number, b"always"],
            base_timestamp=story.now,
            producer_id=writer.producer_id,
            producer_epoch=writer.producer_epoch,
            base_sequence=2 * number,
        )
        assert produced(story.ask(produce_batches({KEYED: batch}, name=None)))[KEYED].error is ErrorCode.NONE
        story.wait(SCAN_MS)
    start = story.partition(KEYED).log_start_offset
    assert start > 100
    names = [name for name in story.storage.files(str(KEYED)) if name.endswith(".log")]
    assert min(int(name.removesuffix(".log")) for name in names) == start
    story.check_recovery()
    story.host.stop()
    problems = [each for each in check_directory(story.storage).found if each.severity is Severity.PROBLEM]
    assert problems == []


def test_nothing_is_deleted_without_a_limit_and_internal_topics_never_are() -> None:
    settings = attrs.evolve(HURRIED, log_retention_ms=-1)
    story = Story(settings=settings, journal=SMALL)
    fill(story, 9)
    story.wait(60_000)
    assert story.partition().log_start_offset == 0
    assert story.host.node.settings.log_config.retention_ms == -1
    assert NodeSettings().log_config.retention_ms == 7 * 86_400_000
    story = Story(settings=attrs.evolve(HURRIED, log_retention_ms=1_000), journal=SMALL)
    transactions(story, 3)
    story.wait(60_000)
    assert story.partition(transaction_log_of("pay")).log_start_offset == 0


def test_records_that_were_deleted_leave_the_disk_at_once() -> None:
    story = Story(journal=SMALL)
    fill(story, 9)
    part = m.DeleteRecordsPartition(topic="orders", partition=0, offset=8)
    story.ask(m.DeleteRecords(timeout_ms=1_000, partitions=(part,)))
    assert len(story.log()) < 4
    story.check_recovery()


def test_an_unreadable_snapshot_costs_the_compaction_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story = Story(settings=CLEANED, journal=JournalSettings(segment_bytes=1_000))
    me = story.identity()

    def fails(journal: Journal, offset: int) -> OpenTransactions:
        raise StorageError("no file descriptor is left")

    monkeypatch.setattr(Journal, "open_at", fails)
    for number in range(20):
        story.commit_offset(me, "readers", number)
        me = story.ended(me, COMMIT)
    assert story.offset("readers").offset == 19
    assert any("was not compacted" in trouble.text for trouble in story.host.troubles)
    monkeypatch.undo()
    story.check_recovery()
