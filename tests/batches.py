"""Batches as tests read them."""

from __future__ import annotations

from fencepost.protocol.batches import BatchHeader, Buffer, check, read_header
from fencepost.protocol.errors import ProtocolViolation


def read_batch(data: Buffer, at: int = 0) -> BatchHeader:
    """The header of the batch at byte `at`; ProtocolViolation unless all of it is there with the right
    checksum.
    """
    header = read_header(data, at)
    if len(data) - at < header.size:
        raise ProtocolViolation(f"a batch of {header.size} bytes is cut off after {len(data) - at}")
    check(data, at, header)
    return header
