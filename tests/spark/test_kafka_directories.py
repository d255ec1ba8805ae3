"""The reader on log directories of Apache Kafka: every row that its consumers got, and no other."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Final

import pytest

from fencepost.journal.layouts import open_layout
from fencepost.journal.memory import MemoryStorage
from fencepost.journal.storage import StorageFile, StorageReader
from fencepost.protocol.batches import (
    DELETE_HORIZON_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    build_batch,
    build_marker,
    place,
    walk,
)
from fencepost.protocol.kafka_records import KafkaRecord, build_kafka_batch
from fencepost.protocol.terms import IsolationLevel, TopicPartition, TransactionResult
from fencepost.spark_bridge.log_offsets import LogOffsets, find_log_offsets
from fencepost.spark_bridge.markers import first_markers
from fencepost.spark_bridge.partition_files import CorruptLog, DataLoss, open_partition_files
from tests.kafka_directories import NAMES, consumed, directory_of, told
from tests.protocol.batches_drawn import encode_kafka_records
from tests.spark.kafka_rows import read, rows_of, tasks_of
from tests.spark.logs import COMMITTED, UNCOMMITTED

AUDIT: Final = TopicPartition("audit", 0)  # of 02-transactions
CODECS: Final = TopicPartition("codecs", 0)  # of 01-plain


@pytest.mark.parametrize("level", list(IsolationLevel))
@pytest.mark.parametrize("name", NAMES)
class TestRows:
    def test_are_those_that_a_consumer_got(self, name: str, level: IsolationLevel) -> None:
        assert read(directory_of(name), level=level) == consumed(name, level)

    @pytest.mark.parametrize(
        "options", [{"maxRecordsPerPartition": "37"}, {"minPartitions": "1000"}, {"minPartitions": "7"}]
    )
    def test_are_the_same_in_any_cut_into_tasks(
        self, name: str, level: IsolationLevel, options: dict[str, str]
    ) -> None:
        assert read(directory_of(name), level=level, **options) == consumed(name, level)

    def test_are_the_same_from_any_offset(self, name: str, level: IsolationLevel) -> None:
        for partition, rows in consumed(name, level).items():
            for start in range(0, rows[-1].offset, 41):
                options = {
                    "assign": json.dumps({partition.topic: [partition.partition]}),
                    "startingOffsets": json.dumps({partition.topic: {str(partition.partition): start}}),
                }
                expected = [row for row in rows if row.offset >= start]
                assert read(directory_of(name), level=level, **options) == {partition: expected}


@pytest.mark.parametrize("name", NAMES)
def test_the_bounds_are_those_that_the_leaders_told(name: str) -> None:
    layout = open_layout([directory_of(name)])
    found = {
        partition: find_log_offsets(open_partition_files(layout, partition))
        for partition in layout.partitions()
    }
    assert {
        partition: (bounds.log_start_offset, bounds.last_stable_offset, bounds.log_end_offset)
        for partition, bounds in found.items()
        if partition.topic != "__cluster_metadata"
    } == {
        partition: (leader.log_start, leader.last_stable_offset, leader.high_watermark)
        for partition, leader in told(name).items()
    }
    for partition, leader in told(name).items():
        log = open_partition_files(layout, partition)
        aborted = log.collect_aborted(0, upper=leader.last_stable_offset)
        expected = sorted(each for each in leader.aborted if each[1] < leader.last_stable_offset)
        assert sorted((each.producer_id, each.first_offset) for each in aborted) == expected


class TestFilesOfABroker:
    """What a log directory may hold besides segments, or lack."""

    def test_a_replicated_partition_ends_at_its_high_watermark(self) -> None:
        name = "02-transactions"
        for level in IsolationLevel:
            for offset in (0, 91, 96, 300, 612, 613, 614, 625, 700):
                storage = without_metadata(directory_of(name))
                checkpoint = f"0\n1\naudit 0 {offset}\n".encode()
                storage.replace("replication-offset-checkpoint", checkpoint, durable=False)
                whole = [header.next_offset for header, _ in batches_of(storage, AUDIT)]
                end = max((each for each in whole if each <= offset), default=0)
                if level is COMMITTED:  # what is undecided at the high watermark holds its LSO back
                    end = bounds_of(storage, AUDIT).last_stable_offset
                expected = [row for row in consumed(name, level)[AUDIT] if row.offset < end]
                assert read(storage, level=level, subscribe="audit").get(AUDIT, []) == expected

    def test_the_last_stable_offset_is_that_of_the_high_watermark(self) -> None:
        """By the naive rule: it is where the first transaction without a marker begins."""
        storage = without_metadata(directory_of("02-transactions"))
        batches = batches_of(storage, AUDIT)
        ends = [header.next_offset for header, _ in batches]
        for number, end in enumerate(ends):
            open_since: dict[int, int] = {}
            for header, _ in batches[: number + 1]:
                if header.is_control:
                    open_since.pop(header.producer_id, None)
                elif header.is_transactional:
                    open_since.setdefault(header.producer_id, header.base_offset)
            storage.replace("replication-offset-checkpoint", f"0\n1\naudit 0 {end}\n".encode(), durable=False)
            bounds = bounds_of(storage, AUDIT)
            assert bounds.last_stable_offset == min(open_since.values(), default=end)
            assert bounds.log_end_offset == end

    def test_records_before_the_log_start_are_deleted(self) -> None:
        name = "02-transactions"
        for level in IsolationLevel:
            for start in (1, 30, 97, 612, 613, 620, 625):
                storage = directory_of(name)
                storage.replace(
                    "log-start-offset-checkpoint", f"0\n1\naudit 0 {start}\n".encode(), durable=False
                )
                expected = [row for row in consumed(name, level)[AUDIT] if row.offset >= start]
                assert read(storage, level=level, subscribe="audit").get(AUDIT, []) == expected

    def test_a_transaction_whose_records_are_deleted_still_hides_what_follows(self) -> None:
        """Of the transaction that is open from offset 613 on, only the producer snapshot is left."""
        storage = directory_of("02-transactions")
        storage.replace("log-start-offset-checkpoint", b"0\n1\naudit 0 625\n", durable=False)
        for name in storage.files("audit-0"):
            if name < f"{625:020d}":
                storage.remove(f"audit-0/{name}")
        storage.replace(f"audit-0/{625:020d}.log", b"", durable=False)
        assert bounds_of(storage, AUDIT).last_stable_offset == 613
        assert read(storage, subscribe="audit") == {}

    def test_room_that_is_reserved_in_indexes_and_logs_is_empty(self) -> None:
        name = "01-plain"
        storage = directory_of(name)
        for directory in storage.directories():
            last = max(file for file in storage.files(directory) if file.endswith(".log")).removesuffix("log")
            for kind in ("index", "timeindex", "log"):
                path = f"{directory}/{last}{kind}"
                storage.replace(path, (storage.read_file(path) or b"") + bytes(12_000), durable=False)
        assert read(storage) == consumed(name, COMMITTED)
        assert read(storage, minPartitions="100") == consumed(name, COMMITTED)

    def test_segments_that_come_or_go_are_not_read(self) -> None:
        name = "02-transactions"
        storage = directory_of(name)
        for kind in ("log", "index", "timeindex", "txnindex"):
            for suffix in ("deleted", "cleaned", "swap"):
                storage.replace(f"audit-0/{25:020d}.{kind}.{suffix}", b"x" * 100, durable=False)
        assert read(storage) == consumed(name, COMMITTED)

    @pytest.mark.parametrize("base", [0, 159])
    def test_a_segment_that_was_copied_in_the_middle_of_its_replacement_is_missed(self, base: int) -> None:
        """Kafka has renamed the old files to `.deleted`, and the cleaned one not yet to its place."""
        storage = directory_of("02-transactions")
        path = f"audit-0/{base:020d}.log"
        storage.replace(f"{path}.swap", storage.read_file(path) or b"", durable=False)
        assert read(storage) == consumed("02-transactions", COMMITTED)  # the old one is still in its place
        storage.rename(path, f"{path}.deleted")
        with pytest.raises(DataLoss, match=r"\.log is gone, and \.swap was not renamed"):
            read(storage, subscribe="audit")
        storage.rename(f"{path}.swap", path)
        assert read(storage) == consumed("02-transactions", COMMITTED)

    def test_without_indexes_and_snapshots_the_log_tells_all_but_what_was_aborted(self) -> None:
        name = "02-transactions"
        storage = directory_of(name)
        for directory in storage.directories():
            for file in storage.files(directory):
                if file.endswith((".index", ".timeindex", ".snapshot")):
                    storage.remove(f"{directory}/{file}")
        assert read(storage) == consumed(name, COMMITTED)

    @pytest.mark.parametrize("is_emptied", [False, True])
    @pytest.mark.parametrize(
        "options",
        [{}, {"maxRecordsPerPartition": "1"}, {"maxRecordsPerPartition": "7"}, {"minPartitions": "40"}],
    )
    def test_an_index_of_aborted_transactions_that_was_lost_hides_nothing(
        self, options: dict[str, str], is_emptied: bool
    ) -> None:
        """The markers tell what was aborted, also where a marker is in another task than the records."""
        name = "02-transactions"
        storage = directory_of(name)
        for path in transaction_indexes_of(storage):
            storage.remove(path)
            if is_emptied:
                storage.replace(path, b"", durable=False)
        assert read(storage, level=COMMITTED, **options) == consumed(name, COMMITTED)

    def test_one_lost_index_of_several_hides_nothing(self) -> None:
        name = "02-transactions"
        paths = transaction_indexes_of(directory_of(name))
        assert len(paths) > 2
        for path in paths:
            storage = directory_of(name)
            storage.remove(path)
            topic, _, partition = path.rpartition("/")[0].rpartition("-")
            read_one = f'{{"{topic}": [{partition}]}}'
            expected = consumed(name, COMMITTED)[TopicPartition(topic, int(partition))]
            assert [*read(storage, assign=read_one, maxRecordsPerPartition="13").values()] == [expected]

    def test_lost_indexes_hide_nothing_from_any_offset(self) -> None:
        storage = directory_of("02-transactions")
        for path in transaction_indexes_of(storage):
            storage.remove(path)
        rows = consumed("02-transactions", COMMITTED)[AUDIT]
        for start in range(0, rows[-1].offset, 23):
            options = {"assign": '{"audit": [0]}', "startingOffsets": f'{{"audit": {{"0": {start}}}}}'}
            assert read(storage, level=COMMITTED, **options) == {
                AUDIT: [row for row in rows if row.offset >= start]
            }

    def test_an_index_that_lacks_an_entry_is_noticed(self) -> None:
        storage = directory_of("02-transactions")
        path = f"audit-0/{159:020d}.txnindex"
        storage.replace(path, (storage.read_file(path) or b"")[:34], durable=False)
        with pytest.raises(CorruptLog, match="lists all of it: copy it again, or remove"):
            read(storage, subscribe="audit")

    def test_a_marker_is_not_taken_for_that_of_a_transaction_that_was_deleted(self) -> None:
        """A marker after the new start may end a later transaction of the same producer."""
        storage = directory_of("02-transactions")
        log = open_partition_files(open_layout([storage]), AUDIT)
        producers = {header.producer_id for header, _ in batches_of(storage, AUDIT)}
        assert first_markers(log, 0, producers)
        storage.remove(log.path(log.segments[0]))
        assert first_markers(open_partition_files(open_layout([storage]), AUDIT), 0, producers) == []

    def test_an_index_of_another_partition_is_noticed(self) -> None:
        for name, other in (("audit-0", "pay-0"), ("pay-1", "pay-0"), ("pay-2", "audit-0")):
            storage = directory_of("02-transactions")
            mine, theirs = (
                [path for path in transaction_indexes_of(storage) if path.startswith(directory)]
                for directory in (name, other)
            )
            content = b"".join(storage.read_file(path) or b"" for path in (mine[1], *theirs))
            storage.replace(mine[1], content, durable=False)
            with pytest.raises(CorruptLog, match="but a transaction index lists it as aborted"):
                read(storage, subscribe=name.rpartition("-")[0])

    def test_a_directory_under_the_name_of_another_topic_is_refused(self) -> None:
        storage = directory_of("02-transactions")
        copy_directory(storage, "pay-0", "audit-0")
        with pytest.raises(CorruptLog, match=r"audit-0: partition.metadata has topic id .*, but audit has"):
            read(storage, subscribe="audit")
        assert read(storage, subscribe="pay").keys() == {TopicPartition("pay", number) for number in range(3)}

    def test_a_directory_under_the_name_of_a_partition_that_the_topic_lacks_is_refused(self) -> None:
        storage = directory_of("02-transactions")
        copy_directory(storage, "pay-0", "pay-7")
        with pytest.raises(CorruptLog, match=r"pay-7: the cluster's metadata has no partition 7 of pay"):
            read(storage, subscribe="pay")
        without_metadata(storage)
        put_high_watermark(storage, 0)
        assert read(storage, subscribe="pay") == {}  # nothing tells it

    def test_each_small_file_of_a_partition_is_read_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A request to an object store takes time."""
        asked: list[str] = []

        def read_file(storage: MemoryStorage, path: str) -> bytes | None:
            asked.append(path)
            return original(storage, path)

        layout, original = open_layout([directory_of("02-transactions")]), MemoryStorage.read_file
        layout.partitions()
        monkeypatch.setattr(MemoryStorage, "read_file", read_file)
        open_partition_files(layout, AUDIT)
        assert sorted(asked) == ["audit-0/partition.metadata", "log-start-offset-checkpoint"]

    def test_a_topic_without_records_has_no_rows(self) -> None:
        storage = directory_of("01-plain")
        storage.remove_directory("odd-0")
        assert read(storage, subscribe="odd") == {}

    def test_a_torn_end_is_not_there_yet(self) -> None:
        storage = directory_of("01-plain")
        path = f"codecs-0/{266:020d}.log"
        storage.replace(path, (storage.read_file(path) or b"")[:-5], durable=False)
        rows = read(storage, subscribe="codecs")
        last = batches_of(directory_of("01-plain"), CODECS)[-1][0]
        expected = [row for row in consumed("01-plain", COMMITTED)[CODECS] if row.offset < last.base_offset]
        assert rows[CODECS] == expected

    @pytest.mark.parametrize("magic", [0, 1])
    def test_formats_from_before_transactions_are_refused(self, magic: int) -> None:
        storage = directory_of("01-plain")
        path = f"codecs-0/{0:020d}.log"
        content = bytearray(storage.read_file(path) or b"")
        content[16] = magic
        storage.replace(path, content, durable=False)
        with pytest.raises(CorruptLog, match=f"magic byte {magic} is neither 2 nor 109; Kafka before 0.11"):
            read(storage, subscribe="codecs")


class TestCompactedLogs:
    """Batches that the cleaner removed, thinned or emptied."""

    @pytest.mark.parametrize(
        ("dropped", "cut"),
        # One record per task decodes each batch once per record: only where most tasks begin in a gap.
        [(slice(0, 3), "7"), (slice(1, None, 2), "1"), (slice(-2, None), "7"), (slice(5, 30), "7")],
    )
    def test_gaps_between_batches_are_no_damage(self, dropped: slice, cut: str) -> None:
        name = "01-plain"
        storage = directory_of(name)
        batches = batches_of(storage, CODECS)
        lost = {header.base_offset for header, _ in batches[dropped]}
        rewrite(storage, CODECS, [batch for header, batch in batches if header.base_offset not in lost])
        gone = {
            offset
            for header, _ in batches[dropped]
            for offset in range(header.base_offset, header.next_offset)
        }
        expected = [row for row in consumed(name, COMMITTED)[CODECS] if row.offset not in gone]
        assert read(storage, subscribe="codecs", maxRecordsPerPartition=cut)[CODECS] == expected
        assert read(storage, subscribe="codecs", minPartitions="50")[CODECS] == expected

    def test_the_log_may_end_in_a_gap_before_an_empty_segment(self) -> None:
        storage = directory_of("01-plain")
        batches = batches_of(storage, CODECS)
        rewrite(storage, CODECS, [batch for header, batch in batches if header.base_offset < 390])
        storage.replace(f"codecs-0/{400:020d}.log", b"", durable=False)
        assert bounds_of(storage, CODECS).log_end_offset == 400
        end = max(header.next_offset for header, _ in batches if header.base_offset < 390)
        expected = [row for row in consumed("01-plain", COMMITTED)[CODECS] if row.offset < end]
        assert read(storage, subscribe="codecs")[CODECS] == expected

    def test_an_emptied_batch_opens_no_transaction(self) -> None:
        """The cleaner keeps the header of a producer's last batch, and removes the marker after it."""
        storage = directory_of("01-plain")
        emptied = transactional(record_count=0, last_offset_delta=4)
        kept = build_kafka_batch([KafkaRecord(b"k", b"v")], timestamp=1)
        rewrite(storage, CODECS, [*placed(emptied, kept)])
        bounds = bounds_of(storage, CODECS)
        assert (bounds.last_stable_offset, bounds.log_end_offset) == (6, 6)
        assert [row.offset for row in read(storage, subscribe="codecs")[CODECS]] == [5]

    def test_the_abort_of_removed_records_says_nothing_about_an_emptied_batch(self) -> None:
        storage = directory_of("01-plain")
        emptied = transactional(record_count=0, last_offset_delta=4)
        abort = build_marker(
            TransactionResult.ABORT, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp=1
        )
        kept = build_kafka_batch([KafkaRecord(b"k", b"v")], timestamp=1)
        rewrite(storage, CODECS, [*placed(emptied, abort, kept)])
        assert [row.offset for row in read(storage, subscribe="codecs")[CODECS]] == [6]

    def test_times_of_a_batch_with_a_delete_horizon_count_from_it(self) -> None:
        storage = directory_of("01-plain")
        records = [
            KafkaRecord(b"a", None, timestamp_delta=-5_000),
            KafkaRecord(b"b", None, timestamp_delta=3),
        ]
        batch = build_batch(
            encode_kafka_records(
                [record._replace(offset_delta=delta) for delta, record in enumerate(records)]
            ),
            attributes=DELETE_HORIZON_BIT,
            record_count=2,
            last_offset_delta=1,
            base_timestamp=1_000_000,
            max_timestamp=1_000_003,
        )
        rewrite(storage, CODECS, [*placed(batch)])
        assert [row.timestamp for row in read(storage, subscribe="codecs")[CODECS]] == [995_000, 1_000_003]


class TestSeveralDirectories:
    """The directories of one cluster, as one log."""

    @pytest.mark.parametrize("level", list(IsolationLevel))
    def test_have_all_partitions_together(self, level: IsolationLevel) -> None:
        name = "02-transactions"
        halves = directory_of(name), directory_of(name)
        for number, directory in enumerate(halves[0].directories()):
            halves[number % 2].remove_directory(directory)
        assert read(*halves, level=level) == consumed(name, level)
        assert read(*reversed(halves), level=level, minPartitions="40") == consumed(name, level)

    def test_a_task_reads_the_replica_for_which_it_was_planned(self) -> None:
        """While brokers run, another replica may get ahead between the plan and the read, and its files are
        cut into segments elsewhere.
        """
        first, second = (without_metadata(directory_of("02-transactions")) for _ in range(2))
        rewrite(second, AUDIT, [batch for _, batch in batches_of(second, AUDIT)])
        put_high_watermark(first, 625)
        put_high_watermark(second, 500)
        tasks = tasks_of([first, second], UNCOMMITTED, {"subscribe": "audit", "minPartitions": "9"})
        put_high_watermark(first, 400)
        put_high_watermark(second, 625)
        expected = {AUDIT: consumed("02-transactions", UNCOMMITTED)[AUDIT]}
        assert read(first, second, level=UNCOMMITTED, subscribe="audit") == expected
        opened: list[str] = []
        open_file = second.open

        def noting(path: str, *, create: bool = False) -> StorageFile:
            opened.append(path)
            return open_file(path, create=create)

        second.open = noting
        assert rows_of([first, second], tasks, UNCOMMITTED) == expected
        assert opened == []

    def test_a_replica_that_lags_ends_where_it_is(self) -> None:
        storage = without_metadata(directory_of("02-transactions"))
        put_high_watermark(storage, 625)
        remove_from(storage, AUDIT, 495)
        found = read(storage, level=UNCOMMITTED, subscribe="audit")
        expected = [row for row in consumed("02-transactions", UNCOMMITTED)[AUDIT] if row.offset < 495]
        assert found == {AUDIT: expected}


def transaction_indexes_of(storage: MemoryStorage) -> list[str]:
    """The paths of the transaction indexes of all partitions."""
    return [
        f"{directory}/{name}"
        for directory in storage.directories()
        for name in storage.files(directory)
        if name.endswith(".txnindex")
    ]


def copy_directory(storage: MemoryStorage, name: str, to: str) -> None:
    """Puts a copy of a partition's directory in the place of another one."""
    if to in storage.directories():
        storage.remove_directory(to)
    storage.make_directory(to)
    for file in storage.files(name):
        storage.replace(f"{to}/{file}", storage.read_file(f"{name}/{file}") or b"", durable=False)


def put_high_watermark(storage: MemoryStorage, offset: int) -> None:
    """What the broker wrote down of `audit-0`."""
    storage.replace("replication-offset-checkpoint", f"0\n1\naudit 0 {offset}\n".encode(), durable=False)


def remove_from(storage: MemoryStorage, partition: TopicPartition, offset: int) -> None:
    """Removes the segments from an offset on."""
    for name in storage.files(str(partition)):
        if name[:20].isdigit() and int(name[:20]) >= offset:
            storage.remove(f"{partition}/{name}")


def without_metadata(storage: MemoryStorage) -> MemoryStorage:
    """The directory of a broker whose metadata is elsewhere: how many replicas there are is not known."""
    storage.remove_directory("__cluster_metadata-0")
    return storage


def bounds_of(storage: StorageReader, partition: TopicPartition) -> LogOffsets:
    return find_log_offsets(open_partition_files(open_layout([storage]), partition))


def batches_of(storage: StorageReader, partition: TopicPartition) -> list[tuple[BatchHeader, bytes]]:
    """Every batch of a partition."""
    found: list[tuple[BatchHeader, bytes]] = []
    for name in storage.files(str(partition)):
        if name.endswith(".log"):
            content = storage.read_file(f"{partition}/{name}") or b""
            found += [(header, content[at : at + header.size]) for at, header in walk(content)]
    return found


def rewrite(storage: MemoryStorage, partition: TopicPartition, batches: Sequence[bytes | bytearray]) -> None:
    """One segment with these batches, and no other file, in the place of a partition's."""
    for name in storage.files(str(partition)):
        storage.remove(f"{partition}/{name}")
    storage.replace(f"{partition}/{0:020d}.log", b"".join(batches), durable=False)


def transactional(*, record_count: int, last_offset_delta: int) -> bytearray:
    """An empty batch of a transaction of producer 7."""
    return build_batch(
        b"",
        attributes=TRANSACTIONAL_BIT,
        record_count=record_count,
        last_offset_delta=last_offset_delta,
        base_timestamp=1,
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
    )


def placed(*batches: bytearray) -> Iterator[bytearray]:
    """The batches one after the other."""
    offset = 0
    for batch in batches:
        offset = place(batch, base_offset=offset, leader_epoch=0).next_offset
        yield batch
