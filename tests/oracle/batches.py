"""The one batch of a recorded Produce, with the faults that a conversation plants in it.

Rule: values do not matter, sizes do; what is not said is as a well-behaved client has it.
"""

from __future__ import annotations

from importlib import import_module

import attrs

from fencepost.protocol.batches import (
    CONTROL_BIT,
    CRC_START,
    HEADER,
    MAGIC_COLUMNS,
    MAGIC_KAFKA,
    TRANSACTIONAL_BIT,
    BatchHeader,
    build_batch,
)
from fencepost.protocol.checksum import crc32c
from fencepost.protocol.records import build_data_batch
from fencepost.protocol.terms import NO_PRODUCER_EPOCH, NO_SEQUENCE
from tests.oracle.conversation import Fields
from tests.protocol.headers import put_header


def recorded_batch(args: Fields, *, producer_id: int, now_ms: int, is_kafka: bool = False) -> bytearray:
    """The batch that a Produce's arguments describe; without a timestamp it is of `now_ms`."""
    if args["records"] == 0:
        batch = _empty_batch(args, producer_id, now_ms, MAGIC_KAFKA if is_kafka else MAGIC_COLUMNS)
    else:
        batch = (_kafka_batch if is_kafka else _batch)(args, producer_id, now_ms)
    if args.get("control"):
        header = _header(batch)
        _put(batch, attrs.evolve(header, attributes=header.attributes | CONTROL_BIT))
    if "magic" in args:
        _put(batch, attrs.evolve(_header(batch), magic=args["magic"]))
    if args.get("corrupt"):
        batch[-1] ^= 1
    return batch


def _values(args: Fields) -> list[bytes]:
    return [b"v%d" % (n % 10) + b"x" * args.get("value_size", 0) for n in range(args["records"])]


def _kafka_batch(args: Fields, producer_id: int, now_ms: int) -> bytearray:
    """By kafka-python, which shares no code with the broker."""
    builder = import_module("kafka.record.default_records").DefaultRecordBatchBuilder(
        magic=MAGIC_KAFKA,
        compression_type=0,
        is_transactional=args.get("transactional", False),
        producer_id=producer_id,
        producer_epoch=args.get("epoch", NO_PRODUCER_EPOCH),
        base_sequence=args.get("sequence", NO_SEQUENCE),
        batch_size=1 << 30,
    )
    for number, value in enumerate(_values(args)):
        builder.append(number, args.get("timestamp", now_ms), None, value, [])
    return bytearray(builder.build())


def _batch(args: Fields, producer_id: int, now_ms: int) -> bytearray:
    return build_data_batch(
        _values(args),
        base_timestamp=args.get("timestamp", now_ms),
        producer_id=producer_id,
        producer_epoch=args.get("epoch", NO_PRODUCER_EPOCH),
        base_sequence=args.get("sequence", NO_SEQUENCE),
        transactional=args.get("transactional", False),
    )


def _empty_batch(args: Fields, producer_id: int, now_ms: int, magic: int) -> bytearray:
    """A header and nothing else: its last offset lies before its first."""
    timestamp = args.get("timestamp", now_ms)
    return build_batch(
        b"",
        magic=magic,
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
