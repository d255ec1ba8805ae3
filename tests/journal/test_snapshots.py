"""Snapshots: Kafka's layout, and not one damaged byte believed."""

import pytest

from fencepost.journal.indexes import CorruptIndex, ProducerSnapshot, decode_snapshot, encode_snapshot
from fencepost.protocol.checksum import crc32c

ONE = ProducerSnapshot(
    producer_id=7,
    producer_epoch=2,
    last_sequence=41,
    last_offset=100,
    offset_delta=9,
    timestamp=1_000,
    coordinator_epoch=3,
    first_offset=91,
)
MARKER_ONLY = ProducerSnapshot(8, 0, -1, -1, 0, 1_000, 0, -1)


def test_the_layout_is_kafkas() -> None:
    data = encode_snapshot([ONE])
    assert data[:2].hex() == "0001"
    assert data[6:].hex(" ", -4) == (
        "00000001 00000000 00000007 00020000 00290000 00000000 00640000 00090000 00000000 03e80000 00030000"
        " 00000000 005b"
    )


def test_producers_come_back() -> None:
    for producers in ([], [ONE], [ONE, MARKER_ONLY]):
        assert decode_snapshot(encode_snapshot(producers)) == producers


def test_a_snapshot_that_counts_wrong_is_refused() -> None:
    body = (2).to_bytes(4, "big") + encode_snapshot([ONE])[10:]
    with pytest.raises(CorruptIndex, match="announces 2 producers"):
        decode_snapshot(b"\0\1" + crc32c(body).to_bytes(4, "big") + body)


def test_no_damaged_byte_is_believed() -> None:
    data = encode_snapshot([ONE, MARKER_ONLY])
    for at in range(len(data)):
        with pytest.raises(CorruptIndex):
            decode_snapshot(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(CorruptIndex):
            decode_snapshot(data[:at])
