"""The interface between a journal and a disk: files that grow at the end, small files that are replaced
whole, and syncs that are separate from writes.

Rule: everything in journal/ uses this interface alone. Every failure is a StorageError, and what was not
synced may be lost.
"""

# Three storages implement it: disk.py for real files, memory.py for brokers without a directory, and
# simulated.py, which loses unsynced writes at a power failure and breaks on request. The simulator can
# therefore test a journal against every promise that a disk makes, and against none that it does not make.

from __future__ import annotations

from typing import Protocol

from fencepost.protocol.batches import Buffer
from fencepost.protocol.errors import FencepostError
from fencepost.protocol.terms import TopicPartition, topic_name_problem


class StorageError(FencepostError):
    """The disk failed or holds what it cannot hold. Whoever wrote gives up leadership; nothing is retried."""


class DirectoryInUse(StorageError):
    """Another broker holds the lock of this data directory."""


class NotADataDirectory(StorageError):
    """The directory holds no Fencepost log (or one of another format); the message says what to do."""


class StorageFile(Protocol):
    """One open file that only grows, except when recovery cuts it."""

    @property
    def size(self) -> int:
        """Bytes in the file, synced or not."""
        ...

    def append(self, data: Buffer) -> None:
        """One write at the end; all of it or StorageError, after which the tail of the file may be
        garbage."""
        ...

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from byte `position`; fewer only at the end of the file."""
        ...

    def truncate(self, size: int) -> None:
        """Cuts the file to its first `size` bytes."""
        ...

    def sync(self) -> None:
        """Returns when all that was written before the call survives a loss of power. May run in another
        thread than append."""
        ...

    def close(self) -> None:
        """Gives the handle back; does not sync."""
        ...


class StorageReader(Protocol):
    """The half that looks without a lock. Paths are `name` or `directory/name`; "" is the top."""

    @property
    def location(self) -> str:
        """Where this is, for messages."""
        ...

    def exists(self) -> bool:
        """Whether there is a top; `lock` makes it when there is none."""
        ...

    def directories(self) -> list[str]:
        """Names of the directories at the top, sorted; NotADataDirectory when there is no top."""
        ...

    def files(self, directory: str) -> dict[str, int]:
        """Name and size in bytes of each file in a directory, sorted by name; empty when it does not
        exist."""
        ...

    def read_file(self, path: str) -> bytes | None:
        """All of a file, or None when there is none."""
        ...

    def open(self, path: str, *, create: bool = False) -> StorageFile:
        """A handle; StorageError when the file is missing and `create` is false."""
        ...


class Storage(StorageReader, Protocol):
    """A data directory that can be written."""

    def lock(self) -> None:
        """Makes this the only owner until unlock; DirectoryInUse when there is one."""
        ...

    def unlock(self) -> None:
        """Lets the next owner in."""
        ...

    def make_directory(self, name: str) -> None:
        """Makes a directory at the top; nothing when it exists."""
        ...

    def rename_directory(self, name: str, new_name: str) -> None:
        """Renames a directory at the top, at once or not at all."""
        ...

    def remove_directory(self, name: str) -> None:
        """Removes a directory and the files in it; nothing when it does not exist."""
        ...

    def replace(self, path: str, data: Buffer, *, durable: bool) -> None:
        """Puts `data` in place of the file: a reader sees the old or the new, never a mix. Survives power
        loss only if `durable`."""
        ...

    def remove(self, path: str) -> None:
        """Removes a file; nothing when it does not exist."""
        ...

    def sync_directory(self, directory: str) -> None:
        """Returns when the names created, replaced and removed in a directory survive a loss of power."""
        ...


TEMPORARY_SUFFIX = ".tmp"  # what `replace` writes before it renames; strays are removed when a journal opens


def directory_name(partition: TopicPartition) -> str:
    """The directory of a partition. The name was checked when the topic was made."""
    problem = topic_name_problem(partition.topic)
    assert problem is None, f"a journal for topic {partition.topic!r}: {problem}"
    assert partition.partition >= 0, f"a journal for partition {partition.partition}"
    return f"{partition.topic}-{partition.partition}"


def parse_directory_name(name: str) -> TopicPartition | None:
    """The partition that a directory holds, None when it holds none. Topics may contain '-': the last one
    counts."""
    topic, dash, digits = name.rpartition("-")
    if not dash or topic_name_problem(topic) is not None or not (digits.isascii() and digits.isdigit()):
        return None
    return TopicPartition(topic, int(digits)) if digits == str(int(digits)) else None
