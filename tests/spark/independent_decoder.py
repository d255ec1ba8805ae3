"""A decoder of data directories that shares no code with the project: what a reader must see, from first
principles. It reads every byte of every log, and follows each producer from batch to marker.
"""

import gzip
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import lz4.frame
import msgpack
import zstandard

from fencepost.protocol.checksum import crc32c

HEADER = struct.Struct(">qiibIhiqqqhii")
TRANSACTIONAL, CONTROL = 0x10, 0x20
KAFKA, COLUMNS = 2, 109
ABORT = 0


class Decoded(NamedTuple):
    """A record; the timestamp in milliseconds."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...]


class Batch(NamedTuple):
    base_offset: int
    magic: int
    attributes: int
    producer_id: int
    records: list[Decoded]


def read_partition(directory: Path, *, committed: bool) -> list[Decoded]:
    """The records of a partition's directory that a reader of this isolation level sees, in order."""
    batches = read_batches(directory)
    start_file = directory / "log-start-offset.json"
    start = json.loads(start_file.read_text())["log_start_offset"] if start_file.exists() else 0
    outcome: dict[int, int] = {}  # index of a batch, and the type of the marker that ended its transaction
    opened: dict[int, list[int]] = {}
    for index, batch in enumerate(batches):
        if batch.attributes & CONTROL:
            marker = struct.unpack_from(">hh", batch.records[0].key or b"")[1]
            for member in opened.pop(batch.producer_id, []):
                outcome[member] = marker
        elif batch.attributes & TRANSACTIONAL:
            opened.setdefault(batch.producer_id, []).append(index)
    undecided = min((batches[members[0]].base_offset for members in opened.values()), default=None)
    found: list[Decoded] = []
    for index, batch in enumerate(batches):
        if batch.attributes & CONTROL:
            continue
        if committed and undecided is not None and batch.base_offset >= undecided:
            break
        if not committed or outcome.get(index) != ABORT:
            found += [record for record in batch.records if record.offset >= start]
    return found


def read_batches(directory: Path) -> list[Batch]:
    """Every whole batch of a partition's directory, in order."""
    return [batch for log in sorted(directory.glob("*.log")) for batch in walk(log.read_bytes())]


def walk(data: bytes) -> Iterator[Batch]:
    """The batches of a file up to the first that is torn."""
    position = 0
    while position + HEADER.size <= len(data):
        base, length, _, magic, crc, attributes, _, time, _, producer_id, _, _, count = HEADER.unpack_from(
            data, position
        )
        end = position + 12 + length
        if end > len(data) or crc32c(data[position + 21 : end]) != crc:
            return
        payload = unfolded(data[position + HEADER.size : end], attributes & 7)
        rows = columns(payload) if magic == COLUMNS else records(payload, count)
        decoded = [
            Decoded(base + offset, key, value, time + ms, tuple(h)) for offset, key, value, ms, h in rows
        ]
        yield Batch(base, magic, attributes, producer_id, decoded)
        position = end


def unfolded(payload: bytes, codec: int) -> bytes:
    match codec:
        case 0:
            return payload
        case 1:
            return gzip.decompress(payload)
        case 3:
            return lz4.frame.decompress(payload)
        case 4:
            return zstandard.ZstdDecompressor().decompressobj().decompress(payload)
        case _:
            raise ValueError(f"codec {codec}")


def columns(payload: bytes) -> Iterator[tuple[Any, ...]]:
    """Offset delta, key, value, time delta and headers of each record of a batch of columns."""
    offsets, keys, values, times, headers = msgpack.unpackb(payload)
    for number, value in enumerate(values):
        yield (
            number if offsets is None else offsets[number],
            None if keys is None else keys[number],
            value,
            0 if times is None else times[number],
            [] if headers is None or headers[number] is None else [(k, v) for k, v in headers[number]],
        )


def records(payload: bytes, count: int) -> Iterator[tuple[Any, ...]]:
    """The same of Kafka's own records."""
    at = 0

    def number() -> int:
        nonlocal at
        shift = result = 0
        while True:
            byte = payload[at]
            at += 1
            result |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (result >> 1) ^ -(result & 1)

    def data() -> bytes | None:
        nonlocal at
        size = number()
        if size < 0:
            return None
        at += size
        return payload[at - size : at]

    for _ in range(count):
        number()
        at += 1  # attributes
        time, offset = number(), number()
        key, value = data(), data()
        headers = [((data() or b"").decode(), data()) for _ in range(number())]
        yield offset, key, value, time, headers
