"""The interface between a journal and a disk: files that grow at the end, small files that are replaced
whole, and syncs that are separate from writes.

Rule: everything in journal/ uses this interface alone. Every failure is a StorageError, and unsynced
writes may be lost.
"""

# Three storages implement it: disk.py for real files, memory.py for brokers without a directory, and
# simulated.py, which loses unsynced writes at a power failure and fails on request. The simulator can
# therefore test a journal against every promise that a disk makes, and against none that it does not make:
#
#     append            all of it, or an error, and then the file may end in garbage
#     sync              every write before the call survives a power failure
#     replace           a reader sees the old content or the new, never a mixture
#     sync_directory    names that were created, changed or removed before the call survive, too
#
# Nothing else is promised. In particular writes to two files may reach the disk in either order, and a file
# may survive without its name. There is no write in the middle of a file: what is written stays as it is, so
# a crash can only damage the end.

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from fencepost.protocol.batches import Buffer
from fencepost.protocol.errors import FencepostError, Unusable
from fencepost.protocol.terms import INT32_MAX, TopicPartition, topic_name_problem


class StorageError(FencepostError):
    """The disk failed, or its content is damaged. The leader that was writing resigns; nothing is retried."""


class MissingFile(StorageError):
    """The file to open does not exist. Retention or compaction may have removed it since it was listed."""


class NoAccess(StorageError):
    """The permissions of a file, or something else in its place, keep this process out: only an operator can
    change that, and the message says how.
    """


class DamagedLog(StorageError):
    """Bytes of a log that the broker had promised are missing or altered. The broker neither leads nor cuts
    this log until an operator acts; the message names the file, the records at stake and what helps.
    """

    def __init__(self, location: str, what: str, *, then: str = "") -> None:
        self.because = f"{location}/{what}"  # without what follows, which is true only before a repair
        restore = (
            "Restore the directory from a copy, or stop the broker and run "
            f"`fencepost repair {location}`, which lists what is lost and what can be saved"
        )
        super().__init__(f"{self.because}. Nothing was changed. {then or restore}")


def foreign_advice(location: str) -> str:
    """What to do about a partition's directory that holds the log of another one: no program can know which
    of the two names is right.
    """
    return (
        "Stop the broker. Give the directory its own name back, or move it out of the data directory and put "
        f"the right one in its place, if there is a copy. Then run `fencepost repair {location}`. "
        "`fencepost help repair` explains the causes"
    )


def replaced_advice(witness: str) -> str:
    """What to do about a log file that is not the one that a small file describes."""
    return (
        "Stop the broker, and put the right file back, if there is a copy. To keep the file that is there, "
        f"remove {witness}"
    )


class ForeignLog(DamagedLog):
    """The directory of a partition holds the log of another partition, or of another topic of this name."""

    def __init__(self, location: str, what: str) -> None:
        super().__init__(location, f"{what}, so it is neither served nor read", then=foreign_advice(location))


class ReplacedFile(DamagedLog):
    """A log file is not the one that was written here."""

    def __init__(self, location: str, path: str, witness: str) -> None:
        super().__init__(
            location,
            f"{path} is not the file that {witness} describes, so this log is not served",
            then=replaced_advice(witness),
        )


class DirectoryInUse(StorageError):
    """Another broker has locked this data directory."""


class NotADataDirectory(StorageError, Unusable):
    """The directory is not a Fencepost data directory, or has another format; the message says what to do.
    `location`: the path of the directory, if the right one may be near it.
    """

    def __init__(self, what: str, *, location: str | None = None) -> None:
        super().__init__(what)
        self.location = location


class ReadableFile(Protocol):
    """One open file, for a reader."""

    @property
    def size(self) -> int:
        """Bytes in the file, synced or not."""
        ...

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from byte `position`; fewer only at the end of the file."""
        ...

    def close(self) -> None:
        """Close the handle, without a sync."""
        ...


class StorageFile(ReadableFile, Protocol):
    """One open file. It only grows, except when recovery truncates it."""

    def append(self, data: Buffer) -> None:
        """Write at the end: everything, or StorageError, after which the file may end in garbage."""
        ...

    def truncate(self, size: int) -> None:
        """Truncate the file to its first `size` bytes."""
        ...

    def is_in_place(self) -> bool:
        """Whether its path still names this file. Writes to a file that was removed or replaced succeed, and
        are lost.
        """
        ...

    def sync(self) -> None:
        """Return when everything written before the call survives a power failure. May run in a different
        thread from append.
        """
        ...


class StorageReader(Protocol):
    """The part of a data directory that needs no lock. Paths are `name` or `directory/name`; "" is the data
    directory itself.
    """

    @property
    def location(self) -> str:
        """The location, for messages."""
        ...

    @property
    def boot_id(self) -> str:
        """An id of the machine's current boot. What was written since that boot is still there, unless the
        disk failed. Empty if the system has no such id.
        """
        ...

    def exists(self) -> bool:
        """Whether the data directory exists; `lock` creates it."""
        ...

    def directories(self) -> list[str]:
        """The names of the directories in it, sorted; NotADataDirectory when it does not exist."""
        ...

    def files(self, directory: str) -> dict[str, int]:
        """Name and size in bytes of each file in a directory, sorted by name; empty when it does not
        exist."""
        ...

    def read_file(self, path: str) -> bytes | None:
        """The whole content of a file; None when it does not exist."""
        ...

    def open(self, path: str) -> ReadableFile:
        """A handle; MissingFile when the file is missing."""
        ...


class Storage(StorageReader, Protocol):
    """A data directory that can be written."""

    def open(self, path: str, *, create: bool = False) -> StorageFile:
        """A handle to a file that grows; MissingFile when it is missing and `create` is false."""
        ...

    def parents(self) -> Iterable[StorageReader]:
        """Every directory above the data directory, and above the target of each link in its path."""
        ...

    def claim(self) -> None:
        """Keep other brokers out until `lock` or `unlock`, if the data directory exists; changes nothing in
        it. DirectoryInUse when another broker is its owner.
        """
        ...

    def lock(self) -> None:
        """Become the only owner until `unlock`; DirectoryInUse when another broker is."""
        ...

    def unlock(self) -> None:
        """Release the lock."""
        ...

    def make_directory(self, name: str) -> None:
        """Create a directory, if it does not exist."""
        ...

    def rename_directory(self, name: str, new_name: str) -> None:
        """Rename a directory, atomically, if it exists."""
        ...

    def remove_directory(self, name: str) -> None:
        """Remove a directory and its files, if it exists."""
        ...

    def replace(self, path: str, data: Buffer, *, durable: bool) -> None:
        """Replace a file atomically: a reader sees the old content or the new. Survives a power failure only
        if `durable`.
        """
        ...

    def rename(self, path: str, new_path: str) -> None:
        """Rename a file within its directory, atomically, over another one if there is one."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""
        ...

    def sync_directory(self, directory: str) -> None:
        """Return when files created, replaced and removed in a directory stay so after a power failure."""
        ...

    def run_all(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Run independent tasks that wait for syncs, perhaps in parallel. After the last one, the first error
        is raised.
        """
        ...


@contextmanager
def claimed(storage: Storage) -> Generator[None]:
    """Keep other brokers out of the data directory during the block. Afterwards, any of them may start."""
    storage.claim()
    try:
        yield
    finally:
        storage.unlock()


TEMPORARY_SUFFIX = ".tmp"  # `replace` writes this file and renames it; a start removes what a crash left
CLEANED_SUFFIX = ".cleaned"  # a cleaned segment until it takes the place of others (Kafka's name); likewise
RELISTINGS = 3  # of a partition's files by a reader: a restart or a cleaning changes them no more often

Files = TypeVar("Files")
Result = TypeVar("Result")


def read_listed(
    list_files: Callable[[], Files],
    read: Callable[[Files], Result],
    *,
    retried: tuple[type[Exception], ...],
    listed: Files | None = None,
) -> Result:
    """List files and return `read(files)`. If it raises one of `retried`, and the files have changed
    meanwhile, they are listed and read again, up to RELISTINGS times: a broker removes and replaces files at
    any moment. `listed` is an earlier listing, to begin with.
    """
    files = list_files() if listed is None else listed
    for _ in range(RELISTINGS):
        try:
            return read(files)
        except retried:
            before, files = files, list_files()
            if files == before:
                raise
    return read(files)


def directory_name(partition: TopicPartition) -> str:
    """The directory of a partition. The controller checked the topic's name when it created the topic."""
    problem = topic_name_problem(partition.topic)
    assert problem is None, f"a journal for topic {partition.topic!r}: {problem}"
    assert partition.partition >= 0, f"a journal for partition {partition.partition}"
    return f"{partition.topic}-{partition.partition}"


def parse_directory_name(name: str) -> TopicPartition | None:
    """The partition that a directory belongs to, or None. A topic may contain '-'; the last one separates the
    number.
    """
    topic, dash, digits = name.rpartition("-")
    if not dash or topic_name_problem(topic) is not None or not (digits.isascii() and digits.isdigit()):
        return None
    number = int(digits)
    # "t-01" would be a second directory for t-1, and the protocol's numbers are 32-bit.
    return TopicPartition(topic, number) if digits == str(number) and number <= INT32_MAX else None
