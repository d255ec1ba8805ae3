"""The tables that explain a log, against the log model, on directories of both brokers."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.journal.journal import JournalSettings
from fencepost.journal.memory import MemoryStorage
from fencepost.protocol.batches import read_header
from fencepost.protocol.compression import Compression
from fencepost.protocol.terms import TopicPartition, TransactionState
from fencepost.protocol.transaction_log import read_transactions
from tests.check.directories import LEFT_LOG, ORDERS_LOG, PAY_LOG, SMALL_LOG, closed, killed
from tests.check.planting import OTHER_PREPARED, restate
from tests.kafka_directories import NAMES, directory_of, told
from tests.spark.logs import RememberedLog, last_stable_offset, new_log
from tests.spark.tables import Written, rows_of, written

OPEN_OF_LEFT: Final = 7  # where the transaction that stays open begins in orders-1

steps = st.lists(
    st.tuples(
        st.sampled_from(["data", "data", "commit", "abort", "plain", "roll", "manifest"]),
        st.integers(1, 3),
        st.integers(1, 4),
    ),
    max_size=40,
)


def log_of(content: list[tuple[str, int, int]]) -> tuple[MemoryStorage, RememberedLog]:
    """Transactions of three producers in any order, some open at the end, in several segments."""
    storage = MemoryStorage()
    log = new_log(storage, settings=JournalSettings(segment_bytes=2_000))
    for step, producer_id, count in content:
        match step:
            case "data":
                log.records(count, producer_id=producer_id, compression=Compression(count))
            case "plain":
                log.records(count)
            case "commit" if log.transactions.first_offset is not None:
                log.commit(producer_id)
            case "abort" if log.transactions.first_offset is not None:
                log.abort(producer_id)
            case "roll" if log.entries:
                log.roll()
            case "manifest":
                log.write_manifest()
            case _:
                pass
    return storage, log


def comparable(row: dict[str, Any]) -> tuple[object, ...]:
    """What a row of `batches` says that the naive answer says, too."""
    names = "file position baseOffset lastOffset recordCount bytes kind state transactional checksum"
    return (row["topic"], row["partition"], *(row[name] for name in names.split()))


def expected(batch: Written) -> tuple[object, ...]:
    header = batch.header
    return (
        *batch.partition, batch.file, batch.position, header.base_offset, header.last_offset,
        header.record_count, header.size, batch.kind, batch.state, header.is_transactional, header.crc,
    )  # fmt: skip


class TestBatches:
    @settings(max_examples=60)
    @given(steps, st.integers(1, 30))
    def test_are_all_batches_with_their_outcome_in_any_cut(
        self, content: list[tuple[str, int, int]], longest: int
    ) -> None:
        storage, _ = log_of(content)
        for options in ({}, {"maxRecordsPerPartition": str(longest)}, {"minPartitions": "9"}):
            found = [comparable(row) for row in rows_of("batches", storage, **options)]
            assert found == [expected(batch) for batch in written(storage)]

    @pytest.mark.parametrize("name", NAMES)
    def test_of_apache_kafka(self, name: str) -> None:
        storage = directory_of(name)
        found = [comparable(row) for row in rows_of("batches", storage)]
        assert found == [expected(batch) for batch in written(storage)]
        if name == "02-transactions":
            states = {row[-3] for row in found}
            assert states == {"committed", "aborted", "open", "none"}

    def test_producers_sequences_and_markers(self) -> None:
        rows = rows_of("batches", closed(), assign='{"orders":[0]}')
        first, marker = rows[0], next(row for row in rows if row["kind"] == "commit")
        assert (first["producerId"], first["producerEpoch"], first["baseSequence"]) == (0, 0, 0)
        assert (first["compression"], first["coordinatorEpoch"]) == ("none", None)
        # With KIP-890, the marker has the epoch that follows that of its data.
        assert (marker["producerEpoch"], marker["baseSequence"], marker["coordinatorEpoch"]) == (1, None, 0)

    def test_checksums_are_compared_on_request(self) -> None:
        directory = closed()
        directory.flip(ORDERS_LOG, 200)
        assert {row["checksumMatches"] for row in rows_of("batches", directory)} == {None}
        rows = rows_of("batches", directory, verifyChecksums="true")
        assert [row["baseOffset"] for row in rows if not row["checksumMatches"]] == [0]

    def test_a_range_of_offsets_has_the_batches_that_end_in_it(self) -> None:
        rows = rows_of(
            "batches",
            closed(),
            assign='{"orders":[1]}',
            startingOffsets='{"orders":{"1":2}}',
            endingOffsets='{"orders":{"1":5}}',
        )
        assert [row["baseOffset"] for row in rows] == [2, 3, 4]


class TestPartitions:
    @settings(max_examples=60)
    @given(steps)
    def test_bounds_and_the_oldest_open_transaction(self, content: list[tuple[str, int, int]]) -> None:
        storage, log = log_of(content)
        for row in rows_of("partitions", storage):
            stable, end = last_stable_offset(log.entries), log.journal.log_end_offset
            assert (row["lastStableOffset"], row["highWatermark"], row["logEndOffset"]) == (stable, end, end)
            assert row["openTransactions"] == len(list(log.transactions))
            assert row["oldestOpenOffset"] == log.transactions.first_offset
            assert (row["oldestOpenSince"] is None) == (row["oldestOpenOffset"] is None)

    def test_of_apache_kafka(self) -> None:
        leaders = told("02-transactions")
        for row in rows_of("partitions", directory_of("02-transactions")):
            leader = leaders[TopicPartition(row["topic"], row["partition"])]
            assert row["logStartOffset"] == leader.log_start
            assert row["lastStableOffset"] == leader.last_stable_offset == row["oldestOpenOffset"]
            assert row["highWatermark"] == leader.high_watermark
            assert row["segments"] > 1

    def test_a_replica_that_lags_ends_the_log_before_its_end(self) -> None:
        storage = MemoryStorage("copy")
        good = directory_of("02-transactions")
        for directory in ["", *good.directories()]:
            if directory.startswith("__cluster_metadata"):
                continue  # so that the checkpoint of high watermarks counts
            if directory:
                storage.make_directory(directory)
            for name in good.files(directory):
                path = f"{directory}/{name}" if directory else name
                storage.replace(path, good.read_file(path) or b"", durable=False)
        storage.replace("replication-offset-checkpoint", b"0\n1\naudit 0 300\n", durable=False)
        (row,) = rows_of("partitions", storage, subscribe="audit")
        assert row["lastStableOffset"] <= row["highWatermark"] <= 300 < row["logEndOffset"] == 625


class TestTransactions:
    @settings(max_examples=60)
    @given(steps)
    def test_cover_exactly_the_batches_in_transactions(self, content: list[tuple[str, int, int]]) -> None:
        storage, _ = log_of(content)
        rows, batches = rows_of("transactions", storage), written(storage)
        decided = [batch for batch in batches if batch.state != "none"]
        assert sum(row["records"] for row in rows) == sum(b.header.record_count for b in decided)
        assert sum(row["bytes"] for row in rows) == sum(b.header.size for b in decided)
        for row in rows:
            assert row["state"] in {
                batch.state
                for batch in decided
                if batch.header.producer_id == row["producerId"]
                and row["firstOffset"] <= batch.header.base_offset <= row["lastOffset"]
            }
            assert row["hanging"] == (row["state"] == "open")  # no coordinator knows these producers

    @pytest.mark.parametrize("make", [closed, killed])
    def test_the_coordinator_speaks_of_the_last_transaction_only(self, make: Any) -> None:
        rows = rows_of("transactions", make())
        found = [
            (row["topic"], row["partition"], row["transactionalId"], row["state"], row["coordinatorState"])
            for row in rows
        ]
        assert sorted(found, key=str) == [
            ("orders", 0, "other", "committed", "CompleteCommit"),
            ("orders", 0, "pay", "aborted", "CompleteAbort"),
            ("orders", 0, "pay", "committed", None),
            ("orders", 1, "left", "open", "Ongoing"),
            ("orders", 1, "pay", "aborted", "CompleteAbort"),
            ("orders", 1, "pay", "committed", None),
        ]
        assert not any(row["hanging"] for row in rows)

    def test_a_transaction_that_its_coordinator_forgot_hangs(self) -> None:
        directory = closed()
        (number,) = (
            number
            for number, batch in enumerate(directory.batches(LEFT_LOG))
            for name, record in _states(batch)
            if name == "left" and record is TransactionState.ONGOING
        )
        restate(directory, LEFT_LOG, number, state=TransactionState.COMPLETE_ABORT, partitions=())
        (row,) = (row for row in rows_of("transactions", directory) if row["hanging"])
        assert (row["transactionalId"], row["firstOffset"], row["file"]) == ("left", OPEN_OF_LEFT, SMALL_LOG)
        assert row["coordinatorState"] == "CompleteAbort"
        assert row["endTimestamp"] is row["durationMs"] is None

    def test_of_apache_kafka_have_the_outcomes_of_its_index(self) -> None:
        rows = rows_of("transactions", directory_of("02-transactions"))
        aborted = {
            (TopicPartition(row["topic"], row["partition"]), row["producerId"], row["firstOffset"])
            for row in rows
            if row["state"] == "aborted"
        }
        assert aborted == {
            (partition, *each)
            for partition, leader in told("02-transactions").items()
            for each in leader.aborted
            if each[1] < leader.last_stable_offset
        } | {each for each in aborted if each[2] >= told("02-transactions")[each[0]].last_stable_offset}
        still_open = [row for row in rows if row["state"] == "open"]
        assert {row["coordinatorState"] for row in still_open} == {"Ongoing"}
        assert not any(row["hanging"] for row in rows)


def _states(batch: bytes) -> list[tuple[str, TransactionState | None]]:
    return [
        (name, None if record is None else record.state)
        for name, record in read_transactions(batch, read_header(batch))
    ]


def test_the_coordinator_table_has_every_record_of_the_transaction_log() -> None:
    directory = closed()
    rows = rows_of("coordinator", directory)
    logs = (PAY_LOG, LEFT_LOG)
    assert len(rows) == sum(len(directory.batches(path)) for path in logs)
    prepared = rows[OTHER_PREPARED]
    assert (prepared["transactionalId"], prepared["state"]) == ("other", "PrepareCommit")
    assert (prepared["partitions"], prepared["timeoutMs"]) == (["orders-0"], 60_000)
    assert (prepared["offset"], prepared["file"]) == (OTHER_PREPARED, PAY_LOG)
    assert rows_of("coordinator", directory_of("01-plain")) == []


class TestLosses:
    def test_a_good_directory_has_none(self) -> None:
        assert rows_of("losses", closed()) == rows_of("losses", directory_of("02-transactions")) == []

    def test_damage_names_file_and_byte(self) -> None:
        directory = closed()
        directory.flip(ORDERS_LOG, 6_000)
        (row,) = rows_of("losses", directory)
        assert (row["topic"], row["partition"], row["startOffset"], row["endOffset"]) == ("orders", 0, 1, 2)
        assert (row["file"], row["position"]) == (f"copy/{ORDERS_LOG}", 5_070)
        assert "the checksum of a batch does not match" in row["reason"]

    def test_a_missing_segment_a_missing_topic(self) -> None:
        directory = killed()
        directory.remove(directory.logs("orders-0")[1])
        rows = rows_of("losses", directory, subscribe="orders,gone")
        assert [row["reason"] for row in rows if row["partition"] is None] == ["copy does not hold gone"]
        (lost,) = (row for row in rows if row["partition"] == 0)
        assert (lost["startOffset"], lost["endOffset"]) == (6, 14)
        assert "is gone, but the manifest there lists it" in lost["reason"]

    @pytest.mark.parametrize(("first", "last"), [(0, -1), (2, -1), (0, 4)])
    def test_a_missing_first_segment_is_one_loss_whatever_was_requested(self, first: int, last: int) -> None:
        directory = killed()
        directory.remove(directory.logs("orders-0")[0])
        starting, ending = (
            {"orders": {"0": offset, "1": edge}} for offset, edge in ((first, -2), (last, -1))
        )
        edges = {"startingOffsets": json.dumps(starting), "endingOffsets": json.dumps(ending)}
        (lost,) = rows_of("losses", directory, subscribe="orders", **edges)
        assert (lost["partition"], lost["startOffset"], lost["endOffset"]) == (0, 0, 6)
        assert "no file in" in lost["reason"]

    def test_a_missing_last_segment_is_one_loss(self) -> None:
        directory = killed()
        directory.remove(directory.logs("orders-0")[2])
        (lost,) = rows_of("losses", directory, subscribe="orders")
        assert (lost["startOffset"], lost["endOffset"]) == (14, 16)


def test_several_directories_of_a_broker_are_told_apart() -> None:
    """A file is named with its directory if there are several."""
    good = directory_of("02-transactions")
    empty = MemoryStorage("second")
    empty.replace("meta.properties", good.read_file("meta.properties") or b"", durable=False)
    files = {row["file"] for row in rows_of("batches", good, empty)}
    assert all(file.startswith("02-transactions/") for file in files)
