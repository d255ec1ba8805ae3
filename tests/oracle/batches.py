"""The one batch of a recorded Produce, with the faults that a conversation plants in it.

Rule: values do not matter, sizes do; what is not said is as a well-behaved client has it.
"""

from __future__ import annotations

import attrs
from crc32c import crc32c

from fencepost.protocol.batches import (
    CONTROL_BIT,
    CRC_START,
    HEADER,
    MAGIC_COLUMNS,
    TRANSACTIONAL_BIT,
    BatchHeader,
    build_batch,
)
from fencepost.protocol.records import build_data_batch
from fencepost.protocol.terms import NO_PRODUCER_EPOCH, NO_SEQUENCE
from tests.oracle.conversation import Fields
from tests.protocol.headers import put_header


def recorded_batch(args: Fields, *, producer_id: int, now_ms: int) -> bytearray:
    """The batch that a Produce's arguments describe; without a timestamp it is of `now_ms`."""
    records: int = args["records"]
    batch = _empty_batch(args, producer_id, now_ms) if records == 0 else _batch(args, producer_id, now_ms)
    if args.get("control"):
        header = _header(batch)
        _put(batch, attrs.evolve(header, attributes=header.attributes | CONTROL_BIT))
    if "magic" in args:
        _put(batch, attrs.evolve(_header(batch), magic=args["magic"]))
    if args.get("corrupt"):
        batch[-1] ^= 1
    return batch


def _batch(args: Fields, producer_id: int, now_ms: int) -> bytearray:
    values = [b"v%d" % (n % 10) + b"x" * args.get("value_size", 0) for n in range(args["records"])]
    return build_data_batch(
        values,
        base_timestamp=args.get("timestamp", now_ms),
        producer_id=producer_id,
        producer_epoch=args.get("epoch", NO_PRODUCER_EPOCH),
        base_sequence=args.get("sequence", NO_SEQUENCE),
        transactional=args.get("transactional", False),
    )


def _empty_batch(args: Fields, producer_id: int, now_ms: int) -> bytearray:
    """A header and nothing else: its last offset lies before its first."""
    timestamp = args.get("timestamp", now_ms)
    return build_batch(
        b"",
        magic=MAGIC_COLUMNS,
        attributes=TRANSACTIONAL_BIT if args.get("transactional") else 0,
        record_count=0,
        last_offset_delta=-1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=args.get("epoch", NO_PRODUCER_EPOCH),
        base_sequence=args.get("sequence", NO_SEQUENCE),
    )


def _header(batch: bytearray) -> BatchHeader:
    """Its header, faults and all."""
    return BatchHeader(*HEADER.unpack_from(batch, 0))


def _put(batch: bytearray, header: BatchHeader) -> None:
    """Another header over the same records, with the checksum that belongs to it."""
    put_header(batch, header)
    put_header(batch, attrs.evolve(header, crc=crc32c(memoryview(batch)[CRC_START:])))
