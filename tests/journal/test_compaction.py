"""What compaction leaves of drawn logs, against a naive reader who goes through the whole log each time."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fencepost.journal.compaction import KEY_BYTES, Cleaner, Survey
from fencepost.journal.indexes import AbortedRange
from fencepost.log_model.partitions import ModelProducer, PartitionModel
from fencepost.protocol.batches import (
    CONTROL_BATCH_SIZE,
    CONTROL_BATCH_SIZE_MAX,
    MAGIC_COLUMNS,
    BatchHeader,
    Buffer,
    build_batch,
    build_marker,
    place,
    read_marker,
)
from fencepost.protocol.compression import Compression
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.kafka_records import KafkaRecord, build_kafka_batch
from fencepost.protocol.records import build_data_batch, read_columns
from fencepost.protocol.terms import (
    INT64_MAX,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TransactionResult,
)
from tests.batches import read_batch

DAY_MS = 86_400_000
COMMIT, ABORT = TransactionResult.COMMIT, TransactionResult.ABORT
Records = list[tuple[bytes, bytes | None]]
Batch = tuple[BatchHeader, Buffer]


class Log:
    """A log in memory: what a leader would append."""

    def __init__(self, batches: Iterable[Batch] = ()) -> None:
        self.batches = list(batches)
        self.sequences: dict[int, int] = {}
        self.now = 1_000

    @property
    def end(self) -> int:
        return self.batches[-1][0].next_offset if self.batches else 0

    def append(self, batch: bytearray) -> BatchHeader:
        place(batch, base_offset=self.end, leader_epoch=self.now // 10_000)
        self.batches.append((read_batch(batch), bytes(batch)))
        return self.batches[-1][0]

    def write(
        self,
        records: Records,
        *,
        producer: int = NO_PRODUCER_ID,
        transactional: bool = False,
        columns: bool = True,
        compression: Compression = Compression.NONE,
    ) -> BatchHeader:
        self.now += 10
        sequence = self.sequences.get(producer, 0)
        epoch, sequence = (NO_PRODUCER_EPOCH, NO_SEQUENCE) if producer == NO_PRODUCER_ID else (0, sequence)
        if columns:
            batch = build_data_batch(
                [value for _, value in records], keys=[key for key, _ in records], base_timestamp=self.now,
                timestamp_deltas=list(range(len(records))), transactional=transactional,
                compression=compression, producer_id=producer, producer_epoch=epoch, base_sequence=sequence,
            )  # fmt: skip
        else:
            kafka = [KafkaRecord(key, value, timestamp_delta=at) for at, (key, value) in enumerate(records)]
            batch = build_kafka_batch(
                kafka, timestamp=self.now, transactional=transactional,
                producer_id=producer, producer_epoch=epoch, base_sequence=sequence,
            )  # fmt: skip
        self.sequences[producer] = self.sequences.get(producer, 0) + len(records)
        return self.append(batch)

    def end_transaction(self, producer: int, result: TransactionResult) -> BatchHeader:
        self.now += 10
        return self.append(
            build_marker(
                result, producer_id=producer, producer_epoch=0, coordinator_epoch=3, timestamp=self.now
            )
        )

    def cleaned(
        self,
        end: int | None = None,
        *,
        first_dirty: int = 0,
        later_ms: int = 0,
        retention_ms: int = DAY_MS,
        live: frozenset[int] | None = None,
        pieces: int = 1,
    ) -> Log:
        """The log after a cleaning up to `end` (at most the last stable offset)."""
        model = model_of(self.batches)
        end = model.last_stable_offset if end is None else end
        live = frozenset(model.producers) if live is None else live
        aborted = [AbortedRange(*entry) for entry in model.aborted if entry.first_offset < end]
        part = [batch for batch in self.batches if batch[0].base_offset < end]
        survey = Survey(first_dirty=first_dirty, end=end, aborted=aborted, producers=live)
        survey.update(part)
        cleaner = Cleaner(survey, aborted=aborted, now=self.now + later_ms, delete_retention_ms=retention_ms)
        size = len(part) // pieces + 1
        kept = [batch for at in range(0, len(part), size) for batch in cleaner.clean(part[at : at + size])]
        after = Log([*kept, *[batch for batch in self.batches if batch[0].base_offset >= end]])
        after.sequences, after.now = dict(self.sequences), self.now + later_ms
        return after


def model_of(batches: Iterable[Batch]) -> PartitionModel:
    model = PartitionModel()
    for header, batch in batches:
        marker = read_marker(batch) if header.is_control and header.record_count else None
        model.apply(header, marker)
    return model


class Seen(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def committed(log: Log) -> list[Seen]:
    """What a reader of committed records sees, from the start to the last stable offset."""
    model = model_of(log.batches)
    seen: list[Seen] = []
    for header, batch in log.batches:
        decided = (
            model.result_of(header.producer_id, header.base_offset) if header.is_transactional else COMMIT
        )
        if header.is_control or decided is not COMMIT or header.base_offset >= model.last_stable_offset:
            continue
        columns = read_columns(batch, header)
        deltas = columns.offset_deltas or range(header.record_count)
        times = columns.timestamp_deltas or [0] * header.record_count
        keys = columns.keys or [None] * header.record_count
        for delta, later, key, value in zip(deltas, times, keys, columns.values, strict=True):
            seen.append(Seen(header.base_offset + delta, header.base_timestamp + later, key, value))
    return seen


def state(log: Log) -> dict[bytes | None, bytes]:
    """The latest committed value of each key."""
    latest = {record.key: record.value for record in committed(log)}
    return {key: value for key, value in latest.items() if value is not None}


def producers(log: Log) -> dict[int, ModelProducer]:
    return model_of(log.batches).producers


def check_same(before: Log, after: Log) -> None:
    """A cleaned log says the same as the whole one."""
    end, epoch = before.batches[0][0].base_offset, -1
    for header, batch in after.batches:
        assert read_batch(batch) == header, "a checksum"
        assert header.base_offset == end, "a gap"
        assert header.leader_epoch >= epoch
        end, epoch = header.next_offset, header.leader_epoch
    assert end == before.end
    assert state(after) == state(before)
    assert set(committed(after)) <= set(committed(before))
    assert producers(after) == producers(before)
    assert model_of(after.batches).open == model_of(before.batches).open


# --- drawn logs ---------------------------------------------------------------------------------------------

KEYS = st.sampled_from([b"a", b"b", b"c"])
RECORDS = st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=2)), min_size=1, max_size=3)
ACTS = st.one_of(
    st.tuples(st.just("plain"), st.just(NO_PRODUCER_ID), RECORDS),
    st.tuples(st.just("idempotent"), st.just(9), RECORDS),
    st.tuples(st.just("transactional"), st.integers(1, 3), RECORDS),
    st.tuples(st.sampled_from(["commit", "abort"]), st.integers(1, 3), st.just([])),
    st.tuples(st.just("clean"), st.sampled_from([0, DAY_MS // 2, 2 * DAY_MS]), st.just([])),
)


@settings(max_examples=200, deadline=None)
@given(acts=st.lists(ACTS, max_size=30), how=st.integers(0, 2))
@example(acts=[("transactional", 1, [(b"a", b"1")]), ("clean", 0, []), ("abort", 1, [])], how=0)
def test_a_cleaned_log_says_the_same(acts: list[tuple[str, int, Records]], how: int) -> None:
    log = Log()
    first_dirty = 0
    compression = Compression.GZIP if how == 2 else Compression.NONE
    for kind, number, records in [*acts, ("clean", 0, []), ("clean", DAY_MS, []), ("clean", DAY_MS, [])]:
        if kind in ("commit", "abort"):
            log.end_transaction(number, COMMIT if kind == "commit" else ABORT)
        elif kind != "clean":
            log.write(
                records,
                producer=number,
                transactional=kind == "transactional",
                columns=how > 0,
                compression=compression,
            )
        elif log.batches:
            after = log.cleaned(first_dirty=first_dirty, later_ms=number, pieces=1 + how)
            check_same(log, after)
            first_dirty, log = model_of(log.batches).last_stable_offset, after
    if not log.batches:
        return
    # Nothing superfluous is left below the last stable offset.
    stable = model_of(log.batches).last_stable_offset
    seen = [record.key for record in committed(log)]
    assert len(seen) == len(set(seen))
    left = [header for header, _ in log.batches if header.base_offset < stable]
    left = [header for header in left if not header.is_covering]
    assert len(left) <= 3 + 2 * 4, "a batch for each key, and two for each producer"


@settings(max_examples=100, deadline=None)
@given(acts=st.lists(ACTS, min_size=5, max_size=30), share=st.floats(0, 1))
def test_a_cleaning_may_end_inside_a_transaction(acts: list[tuple[str, int, Records]], share: float) -> None:
    """Its end is below the last stable offset, so the transaction is decided, but its marker comes later."""
    log = Log()
    for kind, number, records in acts:
        if kind in ("commit", "abort"):
            log.end_transaction(number, COMMIT if kind == "commit" else ABORT)
        elif kind != "clean":
            log.write(records, producer=number, transactional=kind == "transactional")
    below = [
        header.base_offset
        for header, _ in log.batches
        if header.base_offset < model_of(log.batches).last_stable_offset
    ]
    if not below:
        return
    end = below[int(share * (len(below) - 1))]
    after = log.cleaned(end)
    check_same(log, after)
    later = [entry for entry in model_of(log.batches).aborted if entry.last_offset >= end]
    assert [entry for entry in model_of(after.batches).aborted if entry.last_offset >= end] == later


# --- rule by rule -------------------------------------------------------------------------------------------


def words(log: Log) -> str:
    """`a=1`, `-a` for a tombstone, `commit 7`, `(7)` for an empty batch of it, `.` for a covering one."""
    said: list[str] = []
    for header, batch in log.batches:
        if header.is_covering:
            said.append(".")
        elif header.is_control:
            said.append(f"{read_marker(batch).result.name.lower()} {header.producer_id}")
        elif not header.record_count:
            said.append(f"({header.producer_id})")
        else:
            columns = read_columns(batch, header)
            pairs = zip(columns.keys or (), columns.values, strict=True)
            said.append(
                " ".join(
                    f"-{(key or b'').decode()}"
                    if value is None
                    else f"{(key or b'').decode()}={value.decode()}"
                    for key, value in pairs
                )
            )
    return " | ".join(said)


def test_only_the_latest_record_of_a_key_stays() -> None:
    log = Log()
    log.write([(b"a", b"1"), (b"b", b"1")])
    log.write([(b"a", b"2")])
    log.write([(b"c", b"1"), (b"a", b"3")])
    assert words(log.cleaned()) == "b=1 | . | c=1 a=3"


def test_one_empty_batch_covers_all_that_was_removed_in_a_row() -> None:
    log = Log()
    for number in range(5):
        log.write([(b"a", b"%d" % number)])
    after = log.cleaned()
    assert words(after) == ". | a=4"
    assert after.batches[0][0].next_offset == 4


def test_a_tombstone_outlives_its_key_by_delete_retention() -> None:
    log = Log()
    log.write([(b"a", b"1")])
    log.write([(b"a", None)])
    once = log.cleaned(retention_ms=100)
    assert words(once) == ". | -a"
    assert once.batches[1][0].delete_horizon_ms == log.now + 100
    assert committed(once)[0].timestamp == log.now, "a horizon changes no timestamp"
    assert words(once.cleaned(later_ms=99)) == ". | -a", "the horizon stands, whatever the setting is now"
    assert words(once.cleaned(later_ms=100)) == "."
    assert words(once.cleaned(later_ms=99).cleaned(later_ms=1)) == "."


def test_aborted_records_go_at_once_and_never_replace_committed_ones() -> None:
    log = Log()
    log.write([(b"a", b"1")])
    log.write([(b"a", b"2")], producer=7, transactional=True)
    log.end_transaction(7, ABORT)
    assert words(log.cleaned()) == "a=1 | (7) | abort 7"
    assert words(log.cleaned(live=frozenset())) == "a=1 | . | abort 7"


def test_a_tombstone_can_be_kept_for_ever() -> None:
    log = Log()
    log.write([(b"a", None)])
    once = log.cleaned(retention_ms=INT64_MAX)
    assert words(once) == "-a"
    assert words(once.cleaned(later_ms=INT64_MAX - log.now - 1)) == "-a"


def test_a_marker_stays_while_its_records_do_and_then_until_its_horizon() -> None:
    log = Log()
    log.write([(b"a", b"1")], producer=7, transactional=True)
    log.end_transaction(7, COMMIT)
    nobody = frozenset[int]()
    first = log.cleaned(live=nobody, later_ms=DAY_MS)
    assert words(first) == "a=1 | commit 7"
    assert first.batches[1][0].delete_horizon_ms is None
    first.write([(b"a", b"2")])
    log = first
    second = first.cleaned(live=nobody, retention_ms=100)
    assert second.batches[1][0].delete_horizon_ms == log.now + 100
    assert read_marker(second.batches[1][1]).coordinator_epoch == 3
    assert CONTROL_BATCH_SIZE < second.batches[1][0].size <= CONTROL_BATCH_SIZE_MAX
    assert words(second.cleaned(live=nobody, later_ms=99)) == ". | commit 7 | a=2"
    assert words(second.cleaned(live=nobody, later_ms=100)) == ". | a=2"


def test_a_producer_keeps_its_last_sequence_and_its_last_epoch() -> None:
    log = Log()
    log.write([(b"a", b"1"), (b"b", b"1")], producer=7, transactional=True)
    log.end_transaction(7, COMMIT)
    log.write([(b"a", b"2"), (b"b", b"2")])
    for _ in range(3):
        log = log.cleaned(later_ms=2 * DAY_MS)
    assert words(log) == "(7) | commit 7 | a=2 b=2"
    assert producers(log)[7].last_sequence == 1
    assert words(log.cleaned(live=frozenset(), later_ms=2 * DAY_MS)) == ". | commit 7 | a=2 b=2"


def test_what_cannot_be_read_stays() -> None:
    log = Log()
    log.append(build_batch(b"\xff", record_count=1, base_timestamp=0))
    log.write([(b"a", b"1")])
    log.write([(b"a", b"2")])
    after = log.cleaned()
    assert [header.size for header, _ in after.batches] == [
        log.batches[0][0].size,
        61,
        log.batches[2][0].size,
    ]
    with pytest.raises(ProtocolViolation):
        read_columns(after.batches[0][1], after.batches[0][0])


def test_a_memory_that_is_full_ends_the_cleaning_early() -> None:
    log = Log()
    for key in (b"a", b"b", b"c", b"a", b"b"):
        log.write([(key, b"1")])
    found = Survey(first_dirty=0, end=5, aborted=(), producers=frozenset(), keys_max=2)
    found.update(log.batches)
    assert (found.end, found.latest) == (2, {b"a": 0, b"b": 1})
    kept = Cleaner(found, aborted=(), now=0, delete_retention_ms=0).clean(log.batches)
    assert [header for header, _ in kept] == [header for header, _ in log.batches]


def test_a_batch_with_more_records_than_there_is_room_for_stays() -> None:
    log = Log()
    log.write([(b"a", b"1"), (b"b", b"1"), (b"c", b"1")])
    log.write([(b"a", b"2")])
    log.write([(b"a", b"3")])
    found = Survey(first_dirty=0, end=5, aborted=(), producers=frozenset(), keys_max=2)
    found.update(log.batches)
    assert (found.end, found.latest) == (5, {b"a": 4})
    kept = Cleaner(found, aborted=(), now=0, delete_retention_ms=0).clean(log.batches)
    assert words(Log(kept)) == "a=1 b=1 c=1 | . | a=3"


def test_a_batch_whose_headers_or_timestamps_cannot_be_read_stays() -> None:
    log = Log()
    text_for_deltas = bytes.fromhex("95c092c40161c4016292c0c092a161a162c0")
    log.append(
        build_batch(
            text_for_deltas, magic=MAGIC_COLUMNS, record_count=2, last_offset_delta=1, base_timestamp=0
        )
    )
    log.write([(b"a", b"1")])
    after = log.cleaned()
    assert [header.size for header, _ in after.batches] == [header.size for header, _ in log.batches]


def test_long_keys_are_told_apart_and_take_few_bytes() -> None:
    log = Log()
    begin = b"k" * 1_000
    log.write([(begin + b"1", b"1"), (begin + b"2", b"1"), (begin[:16], b"1")])
    log.write([(begin + b"1", b"2")])
    found = Survey(first_dirty=0, end=4, aborted=(), producers=frozenset())
    found.update(log.batches)
    assert sorted(found.latest.values()) == [1, 2, 3]
    assert max(map(len, found.latest)) < 20
    assert state(log.cleaned()) == {begin + b"1": b"2", begin + b"2": b"1", begin[:16]: b"1"}
    assert len(committed(log.cleaned())) == 3


def test_keys_take_no_more_memory_than_the_broker_counts() -> None:
    count = 50_000
    log = Log()
    log.write([(b"a key of more than sixteen bytes %d" % number, b"v") for number in range(count)])
    found = Survey(first_dirty=0, end=count, aborted=(), producers=frozenset())
    tracemalloc.start()
    try:
        found.update(log.batches)
        assert tracemalloc.get_traced_memory()[0] < count * KEY_BYTES
    finally:
        tracemalloc.stop()
    assert len(found.latest) == count
