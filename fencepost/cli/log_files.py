"""Finds and reads the files of a log without a broker.

Rule: takes no lock and writes nothing; a batch that a running broker has not finished writing ends the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fencepost.cli.errors import CommandFailed, WrongUsage
from fencepost.cli.files import refuse_uri
from fencepost.cli.likely_paths import did_you_mean, near_names, question
from fencepost.journal.data_directory import META_FILE
from fencepost.journal.segments import LOG, parse_file_name
from fencepost.journal.storage import parse_directory_name
from fencepost.protocol.batches import BatchHeader, checksum_matches, read_header
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.terms import INTERNAL_TOPICS, TopicPartition


class StoredBatch(NamedTuple):
    """One batch and its place in a file."""

    file: Path
    position: int
    header: BatchHeader
    data: bytes
    is_intact: bool


class Torn(NamedTuple):
    """Bytes at the end of a file that are not a whole batch: an unfinished write, or damage."""

    file: Path
    position: int
    size: int
    because: str


def partition_of(directory: Path) -> TopicPartition | None:
    """The partition that the directory is named after, or None."""
    return parse_directory_name(directory.name)


def partition_directories(data: Path) -> list[tuple[TopicPartition, Path]]:
    """The partitions of a data directory: internal topics last, because they describe the others."""
    found = [
        (partition, path) for path in data.iterdir() if path.is_dir() and (partition := partition_of(path))
    ]
    return sorted(found, key=lambda entry: (entry[0].topic in INTERNAL_TOPICS, entry[0]))


def segment_files(directory: Path, kind: str = LOG) -> list[Path]:
    """A partition's files of one kind, in the order of their offsets."""
    found = sorted(path for path in directory.iterdir() if parse_file_name(path.name)[1] == kind)
    for path in found:
        refuse_pipe(path)
    return found


def refuse_pipe(path: Path) -> None:
    """CommandFailed if this is a pipe: reading it would wait for its other end."""
    if path.is_fifo():
        raise CommandFailed(
            f"{path} is a pipe, not a file", then="move it away, or restore the file from a copy"
        )


def read_batches(file: Path) -> Iterator[StoredBatch | Torn]:
    """Every batch of a `.log` file, and a last Torn if the file ends in an incomplete batch."""
    data = file.read_bytes()
    at = 0
    while at < len(data):
        try:
            header = read_header(data, at)
        except ProtocolViolation as problem:
            yield Torn(file, at, len(data) - at, str(problem))
            return
        if len(data) - at < header.size:
            yield Torn(file, at, len(data) - at, f"a batch of {header.size:,} bytes is cut off")
            return
        yield StoredBatch(file, at, header, data[at : at + header.size], checksum_matches(data, at, header))
        at += header.size


def check_is_log(path: Path) -> None:
    """CommandFailed unless `path` is a data directory, a partition directory or a file."""
    then = "give the path of a copy; only audit, export and PySpark read URIs"
    refuse_uri(path, "a local directory or file", then=then)
    if not path.exists():
        raise WrongUsage(
            f"no such file or directory: {path}",
            then=_instead_of(path) or "give a data directory, partition directory or log file",
        )
    if not path.is_dir() and not path.is_file():
        raise WrongUsage(
            f"{path} is a device, a pipe or a socket, not a file",
            then="give a data directory, partition directory or log file",
        )
    if path.is_dir() and not holds_log(path):
        raise WrongUsage(
            f"{path} is not a data directory: it has no partition directory (TOPIC-NUMBER) with .log files",
            then=did_you_mean(path) or "give the directory that `fencepost serve DIR` was started with",
        )


def _instead_of(path: Path) -> str:
    """What a path that does not exist may mean: a topic of a data directory, or a file that is gone."""
    parent = path.parent
    partitions = partition_directories(parent) if parent.is_dir() else []
    if any(partition.topic == path.name for partition, _ in partitions):
        return f"did you mean {parent} --topic {path.name}?"
    beside = near_names(path)
    if near := [each for _, each in partitions if each in beside]:
        return question(near)
    return f"did you mean {parent}?" if partition_of(parent) and parent.is_dir() else did_you_mean(path)


def holds_log(directory: Path) -> bool:
    """Whether it is a partition or a data directory. A broker writes META_FILE before any partition."""
    return (
        (directory / META_FILE).exists()
        or bool(segment_files(directory))
        or any(_may_hold_log(path) for _, path in partition_directories(directory))
    )


def _may_hold_log(directory: Path) -> bool:
    """Whether a directory that is named like a partition has log files; one that cannot be read may."""
    try:
        return bool(segment_files(directory))
    except PermissionError:
        return True
