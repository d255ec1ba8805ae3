"""Decisions against markers, and offsets against their markers, by hand."""

from __future__ import annotations

from typing import NoReturn

import pytest

from fencepost.log_model.offsets import OffsetsModel, WrittenOffset
from fencepost.log_model.partitions import LoggedMarker
from fencepost.log_model.transactions import LoggedState, decisions_of, disagreements, lowest_epoch_after
from fencepost.protocol.batches import build_marker, place, read_header
from fencepost.protocol.offsets_log import GroupBatch, OffsetKey, OffsetRecord, group_batch
from fencepost.protocol.terms import NO_OFFSET, NO_PRODUCER_ID, TopicPartition, TransactionResult
from fencepost.protocol.terms import TransactionState as State
from fencepost.protocol.transaction_log import TransactionRecord

ORDERS = TopicPartition("orders", 0)
COMMIT, ABORT = TransactionResult.COMMIT, TransactionResult.ABORT


def record(state: State, epoch: int = 0, *, version: int = 2) -> TransactionRecord:
    return TransactionRecord(
        producer_id=7,
        previous_producer_id=NO_PRODUCER_ID,
        next_producer_id=NO_PRODUCER_ID,
        producer_epoch=epoch,
        timeout_ms=1_000,
        state=state,
        partitions=(ORDERS,),
        update_ms=0,
        start_ms=0,
        client_version=version,
    )


def marker(result: TransactionResult, offset: int, epoch: int = 0) -> LoggedMarker:
    return LoggedMarker(7, epoch, result, 0, offset, NO_OFFSET)


def told(
    states: list[State],
    *markers: LoggedMarker,
    version: int = 2,
    has_every_decision: bool = True,
    has_every_marker: bool = True,
    since: int = 0,
) -> list[str]:
    """What the log of `pay` and the markers in its partition say differently; all have one epoch."""
    history = [
        LoggedState(record(state, version=version), "file", offset, 0) for offset, state in enumerate(states)
    ]
    decided = decisions_of({"pay": history}).get(ORDERS, {})
    return [
        str(found)
        for found in disagreements(
            decided,
            markers,
            since=since,
            has_every_decision=has_every_decision,
            has_every_marker=has_every_marker,
        )
    ]


COMMITTED = [State.ONGOING, State.PREPARE_COMMIT, State.COMPLETE_COMMIT]
ABORTED = [State.ONGOING, State.PREPARE_ABORT, State.COMPLETE_ABORT]


@pytest.mark.parametrize(
    ("states", "markers", "expected"),
    [
        (COMMITTED, [marker(COMMIT, 1)], []),
        (COMMITTED, [marker(COMMIT, 1), marker(COMMIT, 2)], []),
        (COMMITTED[:2], [], []),
        ([*COMMITTED, *ABORTED], [marker(COMMIT, 1), marker(ABORT, 3)], []),
        (COMMITTED, [], ["'pay' completed COMMIT of producer 7 epoch 0, but its marker is missing"]),
        ([], [marker(ABORT, 1)], ["ABORT of producer 7 epoch 0, but no coordinator decided it"]),
        (COMMITTED[:2], [marker(ABORT, 1)], ["ABORT of producer 7 epoch 0, but 'pay' decided COMMIT"]),
        (
            [*COMMITTED, *ABORTED],
            [marker(ABORT, 1), marker(COMMIT, 3)],
            ["'pay' completed ABORT of producer 7 epoch 0, but its marker is missing",
             "ABORT of producer 7 epoch 0, but no coordinator decided it"],
        ),
    ],
)  # fmt: skip
def test_what_decisions_and_markers_say_differently(
    states: list[State], markers: list[LoggedMarker], expected: list[str]
) -> None:
    assert told(states, *markers) == expected


MISSING_COMMIT = "'pay' completed COMMIT of producer 7 epoch 0, but its marker is missing"
NOT_DECIDED = "ABORT of producer 7 epoch 0, but no coordinator decided it"
CONTRADICTED = "ABORT of producer 7 epoch 0, but 'pay' decided COMMIT"


@pytest.mark.parametrize(
    ("states", "markers", "lacks", "version", "expected"),
    [
        # Compaction removed markers.
        (COMMITTED, [], {"has_every_marker": False}, 2, []),
        (COMMITTED, [marker(ABORT, 1)], {"has_every_marker": False}, 2, [CONTRADICTED]),
        ([], [marker(ABORT, 1)], {"has_every_marker": False}, 2, [NOT_DECIDED]),
        # The marker of the first COMMIT is gone: the later one must not be taken for it.
        (
            [*COMMITTED, *ABORTED, *COMMITTED],
            [marker(ABORT, 3), marker(COMMIT, 5)],
            {"has_every_marker": False},
            1,
            [],
        ),
        # Compaction removed decisions.
        ([], [marker(ABORT, 1)], {"has_every_decision": False}, 2, []),
        (COMMITTED, [], {"has_every_decision": False}, 1, [MISSING_COMMIT]),
        (COMMITTED[:2], [marker(ABORT, 1)], {"has_every_decision": False}, 2, [CONTRADICTED]),
        # An earlier transaction with the same epoch was aborted, and the COMMIT is on its way.
        (COMMITTED[:2], [marker(ABORT, 1)], {"has_every_decision": False}, 1, []),
    ],
)
def test_what_compaction_removed_is_no_disagreement(
    states: list[State],
    markers: list[LoggedMarker],
    lacks: dict[str, bool],
    version: int,
    expected: list[str],
) -> None:
    assert told(states, *markers, version=version, **lacks) == expected


@pytest.mark.parametrize(
    ("markers", "expected"), [([], []), ([marker(COMMIT, 1)], []), ([marker(ABORT, 1)], [NOT_DECIDED])]
)
def test_a_decision_from_before_the_topic_needs_no_marker_and_explains_one(
    markers: list[LoggedMarker], expected: list[str]
) -> None:
    """The topic was created again, or the clock was set back."""
    assert told(COMMITTED, *markers, since=1) == expected


def test_a_decision_raises_the_epoch_from_transaction_version_2_on() -> None:
    before = record(State.ONGOING, 4)
    assert lowest_epoch_after(before, record(State.ONGOING)) == 4
    assert lowest_epoch_after(before, record(State.PREPARE_COMMIT)) == 5
    assert lowest_epoch_after(before, record(State.PREPARE_ABORT, version=1)) == 4


# --- offsets ------------------------------------------------------------------------------------------------

KEY = OffsetKey("group", "orders", 0)


def commit(model: OffsetsModel, offset: int | None, at: int, *, producer_id: int = NO_PRODUCER_ID) -> None:
    said = None if offset is None else OffsetRecord(offset, leader_epoch=0, metadata="", commit_ms=0)
    is_transactional = producer_id != NO_PRODUCER_ID
    entries = GroupBatch(((KEY, said),))
    batch = group_batch(entries, timestamp=0, producer_id=producer_id, transactional=is_transactional)
    place(batch, base_offset=at, leader_epoch=0)
    assert list(model.apply(read_header(batch), None, [(KEY, said)])) == [KEY]


def decide(model: OffsetsModel, result: TransactionResult) -> list[OffsetKey]:
    """The marker of producer 7. Returns the keys of its pending offsets."""
    batch = build_marker(result, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp=0)
    return list(model.apply(read_header(batch), result, []))


def test_an_offset_of_a_transaction_counts_from_its_commit_on() -> None:
    model = OffsetsModel()
    commit(model, 5, 0, producer_id=7)
    assert model.committed == {}
    assert decide(model, COMMIT) == [KEY]
    assert model.committed == {KEY: WrittenOffset(5, 0)}
    commit(model, 9, 2, producer_id=7)
    decide(model, ABORT)
    assert model.committed == {KEY: WrittenOffset(5, 0)}
    assert model.pending == {}


def test_of_two_offsets_the_one_that_was_written_later_counts() -> None:
    model = OffsetsModel()
    commit(model, 5, 0, producer_id=7)
    commit(model, 8, 1)
    decide(model, COMMIT)
    assert model.committed == {KEY: WrittenOffset(8, 1)}


def test_a_tombstone_forgets_pending_offsets_too() -> None:
    model = OffsetsModel()
    commit(model, 5, 0)
    commit(model, 6, 1, producer_id=7)
    commit(model, None, 2)
    decide(model, COMMIT)
    assert model.committed == {}


class Unwalkable(dict[int, dict[OffsetKey, WrittenOffset]]):
    """Pending offsets by producer id that fail whoever visits every producer."""

    def values(self) -> NoReturn:
        raise AssertionError("a tombstone visited the offsets of every producer")


def test_a_tombstone_visits_only_the_transactions_that_hold_its_offset() -> None:
    model = OffsetsModel()
    model.pending = Unwalkable()
    commit(model, 5, 0, producer_id=7)
    commit(model, 6, 1, producer_id=8)
    decide(model, ABORT)
    commit(model, None, 2)
    assert model.pending == {8: {}}
    commit(model, 7, 3, producer_id=8)
    assert model.pending == {8: {KEY: WrittenOffset(7, 3)}}
