"""The three indexes: their bytes are Kafka's, and their look-ups agree with looking at everything."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.journal.indexes import (
    AbortedRange,
    CorruptIndex,
    OffsetIndex,
    TimeIndex,
    TransactionIndex,
    collect_aborted,
)


def transaction_index(*entries: tuple[int, int, int, int]) -> TransactionIndex:
    index = TransactionIndex()
    for entry in entries:
        index.append(AbortedRange._make(entry))
    return index


# (producer id, first, last, last stable offset): TransactionIndexTest.testCollectAbortedTransactions
ENTRIES = ((0, 0, 10, 11), (1, 5, 15, 13), (2, 18, 35, 25), (3, 32, 50, 40))


@pytest.mark.parametrize(
    ("fetch_offset", "upper", "producers", "is_complete"),
    [
        (0, 100, [0, 1, 2, 3], False),
        (0, 32, [0, 1, 2], True),
        (0, 35, [0, 1, 2, 3], True),
        (10, 35, [0, 1, 2, 3], True),
        (11, 35, [1, 2, 3], True),
        (20, 41, [2, 3], False),
        (20, 40, [2, 3], True),
    ],
)
def test_a_lookup_of_aborted_transactions(
    fetch_offset: int, upper: int, producers: list[int], *, is_complete: bool
) -> None:
    found, complete = transaction_index(*ENTRIES).collect(fetch_offset, upper=upper)
    assert ([aborted.producer_id for aborted in found], complete) == (producers, is_complete)


@pytest.mark.parametrize("cut_after", range(len(ENTRIES) + 1))
def test_a_lookup_goes_forward_across_segments(cut_after: int) -> None:
    """The first two entries overlap a range that begins before any of their markers, wherever the segments
    are cut."""
    later = transaction_index((4, 51, 60, 61))
    indexes = iter([transaction_index(*ENTRIES[:cut_after]), transaction_index(*ENTRIES[cut_after:]), later])
    found = collect_aborted(indexes, 0, upper=32)
    assert [aborted.producer_id for aborted in found] == [0, 1, 2]
    assert list(indexes)[-1] is later, "the search was complete before this segment"


def test_entries_of_aborted_transactions_are_34_bytes_in_the_order_of_their_markers() -> None:
    index = transaction_index((7, 1, 5, 6))
    assert bytes(index.data) == b"\0\0" + b"".join(n.to_bytes(8, "big") for n in (7, 1, 5, 6))
    with pytest.raises(CorruptIndex, match="not after the last entry"):
        index.append(AbortedRange(8, 2, 5, 6))
    assert len(index) == 1


def test_an_index_of_another_version_or_cut_inside_an_entry_is_refused() -> None:
    data = bytes(transaction_index((7, 1, 5, 6)).data)
    with pytest.raises(CorruptIndex, match="version 1"):
        TransactionIndex(b"\0\1" + data[2:]).collect(0, upper=10)
    for index, size in ((TransactionIndex, 33), (OffsetIndex, 7), (TimeIndex, 11)):
        with pytest.raises(CorruptIndex, match="inside an entry"):
            index(bytes(size))


def test_offsets_and_positions_are_two_big_endian_words() -> None:
    index = OffsetIndex()
    index.append(9, 4805)
    index.append(19, 0x01020304)
    assert index.encoded().hex(" ", 4) == "00000009 000012c5 00000013 01020304"
    assert index.encoded(from_entry=1).hex(" ", 4) == "00000013 01020304"
    assert OffsetIndex(index.encoded()).encoded() == index.encoded()


def test_timestamps_are_a_long_and_a_word_and_only_grow() -> None:
    index = TimeIndex()
    for timestamp, offset in ((-1, 0), (1_000, 4), (1_000, 6), (999, 8), (1_001, 9)):
        index.append(timestamp, offset)
    assert index.encoded().hex(" ", -4) == "00000000 000003e8 00000004 00000000 000003e9 00000009"
    assert TimeIndex(index.encoded()).encoded() == index.encoded()
    assert [index.offset_before(timestamp) for timestamp in (999, 1_000, 1_001, 5_000)] == [0, 4, 9, 9]


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 500)), max_size=20),
    st.integers(0, 1_200),
    st.integers(0, 12_000),
)
def test_look_ups_agree_with_a_scan(steps: list[tuple[int, int]], offset: int, position: int) -> None:
    index, entries, end = OffsetIndex(), [(0, 0)], (0, 0)
    for offset_step, position_step in steps:
        end = (end[0] + offset_step, end[1] + position_step)
        index.append(*end)
        entries.append(end)
    assert index.position_before(offset) == max(at for last, at in entries if last <= offset)
    assert index.last_position_up_to(position) == max(at for _, at in entries if at <= position)
    assert index.first_offset_from(position) == min(
        (last for last, at in entries[1:] if at >= position), default=None
    )
