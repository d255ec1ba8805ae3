"""A machine whose power can be cut: a disk that knows which bytes of which file were synced.

Rule: the death of a process loses nothing that it wrote; a power cut loses every byte that was not synced.
"""

# Theory of operation. A process works on the disk through a storage of its own, `Machine.process`. For each
# file that grows the machine notes how much of it was synced:
#
#     file   ├──── synced ────┤──── written since ────┤
#                             ▲
#                             `lose_power` truncates here; after `ProcessStorage.end`, nothing more is written
#
# This is the most that a disk may lose of the content, and the least that it may lose of the names: a file
# that was created, renamed, replaced or removed stays so, and may be empty. ext4 leaves this when its journal
# was written and the data was not. simulated.py draws from everything that may happen.
#
# Bytes that are there when the machine is made count as synced: nothing shows whether they were.

from __future__ import annotations

import attrs

from fencepost.journal.storage import Storage, StorageError, StorageFile
from fencepost.protocol.batches import Buffer


@attrs.define(eq=False)
class _Mark:
    """How many bytes of a file were synced."""

    synced: int


class Machine:
    """A disk on which processes come and go."""

    def __init__(self, disk: Storage) -> None:
        self.disk = disk
        self.boot_id = disk.boot_id
        self._cuts = 0
        self.lost_bytes = 0
        self._marks: dict[str, dict[str, _Mark]] = {}  # by directory and name; only files that have grown

    def process(self) -> ProcessStorage:
        """The disk, as the next process sees it."""
        return ProcessStorage(self)

    def lose_power(self) -> int:
        """Lose every byte that was not synced; returns how many there were. No process may be running."""
        lost = 0
        for directory, marks in list(self._marks.items()):
            sizes = self.disk.files(directory)
            for name, mark in marks.items():
                size = sizes.get(name, 0)
                if size > mark.synced:
                    file = self.disk.open(f"{directory}/{name}" if directory else name)
                    file.truncate(mark.synced)
                    file.close()
                    lost += size - mark.synced
        self._marks.clear()
        # Promises since the last boot are void: see Manifest.promised_end.
        self._cuts += 1
        self.lost_bytes += lost
        self.boot_id = f"{self.disk.boot_id}+{self._cuts}"
        return lost

    # --- what processes do

    def mark(self, path: str, synced: int) -> _Mark:
        """The mark of a file; a new one says that this many bytes of it are synced."""
        directory, _, name = path.rpartition("/")
        return self._marks.setdefault(directory, {}).setdefault(name, _Mark(synced))

    def drop_mark(self, path: str) -> _Mark | None:
        """A file is gone, or has another name."""
        directory, _, name = path.rpartition("/")
        return self._marks.get(directory, {}).pop(name, None)

    def set_mark(self, path: str, mark: _Mark | None) -> None:
        """Another file has this name now."""
        self.drop_mark(path)
        if mark is not None:
            directory, _, name = path.rpartition("/")
            self._marks.setdefault(directory, {})[name] = mark

    def move_marks(self, directory: str, new_name: str | None) -> None:
        """A directory has a new name, or is gone."""
        marks = self._marks.pop(directory, None)
        if marks is not None and new_name is not None:
            self._marks[new_name] = marks


class ProcessStorage:
    """The disk of a machine for one process; after `end` it changes nothing."""

    def __init__(self, machine: Machine) -> None:
        disk = machine.disk
        self.location, self.boot_id = disk.location, machine.boot_id
        self.is_ended = False
        self._machine, self._disk = machine, disk
        # What changes no file goes straight to the disk.
        self.exists, self.directories, self.files = disk.exists, disk.directories, disk.files
        self.read_file, self.sync_directory, self.run_all = disk.read_file, disk.sync_directory, disk.run_all
        self.claim, self.lock, self.unlock = disk.claim, disk.lock, disk.unlock
        self.parents = disk.parents

    def end(self) -> None:
        """The process is dead. A worker of the process that is still running no longer reaches the disk."""
        self.is_ended = True

    def open(self, path: str, *, create: bool = False) -> StorageFile:
        if create:
            self.check(path)
        return ProcessFile(self, path, self._disk.open(path, create=create))

    def mark(self, path: str, synced: int) -> _Mark:
        """See Machine.mark."""
        return self._machine.mark(path, synced)

    def make_directory(self, name: str) -> None:
        self.check(name)
        self._disk.make_directory(name)

    def rename_directory(self, name: str, new_name: str) -> None:
        self.check(name)
        self._disk.rename_directory(name, new_name)
        self._machine.move_marks(name, new_name)

    def remove_directory(self, name: str) -> None:
        self.check(name)
        self._disk.remove_directory(name)
        self._machine.move_marks(name, None)

    def replace(self, path: str, data: Buffer, *, durable: bool) -> None:
        self.check(path)
        self._disk.replace(path, data, durable=durable)
        self._machine.set_mark(path, None if durable else _Mark(0))

    def rename(self, path: str, new_path: str) -> None:
        self.check(path)
        self._disk.rename(path, new_path)
        self._machine.set_mark(new_path, self._machine.drop_mark(path))

    def remove(self, path: str) -> None:
        self.check(path)
        self._disk.remove(path)
        self._machine.drop_mark(path)

    def check(self, path: str) -> None:
        """StorageError when the process is dead."""
        if self.is_ended:
            raise StorageError(f"{self.location}/{path} belongs to a broker that was killed")


class ProcessFile:
    """A handle of one process; syncs move the file's mark."""

    __slots__ = ("_file", "_mark", "_path", "_storage", "close", "is_in_place")

    def __init__(self, storage: ProcessStorage, path: str, file: StorageFile) -> None:
        self._storage, self._path, self._file = storage, path, file
        self._mark: _Mark | None = None
        self.is_in_place, self.close = file.is_in_place, file.close

    @property
    def size(self) -> int:
        return self._file.size

    def read(self, position: int, size: int) -> bytes:
        return self._file.read(position, size)

    def append(self, data: Buffer) -> None:
        if self._storage.is_ended:
            self._storage.check(self._path)
        if self._mark is None:
            self._mark = self._storage.mark(self._path, self._file.size)
        self._file.append(data)

    def truncate(self, size: int) -> None:
        self._storage.check(self._path)
        self._file.truncate(size)
        mark = self._mark or self._storage.mark(self._path, size)
        mark.synced = min(mark.synced, size)

    def sync(self) -> None:
        size = self._file.size  # what is written during the sync is not promised
        self._file.sync()
        mark = self._mark or self._storage.mark(self._path, size)
        mark.synced = max(mark.synced, size)
