"""Log directories that Apache Kafka 4.3.1 wrote, and what its consumers got from the running broker.

`NAME.tar.gz` is a whole log directory after an orderly stop. `NAME.committed.jsonl.gz` and
`NAME.uncommitted.jsonl.gz` have each record that confluent-kafka 2.16.1 consumed at that isolation level,
keys, values and headers in base64. `NAME.partitions.jsonl.gz` has what the leader of each partition said.

* `01-plain`: a partition for each compression, nulls and headers of all kinds, log-append time.
* `02-transactions`: four transactional producers and a plain one in turns, commits, aborts, a time-out, a
  transaction that is open at the end; many small segments.
"""

from __future__ import annotations

import base64
import gzip
import json
import tarfile
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from fencepost.journal.memory import MemoryStorage
from fencepost.protocol.terms import IsolationLevel, TopicPartition

HERE: Final = Path(__file__).parent
NAMES: Final = ("01-plain", "02-transactions")


@frozen
class Consumed:
    """A record as a consumer got it; `timestamp_type` is 0 for the producer's clock, 1 for the broker's."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    timestamp_type: int
    headers: tuple[tuple[str, bytes | None], ...]


@frozen
class Told:
    """What the leader of a partition said when the records were consumed."""

    log_start: int
    last_stable_offset: int
    high_watermark: int
    aborted: list[tuple[int, int]]
    """Producer id and first offset."""


def directory_of(name: str) -> MemoryStorage:
    """A new copy of a log directory."""
    storage = MemoryStorage(name)
    for path, content in _files(name).items():
        if "/" in path:
            storage.make_directory(path.partition("/")[0])
        storage.replace(path, content, durable=False)
    return storage


def unpack(name: str, target: Path) -> Path:
    """The same on the disk; returns the log directory."""
    for path, content in _files(name).items():
        file = target / name / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return target / name


@cache
def _files(name: str) -> dict[str, bytes]:
    with tarfile.open(HERE / f"{name}.tar.gz") as archive:
        members = [member for member in archive.getmembers() if member.isfile()]
        read = ((member.name, archive.extractfile(member)) for member in members)
        return {path.partition("/")[2]: file.read() for path, file in read if file is not None}


@cache
def consumed(name: str, level: IsolationLevel) -> dict[TopicPartition, list[Consumed]]:
    """What a consumer of this isolation level got, in the order of the offsets."""
    found: dict[TopicPartition, list[Consumed]] = defaultdict(list)
    for record in _lines(f"{name}.{level.name.lower().removeprefix('read_')}"):
        found[TopicPartition(record["topic"], record["partition"])].append(
            Consumed(
                record["offset"],
                _bytes(record["key"]),
                _bytes(record["value"]),
                record["timestamp"],
                record["timestampType"],
                tuple((header, _bytes(content)) for header, content in record["headers"]),
            )
        )
    return {
        partition: sorted(records, key=lambda record: record.offset) for partition, records in found.items()
    }


@cache
def told(name: str) -> dict[TopicPartition, Told]:
    """What the leaders said."""
    return {
        TopicPartition(line["topic"], line["partition"]): Told(
            line["log_start"],
            line["lso"],
            line["high_watermark"],
            [(entry["producer_id"], entry["first_offset"]) for entry in line["aborted"]],
        )
        for line in _lines(f"{name}.partitions")
    }


def _lines(name: str) -> list[dict[str, Any]]:
    with gzip.open(HERE / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _bytes(encoded: str | None) -> bytes | None:
    return None if encoded is None else base64.b64decode(encoded)
