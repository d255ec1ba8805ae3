"""A storage in memory, for brokers without a directory and for tests.

Rule: it behaves like the disk, except that nothing survives the process, so a sync does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fencepost.journal.storage import DirectoryInUse, MissingFile, StorageError, StorageFile
from fencepost.protocol.batches import Buffer


class MemoryFile:
    """A file that is a bytearray, and the handle to it."""

    __slots__ = ("content",)

    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)

    @property
    def size(self) -> int:
        return len(self.content)

    def append(self, data: Buffer) -> None:
        self.content += data

    def read(self, position: int, size: int) -> bytes:
        # A copy: a bytearray cannot grow while a view of it exists. Slicing the view avoids a second copy.
        return bytes(memoryview(self.content)[position : position + size])

    def truncate(self, size: int) -> None:
        del self.content[size:]

    def is_in_place(self) -> bool:
        return True  # only its owner reaches it

    def sync(self) -> None:
        """Nothing survives the process, synced or not."""

    def close(self) -> None:
        """A file in memory has no handle in the operating system."""


class MemoryDirectory:
    """A directory: its entries by name."""

    __slots__ = ("names",)

    def __init__(self) -> None:
        self.names: dict[str, Entry] = {}

    def change(self, changes: Mapping[str, Entry | None]) -> None:
        """Put these entries in the place of those with the same name; None removes one."""
        for name, entry in changes.items():
            if entry is None:
                self.names.pop(name, None)
            else:
                self.names[name] = entry

    def sync(self) -> None:
        """Nothing survives the process, synced or not."""


Entry = MemoryFile | MemoryDirectory


class MemoryStorage:
    """A data directory that is a tree of objects."""

    file: type[MemoryFile] = MemoryFile
    directory: type[MemoryDirectory] = MemoryDirectory

    def __init__(self, location: str = "memory") -> None:
        self.location = location
        self.boot_id = "1"
        self._top = self.directory()
        # A lock is kept, too, so that tests find a broker that does not release it.
        self._locked = False

    def parents(self) -> tuple[()]:
        return ()

    def claim(self) -> None:
        if self._locked:
            raise DirectoryInUse(f"{self.location} is in use by a broker")

    def lock(self) -> None:
        self.claim()
        self._locked = True

    def unlock(self) -> None:
        self._locked = False

    def exists(self) -> bool:
        return True

    def directories(self) -> list[str]:
        return sorted(name for name, entry in self._top.names.items() if isinstance(entry, MemoryDirectory))

    def files(self, directory: str) -> dict[str, int]:
        found = self._directory(directory)
        entries = sorted(found.names.items()) if found else []
        return {name: entry.size for name, entry in entries if isinstance(entry, MemoryFile)}

    def read_file(self, path: str) -> bytes | None:
        file = self._find(path)
        return None if file is None else bytes(file.content)

    def open(self, path: str, *, create: bool = False) -> StorageFile:
        file = self._find(path)
        if file is None:
            directory, _, name = path.rpartition("/")
            found = self._directory(directory)
            if not create or found is None:
                raise MissingFile(f"{self.location} has no file {path!r}")
            file = self.file()
            found.change({name: file})
        return self._opened(path, file)

    def make_directory(self, name: str) -> None:
        if name not in self._top.names:
            self._top.change({name: self.directory()})

    def rename_directory(self, name: str, new_name: str) -> None:
        if name in self._top.names:
            self._top.change({name: None, new_name: self._top.names[name]})

    def remove_directory(self, name: str) -> None:
        if name in self._top.names:
            self._top.change({name: None})

    def replace(self, path: str, data: Buffer, *, durable: bool) -> None:
        directory, _, name = path.rpartition("/")
        found = self._present(directory)
        file = self.file()
        opened = self._opened(path, file)
        opened.append(data)
        if durable:
            opened.sync()
        found.change({name: file})
        if durable:
            self.sync_directory(directory)

    def rename(self, path: str, new_path: str) -> None:
        file, (directory, _, name) = self._find(path), path.rpartition("/")
        found, new_name = self._directory(directory), new_path.rpartition("/")[2]
        if file is None or found is None:
            raise StorageError(f"{self.location} has no file {path!r}")
        found.change({name: None, new_name: file})

    def remove(self, path: str) -> None:
        directory, _, name = path.rpartition("/")
        found = self._directory(directory)
        if found is not None:
            found.change({name: None})

    def sync_directory(self, directory: str) -> None:
        self._present(directory).sync()

    def run_all(self, tasks: Sequence[Callable[[], None]]) -> None:
        problems = [problem for task in tasks if (problem := _problem_of(task)) is not None]
        if problems:
            raise problems[0]

    def _opened(self, path: str, file: MemoryFile) -> StorageFile:
        return file

    def _present(self, name: str) -> MemoryDirectory:
        found = self._directory(name)
        if found is None:
            raise StorageError(f"{self.location} has no directory {name!r}")
        return found

    def _directory(self, name: str) -> MemoryDirectory | None:
        entry = self._top.names.get(name) if name else self._top
        return entry if isinstance(entry, MemoryDirectory) else None

    def _find(self, path: str) -> MemoryFile | None:
        directory, _, name = path.rpartition("/")
        # Without `_directory`: many files are opened for each that is written or read.
        found = self._top.names.get(directory) if directory else self._top
        entry = found.names.get(name) if isinstance(found, MemoryDirectory) else None
        return entry if isinstance(entry, MemoryFile) else None


def _problem_of(task: Callable[[], None]) -> StorageError | None:
    try:
        task()
    except StorageError as problem:
        return problem
    return None
