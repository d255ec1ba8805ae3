"""Compression: there and back, bounded on the way back, refused in words."""

from __future__ import annotations

import gzip

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from fencepost.protocol.compression import Compression, UnsupportedCompression, compress, decompress
from fencepost.protocol.errors import ProtocolViolation

SPOKEN = list(Compression)
PACKED = SPOKEN[1:]

each_spoken = pytest.mark.parametrize("compression", SPOKEN, ids=lambda compression: compression.name)
each_packed = pytest.mark.parametrize("compression", PACKED, ids=lambda compression: compression.name)


@each_spoken
@given(data=st.binary(max_size=5_000), times=st.integers(1, 50))
def test_what_goes_in_comes_out(compression: Compression, data: bytes, times: int) -> None:
    original = data * times
    assert decompress(compress(original, compression), compression) == original
    assert decompress(memoryview(compress(memoryview(original), compression)), compression) == original


@each_packed
def test_repetition_gets_small(compression: Compression) -> None:
    assert len(compress(bytes(100_000), compression)) < 5_000


@each_packed
@pytest.mark.parametrize("excess", [1, 1_000_000])
def test_a_bomb_is_refused_at_the_limit(compression: Compression, excess: int) -> None:
    limit = 50_000
    assert len(decompress(compress(bytes(limit), compression), compression, limit=limit)) == limit
    with pytest.raises(ProtocolViolation):
        decompress(compress(bytes(limit + excess), compression), compression, limit=limit)


def streamed_zstd(data: bytes) -> bytes:
    """A frame that does not announce its size, as Kafka's Java client makes them."""
    packer = zstandard.ZstdCompressor().compressobj()
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize("excess", [0, 1, 1_000_000])
def test_a_zstd_frame_of_unknown_size_is_bounded_too(excess: int) -> None:
    limit = 50_000
    packed = streamed_zstd(bytes(limit + excess))
    assert zstandard.frame_content_size(packed) == -1
    if not excess:
        assert decompress(packed, Compression.ZSTD, limit=limit) == bytes(limit)
    else:
        with pytest.raises(ProtocolViolation):
            decompress(packed, Compression.ZSTD, limit=limit)


def test_an_announced_size_is_not_believed() -> None:
    """The header of a zstd frame says 2^62 bytes: nothing of that size is ever asked for."""
    lie = bytes.fromhex("28b52ffd") + b"\xe0" + (2**62).to_bytes(8, "little") + b"\x01\x00\x00"
    assert zstandard.frame_content_size(lie) == 2**62
    with pytest.raises(ProtocolViolation, match="more than"):
        decompress(lie, Compression.ZSTD)


@each_packed
def test_a_stream_that_is_cut_or_followed_by_more_is_refused(compression: Compression) -> None:
    whole = bytes(compress(b"records" * 10, compression))
    for length in range(len(whole)):
        with pytest.raises(ProtocolViolation):
            decompress(whole[:length], compression)
    with pytest.raises(ProtocolViolation):
        decompress(whole + b"x", compression)


@each_packed
@given(data=st.binary(max_size=100), at=st.integers(0, 40), flip=st.integers(1, 255))
def test_any_bytes_are_data_or_a_violation(compression: Compression, data: bytes, at: int, flip: int) -> None:
    damaged = bytearray(compress(b"records" * 10, compression))
    damaged[at % len(damaged)] ^= flip
    for stranger in (data, damaged):
        try:
            assert len(decompress(stranger, compression, limit=1_000)) <= 1_000
        except ProtocolViolation:
            continue


@pytest.mark.parametrize(("number", "named"), [(5, "5"), (7, "7")])
def test_what_is_not_spoken_is_refused_by_name_with_what_is(number: int, named: str) -> None:
    with pytest.raises(
        UnsupportedCompression, match=f"compression {named} is not supported; use none, gzip, snappy"
    ):
        decompress(b"", number)


def snappy_java(*parts: bytes) -> bytes:
    """What snappy-java's SnappyOutputStream writes: a header, and each block after its length."""
    packed = [bytes(cramjam.snappy.compress_raw(part)) for part in parts]
    blocks = b"".join(len(block).to_bytes(4, "big") + block for block in packed)
    return b"\x82SNAPPY\0" + b"\0\0\0\1" * 2 + blocks


def test_the_snappy_stream_of_java_is_read() -> None:
    assert (
        decompress(snappy_java(b"a" * 40_000, b"b", b"c" * 7), Compression.SNAPPY)
        == b"a" * 40_000 + b"bccccccc"
    )
    assert decompress(snappy_java(), Compression.SNAPPY) == b""


def test_a_snappy_stream_of_java_is_bounded_and_checked() -> None:
    whole = snappy_java(b"a" * 600, b"b" * 600)
    with pytest.raises(ProtocolViolation, match="more than"):
        decompress(whole, Compression.SNAPPY, limit=1_199)
    first_block_ends = 16 + 4 + len(cramjam.snappy.compress_raw(b"a" * 600))
    for length in set(range(len(whole))) - {16, first_block_ends}:
        with pytest.raises(ProtocolViolation):
            decompress(whole[:length], Compression.SNAPPY)
    with pytest.raises(ProtocolViolation, match="a block of -1 bytes"):
        decompress(snappy_java() + b"\xff" * 4, Compression.SNAPPY)


def test_others_read_what_we_write() -> None:
    data = b"records" * 100
    assert gzip.decompress(bytes(compress(data, Compression.GZIP))) == data
    assert bytes(cramjam.snappy.decompress_raw(bytes(compress(data, Compression.SNAPPY)))) == data
    assert lz4.frame.decompress(compress(data, Compression.LZ4)) == data
    assert zstandard.ZstdDecompressor().decompress(compress(data, Compression.ZSTD)) == data
