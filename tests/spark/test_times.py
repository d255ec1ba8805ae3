"""Reads that begin and end at times: the first record that is as new, against a search of every record."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.journal.indexes import TIME_ENTRY
from fencepost.journal.journal import JournalSettings
from fencepost.journal.layouts import open_layout
from fencepost.journal.memory import MemoryStorage
from fencepost.protocol.terms import TopicPartition
from fencepost.spark_bridge.option_values import UnusableOption
from fencepost.spark_bridge.partition_files import open_partition_files
from fencepost.spark_bridge.times import find_timestamp
from tests.journal.logs import files_of
from tests.spark.logs import COMMITTED, UNCOMMITTED, RememberedLog, end_of, new_log, read, visible

batches = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 50), st.booleans(), st.booleans()), min_size=1, max_size=30
)


def log_of(content: list[tuple[int, int, bool, bool]]) -> tuple[MemoryStorage, RememberedLog]:
    """Batches with times that go up and down; markers with their own; a new segment now and then."""
    storage = MemoryStorage()
    log = new_log(storage, settings=JournalSettings(segment_bytes=3_000))
    for count, time, in_transaction, rolls in content:
        log.records(count, timestamp=time, size=200, producer_id=1 if in_transaction else None)
        if in_transaction:
            log.commit(1, timestamp=time + 3)
        if rolls:
            log.roll()
    return storage, log


@given(batches, st.integers(0, 60), st.data())
def test_the_first_record_that_is_as_new_is_found(
    content: list[tuple[int, int, bool, bool]], timestamp: int, data: st.DataObject
) -> None:
    storage, log = log_of(content)
    end = end_of(log.entries)
    low = data.draw(st.integers(0, end))
    high = data.draw(st.integers(low, end))
    times = {row.offset: row.timestamp for entry in log.entries for row in entry.rows}
    markers = {header.base_offset: header.max_timestamp for header, _ in log.journal.segments.batches(0)}
    for offset, time in markers.items():
        times.setdefault(offset, time)
    expected = next((o for o in sorted(times) if low <= o < high and times[o] >= timestamp), None)
    files = open_partition_files(open_layout([storage]), TopicPartition("orders", 0))
    assert find_timestamp(files, timestamp, low=low, high=high) == expected


@given(batches, st.integers(0, 60), st.integers(0, 60))
@settings(max_examples=30)
def test_a_time_index_that_is_gone_only_costs_time(
    content: list[tuple[int, int, bool, bool]], start: int, end: int
) -> None:
    storage, _ = log_of(content)
    options = {"startingTimestamp": str(start), "endingTimestamp": str(end)}
    options["startingOffsetsByTimestampStrategy"] = "latest"
    before = read(storage, options=options)
    for path in files_of(storage, "timeindex"):
        storage.remove(path)
    assert read(storage, options=options) == before


@pytest.mark.parametrize(("times_moved", "offsets_moved"), [(-1_000, 0), (0, 60), (-7, -30), (0, 10_000)])
def test_a_time_index_that_lies_only_costs_time(times_moved: int, offsets_moved: int) -> None:
    """Such as that of another partition."""
    storage = MemoryStorage()
    log = new_log(storage)
    for number in range(100):
        log.records(3, size=200, timestamp=5_000 + number)
    log.roll()
    (path, _) = files_of(storage, "timeindex")
    entries = list(TIME_ENTRY.iter_unpack(storage.read_file(path) or b""))
    assert len(entries) > 5
    moved = [TIME_ENTRY.pack(time + times_moved, max(0, at + offsets_moved)) for time, at in entries]
    storage.replace(path, b"".join(moved), durable=False)
    files = open_partition_files(open_layout([storage]), TopicPartition("orders", 0))
    for number in range(100):
        assert find_timestamp(files, 5_000 + number, low=0, high=300) == 3 * number


CONTENT = [(2, 10, False, True), (2, 30, False, False), (2, 20, False, True), (2, 40, False, False)]


@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        ({"startingTimestamp": "0"}, range(8)),
        ({"startingTimestamp": "11"}, range(2, 8)),
        ({"startingTimestamp": "31"}, range(6, 8)),
        ({"endingTimestamp": "11"}, range(2)),
        ({"endingTimestamp": "10"}, range(0)),
        ({"endingTimestamp": "99"}, range(8)),
        ({"startingTimestamp": "11", "endingTimestamp": "31"}, range(2, 6)),
        ({"startingTimestamp": "99", "startingOffsetsByTimestampStrategy": "latest"}, range(0)),
        ({"startingOffsetsByTimestamp": json.dumps({"orders": {"0": 25}})}, range(2, 8)),
        ({"endingOffsetsByTimestamp": json.dumps({"orders": {"0": 40}})}, range(6)),
        ({"startingTimestamp": "40", "startingOffsets": "earliest"}, range(6, 8)),
    ],
)
def test_a_read_between_times(options: dict[str, str], offsets: range) -> None:
    storage, _ = log_of(CONTENT)
    assert [row.offset for row in read(storage, options=options)] == list(offsets)


def test_a_time_after_every_record_is_refused_unless_told_otherwise() -> None:
    storage, _ = log_of(CONTENT)
    with pytest.raises(UnusableOption, match="no record of orders-0 is as new as the starting time, 99 ms"):
        read(storage, options={"startingTimestamp": "99"})
    with pytest.raises(UnusableOption, match=r"startingOffsetsByTimestamp must name .* orders-0 is missing"):
        read(storage, options={"startingOffsetsByTimestamp": "{}"})


def test_records_of_open_transactions_are_not_found_below_the_last_stable_offset() -> None:
    storage, log = log_of(CONTENT)
    log.records(2, producer_id=7, timestamp=100)
    options = {"startingTimestamp": "50"}
    with pytest.raises(UnusableOption, match="no record of orders-0"):
        read(storage, COMMITTED, options)
    assert read(storage, UNCOMMITTED, options) == visible(log.entries, UNCOMMITTED)[8:]
