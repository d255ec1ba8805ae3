"""Compression of the records in a batch: Kafka's numbers, and the formats Kafka's clients write under them.

Rule: the decompressed size is limited before decompressing, so that a small batch cannot fill the memory.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Final

import cramjam
import lz4.frame
import zstandard

from fencepost.protocol.batches import Buffer
from fencepost.protocol.errors import ProtocolViolation

# 64 times Kafka's default max.message.bytes; records that compress better than that are treated as an attack.
DECOMPRESSED_SIZE_MAX: Final = 64 * 1024 * 1024

# Kafka's Java client writes snappy-java's stream: this, two version numbers, and blocks after their lengths.
# Others write a single block (librdkafka), and everybody reads both.
_XERIAL: Final = b"\x82SNAPPY\0"
_XERIAL_HEADER_SIZE: Final = 16
_BLOCK_LENGTH = struct.Struct(">i")
_GZIP_WINDOW_BITS: Final = 31  # 15 bits of window, plus 16 for gzip's own header and trailer


class Compression(IntEnum):
    """The low three bits of a batch's attributes (Kafka's CompressionType)."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_NONE: Final = Compression.NONE


def compression_name(bits: int) -> str:
    """`zstd`, or the number if Kafka defines no such compression."""
    return Compression(bits).name.lower() if bits in set(Compression) else str(bits)


class UnsupportedCompression(ProtocolViolation):
    """The number of the compression has no meaning."""

    def __init__(self, compression: int) -> None:
        super().__init__(f"compression {compression} is not supported; use none, gzip, snappy, lz4 or zstd")


class DecompressedTooLarge(ProtocolViolation):
    """The data decompresses to more than its reader allows."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the records decompress to more than {limit} bytes")


def compress(data: Buffer, compression: Compression) -> Buffer:
    """Compress at the format's default level; NONE returns `data`."""
    if compression is _NONE:
        return data
    return _CODECS[compression][0](data)


def decompress(data: Buffer, compression: int, *, limit: int = DECOMPRESSED_SIZE_MAX) -> Buffer:
    """Decompress at most `limit` bytes; DecompressedTooLarge for more, ProtocolViolation when the data is
    damaged.

    `compression` is the number in the batch's attributes; UnsupportedCompression when it is not supported.
    """
    if compression == _NONE:
        return data
    if compression not in _CODECS:
        raise UnsupportedCompression(compression)
    return _CODECS[Compression(compression)][1](data, limit)


def _damaged(name: str, problem: object) -> ProtocolViolation:
    return ProtocolViolation(f"the {name} stream of the records is damaged: {problem}")


def _gzip_compress(data: Buffer) -> bytes:
    packer = zlib.compressobj(wbits=_GZIP_WINDOW_BITS)
    return packer.compress(data) + packer.flush()


def _gzip_decompress(data: Buffer, limit: int) -> bytes:
    unpacker = zlib.decompressobj(wbits=_GZIP_WINDOW_BITS)
    try:
        # One byte more than allowed tells a stream that is too large from one that just fits.
        unfolded = unpacker.decompress(data, limit + 1)
    except zlib.error as problem:
        raise _damaged("gzip", problem) from None
    return _whole("gzip", unfolded, limit, ends=unpacker.eof and not unpacker.unused_data)


def _whole(name: str, unfolded: bytes, limit: int, *, ends: bool) -> bytes:
    if len(unfolded) > limit:
        raise DecompressedTooLarge(limit)
    # Bytes after the end are in the checksum, but one reader would skip them and another read on.
    if not ends:
        raise _damaged(name, "it does not end where the batch ends")
    return unfolded


def _snappy_compress(data: Buffer) -> bytes:
    return bytes(cramjam.snappy.compress_raw(bytes(data)))


def _snappy_decompress(data: Buffer, limit: int) -> bytes:
    view = memoryview(data)
    if bytes(view[: len(_XERIAL)]) != _XERIAL:
        return _snappy_block(view, limit)
    unfolded = bytearray()
    at = _XERIAL_HEADER_SIZE
    while at < len(view):
        start = at + _BLOCK_LENGTH.size
        if start > len(view):
            raise _damaged("snappy", "it ends in the length of a block")
        (length,) = _BLOCK_LENGTH.unpack_from(view, at)
        at = start + length
        if length < 0 or at > len(view):
            raise _damaged("snappy", f"a block of {length} bytes does not fit into it")
        unfolded += _snappy_block(view[start:at], limit - len(unfolded))
    if at > len(view):
        raise _damaged("snappy", "it ends in its header")
    return bytes(unfolded)


def _snappy_block(block: memoryview, limit: int) -> bytes:
    if not block:
        raise _damaged("snappy", "an empty block")
    packed = bytes(block)
    try:
        if cramjam.snappy.decompress_raw_len(packed) > limit:  # which is what it then allocates
            raise DecompressedTooLarge(limit)
        return bytes(cramjam.snappy.decompress_raw(packed))
    except cramjam.DecompressionError as problem:
        raise _damaged("snappy", problem) from None


def _lz4_decompress(data: Buffer, limit: int) -> bytes:
    unpacker = lz4.frame.LZ4FrameDecompressor()
    try:
        unfolded = unpacker.decompress(data, max_length=limit + 1)
    except (RuntimeError, ValueError) as problem:
        raise _damaged("lz4", problem) from None
    return _whole("lz4", unfolded, limit, ends=unpacker.eof and not unpacker.unused_data)


def _zstd_compress(data: Buffer) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def _zstd_decompress(data: Buffer, limit: int) -> bytes:
    # The one-shot call trusts a size that the frame announces, so that size is looked at first; Kafka's Java
    # client streams and announces none (-1 here), and then the call is given what the limit allows.
    try:
        if zstandard.frame_content_size(data) > limit:
            raise DecompressedTooLarge(limit)
        # A frame also announces its window, which is allocated before the first byte comes out.
        unpacker = zstandard.ZstdDecompressor(max_window_size=DECOMPRESSED_SIZE_MAX)
        return unpacker.decompress(data, max_output_size=limit, allow_extra_data=False)
    except zstandard.ZstdError as problem:
        raise _damaged("zstd", problem) from None


_Codec = tuple[Callable[[Buffer], bytes], Callable[[Buffer, int], bytes]]
_CODECS: Final[dict[int, _Codec]] = {
    Compression.GZIP: (_gzip_compress, _gzip_decompress),
    Compression.SNAPPY: (_snappy_compress, _snappy_decompress),
    Compression.LZ4: (lz4.frame.compress, _lz4_decompress),
    Compression.ZSTD: (_zstd_compress, _zstd_decompress),
}
