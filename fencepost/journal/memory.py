"""A storage in memory, for brokers without a directory and for tests.

Rule: it behaves like the disk, except that nothing survives the process, so a sync does nothing.
"""

from __future__ import annotations

from fencepost.journal.storage import DirectoryInUse, StorageError
from fencepost.protocol.batches import Buffer


class MemoryFile:
    """A file that is a bytearray."""

    __slots__ = ("_content",)

    def __init__(self, content: bytearray) -> None:
        self._content = content

    @property
    def size(self) -> int:
        return len(self._content)

    def append(self, data: Buffer) -> None:
        self._content += data

    def read(self, position: int, size: int) -> bytes:
        # A copy: a bytearray cannot grow while a view of it exists. Slicing the view avoids a second copy.
        return bytes(memoryview(self._content)[position : position + size])

    def truncate(self, size: int) -> None:
        del self._content[size:]

    def sync(self) -> None:
        """Nothing survives the process, synced or not."""

    def close(self) -> None:
        """A file in memory has no handle."""


class MemoryStorage:
    """A data directory that is a dictionary of dictionaries."""

    def __init__(self, location: str = "memory") -> None:
        self.location = location
        self._directories: dict[str, dict[str, bytearray]] = {"": {}}
        # A lock is kept, too, so that tests find a broker that does not release it.
        self._locked = False

    def lock(self) -> None:
        if self._locked:
            raise DirectoryInUse(f"{self.location} is in use by another broker")
        self._locked = True

    def unlock(self) -> None:
        self._locked = False

    def exists(self) -> bool:
        return True

    def directories(self) -> list[str]:
        return sorted(name for name in self._directories if name)

    def files(self, directory: str) -> dict[str, int]:
        return {name: len(content) for name, content in sorted(self._directories.get(directory, {}).items())}

    def read_file(self, path: str) -> bytes | None:
        directory, name = self._split(path)
        content = self._directories.get(directory, {}).get(name)
        return None if content is None else bytes(content)

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        directory, name = self._split(path)
        files = self._directories.get(directory)
        if files is None:
            raise StorageError(f"{self.location} has no directory {directory!r}")
        if name not in files:
            if not create:
                raise StorageError(f"{self.location} has no file {path!r}")
            files[name] = bytearray()
        return MemoryFile(files[name])

    def make_directory(self, name: str) -> None:
        self._directories.setdefault(name, {})

    def rename_directory(self, name: str, new_name: str) -> None:
        self._directories[new_name] = self._directories.pop(name)

    def remove_directory(self, name: str) -> None:
        self._directories.pop(name, None)

    def replace(self, path: str, data: Buffer, *, durable: bool) -> None:
        directory, name = self._split(path)
        self._directories[directory][name] = bytearray(data)

    def remove(self, path: str) -> None:
        directory, name = self._split(path)
        self._directories.get(directory, {}).pop(name, None)

    def sync_directory(self, directory: str) -> None:
        """Nothing survives the process, synced or not."""

    @staticmethod
    def _split(path: str) -> tuple[str, str]:
        directory, _, name = path.rpartition("/")
        return directory, name
