"""The model of a partition: stories, and every prefix of random logs against the naive account that reads the
whole log for each question (tests/broker/naive_log.py).
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fencepost.log_model.partitions import LoggedAbort, ModelProducer, PartitionModel
from fencepost.protocol.batches import BatchHeader, build_batch, build_marker, place, read_header, read_marker
from fencepost.protocol.records import build_data_batch
from fencepost.protocol.terms import INT32_MAX, NO_OFFSET, NO_SEQUENCE, TransactionResult
from tests.broker import naive_log

COMMIT, ABORT = TransactionResult.COMMIT, TransactionResult.ABORT


class Written:
    """A log that is written batch by batch, and its model."""

    def __init__(self) -> None:
        self.batches: list[tuple[BatchHeader, bytes]] = []
        self.model = PartitionModel()

    def data(
        self, producer_id: int, *, epoch: int = 0, sequence: int = 0, count: int = 1, plain: bool = False
    ) -> None:
        self._append(
            build_data_batch(
                [b"v"] * count,
                base_timestamp=len(self.batches),
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
                transactional=not plain,
            )
        )

    def marker(self, producer_id: int, result: TransactionResult, *, epoch: int = 0) -> None:
        self._append(
            build_marker(
                result,
                producer_id=producer_id,
                producer_epoch=epoch,
                coordinator_epoch=3,
                timestamp=len(self.batches),
            )
        )

    def _append(self, batch: bytearray) -> None:
        place(batch, base_offset=self.model.end_offset, leader_epoch=0)
        header = read_header(batch)
        self.batches.append((header, bytes(batch)))
        self.model.apply(header, read_marker(batch) if header.is_control else None)


def test_the_picture_of_the_module() -> None:
    log, stable = Written(), list[int]()
    log.data(7)
    stable.append(log.model.last_stable_offset)
    log.data(8)
    stable.append(log.model.last_stable_offset)
    log.data(7, sequence=1)
    stable.append(log.model.last_stable_offset)
    log.marker(7, COMMIT, epoch=1)
    stable.append(log.model.last_stable_offset)
    log.data(8, sequence=1)
    stable.append(log.model.last_stable_offset)
    log.marker(8, ABORT, epoch=1)
    stable.append(log.model.last_stable_offset)
    assert stable == [0, 0, 0, 1, 1, 6]
    assert log.model.aborted == [LoggedAbort(8, 1, 5, 6)]
    assert [log.model.result_of(7, 0), log.model.result_of(7, 2)] == [COMMIT, COMMIT]
    assert [log.model.result_of(8, 1), log.model.result_of(8, 4)] == [ABORT, ABORT]
    assert log.model.open_transactions() == []


def test_sequences_go_on_wrap_and_begin_again_with_the_epoch() -> None:
    log = Written()
    assert log.model.expected_sequence(7, 0) is None
    log.data(7, sequence=INT32_MAX)
    assert log.model.expected_sequence(7, 0) == 0
    log.data(7, count=3)
    assert log.model.expected_sequence(7, 0) == 3
    assert log.model.expected_sequence(7, 1) == 0
    log.marker(7, COMMIT, epoch=1)
    assert log.model.expected_sequence(7, 1) == 0
    assert log.model.producers[7] == ModelProducer(1, NO_SEQUENCE, NO_OFFSET, 0, 2, 3, NO_OFFSET)


def test_a_repeated_marker_ends_nothing_and_the_first_one_counts() -> None:
    log = Written()
    log.data(7)
    log.marker(7, COMMIT, epoch=1)
    log.marker(7, COMMIT, epoch=1)
    last = log.model.last_marker(7)
    assert last is not None
    assert (last.offset, last.first_offset) == (1, 0)
    assert [marker.first_offset for marker in log.model.all_markers()] == [0, NO_OFFSET]
    log.data(7, epoch=1)
    log.marker(7, ABORT, epoch=2)
    last, first = log.model.last_marker(7), log.model.first_marker(7, 1)
    assert last is not None
    assert first is not None
    assert (last.offset, first.offset) == (4, 1)
    assert log.model.last_marker(8) is None
    assert log.model.first_marker(7, 5) is None


def test_a_control_batch_of_another_kind_changes_no_producer() -> None:
    model = PartitionModel()
    batch = build_batch(
        b"", magic=2, attributes=0x20, record_count=0, last_offset_delta=0, base_timestamp=0, max_timestamp=0,
        producer_id=7, producer_epoch=0, base_sequence=NO_SEQUENCE,
    )  # fmt: skip
    assert model.apply(read_header(batch), None) is None
    assert (model.producers, model.end_offset) == ({}, 1)


steps = st.lists(
    st.tuples(st.sampled_from(["data", "plain", "commit", "abort"]), st.sampled_from([7, 8, 9])), max_size=25
)


@given(steps)
def test_every_prefix_of_a_log_says_what_the_naive_account_says(happened: list[tuple[str, int]]) -> None:
    log = Written()
    for kind, producer_id in happened:
        sequence = log.model.expected_sequence(producer_id, 0) or 0
        if kind in ("commit", "abort"):
            log.marker(producer_id, COMMIT if kind == "commit" else ABORT)
        elif kind == "data" or producer_id not in log.model.open:  # no plain batch inside a transaction
            log.data(producer_id, sequence=sequence, count=2, plain=kind == "plain")
        lines = naive_log.read(log.batches)
        model = log.model
        assert model.last_stable_offset == naive_log.stable_offset(lines, model.end_offset)
        assert [tuple(found) for found in model.aborted] == [
            tuple(found) for found in naive_log.aborted_ranges(lines)
        ]
        assert [(number, *known) for number, known in sorted(model.producers.items())] == [
            tuple(known) for known in naive_log.snapshot(naive_log.producers(lines))
        ]
