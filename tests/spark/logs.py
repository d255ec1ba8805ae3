"""Logs for these tests: a writer that remembers every record, and the naive answer to what a reader sees."""

from collections.abc import Mapping, Sequence

from attrs import frozen

from fencepost.journal.data_directory import META_FILE, DataDirectory
from fencepost.journal.journal import Journal, JournalSettings
from fencepost.journal.layouts import open_layout
from fencepost.journal.manifest import ManifestState
from fencepost.journal.memory import MemoryStorage
from fencepost.journal.storage import Storage, StorageReader
from fencepost.protocol.batches import MAGIC_COLUMNS, MAGIC_KAFKA, BatchHeader, build_batch
from fencepost.protocol.compression import Compression
from fencepost.protocol.kafka_records import KafkaRecord, build_kafka_batch
from fencepost.protocol.records import build_data_batch
from fencepost.protocol.terms import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    IsolationLevel,
    TopicPartition,
    TransactionResult,
)
from fencepost.spark_bridge.columns import Column
from fencepost.spark_bridge.losses import warn
from fencepost.spark_bridge.options import parse_options
from fencepost.spark_bridge.planning import PlannedRange, ReadTask
from fencepost.spark_bridge.ranges import plan_batch
from fencepost.spark_bridge.rows import record_batches
from fencepost.spark_bridge.scanning import RangeScan
from tests.journal.logs import Writer
from tests.journal.logs import copy_of as copy_of_partitions

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED

Header = tuple[str, bytes | None]


@frozen
class Row:
    """A record as a reader sees it; the timestamp in milliseconds."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[Header, ...] | None


@frozen
class Entry:
    """A batch of the log: records of no producer, records of a transaction, or its marker."""

    base_offset: int
    next_offset: int
    rows: tuple[Row, ...] = ()
    producer_id: int | None = None
    result: TransactionResult | None = None


class RememberedLog(Writer):
    """Writes a log and remembers what it wrote."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self.entries: list[Entry] = []

    def records(
        self,
        count: int = 1,
        *,
        producer_id: int | None = None,
        size: int = 10,
        timestamp: int = 1_000,
        rich: bool = False,
        deltas: Sequence[int] | None = None,
        compression: Compression = Compression.NONE,
        magic: int = MAGIC_COLUMNS,
    ) -> None:
        """A batch of records that say where they lie.

        `rich` ones have keys, headers and times of their own; `deltas` leaves holes, as compaction does. With
        Kafka's magic there are neither holes nor compression.
        """
        base = self.journal.log_end_offset
        offsets = [base + delta for delta in (range(count) if deltas is None else deltas)]
        rows = [
            _rich_row(offset, size) if rich else Row(offset, None, _value(offset, size), timestamp, None)
            for offset in offsets
        ]
        if magic == MAGIC_KAFKA:
            batch = _kafka_batch(rows, producer_id)
        else:
            batch = _batch(rows, base, producer_id, deltas=deltas, compression=compression)
        header = self.append(batch)
        self.entries.append(Entry(base, header.next_offset, tuple(rows), producer_id))

    def emptied(self, offset_count: int) -> None:
        """What compaction leaves of a batch whose records are all gone."""
        base = self.journal.log_end_offset
        header = self.append(
            build_batch(
                b"", magic=MAGIC_COLUMNS, attributes=0, record_count=0, last_offset_delta=offset_count - 1,
                base_timestamp=1_000, max_timestamp=1_000,
                producer_id=-1, producer_epoch=-1, base_sequence=-1,
            )
        )  # fmt: skip
        self.entries.append(Entry(base, header.next_offset))

    def _marker(self, result: TransactionResult, producer_id: int, timestamp: int) -> BatchHeader:
        header = super()._marker(result, producer_id, timestamp)
        self.entries.append(Entry(header.base_offset, header.next_offset, (), producer_id, result))
        return header

    def write_manifest(self) -> None:
        """What a leader with everything durable says."""
        end = self.journal.log_end_offset
        self.journal.write_manifest(
            ManifestState(
                last_stable_offset=last_stable_offset(self.entries),
                high_watermark=end,
                open_transactions=tuple(self.transactions),
            )
        )


def new_log(storage: Storage, *, settings: JournalSettings | None = None) -> RememberedLog:
    """The first log in a new data directory, locked by this process."""
    directory = DataDirectory.open(storage, settings=settings)
    return RememberedLog(directory.journal(TopicPartition("orders", 0)))


def copy_of(storage: MemoryStorage) -> MemoryStorage:
    """The same data directory, so that one log can be damaged many times."""
    copied = copy_of_partitions(storage)
    copied.replace(META_FILE, storage.read_file(META_FILE) or b"", durable=False)
    return copied


def _value(offset: int, size: int) -> bytes:
    return f"value of {offset} ".encode().ljust(size, b".")


def _rich_row(offset: int, size: int) -> Row:
    """Nulls, empties and times that go back are all in here, by turns."""
    key = None if offset % 3 == 0 else f"key {offset}".encode()
    value = None if offset % 5 == 0 else b"" if offset % 7 == 0 else _value(offset, size)
    headers = (("trace", f"{offset}".encode()), ("ü", None)) if offset % 2 else None
    return Row(offset, key, value, 1_700_000_000_000 - 37 * (offset % 11), headers)


def _batch(
    rows: Sequence[Row],
    base: int,
    producer_id: int | None,
    *,
    deltas: Sequence[int] | None,
    compression: Compression,
) -> bytearray:
    first = rows[0].timestamp
    return build_data_batch(
        [row.value for row in rows],
        keys=[row.key for row in rows] if any(row.key is not None for row in rows) else None,
        headers=[row.headers for row in rows] if any(row.headers for row in rows) else None,
        timestamp_deltas=[row.timestamp - first for row in rows]
        if any(row.timestamp != first for row in rows)
        else None,
        offset_deltas=deltas,
        last_offset_delta=None if deltas is None else deltas[-1] + 2,
        base_timestamp=first,
        compression=compression,
        transactional=producer_id is not None,
        producer_id=NO_PRODUCER_ID if producer_id is None else producer_id,
        producer_epoch=NO_PRODUCER_EPOCH if producer_id is None else 0,
    )


def _kafka_batch(rows: Sequence[Row], producer_id: int | None) -> bytearray:
    first = rows[0].timestamp
    return build_kafka_batch(
        [KafkaRecord(row.key, row.value, row.headers or (), row.timestamp - first) for row in rows],
        timestamp=first,
        transactional=producer_id is not None,
        producer_id=NO_PRODUCER_ID if producer_id is None else producer_id,
        producer_epoch=NO_PRODUCER_EPOCH if producer_id is None else 0,
    )


def end_of(entries: Sequence[Entry]) -> int:
    return entries[-1].next_offset if entries else 0


def outcome(entries: Sequence[Entry], number: int) -> TransactionResult | None:
    """How the transaction of a data batch ended: by the next marker of its producer."""
    producer_id = entries[number].producer_id
    return next(
        (e.result for e in entries[number:] if e.producer_id == producer_id and e.result is not None), None
    )


def last_stable_offset(entries: Sequence[Entry]) -> int:
    """The first batch of a transaction without a marker, else the end."""
    undecided = (
        entry.base_offset
        for number, entry in enumerate(entries)
        if entry.producer_id is not None and outcome(entries, number) is None
    )
    return next(undecided, end_of(entries))


def visible(entries: Sequence[Entry], isolation_level: IsolationLevel) -> list[Row]:
    """The naive answer: looks at the whole log for every batch."""
    if isolation_level is UNCOMMITTED:
        return [row for entry in entries for row in entry.rows]
    stable = last_stable_offset(entries)
    return [
        row
        for number, entry in enumerate(entries)
        if entry.base_offset < stable
        and (entry.producer_id is None or outcome(entries, number) is TransactionResult.COMMIT)
        for row in entry.rows
    ]


ALL_COLUMNS = [Column(name, name) for name in ("offset", "key", "value", "timestamp", "headers")]


def tasks_of(
    storage: StorageReader,
    isolation_level: IsolationLevel = COMMITTED,
    options: Mapping[str, str] | None = None,
) -> list[ReadTask]:
    """The plan for topic `orders`."""
    level = {"isolation.level": isolation_level.name.lower()}
    parsed = parse_options({"path": "unused", "subscribe": "orders", **level, **(options or {})})
    return plan_batch(open_layout([storage]), parsed, report=parsed.report)


def ranges_of(
    storage: StorageReader,
    isolation_level: IsolationLevel = COMMITTED,
    options: Mapping[str, str] | None = None,
) -> list[PlannedRange]:
    """The ranges of all tasks, in order."""
    return [range_ for task in tasks_of(storage, isolation_level, options) for range_ in task.ranges]


def rows_of_task(
    storage: StorageReader,
    task: ReadTask,
    isolation_level: IsolationLevel = COMMITTED,
    *,
    fail_on_data_loss: bool = True,
) -> list[Row]:
    """What a worker makes of a task, without Spark."""
    report = None if fail_on_data_loss else warn
    layout = open_layout([storage])
    scans = (
        RangeScan(layout, range_, isolation_level=isolation_level, report=report) for range_ in task.ranges
    )
    return [
        Row(
            record["offset"],
            record["key"],
            record["value"],
            round(record["timestamp"].timestamp() * 1000),
            None if record["headers"] is None else tuple((h["key"], h["value"]) for h in record["headers"]),
        )
        for batch in record_batches(scans, ALL_COLUMNS)
        for record in batch.to_pylist()
    ]


def read(
    storage: StorageReader,
    isolation_level: IsolationLevel = COMMITTED,
    options: Mapping[str, str] | None = None,
) -> list[Row]:
    """Every row of topic `orders`, in the order of tasks."""
    strict = (options or {}).get("failOnDataLoss") != "false"
    return [
        row
        for task in tasks_of(storage, isolation_level, options)
        for row in rows_of_task(storage, task, isolation_level, fail_on_data_loss=strict)
    ]
